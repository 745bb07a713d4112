//! A daemon that may have few descriptors, and cannot change that: containers, lowered limits.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use forebay_testkit::{Builder, Cluster, needs_root, pattern, write_file};

/// What the daemon may have. Two thirds of it hold its own folders open.
const DESCRIPTORS: u64 = 1024;
/// Files that requests write.
const FILES: u64 = 3000;
/// Files that the kernel writes, for each of which 4 MiB are set aside.
const PASSED_THROUGH: u64 = 850;
/// What the first of the series have: the space that is set aside for the others need not grow.
const EXPECTED: usize = 64_000;
const LEN: usize = 12_000;
/// The part that is written over later.
const LATE: usize = 8_000;
/// One in so many is put on stable storage.
const FSYNC_EVERY: u64 = 100;
/// One in so many loses its name while it is open.
const UNLINK_EVERY: u64 = 50;
/// One in so many is opened again meanwhile.
const REOPEN_EVERY: u64 = 7;

fn name(at: u64) -> String {
    format!("series-{}", at + 10)
}

fn open_by_daemon(cluster: &Cluster) -> u64 {
    let all = fs::read_dir(format!("/proc/{}/fd", cluster.pid().as_raw_nonzero()));
    all.expect("descriptors").count() as u64
}

/// As many open files as there are, each used again after all others.
/// `passed_through`: so many of the first and the last the kernel writes by itself.
fn many_are_open(cluster: &Cluster, count: u64, passed_through: usize) {
    for at in 0..2 {
        write_file(&cluster.mnt(format!("series-{at}")), pattern(at, EXPECTED));
    }
    let (before, after) = (
        |at| pattern(at, LEN).bytes(),
        |at| pattern(at + 7, LEN).bytes(),
    );
    let files: Vec<File> = (0..count)
        .map(|at| {
            let mut options = File::options();
            let options = options.read(true).write(true).create_new(true);
            let file = options.open(cluster.mnt(name(at)));
            let file = file.unwrap_or_else(|error| panic!("file {at}: {error}"));
            file.write_all_at(&before(at), 0).expect("write");
            file
        })
        .collect();
    let status = cluster.status();
    let of = |key: &str| status[key].as_u64().expect("a number");
    assert!(of("open_files") >= count, "{status}");
    assert!((1..DESCRIPTORS / 2).contains(&of("held_files")), "{status}");
    assert_eq!(of("descriptors_max"), DESCRIPTORS);
    assert!(open_by_daemon(cluster) < DESCRIPTORS);
    for file in [&files[0], &files[count as usize - 1]]
        .into_iter()
        .take(passed_through)
    {
        assert!(cluster.is_passed_through(file));
    }
    for at in (0..count).step_by(UNLINK_EVERY as usize) {
        fs::remove_file(cluster.mnt(name(at))).expect("unlink");
    }
    for (at, file) in (0..).zip(&files) {
        file.write_all_at(&after(at)[LATE..], LATE as u64)
            .unwrap_or_else(|error| panic!("file {at}: {error}"));
        if at % FSYNC_EVERY == 1 {
            file.sync_all()
                .unwrap_or_else(|error| panic!("fsync of file {at}: {error}"));
        }
    }
    let content = |at| [&before(at)[..LATE], &after(at)[LATE..]].concat();
    for (at, file) in (0..).zip(files) {
        let mut found = vec![0; LEN + 1];
        let read = file.read_at(&mut found, 0);
        let len = read.unwrap_or_else(|error| panic!("file {at}: {error}"));
        assert!(found[..len] == content(at), "file {at}");
        if at % REOPEN_EVERY == 0 && at % UNLINK_EVERY != 0 {
            let again = fs::read(cluster.mnt(name(at)));
            assert!(again.expect("a second open") == content(at), "file {at}");
        }
    }
    assert!(open_by_daemon(cluster) < DESCRIPTORS);
    cluster.drain("");
    for at in 0..count {
        let drained = cluster.pfs(name(at));
        match at % UNLINK_EVERY {
            0 => assert!(!drained.exists(), "file {at}"),
            _ => assert!(fs::read(drained).expect("drained") == content(at), "{at}"),
        }
    }
    assert_eq!(cluster.status()["errors_total"], 0);
    cluster.down(&["--drain"]);
}

/// The sizes are what is set aside at most, not what is used.
fn tiers() -> [Builder; 2] {
    let flash = Cluster::builder().dram("").ssd("5GiB");
    [Cluster::builder().dram("5GiB"), flash].map(|b| b.lazy().descriptors(DESCRIPTORS))
}

#[test]
fn promise_2_more_files_are_open_than_the_daemon_may_have_descriptors() {
    if needs_root() {
        return;
    }
    for builder in tiers() {
        many_are_open(&builder.flag("--no-passthrough").up(), FILES, 0);
    }
}

#[test]
fn promise_2_more_files_are_passed_through_than_the_daemon_may_have_descriptors() {
    if needs_root() {
        return;
    }
    // On flash each of them takes a descriptor, and there are not so many.
    for (builder, passed_through) in tiers().into_iter().zip([2, 1]) {
        many_are_open(&builder.up(), PASSED_THROUGH, passed_through);
    }
}
