//! A data server that goes away at any moment of a start: nothing is lost for that.

#[path = "holders/absent.rs"]
mod absent;
mod common;
#[path = "holders/ends.rs"]
mod ends;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_server::{HolderWay, Instance, Settings};
use forebay_types::{Errno, Ino};
use forebay_wire::{Connection, OUT_OF_REACH, ObjectCall, Reply, Request};

use common::{Running, Scratch, me, settings_with_holder};

/// Files on the data server, so that a start has something to look at.
const FILES: u8 = 3;

/// A data server that answers so many calls, and then none for so many.
struct Flaky {
    inner: HolderWay,
    answers: AtomicI64,
    away: AtomicI64,
}

impl Flaky {
    /// Whether it is there now; each question counts.
    fn is_there(&self) -> bool {
        if self.answers.fetch_sub(1, Ordering::AcqRel) > 0 {
            return true;
        }
        self.away.fetch_sub(1, Ordering::AcqRel) <= 0
    }
}

impl Connection for Flaky {
    fn call(&self, request: Request, payload: &[u8], into: &mut [u8]) -> Result<Reply, Errno> {
        match self.is_there() {
            true => self.inner.0.call(request, payload, into),
            false => Err(OUT_OF_REACH),
        }
    }

    fn is_answering(&self) -> bool {
        self.is_there()
    }

    fn hands_over_descriptors(&self) -> bool {
        false
    }
}

fn content(n: u8) -> Vec<u8> {
    vec![n + 1; 10_000 + usize::from(n)]
}

fn names() -> impl Iterator<Item = (u8, String)> {
    (0..FILES).map(|n| (n, format!("f{n}")))
}

/// Leaves files on the data server that are fsynced and not drained.
fn fill(settings: &Settings) {
    let running = Running::start(settings, false);
    for (n, name) in names() {
        let (_, handle) = running.create(name.as_bytes()).expect("create");
        running.write(handle, 0, &content(n)).expect("write");
        running.client.fsync(handle, false).expect("fsync");
        running.client.release(handle).expect("close");
        let held = running.residency(name.as_bytes());
        assert!(held[0].tiers[0].starts_with("server-2:"), "{held:?}");
    }
    let left = running.instance.stop();
    assert_eq!(left.undrained_files, u64::from(FILES));
}

fn check(settings: &Settings) {
    let running = Running::start(settings, false);
    for (n, name) in names() {
        let found = running.client.lookup(Ino::ROOT, name.as_bytes(), 0);
        let attr = found.unwrap_or_else(|e| panic!("{name}: {e}")).attr;
        let opened = running
            .client
            .open(attr.ino, forebay_types::OpenFlags(0), me());
        let opened = opened.unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut found = vec![0; content(n).len() + 1];
        let count = running
            .client
            .read(opened.opened.handle, 0, &mut found, 0)
            .expect("read");
        assert!(found[..count] == content(n), "{name}: {count} bytes");
    }
    let errors = running.status().errors;
    assert!(errors.is_empty(), "{errors:?}");
    running.instance.stop();
}

#[test]
fn a_node_that_goes_at_any_moment_of_a_start_has_lost_nothing_when_it_is_back() {
    let scratch = Scratch::new();
    let mut settings = settings_with_holder(scratch.path(), 64 << 20);
    settings.ssd.clear();
    settings.dram_bytes = None;
    settings.demotion.idle = false;
    settings.demotion.start_fraction = 0.9;
    settings.wait_for_holders = Duration::from_millis(50);
    fill(&settings);
    let healthy = settings.holders[0].way.clone();
    // For ever, and for a moment: then who asks twice gets two answers.
    for away in [i64::MAX / 2, 1, 3] {
        for answers in 0..40 {
            let flaky = Flaky {
                inner: healthy.clone(),
                answers: AtomicI64::new(answers),
                away: AtomicI64::new(away),
            };
            let mut flaky_settings = settings.clone();
            flaky_settings.holders[0].way = HolderWay(Arc::new(flaky));
            let started = Instance::start(flaky_settings);
            let started = started.unwrap_or_else(|e| panic!("{answers} answers: {e}"));
            started.stop();
            drop(started);
            check(&settings);
        }
    }
}

