//! Closes, also those that cannot be finished when they happen, and what a stop does for what is
//! undrained.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_kv::Durability as KvDurability;
use forebay_namespace::File;
use forebay_policy::demotion::PlacementPolicy;
use forebay_policy::schedule::TurnEnd;
use forebay_tiers::{Object, TierKind, start_writeback};
use forebay_types::{Errno, Handle, Ino, OpenFlags, TierId};

use crate::base::failure::Failure;
use crate::buffer::opens::{Claim, OpenFile};
use crate::buffer::target::Target;
use crate::files::Files;
use crate::files::mover::Move;
use crate::files::unseen::Untouched;

impl Files {
    /// Closes a handle. A file that the kernel wrote by itself stays open for as long as somebody
    /// can write it.
    pub fn release(&self, handle: Handle) -> Result<(), Failure> {
        let (open, flags) = self.buffer.opens().remove(handle)?;
        let claim = self.buffer.opens().claim(open.ino);
        if flags.writes()
            && open.is_passthrough()
            && open.counts.lock().writers == 1
            && self.can_be_written(&open)
        {
            self.unseen.keep(self.buffer.opens().put_back(open, flags));
            return Ok(());
        }
        self.close(claim, &open, flags)
    }

    /// The end of a handle that has been removed from the table.
    pub fn close(
        &self,
        claim: Claim<'_>,
        open: &Arc<OpenFile>,
        flags: OpenFlags,
    ) -> Result<(), Failure> {
        let left = self.buffer.opens().drop_count(&claim, open, flags);
        let target = open.target.read().clone();
        let (file, object, tier) = match target {
            Target::Buffer { file, object, tier } => (file, object, tier),
            Target::Pfs { node, .. } => {
                if left.opens == 0 {
                    self.forget_unopened(node.id);
                }
                return Ok(());
            }
        };
        let mut result = Ok(());
        let mut excess = None;
        if flags.writes() && left.writers == 0 {
            // What a wait behind a stream has met no flush hears again; a close is told of nothing
            // that the drain will not say.
            let _told = self.integrity.heard(&file, tier, open.behind.check());
            let most = self.descriptors.unflushed_max;
            let held = self
                .integrity
                .hold_until_flushed(&file, tier, &*object, most);
            excess = Some(held);
            result = self.last_writer_closed(open, &file, &*object);
            // Unless it was written.
            self.catalog.history().put_down(file.object);
        }
        drop(claim);
        if let Some(excess) = excess {
            self.integrity.held_until_flushed(&file, tier, excess);
        }
        if left.opens == 0 {
            if self.plan.engine().placement() == PlacementPolicy::Coolness {
                self.catalog.apps().released(file.object);
            }
            self.buffer.leave_overflow(&file);
            if file.lock().is_unlinked() {
                self.buffer.wake_collector();
            } else if open.fsynced.load(Ordering::Acquire) {
                self.settle_shadow(&file)?;
            }
        }
        result
    }

