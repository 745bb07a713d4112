//! What the embedded engine keeps when its process is killed, and when its storage fails.
//!
//! The process that dies is this test again: `child` does nothing unless it is told what to do
//! through the environment.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use forebay_kv::conformance::keys;
use forebay_kv::{Batch, Durability, Error, Store, open_default};

const TASK: &str = "FOREBAY_KV_TEST_TASK";
const DIR: &str = "FOREBAY_KV_TEST_DIR";

/// Keys are reused after this many commits, so that there is always something to overwrite and to
/// delete.
const SLOTS: u64 = 1024;

/// Large enough that memtables and journals are replaced many times in a second.
const VALUE_BYTES: usize = 1024;

/// Every how many commits one is synced.
const SYNCED_EVERY: u64 = 512;

const LAST: &[u8] = b"last";

#[test]
fn child() {
    let (Ok(task), Ok(dir)) = (std::env::var(TASK), std::env::var(DIR)) else {
        return;
    };
    let store = open_default(Path::new(&dir)).expect("the store opens in the child");
    match task.as_str() {
        "commit" => commit_forever(&*store),
        "fail" => commit_until_storage_fails(&*store),
        "mend" => mend_when_storage_works_again(&*store),
        other => panic!("no task {other}"),
    }
}

fn spawn(task: &str, dir: &Path) -> Child {
    Command::new(std::env::current_exe().expect("the path of this test"))
        .args(["--exact", "child", "--nocapture"])
        .env(TASK, task)
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the child starts")
}

fn value(count: u64) -> Vec<u8> {
    count.to_be_bytes().repeat(VALUE_BYTES / 8)
}

/// Commit number `count`: sets one slot in two places, clears another in both, and says so in
/// `last`.
fn batch(count: u64) -> Batch {
    let (set, cleared) = (count % SLOTS, (count + SLOTS / 2) % SLOTS);
    let mut batch = Batch::new();
    batch
        .put(format!("a/{set:04}"), value(count))
        .delete(format!("a/{cleared:04}"));
    batch
        .put(format!("b/{set:04}"), value(count))
        .delete(format!("b/{cleared:04}"));
    batch.put(LAST, count.to_be_bytes());
    batch
}

/// Asserts that the store holds exactly commits 1 to n, and returns n.
fn check_holds_a_prefix(store: &dyn Store) -> u64 {
    let last = store.get(LAST).expect("the store reads");
    let last = last.map_or(0, |last| {
        u64::from_be_bytes(last.try_into().expect("eight bytes"))
    });
    let mut expected: Vec<(String, u64)> = (1..=last)
        .rev()
        .take(SLOTS as usize / 2)
        .map(|count| (format!("{:04}", count % SLOTS), count))
        .collect();
    expected.sort();
    for place in ["a/", "b/"] {
        let mut shown = Vec::new();
        let visit = &mut |key: &[u8], held: &[u8]| {
            let count = u64::from_be_bytes(held[..8].try_into().expect("eight bytes"));
            assert_eq!(held, value(count), "a value is whole");
            shown.push((
                String::from_utf8_lossy(&key[place.len()..]).into_owned(),
                count,
            ));
            true
        };
        store
            .scan(place.as_bytes(), None, visit)
            .expect("the store scans");
        assert_eq!(
            shown, expected,
            "under {place} are commits 1 to {last} and nothing else"
        );
    }
    last
}

fn commit_forever(store: &dyn Store) {
    let mut out = std::io::stdout().lock();
    // The test harness has begun a line of its own.
    writeln!(out).expect("the parent listens");
    for count in check_holds_a_prefix(store) + 1.. {
        let durability = if count % SYNCED_EVERY == 0 {
            Durability::Synced
        } else {
            Durability::Buffered
        };
        store
            .commit(batch(count), durability)
            .expect("the commit succeeds");
        writeln!(out, "ack {count}").expect("the parent listens");
    }
}

/// The last commit the child acknowledged; reads until it is dead.
fn last_acknowledged(child: &mut Child) -> u64 {
    let mut lines = BufReader::new(child.stdout.take().expect("the output of the child"));
    let (mut line, mut last) = (String::new(), 0);
    while lines.read_line(&mut line).expect("the output is read") > 0 {
        // A line cut short by the kill is no acknowledgement.
        if let Some(count) = line
            .strip_prefix("ack ")
            .and_then(|rest| rest.strip_suffix('\n'))
        {
            last = count.parse().expect("a number");
        }
        line.clear();
    }
    last
}

#[test]
fn acknowledged_commits_survive_kill() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut total = 0;
    for lifetime_ms in [50, 120, 300, 700, 1100] {
        let mut child = spawn("commit", dir.path());
        let id = child.id();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(lifetime_ms));
            // SAFETY: plain system call. The child is not waited for until this thread has ended,
            // so the id is still its.
            unsafe { libc::kill(id as libc::pid_t, libc::SIGKILL) }
        });
        let acknowledged = last_acknowledged(&mut child);
        assert_eq!(killer.join().expect("the killer ends"), 0);
        let status = child.wait().expect("the child is dead");
        assert!(!status.success(), "it was killed, not finished");

        let store = open_default(dir.path()).expect("the store opens after a kill");
        let held = check_holds_a_prefix(&*store);
        assert!(
            held >= acknowledged,
            "commit {acknowledged} was acknowledged, but the store ends at {held}"
        );
        total = total.max(held);
    }
    assert!(
        total > SLOTS,
        "only {total} commits were made: too few to test anything"
    );
}

