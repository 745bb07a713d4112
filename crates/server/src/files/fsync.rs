//! fsync: what each durability level does.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_kv::Durability as KvDurability;
use forebay_namespace::File;
use forebay_policy::durability::Durability;
use forebay_policy::schedule::{Class, TurnEnd};
use forebay_tiers::{Object, TierKind, wait_writeback};
use forebay_types::{Errno, Generation, Handle, OpenFlags, TierId, failpoint};

use crate::base::failure::Failure;
use crate::buffer::opens::OpenFile;
use crate::buffer::target::Target;
use crate::files::Files;
use crate::files::mover::Move;

/// Who waits for a demotion looks this often.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// So often a file that nobody holds open may be moved by its last close before it is stable.
const STABLE_TRIES: u32 = 4;

/// What a flush of an open file makes stable.
#[derive(Clone, Copy)]
pub(super) struct Flush {
    /// The content, or a later one.
    pub(super) generation: Generation,
    /// At least so many bytes, if it is not cut meanwhile.
    bytes: u64,
    /// How often it had been cut when the flush began.
    cuts: u32,
    /// An fsync has asked for it, and promises it.
    promises: bool,
}

impl Files {
    /// Makes what was written so far as durable as the file's level says.
    pub fn fsync(&self, handle: Handle, data_only: bool) -> Result<(), Failure> {
        let (open, flags) = self.buffer.opens().file(handle)?;
        open.fsynced.store(true, Ordering::Release);
        loop {
            let (file, object, tier) = match self.target(&open)?.clone() {
                Target::Pfs { node, file, .. } => {
                    open.behind.check()?;
                    return self.sync_in_place(&node, &file, data_only);
                }
                Target::Buffer { file, object, tier } => (file, object, tier),
            };
            // What was written may have gone with its node.
            self.refuse_lost(&open, &file, (handle, flags))?;
            self.report_to_fsync(&file)?;
            match self.fsync_object((&open, &file), object, tier, data_only) {
                // What failed is not the file any more.
                Err(_) if !open.target.read().is_in(tier) => {}
                Ok(true) => {
                    // Its node may have gone while this waited.
                    self.refuse_lost(&open, &file, (handle, flags))?;
                    file.lock().pay_fsync();
                    return Ok(());
                }
                done => return done.map(drop),
            }
        }
    }

    /// Of what the file was a moment ago. Whether it has a name.
    fn fsync_object(
        &self,
        (open, file): (&OpenFile, &Arc<File>),
        object: Arc<dyn Object>,
        tier: TierId,
        data_only: bool,
    ) -> Result<bool, Failure> {
        self.integrity.heard(file, tier, open.behind.check())?;
        self.integrity.refuse_failed_flush(file)?;
        tracing::trace!(file = %file.object, ?tier, "fsync");
        let _busy = self.buffer.activity().begin();
        if self.plan.engine().is_throttled() {
            // The bytes go to the device in the application's turn; while they are made permanent
            // the next one may begin, or the device would rest.
            let turn = self.plan.take_turn(open, Class::Checkpoint, 0);
            let waited = wait_writeback(&*object);
            self.integrity.heard(file, tier, waited)?;
            drop(turn);
            if let Some((application, _)) = self.catalog.apps().of(file.object) {
                self.plan.engine().end_turn(application, TurnEnd::Flushing);
            }
        }
        let unnamed = self.begin_fsync_unnamed(file);
        let level = unnamed.unwrap_or_else(|| self.catalog.durability_of_file(file));
        self.fsync_to(level, (open, file), object, tier, data_only)?;
        Ok(unnamed.is_none())
    }

    /// What was lost with a node reaches the next fsync of each who writes the file, once, and one
    /// of them also over restarts.
    fn refuse_lost(
        &self,
        open: &OpenFile,
        file: &Arc<File>,
        (handle, flags): (Handle, OpenFlags),
    ) -> Result<(), Failure> {
        let lost = &self.buffer.opens().lost;
        if !flags.writes() || !lost.take_loss(&open.unsent, handle, file.object) {
            return Ok(());
        }
        let mut state = file.lock();
        if state.pay_loss() {
            // Told twice is better than never: the answer does not wait for stable storage.
            if let Err(error) = self.ns.save(file, &state, KvDurability::Buffered) {
                Failure::from(error).told("save that a loss is told");
            }
        }
        Err(Errno::EIO.into())
    }

