//! Objects that are not, or no longer, what a file is: the second copy on flash, and what a move has left.

use forebay_namespace::File;
use forebay_policy::refuge::flash_with_room;
use forebay_types::{Generation, TierId, failpoint};

use crate::buffer::Buffer;

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
    pub fn drop_outdated_shadow(&self, file: &File, flash: TierId) {
        let _copying = file.copying();
        let residency = file.lock().residency;
        if residency.shadow.is_none() && residency.tier != flash {
            failpoint::hit(failpoint::Point::ShadowDropped);
            self.drop_shadow(file, flash);
        }
    }

    /// The flash directory with the most room, if that is enough for so many bytes.
    pub fn flash_for(&self, bytes: u64) -> Option<TierId> {
        let index = flash_with_room(&self.ledger.spaces(), bytes)?;
        Some(TierId(index as u8))
    }
}

impl Buffer {
    /// Removes the object that a migration has left in another tier.
    pub fn remove_left_behind(&self, file: &File, tier: TierId) {
        tracing::trace!(file = %file.object, ?tier, "left behind");
        if let Some(slot) = self.tiers.get(tier)
            && let Err(error) = slot.tier.remove(file.object)
            && error.raw_os_error() != Some(libc::ENOENT)
        {
            let reason = format!(
                "old copy in {} cannot be removed: {error}",
                slot.tier.name()
            );
            self.base.report(file.path(), (&error).into(), reason);
        }
        failpoint::hit(failpoint::Point::MoveRemoved);
    }

    /// A copy that did not become the file goes, unless it is the one of an earlier fsync. That of a file that was unlinked
    /// meanwhile may have been made after its objects were collected.
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
}
