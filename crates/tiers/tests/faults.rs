//! The tier that fails on demand does so, and counts.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{in_memory, tier_in};
use forebay_tiers::conformance::{Random, identity};
use forebay_tiers::testing::{Effect, FaultyTier, Operation, When};
use forebay_tiers::{NullTier, Object, Tier};
use forebay_types::{Errno, ObjectId};

const PAGE: usize = 4096;

fn content(object: &dyn Object) -> Vec<u8> {
    let mut bytes = vec![0; object.stat().unwrap().size as usize];
    assert_eq!(object.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

#[test]
fn faults_hit_the_calls_they_name() {
    let tier = FaultyTier::new(Arc::new(NullTier::new("null", 1)));
    let object = tier.create(ObjectId(1), &identity(1)).unwrap();
    assert!(object.descriptor().is_none());
    let third = tier.inject(Operation::Write, When::Nth(3), Effect::Fail(Errno::EIO));
    let later = tier.inject(Operation::Write, When::From(5), Effect::Fail(Errno::ENOSPC));
    let outcome = |_| object.write_at(b"x", 0).map_err(|error| Errno::of(&error));
    let found: Vec<_> = (0..6).map(outcome).collect();
    let (ok, io, full) = (Ok(1), Err(Errno::EIO), Err(Errno::ENOSPC));
    assert_eq!(found, [ok, ok, io, ok, full, full]);
    assert_eq!((tier.fired(third), tier.fired(later)), (1, 2));
    tier.heal(later);
    assert_eq!(object.write_at(b"x", 0).unwrap(), 1);
    assert_eq!(tier.calls(Operation::Write), 7);
    assert_eq!(tier.fired(later), 2);
}

#[test]
fn every_operation_can_fail() {
    let dir = in_memory();
    let tier = FaultyTier::new(tier_in(dir.path()));
    let object = tier.create(ObjectId(1), &identity(1)).unwrap();
    let operations: [(Operation, &dyn Fn() -> std::io::Result<()>); 16] = [
        (Operation::Space, &|| tier.space().map(drop)),
        (Operation::Create, &|| {
            tier.create(ObjectId(2), &identity(2)).map(drop)
        }),
        (Operation::Open, &|| tier.open(ObjectId(1)).map(drop)),
        (Operation::Remove, &|| tier.remove(ObjectId(1))),
        (Operation::Identity, &|| {
            tier.identity(ObjectId(1)).map(drop)
        }),
        (Operation::List, &|| tier.list(&mut |_| ())),
        (Operation::SyncAll, &|| tier.sync_all()),
        (Operation::Read, &|| object.read_at(&mut [0], 0).map(drop)),
        (Operation::Write, &|| object.write_at(b"x", 0).map(drop)),
        (Operation::SetLen, &|| object.set_len(1)),
        (Operation::Allocate, &|| {
            object.allocate(forebay_tiers::Allocate::Reserve, 0, 1)
        }),
        (Operation::Seek, &|| {
            object.seek(0, forebay_tiers::Seek::Data).map(drop)
        }),
        (Operation::Sync, &|| object.sync(true)),
        (Operation::Stat, &|| object.stat().map(drop)),
        (Operation::SetTimes, &|| object.set_times(None, None)),
        (Operation::SetIdentity, &|| {
            object.set_identity(&identity(1))
        }),
    ];
    for (operation, call) in operations {
        let fault = tier.inject(operation, When::Every, Effect::Fail(Errno::ESTALE));
        assert_eq!(
            Errno::of(&call().unwrap_err()),
            Errno::ESTALE,
            "{operation:?}"
        );
        assert_eq!(tier.fired(fault), 1, "{operation:?}");
        tier.heal_all();
        if operation != Operation::Remove {
            call().unwrap();
        }
    }
}

#[test]
fn delays_and_flipped_bits() {
    let dir = in_memory();
    let tier = FaultyTier::new(tier_in(dir.path()));
    let object = tier.create(ObjectId(1), &identity(1)).unwrap();
    object.write_at(&[0; 8], 0).unwrap();
    let delay = Duration::from_millis(30);
    tier.inject(Operation::Read, When::Nth(1), Effect::Delay(delay));
    tier.inject(Operation::Read, When::Nth(2), Effect::FlipBit(64 + 9));
    let started = Instant::now();
    assert_eq!(content(object.as_ref()), [0; 8]);
    assert!(started.elapsed() >= delay);
    assert_eq!(content(object.as_ref()), [0, 2, 0, 0, 0, 0, 0, 0]);
    assert_eq!(content(object.as_ref()), [0; 8]);
}

#[test]
fn a_crash_drops_what_was_not_synced() {
    let dir = in_memory();
    let tier = FaultyTier::with_crashes(tier_in(dir.path()));
    let mut random = Random::new(1);
    let kept = random.bytes(3 * PAGE + 100);
    let object = tier.create(ObjectId(1), &identity(1)).unwrap();
    object.write_at(&kept, 0).unwrap();
    object.sync(true).unwrap();
    tier.create(ObjectId(2), &identity(2)).unwrap();
    tier.sync_all().unwrap();

    object.write_at(&random.bytes(2 * PAGE), 5000).unwrap();
    object.set_len(100).unwrap();
    object.write_at(&random.bytes(9 * PAGE), 50_000).unwrap();
    tier.remove(ObjectId(2)).unwrap();
    assert!(tier.open(ObjectId(2)).is_err());
    let young = tier.create(ObjectId(3), &identity(3)).unwrap();
    young.write_at(b"young", 0).unwrap();
    young.sync(false).unwrap();
    let mut listed = Vec::new();
    tier.list(&mut |id| listed.push(id.0)).unwrap();
    listed.sort_unstable();
    assert_eq!(listed, [1, 3]);

    tier.crash(1, 0).unwrap();
    assert_eq!(Errno::of(&object.stat().unwrap_err()), Errno::EIO);
    assert_eq!(Errno::of(&young.write_at(b"x", 0).unwrap_err()), Errno::EIO);
    let object = tier.open(ObjectId(1)).unwrap();
    assert!(content(object.as_ref()) == kept);
    tier.open(ObjectId(2)).expect("its removal was not synced");
    assert!(tier.open(ObjectId(3)).is_err(), "its name was not synced");
}

#[test]
fn a_crash_keeps_what_was_synced() {
    let dir = in_memory();
    let tier = FaultyTier::with_crashes(tier_in(dir.path()));
    let object = tier.create(ObjectId(1), &identity(1)).unwrap();
    object.write_at(b"synced", 0).unwrap();
    tier.create(ObjectId(2), &identity(2)).unwrap();
    tier.sync_all().unwrap();
    object.sync(true).unwrap();
    tier.remove(ObjectId(2)).unwrap();
    tier.sync_all().unwrap();
    tier.crash(7, 0).unwrap();
    let object = tier.open(ObjectId(1)).unwrap();
    assert_eq!(content(object.as_ref()), b"synced");
    assert!(tier.open(ObjectId(2)).is_err());
    // And again: the tier goes on.
    object.write_at(b"SYNCED", 0).unwrap();
    tier.crash(8, 100).unwrap();
    let object = tier.open(ObjectId(1)).unwrap();
    assert_eq!(content(object.as_ref()), b"SYNCED", "all is kept at 100 %");
}

#[test]
fn a_torn_crash_mixes_old_and_new_pages() {
    let mut mixed = 0;
    for seed in 0..10 {
        let dir = in_memory();
        let tier = FaultyTier::with_crashes(tier_in(dir.path()));
        let object = tier.create(ObjectId(1), &identity(1)).unwrap();
        object.write_at(&[1; 16 * PAGE], 0).unwrap();
        object.sync(true).unwrap();
        tier.sync_all().unwrap();
        object.write_at(&[2; 16 * PAGE], 0).unwrap();
        tier.crash(seed, 50).unwrap();
        let found = content(tier.open(ObjectId(1)).unwrap().as_ref());
        let pages: Vec<u8> = found.chunks(PAGE).map(|page| page[0]).collect();
        for page in found.chunks(PAGE) {
            assert!(page.iter().all(|&b| b == page[0]) && (page[0] == 1 || page[0] == 2));
        }
        mixed += usize::from(pages.contains(&1) && pages.contains(&2));
    }
    assert!(mixed >= 8);
}

#[test]
fn a_tier_made_without_crashes_cannot_crash() {
    let tier = FaultyTier::new(Arc::new(NullTier::new("null", 1)));
    assert_eq!(Errno::of(&tier.crash(1, 0).unwrap_err()), Errno::EINVAL);
}
