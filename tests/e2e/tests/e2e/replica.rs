//! The level `replica`: what fsync promised is on two servers.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_testkit::{Fleet, Output, needs_nodes, pattern, wait_until};
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;

const MIB: usize = 1 << 20;
const TWO: &str = "replicas = 2";
/// Nothing drains by itself.
const KEEP: &str = "[demotion]\nidle = false\nstart = 0.9\n";
/// Programs have a file again after so long.
const SOON: Duration = Duration::from_secs(10);
const BLOCK: usize = 4096;

/// Ids of the servers that have a file.
fn servers(fleet: &Fleet, path: &str) -> Vec<usize> {
    servers_of(fleet, fleet.mnt(2, path))
}

fn servers_of(fleet: &Fleet, path: PathBuf) -> Vec<usize> {
    let args = ["where".as_ref(), "--json".as_ref(), path.as_os_str()];
    let said = fleet.run(2, &args).ok().json();
    let tiers = said[0]["tiers"].as_array().expect("tiers");
    let names = tiers.iter().map(|tier| tier.as_str().expect("a name"));
    let id = |name: &str| {
        let rest = name.strip_prefix("server-")?;
        rest.split(':').next()?.parse().ok()
    };
    // The metadata server's own have no such name.
    names.map(|name| id(name).unwrap_or(1)).collect()
}

#[track_caller]
fn write_synced(path: PathBuf, seed: u64, bytes: usize) -> File {
    let made = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path);
    let file = made.expect("create");
    pattern(seed, bytes).write(&file);
    file.sync_all().expect("fsync");
    file
}

/// How many blocks of a file an fsync has promised, by a program that begins anew where it was
/// told of a loss.
fn load(path: PathBuf, stop: &Arc<AtomicBool>) -> JoinHandle<(u64, u32)> {
    let stop = stop.clone();
    std::thread::spawn(move || {
        let made = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = made.expect("create");
        let (mut promised, mut next, mut told) = (0, 0u64, 0);
        while !stop.load(Ordering::Acquire) {
            let block = [(next % 250) as u8 + 1; BLOCK];
            file.write_all_at(&block, next * BLOCK as u64)
                .expect("write");
            next += 1;
            if next % 4 != 0 {
                continue;
            }
            match file.sync_data() {
                Ok(()) => promised = next,
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
                    told += 1;
                    next = promised;
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        (promised, told)
    })
}

fn assert_promised(path: &std::path::Path, promised: u64) {
    let found = fs::read(path).expect("read");
    assert!(found.len() as u64 >= promised * BLOCK as u64, "{path:?}");
    for (n, block) in found.chunks(BLOCK).take(promised as usize).enumerate() {
        assert!(block == [(n % 250) as u8 + 1; BLOCK], "{path:?}: block {n}");
    }
}

#[test]
fn promise_3_replica_is_on_two_servers_when_fsync_returns() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::of_data_servers_with(2, TWO, KEEP);
    drop(write_synced(fleet.mnt(1, "f"), 1, 3 * MIB));
    let on = servers(&fleet, "f");
    assert_eq!(on, [2, 3], "its own node, and another");
    assert!(!fleet.pfs("f").exists(), "it is not drained");
    // With its node goes all that it had in memory.
    fleet.cut_power_of_data(1);
    fs::remove_dir_all(fleet.flash(1)).expect("remove");
    pattern(1, 3 * MIB).assert_in(&fleet.mnt(2, "f"));
    // There is no second server any more: the PFS is the next place.
    drop(write_synced(fleet.mnt(2, "alone"), 2, MIB));
    pattern(2, MIB).assert_in(&fleet.pfs("alone"));
}

#[test]
fn promise_8_of_three_data_servers_one_is_killed_and_all_that_was_promised_is_there() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::of_data_servers_with(3, TWO, KEEP);
    let stop = Arc::new(AtomicBool::new(false));
    drop(write_synced(fleet.mnt(1, "closed"), 1, 8 * MIB));
    let writers: Vec<_> = (0..6)
        .map(|n| load(fleet.mnt(n % 3 + 1, format!("load{n}")), &stop))
        .collect();
    std::thread::sleep(Duration::from_secs(2));
    fleet.kill_data(1);
    let killed = Instant::now();
    pattern(1, 8 * MIB).assert_in(&fleet.mnt(2, "closed"));
    let read = fs::read(fleet.mnt(3, "load0")).expect("read");
    assert!(killed.elapsed() < SOON, "{:?}", killed.elapsed());
    assert!(!read.is_empty());
    std::thread::sleep(Duration::from_secs(3));
    stop.store(true, Ordering::Release);
    let done: Vec<_> = writers
        .into_iter()
        .map(|one| one.join().expect("no panic"))
        .collect();
    let check = |fleet: &Fleet| {
        for (n, (promised, _)) in done.iter().enumerate() {
            assert!(*promised > 0, "load{n}");
            assert_promised(&fleet.mnt(2, format!("load{n}")), *promised);
        }
        pattern(1, 8 * MIB).assert_in(&fleet.mnt(3, "closed"));
    };
    check(&fleet);
    wait_until("a second copy of each, again", || {
        let mut names = (0..6).map(|n| format!("load{n}")).chain(["closed".into()]);
        names.all(|name| {
            let on = servers(&fleet, &name);
            on.len() == 2 && !on.contains(&2)
        })
    });
    // It comes back, and what it has is not the files.
    fleet.start_data(1, "this boot");
    std::thread::sleep(Duration::from_secs(3));
    check(&fleet);
    let root = fleet.mnt(2, "");
    let args = ["stage-out".as_ref(), "--wait".as_ref(), root.as_os_str()];
    fleet.run(2, &args).ok();
    check(&fleet);
    for (n, (promised, _)) in done.iter().enumerate() {
        assert_promised(&fleet.pfs(format!("load{n}")), *promised);
    }
}

