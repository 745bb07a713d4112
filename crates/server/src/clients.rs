//! Who is connected over the network, for `status`.

use std::cmp::Reverse;

use forebay_wire::control::{ClientStatus, ConnectionStatus, NetworkStatus, RefusedStatus};
use forebay_wire::net::{NetStatus, SessionStatus, clean_host};

/// Clients that `status` lists: those whose connections have carried most.
const CLIENTS_MAX: usize = 1000;
/// Longest name of a node in the list, bytes: what Linux allows.
const HOST_BYTES_MAX: usize = 64;

/// What `status` shows of a network server; of clients only how many there are, unless `named`.
pub(crate) fn network_status(net: NetStatus, named: bool) -> NetworkStatus {
    let clients_total = net.sessions.len() as u64;
    let links = net
        .sessions
        .iter()
        .map(|session| session.links.len() as u64);
    let connections_total = links.sum();
    let mut clients: Vec<ClientStatus> = match named {
        true => net.sessions.into_iter().map(client_status).collect(),
        false => Vec::new(),
    };
    clients.sort_by_cached_key(|client| {
        let carried: u64 = client.connections.iter().map(carried).sum();
        (Reverse(carried), client.host.clone(), client.pid)
    });
    clients.truncate(CLIENTS_MAX);
    let refused = net.refused.into_iter();
    let refused: Vec<RefusedStatus> = refused
        .map(|(reason, peers)| RefusedStatus {
            reason: reason.name().to_string(),
            peers,
        })
        .collect();
    NetworkStatus {
        clients,
        clients_total,
        connections_total,
        refused_total: refused.iter().map(|refused| refused.peers).sum(),
        refused,
        threads: net.threads as u64,
        threads_busy: net.busy as u64,
    }
}

fn carried(connection: &ConnectionStatus) -> u64 {
    connection.in_bytes.saturating_add(connection.out_bytes)
}

fn client_status(session: SessionStatus) -> ClientStatus {
    let connections = session.links.iter().map(|link| ConnectionStatus {
        number: link.number,
        in_bytes: link.bytes_in,
        out_bytes: link.bytes_out,
    });
    ClientStatus {
        host: clean_host(&session.facts.host, HOST_BYTES_MAX),
        pid: session.facts.pid,
        uid: session.facts.mount_uid,
        address: session.facts.address,
        age_ms: session.age.as_millis() as u64,
        silent_ms: session.silent.as_millis() as u64,
        open_files: session.open_files,
        requests: session.requests,
        connections: connections.collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_wire::net::{ClientFacts, LinkStatus, RefusedFor, SessionId};

    use super::*;

    fn session(host: &str, carried: &[u64]) -> SessionStatus {
        let links = carried
            .iter()
            .enumerate()
            .map(|(number, bytes)| LinkStatus {
                number: number as u16,
                bytes_in: *bytes,
                bytes_out: 1,
            });
        SessionStatus {
            id: SessionId([0; 16]),
            facts: ClientFacts {
                host: host.to_string(),
                pid: 7,
                ..ClientFacts::default()
            },
            age: Duration::from_secs(3),
            open_files: 2,
            links: links.collect(),
            requests: 9,
            silent: Duration::from_millis(20),
        }
    }

    fn net(sessions: Vec<SessionStatus>) -> NetStatus {
        NetStatus {
            sessions,
            refused: vec![(RefusedFor::Key, 3), (RefusedFor::Silence, 2)],
            threads: 8,
            busy: 1,
        }
    }

    #[test]
    fn those_who_carry_most_come_first_and_the_list_is_bounded() {
        let mut sessions: Vec<SessionStatus> = (0..CLIENTS_MAX as u64)
            .map(|n| session(&"n".repeat(200), &[n]))
            .collect();
        sessions.push(session("busy", &[5, 1 << 30]));
        let shown = network_status(net(sessions), true);
        assert_eq!(shown.clients.len(), CLIENTS_MAX);
        assert_eq!(shown.clients_total, CLIENTS_MAX as u64 + 1);
        assert_eq!(shown.connections_total, CLIENTS_MAX as u64 + 2);
        let first = &shown.clients[0];
        assert_eq!((first.host.as_str(), first.open_files), ("busy", 2));
        assert_eq!(first.connections[1].in_bytes, 1 << 30);
        assert_eq!(shown.clients[1].host.len(), HOST_BYTES_MAX);
        assert_eq!((shown.refused_total, shown.refused.len()), (5, 2));
        assert_eq!(shown.refused[0].reason, "key");
    }

    #[test]
    fn who_is_not_trusted_gets_numbers_only() {
        let shown = network_status(net(vec![session("node", &[1, 2])]), false);
        assert!(shown.clients.is_empty());
        assert_eq!((shown.clients_total, shown.connections_total), (1, 2));
        assert_eq!(shown.refused_total, 5);
    }
}
