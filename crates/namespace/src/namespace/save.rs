//! Writing the records of files, and of what is to be collected.

use std::sync::Arc;

use forebay_kv::Durability;
use forebay_types::{Ino, ObjectId, failpoint};

use super::{Garbage, Namespace};
use crate::NsError;
use crate::file::{File, FileState};
use crate::log::Batch;
use crate::record;

/// So many records are written in one commit: their files are held meanwhile, some hundred microseconds.
const COMMIT_FILES_MAX: usize = 64;

impl Namespace {
    pub(crate) fn put_file(
        &self,
        batch: &mut Batch,
        file: &File,
        state: &FileState,
    ) -> Result<(), NsError> {
        batch.put(
            record::file_key(file.object),
            record::encode(&state.record(file.ino))?,
        );
        batch.records(file.object);
        tracing::trace!(file = %file.object, names = %state.told_names(), residency = ?state.residency, "record");
        Ok(())
    }

    /// Removes a file's record and leaves its objects to be collected.
    pub(crate) fn drop_file(
        &self,
        batch: &mut Batch,
        file: &File,
        state: &FileState,
    ) -> Result<Garbage, NsError> {
        let residency = &state.residency;
        let shadow = residency.shadow.map(|(tier, _)| tier);
        let garbage = Garbage {
            object: file.object,
            tiers: [Some(residency.tier), shadow],
        };
        tracing::trace!(file = %file.object, names = %state.told_names(), "record goes");
        batch.delete(record::file_key(file.object));
        batch.put(
            record::garbage_key(file.object),
            record::encode(&garbage.tiers)?,
        );
        Ok(garbage)
    }

    /// An object is to be collected, now or, while somebody has it open, later.
    pub fn add_garbage(&self, garbage: Garbage) {
        self.garbage.lock().push(garbage);
    }

    /// Objects to be removed, once nobody has them open. The caller removes them and then says so.
    pub fn take_garbage(&self) -> Vec<Garbage> {
        std::mem::take(&mut *self.garbage.lock())
    }

    /// These objects are gone from their tiers.
    pub fn garbage_removed(&self, objects: &[ObjectId]) -> Result<(), NsError> {
        let mut batch = Batch::new();
        for object in objects {
            batch.delete(record::garbage_key(*object));
        }
        Ok(self.store.commit(batch, Durability::Buffered)?)
    }

    pub(crate) fn commit(&self, batch: Batch) -> Result<(), NsError> {
        Ok(self.store.commit(batch, Durability::Buffered)?)
    }

    /// Writes a file's record; nothing for an unlinked one.
    pub fn save(
        &self,
        file: &File,
        state: &FileState,
        durability: Durability,
    ) -> Result<(), NsError> {
        if state.is_unlinked() {
            return Ok(());
        }
        let mut batch = Batch::new();
        self.put_file(&mut batch, file, state)?;
        Ok(self.store.commit(batch, durability)?)
    }

    /// Writes a file's record with the next batch, which is soon. For changes that recovery finds
    /// out by itself.
    pub fn save_later(&self, file: &Arc<File>, state: &mut FileState) {
        if !std::mem::replace(&mut state.unsaved, true) {
            self.unsaved.lock().push(file.clone());
        }
    }

    /// Writes the records that were put off.
    pub fn save_deferred(&self) -> Result<(), NsError> {
        // Whoever comes second finds nothing to do, and may say so only when the first has done it.
        let _one_at_a_time = self.saving.lock();
        let files = std::mem::take(&mut *self.unsaved.lock());
        let held: Vec<_> = files.iter().collect();
        let failures =
            self.save_together(&held, &mut |_, state| std::mem::take(&mut state.unsaved));
        if !held.is_empty() {
            failpoint::hit(failpoint::Point::DeferredRecord);
        }
        let mut first = None;
        for (at, error) in failures {
            self.save_later(&files[at], &mut files[at].lock());
            first.get_or_insert(error);
        }
        first.map_or(Ok(()), Err)
    }

    /// Changes the states of many files, and writes the records of those for which `change` says so, many in
    /// one commit. The failures are by position.
    ///
    /// The states are held until their records are written, so that no older one can overtake a newer one. Of
    /// several only those that nobody holds are taken: who holds one may be waiting for another.
    pub(crate) fn save_together(
        &self,
        files: &[&Arc<File>],
        change: &mut dyn FnMut(usize, &mut FileState) -> bool,
    ) -> Vec<(usize, NsError)> {
        let mut failures = Vec::new();
        let mut at = 0;
        while at < files.len() {
            let mut held = vec![files[at].lock()];
            let others = files[at + 1..].iter().take(COMMIT_FILES_MAX - 1);
            held.extend(others.map_while(|file| file.try_lock()));
            let changed: Vec<usize> = (0..held.len())
                .filter(|&i| change(at + i, &mut held[i]) && !held[i].is_unlinked())
                .collect();
            let commit = |which: &[usize]| -> Result<(), NsError> {
                let mut batch = Batch::new();
                for &i in which {
                    self.put_file(&mut batch, files[at + i], &held[i])?;
                }
                match which.is_empty() {
                    true => Ok(()),
                    false => self.commit(batch),
                }
            };
            if commit(&changed).is_err() {
                // One of them may be to blame: the others shall not suffer for it.
                let single = |&i: &usize| Some((at + i, commit(&[i]).err()?));
                failures.extend(changed.iter().filter_map(single));
            }
            at += held.len();
        }
        failures
    }

    /// Everything recorded so far survives power loss.
    pub fn sync(&self) -> Result<(), NsError> {
        self.save_deferred()?;
        Ok(self.store.sync()?)
    }

    /// The names in a directory survive power loss: those on record and those on the PFS.
    pub fn sync_dir(&self, ino: Ino) -> Result<(), NsError> {
        let dir = self.dir(ino)?;
        self.sync()?;
        let handle = self.open_dir(&dir)?;
        Ok(self.pfs.sync_dir(&handle)?)
    }
}
