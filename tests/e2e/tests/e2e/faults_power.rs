//! Rows 5 and 6 of the fault matrix once more: what a power cut leaves where records, objects and
//! PFS were not flushed at the same time. The PFS is elsewhere: it keeps what it was told.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;

use forebay_testkit::{Cluster, Pattern, listing, needs_root, pattern, write_file};

const MIB: u64 = 1 << 20;
const LEN: usize = 300_000;
const SAFE: &str = "[[rule]]\npath = \"/safe/**\"\ndurability = \"pfs\"\n";

/// Flash and state folder are disks of their own; nothing drains by itself.
fn disks(dram: &str) -> Cluster {
    let builder = Cluster::builder().config(SAFE).lazy().dram(dram);
    let builder =
        builder
            .ssd("64MiB")
            .disk("ssd", "ext4", 96 * MIB)
            .disk("state", "ext4", 256 * MIB);
    let cluster = builder.up();
    fs::create_dir(cluster.mnt("safe")).expect("mkdir");
    cluster
}

fn fsynced(cluster: &Cluster, name: &str, content: Pattern) {
    let file = File::create(cluster.mnt(name)).expect("create");
    content.write(&file);
    file.sync_all().expect("fsync");
}

fn overwrite(cluster: &Cluster, name: &str, content: Pattern) {
    let file = File::options()
        .write(true)
        .open(cluster.mnt(name))
        .expect("open");
    file.write_all_at(&content.bytes(), 0).expect("write");
}

fn cut_and_start(cluster: &mut Cluster) {
    cluster.cut_power();
    cluster.start();
}

fn assert_no_errors(cluster: &Cluster) {
    assert_eq!(cluster.status()["errors"].to_string(), "[]");
}

#[test]
fn promise_3_names_that_changed_just_after_a_drain_are_not_taken_for_an_outsiders_doing() {
    if needs_root() {
        return;
    }
    let mut cluster = disks("");
    for name in ["moved", "removed", "replaced", "swapped", "other"] {
        write_file(&cluster.mnt(name), pattern(2100, LEN));
    }
    write_file(&cluster.mnt("taker"), pattern(2101, LEN));
    cluster.drain("");
    fs::rename(cluster.mnt("moved"), cluster.mnt("new")).expect("rename");
    fs::remove_file(cluster.mnt("removed")).expect("unlink");
    fs::rename(cluster.mnt("taker"), cluster.mnt("replaced")).expect("rename");
    cut_and_start(&mut cluster);
    let names = ["new", "other", "replaced", "safe", "swapped"];
    assert_eq!(listing(&cluster.mnt("")), names);
    cluster.drain("");
    assert_eq!(listing(&cluster.pfs("")), names);
    pattern(2101, LEN).assert_in(&cluster.mnt("replaced"));
    assert_no_errors(&cluster);
}

#[test]
fn promise_3_a_dropped_copy_leaves_no_record_of_when_it_was_undrained() {
    if needs_root() {
        return;
    }
    let mut cluster = disks("");
    write_file(&cluster.mnt("f"), pattern(2110, LEN));
    cluster.drain("f");
    cluster.on_path(&["release"], "f").ok();
    assert_eq!(cluster.where_state("f"), "pfs");
    fs::rename(cluster.mnt("f"), cluster.mnt("g")).expect("rename");
    cut_and_start(&mut cluster);
    assert_eq!(listing(&cluster.mnt("")), ["g", "safe"]);
    cluster.drain("");
    assert_eq!(listing(&cluster.pfs("")), ["g", "safe"]);
    assert_no_errors(&cluster);
}

