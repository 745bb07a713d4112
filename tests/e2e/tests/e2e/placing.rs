//! Path rules that say on which nodes files lie.

use std::fs;

use forebay_testkit::{Fleet, needs_nodes, pattern, wait_until, write_file};

const MIB: usize = 1 << 20;
/// Nothing drains by itself. Server 3 is that of node 2.
const RULES: &str = "[demotion]\nidle = false\nstart = 0.9\n\
    [[rule]]\npath = \"/pinned/**\"\nservers = [3]\n\
    [[rule]]\npath = \"/spread/**\"\nlocality = \"spread\"\n\
    [[rule]]\npath = \"/own/**\"\nlocality = \"local-only\"\n\
    [[rule]]\npath = \"/**\"\ndurability = \"memory\"\n";

/// The server of a file, if it is not on the PFS only.
fn server(fleet: &Fleet, path: &str) -> Option<u16> {
    let path = fleet.mnt(1, path);
    let args = ["where".as_ref(), "--json".as_ref(), path.as_os_str()];
    let said = fleet.run(1, &args).ok().json();
    let tier = said[0]["tiers"][0].as_str().expect("a tier");
    match tier.strip_prefix("server-") {
        Some(rest) => {
            let id = rest.split(':').next().expect("an id");
            Some(id.parse().expect("a number"))
        }
        None if tier.starts_with("pfs") => None,
        // Of the metadata server's own node.
        None => Some(1),
    }
}

#[test]
fn promise_2_a_rule_says_on_which_nodes_files_lie() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::of_data_servers(3, RULES);
    for dir in ["pinned", "spread", "own"] {
        fs::create_dir(fleet.mnt(1, dir)).expect("mkdir");
    }
    for node in 1..=3 {
        for (dir, on) in [("pinned", 3), ("own", node as u16 + 1)] {
            let name = format!("{dir}/of{node}");
            write_file(&fleet.mnt(node, &name), pattern(node as u64, MIB));
            assert_eq!(server(&fleet, &name), Some(on), "{name}");
        }
    }
    let mut used = Vec::new();
    for n in 0..16 {
        let name = format!("spread/{n}");
        write_file(&fleet.mnt(1, &name), pattern(n, 64 << 10));
        used.extend(server(&fleet, &name));
    }
    assert!(used.iter().any(|on| *on != used[0]), "{used:?}");
    // Without the only server that may have them, new files go straight to the PFS.
    fleet.kill_data(2);
    wait_until("it is away", || {
        let name = "pinned/later";
        write_file(&fleet.mnt(1, name), pattern(9, MIB));
        let is_away = server(&fleet, name).is_none();
        pattern(9, MIB).assert_in(&fleet.mnt(3, name));
        fs::remove_file(fleet.mnt(1, name)).expect("unlink");
        is_away
    });
    write_file(&fleet.mnt(2, "own/later"), pattern(8, MIB));
    assert_eq!(server(&fleet, "own/later"), None);
    pattern(8, MIB).assert_in(&fleet.mnt(1, "own/later"));
    write_file(&fleet.mnt(2, "other"), pattern(7, MIB));
    assert!(server(&fleet, "other").is_some(), "anywhere else");
}

#[test]
fn promise_8_what_a_rule_keeps_on_its_node_is_drained_when_the_node_is_emptied() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::of_data_servers(2, RULES);
    fs::create_dir(fleet.mnt(1, "own")).expect("mkdir");
    for n in 0..4 {
        let name = format!("own/{n}");
        write_file(&fleet.mnt(1, &name), pattern(n, MIB));
        assert_eq!(server(&fleet, &name), Some(2));
    }
    let config = fleet.base().join("cluster.toml");
    let args = ["cluster", "drain-node", "2", "--timeout", "60s", "--config"];
    let mut args: Vec<&std::ffi::OsStr> = args.iter().map(|word| (*word).as_ref()).collect();
    args.push(config.as_os_str());
    fleet.run(0, &args).ok();
    for n in 0..4 {
        let name = format!("own/{n}");
        assert_eq!(server(&fleet, &name), None, "{name}");
        pattern(n, MIB).assert_in(&fleet.pfs(&name));
    }
}

#[test]
fn bad_input_a_rule_that_names_no_server_that_holds_data_is_refused() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(0, "");
    let config = fs::read_to_string(fleet.base().join("cluster.toml")).expect("read");
    let refused = |key: &str| {
        let path = fleet.base().join("other.toml");
        let rule = format!("[[rule]]\npath = \"/a/**\"\n{key}\n");
        let text = format!("{config}{rule}");
        let line = text.lines().count();
        fs::write(&path, text).expect("write");
        let path = path.as_os_str();
        let server = ["server".as_ref(), "--id".as_ref(), "1".as_ref()];
        let start = ["cluster", "start", "--mount", "/nowhere"].map(|word| word.as_ref());
        for command in [&server[..], &start[..]] {
            let args = [command, &["--config".as_ref(), path]].concat();
            let said = fleet.run(0, &args);
            assert_eq!(said.code, 1, "{said:?}");
            assert!(said.stderr.contains(&format!("line {line}: ")), "{said:?}");
        }
        let args = [&server[..], &["--config".as_ref(), path]].concat();
        fleet.run(0, &args).stderr
    };
    let unknown = refused("servers = [9]");
    assert!(unknown.contains("there is no server 9"), "{unknown}");
    let rack = refused("racks = [\"r9\"]");
    assert!(rack.contains("no server has rack = \"r9\""), "{rack}");
}

#[test]
fn promise_2_a_file_that_only_the_pfs_has_lies_where_it_is_written_again() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::of_data_servers(3, RULES);
    for n in 0..6 {
        write_file(&fleet.mnt(1, format!("{n}")), pattern(n, 64 << 10));
    }
    let all = fleet.mnt(1, "");
    for order in [&["stage-out", "--wait"][..], &["release"]] {
        let words = order.iter().map(std::ffi::OsStr::new);
        let words = words.chain([all.as_os_str()]);
        fleet.run(1, &words.collect::<Vec<_>>()).ok();
    }
    for (n, node) in [1, 2, 3, 1, 2, 3].into_iter().enumerate() {
        let name = format!("{n}");
        assert_eq!(server(&fleet, &name), None, "it has left");
        let path = fleet.mnt(node, &name);
        match n < 3 {
            // All of it, or a part.
            true => write_file(&path, pattern(10 + n as u64, MIB)),
            false => {
                let file = fs::OpenOptions::new().append(true).open(path);
                std::io::Write::write_all(&mut file.expect("open"), b"more").expect("write");
            }
        }
        assert_eq!(server(&fleet, &name), Some(node as u16 + 1), "{name}");
    }
}
