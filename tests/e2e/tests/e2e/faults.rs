//! Rows of the fault matrix.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_testkit::{
    Cluster, Output, Seed, all_files, listing, needs_root, pattern, wait_until, write_file,
};
use rand::Rng;
use rustix::process::{Signal, kill_process};

const MIB: usize = 1 << 20;

#[test]
fn fault_01_a_killed_program_harms_only_what_it_wrote() {
    let mut cluster = Cluster::builder().lazy().flag("--durability=memory").up();
    write_file(&cluster.mnt("other"), pattern(1200, MIB));
    let source = cluster.base().join("source");
    write_file(&source, pattern(1201, MIB));
    let line = "cat ../source > synced && sync synced && exec seq 1000000000 9999999999 > endless";
    let mut writer = Command::new("sh")
        .args(["-c", line])
        .current_dir(cluster.mnt(""))
        .spawn()
        .expect("sh");
    wait_until("the program is in the midst of writing", || {
        fs::metadata(cluster.mnt("endless")).is_ok_and(|meta| meta.len() > 1 << 20)
    });
    writer.kill().expect("kill");
    writer.wait().expect("wait");
    pattern(1201, MIB).assert_in(&cluster.mnt("synced"));
    pattern(1200, MIB).assert_in(&cluster.mnt("other"));
    // What it has written of the other is a file as any.
    let written = fs::read(cluster.mnt("endless")).expect("read");
    let counted = (1_000_000_000_u64..).flat_map(|n| format!("{n}\n").into_bytes());
    assert!(
        written.iter().copied().eq(counted.take(written.len())),
        "not what it wrote"
    );
    cluster.restart();
    cluster.drain("");
    assert!(fs::read(cluster.pfs("endless")).expect("read") == written);
    pattern(1201, MIB).assert_in(&cluster.pfs("synced"));
    pattern(1200, MIB).assert_in(&cluster.pfs("other"));
}

/// Writes files until the mount is gone; answers with those whose rename had returned, and the
/// numbers of their contents, which grow.
fn load(cluster: &Cluster, writer: u64) -> Vec<(String, u64)> {
    let mut done = Vec::new();
    for at in 0.. {
        let name = format!("w{writer}-{}", at % NAMES);
        let number = writer * 1_000_000 + at;
        let content = pattern(number, 100_000 + (at as usize % 7) * 150_000);
        let written = (|| -> std::io::Result<()> {
            let temporary = cluster.mnt(format!("{name}.tmp"));
            fs::write(&temporary, content.bytes())?;
            fs::rename(&temporary, cluster.mnt(&name))
        })();
        if written.is_err() {
            break;
        }
        done.retain(|(old, _)| *old != name);
        done.push((name, number));
    }
    done
}

#[test]
fn fault_04_kill_9_at_random_times_under_load_loses_nothing_that_was_closed() {
    let seed = Seed::new("fault_04");
    let mut rng = seed.rng();
    let mut cluster = Cluster::builder().dram("48MiB").eager().up();
    let mut versions = Vec::new();
    for round in 0..4 {
        let after_ms = rng.random_range(20..600);
        let done: Vec<_> = std::thread::scope(|scope| {
            let cluster = &cluster;
            let writers =
                [0, 1].map(|writer| scope.spawn(move || load(cluster, 10 * round + writer)));
            std::thread::sleep(Duration::from_millis(after_ms));
            cluster.kill9();
            writers
                .into_iter()
                .flat_map(|w| w.join().expect("writer"))
                .collect()
        });
        cluster.start();
        for (name, number) in &done {
            let found = version_of(&fs::read(cluster.mnt(name)).expect("read"));
            // The last rename may have happened although its answer was lost; then the next content
            // is there.
            let next = number + NAMES;
            assert!(
                found == Some(*number) || found == Some(next),
                "round {round}, {after_ms} ms: {name} is {found:?}, was {number}"
            );
        }
        versions.extend(done);
        for path in all_files(&cluster.pfs("")) {
            let temporary = path.to_string_lossy().contains("/.forebay-");
            let bytes = fs::read(&path).unwrap_or_default();
            let unfinished = path.extension().is_some_and(|e| e == "tmp") || bytes.is_empty();
            let name = path.display();
            assert!(
                temporary || unfinished || version_of(&bytes).is_some(),
                "{name} is not whole on the PFS"
            );
        }
    }
    cluster.down(&["--drain", "--timeout", "50s"]);
    for (name, number) in versions {
        let found = version_of(&fs::read(cluster.pfs(&name)).expect("read"));
        let newest = found.is_some_and(|found| found == number || found == number + NAMES);
        assert!(newest, "{name} is {found:?} on the PFS, was {number}");
    }
    cluster.start();
    let names = listing(&cluster.pfs(""));
    assert!(
        names
            .iter()
            .all(|n| !n.to_string_lossy().starts_with(".forebay")),
        "{names:?}"
    );
}

