//! What the kernel writes by itself: stores through mappings, mappings that outlive descriptors,
//! descriptors that outlive the daemon.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use forebay_testkit::{Builder, Cluster, LONG, When, needs_root, pattern, run_bounded, write_file};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Files of a burst buffer on memory, and on flash alone: large enough to lend each open file what
/// it may grow by.
fn on_memory_and_flash() -> [Builder; 2] {
    let flash = Cluster::builder().dram("").ssd("256MiB");
    [Cluster::builder().dram("256MiB").lazy(), flash.lazy()]
}

/// Makes `NAME-1` to `NAME-3` of so many bytes: the size of the last was known, so the kernel
/// writes it by itself.
fn known_series(cluster: &Cluster, name: &str, bytes: usize) -> PathBuf {
    let path = |run: u64| cluster.mnt(format!("{name}-{run}"));
    for run in 1..=3 {
        write_file(&path(run), pattern(run, bytes));
    }
    assert_passed_through(cluster, &path(2));
    path(3)
}

/// The kernel writes this file by itself.
#[track_caller]
fn assert_passed_through(cluster: &Cluster, path: &Path) {
    let file = open(path);
    assert!(cluster.is_passed_through(&file), "{}", path.display());
}

fn open(path: &Path) -> File {
    let opened = File::options().read(true).write(true).open(path);
    opened.expect("open")
}

/// A shared, writable mapping; its descriptor is closed.
struct Mapping {
    at: *mut u8,
    len: usize,
}

impl Mapping {
    fn of(file: File, len: usize) -> Mapping {
        // SAFETY: a new mapping, of a file that is that long.
        let at = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap(
                std::ptr::null_mut(),
                len,
                protection,
                MapFlags::SHARED,
                &file,
                0,
            )
        };
        let at = at.expect("mmap").cast();
        Mapping { at, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping lives as long as `self`, and nobody else in this process has it.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made in `of`, and nobody uses it any more.
        unsafe { munmap(self.at.cast(), self.len) }.expect("munmap");
    }
}

/// What `programs/mapped.py` has written where the sizes were known: one file of each program.
const WRITTEN: [&str; 5] = [
    "raw-2.bin",
    "array-2.npy",
    "tables-2.h5",
    "keys-2.lmdb",
    "rows-2.sqlite",
];

/// Runs `programs/mapped.py`.
fn mapped(what: &str, folder: &Path) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = here.join("../../.cache/venv-test/bin/python");
    assert!(
        python.exists(),
        "`scripts/setup.sh test` installs what it needs"
    );
    let mut command = Command::new(python);
    command
        .arg(here.join("programs/mapped.py"))
        .arg(what)
        .arg(folder);
    run_bounded(&mut command, LONG).ok();
}

#[test]
fn promise_2_what_programs_store_through_mappings_is_drained() {
    // What is fsynced to the PFS before its close is clean then, and tells nothing of its series.
    let [memory, flash] = on_memory_and_flash();
    let memory = memory.flag("--durability").flag("memory");
    let ways = [memory, flash].map(|b| (b, true));
    let plain = on_memory_and_flash().map(|b| (b.flag("--no-passthrough"), false));
    for (builder, passthrough) in ways.into_iter().chain(plain) {
        let cluster = builder.up();
        mapped("make", &cluster.mnt(""));
        if passthrough && !needs_root() {
            for name in WRITTEN {
                assert_passed_through(&cluster, &cluster.mnt(name));
            }
        }
        cluster.drain("");
        mapped("change", &cluster.mnt(""));
        cluster.drain("");
        mapped("check", &cluster.pfs(""));
        cluster.on_path(&["release"], "").ok();
        mapped("check", &cluster.mnt(""));
    }
}

