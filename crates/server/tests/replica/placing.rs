//! Path rules that name servers: they hold for second copies, and for what comes from the PFS.

use forebay_policy::holders::{HolderId, HolderRule, Locality, Rack};
use forebay_server::PathRule;

use super::*;
use crate::common::settings;

fn rule(pattern: &str, placement: HolderRule) -> PathRule {
    PathRule {
        pattern: pattern.into(),
        durability: None,
        mtbf: None,
        group: None,
        placement: Some(placement),
        trust: None,
    }
}

fn named(servers: &[u16], racks: &[u16]) -> HolderRule {
    HolderRule {
        locality: Locality::WriterFirst,
        servers: servers.iter().copied().map(HolderId).collect(),
        racks: racks.iter().copied().map(Rack).collect(),
    }
}

/// Servers of some files that begin so, each file's in order.
fn servers_of_all(running: &Running, begin: &str) -> Vec<Vec<u16>> {
    let files = (0..6u8).map(|n| {
        let name = format!("{begin}{n}");
        let handle = put_synced(running, name.as_bytes(), &content(n, 50_000));
        running.client.release(handle).expect("close");
        let mut servers = servers_of(running, name.as_bytes());
        servers.sort_unstable();
        servers
    });
    files.collect()
}

#[test]
fn a_second_copy_lies_where_the_rule_of_the_file_allows_it() {
    let scratch = Scratch::new();
    let mut servers = Servers::new(scratch.path(), &[2, 3, 4]);
    servers.settings.rules = vec![
        rule("/servers*", named(&[2, 4], &[])),
        rule("/racks*", named(&[], &[3, 4])),
        rule("/one", named(&[3], &[])),
    ];
    let running = servers.start();
    assert_eq!(servers_of_all(&running, "servers"), vec![vec![2, 4]; 6]);
    assert_eq!(servers_of_all(&running, "racks"), vec![vec![3, 4]; 6]);
    let any = servers_of_all(&running, "any");
    assert!(any.iter().all(|both| both.len() == 2 && both[0] != both[1]));
    // Where the rule allows no second server, the PFS takes its place.
    let data = content(1, 100_000);
    let handle = put_synced(&running, b"one", &data);
    assert_eq!(
        std::fs::read(scratch.pfs().join("one")).expect("there"),
        data
    );
    assert_eq!(servers_of(&running, b"one"), [3]);
    running.client.release(handle).expect("close");
    running.audit();
    running.instance.stop();
}

#[test]
fn what_lies_only_where_it_is_written_has_a_second_copy_elsewhere() {
    let scratch = Scratch::new();
    let mut servers = Servers::new(scratch.path(), &[2, 3]);
    servers.settings.ssd = settings(scratch.path(), 64 << 20).ssd;
    let local = HolderRule {
        locality: Locality::LocalOnly,
        ..HolderRule::default()
    };
    servers.settings.rules = vec![rule("/own", local)];
    let running = servers.start();
    let handle = put_synced(&running, b"own", &content(1, 100_000));
    running.client.release(handle).expect("close");
    let held = running.residency(b"own");
    let elsewhere = held[0].tiers.iter().map(|tier| tier.starts_with("server-"));
    assert_eq!(elsewhere.collect::<Vec<_>>(), [false, true], "{held:?}");
    assert!(!scratch.pfs().join("own").exists());
    running.instance.stop();
}

#[test]
fn a_file_of_the_pfs_is_changed_on_an_allowed_server_or_where_it_is() {
    let scratch = Scratch::new();
    let mut servers = Servers::new(scratch.path(), &[2, 3]);
    servers.settings.rules = vec![rule("/kept*", named(&[3], &[]))];
    for name in ["kept-first", "kept-next"] {
        std::fs::write(scratch.pfs().join(name), b"on the PFS").expect("write");
    }
    let running = servers.start();
    let change = |name: &str| {
        let attr = running.client.lookup(Ino::ROOT, name.as_bytes(), 0);
        let attr = attr.expect("there");
        let flags = OpenFlags(libc::O_RDWR as u32);
        let open = running.client.open(attr.ino, flags, me());
        let open = open.expect("open").opened;
        running.write(open.handle, 0, b"by us").expect("write");
        running.client.release(open.handle).expect("close");
    };
    change("kept-first");
    assert_eq!(servers_of(&running, b"kept-first"), [3]);
    // Server 2 has room, and may not have it.
    servers.way(3).is_there.store(false, Ordering::Release);
    change("kept-next");
    let found = std::fs::read(scratch.pfs().join("kept-next")).expect("read");
    assert_eq!(found, b"by use PFS");
    running.instance.stop();
}

#[test]
fn a_restart_copy_lies_on_no_server_that_the_rule_of_its_file_leaves_out() {
    let scratch = Scratch::new();
    let mut servers = Servers::new(scratch.path(), &[2, 3]);
    servers.settings.durability = Some(Durability::Ssd);
    servers.settings.restart_copies = 1;
    servers.settings.rules = vec![rule("/pinned*", named(&[3], &[]))];
    let running = servers.start();
    // Of two that are alike, the first is copied first.
    for application in ["pinned", "free"] {
        let name = |version| format!("{application}_000{version}.dat");
        running.put(name(1).as_bytes(), &content(5, 300_000));
        running.put(name(2).as_bytes(), b"next");
    }
    running.drain();
    wait_for("no restart copy", || {
        running.residency(b"free_0001.dat")[0].tiers.len() == 3
    });
    // On flash, and on the PFS.
    assert_eq!(running.residency(b"pinned_0001.dat")[0].tiers.len(), 2);
    running.instance.stop();
}
