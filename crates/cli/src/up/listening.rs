//! Where metrics and a page are.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// An address, or `unix:` and an absolute path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// To everybody who reaches it.
    Tcp(SocketAddr),
    /// To users of this node.
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match Path::new(path).is_absolute() {
                true => Ok(Listen::Unix(path.into())),
                false => Err(format!("'{path}' must be an absolute path")),
            };
        }
        text.parse().map(Listen::Tcp).map_err(|_| {
            format!(
                "'{text}' is no address with a port (127.0.0.1:9180, [::1]:9180) and no unix:/path"
            )
        })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => write!(f, "http://{address}/"),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Listen {
    /// Only programs of this node come.
    pub fn is_loopback(&self) -> bool {
        match self {
            Listen::Tcp(address) => address.ip().is_loopback(),
            Listen::Unix(_) => true,
        }
    }

    /// Whether a request that names this host may be answered.
    pub fn may_be_called(&self, host: Option<&str>) -> bool {
        let Listen::Tcp(address) = self else {
            return true;
        };
        if !address.ip().is_loopback() {
            return true;
        }
        let Some(host) = host else {
            return true;
        };
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => host,
        };
        let name = name.trim_start_matches('[').trim_end_matches(']');
        let ip: Option<IpAddr> = name.parse().ok();
        name.eq_ignore_ascii_case("localhost") || ip.is_some_and(|ip| ip.is_loopback())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_paths() {
        let tcp: Listen = "127.0.0.1:9180".parse().expect("an address");
        assert!(tcp.is_loopback());
        let unix: Listen = "unix:/run/forebay.sock".parse().expect("a path");
        assert_eq!(unix, Listen::Unix("/run/forebay.sock".into()));
        for wrong in ["9180", "localhost:9180", "unix:run/x", "", "127.0.0.1"] {
            assert!(wrong.parse::<Listen>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn loopback_answers_no_other_name() {
        let own: Listen = "[::1]:80".parse().expect("an address");
        for host in [
            "localhost",
            "LOCALHOST:9180",
            "127.0.0.1:9",
            "[::1]:80",
            "[::1]",
        ] {
            assert!(own.may_be_called(Some(host)), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:80", "10.0.0.1"] {
            assert!(!own.may_be_called(Some(host)), "{host}");
        }
        let all: Listen = "0.0.0.0:80".parse().expect("an address");
        assert!(all.may_be_called(Some("bb0.example")) && !all.is_loopback());
    }
}
