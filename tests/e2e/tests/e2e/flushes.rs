//! What was flushed, and what was not: power cuts of the PFS's server, and of this machine where it
//! leaves halves behind.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay_testkit::{Cluster, When, listing, needs_root, pattern, wait_until, write_file};

const MIB: u64 = 1 << 20;
const LEN: usize = 300_000;

#[test]
fn promise_6_what_is_clean_outlives_a_power_cut_of_the_pfs() {
    if needs_root() {
        return;
    }
    const FILES: u64 = 40;
    let builder = Cluster::builder().lazy().ssd("64MiB");
    let mut cluster = builder.fuse_pfs_on_disk(64 * MIB).up();
    for at in 0..FILES {
        write_file(&cluster.mnt(format!("f{at}")), pattern(3000 + at, 10_000));
    }
    cluster.drain("");
    assert_eq!(cluster.dirty_bytes(), 0);
    // Nobody flushes this one: it shows that there was a cut.
    write_file(&cluster.pfs("unsynced"), pattern(3099, LEN));
    let left = cluster.cut_pfs_power();
    let unsynced = fs::read(left.join("unsynced")).unwrap_or_default();
    assert!(unsynced != pattern(3099, LEN).bytes(), "no power was cut");
    let whole = |at: &u64| {
        let path = left.join(format!("f{at}"));
        path.exists() && pattern(3000 + at, 10_000).difference(&path).is_none()
    };
    let whole = (0..FILES).filter(whole).count() as u64;
    assert_eq!(whole, FILES, "files that are whole on the PFS");
}

/// Flash and state folder are disks of their own; nothing drains by itself.
fn disks(passthrough: bool) -> Cluster {
    let builder = Cluster::builder().lazy().dram("").ssd("64MiB");
    let builder = match passthrough {
        true => builder,
        false => builder.flag("--no-passthrough"),
    };
    builder
        .disk("ssd", "ext4", 96 * MIB)
        .disk("state", "ext4", 256 * MIB)
        .up()
}

/// What the kernel does by itself now and then.
fn flush_disk(folder: &Path) {
    let folder = File::open(folder).expect("open");
    rustix::fs::syncfs(&folder).expect("syncfs");
}

/// Puts the records on stable storage.
fn flush_records(cluster: &Cluster) {
    let file = File::create(cluster.mnt("other")).expect("create");
    pattern(3110, 1000).write(&file);
    file.sync_all().expect("fsync");
}

fn assert_named(cluster: &Cluster, name: &str) {
    let errors = cluster.status()["errors"].to_string();
    assert!(errors.contains(&format!("/{name}\"")), "{errors}");
}

#[test]
fn promise_3_what_was_never_fsynced_replaces_nothing() {
    if needs_root() {
        return;
    }
    // The second file of a series is written by the kernel itself.
    for passthrough in [true, false] {
        let mut cluster = disks(passthrough);
        for name in ["older-1", "older-2"] {
            write_file(&cluster.mnt(name), pattern(3100, LEN));
        }
        cluster.drain("");
        // A checkpoint is written anew, and cut half-way: its half is on the disk.
        let mut half = File::create(cluster.mnt("older-2")).expect("create");
        half.write_all(&pattern(3101, LEN).bytes()[..LEN / 2])
            .expect("write");
        flush_disk(&cluster.ssd());
        // A new file gets its size first: that is on the disk, the content is not.
        let new = File::create(cluster.mnt("new-2")).expect("create");
        new.set_len(LEN as u64).expect("ftruncate");
        flush_disk(&cluster.ssd());
        new.write_all_at(&pattern(3102, LEN).bytes(), 0)
            .expect("write");
        drop(new);
        flush_records(&cluster);
        cluster.cut_power();
        drop(half);
        cluster.start();
        for name in ["older-2", "new-2"] {
            assert_named(&cluster, name);
        }
        pattern(3100, LEN).assert_in(&cluster.mnt("older-2"));
        // The end of the daemon alone is no loss of power.
        write_file(&cluster.mnt("later"), pattern(3103, LEN));
        cluster.restart();
        pattern(3103, LEN).assert_in(&cluster.mnt("later"));
        cluster.drain("");
        pattern(3100, LEN).assert_in(&cluster.pfs("older-2"));
        pattern(3103, LEN).assert_in(&cluster.pfs("later"));
        let names = ["later", "older-1", "older-2", "other"];
        assert_eq!(listing(&cluster.pfs("")), names);
        let kept = fs::read_dir(cluster.ssd().join("lost+found")).expect("lost+found");
        assert_eq!(kept.count(), 2, "what is left of them");
    }
}

