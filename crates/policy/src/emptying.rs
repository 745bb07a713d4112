//! Which files leave a node that is being emptied (`drain-node`), how, and in which order.
//!
//! Clean copies are dropped. What has a second copy goes on as that, unless an fsync has promised
//! two: then it leaves as all other files do, and keeps the second copy. Those are drained
//! to the PFS or moved to other holders, both at once: drained from the front of the victim order
//! ([`crate::demotion::order_demotion`]), moved from its end, until the two meet. So the node is
//! empty as soon as it can be, and what a restart would read stays in the burst buffer
//! (BBOS, victim order).

use crate::holders::{Holder, HolderId, Locality, Rack, Room, Wanted, best};
use std::collections::VecDeque;

/// A file of the node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Leaving<'a> {
    /// The caller's name for the file.
    pub id: u64,
    /// What it occupies.
    pub bytes: u64,
    /// The PFS holds the same bytes, verified.
    pub is_clean: bool,
    /// No restart will read it ([`crate::version::VersionTracker::is_outdated`]): it is drained.
    pub is_outdated: bool,
    /// It is open: it leaves last, for it may change again. It cannot be drained before its close,
    /// so it moves where it can.
    pub in_use: bool,
    /// Another holder that answers has the same bytes.
    pub copy_at: Option<HolderId>,
    /// An fsync has promised two holders, or the PFS.
    pub keeps_two: bool,
    /// Where it may go.
    pub wanted: Wanted<'a>,
}

/// What is done with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Departure {
    /// The copy here goes, the PFS has the file.
    Drop,
    /// The copy there becomes the file.
    Promote(HolderId),
    /// To the PFS, then it is dropped.
    Drain,
    /// To another holder, as it is.
    Move(HolderId),
}

/// Written while an open file was copied, bytes: so much is copied again while requests wait.
const LITTLE_BYTES: u64 = 8 << 20;

/// A writer that is ahead of the copy by more than this, bytes, is faster than the copy.
const TOO_MUCH_BYTES: u64 = 256 << 20;

/// Rounds of catching up with an open file before requests for it have to wait.
pub const CATCH_UP_ROUNDS: u32 = 4;

/// What is left of a copy that somebody waits for, bytes: so much is copied at full speed, in some
/// seconds; else the copy is put off.
const WAITED_FOR_BYTES: u64 = 4 << 30;

/// Whether who wants an open file now may wait for the rest of a copy of it.
pub fn is_waited_for(left_bytes: u64) -> bool {
    left_bytes <= WAITED_FOR_BYTES
}

/// Whether so many bytes may be copied while requests for the file wait: a moment that nobody
/// notices.
pub fn is_little(bytes: u64) -> bool {
    bytes <= LITTLE_BYTES
}

/// Whether an open file stays where it is, since so much was written while it was caught up with.
pub fn is_too_much(bytes: u64) -> bool {
    bytes > TOO_MUCH_BYTES
}

/// How fast files leave; bytes/s, not negative.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LeavingRates {
    /// To the PFS: the node's share of Brmax.
    pub drain_bytes_per_s: f64,
    /// To other holders: what its network has left.
    pub move_bytes_per_s: f64,
}

impl LeavingRates {
    fn drain_s(&self, bytes: f64) -> f64 {
        bytes / self.drain_bytes_per_s.max(f64::MIN_POSITIVE)
    }

    fn move_s(&self, bytes: f64) -> f64 {
        bytes / self.move_bytes_per_s.max(f64::MIN_POSITIVE)
    }
}

/// Files and what is done with them, in the order in which to begin. `files` are in victim order;
/// `holders` may have the node itself, which takes none. A file for which clean copies would have
/// to be evicted elsewhere is drained instead. Where a move turns out to be impossible, the caller
/// asks again.
pub fn leave(
    node: HolderId,
    files: &[Leaving],
    holders: &[Holder],
    rates: &LeavingRates,
) -> Vec<(u64, Departure)> {
    let mut order = Vec::with_capacity(files.len());
    let mut ends = TwoEnds {
        rooms: holders.iter().filter(|h| h.id != node).cloned().collect(),
        rack: holders.iter().find(|h| h.id == node).map(|h| h.rack),
        rates: *rates,
        drained_bytes: 0.0,
        moved_bytes: 0.0,
    };
    for in_use in [false, true] {
        let now: Vec<&Leaving> = files.iter().filter(|f| f.in_use == in_use).collect();
        let clean = now.iter().filter(|f| f.is_clean);
        order.extend(clean.map(|f| (f.id, Departure::Drop)));
        let dirty = now.iter().filter(|f| !f.is_clean);
        for file in dirty.clone() {
            if let Some(at) = file.copy_at.filter(|_| !file.keeps_two) {
                order.push((file.id, Departure::Promote(at)));
            }
        }
        let alone = dirty
            .copied()
            .filter(|f| f.copy_at.is_none() || f.keeps_two);
        order.extend(match in_use {
            true => ends.move_all(alone),
            false => ends.split(alone.collect()),
        });
    }
    order
}

