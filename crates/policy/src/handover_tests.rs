use super::*;
use crate::holders::{HolderRule, Rack};
use crate::testing::{any_holders, any_rule};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn tier(index: usize, kind: TierKind, free_mib: u64, clean_mib: u64) -> HolderTier {
    HolderTier {
        space: TierSpace {
            index,
            kind,
            capacity_bytes: 1000 * MIB,
            free_bytes: free_mib * MIB,
            reserved_bytes: 0,
        },
        evictable_bytes: clean_mib * MIB,
    }
}

fn holder(id: u16, tiers: Vec<HolderTier>) -> Holder {
    Holder {
        id: HolderId(id),
        rack: Rack(id),
        is_answering: true,
        is_emptied: false,
        tiers,
        load_bytes: 0,
    }
}

/// In the memory of its holder.
fn growing(rule: &HolderRule, held_mib: u64, more_mib: u64) -> Growing<'_> {
    Growing {
        wanted: Wanted {
            object: 7,
            expected_bytes: None,
            may_be_in_memory: true,
            rule,
        },
        tier: 0,
        held_bytes: held_mib * MIB,
        more_bytes: more_mib * MIB,
        is_written_unseen: false,
    }
}

fn ask(holders: &[Holder], file: &Growing) -> WhenFull {
    when_full(HolderId(1), holders, file)
}

#[test]
fn evicting_then_another_tier_then_another_holder_then_waiting() {
    let rule = HolderRule::default();
    let file = growing(&rule, 100, 10);
    let mut all = [
        holder(
            1,
            vec![
                tier(0, TierKind::Dram, 0, 50),
                tier(1, TierKind::Ssd, 200, 0),
            ],
        ),
        holder(2, vec![tier(0, TierKind::Dram, 200, 0)]),
    ];
    let bytes = 10 * MIB + 1000 * MIB / 32;
    assert_eq!(ask(&all, &file), WhenFull::Evict { bytes });
    all[0].tiers[0].evictable_bytes = 9 * MIB;
    assert_eq!(ask(&all, &file), WhenFull::OtherTier(1));
    all[0].is_emptied = true;
    assert!(matches!(ask(&all, &file), WhenFull::HandOver { .. }));
    all[0].is_emptied = false;
    all[0].tiers[1].space.free_bytes = 0;
    let to = |must_evict| WhenFull::HandOver {
        to: HolderId(2),
        must_evict,
    };
    assert_eq!(ask(&all, &file), to(false));
    all[1].tiers[0] = tier(0, TierKind::Dram, 0, 200);
    assert_eq!(ask(&all, &file), to(true));
    all[1].tiers[0] = tier(0, TierKind::Dram, 0, 0);
    assert_eq!(ask(&all, &file), WhenFull::Wait);
    all[0].tiers[0].space.free_bytes = 10 * MIB;
    assert_eq!(ask(&all, &file), WhenFull::Goes);
}

#[test]
fn what_cannot_move_waits() {
    let rule = HolderRule::default();
    let all = [
        holder(1, vec![tier(0, TierKind::Dram, 0, 0)]),
        holder(2, vec![tier(0, TierKind::Dram, 900, 0)]),
    ];
    let unseen = Growing {
        is_written_unseen: true,
        ..growing(&rule, 100, 10)
    };
    assert_eq!(ask(&all, &unseen), WhenFull::Wait);
    let local = HolderRule {
        locality: Locality::LocalOnly,
        ..HolderRule::default()
    };
    assert_eq!(ask(&all, &growing(&local, 100, 10)), WhenFull::Wait);
    assert_eq!(
        ask(&all, &growing(&local, 999, 10)),
        WhenFull::Pfs,
        "outgrown"
    );
}

#[test]
fn a_file_on_flash_is_not_handed_over_to_memory() {
    let rule = HolderRule::default();
    let all = [
        holder(1, vec![tier(0, TierKind::Ssd, 0, 0)]),
        holder(2, vec![tier(0, TierKind::Dram, 900, 0)]),
    ];
    assert_eq!(ask(&all, &growing(&rule, 100, 10)), WhenFull::Wait);
    let mut all = all;
    all[1].tiers[0].space.kind = TierKind::Ssd;
    assert!(matches!(
        ask(&all, &growing(&rule, 100, 10)),
        WhenFull::HandOver { .. }
    ));
}

#[test]
fn all_moves_of_a_file_cost_at_most_five_times_its_size() {
    let rule = HolderRule::default();
    let (mut held, mut moved) = (MIB, 0);
    while held < 1 << 40 {
        let file = Growing {
            held_bytes: held,
            more_bytes: 1,
            ..growing(&rule, 0, 0)
        };
        // The worst case: full again as soon as the file has what the move asked for.
        moved += held;
        held = file.bytes_elsewhere();
    }
    assert!(moved <= 5 * held, "{moved} of {held}");
}

proptest! {
    #[test]
    fn it_is_handed_over_only_to_where_it_fits(
        all in any_holders(),
        rule in any_rule(),
        (held, more) in (0u64..300, 0u64..300),
        (own, tier) in (1u16..4, 0usize..3),
    ) {
        let file = Growing { tier, ..growing(&rule, held, more) };
        let answer = when_full(HolderId(own), &all, &file);
        let here = all.iter().find(|h| h.id == HolderId(own));
        let space = here.and_then(|h| h.tiers.iter().find(|t| t.space.index == tier));
        if let WhenFull::HandOver { to, must_evict } = answer {
            let other = all.iter().find(|h| h.id == to).expect("one of them");
            prop_assert!(to != HolderId(own) && other.takes_files());
            let needed = file.next_bytes().max(file.held_bytes / 4 * 5);
            let has_room = |t: &HolderTier| {
                let clean = if must_evict { t.evictable_bytes } else { 0 };
                t.space.available_bytes() + clean >= needed
            };
            prop_assert!(other.tiers.iter().any(has_room));
            prop_assert!(rule.locality != Locality::LocalOnly);
        }
        if let WhenFull::Evict { bytes } = answer {
            let t = space.expect("its tier");
            prop_assert!(bytes <= t.evictable_bytes);
            prop_assert!(t.space.available_bytes() + bytes >= file.more_bytes);
        }
        if let Some(t) = space {
            let can_wait = t.space.capacity_bytes >= file.next_bytes();
            prop_assert!(answer != WhenFull::Pfs || !can_wait, "a write waits");
        } else {
            prop_assert_eq!(answer, WhenFull::Pfs);
        }
    }
}