    fn last_writer_closed(
        &self,
        open: &Arc<OpenFile>,
        file: &Arc<File>,
        object: &dyn Object,
    ) -> Result<(), Failure> {
        // Who sets the end of the file at the moment does so under the mark that this takes away.
        let _end = open.end.lock();
        let stat = match object.stat() {
            Ok(stat) => stat,
            Err(error) => return Err(self.close_later(open, file, error)),
        };
        let before = open.before.lock().take();
        let touched = open.touched.swap(false, Ordering::AcqRel);
        open.lease_bytes.store(0, Ordering::Release);
        open.budget_bytes.store(0, Ordering::Release);
        self.buffer.activity().note();
        if let Some(before) = before
            && !touched
            && before.looks_like(&stat)
            && let Some(generation) = self.end_unseen(file, &before)
        {
            self.buffer.book(file, stat.allocated_bytes);
            self.unseen.compare(Untouched {
                file: file.clone(),
                before,
                generation,
                series: open.series.load(Ordering::Acquire),
                fsynced: open.fsynced.load(Ordering::Acquire),
            });
            return Ok(());
        }
        let (dirty, unlinked) = {
            let mut state = file.lock();
            if open.is_passthrough() {
                open.unsent.changed();
            }
            // What the kernel wrote is a change whatever was taken for known of it meanwhile.
            state.close(&stat, open.is_passthrough());
            if let Some((second, _)) = state.residency.shadow
                && !open.is_passthrough()
                && open.unsent.is_nothing()
            {
                // All that was written since was sent there.
                let now = state.generation();
                state.note_shadow(second, now);
            }
            if open.changes.are_under_way() {
                // The object may be longer in a moment, and who changes it takes that in.
                state.stay_written();
            }
            // Until then the record says that the object knows the size, which is as good.
            self.ns.save_later(file, &mut state);
            let dirty = self.buffer.book_held(file, &state, stat.allocated_bytes);
            (dirty, state.is_unlinked())
        };
        // What an fsync has put on the PFS is clean already, and tells as much of its series.
        if (dirty || touched) && !unlinked {
            let series = open.series.load(Ordering::Acquire);
            let fsynced = open.fsynced.load(Ordering::Acquire);
            self.note_written(file, stat.written_bytes(), series, fsynced);
        }
        if dirty && !unlinked {
            self.buffer.queue().add(file.object);
        }
        Ok(())
    }

    /// What is learned from a file that has been written and closed.
    pub fn note_written(&self, file: &File, bytes: u64, series: u64, fsynced: bool) {
        self.base
            .counters()
            .written_bytes
            .fetch_add(bytes, Ordering::Relaxed);
        let series = match series {
            0 => self.catalog.rules().identify(&file.path()).series_hash(),
            // Also if it was renamed since: the next one will be created under the old name, too.
            known => known,
        };
        self.catalog
            .apps()
            .closed(file.object, series, bytes, fsynced);
        self.plan.learning().closed(file.object, bytes);
        self.plan.note_access(file.tier(), bytes);
        let (uid, is_dirty) = {
            let state = file.lock();
            (state.meta.uid, state.is_dirty())
        };
        let is_direct = self.buffer.tiers().kind(file.tier()) == TierKind::Pfs;
        self.catalog
            .note_closed(file.object, (bytes, is_direct), uid);
        if !is_dirty {
            // Its last fsync has put it on the PFS.
            self.catalog.history().drained(file.object, bytes);
        }
        if self.plan.engine().is_throttled()
            && let Some((application, _)) = self.catalog.apps().of(file.object)
        {
            self.plan.engine().end_turn(application, TurnEnd::Closed);
        }
    }

    /// The last writer has closed a file whose object does not say what it has become. The file
    /// stays one that is written unseen, so that the object knows the size, and waits for its drain
    /// like others: that asks again.
    pub fn close_later(&self, open: &OpenFile, file: &Arc<File>, error: io::Error) -> Failure {
        let failure = Failure::from(error);
        let errno = failure.errno();
        *open.before.lock() = None;
        open.lease_bytes.store(0, Ordering::Release);
        open.budget_bytes.store(0, Ordering::Release);
        self.buffer.activity().note();
        {
            let mut state = file.lock();
            state.fail_close(errno);
            self.ns.save_later(file, &mut state);
        }
        self.leave_unclosed(file, &failure);
        // Not before: until then this says that the record does not know the size.
        open.touched.store(false, Ordering::Release);
        failure
    }

    /// The object does not say what it has become: its drain asks again.
    pub fn leave_unclosed(&self, file: &Arc<File>, failure: &Failure) {
        if file.lock().is_unlinked() {
            // Nobody misses it.
            return;
        }
        self.buffer.unclosed().lock().insert(file.object);
        let reason = format!(
            "its close could not look at its object: {failure}; it is kept and tried again"
        );
        self.base.report(file.path(), failure.errno(), reason);
        self.buffer.queue().add(file.object);
    }

