use super::*;
use proptest::prelude::*;

fn version(application: u64, version: u64, mtbf_s: f64) -> DrainedVersion {
    DrainedVersion {
        application,
        version,
        bytes: 10,
        holder: HolderId(1),
        mtbf_s,
        copies: 0,
        is_put_off: false,
    }
}

fn node(id: u16, rack: u16, bound_bytes: u64) -> GroupNode {
    GroupNode {
        holder: HolderId(id),
        rack: Rack(rack),
        takes_files: true,
        bound_bytes,
        spent_bytes: 0,
    }
}

fn copied(application: u64, version: u64, to: u16) -> Replication {
    Replication::Copy {
        application,
        version,
        from: HolderId(1),
        to: HolderId(to),
    }
}

#[test]
fn the_newest_of_who_fails_most_goes_to_another_rack() {
    let versions = [
        version(1, 7, 900.0),
        version(1, 8, 900.0),
        version(2, 3, 60.0),
    ];
    let group = [node(1, 1, 99), node(2, 1, 99), node(3, 2, 99)];
    let next = |links, wanted| next(&versions, &[], &group, links, wanted);
    assert_eq!(next(LinkUse::Spare, 1), copied(2, 3, 3));
    assert_eq!(next(LinkUse::Urgent, 1), Replication::Rest);
    assert_eq!(next(LinkUse::Spare, 0), Replication::Rest, "turned off");
}

#[test]
fn a_first_copy_of_all_is_before_a_second_of_any() {
    let mut versions = [version(1, 8, 900.0), version(2, 3, 60.0)];
    let group = [node(1, 1, 99), node(2, 1, 99), node(3, 2, 99)];
    let first = RestartCopy {
        application: 2,
        version: 3,
        from: HolderId(1),
        holder: HolderId(3),
        bytes: 10,
    };
    versions[1].copies = 1;
    let next = |versions: &[_]| next(versions, &[first], &group, LinkUse::Spare, 2);
    assert_eq!(next(&versions), copied(1, 8, 3));
    versions[0].copies = 1;
    assert_eq!(next(&versions), copied(2, 3, 2), "3 has it");
}

#[test]
fn copies_of_older_versions_go_even_while_links_are_busy() {
    let old = RestartCopy {
        application: 1,
        version: 7,
        from: HolderId(1),
        holder: HolderId(2),
        bytes: 10,
    };
    let group = [node(1, 1, 99), node(2, 1, 10)];
    let next = |newest| {
        next(
            &[version(1, newest, 1.0)],
            &[old],
            &group,
            LinkUse::Urgent,
            1,
        )
    };
    assert_eq!(next(8), Replication::Discard(old));
    assert_eq!(next(7), Replication::Rest);
    let evicted = super::next(&[], &[old], &group, LinkUse::Spare, 1);
    assert_eq!(evicted, Replication::Rest, "it is still read");
}

#[test]
fn what_fits_nowhere_is_passed_over() {
    let mut versions = [version(1, 8, 900.0), version(2, 3, 60.0)];
    versions[1].bytes = 100;
    let group = [node(1, 1, 99), node(2, 1, 99)];
    let next = |group: &[_]| next(&versions, &[], group, LinkUse::Spare, 1);
    assert_eq!(next(&group), copied(1, 8, 2));
    let mut full = group;
    full[1].spent_bytes = 90;
    assert_eq!(next(&full), Replication::Rest);
    full[1].spent_bytes = 0;
    full[1].takes_files = false;
    assert_eq!(next(&full), Replication::Rest);
}

#[test]
fn what_cannot_be_copied_is_passed_over_and_tried_ever_less_often() {
    let mut put_off = PutOff::default();
    let part = (1, 8, HolderId(1));
    let mut versions = [version(1, 8, 60.0), version(2, 3, 900.0)];
    let group = [node(1, 1, 99), node(2, 1, 99)];
    let next = |versions: &[_]| next(versions, &[], &group, LinkUse::Spare, 1);
    assert_eq!(next(&versions), copied(1, 8, 2));
    let (mut now_s, mut tries) = (100.0, Vec::new());
    for _ in 0..12 {
        put_off.failed(part, now_s);
        versions[0].is_put_off = put_off.has(part, now_s);
        assert_eq!(next(&versions), copied(2, 3, 2), "at {now_s}");
        let begun_s = now_s;
        while put_off.has(part, now_s) {
            now_s += 1.0;
        }
        tries.push(now_s - begun_s);
    }
    assert_eq!(tries[..4], [6.0, 12.0, 24.0, 48.0]);
    assert_eq!(tries[11], AGAIN_MAX_S);
    assert!(!put_off.has((1, 8, HolderId(2)), 0.0), "another part");
    put_off.copied(part);
    put_off.failed(part, now_s);
    assert!(!put_off.has(part, now_s + 6.0), "it begins anew");
    put_off.keep(|(application, ..)| *application != 1);
    assert_eq!(put_off, PutOff::default());
}

