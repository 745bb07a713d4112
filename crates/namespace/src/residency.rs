//! Residency: files come into the burst buffer, become dirty, are published, and leave.
//!
//! ```text
//!            attach (stage-in)                     change
//!   PFS only ----------------> clean  --------------------------> dirty <--- create
//!      ^                        |  ^                                |
//!      |        evict           |  |  confirm     place     begin   |
//!      +------------------------+  +---------- demoting <-----------+
//! ```
//!
//! Promise kept here: only a clean file is evicted. How a dirty one becomes clean: `publish`.

use std::sync::Arc;

use forebay_kv::Durability;
use forebay_tiers::{PfsStat, Sums};
use forebay_types::{Errno, FileKind, Generation, Ino, ObjectId, TierId, TimeSpec, failpoint};

use crate::error::on_pfs;
use crate::log::Batch;
use crate::record::{Flushed, Meta, Published, Residency};
use crate::table::{Node, PlainNode};
use crate::tick;
use crate::tree::{Dir, File, FileState, Name, Place};
use crate::{Namespace, NsError};

/// Where the object of a file has moved.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// The tier that has it from now on.
    pub tier: TierId,
    /// That is stable storage, and so many bytes were flushed.
    pub flushed_bytes: Option<u64>,
    /// The caller has the file to themselves: it moves also while it is written, or has no name.
    pub is_exclusive: bool,
    /// Its second copy is still one; else it is forgotten.
    pub keeps_second: bool,
    /// It is the second copy that becomes the file: what was flushed or promised later than that is
    /// not there.
    pub is_copy: bool,
    /// Of such a copy: an fsync tells of what is not in it.
    pub owes_loss: bool,
    /// The tier that it was in, if that is another node's: what is left there is on record with
    /// the move.
    pub left: Option<TierId>,
}

impl Migration {
    /// What an fsync has left in this tier is the file.
    pub fn of_copy(tier: TierId, owes_loss: bool) -> Migration {
        Migration {
            tier,
            flushed_bytes: None,
            is_exclusive: true,
            keeps_second: false,
            is_copy: true,
            owes_loss,
            left: None,
        }
    }
}

impl Residency {
    /// The second copy is the file from now on, and nothing that was noted of the other object is
    /// true of it. `owes_loss`: an fsync tells of what is not in it.
    pub(crate) fn go_on_as_copy(&mut self, owes_loss: bool) {
        let Some((tier, copied)) = self.shadow.take() else {
            return;
        };
        let lacks = copied < self.generation || self.writing;
        self.tier = tier;
        self.by_kernel = false;
        self.flush_failed = false;
        self.owes_loss |= owes_loss && lacks;
        self.crc = self.crc.filter(|_| !lacks);
        let in_copy = |flushed: &Flushed| flushed.generation <= copied;
        // It was flushed when it was made; how much is known by the object alone.
        self.flushed = self.flushed.filter(in_copy).or(Some(Flushed {
            generation: copied,
            bytes: 0,
        }));
        self.promised = self.promised.filter(|promised| *promised <= copied);
    }
}

/// The object of a file that comes in from the PFS.
pub struct Arrival {
    /// The object.
    pub object: ObjectId,
    /// Its tier.
    pub tier: TierId,
    /// The checksums of the content, which is that of the file on the PFS. `None`: the object is
    /// empty, and the PFS keeps the old file until the new content is whole.
    pub sums: Option<Sums>,
    /// Space that the object takes, bytes.
    pub allocated_bytes: u64,
}

impl Arrival {
    fn residency(&self, stat: &PfsStat) -> Residency {
        let mut residency = Residency {
            tier: self.tier,
            shadow: None,
            flushed: None,
            generation: Generation(1),
            published: Some(stat.into()),
            clean: self.sums.is_some(),
            writing: false,
            by_kernel: false,
            crc: None,
            has_sums: false,
            flush_failed: false,
            promised: None,
            owes_loss: false,
        };
        if let Some(sums) = &self.sums {
            residency.vouch(sums);
        }
        residency
    }
}

impl Namespace {
    /// What the PFS says of a file whose content is about to be taken, once a change of that would
    /// show. Else who changes it in the same tick of the PFS's clock, to the same length, would not
    /// be noticed, and be written over by the next demotion.
    pub fn stat_settled(&self, file: &std::fs::File) -> Result<PfsStat, NsError> {
        let stat = self
            .pfs
            .stat_file(file)
            .map_err(on_pfs("stat of an open file"))?;
        match tick::left(&stat, TimeSpec::now()) {
            None => Ok(stat),
            Some(left) => {
                std::thread::sleep(left);
                // Whoever changes it all the time has other times all the time, too.
                self.pfs
                    .stat_file(file)
                    .map_err(on_pfs("stat of an open file"))
            }
        }
    }

