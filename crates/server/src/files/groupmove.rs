//! Small files that move from this node's memory to its flash together.
//!
//! The protocol is that of one move ([`mover`](crate::files::mover)), step by step for all of them:
//!
//! 1. *Copy.* One file after the other; nothing is flushed yet.
//! 2. *Flush.* Once for all copies, where the file system of the flash can; else one by one.
//! 3. *Commit.* A record for each file that is still at rest, and one flush of the store for all.
//!    Nobody opens these files until that flush has ended and the ledger follows the record.
//! 4. *Remove.* The old objects go.
//!
//! Where the flush of the store fails, nobody can say which records a start finds: the old objects
//! stay, charged, until the store takes the records again.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use forebay_namespace::{File, Migration};
use forebay_policy::grouping::GroupSize;
use forebay_tiers::{CopyControl, Object, ObjectStat, WriteBack};
use forebay_types::{Errno, Generation, ObjectId, TierId, failpoint};
use parking_lot::MutexGuard;

use crate::base::failure::Failure;
use crate::buffer::opens::Claim;
use crate::buffer::tierset::{DRAM, Slot};
use crate::files::Files;
use crate::files::leaving::at_rest;
use crate::files::mover::bring_times;

/// A file whose copy is made.
struct Copied<'a> {
    file: &'a Arc<File>,
    generation: Generation,
    source: Arc<dyn Object>,
    object: Arc<dyn Object>,
    /// What the copy occupies, bytes; known when its record is made.
    bytes: u64,
    _room: Room<'a>,
    _copying: MutexGuard<'a, ()>,
}

/// Space that is set aside for a move, until this is dropped.
struct Room<'a>(&'a Files, ObjectId);

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.0.buffer.ledger().release_move(self.1);
    }
}

/// Small files that are about to move together.
#[derive(Default)]
pub(super) struct Group {
    to: Option<TierId>,
    size: GroupSize,
    files: Vec<Arc<File>>,
}

impl Group {
    pub(super) fn takes(&self, to: TierId, bytes: u64) -> bool {
        self.to.is_none_or(|its| its == to) && self.size.has_room(bytes)
    }

    pub(super) fn add(&mut self, file: Arc<File>, to: TierId, bytes: u64) {
        self.to = Some(to);
        self.size = self.size.with(bytes);
        self.files.push(file);
    }

    /// What they occupy, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.size.bytes
    }
}

/// What the caller of a move of many knows of them.
pub(super) struct Together<'a> {
    /// Whether a file is to stay after all; not asked by who has claimed it.
    pub is_over: &'a (dyn Fn(&File) -> bool + Sync),
    /// The same, and waits for no claim: nobody opens the file any more.
    pub is_used: &'a (dyn Fn(&File) -> bool + Sync),
}

impl Files {
    /// Where a file goes that moves with others, and what it occupies. `None`: it is large, or
    /// open, or makes room by an eviction, or is on another node, and moves by itself.
    pub(super) fn place_in_group(&self, file: &File, from: TierId) -> Option<(TierId, u64)> {
        let bytes = self.buffer.ledger().used_bytes(file.object);
        if from != DRAM || !GroupSize::is_for(bytes) || self.buffer.opens().is_open_now(file.ino) {
            return None;
        }
        let to = self.flash_for(file, DRAM, bytes)?;
        let slot = self.buffer.tiers().get(to)?;
        let has_second = file.lock().residency.shadow.is_some();
        (slot.server == self.settings.server && !has_second).then_some((to, bytes))
    }

    /// Moves files that nobody has open from memory to flash. Those stay that are in use, or find
    /// no room. Answers with those that have moved, and what each of them occupies.
    pub(super) fn move_together(
        &self,
        group: Group,
        together: &Together<'_>,
    ) -> Vec<(Arc<File>, u64)> {
        let Some(to) = group.to else {
            return Vec::new();
        };
        let moved = self.try_move_together(&group.files, to, together);
        moved.unwrap_or_else(|error| {
            let failure = Failure::from(error);
            for file in &group.files {
                self.stays_in_memory(file, &failure);
            }
            Vec::new()
        })
    }

