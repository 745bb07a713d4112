//! Addresses of servers: `IP:PORT` or `HOST:PORT`.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};

/// Why an address cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// Only a host.
    #[error("has no port; write for example 10.0.0.1:7070")]
    NoPort,
    /// A port that is none.
    #[error("'{0}' is no port; it must be 1 to 65535")]
    Port(String),
    /// An IPv6 address of which the port cannot be told apart.
    #[error("is ambiguous; write an IPv6 address in brackets: [ADDRESS]:PORT")]
    Brackets,
    /// No name of a host.
    #[error("'{0}' is neither an address nor the name of a host")]
    Host(String),
    /// All addresses of a node at once, or of many nodes.
    #[error("is no address of one node; write the one that other nodes reach it at")]
    Nobody,
    /// The name is not known.
    #[error("the host cannot be found: {0}; write its address, or correct the name")]
    Unknown(io::Error),
    /// The name is in `/etc/hosts`, for the node itself only.
    #[error(
        "the host is {0} on this node, where no other node finds it; write the address that other \
         nodes reach it at"
    )]
    OnlyHere(IpAddr),
}

/// Every socket's address that is meant: one, or those of the host. A name is looked up, which may
/// take as long as the system's resolver does.
pub fn resolve(written: &str) -> Result<Vec<SocketAddr>, AddressError> {
    if let Ok(address) = written.parse::<SocketAddr>() {
        return match address.port() {
            0 => Err(AddressError::Port("0".into())),
            _ => of_one_node(address).map(|address| vec![address]),
        };
    }
    if written.parse::<IpAddr>().is_ok() {
        return Err(match written.contains(':') {
            true => AddressError::Brackets,
            false => AddressError::NoPort,
        });
    }
    let (host, port) = written.rsplit_once(':').ok_or(AddressError::NoPort)?;
    if host.contains(':') && !host.starts_with('[') {
        return Err(AddressError::Brackets);
    }
    if !is_host(host) {
        return Err(AddressError::Host(host.into()));
    }
    let number = port.parse().ok().filter(|&number| number != 0);
    let port: u16 = number.ok_or_else(|| AddressError::Port(port.into()))?;
    let found = (host, port).to_socket_addrs();
    others_find(host, found.map_err(AddressError::Unknown)?.collect())
}

/// A name, not what is left of an address: one of digits and dots only is a wrong address.
fn is_host(host: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    !host.is_empty() && host.chars().all(is_part) && !host.chars().all(is_number)
}

/// A name that no program takes for an option, and no shell for anything else.
pub fn is_node(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.:@%".contains(c);
    let begins = |c: char| c.is_ascii_alphanumeric() || c == ':';
    name.len() <= 255 && name.starts_with(begins) && name.chars().all(is_part)
}

fn of_one_node(address: SocketAddr) -> Result<SocketAddr, AddressError> {
    let ip = address.ip();
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    match ip.is_unspecified() || ip.is_multicast() || broadcast {
        true => Err(AddressError::Nobody),
        false => Ok(address),
    }
}

/// Those of a host's addresses at which other nodes find it. Debian lists a node's own name as
/// 127.0.1.1 in its `/etc/hosts`: taken for its address, it would be another one on each node.
fn others_find(host: &str, found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, AddressError> {
    let meant_here = host == "localhost";
    let (mut usable, mut loopback) = (Vec::new(), None);
    for address in found {
        if address.ip().is_loopback() && !meant_here {
            loopback = Some(address.ip());
        } else if !usable.contains(&address) {
            usable.push(of_one_node(address)?);
        }
    }
    match (usable.is_empty(), loopback) {
        (false, _) => Ok(usable),
        (true, Some(ip)) => Err(AddressError::OnlyHere(ip)),
        (true, None) => Err(AddressError::Unknown(io::Error::other("no address"))),
    }
}

/// Whether this node has the address now, up or down: the kernel lets only its own be bound. Where
/// `net.ipv4.ip_nonlocal_bind` is set, it lets every one, and each is taken for this node's.
pub fn is_here(address: SocketAddr) -> io::Result<bool> {
    let mut any_port = address;
    any_port.set_port(0);
    match UdpSocket::bind(any_port) {
        Ok(_) => Ok(true),
        Err(error) => match error.raw_os_error() {
            // A node without IPv6 has none of its addresses.
            Some(libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT) => Ok(false),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(written: &str) -> String {
        resolve(written).expect_err(written).to_string()
    }

    #[test]
    fn literals() {
        for good in ["10.0.0.1:7070", "[fd00::1]:1", "127.0.0.1:65535"] {
            let found = resolve(good).expect(good);
            assert_eq!(found, [good.parse().expect("literal")]);
        }
        assert!(refused("10.0.0.1").starts_with("has no port"));
        assert!(refused("node1").starts_with("has no port"));
        assert!(refused("fd00::1").contains("in brackets"));
        assert!(refused("fd00:::7070").contains("in brackets"));
        assert_eq!(
            refused("10.0.0.1:0"),
            "'0' is no port; it must be 1 to 65535"
        );
        assert!(refused("node1:65536").starts_with("'65536' is no port"));
        assert!(refused("node1:").starts_with("'' is no port"));
        assert!(refused("10.0.0.256:70").starts_with("'10.0.0.256' is neither"));
        assert!(refused(":7070").starts_with("'' is neither"));
        assert!(refused("no de:7070").starts_with("'no de' is neither"));
        for many in ["0.0.0.0:1", "[::]:1", "224.0.0.1:1", "255.255.255.255:1"] {
            assert!(
                refused(many).starts_with("is no address of one node"),
                "{many}"
            );
        }
    }

    #[test]
    fn no_host_is_taken_for_an_option_or_a_command() {
        for good in [
            "node-1.site",
            "root@n1",
            "10.0.0.1",
            "fd00::1",
            "fe80::1%eth0",
            "::1",
        ] {
            assert!(is_node(good), "{good}");
        }
        for bad in [
            "",
            "-oProxyCommand=x",
            "a b",
            "a;b",
            "$(x)",
            "a\n",
            "a'b",
            "@x",
            ".x",
        ] {
            assert!(!is_node(bad), "{bad}");
        }
    }

    #[test]
    fn names() {
        let here = resolve("localhost:7070").expect("every machine has it");
        assert!(
            here.iter()
                .all(|one| one.ip().is_loopback() && one.port() == 7070)
        );
        // The top-level domain is set aside for names that do not exist.
        assert!(refused("node.invalid:7070").starts_with("the host cannot be found"));
    }

    #[test]
    fn what_only_this_node_finds_is_no_address() {
        let at = |text: &str| text.parse().expect("address");
        let (own, lan) = (at("127.0.1.1:7"), at("10.0.0.1:7"));
        assert_eq!(
            others_find("node1", vec![own, lan, lan]).expect("one is left"),
            [lan]
        );
        let error = others_find("node1", vec![own]).expect_err("none is left");
        assert!(
            error
                .to_string()
                .starts_with("the host is 127.0.1.1 on this node")
        );
        assert!(others_find("node1", Vec::new()).is_err());
    }

    #[test]
    fn own_addresses() {
        let here = |text: &str| is_here(text.parse().expect("address")).expect("known");
        assert!(here("127.0.0.1:1"));
        // Set aside for documents (RFC 5737): nobody's.
        assert!(!here("192.0.2.1:1"));
    }
}
