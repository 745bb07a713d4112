//! Objects damaged at rest under a burst buffer that runs: rows 11 to 13 of the fault matrix, as programs see them.

use std::fs::{self, OpenOptions};
use std::path::Path;

use forebay_testkit::{Cluster, pattern, wait_until};

use crate::faults::{at_rest_with, damage_at_rest};

fn cut(object: &Path, size: u64) {
    let file = OpenOptions::new().write(true).open(object).expect("open");
    file.set_len(size).expect("truncate");
}

fn swap(a: &Path, b: &Path) {
    let aside = a.with_extension("aside");
    for (from, to) in [(a, &*aside), (b, a), (&*aside, b)] {
        fs::rename(from, to).expect("rename");
    }
}

/// The error number that opening a file ends with.
fn refusal(cluster: &Cluster, name: &str) -> Option<i32> {
    fs::read(cluster.mnt(name)).err()?.raw_os_error()
}

#[test]
fn promise_12_a_damaged_copy_of_a_drained_file_gives_way_to_what_the_pfs_has() {
    for passthrough in ["", "--no-passthrough"] {
        let (mut cluster, [a, b]) = at_rest_with(passthrough, ["clean-a", "clean-b"]);
        cluster.start();
        damage_at_rest(&a, b"\x55", 123_456);
        cut(&b, 100_000);
        for (name, id) in [("clean-a", 1400), ("clean-b", 1401)] {
            pattern(id, 300_000).assert_in(&cluster.mnt(name));
            assert_eq!(cluster.where_state(name), "pfs");
            let errors = cluster.status()["errors"].to_string();
            assert!(errors.contains(name), "{errors}");
        }
        assert_eq!(cluster.status()["scrub"]["found"], 2);
    }
}

#[test]
fn promise_12_damaged_data_that_only_the_buffer_has_fails_the_open_and_is_kept() {
    let (mut cluster, [a, b]) = at_rest_with("", ["dirty-a", "dirty-b"]);
    cluster.start();
    swap(&a, &b);
    for name in ["dirty-a", "dirty-b"] {
        assert_eq!(refusal(&cluster, name), Some(libc::EIO), "{name}");
        let output = cluster.on_path(&["stage-out", "--wait"], name);
        assert_eq!(output.code, 3, "{output:?}");
        assert!(!cluster.pfs(name).exists(), "{name}");
    }
    assert_eq!(cluster.status()["scrub"]["found"], 2);
    swap(&a, &b);
    pattern(1402, 300_000).assert_in(&cluster.mnt("dirty-a"));
    cluster.drain("dirty-a");
    pattern(1402, 300_000).assert_in(&cluster.pfs("dirty-a"));
    cut(&b, 100_000);
    assert_eq!(refusal(&cluster, "dirty-b"), Some(libc::EIO));
    assert_eq!(fs::metadata(&b).expect("metadata").len(), 100_000);
    assert!(!cluster.pfs("dirty-b").exists());
}

#[test]
fn promise_12_the_pass_in_the_background_finds_damage_that_nobody_opens() {
    let config = "[scrub]\npass = \"1s\"\nverify_on_open = 0";
    let (mut cluster, [a, b]) = at_rest_with(config, ["clean-a", "dirty-b"]);
    cluster.start();
    damage_at_rest(&a, b"\x55", 123_456);
    cut(&b, 100_000);
    wait_until("both are found", || cluster.status()["scrub"]["found"] == 2);
    wait_until("the copy gives way", || {
        cluster.where_state("clean-a") == "pfs"
    });
    pattern(1400, 300_000).assert_in(&cluster.mnt("clean-a"));
    assert_eq!(refusal(&cluster, "dirty-b"), Some(libc::EIO));
    let errors = cluster.status()["errors"].to_string();
    for name in ["clean-a", "dirty-b"] {
        assert!(errors.contains(name), "{errors}");
    }
}