    fn try_move_together(
        &self,
        files: &[Arc<File>],
        to: TierId,
        together: &Together<'_>,
    ) -> io::Result<Vec<(Arc<File>, u64)>> {
        let slot = self.buffer.tiers().get(to);
        let slot = slot.ok_or(Errno::ENODEV)?;
        // Had before the first byte is written.
        let flush = slot.tier.flush_together()?;
        let copies = files.iter().filter_map(|file| {
            let copied = self.copy_of_many(file, to, together);
            self.unless_failed(file, copied)
        });
        let copies: Vec<_> = copies.collect();
        let copies = self.flush_copies((slot, to), flush, copies)?;
        failpoint::hit(failpoint::Point::MoveFlushed);
        let mut committed = Vec::new();
        for mut copy in copies {
            let claimed = self.commit_of_many(&mut copy, to, together);
            if let Some(claim) = self.unless_failed(copy.file, claimed) {
                committed.push((copy, claim));
            }
        }
        let stable = match committed.is_empty() {
            true => true,
            false => self.is_store_flushed(),
        };
        let end = |(copy, claim): (Copied<'_>, Claim<'_>)| {
            self.buffer.book(copy.file, copy.bytes);
            drop(claim);
            self.end_of_many(&copy, stable);
            (copy.file.clone(), copy.bytes)
        };
        Ok(committed.into_iter().map(end).collect())
    }

    /// A file that fails stays where it was, and the others move.
    fn unless_failed<T>(&self, file: &File, done: Result<Option<T>, Failure>) -> Option<T> {
        done.unwrap_or_else(|failure| {
            self.stays_in_memory(file, &failure);
            None
        })
    }

