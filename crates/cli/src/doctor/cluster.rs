//! What a cluster's file asks of this node: its key, its addresses, its ports, and the way to the
//! other servers.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_wire::Key;

use super::device::micros;
use super::finding::{Finding, Grade};
use crate::cluster::address::is_here;
use crate::cluster::config::{Cluster, Server};
use crate::exit::reason;
use crate::state::{self, Holder};

/// A server that works takes a connection much sooner.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Reads the file, and looks at what it asks of this node. The second is the cluster and its
/// servers that are here.
pub fn findings(path: &Path) -> (Vec<Finding>, Option<(Cluster, Vec<Server>)>) {
    let cluster = match Cluster::load(path) {
        Ok(cluster) => cluster,
        Err(error) => {
            let message = error.to_string();
            let (found, todo) = split(&message);
            return (vec![Finding::new("file", Grade::Bad, found, todo)], None);
        }
    };
    let count = match cluster.servers.len() {
        1 => "1 server".to_string(),
        count => format!("{count} servers"),
    };
    let mut findings = vec![
        Finding::ok(
            "file",
            format!("cluster {}, {count}, no errors", cluster.name),
        ),
        judge_key(&cluster.key),
    ];
    let mut here = Vec::new();
    for (server, (found, is_one)) in cluster.servers.iter().zip(look_at_all(&cluster.servers)) {
        findings.extend(found);
        if is_one {
            here.push(server.clone());
        }
    }
    if here.is_empty() {
        let found = "no server has an address of this node, which can only mount then";
        findings.push(Finding::ok("servers here", found));
    }
    findings.extend(judge_nonlocal_bind());
    (findings, Some((cluster, here)))
}

/// `what: why; todo` as two lines.
fn split(message: &str) -> (&str, &str) {
    message.split_once("; ").unwrap_or((message, ""))
}

fn judge_key(path: &Path) -> Finding {
    match Key::read(path) {
        Ok(_) => Finding::ok(
            "key",
            format!("{}: a key that only its owner can read", path.display()),
        ),
        Err(error) => {
            let message = error.to_string();
            let (found, todo) = split(&message);
            Finding::new("key", Grade::Bad, found, todo)
        }
    }
}

/// All at once: each that is away takes its time.
fn look_at_all(servers: &[Server]) -> Vec<(Vec<Finding>, bool)> {
    std::thread::scope(|scope| {
        let looks: Vec<_> = servers
            .iter()
            .map(|server| scope.spawn(|| look_at(server)))
            .collect();
        let unknown = || {
            let found = "not looked at: the thread that did has died";
            let finding = Finding::new("servers", Grade::Bad, found, "this is a bug: report it");
            (vec![finding], false)
        };
        let joined = looks.into_iter().map(|look| look.join());
        joined
            .map(|look| look.unwrap_or_else(|_| unknown()))
            .collect()
    })
}

/// Whether a server is of this node. The kernel is asked, address by address.
fn look_at(server: &Server) -> (Vec<Finding>, bool) {
    let all = server.addresses.iter().chain(&server.replication_addresses);
    let (mut here, mut elsewhere, mut findings) = (Vec::new(), Vec::new(), Vec::new());
    for &address in all {
        match is_here(address) {
            Ok(true) => here.push(address),
            Ok(false) => elsewhere.push(address),
            Err(error) => {
                let found = format!(
                    "server {}: {address}: not known whether it is this node's: {}",
                    server.id,
                    reason(&error)
                );
                findings.push(Finding::new("addresses", Grade::Note, found, ""));
            }
        }
    }
    if here.is_empty() {
        findings.extend(
            server
                .addresses
                .iter()
                .map(|address| reach(server.id, *address)),
        );
        return (findings, false);
    }
    findings.push(judge_addresses(server.id, &here, &elsewhere));
    let runs = match state::holder(&server.state) {
        Ok(Some(Holder::Process(pid))) => Some(pid),
        _ => None,
    };
    for address in here {
        findings.push(judge_port(
            server.id,
            address,
            TcpListener::bind(address).map(drop),
            runs,
        ));
    }
    findings.push(judge_state(server));
    (findings, true)
}

fn judge_addresses(id: u16, here: &[SocketAddr], elsewhere: &[SocketAddr]) -> Finding {
    let list = |all: &[SocketAddr]| {
        let all: Vec<String> = all.iter().map(|one| one.to_string()).collect();
        all.join(", ")
    };
    match elsewhere {
        [] => Finding::ok(
            "addresses",
            format!("server {id} is of this node: {}", list(here)),
        ),
        _ => Finding::new(
            "addresses",
            Grade::Bad,
            format!(
                "server {id}: {} is of this node, and {} is not",
                list(here),
                list(elsewhere)
            ),
            "a server listens on all its addresses: they must be one node's, and up",
        ),
    }
}