#[test]
fn promise_3_a_drained_copy_that_was_never_fsynced_is_whole_or_gone() {
    if needs_root() {
        return;
    }
    let mut cluster = disks("");
    fsynced(&cluster, "f", pattern(2120, LEN));
    cluster.drain("f");
    overwrite(&cluster, "f", pattern(2121, LEN));
    cluster.drain("f");
    // It takes the records along, and not what is in other objects.
    fsynced(&cluster, "other", pattern(2122, 1000));
    cut_and_start(&mut cluster);
    pattern(2121, LEN).assert_in(&cluster.mnt("f"));
    pattern(2121, LEN).assert_in(&cluster.pfs("f"));
}

#[test]
fn promise_3_a_copy_that_was_changed_is_not_called_drained() {
    if needs_root() {
        return;
    }
    let mut cluster = disks("");
    fsynced(&cluster, "f", pattern(2130, LEN));
    cluster.drain("f");
    fsynced(&cluster, "other", pattern(2131, 1000));
    overwrite(&cluster, "f", pattern(2132, LEN));
    // Now and then the kernel does this by itself.
    let flash = File::open(cluster.ssd()).expect("open");
    rustix::fs::syncfs(&flash).expect("syncfs");
    drop(flash);
    cut_and_start(&mut cluster);
    let shown = fs::read(cluster.mnt("f")).expect("read");
    cluster.drain("");
    let drained = fs::read(cluster.pfs("f")).expect("read");
    assert!(shown == drained, "the PFS has something else");
    assert!(shown == pattern(2130, LEN).bytes(), "what was fsynced");
    let errors = cluster.status()["errors"].to_string();
    assert!(errors.contains("/f\""), "{errors}");
}

/// Cut while open, closed, and by an open; in memory, on flash, and without a flush of the device.
#[test]
fn promise_3_what_was_fsynced_and_cut_since_is_what_it_was_or_what_it_was_cut_to() {
    if needs_root() {
        return;
    }
    for (dram, flushed) in [("", true), ("", false), ("64MiB", true)] {
        let mut cluster = disks(dram);
        for name in ["open", "closed", "emptied"] {
            fsynced(&cluster, name, pattern(2150, LEN));
        }
        let options = File::options().write(true).clone();
        let file = options.open(cluster.mnt("open")).expect("open");
        file.set_len(100).expect("cut");
        drop(file);
        crate::random::truncate_path(&cluster.mnt("closed"), 200).expect("cut");
        let mut options = options;
        drop(options.truncate(true).open(cluster.mnt("emptied")));
        if flushed {
            let flash = File::open(cluster.ssd()).expect("open");
            rustix::fs::syncfs(&flash).expect("syncfs");
        }
        cut_and_start(&mut cluster);
        let whole = pattern(2150, LEN).bytes();
        for (name, cut) in [("open", 100), ("closed", 200), ("emptied", 0)] {
            let found = fs::read(cluster.mnt(name)).expect("not damaged");
            let is_one = found == whole || found == whole[..cut];
            assert!(is_one, "{name}: {} bytes, {dram:?}, {flushed}", found.len());
        }
        cluster.drain("");
        assert_eq!(
            listing(&cluster.pfs("")),
            ["closed", "emptied", "open", "safe"]
        );
    }
}

#[test]
fn promise_3_what_was_never_fsynced_and_is_torn_is_lost_as_in_memory() {
    if needs_root() {
        return;
    }
    let mut cluster = disks("");
    write_file(&cluster.mnt("older"), pattern(2140, LEN));
    cluster.drain("older");
    write_file(&cluster.mnt("older.new"), pattern(2141, LEN));
    fs::rename(cluster.mnt("older.new"), cluster.mnt("older")).expect("rename");
    write_file(&cluster.mnt("new"), pattern(2142, LEN));
    fsynced(&cluster, "grown", pattern(2143, LEN));
    let mut grown = File::options()
        .append(true)
        .open(cluster.mnt("grown"))
        .expect("open");
    grown.write_all(&[b'+'; LEN]).expect("write");
    drop(grown);
    fsynced(&cluster, "other", pattern(2144, 1000));
    cut_and_start(&mut cluster);
    let found = fs::read(cluster.mnt("older")).expect("read");
    assert!(
        [2140, 2141]
            .map(|id| pattern(id, LEN).bytes())
            .contains(&found)
    );
    let grown = fs::read(cluster.mnt("grown")).expect("read");
    assert!(
        grown.starts_with(&pattern(2143, LEN).bytes()),
        "what was fsynced"
    );
    // Nothing is in the way of the drain.
    cluster.drain("");
    assert_eq!(cluster.dirty_bytes(), 0);
    if !cluster.mnt("new").exists() {
        let errors = cluster.status()["errors"].to_string();
        assert!(errors.contains("/new\""), "{errors}");
    }
    assert!(fs::read(cluster.pfs("older")).expect("read") == found);
}