    /// Makes a file of the PFS a file of the burst buffer. Its generation is 1.
    /// Fails with `ESTALE` if the PFS's file is no longer the one that was copied.
    pub fn attach(
        &self,
        dir: &Arc<Dir>,
        name: &[u8],
        stat: &PfsStat,
        arrival: &Arrival,
    ) -> Result<Arc<File>, NsError> {
        let residency = arrival.residency(stat);
        let xattrs = match residency.clean {
            true => Vec::new(),
            false => {
                let node = self.published_node(&self.open_dir(dir)?, name, residency.published)?;
                self.load_xattrs(&node)?
            }
        };
        let _order = dir.order(&self.pfs)?;
        if dir.child(name).is_some() {
            return Err(Errno::EEXIST.into());
        }
        let now = self
            .pfs
            .stat(&self.open_dir(dir)?, name)
            .map_err(on_pfs("stat"))?;
        if Published::from(&now) != Published::from(stat) {
            return Err(Errno::ESTALE.into());
        }
        let ino = {
            let mut table = self.table.lock();
            let ino = table.ino_for(stat.id, self.root_dev);
            table.reserve(ino);
            ino
        };
        let meta = Meta {
            perm: stat.perm(),
            uid: stat.uid,
            gid: stat.gid,
            size: if residency.clean { stat.size } else { 0 },
            allocated_bytes: arrival.allocated_bytes,
            atime: stat.atime,
            mtime: stat.mtime,
            ctime: stat.ctime,
        };
        let name = Name::from(name);
        let names = (vec![(dir.clone(), name.clone())], None);
        let state = FileState::new(names, meta, xattrs, residency);
        let file = Arc::new(File::new(arrival.object, ino, state));
        let mut batch = Batch::new();
        self.put_dirs(&mut batch, dir)?;
        self.put_file(&mut batch, &file, &file.lock())?;
        if let Some(sums) = &arrival.sums {
            self.put_sums(&mut batch, &file, sums)?;
        }
        self.commit(batch)?;
        failpoint::hit(failpoint::Point::StageRecord);
        dir.lock().insert(name, file.clone());
        self.dirs_written(dir);
        self.table.lock().replace(ino, Node::File(file.clone()));
        Ok(file)
    }

    /// The content is about to change, or may change unseen (`writing`): from here on the file is
    /// dirty, on record too. With `outlasting` also after a loss of power, which its object
    /// outlasts: else that could bring back a record that calls a half changed object clean, or
    /// knows its checksum.
    pub fn begin_change(
        &self,
        file: &Arc<File>,
        writing: bool,
        outlasting: bool,
    ) -> Result<(), NsError> {
        self.begin_change_as(file, (writing, false), outlasting)
    }

    /// The same, by a kernel that writes it by itself.
    pub fn begin_unseen(&self, file: &Arc<File>, outlasting: bool) -> Result<(), NsError> {
        self.begin_change_as(file, (true, true), outlasting)
    }

    fn begin_change_as(
        &self,
        file: &Arc<File>,
        (writing, by_kernel): (bool, bool),
        outlasting: bool,
    ) -> Result<(), NsError> {
        let (mut state, xattrs) = loop {
            let (residency, name) = {
                let state = file.lock();
                (state.residency, state.names.first().cloned())
            };
            let xattrs = match (residency.clean, &name) {
                (true, Some((dir, name))) => match self
                    .open_dir(dir)
                    .and_then(|handle| self.published_node(&handle, name, residency.published))
                    .and_then(|node| self.load_xattrs(&node))
                {
                    // It is being unlinked, or an outsider has done so or put another file there:
                    // there are none any more.
                    Err(error) if matches!(error.errno(), Errno::ENOENT | Errno::ESTALE) => {
                        Some(Vec::new())
                    }
                    loaded => Some(loaded?),
                },
                _ => None,
            };
            let state = file.lock();
            let same_name = match (&name, state.names.first()) {
                (Some(before), Some(now)) => Arc::ptr_eq(&before.0, &now.0) && before.1 == now.1,
                (before, now) => before.is_none() && now.is_none(),
            };
            // Else they may have been changed on the PFS since they were read, or are to be found
            // elsewhere.
            let same = same_name && state.residency.published == residency.published;
            if !state.residency.clean || same {
                break (state, xattrs);
            }
        };
        let vouched_for = state.residency.clean || state.residency.crc.is_some();
        let persist = vouched_for
            || (writing && !state.residency.writing)
            || (by_kernel && !state.residency.by_kernel);
        let durability = match outlasting && vouched_for {
            true => Durability::Synced,
            false => Durability::Buffered,
        };
        let loaded = xattrs.filter(|_| state.residency.clean);
        let before = state.begin_change((writing, by_kernel), loaded);
        if !persist {
            return Ok(());
        }
        let outdated = before.outdated_copy();
        let saved = match outdated {
            // What is left of it is removed, and nothing stands for it.
            Some(tier) => self.save_leaving(file, &state, tier, durability),
            None => self.save(file, &state, durability),
        };
        if let Err(error) = saved {
            // Else the next change would be made without a record of any: a start would call the
            // file clean, or damaged.
            state.take_change_back(before);
            return Err(error);
        }
        failpoint::hit(failpoint::Point::ChangeRecorded);
        Ok(())
    }