#[test]
fn promise_8_a_file_goes_on_also_where_its_node_died_with_a_request_under_way() {
    if needs_nodes() {
        return;
    }
    // Nothing here ends with the lease.
    let cluster = "replicas = 2\nlease = \"60s\"";
    let mut fleet = Fleet::of_data_servers_with(3, cluster, KEEP);
    let synced = write_synced(fleet.mnt(1, "f"), 1, MIB);
    let elsewhere = File::open(fleet.mnt(3, "f")).expect("open");
    synced.write_all_at(b"not promised", 0).expect("write");
    fleet.signal_data(1, Signal::STOP);
    let reads = std::thread::spawn(move || {
        let mut found = vec![0; MIB];
        elsewhere.read_exact_at(&mut found, 0).map(|()| found)
    });
    let syncs = std::thread::spawn(move || synced.sync_all());
    std::thread::sleep(Duration::from_millis(500));
    fleet.kill_data(1);
    let killed = Instant::now();
    pattern(1, MIB).assert_in(&fleet.mnt(2, "f"));
    let told = syncs.join().expect("no panic");
    let read = reads.join().expect("no panic").expect("read");
    assert!(killed.elapsed() < SOON, "{:?}", killed.elapsed());
    assert!(read == fs::read(fleet.mnt(2, "f")).expect("read"));
    assert_eq!(
        told.expect_err("it is lost").raw_os_error(),
        Some(libc::EIO)
    );
}

#[test]
fn promise_8_who_has_written_what_is_lost_with_a_node_is_told_by_fsync() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::of_data_servers_with(2, TWO, KEEP);
    let file = write_synced(fleet.mnt(1, "f"), 1, MIB);
    let unharmed = write_synced(fleet.mnt(1, "unharmed"), 2, MIB);
    file.write_all_at(b"not promised", 0).expect("write");
    fleet.kill_data(1);
    let told = file.sync_all().expect_err("it is lost");
    assert_eq!(told.raw_os_error(), Some(libc::EIO));
    unharmed.sync_all().expect("nothing of it is lost");
    file.sync_all().expect("told once");
    pattern(1, MIB).assert_in(&fleet.mnt(2, "f"));
    assert!(fleet.status()["errors_total"].as_u64() > Some(0));
    assert!(fleet.log("server.log").contains("after its last fsync"));
    file.write_all_at(b"again", 0).expect("write");
    file.sync_all().expect("fsync");
    fleet.start_data(1, "this boot");
    std::thread::sleep(Duration::from_secs(2));
    let found = fs::read(fleet.mnt(2, "f")).expect("read");
    assert_eq!(&found[..5], b"again");
    pattern(2, MIB).assert_in(&fleet.mnt(2, "unharmed"));
}