#[test]
fn promise_8_what_down_leaves_outlives_a_loss_of_power() {
    if needs_root() {
        return;
    }
    let mut cluster = disks(false);
    for at in 0..3 {
        write_file(&cluster.mnt(format!("f{at}")), pattern(3120 + at, LEN));
    }
    cluster.down(&[]);
    for disk in ["ssd", "state"] {
        cluster.disk(disk).shut_down();
    }
    cluster.cut_power_after_a_dead_disk();
    cluster.start();
    assert_eq!(cluster.status()["errors"].to_string(), "[]");
    for at in 0..3 {
        pattern(3120 + at, LEN).assert_in(&cluster.mnt(format!("f{at}")));
    }
}

/// A file of the PFS that is changed where it is: it has two names there.
fn linked_on_pfs(cluster: &Cluster, seed: u64) {
    write_file(&cluster.pfs("linked"), pattern(seed, LEN));
    fs::hard_link(cluster.pfs("linked"), cluster.pfs("other name")).expect("link");
}

fn append(path: &Path) -> File {
    let mut file = File::options().append(true).open(path).expect("open");
    file.write_all(&pattern(3131, LEN).bytes()).expect("append");
    file
}

#[test]
fn promise_7_an_error_of_a_flush_of_what_was_changed_in_place_reaches_everybody_who_asks() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().fuse_pfs().up();
    linked_on_pfs(&cluster, 3130);
    write_file(&cluster.pfs("well"), pattern(3132, LEN));
    fs::hard_link(cluster.pfs("well"), cluster.pfs("well too")).expect("link");
    let pfs = cluster.fuse_pfs();
    pfs.fail("fsync", When::Before, libc::EIO, "");
    let open = append(&cluster.mnt("linked"));
    for path in ["linked", "", "linked"] {
        let output = cluster.on_path(&["stage-out", "--wait"], path);
        assert_eq!(output.code, 3, "{output:?}");
        assert!(
            output.stderr.contains("/linked: was changed in place"),
            "{output:?}"
        );
        assert!(!output.stderr.contains("/well"), "{output:?}");
        if path.is_empty() {
            // A flush that comes later brings nothing back.
            pfs.heal("fsync");
            drop(append(&cluster.mnt("well")));
        }
    }
    assert_eq!(cluster.on_path(&["stage-out", "--wait"], "well").code, 0);
    let errors = cluster.status()["errors"].to_string();
    assert!(
        errors.contains("was changed in place on the PFS"),
        "{errors}"
    );
    let error = open.sync_all().expect_err("what was written may be lost");
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    open.sync_all().expect("once");
    drop(open);
    let output = cluster.on_state(&["down", "--drain"]);
    assert_eq!(output.code, 3, "{output:?}");
    assert!(
        output
            .stderr
            .contains("what was changed in 1 file or directory of the PFS"),
        "{output:?}"
    );
    assert!(output.stderr.contains("/linked"), "{output:?}");
}

#[test]
fn promise_7_what_may_be_lost_is_known_by_the_file_whatever_its_name() {
    if needs_root() {
        return;
    }
    let rule = "[[rule]]\npath = \"/run/{version}\"\ngroup = \"commit\"\n";
    let builder = Cluster::builder().lazy().config(rule);
    let cluster = builder.fuse_pfs().up();
    linked_on_pfs(&cluster, 3140);
    fs::create_dir(cluster.mnt("run")).expect("mkdir");
    for version in ["run/1", "run/2"] {
        fs::create_dir(cluster.mnt(version)).expect("mkdir");
        write_file(&cluster.mnt(version).join("rank-0"), pattern(3141, LEN));
    }
    let pfs = cluster.fuse_pfs();
    pfs.fail("fsync", When::Before, libc::EIO, "");
    drop(append(&cluster.mnt("linked")));
    let named_as = |path: &str| {
        let output = cluster.on_path(&["stage-out", "--wait"], path);
        output.code == 3 && output.stderr.contains(path)
    };
    assert!(named_as("linked"));
    pfs.heal("fsync");
    // It moves into the first version, and has its other name elsewhere.
    fs::rename(cluster.mnt("linked"), cluster.mnt("run/1/log")).expect("rename");
    assert!(named_as("run/1/log") && named_as("other name"));
    let output = cluster.on_path(&["commit", "--wait"], "run/1");
    assert_eq!(output.code, 3, "{output:?}");
    assert!(!cluster.pfs("run/1").exists(), "something of it is lost");
    // Whatever the second version is, it does not have that file.
    cluster.on_path(&["commit", "--wait"], "run/2").ok();
    pattern(3141, LEN).assert_in(&cluster.pfs("run/2/rank-0"));
    fs::remove_file(cluster.mnt("run/1/log")).expect("unlink");
    wait_until("it is published", || cluster.pfs("run/1").exists());
    // Somebody removes the last name on the PFS: there is nothing left to be told of.
    fs::remove_file(cluster.pfs("other name")).expect("unlink");
    wait_until("nobody is told of it", || {
        let status = cluster.status();
        status["errors"].as_array().is_some_and(Vec::is_empty)
    });
    assert_eq!(cluster.on_state(&["down", "--drain"]).code, 0);
}

