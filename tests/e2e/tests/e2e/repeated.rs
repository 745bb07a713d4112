//! Files that several nodes read again and again: from their own pages, and never an older content.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_testkit::{Fleet, needs_nodes, pattern, wait_until, write_file};

const MIB: usize = 1 << 20;

fn to_write(path: impl AsRef<Path>) -> File {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.expect("open")
}

/// Bytes that went to the clients so far.
fn sent(fleet: &Fleet) -> u64 {
    let status = fleet.status();
    let clients = status["network"]["clients"].as_array();
    let clients = clients.expect("clients").iter();
    let links = clients.flat_map(|client| client["connections"].as_array().expect("links"));
    links
        .map(|link| link["out_bytes"].as_u64().expect("bytes"))
        .sum()
}

#[test]
fn promise_2_what_nobody_writes_is_read_once_by_each_node() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(2, "");
    let content = pattern(1, 4 * MIB);
    write_file(&fleet.mnt(1, "f"), content);
    // The kernel tells of a close after it has returned: until then somebody writes.
    wait_until("it is closed", || fleet.status()["open_files"] == 0);
    // The first time the pages would cost more than they bring.
    for _ in 0..2 {
        content.assert_in(&fleet.mnt(2, "f"));
    }
    let before = sent(&fleet);
    for _ in 0..8 {
        content.assert_in(&fleet.mnt(2, "f"));
    }
    let file = File::open(fleet.mnt(2, "f")).expect("open");
    let mut bytes = vec![0; MIB];
    for at in 0..4 {
        file.read_exact_at(&mut bytes, at * MIB as u64)
            .expect("read");
    }
    let again = sent(&fleet) - before;
    assert!(again < MIB as u64, "{again} bytes were sent again");
}

/// A file of versions: the same number in each 8 bytes.
fn write_version(file: &File, version: u64, len: usize, chunk: usize) {
    let bytes = version.to_le_bytes().repeat(len / 8);
    for (number, part) in bytes.chunks(chunk).enumerate() {
        file.write_all_at(part, (number * chunk) as u64)
            .expect("write");
    }
}

/// The oldest version in it; all of it must be there.
fn oldest(file: &File, len: usize) -> u64 {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, 0).expect("read");
    let versions = bytes
        .chunks(8)
        .map(|one| u64::from_le_bytes(one.try_into().expect("8 bytes")));
    versions.min().expect("some")
}

/// Writers on `writers` write one version after the other; everybody on `readers` reads by an open
/// file and by one that is opened each time, and finds at least what was complete before.
fn read_beside_writers(fleet: &Fleet, writers: &[usize], readers: &[usize]) {
    const LEN: usize = 24 * 1024;
    const VERSIONS: u64 = 300;
    write_version(
        &File::create(fleet.mnt(1, "f")).expect("create"),
        0,
        LEN,
        LEN,
    );
    let (complete, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let ready = std::sync::Barrier::new(readers.len() + 1);
    std::thread::scope(|scope| {
        for node in readers {
            let (complete, over, ready) = (&complete, &over, &ready);
            scope.spawn(move || {
                let path = fleet.mnt(*node, "f");
                let kept = File::open(&path).expect("open");
                oldest(&kept, LEN);
                ready.wait();
                while !over.load(Ordering::Acquire) {
                    let least = complete.load(Ordering::Acquire);
                    let found = oldest(&kept, LEN);
                    assert!(
                        found >= least,
                        "{found} of {least} by what is open on {node}"
                    );
                    let least = complete.load(Ordering::Acquire);
                    let found = oldest(&File::open(&path).expect("open"), LEN);
                    assert!(
                        found >= least,
                        "{found} of {least} by what is opened on {node}"
                    );
                }
            });
        }
        ready.wait();
        for version in 1..=VERSIONS {
            let node = writers[version as usize % writers.len()];
            let file = to_write(fleet.mnt(node, "f"));
            write_version(&file, version, LEN, 1000 + version as usize * 8);
            complete.store(version, Ordering::Release);
        }
        over.store(true, Ordering::Release);
    });
}

#[test]
fn promise_2_who_keeps_pages_sees_what_other_nodes_have_written() {
    if needs_nodes() {
        return;
    }
    read_beside_writers(&Fleet::new(3, ""), &[1, 2], &[3, 2]);
}

#[test]
fn promise_2_who_keeps_pages_sees_what_its_own_node_has_written() {
    if needs_nodes() {
        return;
    }
    read_beside_writers(&Fleet::new(1, ""), &[1], &[1, 1]);
}

#[test]
fn promise_2_who_keeps_pages_sees_what_the_servers_node_has_written() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::new(1, "");
    fleet.mount(0, &[]);
    read_beside_writers(&fleet, &[0], &[1, 0]);
    // Of a series, whose files the kernel of the server's node may write by itself.
    for version in 1..=4u64 {
        let name = format!("ckpt-{version}");
        write_file(&fleet.mnt(0, &name), pattern(version, 3 * MIB));
        let there = File::open(fleet.mnt(1, &name)).expect("open");
        assert_eq!(there.metadata().expect("stat").len(), 3 * MIB as u64);
        pattern(version, 3 * MIB).assert_in(&fleet.mnt(1, &name));
        let here = to_write(fleet.mnt(0, &name));
        for turn in 0..10u8 {
            here.write_all_at(&[turn; 5000], 12345).expect("write");
            let mut read = [0; 5000];
            there.read_exact_at(&mut read, 12345).expect("read");
            assert_eq!(read, [turn; 5000]);
        }
    }
}