/// What is drained and what is moved, so far.
struct TwoEnds {
    rooms: Vec<Holder>,
    rack: Option<Rack>,
    rates: LeavingRates,
    drained_bytes: f64,
    moved_bytes: f64,
}

impl TwoEnds {
    /// Drains from the front and moves from the end. The next file goes to the end that would have
    /// finished it first, as two machines of different speed would share a list.
    fn split(&mut self, mut left: VecDeque<&Leaving>) -> Vec<(u64, Departure)> {
        let mut order = Vec::with_capacity(left.len());
        let mut not_taken = Vec::new();
        while let (Some(first), Some(last)) = (left.front().copied(), left.back().copied()) {
            let drain_s = self.rates.drain_s(self.drained_bytes + first.bytes as f64);
            let move_s = self.rates.move_s(self.moved_bytes + last.bytes as f64);
            if drain_s <= move_s || self.rates.move_bytes_per_s <= 0.0 {
                left.pop_front();
                self.drained_bytes += first.bytes as f64;
                order.push((first.id, Departure::Drain));
                continue;
            }
            left.pop_back();
            match self.take_elsewhere(last) {
                Some(to) => {
                    self.moved_bytes += last.bytes as f64;
                    order.push((last.id, Departure::Move(to)));
                }
                None => {
                    self.drained_bytes += last.bytes as f64;
                    not_taken.push((last.id, Departure::Drain));
                }
            }
        }
        // The warmest, taken from the end: they are drained last.
        order.extend(not_taken.into_iter().rev());
        order
    }

