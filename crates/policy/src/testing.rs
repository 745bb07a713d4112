//! Holders as tests meet them.

use crate::holders::{Holder, HolderId, HolderRule, HolderTier, Locality, Rack};
use crate::placement::{TierKind, TierSpace};
use proptest::prelude::*;

pub const MIB: u64 = 1 << 20;

/// Memory has the index 0, flash 1.
pub fn tier(kind: TierKind, capacity_mib: u64, free_mib: u64, clean_mib: u64) -> HolderTier {
    HolderTier {
        space: TierSpace {
            index: usize::from(kind == TierKind::Ssd),
            kind,
            capacity_bytes: capacity_mib * MIB,
            free_bytes: free_mib * MIB,
            reserved_bytes: 0,
        },
        evictable_bytes: clean_mib * MIB,
    }
}

/// Up to six, numbered from 1, in up to four racks; sizes of some hundred MiB.
pub fn any_holders() -> impl Strategy<Value = Vec<Holder>> {
    let space = (any::<bool>(), 0u64..400, 0u64..400, 0u64..400).prop_map(
        |(is_memory, capacity, free, clean)| {
            let kind = if is_memory {
                TierKind::Dram
            } else {
                TierKind::Ssd
            };
            let free = free.min(capacity);
            tier(kind, capacity, free, clean.min(capacity - free))
        },
    );
    let one = (
        0u16..4,
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.2),
        prop::collection::vec(space, 0..3),
        0u64..1 << 32,
    );
    prop::collection::vec(one, 0..7).prop_map(|all| {
        let mut holders = Vec::new();
        for (rack, is_answering, is_emptied, mut tiers, load_bytes) in all {
            for (index, tier) in tiers.iter_mut().enumerate() {
                tier.space.index = index;
            }
            holders.push(Holder {
                id: HolderId(holders.len() as u16 + 1),
                rack: Rack(rack),
                is_answering,
                is_emptied,
                tiers,
                load_bytes,
            });
        }
        holders
    })
}

pub fn any_rule() -> impl Strategy<Value = HolderRule> {
    let servers = prop::collection::vec((1u16..7).prop_map(HolderId), 0..3);
    let racks = prop::collection::vec((0u16..4).prop_map(Rack), 0..2);
    (0usize..3, servers, racks).prop_map(|(locality, servers, racks)| HolderRule {
        locality: Locality::ALL[locality],
        servers,
        racks,
    })
}
