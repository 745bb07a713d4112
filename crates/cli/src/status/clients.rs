//! Clients of a network server, for people and as JSON.

use std::time::Duration;

use forebay_types::{format_duration, format_size};
use forebay_wire::control::{ClientStatus, ConnectionStatus, NetworkStatus};
use serde_json::{Value, json};

use super::ROWS_MAX;
use crate::show::json;
use crate::show::table::{Align, Table};
use crate::show::text::show_path;

/// Connections of one client that people are shown; `--json` has all.
const CONNECTIONS_SHOWN: usize = 8;

/// The part of the page about clients: a line, and a table with a row for each connection.
pub fn render(network: &NetworkStatus, room: Option<usize>) -> String {
    let mut text = format!(
        "\nclients    {}, with {}; {} of {} threads busy; {}\n",
        counted(network.clients_total, "client"),
        counted(network.connections_total, "connection"),
        network.threads_busy,
        network.threads,
        refused(network)
    );
    if network.clients.is_empty() {
        return text;
    }
    let mut table = Table::new(&[
        ("client", Align::Left),
        ("process", Align::Right),
        ("address", Align::Left),
        ("here for", Align::Right),
        ("open files", Align::Right),
        ("connection", Align::Right),
        ("in", Align::Right),
        ("out", Align::Right),
    ])
    .spare(&["connection", "here for", "process"]);
    for client in network.clients.iter().take(ROWS_MAX) {
        rows(&mut table, client);
    }
    text.push_str(&table.render_within(room));
    let listed = network.clients.len() as u64;
    if let Some(more @ 1..) = network.clients_total.checked_sub(ROWS_MAX as u64) {
        let all = match network.clients_total > listed {
            true => format!("the {listed} that carry most"),
            false => "all".into(),
        };
        text.push_str(&format!("and {more} more (--json has {all})\n"));
    }
    text
}

fn counted(count: u64, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{ending}")
}

fn refused(network: &NetworkStatus) -> String {
    let peers = counted(network.refused_total, "peer");
    let reasons = network.refused.iter();
    let reasons: Vec<String> = reasons
        .map(|one| format!("{} {}", show_path(one.reason.as_bytes()), one.peers))
        .collect();
    match reasons[..] {
        [] => "no peer refused".into(),
        _ => format!("{peers} refused ({})", reasons.join(", ")),
    }
}

fn rows(table: &mut Table, client: &ClientStatus) {
    let age = Duration::from_secs(client.age_ms / 1000);
    let mut facts = vec![
        show_path(client.host.as_bytes()),
        client.pid.to_string(),
        client
            .address
            .map_or_else(|| "this node".into(), |address| address.to_string()),
        format_duration(age),
        client.open_files.to_string(),
    ];
    let blanks = vec![String::new(); facts.len()];
    let mut row = |name: String, bytes: Option<(u64, u64)>| {
        let sizes = bytes.map(|(into, out)| [format_size(into), format_size(out)]);
        let cells = std::mem::replace(&mut facts, blanks.clone());
        let sizes = sizes.unwrap_or_else(|| ["-".into(), "-".into()]);
        table.row([&cells[..], &[name], &sizes].concat());
    };
    let (shown, rest) = match client.connections.len() > CONNECTIONS_SHOWN {
        true => client.connections.split_at(CONNECTIONS_SHOWN),
        false => (&client.connections[..], &[][..]),
    };
    for one in shown {
        row(one.number.to_string(), Some((one.in_bytes, one.out_bytes)));
    }
    if !rest.is_empty() {
        row(format!("{} more", rest.len()), Some(sum(rest)));
    }
    // It may come back.
    if client.connections.is_empty() {
        row("none".into(), None);
    }
}

fn sum(connections: &[ConnectionStatus]) -> (u64, u64) {
    connections.iter().fold((0, 0), |(into, out), one| {
        (into + one.in_bytes, out + one.out_bytes)
    })
}

