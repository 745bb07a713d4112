//! Rows of the fault matrix that take the disks of the machine: power cuts, errors, no space.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use forebay_testkit::{
    Cluster, Pattern, When, listing, needs_root, pattern, wait_until, write_file,
};

const MIB: u64 = 1 << 20;
const LEN: usize = 300_000;

fn fsynced(cluster: &Cluster, name: &str, content: Pattern) -> File {
    let file = File::create(cluster.mnt(name)).expect("create");
    content.write(&file);
    file.sync_all().expect("fsync");
    file
}

fn fsync_folder(path: &Path) {
    let folder = File::open(path).expect("open");
    folder.sync_all().expect("fsync of a directory");
}

/// What was not flushed is gone: else nothing was cut.
fn assert_cut(cluster: &Cluster, unsynced: &str) {
    let found = fs::read(cluster.mnt(unsynced)).unwrap_or_default();
    assert!(found != pattern(2099, LEN).bytes(), "the power was not cut");
}

#[test]
fn fault_05_a_power_cut_under_the_ssd_tier_keeps_what_was_fsynced() {
    if needs_root() {
        return;
    }
    for (kind, size) in [("ext4", 96 * MIB), ("xfs", 320 * MIB)] {
        for dram in ["", "64MiB"] {
            let builder = Cluster::builder().lazy().dram(dram).ssd("64MiB");
            let mut cluster = builder.disk("ssd", kind, size).up();
            fs::create_dir(cluster.mnt("d")).expect("mkdir");
            let open = fsynced(&cluster, "d/open", pattern(2000, LEN));
            drop(fsynced(&cluster, "closed", pattern(2001, LEN)));
            let mut twice = fsynced(&cluster, "twice", pattern(2002, LEN));
            twice.write_all(b"more").expect("write");
            twice.sync_data().expect("fdatasync");
            write_file(&cluster.mnt("unsynced"), pattern(2099, LEN));
            cluster.cut_power();
            drop((open, twice));
            cluster.start();
            assert_cut(&cluster, "unsynced");
            pattern(2000, LEN).assert_in(&cluster.mnt("d/open"));
            pattern(2001, LEN).assert_in(&cluster.mnt("closed"));
            let expected = [pattern(2002, LEN).bytes(), b"more".to_vec()].concat();
            assert!(fs::read(cluster.mnt("twice")).expect("read") == expected);
            cluster.drain("closed");
            pattern(2001, LEN).assert_in(&cluster.pfs("closed"));
        }
    }
}

#[test]
fn fault_06_a_power_cut_under_the_records_keeps_what_was_synced() {
    if !needs_root() {
        cut_under_the_records("xfs", 320 * MIB);
    }
}

#[test]
fn promise_3_an_fsync_of_a_directory_covers_its_names() {
    if !needs_root() {
        cut_under_the_records("ext4", 256 * MIB);
    }
}

fn cut_under_the_records(kind: &'static str, size: u64) {
    let builder = Cluster::builder().lazy().dram("").ssd("64MiB");
    let builder = builder.disk("ssd", "ext4", 96 * MIB);
    let mut cluster = builder.disk("state", kind, size).up();
    fs::create_dir(cluster.mnt("d")).expect("mkdir");
    for (at, name) in ["old", "gone", "first"].iter().enumerate() {
        drop(fsynced(
            &cluster,
            &format!("d/{name}"),
            pattern(2010 + at as u64, LEN),
        ));
    }
    fs::rename(cluster.mnt("d/old"), cluster.mnt("d/new")).expect("rename");
    fs::remove_file(cluster.mnt("d/gone")).expect("unlink");
    fs::hard_link(cluster.mnt("d/first"), cluster.mnt("d/second")).expect("link");
    fsync_folder(&cluster.mnt("d"));
    write_file(&cluster.mnt("unsynced"), pattern(2099, LEN));
    cluster.cut_power();
    cluster.start();
    assert_cut(&cluster, "unsynced");
    assert_eq!(listing(&cluster.mnt("d")), ["first", "new", "second"]);
    pattern(2010, LEN).assert_in(&cluster.mnt("d/new"));
    pattern(2012, LEN).assert_in(&cluster.mnt("d/first"));
    pattern(2012, LEN).assert_in(&cluster.mnt("d/second"));
    cluster.drain("");
    pattern(2010, LEN).assert_in(&cluster.pfs("d/new"));
}