/// Names that each writer of `load` uses, in turn.
const NAMES: u64 = 12;

/// Which of the contents of `load` bytes are; `None` if they are not one as a whole.
fn version_of(bytes: &[u8]) -> Option<u64> {
    let mut lens = (0..7).map(|n| 100_000 + n * 150_000);
    let first = bytes.first_chunk::<8>()?;
    if !lens.any(|len| len == bytes.len()) {
        return None;
    }
    // The first word tells which content it is.
    let inverse = 0xf1de_83e1_9937_733d_u64;
    let id = u64::from_le_bytes(*first)
        .wrapping_mul(inverse)
        .rotate_right(40);
    (pattern(id, bytes.len()).bytes() == bytes).then_some(id)
}

#[test]
fn fault_18_kill_9_during_a_demotion_leaves_the_old_file_or_the_new_one() {
    let seed = Seed::new("fault_18");
    let mut rng = seed.rng();
    let mut cluster = Cluster::builder().lazy().up();
    let content = |round: u64| pattern(1300 + round, 16 * MIB + round as usize);
    write_file(&cluster.mnt("f"), content(0));
    cluster.drain("f");
    let mut overlapped = 0;
    for round in 1..6 {
        write_file(&cluster.mnt("f"), content(round));
        std::thread::scope(|scope| {
            let drain = scope.spawn(|| cluster.on_path(&["stage-out", "--wait"], "f"));
            wait_until("its copy has begun", || {
                is_copying(&cluster) || drain.is_finished()
            });
            std::thread::sleep(Duration::from_micros(rng.random_range(0..20_000)));
            kill_process(cluster.pid(), Signal::STOP).expect("stop");
            overlapped += u32::from(is_copying(&cluster));
            cluster.kill9();
            drain.join().expect("drain");
        });
        let old = content(round - 1).difference(&cluster.pfs("f"));
        let new = content(round).difference(&cluster.pfs("f"));
        assert!(old.is_none() || new.is_none(), "{old:?}, {new:?}");
        cluster.start();
        content(round).assert_in(&cluster.mnt("f"));
        cluster.drain("f");
        content(round).assert_in(&cluster.pfs("f"));
        assert_eq!(listing(&cluster.pfs("")), ["f"]);
    }
    assert!(overlapped > 0, "no kill met a demotion");
}

/// Whether the daemon has a copy on the PFS open: one that has no name yet.
fn is_copying(cluster: &Cluster) -> bool {
    let folder = format!("/proc/{}/fd", cluster.pid().as_raw_nonzero());
    let pfs = cluster.pfs("");
    let is_copy = |entry: std::io::Result<fs::DirEntry>| {
        let target = entry.and_then(|entry| fs::read_link(entry.path()));
        target.is_ok_and(|target| {
            target.starts_with(&pfs) && target.to_string_lossy().ends_with(" (deleted)")
        })
    };
    // It may have ended.
    fs::read_dir(folder).is_ok_and(|mut entries| entries.any(is_copy))
}

/// A burst buffer that is down, with clean and dirty files on flash; the objects of two of them.
fn at_rest(names: [&str; 2]) -> (Cluster, [PathBuf; 2]) {
    at_rest_with("", names)
}

/// The same with a flag, or a section of the configuration.
pub fn at_rest_with(extra: &str, names: [&str; 2]) -> (Cluster, [PathBuf; 2]) {
    let builder = Cluster::builder().dram("").ssd("64MiB").lazy();
    let cluster = match extra.starts_with("--") {
        true => builder.flag(extra).up(),
        false => builder.config(extra).up(),
    };
    for (at, name) in ["clean-a", "clean-b", "dirty-a", "dirty-b"]
        .iter()
        .enumerate()
    {
        write_file(&cluster.mnt(name), pattern(1400 + at as u64, 300_000));
    }
    cluster.drain("clean-a");
    cluster.drain("clean-b");
    let objects = names.map(|name| {
        let expected = fs::read(cluster.mnt(name)).expect("read");
        let is_it = |path: &PathBuf| fs::read(path).is_ok_and(|bytes| bytes == expected);
        all_files(&cluster.ssd())
            .into_iter()
            .find(is_it)
            .expect("its object")
    });
    cluster.down(&[]);
    (cluster, objects)
}

fn fsck(cluster: &Cluster) -> Output {
    cluster.on_state(&["fsck", "--checksums", "--json"])
}

#[track_caller]
fn assert_named(output: &Output, name: &str) {
    let findings = output.json()["findings"].to_string();
    assert!(findings.contains(name), "{name} is not among {findings}");
}

