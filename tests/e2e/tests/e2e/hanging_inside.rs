//! A PFS that hangs or fails in the midst of an operation: it has done it, and does not say so.

use std::fs::{self, File, OpenOptions};
use std::io::Write;

use forebay_testkit::{
    Cluster, LONG, When, listing, needs_root, run_bounded, wait_until, without_settings,
};
use rustix::process::{Signal, kill_process};

fn cluster() -> Cluster {
    Cluster::builder()
        .dram("")
        .ssd("64MiB")
        .config("pfs_timeout = \"1s\"")
        .flag("--no-passthrough")
        .lazy()
        .fuse_pfs()
        .up()
}

fn is_given_up(cluster: &Cluster) -> bool {
    cluster.status()["pfs_silent_s"]
        .as_f64()
        .is_some_and(|silent_s| silent_s > 1.0)
}

fn conflicts(cluster: &Cluster) -> u64 {
    cluster.status()["conflicts_total"].as_u64().expect("count")
}

/// Begins to put everything on the PFS, and does not wait for it.
fn begin_drain(cluster: &Cluster) {
    cluster.on_path(&["stage-out"], "").ok();
}

fn behind(cluster: &Cluster, name: &str) -> String {
    fs::read_to_string(cluster.fuse_pfs().behind(name)).expect("on the PFS")
}

#[track_caller]
fn is_whole(cluster: &Cluster, names: &[&str], content: &str) {
    cluster.drain("");
    assert_eq!(cluster.dirty_bytes(), 0);
    assert_eq!(listing(&cluster.fuse_pfs().behind("")), names);
    for name in names {
        assert_eq!(behind(cluster, name), content, "{name}");
    }
    assert_eq!(conflicts(cluster), 0);
}

/// A log that is drained and written on, also while it is drained again; then the PFS hangs within
/// `operation` on `name`.
fn hung_within(operation: &str, when: When, name: &str) {
    let cluster = cluster();
    let pfs = cluster.fuse_pfs();
    let open = || {
        let mut how = OpenOptions::new();
        how.append(true).create(true).open(cluster.mnt("log"))
    };
    let mut content = String::new();
    let mut write = |log: &mut File, line: &str| {
        content.push_str(line);
        log.write_all(line.as_bytes()).expect("write");
    };
    write(&mut open().expect("create"), "first\n");
    cluster.drain("log");
    write(&mut open().expect("open"), "second\n");
    pfs.hold(operation, when, name);
    begin_drain(&cluster);
    pfs.wait_held(operation);
    pfs.begin_nothing();
    wait_until("the PFS is given up", || is_given_up(&cluster));
    let mut log = open().expect("open");
    for line in ["third\n", "fourth\n"] {
        write(&mut log, line);
        log.sync_all().expect("fsync");
    }
    // It answers this, and nothing else yet.
    pfs.let_go(operation);
    wait_until("the drain has failed", || {
        let status = cluster.status();
        status["errors"].as_array().is_some_and(|e| !e.is_empty())
    });
    pfs.go_on();
    wait_until("it answers again", || {
        cluster.status()["pfs_silent_s"].is_null()
    });
    drop(log);
    is_whole(&cluster, &["log"], &content);
}

#[test]
fn promise_11_fault_17_a_rename_that_the_pfs_did_before_it_was_given_up_is_no_conflict() {
    if needs_root() {
        return;
    }
    hung_within("rename", When::After, "log");
    hung_within("rename", When::Before, "log");
}

#[test]
fn fault_17_a_drain_goes_on_after_a_flush_or_a_link_that_hung() {
    if needs_root() {
        return;
    }
    hung_within("fsync", When::Before, "");
    let cluster = cluster();
    let pfs = cluster.fuse_pfs();
    fs::write(cluster.mnt("a"), "content").expect("write");
    fs::hard_link(cluster.mnt("a"), cluster.mnt("b")).expect("link");
    pfs.hold("link", When::After, "b");
    begin_drain(&cluster);
    pfs.wait_held("link");
    pfs.begin_nothing();
    wait_until("the PFS is given up", || is_given_up(&cluster));
    pfs.let_go("link");
    pfs.go_on();
    is_whole(&cluster, &["a", "b"], "content");
}

