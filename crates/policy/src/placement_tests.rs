use super::*;
use proptest::prelude::*;

fn tier(index: usize, kind: TierKind, capacity_mib: u64, free_mib: u64) -> TierSpace {
    TierSpace {
        index,
        kind,
        capacity_bytes: capacity_mib * MIB,
        free_bytes: free_mib * MIB,
        reserved_bytes: 0,
    }
}

fn file(predicted_mib: Option<u64>) -> NewFile {
    NewFile {
        predicted_bytes: predicted_mib.map(|m| m * MIB),
        durability: Durability::Ssd,
        series_fsyncs: false,
    }
}

#[test]
fn what_is_set_aside_ahead_ends_where_the_file_will() {
    assert_eq!(growth_ahead(0, 1), SPACE_UNIT_BYTES, "nothing is known");
    assert_eq!(growth_ahead(50 * MIB, MIB), SPACE_UNIT_BYTES);
    assert_eq!(growth_ahead(50 * MIB, 49 * MIB), MIB);
    assert_eq!(growth_ahead(50 * MIB, 50 * MIB), 0);
    assert_eq!(growth_ahead(50 * MIB, 51 * MIB), SPACE_UNIT_BYTES, "larger");
}

#[test]
fn memory_first_then_the_emptiest_flash() {
    let tiers = [
        tier(0, TierKind::Dram, 1000, 100),
        tier(1, TierKind::Ssd, 10_000, 2_000),
        tier(2, TierKind::Ssd, 1_000, 900),
    ];
    assert_eq!(choose_tier(&tiers, &file(Some(50))), Placement::Tier(0));
    assert_eq!(choose_tier(&tiers, &file(None)), Placement::Tier(0));
    assert_eq!(choose_tier(&tiers, &file(Some(500))), Placement::Tier(2));
    assert_eq!(choose_tier(&tiers, &file(Some(1500))), Placement::Tier(1));
    assert_eq!(choose_tier(&tiers, &file(Some(5000))), Placement::Wait);
    assert_eq!(choose_tier(&tiers, &file(Some(50_000))), Placement::Pfs);
    assert_eq!(choose_tier(&[], &file(None)), Placement::Pfs);
}

#[test]
fn series_that_fsync_go_to_flash_where_there_is_one() {
    let dram = tier(0, TierKind::Dram, 1000, 1000);
    let ssd = tier(1, TierKind::Ssd, 1000, 1000);
    let syncs = |durability| NewFile {
        durability,
        series_fsyncs: true,
        ..file(Some(50))
    };
    assert_eq!(
        choose_tier(&[dram, ssd], &syncs(Durability::Ssd)),
        Placement::Tier(1)
    );
    assert_eq!(
        choose_tier(&[dram, ssd], &syncs(Durability::Memory)),
        Placement::Tier(0)
    );
    assert_eq!(
        choose_tier(&[dram], &syncs(Durability::Ssd)),
        Placement::Tier(0)
    );
    let full = tier(1, TierKind::Ssd, 1000, 10);
    assert_eq!(
        choose_tier(&[dram, full], &syncs(Durability::Ssd)),
        Placement::Tier(0)
    );
}

#[test]
fn what_is_reserved_is_not_available() {
    let mut dram = tier(0, TierKind::Dram, 1000, 500);
    dram.reserved_bytes = 480 * MIB;
    assert_eq!(choose_tier(&[dram], &file(Some(50))), Placement::Wait);
    dram.reserved_bytes = u64::MAX;
    assert_eq!(dram.available_bytes(), 0);
}

#[test]
fn leases() {
    let space = tier(0, TierKind::Ssd, 100_000, 2_000);
    let mib = |l: Option<Lease>| l.map(|l| l.bytes / MIB);
    let grant = |predicted, others, beyond: u64| {
        let predicted = Option::map(predicted, |mib: u64| mib * MIB);
        mib(grant_passthrough_write(
            &space,
            predicted,
            others,
            beyond * MIB,
            500 * MIB,
        ))
    };
    assert_eq!(grant(Some(100), 0, 2_500), Some(128), "125 rounded up");
    assert_eq!(grant(Some(0), 0, 2_500), Some(4));
    assert_eq!(grant(None, 0, 2_500), None, "it may grow to any size");
    assert_eq!(grant(Some(1_600), 0, 2_500), Some(2_000));
    assert_eq!(grant(Some(1_601), 0, 2_500), None, "more than there is");
    assert_eq!(grant(Some(1_600), 1, 2_500), None, "headroom for the other");
    assert_eq!(grant(Some(1_600), 0, 2_499), None, "no room for an overrun");
    let absurd = grant_passthrough_write(&space, Some(u64::MAX), 0, u64::MAX, 0);
    assert_eq!(absurd, None);
}

#[test]
fn what_lies_beyond() {
    let gib = |memory: u64| overrun_bytes(memory << 30) / (MIB << 10);
    assert_eq!((gib(2), gib(12), gib(64)), (1, 1, 2));
    assert!(may_borrow(10, 6, 4) && !may_borrow(10, 7, 4));
    assert!(!may_borrow(u64::MAX, u64::MAX, 1));
    assert_eq!(kept_memory_bytes(64), 8);
}

