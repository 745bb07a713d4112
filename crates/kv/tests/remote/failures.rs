//! What is left of a store when its holder, its server or the network fails.
//!
//! The holder that is killed is this test again: `child` does nothing unless it is told to through
//! the environment.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_kv::remote::TakeOver;
use forebay_kv::{Batch, Durability, Error, Options, Store, open_url};

use crate::proxy::{Mode, Proxy};
use rustix::process::Signal;

use crate::servers::{Kind, Server, prefix};

const URL: &str = "FOREBAY_KV_TEST_URL";
const LAST: &[u8] = b"last";
const SLOTS: u64 = 64;
const VALUE_BYTES: usize = 200;

/// More than one transaction of etcd takes, and more than one request.
const LARGE_ENTRIES: u64 = 300;
const LARGE_VALUE_BYTES: usize = 8 * 1024;

fn options() -> Options {
    Options {
        take_over: TakeOver::Anybody,
        ..Options::default()
    }
}

/// Short, so that a test need not wait long for a failure; the network between is told to fail for
/// longer than this.
fn impatient() -> Options {
    Options {
        patience: Duration::from_millis(700),
        ..options()
    }
}

fn value(count: u64, bytes: usize) -> Vec<u8> {
    count.to_be_bytes().repeat(bytes / 8)
}

/// Commit number `count`: sets one slot in two places, clears another in both, and says so in
/// `last`. Every 16th is large.
fn batch(count: u64) -> Batch {
    let (set, cleared) = (count % SLOTS, (count + SLOTS / 2) % SLOTS);
    let mut batch = Batch::new();
    for place in ["a", "b"] {
        batch.put(format!("{place}/{set:04}"), value(count, VALUE_BYTES));
        batch.delete(format!("{place}/{cleared:04}"));
    }
    if count.is_multiple_of(16) {
        for number in 0..LARGE_ENTRIES {
            batch.put(format!("c/{number:04}"), value(count, LARGE_VALUE_BYTES));
        }
    }
    batch.put(LAST, count.to_be_bytes());
    batch
}

/// On a loaded machine a server may be silent for longer than an impatient store waits.
fn patiently<T>(mut attempt: impl FnMut() -> Result<T, Error>) -> T {
    for _ in 0..20 {
        match attempt() {
            Err(Error::Io(_)) => std::thread::sleep(Duration::from_millis(50)),
            other => return other.expect("no error but of the network"),
        }
    }
    panic!("the server does not answer");
}

fn open(url: &str, options: &Options) -> Box<dyn Store> {
    patiently(|| open_url(url, options))
}

/// Commits, as often as the network fails it.
fn commit(store: &dyn Store, count: u64) {
    while let Err(error) = store.commit(batch(count), Durability::Buffered) {
        assert!(matches!(error, Error::Io(_)), "{error}");
        mend(store);
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[..8].try_into().expect("eight bytes"))
}

/// Asserts that the store holds exactly commits 1 to n, and returns n.
fn holds_a_prefix(store: &dyn Store) -> u64 {
    let last = patiently(|| store.get(LAST));
    let last = last.map_or(0, |last| number(&last));
    let counts = (1..=last).rev().take(SLOTS as usize / 2);
    let mut expected: Vec<_> = counts
        .map(|count| (format!("{:04}", count % SLOTS), count))
        .collect();
    expected.sort();
    for place in ["a/", "b/"] {
        assert_eq!(
            shown(store, place),
            expected,
            "{place} of commits 1 to {last}"
        );
    }
    let large = last / 16 * 16;
    let expected: Vec<_> = (0..LARGE_ENTRIES)
        .filter(|_| large > 0)
        .map(|number| (format!("{number:04}"), large))
        .collect();
    assert_eq!(
        shown(store, "c/"),
        expected,
        "the last large commit of {last}"
    );
    last
}

