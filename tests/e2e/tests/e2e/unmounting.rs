//! The helper of umount(8): who unmounts before a reboot goes on when memory has moved to flash.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::process::Command;

use forebay_testkit::{
    Cluster, Fleet, LONG, Output, needs_nodes, needs_root, pattern, program, run_bounded,
    wait_until, write_file,
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

#[test]
fn promise_8_the_helper_of_umount_waits_at_the_end_of_a_link() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().ssd("256MiB").up();
    for at in 0..12 {
        write_file(&cluster.mnt(format!("f{at}")), pattern(4140, 4 * MIB));
    }
    assert!(!memory_tiers(&cluster).is_empty(), "nothing is in memory");
    // As `umount -c` leaves it.
    symlink(cluster.mnt(""), cluster.base().join("link")).expect("symlink");
    wait_until("nobody has it", || helper(&cluster, "link", &[]).code == 0);
    assert_eq!(memory_tiers(&cluster), Vec::<String>::new());
    assert_eq!(cluster.wait_ended(), 0);
}

#[test]
fn promise_8_the_helper_of_umount_says_what_stays_in_memory() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().ssd("16MiB").up();
    for at in 0..12 {
        write_file(&cluster.mnt(format!("f{at}")), pattern(4150, 4 * MIB));
    }
    let mut done = helper(&cluster, "mnt", &[]);
    wait_until("nobody has it", || {
        if done.code == 32 {
            done = helper(&cluster, "mnt", &[]);
        }
        done.code != 32
    });
    assert!(!memory_tiers(&cluster).is_empty(), "all had room on flash");
    // Whoever restarts the machine after that does not.
    assert_eq!(done.code, 2, "{done:?}");
    assert!(done.stderr.contains("in memory (lost if"), "{done:?}");
    assert_eq!(cluster.wait_ended(), 0);
}

#[test]
fn promise_8_the_helper_of_umount_unmounts_in_the_namespace_that_is_named() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().up();
    let mut apart = Command::new("unshare");
    apart.args(["--mount", "--propagation=private", "sleep", "600"]);
    let mut apart = Ending(apart.spawn().expect("unshare"));
    let there = format!("/proc/{}/ns/mnt", apart.0.id());
    let here = fs::read_link("/proc/self/ns/mnt").expect("namespace");
    wait_until("it has a namespace", || {
        fs::read_link(&there).is_ok_and(|there| there != here)
    });
    let point = cluster.mnt("").display().to_string();
    let point = point.trim_end_matches('/');
    let shown_there = || {
        let table = fs::read_to_string(format!("/proc/{}/mounts", apart.0.id()));
        table
            .expect("mounts")
            .contains(&format!(" {point} fuse.forebay "))
    };
    assert!(shown_there());
    // umount(8) calls its helpers in its own namespace.
    helper(&cluster, "mnt", &["-N", &there]).ok();
    assert_eq!(shown(&cluster), 1);
    assert!(!shown_there());
    write_file(&cluster.mnt("f"), pattern(4160, 1000));
    apart.0.kill().expect("kill");
}

/// A process that goes with the test.
struct Ending(std::process::Child);

impl Drop for Ending {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// With a /run of its own: the helper of mount(8) notes there what it has mounted.
const MOUNTED_TWICE: &str = r#"
set -e
mount -t tmpfs none /run
ln -s "$1" mount.fuse.forebay
./mount.fuse.forebay bb.toml mnt
echo once > mnt/f
./mount.fuse.forebay bb.toml mnt -o rw
test "$(grep -c "$PWD/mnt fuse.forebay" /proc/self/mounts)" = 1
cat mnt/f
"$1" down --state state --drain --timeout 60s
"#;

/// As `mount -a` does each time that the machine's settings are brought up to date.
#[test]
fn promise_8_who_mounts_again_what_is_mounted_is_told_so() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().prepare();
    let settings = "pfs = 'pfs'\nstate = 'state'\ndram = '64MiB'\n";
    fs::write(cluster.base().join("bb.toml"), settings).expect("write");
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "sh", "-c", MOUNTED_TWICE, "sh"]);
    shell.arg(program()).current_dir(cluster.base());
    let done = run_bounded(&mut shell, LONG).ok();
    assert!(done.stderr.contains("mnt: already mounted\n"), "{done:?}");
    assert!(done.stdout.contains("once\n"), "{done:?}");
}

/// As the line of fstab for a cluster, and then another cluster at that place.
const CLUSTER_MOUNTED_TWICE: &str = r#"
set -e
mount -t tmpfs none /run
ln -s "$1" mount.fuse.forebay
trap 'umount -i mnt0' EXIT
./mount.fuse.forebay cluster.toml mnt0 -o _netdev,connections=8
echo once > mnt0/f
./mount.fuse.forebay cluster.toml mnt0 -o _netdev,connections=8
test "$(grep -c "$PWD/mnt0 fuse.forebay" /proc/self/mounts)" = 1
cat mnt0/f
if ./mount.fuse.forebay other.toml mnt0; then echo two; fi
"#;

#[test]
fn promise_8_who_mounts_a_cluster_again_is_told_so() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(0, "");
    fleet.write_config("other.toml", "another", "");
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "sh", "-c", CLUSTER_MOUNTED_TWICE, "sh"]);
    shell.arg(program()).current_dir(fleet.base());
    shell.env("FOREBAY_RUN", fleet.base().join("run"));
    let done = run_bounded(fleet.node(0).place(&mut shell), LONG).ok();
    let (out, err) = (&done.stdout, &done.stderr);
    assert_eq!(err.matches("mnt0: already mounted\n").count(), 1, "{err}");
    assert!(out.contains("once\n") && !out.contains("two"), "{done:?}");
    assert!(err.contains("is already a Forebay mount"), "{err}");
}
