//! In which tier room is made for the files of a run.

use crate::placement::{SPACE_UNIT_BYTES, TierSpace};

/// A tier that a file of the run may lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunRoom {
    /// Its space.
    pub space: TierSpace,
    /// Copies in it that are wanted less than the run, bytes.
    pub less_wanted_bytes: u64,
}

/// What is done for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MakeRoom {
    /// Nothing: there is some.
    Not,
    /// So much of what is wanted less leaves a tier.
    In {
        /// Its [`TierSpace::index`].
        tier: usize,
        /// Bytes.
        bytes: u64,
    },
    /// Nothing: the file is beyond what its owner may have. Another owner's may come.
    BeyondLimit,
    /// Nothing: what is wanted less is not enough anywhere.
    Refused,
}

/// Chooses where room is made for a file of so many bytes, and for those of its run after it,
/// `wanted_bytes` together. `tiers`: those that its path may lie in. `limit_bytes`: what its owner
/// may still have; `None`: any number.
///
/// 1. Nothing leaves for what may not come: no tier but these counts, and nothing beyond the limit.
/// 2. Room is made in one tier, for all that is wanted or as much as the tier holds, or not at all:
///    a run of which a part is here waits for the PFS all the same.
/// 3. It is the tier that the fewest bytes leave, the first of equals.
pub fn make_room(
    tiers: &[RunRoom],
    file_bytes: u64,
    wanted_bytes: u64,
    limit_bytes: Option<u64>,
) -> MakeRoom {
    // As much as a file is placed with.
    let units = |bytes: u64| bytes.checked_next_multiple_of(SPACE_UNIT_BYTES);
    let limit_bytes = limit_bytes.unwrap_or(u64::MAX);
    if limit_bytes < file_bytes {
        return MakeRoom::BeyondLimit;
    }
    let needed_bytes = units(file_bytes.max(1)).unwrap_or(u64::MAX);
    let wanted_bytes = units(wanted_bytes.min(limit_bytes)).unwrap_or(u64::MAX);
    let holds = |tier: &&RunRoom| tier.space.capacity_bytes >= file_bytes.max(1);
    let missing = |tier: &RunRoom, bytes: u64| {
        let space = &tier.space;
        let bytes = bytes.min(space.capacity_bytes);
        bytes.saturating_sub(space.available_bytes())
    };
    if (tiers.iter().filter(holds)).any(|tier| missing(tier, needed_bytes) == 0) {
        return MakeRoom::Not;
    }
    let wanted_bytes = wanted_bytes.max(needed_bytes);
    let all = tiers.iter().filter(holds).map(|tier| {
        let bytes = missing(tier, wanted_bytes);
        (tier, bytes)
    });
    let enough = all.filter(|(tier, bytes)| tier.less_wanted_bytes >= *bytes);
    match enough.min_by_key(|(_, bytes)| *bytes) {
        Some((tier, bytes)) => MakeRoom::In {
            tier: tier.space.index,
            bytes,
        },
        None => MakeRoom::Refused,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::placement::TierKind;

    const MIB: u64 = 1 << 20;

    fn tier(index: usize, capacity: u64, free: u64, less_wanted: u64) -> RunRoom {
        RunRoom {
            space: TierSpace {
                index,
                kind: TierKind::Ssd,
                capacity_bytes: capacity * MIB,
                free_bytes: free * MIB,
                reserved_bytes: 0,
            },
            less_wanted_bytes: less_wanted * MIB,
        }
    }

    fn made(tiers: &[RunRoom], file: u64, wanted: u64, limit: Option<u64>) -> MakeRoom {
        let limit = limit.map(|limit| limit * MIB);
        make_room(tiers, file * MIB, wanted * MIB, limit)
    }

    fn made_in(tier: usize, mib: u64) -> MakeRoom {
        let bytes = mib * MIB;
        MakeRoom::In { tier, bytes }
    }

    #[test]
    fn nothing_leaves_where_there_is_room_and_nothing_where_there_is_none() {
        assert_eq!(made(&[], 1, 1, None), MakeRoom::Refused);
        let full = tier(1, 64, 0, 0);
        assert_eq!(made(&[full], 1, 1, None), MakeRoom::Refused);
        let free = tier(2, 64, 4, 0);
        assert_eq!(made(&[full, free], 4, 40, None), MakeRoom::Not);
        // A unit is what is placed.
        assert_eq!(made(&[full, free], 5, 40, None), MakeRoom::Refused);
    }

    #[test]
    fn all_that_is_wanted_leaves_one_tier_or_nothing_does() {
        let tiers = [tier(1, 64, 0, 12), tier(2, 64, 0, 20)];
        assert_eq!(made(&tiers, 1, 8, None), made_in(1, 8));
        assert_eq!(made(&tiers, 1, 16, None), made_in(2, 16));
        assert_eq!(made(&tiers, 1, 24, None), MakeRoom::Refused);
        // What is free counts, and no more is wanted than there is.
        let less = [tiers[0], tier(2, 64, 3, 20)];
        assert_eq!(made(&less, 1, 8, None), made_in(2, 5));
        assert_eq!(made(&[tier(1, 8, 0, 8)], 1, 100, None), made_in(1, 8));
        // One that never holds the file is none.
        assert_eq!(made(&[tier(1, 8, 0, 8)], 9, 9, None), MakeRoom::Refused);
    }

    #[test]
    fn nothing_leaves_for_what_a_limit_keeps_out() {
        let tiers = [tier(1, 64, 0, 64)];
        assert_eq!(made(&tiers, 5, 40, Some(4)), MakeRoom::BeyondLimit);
        assert_eq!(made(&tiers, 5, 40, Some(8)), made_in(1, 8));
        assert_eq!(made(&tiers, 5, 40, Some(60)), made_in(1, 40));
        assert_eq!(
            made(&[tier(1, 64, 64, 0)], 5, 5, Some(4)),
            MakeRoom::BeyondLimit
        );
    }

    proptest! {
        #[test]
        fn any_numbers_have_an_answer_that_is_of_use(
            tiers in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 0..4),
            file in any::<u64>(),
            wanted in any::<u64>(),
            limit in any::<Option<u64>>(),
        ) {
            let tiers: Vec<RunRoom> = tiers.into_iter().enumerate().map(|(index, t)| {
                let mut tier = tier(index, 0, 0, 0);
                (tier.space.capacity_bytes, tier.less_wanted_bytes) = (t.0, t.2);
                tier.space.free_bytes = t.1.min(t.0);
                tier
            }).collect();
            if let MakeRoom::In { tier, bytes } = make_room(&tiers, file, wanted, limit) {
                let chosen = &tiers[tier];
                prop_assert!(bytes > 0 && bytes <= chosen.less_wanted_bytes);
                prop_assert!(chosen.space.available_bytes().saturating_add(bytes) >= file);
                prop_assert!(limit.is_none_or(|limit| limit >= file));
            }
        }
    }
}
