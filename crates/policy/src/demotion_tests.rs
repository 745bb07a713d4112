use super::*;
use crate::placement::TierKind;
use proptest::prelude::*;

fn candidate(id: u64) -> Candidate {
    Candidate {
        id,
        application: 1,
        version: Some(1),
        outdated: false,
        mtbf_s: 100.0,
        arrived_at_s: 0.0,
        accessed_at_s: 0.0,
        closed_at_s: 0.0,
        closed_to_open_s: 1.0,
        open_to_close_s: 1.0,
        bytes: 10,
        in_use: false,
    }
}

fn ordered(policy: PlacementPolicy, mut candidates: Vec<Candidate>) -> Vec<u64> {
    order_demotion(policy, &mut candidates, 1000.0);
    candidates.iter().map(|c| c.id).collect()
}

fn clean(c: Candidate) -> CleanCandidate {
    CleanCandidate::new(c, Residency::Clean).unwrap()
}

#[test]
fn outdated_first_then_highest_mtbf() {
    let all = vec![
        Candidate {
            mtbf_s: 50.0,
            ..candidate(1)
        },
        Candidate {
            mtbf_s: 900.0,
            application: 2,
            in_use: true,
            ..candidate(2)
        },
        Candidate {
            mtbf_s: 500.0,
            application: 3,
            version: Some(7),
            ..candidate(3)
        },
        Candidate {
            mtbf_s: 500.0,
            application: 3,
            version: Some(6),
            closed_at_s: 5.0,
            ..candidate(4)
        },
        Candidate {
            mtbf_s: 500.0,
            application: 3,
            version: Some(6),
            closed_at_s: 4.0,
            ..candidate(5)
        },
        Candidate {
            mtbf_s: 500.0,
            application: 3,
            version: None,
            ..candidate(6)
        },
        Candidate {
            mtbf_s: 10.0,
            application: 4,
            outdated: true,
            ..candidate(7)
        },
    ];
    assert_eq!(ordered(PlacementPolicy::Bbos, all), [7, 5, 4, 3, 6, 1, 2]);
}

#[test]
fn among_equal_mtbf_the_longest_waiting_application_goes_first() {
    let all = vec![
        Candidate {
            application: 1,
            version: Some(1),
            closed_at_s: 50.0,
            ..candidate(1)
        },
        Candidate {
            application: 2,
            version: Some(900),
            closed_at_s: 40.0,
            ..candidate(2)
        },
        Candidate {
            application: 2,
            version: Some(901),
            closed_at_s: 60.0,
            ..candidate(3)
        },
    ];
    assert_eq!(ordered(PlacementPolicy::Bbos, all), [2, 3, 1]);
}

#[test]
fn other_policies() {
    let all = vec![
        Candidate {
            arrived_at_s: 3.0,
            accessed_at_s: 10.0,
            closed_at_s: 500.0,
            ..candidate(1)
        },
        Candidate {
            arrived_at_s: 1.0,
            accessed_at_s: 30.0,
            closed_at_s: 900.0,
            closed_to_open_s: 100.0,
            ..candidate(2)
        },
        Candidate {
            arrived_at_s: 2.0,
            accessed_at_s: 20.0,
            closed_at_s: 400.0,
            ..candidate(3)
        },
    ];
    assert_eq!(ordered(PlacementPolicy::Fifo, all.clone()), [2, 3, 1]);
    assert_eq!(ordered(PlacementPolicy::Lru, all.clone()), [1, 3, 2]);
    assert_eq!(ordered(PlacementPolicy::Coolness, all), [2, 3, 1]);
    assert_eq!("LRU".parse(), Ok(PlacementPolicy::Lru));
}

#[test]
fn only_clean_files_are_candidates_for_eviction() {
    assert_eq!(CleanCandidate::new(candidate(1), Residency::Dirty), None);
    assert_eq!(CleanCandidate::new(candidate(1), Residency::Demoting), None);
    let outdated = clean(Candidate {
        outdated: true,
        ..candidate(1)
    });
    assert!(leaves_at_once(PlacementPolicy::Bbos, &outdated));
    assert!(!leaves_at_once(PlacementPolicy::Fifo, &outdated));
    assert!(!leaves_at_once(PlacementPolicy::Bbos, &clean(candidate(1))));
}

#[test]
fn evicts_only_when_space_is_needed() {
    let space = TierSpace {
        index: 0,
        kind: TierKind::Ssd,
        capacity_bytes: 3200,
        free_bytes: 500,
        reserved_bytes: 100,
    };
    assert_eq!(evict_needed(&space, 400), 0);
    assert_eq!(evict_needed(&space, 401), 101, "and a 32nd of the capacity");
    assert_eq!(
        evict_needed(&space, u64::MAX),
        2700,
        "no more than there is"
    );
    let mut all: Vec<_> = (0..5).map(|id| clean(candidate(id))).collect();
    let victims = choose_victims(PlacementPolicy::Bbos, &mut all, 25, 0.0);
    assert_eq!(
        victims,
        Victims {
            ids: vec![0, 1, 2],
            bytes: 30
        }
    );
}

#[test]
fn of_one_mtbf_what_no_restart_reads_is_evicted_before_the_newest_version() {
    let with = |id: u64, version: Option<u64>, mtbf_s: f64, closed_at_s: f64| Candidate {
        application: id,
        version,
        mtbf_s,
        closed_at_s,
        ..candidate(id)
    };
    // The checkpoint was closed first, and is the last but one to go.
    let all = [
        with(1, Some(30), 100.0, 1.0),
        with(2, None, 100.0, 2.0),
        with(3, None, 100.0, 3.0),
        with(4, None, 10.0, 0.0),
        with(5, Some(7), 200.0, 9.0),
    ];
    let mut candidates = all.map(clean);
    order_eviction(PlacementPolicy::Bbos, &mut candidates, 10.0);
    let ids: Vec<u64> = candidates.iter().map(|c| c.candidate().id).collect();
    assert_eq!(ids, [5, 2, 3, 1, 4]);
}

