//! Objects damaged at rest under a burst buffer that runs: rows 11 to 13 of the fault matrix, as
//! programs see them.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forebay_testkit::{Cluster, all_files, pattern, wait_until, write_file};

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
fn promise_12_an_object_that_cannot_be_looked_at_keeps_no_other_from_being_served() {
    let (mut cluster, [a, b]) = at_rest_with("", ["clean-a", "dirty-a"]);
    for object in [&a, &b] {
        fs::rename(object, object.with_extension("aside")).expect("rename");
        // What stands for a sector that cannot be read.
        fs::create_dir(object).expect("mkdir");
    }
    cluster.start();
    let errors = cluster.status()["errors"].to_string();
    for name in ["clean-a", "dirty-a"] {
        assert!(errors.contains(name), "{errors}");
    }
    for (name, id) in [("clean-a", 1400), ("clean-b", 1401), ("dirty-b", 1403)] {
        pattern(id, 300_000).assert_in(&cluster.mnt(name));
    }
    assert!(refusal(&cluster, "dirty-a").is_some());
    assert!(!cluster.pfs("dirty-a").exists());
    fs::remove_dir(&b).expect("rmdir");
    fs::rename(b.with_extension("aside"), &b).expect("rename");
    pattern(1402, 300_000).assert_in(&cluster.mnt("dirty-a"));
    cluster.drain("dirty-a");
    pattern(1402, 300_000).assert_in(&cluster.pfs("dirty-a"));
}

/// So large that it is not read when it is opened.
const LARGE: usize = 20 << 20;

#[test]
fn promise_12_damage_in_a_large_file_is_mended_before_it_is_read() {
    let mut cluster = Cluster::builder().dram("").ssd("64MiB").lazy().up();
    let content = pattern(1410, LARGE);
    write_file(&cluster.mnt("large"), content);
    cluster.drain("large");
    let objects = all_files(&cluster.ssd()).into_iter();
    let is_it = |path: &PathBuf| fs::metadata(path).expect("stat").len() == LARGE as u64;
    let object = objects.filter(is_it).collect::<Vec<_>>();
    let [object] = &object[..] else {
        panic!("{object:?}");
    };
    cluster.restart();
    // In the last piece, and in one in between.
    for at in [5 << 20, LARGE as u64 - 3] {
        let was = content.bytes()[at as usize];
        damage_at_rest(object, &[was ^ 4], at);
    }
    let open = fs::File::open(cluster.mnt("large")).expect("open");
    let mut part = [0; 16];
    open.read_exact_at(&mut part, LARGE as u64 - 16)
        .expect("read");
    assert_eq!(part, content.bytes()[LARGE - 16..]);
    let scrub = || cluster.status()["scrub"].clone();
    assert_eq!(
        (&scrub()["found"], &scrub()["compared_at_open"]),
        (&1.into(), &0.into())
    );
    drop(open);
    content.assert_in(&cluster.mnt("large"));
    assert_eq!(scrub()["found"], 2);
    let errors = cluster.status()["errors"].to_string();
    assert!(errors.contains("written again"), "{errors}");
    assert_eq!(cluster.where_state("large"), "clean");
    content.assert_in(object);
    // Who reads it now needs no more than the kernel.
    content.assert_in(&cluster.mnt("large"));
    assert_eq!(scrub()["found"], 2);
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

#[test]
fn promise_12_a_flipped_bit_in_undrained_data_is_not_handed_out_and_not_drained() {
    let config = "[scrub]\nseal_after = \"0s\"\ncalm = \"0s\"";
    let (mut cluster, [a, b]) = at_rest_with(config, ["dirty-a", "dirty-b"]);
    cluster.start();
    wait_until("both have their checksum", || {
        ["dirty-a", "dirty-b"].map(|name| cluster.where_is(name)["crc32c"].is_string()) == [true; 2]
    });
    // Whoever looks at it next is a drain.
    damage_at_rest(&b, b"\x55", 123_456);
    let output = cluster.on_path(&["stage-out", "--wait"], "dirty-b");
    assert_eq!(output.code, 3, "{output:?}");
    assert!(!cluster.pfs("dirty-b").exists());
    // An open: in this run it would be believed that what was just read is still good.
    cluster.restart();
    let was = fs::read(&a).expect("read")[123_456];
    damage_at_rest(&a, &[was ^ 4], 123_456);
    for name in ["dirty-a", "dirty-b"] {
        assert_eq!(refusal(&cluster, name), Some(libc::EIO), "{name}");
        assert_eq!(cluster.where_state(name), "dirty");
    }
    let errors = cluster.status()["errors"].to_string();
    assert!(errors.contains("checksum mismatch"), "{errors}");
    assert_eq!(cluster.status()["scrub"]["found"], 2);
    let output = cluster.on_state(&["fsck", "--checksums", "--json"]);
    let findings = output.expect_code(5).json()["findings"].to_string();
    assert!(
        findings.contains("dirty-a") && findings.contains("dirty-b"),
        "{findings}"
    );
    damage_at_rest(&a, &[was], 123_456);
    pattern(1402, 300_000).assert_in(&cluster.mnt("dirty-a"));
    cluster.drain("dirty-a");
    pattern(1402, 300_000).assert_in(&cluster.pfs("dirty-a"));
}