    /// Cuts a file. What an fsync has promised goes with what is cut off, or a start after a power
    /// cut would miss it. So that is on record before the cut can be.
    pub fn cut<T>(
        &self,
        file: &Arc<File>,
        to: u64,
        cut: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let done = self.promise_no_more(file, to).and_then(|()| cut());
        file.lock().end_cut();
        done
    }

    fn promise_no_more(&self, file: &Arc<File>, than: u64) -> Result<(), Failure> {
        let mut state = file.lock();
        if let Some(before) = state.begin_cut(than)
            && let Err(error) = self.ns.save(file, &state, KvDurability::Synced)
        {
            state.restore_flushed(Some(before));
            return Err(error.into());
        }
        Ok(())
    }

    /// Moves what is only in memory to flash, where there is room, and drops clean copies in
    /// memory: after a stop nothing depends on the node staying up. Clean copies stay of what is
    /// `kept`: by another id they would be other files to clients that have them open over the
    /// restart. So do files that a kernel has `by_kernel` itself: what has a name is copied to
    /// flash beside it, and what has none goes down with the node, as whoever has it open there.
    pub fn leave_memory(&self, kept: impl Fn(Ino) -> bool, by_kernel: impl Fn(Ino) -> bool) {
        let files: Vec<_> = self.buffer.files();
        for file in files {
            let tier = file.tier();
            let is_gone = file.lock().is_unlinked() && !self.ns.is_held(file.object);
            let slot = self.buffer.tiers().get(tier);
            // What is in the memory of another node stays there: that node goes on.
            let is_own = slot.is_some_and(|slot| slot.server == self.settings.server);
            if self.buffer.tiers().kind(tier) != TierKind::Dram || is_gone || !is_own {
                continue;
            }
            let is_clean = !file.lock().is_dirty();
            let is_kernels = by_kernel(file.ino);
            let stays = match is_clean {
                true => kept(file.ino),
                false => is_kernels && file.lock().is_unlinked(),
            };
            if stays || (is_clean && self.buffer.evict(&file).is_some()) {
                continue;
            }
            let left = match is_kernels {
                // What is lost at a reboot is worse than a reader that is told to open it again.
                true => match self.copy_to_flash(&file, tier) {
                    Err(failure) if failure.errno() != Errno::ETXTBSY => {
                        let path = file.path();
                        tracing::warn!("{}: not copied to flash: {failure}", path.escape_ascii());
                        self.move_to_flash(&file, tier)
                    }
                    done => done,
                },
                false => self.move_to_flash(&file, tier),
            };
            if let Err(failure) = left {
                let why = match failure.errno() {
                    Errno::ETXTBSY => "a program can still write it".to_string(),
                    _ => failure.to_string(),
                };
                tracing::warn!("{}: stays in memory: {why}", file.path().escape_ascii());
            }
        }
    }

    /// Copies to flash what a kernel reads by itself in memory, and goes on with there.
    fn copy_to_flash(&self, file: &Arc<File>, tier: TierId) -> Result<(), Failure> {
        let _copying = file.copying();
        // Nobody opens or closes it meanwhile.
        let _claim = self.buffer.opens().claim(file.ino);
        let source = self.buffer.tiers().open_object(tier, file.object)?;
        if self.is_written_below(tier, &*source)? {
            return Err(Errno::ETXTBSY.into());
        }
        let stat = source.stat()?;
        file.lock().end_unseen_as(&stat);
        self.leave_copy(file, (&*source, tier))
    }

