//! Versions that are published as a whole.

use std::fs;

use forebay_testkit::{
    Cluster, all_files, listing, needs_root, pattern, settle_for_revalidation, wait_until,
    write_file,
};

/// Bytes of a MiB.
const MIB: usize = 1 << 20;

fn rules(mode: &str) -> String {
    let rule = rule(mode);
    format!("[demotion]\nidle_after = \"50ms\"\nretry_after = \"100ms\"\n{rule}")
}

fn rule(mode: &str) -> String {
    format!("[[rule]]\npath = \"/run/ckpt-{{version}}\"\ngroup = \"{mode}\"\n")
}

fn write_version(cluster: &Cluster, version: u64) {
    let dir = cluster.mnt(format!("run/ckpt-{version}"));
    fs::create_dir(&dir).expect("mkdir");
    fs::create_dir(dir.join("deep")).expect("mkdir");
    for rank in 0..4u64 {
        write_file(
            &dir.join(format!("rank-{rank}")),
            pattern(10 * version + rank, MIB),
        );
    }
    write_file(&dir.join("deep/index"), pattern(10 * version + 4, 1000));
    std::os::unix::fs::symlink("rank-0", dir.join("latest")).expect("symlink");
}

fn assert_version(root: &std::path::Path, version: u64) {
    let dir = root.join(format!("run/ckpt-{version}"));
    assert_eq!(
        listing(&dir),
        ["deep", "latest", "rank-0", "rank-1", "rank-2", "rank-3"]
    );
    for rank in 0..4u64 {
        pattern(10 * version + rank, MIB).assert_in(&dir.join(format!("rank-{rank}")));
    }
    pattern(10 * version + 4, 1000).assert_in(&dir.join("deep/index"));
}

fn with_run(mode: &str) -> Cluster {
    let cluster = Cluster::builder()
        .ssd("64MiB")
        .dram("")
        .config(&rules(mode))
        .up();
    fs::create_dir(cluster.mnt("run")).expect("mkdir");
    cluster
}

/// All its files are durable on the PFS, and it shows none of them.
fn wait_drained_unseen(cluster: &Cluster, version: u64) {
    wait_until("the version is drained", || {
        let status = cluster.status();
        let versions = status["unpublished"].as_array().expect("a list");
        versions
            .iter()
            .any(|v| v["files"] == 5 && v["undrained_files"] == 0)
    });
    assert!(!cluster.pfs(format!("run/ckpt-{version}")).exists());
}

#[test]
fn promise_6_a_version_appears_on_the_pfs_as_a_whole_when_it_is_committed() {
    let cluster = with_run("commit");
    write_version(&cluster, 1);
    assert_version(&cluster.mnt(""), 1);
    wait_drained_unseen(&cluster, 1);
    assert_eq!(listing(&cluster.mnt("run")), ["ckpt-1"]);
    let status = cluster.status();
    assert_eq!(status["unpublished"][0]["committed"], false, "{status}");
    let found = cluster
        .on_path(&["where", "--json"], "run/ckpt-1")
        .ok()
        .json();
    assert_eq!(found[0]["unpublished"], true, "{found}");
    let output = cluster
        .on_path(&["commit", "--wait", "--json"], "run/ckpt-1")
        .ok();
    assert_eq!(output.json()["outcome"], "finished");
    assert_version(&cluster.pfs(""), 1);
    assert_eq!(
        cluster.status()["unpublished"].as_array().map(Vec::len),
        Some(0)
    );
    settle_for_revalidation();
    assert_version(&cluster.mnt(""), 1);
    // What is committed already needs nothing; what is no version is refused.
    cluster.on_path(&["commit", "--wait"], "run/ckpt-1").ok();
    cluster.on_path(&["commit", "--wait"], "run").expect_code(1);
}