#[test]
fn promise_3_a_copy_that_was_lost_from_the_records_does_not_come_back_later() {
    if needs_root() {
        return;
    }
    let mut cluster = disks("");
    fs::write(cluster.pfs("f"), pattern(2150, LEN).bytes()).expect("write");
    cluster.on_path(&["stage-in"], "f").ok();
    cut_and_start(&mut cluster);
    pattern(2150, LEN).assert_in(&cluster.mnt("f"));
    fs::remove_file(cluster.mnt("f")).expect("unlink");
    cut_and_start(&mut cluster);
    assert_eq!(listing(&cluster.mnt("")), ["safe"]);
    assert_no_errors(&cluster);
}

/// Everybody's memory is lost; `f` was drained, and its successor, which nobody fsynced, has taken
/// its place and its version on the PFS.
fn successor_in_memory(name: &str) -> Cluster {
    let cluster = disks("64MiB");
    write_file(&cluster.mnt(name), pattern(2160, LEN));
    cluster.drain(name);
    let successor = format!("{name}.new");
    write_file(&cluster.mnt(&successor), pattern(2161, LEN));
    fs::rename(cluster.mnt(&successor), cluster.mnt(name)).expect("rename");
    cluster
}

#[test]
fn promise_3_an_older_version_is_not_found_under_a_name_that_it_never_had() {
    if needs_root() {
        return;
    }
    for name in ["f", "safe/f"] {
        let mut cluster = successor_in_memory(name);
        fs::rename(cluster.mnt(name), cluster.mnt("moved")).expect("rename");
        cut_and_start(&mut cluster);
        pattern(2161, LEN).assert_in(&cluster.mnt("moved"));
        let mut cluster = successor_in_memory(name);
        fs::hard_link(cluster.mnt(name), cluster.mnt("second")).expect("link");
        cut_and_start(&mut cluster);
        pattern(2161, LEN).assert_in(&cluster.mnt("second"));
    }
}

#[test]
fn promise_3_a_copy_of_an_earlier_fsync_does_not_stand_for_what_was_drained_since() {
    if needs_root() {
        return;
    }
    let builder = || Cluster::builder().config(SAFE).lazy().ssd("64MiB");
    for builder in [builder(), builder().flag("--no-passthrough")] {
        let mut cluster = builder.up();
        fs::create_dir(cluster.mnt("safe")).expect("mkdir");
        let mut file = File::create(cluster.mnt("f")).expect("create");
        pattern(2170, LEN).write(&file);
        file.sync_all().expect("fsync");
        file.write_all_at(&pattern(2171, LEN).bytes(), 0)
            .expect("write");
        fs::rename(cluster.mnt("f"), cluster.mnt("safe/f")).expect("rename");
        file.sync_all().expect("fsync");
        pattern(2171, LEN).assert_in(&cluster.pfs("safe/f"));
        file.write_all(b"more").expect("write");
        cluster.kill9();
        cluster.lose_memory();
        drop(file);
        cluster.start();
        pattern(2171, LEN).assert_in(&cluster.mnt("safe/f"));
        cluster.drain("");
        pattern(2171, LEN).assert_in(&cluster.pfs("safe/f"));
    }
}
