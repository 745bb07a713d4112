use super::*;
use crate::leadership::CLOCK_RATE_ERROR;
use proptest::prelude::*;

#[test]
fn silence_means_more_the_longer_it_lasts() {
    let lease = HolderLease::new(20.0);
    let judge = |now_s| judge(Liveness::Answering, 100.0, now_s, &lease);
    assert_eq!(judge(100.0), Liveness::Answering);
    assert_eq!(judge(104.9), Liveness::Answering);
    assert_eq!(judge(105.0), Liveness::Silent);
    assert_eq!(judge(119.9), Liveness::Silent);
    assert_eq!(judge(120.0), Liveness::Lost);
    assert_eq!(next_change_s(100.0, 101.0, &lease), Some(4.0));
    assert_eq!(next_change_s(100.0, 106.0, &lease), Some(14.0));
    assert_eq!(next_change_s(100.0, 120.0, &lease), None);
}

#[test]
fn who_is_lost_is_not_believed_before_it_has_come_back() {
    let lease = HolderLease::new(20.0);
    assert_eq!(
        judge(Liveness::Silent, 100.0, 101.0, &lease),
        Liveness::Answering
    );
    assert_eq!(judge(Liveness::Lost, 100.0, 101.0, &lease), Liveness::Lost);
}

const LIFE: Incarnation = Incarnation {
    boot: 1,
    start: 1,
    tiers: 1,
};

#[test]
fn what_has_happened_is_told_from_the_incarnation() {
    let back = |is, before| on_return(LIFE, is, before);
    assert_eq!(back(LIFE, Liveness::Silent), Return::Same);
    assert_eq!(back(LIFE, Liveness::Lost), Return::Restarted);
    let restarted = Incarnation { start: 2, ..LIFE };
    assert_eq!(back(restarted, Liveness::Silent), Return::Restarted);
    let rebooted = Incarnation {
        boot: 2,
        ..restarted
    };
    assert_eq!(back(rebooted, Liveness::Silent), Return::Rebooted);
    let replaced = Incarnation {
        tiers: 2,
        ..rebooted
    };
    assert_eq!(back(replaced, Liveness::Answering), Return::Replaced);
}

fn dirty(kind: TierKind) -> OnRecord {
    OnRecord {
        kind,
        is_clean: false,
        has_copy: false,
        is_superseded: false,
    }
}

#[test]
fn a_reboot_empties_memory_and_leaves_flash_to_be_looked_at() {
    let (dram, ssd) = (dirty(TierKind::Dram), dirty(TierKind::Ssd));
    assert_eq!(remains(Return::Rebooted, &dram), Remains::Lost);
    let torn = Remains::LookAt { may_be_torn: true };
    assert_eq!(remains(Return::Rebooted, &ssd), torn);
    let whole = Remains::LookAt { may_be_torn: false };
    assert_eq!(remains(Return::Restarted, &dram), whole);
    assert_eq!(remains(Return::Same, &dram), Remains::Object);
    assert_eq!(remains(Return::Replaced, &ssd), Remains::Lost);
    let clean = OnRecord {
        is_clean: true,
        ..dram
    };
    assert_eq!(remains(Return::Rebooted, &clean), Remains::Pfs);
    let copied = OnRecord {
        has_copy: true,
        ..dram
    };
    assert_eq!(remains(Return::Rebooted, &copied), Remains::Copy);
    let superseded = OnRecord {
        is_superseded: true,
        ..dirty(TierKind::Ssd)
    };
    assert_eq!(remains(Return::Restarted, &superseded), Remains::Lost);
}

#[test]
fn a_write_waits_for_the_lease_and_a_read_only_where_it_must() {
    let lone = dirty(TierKind::Ssd);
    let clean = OnRecord {
        is_clean: true,
        ..lone
    };
    let of = |holder, object: &OnRecord, is_write| access(holder, object, is_write, false);
    assert_eq!(of(Liveness::Answering, &clean, false), Access::Holder);
    assert_eq!(of(Liveness::Silent, &clean, false), Access::Pfs);
    assert_eq!(of(Liveness::Silent, &clean, true), Access::Wait);
    assert_eq!(of(Liveness::Lost, &clean, true), Access::Pfs);
    assert_eq!(
        of(Liveness::Lost, &lone, false),
        Access::Wait,
        "a hard mount"
    );
    assert_eq!(access(Liveness::Silent, &lone, false, true), Access::Wait);
    assert_eq!(access(Liveness::Lost, &lone, false, true), Access::Fail);
}

fn any_object() -> impl Strategy<Value = OnRecord> {
    any::<[bool; 4]>().prop_map(|[is_memory, is_clean, has_copy, is_superseded]| OnRecord {
        kind: if is_memory {
            TierKind::Dram
        } else {
            TierKind::Ssd
        },
        is_clean,
        has_copy,
        is_superseded,
    })
}

fn any_return() -> impl Strategy<Value = Return> {
    prop_oneof![
        Just(Return::Same),
        Just(Return::Restarted),
        Just(Return::Rebooted),
        Just(Return::Replaced),
    ]
}

proptest! {
    #[test]
    fn a_file_is_said_to_be_lost_and_never_empty_or_old(back in any_return(), object in any_object()) {
        let found = remains(back, &object);
        match found {
            Remains::Object | Remains::LookAt { .. } => {
                let emptied = back == Return::Replaced
                    || (back == Return::Rebooted && object.kind == TierKind::Dram);
                prop_assert!(!emptied && !object.is_superseded);
            }
            Remains::Copy => prop_assert!(object.has_copy),
            Remains::Pfs => prop_assert!(object.is_clean),
            Remains::Lost => prop_assert!(!object.has_copy && !object.is_clean),
        }
        // What is worse leaves less.
        let has_object = |back| matches!(remains(back, &object), Remains::Object | Remains::LookAt { .. });
        for pair in [Return::Same, Return::Restarted, Return::Rebooted, Return::Replaced].windows(2) {
            prop_assert!(has_object(pair[0]) || !has_object(pair[1]));
        }
    }

    #[test]
    fn no_two_places_take_writes(object in any_object(), is_soft: bool) {
        for holder in [Liveness::Answering, Liveness::Silent] {
            let found = access(holder, &object, true, is_soft);
            prop_assert!(matches!(found, Access::Holder | Access::Wait));
        }
        let lost = access(Liveness::Lost, &object, true, is_soft);
        prop_assert_ne!(lost, Access::Holder);
    }

    #[test]
    fn a_holder_stops_to_serve_before_it_is_lost(
        (lease_s, way_s) in (0.1..100.0f64, prop_oneof![Just(0.0), 0.0..10.0f64]),
        (holder, server) in (-CLOCK_RATE_ERROR..CLOCK_RATE_ERROR, -CLOCK_RATE_ERROR..CLOCK_RATE_ERROR),
        server_origin in 0.0..1e6f64,
    ) {
        // True times: it asks at 0, is heard at `way_s`, and no answer comes after that.
        let lease = HolderLease::new(lease_s);
        let (holder_rate, server_rate) = (1.0 + holder, 1.0 + server);
        let stops_s = lease.of_holder_s() / holder_rate;
        let heard_at_s = server_origin + way_s * server_rate;
        let just_before = server_origin + (stops_s - 1e-6) * server_rate;
        let judged = judge(Liveness::Answering, heard_at_s, just_before, &lease);
        prop_assert_ne!(judged, Liveness::Lost);
        let lost_at_s = heard_at_s + lease.lost_after_s + 1e-6;
        prop_assert_eq!(judge(Liveness::Silent, heard_at_s, lost_at_s, &lease), Liveness::Lost);
    }
}