#[test]
fn links_are_spare_while_drains_leave_room_and_programs_are_quiet() {
    let parked = Traffic {
        is_ending: false,
        second_copies_due: false,
        has_own_network: false,
        quiet_s: 60.0,
        drain_bytes_per_s: 0.0,
        br_max_bytes_per_s: None,
    };
    let spare = |traffic| link_use(&traffic) == LinkUse::Spare;
    assert!(spare(parked), "undrained, and not drained now");
    let drains = |rate, br_max| Traffic {
        drain_bytes_per_s: rate,
        br_max_bytes_per_s: br_max,
        ..parked
    };
    assert!(!spare(drains(1.0, None)), "how much is left is not known");
    assert!(spare(drains(4e8, Some(1e9))) && !spare(drains(6e8, Some(1e9))));
    let quiet_s = 0.1;
    let writes = Traffic { quiet_s, ..parked };
    assert!(!spare(writes));
    for busy in [writes, drains(1e9, Some(1e9))] {
        let apart = Traffic {
            has_own_network: true,
            ..busy
        };
        assert!(spare(apart), "not on this network");
        let promised = Traffic {
            second_copies_due: true,
            ..apart
        };
        let ending = Traffic {
            is_ending: true,
            ..apart
        };
        assert!(!spare(promised) && !spare(ending));
    }
}

#[test]
fn copies_take_a_part_of_the_flash_of_a_node() {
    let mut group = [node(1, 1, 0), node(2, 1, 0)];
    for flash in [24, 16] {
        group[1].add_flash(flash, SPACE_FRACTION);
    }
    assert_eq!(group[1].bound_bytes, 10);
    let next = |group: &[_]| next(&[version(1, 8, 1.0)], &[], group, LinkUse::Spare, 1);
    assert_eq!(next(&group), copied(1, 8, 2));
    group[1].bound_bytes = 0;
    group[1].add_flash(40, 0.24);
    assert_eq!(next(&group), Replication::Rest);
    group[1].add_flash(u64::MAX, 7.0);
    assert_eq!(group[1].bound_bytes, u64::MAX);
    (group[1].bound_bytes, group[1].spent_bytes) = (50, 20);
    group[1].keep_to_free(5);
    assert_eq!(next(&group), Replication::Rest, "it is full");
    group[1].keep_to_free(100);
    assert_eq!(group[1].bound_bytes, 25);
}

fn place(id: u16, rack: u16, load_mib: u64) -> Place {
    Place {
        holder: HolderId(id),
        rack: Rack(rack),
        is_answering: true,
        load_bytes: load_mib << 20,
    }
}

#[test]
fn a_restart_reads_the_nearest_copy_that_is_not_much_busier() {
    let own = Some(HolderId(1));
    let read = |places: &[Place]| nearest(own, Some(Rack(1)), 7, places, true);
    let from = |id| Source::Holder(HolderId(id));
    let mut places = [place(3, 2, 0), place(2, 1, 0), place(1, 1, 1 << 20)];
    assert_eq!(read(&places), from(1), "its own node, however busy");
    places[2].is_answering = false;
    assert_eq!(read(&places), from(2));
    places[1].load_bytes = 200 << 20;
    assert_eq!(read(&places), from(2), "near is worth two doublings");
    places[1].load_bytes = 300 << 20;
    assert_eq!(read(&places), from(3));
    places.iter_mut().for_each(|p| p.is_answering = false);
    assert_eq!(read(&places), Source::Pfs);
    assert_eq!(nearest(own, None, 7, &places, false), Source::Nowhere);
    assert_eq!(nearest(None, None, 7, &[], true), Source::Pfs);
}

#[test]
fn a_file_is_left_only_for_a_copy_that_is_nearer() {
    let reader = |holder: Option<u16>, rack: Option<u16>| Reader {
        holder: holder.map(HolderId),
        rack: rack.map(Rack),
    };
    let (file, copy) = (place(1, 1, 0), place(2, 2, 0));
    let all = |reader, file, copy| (0..32).all(|o| reads_copy(&reader, o, &file, &copy));
    let none = |reader, file, copy| !(0..32).any(|o| reads_copy(&reader, o, &file, &copy));
    assert!(all(reader(Some(2), Some(2)), file, copy), "its own node");
    assert!(all(reader(Some(3), Some(2)), file, copy), "its own rack");
    assert!(none(reader(Some(1), Some(1)), file, copy));
    assert!(none(reader(Some(3), Some(1)), file, copy));
    assert!(none(reader(Some(4), Some(4)), file, copy), "as far");
    assert!(none(reader(None, None), file, copy), "nobody knows");
    let in_rack = Place {
        rack: Rack(2),
        ..file
    };
    assert!(all(reader(Some(2), Some(2)), in_rack, copy), "nearer still");
    assert!(none(reader(Some(3), Some(2)), in_rack, copy));
    let away = |place| Place {
        is_answering: false,
        ..place
    };
    assert!(none(reader(Some(2), Some(2)), file, away(copy)));
    assert!(
        all(reader(None, None), away(file), copy),
        "there is no other"
    );
}