/// `runs`: a process has the server's state folder, with its id where that is known.
fn judge_port(
    id: u16,
    address: SocketAddr,
    bound: io::Result<()>,
    runs: Option<Option<u32>>,
) -> Finding {
    let Err(error) = bound else {
        return Finding::ok("ports", format!("server {id}: {address} is free"));
    };
    let found = format!("server {id}: {address}: {}", reason(&error));
    match (error.kind(), runs) {
        (io::ErrorKind::AddrInUse, Some(pid)) => {
            let pid = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
            Finding::ok(
                "ports",
                format!("server {id}: {address} is in use, and the server runs{pid}"),
            )
        }
        (io::ErrorKind::AddrInUse, None) => {
            let todo = "another program has the port (`ss -tlnp` names it), and the server of this file does not run: \
                        end that program, or choose another port, on all nodes";
            Finding::new("ports", Grade::Bad, found, todo)
        }
        (io::ErrorKind::PermissionDenied, _) => {
            let todo = "choose a port from 1024 on, or start the server as root";
            Finding::new("ports", Grade::Bad, found, todo)
        }
        _ => Finding::new("ports", Grade::Bad, found, ""),
    }
}

fn judge_state(server: &Server) -> Finding {
    let (id, path) = (server.id, server.state.display());
    let check = "state folder";
    match std::fs::metadata(&server.state) {
        Ok(meta) if meta.is_dir() => Finding::ok(check, format!("server {id}: {path} is there")),
        Ok(_) => Finding::new(
            check,
            Grade::Bad,
            format!("server {id}: {path} is a file"),
            "give a folder",
        ),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            match server.state.parent().is_some_and(Path::is_dir) {
                true => Finding::ok(check, format!("server {id}: {path} will be made")),
                false => {
                    let found =
                        format!("server {id}: {path} cannot be made: there is no folder for it");
                    Finding::new(check, Grade::Bad, found, "make the folder above it")
                }
            }
        }
        Err(error) => {
            let found = format!("server {id}: {path}: {}", reason(&error));
            Finding::new(check, Grade::Bad, found, "give a folder that you may enter")
        }
    }
}

/// Whether something takes connections at another node's address.
fn reach(id: u16, address: SocketAddr) -> Finding {
    let begun = Instant::now();
    match TcpStream::connect_timeout(&address, CONNECT_LIMIT) {
        Ok(_) => {
            let took = begun.elapsed();
            let found = format!(
                "server {id}: {address} takes connections, within {}",
                micros(took)
            );
            Finding::ok("servers elsewhere", found).with("connect_s", took.as_secs_f64())
        }
        Err(error) => Finding::new(
            "servers elsewhere",
            Grade::Note,
            format!(
                "server {id}: {address} takes no connection: {}",
                reason(&error)
            ),
            "start that server, or let its port through the firewall; whether it should run now is not known here",
        ),
    }
}

fn judge_nonlocal_bind() -> Option<Finding> {
    let path = "/proc/sys/net/ipv4/ip_nonlocal_bind";
    let set = std::fs::read_to_string(path).ok()?.trim() == "1";
    set.then(|| {
        let todo = "which servers are of this node cannot be told while it is set: read the lines above with care";
        Finding::new("net.ipv4.ip_nonlocal_bind", Grade::Note, "set: every address counts as this node's", todo)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_port_in_use_is_the_servers_own_or_somebody_elses() {
        let address = at("127.0.0.1:7070");
        let in_use = || Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
        assert_eq!(judge_port(1, address, Ok(()), None).grade, Grade::Ok);
        assert_eq!(judge_port(1, address, in_use(), None).grade, Grade::Bad);
        let own = judge_port(1, address, in_use(), Some(Some(42)));
        assert_eq!(own.grade, Grade::Ok);
        assert!(own.found.ends_with("(process 42)"), "{own:?}");
        let low = Err(io::Error::from_raw_os_error(libc::EACCES));
        assert!(judge_port(1, address, low, None).todo.contains("1024"));
    }

    #[test]
    fn all_addresses_of_a_server_are_one_nodes() {
        let (one, two) = (at("10.0.0.1:7"), at("10.0.0.2:7"));
        assert_eq!(judge_addresses(1, &[one, two], &[]).grade, Grade::Ok);
        let mixed = judge_addresses(1, &[one], &[two]);
        assert_eq!(mixed.grade, Grade::Bad);
        assert!(mixed.found.contains("10.0.0.2:7 is not"), "{mixed:?}");
    }

    #[test]
    fn who_takes_connections_is_found_by_connecting() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        assert_eq!(reach(1, address).grade, Grade::Ok);
        drop(listener);
        assert_eq!(reach(1, address).grade, Grade::Note);
    }
}