#[test]
fn promise_2_a_mapping_that_outlives_its_descriptor_is_drained_when_it_ends() {
    if needs_root() {
        return;
    }
    const LEN: usize = 1 << 20;
    for builder in on_memory_and_flash() {
        let cluster = builder.up();
        let clean = known_series(&cluster, "map", LEN);
        cluster.drain("");
        let mut of_clean = Mapping::of(open(&clean), LEN);
        assert_eq!(of_clean.bytes()[70_000], pattern(3, LEN).bytes()[70_000]);
        let new = cluster.mnt("map-4");
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&new);
        let file = file.expect("create");
        file.set_len(LEN as u64).expect("ftruncate");
        let mut of_new = Mapping::of(file, LEN);
        // Whatever is done to them, they stay here and are not called drained.
        for name in ["map-3", "map-4"] {
            cluster.on_path(&["release"], name).expect_code(3);
            cluster.on_path(&["stage-out"], name);
        }
        write_file(&cluster.mnt("beacon"), pattern(9, 1000));
        cluster.drain("beacon");
        for name in ["map-3", "map-4"] {
            assert_eq!(cluster.where_state(name), "dirty", "{name}");
        }
        assert!(!cluster.pfs("map-4").exists());
        of_clean.bytes()[70_000] ^= 1;
        let mut expected = pattern(3, LEN).bytes();
        expected[70_000] ^= 1;
        of_new.bytes().copy_from_slice(&pattern(4, LEN).bytes());
        assert!(std::fs::read(&clean).expect("read") == expected);
        drop((of_clean, of_new));
        cluster.drain("");
        assert!(std::fs::read(cluster.pfs("map-3")).expect("read") == expected);
        pattern(4, LEN).assert_in(&cluster.pfs("map-4"));
        // What was mapped and not changed is clean again.
        let mut untouched = Mapping::of(open(&cluster.mnt("map-2")), LEN);
        assert_eq!(untouched.bytes()[1], pattern(2, LEN).bytes()[1]);
        drop(untouched);
        cluster.wait_state("map-2", "clean");
    }
}

#[test]
fn promise_3_what_is_stored_through_a_mapping_after_an_fsync_is_drained_too() {
    if needs_root() {
        return;
    }
    const LEN: usize = 300_000;
    let both = || Cluster::builder().ssd("128MiB");
    for builder in [
        both(),
        both().flag("--durability=memory"),
        Cluster::builder(),
    ] {
        let cluster = builder.lazy().up();
        let path = known_series(&cluster, "map", LEN);
        cluster.drain("");
        let file = open(&path);
        let mut mapping = Mapping::of(file.try_clone().expect("dup"), LEN);
        let mut expected = pattern(3, LEN).bytes();
        for at in [100, 100_000] {
            assert_eq!(mapping.bytes()[at], expected[at]);
            mapping.bytes()[at] ^= 0xff;
            expected[at] ^= 0xff;
            file.sync_all().expect("fsync");
        }
        mapping.bytes()[200_000] ^= 0xff;
        expected[200_000] ^= 0xff;
        drop((mapping, file));
        cluster.drain("");
        cluster.on_path(&["release"], "").ok();
        assert!(std::fs::read(cluster.pfs("map-3")).expect("read") == expected);
        assert!(std::fs::read(&path).expect("read") == expected);
    }
}

#[test]
fn promise_6_a_file_that_is_made_without_being_written_is_drained() {
    let cluster = Cluster::builder().lazy().up();
    for run in 1..=2 {
        write_file(&cluster.mnt(format!("lock-{run}")), pattern(run, 10));
    }
    let path = cluster.mnt("lock-3");
    let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::EXCL;
    drop(rustix::fs::open(path, flags, Mode::from_raw_mode(0o644)).expect("create"));
    cluster.drain("");
    assert_eq!(
        std::fs::metadata(cluster.pfs("lock-3"))
            .expect("drained")
            .len(),
        0
    );
    assert_eq!(cluster.where_state("lock-3"), "clean");
}

/// Writes lines until `count`; those that were written without an error.
fn write_lines(file: &mut File, from: usize, count: usize) -> usize {
    let lines = from..from + count;
    lines
        .take_while(|n| writeln!(file, "line {n:06}").is_ok())
        .count()
}

