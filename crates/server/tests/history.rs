//! What is put on record of versions, restarts and movements, and what is left of it after a kill.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{PATIENCE, Running, Scratch, me, settings};
use forebay_server::{GroupMode, PathRule, Settings};
use forebay_types::history::{Record, What};
use forebay_types::{Cred, Errno, Ino, OpenFlags, Process};
use forebay_wire::control::{Control, ControlResponse, HistoryAsked, Movement};
use forebay_wire::{Connection, InMemory, Request, Response};

const MIB: usize = 1 << 20;
/// The scratch directory of a child; whoever has it in the environment is the child.
const CHILD_DIR: &str = "HISTORY_CHILD_DIR";

fn prepared(dir: &Path) -> Settings {
    let mut settings = settings(dir, 64 * MIB as u64);
    settings.engine.quiet = Duration::from_millis(300);
    settings
}

fn all() -> HistoryAsked {
    HistoryAsked {
        until_ms: u64::MAX,
        ..HistoryAsked::default()
    }
}

fn history(running: &Running, asked: HistoryAsked) -> Vec<Record> {
    match running.control(Control::History(asked)) {
        Ok(ControlResponse::History(page)) => {
            assert_eq!(page.more_after, None);
            page.records
        }
        other => panic!("history: {other:?}"),
    }
}

fn wait_for(running: &Running, what: &str, holds: impl Fn(&[Record]) -> bool) -> Vec<Record> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let records = history(running, all());
        if holds(&records) {
            return records;
        }
        assert!(Instant::now() < deadline, "{what}: {records:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn version(records: &[Record], number: u64) -> Option<&Record> {
    let mut versions = records.iter().filter(|r| r.what == What::Version);
    versions.find(|r| r.version == Some(number))
}

/// What another user is told over a mount's connection.
fn as_user(running: &Running, uid: u32, asked: HistoryAsked) -> Result<Vec<Record>, Errno> {
    let connection = InMemory::mount(running.instance.service());
    let request = Request::ControlFor {
        uid,
        gid: uid,
        groups: Vec::new(),
        control: Control::History(asked),
    };
    match connection.call(request, &[], &mut [])?.response {
        Response::Control(ControlResponse::History(page)) => Ok(page.records),
        other => panic!("history: {other:?}"),
    }
}

fn write_as(running: &Running, uid: u32, name: &str, bytes: usize) {
    let flags = OpenFlags(libc::O_WRONLY as u32);
    let cred = Cred { uid, ..me() };
    let client = &running.client;
    let (_, open) = client
        .create(Ino::ROOT, name.as_bytes(), 0o644, flags, cred)
        .expect("create");
    let data = vec![7; bytes];
    running.write(open.opened.handle, 0, &data).expect("write");
    client.release(open.opened.handle).expect("close");
}

#[test]
fn a_version_is_on_record_from_its_begin_to_its_drain() {
    let scratch = Scratch::new();
    let running = Running::start(&prepared(scratch.path()), false);
    write_as(&running, 1000, "ckpt-1-rank0", MIB);
    write_as(&running, 1000, "ckpt-1-rank1", 2 * MIB);
    write_as(&running, 1001, "ckpt-2-rank0", MIB);
    let records = wait_for(&running, "drained and over", |records| {
        records.len() == 2 && records.iter().all(|r| r.over)
    });
    let first = version(&records, 1).expect("on record");
    assert_eq!(
        (first.files, first.bytes, first.uid),
        (2, 3 * MIB as u64, 1000)
    );
    assert_eq!(
        (first.drained_files, first.drained_bytes),
        (2, 3 * MIB as u64)
    );
    let drained_ms = first.all_drained_ms().expect("drained");
    assert!(
        first.begun_ms <= first.ended_ms && first.ended_ms <= drained_ms,
        "{first:?}"
    );
    assert_eq!((first.direct_files, first.gone_files), (0, 0));
    // A user sees what is the user's.
    let theirs = as_user(&running, 1001, all()).expect("history");
    assert_eq!(
        theirs.iter().map(|r| r.version).collect::<Vec<_>>(),
        [Some(2)]
    );
    let of = |uid| HistoryAsked {
        uid: Some(uid),
        ..all()
    };
    assert_eq!(as_user(&running, 1001, of(1000)), Err(Errno::EPERM));
    assert_eq!(as_user(&running, 1001, of(1001)), Ok(theirs));
    assert_eq!(history(&running, of(1000)).len(), 1);
    let late = HistoryAsked {
        since_ms: drained_ms + 1_000_000,
        ..all()
    };
    assert_eq!(history(&running, late), []);
    let named = |part: &str| HistoryAsked {
        application: Some(part.into()),
        ..all()
    };
    assert_eq!(history(&running, named("ckpt")).len(), 2);
    assert_eq!(history(&running, named("nobody")), []);
    running.instance.stop();
}