#[test]
fn fault_06_what_was_removed_and_synced_does_not_come_back_from_an_object_left_on_flash() {
    if needs_root() {
        return;
    }
    let builder = Cluster::builder().lazy().dram("").ssd("64MiB");
    let mut cluster = builder.disk("ssd", "ext4", 96 * MIB).up();
    // Now and then the file system below flushes its names by itself just before the cut.
    let brought_back = (0..20).any(|_| {
        drop(fsynced(&cluster, "f", pattern(2020, LEN)));
        fs::remove_file(cluster.mnt("f")).expect("unlink");
        fsync_folder(&cluster.mnt(""));
        wait_until("its object is removed", || {
            forebay_testkit::all_files(&cluster.ssd()).len() == 1
        });
        cluster.cut_power();
        let objects = forebay_testkit::all_files(&cluster.ssd()).len() - 1;
        cluster.start();
        assert!(listing(&cluster.mnt("")).is_empty());
        assert_eq!(cluster.status()["errors"].to_string(), "[]");
        objects == 1
    });
    assert!(brought_back, "no power cut brought the object back");
}

#[test]
fn fault_09_an_error_of_a_flush_below_reaches_the_program() {
    if needs_root() {
        return;
    }
    for disk in ["ssd", "state"] {
        let builder = Cluster::builder().lazy().dram("").ssd("64MiB");
        let builder = builder.disk("ssd", "ext4", 96 * MIB);
        let mut cluster = builder.disk("state", "ext4", 256 * MIB).up();
        drop(fsynced(&cluster, "before", pattern(2030, LEN)));
        let file = File::create(cluster.mnt("f")).expect("create");
        pattern(2031, LEN).write(&file);
        cluster.disk(disk).shut_down();
        file.sync_all().expect_err("fsync on a dead disk");
        file.sync_all().expect_err("it is not forgotten");
        drop(file);
        cluster.cut_power_after_a_dead_disk();
        cluster.start();
        pattern(2030, LEN).assert_in(&cluster.mnt("before"));
    }
}

#[test]
fn fault_09_an_error_of_a_flush_of_the_pfs_keeps_the_files_undrained() {
    if needs_root() {
        return;
    }
    // Now and then the kernel writes by itself first, and the file system is read-only before it
    // is asked to flush.
    let met = (0..10).any(|_| a_thin_pfs_keeps_the_files_undrained());
    assert!(met, "no flush of the PFS failed");
}

/// Answers whether an error of a flush was met.
fn a_thin_pfs_keeps_the_files_undrained() -> bool {
    const FILES: u64 = 12;
    let builder = Cluster::builder().lazy().ssd("96MiB");
    let cluster = builder.thin_pfs(160 * MIB, 24 * MIB).up();
    for at in 0..FILES {
        write_file(&cluster.mnt(format!("f{at}")), pattern(2080 + at, 12 * LEN));
    }
    // They are all in one batch, and its copies fit into the page cache.
    let output = cluster.on_path(&["stage-out", "--wait"], "");
    assert_eq!(output.code, 3, "{output:?}");
    let errors = cluster.status()["errors"].to_string();
    for at in 0..FILES {
        let name = format!("f{at}");
        pattern(2080 + at, 12 * LEN).assert_in(&cluster.mnt(&name));
        if cluster.where_state(&name) != "dirty" {
            pattern(2080 + at, 12 * LEN).assert_in(&cluster.pfs(&name));
        }
    }
    assert!(cluster.dirty_bytes() > 0, "nothing was kept");
    errors.contains("flush on the PFS") || errors.contains("flush of the PFS")
}

/// Also of one that went straight to the PFS, and becomes the file there by a rename; and of many
/// in one batch.
#[test]
fn fault_09_an_error_of_a_flush_of_a_directory_of_the_pfs_keeps_the_files_undrained() {
    if needs_root() {
        return;
    }
    const LARGE: usize = 40 << 20;
    let builder = Cluster::builder().config("wait_for_space = \"100ms\"\n");
    let builder = builder.lazy().dram("16MiB").fuse_pfs();
    let cluster = builder.flag("--no-passthrough").up();
    write_file(&cluster.mnt("large"), pattern(2095, LARGE));
    let tiers = cluster.where_is("large")["tiers"].to_string();
    assert!(tiers.contains("pfs"), "not in the overflow: {tiers}");
    for at in 0..10 {
        write_file(&cluster.mnt(format!("f{at}")), pattern(2096 + at, LEN));
    }
    cluster
        .fuse_pfs()
        .fail("fsyncdir", When::Before, libc::EIO, "");
    let output = cluster.on_path(&["stage-out", "--wait"], "");
    assert_eq!(output.code, 3, "{output:?}");
    let errors = cluster.status()["errors"].to_string();
    assert!(
        errors.contains("flush of the directory on the PFS"),
        "{errors}"
    );
    let unflushed = errors.matches("its directory was not flushed").count();
    assert_eq!(unflushed, 11, "{errors}");
    for name in ["large", "f0", "f9"] {
        assert_eq!(cluster.where_state(name), "dirty", "{name}");
    }
    cluster.fuse_pfs().heal("fsyncdir");
    cluster.drain("");
    assert_eq!(cluster.dirty_bytes(), 0);
    assert_eq!(cluster.status()["conflicts_total"], 0);
    pattern(2095, LARGE).assert_in(&cluster.mnt("large"));
    pattern(2095, LARGE).assert_in(&cluster.pfs("large"));
    pattern(2096, LEN).assert_in(&cluster.pfs("f0"));
    assert_eq!(listing(&cluster.mnt("")).len(), 11);
}

