//! Flushes on flash. One that fails leaves nobody knowing what the object has: the kernel keeps
//! what it could not write for as long as it likes, and tells of it once. So it is damage, on
//! record from then on.

use std::io;
use std::sync::Arc;

use forebay_namespace::File;
use forebay_tiers::{
    Object, TierKind, checksum, heard_of_writeback, heard_so_far, start_writeback, wait_writeback,
};
use forebay_types::{Errno, TierId};

use super::{Looked, Recorded, is_exhaustion, is_out_of_reach};
use crate::base::failure::Failure;
use crate::buffer::unflushed::{Excess, Held, Known};
use crate::integrity::Integrity;
use crate::integrity::scrub::out_of_cache;

/// What is wrong with such a file, from then on.
pub const FLUSH_FAILED: &str =
    "a flush of it on flash has failed: what was written may not be there";

fn is_read_only(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EROFS)
}

/// Told once more to a later start, it would be looked at once more: there is no harm in that.
pub(super) fn forget_failed_flushes(object: &dyn Object) {
    if let Err(error) = object.forget_failed_flushes() {
        tracing::debug!("a flush that has failed is told again: {error}");
    }
}

/// From here on an object reads as its device has it: what a flush has failed of is clean in
/// memory, and stays there for a while.
pub(crate) fn read_from_device(object: &dyn Object) -> io::Result<()> {
    // The first may be told of what has failed before.
    object.sync(false).or_else(|_| object.sync(false))?;
    out_of_cache(object);
    Ok(())
}

fn ask(held: Option<&Known>) -> io::Result<()> {
    held.map_or(Ok(()), |held| heard_so_far(&*held.object))
}

impl Integrity {
    /// Whether an object in `tier` may not be on stable storage as it is now: then it is flushed
    /// before it is read for a copy. What its write-back has lost reads as something else as soon
    /// as memory is short, and only the flush tells.
    pub fn is_to_be_flushed(&self, file: &File, tier: TierId) -> bool {
        let residency = file.lock().residency;
        let flushed = residency.flushed;
        let known = flushed.is_some_and(|flushed| flushed.generation == residency.generation);
        self.buffer.tiers().kind(tier) == TierKind::Ssd
            && !residency.clean
            && (residency.writing || !known)
    }

    /// Puts what was written to an object in `tier` on stable storage. What fails is damage, but
    /// for one thing: a file system that has gone read-only takes no flush any more, and what it
    /// had taken before reads as ever. It may be lost with the node's power.
    pub fn flush(
        &self,
        file: &Arc<File>,
        tier: TierId,
        object: &dyn Object,
        data_only: bool,
    ) -> io::Result<()> {
        // What is closed meanwhile is held on.
        let held = self.buffer.unflushed().of(file.object, tier);
        if self.buffer.tiers().kind(tier) == TierKind::Ssd {
            self.heard(file, tier, wait_writeback(object))?;
        }
        let synced = object.sync(data_only);
        self.heard(file, tier, ask(held.as_ref()))?;
        match synced {
            Err(error) if is_read_only(&error) => Err(error),
            told => {
                if let Some(held) = held {
                    self.buffer.unflushed().let_go_of(file.object, &held);
                }
                self.heard(file, tier, told)
            }
        }
    }

    /// What the descriptor that an object in `tier` is held by has been told, if others were told
    /// of it before.
    pub fn ask_held(&self, file: &Arc<File>, tier: TierId) -> io::Result<()> {
        let held = self.buffer.unflushed().of(file.object, tier);
        self.heard(file, tier, ask(held.as_ref()))
    }

    /// The kernel is about to write an object by itself, whose programs may be told of what the
    /// server is not. `object` is open already, for reading only.
    pub fn hold_open(&self, file: &Arc<File>, tier: TierId, object: &Arc<dyn Object>) {
        if self.buffer.tiers().kind(tier) != TierKind::Ssd {
            return;
        }
        let held = Held {
            file: file.clone(),
            tier,
            object: object.clone(),
        };
        let before = self.buffer.unflushed().hold_open(held);
        if let Some(before) = before.filter(|before| before.tier == tier) {
            // It was opened earlier. What comes from here on the new one hears, too.
            let _told = self.heard(file, tier, heard_so_far(&*before.object));
        }
    }

