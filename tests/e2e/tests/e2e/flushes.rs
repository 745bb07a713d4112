//! What was flushed, and what was not: power cuts of the PFS's server, and of this machine where it
//! leaves halves behind.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay_testkit::{Cluster, listing, needs_root, pattern, write_file};

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
