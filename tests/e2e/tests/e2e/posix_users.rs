//! Promise 2, users: permissions, owners, mounting without privilege.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use forebay_testkit::{
    Cluster, LONG, Output, needs_file, needs_root, pattern, program, program_for_everybody,
    run_bounded, wait_until, write_file,
};

/// The user `nobody`, by number.
const NOBODY: u32 = 65534;

/// Runs a shell line in a folder as another user.
fn as_nobody(folder: &Path, line: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir(folder);
    run_bounded(command.uid(NOBODY).gid(NOBODY), LONG)
}

#[test]
fn promise_2_files_drain_to_a_pfs_that_gives_them_another_owner() {
    if needs_root() {
        return;
    }
    const CHOSEN: u32 = 1234;
    let cluster = Cluster::builder().squashing_pfs(CHOSEN).lazy().up();
    fs::set_permissions(
        cluster.fuse_pfs().behind(""),
        PermissionsExt::from_mode(0o1777),
    )
    .expect("chmod");
    wait_until("the mode is seen", || {
        cluster.mnt("").metadata().expect("metadata").mode() & 0o7777 == 0o1777
    });
    fs::write(cluster.mnt("roots"), "root").expect("write");
    as_nobody(
        &cluster.mnt(""),
        "umask 022; echo mine > nobodys; chmod u+s nobodys; echo next > other",
    )
    .ok();
    cluster.drain("");
    for (name, content) in [
        ("nobodys", "mine\n"),
        ("other", "next\n"),
        ("roots", "root"),
    ] {
        let there = cluster.fuse_pfs().behind(name);
        assert_eq!(fs::read_to_string(&there).expect(name), content);
        let meta = there.metadata().expect("metadata");
        assert_eq!(
            (meta.uid(), meta.mode() & 0o7777),
            (CHOSEN, 0o644),
            "{name}"
        );
    }
    // That is no error, and no change by an outsider: the copy stays.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(cluster.where_state("nobodys"), "clean");
    assert_eq!(
        fs::read_to_string(cluster.mnt("nobodys")).expect("read"),
        "mine\n"
    );
    let status = cluster.status();
    assert_eq!(
        (&status["errors_total"], &status["conflicts_total"]),
        (&0.into(), &0.into()),
        "{status}"
    );
    // It is rewritten, too.
    as_nobody(&cluster.mnt(""), "echo more >> nobodys").ok();
    cluster.drain("");
    assert_eq!(
        fs::read_to_string(cluster.fuse_pfs().behind("nobodys")).expect("read"),
        "mine\nmore\n"
    );
}

#[test]
fn promise_2_other_users_get_what_the_modes_say_and_own_what_they_make() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().up();
    let mnt = cluster.mnt("");
    fs::create_dir(cluster.mnt("open")).expect("mkdir");
    fs::set_permissions(cluster.mnt("open"), PermissionsExt::from_mode(0o1777)).expect("chmod");
    write_file(&cluster.mnt("secret"), pattern(400, 10));
    fs::set_permissions(cluster.mnt("secret"), PermissionsExt::from_mode(0o600)).expect("chmod");
    write_file(&cluster.pfs("pfs-secret"), pattern(401, 10));
    fs::set_permissions(cluster.pfs("pfs-secret"), PermissionsExt::from_mode(0o600))
        .expect("chmod");
    for refused in [
        "cat secret",
        "cat pfs-secret",
        "echo x > made-in-root",
        "echo x >> secret",
        "rm -f secret pfs-secret",
        "chmod 777 secret",
        "mv secret open/",
    ] {
        assert_ne!(as_nobody(&mnt, refused).code, 0, "{refused}");
    }
    as_nobody(
        &mnt,
        "umask 027; echo mine > open/mine; mkdir open/dir; echo deep > open/dir/deep",
    )
    .ok();
    as_nobody(&mnt, "test $(cat open/mine) = mine && chmod 640 open/mine").ok();
    let foreign = as_nobody(&mnt, "chown 0 open/mine");
    assert_ne!(foreign.code, 0);
    cluster.drain("");
    for name in ["open/mine", "open/dir/deep", "open/dir"] {
        let meta = cluster.pfs(name).metadata().expect("metadata");
        assert_eq!((meta.uid(), meta.gid()), (NOBODY, NOBODY), "{name}");
    }
    let mode = |name: &str| cluster.pfs(name).metadata().expect("metadata").mode() & 0o7777;
    assert_eq!(
        (mode("open/mine"), mode("open/dir/deep"), mode("open/dir")),
        (0o640, 0o640, 0o750)
    );
    assert_eq!(
        fs::read_to_string(cluster.pfs("open/mine")).expect("text"),
        "mine\n"
    );
}