#[test]
fn promise_2_ends_and_names_are_right_for_who_keeps_pages() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(2, "");
    let (here, there) = (fleet.mnt(1, "f"), fleet.mnt(2, "f"));
    let read = || fs::read(&there).expect("read");
    let mut model = vec![b'a'; 5000];
    fs::write(&here, &model).expect("write");
    let kept = File::open(&there).expect("open");
    for turn in 0..60u8 {
        assert_eq!(read(), model, "turn {turn}");
        let mut all = vec![0; model.len() + 10];
        assert_eq!(
            kept.read_at(&mut all, 0).expect("read"),
            model.len(),
            "turn {turn}"
        );
        let file = to_write(&here);
        match turn % 4 {
            0 => {
                let mut log = OpenOptions::new().append(true).open(&here).expect("open");
                log.write_all(&[turn; 777]).expect("append");
                model.extend([turn; 777]);
            }
            1 => {
                model.truncate(model.len() - 1500);
                file.set_len(model.len() as u64).expect("truncate");
            }
            2 => {
                model.resize(model.len() + 2000, 0);
                file.set_len(model.len() as u64).expect("truncate");
            }
            _ => {
                model[100..200].fill(turn);
                file.write_all_at(&[turn; 100], 100).expect("write");
            }
        }
    }
    // Another file takes the name; what is open stays what it is.
    fs::write(fleet.mnt(1, "new"), b"other").expect("write");
    fs::rename(fleet.mnt(1, "new"), &here).expect("rename");
    assert_eq!(read(), b"other");
    let mut all = vec![0; model.len()];
    kept.read_exact_at(&mut all, 0).expect("read");
    assert_eq!(all, model);
}

#[test]
fn promise_8_who_keeps_pages_sees_what_is_written_after_a_restart_of_the_server() {
    if needs_nodes() {
        return;
    }
    const LEN: usize = 16 * 1024;
    let mut fleet = Fleet::new(2, "");
    let writer = File::create(fleet.mnt(1, "f")).expect("create");
    write_version(&writer, 0, LEN, LEN);
    writer.sync_all().expect("fsync");
    let kept = File::open(fleet.mnt(2, "f")).expect("open");
    for version in 1..=3u64 {
        assert_eq!(oldest(&kept, LEN), version - 1);
        fleet.kill_server();
        fleet.start_server();
        // The other node may come back later.
        write_version(&writer, version, LEN, LEN);
        assert_eq!(oldest(&kept, LEN), version);
        writer.sync_all().expect("fsync");
    }
}