/// The object `network` that `--json` prints.
pub fn to_json(network: &NetworkStatus) -> Value {
    let refused = network.refused.iter();
    let refused = refused.map(|one| json!({"reason": one.reason, "peers": one.peers}));
    json!({
        "clients": network.clients.iter().map(client_json).collect::<Value>(),
        "clients_total": network.clients_total,
        "connections_total": network.connections_total,
        "refused": refused.collect::<Value>(),
        "refused_total": network.refused_total,
        "threads": network.threads,
        "threads_busy": network.threads_busy,
    })
}

fn client_json(client: &ClientStatus) -> Value {
    let connections = client.connections.iter().map(|one| {
        json!({
            "number": one.number,
            "in_bytes": one.in_bytes,
            "out_bytes": one.out_bytes,
        })
    });
    json!({
        "host": client.host,
        "pid": client.pid,
        "uid": client.uid,
        "address": client.address.map(|address| address.to_string()),
        "age_s": json::seconds(client.age_ms),
        "silent_s": json::seconds(client.silent_ms),
        "open_files": client.open_files,
        "requests_total": client.requests,
        "connections": connections.collect::<Value>(),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use forebay_wire::control::RefusedStatus;

    use super::*;

    /// One client with so many connections, and refused peers.
    pub fn network(connections: u16) -> NetworkStatus {
        let connection = |number| ConnectionStatus {
            number,
            in_bytes: 1 << 30,
            out_bytes: 3 << 20,
        };
        NetworkStatus {
            clients: vec![ClientStatus {
                host: "node1".into(),
                pid: 4711,
                uid: 0,
                address: Some(([10, 0, 0, 2], 43210).into()),
                age_ms: 63_500,
                silent_ms: 20,
                open_files: 2,
                requests: 300,
                connections: (0..connections).map(connection).collect(),
            }],
            clients_total: 1,
            connections_total: connections.into(),
            refused: vec![RefusedStatus {
                reason: "key".into(),
                peers: 3,
            }],
            refused_total: 3,
            threads: 8,
            threads_busy: 1,
        }
    }

    #[test]
    fn each_connection_has_a_row() {
        let page = render(&network(2), None);
        let wanted = "\nclients    1 client, with 2 connections; 1 of 8 threads busy; \
                      3 peers refused (key 3)\n\
                      client  process  address         here for  open files  connection       in      out\n\
                      node1      4711  10.0.0.2:43210     1m 3s           2           0  1.0 GiB  3.0 MiB\n";
        assert!(page.starts_with(wanted), "{page}");
        let second = page.lines().nth(4).expect("a second row");
        assert_eq!(
            second.split_whitespace().collect::<Vec<_>>(),
            ["1", "1.0", "GiB", "3.0", "MiB"]
        );
        let many = render(&network(12), None);
        assert!(many.contains("    4 more  4.0 GiB  12.0 MiB\n"), "{many}");
        assert!(render(&network(0), None).contains("none   -    -\n"));
    }

    #[test]
    fn a_node_cannot_draw_on_the_terminal_of_who_looks() {
        let mut odd = network(1);
        odd.clients[0].host = "a\x1b[2J\nclients 0".into();
        odd.clients[0].address = None;
        let page = render(&odd, None);
        assert!(
            page.contains("a\\x1b[2J\\x0aclients 0     4711  this node"),
            "{page}"
        );
        assert_eq!(page.lines().count(), 4);
    }

    #[test]
    fn of_many_clients_some_are_shown_and_all_are_counted() {
        let mut many = network(1);
        many.clients = vec![many.clients[0].clone(); ROWS_MAX + 1];
        many.clients_total = ROWS_MAX as u64 + 1;
        assert!(render(&many, None).ends_with("and 1 more (--json has all)\n"));
        many.clients_total += 5;
        assert!(render(&many, None).ends_with("and 6 more (--json has the 21 that carry most)\n"));
        // What is not for who asks.
        many.clients.clear();
        many.refused.clear();
        let page = render(&many, None);
        assert_eq!(page.lines().count(), 2, "{page}");
        assert!(page.contains("26 clients, with 1 connection; "), "{page}");
        assert!(page.ends_with("no peer refused\n"), "{page}");
    }
}
