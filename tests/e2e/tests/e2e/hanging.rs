//! A PFS that hangs: it does not fail, every call on it blocks.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::mpsc;

use forebay_testkit::{
    Cluster, LONG, listing, needs_root, pattern, run_bounded, wait_until, without_settings,
    write_file,
};

const KIB: usize = 1 << 10;

/// What `act` answers; a test must not wait for ever itself.
#[track_caller]
fn within<T: Send + 'static>(what: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || send.send(act()));
    let answer = receive.recv_timeout(LONG);
    answer.unwrap_or_else(|_| panic!("no answer within {LONG:?}: {what}"))
}

/// In front of a PFS that is about to hang: `d/dirty`, `d/clean`, and on the PFS only `only`.
fn cluster() -> Cluster {
    let cluster = Cluster::builder()
        .ssd("64MiB")
        .config("pfs_timeout = \"4s\"")
        .lazy()
        .fuse_pfs()
        .up();
    fs::create_dir(cluster.mnt("d")).expect("mkdir");
    write_file(&cluster.mnt("d/clean"), pattern(1750, 300 * KIB));
    cluster.drain("d/clean");
    write_file(&cluster.mnt("d/dirty"), pattern(1751, 300 * KIB));
    write_file(&cluster.fuse_pfs().behind("only"), pattern(1752, 10 * KIB));
    cluster
}

fn is_silent(cluster: &Cluster) -> bool {
    !cluster.status()["pfs_silent_s"].is_null()
}

#[track_caller]
fn assert_times_out<T: std::fmt::Debug + Send + 'static>(
    what: &str,
    act: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) {
    let error = within(what, act).expect_err(what);
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{what}: {error}");
}

#[test]
fn promise_11_fault_17_what_is_in_the_buffer_is_served_while_the_pfs_hangs() {
    if needs_root() {
        return;
    }
    let cluster = cluster();
    cluster.fuse_pfs().hang();
    // More than the mount has threads, before anybody can know that it hangs.
    let lost: Vec<_> = (0..8)
        .map(|at| {
            let path = cluster.mnt(format!("only-{at}"));
            std::thread::spawn(move || fs::metadata(path))
        })
        .collect();
    for (name, seed) in [("d/clean", 1750), ("d/dirty", 1751)] {
        let path = cluster.mnt(name);
        let read = within(name, move || fs::read(path)).expect(name);
        assert!(read == pattern(seed, 300 * KIB).bytes(), "{name}");
    }
    let path = cluster.mnt("d/dirty");
    within("a write", move || {
        let file = OpenOptions::new().write(true).open(path)?;
        file.write_all_at(b"written while it hung", 1000)?;
        file.sync_all()
    })
    .expect("a write");
    for thread in lost {
        let answer = within("an unknown name", move || thread.join().expect("thread"));
        assert_eq!(answer.expect_err("unknown").kind(), ErrorKind::TimedOut);
    }
    cluster.fuse_pfs().go_on();
    wait_until("it answers again", || !is_silent(&cluster));
    cluster.drain("");
    let mut expected = pattern(1751, 300 * KIB).bytes();
    expected[1000..1021].copy_from_slice(b"written while it hung");
    let drained = fs::read(cluster.fuse_pfs().behind("d/dirty")).expect("read");
    assert!(drained == expected);
    pattern(1750, 300 * KIB).assert_in(&cluster.fuse_pfs().behind("d/clean"));
    pattern(1752, 10 * KIB).assert_in(&cluster.mnt("only"));
}

#[test]
fn promise_11_fault_17_requests_that_need_a_hanging_pfs_fail_in_time_and_change_nothing() {
    if needs_root() {
        return;
    }
    let cluster = cluster();
    cluster.fuse_pfs().hang();
    wait_until("its silence is noticed", || is_silent(&cluster));
    let paths: Vec<PathBuf> = [
        "only",
        "new",
        "newdir",
        "d/clean",
        "d/dirty",
        "d/renamed",
        "",
    ]
    .map(|name| cluster.mnt(name))
    .into();
    let path = |at: usize| paths[at].clone();
    let (only, new, newdir, clean) = (path(0), path(1), path(2), path(3));
    let (dirty, renamed, root) = (path(4), path(5), path(6));
    assert_times_out("a file of the PFS", move || fs::read(only));
    assert_times_out("a new file", move || fs::write(new, "new"));
    assert_times_out("a new directory", move || fs::create_dir(newdir));
    assert_times_out("unlink of a clean file", move || fs::remove_file(clean));
    assert_times_out("rename", move || fs::rename(dirty, renamed));
    assert_times_out("readdir", move || fs::read_dir(root)?.next().transpose());
    cluster.fuse_pfs().go_on();
    wait_until("it answers again", || !is_silent(&cluster));
    assert_eq!(listing(&cluster.mnt("")), ["d", "only"]);
    assert_eq!(listing(&cluster.mnt("d")), ["clean", "dirty"]);
    pattern(1750, 300 * KIB).assert_in(&cluster.mnt("d/clean"));
    write_file(&cluster.mnt("new"), pattern(1753, KIB));
    cluster.drain("");
    assert_eq!(
        listing(&cluster.fuse_pfs().behind("")),
        ["d", "new", "only"]
    );
    pattern(1751, 300 * KIB).assert_in(&cluster.fuse_pfs().behind("d/dirty"));
}