    fn copy_of_many<'a>(
        &'a self,
        file: &'a Arc<File>,
        to: TierId,
        together: &Together<'_>,
    ) -> Result<Option<Copied<'a>>, Failure> {
        let Some(copying) = file.try_copying() else {
            return Ok(None);
        };
        let Some(residency) = at_rest(file).filter(|now| now.tier == DRAM) else {
            return Ok(None);
        };
        let is_open = self.buffer.opens().is_open_now(file.ino);
        // A second copy is brought up to date, and not made: that is for a move by itself.
        let moves_alone = residency.shadow.is_some();
        if is_open || moves_alone || self.buffer.is_closed(to) || (together.is_over)(file) {
            return Ok(None);
        }
        let source = self.buffer.tiers().open_object(DRAM, file.object)?;
        if self.is_written_below(DRAM, &*source)?
            || !self.hold_for_move(file, to, source.stat()?.allocated_bytes)
        {
            return Ok(None);
        }
        let room = Room(self, file.object);
        self.flush_source(file, &*source, DRAM)?;
        let stop = || self.base.is_ending() || (together.is_over)(file);
        let control = CopyControl {
            stop: &stop,
            ..CopyControl::NONE
        };
        let copied = self.copy_object(file, &*source, (to, &control), |_, copy, identity| {
            copy.set_identity(identity)?;
            Ok(copy.write_back(WriteBack::Start, 0, 0)?)
        });
        let object = match copied {
            // Who wants the file goes first.
            Err(_) if (together.is_over)(file) => return Ok(None),
            copied => copied?,
        };
        Ok(Some(Copied {
            file,
            generation: residency.generation,
            source,
            object,
            bytes: 0,
            _room: room,
            _copying: copying,
        }))
    }

    /// Step 2. Answers with the copies that are on stable storage; the others are gone.
    fn flush_copies<'a>(
        &self,
        (slot, to): (&Slot, TierId),
        flush: Option<OwnedFd>,
        mut copies: Vec<Copied<'a>>,
    ) -> io::Result<Vec<Copied<'a>>> {
        if copies.is_empty() {
            return Ok(copies);
        }
        let flushed = flush.map(|flush| slot.tier.sync_together(&flush));
        if let Some(Err(error)) = &flushed {
            // Perhaps of what somebody else has written: each file says so of itself.
            tracing::debug!("flash is flushed file by file: {error}");
        }
        if matches!(flushed, Some(Ok(()))) {
            return Ok(copies);
        }
        copies.retain(|copy| {
            let flushed = copy.object.sync(false).map(Some).map_err(Failure::from);
            let flushed = self.unless_failed(copy.file, flushed);
            let is_flushed = flushed.is_some();
            if !is_flushed {
                self.buffer.leave_copy(copy.file, to);
            }
            is_flushed
        });
        slot.tier.sync_all().inspect_err(|_| {
            for copy in &copies {
                self.buffer.leave_copy(copy.file, to);
            }
        })?;
        Ok(copies)
    }

    /// Step 3, but for the flush. `None`: it has changed, or somebody has it or wants it. Its copy
    /// is gone then.
    fn commit_of_many(
        &self,
        copy: &mut Copied<'_>,
        to: TierId,
        together: &Together<'_>,
    ) -> Result<Option<Claim<'_>>, Failure> {
        let file = copy.file;
        let may_commit = self.may_commit_of_many(copy, together);
        let (claim, stat) = match may_commit {
            Ok(Some(answer)) => answer,
            refused => {
                self.buffer.leave_copy(file, to);
                return refused.map(|_| None);
            }
        };
        copy.bytes = stat.allocated_bytes;
        let migration = Migration {
            tier: to,
            flushed_bytes: Some(stat.size),
            is_exclusive: false,
            keeps_second: false,
            is_copy: false,
            owes_loss: false,
            left: None,
        };
        match self.ns.migrated_of_many(file, copy.generation, &migration) {
            Ok(true) => Ok(Some(claim)),
            Ok(false) => {
                self.buffer.leave_copy(file, to);
                Ok(None)
            }
            Err(error) => {
                self.buffer.leave_copy_later(file, to, copy.bytes);
                Err(error.into())
            }
        }
    }

    fn may_commit_of_many(
        &self,
        copy: &Copied<'_>,
        together: &Together<'_>,
    ) -> Result<Option<(Claim<'_>, ObjectStat)>, Failure> {
        let file = copy.file;
        // Nobody waits for a claim who has others already.
        let Some(claim) = self.buffer.opens().try_claim(file.ino) else {
            return Ok(None);
        };
        let is_same = at_rest(file).is_some_and(|now| now.tier == DRAM && now.shadow.is_none());
        if !is_same || claim.is_open() || file.is_copy_wanted() || (together.is_used)(file) {
            return Ok(None);
        }
        self.integrity.refuse_failed_flush(file)?;
        bring_times(&*copy.source, &*copy.object)?;
        Ok(Some((claim, copy.object.stat()?)))
    }

    fn is_store_flushed(&self) -> bool {
        let flushed = self.ns.sync();
        flushed
            .inspect_err(|error| tracing::warn!("the record of a move is not stable yet: {error}"))
            .is_ok()
    }

    /// Step 4.
    fn end_of_many(&self, copy: &Copied<'_>, is_stable: bool) {
        let file = copy.file;
        match is_stable {
            true => self.buffer.remove_left_behind(file, DRAM),
            false => self.buffer.leave_copy_later(file, DRAM, copy.bytes),
        }
        // What was written is in the page cache, and that is memory, too.
        if let Err(error) = copy.object.drop_cache() {
            tracing::debug!("object {} stays in the page cache: {error}", file.object);
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_tiers::testing::{Effect, Operation, When};

    use std::sync::atomic::Ordering;
    use std::time::{Duration, Instant};

    use forebay_types::{OpenFlags, SetAttr, SetTime, TimeSpec};
    use forebay_wire::WriteHow;

    use super::*;
    use crate::rooms::Rooms;
    use crate::testing::{FLASH, Lab, answer, create, drain, me};

    #[derive(PartialEq)]
    enum Way {
        Together,
        Alone,
        Back,
    }

    fn move_as_group(rooms: &Rooms, file: &Arc<File>) {
        let together = Together {
            is_over: &|_| false,
            is_used: &|_| false,
        };
        let mut group = Group::default();
        group.add(
            file.clone(),
            FLASH,
            rooms.buffer.ledger().used_bytes(file.object),
        );
        assert_eq!(rooms.files.move_together(group, &together).len(), 1);
    }

    /// What is set of a clean file is no change of its content, and the move goes on.
    #[test]
    fn times_that_are_set_while_a_clean_file_moves_are_in_its_new_object() {
        let time = |sec| TimeSpec { sec, nsec: 7 };
        let (at, later) = (time(1_000_000), time(2_000_000));
        for way in [Way::Together, Way::Alone, Way::Back] {
            let (lab, flash) = Lab::with_memory();
            let rooms = lab.rooms();
            let handle = create(rooms, b"f", &[7; 16 << 10]);
            rooms.files.release(handle).expect("close");
            let file = rooms.base.ns().root().child(b"f").expect("file");
            drain(rooms);
            let set = |atime: Option<SetTime>, mtime: Option<SetTime>| {
                let set = SetAttr {
                    atime,
                    mtime,
                    ..SetAttr::default()
                };
                let set = rooms.files.setattr(file.ino, None, &set, me());
                set.expect("set").mtime
            };
            let slow = Effect::Delay(Duration::from_millis(500));
            let at_its_end = match way {
                Way::Back => Operation::Read,
                _ => Operation::Sync,
            };
            if way == Way::Back {
                move_as_group(rooms, &file);
            }
            let slow = flash.inject(at_its_end, When::From(1), slow);
            std::thread::scope(|scope| {
                let moves = scope.spawn(|| match way {
                    Way::Together => move_as_group(rooms, &file),
                    Way::Alone => {
                        let moved = rooms.files.move_to_node(&file, FLASH, &CopyControl::NONE);
                        assert_eq!(answer(moved), Ok(true));
                    }
                    Way::Back => {
                        assert_eq!(answer(rooms.files.prefetch(&file, &|_| ())), Ok(true));
                    }
                });
                while flash.fired(slow) == 0 {
                    std::thread::yield_now();
                }
                assert_eq!(set(None, Some(SetTime::At(at))), at);
                moves.join().expect("no panic");
            });
            assert_eq!(file.tier() == DRAM, way == Way::Back);
            assert!(file.lock().residency.clean);
            // Both times of the object are taken into the record.
            assert_eq!(set(Some(SetTime::At(later)), None), at);
        }
    }

    /// Its flash is flushed file by file.
    #[test]
    fn a_file_whose_flush_fails_stays_and_the_others_of_its_group_move() {
        let (lab, flash) = Lab::with_memory();
        let rooms = lab.rooms();
        for name in [b"a", b"b", b"c", b"d"] {
            let handle = create(rooms, name, &[7; 16 << 10]);
            rooms.files.release(handle).expect("close");
        }
        rooms.buffer.ledger().set_capacity(DRAM, 0);
        let fault = flash.inject(Operation::Sync, When::Nth(2), Effect::Fail(Errno::EIO));
        rooms.files.give_back(DRAM);
        assert!(flash.fired(fault) > 0);
        let files = rooms.buffer.files();
        let moved = files.iter().filter(|file| file.tier() == FLASH).count();
        assert_eq!((files.len(), moved), (4, 3));
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
        rooms.files.give_back(DRAM);
        assert!(files.iter().all(|file| file.tier() == FLASH));
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
    }

    /// The store takes no record for a while: what was left in memory goes later.
    #[test]
    fn what_is_left_in_memory_for_a_while_takes_no_descriptor_of_the_new_object_with_it() {
        let (lab, _) = Lab::with_memory();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", &[7; 16 << 10]);
        rooms.files.release(handle).expect("close");
        let file = rooms.base.ns().root().child(b"f").expect("file");
        lab.store.fails_syncs.store(true, Ordering::Release);
        move_as_group(rooms, &file);
        assert!(rooms.buffer.has_late_copy(&file, DRAM));
        let flags = OpenFlags(libc::O_RDWR as u32);
        let (opened, _) = rooms.files.open(file.ino, flags, None).expect("open");
        let written = rooms.files.write(opened.handle, 0, b"x", WriteHow::WAITING);
        assert_eq!(answer(written), Ok(Some(1)));
        rooms.files.release(opened.handle).expect("close");
        assert_eq!(rooms.buffer.unflushed().len(), 1, "it is not flushed");
        lab.store.fails_syncs.store(false, Ordering::Release);
        rooms.buffer.leave_copies_late();
        assert!(!rooms.buffer.has_late_copy(&file, DRAM));
        assert_eq!(rooms.buffer.unflushed().len(), 1, "nor is it now");
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
    }

    /// What who opens it then writes is not taken off the books again.
    #[test]
    fn nobody_opens_a_file_that_has_moved_before_the_ledger_follows() {
        let (lab, _) = Lab::with_memory();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", &[7; 16 << 10]);
        rooms.files.release(handle).expect("close");
        let file = rooms.base.ns().root().child(b"f").expect("file");
        let gate = lab.store.gate.lock();
        std::thread::scope(|scope| {
            let moves = scope.spawn(|| move_as_group(rooms, &file));
            while file.tier() == DRAM {
                std::thread::yield_now();
            }
            // The ledger asks for it.
            let state = file.lock();
            drop(gate);
            let entry = |object| rooms.buffer.ledger().entries().remove(object);
            let end = Instant::now() + Duration::from_millis(300);
            while Instant::now() < end {
                let claim = rooms.buffer.opens().try_claim(file.ino);
                let tier = entry(&file.object).map(|entry| entry.tier);
                assert!(claim.is_none() || tier == Some(FLASH), "it may be opened");
            }
            drop(state);
            moves.join().expect("no panic");
        });
        assert!(rooms.buffer.opens().try_claim(file.ino).is_some());
    }
}
