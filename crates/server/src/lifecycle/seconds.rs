//! Second copies, as a start finds them, and what is left where files were that their second copies
//! have taken the place of.

use std::sync::Arc;

use forebay_namespace::File;
use forebay_policy::durability::Durability;
use forebay_policy::replicas::{Fate, fate};
use forebay_tiers::TierKind;
use forebay_types::{Errno, Generation, ObjectId, TierId, failpoint};

use crate::base::failure::Failure;
use crate::files::replica::away;
use crate::lifecycle::Lifecycle;
use crate::lifecycle::recovery::{Claimed, Inventory};

impl Lifecycle {
    /// The node of a file is not there at this start, and its second copy is: whether that is the
    /// file from now on.
    pub(super) fn promote_found(
        &self,
        file: &Arc<File>,
        second: TierId,
        copied: Generation,
    ) -> Result<bool, Failure> {
        if self.catalog.durability_of_file(file) != Durability::Replica {
            // It was promised no more than its server keeps, and loses nothing by waiting.
            return Ok(false);
        }
        let (writing, by_kernel) = {
            let state = file.lock();
            (state.residency.writing, state.residency.by_kernel)
        };
        if by_kernel {
            // Perhaps the kernel of who has it open goes on writing it by itself.
            return Ok(false);
        }
        // What was written last was not counted by this server.
        let lacks = writing.then_some(true);
        let Fate::Promoted { loses } = fate(&away(file, copied, lacks)) else {
            return Ok(false);
        };
        let from = file.tier();
        let opened = self.buffer.tiers().open_object(second, file.object);
        let stat = match opened.and_then(|object| object.stat()) {
            Ok(stat) => stat,
            Err(error) => {
                let reason =
                    format!("its second copy cannot be looked at: {error}; it waits for its node");
                self.base.report(file.path(), Errno::of(&error), reason);
                return Ok(false);
            }
        };
        let seen = self.buffer.generation(file);
        // Only the object knows the size: a later fsync may have been on its way.
        if !self
            .ns
            .promote(file, seen, (second, &stat), (true, loses))?
        {
            return Ok(false);
        }
        self.files.told_promoted(file, (from, second), loses);
        Ok(true)
    }

    /// What is left of files in tiers that are there by now goes, also where the file is gone.
    pub(super) fn recover_left(&self, inventory: &Inventory, claimed: &mut Claimed) {
        for (object, tier) in self.ns.left_behind() {
            let Some((_, objects)) = inventory.iter().find(|(listed, _)| *listed == tier) else {
                continue;
            };
            let is_its = claimed.contains(&(tier, object));
            if objects.contains(&object) && !is_its {
                // Nothing of it is a file, whatever becomes of this.
                claimed.insert((tier, object));
            }
            if let Err(failure) = self.remove_left(object, tier, is_its) {
                let path = format!("(object {object} in {})", self.buffer.tiers().called(tier));
                let reason = format!("what is left of its file cannot be removed: {failure}");
                self.base.report(path.into_bytes(), failure.errno(), reason);
            }
        }
    }

    /// Removes what is left of a file in a tier, unless it is the file's again, and forgets it once
    /// that is on stable storage.
    fn remove_left(&self, object: ObjectId, tier: TierId, is_its: bool) -> Result<(), Failure> {
        if let Some(slot) = self.buffer.tiers().get(tier)
            && !is_its
        {
            match slot.tier.remove(object) {
                Err(error) if error.raw_os_error() != Some(libc::ENOENT) => {
                    return Err(error.into());
                }
                _ => {}
            }
            failpoint::hit(failpoint::Point::LeftRemoved);
            if slot.kind == TierKind::Ssd {
                slot.tier.sync_all()?;
            }
        }
        Ok(self.ns.no_longer_left(object, tier)?)
    }

    /// What is left of files on nodes that are back by now goes.
    pub fn sweep_left(&self) {
        for (object, tier) in self.ns.left_behind() {
            if self.buffer.tiers().get(tier).is_none() || self.buffer.tiers().is_out_of_reach(tier)
            {
                continue;
            }
            let file = self.buffer.file(object);
            // Who copies it may be putting a second copy just there.
            let copying = file.as_ref().map(|file| file.try_copying());
            if matches!(copying, Some(None)) {
                continue;
            }
            // Which of both a start would find on record is not known before the store has said so.
            let is_late = |file: &Arc<File>| self.buffer.has_late_copy(file, tier);
            if file.as_ref().is_some_and(is_late) {
                continue;
            }
            let is_its = file.as_ref().is_some_and(|file| {
                let residency = file.lock().residency;
                residency.tier == tier || residency.shadow.is_some_and(|(of, _)| of == tier)
            });
            if let Err(failure) = self.remove_left(object, tier, is_its) {
                tracing::warn!("object {object}: what is left of it stays for now: {failure}");
                continue;
            }
            if let Some(file) = &file
                && file.lock().residency.shadow.is_none()
            {
                self.buffer.ledger().release_shadow(object);
            }
        }
    }
}
