//! Where a store is, as a person writes it.

use std::fmt;
use std::path::PathBuf;

use crate::Error;

/// What a store on a server is called there if the URL does not say.
const PREFIX: &str = "forebay";
const REDIS_PORT: u16 = 6379;
const ETCD_PORT: u16 = 2379;

/// A store that a URL names.
#[derive(Clone, PartialEq, Eq)]
pub enum Location {
    /// `embedded:/dir`: the engine of this process, in a folder.
    Embedded(PathBuf),
    /// `redis://[user:password@]host[:port][/db]`, or `valkey://`, with `?prefix=NAME` and
    /// `?durability=always|everysec`.
    Redis {
        /// Host, port, database and password as a URL without options.
        server: String,
        /// What the names of all its keys begin with.
        prefix: String,
        /// A power cut of the server's node may take the last second of what was synced.
        accepts_everysec: bool,
    },
    /// `etcd://host[:port][,host[:port]...]`, with `?prefix=NAME`.
    Etcd {
        /// Host and port of each member.
        members: Vec<String>,
        /// What the names of all its keys begin with.
        prefix: String,
    },
}

/// As [`fmt::Display`]: a debugger of settings is no place for a password either.
impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Without user and password, and without what is no part of where it is: two that show the same
/// are one store.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Embedded(dir) => write!(f, "embedded:{}", dir.display()),
            Location::Redis { server, prefix, .. } => {
                let place = server.strip_prefix("redis://").unwrap_or(server);
                let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
                write!(f, "redis://{place}?prefix={prefix}")
            }
            Location::Etcd { members, prefix } => {
                write!(f, "etcd://{}?prefix={prefix}", members.join(","))
            }
        }
    }
}

impl Location {
    /// Reads a URL.
    ///
    /// # Errors
    ///
    /// [`Error::Setup`] with what is wrong, and what would be right.
    pub fn parse(url: &str) -> Result<Location, Error> {
        Location::parse_for(PREFIX, url)
    }

    /// Whether both are one store, whoever logs in to it: the same database, or clusters of etcd
    /// that have a member in common, and the same prefix.
    pub fn is_same(&self, other: &Location) -> bool {
        match (self, other) {
            (
                Location::Etcd { members, prefix },
                Location::Etcd {
                    members: others,
                    prefix: of_others,
                },
            ) => prefix == of_others && members.iter().any(|member| others.contains(member)),
            _ => self.to_string() == other.to_string(),
        }
    }

    /// The whole URL, for who opens the store: with user and password.
    pub fn with_password(&self) -> String {
        match self {
            Location::Redis {
                server,
                prefix,
                accepts_everysec,
            } => {
                let durability = match accepts_everysec {
                    true => "everysec",
                    false => "always",
                };
                format!("{server}?prefix={prefix}&durability={durability}")
            }
            Location::Embedded(_) | Location::Etcd { .. } => self.to_string(),
        }
    }

    /// Its server may lose the last second of what it has confirmed when its node loses power.
    pub fn accepts_loss(&self) -> bool {
        matches!(self, Location::Redis { accepts_everysec, .. } if *accepts_everysec)
    }

    /// As [`Location::parse`]; this is the prefix, a valid one, of a URL that gives none.
    ///
    /// # Errors
    ///
    /// As [`Location::parse`].
    pub fn parse_for(prefix: &str, url: &str) -> Result<Location, Error> {
        if let Some(dir) = url.strip_prefix("embedded:") {
            return match dir.starts_with('/') {
                true => Ok(Location::Embedded(dir.into())),
                false => Err(wrong(url, "give the folder from the root: embedded:/dir")),
            };
        }
        let known = "a store is embedded:/dir, redis://host:port/db or etcd://host:port,host:port";
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong(url, known))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        match scheme {
            "redis" | "valkey" => redis(url, prefix, (authority, path, query)),
            "etcd" => etcd(url, prefix, (authority, path, query)),
            "rediss" => Err(wrong(
                url,
                "no TLS: the network to the store has to be trusted; write redis://",
            )),
            _ => Err(wrong(url, known)),
        }
    }
}

/// Authority, path and options of a URL.
type Parts<'a> = (&'a str, &'a str, &'a str);

fn redis(url: &str, prefix: &str, (authority, path, query): Parts<'_>) -> Result<Location, Error> {
    let (login, host) = match authority.rsplit_once('@') {
        Some((login, host)) => (format!("{login}@"), host),
        None => (String::new(), authority),
    };
    let host = host_and_port(url, host, REDIS_PORT)?;
    let database = match path {
        "" => 0,
        path => path
            .parse::<u16>()
            .map_err(|_| wrong(url, "the database is a number, as in redis://host:6379/0"))?,
    };
    let (mut prefix, mut accepts_everysec) = (prefix.to_string(), false);
    for (name, value) in options(query) {
        match (name, value) {
            ("prefix", value) => prefix = prefix_of(url, value)?,
            ("durability", "always") => accepts_everysec = false,
            ("durability", "everysec") => accepts_everysec = true,
            ("durability", _) => return Err(wrong(url, "durability is always or everysec")),
            _ => return Err(wrong(url, "its options are prefix and durability")),
        }
    }
    Ok(Location::Redis {
        server: format!("redis://{login}{host}/{database}"),
        prefix,
        accepts_everysec,
    })
}

