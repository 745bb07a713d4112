//! File systems that are mounted inside the PFS.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use forebay_testkit::{
    Cluster, LoopFs, listing, needs_program, needs_root, pattern, settle_for_revalidation,
    write_file,
};

use crate::bad_input::assert_line;

/// Two that are copies of each other, as snapshots are: nothing but their places tells them apart.
struct Twins {
    fs: [LoopFs; 2],
}

impl Twins {
    const NAMES: [&str; 2] = ["proj-a", "proj-b"];

    fn of(cluster: &Cluster) -> Twins {
        let image = |name: &str| cluster.base().join(format!("{name}.img"));
        let fs = Twins::NAMES.map(|name| {
            fs::create_dir(cluster.pfs(name)).expect("mkdir");
            LoopFs::new(cluster.base(), &cluster.pfs(name), 16 << 20)
        });
        fs::create_dir(cluster.pfs("proj-a/run")).expect("mkdir");
        fs.iter().for_each(LoopFs::unmount);
        fs::copy(image(Twins::NAMES[0]), image(Twins::NAMES[1])).expect("copy");
        fs.iter().for_each(LoopFs::mount);
        Twins { fs }
    }

    /// Takes them away and brings them back in the other order.
    fn swap(&self) {
        self.fs.iter().for_each(LoopFs::unmount);
        self.fs.iter().rev().for_each(LoopFs::mount);
    }
}

fn devices(cluster: &Cluster) -> [u64; 2] {
    Twins::NAMES.map(|name| fs::metadata(cluster.pfs(name)).expect("stat").dev())
}

#[test]
fn promise_1_a_file_drains_into_the_file_system_that_it_was_written_to_whatever_number_that_has() {
    if needs_root() {
        return;
    }
    let mut cluster = Cluster::builder().dram("").ssd("64MiB").lazy().up();
    let twins = Twins::of(&cluster);
    let before = devices(&cluster);
    for (seed, name) in Twins::NAMES.iter().enumerate() {
        let path = cluster.mnt(name).join("run/result");
        write_file(&path, pattern(seed as u64, 5000));
        File::open(&path).expect("open").sync_all().expect("fsync");
    }
    cluster.kill9();
    twins.swap();
    assert_ne!(devices(&cluster), before, "nothing was swapped");
    cluster.restart();
    for stage in ["undrained", "drained"] {
        for (seed, name) in Twins::NAMES.iter().enumerate() {
            let shown = cluster.mnt(name).join("run");
            assert_eq!(listing(&shown), ["result"], "{stage}");
            pattern(seed as u64, 5000).assert_in(&shown.join("result"));
        }
        cluster.drain("");
    }
    for (seed, name) in Twins::NAMES.iter().enumerate() {
        pattern(seed as u64, 5000).assert_in(&cluster.pfs(name).join("run/result"));
    }
    assert_eq!(cluster.status()["conflicts_total"], 0);
    cluster.down(&["--drain"]).ok();
}

#[test]
fn bad_input_file_system_inside_the_pfs_that_is_not_mounted() {
    if needs_root() {
        return;
    }
    let mut cluster = Cluster::builder().dram("").ssd("64MiB").lazy().up();
    let twins = Twins::of(&cluster);
    write_file(&cluster.mnt("proj-a/run/f"), pattern(7, 100));
    cluster.down(&[]);
    twins.fs[0].unmount();
    let detached = [cluster.up_args(), &["--detach".into()]].concat();
    for output in [cluster.cli(&detached), cluster.on_state(&["fsck"])] {
        assert_line(&output, "proj-a is not the PFS");
    }
    assert_eq!(listing(&cluster.pfs("proj-a")), [""; 0]);
    twins.fs[0].mount();
    cluster.start();
    cluster.drain("");
    pattern(7, 100).assert_in(&cluster.pfs("proj-a/run/f"));
}

#[test]
fn promise_1_a_file_that_outgrows_the_buffer_drains_into_the_file_system_that_it_was_written_to() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().dram("8MiB").ssd("8MiB").up();
    fs::create_dir(cluster.pfs("in")).expect("mkdir");
    let inner = LoopFs::new(cluster.base(), &cluster.pfs("in"), 96 << 20);
    write_file(&cluster.mnt("in/big"), pattern(30, 40 << 20));
    cluster.drain("");
    pattern(30, 40 << 20).assert_in(&cluster.pfs("in/big"));
    pattern(30, 40 << 20).assert_in(&cluster.mnt("in/big"));
    assert_eq!(cluster.status()["errors_total"], 0);
    cluster.down(&["--drain"]).ok();
    assert_eq!(listing(&cluster.pfs("")), ["in"]);
    drop(inner);
}

