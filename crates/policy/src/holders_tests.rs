use super::*;
use crate::placement::SPACE_UNIT_BYTES;
use crate::testing::{MIB, any_holders, any_rule, tier};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// With flash of 1000 MiB.
fn holder(id: u16, rack: u16, free_mib: u64) -> Holder {
    Holder {
        id: HolderId(id),
        rack: Rack(rack),
        is_answering: true,
        is_emptied: false,
        tiers: vec![tier(TierKind::Ssd, 1000, free_mib, 0)],
        load_bytes: 0,
    }
}

fn wanted(rule: &HolderRule, object: u64, mib: u64) -> Wanted<'_> {
    Wanted {
        object,
        expected_bytes: Some(mib * MIB),
        may_be_in_memory: true,
        rule,
    }
}

fn on(holder: u16) -> Home {
    Home::On {
        holder: HolderId(holder),
        must_evict: false,
    }
}

const WRITER: Writer = Writer {
    holder: Some(HolderId(1)),
    rack: Some(Rack(1)),
};

#[test]
fn the_writers_node_is_first_though_others_are_emptier() {
    let rule = HolderRule::default();
    let mut all = [holder(1, 1, 100), holder(2, 1, 1000), holder(3, 2, 1000)];
    all[0].load_bytes = 1 << 40;
    let home = |all: &[Holder]| choose_home(&WRITER, all, &wanted(&rule, 7, 50));
    assert_eq!(home(&all), on(1));
    all[0].tiers = vec![tier(TierKind::Ssd, 1000, 0, 900)];
    let evicting = Home::On {
        holder: HolderId(1),
        must_evict: true,
    };
    assert_eq!(home(&all), evicting, "clean copies make room");
    all[0].is_emptied = true;
    assert_eq!(home(&all), on(2), "its rack");
    all[0].is_emptied = false;
    all[0].is_answering = false;
    assert_eq!(home(&all), on(2));
    all[1].tiers.clear();
    assert_eq!(home(&all), on(3));
    all[2].tiers = vec![tier(TierKind::Ssd, 40, 40, 0)];
    assert_eq!(home(&all), Home::Pfs, "it could never be held");
}

#[test]
fn a_full_node_hands_a_new_file_over_before_anybody_waits() {
    let rule = HolderRule::default();
    let mut all = [holder(1, 1, 0), holder(2, 2, 0)];
    let home = |all: &[Holder]| choose_home(&WRITER, all, &wanted(&rule, 7, 50));
    assert_eq!(home(&all), Home::Wait(HolderId(1)));
    all[1].tiers[0].evictable_bytes = 60 * MIB;
    let evicting = Home::On {
        holder: HolderId(2),
        must_evict: true,
    };
    assert_eq!(home(&all), evicting);
    all[0].is_emptied = true;
    all[1].tiers[0].evictable_bytes = 0;
    assert_eq!(home(&all), Home::Wait(HolderId(2)));
}

#[test]
fn space_then_the_rack_then_load() {
    let rule = HolderRule::default();
    let compute_node = Writer {
        holder: None,
        rack: Some(Rack(2)),
    };
    let mut all = [holder(1, 1, 1000), holder(2, 2, 700), holder(3, 2, 300)];
    let home = |all: &[Holder]| choose_home(&compute_node, all, &wanted(&rule, 7, 50));
    assert_eq!(home(&all), on(1));
    all[0].tiers[0].space.free_bytes = 720 * MIB;
    assert_eq!(home(&all), on(2), "about as much, and near");
    all[2].tiers[0].space.free_bytes = 600 * MIB;
    all[1].load_bytes = 1 << 30;
    assert_eq!(home(&all), on(3), "less busy");
}

#[test]
fn rules_narrow_the_choice() {
    let all = [holder(1, 1, 500), holder(2, 2, 1000), holder(3, 3, 1000)];
    let home = |rule: &HolderRule, writer: &Writer| choose_home(writer, &all, &wanted(rule, 7, 50));
    let mut rule = HolderRule {
        servers: vec![HolderId(3)],
        ..HolderRule::default()
    };
    assert_eq!(home(&rule, &WRITER), on(3));
    rule.servers = vec![];
    rule.racks = vec![Rack(2)];
    assert_eq!(home(&rule, &WRITER), on(2));
    let local = HolderRule {
        locality: Locality::LocalOnly,
        ..HolderRule::default()
    };
    assert_eq!(home(&local, &WRITER), on(1));
    assert_eq!(home(&local, &Writer::default()), Home::Pfs);
    let mut gone = all.clone();
    gone[0].is_answering = false;
    let home_without = choose_home(&WRITER, &gone, &wanted(&local, 7, 50));
    assert_eq!(home_without, Home::Pfs, "local only");
    let spread = HolderRule {
        locality: Locality::Spread,
        ..HolderRule::default()
    };
    assert_ne!(home(&spread, &WRITER), on(1), "the others are emptier");
}

#[test]
fn what_may_not_be_in_memory_needs_flash() {
    let rule = HolderRule::default();
    let mut all = [holder(1, 1, 1000), holder(2, 2, 1000)];
    all[0].tiers = vec![tier(TierKind::Dram, 1000, 1000, 0)];
    let mut asked = wanted(&rule, 7, 50);
    assert_eq!(choose_home(&WRITER, &all, &asked), on(1));
    asked.may_be_in_memory = false;
    assert_eq!(choose_home(&WRITER, &all, &asked), on(2));
}

