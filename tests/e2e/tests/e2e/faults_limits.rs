//! Rows of the fault matrix that take the clock of the machine, its descriptors and its memory.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_testkit::{Cluster, needs_root, pattern, wait_until, write_file};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

const LEN: usize = 300_000;
const DAY_S: i64 = 86_400;
/// Room for what a daemon needs beside what it keeps for files.
const MEMORY_LEFT: u64 = 2 << 20;
/// So many files need more than that.
const FILES_MAX: u64 = 60_000;

/// A library that changes what a program takes for the time of day.
fn fake_clock() -> PathBuf {
    let found = fs::read_dir("/usr/lib")
        .expect("libraries")
        .map(|entry| {
            entry
                .expect("entry")
                .path()
                .join("faketime/libfaketimeMT.so.1")
        })
        .find(|path| path.exists());
    found.expect("libfaketime: `scripts/setup.sh test` installs it")
}

fn now_s() -> i64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970");
    now.as_secs() as i64
}

#[test]
fn fault_27_a_clock_that_jumps_a_day_harms_nothing() {
    let clock = tempfile::NamedTempFile::new().expect("file");
    let set_clock =
        |ahead_s: i64| fs::write(clock.path(), format!("{ahead_s:+}\n")).expect("clock");
    set_clock(0);
    let mut cluster = Cluster::builder()
        .eager()
        .environment("LD_PRELOAD", fake_clock())
        .environment("FAKETIME_TIMESTAMP_FILE", clock.path())
        .environment("FAKETIME_NO_CACHE", "1")
        .environment("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .environment("NO_FAKE_STAT", "1")
        .up();
    let jumps_s = [0, DAY_S, -DAY_S, 0];
    let open = File::create(cluster.mnt("open")).expect("create");
    for (at, &ahead_s) in jumps_s.iter().enumerate() {
        set_clock(ahead_s);
        let (ours, theirs) = (format!("ours{at}"), format!("theirs{at}"));
        write_file(&cluster.mnt(&ours), pattern(2090 + at as u64, LEN));
        open.write_all_at(&[b'0' + at as u8; 4096], at as u64 * 4096)
            .expect("write");
        open.sync_all().expect("fsync");
        let mode = fs::Permissions::from_mode(0o640);
        fs::set_permissions(cluster.mnt("open"), mode).expect("chmod");
        let changed_s = fs::metadata(cluster.mnt("open")).expect("stat").ctime();
        assert!(
            (changed_s - now_s() - ahead_s).abs() < DAY_S / 2,
            "the clock did not jump"
        );
        fs::write(cluster.pfs(&theirs), "one").expect("write");
        let shows = |text: &str| fs::read_to_string(cluster.mnt(&theirs)).is_ok_and(|t| t == text);
        wait_until("a new file of the PFS shows", || shows("one"));
        fs::write(cluster.pfs(&theirs), "three").expect("write");
        wait_until("its change shows", || shows("three"));
        wait_until("ours drains by itself", || {
            pattern(2090 + at as u64, LEN)
                .difference(&cluster.pfs(&ours))
                .is_none()
        });
    }
    drop(open);
    let status = cluster.status();
    assert_eq!(
        status["conflicts"].as_array().map(Vec::len),
        Some(0),
        "{status}"
    );
    cluster.down(&["--drain"]);
    cluster.on_state(&["fsck", "--checksums"]).ok();
    set_clock(-DAY_S);
    cluster.start();
    for at in 0..jumps_s.len() {
        pattern(2090 + at as u64, LEN).assert_in(&cluster.mnt(format!("ours{at}")));
    }
    let expected: Vec<u8> = (b'0'..b'4').flat_map(|digit| [digit; 4096]).collect();
    assert!(fs::read(cluster.pfs("open")).expect("read") == expected);
}

/// Sets a limit of another process; returns the one before.
fn limit(pid: Pid, resource: Resource, most: u64) -> Rlimit {
    let new = Rlimit {
        current: Some(most),
        maximum: getrlimit(resource).maximum,
    };
    prlimit(Some(pid), resource, new).expect("prlimit")
}

#[test]
fn fault_29_memory_that_runs_out_harms_nothing_that_was_closed() {
    if needs_root() {
        return;
    }
    let mut cluster = Cluster::builder().dram("512MiB").lazy().up();
    write_file(&cluster.mnt("before"), pattern(2110, LEN));
    let pid = cluster.pid();
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()));
    let status = status.expect("status");
    let heap = status.lines().find_map(|line| line.strip_prefix("VmData:"));
    let heap = heap.expect("VmData").trim().trim_end_matches(" kB");
    let in_use = heap.parse::<u64>().expect("kB") * 1024;
    let old = limit(pid, Resource::Data, in_use + MEMORY_LEFT);
    let content = |at: u64| format!("{at:>64}");
    let failed = (0..FILES_MAX).find(|&at| {
        let dir = cluster.mnt(format!("d{}", at / 1000));
        let made = match at % 1000 {
            0 => fs::create_dir(&dir),
            _ => Ok(()),
        };
        made.and_then(|()| fs::write(dir.join(format!("f{at}")), content(at)))
            .is_err()
    });
    let closed = failed.expect("memory has run out");
    if fs::metadata(cluster.mnt("before")).is_ok() {
        prlimit(Some(pid), Resource::Data, old).expect("prlimit");
    } else {
        // It has said so and ended: as safe as any other sudden end.
        assert_ne!(cluster.wait_ended(), 0);
        cluster.restart();
    }
    write_file(&cluster.mnt("after"), pattern(2111, LEN));
    cluster.drain("");
    pattern(2110, LEN).assert_in(&cluster.pfs("before"));
    pattern(2111, LEN).assert_in(&cluster.pfs("after"));
    for at in 0..closed {
        let name = format!("d{}/f{at}", at / 1000);
        let found =
            fs::read_to_string(cluster.pfs(&name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(found, content(at), "{name}");
    }
    cluster.down(&["--drain"]);
    cluster.on_state(&["fsck"]).ok();
}

#[test]
fn fault_29_descriptors_that_run_out_are_a_clean_error() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().up();
    write_file(&cluster.mnt("before"), pattern(2080, LEN));
    let pid = cluster.pid();
    let in_use = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero()))
        .expect("descriptors")
        .count() as u64;
    let old = limit(pid, Resource::Nofile, in_use + 8);
    let mut open = Vec::new();
    let mut failure = None;
    for at in 0..64 {
        match File::create(cluster.mnt(format!("f{at}"))) {
            Ok(file) => open.push((at, file)),
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    let failure = failure.expect("descriptors have run out");
    let code = failure.raw_os_error();
    assert!(
        matches!(code, Some(libc::EMFILE | libc::ENFILE | libc::EIO)),
        "{failure}"
    );
    for (at, file) in &open {
        file.write_all_at(&pattern(2081 + at, LEN).bytes(), 0)
            .expect("write");
    }
    let files: Vec<u64> = open.iter().map(|(at, _)| *at).collect();
    drop(open);
    prlimit(Some(pid), Resource::Nofile, old).expect("prlimit");
    write_file(&cluster.mnt("after"), pattern(2079, LEN));
    cluster.drain("");
    pattern(2080, LEN).assert_in(&cluster.pfs("before"));
    pattern(2079, LEN).assert_in(&cluster.pfs("after"));
    for at in files {
        pattern(2081 + at, LEN).assert_in(&cluster.pfs(format!("f{at}")));
    }
    assert!(!cluster.pfs("f63").exists());
}