/// Changes an object at rest without a trace in its times.
pub fn damage_at_rest(object: &Path, bytes: &[u8], at: u64) {
    let times = fs::metadata(object).expect("metadata");
    let file = OpenOptions::new().write(true).open(object).expect("open");
    file.write_all_at(bytes, at).expect("write");
    let times = fs::FileTimes::new().set_modified(times.modified().expect("mtime"));
    file.set_times(times).expect("times");
}

#[test]
fn fault_08_a_page_of_an_object_written_by_half_is_found_and_the_pfs_copy_taken() {
    let (mut cluster, [object, _]) = at_rest(["clean-a", "clean-b"]);
    // The later seven sectors of a page have not arrived.
    damage_at_rest(&object, &[0; 7 * 512], 40 * 4096 + 512);
    assert_named(&fsck(&cluster).expect_code(5), "clean-a");
    fsck(&cluster).ok();
    cluster.start();
    pattern(1400, 300_000).assert_in(&cluster.mnt("clean-a"));
}

#[test]
fn fault_08_a_record_written_by_half_costs_nothing_that_was_synced() {
    let mut cluster = Cluster::builder().dram("").ssd("64MiB").lazy().up();
    for at in 0..20 {
        let file = File::create(cluster.mnt(format!("synced{at}"))).expect("create");
        pattern(1440 + at, 30_000).write(&file);
        file.sync_all().expect("fsync");
    }
    write_file(&cluster.mnt("last"), pattern(1460, 30_000));
    cluster.on_path(&["where"], "last").ok();
    cluster.kill9();
    let journals: Vec<PathBuf> = all_files(&cluster.state().join("kv"));
    let newest = journals
        .into_iter()
        .filter(|path| path.extension().is_some_and(|e| e == "jnl"))
        .max_by_key(|path| {
            fs::metadata(path)
                .and_then(|m| m.modified())
                .expect("mtime")
        })
        .expect("a journal");
    let bytes = fs::read(&newest).expect("read");
    let end = bytes.iter().rposition(|byte| *byte != 0).expect("records") + 1;
    let file = OpenOptions::new().write(true).open(&newest).expect("open");
    file.write_all_at(&[0; 24], end as u64 - 24).expect("write");
    cluster.start();
    for at in 0..20 {
        pattern(1440 + at, 30_000).assert_in(&cluster.mnt(format!("synced{at}")));
    }
    cluster.drain("");
    for at in 0..20 {
        pattern(1440 + at, 30_000).assert_in(&cluster.pfs(format!("synced{at}")));
    }
    cluster.down(&["--drain"]);
    fsck(&cluster).ok();
}

#[test]
fn fault_11_a_flipped_bit_at_rest_is_found_and_the_pfs_copy_taken() {
    let (mut cluster, [object, _]) = at_rest(["clean-a", "clean-b"]);
    fsck(&cluster).ok();
    damage_at_rest(&object, b"\x55", 123_456);
    assert_named(&fsck(&cluster).expect_code(5), "clean-a");
    fsck(&cluster).ok();
    cluster.start();
    pattern(1400, 300_000).assert_in(&cluster.mnt("clean-a"));
}

#[test]
fn fault_12_swapped_objects_at_rest_are_found() {
    let (cluster, [a, b]) = at_rest(["dirty-a", "dirty-b"]);
    let aside = cluster.base().join("aside");
    for (from, to) in [(&a, &aside), (&b, &a), (&aside, &b)] {
        fs::rename(from, to).expect("rename");
    }
    let output = fsck(&cluster).expect_code(3);
    assert_named(&output, "dirty-a");
    assert_named(&output, "dirty-b");
}

#[test]
fn fault_12_an_object_swapped_with_that_of_a_clean_file_is_kept() {
    let (cluster, [clean, dirty]) = at_rest(["clean-b", "dirty-b"]);
    // Shorter than what the clean file's record says: the only copy of the other file.
    let file = OpenOptions::new().write(true).open(&dirty).expect("open");
    file.set_len(100_000).expect("truncate");
    let aside = cluster.base().join("aside");
    for (from, to) in [(&clean, &aside), (&dirty, &clean), (&aside, &dirty)] {
        fs::rename(from, to).expect("rename");
    }
    let output = fsck(&cluster).expect_code(3);
    assert_named(&output, "clean-b");
    let kept = fs::read_dir(cluster.ssd().join("lost+found")).expect("lost+found");
    let lengths: Vec<u64> = kept
        .map(|entry| entry.expect("entry").metadata().expect("stat").len())
        .collect();
    assert!(lengths.contains(&100_000), "{lengths:?}");
}