/// Also of the directories of its further names.
#[test]
fn fault_09_an_error_of_a_flush_of_a_further_names_directory_keeps_the_file_undrained() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().fuse_pfs().up();
    for dir in ["one", "other"] {
        fs::create_dir(cluster.mnt(dir)).expect("mkdir");
    }
    write_file(&cluster.mnt("one/f"), pattern(2107, LEN));
    fs::hard_link(cluster.mnt("one/f"), cluster.mnt("other/g")).expect("link");
    cluster
        .fuse_pfs()
        .fail("fsyncdir", When::Before, libc::EIO, "other");
    let output = cluster.on_path(&["stage-out", "--wait"], "");
    assert_eq!(output.code, 3, "{output:?}");
    assert_eq!(cluster.where_state("one/f"), "dirty");
    cluster.fuse_pfs().heal("fsyncdir");
    cluster.drain("");
    assert_eq!(cluster.where_state("one/f"), "clean");
    assert_eq!(cluster.status()["conflicts_total"], 0);
    for name in ["one/f", "other/g"] {
        pattern(2107, LEN).assert_in(&cluster.pfs(name));
        pattern(2107, LEN).assert_in(&cluster.mnt(name));
    }
    assert_eq!(fs::metadata(cluster.pfs("one/f")).expect("stat").nlink(), 2);
}

/// The same of the files themselves, which this PFS is told one by one.
#[test]
fn fault_09_an_error_of_a_flush_on_a_fuse_pfs_is_heard_for_many_files() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().ssd("64MiB").fuse_pfs().up();
    for at in 0..10 {
        write_file(&cluster.mnt(format!("f{at}")), pattern(2110 + at, 10_000));
    }
    cluster
        .fuse_pfs()
        .fail("fsync", When::Before, libc::EIO, "");
    let output = cluster.on_path(&["stage-out", "--wait"], "");
    assert_eq!(output.code, 3, "{output:?}");
    assert!(listing(&cluster.pfs("")).is_empty(), "a copy has its name");
    cluster.fuse_pfs().heal("fsync");
    cluster.drain("");
    for at in 0..10 {
        pattern(2110 + at, 10_000).assert_in(&cluster.pfs(format!("f{at}")));
    }
}

#[test]
fn fault_10_an_error_of_a_read_gives_the_good_copy_or_an_error() {
    if needs_root() {
        return;
    }
    let builder = Cluster::builder().lazy().dram("").ssd("64MiB");
    let mut cluster = builder.disk("ssd", "xfs", 320 * MIB).up();
    write_file(&cluster.mnt("clean"), pattern(2040, LEN));
    cluster.drain("clean");
    cluster.disk("ssd").shut_down();
    // The fault is there.
    File::create(cluster.ssd().join("probe")).expect_err("a dead disk");
    match fs::read(cluster.mnt("clean")) {
        Ok(bytes) => assert!(bytes == pattern(2040, LEN).bytes()),
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EIO)),
    }
    cluster.cut_power_after_a_dead_disk();
    cluster.start();
    pattern(2040, LEN).assert_in(&cluster.mnt("clean"));
}

#[test]
fn fault_14_a_full_flash_device_makes_nothing_fail_that_the_pfs_has_room_for() {
    if !needs_root() {
        full_flash("");
    }
}

#[test]
fn promise_3_fsync_goes_to_the_pfs_where_flash_is_full() {
    if !needs_root() {
        full_flash("64MiB");
    }
}

fn full_flash(dram: &str) {
    let builder = Cluster::builder().lazy().dram(dram).ssd("64MiB");
    let builder = builder.flag("--no-passthrough");
    let cluster = builder.disk("ssd", "ext4", 96 * MIB).up();
    drop(fsynced(&cluster, "before", pattern(2050, LEN)));
    let ballast = cluster.disk("ssd").fill(0);
    for at in 0..4 {
        drop(fsynced(
            &cluster,
            &format!("f{at}"),
            pattern(2051 + at, 10 * LEN),
        ));
    }
    for at in 0..4 {
        pattern(2051 + at, 10 * LEN).assert_in(&cluster.mnt(format!("f{at}")));
    }
    fs::remove_file(ballast).expect("remove");
    drop(fsynced(&cluster, "after", pattern(2060, LEN)));
    cluster.drain("");
    pattern(2050, LEN).assert_in(&cluster.pfs("before"));
    pattern(2053, 10 * LEN).assert_in(&cluster.pfs("f2"));
    pattern(2060, LEN).assert_in(&cluster.pfs("after"));
}

