//! File systems that are mounted inside the PFS.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use forebay_testkit::{Cluster, LoopFs, listing, needs_root, pattern, write_file};

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
