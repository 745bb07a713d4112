//! Promise 7: errors reach a person, and no data is lost for them.

use std::fs::{self, File, OpenOptions};
use std::io::Write;

use forebay_testkit::{
    Cluster, When, all_files, listing, needs_root, pattern, wait_until, write_file,
};
use serde_json::json;

const MIB: usize = 1 << 20;

/// A PFS that cannot take the file `f`, which is written; then what is told of that.
fn assert_told(cluster: &Cluster, errno: &str, message: &str) {
    let content = pattern(900, 8 * MIB);
    write_file(&cluster.mnt("f"), content);
    let before = listing(&cluster.pfs(""));
    let output = cluster.on_path(&["stage-out", "--wait", "--json"], "f");
    assert_eq!(output.code, 3, "{output:?}");
    assert!(output.stderr.contains("/f: "), "{output:?}");
    assert_eq!(output.json()["failures"][0]["errno"], errno);
    let error = cluster.status()["errors"][0].clone();
    assert_eq!(error["errno"], errno, "{error}");
    assert_eq!(error["path"], cluster.mnt("f").to_str().expect("UTF-8"));
    let page = cluster.on_state(&["status"]).ok().stdout;
    assert!(page.contains("/f: ") && page.contains(message), "{page}");
    let told = cluster.where_is("f")["error"].to_string();
    assert!(told.contains(message), "{told}");
    assert_ne!(cluster.where_state("f"), "clean");
    content.assert_in(&cluster.mnt("f"));
    wait_until("no temporary file stays", || {
        listing(&cluster.pfs("")) == before
    });
}

/// The PFS takes files again: by itself all is well after a while.
fn assert_recovers(cluster: &Cluster) {
    cluster.wait_state("f", "clean");
    pattern(900, 8 * MIB).assert_in(&cluster.pfs("f"));
    assert_eq!(cluster.status()["errors"].to_string(), "[]");
    assert_eq!(cluster.where_is("f")["error"], serde_json::Value::Null);
}

#[test]
fn promise_7_a_full_pfs_keeps_the_data_in_the_buffer_and_is_tried_again() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().eager().loop_pfs(64 << 20).up();
    let ballast = cluster.loop_fs().fill(2 << 20);
    assert_told(&cluster, "ENOSPC", "No space left on device");
    std::fs::remove_file(ballast).expect("remove");
    assert_recovers(&cluster);
}

#[test]
fn promise_7_a_pfs_turned_read_only_keeps_the_data_in_the_buffer_and_is_tried_again() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().eager().loop_pfs(64 << 20).up();
    cluster.loop_fs().read_only(true);
    assert_told(&cluster, "EROFS", "Read-only file system");
    cluster.loop_fs().read_only(false);
    assert_recovers(&cluster);
}

#[test]
fn promise_7_a_failed_demotion_fails_the_next_fsync_of_the_file() {
    if needs_root() {
        return;
    }
    let builder = Cluster::builder().lazy().flag("--durability=memory");
    let cluster = builder.loop_pfs(64 << 20).up();
    let ballast = cluster.loop_fs().fill(1 << 20);
    write_file(&cluster.mnt("f"), pattern(910, 8 * MIB));
    cluster
        .on_path(&["stage-out", "--wait"], "f")
        .expect_code(3);
    let mut options = OpenOptions::new();
    let mut file = options.append(true).open(cluster.mnt("f")).expect("open");
    file.write_all(b"more").expect("write");
    let error = file.sync_all().expect_err("the demotion has failed");
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    file.sync_all().expect("it is told once");
    drop(file);
    std::fs::remove_file(ballast).expect("remove");
    cluster.drain("f");
}

#[test]
fn promise_7_a_file_that_is_removed_while_its_drain_fails_leaves_no_error() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().fuse_pfs().lazy().up();
    let pfs = cluster.fuse_pfs();
    pfs.fail("write", When::Before, libc::EFBIG, "");
    pfs.hold("write", When::Before, "");
    write_file(&cluster.mnt("f"), pattern(910, 1000));
    std::thread::scope(|scope| {
        let drains = scope.spawn(|| cluster.on_path(&["stage-out", "--wait"], "f"));
        pfs.wait_held("write");
        fs::remove_file(cluster.mnt("f")).expect("remove");
        let objects = cluster.state().join("dram/objects");
        wait_until("its object is gone", || {
            let left = all_files(&objects);
            left.is_empty()
        });
        pfs.let_go("write");
        drains.join().expect("stage-out");
    });
    wait_until("no temporary file stays", || {
        listing(&pfs.behind("")).is_empty()
    });
    let status = cluster.status();
    assert_eq!(
        (&status["errors"], &status["errors_total"]),
        (&json!([]), &0.into())
    );
}

#[test]
fn promise_7_an_fsync_that_means_the_pfs_fails_when_that_is_full() {
    if needs_root() {
        return;
    }
    let builder = Cluster::builder().lazy().flag("--durability=pfs");
    let cluster = builder.loop_pfs(64 << 20).up();
    let ballast = cluster.loop_fs().fill(1 << 20);
    let file = File::create(cluster.mnt("f")).expect("create");
    pattern(920, 8 * MIB).write(&file);
    let error = file.sync_all().expect_err("no room on the PFS");
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    std::fs::remove_file(ballast).expect("remove");
    file.sync_all().expect("there is room again");
    pattern(920, 8 * MIB).assert_in(&cluster.pfs("f"));
}