#[test]
fn fault_15_a_full_disk_below_the_records_is_a_clean_error_and_passes() {
    if needs_root() {
        return;
    }
    let builder = Cluster::builder().lazy().dram("").ssd("64MiB");
    let mut cluster = builder.disk("state", "ext4", 256 * MIB).up();
    drop(fsynced(&cluster, "before", pattern(2070, LEN)));
    cluster.drain("before");
    fs::hard_link(cluster.mnt("before"), cluster.mnt("link")).expect("link");
    let ballast = cluster.disk("state").fill(0);
    // What fits into the journal's own space succeeds still; then an error must come.
    let mut done = Vec::new();
    let error = (0..200_000).find_map(|at| {
        let name = format!("link-{at}");
        match fs::rename(cluster.mnt("link"), cluster.mnt(&name)) {
            Ok(()) => {
                done.push(name.clone());
                fs::rename(cluster.mnt(&name), cluster.mnt("link")).err()
            }
            Err(error) => Some(error),
        }
    });
    let error = error.expect("the disk is full");
    assert!(
        matches!(error.kind(), ErrorKind::StorageFull) || error.raw_os_error() == Some(libc::EIO),
        "{error}"
    );
    pattern(2070, LEN).assert_in(&cluster.mnt("before"));
    fs::remove_file(ballast).expect("remove");
    cluster.restart();
    pattern(2070, LEN).assert_in(&cluster.mnt("before"));
    let names = listing(&cluster.mnt(""));
    assert_eq!(names.len(), 2, "two names of one file: {names:?}");
    write_file(&cluster.mnt("after"), pattern(2071, LEN));
    cluster.drain("");
    assert_eq!(listing(&cluster.pfs("")), listing(&cluster.mnt("")));
    pattern(2071, LEN).assert_in(&cluster.pfs("after"));
}

#[test]
fn fault_15_a_full_disk_below_records_and_log_passes_without_a_restart() {
    if needs_root() {
        return;
    }
    let builder = Cluster::builder().lazy().dram("").ssd("64MiB");
    let cluster = builder.disk("state", "ext4", 96 * MIB).prepare();
    let mut args = cluster.up_args().to_vec();
    // The log is on that disk, too.
    args.push("--detach".into());
    cluster.cli(&args).ok();
    drop(fsynced(&cluster, "before", pattern(2080, LEN)));
    let ballast = cluster.disk("state").fill(0);
    let error = (0..200_000).find_map(|at| {
        let (from, to) = [("before", "other"), ("other", "before")][at % 2];
        fs::rename(cluster.mnt(from), cluster.mnt(to)).err()
    });
    error.expect("the disk is full");
    // Every one of these is worth a line in the log, which cannot be written.
    let written: Vec<bool> = (0..300)
        .map(|at| {
            let mut file = File::create(cluster.mnt(format!("f{at}"))).expect("create");
            let written = file.write_all(&pattern(2100 + at, 1000).bytes());
            file.sync_all()
                .expect_err("there is no room for its record");
            written.is_ok()
        })
        .collect();
    let names = listing(&cluster.mnt(""));
    assert_eq!(names.len(), 301, "{names:?}");
    fs::remove_file(ballast).expect("remove");
    wait_until("records are written again", || {
        let probe = File::create(cluster.mnt("probe"));
        probe.and_then(|probe| probe.sync_all()).is_ok()
    });
    let log = || fs::read_to_string(cluster.state().join("forebay.log")).expect("log");
    wait_until("the log says so", || log().contains("was opened again"));
    let log = log();
    assert!(
        log.contains("lines before this one could not be written"),
        "{log}"
    );
    assert!(log.lines().count() < 200, "{log}");
    let first = names
        .iter()
        .find(|name| !name.as_bytes().starts_with(b"f"))
        .expect("it");
    fs::rename(cluster.mnt(first), cluster.mnt("renamed")).expect("rename");
    pattern(2080, LEN).assert_in(&cluster.mnt("renamed"));
    drop(fsynced(&cluster, "after", pattern(2081, LEN)));
    cluster.on_state(&["down", "--drain"]).ok();
    assert_eq!(listing(&cluster.pfs("")).len(), 303);
    pattern(2080, LEN).assert_in(&cluster.pfs("renamed"));
    pattern(2081, LEN).assert_in(&cluster.pfs("after"));
    for (at, _) in written.iter().enumerate().filter(|(_, written)| **written) {
        pattern(2100 + at as u64, 1000).assert_in(&cluster.pfs(format!("f{at}")));
    }
}