fn shown(store: &dyn Store, place: &str) -> Vec<(String, u64)> {
    patiently(|| {
        let mut shown = Vec::new();
        let visit = &mut |key: &[u8], held: &[u8]| {
            assert_eq!(held, value(number(held), held.len()), "a value is whole");
            let slot = String::from_utf8_lossy(&key[place.len()..]).into_owned();
            shown.push((slot, number(held)));
            true
        };
        store.scan(place.as_bytes(), None, visit)?;
        Ok(shown)
    })
}

#[test]
fn child() {
    let Ok(url) = std::env::var(URL) else {
        return;
    };
    let store = open(&url, &options());
    let mut out = std::io::stdout().lock();
    // The test harness has begun a line of its own.
    writeln!(out).expect("the parent listens");
    for count in holds_a_prefix(&*store) + 1.. {
        let committed = store.commit(batch(count), Durability::Buffered);
        committed.expect("the commit succeeds");
        writeln!(out, "ack {count}").expect("the parent listens");
    }
}

fn survives_the_death_of_its_holder(kind: Kind) {
    let server = Server::start(kind);
    let url = server.url(&prefix());
    let mut before = 0;
    // Killed after so many commits that it has made itself, and while it makes the next.
    for commits in [1, 14, 30, 47] {
        let mut child = Command::new(std::env::current_exe().expect("the path of this test"))
            .args(["--exact", "failures::child", "--nocapture"])
            .env(URL, &url)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the child starts");
        let mut lines = BufReader::new(child.stdout.take().expect("the output")).lines();
        let mut acknowledged = before;
        for line in lines.by_ref() {
            let line = line.expect("the output is read");
            if let Some(count) = line.strip_prefix("ack ") {
                acknowledged = count.parse().expect("a number");
            }
            if acknowledged == before + commits {
                break;
            }
        }
        child.kill().expect("the child is killed");
        child.wait().expect("the child is dead");
        for line in lines {
            // The last line may have been cut short.
            let count = line
                .ok()
                .and_then(|line| line.strip_prefix("ack ")?.parse().ok());
            acknowledged = acknowledged.max(count.unwrap_or(0));
        }
        assert!(acknowledged >= before + commits, "the child came so far");
        let store = open(&url, &options());
        let held = holds_a_prefix(&*store);
        assert!(
            held == acknowledged || held == acknowledged + 1,
            "{held} of {acknowledged}"
        );
        before = held;
    }
}

#[test]
fn redis_keeps_what_a_killed_holder_committed() {
    survives_the_death_of_its_holder(Kind::Redis);
}

#[test]
fn etcd_keeps_what_a_killed_holder_committed() {
    survives_the_death_of_its_holder(Kind::Etcd);
}

/// Commits while `disturb` does its work, and a little longer; every commit has to succeed, or to
/// fail and be mended. Returns how many succeeded.
fn commit_through(store: &dyn Store, from: u64, disturb: impl FnOnce() + Send) -> u64 {
    let (done, committed) = (AtomicBool::new(false), AtomicU64::new(from));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut more = 20;
            while more > 0 {
                more -= u32::from(done.load(Ordering::SeqCst));
                let count = committed.load(Ordering::SeqCst) + 1;
                match store.commit(batch(count), Durability::Buffered) {
                    Ok(()) => {
                        committed.store(count, Ordering::SeqCst);
                    }
                    Err(Error::Io(_)) => {
                        let refused = store.commit(batch(count), Durability::Buffered);
                        assert!(matches!(refused, Err(Error::Poisoned)), "{refused:?}");
                        mend(store);
                        assert_eq!(holds_a_prefix(store), count - 1, "what failed is undone");
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let enough = || committed.load(Ordering::SeqCst) > from + 20;
        while !enough() && !writer.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        disturb();
        done.store(true, Ordering::SeqCst);
    });
    committed.load(Ordering::SeqCst)
}

fn mend(store: &dyn Store) {
    loop {
        match store.mend() {
            Ok(true) => return,
            Ok(false) => panic!("it was poisoned"),
            Err(Error::Io(_)) => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => panic!("{error}"),
        }
    }
}

fn survives_the_death_of_its_server(kind: Kind) {
    let mut server = Server::start(kind);
    let store = open(&server.url(&prefix()), &impatient());
    let mut held = 0;
    for _ in 0..2 {
        held = commit_through(&*store, held, || {
            server.kill();
            assert!(server.run(), "{}", server.log());
        });
        assert_eq!(holds_a_prefix(&*store), held);
    }
}

#[test]
fn redis_that_is_killed_keeps_what_it_confirmed() {
    survives_the_death_of_its_server(Kind::Redis);
}

#[test]
fn etcd_that_is_killed_keeps_what_it_confirmed() {
    survives_the_death_of_its_server(Kind::Etcd);
}

fn survives_a_server_that_hangs(kind: Kind) {
    let mut server = Server::start(kind);
    let store = open(&server.url(&prefix()), &impatient());
    let held = commit_through(&*store, 0, || {
        server.signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(1500));
        server.signal(Signal::CONT);
    });
    assert_eq!(holds_a_prefix(&*store), held);
}

