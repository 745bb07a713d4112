//! The helper of umount(8): who unmounts before a reboot goes on when memory has moved to flash.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::process::Command;

use forebay_testkit::{
    Cluster, LONG, Output, needs_root, pattern, program, run_bounded, wait_until, write_file,
};

const MIB: usize = 1 << 20;

/// As umount(8) calls it.
fn helper(cluster: &Cluster, place: &str, flags: &[&str]) -> Output {
    let helper = cluster.base().join("umount.fuse.forebay");
    if !helper.exists() {
        symlink(program(), &helper).expect("symlink");
    }
    let place = cluster.base().join(place);
    run_bounded(Command::new(helper).arg(place).args(flags), LONG)
}

/// Memory of a burst buffer that is still mounted.
fn memory_tiers(cluster: &Cluster) -> Vec<String> {
    let below = format!("{}/", cluster.state().display());
    let table = fs::read_to_string("/proc/self/mounts").expect("mounts");
    let tiers = table.lines().filter(|line| line.contains(&below));
    tiers.map(str::to_string).collect()
}

/// Where it is mounted.
fn shown(cluster: &Cluster) -> usize {
    let mounts = cluster.mounts();
    mounts
        .iter()
        .filter(|line| line.contains("fuse.forebay"))
        .count()
}

#[test]
fn promise_8_the_helper_of_umount_returns_when_memory_is_on_flash() {
    if needs_root() {
        return;
    }
    let mut cluster = Cluster::builder().lazy().ssd("256MiB").up();
    for at in 0..12 {
        write_file(&cluster.mnt(format!("f{at}")), pattern(4100 + at, 4 * MIB));
    }
    assert!(!memory_tiers(&cluster).is_empty(), "nothing is in memory");
    let mut done = helper(&cluster, "mnt", &[]);
    // What another test starts has all that this process has open until it is another program.
    wait_until("nobody has it", || {
        if done.code == 32 && done.stderr.contains("busy") {
            done = helper(&cluster, "mnt", &[]);
        }
        done.code == 0
    });
    assert_eq!(memory_tiers(&cluster), Vec::<String>::new(), "{done:?}");
    assert!(!cluster.state().join("forebay.pid").exists());
    assert!(
        done.stderr
            .contains("12 files (48.0 MiB) not yet on the PFS stay with"),
        "{done:?}"
    );
    assert_eq!(cluster.wait_ended(), 0);
    cluster.start();
    for at in 0..12 {
        pattern(4100 + at, 4 * MIB).assert_in(&cluster.mnt(format!("f{at}")));
    }
}

#[test]
fn promise_8_the_helper_of_umount_leaves_what_is_in_use() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().up();
    let open = File::create(cluster.mnt("f")).expect("create");
    let done = helper(&cluster, "mnt", &[]).expect_code(32);
    assert!(done.stderr.contains("busy"), "{done:?}");
    assert_eq!(shown(&cluster), 1, "{done:?}");
    // Out of the tree it still serves who uses it.
    helper(&cluster, "mnt", &["-l"]).ok();
    assert_eq!(shown(&cluster), 0);
    pattern(4120, MIB).write(&open);
    assert_eq!(cluster.ended(), None);
    drop(open);
    assert_eq!(cluster.wait_ended(), 0);
}

#[test]
fn promise_8_the_helper_of_umount_does_not_wait_for_what_goes_on() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().up();
    fs::create_dir(cluster.mnt("d")).expect("mkdir");
    let bound = cluster.base().join("bound");
    fs::create_dir(&bound).expect("mkdir");
    let mut bind = Command::new("mount");
    bind.arg("--bind").arg(cluster.mnt("d")).arg(&bound);
    run_bounded(&mut bind, LONG).ok();
    wait_until("nobody has it", || helper(&cluster, "bound", &[]).code == 0);
    assert_eq!(shown(&cluster), 1);
    write_file(&cluster.mnt("d/f"), pattern(4130, 1000));
    // Of a dead one there is nothing to wait for.
    cluster.kill9();
    wait_until("nobody has it", || helper(&cluster, "mnt", &[]).code == 0);
    assert_eq!(shown(&cluster), 0);
}
