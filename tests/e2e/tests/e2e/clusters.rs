//! The whole cluster: what `status` says of its nodes.

use std::fs;

use forebay_testkit::{Fleet, needs_nodes, pattern, wait_until, write_file};
use serde_json::Value;

const MIB: usize = 1 << 20;
/// Nothing drains by itself, and fsync means memory.
const KEEP: &str = "[demotion]\nidle = false\nstart = 0.9\n\
                    [[rule]]\npath = \"/**\"\ndurability = \"memory\"\n";

/// What `status --config` says on a node of another.
#[track_caller]
fn node_status(fleet: &Fleet, on: usize, of: usize) -> Value {
    let config = fleet.base().join("cluster.toml");
    let args = ["status".as_ref(), "--json".as_ref(), "--config".as_ref()];
    let args = [&args[..], &[config.as_os_str()]].concat();
    let said = fleet.run(on, &args).ok().json();
    let nodes = said["nodes"].as_array().expect("nodes");
    let id = of as u64 + 1;
    let found = nodes.iter().find(|node| node["id"] == id);
    found.expect("the node").clone()
}

fn bytes(node: &Value, of: &str) -> u64 {
    node["only_here"][of].as_u64().expect("a number")
}

#[test]
fn promise_7_status_names_each_node_and_what_would_go_with_it() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::of_data_servers(2, KEEP);
    write_file(&fleet.mnt(1, "f"), pattern(1, 3 * MIB));
    write_file(&fleet.mnt(1, "g"), pattern(2, MIB));
    let first = node_status(&fleet, 2, 1);
    assert_eq!(
        (&first["answers"], &first["rack"]),
        (&true.into(), &Value::Null)
    );
    assert_eq!(first["links"]["up"], first["links"]["total"], "{first}");
    assert!(
        first["links"]["out_bytes"].as_u64() > Some(4 * MIB as u64),
        "{first}"
    );
    assert_eq!(bytes(&first, "files"), 2, "{first}");
    assert_eq!(bytes(&first, "bytes"), 4 * MIB as u64, "{first}");
    assert_eq!(bytes(&first, "memory_bytes"), 4 * MIB as u64, "{first}");
    let own = node_status(&fleet, 1, 0);
    assert_eq!(
        (&own["metadata"], &own["has_records"]),
        (&true.into(), &true.into())
    );
    assert_eq!(bytes(&own, "bytes"), 0, "{own}");

    fleet.kill_data(1);
    wait_until("the node is missing", || {
        let first = node_status(&fleet, 2, 1);
        first["answers"] == false && first["missing_s"].as_f64() > Some(0.5)
    });
    let config = fleet.base().join("cluster.toml");
    let args = ["status".as_ref(), "--config".as_ref(), config.as_os_str()];
    let page = fleet.run(2, &args).ok().stdout;
    assert!(page.contains("nodes      3, 1 is missing\n"), "{page}");
    let loss = "if node 2 does not come back, it takes 2 files (4.0 MiB) that nobody else has";
    assert!(page.contains(loss), "{page}");

    fleet.start_data(1, "this boot");
    wait_until("the node is back", || {
        node_status(&fleet, 2, 1)["answers"] == true
    });
    fs::remove_file(fleet.mnt(1, "g")).expect("unlink");
    let root = fleet.mnt(1, "");
    let args = ["stage-out".as_ref(), "--wait".as_ref(), root.as_os_str()];
    fleet.run(1, &args).ok();
    let first = node_status(&fleet, 1, 1);
    assert_eq!(
        (bytes(&first, "files"), &first["missing_s"]),
        (0, &Value::Null)
    );
}