#[test]
fn redis_may_hang() {
    survives_a_server_that_hangs(Kind::Redis);
}

#[test]
fn etcd_may_hang() {
    survives_a_server_that_hangs(Kind::Etcd);
}

fn survives_a_network_that_fails(kind: Kind) {
    let server = Server::start(kind);
    let proxy = Proxy::start(server.port());
    let url = server.url_at(proxy.port, &prefix());
    let store = open(&url, &impatient());
    let mut held = 0;
    for (mode, time_ms) in [
        (Mode::Cut, 100),
        (Mode::Cut, 1500),
        (Mode::Deaf, 1500),
        (Mode::Stalled, 1500),
        (Mode::Deaf, 300),
    ] {
        held = commit_through(&*store, held, || {
            proxy.set(mode);
            std::thread::sleep(Duration::from_millis(time_ms));
            proxy.set(Mode::Open);
        });
        assert_eq!(holds_a_prefix(&*store), held, "{mode:?}");
    }
}

#[test]
fn redis_behind_a_network_that_fails() {
    survives_a_network_that_fails(Kind::Redis);
}

#[test]
fn etcd_behind_a_network_that_fails() {
    survives_a_network_that_fails(Kind::Etcd);
}

/// The server has the commit, and its answer is lost for longer than anybody waits: from now on, or
/// from the moment on at which the store sends a word.
fn takes_back_what_nobody_was_told_of(kind: Kind, count: u64, word: Option<&'static [u8]>) {
    let server = Server::start(kind);
    let proxy = Proxy::start(server.port());
    let prefix = prefix();
    let url = server.url_at(proxy.port, &prefix);
    let store = open(&url, &impatient());
    for count in 1..count {
        commit(&*store, count);
    }
    match word {
        Some(word) => proxy.deaf_at(word),
        None => proxy.set(Mode::Deaf),
    }
    let failed = store.commit(batch(count), Durability::Synced);
    assert!(matches!(failed, Err(Error::Io(_))), "{failed:?}");
    assert!(matches!(store.sync(), Err(Error::Poisoned)));
    store.mend().expect_err("nothing is heard of the server");
    proxy.set(Mode::Cut);
    proxy.set(Mode::Open);
    mend(&*store);
    assert!(!store.mend().expect("nothing to mend"));
    assert_eq!(holds_a_prefix(&*store), count - 1);
    commit(&*store, count);
    assert_eq!(holds_a_prefix(&*store), count);
    drop(store);
    let store = open(&server.url(&prefix), &options());
    assert_eq!(holds_a_prefix(&*store), count);
}

#[test]
fn redis_takes_back_what_nobody_was_told_of() {
    takes_back_what_nobody_was_told_of(Kind::Redis, 40, None);
    takes_back_what_nobody_was_told_of(Kind::Redis, 48, None);
}

