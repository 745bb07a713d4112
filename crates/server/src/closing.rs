//! Closes that cannot be finished when they happen, and what a stop does for what is undrained.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_kv::Durability as KvDurability;
use forebay_namespace::{File, Flushed};
use forebay_tiers::{TierKind, start_writeback};
use forebay_types::{Errno, TierId};

use crate::core::Core;
use crate::open::ctime_after;
use crate::opens::OpenFile;

impl Core {
    /// The last writer has closed a file whose object does not say what it has become. The file stays one that is written unseen, so
    /// that the object knows the size, and waits for its drain like others: that asks again.
    pub fn close_later(&self, open: &OpenFile, file: &Arc<File>, error: &io::Error) -> Errno {
        let errno = Errno::from(error);
        *open.before.lock() = None;
        open.touched.store(false, Ordering::Release);
        open.lease_bytes.store(0, Ordering::Release);
        open.budget_bytes.store(0, Ordering::Release);
        self.activity.note();
        {
            let mut state = file.lock();
            state.changed();
            state.residency.writing = true;
            state.error = Some(errno);
            state.error_unreported = true;
            self.ns.save_later(file, &mut state);
        }
        self.unclosed.lock().insert(file.object);
        let reason =
            format!("its close could not look at its object: {error}; it is kept and tried again");
        self.report(file.path(), errno, reason);
        self.drain.add(file.object);
        errno
    }

    /// Finishes a close that failed, if there was one. The caller has claimed the file, and nobody writes it.
    pub fn finish_close(&self, file: &Arc<File>) -> Result<(), Errno> {
        if !self.unclosed.lock().contains(&file.object) {
            return Ok(());
        }
        let tier = file.tier();
        let stat = self.tiers.open_object(tier, file.object)?.stat()?;
        let mut state = file.lock();
        state.residency.writing = false;
        let meta = &mut state.meta;
        meta.size = stat.size;
        meta.allocated_bytes = stat.allocated_bytes;
        meta.atime = meta.atime.max(stat.atime);
        meta.mtime = stat.mtime;
        meta.ctime = ctime_after(meta.ctime, stat.mtime);
        self.ns.save_later(file, &mut state);
        self.book_held(file, &state, stat.allocated_bytes);
        drop(state);
        self.unclosed.lock().remove(&file.object);
        Ok(())
    }

    /// Nothing is left of what an fsync had promised of a file that is cut to nothing: what is written to it from here on must not
    /// be taken for that.
    pub fn forget_flushed(&self, file: &Arc<File>, size: u64) {
        let mut state = file.lock();
        // Of a file in memory flash keeps it until the next fsync.
        let here = self.tiers.kind(state.residency.tier) != TierKind::Dram;
        if size == 0 && here && state.residency.flushed.take().is_some() {
            self.ns.save_later(file, &mut state);
        }
    }

    /// What stays here undrained after an orderly stop does not depend on the node staying up: a start after a reboot believes only
    /// what was flushed.
    pub fn flush_undrained(&self) {
        let files: Vec<_> = self.files.read().values().cloned().collect();
        let mut due = Vec::new();
        for file in files {
            let (residency, left) = {
                let state = file.lock();
                (state.residency, state.is_dirty() && !state.is_unlinked())
            };
            let flushed = residency.flushed;
            let done = flushed.is_some_and(|f| f.generation == residency.generation);
            let here = match self.tiers.kind(residency.tier) {
                TierKind::Dram => false,
                TierKind::Pfs => !self.pulse().is_silent(),
                _ => true,
            };
            if !left || !here || (done && !residency.writing) {
                continue;
            }
            match self.tiers.open_object(residency.tier, file.object) {
                Ok(object) => {
                    // All of them are on their way before the first is waited for.
                    start_writeback(&*object, 0, 0);
                    due.push((file, residency.tier));
                }
                Err(error) => self.not_flushed(&file, &error),
            }
        }
        for (file, tier) in due {
            if let Err(error) = self.flush_one(&file, tier) {
                self.not_flushed(&file, &error);
            }
        }
        for (_, slot) in self.tiers.iter() {
            let answers = slot.kind != TierKind::Pfs || !self.pulse().is_silent();
            if answers && let Err(error) = slot.tier.sync_all() {
                let path = format!("({})", slot.tier.name()).into_bytes();
                self.report(path, (&error).into(), format!("flush: {error}"));
            }
        }
    }

    fn flush_one(&self, file: &File, tier: TierId) -> io::Result<()> {
        let object = self.tiers.open_object(tier, file.object)?;
        let generation = self.generation(file);
        object.sync(false)?;
        let bytes = object.stat()?.size;
        let mut state = file.lock();
        if state.is_dirty() {
            state.residency.flushed = Some(Flushed { generation, bytes });
            self.ns
                .save(file, &state, KvDurability::Buffered)
                .map_err(|error| io::Error::from(error.errno()))?;
        }
        Ok(())
    }

    fn not_flushed(&self, file: &File, error: &io::Error) {
        let reason = format!("flush at the stop: {error}; a loss of power may take it");
        self.report(file.path(), error.into(), reason);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_tiers::testing::{Effect, FaultyTier, Operation, When};
    use forebay_tiers::{Object, Tier};
    use forebay_types::{Errno, ObjectId};

    use crate::opens::Target;
    use crate::testing::{Lab, create, drain};

    #[test]
    fn a_file_whose_close_fails_is_drained_all_the_same() {
        let lab = Lab::new();
        let core = lab.core();
        let handle = create(core, b"f", b"what was written");
        let (open, _) = core.opens.file(handle).expect("open");
        let Target::Buffer { file, tier, .. } = open.target.read().clone() else {
            panic!("not in the burst buffer");
        };
        let slot = core.tiers.get(tier).expect("tier");
        let faulty = FaultyTier::new(slot.tier.clone());
        let fault = faulty.inject(Operation::Stat, When::Every, Effect::Fail(Errno::EIO));
        let object: Arc<dyn Object> = faulty.open(file.object).expect("object");
        *open.target.write() = Target::Buffer {
            file: file.clone(),
            object,
            tier,
        };
        drop(open);
        assert_eq!(core.release(handle), Err(Errno::EIO));
        assert!(faulty.fired(fault) > 0);
        let waiting: Vec<ObjectId> = core.drain.waiting();
        assert_eq!(waiting, [file.object], "it waits for its drain");
        drain(core);
        assert!(!file.lock().is_dirty(), "{:?}", core.errors.all());
        assert_eq!(core.ledger.dirty_and_capacity().0, 0);
        assert_eq!(lab.on_pfs("f"), b"what was written");
        assert_eq!(file.lock().meta.size, 16);
    }
}
