//! Copies on flash of what is in memory: what an fsync has promised is there.

use std::sync::Arc;
use std::time::Duration;

use forebay_kv::Durability as KvDurability;
use forebay_namespace::File;
use forebay_policy::durability::Durability;
use forebay_tiers::{Object, TierKind};
use forebay_types::{Errno, SetTime, TierId, failpoint};
use forebay_wire::OUT_OF_REACH;

use crate::base::failure::Failure;
use crate::buffer::ledger::Refused;
use crate::buffer::opens::OpenFile;
use crate::files::Files;
use crate::files::fsync::has_no_room;
use crate::files::mover::{Move, refuse_primary};

/// Who waits for the PFS may have a file for ever, and others wait for a copy of it.
const PATIENCE: Duration = Duration::from_secs(2);

impl Files {
    /// Copies an object in memory to flash, for who keeps it from being moved or copied meanwhile.
    pub(super) fn refresh_shadow(
        &self,
        open: &OpenFile,
        file: &Arc<File>,
        (object, tier): (&dyn Object, TierId),
    ) -> Result<(), Failure> {
        let flush = self.begin_flush(file, object)?;
        let generation = flush.generation;
        {
            let state = file.lock();
            if state.is_unlinked() && state.unnamed.is_none() {
                // Nobody can ask for it after a crash.
                return Ok(());
            }
        }
        let known = file.lock().residency.shadow;
        let is_there = |tier| self.buffer.tiers().open_object(tier, file.object).is_ok();
        if known.is_some_and(|(tier, g)| g == generation && is_there(tier)) && !open.is_written() {
            return Ok(());
        }
        let size = object.stat()?.allocated_bytes;
        let Some(flash) = self.book_shadow(file, known.map(|(tier, _)| tier), size) else {
            // No flash has room: the PFS is the next stable place.
            return self.flush_to_pfs(open, file, (object, tier), flush);
        };
        match self.copy_shadow(file, object, flash) {
            // It had less than its tier was promised, or somebody has removed its directory: the
            // same.
            Err(failure) if has_no_room(failure.errno()) => {
                tracing::warn!(
                    "{}: fsync goes to the PFS: {failure} on flash",
                    file.path().escape_ascii()
                );
                if known.is_none() {
                    self.buffer.drop_shadow(file, flash);
                }
                return self.flush_to_pfs(open, file, (object, tier), flush);
            }
            done => done?,
        }
        let unlinked = {
            let mut state = file.lock();
            state.note_shadow(flash, generation);
            state.is_unlinked() && state.unnamed.is_none()
        };
        if unlinked {
            self.buffer.drop_shadow(file, flash);
        }
        Ok(())
    }

    /// Copies an object to another tier as it is now, flushed, beside the primary.
    fn copy_shadow(&self, file: &File, object: &dyn Object, flash: TierId) -> Result<(), Failure> {
        let slot = self.buffer.tiers().get(flash).ok_or(Errno::ENODEV)?;
        refuse_primary(file, flash)?;
        let identity = self.buffer.identity(file, true);
        let shadow = match slot.tier.create(file.object, &identity) {
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => slot.tier.open(file.object)?,
            other => other?,
        };
        failpoint::hit(failpoint::Point::ShadowObject);
        // In its place and only what changed: what an earlier fsync has put there stays there
        // meanwhile.
        forebay_tiers::refresh(object, &*shadow, &forebay_tiers::CopyControl::NONE)?;
        failpoint::hit(failpoint::Point::ShadowCopied);
        let stat = object.stat()?;
        let at = SetTime::At;
        shadow.set_times(Some(at(stat.atime)), Some(at(stat.mtime)))?;
        shadow.sync(false)?;
        slot.tier.sync_all()?;
        failpoint::hit(failpoint::Point::ShadowFlushed);
        Ok(())
    }

    /// Sets space aside for a copy on flash: where there is one already, or where there is room.
    fn book_shadow(&self, file: &File, known: Option<TierId>, bytes: u64) -> Option<TierId> {
        let tiers = self.buffer.tiers();
        // What is left on a node that is away is older, and nobody's from then on.
        let known = known.filter(|flash| !tiers.is_out_of_reach(*flash));
        let flash = known.or_else(|| self.flash_for(file, file.tier(), bytes))?;
        let hold = || {
            self.buffer
                .ledger()
                .try_hold_shadow(file.object, flash, bytes)
        };
        match hold() {
            Ok(()) => Some(flash),
            Err(Refused::Tier { missing_bytes }) => {
                self.make_space(flash, missing_bytes);
                hold().ok().map(|()| flash)
            }
            Err(Refused::DirtyCap | Refused::Limit { .. } | Refused::Gone) => None,
        }
    }