    fn fsync_to(
        &self,
        level: Durability,
        (open, file): (&OpenFile, &Arc<File>),
        object: Arc<dyn Object>,
        tier: TierId,
        data_only: bool,
    ) -> Result<(), Failure> {
        if level == Durability::Memory {
            return Ok(());
        }
        let flush = self.begin_flush(file, &*object)?;
        match level {
            Durability::Memory => Ok(()),
            Durability::Pfs => {
                self.integrity.flush(file, tier, &*object, data_only)?;
                self.flush_to_pfs(open, file, (&*object, tier), flush)
            }
            Durability::Replica => self.flush_to_replica(open, file, flush, data_only),
            Durability::Ssd => {
                let (object, tier) = match self.buffer.tiers().kind(tier) {
                    TierKind::Dram => self.flush_to_flash(open, file)?,
                    _ => {
                        self.integrity.flush(file, tier, &*object, data_only)?;
                        (object, tier)
                    }
                };
                self.promise(open, file, (&*object, tier), flush)
            }
        }
    }

    /// What was flushed is on record as that, if it can be found again. An object that somebody has
    /// removed from its tier lives as long as it is open, and no longer: the PFS is the next stable
    /// place. `EBUSY` where the file has moved meanwhile.
    pub(super) fn promise(
        &self,
        open: &OpenFile,
        file: &Arc<File>,
        (object, tier): (&dyn Object, TierId),
        flush: Flush,
    ) -> Result<(), Failure> {
        if !object.stat()?.is_removed || file.tier() != tier {
            return self.save_live(file, (object, tier), flush);
        }
        let (nameless, unlinked) = {
            let state = file.lock();
            (state.unnamed.is_some(), state.is_unlinked())
        };
        if unlinked && !nameless {
            // Nobody can ask for it after a crash.
            return Ok(());
        }
        let reason = "its object has been removed from its tier by somebody else";
        if nameless {
            // It has no place on the PFS before it has a name.
            self.base.report(file.path(), Errno::EIO, reason.into());
            return Err(Errno::EIO.into());
        }
        tracing::warn!(
            "{}: fsync goes to the PFS: {reason}",
            file.path().escape_ascii()
        );
        self.flush_to_pfs(open, file, (object, tier), flush)
    }

    /// An error of a demotion reaches the next fsync of the file, once.
    fn report_to_fsync(&self, file: &File) -> Result<(), Failure> {
        let unreported = file.lock().take_unreported_error();
        // What was lost of it before it came into the burst buffer.
        let unreported = unreported.or_else(|| self.losses.take_owed(file));
        unreported.map_or(Ok(()), |errno| Err(errno.into()))
    }

    /// Asks what an object holds, right before it is flushed.
    pub(super) fn begin_flush(&self, file: &File, object: &dyn Object) -> Result<Flush, Failure> {
        let (generation, cuts, cutting) = {
            let state = file.lock();
            (state.generation(), state.cuts, state.cutting > 0)
        };
        // After that: what is cut from here on is counted. What is being cut may be gone already.
        let bytes = match cutting {
            true => 0,
            false => object.stat()?.size,
        };
        Ok(Flush {
            generation,
            bytes,
            cuts,
            promises: true,
        })
    }

    /// The same for a change of names, which promises nothing of the content.
    pub(super) fn begin_unasked_flush(
        &self,
        file: &File,
        object: &dyn Object,
    ) -> Result<Flush, Failure> {
        Ok(Flush {
            promises: false,
            ..self.begin_flush(file, object)?
        })
    }

