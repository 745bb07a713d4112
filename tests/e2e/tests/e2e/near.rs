//! Data servers: the kernel of their node has their files by itself.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_testkit::{Fleet, needs_nodes, pattern, wait_until, write_file};
use rustix::process::Signal;

use crate::mappings::Mapping;

const MIB: usize = 1 << 20;
/// Nothing drains by itself, and fsync means memory.
const KEEP: &str = "[demotion]\nidle = false\nstart = 0.9\n\
                    [[rule]]\npath = \"/**\"\ndurability = \"memory\"\n";
/// The section of a server with flash, too, which drains when it is told to.
pub fn of_flash(dir: &Path) -> String {
    let dir = dir.display();
    format!("ssd = [\"{dir}:256MiB\"]\n[demotion]\nidle = false\nstart = 0.9\n")
}

/// What is wanted soon enough.
const SOON: Duration = Duration::from_secs(2);

fn open(fleet: &Fleet, node: usize, path: &str) -> File {
    let mut options = File::options();
    let file = options.read(true).write(true).open(fleet.mnt(node, path));
    file.expect("open")
}

/// Whether a program goes on writing while nobody answers: `stop`, then `go_on`, some process.
fn writes_while(file: &File, stop: impl FnOnce(), go_on: impl FnOnce()) -> bool {
    let mut byte = [0];
    file.read_exact_at(&mut byte, 0).expect("read");
    // With the first write the kernel asks whether there are privileges to drop.
    file.write_all_at(&byte, 0).expect("write");
    stop();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| file.write_all_at(&byte, 0));
        let begun = Instant::now();
        while !writer.is_finished() && begun.elapsed() < SOON {
            std::thread::sleep(Duration::from_millis(1));
        }
        let done = writer.is_finished();
        go_on();
        writer.join().expect("writer").expect("write");
        done
    })
}

fn is_passed_through(fleet: &Fleet, node: usize, file: &File) -> bool {
    let signal = |signal| move || fleet.signal_mount(node, signal);
    writes_while(file, signal(Signal::STOP), signal(Signal::CONT))
}

fn drain(fleet: &Fleet) {
    let root = fleet.mnt(1, "");
    let args = ["stage-out".as_ref(), "--wait".as_ref(), root.as_os_str()];
    // Their kernels are asked whether anybody can still write files that were open over a restart.
    wait_until("all is drained", || fleet.run(1, &args).code == 0);
}

/// A file on each node of a fleet with two data servers.
fn fleet() -> Fleet {
    let fleet = Fleet::of_data_servers(2, KEEP);
    write_file(&fleet.mnt(1, "f"), pattern(1, MIB));
    write_file(&fleet.mnt(2, "g"), pattern(2, MIB));
    fleet.closes_are_heard_of(0);
    fleet
}

#[test]
fn promise_2_the_kernel_of_a_data_servers_node_has_its_files_by_itself() {
    if needs_nodes() {
        return;
    }
    let fleet = fleet();
    let (own, others) = (open(&fleet, 1, "f"), open(&fleet, 2, "f"));
    assert!(is_passed_through(&fleet, 1, &own));
    assert!(!is_passed_through(&fleet, 2, &others), "it is elsewhere");
    // Whatever node writes, each sees it at once.
    let mut content = pattern(1, MIB).bytes();
    for (at, file) in [(100, &own), (200, &others), (MIB - 1, &own), (MIB, &others)] {
        let text = format!("written at {at}");
        file.write_all_at(text.as_bytes(), at as u64)
            .expect("write");
        content.resize(content.len().max(at + text.len()), 0);
        content[at..at + text.len()].copy_from_slice(text.as_bytes());
        for (node, file) in [(1, &own), (2, &others)] {
            assert_eq!(fs::read(fleet.mnt(node, "f")).expect("read"), content);
            assert_eq!(file.metadata().expect("stat").len(), content.len() as u64);
        }
    }
    own.sync_all().expect("fsync");
    drop((own, others));
    drain(&fleet);
    assert_eq!(fs::read(fleet.pfs("f")).expect("read"), content);
}