    /// The undrained content of a file is on stable storage in its tier, and `sums` are its
    /// checksums: they go on record. `false` if it has changed since it was of this generation, may
    /// do so unseen, or has left that tier.
    pub fn seal(
        &self,
        file: &File,
        generation: Generation,
        tier: TierId,
        sums: &Sums,
    ) -> Result<bool, NsError> {
        let mut state = file.lock();
        let unlinked = state.is_unlinked();
        let residency = &state.residency;
        let same = (residency.generation, residency.tier) == (generation, tier);
        let undrained = !residency.writing && !residency.clean && !unlinked;
        if !same || !undrained || residency.flush_failed {
            return Ok(false);
        }
        state.seal(sums);
        let mut batch = Batch::new();
        self.put_file(&mut batch, file, &state)?;
        self.put_sums(&mut batch, file, sums)?;
        self.commit(batch)?;
        failpoint::hit(failpoint::Point::SealRecord);
        Ok(true)
    }

    /// A flush of undrained content has failed: on record at once, for the kernel tells it once.
    /// Whether that is so of this file; of what the PFS has, or what nobody can ask for any more,
    /// it says nothing.
    pub fn fail_flush(&self, file: &Arc<File>) -> Result<bool, NsError> {
        let mut state = file.lock();
        let gone = state.is_unlinked() && state.unnamed.is_none();
        if gone || state.residency.clean {
            return Ok(false);
        }
        state.fail_flush();
        let saved = self.save(file, &state, Durability::Synced);
        if saved.is_err() {
            self.save_later(file, &mut state);
        }
        saved.map(|()| true)
    }

    /// What was in doubt since is known to be whole, or is gone. Whether there was something.
    pub fn end_failed_flush(&self, file: &File) -> Result<bool, NsError> {
        let mut state = file.lock();
        if !state.end_failed_flush() {
            return Ok(false);
        }
        self.save(file, &state, Durability::Buffered)?;
        Ok(true)
    }

    /// A file that was opened for unseen writing has the content that is on the PFS, with this
    /// checksum: it is clean again. `false` if it has changed since it was of this generation, may
    /// do so unseen, or was never published.
    pub fn unchanged(
        &self,
        file: &File,
        generation: Generation,
        crc: u32,
    ) -> Result<bool, NsError> {
        let mut state = file.lock();
        let same = state.generation() == generation && state.is_published();
        if !same || state.residency.writing || state.residency.clean {
            return Ok(false);
        }
        state.settled_as(crc);
        self.save(file, &state, Durability::Buffered)?;
        Ok(true)
    }

    /// The object has been copied to another tier, which has it from now on. `false` if the file
    /// has changed since it was of this generation, or is being written or has no name any more,
    /// unless the caller has it to themselves: the copy is of no use then.
    pub fn migrated(
        &self,
        file: &File,
        generation: Generation,
        to: &Migration,
    ) -> Result<bool, NsError> {
        self.migrated_as(file, (generation, to), Durability::Synced)
    }

    /// The same for one of several that share a flush of the store ([`Namespace::sync`]): until
    /// that has been made, a loss of power may bring back the record from before.
    pub fn migrated_of_many(
        &self,
        file: &File,
        generation: Generation,
        to: &Migration,
    ) -> Result<bool, NsError> {
        self.migrated_as(file, (generation, to), Durability::Buffered)
    }

    fn migrated_as(
        &self,
        file: &File,
        (generation, to): (Generation, &Migration),
        durability: Durability,
    ) -> Result<bool, NsError> {
        let mut state = file.lock();
        let busy = state.residency.writing || state.is_unlinked();
        if state.residency.generation != generation || (busy && !to.is_exclusive) {
            return Ok(false);
        }
        let before = state.migrate(to);
        let saved = match to.left {
            None => self.save(file, &state, durability),
            Some(left) => self.save_leaving(file, &state, left, durability),
        };
        if let Err(error) = saved {
            // Who has it open goes on with the object that it had.
            state.take_change_back(before);
            return Err(error);
        }
        failpoint::hit(failpoint::Point::MoveRecord);
        Ok(true)
    }