#[test]
fn bad_input_a_level_replica_without_a_second_server_is_refused() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(0, "");
    let refused = |text: String| {
        let path = fleet.base().join("other.toml");
        fs::write(&path, text).expect("write");
        let args = ["server".as_ref(), "--config".as_ref(), path.as_os_str()];
        let args = [&args[..], &["--id".as_ref(), "1".as_ref()]].concat();
        let said = fleet.run(0, &args);
        assert_eq!(said.code, 1, "{said:?}");
        said.stderr
    };
    let config = fs::read_to_string(fleet.base().join("cluster.toml")).expect("read");
    let two = refused(config.replace("[cluster]\n", "[cluster]\nreplicas = 2\n"));
    assert!(two.contains("replicas = 2 needs two servers"), "{two}");
    let rule = "\n[[rule]]\npath = \"/**\"\ndurability = \"replica\"\n";
    let rule = refused(format!("{config}{rule}"));
    let line = config.lines().count() + 4;
    let said = format!("line {line}: durability replica needs replicas = 2");
    assert!(rule.contains(&said), "{rule}");
}

#[test]
fn promise_8_a_restart_reads_a_drained_checkpoint_from_another_node() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::of_data_servers_with(2, "restart_copies = 1", "");
    let (first, next) = ("ckpt_0001.dat", "ckpt_0002.dat");
    drop(write_synced(fleet.mnt(1, first), 1, 3 * MIB));
    drop(write_synced(fleet.mnt(1, next), 2, MIB));
    // Its own node, another, and the PFS.
    wait_until("a copy", || servers(&fleet, first) == [2, 3, 1]);
    fleet.kill_data(1);
    wait_until("it is away", || {
        let read = fs::read(fleet.mnt(2, first)).is_ok();
        // What is read from the PFS has left its node, and is nowhere else.
        read && servers(&fleet, first)[0] == 3
    });
    pattern(1, 3 * MIB).assert_in(&fleet.mnt(2, first));
    // A newer content is never taken from a copy.
    fs::write(fleet.mnt(2, first), b"newer").expect("write");
    assert_eq!(fs::read(fleet.mnt(2, first)).expect("read"), b"newer");
}

/// Bytes that two nodes have had of each other by a network since, at least and at most.
fn carried(fleet: &Fleet, network: usize, before: &[u64; 2]) -> (u64, u64) {
    let now = [1, 2].map(|node| carried_by(fleet, node, network));
    let since = [now[0] - before[0], now[1] - before[1]];
    (since[0].min(since[1]), since[0].max(since[1]))
}

fn carried_by(fleet: &Fleet, node: usize, network: usize) -> u64 {
    let (came, sent) = fleet.node(node).carried_bytes(network);
    came + sent
}

#[test]
fn promise_8_restart_copies_go_over_a_network_of_their_own_and_wait_for_it() {
    if needs_nodes() {
        return;
    }
    const COPIED: u64 = 8 << 20;
    let mut fleet = Fleet::of_two_networks(2, "restart_copies = 1", "");
    fleet.node(2).cut_network(1);
    let (first, next) = ("ckpt_0001.dat", "ckpt_0002.dat");
    drop(write_synced(fleet.mnt(1, first), 1, COPIED as usize));
    drop(write_synced(fleet.mnt(1, next), 2, 1000));
    wait_until("they are drained", || {
        fleet.pfs(next).exists() && servers(&fleet, first) == [2, 1]
    });
    // All else goes on, and no copy takes another way.
    fs::write(fleet.mnt(2, "other"), b"other").expect("write");
    std::thread::sleep(Duration::from_secs(8));
    assert_eq!(servers(&fleet, first), [2, 1]);
    let before = [0, 1].map(|network| [1, 2].map(|node| carried_by(&fleet, node, network)));
    fleet.node(2).heal_network(1);
    wait_until("a copy", || servers(&fleet, first) == [2, 3, 1]);
    let (fast, slow) = (
        carried(&fleet, 0, &before[0]),
        carried(&fleet, 1, &before[1]),
    );
    assert!(slow.0 >= COPIED, "{slow:?}");
    assert!(fast.1 < COPIED / 8, "{fast:?}");
    fleet.kill_data(1);
    wait_until("it is away", || {
        fs::read(fleet.mnt(2, first)).is_ok() && servers(&fleet, first)[0] == 3
    });
    pattern(1, COPIED as usize).assert_in(&fleet.mnt(2, first));
}