#[test]
fn the_size_of_what_was_closed_while_its_node_was_away_is_not_taken_from_the_record() {
    let scratch = Scratch::new();
    let mut settings = settings_with_holder(scratch.path(), 64 << 20);
    settings.ssd.clear();
    settings.dram_bytes = None;
    settings.demotion.idle = false;
    settings.demotion.start_fraction = 0.9;
    let flaky = Arc::new(Flaky {
        inner: settings.holders[0].way.clone(),
        answers: AtomicI64::new(i64::MAX),
        away: AtomicI64::new(0),
    });
    settings.holders[0].way = HolderWay(flaky.clone());
    let running = Running::start(&settings, false);
    let (made, handle) = running.create(b"f").expect("create");
    running.write(handle, 0, &[1; 3000]).expect("write");
    running.client.fsync(handle, false).expect("fsync");
    running.write(handle, 3000, &[2; 5000]).expect("write");
    flaky.away.store(i64::MAX, Ordering::Release);
    flaky.answers.store(0, Ordering::Release);
    assert_eq!(running.client.release(handle), Err(OUT_OF_REACH));
    let size = || {
        let found = running.client.getattr(made.ino, None);
        found.map(|found| found.attr.size)
    };
    assert_eq!(size(), Err(OUT_OF_REACH));
    flaky.away.store(0, Ordering::Release);
    assert_eq!(size(), Ok(8000));
    drop(running);
}

/// A data server that goes silent in the middle of a flush of all it has, and is back at once.
struct GoesInFlushes {
    inner: HolderWay,
    goes: AtomicBool,
    flushes: AtomicUsize,
}

impl Connection for GoesInFlushes {
    fn call(&self, request: Request, payload: &[u8], into: &mut [u8]) -> Result<Reply, Errno> {
        if matches!(request, Request::Object(ObjectCall::SyncAll(_))) {
            self.flushes.fetch_add(1, Ordering::AcqRel);
            if self.goes.load(Ordering::Acquire) {
                return Err(Errno::ENOTCONN);
            }
        }
        self.inner.0.call(request, payload, into)
    }

    fn is_answering(&self) -> bool {
        true
    }

    fn hands_over_descriptors(&self) -> bool {
        false
    }
}

#[test]
fn a_node_that_goes_while_removed_objects_are_forgotten_is_no_error() {
    let scratch = Scratch::new();
    let mut settings = settings_with_holder(scratch.path(), 64 << 20);
    settings.ssd.clear();
    settings.dram_bytes = None;
    let way = Arc::new(GoesInFlushes {
        inner: settings.holders[0].way.clone(),
        goes: AtomicBool::new(false),
        flushes: AtomicUsize::new(0),
    });
    settings.holders[0].way = HolderWay(way.clone());
    let running = Running::start(&settings, false);
    running.put(b"f", &content(1));
    way.goes.store(true, Ordering::Release);
    let unlinked = running.client.unlink(Ino::ROOT, b"f", me());
    unlinked.expect("unlink");
    let is_flushed = |count| {
        let begun = std::time::Instant::now();
        while way.flushes.load(Ordering::Acquire) < count {
            assert!(begun.elapsed() < common::PATIENCE, "no flush");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let before = way.flushes.load(Ordering::Acquire);
    is_flushed(before + 1);
    // The report would come right after the answer.
    std::thread::sleep(Duration::from_millis(100));
    let errors = running.status().errors;
    assert!(errors.is_empty(), "{errors:?}");
    way.goes.store(false, Ordering::Release);
    running.instance.stop();
}
