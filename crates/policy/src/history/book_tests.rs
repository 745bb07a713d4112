use std::collections::{BTreeMap, HashMap, HashSet};

use forebay_types::history::{Record, What};
use proptest::prelude::*;

use super::{Book, Found, Key};

const QUIET_MS: u64 = 100;

fn key(application: &str, version: Option<u64>, uid: u32) -> Key {
    Key::new(application.into(), version, uid)
}

/// What a store would hold.
#[derive(Default)]
struct Store {
    open: BTreeMap<u64, Record>,
    over: BTreeMap<u64, Record>,
}

impl Store {
    fn save(&mut self, book: &mut Book, now_ms: u64) {
        let changes = book.changes(now_ms);
        for (id, record, _) in &changes.open {
            self.open.insert(*id, record.clone());
        }
        for (id, record) in &changes.over {
            self.open.remove(id);
            self.over.insert(*id, record.clone());
        }
        for id in &changes.void {
            self.open.remove(id);
        }
        book.saved(&changes);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Open(u64, usize),
    Close(u64, usize, u64),
    Rename(u64, usize),
    Copy(u64),
    Drain(u64),
    Remove(u64),
    Pass(u64),
    Save,
    Kill,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let object = 0u64..6;
    let which = 0usize..4;
    let step = prop_oneof![
        (object.clone(), which.clone()).prop_map(|(o, k)| Step::Open(o, k)),
        (object.clone(), which.clone(), 1u64..100).prop_map(|(o, k, b)| Step::Close(o, k, b)),
        (object.clone(), which).prop_map(|(o, k)| Step::Rename(o, k)),
        object.clone().prop_map(Step::Copy),
        object.clone().prop_map(Step::Drain),
        object.prop_map(Step::Remove),
        (1u64..300).prop_map(Step::Pass),
        Just(Step::Save),
        Just(Step::Kill),
    ];
    prop::collection::vec(step, 0..120)
}

proptest! {
    /// Whatever happens in which order, and whenever the server is killed: each file that was
    /// closed is in one record once, and each record knows how many of its files are undrained.
    #[test]
    fn every_file_is_in_one_record(steps in steps()) {
        let keys = [
            key("a", Some(1), 7),
            key("a", Some(1), 8),
            key("b", None, 7),
            key("tmp", None, 7),
        ];
        let (mut book, mut store) = (Book::new(0, QUIET_MS), Store::default());
        let (mut now_ms, mut starts) = (1000, 0);
        // Undrained files, with what they belong to.
        let mut undrained: HashMap<u64, (usize, u64)> = HashMap::new();
        let mut closes = 0;
        // Undrained files that a start has found: a close of one says what was known already.
        let mut found = HashSet::new();
        for step in steps {
            now_ms += 1;
            match step {
                Step::Open(o, k) => book.opened(o, keys[k].clone(), now_ms),
                Step::Close(o, k, bytes) => {
                    book.closed(o, &keys[k], (bytes, false), now_ms);
                    undrained.insert(o, (k, bytes));
                    closes += u64::from(!found.remove(&o));
                }
                Step::Rename(o, k) => {
                    book.renamed(o, &keys[k], now_ms);
                    undrained.entry(o).and_modify(|(of, _)| *of = k);
                }
                Step::Copy(o) => book.copying(o, now_ms),
                Step::Drain(o) => {
                    book.drained(o, 1, now_ms);
                    undrained.remove(&o);
                    found.remove(&o);
                }
                Step::Remove(o) => {
                    book.left(o, now_ms);
                    undrained.remove(&o);
                    found.remove(&o);
                }
                Step::Pass(ms) => now_ms += ms,
                Step::Save => store.save(&mut book, now_ms),
                Step::Kill => {
                    // A server that was killed at once after it has saved: nothing is made up.
                    store.save(&mut book, now_ms);
                    starts += 1;
                    book = Book::new(starts << 32, QUIET_MS);
                    for (id, record) in &store.open {
                        book.restore(*id, record.clone(), now_ms);
                    }
                    found = undrained.keys().copied().collect();
                    let all = undrained.iter().map(|(o, (k, bytes))| Found {
                        object: *o,
                        key: keys[*k].clone(),
                        bytes: *bytes,
                        changed_ms: now_ms,
                        is_direct: false,
                    });
                    book.resume(all.collect(), now_ms);
                }
            }
            let all: Vec<Record> = book.records().into_iter().map(|(_, r)| r).collect();
            let sum = |of: fn(&Record) -> u64| -> u64 {
                all.iter().chain(store.over.values()).map(of).sum()
            };
            prop_assert_eq!(sum(|r| r.files), closes);
            prop_assert_eq!(sum(Record::undrained_files), undrained.len() as u64);
        }
        now_ms += QUIET_MS;
        let objects: Vec<u64> = undrained.keys().copied().collect();
        objects.into_iter().for_each(|o| book.drained(o, 1, now_ms));
        for o in 0..6 {
            book.put_down(o);
        }
        store.save(&mut book, now_ms + QUIET_MS);
        prop_assert_eq!(book.records().len(), 0);
        prop_assert_eq!(store.open.len(), 0);
        prop_assert!(store.over.values().all(|r| r.over && r.begun_ms <= r.ended_ms));
    }
}

#[test]
fn a_version_has_when_it_began_ended_waited_and_was_drained() {
    let mut book = Book::new(0, QUIET_MS);
    let of = key("sim", Some(7), 1000);
    book.opened(1, of.clone(), 10);
    book.opened(2, of.clone(), 20);
    book.waited(1, 5, 0);
    book.waited(2, 0, 9);
    book.closed(1, &of, (100, false), 50);
    book.closed(2, &of, (200, true), 60);
    book.copying(1, 70);
    book.drained(1, 100, 90);
    let halfway = &book.records()[0].1;
    assert_eq!(
        (halfway.undrained_files(), halfway.all_drained_ms()),
        (1, None)
    );
    book.drained(2, 0, 95);
    assert!(book.changes(95 + QUIET_MS - 1).over.is_empty());
    let over = book.changes(95 + QUIET_MS).over;
    let (_, record) = &over[0];
    let expected = Record {
        version: Some(7),
        ended_ms: 60,
        files: 2,
        bytes: 300,
        direct_files: 1,
        direct_bytes: 200,
        wait_us: 5,
        stall_us: 9,
        drain_begun_ms: Some(70),
        drained_ms: Some(95),
        drained_files: 2,
        drained_bytes: 100,
        over: true,
        ..Record::new(What::Version, "sim".into(), 1000, 10)
    };
    assert_eq!(record, &expected);
    assert_eq!(record.all_drained_ms(), Some(95));
    assert_eq!(record.drain_bytes_per_s(), Some(4000.0));
}

#[test]
fn without_versions_a_pause_is_the_end_of_a_record_and_with_one_it_is_not() {
    let mut book = Book::new(0, QUIET_MS);
    for at in [10, 50, 500] {
        for of in [key("log", None, 1), key("sim", Some(1), 1)] {
            let object = at * 2 + u64::from(of.version.is_some());
            book.opened(object, of.clone(), at);
            book.closed(object, &of, (1, false), at + 1);
        }
    }
    let files: Vec<(Option<u64>, u64)> = book
        .records()
        .iter()
        .map(|(_, r)| (r.version, r.files))
        .collect();
    assert_eq!(files, [(None, 2), (Some(1), 3), (None, 1)]);
}

#[test]
fn a_version_is_not_over_while_one_of_its_files_is_written() {
    let mut book = Book::new(0, QUIET_MS);
    let of = key("sim", Some(1), 1);
    book.opened(1, of.clone(), 0);
    book.opened(2, of.clone(), 0);
    book.closed(1, &of, (1, false), 10);
    book.drained(1, 1, 20);
    assert!(book.changes(10 * QUIET_MS).over.is_empty());
    book.closed(2, &of, (1, false), 10 * QUIET_MS);
    book.drained(2, 1, 10 * QUIET_MS);
    let over = book.changes(11 * QUIET_MS).over;
    assert_eq!(over[0].1.files, 2);
}

#[test]
fn what_was_not_saved_before_a_kill_is_made_up_from_what_is_undrained() {
    let mut saved = Record::new(What::Version, "sim".into(), 5, 100);
    saved.version = Some(3);
    (saved.files, saved.bytes, saved.ended_ms) = (2, 20, 110);
    let found = |object, bytes, changed_ms| Found {
        object,
        key: key("sim", Some(3), 5),
        bytes,
        changed_ms,
        is_direct: false,
    };
    // A third was closed after the record was saved.
    let mut book = Book::new(1 << 32, QUIET_MS);
    book.restore(9, saved.clone(), 200);
    book.resume(
        vec![found(1, 10, 105), found(3, 7, 130), found(2, 10, 109)],
        200,
    );
    let now = &book.records()[0].1;
    assert_eq!(
        (now.files, now.bytes, now.ended_ms, now.undrained_files()),
        (3, 27, 130, 3)
    );
    // One was drained after that.
    let mut book = Book::new(1 << 32, QUIET_MS);
    book.restore(9, saved, 200);
    book.resume(vec![found(2, 10, 109)], 200);
    let now = &book.records()[0].1;
    assert_eq!(
        (now.files, now.drained_files, now.drained_bytes),
        (2, 1, 10)
    );
    // Of a version that is not on record at all.
    let mut book = Book::new(1 << 32, QUIET_MS);
    book.resume(vec![found(1, 10, 105), found(2, 10, 109)], 200);
    let now = &book.records()[0].1;
    assert_eq!(
        (now.files, now.bytes, now.begun_ms, now.ended_ms),
        (2, 20, 105, 109)
    );
}

#[test]
fn a_restart_counts_each_file_once_where_it_was_read() {
    let mut book = Book::new(0, QUIET_MS);
    assert!(!book.has_restarts());
    let of = key("sim", Some(2), 4);
    book.read(&of, (1, 10), true, 5);
    assert!(!book.would_count(&of, 1));
    book.restarted(&of, 10);
    assert!(book.would_count(&of, 1));
    book.read(&of, (1, 10), true, 11);
    assert!(!book.would_count(&of, 1) && book.would_count(&of, 2));
    assert!(!book.would_count(&key("sim", Some(2), 5), 2));
    book.read(&of, (1, 10), true, 12);
    book.read(&key("sim", None, 4), (2, 30), false, 13);
    book.read(&key("other", Some(2), 4), (3, 30), false, 14);
    let over = book.changes(13 + QUIET_MS).over;
    let (_, record) = &over[0];
    assert_eq!(
        (record.what, record.version, record.uid),
        (What::Restart, Some(2), 4)
    );
    assert_eq!((record.files, record.bytes), (2, 40));
    assert_eq!((record.from_buffer_bytes, record.from_pfs_bytes), (10, 30));
    assert!(!book.has_restarts());
}

#[test]
fn what_is_of_one_user_never_counts_in_the_record_of_another() {
    let mut book = Book::new(0, QUIET_MS);
    let [first, second] = [4, 5].map(|uid| key("sim", Some(2), uid));
    for (object, of, bytes) in [(1, &first, 10), (2, &second, 700)] {
        book.opened(object, of.clone(), 10);
        book.closed(object, of, (bytes, false), 20);
    }
    book.restarted(&first, 30);
    book.restarted(&second, 40);
    book.read(&first, (1, 10), true, 41);
    book.read(&second, (1, 10), false, 42);
    let is = |(_, r): (u64, Record)| (r.what, r.uid, r.bytes, r.from_pfs_bytes, r.over);
    let all: Vec<_> = book.records().into_iter().map(is).collect();
    let expected = [
        (What::Version, 4, 10, 0, false),
        (What::Version, 5, 700, 0, false),
        (What::Restart, 4, 10, 0, false),
        (What::Restart, 5, 10, 10, false),
    ];
    assert_eq!(all, expected);
    // A start counts what it finds with the records of its owner.
    let mut again = Book::new(1 << 32, QUIET_MS);
    for (id, record) in book.records() {
        again.restore(id, record, 50);
    }
    let found = |object, key: &Key, bytes| Found {
        object,
        key: key.clone(),
        bytes,
        changed_ms: 20,
        is_direct: false,
    };
    again.resume(vec![found(2, &second, 700), found(1, &first, 10)], 50);
    again.left(2, 60);
    let gone: Vec<_> = again
        .records()
        .iter()
        .map(|(_, r)| (r.uid, r.gone_bytes))
        .collect();
    assert_eq!(gone, [(4, 0), (5, 700), (4, 0), (5, 0)]);
}

#[test]
fn a_name_of_any_length_is_cut_between_two_characters() {
    let mut book = Book::new(0, QUIET_MS);
    let long = key(
        &format!("{}\u{e9}{}", "a".repeat(254), "b".repeat(1 << 15)),
        None,
        1,
    );
    book.closed(1, &long, (1, false), 10);
    book.restarted(&long, 20);
    book.read(&long, (1, 1), true, 30);
    let names: Vec<_> = book
        .records()
        .into_iter()
        .map(|(_, r)| (r.application, r.files))
        .collect();
    assert_eq!(names, [("a".repeat(254), 1), ("a".repeat(254), 1)]);
}

#[test]
fn sizes_beyond_all_measure_overflow_nothing() {
    let mut book = Book::new(0, QUIET_MS);
    let of = key("sim", Some(1), 1);
    for object in 0..3 {
        book.opened(object, of.clone(), 10);
        book.waited(object, u64::MAX, u64::MAX);
        book.closed(object, &of, (u64::MAX, true), 20);
    }
    book.left(0, 30);
    book.drained(1, u64::MAX, 30);
    book.restarted(&of, 30);
    for ino in 0..2 {
        book.read(&of, (ino, u64::MAX), true, 30);
    }
    let mut again = Book::new(1 << 32, QUIET_MS);
    for (id, record) in book.records() {
        again.restore(id, record, 40);
    }
    let found = |object| Found {
        object,
        key: of.clone(),
        bytes: u64::MAX,
        changed_ms: 20,
        is_direct: true,
    };
    again.resume(vec![found(2), found(7)], 40);
    again.left(2, 50);
    let sums: Vec<_> = again
        .records()
        .into_iter()
        .map(|(_, r)| (r.bytes, r.files))
        .collect();
    assert_eq!(sums, [(u64::MAX, 4), (u64::MAX, 2)]);
}

#[test]
fn who_appends_to_what_is_undrained_has_written_what_is_new() {
    let mut book = Book::new(0, QUIET_MS);
    let of = key("log", None, 1);
    let bytes = |book: &Book| -> Vec<_> {
        let is = |(_, r): (u64, Record)| (r.files, r.bytes, r.gone_files, r.gone_bytes);
        book.records().into_iter().map(is).collect()
    };
    for (at, size) in [(10, 100), (20, 110), (30, 130), (40, 130)] {
        book.opened(1, of.clone(), at);
        book.closed(1, &of, (size, false), at + 1);
    }
    assert_eq!(bytes(&book), [(4, 130, 3, 0)]);
    // It is cut, and grows again.
    book.closed(1, &of, (50, false), 50);
    assert_eq!(bytes(&book), [(5, 130, 4, 80)]);
    book.closed(1, &of, (60, false), 60);
    assert_eq!(bytes(&book), [(6, 140, 5, 80)]);
    // After a pause that is another record; what is removed then is all that was counted there.
    book.opened(1, of.clone(), 500);
    book.closed(1, &of, (65, false), 510);
    assert_eq!(bytes(&book), [(6, 140, 6, 140), (1, 5, 0, 0)]);
    book.left(1, 520);
    assert_eq!(bytes(&book), [(6, 140, 6, 140), (1, 5, 1, 5)]);
    // What was drained is copied again, all of it.
    book.closed(2, &of, (100, false), 530);
    book.drained(2, 100, 540);
    book.closed(2, &of, (110, false), 550);
    assert_eq!(bytes(&book)[1], (3, 215, 1, 5));
}
