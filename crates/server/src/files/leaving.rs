//! Files that go to another node: as they are, undrained.

use std::sync::Arc;

use forebay_namespace::{File, Residency};
use forebay_policy::holders::{HolderId, HolderRule, Rack, Wanted};
use forebay_policy::spill::{flash_with_room, largest_flash};
use forebay_tiers::{CopyControl, TierKind};
use forebay_types::TierId;

use crate::base::failure::Failure;
use crate::buffer::ledger::Refused;
use crate::files::Files;
use crate::files::mover::Move;
use crate::files::replica::PATIENCE;

impl Files {
    /// Moves a file that nobody has open to a tier of another node. `false`: it is in use, or there
    /// is no room for it, and it stays.
    pub fn move_to_node(
        &self,
        file: &Arc<File>,
        to: TierId,
        control: &CopyControl<'_>,
    ) -> Result<bool, Failure> {
        let Some(_copying) = file.try_copying() else {
            return Ok(false);
        };
        let Some(residency) = at_rest(file) else {
            return Ok(false);
        };
        let from = residency.tier;
        if from == to || self.buffer.is_closed(to) || self.buffer.opens().is_open_now(file.ino) {
            return Ok(false);
        }
        let is_promised = residency.flushed.is_some() || residency.shadow.is_some();
        if is_promised && self.buffer.tiers().kind(to) == TierKind::Dram {
            // An fsync has ended since the place was chosen.
            return Ok(false);
        }
        let source = self.buffer.tiers().open_object(from, file.object)?;
        if self.is_written_below(from, &*source)? {
            return Ok(false);
        }
        if !self.hold_for_move(file, to, source.stat()?.allocated_bytes) {
            return Ok(false);
        }
        let wanted = Move {
            file,
            source: &*source,
            to,
            generation: Some(residency.generation),
            is_exclusive: false,
        };
        let may_commit = || {
            let claim = self.buffer.opens().claim_within(file.ino, PATIENCE)?;
            let is_same = at_rest(file).is_some_and(|now| now.tier == from);
            (is_same && !claim.is_open()).then_some(claim)
        };
        let moved = self.move_paced(&wanted, control, |_| Ok(may_commit()), |_, claim| claim);
        self.buffer.ledger().release_move(file.object);
        Ok(moved?.is_some())
    }

    /// Sets space aside for a move; what has its second copy there is charged for that. `false`:
    /// there is none.
    pub(super) fn hold_for_move(&self, file: &File, to: TierId, bytes: u64) -> bool {
        let has_second = |tier| {
            file.lock()
                .residency
                .shadow
                .is_some_and(|(at, _)| at == tier)
        };
        let hold = || self.buffer.ledger().try_hold_move(file.object, to, bytes);
        if self.is_beside_its_second(file, to) {
            return false;
        }
        if has_second(to) {
            return true;
        }
        match hold() {
            Ok(()) => true,
            Err(Refused::Tier { missing_bytes }) => {
                self.make_space(to, missing_bytes);
                hold().is_ok()
            }
            Err(Refused::DirtyCap | Refused::Limit { .. } | Refused::Gone) => false,
        }
    }

    /// Where a file of a node that is emptied may go.
    pub fn wanted_elsewhere<'a>(&self, file: &File, rule: &'a HolderRule) -> Wanted<'a> {
        let residency = file.lock().residency;
        let in_memory = self.buffer.tiers().kind(residency.tier) == TierKind::Dram;
        Wanted {
            object: file.object.0,
            expected_bytes: None,
            // Flash is no worse than what it has, and memory would be.
            may_be_in_memory: in_memory && residency.flushed.is_none(),
            rule,
        }
    }

    /// The tier of a server that takes so many bytes of a file, if one has room.
    pub fn tier_with_room(&self, server: u16, wanted: &Wanted<'_>, bytes: u64) -> Option<TierId> {
        let mut spaces = self.buffer.spaces();
        spaces.retain(|space| self.server_of(space) == HolderId(server));
        let memory = spaces.iter().find(|space| {
            wanted.may_be_in_memory
                && space.kind == forebay_policy::placement::TierKind::Dram
                && space.available_bytes() >= bytes
        });
        let index = memory.map(|space| space.index);
        let index = index.or_else(|| flash_with_room(&spaces, bytes))?;
        Some(TierId(index as u8))
    }

    /// The same; where clean copies are to be evicted for it, flash that can ever hold it.
    pub fn tier_with_clean(&self, server: u16, wanted: &Wanted<'_>, bytes: u64) -> Option<TierId> {
        let largest = || {
            let mut spaces = self.buffer.spaces();
            spaces.retain(|space| self.server_of(space) == HolderId(server));
            let largest = largest_flash(&spaces)?;
            (largest.capacity_bytes >= bytes).then_some(TierId(largest.index as u8))
        };
        self.tier_with_room(server, wanted, bytes).or_else(largest)
    }

    /// The rack of a server.
    pub fn rack(&self, server: u16) -> Rack {
        self.rack_of(HolderId(server))
    }
}

/// The residency of a file that has a name, and that nothing is under way of.
pub(super) fn at_rest(file: &File) -> Option<Residency> {
    let state = file.lock();
    let residency = state.residency;
    let is_busy = state.is_unlinked()
        || state.demoting
        || state.copy_under_way().is_some()
        || residency.writing
        || residency.flush_failed;
    (!is_busy).then_some(residency)
}
