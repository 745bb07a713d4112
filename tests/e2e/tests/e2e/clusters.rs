//! The whole cluster: what `status` says of its nodes, and nodes that are emptied.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;

use forebay_testkit::{Fleet, Output, needs_nodes, pattern, wait_until, write_file};
use serde_json::Value;

const MIB: usize = 1 << 20;
/// Nothing drains by itself, and fsync means memory.
const KEEP: &str = "[demotion]\nidle = false\nstart = 0.9\n\
                    [[rule]]\npath = \"/**\"\ndurability = \"memory\"\n";
/// The same, and checkpoints are published as a whole, by order.
const KEEP_VERSIONS: &str = "[demotion]\nidle = false\nstart = 0.9\n\
                             [[rule]]\npath = \"/run/ckpt-{version}\"\ngroup = \"commit\"\n\
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
    fleet.closes_are_heard_of(0);
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

/// Whether a file lies on a node, as another says.
#[track_caller]
fn is_on(fleet: &Fleet, path: &str, node: usize) -> bool {
    let path = fleet.mnt(2, path);
    let args = ["where".as_ref(), "--json".as_ref(), path.as_os_str()];
    let said = fleet.run(2, &args).ok().json();
    let tiers = said[0]["tiers"].as_array().expect("tiers");
    let server = format!("server-{}:", node + 1);
    let names = tiers.iter().map(|tier| tier.as_str().expect("a name"));
    names.into_iter().any(|name| name.starts_with(&server))
}

#[track_caller]
fn order(fleet: &Fleet, words: &[&str]) -> Output {
    let config = fleet.base().join("cluster.toml");
    let mut args: Vec<&OsStr> = vec!["cluster".as_ref()];
    args.extend(words.iter().map(OsStr::new));
    args.extend(["--config".as_ref(), config.as_os_str()]);
    fleet.run(2, &args)
}

/// With node 2 emptied.
#[track_caller]
fn the_last_node_stays(fleet: &Fleet) {
    order(fleet, &["drain-node", "3", "--no-wait"]).ok();
    let last = order(fleet, &["drain-node", "1"]).expect_code(1);
    assert!(
        last.stderr
            .contains("the last node that new files may go to"),
        "{last:?}"
    );
    order(fleet, &["use-node", "3"]).ok();
    order(fleet, &["drain-node", "9"]).expect_code(1);
}

/// The kernel of another node has nothing of a file by itself: it moves while it is open.
fn open_far(fleet: &Fleet) -> fs::File {
    write_file(&fleet.mnt(1, "far"), pattern(31, MIB));
    fleet.closes_are_heard_of(1);
    let mut far = fs::File::options();
    let far = far.append(true).open(fleet.mnt(2, "far")).expect("open");
    assert!(is_on(fleet, "far", 1));
    far
}

fn far_goes_on_elsewhere(fleet: &Fleet, far: &mut fs::File) {
    assert!(!is_on(fleet, "far", 1));
    far.write_all(b"and more").expect("write");
    for node in [1, 2] {
        let read = fs::read(fleet.mnt(node, "far")).expect("read");
        assert!(read[..MIB] == pattern(31, MIB).bytes() && read[MIB..] == *b"and more");
    }
}

/// The mount of a node hears a moment later that its node's server is back.
fn is_given_files_again(fleet: &Fleet) {
    let mut probes = 0;
    wait_until("it is given files", || {
        probes += 1;
        let name = format!("probe{probes}");
        write_file(&fleet.mnt(1, &name), pattern(23, MIB));
        is_on(fleet, &name, 1)
    });
}