#[test]
fn fault_13_truncated_objects_at_rest_are_found() {
    let (cluster, [clean, dirty]) = at_rest(["clean-b", "dirty-b"]);
    for object in [&clean, &dirty] {
        let file = OpenOptions::new().write(true).open(object).expect("open");
        file.set_len(100_000).expect("truncate");
    }
    let output = fsck(&cluster).expect_code(3);
    assert_named(&output, "clean-b");
    assert_named(&output, "dirty-b");
    pattern(1401, 300_000).assert_in(&cluster.pfs("clean-b"));
    // The only copy, although damaged, is kept.
    assert_eq!(fs::metadata(&dirty).expect("metadata").len(), 100_000);
}

#[test]
fn fault_16_a_full_pfs_loses_nothing_and_the_drain_resumes() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().eager().loop_pfs(64 << 20).up();
    let ballast = cluster.loop_fs().fill(5 << 20);
    for at in 0..8 {
        write_file(&cluster.mnt(format!("f{at}")), pattern(1500 + at, 3 * MIB));
    }
    wait_until("the PFS is full", || {
        cluster.status()["errors"].to_string().contains("ENOSPC")
    });
    for at in 0..8 {
        let name = format!("f{at}");
        pattern(1500 + at, 3 * MIB).assert_in(&cluster.mnt(&name));
        let on_pfs = cluster.pfs(&name);
        assert!(!on_pfs.exists() || pattern(1500 + at, 3 * MIB).difference(&on_pfs).is_none());
    }
    fs::remove_file(ballast).expect("remove");
    wait_until("all is drained", || cluster.dirty_bytes() == 0);
    for at in 0..8 {
        pattern(1500 + at, 3 * MIB).assert_in(&cluster.pfs(format!("f{at}")));
    }
}

#[test]
fn fault_17_a_pfs_that_dies_takes_nothing_with_it() {
    if needs_root() {
        return;
    }
    let mut cluster = Cluster::builder()
        .ssd("64MiB")
        .lazy()
        .loop_pfs(64 << 20)
        .up();
    write_file(&cluster.mnt("before"), pattern(1600, MIB));
    cluster.loop_fs().shut_down();
    let output = cluster.on_path(&["stage-out", "--wait"], "before");
    assert_ne!(output.code, 0, "{output:?}");
    assert_ne!(cluster.status()["errors"].to_string(), "[]");
    let output = cluster.on_state(&["down", "--drain", "--timeout", "1s"]);
    assert_eq!(output.code, 4, "{output:?}");
    cluster.down(&[]);
    cluster.loop_fs().unmount();
    cluster.loop_fs().mount();
    cluster.start();
    pattern(1600, MIB).assert_in(&cluster.mnt("before"));
    cluster.drain("before");
    pattern(1600, MIB).assert_in(&cluster.pfs("before"));
}

#[test]
fn fault_19_files_renamed_and_unlinked_while_they_drain_do_not_come_back() {
    let cluster = Cluster::builder().lazy().up();
    fs::create_dir(cluster.mnt("d")).expect("mkdir");
    let mut overlapped = 0;
    for round in 0..6_u64 {
        for (at, name) in ["moves", "goes", "stays"].iter().enumerate() {
            write_file(
                &cluster.mnt(name),
                pattern(1700 + 3 * round + at as u64, 6 * MIB),
            );
        }
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // What is gone or elsewhere now may be told of, but it does not wait for it.
                let args = ["stage-out", "--wait", "--timeout", "20s"];
                let output = cluster.on_path(&args, "");
                assert!(matches!(output.code, 0 | 3), "{output:?}");
                ended.store(true, Ordering::Release);
            });
            wait_until("a copy has begun", || {
                is_copying(&cluster) || ended.load(Ordering::Acquire)
            });
            std::thread::sleep(Duration::from_millis(round * 4));
            let before = is_copying(&cluster);
            fs::rename(cluster.mnt("moves"), cluster.mnt("d/moved")).expect("rename");
            fs::remove_file(cluster.mnt("goes")).expect("unlink");
            overlapped += u32::from(before && is_copying(&cluster));
        });
        assert!(ended.load(Ordering::Acquire));
        cluster.drain("");
        assert_eq!(listing(&cluster.pfs("")), ["d", "stays"]);
        assert_eq!(listing(&cluster.pfs("d")), ["moved"]);
        pattern(1700 + 3 * round, 6 * MIB).assert_in(&cluster.pfs("d/moved"));
        pattern(1702 + 3 * round, 6 * MIB).assert_in(&cluster.pfs("stays"));
    }
    assert!(overlapped > 0, "nothing was renamed during a demotion");
    drop(File::open(cluster.mnt("stays")).expect("open"));
}