#[test]
fn what_is_removed_before_its_drain_is_said_to_be_gone() {
    let scratch = Scratch::new();
    let mut settings = prepared(scratch.path());
    settings.demotion.idle = false;
    let running = Running::start(&settings, false);
    running.put(b"ckpt-1-rank0", &[1; 4096]);
    running.put(b"ckpt-1-rank1", &[1; 4096]);
    running
        .client
        .unlink(Ino::ROOT, b"ckpt-1-rank0", me())
        .expect("unlink");
    let records = wait_for(&running, "gone", |records| {
        version(records, 1).is_some_and(|r| r.gone_files == 1)
    });
    let version = version(&records, 1).expect("on record");
    assert_eq!(
        (version.files, version.undrained_files(), version.over),
        (2, 1, false)
    );
    assert_eq!(version.all_drained_ms(), None);
    // Who orders a movement is on record, too.
    let job = running.move_files(Movement::StageOut, b"");
    assert_eq!(job.files_failed, 0, "{job:?}");
    let records = wait_for(&running, "over", |records| records.iter().all(|r| r.over));
    let ordered = records.iter().find(|r| r.what == What::StageOut);
    let ordered = ordered.expect("on record");
    assert_eq!((ordered.files, ordered.uid), (1, me().uid));
    running.instance.stop();
}

#[test]
fn a_file_that_is_renamed_belongs_to_the_version_of_its_last_name() {
    let scratch = Scratch::new();
    let mut settings = prepared(scratch.path());
    settings.demotion.idle = false;
    let running = Running::start(&settings, false);
    running.put(b"new.tmp", &[1; 4096]);
    let client = &running.client;
    let mode = forebay_types::RenameMode::Replace;
    client
        .rename((Ino::ROOT, b"new.tmp"), (Ino::ROOT, b"ckpt-5"), mode, me())
        .expect("rename");
    let records = history(&running, all());
    let versions: Vec<_> = records.iter().map(|r| (r.version, r.files)).collect();
    assert_eq!(versions, [(Some(5), 1)]);
    running.instance.stop();
}

#[test]
fn without_a_time_to_keep_it_nothing_is_put_on_record() {
    let scratch = Scratch::new();
    let mut settings = prepared(scratch.path());
    settings.history.for_ms = 0;
    let running = Running::start(&settings, false);
    running.put(b"ckpt-1", &[1; 4096]);
    running.move_files(Movement::StageOut, b"");
    assert_eq!(history(&running, all()), []);
    running.instance.stop();
}

#[test]
fn without_a_time_to_keep_it_what_is_on_record_is_not_answered_and_goes() {
    let scratch = Scratch::new();
    let mut settings = prepared(scratch.path());
    let running = Running::start(&settings, false);
    running.put(b"ckpt-1", &[1; 4096]);
    wait_for(&running, "over", |records| records.iter().any(|r| r.over));
    running.instance.stop();
    drop(running);
    let kept = settings.history;
    settings.history.for_ms = 0;
    let running = Running::start(&settings, false);
    assert_eq!(history(&running, all()), []);
    // Longer than until the next look at what is to be saved.
    std::thread::sleep(Duration::from_millis(2500));
    running.instance.stop();
    drop(running);
    settings.history = kept;
    let running = Running::start(&settings, false);
    assert_eq!(history(&running, all()), []);
    running.instance.stop();
}

/// A process that begins now.
struct Reader(Child);

impl Reader {
    fn start() -> Reader {
        let mut command = Command::new("setsid");
        command.args(["sleep", "600"]).stdin(Stdio::null());
        let reader = Reader(command.spawn().expect("setsid sleep"));
        let name = format!("/proc/{}/comm", reader.0.id());
        let deadline = Instant::now() + PATIENCE;
        while std::fs::read_to_string(&name).expect("runs") != "sleep\n" {
            assert!(Instant::now() < deadline, "no session of its own");
            std::thread::sleep(Duration::from_millis(5));
        }
        reader
    }

