//! The store, and how much of what was committed to it would survive a loss of power.
//!
//! A crash keeps a prefix of the commits. So where the PFS is about to be changed, which no crash takes back, the last
//! record of the file must be among those that are kept: else a start would find an older record, and take our own change
//! for an outsider's.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_kv::{Durability, Error, Store};
use forebay_types::ObjectId;
use parking_lot::Mutex;

/// Changes that are committed together.
#[derive(Default)]
pub(crate) struct Batch {
    changes: forebay_kv::Batch,
    records: Vec<ObjectId>,
}

impl Batch {
    pub(crate) fn new() -> Batch {
        Batch::default()
    }

    pub(crate) fn put(&mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.changes.put(key, value);
    }

    pub(crate) fn delete(&mut self, key: impl Into<Vec<u8>>) {
        self.changes.delete(key);
    }

    /// The batch has a record of this file.
    pub(crate) fn records(&mut self, file: ObjectId) {
        self.records.push(file);
    }
}

/// A store that counts its commits.
pub(crate) struct Log {
    store: Box<dyn Store>,
    /// Commits that have returned.
    committed: AtomicU64,
    /// All up to this position survive a loss of power.
    stable: AtomicU64,
    /// Positions of the last records of files, beyond what was stable at the last flush.
    recorded: Mutex<HashMap<ObjectId, u64>>,
}

impl Log {
    pub(crate) fn new(store: Box<dyn Store>) -> Log {
        Log {
            store,
            committed: AtomicU64::new(0),
            stable: AtomicU64::new(0),
            recorded: Mutex::default(),
        }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.store.get(key)
    }

    pub(crate) fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error> {
        self.store.scan(prefix, after, visit)
    }

    pub(crate) fn commit(&self, batch: Batch, durability: Durability) -> Result<(), Error> {
        let before = self.committed.load(Ordering::Acquire);
        let outcome = self.store.commit(batch.changes, durability);
        // Also after an error: whether it was applied is not known then.
        let position = self.committed.fetch_add(1, Ordering::AcqRel) + 1;
        let survives = durability == Durability::Synced && outcome.is_ok();
        if !batch.records.is_empty() {
            let mut recorded = self.recorded.lock();
            for file in batch.records {
                match survives {
                    true => recorded.remove(&file),
                    false => recorded.insert(file, position),
                };
            }
        }
        if survives {
            self.stable.fetch_max(before, Ordering::AcqRel);
        }
        outcome
    }

    pub(crate) fn sync(&self) -> Result<(), Error> {
        let before = self.committed.load(Ordering::Acquire);
        self.store.sync()?;
        self.stable.fetch_max(before, Ordering::AcqRel);
        self.recorded
            .lock()
            .retain(|_, position| *position > before);
        Ok(())
    }

    /// Whether the last record of a file survives a loss of power.
    pub(crate) fn is_stable(&self, file: ObjectId) -> bool {
        let position = self.recorded.lock().get(&file).copied().unwrap_or(0);
        position <= self.stable.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ObjectId = ObjectId(1);
    const B: ObjectId = ObjectId(2);

    fn record(log: &Log, file: ObjectId, durability: Durability) {
        let mut batch = Batch::new();
        batch.put(*b"f", *b"v");
        batch.records(file);
        log.commit(batch, durability).expect("commit");
    }

    #[test]
    fn a_record_is_stable_once_something_after_it_was_flushed() {
        let log = Log::new(Box::new(forebay_kv::memory::Memory::new()));
        assert!(log.is_stable(A), "nothing to lose");
        record(&log, A, Durability::Buffered);
        assert!(!log.is_stable(A));
        record(&log, B, Durability::Synced);
        assert!(log.is_stable(A) && log.is_stable(B));
        record(&log, A, Durability::Buffered);
        record(&log, B, Durability::Buffered);
        assert!(!log.is_stable(A) && !log.is_stable(B));
        log.sync().expect("sync");
        assert!(log.is_stable(A) && log.is_stable(B));
        assert!(log.recorded.lock().is_empty());
    }
}
