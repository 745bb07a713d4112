//! `forebay bench`: what it measures, that it compares what it reads, and that it leaves nothing.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use forebay_testkit::{
    Cluster, FusePfs, LONG, LoopFs, Output, When, bare_command, needs_file, needs_root,
    run_bounded, wait_until,
};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Measuring takes its time on a busy machine.
const PATIENCE: Duration = Duration::from_secs(4 * LONG.as_secs());

/// As little as can be measured.
const SMALL: [&str; 12] = [
    "--processes",
    "2",
    "--size",
    "256KiB",
    "--transfer",
    "64KiB",
    "--files",
    "5",
    "--pause",
    "0s",
    "--repeats",
    "2",
];

/// These arguments, and of [`SMALL`] what they do not say otherwise.
fn arguments<'a>(given: &[&'a str]) -> Vec<&'a str> {
    let pairs = SMALL.chunks_exact(2);
    let others = pairs.filter(|pair| !given.contains(&pair[0]));
    others
        .flatten()
        .copied()
        .chain(given.iter().copied())
        .collect()
}

fn bench(args: &[&str], dirs: &[&Path]) -> Output {
    let mut command = bare_command();
    command.arg("bench").args(arguments(args)).args(dirs);
    run_bounded(&mut command, PATIENCE)
}

#[track_caller]
fn row<'a>(value: &'a Value, directory: usize, name: &str) -> &'a Value {
    let rows = value["directories"][directory]["results"]
        .as_array()
        .expect("a list");
    let found = rows.iter().find(|row| row["name"] == name);
    found.unwrap_or_else(|| panic!("{name}: {value:#}"))
}

