//! The nodes of a cluster, for people and as JSON.

use std::path::Path;
use std::time::Duration;

use forebay_types::{format_duration, format_size};
use forebay_wire::control::NodeStatus;
use serde_json::{Value, json};

use super::{ROWS_MAX, lending};
use crate::awaited::{awaited_json, awaited_line};
use crate::control::files_and_bytes;
use crate::show::json;
use crate::show::table::{Align, Table};
use crate::show::text::{files, show_path};

/// Columns that a narrow terminal does not show, the first first.
const SPARE: [&str; 9] = [
    "in",
    "out",
    "links",
    "for restarts",
    "address",
    "roles",
    "rack",
    "copies",
    "in memory",
];
/// Nodes of which people are told what would go with them; `--json` has all.
const LOSSES_MAX: usize = 5;

/// The part of the page about nodes; nothing without a cluster.
pub fn render(nodes: &[NodeStatus], mount: &Path, room: Option<usize>) -> String {
    if nodes.is_empty() {
        return String::new();
    }
    let unheard = nodes.iter().filter(|node| !node.answers);
    let missing = unheard.filter(|node| !is_unasked(node)).count();
    let mut text = format!(
        "\nnodes      {}, {}\n",
        nodes.len(),
        match missing {
            0 => "all answer".into(),
            1 => "1 is missing".into(),
            many => format!("{many} are missing"),
        }
    );
    let mut table = Table::new(&[
        ("node", Align::Right),
        ("rack", Align::Left),
        ("roles", Align::Left),
        ("address", Align::Left),
        ("state", Align::Left),
        ("links", Align::Right),
        ("in", Align::Right),
        ("out", Align::Right),
        ("used", Align::Right),
        ("for restarts", Align::Right),
        ("capacity", Align::Right),
        ("only there", Align::Right),
        ("in memory", Align::Right),
        ("copies", Align::Right),
    ])
    .spare(&SPARE);
    let shown = shown(nodes);
    shown.iter().for_each(|node| table.row(row(node)));
    text.push_str(&table.render_within(room));
    if let Some(more @ 1..) = nodes.len().checked_sub(shown.len()) {
        text.push_str(&format!("and {more} more (--json has all)\n"));
    }
    text.push_str(&emptied(nodes, mount));
    text.push_str(&lending::render_nodes(nodes));
    text.push_str(&losses(nodes));
    text
}

/// Nodes that get no files.
fn emptied(nodes: &[NodeStatus], mount: &Path) -> String {
    let mut text = String::new();
    for (node, left) in nodes
        .iter()
        .filter_map(|node| Some((node.server, node.emptying.as_ref()?)))
    {
        text.push_str(&match left.files {
            0 => format!(
                "node {node} is empty and gets no files; `forebay cluster use-node {node}` uses it again\n"
            ),
            count => format!(
                "node {node} is being emptied: {} left, {} of them open\n",
                files(count),
                left.open_files
            ),
        });
        for file in &left.awaited {
            text.push_str(&format!("  {}\n", awaited_line(mount, file)));
        }
    }
    text
}

/// All, or of many those that matter: who is missing, and who has most that nobody else has.
fn shown(nodes: &[NodeStatus]) -> Vec<&NodeStatus> {
    let mut shown: Vec<&NodeStatus> = nodes.iter().collect();
    if shown.len() > ROWS_MAX {
        shown.sort_by_key(|node| (node.answers, std::cmp::Reverse(node.only_here_bytes)));
        shown.truncate(ROWS_MAX);
        shown.sort_by_key(|node| node.server);
    }
    shown
}

fn row(node: &NodeStatus) -> Vec<String> {
    let links = match node.metadata {
        true => "-".into(),
        false => format!("{} of {}", node.links_up, node.links),
    };
    let carried = |bytes: u64| match node.metadata {
        true => "-".into(),
        false => format_size(bytes),
    };
    let rack = node.rack.as_deref().map(str::as_bytes);
    vec![
        node.server.to_string(),
        rack.map_or_else(|| "-".into(), show_path),
        roles(node),
        addresses(node),
        state(node),
        links,
        carried(node.in_bytes),
        carried(node.out_bytes),
        format_size(node.used_bytes),
        format_size(node.restart_copy_bytes),
        format_size(node.capacity_bytes),
        format_size(node.only_here_bytes),
        format_size(node.only_in_memory_bytes),
        node.copies_under_way.to_string(),
    ]
}

fn roles(node: &NodeStatus) -> String {
    let roles = [(node.metadata, "metadata"), (node.data, "data")];
    let roles = roles.iter().filter(|(has, _)| *has);
    roles.map(|(_, role)| *role).collect::<Vec<_>>().join(",")
}