#[test]
fn etcd_takes_back_what_nobody_was_told_of() {
    takes_back_what_nobody_was_told_of(Kind::Etcd, 40, None);
    takes_back_what_nobody_was_told_of(Kind::Etcd, 48, None);
    // What makes the parts of a large one valid.
    takes_back_what_nobody_was_told_of(Kind::Etcd, 48, Some(b"/journal"));
}

/// The network keeps a commit until long after the store was mended.
fn a_commit_that_comes_late_changes_nothing(kind: Kind) {
    let server = Server::start(kind);
    let proxy = Proxy::start(server.port());
    let url = server.url_at(proxy.port, &prefix());
    let store = open(&url, &impatient());
    for count in 1..40 {
        commit(&*store, count);
    }
    proxy.set(Mode::Stalled);
    let failed = store.commit(batch(40), Durability::Buffered);
    assert!(matches!(failed, Err(Error::Io(_))), "{failed:?}");
    proxy.stall_old();
    proxy.set(Mode::Open);
    mend(&*store);
    proxy.release_old();
    // Nobody says when the server has read it.
    for _ in 0..50 {
        assert_eq!(holds_a_prefix(&*store), 39);
        std::thread::sleep(Duration::from_millis(2));
    }
    for count in 40..44 {
        commit(&*store, count);
        assert_eq!(holds_a_prefix(&*store), count);
    }
}

#[test]
fn a_commit_that_comes_late_to_redis_changes_nothing() {
    a_commit_that_comes_late_changes_nothing(Kind::Redis);
}

#[test]
fn a_commit_that_comes_late_to_etcd_changes_nothing() {
    a_commit_that_comes_late_changes_nothing(Kind::Etcd);
}

/// A large commit is cut off after so many bytes; then its holder mends the store, or another one
/// takes it.
fn is_whole_wherever_it_is_cut(kind: Kind) {
    const COUNT: u64 = 16;
    /// A large commit in etcd sends its content twice.
    const BYTES: i64 = 5_500_000;
    const POINTS: i64 = 12;
    let server = Server::start(kind);
    let proxy = Proxy::start(server.port());
    let (mut cut_short, mut went_through) = (0, 0);
    for point in 1..=POINTS {
        let prefix = prefix();
        let options = Options {
            patience: Duration::from_millis(300),
            ..options()
        };
        let store = open(&server.url_at(proxy.port, &prefix), &options);
        for count in 1..COUNT {
            commit(&*store, count);
        }
        proxy.cut_after(BYTES * point / POINTS);
        let is_committed = match store.commit(batch(COUNT), Durability::Buffered) {
            Ok(()) => true,
            Err(Error::Io(_)) => false,
            Err(error) => panic!("{error}"),
        };
        *(if is_committed {
            &mut went_through
        } else {
            &mut cut_short
        }) += 1;
        if point % 2 == 0 {
            let store = open(&server.url(&prefix), &self::options());
            let held = holds_a_prefix(&*store);
            assert!(held == COUNT || held == COUNT - 1 && !is_committed);
            proxy.set(Mode::Open);
            continue;
        }
        proxy.set(Mode::Open);
        let held = COUNT - u64::from(!is_committed);
        if !is_committed {
            mend(&*store);
        }
        assert_eq!(holds_a_prefix(&*store), held);
        // It may have to finish the large one first.
        commit(&*store, held + 1);
        assert_eq!(holds_a_prefix(&*store), held + 1);
    }
    assert!(
        cut_short > 2 && went_through > 2,
        "{cut_short} {went_through}"
    );
}

#[test]
fn redis_has_large_commits_whole() {
    is_whole_wherever_it_is_cut(Kind::Redis);
}

#[test]
fn etcd_has_large_commits_whole() {
    is_whole_wherever_it_is_cut(Kind::Etcd);
}