    /// Moves what can; the warmest first, as long as there is room.
    fn move_all<'a>(
        &mut self,
        files: impl DoubleEndedIterator<Item = &'a Leaving<'a>>,
    ) -> Vec<(u64, Departure)> {
        let all = files.rev().map(|file| match self.take_elsewhere(file) {
            Some(to) => (file.id, Departure::Move(to)),
            // It cannot be drained before its close. The next fsync waits for the PFS.
            None => (
                file.id,
                file.copy_at.map_or(Departure::Drain, Departure::Promote),
            ),
        });
        all.collect()
    }

    /// The holder that takes a file, with space set aside there.
    fn take_elsewhere(&mut self, file: &Leaving) -> Option<HolderId> {
        if file.is_outdated || file.wanted.rule.locality == Locality::LocalOnly {
            return None;
        }
        let wanted = Wanted {
            expected_bytes: Some(file.bytes),
            ..file.wanted
        };
        let other = |holder: &&Holder| Some(holder.id) != file.copy_at;
        let rooms = self.rooms.iter().filter(other);
        let (to, _) = best(rooms, &wanted, Room::Now, self.rack)?;
        let to = to.id;
        for holder in self.rooms.iter_mut().filter(|h| h.id == to) {
            holder.set_aside(&wanted);
        }
        Some(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holders::{HolderRule, HolderTier};
    use crate::placement::{TierKind, TierSpace};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const MIB: u64 = 1 << 20;
    const NODE: HolderId = HolderId(1);

    fn holder(id: u16, free_mib: u64) -> Holder {
        let space = TierSpace {
            index: 0,
            kind: TierKind::Ssd,
            capacity_bytes: 1000 * MIB,
            free_bytes: free_mib * MIB,
            reserved_bytes: 0,
        };
        Holder {
            id: HolderId(id),
            rack: Rack(0),
            is_answering: true,
            is_emptied: id == NODE.0,
            tiers: vec![HolderTier {
                space,
                evictable_bytes: 0,
            }],
            load_bytes: 0,
        }
    }

    fn dirty(rule: &HolderRule, id: u64, mib: u64) -> Leaving<'_> {
        Leaving {
            id,
            bytes: mib * MIB,
            is_clean: false,
            is_outdated: false,
            in_use: false,
            copy_at: None,
            keeps_two: false,
            wanted: Wanted {
                object: id,
                expected_bytes: None,
                may_be_in_memory: true,
                rule,
            },
        }
    }

    fn rates(drain_mib: f64, move_mib: f64) -> LeavingRates {
        LeavingRates {
            drain_bytes_per_s: drain_mib * MIB as f64,
            move_bytes_per_s: move_mib * MIB as f64,
        }
    }

    #[test]
    fn clean_then_copied_then_dirty_and_open_files_last() {
        let rule = HolderRule::default();
        let mut files: Vec<Leaving> = (0..4).map(|id| dirty(&rule, id, 10)).collect();
        files[0].in_use = true;
        files[2].copy_at = Some(HolderId(9));
        files[3].is_clean = true;
        let order = leave(NODE, &files, &[holder(1, 900)], &rates(1.0, 1.0));
        let expected = [
            (3, Departure::Drop),
            (2, Departure::Promote(HolderId(9))),
            (1, Departure::Drain),
            (0, Departure::Drain),
        ];
        assert_eq!(order, expected);
    }

    #[test]
    fn the_coldest_are_drained_and_the_warmest_are_moved() {
        let rule = HolderRule::default();
        let files: Vec<Leaving> = (0..4).map(|id| dirty(&rule, id, 10)).collect();
        let all = [holder(1, 900), holder(2, 900)];
        let to = Departure::Move(HolderId(2));
        let order = leave(NODE, &files, &all, &rates(1.0, 3.0));
        let sorted: std::collections::BTreeMap<_, _> = order.into_iter().collect();
        let what: Vec<_> = sorted.into_values().collect();
        assert_eq!(what, [Departure::Drain, to, to, to]);
        let order = leave(NODE, &files, &all, &rates(1.0, 0.0));
        assert!(order.iter().all(|(_, what)| *what == Departure::Drain));
        let order = leave(NODE, &files, &all, &rates(0.0, 1.0));
        assert!(order.iter().all(|(_, what)| *what == to), "a silent PFS");
    }

    #[test]
    fn what_may_not_move_or_is_not_worth_it_is_drained() {
        let local = HolderRule {
            locality: Locality::LocalOnly,
            ..HolderRule::default()
        };
        let rule = HolderRule::default();
        let old = Leaving {
            is_outdated: true,
            ..dirty(&rule, 1, 10)
        };
        for file in [dirty(&local, 1, 10), old, dirty(&rule, 1, 901)] {
            let order = leave(NODE, &[file], &[holder(2, 900)], &rates(1.0, 9.0));
            assert_eq!(order, [(1, Departure::Drain)]);
        }
    }

    #[test]
    fn what_is_open_moves_whatever_the_pfs_takes_and_drains_where_there_is_no_room() {
        let rule = HolderRule::default();
        let open = |id, mib| Leaving {
            in_use: true,
            ..dirty(&rule, id, mib)
        };
        let files = [open(1, 0), open(2, 500), open(3, 600)];
        let order = leave(NODE, &files, &[holder(2, 700)], &rates(1e9, 1.0));
        let to = Departure::Move(HolderId(2));
        assert_eq!(order, [(3, to), (2, Departure::Drain), (1, to)]);
    }

    #[test]
    fn what_is_promised_on_two_stays_on_two_or_goes_to_the_pfs() {
        let rule = HolderRule::default();
        let promised = |in_use| Leaving {
            in_use,
            copy_at: Some(HolderId(2)),
            keeps_two: true,
            ..dirty(&rule, 1, 10)
        };
        let both = [holder(2, 900), holder(3, 900)];
        let (third, second) = (
            Departure::Move(HolderId(3)),
            Departure::Promote(HolderId(2)),
        );
        for (in_use, holders, expected) in [
            (false, &both[..], third),
            (true, &both, third),
            (false, &both[..1], Departure::Drain),
            (true, &both[..1], second),
        ] {
            let order = leave(NODE, &[promised(in_use)], holders, &rates(1.0, 9.0));
            assert_eq!(order, [(1, expected)], "{in_use}");
        }
    }

    proptest! {
        #[test]
        fn all_leave_once_and_about_as_soon_as_they_can(
            sizes in prop::collection::vec((1u64..50, any::<bool>(), any::<bool>()), 0..40),
            (drain, network) in (0.1..10.0f64, 0.1..10.0f64),
            free in 0u64..1000,
        ) {
            let rule = HolderRule::default();
            let file = |(id, (mib, is_clean, in_use)): (usize, &(u64, bool, bool))| Leaving {
                is_clean: *is_clean,
                in_use: *in_use,
                ..dirty(&rule, id as u64, *mib)
            };
            let files: Vec<Leaving> = sizes.iter().enumerate().map(file).collect();
            let order = leave(NODE, &files, &[holder(1, 900), holder(2, free), holder(3, free)], &rates(drain, network));
            let ids: BTreeSet<u64> = order.iter().map(|(id, _)| *id).collect();
            prop_assert_eq!((ids.len(), order.len()), (files.len(), files.len()));
            let mib = |kind: fn(&Departure) -> bool| -> f64 {
                let at_rest = order.iter().filter(|(id, _)| !files[*id as usize].in_use);
                let of = at_rest.filter(|(_, what)| kind(what));
                of.map(|(id, _)| files[*id as usize].bytes as f64 / MIB as f64).sum()
            };
            let drained = mib(|what| *what == Departure::Drain);
            let moved = mib(|what| matches!(what, Departure::Move(_)));
            prop_assert!(moved <= 2.0 * free as f64);
            for (id, what) in &order {
                prop_assert_eq!(*what == Departure::Drop, files[*id as usize].is_clean);
                prop_assert!(*what != Departure::Move(NODE));
            }
            if files.iter().map(|f| f.bytes).sum::<u64>() <= free * MIB / 2 {
                let took = (drained / drain).max(moved / network);
                prop_assert!(took <= (drained + moved + 50.0) / (drain + network) + 1e-9);
            }
        }
    }
}