#[test]
fn promise_8_a_restart_on_another_node_reads_the_copy_on_its_own() {
    if needs_nodes() {
        return;
    }
    const COPIED: usize = 8 << 20;
    let fleet = Fleet::of_data_servers_with(2, "restart_copies = 1", "");
    let (first, next) = ("ckpt_0001.dat", "ckpt_0002.dat");
    drop(write_synced(fleet.mnt(1, first), 1, COPIED));
    drop(write_synced(fleet.mnt(1, next), 2, 1000));
    wait_until("a copy", || servers(&fleet, first) == [2, 3, 1]);
    // Here the file is on its own node.
    pattern(1, COPIED).assert_in(&fleet.mnt(1, first));
    assert_eq!(servers(&fleet, first), [2, 3, 1]);
    let before = carried_by(&fleet, 2, 0);
    pattern(1, COPIED).assert_in(&fleet.mnt(2, first));
    let carried = carried_by(&fleet, 2, 0) - before;
    assert!(
        carried < COPIED as u64 / 8,
        "{carried} bytes came from elsewhere"
    );
    assert_eq!(servers(&fleet, first), [3, 2, 1]);
    // A newer content is never taken from what is left.
    fs::write(fleet.mnt(1, first), b"newer").expect("write");
    assert_eq!(fs::read(fleet.mnt(2, first)).expect("read"), b"newer");
}

#[test]
fn promise_8_a_copy_of_an_earlier_fsync_is_not_called_what_the_last_has_left() {
    if needs_nodes() {
        return;
    }
    // The level wants flash on each server.
    let flash = tempfile::tempdir().expect("a directory");
    let rule = "[[rule]]\npath = \"/one/**\"\ndurability = \"ssd\"\n";
    let config = format!("ssd = [\"{}:64MiB\"]\n{KEEP}{rule}", flash.path().display());
    let mut fleet = Fleet::of_data_servers_with(2, TWO, &config);
    fs::create_dir(fleet.mnt(1, "one")).expect("mkdir");
    // Too large for memory: what is fsynced there is on flash of the same server.
    const LARGE: usize = 72 * MIB;
    let moved = write_synced(fleet.mnt(1, "f"), 1, LARGE);
    drop(write_synced(fleet.mnt(1, "kept"), 2, MIB));
    fs::rename(fleet.mnt(1, "f"), fleet.mnt(1, "one/f")).expect("rename");
    moved.write_all_at(b"promised on one", 0).expect("write");
    moved.sync_all().expect("fsync");
    drop(moved);
    assert_eq!(servers(&fleet, "one/f"), [2, 3]);
    // Nobody takes the files over.
    fleet.stop_server();
    fleet.kill_data(1);
    let state = fleet.base().join("state");
    let args = ["fsck", "--json", "--lost-tier", "server-2", "--state"].map(std::ffi::OsStr::new);
    let said = fleet
        .run(0, &[&args[..], &[state.as_os_str()]].concat())
        .ok()
        .json();
    let findings = said["findings"].as_array().expect("findings");
    let kind = |path: &str| {
        let mut of = findings.iter().filter(|finding| finding["subject"] == path);
        of.next().expect("a finding")["kind"].clone()
    };
    assert_eq!(kind("one/f"), "content-lost", "{said}");
    assert_eq!(kind("kept"), "fsynced-left", "{said}");
    fleet.start_server();
    pattern(1, LARGE).assert_in(&fleet.mnt(2, "one/f"));
    pattern(2, MIB).assert_in(&fleet.mnt(2, "kept"));
}

#[test]
fn promise_8_what_an_fsync_has_promised_stays_on_two_where_a_node_is_emptied() {
    if needs_nodes() {
        return;
    }
    // A new second copy would take hours.
    let cluster = format!("{TWO}\nreplica_rate = \"1MiB\"");
    let fleet = Fleet::of_data_servers_with(3, &cluster, KEEP);
    let empty = |node: &str| {
        let config = fleet.base().join("cluster.toml");
        let args = [
            "cluster",
            "drain-node",
            node,
            "--timeout",
            "60s",
            "--config",
        ];
        let args = args.map(std::ffi::OsStr::new);
        fleet
            .run(0, &[&args[..], &[config.as_os_str()]].concat())
            .ok();
    };
    drop(write_synced(fleet.mnt(1, "f"), 1, 2 * MIB));
    // Open elsewhere: it cannot be drained.
    let far = OpenOptions::new().append(true).open(fleet.mnt(2, "f"));
    let far = far.expect("open");
    assert!(servers(&fleet, "f").contains(&2));
    empty("2");
    let mut on = servers(&fleet, "f");
    on.sort_unstable();
    assert_eq!(on, [3, 4]);
    assert!(!fleet.pfs("f").exists());
    pattern(1, 2 * MIB).assert_in(&fleet.mnt(3, "f"));
    drop(far);
}