#[test]
fn promise_6_a_version_is_committed_by_an_attribute_too() {
    let cluster = with_run("commit");
    write_version(&cluster, 2);
    let dir = cluster.mnt("run/ckpt-2");
    rustix::fs::setxattr(
        &dir,
        "user.forebay.commit",
        b"1",
        rustix::fs::XattrFlags::empty(),
    )
    .expect("setxattr");
    wait_until("it is published", || cluster.pfs("run/ckpt-2").exists());
    assert_version(&cluster.pfs(""), 2);
}

#[test]
fn promise_6_a_complete_version_is_published_by_itself() {
    let cluster = with_run("complete");
    write_version(&cluster, 3);
    write_version(&cluster, 4);
    wait_until("it is published", || cluster.pfs("run/ckpt-3").exists());
    assert_version(&cluster.pfs(""), 3);
}

#[test]
fn promise_6_a_version_is_published_or_not_across_crashes() {
    let mut cluster = with_run("commit");
    for version in 5..10 {
        write_version(&cluster, version);
        let name = format!("run/ckpt-{version}");
        cluster.on_path(&["commit"], &name).ok();
        // At another moment of its way each time.
        if version % 2 == 0 {
            wait_until("something is drained", || {
                !all_files(&cluster.pfs("run")).is_empty()
            });
        }
        cluster.kill9();
        if cluster.pfs(&name).exists() {
            assert_version(&cluster.pfs(""), version);
        }
        cluster.start();
        assert_version(&cluster.mnt(""), version);
        wait_until("it is published", || cluster.pfs(&name).exists());
        assert_version(&cluster.pfs(""), version);
    }
}

#[test]
fn promise_6_a_version_that_is_not_committed_stays_unseen_and_is_said() {
    let mut cluster = with_run("commit");
    write_version(&cluster, 11);
    let output = cluster.on_state(&["down", "--drain"]).expect_code(3);
    assert_eq!(cluster.wait_ended(), 0);
    assert!(output.stderr.contains("ckpt-11"), "{output:?}");
    assert!(!cluster.pfs("run/ckpt-11").exists());
    assert!(
        all_files(&cluster.pfs("run")).len() >= 5,
        "all of it is there, unseen"
    );
    cluster.start();
    assert_version(&cluster.mnt(""), 11);
    cluster.on_path(&["commit", "--wait"], "run/ckpt-11").ok();
    assert_version(&cluster.pfs(""), 11);
}

#[test]
fn promise_6_a_version_can_be_renamed_and_removed_before_it_is_committed() {
    let cluster = with_run("commit");
    write_version(&cluster, 12);
    fs::rename(cluster.mnt("run/ckpt-12"), cluster.mnt("run/ckpt-13")).expect("rename");
    assert_eq!(listing(&cluster.mnt("run")), ["ckpt-13"]);
    cluster.on_path(&["commit", "--wait"], "run/ckpt-13").ok();
    assert_eq!(listing(&cluster.pfs("run")), ["ckpt-13"]);
    fs::create_dir(cluster.mnt("run/ckpt-14")).expect("mkdir");
    write_file(&cluster.mnt("run/ckpt-14/f"), pattern(1, 100));
    let refused = fs::remove_dir(cluster.mnt("run/ckpt-14")).expect_err("not empty");
    assert_eq!(refused.raw_os_error(), Some(libc::ENOTEMPTY));
    fs::remove_dir_all(cluster.mnt("run/ckpt-14")).expect("remove");
    assert!(!cluster.mnt("run/ckpt-14").exists());
    cluster.drain("");
    assert_eq!(
        cluster.status()["unpublished"].as_array().map(Vec::len),
        Some(0)
    );
    assert_eq!(
        fs::read_dir(cluster.pfs("run")).expect("read_dir").count(),
        1
    );
}