#[test]
fn batches_go_by_directory_large_files_first() {
    let item = |id, path: &str, mib: u64| DrainItem {
        id,
        path: path.into(),
        bytes: mib << 20,
    };
    let mut batch = vec![
        item(1, "b/rank-1", 1),
        item(2, "a/x", 1),
        item(3, "b/rank-0", 2),
        item(4, "b/huge", 900),
        item(5, "b/large", 100),
        item(6, "top", 1),
    ];
    drain_order(&mut batch);
    assert_eq!(
        batch.iter().map(|i| i.id).collect::<Vec<_>>(),
        [4, 5, 3, 1, 2, 6]
    );
}

fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
    let one = (
        0u64..4,
        proptest::option::of(0u64..5),
        any::<bool>(),
        0u8..3,
        0.0..100.0f64,
        any::<bool>(),
        0u64..1000,
    );
    proptest::collection::vec(one, 0..40).prop_map(|all| {
        let build = |(i, (application, version, outdated, mtbf, at, in_use, bytes)): (usize, _)| {
            Candidate {
                application,
                version,
                outdated,
                mtbf_s: f64::from(mtbf) * 10.0 + application as f64,
                arrived_at_s: at,
                accessed_at_s: at,
                closed_at_s: at,
                in_use,
                bytes,
                ..candidate(i as u64)
            }
        };
        all.into_iter().enumerate().map(build).collect()
    })
}

#[test]
fn copies_run_ahead_by_a_tenth_of_a_second_together() {
    assert_eq!(ahead_bytes(Some(100e6), 1), 10_000_000);
    assert_eq!(ahead_bytes(Some(100e6), 4), 2_500_000);
    assert_eq!(ahead_bytes(Some(1e6), 1), 1 << 20, "not less");
    assert_eq!(ahead_bytes(Some(50e9), 4), 32 << 20, "not more");
    assert_eq!(ahead_bytes(None, 2), 32 << 20);
}

proptest! {
    #[test]
    fn orders_do_not_depend_on_the_input_order(all in candidates(), turn in 0usize..40) {
        for policy in PlacementPolicy::ALL {
            let mut turned = all.clone();
            turned.rotate_left(turn.min(all.len()));
            prop_assert_eq!(ordered(*policy, all.clone()), ordered(*policy, turned));
        }
    }

    #[test]
    fn bbos_keeps_the_rules(mut all in candidates()) {
        order_demotion(PlacementPolicy::Bbos, &mut all, 0.0);
        for pair in all.windows(2) {
            let (a, b) = (&pair[0], &pair[1]);
            prop_assert!(a.in_use <= b.in_use);
            if a.in_use == b.in_use {
                prop_assert!(a.outdated >= b.outdated);
                if a.outdated == b.outdated {
                    prop_assert!(a.mtbf_s >= b.mtbf_s);
                }
            }
        }
    }

    #[test]
    fn victims_suffice_or_are_all_there_is(all in candidates(), needed in 0u64..20_000) {
        let mut all: Vec<_> = all.into_iter().map(clean).collect();
        let victims = choose_victims(PlacementPolicy::Lru, &mut all, needed, 0.0);
        let usable: u64 = all.iter().map(CleanCandidate::candidate).filter(|c| !c.in_use).map(|c| c.bytes).sum();
        prop_assert!(victims.bytes >= needed.min(usable));
        prop_assert!(all.iter().all(|c| !c.candidate().in_use || !victims.ids.contains(&c.candidate().id)));
    }

    #[test]
    fn drain_order_keeps_every_file_and_directories_together(paths in proptest::collection::vec("[ab]{0,2}/?[xy]", 0..30)) {
        let mut batch: Vec<_> = paths.iter().enumerate()
            .map(|(i, p)| DrainItem { id: i as u64, path: p.clone().into_bytes(), bytes: i as u64 * (10 << 20) }).collect();
        drain_order(&mut batch);
        let mut ids: Vec<_> = batch.iter().map(|i| i.id).collect();
        ids.sort_unstable();
        prop_assert_eq!(ids, (0..paths.len() as u64).collect::<Vec<_>>());
        let mut directories: Vec<_> = batch.iter().map(|i| i.split_path().0).collect();
        directories.dedup();
        let runs = directories.len();
        directories.sort_unstable();
        directories.dedup();
        prop_assert_eq!(runs, directories.len());
    }

    #[test]
    fn nodes_do_not_meet_at_a_target(targets in 1u32..50, round in any::<u32>()) {
        let mut seen: Vec<_> = (0..targets).filter_map(|node| flush_target(node, round, targets)).collect();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..targets).collect::<Vec<_>>());
        prop_assert_eq!(flush_target(1, round, 0), None);
    }
}

#[test]
fn making_orders_takes_a_twentieth_of_the_time_at_most() {
    for took_s in [0.0, 0.001, 0.05, 0.4, 30.0] {
        let share = took_s / (took_s + order_age_max_s(took_s));
        assert!(share <= 1.0 / 20.0, "{took_s}: {share}");
    }
    assert!((order_age_max_s(0.0) - 1.0).abs() < 1e-9);
}