    /// The last writer of a file closes it: its object is held open until it is flushed. To be
    /// called before its drain may begin. `object` goes with the close; `most`: so many may be
    /// held.
    pub fn hold_until_flushed(
        &self,
        file: &Arc<File>,
        tier: TierId,
        object: &dyn Object,
        most: usize,
    ) -> Excess {
        let known = self.buffer.unflushed().of(file.object, tier);
        let is_new = known.is_none();
        let is_written = file.lock().residency.writing || self.is_to_be_flushed(file, tier);
        let is_flash = self.buffer.tiers().kind(tier) == TierKind::Ssd;
        if !is_flash || (is_new && !is_written) {
            return Excess::default();
        }
        let opened = match known {
            Some(known) => Ok(known.object),
            None => self.buffer.tiers().open_object(tier, file.object),
        };
        // Whoever drains what cannot be opened meets the same.
        let excess = opened.map(|object| {
            let file = file.clone();
            let held = Held { file, tier, object };
            self.buffer.unflushed().hold(held, most)
        });
        if is_new {
            // Of what others were told before the new one was opened.
            let _told = self.heard(file, tier, heard_so_far(object));
        }
        excess.unwrap_or_default()
    }

    /// The file is closed: what need not be held goes, and there are no more than may be.
    pub fn held_until_flushed(&self, file: &Arc<File>, tier: TierId, excess: Excess) {
        let unflushed = self.buffer.unflushed();
        let held = unflushed.of(file.object, tier);
        if let Some(held) = held.filter(|_| !self.is_to_be_flushed(file, tier)) {
            unflushed.let_go_of(file.object, &held);
        }
        if let Some(next) = excess.start {
            start_writeback(&*next.object, 0, 0);
        }
        if let Some((oldest, known)) = excess.wait {
            if self.is_to_be_flushed(&oldest.file, oldest.tier) {
                let waited = wait_writeback(&*oldest.object);
                let _told = self.heard(&oldest.file, oldest.tier, waited);
            }
            unflushed.let_go_of(oldest.file.object, &known);
        }
    }