#[test]
fn promise_11_fault_17_what_the_pfs_did_and_called_an_error_is_found_done() {
    if needs_root() {
        return;
    }
    let cluster = cluster();
    let pfs = cluster.fuse_pfs();
    // A new file, then a version over it.
    for content in ["older", "newer"] {
        fs::write(cluster.mnt("a"), content).expect("write");
        pfs.fail("rename", When::After, libc::EIO, "a");
        cluster.drain("a");
        pfs.heal("rename");
        assert_eq!(behind(&cluster, "a"), content);
    }
    // A request that was sent twice: the answer is that to the second.
    pfs.fail("link", When::After, libc::EEXIST, "b");
    fs::hard_link(cluster.mnt("a"), cluster.mnt("b")).expect("link");
    fs::write(cluster.mnt("b"), "newest").expect("write");
    cluster.drain("");
    pfs.heal("link");
    is_whole(&cluster, &["a", "b"], "newest");
    pfs.fail("rename", When::After, libc::ENOENT, "c");
    fs::rename(cluster.mnt("a"), cluster.mnt("c")).expect("rename");
    pfs.heal("rename");
    let mut open = OpenOptions::new();
    let mut file = open.append(true).open(cluster.mnt("c")).expect("open");
    file.write_all(b" of all").expect("write");
    drop(file);
    is_whole(&cluster, &["b", "c"], "newest of all");
}

/// The answer to a stat after a change of names is an error: what was changed is ours all the same.
#[test]
fn fault_17_an_error_of_the_look_after_a_change_of_names_is_no_conflict() {
    if needs_root() {
        return;
    }
    let cluster = cluster();
    let pfs = cluster.fuse_pfs();
    fs::write(cluster.mnt("a"), "older").expect("write");
    cluster.drain("a");
    fs::write(cluster.mnt("a"), "newer").expect("write");
    let blind = |operation: &str| {
        pfs.wait_held(operation);
        for look in ["lookup", "getattr"] {
            pfs.fail(look, When::Before, libc::EIO, "");
        }
        pfs.let_go(operation);
    };
    let see = || {
        for look in ["lookup", "getattr"] {
            pfs.heal(look);
        }
    };
    pfs.hold("rename", When::After, "a");
    begin_drain(&cluster);
    blind("rename");
    wait_until("the drain has failed", || {
        let status = cluster.status();
        status["errors"].as_array().is_some_and(|e| !e.is_empty())
    });
    see();
    is_whole(&cluster, &["a"], "newer");
    fs::write(cluster.mnt("a"), "newest").expect("write");
    pfs.hold("rename", When::After, "b");
    std::thread::scope(|scope| {
        let renames = scope.spawn(|| fs::rename(cluster.mnt("a"), cluster.mnt("b")));
        blind("rename");
        renames.join().expect("thread").expect("rename");
    });
    see();
    is_whole(&cluster, &["b"], "newest");
}

#[test]
fn promise_8_an_error_of_the_pfs_at_a_start_undoes_no_rename() {
    if needs_root() {
        return;
    }
    let mut cluster = cluster();
    fs::write(cluster.mnt("a"), "older").expect("write");
    cluster.drain("a");
    fs::write(cluster.mnt("a"), "newer").expect("write");
    cluster.fuse_pfs().hold("rename", When::After, "b");
    std::thread::scope(|scope| {
        let (from, to) = (cluster.mnt("a"), cluster.mnt("b"));
        let renames = scope.spawn(|| fs::rename(from, to));
        cluster.fuse_pfs().wait_held("rename");
        kill_process(cluster.pid(), Signal::KILL).expect("kill");
        cluster.fuse_pfs().let_go("rename");
        cluster.kill9();
        // It was done, but the program was not told.
        renames.join().expect("thread").expect_err("rename");
    });
    for errno in [libc::EIO, libc::ETIMEDOUT] {
        cluster.fuse_pfs().fail("lookup", When::Before, errno, "b");
        let mut up = std::process::Command::new(forebay_testkit::program());
        without_settings(&mut up).args(cluster.up_args());
        let output = run_bounded(&mut up, LONG).expect_code(1);
        assert!(output.stderr.contains("rename of a to b"), "{output:?}");
        cluster.fuse_pfs().heal("lookup");
    }
    cluster.start();
    assert_eq!(listing(&cluster.mnt("")), ["b"]);
    assert_eq!(fs::read_to_string(cluster.mnt("b")).expect("read"), "newer");
    is_whole(&cluster, &["b"], "newer");
}

