//! What happens to a file that its holder has no room for: a full node hands over instead of
//! waiting.
//!
//! Least work first: clean copies are evicted, then another tier of the same node takes the file
//! ([`crate::spill`]), then another holder. A file moves with all that it has. So it moves only
//! to where it can grow by a quarter, and all moves of a file that grows cost at most five times
//! its size in the end: 1 + 4/5 + (4/5)² + …

use crate::demotion::evict_needed;
use crate::holders::{Holder, HolderId, HolderTier, Locality, Room, Wanted, best};
use crate::placement::{SPACE_UNIT_BYTES, TierKind, TierSpace};
use crate::spill::tier_to_grow_in;
use smallvec::SmallVec;

/// A file that asks for space moves so often at most: others may take what it has moved for.
pub const MOVES_MAX: u32 = 2;

/// A file that wants to grow in a tier without room for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Growing<'a> {
    /// The file. `expected_bytes`: of all of it; `may_be_in_memory`: where it is now in memory, and
    /// nothing of it was promised to be elsewhere.
    pub wanted: Wanted<'a>,
    /// Index of the tier that it is in.
    pub tier: usize,
    /// What it has.
    pub held_bytes: u64,
    /// What it wants beyond that, now.
    pub more_bytes: u64,
    /// The kernel of a client writes the object by itself: it cannot move before that has ended.
    pub is_written_unseen: bool,
}

impl Growing<'_> {
    fn next_bytes(&self) -> u64 {
        self.held_bytes.saturating_add(self.more_bytes)
    }

    /// What there must be room for elsewhere, so that the move was worth it.
    fn bytes_elsewhere(&self) -> u64 {
        let ahead = (self.held_bytes / 4).max(SPACE_UNIT_BYTES);
        self.next_bytes()
            .max(self.held_bytes.saturating_add(ahead))
            .max(self.wanted.expected_bytes.unwrap_or(0))
    }
}

/// What is done for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WhenFull {
    /// There is room after all.
    Goes,
    /// Clean copies of so many bytes are evicted from its tier.
    Evict {
        /// With some to spare: [`evict_needed`].
        bytes: u64,
    },
    /// It goes on in the tier of its holder with this index.
    OtherTier(usize),
    /// It goes on at another holder.
    HandOver {
        /// Which.
        to: HolderId,
        /// Clean copies must be evicted there for it.
        must_evict: bool,
    },
    /// It waits until its holder has drained something.
    Wait,
    /// It overflows to the PFS: it has outgrown its tier, and no holder could take it.
    Pfs,
}

/// Decides that. `holders` has `full`. Where that is being emptied the file does not go on in
/// another tier there, only to move again.
pub fn when_full(full: HolderId, holders: &[Holder], file: &Growing) -> WhenFull {
    let Some(here) = holders.iter().find(|h| h.id == full) else {
        return WhenFull::Pfs;
    };
    let Some(tier) = here.tiers.iter().find(|t| t.space.index == file.tier) else {
        return WhenFull::Pfs;
    };
    if let Some(found) = in_place(tier, file.more_bytes) {
        return found;
    }
    let spaces: SmallVec<[TierSpace; 4]> = here.tiers.iter().map(|t| t.space).collect();
    let fits_its_tier = tier.space.capacity_bytes >= file.next_bytes();
    let stays = match fits_its_tier {
        true => WhenFull::Wait,
        false => WhenFull::Pfs,
    };
    if file.is_written_unseen {
        return WhenFull::Wait;
    }
    let other_tier = tier_to_grow_in(&spaces, file.tier, file.next_bytes());
    if let Some(index) = other_tier.filter(|_| !here.is_emptied) {
        return WhenFull::OtherTier(index);
    }
    if file.wanted.rule.locality == Locality::LocalOnly {
        return stays;
    }
    let wanted = Wanted {
        expected_bytes: Some(file.bytes_elsewhere()),
        may_be_in_memory: file.wanted.may_be_in_memory && tier.space.kind == TierKind::Dram,
        ..file.wanted
    };
    let others = || holders.iter().filter(|h| h.id != full);
    if let Some((other, room)) = best(others(), &wanted, Room::AfterEvicting, Some(here.rack)) {
        return WhenFull::HandOver {
            to: other.id,
            must_evict: room == Room::AfterEvicting,
        };
    }
    // It waits, too, for a holder that could take it once that has drained something.
    match best(others(), &wanted, Room::Later, None) {
        Some(_) => WhenFull::Wait,
        None => stays,
    }
}

/// What the tier itself offers: room, or clean copies.
fn in_place(tier: &HolderTier, more_bytes: u64) -> Option<WhenFull> {
    let available_bytes = tier.space.available_bytes();
    if available_bytes >= more_bytes {
        return Some(WhenFull::Goes);
    }
    let clean = tier.evictable_bytes;
    let needed = evict_needed(&tier.space, more_bytes).min(clean);
    (available_bytes.saturating_add(needed) >= more_bytes)
        .then_some(WhenFull::Evict { bytes: needed })
}

#[cfg(test)]
#[path = "handover_tests.rs"]
mod tests;
