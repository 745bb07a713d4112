//! A full node hands over instead of waiting: a file that grows beyond what its tier has room for
//! goes on in another tier of its node, or on another node.

use std::sync::atomic::Ordering;

use forebay_policy::handover::{Growing, WhenFull, when_full};
use forebay_policy::holders::{Holder, HolderId, HolderTier};
use forebay_types::{TierId, limits::SPACE_UNIT_BYTES};

use crate::base::failure::Failure;
use crate::buffer::opens::OpenFile;
use crate::buffer::target::Target;
use crate::files::Files;
use crate::files::changeover::Leaving;

impl Files {
    /// Whether a file for which its tier has no room has gone on elsewhere. Where that fails, it
    /// waits where it is.
    pub(super) fn goes_on_elsewhere(&self, open: &OpenFile, len: u64) -> bool {
        if open.stays.is_until_later() {
            return false;
        }
        match self.try_elsewhere(open, len) {
            Ok(moved) => moved,
            Err(failure) => {
                open.stays.for_a_while();
                let target = open.target.read();
                if let Target::Buffer { file, tier, .. } = &*target {
                    let name = self.buffer.tiers().called(*tier);
                    tracing::warn!(
                        "{}: {name} is full, and the file cannot go on elsewhere: {failure}",
                        file.path().escape_ascii()
                    );
                }
                false
            }
        }
    }

    fn try_elsewhere(&self, open: &OpenFile, len: u64) -> Result<bool, Failure> {
        let Target::Buffer { file, object, tier } = open.target.read().clone() else {
            return Ok(false);
        };
        let held_bytes = object.stat()?.allocated_bytes;
        let full = self.server_of_tier(tier);
        let rule = self.catalog.holder_rule_of_file(&file);
        let mut wanted = self.wanted_elsewhere(&file, rule);
        let predicted_bytes = open.predicted_bytes.load(Ordering::Acquire);
        wanted.expected_bytes = Some(predicted_bytes).filter(|bytes| *bytes > 0);
        let growing = Growing {
            wanted,
            tier: usize::from(tier.0),
            held_bytes,
            more_bytes: len,
            is_written_unseen: open.is_passthrough(),
        };
        let mut holders = self.holders_with(full, tier);
        // Both copies of a file on one node are one.
        let second = self
            .second_of(&file)
            .map(|(tier, _)| self.server_of_tier(tier));
        holders.retain(|holder| Some(holder.id.0) != second);
        match when_full(HolderId(full), &holders, &growing) {
            WhenFull::OtherTier(index) => {
                self.move_here(open, |_, _, _| Ok(TierId(index as u8)))?;
                Ok(true)
            }
            WhenFull::HandOver { to, must_evict } => {
                let ahead_bytes = len.max(SPACE_UNIT_BYTES);
                let bytes = held_bytes + ahead_bytes;
                let find = match must_evict {
                    true => self.tier_with_clean(to.0, &wanted, bytes),
                    false => self.tier_with_room(to.0, &wanted, bytes),
                };
                let Some(to) = find else {
                    return Ok(false);
                };
                let leaving = Leaving {
                    file: &file,
                    open,
                    to,
                    ahead_bytes,
                };
                let moved = self.hand_over_open(leaving)?;
                match moved {
                    true => {
                        let counters = self.base.counters();
                        counters.handed_over_files.fetch_add(1, Ordering::Relaxed);
                    }
                    // It was copied in vain, perhaps.
                    false => open.stays.for_a_while(),
                }
                Ok(moved)
            }
            WhenFull::Goes | WhenFull::Evict { .. } | WhenFull::Wait | WhenFull::Pfs => Ok(false),
        }
    }

    /// All servers with these spaces, also one that is emptied. What is clean in the tier that is
    /// full could not be evicted.
    fn holders_with(&self, full: u16, tier: TierId) -> Vec<Holder> {
        let mut holders = self.holders(&self.buffer.spaces());
        if !holders.iter().any(|holder| holder.id.0 == full) {
            let mut spaces = self.buffer.ledger().spaces();
            spaces.retain(|space| self.server_of(space) == HolderId(full));
            let here = self.holders(&spaces).into_iter();
            holders.extend(here.map(|holder| Holder {
                is_emptied: true,
                ..holder
            }));
        }
        let tiers = holders.iter_mut().flat_map(|holder| &mut holder.tiers);
        let is_it = |t: &&mut HolderTier| t.space.index == usize::from(tier.0);
        for full in tiers.filter(is_it) {
            full.evictable_bytes = 0;
        }
        holders
    }
}