    fn read(&self, running: &Running, name: &[u8]) {
        let cred = Cred {
            uid: 1000,
            process: Process::here(self.0.id()),
            ..me()
        };
        let client = &running.client;
        let attr = client.lookup(Ino::ROOT, name, 0).expect("lookup");
        let flags = OpenFlags(libc::O_RDONLY as u32);
        let open = client.open(attr.ino, flags, cred).expect("open");
        client.release(open.opened.handle).expect("close");
        client.forget(vec![(attr.ino, 1)]);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.kill().expect("a process of ours");
        self.0.wait().expect("ends");
    }
}

#[test]
fn a_restart_is_on_record_with_where_it_read() {
    let scratch = Scratch::new();
    let running = Running::start(&prepared(scratch.path()), false);
    {
        let writer = Reader::start();
        let cred = Cred {
            process: Process::here(writer.0.id()),
            ..me()
        };
        for (name, bytes) in [("ckpt-3-rank0", MIB), ("ckpt-3-rank1", 2 * MIB)] {
            let flags = OpenFlags(libc::O_WRONLY as u32);
            let client = &running.client;
            let (_, open) = client
                .create(Ino::ROOT, name.as_bytes(), 0o644, flags, cred)
                .expect("create");
            running
                .write(open.opened.handle, 0, &vec![1; bytes])
                .expect("write");
            client.release(open.opened.handle).expect("close");
        }
    }
    running.wait_clean(&|_| false);
    let released = running.move_files(Movement::Release, b"ckpt-3-rank1");
    assert_eq!((released.files_done, released.files_failed), (1, 0));
    std::thread::sleep(Duration::from_millis(100));
    let reader = Reader::start();
    reader.read(&running, b"ckpt-3-rank0");
    reader.read(&running, b"ckpt-3-rank1");
    reader.read(&running, b"ckpt-3-rank0");
    let is_over = |r: &Record| r.what == What::Restart && r.over;
    let records = wait_for(&running, "a restart", |records| records.iter().any(is_over));
    let restart = records.iter().find(|r| is_over(r)).expect("on record");
    assert_eq!(
        (restart.version, restart.uid, restart.files),
        (Some(3), 1000, 2)
    );
    assert_eq!(restart.from_buffer_bytes, MIB as u64);
    assert_eq!(restart.from_pfs_bytes, 2 * MIB as u64);
    running.instance.stop();
}

/// Not a test of its own: the body of a child.
#[test]
fn child_writes_until_it_is_killed() {
    let Some(dir) = std::env::var_os(CHILD_DIR).map(PathBuf::from) else {
        return;
    };
    let mut settings = prepared(&dir);
    // What is drained in the last second is not known afterwards.
    settings.demotion.idle = false;
    let running = Running::start(&settings, false);
    write_as(&running, 1000, "ckpt-1-rank0", MIB);
    running.move_files(Movement::StageOut, b"");
    wait_for(&running, "over", |records| {
        version(records, 1).is_some_and(|r| r.over)
    });
    // It is saved, or will be within the second.
    std::thread::sleep(Duration::from_millis(1500));
    write_as(&running, 1000, "ckpt-2-rank0", MIB);
    let marker = dir.join("written");
    std::fs::write(&marker, "").expect("marker");
    // Its end is that of the whole process.
    std::thread::sleep(10 * PATIENCE);
}