#[test]
fn promise_6_a_taken_name_makes_a_version_a_conflict() {
    let cluster = with_run("commit");
    write_version(&cluster, 15);
    fs::create_dir(cluster.pfs("run/ckpt-15")).expect("outsider");
    write_file(&cluster.pfs("run/ckpt-15/theirs"), pattern(2, 100));
    cluster.on_path(&["commit", "--wait"], "run/ckpt-15").ok();
    pattern(2, 100).assert_in(&cluster.pfs("run/ckpt-15/theirs"));
    let conflict = cluster.status()["conflicts"][0]["kept_as"].clone();
    let name = conflict
        .as_str()
        .expect("a path")
        .rsplit('/')
        .next()
        .expect("a name")
        .to_string();
    pattern(150, MIB).assert_in(&cluster.pfs(format!("run/{name}/rank-0")));
}

#[test]
fn promise_6_a_pfs_that_is_full_half_way_shows_nothing_of_a_version() {
    if needs_root() {
        return;
    }
    let builder = Cluster::builder()
        .ssd("64MiB")
        .dram("")
        .config(&rules("commit"));
    let cluster = builder.loop_pfs(64 << 20).up();
    fs::create_dir(cluster.mnt("run")).expect("mkdir");
    let ballast = cluster.loop_fs().fill(3 << 20);
    write_version(&cluster, 16);
    let output = cluster
        .on_path(&["commit", "--wait"], "run/ckpt-16")
        .expect_code(3);
    assert!(output.stderr.contains("ckpt-16"), "{output:?}");
    assert!(!cluster.pfs("run/ckpt-16").exists());
    fs::remove_file(ballast).expect("remove");
    wait_until("it is published", || cluster.pfs("run/ckpt-16").exists());
    assert_version(&cluster.pfs(""), 16);
}

fn unpublished(cluster: &Cluster) -> usize {
    let status = cluster.status();
    status["unpublished"].as_array().expect("a list").len()
}

#[test]
fn promise_6_a_version_that_is_interrupted_waits_for_an_order() {
    let mut cluster = with_run("complete");
    write_version(&cluster, 17);
    cluster.restart();
    // The next one begins, which would have made it complete.
    write_version(&cluster, 18);
    write_version(&cluster, 19);
    wait_until("the next is published", || {
        cluster.pfs("run/ckpt-18").exists()
    });
    assert!(!cluster.pfs("run/ckpt-17").exists());
    let status = cluster.status();
    let versions = status["unpublished"].as_array().expect("a list");
    let interrupted = versions.iter().find(|v| v["interrupted"] == true);
    let path = interrupted.expect("one")["path"].to_string();
    assert!(path.contains("ckpt-17"), "{status}");
    cluster.on_path(&["commit", "--wait"], "run/ckpt-17").ok();
    assert_version(&cluster.pfs(""), 17);
}

#[test]
fn promise_6_a_loss_of_power_publishes_a_version_whole_or_not_at_all() {
    if needs_root() {
        return;
    }
    let builder = Cluster::builder().lazy().ssd("64MiB");
    let mut cluster = builder.config(&rule("commit")).loop_pfs(64 << 20).up();
    fs::create_dir(cluster.mnt("run")).expect("mkdir");
    write_version(&cluster, 20);
    // Where a file before it is still being closed, the next may go to flash.
    let files = ["rank-0", "rank-1", "rank-2", "rank-3", "deep/index"];
    // What is closed is on record a moment later.
    settle_for_revalidation();
    let in_memory = files.map(|file| format!("run/ckpt-20/{file}"));
    let in_memory = in_memory
        .iter()
        .filter(|file| cluster.where_is(file)["tiers"][0] == "dram");
    let in_memory = in_memory.count();
    assert!(in_memory > 0);
    cluster.kill9();
    cluster.lose_memory();
    cluster.start();
    let status = cluster.status();
    assert_eq!(
        status["unpublished"][0]["lost_files"], in_memory,
        "{status}"
    );
    let output = cluster.on_path(&["commit"], "run/ckpt-20").expect_code(1);
    assert!(output.stderr.contains("lost"), "{output:?}");
    for rank in 0..4u64 {
        let path = cluster.mnt(format!("run/ckpt-20/rank-{rank}"));
        write_file(&path, pattern(200 + rank, MIB));
    }
    cluster.on_path(&["commit"], "run/ckpt-20").expect_code(1);
    write_file(&cluster.mnt("run/ckpt-20/deep/index"), pattern(204, 1000));
    // What is ordered survives, whether the PFS has it yet or not.
    let ballast = cluster.loop_fs().fill(3 << 20);
    // It may hear of the full PFS before it returns.
    let output = cluster.on_path(&["commit"], "run/ckpt-20");
    assert!(matches!(output.code, 0 | 3), "{output:?}");
    cluster.kill9();
    cluster.lose_memory();
    assert!(!cluster.pfs("run/ckpt-20").exists());
    fs::remove_file(ballast).expect("remove");
    cluster.start();
    wait_until("it is published", || cluster.pfs("run/ckpt-20").exists());
    assert_version(&cluster.pfs(""), 20);
    // Its name is there before it is on stable storage.
    wait_until("it is on record", || unpublished(&cluster) == 0);
}