    /// Writes down what was flushed, unless that is not the file any more: `EBUSY`.
    pub(super) fn save_live(
        &self,
        file: &File,
        (object, tier): (&dyn Object, TierId),
        flush: Flush,
    ) -> Result<(), Failure> {
        let stat = object.stat()?;
        let mut state = file.lock();
        if state.residency.tier != tier {
            return Err(Errno::EBUSY.into());
        }
        let shadow = state.residency.shadow;
        let on_flash = self.buffer.tiers().kind(state.residency.tier) != TierKind::Dram
            || shadow.is_some_and(|(_, of)| of >= flush.generation);
        let before = (state.residency.flushed, state.residency.promised);
        if on_flash && state.is_dirty() {
            // If it was cut meanwhile, what it has grown to since may be on no device.
            let bytes = match (state.cuts, state.cutting) == (flush.cuts, 0) {
                true => flush.bytes,
                false => 0,
            };
            state.add_flushed(flush.generation, bytes);
            if flush.promises {
                state.promise(flush.generation);
            }
        }
        // Once nobody writes it, the record has what its close has found; this look may be older.
        if state.residency.writing {
            state.take_live_stat(&stat);
        }
        if let Err(error) = self.ns.save(file, &state, KvDurability::Synced) {
            state.restore_flushed(before.0);
            state.restore_promised(before.1);
            return Err(error.into());
        }
        failpoint::hit(failpoint::Point::FsyncRecord);
        Ok(())
    }

    /// Copies an object in memory to flash: what was written before is then safe there.
    fn flush_to_flash(
        &self,
        open: &OpenFile,
        file: &Arc<File>,
    ) -> Result<(Arc<dyn Object>, TierId), Failure> {
        let wanted = open.unsent.want();
        let _one = open.growing.lock();
        let _copying = file.copying();
        drop(wanted);
        // It may have moved while this waited: what it was then is no source any more.
        let Target::Buffer { object, tier, .. } = self.target(open)?.clone() else {
            return Err(Errno::EIO.into());
        };
        match self.buffer.tiers().kind(tier) {
            TierKind::Dram => self.refresh_shadow(open, file, (&*object, tier))?,
            _ => self.integrity.flush(file, tier, &*object, false)?,
        }
        Ok((object, tier))
    }

    /// Demotes an object with the size and time that it has now: the record knows those of a file
    /// that is open only from its last fsync.
    pub(super) fn flush_to_pfs(
        &self,
        open: &OpenFile,
        file: &Arc<File>,
        (object, tier): (&dyn Object, TierId),
        flush: Flush,
    ) -> Result<(), Failure> {
        self.save_live(file, (object, tier), flush)?;
        self.demote_written(open, file, object)
    }

    /// Puts what a file holds now, open or not, where no loss of power reaches it: on flash, or
    /// where that has no room on the PFS.
    pub fn make_stable(&self, file: &Arc<File>) -> Result<(), Failure> {
        for _ in 1..STABLE_TRIES {
            match self.try_to_make_stable(file) {
                // Nobody holds it open for this: its last close has moved it meanwhile.
                Err(failure) if failure.errno() == Errno::EBUSY => {}
                done => return done,
            }
        }
        self.try_to_make_stable(file)
    }