    /// Drops a clean copy. `false` if the file is not clean (any more) or is busy: undrained data
    /// is never evicted.
    pub fn evict(&self, file: &Arc<File>) -> Result<bool, NsError> {
        let names = file.lock().names.clone();
        let Some((first, name)) = names.first().cloned() else {
            return Ok(false);
        };
        if self.must_be_synced(&[Some(file)])? {
            // What is only on the PFS is changed there without a word in the store: a loss of power
            // must not bring back a record from when the file was dirty.
            if file.lock().is_dirty() {
                return Ok(false);
            }
            self.sync()?;
        }
        // Directories are locked in the order of their keys, as by a rename.
        let mut dirs: Vec<Arc<Dir>> = names.iter().map(|(dir, _)| dir.clone()).collect();
        dirs.sort_by_key(|dir| dir.key);
        dirs.dedup_by_key(|dir| dir.key);
        let orders: Option<Vec<_>> = dirs.iter().map(|dir| dir.try_order(&self.pfs)).collect();
        let naming = orders.as_ref().and(file.try_naming(&self.pfs));
        if naming.is_none() {
            // Somebody waits for the PFS with it.
            return Ok(false);
        }
        let mut children: Vec<_> = dirs.iter().map(|dir| dir.lock()).collect();
        let mut state = file.lock();
        let same = |a: &Place, b: &Place| Arc::ptr_eq(&a.0, &b.0) && a.1 == b.1;
        let here = state.names.len() == names.len()
            && state.names.iter().zip(&names).all(|(a, b)| same(a, b));
        let residency = state.residency;
        let Some(published) = residency.published.filter(|_| here) else {
            return Ok(false);
        };
        let stable = !state.is_unsaved() && self.store.is_stable(file.object);
        if !residency.clean || residency.writing || state.demoting || !stable {
            return Ok(false);
        }
        let mut batch = Batch::new();
        let garbage = self.drop_file(&mut batch, file, &state)?;
        self.commit(batch)?;
        failpoint::hit(failpoint::Point::EvictRecord);
        state.leave();
        for (dir, name) in &names {
            let at = dirs.iter().position(|d| Arc::ptr_eq(d, dir));
            at.and_then(|at| children[at].remove(name));
            // Who found the name free before the file came, and makes another, looks once more.
            dir.note_change(name);
        }
        self.leave(file, first, name, published);
        drop(state);
        drop(children);
        self.add_garbage(garbage);
        Ok(true)
    }

    /// From now on the id stands for the file on the PFS.
    fn leave(&self, file: &File, parent: Arc<Dir>, name: Name, published: Published) {
        let id = forebay_tiers::PfsId {
            dev: self.devices.number_of(parent.key),
            ino: published.ino,
            btime_ns: published.btime_ns,
        };
        let node = PlainNode {
            kind: FileKind::Regular,
            parent,
            name,
            id,
        };
        let mut table = self.table.lock();
        table.replace(file.ino, Node::Plain(Arc::new(node)));
        table.unreserve(file.ino);
    }

    /// The file's data is gone from the burst buffer through no order of ours (memory after a
    /// reboot, a lost device): its record goes too.
    pub fn disown(&self, file: &Arc<File>) -> Result<(), NsError> {
        let _naming = file.naming(&self.pfs)?;
        let names = file.lock().names.clone();
        for (dir, name) in &names {
            dir.lock().remove(name);
        }
        let mut state = file.lock();
        let mut batch = Batch::new();
        let garbage = self.drop_file(&mut batch, file, &state)?;
        self.commit(batch)?;
        state.unlink();
        self.add_garbage(garbage);
        Ok(())
    }

    /// The id of a file that the kernel knows under a PFS inode number stays taken while it lives.
    pub fn reserve_ino(&self, ino: Ino) {
        self.table.lock().reserve(ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::DirKey;

    #[test]
    fn nothing_that_was_noted_of_the_first_object_is_true_of_its_copy() {
        let dir = DirKey::default();
        let first = crate::testing::file(dir).residency;
        let (tier, copied) = first.shadow.expect("a copy");
        assert!(first.flush_failed && first.flushed.is_some_and(|f| f.generation > copied));
        let mut copy = Residency {
            owes_loss: false,
            ..first
        };
        copy.go_on_as_copy(true);
        let expected = Residency {
            tier,
            shadow: None,
            // A start that finds it after a loss of power takes it.
            flushed: Some(Flushed {
                generation: copied,
                bytes: 0,
            }),
            flush_failed: false,
            crc: None,
            owes_loss: true,
            promised: Some(copied),
            ..first
        };
        assert_eq!(copy, expected);
        let mut whole = Residency {
            generation: copied,
            writing: false,
            owes_loss: false,
            ..first
        };
        whole.go_on_as_copy(true);
        assert_eq!(
            (whole.crc, whole.owes_loss),
            (first.crc, false),
            "it lacks nothing"
        );
    }
}