fn addresses(node: &NodeStatus) -> String {
    match &node.addresses[..] {
        [] => "-".into(),
        [one] => one.to_string(),
        [first, rest @ ..] => format!("{first} (+{})", rest.len()),
    }
}

/// A further metadata server: who leads has no connection to who stands by.
fn is_unasked(node: &NodeStatus) -> bool {
    node.metadata && !node.data && !node.answers
}

fn state(node: &NodeStatus) -> String {
    match node.missing_ms.map(|ms| Duration::from_secs(ms / 1000)) {
        _ if node.answers && node.emptying.is_some() => "answers, not used".into(),
        _ if node.answers => "answers".into(),
        _ if is_unasked(node) => "not asked".into(),
        Some(Duration::ZERO) => "missing since just now".into(),
        Some(time) => format!("missing for {}", format_duration(time)),
        None => "missing".into(),
    }
}

/// What would be lost if a node died now.
fn losses(nodes: &[NodeStatus]) -> String {
    let mut risky: Vec<&NodeStatus> = nodes.iter().filter(|n| n.only_here_files > 0).collect();
    risky.sort_by_key(|node| std::cmp::Reverse((node.only_here_bytes, node.only_here_files)));
    let mut text = String::new();
    for node in risky.iter().take(LOSSES_MAX) {
        let what = files_and_bytes(node.only_here_files, node.only_here_bytes);
        let memory = match node.only_in_memory_bytes {
            0 => String::new(),
            bytes => format!(", {} of it in memory", format_size(bytes)),
        };
        let went = match node.answers {
            true => "died now, it would take",
            false => "does not come back, it takes",
        };
        text.push_str(&format!(
            "if node {} {went} {what} that nobody else has{memory}\n",
            node.server
        ));
    }
    if let Some(more @ 1..) = risky.len().checked_sub(LOSSES_MAX) {
        text.push_str(&format!("so it is with {more} more (--json has all)\n"));
    }
    let records = nodes.iter().find(|node| node.has_records);
    if let Some(node) = records.filter(|_| !risky.is_empty()) {
        text.push_str(&format!(
            "the records of all files are on node {} alone: without its disk what is undrained on other nodes has no \
             names either\n",
            node.server
        ));
    }
    text
}