#[test]
fn a_kill_costs_no_record_and_what_was_undrained_is_drained_on_the_same() {
    let scratch = Scratch::in_memory();
    let dir = scratch.path();
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child
        .args(["--exact", "child_writes_until_it_is_killed"])
        .env(CHILD_DIR, dir)
        .stdin(Stdio::null());
    let mut child = child.spawn().expect("child");
    let deadline = Instant::now() + 2 * PATIENCE;
    while !dir.join("written").exists() {
        let ended = child.try_wait().expect("child");
        assert!(ended.is_none() && Instant::now() < deadline, "{ended:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().expect("kill");
    child.wait().expect("ends");
    let running = Running::start(&prepared(dir), false);
    let records = history(&running, all());
    let first = version(&records, 1).expect("it was saved");
    assert!(first.over && first.all_drained_ms().is_some(), "{first:?}");
    let second = version(&records, 2).expect("it was undrained, or is drained by now");
    assert_eq!((second.files, second.bytes), (1, MIB as u64));
    let records = wait_for(&running, "drained", |records| {
        version(records, 2).is_some_and(|r| r.over && r.all_drained_ms().is_some())
    });
    let again: Vec<_> = records.iter().filter(|r| r.what == What::Version).collect();
    assert_eq!(again.len(), 2, "{records:#?}");
    running.instance.stop();
    drop(running);
    // An orderly stop keeps all of it.
    let running = Running::start(&prepared(dir), false);
    assert_eq!(history(&running, all()), records);
    running.instance.stop();
}

#[test]
fn a_status_tells_what_earlier_runs_have_counted_and_what_is_left_unpublished() {
    let scratch = Scratch::in_memory();
    let mut settings = prepared(scratch.path());
    settings.rules = vec![PathRule {
        pattern: "/v*".into(),
        durability: None,
        mtbf: None,
        placement: None,
        group: Some(GroupMode::Commit),
        trust: None,
    }];
    let running = Running::start(&settings, true);
    running.put(b"file", &vec![7; MIB]);
    running.drain();
    let first = running.status();
    assert!(first.demoted_bytes_total >= MIB as u64, "{first:?}");
    assert_eq!(first.earlier.demoted_bytes, 0);
    let made = running.client.mkdir(Ino::ROOT, b"v1", 0o755, me());
    let made = made.expect("mkdir").ino;
    running.client.forget(vec![(made, 1)]);
    let left = running.instance.stop();
    assert_eq!((left.undrained_files, left.unpublished_versions), (0, 1));
    drop(running);
    let running = Running::start(&settings, true);
    let second = running.status();
    let (bytes, files) = (second.demoted_bytes_total, second.demoted_files_total);
    assert_eq!(bytes, first.demoted_bytes_total);
    let earlier = second.earlier;
    assert_eq!(
        (earlier.demoted_bytes, earlier.demoted_files),
        (bytes, files)
    );
    running.instance.stop();
}

/// The files below a directory that have this size.
fn files_of(dir: &Path, size: u64) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("list") {
        let entry = entry.expect("entry");
        let meta = entry.metadata().expect("metadata");
        match meta.is_dir() {
            true => found.extend(files_of(&entry.path(), size)),
            false if meta.len() == size => found.push(entry.path()),
            false => {}
        }
    }
    found
}

#[test]
fn what_is_lost_between_two_starts_is_not_said_to_be_drained() {
    let scratch = Scratch::new();
    let mut settings = prepared(scratch.path());
    settings.demotion.idle_after = Duration::from_secs(3600);
    settings.demotion.idle = false;
    let running = Running::start(&settings, false);
    write_as(&running, 1000, "ckpt-7-rank0", MIB);
    write_as(&running, 1000, "ckpt-7-rank1", 2 * MIB);
    let saved = wait_for(&running, "on record", |records| {
        version(records, 7).is_some_and(|r| r.files == 2)
    });
    assert_eq!(version(&saved, 7).map(Record::undrained_files), Some(2));
    running.instance.stop();
    drop(running);
    let objects: Vec<_> = ["ssd0", "ssd1"]
        .into_iter()
        .flat_map(|name| files_of(&scratch.path().join(name), 2 * MIB as u64))
        .collect();
    assert_eq!(objects.len(), 1, "{objects:?}");
    std::fs::remove_file(&objects[0]).expect("remove");
    // Also told by the start after the next one.
    for start in 0..2 {
        let running = Running::start(&settings, false);
        let records = history(&running, all());
        let found = version(&records, 7).expect("on record");
        let counts = (found.failed_files, found.gone_files, found.drained_files);
        assert_eq!(counts, (1, 1, 0), "{start}: {found:?}");
        assert_eq!(
            (found.gone_bytes, found.undrained_files(), found.drained_ms),
            (2 * MIB as u64, 1, None),
            "{start}: {found:?}"
        );
        running.instance.stop();
    }
}

#[test]
fn what_is_too_much_goes_and_the_newest_stay() {
    let scratch = Scratch::new();
    let mut settings = prepared(scratch.path());
    settings.engine.quiet = Duration::from_millis(10);
    let running = Running::start(&settings, false);
    for n in 1..=30 {
        running.put(format!("ckpt-{n}").as_bytes(), &[1; 100]);
    }
    let records = wait_for(&running, "over", |records| {
        records.len() == 30 && records.iter().all(|r| r.over)
    });
    running.instance.stop();
    drop(running);
    settings.history.bytes = 1000;
    let running = Running::start(&settings, false);
    let left = wait_for(&running, "few", |records| records.len() < 30);
    assert!((1..30).contains(&left.len()), "{left:#?}");
    assert_eq!(left, records[30 - left.len()..]);
    running.instance.stop();
}
