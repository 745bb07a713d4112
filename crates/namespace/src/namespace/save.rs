//! Writing the records of files, and of what is to be collected.

use std::sync::Arc;

use forebay_kv::{Durability, Hold};
use forebay_tiers::{PIECE_BYTES_MIN, Sums};
use forebay_types::{Ino, ObjectId, failpoint};

use super::{Garbage, Namespace, Unrecorded};
use crate::NsError;
use crate::error::on_pfs;
use crate::log::Batch;
use crate::record::{self, SumsRecord};
use crate::tree::Dir;
use crate::tree::{File, FileState};

/// So many records are written in one commit: their files are held meanwhile, some hundred
/// microseconds.
const COMMIT_FILES_MAX: usize = 64;

/// What else is written with a file's record: the batch, the position of the file, and its state.
pub(crate) type Beside<'a> = &'a dyn Fn(&mut Batch, usize, &FileState) -> Result<(), NsError>;

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

    /// Keeps the checksums of the blocks of a file's content; its record has that of the whole.
    pub(crate) fn put_sums(
        &self,
        batch: &mut Batch,
        file: &File,
        sums: &Sums,
    ) -> Result<(), NsError> {
        if !sums.after_blocks.is_empty() {
            let record = record::encode(&SumsRecord::of(sums))?;
            batch.put(record::sums_key(file.object), record);
        }
        Ok(())
    }

    /// The checksums of what a file's record knows the checksum of. `None` where it does not, or
    /// where those of the blocks are not known: of a content of one block they always are.
    pub fn sums(&self, file: &File) -> Result<Option<Sums>, NsError> {
        let (residency, bytes) = {
            let state = file.lock();
            (state.residency, state.meta.size)
        };
        let Some(crc) = residency.crc else {
            return Ok(None);
        };
        if bytes <= PIECE_BYTES_MIN {
            return Ok(Some(Sums::whole(bytes, crc)));
        }
        let Some(value) = self.store.get(&record::sums_key(file.object))? else {
            return Ok(None);
        };
        let kept: SumsRecord = match record::decode(&value) {
            Ok(kept) => kept,
            // fsck names it; until then they are lost.
            Err(error) => {
                tracing::warn!("checksums of the blocks of object {}: {error}", file.object);
                return Ok(None);
            }
        };
        match (kept.crc, kept.bytes) == (crc, bytes) {
            true => Ok(Sums::kept(bytes, crc, kept.block_bytes, kept.after_blocks)),
            false => Ok(None),
        }
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
        batch.removes(file.object);
        if residency.has_sums {
            batch.delete(record::sums_key(file.object));
        }
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

    /// Whether there are objects to be removed.
    pub fn has_garbage(&self) -> bool {
        !self.garbage.lock().is_empty()
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
        self.drop_nameless(&mut batch, objects);
        self.store.commit(batch, Durability::Buffered)?;
        for object in objects {
            self.holders.forget(*object);
            self.give_up(*object);
        }
        Ok(())
    }

    pub(crate) fn commit(&self, batch: Batch) -> Result<(), NsError> {
        Ok(self.store.commit(batch, Durability::Buffered)?)
    }

    /// Writes a file's record; that of an unlinked one, if a client has it open that may come back.
    pub fn save(
        &self,
        file: &File,
        state: &FileState,
        durability: Durability,
    ) -> Result<(), NsError> {
        if state.is_unlinked() {
            return self.save_nameless(file, state, durability);
        }
        let mut batch = Batch::new();
        self.put_file(&mut batch, file, state)?;
        Ok(self.store.commit(batch, durability)?)
    }

    /// Writes a file's record with the next batch, which is soon. For changes that recovery finds
    /// out by itself.
    pub fn save_later(&self, file: &Arc<File>, state: &mut FileState) {
        if state.mark_unsaved() {
            self.unsaved.lock().push(file.clone());
        }
    }

    /// Writes the records that were put off.
    pub fn save_deferred(&self) -> Result<(), NsError> {
        // Whoever comes second finds nothing to do, and may say so only when the first has done it.
        let _one_at_a_time = self.saving.lock();
        let files = std::mem::take(&mut *self.unsaved.lock());
        let held: Vec<_> = files.iter().collect();
        let failures = self.save_together(
            &held,
            &mut |_, state| state.take_unsaved(),
            &mut |_, _| {},
            None,
        );
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

    /// Changes the states of many files, and writes the records of those for which `change` says
    /// so, many in one commit, with what `beside` adds. The failures are by position; before
    /// anybody sees them, `undo` takes their changes back.
    ///
    /// The states are held until their records are written, so that no older one can overtake a
    /// newer one. Of several only those that nobody holds are taken: who holds one may be waiting
    /// for another.
    pub(crate) fn save_together(
        &self,
        files: &[&Arc<File>],
        change: &mut dyn FnMut(usize, &mut FileState) -> bool,
        undo: &mut dyn FnMut(usize, &mut FileState),
        beside: Option<Beside<'_>>,
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
                    if let Some(beside) = beside {
                        beside(&mut batch, at + i, &held[i])?;
                    }
                }
                match which.is_empty() {
                    true => Ok(()),
                    false => self.commit(batch),
                }
            };
            if commit(&changed).is_err() {
                // One of them may be to blame: the others shall not suffer for it.
                let single = |&i: &usize| Some((i, commit(&[i]).err()?));
                let failed: Vec<_> = changed.iter().filter_map(single).collect();
                for (i, error) in failed {
                    undo(at + i, &mut held[i]);
                    failures.push((at + i, error));
                }
            }
            at += held.len();
        }
        failures
    }

    /// Opens a store again that storage has failed, once that takes writes; whether there was
    /// anything to mend. `find` knows files by their objects. Records that could not be written
    /// meanwhile are written as the files are now.
    pub fn mend(&self, find: &dyn Fn(ObjectId) -> Option<Arc<File>>) -> Result<bool, NsError> {
        let Some(objects) = self.store.mend()? else {
            return Ok(false);
        };
        let mut batch = Batch::new();
        let mut garbage = Vec::new();
        for file in objects.into_iter().filter_map(find) {
            let mut state = file.lock();
            match state.is_unlinked() {
                true => {
                    let dropped = self.drop_file(&mut batch, &file, &state)?;
                    if !state.is_evicted() {
                        self.put_nameless(&mut batch, &file, &state)?;
                    }
                    // One that may still get a name is in use.
                    garbage.extend(state.unnamed.is_none().then_some(dropped));
                }
                false => self.save_later(&file, &mut state),
            }
        }
        self.commit(batch)?;
        garbage.into_iter().for_each(|one| self.add_garbage(one));
        self.sync()?;
        self.end_unrecorded()?;
        Ok(true)
    }

    /// Of records in a store on a server: until when that is surely this process's.
    pub fn store_hold(&self) -> Option<Hold> {
        self.store.hold()
    }

    /// Nothing is recorded any more: see [`Store::release`](forebay_kv::Store::release).
    pub fn release_store(&self) {
        self.store.release();
    }

    /// The PFS has done what cannot be recorded now. The change counts as done, for there is no way
    /// back. A start would come to the same result: by the intent on record (`sequence`), or else
    /// because the PFS has lost the name.
    pub(crate) fn leave_unrecorded(
        &self,
        sequence: Option<u64>,
        dirs: impl IntoIterator<Item = Arc<Dir>>,
        error: &NsError,
    ) {
        tracing::warn!("a change of names is not on record for now: {error}");
        if let Some(sequence) = sequence {
            let dirs = dirs.into_iter().collect();
            self.unrecorded.lock().push(Unrecorded { sequence, dirs });
        }
    }

    /// The records of files are what memory has: what is left of changes of names is those of
    /// directories, and the intents.
    fn end_unrecorded(&self) -> Result<(), NsError> {
        let ended = std::mem::take(&mut *self.unrecorded.lock());
        let mut batch = Batch::new();
        for one in &ended {
            batch.delete(record::intent_key(one.sequence));
            let dirs = one.dirs.iter();
            for dir in dirs.filter(|dir| !dir.is_removed()) {
                self.put_dir(&mut batch, dir)?;
                if let Some((above, _)) = dir.place() {
                    self.put_dirs(&mut batch, &above)?;
                }
            }
        }
        self.commit(batch)
            .inspect_err(|_| self.unrecorded.lock().extend(ended))
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
        self.pfs
            .sync_dir(&handle)
            .map_err(on_pfs("fsync of a directory"))
    }
}
