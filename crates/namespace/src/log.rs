//! The store, and how much of what was committed to it would survive a loss of power.
//!
//! A crash keeps a prefix of the commits. So where the PFS is about to be changed, which no crash takes back, the last
//! record of the file must be among those that are kept: else a start would find an older record, and take our own change
//! for an outsider's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_kv::{Durability, Error, Store};

/// Position of a file's last record among the commits.
#[derive(Debug, Default)]
pub(crate) struct Position(Arc<AtomicU64>);

/// Changes that are committed together.
#[derive(Default)]
pub(crate) struct Batch {
    changes: forebay_kv::Batch,
    records: Vec<Arc<AtomicU64>>,
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

    /// The batch has a record of the file that this is the position of.
    pub(crate) fn records(&mut self, position: &Position) {
        self.records.push(position.0.clone());
    }
}

/// A store that counts its commits.
pub(crate) struct Log {
    store: Box<dyn Store>,
    /// Commits that have returned.
    committed: AtomicU64,
    /// All up to this position survive a loss of power.
    stable: AtomicU64,
}

impl Log {
    pub(crate) fn new(store: Box<dyn Store>) -> Log {
        Log {
            store,
            committed: AtomicU64::new(0),
            stable: AtomicU64::new(0),
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
        for record in batch.records {
            record.store(if survives { 0 } else { position }, Ordering::Release);
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
        Ok(())
    }

    /// Whether the last record of a file survives a loss of power.
    pub(crate) fn is_stable(&self, position: &Position) -> bool {
        position.0.load(Ordering::Acquire) <= self.stable.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(log: &Log, position: &Position, durability: Durability) {
        let mut batch = Batch::new();
        batch.put(*b"f", *b"v");
        batch.records(position);
        log.commit(batch, durability).expect("commit");
    }

    #[test]
    fn a_record_is_stable_once_something_after_it_was_flushed() {
        let log = Log::new(Box::new(forebay_kv::memory::Memory::new()));
        let (a, b) = (Position::default(), Position::default());
        assert!(log.is_stable(&a), "nothing to lose");
        record(&log, &a, Durability::Buffered);
        assert!(!log.is_stable(&a));
        record(&log, &b, Durability::Synced);
        assert!(log.is_stable(&a) && log.is_stable(&b));
        record(&log, &a, Durability::Buffered);
        record(&log, &b, Durability::Buffered);
        assert!(!log.is_stable(&a) && !log.is_stable(&b));
        log.sync().expect("sync");
        assert!(log.is_stable(&a) && log.is_stable(&b));
    }
}