#[test]
fn what_is_set_aside_is_no_longer_room() {
    let rule = HolderRule::default();
    let mut one = holder(1, 1, 60);
    one.tiers[0].evictable_bytes = 40 * MIB;
    let asked = wanted(&rule, 7, 40);
    assert_eq!(one.room_for(&asked), Room::Now);
    one.set_aside(&asked);
    assert_eq!(one.room_for(&asked), Room::AfterEvicting);
    one.set_aside(&asked);
    assert_eq!(one.tiers[0].evictable_bytes, 20 * MIB);
    assert_eq!(one.room_for(&asked), Room::Later);
    assert_eq!(one.room_for(&wanted(&rule, 7, 1001)), Room::Never);
}

#[test]
fn many_files_spread_over_equals_and_stay_when_a_holder_comes() {
    let rule = HolderRule {
        locality: Locality::Spread,
        ..HolderRule::default()
    };
    let homes = |count: u16| -> Vec<HolderId> {
        let all: Vec<Holder> = (1..=count).map(|id| holder(id, id % 3, 1000)).collect();
        let home = |object| choose_home(&WRITER, &all, &wanted(&rule, object, 50));
        (0..8000)
            .map(|object| match home(object) {
                Home::On { holder, .. } => holder,
                other => panic!("{other:?}"),
            })
            .collect()
    };
    let (eight, nine) = (homes(8), homes(9));
    let mut counts = BTreeMap::new();
    eight
        .iter()
        .for_each(|id| *counts.entry(id).or_insert(0) += 1);
    assert_eq!(counts.len(), 8);
    assert!(
        counts.values().all(|n| (900..1100).contains(n)),
        "{counts:?}"
    );
    let moved = eight.iter().zip(&nine).filter(|(old, new)| old != new);
    let to: Vec<_> = moved.map(|(_, new)| new).collect();
    assert!((750..1050).contains(&to.len()), "{}", to.len());
    assert!(to.iter().all(|id| **id == HolderId(9)));
}

proptest! {
    #[test]
    fn the_answer_is_allowed_has_room_and_does_not_depend_on_the_order(
        mut all in any_holders(),
        rule in any_rule(),
        (own, rack) in (prop::option::of(1u16..8), prop::option::of(0u16..4)),
        (object, expected) in (any::<u64>(), prop::option::of(0u64..500)),
        in_memory in any::<bool>(),
    ) {
        let writer = Writer { holder: own.map(HolderId), rack: rack.map(Rack) };
        let asked = Wanted {
            object,
            expected_bytes: expected.map(|mib| mib * MIB),
            may_be_in_memory: in_memory,
            rule: &rule,
        };
        let home = choose_home(&writer, &all, &asked);
        let takes = |h: &&Holder| h.takes_files() && rule.allows(h.id, h.rack)
            && (rule.locality != Locality::LocalOnly || Some(h.id) == writer.holder);
        let most = all.iter().filter(takes).map(|h| h.room_for(&asked)).max();
        let of = |id| all.iter().find(|h| h.id == id).expect("one of them");
        match home {
            Home::Pfs => prop_assert!(most.is_none_or(|room| room == Room::Never)),
            Home::Wait(id) => {
                prop_assert_eq!(most, Some(Room::Later), "nobody waits beside room");
                prop_assert!(takes(&of(id)));
                prop_assert_eq!(of(id).room_for(&asked), Room::Later);
            }
            Home::On { holder, must_evict } => {
                let expected = if must_evict { Room::AfterEvicting } else { Room::Now };
                prop_assert!(takes(&of(holder)));
                prop_assert_eq!(of(holder).room_for(&asked), expected);
                prop_assert!(!must_evict || writer.holder == Some(holder) || most == Some(expected));
            }
        }
        all.reverse();
        prop_assert_eq!(choose_home(&writer, &all, &asked), home);
    }

    #[test]
    fn one_holder_answers_as_one_node_does(
        (capacity, free) in (0u64..400, 0u64..400),
        expected in prop::option::of(0u64..500),
        object in any::<u64>(),
    ) {
        let rule = HolderRule::default();
        let mut one = holder(1, 1, 0);
        one.tiers = vec![tier(TierKind::Ssd, capacity, free.min(capacity), 0)];
        let asked = Wanted {
            object,
            expected_bytes: expected.map(|mib| mib * MIB),
            may_be_in_memory: true,
            rule: &rule,
        };
        let file = NewFile {
            predicted_bytes: asked.expected_bytes,
            durability: Durability::Ssd,
            series_fsyncs: false,
        };
        let alone = match choose_tier(&[one.tiers[0].space], &file) {
            Placement::Tier(_) => on(1),
            Placement::Wait => Home::Wait(HolderId(1)),
            Placement::Pfs => Home::Pfs,
        };
        prop_assert_eq!(choose_home(&WRITER, &[one], &asked), alone);
    }

    #[test]
    fn setting_space_aside_never_takes_more_than_there_is(
        mut all in any_holders(),
        files in prop::collection::vec(0u64..200, 0..40),
    ) {
        let rule = HolderRule::default();
        for (object, mib) in files.into_iter().enumerate() {
            let asked = wanted(&rule, object as u64, mib);
            let Home::On { holder, .. } = choose_home(&Writer::default(), &all, &asked) else {
                continue;
            };
            for h in all.iter_mut().filter(|h| h.id == holder) {
                h.set_aside(&asked);
            }
            for t in all.iter().flat_map(|h| &h.tiers) {
                prop_assert!(t.space.reserved_bytes <= t.space.free_bytes + SPACE_UNIT_BYTES);
                prop_assert!(t.space.free_bytes + t.evictable_bytes <= t.space.capacity_bytes);
            }
        }
    }
}
