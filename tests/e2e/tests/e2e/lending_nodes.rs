//! Memory of data servers that is given back beside programs that read and write.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_testkit::{
    Fleet, Output, needs_nodes, pattern, wait_until, wait_until_for, write_file,
};
use serde_json::Value;

use super::lending::work;

const MIB: u64 = 1 << 20;
const MEMORY: &str = "dram = \"auto\"\ndram_max = \"64MiB\"\n";
/// Nothing drains by itself, and nothing has to be on flash.
const RULES: &str = "[demotion]\nidle = false\nstart = 0.9\n\
    [[rule]]\npath = \"/**\"\ndurability = \"memory\"\n";
const FILES: u64 = 6;

/// A command on the node of data server 2, for that server.
fn on_data(fleet: &Fleet, words: &[&str]) -> Output {
    let state = fleet.data_state(1);
    let mut args: Vec<_> = words.iter().map(std::convert::AsRef::as_ref).collect();
    args.extend(["--state".as_ref(), state.as_os_str()]);
    fleet.run(1, &args)
}

fn lending(fleet: &Fleet) -> Value {
    let status = on_data(fleet, &["status", "--json"]).ok().json();
    status["lending"].clone()
}

fn bytes(fleet: &Fleet, field: &str) -> u64 {
    let lending = lending(fleet);
    lending[field]
        .as_u64()
        .unwrap_or_else(|| panic!("{field}: {lending}"))
}

fn is_at_its_ceiling(fleet: &Fleet) -> bool {
    bytes(fleet, "borrowed_bytes") == 64 * MIB
}

fn write_all(fleet: &Fleet, round: u64) {
    for at in 0..FILES {
        let path = fleet.mnt(1, format!("at-rest-{at}"));
        let _ = std::fs::remove_file(&path);
        write_file(&path, pattern(round * FILES + at, 5_000_000));
    }
}

fn assert_all(fleet: &Fleet, round: u64) {
    for node in [1, 2] {
        for at in 0..FILES {
            let path = fleet.mnt(node, format!("at-rest-{at}"));
            pattern(round * FILES + at, 5_000_000).assert_in(&path);
        }
    }
}

/// The names of the tiers that the files at rest are in.
fn tiers(fleet: &Fleet) -> Vec<String> {
    let tier = |at| {
        let path = fleet.mnt(1, format!("at-rest-{at}"));
        let args = ["where".as_ref(), "--json".as_ref(), path.as_os_str()];
        let said = fleet.run(1, &args).ok().json();
        said[0]["tiers"][0].as_str().expect("a tier").to_string()
    };
    (0..FILES).map(tier).collect()
}

fn is_memory_of_2(tier: &str) -> bool {
    tier == "server-2:dram"
}

/// Flash of server 2 is a file's that is not drained.
fn fill_flash(fleet: &Fleet) {
    let full = std::fs::File::create(fleet.mnt(1, "full")).expect("create");
    full.sync_all().expect("fsync");
    for part in 0..63 {
        std::io::Write::write_all(&mut (&full), &vec![part; 4 * MIB as usize]).expect("write");
    }
}

#[test]
fn promise_5_a_data_server_lends_memory_beside_programs_of_all_nodes() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::of_data_servers_in(2, ("", MEMORY), RULES);
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for node in [1, 2] {
            let path = fleet.mnt(node, format!("fsx-{node}"));
            let (is_over, rounds) = (&is_over, &rounds);
            scope.spawn(move || work(&path, 20 + node as u64, is_over, rounds));
        }
        for round in 0..2 {
            wait_until_for(Duration::from_secs(300), "the ceiling", || {
                is_at_its_ceiling(&fleet)
            });
            write_all(&fleet, round);
            let before = rounds.load(Ordering::Relaxed);
            on_data(&fleet, &["lend", "1GiB", "--for", "job"]).ok();
            wait_until("what is at rest has left", || {
                !tiers(&fleet).iter().any(|tier| is_memory_of_2(tier))
            });
            assert_all(&fleet, round);
            wait_until("the programs go on", || {
                rounds.load(Ordering::Relaxed) > before + 20
            });
            on_data(&fleet, &["lend", "--end", "--for", "job"]).ok();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let status = fleet.status();
    let errors = status["errors"].clone();
    assert_eq!(errors.as_array().map(Vec::len), Some(0), "{errors}");
    // The metadata server knows what has moved, and the data server does not.
    let nodes = status["nodes"].as_array().expect("nodes");
    let of_2 = nodes.iter().find(|node| node["id"] == 2).expect("node 2");
    let moved = of_2["lending"]["moved_bytes_total"].as_u64();
    assert!(moved.is_some_and(|moved| moved > 0), "{of_2}");
    assert!(lending(&fleet)["moved_bytes_total"].is_null());
}