#[test]
fn promise_7_what_is_changed_in_place_is_flushed_soon_though_nobody_asks() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().fuse_pfs().up();
    linked_on_pfs(&cluster, 3130);
    let pfs = cluster.fuse_pfs();
    pfs.fail("fsync", When::Before, libc::EIO, "");
    drop(append(&cluster.mnt("linked")));
    let named = || {
        let errors = cluster.status()["errors"].to_string();
        errors.contains("was changed in place on the PFS")
    };
    wait_until("the error is named", named);
    // What is written anew needs nothing of what was there.
    pfs.heal("fsync");
    write_file(&cluster.mnt("linked"), pattern(3133, LEN));
    assert_eq!(cluster.on_path(&["stage-out", "--wait"], "").code, 0);
    cluster.down(&["--drain"]);
    pattern(3133, LEN).assert_in(&cluster.pfs("other name"));
}

#[test]
fn promise_8_what_was_changed_in_place_outlives_a_power_cut_of_the_pfs_after_a_drain() {
    if needs_root() {
        return;
    }
    for order in ["stage-out", "down"] {
        let builder = Cluster::builder().lazy().ssd("64MiB");
        let mut cluster = builder.fuse_pfs_on_disk(64 * MIB).up();
        linked_on_pfs(&cluster, 3130);
        drop(append(&cluster.mnt("linked")));
        match order {
            "down" => drop(cluster.down(&["--drain"])),
            _ => cluster.drain(""),
        }
        // Nobody flushes this one: it shows that there was a cut.
        write_file(&cluster.pfs("unsynced"), pattern(3139, LEN));
        let left = cluster.cut_pfs_power();
        let unsynced = fs::read(left.join("unsynced")).unwrap_or_default();
        assert!(unsynced != pattern(3139, LEN).bytes(), "no power was cut");
        let found = fs::read(left.join("linked")).unwrap_or_default();
        let whole = [pattern(3130, LEN).bytes(), pattern(3131, LEN).bytes()].concat();
        assert!(found == whole, "{order}: {} bytes are left", found.len());
    }
}

#[test]
fn promise_8_names_changed_since_the_last_drain_outlive_a_power_cut_after_down_with_drain() {
    if needs_root() {
        return;
    }
    let builder = Cluster::builder().lazy().ssd("64MiB");
    let mut cluster = builder.fuse_pfs_on_disk(64 * MIB).up();
    fs::create_dir(cluster.mnt("d")).expect("mkdir");
    for name in ["d/moved", "d/gone"] {
        write_file(&cluster.mnt(name), pattern(3140, LEN));
    }
    cluster.drain("");
    fs::create_dir(cluster.mnt("new")).expect("mkdir");
    fs::rename(cluster.mnt("d/moved"), cluster.mnt("new/f")).expect("rename");
    fs::hard_link(cluster.mnt("new/f"), cluster.mnt("new/g")).expect("link");
    fs::create_dir(cluster.mnt("new/s")).expect("mkdir");
    fs::remove_file(cluster.mnt("d/gone")).expect("unlink");
    cluster.down(&["--drain"]);
    let left = cluster.cut_pfs_power();
    assert!(listing(&left.join("d")).is_empty());
    assert_eq!(listing(&left.join("new")), ["f", "g", "s"]);
    pattern(3140, LEN).assert_in(&left.join("new/g"));
}

#[test]
fn promise_8_names_that_the_pfs_cannot_flush_are_told_by_down_with_drain() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().fuse_pfs().up();
    fs::create_dir(cluster.mnt("d")).expect("mkdir");
    fs::create_dir(cluster.mnt("d/new")).expect("mkdir");
    let pfs = cluster.fuse_pfs();
    pfs.fail("fsyncdir", When::Before, libc::EIO, "d");
    let output = cluster.on_state(&["down", "--drain"]);
    assert_eq!(output.code, 3, "{output:?}");
    assert!(output.stderr.contains("may be lost: "), "{output:?}");
    assert!(output.stderr.contains("/d\n"), "{output:?}");
}