#[test]
fn leases_grow_while_there_is_space() {
    let space = tier(0, TierKind::Ssd, 100_000, 2_000);
    let lease = Lease { bytes: 400 * MIB };
    assert_eq!(extend_lease(&space, lease, 300 * MIB), Extension::Enough);
    assert_eq!(
        extend_lease(&space, lease, 301 * MIB),
        Extension::Extended(Lease { bytes: 600 * MIB })
    );
    let tight = tier(0, TierKind::Ssd, 100_000, 20);
    assert_eq!(
        extend_lease(&tight, lease, 399 * MIB),
        Extension::Extended(Lease { bytes: 408 * MIB })
    );
    let full = tier(0, TierKind::Ssd, 100_000, 7);
    assert_eq!(extend_lease(&full, lease, 399 * MIB), Extension::Refused);
    assert_eq!(lease.unused_bytes(MIB), 399 * MIB);
}

#[test]
fn first_changes() {
    let tiers = [tier(0, TierKind::Dram, 1000, 50)];
    let limits = ChangeLimits::default();
    let change = |mib: u64, truncates| first_change(mib * MIB, truncates, &tiers, &limits);
    assert_eq!(change(5000, true), FirstChange::FreshObject);
    assert_eq!(change(0, false), FirstChange::FreshObject);
    assert_eq!(change(30, false), FirstChange::StageIn);
    assert_eq!(
        change(48, false),
        FirstChange::InPlaceOnPfs,
        "no room to grow"
    );
    assert_eq!(change(65, false), FirstChange::InPlaceOnPfs, "too large");
    assert_eq!(
        first_change(1, false, &[], &limits),
        FirstChange::InPlaceOnPfs
    );
}

fn spaces() -> impl Strategy<Value = TierSpace> {
    (any::<bool>(), 0u64..1 << 40, 0.0..=1.0f64, 0.0..=1.0f64).prop_map(
        |(dram, capacity_bytes, free, reserved)| {
            let free_bytes = (capacity_bytes as f64 * free) as u64;
            TierSpace {
                index: 0,
                kind: if dram { TierKind::Dram } else { TierKind::Ssd },
                capacity_bytes,
                free_bytes,
                reserved_bytes: (free_bytes as f64 * reserved) as u64,
            }
        },
    )
}

#[test]
fn a_writer_is_held_back_for_as_long_as_that_makes_room() {
    let s = Duration::from_secs;
    use HeldBack::*;
    for (held, can_drain, since_moved, expected) in [
        (s(0), true, None, Waits),
        (s(29), true, Some(s(3600)), Waits),
        (s(31), true, Some(s(1)), BorrowsOrWaits),
        (s(3600), true, Some(s(29)), BorrowsOrWaits),
        // The drain that is under way waits for this very file, or for nobody knows what.
        (s(109), true, None, BorrowsOrWaits),
        (s(111), true, Some(s(111)), BorrowsOrFails),
        (s(111), true, None, BorrowsOrFails),
        (s(0), false, Some(s(0)), BorrowsOrFails),
    ] {
        let got = held_back(held, can_drain, since_moved);
        assert_eq!(got, expected, "{held:?} {can_drain} {since_moved:?}");
    }
}

proptest! {
    #[test]
    fn a_chosen_tier_has_room(mut tiers in proptest::collection::vec(spaces(), 0..5), predicted in proptest::option::of(0u64..1 << 40),
        series_fsyncs in any::<bool>()) {
        for (i, t) in tiers.iter_mut().enumerate() {
            t.index = i;
        }
        let file = NewFile { predicted_bytes: predicted, durability: Durability::Ssd, series_fsyncs };
        let needed = predicted.unwrap_or(1);
        match choose_tier(&tiers, &file) {
            Placement::Tier(i) => prop_assert!(tiers[i].available_bytes() >= needed),
            Placement::Wait => prop_assert!(tiers.iter().any(|t| t.capacity_bytes >= needed)),
            Placement::Pfs => prop_assert!(tiers.iter().all(|t| t.capacity_bytes < needed.max(1))),
        }
    }

    /// However many are granted and extended, together they never exceed the tier.
    #[test]
    fn leases_never_exceed_the_space(mut space in spaces(), wishes in proptest::collection::vec(proptest::option::of(any::<u64>().prop_map(|b| b >> 24)), 1..40)) {
        let mut open = 0;
        for wish in wishes {
            if let Some(lease) = grant_passthrough_write(&space, wish, open, u64::MAX, 0) {
                prop_assert_eq!(lease.bytes % SPACE_UNIT_BYTES, 0);
                space.reserved_bytes += lease.bytes;
                open += 1;
                if let Extension::Extended(more) = extend_lease(&space, lease, lease.bytes) {
                    prop_assert!(more > lease);
                    space.reserved_bytes += more.bytes - lease.bytes;
                }
            }
            prop_assert!(space.reserved_bytes <= space.free_bytes);
        }
    }

    #[test]
    fn no_numbers_panic(a in any::<[u64; 3]>(), predicted in any::<Option<u64>>(), size in any::<u64>(), lease in any::<u64>(), open in any::<u32>()) {
        let space = TierSpace { index: 0, kind: TierKind::Ssd, capacity_bytes: a[0], free_bytes: a[1], reserved_bytes: a[2] };
        let _ = choose_tier(&[space], &NewFile { predicted_bytes: predicted, durability: Durability::Pfs, series_fsyncs: true });
        let _ = grant_passthrough_write(&space, predicted, open, a[1], a[2]);
        let _ = extend_lease(&space, Lease { bytes: lease }, size);
        let _ = first_change(size, false, &[space], &ChangeLimits { max_stage_in_bytes: u64::MAX });
    }
}