    fn move_to_flash(&self, file: &Arc<File>, tier: TierId) -> Result<(), Failure> {
        // An fsync under way copies what the file has been: it would go on copying over what the
        // file is by then.
        let _copying = file.copying();
        // Nobody opens or closes it meanwhile.
        let claim = self.buffer.opens().claim(file.ino);
        let open = claim.open();
        if open
            .as_ref()
            .is_some_and(|open| open.is_passthrough() && open.is_written())
        {
            // The next start goes on with it where it is.
            return Err(Errno::ETXTBSY.into());
        }
        let mut held = open.as_ref().map(|open| (open, open.target.write()));
        if let (Some((open, target)), Some(object)) = (&mut held, self.unheld(tier, file.object)) {
            // This process is no program that can still write it.
            let file = file.clone();
            open.put(target, Target::Buffer { file, object, tier });
        }
        let source = self.buffer.tiers().open_object(tier, file.object)?;
        if self.is_written_below(tier, &*source)? {
            return Err(Errno::ETXTBSY.into());
        }
        let stat = source.stat()?;
        let to = self.flash_for(file, tier, stat.allocated_bytes);
        let to = to.ok_or(Errno::ENOSPC)?;
        let generation = {
            let mut state = file.lock();
            state.end_unseen_as(&stat);
            state.generation()
        };
        let wanted = Move {
            file,
            source: &*source,
            to,
            generation: Some(generation),
            is_exclusive: true,
        };
        self.move_object(
            &wanted,
            || Some(()),
            |object| {
                if let Some((open, target)) = &mut held {
                    // Who has it open on a mount that was taken away under them may ask for it to
                    // the end.
                    let file = file.clone();
                    open.put(
                        target,
                        Target::Buffer {
                            file,
                            object,
                            tier: to,
                        },
                    );
                }
            },
        )?;
        Ok(())
    }

    /// Whether something is left in memory.
    pub fn memory_in_use(&self) -> bool {
        self.buffer.tiers().iter().any(|(_, slot)| {
            let mut any = false;
            slot.server == self.settings.server
                && slot.kind == TierKind::Dram
                && (slot.tier.list(&mut |_| any = true).is_err() || any)
        })
    }

    /// What stays here undrained after an orderly stop does not depend on the node staying up: a
    /// start after a reboot believes only what was flushed.
    pub fn flush_undrained(&self) {
        let files: Vec<_> = self.buffer.files();
        let mut due = Vec::new();
        for file in files {
            let (residency, left) = {
                let state = file.lock();
                (state.residency, state.is_dirty() && !state.is_unlinked())
            };
            let flushed = residency.flushed;
            let done = flushed.is_some_and(|f| f.generation == residency.generation);
            let here = match self.buffer.tiers().kind(residency.tier) {
                _ if self.buffer.tiers().is_out_of_reach(residency.tier) => false,
                TierKind::Dram => false,
                TierKind::Pfs => !self.base.health().is_silent(),
                _ => true,
            };
            if !left || !here || (done && !residency.writing) {
                continue;
            }
            match self.buffer.tiers().open_object(residency.tier, file.object) {
                Ok(object) => {
                    // All of them are on their way before the first is waited for.
                    start_writeback(&*object, 0, 0);
                    due.push((file, residency.tier));
                }
                Err(error) => self.not_flushed(&file, &error.into()),
            }
        }
        for (file, tier) in due {
            if let Err(failure) = self.flush_one(&file, tier) {
                self.not_flushed(&file, &failure);
            }
        }
        for (_, slot) in self.buffer.tiers().iter() {
            let answers = match slot.kind {
                TierKind::Pfs => !self.base.health().is_silent(),
                _ => slot.tier.is_answering(),
            };
            if answers && let Err(error) = slot.tier.sync_all() {
                let path = format!("({})", slot.tier.name()).into_bytes();
                self.base
                    .report(path, Errno::of(&error), format!("flush: {error}"));
            }
        }
    }

