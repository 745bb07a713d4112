//! What is put on record of files: by object, whatever they are called.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_policy::history::{Book, Changes, Found, Keep, Key};
use forebay_types::ObjectId;
use forebay_types::history::Record;
use parking_lot::Mutex;

use crate::base::Base;
use crate::catalog::Catalog;

/// The records that are not over, and what is kept of the others.
pub struct History {
    book: Mutex<Book>,
    /// Of [`Keep`], which may change.
    keep_ms: AtomicU64,
    keep_bytes: AtomicU64,
    origin: Instant,
    /// Of `origin`, in milliseconds since 1970.
    origin_ms: u64,
}

impl History {
    /// Empty.
    pub fn new(base: &Base) -> History {
        let settings = base.settings();
        let quiet_ms = settings.engine.quiet.as_millis() as u64;
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        History {
            // No other start gives the same numbers.
            book: Mutex::new(Book::new(u64::from(base.epoch()) << 32, quiet_ms)),
            keep_ms: AtomicU64::new(settings.history.for_ms),
            keep_bytes: AtomicU64::new(settings.history.bytes),
            origin: Instant::now(),
            origin_ms: since.map_or(0, |since| since.as_millis() as u64),
        }
    }

    /// What is kept.
    pub fn keep(&self) -> Keep {
        Keep {
            for_ms: self.keep_ms.load(Ordering::Relaxed),
            bytes: self.keep_bytes.load(Ordering::Relaxed),
        }
    }

    /// So much is kept from now on.
    pub fn set_keep(&self, keep: Keep) {
        self.keep_ms.store(keep.for_ms, Ordering::Relaxed);
        self.keep_bytes.store(keep.bytes, Ordering::Relaxed);
    }

    /// Whether anything is put on record.
    pub fn is_on(&self) -> bool {
        self.keep().is_on()
    }

    /// Milliseconds since 1970 of a clock that does not jump while the server runs.
    pub fn now_ms(&self) -> u64 {
        self.origin_ms + self.origin.elapsed().as_millis() as u64
    }

    fn note(&self, note: impl FnOnce(&mut Book, u64)) {
        if self.is_on() {
            let now_ms = self.now_ms();
            note(&mut self.book.lock(), now_ms);
        }
    }

    /// Who writes a file has waited for space.
    pub fn stalled(&self, object: ObjectId, stall: Duration) {
        self.note(|book, _| book.waited(object.0, 0, stall.as_micros() as u64));
    }

    /// Who writes a file has waited for the turn of the application.
    pub fn waited(&self, object: ObjectId, wait: Duration) {
        self.note(|book, _| book.waited(object.0, wait.as_micros() as u64, 0));
    }

    /// Nobody writes a file any more.
    pub fn put_down(&self, object: ObjectId) {
        self.note(|book, _| book.put_down(object.0));
    }

    /// The copy of a file to the PFS begins.
    pub fn copying(&self, object: ObjectId) {
        self.note(|book, now_ms| book.copying(object.0, now_ms));
    }

    /// A file is whole on the PFS.
    pub fn drained(&self, object: ObjectId, copied_bytes: u64) {
        self.note(|book, now_ms| book.drained(object.0, copied_bytes, now_ms));
    }

    /// An object is gone.
    pub fn left(&self, object: ObjectId) {
        self.note(|book, now_ms| book.left(object.0, now_ms));
    }

    /// An application has begun again, and reads.
    pub fn restarted(&self, key: &Key) {
        self.note(|book, now_ms| book.restarted(key, now_ms));
    }

    /// Whether what is read may belong to a restart.
    pub fn has_restarts(&self) -> bool {
        self.is_on() && self.book.lock().has_restarts()
    }

    /// Whether a file, by inode number, would count for a restart.
    pub fn would_count(&self, key: &Key, ino: u64) -> bool {
        self.is_on() && self.book.lock().would_count(key, ino)
    }

    /// A file, by inode number and size, was opened for reading.
    pub fn read(&self, key: &Key, file: (u64, u64), in_buffer: bool) {
        self.note(|book, now_ms| book.read(key, file, in_buffer, now_ms));
    }

    /// Something is over.
    pub fn add(&self, record: Record) {
        self.note(|book, now_ms| book.add(record, now_ms));
    }

    /// Takes over what an earlier start has left: records that were not over, by number, and what
    /// is undrained.
    pub fn resume(&self, left: Vec<(u64, Record)>, lost: &[(Key, u64)], found: Vec<Found>) {
        self.note(|book, now_ms| {
            for (id, record) in left {
                book.restore(id, record, now_ms);
            }
            for (key, bytes) in lost {
                book.lost(key, *bytes);
            }
            book.resume(found, now_ms);
        });
    }

    /// What is to be saved.
    pub fn changes(&self) -> Changes {
        let now_ms = self.now_ms();
        self.book.lock().changes(now_ms)
    }

    /// That was saved.
    pub fn saved(&self, changes: &Changes) {
        self.book.lock().saved(changes);
    }

    /// All that is not on record as something that is over, by number.
    pub fn records(&self) -> Vec<(u64, Record)> {
        self.book.lock().records()
    }
}

impl Catalog {
    /// What is put on record.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// A file of that owner was opened for writing.
    pub fn note_writer(&self, object: ObjectId, uid: u32) {
        if self.history.is_on()
            && let Some(key) = self.apps.recorded_as(object, uid)
        {
            self.history
                .note(|book, now_ms| book.opened(object.0, key, now_ms));
        }
    }

    /// A file was written and closed: its bytes, and whether they are on the PFS already.
    pub fn note_closed(&self, object: ObjectId, size: (u64, bool), uid: u32) {
        if self.history.is_on()
            && let Some(key) = self.apps.recorded_as(object, uid)
        {
            self.history
                .note(|book, now_ms| book.closed(object.0, &key, size, now_ms));
        }
    }

    /// A file may belong to something else now.
    pub fn note_renamed(&self, object: ObjectId, uid: u32) {
        if self.history.is_on()
            && let Some(key) = self.apps.recorded_as(object, uid)
        {
            self.history
                .note(|book, now_ms| book.renamed(object.0, &key, now_ms));
        }
    }
}