#[test]
fn each_rank_has_its_part_copied() {
    let mut versions = [version(1, 8, 60.0), version(1, 8, 60.0)];
    versions[1].holder = HolderId(2);
    let mut group = [node(1, 1, 99), node(2, 1, 99), node(3, 1, 99)];
    group[0].takes_files = false;
    let of_first = RestartCopy {
        application: 1,
        version: 8,
        from: HolderId(1),
        holder: HolderId(3),
        bytes: 10,
    };
    versions[0].copies = 1;
    let expected = Replication::Copy {
        application: 1,
        version: 8,
        from: HolderId(2),
        to: HolderId(3),
    };
    let found = next(&versions, &[of_first], &group, LinkUse::Spare, 1);
    assert_eq!(found, expected);
}

proptest! {
    #[test]
    fn the_bound_of_a_node_is_kept_and_all_comes_to_rest(
        sizes in prop::collection::vec((0u64..4, 0u64..3, 1u64..40, 1.0..9.0f64), 0..12),
        bounds in prop::collection::vec((0u16..3, 0u64..100), 1..5),
        wanted in 0usize..3,
    ) {
        let mut versions: Vec<DrainedVersion> = sizes.iter()
            .map(|(app, number, bytes, mtbf)| DrainedVersion { bytes: *bytes, ..version(*app, *number, *mtbf) })
            .collect();
        versions.sort_by_key(|v| (v.application, v.version));
        versions.dedup_by_key(|v| (v.application, v.version));
        let mut group: Vec<GroupNode> = (1..).zip(&bounds)
            .map(|(id, (rack, bound))| node(id, *rack, *bound)).collect();
        let mut copies: Vec<RestartCopy> = Vec::new();
        for _ in 0..100 {
            match next(&versions, &copies, &group, LinkUse::Spare, wanted) {
                Replication::Rest => break,
                Replication::Discard(_) => prop_assert!(false, "only the newest was copied"),
                Replication::Copy { application, version, from, to } => {
                    prop_assert_ne!(from, to);
                    let of = versions.iter_mut().find(|v| v.application == application && v.version == version).expect("one of them");
                    of.copies += 1;
                    prop_assert!(of.copies <= wanted);
                    let copy = RestartCopy { application, version, from, holder: to, bytes: of.bytes };
                    prop_assert!(!copies.contains(&copy), "twice on one node");
                    let at = group.iter_mut().find(|n| n.holder == to).expect("one of them");
                    at.spent_bytes += copy.bytes;
                    prop_assert!(at.spent_bytes <= at.bound_bytes);
                    copies.push(copy);
                }
            }
        }
        prop_assert_eq!(next(&versions, &copies, &group, LinkUse::Spare, wanted), Replication::Rest);
        for c in &copies {
            prop_assert!(versions.iter().all(|v| v.application != c.application || v.version <= c.version));
        }
    }

    #[test]
    fn a_read_never_waits_for_who_does_not_answer(
        places in prop::collection::vec((0u16..3, any::<bool>(), 0u64..1 << 34), 0..6),
        own in prop::option::of(1u16..6),
        pfs_has_it: bool,
        object: u64,
    ) {
        let mut all: Vec<Place> = (1..).zip(&places)
            .map(|(id, (rack, is_answering, load_bytes))| Place {
                holder: HolderId(id), rack: Rack(*rack), is_answering: *is_answering, load_bytes: *load_bytes,
            }).collect();
        let read = |all: &[Place]| nearest(own.map(HolderId), Some(Rack(0)), object, all, pfs_has_it);
        let found = read(&all);
        match found {
            Source::Holder(id) => prop_assert!(all.iter().any(|p| p.holder == id && p.is_answering)),
            Source::Pfs => prop_assert!(pfs_has_it && all.iter().all(|p| !p.is_answering)),
            Source::Nowhere => prop_assert!(!pfs_has_it && all.iter().all(|p| !p.is_answering)),
        }
        all.reverse();
        prop_assert_eq!(read(&all), found);
    }
}
