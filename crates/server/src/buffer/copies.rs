//! Objects that are not, or no longer, what a file is: the second copy on flash, and what a move
//! has left.

use std::sync::Arc;

use forebay_kv::Durability;
use forebay_namespace::File;
use forebay_policy::placement::TierSpace;
use forebay_types::{Errno, Generation, TierId, failpoint};

use crate::buffer::Buffer;
use crate::buffer::holders::is_out_of_reach;

impl Buffer {
    /// The object has moved to another tier: the copy on flash is it, or of no use any more.
    pub fn leave_shadow(&self, file: &File, shadow: Option<(TierId, Generation)>, to: TierId) {
        match shadow {
            Some((flash, _)) if flash != to => self.drop_shadow(file, flash),
            Some(_) => self.ledger.release_shadow(file.object),
            None => {}
        }
    }

    /// Removes a copy on flash that is of no use any more.
    pub fn drop_shadow(&self, file: &File, flash: TierId) {
        self.remove_left_behind(file, flash);
        self.ledger.release_shadow(file.object);
    }

    /// The same for one that the record has forgotten, unless another fsync has made it anew since.
    /// Called by demoters: who copies the file may wait for one, and then it goes later.
    pub fn drop_outdated_shadow(&self, file: &Arc<File>, flash: TierId) {
        let Some(_copying) = file.try_copying() else {
            self.late_copies.lock().push((file.clone(), flash));
            return;
        };
        let residency = file.lock().residency;
        if residency.shadow.is_none() && residency.tier != flash {
            failpoint::hit(failpoint::Point::ShadowDropped);
            self.drop_shadow(file, flash);
        }
    }

    /// Spaces of the tiers that something new may go to.
    pub fn spaces(&self) -> Vec<TierSpace> {
        let mut spaces = self.ledger.spaces();
        spaces.retain(|space| self.takes_more(space));
        spaces
    }

    /// Whether a tier in reach has room for so many bytes.
    pub fn has_room(&self, bytes: u64) -> bool {
        let spaces = self.ledger.spaces();
        let mut with_room = spaces.iter().filter(|s| s.available_bytes() >= bytes);
        with_room.any(|space| self.takes_more(space))
    }

    fn takes_more(&self, space: &TierSpace) -> bool {
        !self.is_closed(TierId(space.index as u8))
    }
}

impl Buffer {
    /// Removes the object that a move has left in another tier.
    pub fn remove_left_behind(&self, file: &File, tier: TierId) {
        tracing::trace!(file = %file.object, ?tier, "left behind");
        self.unflushed.let_go_in(file.object, tier);
        let removed = self
            .tiers
            .get(tier)
            .map_or(Ok(()), |slot| slot.tier.remove(file.object));
        if let Err(error) = removed
            && error.raw_os_error() != Some(libc::ENOENT)
        {
            if self.tiers.holder_of(tier).is_some() && is_out_of_reach(&error) {
                return self.leave_to_a_node(file, tier);
            }
            let name = self.tiers.called(tier);
            let reason = format!("old copy in {name} cannot be removed: {error}");
            self.base.report(file.path(), Errno::of(&error), reason);
        }
        failpoint::hit(failpoint::Point::MoveRemoved);
    }

    /// It goes once the node is back: until then it is on record as what is left there.
    fn leave_to_a_node(&self, file: &File, tier: TierId) {
        if let Err(error) = (self.ns).leave_behind(file.object, tier, Durability::Buffered) {
            let name = self.tiers.called(tier);
            let reason = format!("its old copy in {name}, which does not answer: {error}");
            self.base.report(file.path(), error.errno(), reason);
        }
    }

    /// A copy that did not become the file goes, unless it is the one of an earlier fsync. That of
    /// a file that was unlinked meanwhile may have been made after its objects were collected.
    pub fn leave_copy(&self, file: &File, tier: TierId) {
        let wanted = {
            let state = file.lock();
            let residency = &state.residency;
            let shadow = residency.shadow.map(|(flash, _)| flash);
            !state.is_unlinked() && (residency.tier == tier || shadow == Some(tier))
        };
        if !wanted {
            self.remove_left_behind(file, tier);
        }
    }

    /// A copy whose commit the store has failed: it may be what a start finds on record. It is
    /// charged, and goes when the store takes the record of its file again.
    pub fn leave_copy_later(&self, file: &Arc<File>, tier: TierId, bytes: u64) {
        self.ledger.found_shadow(file.object, tier, bytes);
        self.late_copies.lock().push((file.clone(), tier));
    }

    /// Whether there is one of this file.
    pub fn has_late_copy(&self, file: &File, tier: TierId) -> bool {
        let late = self.late_copies.lock();
        late.iter()
            .any(|(of, in_tier)| of.object == file.object && *in_tier == tier)
    }

    /// Removes copies whose commit has failed, where the store takes records again, and those that
    /// were in use.
    pub fn leave_copies_late(&self) {
        let late = std::mem::take(&mut *self.late_copies.lock());
        for (file, tier) in late {
            let Some(_copying) = file.try_copying() else {
                self.late_copies.lock().push((file.clone(), tier));
                continue;
            };
            let saved = match file.lock() {
                state if state.is_unlinked() => Ok(()),
                state => self.ns.save(&file, &state, Durability::Synced),
            };
            if saved.is_err() {
                self.late_copies.lock().push((file.clone(), tier));
                continue;
            }
            let second = file.lock().residency.shadow;
            self.leave_copy(&file, tier);
            match second {
                // It was charged before, and is again.
                Some((second, _)) => {
                    let bytes = self.ledger.used_bytes(file.object);
                    self.ledger.found_shadow(file.object, second, bytes);
                }
                None => self.ledger.release_shadow(file.object),
            }
        }
    }
}
