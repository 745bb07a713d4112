//! A PFS by libfuse. It cannot rename without replacing, and keeps an open file that loses its name
//! under a hidden one: times of change move once more when that is closed.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_testkit::{Cluster, needs_program, needs_root, wait_until};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

const FILES: usize = 10;

/// What the PFS shows.
fn behind(cluster: &Cluster, name: impl AsRef<Path>) -> PathBuf {
    cluster.base().join("behind").join(name)
}

/// bindfs, which shows a folder as the PFS; unmounted last.
struct Bindfs(PathBuf);

impl Drop for Bindfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn up() -> Option<(Cluster, Bindfs)> {
    if needs_root() || needs_program("bindfs") {
        return None;
    }
    let mut cluster = Cluster::builder().dram("64MiB").prepare();
    let behind = cluster.base().join("behind");
    fs::create_dir(&behind).expect("mkdir");
    let mut command = Command::new("bindfs");
    let command = command.args(["-o", "allow_other"]);
    let status = command.arg(&behind).arg(cluster.pfs("")).status();
    assert!(status.expect("bindfs").success());
    let bindfs = Bindfs(cluster.pfs(""));
    cluster.start();
    Some((cluster, bindfs))
}

#[test]
fn promise_1_what_is_written_again_on_a_pfs_with_hidden_names_is_no_conflict() {
    let Some((cluster, _bindfs)) = up() else {
        return;
    };
    for (round, append) in [true, false].into_iter().enumerate() {
        let name = |at: usize| format!("f{round}-{at}");
        for at in 0..FILES {
            fs::write(cluster.mnt(name(at)), "first\n").expect("write");
        }
        cluster.drain("");
        for at in 0..FILES {
            let mut options = OpenOptions::new();
            let options = options.append(append).write(true).truncate(!append);
            let mut file = options.open(cluster.mnt(name(at))).expect("open");
            file.write_all(b"second\n").expect("write");
        }
        cluster.drain("");
        let want = if append {
            "first\nsecond\n"
        } else {
            "second\n"
        };
        for at in 0..FILES {
            let read = |path| fs::read_to_string(path).expect("read");
            assert_eq!(read(cluster.mnt(name(at))), want);
            assert_eq!(read(cluster.pfs(name(at))), want);
        }
    }
    assert_eq!(cluster.status()["conflicts_total"], 0);
    assert_eq!(
        fs::read_dir(cluster.pfs("")).expect("list").count(),
        2 * FILES
    );
}

#[test]
fn promise_2_a_directory_on_a_pfs_with_hidden_names_gets_its_time() {
    let Some((cluster, _bindfs)) = up() else {
        return;
    };
    const THEN: i64 = 981_173_106;
    fs::create_dir(cluster.mnt("d")).expect("mkdir");
    for at in 0..FILES {
        fs::write(cluster.mnt(format!("d/{at}")), "x").expect("write");
    }
    let then = Timespec {
        tv_sec: THEN,
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: then,
        last_modification: then,
    };
    utimensat(CWD, cluster.mnt("d"), &times, AtFlags::empty()).expect("utimensat");
    cluster.drain("");
    let mtime = |path: PathBuf| fs::metadata(path).expect("stat").mtime();
    wait_until("the PFS has its time", || {
        mtime(cluster.base().join("behind/d")) == THEN
    });
    assert_eq!(mtime(cluster.mnt("d")), THEN);
}

#[test]
fn promise_1_a_directory_with_the_inode_number_of_a_removed_one_is_another() {
    let Some((cluster, _bindfs)) = up() else {
        return;
    };
    let mut last = None;
    let mut reused = 0;
    for at in 0..FILES {
        let (old, new) = (format!("old-{at}"), format!("new-{at}"));
        fs::create_dir(cluster.mnt(&old)).expect("mkdir");
        fs::write(cluster.mnt(format!("{old}/f")), "x").expect("write");
        let held = fs::File::open(cluster.mnt(&old)).expect("open");
        if at % 2 == 0 {
            drop(held);
        } else {
            last = Some(held);
        }
        let number = |name: &str| fs::metadata(behind(&cluster, name)).expect("stat").ino();
        let before = number(&old);
        fs::remove_dir_all(cluster.mnt(&old)).expect("rm");
        fs::create_dir(cluster.mnt(&new)).expect("mkdir");
        reused += usize::from(number(&new) == before);
        fs::create_dir(cluster.mnt(format!("{new}/sub"))).expect("mkdir");
        let file = format!("{new}/file");
        fs::write(cluster.mnt(&file), "content").expect("write");
        let outside = format!("{new}/outside");
        fs::write(behind(&cluster, &outside), "theirs").expect("write");
        cluster.drain(&new);
        let behind = fs::read_to_string(behind(&cluster, &file));
        assert_eq!(behind.expect("drained"), "content");
        let seen = fs::read_to_string(cluster.mnt(&outside));
        assert_eq!(seen.expect("shown"), "theirs");
    }
    drop(last);
    assert!(
        reused > 0,
        "the file system below gives no inode number again"
    );
}