    /// The same for what is about to be read for a copy. Whether it is on stable storage: it may be
    /// read all the same.
    pub fn flush_to_copy(
        &self,
        file: &Arc<File>,
        tier: TierId,
        object: &dyn Object,
    ) -> io::Result<bool> {
        match self.flush(file, tier, object, false) {
            Ok(()) => Ok(true),
            Err(error) if is_read_only(&error) && !file.lock().residency.flush_failed => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What a flush, or a wait for write-back, of an object in `tier` has told. Nobody hears it
    /// again. A file that has moved meanwhile has nothing to do with it: its content was flushed
    /// where it was before it went.
    pub fn heard(&self, file: &Arc<File>, tier: TierId, told: io::Result<()>) -> io::Result<()> {
        if let Err(error) = &told
            && self.buffer.tiers().kind(tier) == TierKind::Ssd
            && error.raw_os_error() != Some(libc::EINTR)
            && !(is_out_of_reach(error) && self.buffer.tiers().holder_of(tier).is_some())
            && file.tier() == tier
        {
            self.fail_flush(file, error);
        }
        told
    }

    /// What is not flushed yet may have lost pages by now: then it is not handed out.
    pub(super) fn hear_before_open(&self, file: &Arc<File>, tier: TierId, object: &dyn Object) {
        if self.is_to_be_flushed(file, tier) {
            let _told = self.heard(file, tier, heard_of_writeback(object));
            let _told = self.ask_held(file, tier);
        }
    }

    fn fail_flush(&self, file: &Arc<File>, error: &io::Error) {
        match self.ns.fail_flush(file) {
            Ok(true) => {}
            // The PFS has it: whoever opens what is here compares it with that.
            Ok(false) => return self.at_rest.suspect(file.object),
            Err(error) => {
                let reason = format!("its damage is not on record: {error}");
                self.base.report(file.path(), error.errno(), reason);
            }
        }
        if file.lock().is_unlinked() {
            // Whoever has it open is told.
            return;
        }
        let problem = format!("flush on flash: {error}: what was written may not be there");
        self.note_damage(file, file.path(), problem, Default::default());
    }

    /// `EIO` of a file of which a flush has failed since it was last cut to nothing.
    pub fn refuse_failed_flush(&self, file: &File) -> Result<(), Failure> {
        match file.lock().residency.flush_failed {
            true => Err(Errno::EIO.into()),
            false => Ok(()),
        }
    }

    /// The file has been cut to nothing: what was lost of it is missed by nobody.
    pub fn forget_failed_flush(&self, file: &Arc<File>, object: &dyn Object) {
        // These descriptors may not have been told yet, and would tell it of what is written next.
        let tier = file.tier();
        if let Some(held) = self.buffer.unflushed().of(file.object, tier) {
            let _told = ask(Some(&held));
            self.buffer.unflushed().let_go_of(file.object, &held);
        }
        if !file.lock().residency.flush_failed {
            return;
        }
        let _told = wait_writeback(object);
        if self.end_failed_flush(file) {
            self.is_sound_again(file);
        }
    }

    fn end_failed_flush(&self, file: &File) -> bool {
        self.ns.end_failed_flush(file).unwrap_or_else(|error| {
            let reason = format!("that it is whole again is not on record: {error}");
            self.base.report(file.path(), error.errno(), reason);
            true
        })
    }

    /// Only its checksum can tell that nothing is missing, of what its device has.
    pub(super) fn look_after_failed_flush(
        &self,
        file: &File,
        recorded: &Recorded,
        object: &dyn Object,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Looked, Failure> {
        let Recorded { residency, size } = recorded;
        let stat = object.stat()?;
        let known = residency.crc.filter(|_| !residency.writing);
        if let Some(expected) = known.filter(|_| stat.size == *size)
            && object.sync(false).is_ok()
        {
            out_of_cache(object);
            match checksum(object, *size, stop) {
                Ok(crc) if crc == expected => {
                    self.end_failed_flush(file);
                    forget_failed_flushes(object);
                    self.at_rest.seal(file.object, residency.generation, &stat);
                    return Ok(Looked::Sound);
                }
                Err(error) if is_exhaustion(&error) => return Err(error.into()),
                _ => {}
            }
        }
        Ok(Looked::Wrong(FLUSH_FAILED.into()))
    }

    /// A start has found such a file. Only the object knows the size of one that was written
    /// unseen.
    pub fn keep_failed_flush(&self, file: &Arc<File>, object: &dyn Object) -> io::Result<()> {
        let stat = object.stat()?;
        {
            let mut state = file.lock();
            state.end_unseen_as(&stat);
            self.ns.save_later(file, &mut state);
        }
        let problem = FLUSH_FAILED.to_string();
        self.note_damage(file, file.path(), problem, Default::default());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_namespace::File;
    use forebay_tiers::Tier;
    use forebay_tiers::testing::{Effect, FaultyTier, Operation, When};
    use forebay_types::{Errno, Ino, OpenFlags, SetAttr};
    use forebay_wire::WriteHow;

    use crate::buffer::tierset::DRAM;
    use crate::files::mover::Move;
    use crate::rooms::Rooms;
    use crate::testing::{FLASH, FLASHES, Lab, answer, create, drain, me, move_open};

    const OLDER: [u8; 8192] = [1; 8192];
    const NEW: [u8; 8192] = [2; 8192];

    fn write_only(rooms: &Rooms, file: &File, content: &[u8]) {
        let flags = OpenFlags(libc::O_WRONLY as u32);
        let (opened, _) = rooms.files.open(file.ino, flags, None).expect("open");
        let cut = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        let cut = rooms
            .files
            .setattr(file.ino, Some(opened.handle), &cut, me());
        cut.expect("cut to nothing");
        let how = WriteHow::WAITING;
        let written = rooms.files.write(opened.handle, 0, content, how);
        assert_eq!(answer(written), Ok(Some(content.len())));
        rooms.files.release(opened.handle).expect("close");
    }

    /// The PFS has an older version of a file that was written again and closed.
    fn rewritten() -> (Lab, Arc<FaultyTier>, Arc<File>) {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", &OLDER);
        rooms.files.release(handle).expect("close");
        drain(rooms);
        let file = rooms.buffer.files().pop().expect("file");
        assert!(file.lock().residency.clean);
        write_only(rooms, &file, &NEW);
        (lab, flash, file)
    }

    fn refusal(rooms: &Rooms, file: &File) -> Option<Errno> {
        let flags = OpenFlags(libc::O_RDONLY as u32);
        let opened = rooms.files.open(file.ino, flags, None);
        let (opened, _) = match opened {
            Ok(opened) => opened,
            Err(failure) => return Some(failure.errno()),
        };
        rooms.files.release(opened.handle).expect("close");
        None
    }

    #[track_caller]
    fn assert_kept(lab: &Lab, file: &File) {
        let rooms = lab.rooms();
        for _ in 0..2 {
            drain(rooms);
            let residency = file.lock().residency;
            assert!(!residency.clean && residency.flush_failed, "{residency:?}");
        }
        assert!(lab.on_pfs("f") == OLDER, "what is left of it is on the PFS");
        assert_eq!(refusal(rooms, file), Some(Errno::EIO));
        assert!(file.lock().error.is_some());
        assert!(!rooms.base.errors().is_empty(), "it is named");
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
    }

    #[test]
    fn what_write_back_has_lost_is_not_drained_and_is_written_anew() {
        let (lab, flash, file) = rewritten();
        let rooms = lab.rooms();
        flash.lose_write_back(Errno::ENOSPC).expect("lost");
        assert_kept(&lab, &file);
        write_only(rooms, &file, &NEW);
        assert_eq!(refusal(rooms, &file), None);
        assert_eq!(file.lock().error, None);
        drain(rooms);
        assert!(file.lock().residency.clean);
        assert!(lab.on_pfs("f") == NEW);
    }

    #[test]
    fn what_fails_where_a_file_was_is_no_damage_of_the_file() {
        let (lab, flashes) = Lab::with_two_flashes();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", &NEW);
        let file = rooms.buffer.files().pop().expect("file");
        let open = rooms.buffer.opens().by_ino(file.ino).expect("open");
        let target = open.target.read().clone();
        let from = file.tier();
        move_open(rooms, &file);
        for flash in &flashes {
            let fails = Effect::Fail(Errno::EIO);
            flash.inject(Operation::Sync, When::Nth(1), fails);
        }
        let flush = |tier, object| rooms.integrity.flush(&file, tier, object, false);
        flush(from, target.object()).expect_err("the flush");
        assert!(!file.lock().residency.flush_failed);
        assert_eq!(rooms.base.errors().all(), []);
        // Where it is now, it is.
        let target = open.target.read().clone();
        flush(file.tier(), target.object()).expect_err("the flush");
        assert!(file.lock().residency.flush_failed);
        rooms.files.release(handle).expect("close");
    }

    #[test]
    fn what_a_flush_has_lost_while_it_was_copied_is_not_moved() {
        let (lab, flashes) = Lab::with_two_flashes();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", &NEW);
        rooms.files.release(handle).expect("close");
        let file = rooms.buffer.files().pop().expect("file");
        let from = file.tier();
        let [here, there] = FLASHES.map(|tier| usize::from(tier != from));
        let source = flashes[here].open(file.object).expect("object");
        let wanted = Move {
            file: &file,
            source: &*source,
            to: FLASHES[there],
            generation: None,
            is_exclusive: true,
        };
        let meanwhile = || {
            flashes[here].inject(Operation::Sync, When::Nth(1), Effect::Fail(Errno::EIO));
            let flushed = rooms.integrity.flush(&file, from, &*source, false);
            flushed.expect_err("the flush");
            Some(())
        };
        let moved = rooms.files.move_object(&wanted, meanwhile, drop);
        assert_eq!(answer(moved), Err(Errno::EIO));
        assert_eq!(file.tier(), from);
        assert!(flashes[there].open(file.object).is_err(), "the copy stays");
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
    }

    #[test]
    fn a_clean_copy_that_a_flush_has_failed_of_is_good_only_where_its_device_has_it() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", &NEW);
        rooms.files.release(handle).expect("close");
        drain(rooms);
        let file = rooms.buffer.files().pop().expect("file");
        assert!(file.lock().residency.clean);
        let fails = || flash.inject(Operation::Sync, When::Nth(1), Effect::Fail(Errno::EIO));
        let heard = fails();
        let object = flash.open(file.object).expect("object");
        let flushed = rooms.integrity.flush(&file, FLASH, &*object, false);
        flushed.expect_err("the flush");
        assert!(rooms.integrity.at_rest().is_suspect(file.object));
        // What was told then is told once more, and the device has all of it.
        let met = fails();
        assert_eq!(refusal(rooms, &file), None);
        assert_eq!((flash.fired(heard), flash.fired(met)), (1, 1));
        assert!(!file.lock().is_unlinked());
        assert!(!rooms.integrity.at_rest().is_suspect(file.object));
        // Memory has all of it, and the device does not take it.
        rooms.integrity.at_rest().suspect(file.object);
        flash.inject(Operation::Sync, When::Every, Effect::Fail(Errno::EIO));
        assert_eq!(refusal(rooms, &file), None);
        assert!(file.lock().is_unlinked(), "the PFS has it");
        assert!(lab.on_pfs("f") == NEW);
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
    }

    #[test]
    fn of_a_batch_only_what_was_lost_is_kept() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let names: Vec<String> = (0..12).map(|n| format!("f{n}")).collect();
        for (at, name) in names.iter().enumerate() {
            let handle = create(rooms, name.as_bytes(), &NEW);
            if at % 3 == 0 {
                rooms.files.fsync(handle, false).expect("fsync");
            }
            rooms.files.release(handle).expect("close");
        }
        flash.lose_write_back(Errno::EIO).expect("lost");
        drain(rooms);
        for (at, name) in names.iter().enumerate() {
            match at % 3 {
                0 => assert!(lab.on_pfs(name) == NEW, "{name}"),
                _ => assert!(!lab.pfs(name).exists(), "{name}"),
            }
        }
    }

    #[test]
    fn what_a_stop_hears_is_on_record_for_the_next_start() {
        let (lab, flash, file) = rewritten();
        let rooms = lab.rooms();
        flash.lose_write_back(Errno::EIO).expect("lost");
        rooms.files.flush_undrained();
        assert!(file.lock().residency.flush_failed);
        file.lock().forget_error();
        let taken = rooms.lifecycle.take_over(&file, FLASH);
        taken.map_err(|e| e.to_string()).expect("a start");
        assert_kept(&lab, &file);
    }

    #[test]
    fn what_an_fsync_hears_it_and_all_later_ones_fail_with() {
        let (lab, flash, file) = rewritten();
        let rooms = lab.rooms();
        let flags = OpenFlags(libc::O_RDWR as u32);
        let (opened, _) = rooms.files.open(file.ino, flags, None).expect("open");
        flash.lose_write_back(Errno::ENOSPC).expect("lost");
        let handle = opened.handle;
        assert_eq!(answer(rooms.files.fsync(handle, false)), Err(Errno::ENOSPC));
        assert_eq!(answer(rooms.files.fsync(handle, false)), Err(Errno::EIO));
        assert_eq!(refusal(rooms, &file), Some(Errno::EIO), "open elsewhere");
        rooms.files.release(handle).expect("close");
        assert_kept(&lab, &file);
    }

    #[test]
    fn what_write_back_has_lost_is_not_moved() {
        let (lab, flash) = Lab::with_memory();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", &OLDER);
        rooms.files.release(handle).expect("close");
        rooms.files.leave_memory(|_| false, |_| false);
        let file = rooms.buffer.files().pop().expect("file");
        assert_eq!(file.tier(), FLASH);
        write_only(rooms, &file, &NEW);
        let lost = Effect::Fail(Errno::EIO);
        let fault = flash.inject(Operation::Sync, When::Nth(1), lost);
        for _ in 0..2 {
            let source = flash.open(file.object).expect("object");
            let wanted = Move {
                file: &file,
                source: &*source,
                to: DRAM,
                generation: None,
                is_exclusive: true,
            };
            let moved = rooms.files.move_object(&wanted, || Some(()), drop);
            assert_eq!(answer(moved), Err(Errno::EIO));
            assert_eq!(file.tier(), FLASH);
        }
        assert_eq!(flash.fired(fault), 1, "it is told once");
    }

    #[test]
    fn what_matches_its_checksum_has_lost_nothing() {
        let (lab, flash, file) = rewritten();
        let rooms = lab.rooms();
        crate::integrity::seal::seal_now(&rooms.integrity);
        assert!(file.lock().residency.crc.is_some());
        let lost = Effect::Fail(Errno::EIO);
        flash.inject(Operation::Sync, When::Nth(1), lost);
        rooms.files.make_stable(&file).expect_err("flush");
        assert!(file.lock().residency.flush_failed);
        drain(rooms);
        assert!(lab.on_pfs("f") == NEW);
        assert!(file.lock().residency.clean);
    }

    #[test]
    fn what_write_back_has_lost_gets_no_checksum() {
        let (lab, flash, file) = rewritten();
        flash.lose_write_back(Errno::ENOSPC).expect("lost");
        crate::integrity::seal::seal_now(&lab.rooms().integrity);
        assert_eq!(file.lock().residency.crc, None);
        assert_kept(&lab, &file);
    }

    #[test]
    fn what_is_not_flushed_is_held_open_as_far_as_there_are_descriptors() {
        let lab = Lab::with(|settings| settings.descriptors_max = Some(64));
        let rooms = lab.rooms();
        let held = || rooms.buffer.unflushed().len();
        for at in 0..9 {
            let handle = create(rooms, format!("f{at}").as_bytes(), &NEW);
            rooms.files.release(handle).expect("close");
            assert_eq!(held(), (at + 1).min(4));
        }
        let last = rooms.base.ns().unlink(Ino::ROOT, b"f8");
        last.expect("unlink");
        rooms.files.collect_garbage();
        assert_eq!(held(), 3);
        while rooms.buffer.ledger().dirty_and_capacity().0 > 0 {
            drain(rooms);
        }
        assert_eq!(held(), 0, "what is drained takes no descriptor");
        assert!(rooms.base.errors().is_empty());
    }
}