fn drain_node(fleet: &Fleet, id: usize, more: &[&str]) -> Output {
    let (config, id) = (fleet.base().join("cluster.toml"), id.to_string());
    let args = [&["cluster", "drain-node", &id][..], more, &["--config"]].concat();
    let args = args.iter().map(std::ffi::OsStr::new);
    let args: Vec<_> = args.chain([config.as_os_str()]).collect();
    fleet.run(0, &args)
}

/// Changes a file again and again, each time anew, as SQLite does.
fn keep_busy(path: PathBuf, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
    let stop = stop.clone();
    std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            let file = OpenOptions::new().write(true).open(&path).expect("open");
            file.write_all_at(&[1; BLOCK], 0).expect("write");
            file.sync_all().expect("fsync");
        }
    })
}

#[test]
fn promise_8_a_busy_file_that_keeps_a_node_from_being_empty_is_named() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::of_data_servers_with(2, TWO, KEEP);
    drop(write_synced(fleet.mnt(1, "db"), 1, MIB));
    assert!(servers(&fleet, "db").contains(&3));
    let stop = Arc::new(AtomicBool::new(false));
    let busy = keep_busy(fleet.mnt(1, "db"), &stop);
    let late = drain_node(&fleet, 3, &["--timeout", "12s"]).expect_code(4);
    let lines = late.stderr.lines();
    let named = lines.filter(|line| line.contains("/db: "));
    let named: Vec<_> = named.collect();
    assert!(!named.is_empty(), "{late:?}");
    for line in named {
        assert!(line.contains("its second copy is on the node"), "{line}");
    }
    assert!(late.stderr.contains("it goes on being emptied"), "{late:?}");
    let status = fleet.status();
    let nodes = status["nodes"].as_array().expect("nodes");
    let node = nodes.iter().find(|node| node["id"] == 3).expect("node 3");
    let file = &node["emptying"]["waits_for"][0];
    let path = file["path"].as_str().expect("a path");
    assert!(path.ends_with("/db"), "{file}");
    let why = file["why"].as_str().expect("why");
    assert!(why.starts_with("second_copy_"), "{file}");
    assert_eq!(status["second_copies"]["known"], true, "{status}");
    stop.store(true, Ordering::Relaxed);
    busy.join().expect("no error");
    drain_node(&fleet, 3, &["--timeout", "60s"]).ok();
    // A data server knows of nothing but its tiers.
    let state = fleet.data_state(2);
    let args = ["fsck".as_ref(), "--state".as_ref(), state.as_os_str()];
    let elsewhere = fleet.run(2, &args).expect_code(1);
    assert!(
        elsewhere
            .stderr
            .contains("data server 3 of fleet cannot check it: ask the metadata server"),
        "{elsewhere:?}"
    );
}

#[test]
fn promise_8_the_second_copy_of_an_open_file_leaves_a_node_with_an_fsync() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::of_data_servers_with(3, TWO, KEEP);
    drop(write_synced(fleet.mnt(1, "f"), 1, MIB));
    let open = OpenOptions::new().append(true).open(fleet.mnt(1, "f"));
    let mut open = open.expect("open");
    let before = servers(&fleet, "f");
    let second = *before.iter().find(|id| **id != 2).expect("a second");
    drain_node(&fleet, second, &["--no-wait"]).ok();
    open.write_all(b"more").expect("write");
    open.sync_all().expect("fsync");
    let after = servers(&fleet, "f");
    assert!(after.len() == 2 && after.contains(&2), "{after:?}");
    assert!(!after.contains(&second), "{after:?}");
    drain_node(&fleet, second, &["--timeout", "30s"]).ok();
    open.write_all(b" and more").expect("write");
    open.sync_all().expect("fsync");
    let read = fs::read(fleet.mnt(3, "f")).expect("read");
    assert!(read[..MIB] == pattern(1, MIB).bytes() && read[MIB..] == *b"more and more");
}