#[test]
fn promise_1_names_of_a_file_stay_in_its_file_system() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().dram("").ssd("64MiB").lazy().up();
    fs::create_dir(cluster.pfs("inner")).expect("mkdir");
    let _inner = LoopFs::new(cluster.base(), &cluster.pfs("inner"), 16 << 20);
    let (f, g) = (cluster.mnt("f"), cluster.mnt("inner/g"));
    write_file(&f, pattern(9, 5000));
    let refused = |done: std::io::Result<()>, what: &str| {
        let kind = done.expect_err(what).kind();
        assert_eq!(kind, std::io::ErrorKind::CrossesDevices, "{what}");
    };
    for state in ["undrained", "drained"] {
        refused(fs::hard_link(&f, &g), state);
        refused(fs::rename(&f, &g), state);
        let second = cluster.mnt(format!("second-{state}"));
        fs::hard_link(&f, &second).expect("link");
        refused(fs::rename(&second, &g), state);
        cluster.drain("");
    }
    // As programs do then.
    let moved = Command::new("mv").args([&f, &g]).status().expect("mv");
    assert!(moved.success());
    cluster.down(&["--drain"]).ok();
    pattern(9, 5000).assert_in(&cluster.pfs("inner/g"));
    for state in ["undrained", "drained"] {
        pattern(9, 5000).assert_in(&cluster.pfs(format!("second-{state}")));
    }
    assert!(!cluster.pfs("f").exists());
}

#[test]
fn promise_1_a_snapshot_in_the_place_of_its_subvolume_is_not_taken_for_it() {
    if needs_root() || needs_program("mkfs.btrfs") || needs_program("btrfs") {
        return;
    }
    let mut cluster = Cluster::builder().dram("").ssd("64MiB").lazy().up();
    fs::create_dir(cluster.pfs("btrfs")).expect("mkdir");
    let _btrfs = LoopFs::of_kind("btrfs", cluster.base(), &cluster.pfs("btrfs"), 200 << 20);
    let subvolume = |what: &str, paths: &[PathBuf]| {
        let mut btrfs = Command::new("btrfs");
        let done = btrfs.args(["subvolume", what]).args(paths).output();
        assert!(done.expect("btrfs").status.success(), "{paths:?}");
    };
    for (seed, through_the_mount) in [(1, true), (2, false)] {
        let below = format!("btrfs/{seed}");
        fs::create_dir(cluster.pfs(&below)).expect("mkdir");
        let [live, snap, broken] = ["live", "snap", "broken"].map(|name| format!("{below}/{name}"));
        subvolume("create", &[cluster.pfs(&live)]);
        write_file(&cluster.pfs(&live).join("f"), pattern(seed, 5000));
        subvolume("snapshot", &[cluster.pfs(&live), cluster.pfs(&snap)]);
        write_file(&cluster.mnt(&live).join("f"), pattern(10 + seed, 6000));
        // It is rolled back.
        let at = |path: &str| match through_the_mount {
            true => cluster.mnt(path),
            false => cluster.pfs(path),
        };
        fs::rename(at(&live), at(&broken)).expect("rename");
        fs::rename(at(&snap), at(&live)).expect("rename");
        settle_for_revalidation();
        let is = |path: &str, id, len| pattern(id, len).assert_in(&cluster.mnt(path).join("f"));
        is(&live, seed, 5000);
        is(&broken, 10 + seed, 6000);
        cluster.restart();
        for stage in ["undrained", "drained"] {
            for (path, id, len) in [(&live, seed, 5000), (&broken, 10 + seed, 6000)] {
                assert_eq!(listing(&cluster.mnt(path)), ["f"], "{stage}");
                pattern(id, len).assert_in(&cluster.mnt(path).join("f"));
            }
            cluster.drain("");
        }
        pattern(seed, 5000).assert_in(&cluster.pfs(&live).join("f"));
        pattern(10 + seed, 6000).assert_in(&cluster.pfs(&broken).join("f"));
    }
    assert_eq!(cluster.status()["conflicts_total"], 0);
    cluster.down(&["--drain"]).ok();
}
