//! A data server that is started without a tier that it had.

use std::fs;

use forebay_testkit::{Fleet, needs_nodes, pattern, wait_until, write_file};

/// Nothing drains by itself, and fsync means memory.
const KEEP: &str = "[demotion]\nidle = false\nstart = 0.9\n\
                    [[rule]]\npath = \"/**\"\ndurability = \"memory\"\n";

#[test]
fn promise_8_a_tier_that_a_data_server_is_started_without_is_not_taken_for_drained() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::of_data_servers(2, KEEP);
    write_file(&fleet.mnt(1, "f"), pattern(1, 1 << 20));
    fleet.closes_are_heard_of(0);
    fleet.kill_data(1);
    let config = fleet.base().join("cluster.toml");
    let with = fs::read_to_string(&config).expect("the file");
    let section = with.find("id = 2\n").expect("its section");
    let begin = section + with[section..].find("dram = ").expect("a dram line");
    let end = begin + with[begin..].find('\n').expect("a line") + 1;
    fs::write(&config, [&with[..begin], &with[end..]].concat()).expect("write");
    fleet.start_data(1, "this boot");
    wait_until("the metadata server has looked", || {
        // It starts itself anew, and does not answer meanwhile.
        let state = fleet.state();
        let order = ["status", "--json", "--state"].map(AsRef::as_ref);
        let said = fleet.run(0, &[&order[..], &[state.as_os_str()]].concat());
        said.code == 0 && said.stdout.contains("was started without it")
    });
    let status = fleet.status();
    assert_eq!(status["dirty_bytes"], 1 << 20, "{status}");
    let file = fleet.mnt(2, "f");
    let order = ["stage-out".as_ref(), "--wait".as_ref(), file.as_os_str()];
    let said = fleet.run(2, &order);
    assert_eq!(said.code, 3, "{said:?}");
    assert!(said.stderr.contains("/f: "), "{said:?}");
    let state = fleet.state();
    let order = ["down", "--drain", "--timeout", "1s", "--state"].map(AsRef::as_ref);
    let said = fleet.run(0, &[&order[..], &[state.as_os_str()]].concat());
    assert_eq!(said.code, 4, "{said:?}");
    let line = "the only copy is in a tier that is not there: server-2:dram (1.0 MiB)";
    assert!(said.stderr.contains(line), "{said:?}");
    assert!(said.stderr.contains("left: "), "{said:?}");
    // Named again, it is there.
    fleet.kill_data(1);
    fs::write(&config, with).expect("write");
    fleet.start_data(1, "this boot");
    pattern(1, 1 << 20).assert_in(&file);
    let order = ["stage-out".as_ref(), "--wait".as_ref(), file.as_os_str()];
    fleet.run(2, &order).ok();
    pattern(1, 1 << 20).assert_in(&fleet.pfs("f"));
}