#[test]
fn promise_8_a_descriptor_that_outlives_the_daemon_writes_or_fails() {
    if needs_root() {
        return;
    }
    const LINE: usize = 12;
    for (builder, kill) in on_memory_and_flash()
        .into_iter()
        .chain(on_memory_and_flash())
        .zip([true, true, false, false])
    {
        let mut cluster = builder.up();
        known_series(&cluster, "log", 600 * LINE);
        let mut append = File::options();
        let mut append = append
            .append(true)
            .open(cluster.mnt("log-3"))
            .expect("open");
        let in_place = open(&cluster.mnt("log-2"));
        let before = pattern(3, 600 * LINE).bytes();
        let mut lines = write_lines(&mut append, 0, 100);
        in_place.write_all_at(&[1; 100], 0).expect("write");
        assert_eq!(lines, 100);
        match kill {
            true => cluster.kill9(),
            false => drop(cluster.down(&[])),
        }
        cluster.start();
        lines += write_lines(&mut append, 100, 100);
        let in_place_done = in_place.write_all_at(&[2; 50], 50).is_ok();
        assert!(lines > 100 && in_place_done, "they write");
        // Read through the new mount.
        let expected: String = (0..lines).map(|n| format!("line {n:06}\n")).collect();
        let expected = [&before[..], expected.as_bytes()].concat();
        assert!(std::fs::read(cluster.mnt("log-3")).expect("read") == expected);
        assert_eq!(cluster.where_state("log-3"), "dirty");
        // As long as they are written, nobody says that all is on the PFS.
        cluster
            .on_state(&["down", "--drain", "--timeout", "500ms"])
            .expect_code(4);
        lines += write_lines(&mut append, lines, 100);
        drop((append, in_place));
        let said = cluster.down(&["--drain"]);
        assert!(said.stdout.contains("all data is on the PFS"), "{said:?}");
        let expected: String = (0..lines).map(|n| format!("line {n:06}\n")).collect();
        let expected = [&before[..], expected.as_bytes()].concat();
        assert!(std::fs::read(cluster.pfs("log-3")).expect("read") == expected);
        let mut expected = pattern(2, 600 * LINE).bytes();
        expected[..50].fill(1);
        expected[50..100].fill(2);
        assert!(std::fs::read(cluster.pfs("log-2")).expect("read") == expected);
    }
}

/// Ways to a file that is on the PFS, open for writing, and served by requests.
const BY_REQUESTS: [&str; 4] = ["PFS only", "clean", "set-id", "several names"];

/// A cluster with a file `f` of that kind.
fn by_requests(kind: &str, len: usize) -> Cluster {
    let builder = Cluster::builder().dram("").ssd("64MiB").lazy();
    let cluster = match kind {
        "clean" => builder.flag("--no-passthrough").up(),
        _ => builder.up(),
    };
    if matches!(kind, "clean" | "set-id") {
        for (run, name) in [(8, "g"), (9, "f")] {
            write_file(&cluster.mnt(name), pattern(run, len));
        }
        if kind == "set-id" {
            let mode = std::fs::Permissions::from_mode(0o4755);
            std::fs::set_permissions(cluster.mnt("f"), mode).expect("chmod");
        }
        cluster.drain("");
    } else {
        write_file(&cluster.pfs("f"), pattern(9, len));
        if kind == "several names" {
            std::fs::hard_link(cluster.pfs("f"), cluster.pfs("other")).expect("link");
        }
    }
    cluster
}