fn etcd(url: &str, prefix: &str, (authority, path, query): Parts<'_>) -> Result<Location, Error> {
    if !path.is_empty() {
        return Err(wrong(
            url,
            "nothing comes behind the hosts but ?prefix=NAME",
        ));
    }
    if authority.contains('@') {
        return Err(wrong(url, "users of etcd are not supported"));
    }
    let hosts = authority.split(',');
    let members = hosts.map(|host| host_and_port(url, host, ETCD_PORT));
    let members = members.collect::<Result<_, _>>()?;
    let mut prefix = prefix.to_string();
    for (name, value) in options(query) {
        match name {
            "prefix" => prefix = prefix_of(url, value)?,
            _ => return Err(wrong(url, "its only option is prefix")),
        }
    }
    Ok(Location::Etcd { members, prefix })
}

fn host_and_port(url: &str, text: &str, default: u16) -> Result<String, Error> {
    let (host, port) = match text.rsplit_once(':') {
        // The colons of an IPv6 address are within brackets.
        Some((host, port)) if !port.ends_with(']') => {
            let port = port.parse().ok().filter(|port| *port != 0);
            let port = port.ok_or_else(|| wrong(url, "a port is a number from 1 to 65535"))?;
            (host, port)
        }
        _ => (text, default),
    };
    match host.is_empty() || (host.contains(':') && !host.starts_with('[')) {
        true => Err(wrong(
            url,
            "a host is missing, or an IPv6 address is not in []",
        )),
        false => Ok(format!("{host}:{port}")),
    }
}

fn options(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let given = query.split('&').filter(|option| !option.is_empty());
    given.map(|option| option.split_once('=').unwrap_or((option, "")))
}

fn prefix_of(url: &str, value: &str) -> Result<String, Error> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match !value.is_empty() && value.bytes().all(plain) {
        true => Ok(value.to_string()),
        false => Err(wrong(url, "a prefix is letters, digits, and any of -_.")),
    }
}

/// The URL is shown without what may be a password.
fn wrong(url: &str, advice: &str) -> Error {
    let shown = match url.rsplit_once('@') {
        Some((before, host)) => {
            let scheme = before.split("://").next().unwrap_or_default();
            format!("{scheme}://...@{host}")
        }
        None => url.to_string(),
    };
    Error::Setup(format!("store {shown:?}: {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redis(server: &str, prefix: &str, accepts_everysec: bool) -> Location {
        Location::Redis {
            server: server.into(),
            prefix: prefix.into(),
            accepts_everysec,
        }
    }

    #[test]
    fn urls_are_read() {
        let cases = [
            ("embedded:/dir", Location::Embedded("/dir".into())),
            ("redis://h", redis("redis://h:6379/0", "forebay", false)),
            ("valkey://h/3", redis("redis://h:6379/3", "forebay", false)),
            (
                "redis://u:p@h:1/2?prefix=a-b&durability=everysec",
                redis("redis://u:p@h:1/2", "a-b", true),
            ),
            (
                "redis://[::1]",
                redis("redis://[::1]:6379/0", "forebay", false),
            ),
            (
                "etcd://a,b:7,[::1]:9?prefix=x",
                Location::Etcd {
                    members: vec!["a:2379".into(), "b:7".into(), "[::1]:9".into()],
                    prefix: "x".into(),
                },
            ),
        ];
        for (url, location) in cases {
            let read = Location::parse(url).expect(url);
            assert_eq!(read, location);
            let again = Location::parse_for("other", &read.with_password());
            assert_eq!(again.expect(url), read);
        }
    }

    #[test]
    fn what_is_wrong_is_said_without_the_password() {
        let cases = [
            ("", "embedded:/dir, redis://"),
            ("mysql://h", "embedded:/dir, redis://"),
            ("embedded:dir", "from the root"),
            ("redis://", "host is missing"),
            ("redis://h:0", "1 to 65535"),
            ("redis://h:70000", "1 to 65535"),
            ("redis://::1", "in []"),
            ("redis://h/db", "number"),
            ("redis://u:secret@h?durability=no", "always or everysec"),
            ("redis://h?wait=1", "prefix and durability"),
            ("redis://h?prefix=", "letters"),
            ("redis://h?prefix={x}", "letters"),
            ("rediss://u:secret@h", "no TLS"),
            ("etcd://a,", "host is missing"),
            ("etcd://a/0", "nothing comes behind"),
            ("etcd://u:secret@a", "users"),
            ("etcd://a?durability=always", "only option is prefix"),
        ];
        for (url, part) in cases {
            let said = match Location::parse(url) {
                Err(Error::Setup(said)) => said,
                other => panic!("{url}: {other:?}"),
            };
            assert!(said.contains(part) && !said.contains("secret"), "{said}");
        }
        let location = Location::parse("redis://u:secret@h").expect("a store");
        assert_eq!(
            format!("{location:?} {location}"),
            "redis://h:6379/0?prefix=forebay redis://h:6379/0?prefix=forebay"
        );
    }

    #[test]
    fn a_store_is_known_again_by_where_it_is() {
        let same = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|url| Location::parse_for("bb0", url));
            one.expect("a store").is_same(&other.expect("a store"))
        };
        assert!(same("redis://h", "valkey://u:p@h:6379/0?prefix=bb0"));
        assert!(same("redis://h", "redis://h?durability=everysec"));
        assert!(!same("redis://h", "redis://h/1"));
        assert!(!same("redis://h", "redis://i"));
        assert!(!same("redis://h", "redis://h?prefix=bb1"));
        assert!(same("etcd://a,b", "etcd://c,b"));
        assert!(!same("etcd://a,b", "etcd://a,b?prefix=bb1"));
        assert!(!same("etcd://a,b", "etcd://c"));
        assert!(!same("etcd://a:1", "redis://a:1"));
    }
}