/// One of the list `nodes` that `--json` prints.
pub fn to_json(node: &NodeStatus, mount: &Path) -> Value {
    let emptying = node.emptying.as_ref();
    let emptying = emptying.map(|left| {
        json!({
            "files": left.files,
            "open_files": left.open_files,
            "waits_for": awaited_json(mount, left),
        })
    });
    json!({
        "id": node.server,
        "rack": node.rack,
        "addresses": node.addresses.iter().map(|one| Value::from(one.to_string())).collect::<Value>(),
        "metadata": node.metadata,
        "data": node.data,
        "has_records": node.has_records,
        "answers": (!is_unasked(node)).then_some(node.answers),
        "missing_s": node.missing_ms.map(json::seconds),
        "links": {
            "up": node.links_up,
            "total": node.links,
            "in_bytes": node.in_bytes,
            "out_bytes": node.out_bytes,
        },
        "tiers": node.tiers,
        "capacity_bytes": node.capacity_bytes,
        "used_bytes": node.used_bytes,
        "restart_copy_bytes": node.restart_copy_bytes,
        "dirty_bytes": node.dirty_bytes,
        "only_here": {
            "files": node.only_here_files,
            "bytes": node.only_here_bytes,
            "memory_bytes": node.only_in_memory_bytes,
        },
        "copies_under_way": node.copies_under_way,
        "emptying": emptying,
        "lending": node.lending.as_deref().map(lending::node_to_json),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use forebay_wire::control::{Awaited, AwaitedFile, EmptyingStatus, LendingFile, NodeLending};

    use super::*;

    fn at() -> &'static Path {
        Path::new("/bb")
    }

    /// A data server with undrained files.
    pub fn node(server: u16) -> NodeStatus {
        NodeStatus {
            server,
            rack: Some("r1".into()),
            addresses: vec![([10, 0, 0, server as u8], 7070).into()],
            metadata: server == 1,
            data: true,
            has_records: server == 1,
            answers: true,
            links_up: 4,
            links: 4,
            tiers: vec![format!("server-{server}:/nvme")],
            capacity_bytes: 1 << 30,
            used_bytes: 3 << 20,
            restart_copy_bytes: 7 << 19,
            dirty_bytes: 2 << 20,
            only_here_bytes: 2 << 20,
            only_here_files: 2,
            only_in_memory_bytes: 1 << 20,
            copies_under_way: 1,
            emptying: Some(EmptyingStatus {
                awaited: vec![AwaitedFile {
                    path: b"db".to_vec(),
                    why: Awaited::Open,
                }],
                ..EmptyingStatus::default()
            }),
            lending: Some(Box::new(NodeLending {
                waits_for: vec![LendingFile::default()],
                ..NodeLending::default()
            })),
            ..NodeStatus::default()
        }
    }

    #[test]
    fn who_stands_by_is_not_missing() {
        let node = |server: u16, data: bool, answers: bool| NodeStatus {
            server,
            metadata: !data,
            data,
            answers,
            ..NodeStatus::default()
        };
        let nodes = [
            node(1, false, true),
            node(2, false, false),
            node(3, true, true),
        ];
        let page = render(&nodes, at(), None);
        assert!(page.starts_with("\nnodes      3, all answer\n"), "{page}");
        assert!(page.contains("not asked"), "{page}");
        assert_eq!(to_json(&nodes[1], at())["answers"], Value::Null);
        assert_eq!(to_json(&nodes[2], at())["answers"], true);
    }

    #[test]
    fn a_page_says_who_is_missing_and_what_would_go_with_whom() {
        assert_eq!(render(&[], at(), None), "");
        let mut nodes = vec![node(1), node(2), node(3)];
        nodes.iter_mut().for_each(|node| node.emptying = None);
        nodes[0].only_here_files = 0;
        (nodes[2].answers, nodes[2].missing_ms) = (false, Some(63_500));
        nodes[2].only_here_bytes = 5 << 20;
        let page = render(&nodes, at(), None);
        assert!(page.starts_with("\nnodes      3, 1 is missing\n"), "{page}");
        let lines: Vec<&str> = page.lines().collect();
        let columns = |at: usize| lines[at].split_whitespace().collect::<Vec<_>>();
        assert_eq!(
            columns(3)[..4],
            ["1", "r1", "metadata,data", "10.0.0.1:7070"]
        );
        assert_eq!(columns(4)[4..8], ["answers", "4", "of", "4"]);
        assert!(lines[5].contains("missing for 1m 3s"), "{page}");
        assert!(
            lines[2].contains("for restarts") && lines[4].contains("3.5 MiB"),
            "{page}"
        );
        assert_eq!(to_json(&nodes[1], at())["restart_copy_bytes"], 7 << 19);
        assert_eq!(
            lines[6],
            "if node 3 does not come back, it takes 2 files (5.0 MiB) that nobody else has, 1.0 MiB of it in memory"
        );
        assert_eq!(
            lines[7],
            "if node 2 died now, it would take 2 files (2.0 MiB) that nobody else has, 1.0 MiB of it in memory"
        );
        assert!(lines[8].starts_with("the records of all files are on node 1 alone"));
        assert_eq!(lines.len(), 9, "{page}");
    }

    #[test]
    fn what_keeps_a_node_from_being_empty_is_named() {
        let mut nodes = vec![node(1), node(2)];
        nodes[1].emptying = Some(EmptyingStatus {
            files: 1,
            open_files: 0,
            awaited: vec![AwaitedFile {
                path: b"db".to_vec(),
                why: Awaited::SecondChanges,
            }],
        });
        let page = render(&nodes, at(), None);
        let named = "node 2 is being emptied: 1 file left, 0 of them open\n  /bb/db: changes again";
        assert!(page.contains(named), "{page}");
        let value = to_json(&nodes[1], at());
        let waits_for = &value["emptying"]["waits_for"][0];
        assert_eq!(
            (&waits_for["path"], &waits_for["why"]),
            (&json!("/bb/db"), &json!("second_copy_changes"))
        );
    }

    #[test]
    fn of_many_nodes_those_that_matter_are_shown() {
        let mut nodes: Vec<NodeStatus> = (1..=100).map(node).collect();
        nodes.iter_mut().for_each(|node| node.emptying = None);
        nodes[97].answers = false;
        nodes[50].only_here_bytes = 9 << 20;
        let shown: Vec<u16> = shown(&nodes).iter().map(|node| node.server).collect();
        assert_eq!(shown.len(), ROWS_MAX);
        assert!(shown.contains(&98) && shown.contains(&51), "{shown:?}");
        let page = render(&nodes, at(), None);
        assert!(page.contains("and 80 more (--json has all)\n"), "{page}");
        assert!(page.contains("so it is with 95 more"), "{page}");
    }
}