    fn try_to_make_stable(&self, file: &Arc<File>) -> Result<(), Failure> {
        self.integrity.refuse_failed_flush(file)?;
        // A close may be copying it to flash, and would go on with that when it has moved there.
        let copying = file.copying();
        let claim = self.buffer.opens().claim(file.ino);
        if let Some(open) = claim.open() {
            drop((claim, copying));
            let target = self.target(&open)?.clone();
            return match target {
                Target::Pfs { node, file, .. } => self.sync_in_place(&node, &file, false),
                Target::Buffer { file, object, tier } => {
                    open.fsynced.store(true, Ordering::Release);
                    let flush = self.begin_unasked_flush(&file, &*object)?;
                    let (object, tier) = match self.buffer.tiers().kind(tier) {
                        TierKind::Dram => self.flush_to_flash(&open, &file)?,
                        _ => {
                            self.integrity.flush(&file, tier, &*object, false)?;
                            (object, tier)
                        }
                    };
                    self.promise(&open, &file, (&*object, tier), flush)
                }
            };
        }
        let (tier, dirty) = {
            let state = file.lock();
            (state.residency.tier, state.is_dirty())
        };
        if !dirty {
            return Ok(());
        }
        let second = self.second_of(file).map(|(_, copied)| copied);
        if second == Some(self.buffer.generation(file)) {
            // Its second copy is all of it, on flash.
            return Ok(());
        }
        // With the claim held, it is neither opened nor evicted meanwhile.
        let object = self.buffer.tiers().open_object(tier, file.object)?;
        let flush = self.begin_unasked_flush(file, &*object)?;
        if self.buffer.tiers().kind(tier) != TierKind::Dram {
            self.integrity.flush(file, tier, &*object, false)?;
            return self.save_live(file, (&*object, tier), flush);
        }
        let bytes = object.stat()?.allocated_bytes;
        let Some(flash) = self.flash_for(file, tier, bytes) else {
            drop((claim, copying));
            return self.demote_and_wait(file);
        };
        let wanted = Move {
            file,
            source: &*object,
            to: flash,
            generation: Some(flush.generation),
            is_exclusive: false,
        };
        let moved = self.move_object(&wanted, || Some(()), drop);
        drop((claim, copying));
        match moved {
            Ok(Some(_)) => Ok(()),
            // Its attributes have changed meanwhile, or flash had less than was promised.
            Ok(None) => self.demote_and_wait(file),
            Err(failure) if matches!(failure.errno(), Errno::ENOSPC | Errno::EDQUOT) => {
                failure.told("move to flash");
                self.demote_and_wait(file)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Demotes a file that may be open for unseen writing. The copy is published only if the object
    /// has not changed under it; what the kernel writes afterwards makes the file dirty at its
    /// close.
    fn demote_written(
        &self,
        open: &OpenFile,
        file: &Arc<File>,
        object: &dyn Object,
    ) -> Result<(), Failure> {
        if !open.is_passthrough() || !open.is_written() {
            return self.demote_and_wait(file);
        }
        let stat = object.stat()?;
        self.demote_and_wait(file)?;
        let (generation, crc) = {
            let state = file.lock();
            (state.generation(), state.residency.crc)
        };
        open.touched.store(false, Ordering::Release);
        *open.before.lock() = Some(crate::buffer::opens::Before {
            stat,
            generation,
            crc,
        });
        Ok(())
    }

    /// Demotes a file now and waits until it is on the PFS.
    pub fn demote_and_wait(&self, file: &Arc<File>) -> Result<(), Failure> {
        let wanted = file.lock().begin_wait_for_all();
        let done = self.wait_until_safe(file, wanted);
        file.lock().end_wait();
        done
    }

    /// Others may change the file or fsync it meanwhile: what is waited for is `wanted` or newer.
    fn wait_until_safe(&self, file: &Arc<File>, wanted: Generation) -> Result<(), Failure> {
        loop {
            {
                let state = file.lock();
                let safe = state.safe.is_some_and(|safe| safe >= wanted);
                if safe || state.residency.clean || state.is_unlinked() {
                    return Ok(());
                }
                if let (Some(errno), false) = (state.error, state.demoting) {
                    drop(state);
                    file.lock().take_unreported_error();
                    return Err(errno.into());
                }
            }
            if self.base.health().is_given_up() {
                return Err(Errno::ETIMEDOUT.into());
            }
            self.buffer.queue().add_urgent(file.object);
            self.buffer.queue().wait_settled(LOOK_AGAIN);
            if self.base.is_ending() {
                return Err(Errno::EIO.into());
            }
        }
    }
}

/// Whether another place may take what flash has not taken.
pub(super) fn has_no_room(errno: Errno) -> bool {
    matches!(errno, Errno::ENOSPC | Errno::EDQUOT | Errno::ENOENT)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::sync::atomic::Ordering;
    use std::sync::{Arc, mpsc};
    use std::time::{Duration, Instant};

    use forebay_tiers::testing::{Effect, Operation, When};
    use forebay_types::failpoint::{self, Point};
    use forebay_types::{Errno, Handle, Ino, OpenFlags, SetAttr};
    use forebay_wire::WriteHow;

    use crate::buffer::target::Target;
    use crate::rooms::Rooms;
    use crate::testing::{FLASH, Lab, answer, create, drain, me, move_open, recorded};

    /// Longer than what does not wait takes.
    const LATE: Duration = Duration::from_millis(500);

    #[test]
    fn who_makes_a_file_stable_does_not_meet_the_move_of_its_last_close() {
        let (lab, _) = Lab::with_memory();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", b"content");
        let file = rooms.buffer.files().pop().expect("file");
        assert_ne!(file.tier(), FLASH, "not in memory");
        rooms.files.fsync(handle, false).expect("fsync");
        let how = WriteHow::WAITING;
        let written = rooms.files.write(handle, 0, b"changed", how);
        assert_eq!(written.expect("write"), Some(7));
        let open = rooms.buffer.opens().by_ino(file.ino).expect("open");
        let growing = open.growing.lock();
        std::thread::scope(|scope| {
            let stable = scope.spawn(|| rooms.files.make_stable(&file));
            // It has found the file open, and waits.
            std::thread::sleep(Duration::from_millis(200));
            rooms.files.release(handle).expect("close");
            assert_eq!(file.tier(), FLASH, "the close has moved it");
            drop(growing);
            stable.join().expect("no panic").expect("stable");
        });
    }

    #[test]
    fn an_fsync_that_waited_while_its_file_moved_writes_over_nothing() {
        let (lab, flash) = Lab::with_memory();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", &[1; 4096]);
        let (open, _) = rooms.buffer.opens().file(handle).expect("open");
        let file = rooms.buffer.files().pop().expect("file");
        std::thread::scope(|scope| {
            let growing = open.growing.lock();
            let fsync = scope.spawn(|| rooms.files.fsync(handle, false));
            while !open.fsynced.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
            // It knows where the file is, and waits.
            std::thread::sleep(LATE);
            rooms.files.leave_memory(|_| false, |_| false);
            assert_eq!(file.tier(), FLASH);
            open.budget_bytes.store(1 << 20, Ordering::Release);
            let written = rooms.files.write(handle, 0, &[2; 4096], WriteHow::WAITING);
            assert_eq!(answer(written), Ok(Some(4096)));
            drop(growing);
            assert_eq!(answer(fsync.join().expect("thread")), Ok(()));
        });
        let mut found = [0; 4096];
        let object = forebay_tiers::Tier::open(&*flash, file.object).expect("object");
        assert_eq!(object.read_at(&mut found, 0).expect("read"), 4096);
        assert!(found == [2; 4096], "what it was went over what it is");
        rooms.files.release(handle).expect("close");
    }

    #[test]
    fn an_fsync_whose_file_moves_meanwhile_begins_again_where_it_is() {
        for (has_name, fails) in [(true, true), (true, false), (false, true), (false, false)] {
            let (lab, flashes) = Lab::with_two_flashes();
            let rooms = lab.rooms();
            let handle = match has_name {
                true => create(rooms, b"f", &[1; 39]),
                false => {
                    let flags = OpenFlags(libc::O_RDWR as u32);
                    let created = rooms.files.create_unnamed(Ino::ROOT, 0o600, flags, me());
                    created.expect("create").1.handle
                }
            };
            let (open, _) = rooms.buffer.opens().file(handle).expect("open");
            let Target::Buffer { file, tier, .. } = open.target.read().clone() else {
                panic!("not in the burst buffer");
            };
            let flash = &flashes[usize::from(tier != FLASH)];
            let slow = flash.inject(Operation::Stat, When::Nth(1), Effect::Delay(4 * LATE));
            std::thread::scope(|scope| {
                let fsync = scope.spawn(|| answer(rooms.files.fsync(handle, false)));
                while flash.fired(slow) == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                move_open(rooms, &file);
                let written = rooms.files.write(handle, 39, &[2; 27], WriteHow::WAITING);
                assert_eq!(answer(written), Ok(Some(27)));
                if fails {
                    flash.inject(Operation::Sync, When::Every, Effect::Fail(Errno::EIO));
                }
                let patience = Instant::now() + 20 * LATE;
                while !fsync.is_finished() {
                    if Instant::now() > patience {
                        drain(rooms);
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert!(Instant::now() < patience, "it has waited for the PFS");
                assert_eq!(fsync.join().expect("thread"), Ok(()));
            });
            let case = format!("has a name: {has_name}, fails: {fails}");
            assert_eq!(recorded(&file).0, 66, "{case}");
            assert!(!file.lock().residency.flush_failed, "{case}");
            assert_eq!(rooms.base.errors().all(), [], "{case}");
            rooms.files.release(handle).expect("close");
        }
    }

    #[test]
    fn an_fsync_that_finds_no_room_on_flash_gives_the_pfs_the_time_of_the_last_write() {
        let lab = Lab::with(|settings| {
            settings.dram_bytes = Some(16 << 20);
            settings.ssd[0].capacity_bytes = Some(1 << 20);
        });
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", &vec![1; 2 << 20]);
        let file = rooms.buffer.files().pop().expect("file");
        std::thread::sleep(Duration::from_millis(50));
        let written = rooms.files.write(handle, 0, &[2; 4096], WriteHow::WAITING);
        assert_eq!(answer(written), Ok(Some(4096)));
        std::thread::scope(|scope| {
            let fsync = scope.spawn(|| rooms.files.fsync(handle, false));
            while !fsync.is_finished() {
                drain(rooms);
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(answer(fsync.join().expect("thread")), Ok(()));
        });
        assert_eq!(lab.on_pfs("f")[..4096], [2; 4096]);
        let shown = rooms.files.getattr(file.ino).expect("attributes").mtime;
        let on_pfs = std::fs::metadata(lab.pfs("f")).expect("stat");
        let on_pfs = (on_pfs.mtime(), on_pfs.mtime_nsec());
        assert_eq!(on_pfs, (shown.sec, i64::from(shown.nsec)));
        rooms.files.release(handle).expect("close");
    }

    #[test]
    fn a_demoter_does_not_wait_for_an_fsync_that_waits_for_demoters() {
        let lab = Arc::new(Lab::with(|settings| {
            settings.dram_bytes = Some(16 << 20);
            settings.ssd[0].capacity_bytes = Some(1 << 20);
        }));
        let write = |lab: &Lab, handle, content: &[u8]| {
            let written = (lab.rooms().files).write(handle, 0, content, WriteHow::WAITING);
            assert_eq!(answer(written), Ok(Some(content.len())));
        };
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", b"small");
        assert_eq!(answer(rooms.files.fsync(handle, false)), Ok(()));
        let file = rooms.buffer.files().pop().expect("file");
        assert!(file.lock().residency.shadow.is_some(), "on flash as well");
        write(&lab, handle, &vec![1; 2 << 20]);
        let (open, _) = rooms.buffer.opens().file(handle).expect("open");
        open.budget_bytes.store(1 << 20, Ordering::Release);
        std::thread::scope(|scope| {
            // Flash has no room for so much.
            let fsync = scope.spawn(|| answer(rooms.files.fsync(handle, false)));
            let (ended, end) = mpsc::channel();
            let demoters = lab.clone();
            scope.spawn(move || {
                let writer = demoters.clone();
                failpoint::meanwhile(Point::DemoteDir, move || write(&writer, handle, b"newer"));
                while ended.send(()).is_ok() {
                    drain(demoters.rooms());
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let mut all_is_well = true;
            while all_is_well && !fsync.is_finished() {
                all_is_well = end.recv_timeout(Duration::from_secs(20)).is_ok();
            }
            drop(end);
            rooms.base.life().end();
            assert!(all_is_well, "they wait for each other");
            assert_eq!(fsync.join().expect("thread"), Ok(()));
        });
        rooms.buffer.leave_copies_late();
        assert_eq!(rooms.buffer.ledger().figures(FLASH).used_bytes, 0);
        rooms.files.release(handle).expect("close");
        assert_eq!(&lab.on_pfs("f")[..5], b"newer");
    }

    /// `fsync` beside a demoter.
    fn fsync(rooms: &Rooms, handle: Handle) -> Result<(), Errno> {
        std::thread::scope(|scope| {
            let fsync = scope.spawn(|| answer(rooms.files.fsync(handle, false)));
            while !fsync.is_finished() {
                drain(rooms);
                std::thread::sleep(Duration::from_millis(1));
            }
            fsync.join().expect("thread")
        })
    }

    fn remove_flash(rooms: &Rooms) {
        std::fs::remove_dir_all(&rooms.base.settings().ssd[0].dir).expect("remove");
    }

    #[test]
    fn what_is_fsynced_after_its_tier_was_removed_is_on_the_pfs() {
        for memory in [false, true] {
            let lab = Lab::with(|settings| {
                settings.dram_bytes = memory.then_some(16 << 20);
            });
            let rooms = lab.rooms();
            let handle = create(rooms, b"f", b"one");
            assert_eq!(fsync(rooms, handle), Ok(()));
            let again = create(rooms, b"g", b"unchanged");
            assert_eq!(fsync(rooms, again), Ok(()));
            remove_flash(rooms);
            let written = rooms.files.write(handle, 3, b"two", WriteHow::WAITING);
            assert_eq!(answer(written), Ok(Some(3)));
            assert_eq!(fsync(rooms, handle), Ok(()), "memory: {memory}");
            assert_eq!(lab.on_pfs("f"), b"onetwo");
            assert_eq!(fsync(rooms, again), Ok(()), "memory: {memory}");
            assert_eq!(lab.on_pfs("g"), b"unchanged");
            // And again, when it has been drained before.
            let written = rooms.files.write(handle, 6, b"three", WriteHow::WAITING);
            assert_eq!(answer(written), Ok(Some(5)));
            assert_eq!(fsync(rooms, handle), Ok(()), "memory: {memory}");
            assert_eq!(lab.on_pfs("f"), b"onetwothree");
            rooms.files.release(handle).expect("close");
            rooms.files.release(again).expect("close");
        }
    }

    #[test]
    fn an_fsync_of_what_was_unlinked_needs_no_place_for_it() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", b"one");
        rooms.base.ns().unlink(Ino::ROOT, b"f").expect("unlink");
        assert_eq!(fsync(rooms, handle), Ok(()));
        remove_flash(rooms);
        assert_eq!(fsync(rooms, handle), Ok(()));
        rooms.files.release(handle).expect("close");
        assert!(!lab.pfs("f").exists());
    }

    #[test]
    fn a_truncation_that_ends_beside_an_open_leaves_the_file_written() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", &[1; 4096]);
        rooms.files.release(handle).expect("close");
        let file = rooms.buffer.files().pop().expect("file");
        let open = |flags: i32| rooms.files.open(file.ino, OpenFlags(flags as u32), None);
        let (reader, _) = open(libc::O_RDONLY).expect("open");
        flash.inject(Operation::SetLen, When::Nth(1), Effect::Delay(LATE));
        let waits_for = |operation, calls| {
            while flash.calls(operation) == calls {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        std::thread::scope(|scope| {
            let cuts = flash.calls(Operation::SetLen);
            let truncation = scope.spawn(|| {
                let set = SetAttr {
                    size: Some(100),
                    ..SetAttr::default()
                };
                rooms.files.setattr(file.ino, None, &set, me())
            });
            waits_for(Operation::SetLen, cuts);
            flash.inject(Operation::Stat, When::Nth(1), Effect::Delay(LATE));
            let looks = flash.calls(Operation::Stat);
            waits_for(Operation::Stat, looks);
            // It was looked at whether anybody writes, and its size is about to be taken.
            let (writer, _) = open(libc::O_RDWR).expect("open");
            let written = rooms
                .files
                .write(writer.handle, 0, b"more", WriteHow::WAITING);
            assert_eq!(answer(written), Ok(Some(4)));
            truncation.join().expect("thread").expect("truncated");
            assert!(file.lock().residency.writing, "nobody is said to write it");
            rooms.files.release(writer.handle).expect("close");
        });
        rooms.files.release(reader.handle).expect("close");
        assert!(!file.lock().residency.writing);
        assert_eq!(file.lock().meta.size, 100);
    }

    #[test]
    fn an_fsync_beside_a_cut_promises_no_more_than_is_left() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", &[1; 39]);
        let file = rooms.buffer.files().pop().expect("file");
        let promised = || file.lock().residency.flushed.map(|flushed| flushed.bytes);
        let slow = flash.inject(Operation::Sync, When::Nth(1), Effect::Delay(LATE));
        std::thread::scope(|scope| {
            let flush = scope.spawn(|| answer(rooms.files.fsync(handle, false)));
            while flash.fired(slow) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            cut(rooms, file.ino, 10);
            let written = rooms.files.write(handle, 10, &[2; 56], WriteHow::WAITING);
            assert_eq!(answer(written), Ok(Some(56)));
            assert_eq!(flush.join().expect("thread"), Ok(()));
        });
        assert!(promised() <= Some(10), "{:?}", promised());
        assert_eq!(fsync(rooms, handle), Ok(()));
        assert_eq!(promised(), Some(66));
        // Not by what grows it.
        for (size, left) in [(80, 66), (20, 20)] {
            cut(rooms, file.ino, size);
            assert_eq!(promised(), Some(left));
        }
        // Nor by an fsync that begins while it is cut.
        file.lock().begin_cut(15);
        assert_eq!(answer(rooms.files.fsync(handle, false)), Ok(()));
        assert_eq!(promised(), Some(15));
        file.lock().end_cut();
        rooms.files.release(handle).expect("close");
        cut(rooms, file.ino, 7);
        assert_eq!(promised(), Some(7));
        cut(rooms, file.ino, 0);
        assert_eq!(promised(), Some(0));
    }

    #[test]
    fn a_cut_beside_a_copy_to_flash_is_flushed_by_the_next_fsync() {
        let (lab, flash) = Lab::with_memory();
        let rooms = lab.rooms();
        let writer = create(rooms, b"f", &[1; 39]);
        let file = rooms.buffer.files().pop().expect("file");
        rooms.files.release(writer).expect("close");
        let reader = rooms
            .files
            .open(file.ino, OpenFlags(libc::O_RDONLY as u32), None);
        let reader = reader.expect("open").0.handle;
        // It is noted, and then waits for whoever looks at the end.
        let (open, _) = rooms.buffer.opens().file(reader).expect("open");
        let end = open.end.lock();
        let before = rooms.buffer.generation(&file);
        std::thread::scope(|scope| {
            let cut = scope.spawn(|| cut(rooms, file.ino, 10));
            while rooms.buffer.generation(&file) == before {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(answer(rooms.files.fsync(reader, false)), Ok(()));
            drop(end);
            cut.join().expect("thread");
        });
        assert_eq!(answer(rooms.files.fsync(reader, false)), Ok(()));
        let copy = forebay_tiers::Tier::open(&*flash, file.object).expect("the copy on flash");
        assert_eq!(copy.stat().expect("stat").size, 10);
        rooms.files.release(reader).expect("close");
    }

    fn cut(rooms: &Rooms, ino: forebay_types::Ino, size: u64) {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        let done = rooms.files.setattr(ino, None, &set, me());
        assert_eq!(answer(done.map(|attr| attr.size)), Ok(size));
    }

    #[test]
    fn what_is_flushed_for_a_name_while_it_is_closed_has_the_size_that_it_was_closed_with() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", &[1; 39]);
        let file = rooms.buffer.files().pop().expect("file");
        // The look for the record; the one before it asks whether the object is there.
        flash.inject(Operation::Stat, When::Nth(2), Effect::Late(LATE));
        let looks = flash.calls(Operation::Stat);
        std::thread::scope(|scope| {
            let flush = scope.spawn(|| answer(rooms.files.make_stable(&file)));
            while flash.calls(Operation::Stat) < looks + 2 {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(LATE / 10);
            let written = rooms.files.write(handle, 39, &[2; 27], WriteHow::WAITING);
            assert_eq!(answer(written), Ok(Some(27)));
            rooms.files.release(handle).expect("close");
            assert_eq!(flush.join().expect("thread"), Ok(()));
        });
        assert_eq!(recorded(&file), (66, false));
        let flags = OpenFlags(libc::O_RDWR as u32);
        let opened = answer(rooms.files.open(file.ino, flags, None));
        let (opened, _) = opened.expect("nothing is wrong with it");
        rooms.files.release(opened.handle).expect("close");
        drain(rooms);
        assert!(!file.lock().is_dirty(), "{:?}", rooms.base.errors().all());
    }
}