#[test]
fn promise_2_what_only_the_kernel_knows_to_be_stored_is_not_called_drained() {
    const LEN: usize = 300_000;
    for kind in BY_REQUESTS {
        let cluster = by_requests(kind, LEN);
        let mut mapping = Mapping::of(open(&cluster.mnt("f")), LEN);
        let mut expected = pattern(9, LEN).bytes();
        let mut store = |mapping: &mut Mapping, at: usize| {
            mapping.bytes()[at] ^= 0xff;
            expected[at] ^= 0xff;
            expected.clone()
        };
        let now = store(&mut mapping, 100);
        if kind == "several names" {
            // It is changed where it is, by whichever name it goes.
            cluster.on_path(&["stage-out", "--wait"], "other").ok();
            assert!(std::fs::read(cluster.pfs("other")).expect("read") == now);
        } else {
            let said = cluster.on_path(&["stage-out", "--wait"], "");
            let said = said.expect_code(3);
            let is_named = said.stderr.contains("/f: open for writing");
            assert!(is_named, "{kind}: {said:?}");
        }
        store(&mut mapping, 200_000);
        let said = cluster.on_state(&["down", "--drain", "--timeout", "500ms"]);
        let said = said.expect_code(4);
        let is_named = said.stderr.contains("1 file open") && said.stderr.contains("left: ");
        assert!(is_named, "{kind}: {said:?}");
        let now = store(&mut mapping, 250_000);
        drop(mapping);
        let said = cluster.down(&["--drain"]);
        assert!(said.stdout.contains("all data is on the PFS"), "{said:?}");
        assert!(
            std::fs::read(cluster.pfs("f")).expect("read") == now,
            "{kind}"
        );
    }
}

/// What an outsider does on the PFS to the name `d/f`, and the name that is left.
type Renaming = (
    &'static str,
    &'static str,
    fn(&Cluster) -> std::io::Result<()>,
);

#[test]
fn promise_2_what_was_stored_is_taken_in_by_the_name_that_an_outsider_has_given_the_file() {
    const LEN: usize = 150_000;
    let ways: [Renaming; 3] = [
        ("rename", "e/g", |c| {
            std::fs::rename(c.pfs("d/f"), c.pfs("e/g"))
        }),
        ("rename of the directory", "dd/f", |c| {
            std::fs::rename(c.pfs("d"), c.pfs("dd"))
        }),
        ("link and unlink", "e/g", |c| {
            std::fs::hard_link(c.pfs("d/f"), c.pfs("e/g"))?;
            std::fs::remove_file(c.pfs("d/f"))
        }),
    ];
    for (way, name, rename) in ways {
        // The kernel has looked up the new name before, or it has not.
        for path in ["", name] {
            let cluster = Cluster::builder().dram("").ssd("64MiB").lazy().up();
            for dir in ["d", "e"] {
                std::fs::create_dir(cluster.pfs(dir)).expect("mkdir");
            }
            write_file(&cluster.pfs("d/f"), pattern(9, LEN));
            let mut mapping = Mapping::of(open(&cluster.mnt("d/f")), LEN);
            mapping.bytes()[100_000] ^= 0xff;
            let mut expected = pattern(9, LEN).bytes();
            expected[100_000] ^= 0xff;
            rename(&cluster).expect("rename");
            let said = cluster.on_path(&["stage-out", "--wait"], path);
            if said.code == 0 {
                let found = std::fs::read(cluster.pfs(name)).expect("read");
                assert!(found == expected, "{way}, {path:?}: {said:?}");
            } else {
                let said = said.expect_code(3);
                let is_named = said.stderr.contains(&format!("/{name}: open for writing"));
                assert!(is_named, "{way}, {path:?}: {said:?}");
            }
            drop(mapping);
            cluster.down(&["--drain"]);
            let found = std::fs::read(cluster.pfs(name)).expect("read");
            assert!(found == expected, "{way}, {path:?}: after the end");
        }
    }
}

