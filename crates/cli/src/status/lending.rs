//! Memory that is borrowed, in `status`.

use forebay_types::format_size;
use forebay_wire::control::{LendingFile, LendingStatus, NodeLending, NodeStatus, StatusBits};
use serde_json::{Map, Value, json};

use crate::show::json::insert_path;
use crate::show::text::show_path;

/// The line for people.
pub fn render(bits: &StatusBits) -> String {
    let Some(lending) = &bits.lending else {
        return String::new();
    };
    let mut line = format!(
        "\nborrowed   {} of memory, between {} and {}: {}",
        format_size(lending.borrowed_bytes),
        format_size(lending.floor_bytes),
        format_size(lending.ceiling_bytes),
        why(lending)
    );
    if lending.owed_bytes > 0 {
        let owed = format_size(lending.owed_bytes);
        line.push_str(&format!("; {owed} are still to leave it{}", waits(lending)));
    }
    line.push('\n');
    line
}

/// So many files are named in one line.
const NAMED: usize = 3;

/// What is waited for, where programs have to close files.
pub fn waits(lending: &LendingStatus) -> String {
    waits_for(lending.waits_files, lending.waits_bytes, &lending.waits_for)
}

fn waits_for(files: u64, bytes: u64, largest: &[LendingFile]) -> String {
    let count = files;
    let files = match files {
        0 => return String::new(),
        1 => "1 file".to_string(),
        files => format!("{files} files"),
    };
    let bytes = format_size(bytes);
    let named = largest.iter().take(NAMED);
    let mut names: Vec<String> = named.map(|file| show_path(&file.path)).collect();
    if !names.is_empty() && count > names.len() as u64 {
        names.push("...".into());
    }
    let names = match names.is_empty() {
        true => String::new(),
        false => format!(" ({})", names.join(", ")),
    };
    format!(": {bytes} stay until programs close {files}{names}")
}

/// What orders have done with the ceiling, which counts whatever the size is now.
fn ordered(lending: &LendingStatus) -> String {
    let bytes = format_size(lending.ordered_bytes);
    match lending.orders.len() {
        0 | 1 => format!("an order gives {bytes} to jobs"),
        orders => format!("{orders} orders give {bytes} to jobs"),
    }
}

fn why(lending: &LendingStatus) -> String {
    let mut why = reason(lending);
    if lending.ordered_bytes > 0 && lending.why != "ordered" {
        why.push_str(&format!("; {}", ordered(lending)));
    }
    why
}

fn reason(lending: &LendingStatus) -> String {
    match lending.why.as_str() {
        "ceiling" => "as much as it may have".into(),
        "ordered" => ordered(lending),
        "jobs" => {
            let free = format_size(lending.available_bytes);
            format!("jobs have the rest, {free} are available")
        }
        "stalls" => "tasks wait for memory".into(),
        "calms" => "there was pressure a moment ago".into(),
        "grows" => "memory is idle, it grows".into(),
        other => other.to_string(),
    }
}

/// The same as JSON.
pub fn to_json(lending: &LendingStatus) -> Value {
    let orders = lending.orders.iter().map(|order| {
        let name = (!order.name.is_empty()).then_some(&order.name);
        json!({"for": name, "bytes": order.bytes})
    });
    json!({
        "borrowed_bytes": lending.borrowed_bytes,
        "used_bytes": lending.used_bytes,
        "floor_bytes": lending.floor_bytes,
        "ceiling_bytes": lending.ceiling_bytes,
        "ordered_bytes": lending.ordered_bytes,
        "orders": orders.collect::<Vec<_>>(),
        "owed_bytes": lending.owed_bytes,
        "waits_files": lending.waits_files,
        "waits_bytes": lending.waits_bytes,
        "waits_for": files_to_json(&lending.waits_for),
        "why": lending.why,
        "memory_bytes": lending.memory_bytes,
        "available_bytes": lending.available_bytes,
        "dropped_bytes_total": lending.dropped_bytes_total,
        "moved_bytes_total": lending.moved_bytes_total,
    })
}

fn files_to_json(files: &[LendingFile]) -> Value {
    let files = files.iter().map(|file| {
        let mut object = Map::new();
        insert_path(&mut object, "path", &file.path);
        object.insert("bytes".into(), file.bytes.into());
        object.insert("deleted".into(), file.deleted.into());
        Value::Object(object)
    });
    files.collect()
}

/// A line for each node whose memory jobs wait for.
pub fn render_nodes(nodes: &[NodeStatus]) -> String {
    let lending = |node: &NodeStatus| {
        let lending = node.lending.as_ref().filter(|its| its.owed_bytes > 0)?;
        let owed = format_size(lending.owed_bytes);
        let waits = waits_for(lending.waits_files, lending.waits_bytes, &lending.waits_for);
        let server = node.server;
        Some(format!(
            "jobs on node {server} wait for {owed} of its memory{waits}\n"
        ))
    };
    nodes.iter().filter_map(lending).collect()
}

/// The memory of a node as JSON.
pub fn node_to_json(lending: &NodeLending) -> Value {
    json!({
        "owed_bytes": lending.owed_bytes,
        "waits_files": lending.waits_files,
        "waits_bytes": lending.waits_bytes,
        "waits_for": files_to_json(&lending.waits_for),
        "dropped_bytes_total": lending.dropped_bytes_total,
        "moved_bytes_total": lending.moved_bytes_total,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_whose_memory_jobs_wait_for_is_named() {
        let mut node = NodeStatus {
            server: 3,
            ..NodeStatus::default()
        };
        let mut lending = NodeLending {
            moved_bytes_total: 1 << 30,
            ..NodeLending::default()
        };
        node.lending = Some(Box::new(lending.clone()));
        assert_eq!(render_nodes(std::slice::from_ref(&node)), "");
        (lending.owed_bytes, lending.waits_files, lending.waits_bytes) = (3 << 20, 1, 2 << 20);
        lending.waits_for.push(LendingFile {
            path: b"run/a".to_vec(),
            bytes: 2 << 20,
            deleted: false,
        });
        node.lending = Some(Box::new(lending));
        assert_eq!(
            render_nodes(&[node]),
            "jobs on node 3 wait for 3.0 MiB of its memory: 2.0 MiB stay until programs close 1 file (run/a)\n"
        );
    }

    #[test]
    fn the_line_says_how_much_and_why() {
        let mut bits = StatusBits::default();
        assert_eq!(render(&bits), "");
        let mut lending = LendingStatus {
            borrowed_bytes: 6 << 30,
            floor_bytes: 1 << 30,
            ceiling_bytes: 12 << 30,
            available_bytes: 2 << 30,
            why: "jobs".into(),
            ..LendingStatus::default()
        };
        bits.lending = Some(Box::new(lending.clone()));
        assert_eq!(
            render(&bits),
            "\nborrowed   6.0 GiB of memory, between 1.0 GiB and 12.0 GiB: jobs have the rest, 2.0 GiB are available\n"
        );
        (lending.why, lending.ordered_bytes, lending.owed_bytes) =
            ("ordered".into(), 4 << 30, 1 << 20);
        bits.lending = Some(Box::new(lending.clone()));
        let line = render(&bits);
        lending.why = "grows".into();
        bits.lending = Some(Box::new(lending));
        let grows = ": memory is idle, it grows; an order gives 4.0 GiB to jobs; 1.0 MiB";
        assert!(render(&bits).contains(grows));
        assert!(
            line.ends_with(": an order gives 4.0 GiB to jobs; 1.0 MiB are still to leave it\n"),
            "{line}"
        );
    }
}