#[test]
fn promise_2_a_file_given_away_is_its_new_owners() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().up();
    write_file(&cluster.mnt("f"), pattern(410, 1000));
    fs::set_permissions(cluster.mnt("f"), PermissionsExt::from_mode(0o600)).expect("chmod");
    chown(cluster.mnt("f"), Some(NOBODY), Some(NOBODY)).expect("chown");
    as_nobody(&cluster.mnt(""), "cat f > /dev/null && echo more >> f").ok();
    cluster.drain("f");
    let meta = cluster.pfs("f").metadata().expect("metadata");
    assert_eq!((meta.uid(), meta.mode() & 0o7777), (NOBODY, 0o600));
    let expected = [pattern(410, 1000).bytes(), b"more\n".to_vec()].concat();
    assert_eq!(fs::read(cluster.pfs("f")).expect("read"), expected);
}

/// As an ordinary user, where /dev/fuse is open to all: the whole life of a burst buffer.
/// The mount table has the state folder's name, by which commands find it: as it is.
const ORDINARY: &str = r#"
set -e
cd "$BASE"
./forebay up --pfs pfs --mount mnt --state 'user/st\x2d,ate' --ssd user/ssd:64MiB --detach
grep -q " $BASE/mnt .* fuse.forebay " /proc/self/mountinfo
head -c 3000000 /dev/urandom > mnt/f
cp mnt/f user/copy
./forebay stage-out --wait mnt/f
cmp pfs/f user/copy
echo again >> mnt/f
echo again >> user/copy
./forebay down --state 'user/st\x2d,ate' --drain --timeout 60s
cmp pfs/f user/copy
! grep -q " $BASE/mnt " /proc/self/mountinfo
"#;

#[test]
fn promise_2_an_ordinary_user_mounts_without_privilege() {
    if needs_root() || needs_file("/dev/fuse") {
        return;
    }
    let cluster = Cluster::builder().dram("").prepare();
    let base = cluster.base();
    program_for_everybody(base);
    for name in ["user", "user/ssd"] {
        fs::create_dir(base.join(name)).expect("mkdir");
    }
    for name in ["user", "user/ssd", "pfs", "mnt"] {
        chown(base.join(name), Some(NOBODY), Some(NOBODY)).expect("chown");
    }
    fs::write(base.join("script"), ORDINARY).expect("script");
    // In a mount namespace of its own, with a /dev/fuse that is open to all, as it is on most
    // machines.
    let line = "mknod -m 666 fuse c 10 229 && mount --bind fuse /dev/fuse && \
                exec setpriv --reuid 65534 --regid 65534 --clear-groups sh script";
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-c", line])
        .current_dir(base)
        .env("BASE", base);
    run_bounded(&mut command, LONG).ok();
    assert_eq!(cluster.mounts(), Vec::<String>::new());
}

/// As the first processes of a container: their session is of a process outside it.
const CONTAINED: &str = r#"
set -e
cd "$BASE"
"$@" &
up=$!
while ! grep -q " $BASE/mnt .* fuse.forebay " /proc/self/mountinfo; do kill -0 $up; sleep 0.05; done
echo contained > mnt/f
: > ready
while [ -e ready ]; do kill -0 $up; sleep 0.05; done
"$1" down --state state --drain --timeout 60s
wait $up
grep -q contained pfs/f
"#;

#[test]
fn promise_2_a_container_has_its_burst_buffer_which_answers_processes_outside_it() {
    if needs_root() || needs_file("/dev/fuse") {
        return;
    }
    let cluster = Cluster::builder().lazy().prepare();
    let base = cluster.base();
    let mut command = Command::new("unshare");
    command
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["sh", "-c", CONTAINED, "sh"])
        .arg(program())
        .args(cluster.up_args())
        .env("BASE", base);
    let contained = std::thread::spawn(move || run_bounded(&mut command, LONG));
    wait_until("the container has written", || {
        base.join("ready").exists() || contained.is_finished()
    });
    // To the server, the process that asks has no pid.
    let asked = cluster.on_state(&["status", "--json"]);
    let ended = fs::remove_file(base.join("ready"));
    contained.join().expect("container").ok();
    ended.expect("the container has written");
    assert_ne!(asked.json()["dirty_bytes"], 0);
}