const FILE_BYTES: u64 = 1024 * 1024;

/// From now on the kernel refuses to extend files past a size, as a full disk would.
fn limit_files(bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: ignoring a signal installs no handler; setrlimit reads a struct that lives across the
    // call.
    let limited = unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::setrlimit(libc::RLIMIT_FSIZE, &limit)
    };
    assert_eq!(limited, 0);
}

/// Commits until a commit fails because storage does.
fn commit_until_storage_fails(store: &dyn Store) {
    limit_files(FILE_BYTES);
    let mut count = 0;
    let error = loop {
        count += 1;
        match store.commit(batch(count), Durability::Buffered) {
            Ok(()) => assert!(
                count * (VALUE_BYTES as u64) < 2 * FILE_BYTES,
                "the limit was not felt"
            ),
            Err(error) => break error,
        }
    };
    assert_eq!(error.errno(), libc::EFBIG, "{error:?}");
    assert!(matches!(
        store.commit(batch(count), Durability::Buffered),
        Err(Error::Poisoned)
    ));
    assert!(matches!(
        store.commit(batch(count), Durability::Synced),
        Err(Error::Poisoned)
    ));
    assert!(matches!(store.sync(), Err(Error::Poisoned)));
    assert_eq!(check_holds_a_prefix(store), count - 1, "reads go on");
    let mut out = std::io::stdout().lock();
    writeln!(out, "\nack {}", count - 1).expect("the parent listens");
}

/// Storage fails, works again, and fails and works again: the store is the same one all the time.
fn mend_when_storage_works_again(store: &dyn Store) {
    let mut count = 0;
    for file_bytes in [FILE_BYTES, 2 * FILE_BYTES] {
        limit_files(file_bytes);
        let error = loop {
            let durability = match count % SYNCED_EVERY {
                0 => Durability::Synced,
                _ => Durability::Buffered,
            };
            match store.commit(batch(count + 1), durability) {
                Ok(()) => count += 1,
                Err(error) => break error,
            }
            assert!(count * (VALUE_BYTES as u64) < 4 * FILE_BYTES, "no limit");
        };
        assert_eq!(error.errno(), libc::EFBIG, "{error:?}");
        store.mend().expect_err("there is no room yet");
        assert_eq!(check_holds_a_prefix(store), count, "reads go on");
        limit_files(libc::RLIM_INFINITY);
        assert!(store.mend().expect("there is room"));
        assert!(!store.mend().expect("nothing to mend"));
        assert_eq!(
            check_holds_a_prefix(store),
            count,
            "what failed is not there"
        );
    }
    store
        .commit(batch(count + 1), Durability::Synced)
        .expect("it takes commits again");
    // Said before the end, which is a kill.
    println!("\nack {}", count + 1);
    std::io::stdout().flush().expect("flush");
    // SAFETY: getpid and kill take and give plain numbers.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

#[test]
fn a_poisoned_store_is_mended_in_place_and_holds_what_was_acknowledged() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut child = spawn("mend", dir.path());
    let acknowledged = last_acknowledged(&mut child);
    let status = child.wait().expect("the child ends");
    assert!(!status.success() && status.code().is_none(), "{status}");
    assert!(acknowledged > 0);
    let store = open_default(dir.path()).expect("the store opens");
    assert_eq!(check_holds_a_prefix(&*store), acknowledged);
}

#[test]
fn failed_storage_poisons_and_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut child = spawn("fail", dir.path());
    let acknowledged = last_acknowledged(&mut child);
    assert!(child.wait().expect("the child ends").success());
    assert!(acknowledged > 0);
    let store = open_default(dir.path()).expect("the store opens after a failure");
    let held = check_holds_a_prefix(&*store);
    assert!(
        (acknowledged..=acknowledged + 1).contains(&held),
        "{acknowledged} acknowledged, {held} held"
    );
    store
        .commit(batch(held + 1), Durability::Synced)
        .expect("the store opened again takes commits");
}

#[test]
fn everything_is_there_after_reopening() {
    const ENTRIES: u32 = 40_000;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("made/by/open");
    let store = open_default(&path).expect("the store opens and makes its directory");
    for number in 0..ENTRIES {
        let mut batch = Batch::new();
        batch.put(format!("k/{number:06}"), vec![b'v'; 300]);
        if number % 3 == 2 {
            batch.delete(format!("k/{:06}", number - 1));
        }
        store
            .commit(batch, Durability::Buffered)
            .expect("the commit succeeds");
    }
    let before = keys(&*store, b"", None, usize::MAX).expect("the store scans");
    assert!(
        matches!(open_default(&path), Err(Error::InUse(_))),
        "a store is opened once"
    );
    drop(store);
    let store = open_default(&path).expect("the store opens again");
    assert_eq!(
        keys(&*store, b"", None, usize::MAX).expect("the store scans"),
        before
    );
    assert_eq!(before.len(), (ENTRIES - ENTRIES / 3) as usize);
}