#[test]
fn promise_11_fault_17_commands_end_while_the_pfs_hangs() {
    if needs_root() {
        return;
    }
    let mut cluster = cluster();
    cluster.fuse_pfs().hang();
    wait_until("its silence is noticed", || is_silent(&cluster));
    let page = cluster.on_state(&["status"]).ok().stdout;
    assert!(page.contains("the PFS has not answered for"), "{page}");
    assert_eq!(cluster.where_state("d/dirty"), "dirty");
    let output = cluster.on_path(&["stage-out", "--wait", "--timeout", "1s"], "d/dirty");
    assert!(matches!(output.code, 3 | 4), "{output:?}");
    let output = cluster
        .on_path(&["stage-out", "--wait"], "d/dirty")
        .expect_code(3);
    // The second where the copy was under way already.
    let reasons = ["the PFS has not answered for", "timed out"];
    assert!(
        reasons.iter().any(|reason| output.stderr.contains(reason)),
        "{output:?}"
    );
    let output = cluster.on_path(&["stage-in"], "only");
    assert_ne!(output.code, 0, "{output:?}");
    cluster.on_path(&["release"], "d/clean").ok();
    let output = cluster.on_state(&["fsck"]).expect_code(3);
    assert!(output.stdout.contains("has not answered for"), "{output:?}");
    let output = cluster
        .on_state(&["down", "--drain", "--timeout", "1s"])
        .expect_code(4);
    assert!(output.stderr.contains("d/dirty"), "{output:?}");
    let output = cluster.down(&[]);
    assert!(output.stdout.contains("not yet on the PFS"), "{output:?}");
    // Nothing starts in front of it.
    let mut up = std::process::Command::new(forebay_testkit::program());
    without_settings(&mut up).args(cluster.up_args());
    let output = run_bounded(&mut up, LONG).expect_code(1);
    assert_eq!(output.stderr.lines().count(), 1, "{output:?}");
    assert!(
        output.stderr.contains("the PFS has not answered for"),
        "{output:?}"
    );
    cluster.fuse_pfs().go_on();
    cluster.start();
    pattern(1751, 300 * KIB).assert_in(&cluster.mnt("d/dirty"));
    cluster.drain("");
    pattern(1751, 300 * KIB).assert_in(&cluster.fuse_pfs().behind("d/dirty"));
    pattern(1750, 300 * KIB).assert_in(&cluster.fuse_pfs().behind("d/clean"));
}

#[test]
fn promise_11_fault_17_a_drain_that_hung_goes_on_by_itself() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder()
        .config("pfs_timeout = \"4s\"")
        .eager()
        .fuse_pfs()
        .up();
    for round in 0..2 {
        // In the midst of drains, wherever they are.
        for at in 0..40_u64 {
            let name = format!("f{at}");
            write_file(
                &cluster.mnt(name),
                pattern(1760 + 100 * round + at, 50 * KIB),
            );
        }
        cluster.fuse_pfs().hang();
        wait_until("its silence is noticed", || is_silent(&cluster));
        for at in 0..40_u64 {
            let name = format!("f{at}");
            let path = cluster.mnt(&name);
            let read = within(&name, move || fs::read(path)).expect("read");
            assert!(read == pattern(1760 + 100 * round + at, 50 * KIB).bytes());
        }
        cluster.fuse_pfs().go_on();
        wait_until("all is drained", || cluster.dirty_bytes() == 0);
        for at in 0..40_u64 {
            let on_pfs = cluster.fuse_pfs().behind(format!("f{at}"));
            pattern(1760 + 100 * round + at, 50 * KIB).assert_in(&on_pfs);
        }
    }
    wait_until("no error is left", || {
        cluster.status()["errors"]
            .as_array()
            .is_some_and(Vec::is_empty)
    });
    assert_eq!(listing(&cluster.fuse_pfs().behind("")).len(), 40);
}