#[test]
fn promise_6_changes_on_the_pfs_reach_a_version_before_it_is_published() {
    let cluster = with_run("commit");
    write_version(&cluster, 21);
    wait_drained_unseen(&cluster, 21);
    let hidden = fs::read_dir(cluster.pfs("run")).expect("read_dir");
    let hidden = hidden.last().expect("one").expect("entry").path();
    // Somebody finds it, changes a file, removes one, and one that is newer here.
    write_file(&hidden.join("rank-0"), pattern(9210, 300));
    fs::remove_file(hidden.join("rank-1")).expect("unlink");
    write_file(&hidden.join("rank-2"), pattern(9212, 300));
    let open = fs::File::options()
        .write(true)
        .truncate(true)
        .open(cluster.mnt("run/ckpt-21/rank-2"))
        .expect("open");
    // It may hear of the open file before it returns.
    let output = cluster.on_path(&["commit"], "run/ckpt-21");
    assert!(matches!(output.code, 0 | 3), "{output:?}");
    pattern(212, MIB).write(&open);
    assert!(!cluster.pfs("run/ckpt-21").exists(), "it is being written");
    drop(open);
    cluster.on_path(&["commit", "--wait"], "run/ckpt-21").ok();
    pattern(9210, 300).assert_in(&cluster.pfs("run/ckpt-21/rank-0"));
    let shown = cluster.mnt("run/ckpt-21/rank-0");
    wait_until("the change shows", || {
        pattern(9210, 300).difference(&shown).is_none()
    });
    assert!(!cluster.pfs("run/ckpt-21/rank-1").exists());
    pattern(213, MIB).assert_in(&cluster.pfs("run/ckpt-21/rank-3"));
    // A version that somebody takes away, or gives a name, is no version any more; what is here is
    // kept.
    for version in [22, 23] {
        fs::create_dir(cluster.mnt(format!("run/ckpt-{version}"))).expect("mkdir");
        let hidden = fs::read_dir(cluster.pfs("run")).expect("read_dir");
        let hidden = hidden
            .map(|entry| entry.expect("entry").path())
            .find(|path| path.extension().is_some_and(|e| e == "version"))
            .expect("one");
        let inside = cluster.mnt(format!("run/ckpt-{version}/f"));
        write_file(&inside, pattern(version, 1000));
        cluster.drain("run");
        match version {
            22 => fs::rename(&hidden, cluster.pfs("run/found")).expect("rename"),
            _ => fs::remove_dir_all(&hidden).expect("remove"),
        }
        settle_for_revalidation();
        cluster
            .on_path(&["commit", "--wait"], format!("run/ckpt-{version}"))
            .expect_code(1);
        assert!(!cluster.pfs(format!("run/ckpt-{version}")).exists());
    }
    pattern(22, 1000).assert_in(&cluster.mnt("run/found/f"));
    assert_eq!(unpublished(&cluster), 0);
}
