//! What somebody does on the PFS between a kill and the next start.

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};

use forebay_testkit::{Cluster, listing, pattern, write_file};
use rustix::fs::{CWD, RenameFlags, XattrFlags, getxattr, renameat_with, setxattr};

/// A burst buffer that is killed when it comes by this failpoint for the first time.
fn doomed(point: &str) -> Cluster {
    let builder = Cluster::builder().lazy().ssd("64MiB");
    builder.environment("FOREBAY_FAILPOINT", point).up()
}

/// Starts it again, without the failpoint.
fn up_again(cluster: &Cluster) {
    cluster.wait_ended();
    let args = [cluster.up_args(), &["--detach".into()]].concat();
    cluster.cli(&args).ok();
}

/// The names on the PFS beside `name` that a conflict has made.
fn beside(cluster: &Cluster, name: &str) -> Vec<String> {
    let names = listing(&cluster.pfs("")).into_iter();
    let names = names.filter_map(|found| found.into_string().ok());
    let start = format!("{name}.forebay-conflict-");
    names.filter(|found| found.starts_with(&start)).collect()
}

#[test]
fn promise_1_what_is_written_on_the_pfs_between_a_kill_and_the_next_start_is_kept() {
    let cluster = doomed("ExchangePfs");
    for (seed, name) in ["f", "g"].iter().enumerate() {
        write_file(&cluster.pfs(name), pattern(seed as u64, 4000));
        let file = fs::File::options().append(true).open(cluster.mnt(name));
        file.and_then(|file| file.write_all_at(b"ours", 0))
            .expect("write");
    }
    // The PFS exchanges their older versions, and then the burst buffer is killed.
    let (f, g) = (cluster.mnt("f"), cluster.mnt("g"));
    renameat_with(CWD, &f, CWD, &g, RenameFlags::EXCHANGE).expect_err("it is dead");
    cluster.wait_ended();
    for (seed, name) in [(1, "f"), (0, "g")] {
        pattern(seed, 4000).assert_in(&cluster.pfs(name));
        let file = fs::File::options().write(true).open(cluster.pfs(name));
        let theirs = pattern(10 + seed, 5000);
        file.and_then(|file| file.write_all_at(&theirs.bytes(), 0))
            .expect("write");
    }
    up_again(&cluster);
    cluster.on_path(&["stage-out", "--wait"], "");
    for (seed, name) in [(1, "f"), (0, "g")] {
        pattern(10 + seed, 5000).assert_in(&cluster.pfs(name));
        let beside = beside(&cluster, name);
        assert_eq!(beside.len(), 1, "{:?}", listing(&cluster.pfs("")));
        let ours = [&pattern(seed, 4000).bytes()[..], b"ours"].concat();
        assert!(fs::read(cluster.pfs(&beside[0])).expect("read") == ours);
    }
    cluster.on_state(&["down", "--drain"]).ok();
}

#[test]
fn promise_1_mode_owner_and_attributes_given_on_the_pfs_after_a_kill_in_a_drain_are_the_files() {
    let cluster = doomed("DemotePlaced");
    write_file(&cluster.mnt("f"), pattern(20, 4000));
    fs::set_permissions(cluster.mnt("f"), Permissions::from_mode(0o644)).expect("chmod");
    let _ = cluster.on_path(&["stage-out", "--wait"], "");
    cluster.wait_ended();
    pattern(20, 4000).assert_in(&cluster.pfs("f"));
    fs::set_permissions(cluster.pfs("f"), Permissions::from_mode(0o600)).expect("chmod");
    let flags = XattrFlags::empty();
    setxattr(cluster.pfs("f"), "user.theirs", b"1", flags).expect("setxattr");
    up_again(&cluster);
    for drained in [false, true] {
        if drained {
            cluster.drain("");
        }
        for path in [cluster.mnt("f"), cluster.pfs("f")] {
            let mode = fs::metadata(&path).expect("stat").permissions().mode();
            assert_eq!(mode & 0o7777, 0o600, "{path:?}, drained: {drained}");
            getxattr(&path, "user.theirs", &mut [0; 8]).expect("getxattr");
            pattern(20, 4000).assert_in(&path);
        }
    }
    assert_eq!(listing(&cluster.pfs("")), ["f"]);
    cluster.on_state(&["down", "--drain"]).ok();
}