/// A rename over one of several links: where the PFS does not give the older one up, it is replaced
/// by the drain.
#[test]
fn fault_17_a_link_that_the_pfs_keeps_in_a_rename_is_replaced_by_the_drain() {
    if needs_root() {
        return;
    }
    let cluster = cluster();
    let pfs = cluster.fuse_pfs();
    let whens = [When::Before, When::After];
    let each = whens.map(|when| [true, false].map(|a| [true, false].map(|b| (when, a, b))));
    let each = each.into_iter().flatten().flatten().enumerate();
    for (at, (when, new_has_links, old_is_dirty)) in each {
        let name = |name: &str| format!("d{at}/{name}");
        let path = |text: &str| cluster.mnt(name(text));
        fs::create_dir(cluster.mnt(format!("d{at}"))).expect("mkdir");
        fs::write(path("b"), "older").expect("write");
        fs::hard_link(path("b"), path("b2")).expect("link");
        cluster.drain("");
        let mut older = "older".to_string();
        if old_is_dirty {
            let file = OpenOptions::new().append(true).open(path("b"));
            file.and_then(|mut f| f.write_all(b" and more"))
                .expect("append");
            older.push_str(" and more");
        }
        fs::write(path("a"), "newer").expect("write");
        if new_has_links {
            fs::hard_link(path("a"), path("a2")).expect("link");
        }
        pfs.fail("unlink", when, libc::EIO, "b");
        fs::rename(path("a"), path("b")).expect("rename");
        pfs.heal("unlink");
        // Its other name moves the ctime of what is still under this one.
        cluster.drain(name("b2"));
        cluster.drain("");
        assert_eq!(behind(&cluster, &name("b")), "newer", "{at}");
        assert_eq!(behind(&cluster, &name("b2")), older, "{at}");
        if new_has_links {
            assert_eq!(behind(&cluster, &name("a2")), "newer", "{at}");
        }
        let names = listing(&cluster.fuse_pfs().behind(format!("d{at}")));
        assert_eq!(names, listing(&cluster.mnt(format!("d{at}"))), "{at}");
    }
    assert_eq!(conflicts(&cluster), 0);
}

/// A drain gives the new version its first name, which takes one link from the older version under
/// the other name. Then it fails, and the first name goes.
#[test]
fn promise_11_fault_17_a_drain_that_stops_between_two_names_is_no_conflict_with_itself() {
    if needs_root() {
        return;
    }
    let cluster = cluster();
    let pfs = cluster.fuse_pfs();
    let gone = ["unlinked", "renamed", "replaced"];
    let each = gone.map(|gone| [When::Before, When::After].map(|when| (gone, when)));
    for (at, (gone, when)) in each.into_iter().flatten().enumerate() {
        let path = |name: &str| cluster.mnt(format!("d{at}/{name}"));
        let shown = |name: &str| behind(&cluster, &format!("d{at}/{name}"));
        fs::create_dir(path("")).expect("mkdir");
        fs::write(path("a"), "older").expect("write");
        fs::hard_link(path("a"), path("b")).expect("link");
        cluster.drain("");
        fs::write(path("a"), "newer").expect("write");
        pfs.fail("link", when, libc::EIO, "");
        // The order may be answered after the drain has failed.
        let begun = cluster.on_path(&["stage-out"], "");
        assert!([0, 3].contains(&begun.code), "{begun:?}");
        wait_until("the first name has the new version", || {
            shown("a") == "newer"
        });
        wait_until("the second name has failed", || {
            cluster.status()["drain"]["failing_files"] == 1
        });
        assert_eq!(shown("b"), "older");
        match gone {
            "unlinked" => fs::remove_file(path("a")).expect("unlink"),
            "renamed" => fs::rename(path("a"), path("c")).expect("rename"),
            _ => {
                fs::write(path("other"), "other").expect("write");
                fs::rename(path("other"), path("a")).expect("rename");
            }
        }
        pfs.heal("link");
        cluster.drain("");
        assert_eq!(shown("b"), "newer", "{gone}");
        let names = listing(&cluster.fuse_pfs().behind(format!("d{at}")));
        assert_eq!(names, listing(&path("")), "{gone}");
    }
    assert_eq!(conflicts(&cluster), 0);
}