    fn flush_one(&self, file: &Arc<File>, tier: TierId) -> Result<(), Failure> {
        let object = self.buffer.tiers().open_object(tier, file.object)?;
        let generation = self.buffer.generation(file);
        // Who has it open from the kernel may write it meanwhile.
        let bytes = object.stat()?.size;
        // Whatever this says, the next start does not hear it.
        self.integrity.flush(file, tier, &*object, false)?;
        let mut state = file.lock();
        if state.is_dirty() {
            state.note_flushed(generation, bytes);
            self.ns.save(file, &state, KvDurability::Buffered)?;
        }
        Ok(())
    }

    fn not_flushed(&self, file: &File, failure: &Failure) {
        let reason = format!("flush at the stop: {failure}; a loss of power may take it");
        self.base.report(file.path(), failure.errno(), reason);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_tiers::testing::{Effect, FaultyTier, Operation, When};
    use forebay_tiers::{Object, Tier};
    use forebay_types::{Errno, ObjectId, OpenFlags, SetAttr};

    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use forebay_policy::durability::Durability;
    use forebay_wire::WriteHow;

    use crate::buffer::target::Target;
    use crate::rooms::Rooms;
    use crate::testing::{FLASH, Lab, answer, create, drain, me};

    const OLD: [u8; 4096] = [1; 4096];
    const NEW: [u8; 4096] = [2; 4096];

    /// The next write to flash comes so late that whoever does not wait for it is done.
    fn slow_write(flash: &FaultyTier) -> u64 {
        let late = Effect::Delay(Duration::from_millis(700));
        flash.inject(Operation::Write, When::Nth(1), late);
        flash.calls(Operation::Write)
    }

    fn wait_for_write(flash: &FaultyTier, before: u64) {
        while flash.calls(Operation::Write) == before {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn on_flash(rooms: &Rooms, object: ObjectId) -> Vec<u8> {
        let mut found = vec![0; NEW.len()];
        let object = rooms
            .buffer
            .tiers()
            .open_object(FLASH, object)
            .expect("on flash");
        assert_eq!(object.read_at(&mut found, 0).expect("read"), NEW.len());
        found
    }

    #[test]
    fn an_fsync_under_way_at_a_stop_writes_over_nothing() {
        let (lab, flash) = Lab::with_memory();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", &OLD);
        let file = rooms.buffer.files().pop().expect("file");
        assert_ne!(file.tier(), FLASH, "not in memory");
        let before = slow_write(&flash);
        std::thread::scope(|scope| {
            let fsync = scope.spawn(|| rooms.files.fsync(handle, false));
            wait_for_write(&flash, before);
            rooms.files.leave_memory(|_| false, |_| false);
            // By a program on a mount that was taken away under it.
            let written = rooms.files.write(handle, 0, &NEW, WriteHow::WAITING);
            assert_eq!(answer(written), Ok(Some(NEW.len())));
            assert_eq!(answer(fsync.join().expect("thread")), Ok(()));
        });
        assert_eq!(file.tier(), FLASH);
        assert!(
            on_flash(rooms, file.object) == NEW,
            "what it was went over what it is"
        );
        rooms.files.release(handle).expect("close");
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
    }

    #[test]
    fn what_is_open_at_a_stop_moves_to_flash_with_what_it_has_become() {
        let lab = Lab::with(|settings| settings.dram_bytes = Some(16 << 20));
        let rooms = lab.rooms();
        rooms
            .files
            .release(create(rooms, b"f", &OLD))
            .expect("close");
        let file = rooms.buffer.files().pop().expect("file");
        assert_ne!(file.tier(), FLASH, "not in memory");
        let (opened, _) = rooms
            .files
            .open(file.ino, OpenFlags(libc::O_RDWR as u32), None)
            .expect("open");
        let set = SetAttr {
            size: Some(100),
            ..SetAttr::default()
        };
        rooms
            .files
            .setattr(file.ino, Some(opened.handle), &set, me())
            .expect("truncate");
        assert!(file.lock().residency.writing);
        rooms.files.leave_memory(|_| false, |_| false);
        assert_eq!(file.tier(), FLASH, "our own descriptor is no program");
        let (size, writing) = {
            let state = file.lock();
            (state.meta.size, state.residency.writing)
        };
        assert_eq!((size, writing), (100, false), "a start would miss bytes");
        rooms.files.release(opened.handle).expect("close");
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
    }

    #[test]
    fn a_close_that_copies_to_flash_writes_over_nothing_that_was_moved_there_for_its_name() {
        let (lab, flash) = Lab::with_memory();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", &[9; 4096]);
        let file = rooms.buffer.files().pop().expect("file");
        rooms.files.fsync(handle, false).expect("fsync");
        let written = rooms.files.write(handle, 0, &OLD, WriteHow::WAITING);
        assert_eq!(answer(written), Ok(Some(OLD.len())));
        let before = slow_write(&flash);
        std::thread::scope(|scope| {
            let close = scope.spawn(|| rooms.files.release(handle));
            wait_for_write(&flash, before);
            rooms.files.make_stable(&file).expect("as before a rename");
            let flags = OpenFlags(libc::O_RDWR as u32);
            let (opened, _) = rooms.files.open(file.ino, flags, None).expect("open");
            let written = rooms.files.write(opened.handle, 0, &NEW, WriteHow::WAITING);
            assert_eq!(answer(written), Ok(Some(NEW.len())));
            assert_eq!(answer(close.join().expect("thread")), Ok(()));
            rooms.files.release(opened.handle).expect("close");
        });
        assert_eq!(file.tier(), FLASH);
        assert!(
            on_flash(rooms, file.object) == NEW,
            "what it was went over what it is"
        );
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
    }

    #[test]
    fn a_file_that_its_last_fsync_has_put_on_the_pfs_tells_of_its_series() {
        let lab = Lab::with(|settings| settings.durability = Some(Durability::Pfs));
        let rooms = lab.rooms();
        for name in [b"s-1", b"s-2"] {
            let handle = create(rooms, name, &OLD);
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !done.load(Ordering::Acquire) {
                        drain(rooms);
                    }
                });
                let synced = rooms.files.fsync(handle, false);
                done.store(true, Ordering::Release);
                assert_eq!(answer(synced), Ok(()));
            });
            rooms.files.release(handle).expect("close");
            assert_eq!(rooms.buffer.ledger().dirty_and_capacity().0, 0);
        }
        let expected = rooms
            .catalog
            .apps()
            .expect(&rooms.catalog.rules().identify(b"s-3"));
        let enough = |bytes| bytes >= OLD.len() as u64;
        assert!(expected.bytes.is_some_and(enough), "its size is not known");
    }

    #[test]
    fn a_file_whose_close_fails_is_drained_all_the_same() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", b"what was written");
        let (open, _) = rooms.buffer.opens().file(handle).expect("open");
        let Target::Buffer { file, tier, .. } = open.target.read().clone() else {
            panic!("not in the burst buffer");
        };
        let slot = rooms.buffer.tiers().get(tier).expect("tier");
        let faulty = FaultyTier::new(slot.tier.clone());
        let fault = faulty.inject(Operation::Stat, When::Every, Effect::Fail(Errno::EIO));
        let object: Arc<dyn Object> = faulty.open(file.object).expect("object");
        *open.target.write() = Target::Buffer {
            file: file.clone(),
            object,
            tier,
        };
        drop(open);
        assert_eq!(answer(rooms.files.release(handle)), Err(Errno::EIO));
        assert!(faulty.fired(fault) > 0);
        let waiting: Vec<ObjectId> = rooms.buffer.queue().waiting();
        assert_eq!(waiting, [file.object], "it waits for its drain");
        drain(rooms);
        assert!(!file.lock().is_dirty(), "{:?}", rooms.base.errors().all());
        assert_eq!(rooms.buffer.ledger().dirty_and_capacity().0, 0);
        assert_eq!(lab.on_pfs("f"), b"what was written");
        assert_eq!(file.lock().meta.size, 16);
    }
}