    /// After the last close of a file that was fsynced: the copy on flash becomes the file, or
    /// goes.
    pub fn settle_shadow(&self, file: &Arc<File>) -> Result<(), Failure> {
        if self
            .base
            .life()
            .stop_order()
            .is_some_and(|order| !order.drain)
        {
            // Who has it open may have it again after the stop, where it is.
            return Ok(());
        }
        let _copying = file.copying();
        let Some(claim) = self.buffer.opens().claim_within(file.ino, PATIENCE) else {
            return Ok(());
        };
        if claim.is_open() {
            // Somebody has opened it meanwhile: their close sees to it.
            return Ok(());
        }
        // With the claim held, nobody is in the middle of a truncation, which counts no further.
        let (tier, shadow, generation, clean) = {
            let state = file.lock();
            (
                state.residency.tier,
                state.residency.shadow,
                state.generation(),
                state.residency.clean,
            )
        };
        drop(claim);
        let Some((flash, _)) = shadow else {
            return Ok(());
        };
        let is_second = self.second_of(file).is_some()
            && self.catalog.durability_of_file(file) == Durability::Replica;
        let in_memory = self.buffer.tiers().kind(tier) == TierKind::Dram;
        if !clean && (is_second || !in_memory) {
            // Both stay; what the second copy lacks it gets in the background.
            return Ok(());
        }
        if clean {
            // The PFS has it: the copy on flash only takes space there.
            let mut state = file.lock();
            state.forget_shadow();
            self.ns.save(file, &state, KvDurability::Buffered)?;
            failpoint::hit(failpoint::Point::ShadowDropped);
            drop(state);
            self.buffer.drop_shadow(file, flash);
            return Ok(());
        }
        // Writes after the last fsync are in memory only; what is on flash is brought up to date.
        let source = self.buffer.tiers().open_object(tier, file.object)?;
        let wanted = Move {
            file,
            source: &*source,
            to: flash,
            generation: Some(generation),
            is_exclusive: false,
        };
        // Somebody who opens it meanwhile would go on with the object that is about to go.
        self.move_object(&wanted, || self.buffer.claim_unopened(file), drop)?;
        Ok(())
    }

    /// Copies to flash what stays in memory though nobody writes it: after a reboot that is it. For
    /// who keeps it from being moved or copied meanwhile. `ENOSPC` where flash has no room,
    /// `EHOSTDOWN` where the copy that there is cannot be reached.
    pub(super) fn leave_copy(
        &self,
        file: &Arc<File>,
        (object, tier): (&dyn Object, TierId),
    ) -> Result<(), Failure> {
        let flush = self.begin_unasked_flush(file, object)?;
        let known = file.lock().residency.shadow.map(|(flash, _)| flash);
        if known.is_some_and(|flash| self.buffer.tiers().is_out_of_reach(flash)) {
            // A second copy of what an fsync has promised, which no other copy may replace.
            return Err(OUT_OF_REACH.into());
        }
        let bytes = object.stat()?.allocated_bytes;
        let flash = self.book_shadow(file, known, bytes);
        let flash = flash.ok_or(Errno::ENOSPC)?;
        if let Err(failure) = self.copy_shadow(file, object, flash) {
            if known.is_none() {
                self.buffer.drop_shadow(file, flash);
            }
            return Err(failure);
        }
        file.lock().note_shadow(flash, flush.generation);
        self.save_live(file, (object, tier), flush)
    }
}

#[cfg(test)]
mod tests {
    use forebay_tiers::TierKind;
    use forebay_tiers::testing::{Effect, Operation, When};
    use forebay_types::Errno;

    use crate::testing::{FLASH, Lab, create};

    #[test]
    fn what_a_kernel_reads_by_itself_is_on_flash_after_a_stop_and_stays_where_it_is() {
        let (lab, _) = Lab::with_memory();
        let rooms = lab.rooms();
        const CONTENT: [u8; 4096] = [7; 4096];
        let handle = create(rooms, b"f", &CONTENT);
        rooms.files.release(handle).expect("close");
        let file = rooms.buffer.files().pop().expect("file");
        let tiers = rooms.buffer.tiers();
        for _ in 0..2 {
            rooms.files.leave_memory(|_| true, |_| true);
            assert_eq!(tiers.kind(file.tier()), TierKind::Dram, "it has moved");
            let copy = tiers.open_object(FLASH, file.object).expect("a copy");
            let mut found = vec![0; 2 * CONTENT.len()];
            assert_eq!(copy.read_at(&mut found, 0).expect("read"), CONTENT.len());
            assert!(found.starts_with(&CONTENT), "other bytes");
            let undrained = rooms.buffer.undrained_exactly();
            assert_eq!((undrained.files, undrained.in_memory_bytes), (1, 0));
        }
        // Nobody has it any more.
        rooms.files.leave_memory(|_| true, |_| false);
        assert_eq!(file.tier(), FLASH);
        assert_eq!(rooms.buffer.undrained_exactly().files, 1);
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
    }

    /// A reader that is told to open it again is better than bytes that a reboot takes.
    #[test]
    fn what_cannot_be_copied_moves() {
        let (lab, flash) = Lab::with_memory();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", &[7; 4096]);
        rooms.files.release(handle).expect("close");
        let file = rooms.buffer.files().pop().expect("file");
        let full = Effect::Fail(Errno::ENOSPC);
        let full = flash.inject(Operation::Write, When::Nth(1), full);
        rooms.files.leave_memory(|_| true, |_| true);
        assert!(flash.fired(full) > 0);
        assert_eq!(file.tier(), FLASH);
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
    }
}