#[track_caller]
fn assert_empty(dir: &Path) {
    let left: Vec<_> = fs::read_dir(dir).expect("read_dir").collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A file system in memory, unmounted on drop.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn new(base: &Path, options: &str) -> Tmpfs {
        let point = base.join("memory");
        fs::create_dir(&point).expect("mkdir");
        let options = CString::new(options).expect("options");
        mount(
            "bench",
            &point,
            "tmpfs",
            MountFlags::empty(),
            options.as_c_str(),
        )
        .expect("mount");
        Tmpfs(point)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn bench_measures_all_patterns_and_leaves_nothing() {
    let dir = tempfile::tempdir().expect("folder");
    let output = bench(&["--json"], &[dir.path()]).ok();
    let value = output.json();
    for (name, unit, samples) in [
        ("n-n write", "bytes_per_s", 2),
        ("n-n read", "bytes_per_s", 2),
        ("n-1 segmented write", "bytes_per_s", 2),
        ("n-1 segmented read", "bytes_per_s", 2),
        ("n-1 strided write", "bytes_per_s", 2),
        ("n-1 strided read", "bytes_per_s", 2),
        ("create", "ops_per_s", 2),
        ("stat", "ops_per_s", 2),
        ("rename", "ops_per_s", 2),
        ("unlink", "ops_per_s", 2),
        ("checkpoint wait", "s", 6),
        ("checkpoint write", "bytes_per_s", 6),
        ("restart read", "bytes_per_s", 2),
        ("restart wait", "s", 2),
    ] {
        let row = row(&value, 0, name);
        assert_eq!(row["unit"], unit, "{row}");
        let all = row["samples"].as_array().expect("a list");
        assert_eq!(all.len(), samples, "{row}");
        let number = |key: &str| row[key].as_f64().expect("a number");
        let (least, middle, most) = (number("min"), number("median"), number("max"));
        assert!(0.0 < least && least <= middle && middle <= most, "{row}");
    }
    assert_eq!(value["settings"]["repeats"], 2);
    assert_eq!(value["first_is_faster_by"], serde_json::json!({}));
    assert_empty(dir.path());
}

#[test]
fn bench_of_a_mount_and_its_pfs_prints_both_and_the_ratio() {
    let cluster = Cluster::builder().lazy().up();
    let (mnt, pfs) = (cluster.mnt(""), cluster.pfs(""));
    let output = bench(&["--only", "n-n,checkpoint"], &[&mnt, &pfs]).ok();
    let lines: Vec<&str> = output.stdout.lines().collect();
    assert!(
        lines[0].contains("(fuse.forebay)") && lines[0].ends_with("first is faster by"),
        "{output:?}"
    );
    let row = lines
        .iter()
        .find(|line| line.starts_with("n-n write"))
        .expect("a row");
    assert_eq!(row.matches("/s (").count(), 2, "{row}");
    let ratio = row.split_ascii_whitespace().last().expect("a ratio");
    assert!(ratio.parse::<f64>().is_ok_and(|ratio| ratio > 0.0), "{row}");
    assert!(
        output
            .stdout
            .contains("everything that was read was compared"),
        "{output:?}"
    );
    assert!(!output.stdout.contains("n-1 strided"), "{output:?}");
    let value = bench(&["--only", "metadata", "--json"], &[&mnt, &pfs])
        .ok()
        .json();
    let medians = [0, 1].map(|at| {
        self::row(&value, at, "create")["median"]
            .as_f64()
            .expect("number")
    });
    let ratio = value["first_is_faster_by"]["create"]
        .as_f64()
        .expect("a ratio");
    assert!((ratio - medians[0] / medians[1]).abs() < 1e-6, "{value:#}");
    assert_empty(&mnt);
    wait_until("the PFS has nothing of it either", || {
        fs::read_dir(&pfs).expect("read_dir").count() == 0
    });
}

#[test]
fn bench_says_how_much_of_a_read_came_from_memory() {
    if needs_root() || needs_file("/dev/loop-control") {
        return;
    }
    let base = tempfile::tempdir().expect("folder");
    let point = base.path().join("disk");
    fs::create_dir(&point).expect("mkdir");
    let disk = LoopFs::new(base.path(), &point, 128 << 20);
    let memory = Tmpfs::new(base.path(), "size=128m");
    let value = bench(&["--only", "n-n", "--json"], &[&point, &memory.0])
        .ok()
        .json();
    let inside = |at| {
        row(&value, at, "n-n read")["pages_in_memory"]
            .as_f64()
            .expect("known")
    };
    // Fsynced pages of a disk can be forgotten, those of a tmpfs are all there is.
    assert_eq!((inside(0), inside(1)), (0.0, 1.0), "{value:#}");
    assert_eq!(row(&value, 0, "n-n write")["pages_in_memory"], Value::Null);
    let page = bench(&["--only", "n-n"], &[&memory.0]).ok().stdout;
    let line = page
        .lines()
        .find(|line| line.starts_with("n-n read"))
        .expect("a row");
    assert!(line.ends_with("100 %"), "{line}");
    drop(disk);
}

/// A benchmark that pauses after its first checkpoint.
struct Paused {
    dir: tempfile::TempDir,
    child: Child,
}

impl Paused {
    fn new() -> Paused {
        let dir = tempfile::tempdir().expect("folder");
        let child = bare_command()
            .arg("bench")
            .args(arguments(&["--only", "checkpoint", "--pause", "1h"]))
            .arg(dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let paused = Paused { dir, child };
        wait_until("the first checkpoint is whole", || {
            let files = paused.scratch().map(|path| path.join("ckpt-000000/rank-1"));
            files.is_some_and(|file| file.metadata().is_ok_and(|meta| meta.len() == 256 << 10))
        });
        paused
    }

    fn scratch(&self) -> Option<PathBuf> {
        let mut entries = fs::read_dir(self.dir.path()).expect("read_dir");
        entries.next().map(|entry| entry.expect("entry").path())
    }

    /// Processes that it has started, which live.
    fn ranks(&self) -> Vec<i32> {
        let parent = format!("PPid:\t{}\n", self.child.id());
        let all = fs::read_dir("/proc").expect("proc").filter_map(|entry| {
            let entry = entry.expect("entry");
            let id = entry.file_name().to_str()?.parse().ok()?;
            let status = fs::read_to_string(entry.path().join("status")).ok()?;
            status.contains(&parent).then_some(id)
        });
        all.collect()
    }
}

#[test]
fn bench_works_with_processes_and_removes_all_when_it_is_interrupted() {
    let mut paused = Paused::new();
    let ranks = paused.ranks();
    assert_eq!(ranks.len(), 2);
    kill_process(Pid::from_child(&paused.child), Signal::INT).expect("signal");
    let mut code = None;
    wait_until("the end of the benchmark", || {
        code = paused.child.try_wait().expect("child");
        code.is_some()
    });
    assert_eq!(code.and_then(|code| code.code()), Some(130));
    let mut said = String::new();
    let mut stderr = paused.child.stderr.take().expect("a pipe");
    std::io::Read::read_to_string(&mut stderr, &mut said).expect("read");
    assert_eq!(said, "forebay: bench: interrupted; its files are removed\n");
    assert_empty(paused.dir.path());
    for id in ranks {
        assert!(
            !Path::new(&format!("/proc/{id}")).exists(),
            "process {id} lives on"
        );
    }
}

#[test]
fn bench_keeps_the_newest_two_checkpoints() {
    let dir = tempfile::tempdir().expect("folder");
    let mut child = bare_command()
        .arg("bench")
        .args(arguments(&[
            "--only",
            "checkpoint",
            "--checkpoints",
            "4",
            "--pause",
            "1s",
            "--repeats",
            "1",
        ]))
        .arg(dir.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("it runs");
    let mut seen = Vec::new();
    let mut code = None;
    wait_until("the end of the benchmark", || {
        let scratch = fs::read_dir(dir.path()).expect("read_dir").next();
        let entries = scratch.and_then(|entry| fs::read_dir(entry.ok()?.path()).ok());
        let count = entries.map_or(0, |entries| entries.filter(Result::is_ok).count());
        seen.push(count);
        code = child.try_wait().expect("child");
        code.is_some()
    });
    assert_eq!(code.and_then(|code| code.code()), Some(0));
    // The third is there beside them for the moment in which it is written.
    assert!(
        seen.contains(&2) && seen.iter().all(|count| *count <= 3),
        "{seen:?}"
    );
    assert_empty(dir.path());
}

#[test]
fn bench_begins_nothing_where_there_is_no_room() {
    if needs_root() {
        return;
    }
    let base = tempfile::tempdir().expect("folder");
    let memory = Tmpfs::new(base.path(), "size=65m");
    let output = bench(&["--size", "1MiB"], &[&memory.0]).expect_code(1);
    assert_eq!(output.stderr.lines().count(), 1, "{output:?}");
    assert!(
        output
            .stderr
            .contains("are free, and the benchmark takes 6.0 MiB"),
        "{output:?}"
    );
    assert_empty(&memory.0);
}

#[test]
fn bench_an_error_of_the_file_system_ends_it_and_leaves_nothing() {
    if needs_root() || needs_file("/dev/fuse") {
        return;
    }
    let base = tempfile::tempdir().expect("folder");
    let point = base.path().join("pfs");
    fs::create_dir(&point).expect("mkdir");
    let pfs = FusePfs::new(base.path(), &point);
    pfs.fail("fsync", When::Before, libc::EDQUOT, "");
    let output = bench(&["--only", "n-n"], &[&point]).expect_code(1);
    assert!(output.stderr.contains("fsync of files/rank-"), "{output:?}");
    assert!(output.stderr.contains("Disk quota exceeded"), "{output:?}");
    assert_eq!(output.stdout, "");
    assert_empty(&pfs.behind(""));
}

#[test]
fn bench_finds_data_that_is_not_what_was_written() {
    if needs_root() || needs_file("/dev/fuse") {
        return;
    }
    let base = tempfile::tempdir().expect("folder");
    let point = base.path().join("pfs");
    fs::create_dir(&point).expect("mkdir");
    let pfs = FusePfs::new(base.path(), &point);
    pfs.hold("fsync", When::After, "");
    let child = bare_command()
        .arg("bench")
        .args(arguments(&[
            "--processes",
            "1",
            "--only",
            "n-n",
            "--size",
            "64KiB",
        ]))
        .arg(&point)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    pfs.wait_held("fsync");
    let scratch = fs::read_dir(pfs.behind(""))
        .expect("read_dir")
        .next()
        .expect("one");
    let file = scratch.expect("entry").path().join("files/rank-0");
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(file)
        .expect("open");
    let mut first = [0; 4096];
    file.read_exact_at(&mut first, 0).expect("read");
    file.write_all_at(&first, 8192).expect("write");
    pfs.let_go("fsync");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{said}");
    let damage = "byte 8192: data that would belong to byte 0 of file 1";
    assert!(
        said.contains("is not what was written") && said.contains(damage),
        "{said}"
    );
    assert_empty(&pfs.behind(""));
}

#[test]
fn bench_a_second_ctrl_c_ends_it_where_the_directory_does_not_answer() {
    if needs_root() || needs_file("/dev/fuse") {
        return;
    }
    let base = tempfile::tempdir().expect("folder");
    let point = base.path().join("pfs");
    fs::create_dir(&point).expect("mkdir");
    let pfs = FusePfs::new(base.path(), &point);
    pfs.hold("fsync", When::Before, "");
    let mut child = bare_command()
        .arg("bench")
        .args(arguments(&["--processes", "1", "--only", "n-n"]))
        .arg(&point)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    pfs.wait_held("fsync");
    let interrupt =
        |child: &Child| kill_process(Pid::from_child(child), Signal::INT).expect("signal");
    interrupt(&child);
    // Signals closer together count as one.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(child.try_wait().expect("child"), None);
    interrupt(&child);
    let mut code = None;
    wait_until("the end of the benchmark", || {
        code = child.try_wait().expect("child");
        code.is_some()
    });
    assert_eq!(code.and_then(|code| code.code()), Some(130));
    pfs.let_go("fsync");
    let output = child.wait_with_output().expect("it has ended");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("/pfs/.forebay-bench-") && said.ends_with(": may be left there; remove it\n"),
        "{said}"
    );
}

#[test]
fn bench_ends_in_time_and_says_how_often_it_was_done() {
    let dir = tempfile::tempdir().expect("folder");
    let args = ["--only", "metadata", "--repeats", "1000", "--time", "0s"];
    let page = bench(&args, &[dir.path()]).ok().stdout;
    let said = "of 1 repeat of 1000, for more would have taken longer than --time";
    assert!(page.contains(said), "{page}");
}

#[test]
fn bench_refuses_wrong_usage_in_one_line() {
    let dir = tempfile::tempdir().expect("folder");
    for (args, part) in [
        (&["--transfer", "12"][..], "multiple of 8 bytes"),
        (
            &["--transfer", "100KiB"],
            "--size must be a multiple of --transfer",
        ),
        (&["--processes", "0"], "--processes must be 1 to 256"),
        (&["--only", "n-m"], "n-m"),
        (&["--repeats", "0"], "0"),
    ] {
        let output = bench(args, &[dir.path()]).expect_code(1);
        assert_eq!(output.stderr.lines().count(), 1, "{output:?}");
        assert!(output.stderr.contains(part), "{output:?}");
    }
    let output = bench(&[], &[&dir.path().join("none")]).expect_code(1);
    assert!(
        output.stderr.contains("give an existing directory"),
        "{output:?}"
    );
    let output = bench(&[], &[]).expect_code(1);
    assert!(output.stderr.contains("required"), "{output:?}");
    assert_empty(dir.path());
}