#[test]
fn promise_8_what_the_kernel_has_by_itself_is_open_after_a_restart_of_a_server() {
    if needs_nodes() {
        return;
    }
    let mut fleet = fleet();
    let files = [open(&fleet, 1, "f"), open(&fleet, 2, "g")];
    let reader = File::open(fleet.mnt(1, "f")).expect("open");
    let mut contents = [1, 2].map(|seed| pattern(seed, MIB).bytes());
    let mut write = |round: usize| {
        for (file, content) in files.iter().zip(&mut contents) {
            let text = format!("round {round}");
            let at = MIB / 2 + 100 * round;
            file.write_all_at(text.as_bytes(), at as u64)
                .expect("write");
            content[at..at + text.len()].copy_from_slice(text.as_bytes());
        }
    };
    write(1);
    for round in [2, 4] {
        fleet.kill_server();
        write(round);
        fleet.start_server();
        files
            .iter()
            .for_each(|file| file.sync_all().expect("fsync"));
        write(round + 1);
    }
    // Their nodes' data servers are not needed for what the kernel writes, either.
    for node in [1, 2] {
        fleet.kill_data(node);
    }
    write(6);
    for node in [1, 2] {
        fleet.start_data(node, "this boot");
    }
    files
        .iter()
        .for_each(|file| file.sync_all().expect("fsync"));
    for (node, file) in [1, 2].into_iter().zip(&files) {
        assert!(is_passed_through(&fleet, node, file), "on node {node}");
    }
    let mut found = vec![0; MIB];
    reader.read_exact_at(&mut found, 0).expect("read");
    assert!(found == contents[0]);
    for (name, content) in ["f", "g"].iter().zip(&contents) {
        assert!(
            fs::read(fleet.mnt(1, name)).unwrap_or_else(|e| panic!("{name} on 1: {e}")) == *content,
            "{name}"
        );
        assert!(
            fs::read(fleet.mnt(2, name)).expect("read") == *content,
            "{name}"
        );
    }
    drop((files, reader));
    drain(&fleet);
    for (name, content) in ["f", "g"].iter().zip(&contents) {
        assert!(
            fs::read(fleet.pfs(name)).expect("read") == *content,
            "{name}"
        );
    }
}

#[test]
fn promise_8_what_a_kernel_reads_by_itself_is_open_after_a_server_that_stops_in_order() {
    if needs_nodes() {
        return;
    }
    let flash = tempfile::tempdir().expect("temporary directory");
    let mut fleet = Fleet::new(1, &of_flash(flash.path()));
    fleet.mount(0, &[]);
    let read = |name: &str, seed: u64, is_fsynced: bool| {
        let file = File::create(fleet.mnt(0, name)).expect("create");
        pattern(seed, MIB).write(&file);
        if is_fsynced {
            file.sync_all().expect("fsync");
        }
        drop(file);
        // Who joins the file while it is being closed reads it by requests.
        let is_closed = || fleet.status()["open_files"] == seed - 1;
        wait_until("it is closed", is_closed);
        (File::open(fleet.mnt(0, name)).expect("open"), seed)
    };
    let files = [("fsynced", 1, true), ("not", 2, false)].map(|(n, s, f)| read(n, s, f));
    let in_memory = fleet.base().join("state/dram/objects");
    for _ in 0..3 {
        for (file, seed) in &files {
            let mut found = vec![0; MIB];
            file.read_exact_at(&mut found, 0).expect("read");
            assert!(found == pattern(*seed, MIB).bytes(), "{seed}: other bytes");
        }
        fleet.stop_server();
        assert!(in_memory.exists(), "the memory tier has gone");
        fleet.start_server();
    }
    drop(files);
    drain(&fleet);
    for (name, seed) in [("fsynced", 1), ("not", 2)] {
        let found = fs::read(fleet.pfs(name)).expect("read");
        assert!(found == pattern(seed, MIB).bytes(), "{name}");
    }
}

#[test]
fn promise_2_what_a_killed_mount_of_a_data_server_has_left_is_drained_when_nobody_can_write_it() {
    if needs_nodes() {
        return;
    }
    let mut fleet = fleet();
    let file = open(&fleet, 1, "f");
    assert!(is_passed_through(&fleet, 1, &file));
    file.write_all_at(b"before", 10).expect("write");
    // A mapping outlives the mount.
    let map = Mapping::new(&file, MIB);
    fleet.kill_mount(1);
    map.store(20, b'x');
    wait_until("the mount is fenced", || {
        fleet.status()["network"]["clients"]
            .as_array()
            .map(Vec::len)
            == Some(1)
    });
    map.store(30, b'y');
    let args = ["stage-out".as_ref(), "--wait".as_ref()];
    let path = fleet.mnt(2, "f");
    let refused = fleet.run(2, &[args[0], args[1], path.as_os_str()]);
    assert!(refused.stderr.contains("open for writing"), "{refused:?}");
    map.store(40, b'z');
    drop((map, file));
    let mut content = pattern(1, MIB).bytes();
    content[10..16].copy_from_slice(b"before");
    (content[20], content[30], content[40]) = (b'x', b'y', b'z');
    wait_until("it can be drained", || {
        fleet.run(2, &[args[0], args[1], path.as_os_str()]).code == 0
    });
    assert!(fs::read(fleet.pfs("f")).expect("read") == content);
}