#[test]
fn promise_8_a_node_is_emptied_while_jobs_run() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::of_data_servers(2, KEEP_VERSIONS);
    for at in 0..8u64 {
        write_file(&fleet.mnt(1, format!("f{at}")), pattern(at, MIB));
    }
    let clean = fleet.mnt(1, "f0");
    let args = ["stage-out".as_ref(), "--wait".as_ref(), clean.as_os_str()];
    fleet.run(1, &args).ok();
    assert!(is_on(&fleet, "f0", 1) && is_on(&fleet, "f7", 1));
    // A version that nobody has published yet, and nobody does here.
    fs::create_dir_all(fleet.mnt(1, "run/ckpt-1")).expect("mkdir");
    write_file(&fleet.mnt(1, "run/ckpt-1/rank0"), pattern(30, MIB));
    // What is there before, the kernel of the node has by itself.
    fs::write(fleet.mnt(1, "open"), b"begun").expect("write");
    fleet.closes_are_heard_of(0);
    let mut open = fs::File::options();
    let mut open = open.append(true).open(fleet.mnt(1, "open")).expect("open");
    let mut far = open_far(&fleet);

    let late = order(&fleet, &["drain-node", "2", "--timeout", "3s"]).expect_code(4);
    assert!(
        late.stderr
            .contains("/open: is open, and could not move; it leaves the node after"),
        "{late:?}"
    );
    let node = node_status(&fleet, 2, 1);
    assert_eq!(node["emptying"]["open_files"], 1, "{node}");
    for at in 0..8u64 {
        // Drained, or on the other node.
        assert!(!is_on(&fleet, &format!("f{at}"), 1));
        pattern(at, MIB).assert_in(&fleet.mnt(2, format!("f{at}")));
    }
    far_goes_on_elsewhere(&fleet, &mut far);
    // The job goes on, elsewhere.
    write_file(&fleet.mnt(1, "new"), pattern(20, MIB));
    assert!(!is_on(&fleet, "new", 1));
    open.write_all(b" and gone on").expect("write");

    fleet.stop_server();
    fleet.start_server();
    wait_until("all nodes answer", || {
        node_status(&fleet, 2, 1)["answers"] == true
    });
    write_file(&fleet.mnt(1, "newer"), pattern(21, MIB));
    assert!(!is_on(&fleet, "newer", 1));
    drop(open);
    let done = order(&fleet, &["drain-node", "2", "--timeout", "60s"]).ok();
    assert!(
        done.stdout
            .contains("node 2: empty; it gets no files until"),
        "{done:?}"
    );
    let node = node_status(&fleet, 2, 1);
    assert_eq!(
        (&node["emptying"]["files"], &node["used_bytes"]),
        (&0.into(), &0.into())
    );
    the_last_node_stays(&fleet);

    // Nobody misses it.
    fleet.kill_data(1);
    for at in 0..8u64 {
        pattern(at, MIB).assert_in(&fleet.mnt(2, format!("f{at}")));
    }
    pattern(30, MIB).assert_in(&fleet.mnt(2, "run/ckpt-1/rank0"));
    assert!(!fleet.pfs("run/ckpt-1").exists());
    let read = fs::read(fleet.mnt(2, "open")).expect("read");
    assert_eq!(read, b"begun and gone on");
    fleet.start_data(1, "this boot");
    wait_until("the node is back", || {
        node_status(&fleet, 2, 1)["answers"] == true
    });
    order(&fleet, &["use-node", "2"]).ok();
    is_given_files_again(&fleet);
    write_file(&fleet.mnt(1, "again"), pattern(22, MIB));
    assert!(is_on(&fleet, "again", 1));
}

#[test]
fn promise_1_a_full_node_hands_a_growing_file_over() {
    if needs_nodes() {
        return;
    }
    const PART: usize = 16 * MIB;
    let fleet = Fleet::of_data_servers(2, KEEP);
    write_file(&fleet.mnt(1, "grows"), pattern(1, MIB));
    assert!(is_on(&fleet, "grows", 1));
    // What node 1 has no room for lies on node 2.
    let elsewhere = (0..24u64).find(|n| {
        let name = format!("full{n}");
        write_file(&fleet.mnt(1, &name), pattern(*n, PART));
        !is_on(&fleet, &name, 1)
    });
    assert!(elsewhere.is_some(), "node 1 is not full");
    let mut grows = fs::File::options();
    let mut grows = grows.append(true).open(fleet.mnt(2, "grows"));
    let grows = grows.as_mut().expect("open");
    for n in 0..4 {
        grows.write_all(&pattern(n, PART).bytes()).expect("write");
    }
    let place = fleet.mnt(2, "grows");
    let said = fleet.run(2, &["where".as_ref(), place.as_os_str()]);
    let is_drained = said.stdout.contains("pfs");
    assert!(!is_on(&fleet, "grows", 1) && !is_drained, "{said:?}");
    let config = fleet.base().join("cluster.toml");
    let args = ["status".as_ref(), "--json".as_ref(), "--config".as_ref()];
    let status = fleet.run(2, &[&args[..], &[config.as_os_str()]].concat());
    let status = status.ok().json();
    assert_eq!(status["handed_over_files_total"], 1, "{status}");
    let read = fs::read(fleet.mnt(1, "grows")).expect("read");
    assert!(read[..MIB] == pattern(1, MIB).bytes());
    for (n, part) in read[MIB..].chunks(PART).enumerate() {
        assert!(part == pattern(n as u64, PART).bytes(), "part {n}");
    }
    assert_eq!(read.len(), MIB + 4 * PART);
}