#[test]
fn promise_7_a_store_through_a_mapping_that_cannot_be_written_is_told_to_everybody_who_asks() {
    const LEN: usize = 300_000;
    if needs_root() {
        return;
    }
    for stays_mapped in [true, false] {
        let cluster = Cluster::builder().lazy().fuse_pfs().up();
        write_file(&cluster.pfs("f"), pattern(9, LEN));
        std::fs::hard_link(cluster.pfs("f"), cluster.pfs("other")).expect("link");
        let mut mapping = Mapping::of(open(&cluster.mnt("f")), LEN);
        mapping.bytes()[100] ^= 0xff;
        let pfs = cluster.fuse_pfs();
        pfs.fail("write", When::Before, libc::ENOSPC, "");
        let mapping = stays_mapped.then_some(mapping);
        for path in ["f", "", "other"] {
            let said = cluster.on_path(&["stage-out", "--wait"], path);
            let said = said.expect_code(3);
            let is_told = said.stderr.contains("was stored into through a mapping");
            assert!(is_told, "{stays_mapped}, {path:?}: {said:?}");
            if path.is_empty() {
                // No later write brings back what was stored.
                pfs.heal("write");
            }
        }
        let errors = cluster.status()["errors"].to_string();
        let is_told = errors.contains("was stored into through a mapping");
        assert!(is_told, "{stays_mapped}: {errors}");
        drop(mapping);
        if stays_mapped {
            // What is written anew needs nothing of what was there.
            write_file(&cluster.mnt("f"), pattern(10, LEN));
            cluster.on_path(&["stage-out", "--wait"], "").ok();
            cluster.down(&["--drain"]);
            pattern(10, LEN).assert_in(&cluster.pfs("other"));
        } else {
            let said = cluster.on_state(&["down", "--drain"]);
            let said = said.expect_code(3);
            assert!(said.stderr.contains("/f"), "{said:?}");
        }
    }
}

#[test]
fn promise_8_down_with_drain_waits_for_who_may_store_into_what_is_on_the_pfs() {
    for kind in BY_REQUESTS {
        let cluster = by_requests(kind, 5000);
        let file = open(&cluster.mnt("f"));
        // Nothing has been stored: there is nothing to do now.
        cluster.on_path(&["stage-out", "--wait"], "").ok();
        let said = cluster.on_state(&["down", "--drain", "--timeout", "300ms"]);
        let said = said.expect_code(4);
        let named = cluster.mnt("f").display().to_string();
        assert!(said.stderr.contains(&format!("left: {named}")), "{said:?}");
        let reader = File::open(cluster.mnt("f")).expect("open");
        drop(file);
        let said = cluster.down(&["--drain"]);
        assert!(said.stdout.contains("all data is on the PFS"), "{said:?}");
        drop(reader);
        pattern(9, 5000).assert_in(&cluster.pfs("f"));
    }
}

/// Stores a byte through a mapping whose descriptor is closed, says so, and stores another when it
/// is told to.
const STORES_ON: &str = "import mmap, os, sys
f = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(f, 0)
os.close(f)
m[0] = 1
print('stored', flush=True)
sys.stdin.readline()
m[1] = 2
print('stored', flush=True)
os._exit(0)";

#[test]
fn promise_8_down_takes_in_what_was_stored_and_nothing_is_stored_for_nobody_after_it() {
    for kind in BY_REQUESTS {
        let mut cluster = by_requests(kind, 5000);
        let program = Command::new("python3")
            .args(["-c", STORES_ON])
            .arg(cluster.mnt("f"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut program = program.expect("python3");
        let mut said = BufReader::new(program.stdout.take().expect("stdout")).lines();
        said.next().expect("a line").expect("stored");
        let left = cluster.down(&[]);
        let is_here = kind != "several names";
        let says_all = left.stdout.contains("all data is on the PFS");
        assert_eq!(!says_all, is_here, "{kind}: {left:?}");
        let mut stdin = program.stdin.take().expect("stdin");
        writeln!(stdin, "go on").expect("write");
        // Whoever stores where nobody takes it in is told so.
        let ended = program.wait().expect("wait");
        assert_eq!(ended.signal(), Some(libc::SIGBUS), "{kind}");
        cluster.start();
        cluster.drain("");
        let mut expected = pattern(9, 5000).bytes();
        expected[0] = 1;
        assert!(std::fs::read(cluster.pfs("f")).expect("read") == expected);
        assert!(std::fs::read(cluster.mnt("f")).expect("read") == expected);
    }
}