#[test]
fn promise_5_memory_that_a_data_server_lends_is_whole_after_kills_of_the_servers() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::of_data_servers_in(2, ("", MEMORY), RULES);
    for round in 0..2 {
        wait_until_for(Duration::from_secs(300), "the ceiling", || {
            is_at_its_ceiling(&fleet)
        });
        write_all(&fleet, round);
        on_data(&fleet, &["lend", "1GiB", "--for", "job"]).ok();
        // Wherever in the midst of the moves.
        std::thread::sleep(Duration::from_millis(150 * (round + 1)));
        fleet.kill_server();
        if round > 0 {
            fleet.kill_data(1);
            fleet.start_data(1, "this boot");
        }
        fleet.start_server();
        assert_all(&fleet, round);
        // The order is in force over the kill.
        let told = on_data(&fleet, &["lend", "1GiB", "--for", "job", "--wait", "60s"]).ok();
        assert!(
            told.stdout.starts_with("1.0 GiB go back to jobs"),
            "{told:?}"
        );
        assert_eq!(lending(&fleet)["orders"][0]["for"], "job");
        assert!(bytes(&fleet, "used_bytes") <= 4 * MIB);
        assert_all(&fleet, round);
        on_data(&fleet, &["lend", "--end", "--for", "job"]).ok();
    }
}

#[test]
fn promise_5_without_room_on_flash_a_data_server_hands_memory_over_to_other_nodes() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::of_data_servers_in(2, ("", MEMORY), RULES);
    wait_until_for(Duration::from_secs(300), "the ceiling", || {
        is_at_its_ceiling(&fleet)
    });
    write_all(&fleet, 0);
    assert!(tiers(&fleet).iter().all(|tier| is_memory_of_2(tier)));
    fill_flash(&fleet);
    on_data(&fleet, &["lend", "1GiB", "--for", "job", "--wait", "60s"]).ok();
    let now = tiers(&fleet);
    assert!(!now.iter().any(|tier| is_memory_of_2(tier)), "{now:?}");
    let is_elsewhere = |tier: &String| !tier.starts_with("server-2:");
    assert!(now.iter().any(is_elsewhere), "{now:?}");
    assert_all(&fleet, 0);
}

#[test]
fn promise_3_memory_that_is_lent_leaves_no_file_on_one_node_alone() {
    if needs_nodes() {
        return;
    }
    let rules = "[demotion]\nidle = false\nstart = 0.9\n\
        [[rule]]\npath = \"/full\"\ndurability = \"memory\"\nservers = [2]\n";
    let fleet = Fleet::of_data_servers_in(2, ("replicas = 2\n", MEMORY), rules);
    wait_until_for(Duration::from_secs(300), "the ceiling", || {
        is_at_its_ceiling(&fleet)
    });
    fill_flash(&fleet);
    let path = fleet.mnt(1, "two");
    write_file(&path, pattern(7, 5_000_000));
    let file = std::fs::File::open(&path).expect("open");
    file.sync_all().expect("fsync");
    drop(file);
    let copies = || {
        let args = ["where".as_ref(), "--json".as_ref(), path.as_os_str()];
        let said = fleet.run(1, &args).ok().json();
        let tiers = said[0]["tiers"].as_array().expect("tiers").clone();
        let tiers = tiers.iter().map(|tier| tier.as_str().expect("a name"));
        tiers.map(str::to_string).collect::<Vec<_>>()
    };
    let before = copies();
    assert!(before.iter().any(|tier| is_memory_of_2(tier)), "{before:?}");
    let is_on_3 = |tier: &String| tier.starts_with("server-3:");
    assert!(before.iter().any(is_on_3), "{before:?}");
    let wait = ["lend", "1GiB", "--for", "job", "--wait", "60s"];
    on_data(&fleet, &wait).ok();
    // The only flash with room has the second copy: the file is on the PFS instead.
    let now = copies();
    assert!(!now.iter().any(|tier| is_memory_of_2(tier)), "{now:?}");
    assert!(!now.iter().all(is_on_3), "{now:?}");
    pattern(7, 5_000_000).assert_in(&fleet.pfs("two"));
    pattern(7, 5_000_000).assert_in(&path);
}

#[test]
fn command_lend_at_what_lends_nothing_names_who_does() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::of_data_servers_in(1, ("", MEMORY), RULES);
    let at = |node, state: &Path| {
        let args = ["lend".as_ref(), "1GiB".as_ref(), "--state".as_ref()];
        let args = [&args[..], &[state.as_os_str()]].concat();
        fleet.run(node, &args).expect_code(1).stderr
    };
    let mut folders = fs::read_dir(fleet.base().join("run")).expect("run folders");
    let run = folders.next().expect("one").expect("readable").path();
    let said = at(1, &run);
    let data = format!("--state {} (server 2)", fleet.data_state(1).display());
    assert!(said.contains("the run folder of the mount "), "{said}");
    assert!(said.contains(&data), "{said}");
    let said = at(0, &fleet.state());
    let size = "the memory tier of server 1 has a fixed size (128.0 MiB)";
    assert!(said.contains(size), "{said}");
    let section = "with `dram = \"auto\"` in its `[[server]]` section of ";
    assert!(said.contains(section), "{said}");
}