#[test]
fn promise_8_what_a_kernel_had_by_itself_goes_on_where_its_whole_node_is_gone() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::of_data_servers_with(2, TWO, KEEP);
    // What is there before, the kernel of the node has by itself.
    drop(write_synced(fleet.mnt(1, "f"), 1, MIB));
    fleet.closes_are_heard_of(0);
    let file = OpenOptions::new().append(true).open(fleet.mnt(1, "f"));
    let file = file.expect("open");
    (&file).write_all(b"promised").expect("write");
    file.sync_all().expect("fsync");
    (&file).write_all(b" and not").expect("write");
    fleet.kill_data(1);
    // As long as the mount is there the kernel may go on writing it.
    std::thread::sleep(Duration::from_secs(8));
    // Who looks it up waits; where it is below the PFS can be asked.
    let where_it_is = servers_of(&fleet, fleet.pfs("f"));
    assert_eq!(where_it_is.first(), Some(&2), "{where_it_is:?}");
    fleet.kill_mount(1);
    wait_until("it is what the last fsync has left", || {
        servers_of(&fleet, fleet.pfs("f")).first() == Some(&3)
    });
    let read = fs::read(fleet.mnt(2, "f")).expect("read");
    assert!(read.len() == MIB + 8 && read[MIB..] == *b"promised");
    // Nobody waits for a kernel any more.
    let place = fleet.mnt(2, "f");
    let args = ["stage-out".as_ref(), "--wait".as_ref(), place.as_os_str()];
    fleet.run(2, &args).ok();
    assert_eq!(fs::read(fleet.pfs("f")).expect("read"), read);
    // Who still has it open hears that it went elsewhere.
    drop((&file).write_all(b"into the void"));
    file.sync_all().expect_err("its mount is gone");
}

#[test]
fn promise_8_a_name_whose_node_is_away_holds_up_no_directory() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::of_data_servers_with(2, TWO, KEEP);
    fs::create_dir(fleet.mnt(2, "d")).expect("mkdir");
    drop(write_synced(fleet.mnt(1, "d/f"), 1, MIB));
    // The kernel of the node has it by itself.
    let file = OpenOptions::new().append(true).open(fleet.mnt(1, "d/f"));
    let file = file.expect("open");
    (&file).write_all(b"promised").expect("write");
    file.sync_all().expect("fsync");
    let found = fs::metadata(fleet.mnt(2, "d/f")).expect("stat");
    assert_eq!(found.len(), (MIB + 8) as u64);
    fleet.kill_data(1);
    // Who wants its attributes or bytes waits, and nobody who wants other names.
    let place = fleet.mnt(2, "d/f");
    let stat = std::thread::spawn(move || fs::metadata(place));
    let place = fleet.mnt(2, "d/f");
    let read = std::thread::spawn(move || fs::read(place));
    std::thread::sleep(Duration::from_secs(5));
    let looked = Instant::now();
    for node in [1, 2] {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        rustix::fs::open(fleet.mnt(node, "d/f"), flags, Mode::empty()).expect("found");
        let other = format!("d/other-{node}");
        fs::write(fleet.mnt(node, &other), b"other").expect("create");
        assert!(fs::read_dir(fleet.mnt(node, "d")).expect("list").count() > 1);
    }
    fs::rename(fleet.mnt(2, "d/f"), fleet.mnt(2, "d/g")).expect("rename");
    fs::write(fleet.mnt(2, "d/h"), b"replaced").expect("create");
    fs::rename(fleet.mnt(1, "d/g"), fleet.mnt(1, "d/h")).expect("rename");
    assert!(looked.elapsed() < SOON, "{:?}", looked.elapsed());
    assert!(!stat.is_finished() && !read.is_finished(), "they wait");
    (&file).write_all(b" and more").expect("write");
    fleet.start_data(1, "this boot");
    let found = stat.join().expect("no panic").expect("stat");
    assert!(found.len() >= (MIB + 8) as u64);
    read.join().expect("no panic").expect("read");
    let read = fs::read(fleet.mnt(2, "d/h")).expect("read");
    assert_eq!(read[MIB..], *b"promised and more");
}
