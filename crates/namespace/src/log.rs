//! The store, and how much of what was committed to it would survive a loss of power.
//!
//! A loss of power keeps a prefix of the commits, and takes no change of the PFS back. So before
//! the PFS is changed, the last record of the file must be in that prefix. Otherwise a start would
//! find an older record, and take Forebay's own change for an outsider's.

use std::collections::HashSet;

use forebay_kv::{Durability, Error, Hold, Store};
use forebay_types::ObjectId;
use parking_lot::Mutex;

use crate::ids::{Ids, RECORDED_BELOW_KEY};
use crate::stability::Stability;

/// Changes that are committed together.
#[derive(Default)]
pub(crate) struct Batch {
    changes: forebay_kv::Batch,
    records: Vec<ObjectId>,
    removed: Vec<ObjectId>,
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

    /// The batch removes the record of this file.
    pub(crate) fn removes(&mut self, file: ObjectId) {
        self.removed.push(file);
    }
}

/// A store that counts its commits.
pub(crate) struct Log {
    store: Box<dyn Store>,
    stability: Stability,
    ids: Ids,
    /// Files of which a record could not be written.
    unwritten: Mutex<HashSet<ObjectId>>,
}

impl Log {
    pub(crate) fn new(ids: Ids, store: Box<dyn Store>) -> Log {
        Log {
            store,
            stability: Stability::default(),
            ids,
            unwritten: Mutex::default(),
        }
    }

    /// Ids of objects.
    pub(crate) fn ids(&self) -> &Ids {
        &self.ids
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

    pub(crate) fn commit(&self, mut batch: Batch, durability: Durability) -> Result<(), Error> {
        let before = self.stability.now();
        let noted = self.ids.to_note();
        if let Some(below) = noted {
            let watermark = below.to_be_bytes();
            batch.changes.put(RECORDED_BELOW_KEY, watermark);
        }
        let outcome = self.store.commit(batch.changes, durability);
        let survives = durability == Durability::Synced && outcome.is_ok();
        let files = batch.records.iter().chain(&batch.removed);
        match &outcome {
            Ok(()) => self.ids.committed(files, noted),
            Err(_) => self.unwritten.lock().extend(files),
        }
        self.stability
            .note(batch.records, survives.then_some(before));
        outcome
    }

    pub(crate) fn sync(&self) -> Result<(), Error> {
        let before = self.stability.now();
        self.store.sync()?;
        self.stability.flushed(before);
        Ok(())
    }

    /// Opens a store again that storage has failed. Returns the files whose records in it may not
    /// be what they are in memory; nothing if there was nothing to mend.
    pub(crate) fn mend(&self) -> Result<Option<HashSet<ObjectId>>, Error> {
        let before = self.stability.now();
        if !self.store.mend()? {
            return Ok(None);
        }
        self.stability.flushed(before);
        Ok(Some(std::mem::take(&mut *self.unwritten.lock())))
    }

    pub(crate) fn hold(&self) -> Option<Hold> {
        self.store.hold()
    }

    /// See [`Store::release`].
    pub fn release(&self) {
        self.store.release();
    }

    /// Whether the last record of a file survives a loss of power.
    pub(crate) fn is_stable(&self, file: ObjectId) -> bool {
        self.stability.is_stable(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ObjectId = ObjectId(1);
    const B: ObjectId = ObjectId(2);

    fn ids() -> Ids {
        Ids::new(1, 0, crate::ids::Unsettled::default())
    }

    fn record(log: &Log, file: ObjectId, durability: Durability) {
        let mut batch = Batch::new();
        batch.put(*b"f", *b"v");
        batch.records(file);
        log.commit(batch, durability).expect("commit");
    }

    #[test]
    fn a_mended_store_names_the_files_whose_records_failed() {
        let store = forebay_kv::failing::Failing::new(forebay_kv::memory::Memory::new());
        store.fail_nth_commit(2, libc::ENOSPC, forebay_kv::failing::Outcome::Kept);
        let log = Log::new(ids(), Box::new(store));
        assert_eq!(log.mend().expect("nothing"), None);
        record(&log, A, Durability::Buffered);
        let mut batch = Batch::new();
        batch.put(*b"f", *b"w");
        batch.records(B);
        log.commit(batch, Durability::Buffered).expect_err("armed");
        assert!(!log.is_stable(A) && !log.is_stable(B));
        assert_eq!(log.mend().expect("mended"), Some(HashSet::from([B])));
        assert_eq!(log.get(b"f").expect("read"), Some(b"v".to_vec()));
        assert!(log.is_stable(A));
        record(&log, B, Durability::Synced);
        assert!(log.is_stable(B));
    }

    #[test]
    fn a_record_is_stable_once_something_after_it_was_flushed() {
        let log = Log::new(ids(), Box::new(forebay_kv::memory::Memory::new()));
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
        assert!(!log.stability.has_positions());
    }
}
