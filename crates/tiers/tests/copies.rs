//! Copies: whole, sparse, stopped, failing, and of sources that change meanwhile.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{Mounted, in_memory, on_disk, tier_in};
use forebay_testkit::skip;
use forebay_tiers::conformance::{Random, identity};
use forebay_tiers::testing::{Effect, FaultyTier, Operation, When, unwritten_bytes};
use forebay_tiers::{
    Allocate, CopyControl, CopyError, FileObject, NullTier, Object, Seek, Tier, WriteBehind,
    checksum, copy, refresh, verify, wait_writeback,
};
use forebay_types::{Errno, ObjectId};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn file_in(dir: &std::path::Path, name: &str) -> FileObject {
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(dir.join(name))
        .unwrap();
    FileObject::new(file)
}

fn content(object: &dyn Object) -> Vec<u8> {
    let mut bytes = vec![0; object.stat().unwrap().size as usize];
    assert_eq!(object.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

fn faulty_object(dir: &std::path::Path, id: u64) -> (FaultyTier, Arc<dyn Object>) {
    let tier = FaultyTier::new(tier_in(dir));
    let object = tier.create(ObjectId(id), &identity(id)).unwrap();
    (tier, object)
}

#[test]
fn from_memory_to_disk_and_back() {
    let (memory, disk) = (in_memory(), on_disk());
    let source = file_in(memory.path(), "source");
    let data = Random::new(1).bytes(5 * MIB as usize + 123);
    source.write_at(&data, 0).unwrap();
    let copied = file_in(disk.path(), "copy");
    let moved = AtomicU64::new(0);
    let control = CopyControl {
        stop: &|| false,
        moved: &|bytes, _| {
            moved.fetch_add(bytes, Ordering::Relaxed);
        },
    };
    let report = copy(&source, &copied, &control).unwrap();
    assert_eq!(report.sums.bytes, data.len() as u64);
    assert_eq!(report.data_bytes, data.len() as u64);
    assert_eq!(moved.into_inner(), data.len() as u64);
    assert_eq!(report.sums.crc, crc32c::crc32c(&data));
    copied.sync(false).unwrap();
    copied.drop_cache().unwrap();
    verify(&copied, &report, &|| false).unwrap();
    let back = file_in(memory.path(), "back");
    copy(&copied, &back, &CopyControl::NONE).unwrap();
    assert!(content(&back) == data);
}

#[test]
fn an_empty_object_and_one_that_is_all_hole() {
    let dir = on_disk();
    for (name, size) in [("empty", 0), ("hole", 10 * MIB + 1)] {
        let source = file_in(dir.path(), name);
        source.set_len(size).unwrap();
        let copied = file_in(dir.path(), &format!("{name}-copy"));
        copied.write_at(b"rubbish", 3 * MIB).unwrap();
        let report = copy(&source, &copied, &CopyControl::NONE).unwrap();
        assert_eq!((report.sums.bytes, report.data_bytes), (size, 0));
        assert_eq!(report.sums.crc, crc32c::crc32c(&vec![0; size as usize]));
        let stat = copied.stat().unwrap();
        assert_eq!((stat.size, stat.allocated_bytes), (size, 0));
        verify(&copied, &report, &|| false).unwrap();
    }
}

#[test]
fn a_sparse_object_of_16_tib_is_copied_at_once() {
    let dir = in_memory();
    let source = file_in(dir.path(), "source");
    source.write_at(b"head", 0).unwrap();
    source.write_at(b"middle", 7 << 40).unwrap();
    source.set_len(16 << 40).unwrap();
    let copied = file_in(dir.path(), "copy");
    // Asked before every chunk.
    let chunks = AtomicU64::new(0);
    let stop = || {
        chunks.fetch_add(1, Ordering::Relaxed);
        false
    };
    let control = CopyControl {
        stop: &stop,
        ..CopyControl::NONE
    };
    let report = copy(&source, &copied, &control).unwrap();
    verify(&copied, &report, &stop).unwrap();
    let chunks = chunks.into_inner();
    assert!((4..100).contains(&chunks), "{chunks}");
    assert_eq!(report.sums.bytes, 16 << 40);
    assert!(report.data_bytes <= 8 * MIB);
    assert!(copied.stat().unwrap().allocated_bytes <= 8 * MIB);
    assert_eq!(
        copied.seek(MIB * 4, Seek::Data).unwrap().unwrap() >> 21,
        (7 << 40) >> 21
    );
    let mut bytes = [0; 6];
    copied.read_at(&mut bytes, 7 << 40).unwrap();
    assert_eq!(&bytes, b"middle");
}

#[test]
fn blocks_of_zeros_of_a_sparse_object_stay_holes() {
    let (memory, disk) = (in_memory(), on_disk());
    let source = file_in(memory.path(), "source");
    // As a huge page: 2 MiB of data of which four bytes are any, and its end is zeros.
    source
        .write_at(&vec![0; 2 * MIB as usize], 6 * MIB)
        .unwrap();
    source.write_at(b"some", 7 * MIB + 4094).unwrap();
    let copied = file_in(disk.path(), "copy");
    let report = copy(&source, &copied, &CopyControl::NONE).unwrap();
    copied.sync(false).unwrap();
    assert_eq!((report.sums.bytes, report.data_bytes), (8 * MIB, 8192));
    let stat = copied.stat().unwrap();
    assert_eq!(stat.size, 8 * MIB);
    assert!(stat.allocated_bytes <= 64 << 10, "{stat:?}");
    verify(&copied, &report, &|| false).unwrap();
    assert!(content(&copied) == content(&source));
    // What a destination holds already is written over.
    copied.write_at(&[7; 4096], 6 * MIB).unwrap();
    copy(&source, &copied, &CopyControl::NONE).unwrap();
    assert!(content(&copied) == content(&source));
    // An object without holes is copied as it is.
    let dense = file_in(memory.path(), "dense");
    dense.write_at(&vec![0; MIB as usize], 0).unwrap();
    let report = copy(&dense, &file_in(disk.path(), "dense"), &CopyControl::NONE).unwrap();
    assert_eq!(report.data_bytes, MIB);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_pattern_of_holes(
        pieces in prop::collection::vec((0u64..4 << 20, 1usize..300_000), 0..12),
        tail in 0u64..2 << 20,
        punched in prop::collection::vec((0u64..4 << 20, 1u64..1 << 20), 0..4),
    ) {
        let (memory, disk) = (in_memory(), on_disk());
        let source = file_in(memory.path(), "source");
        let mut random = Random::new(pieces.len() as u64);
        for &(at, len) in &pieces {
            source.write_at(&random.bytes(len), at).unwrap();
        }
        let size = source.stat().unwrap().size + tail;
        source.set_len(size).unwrap();
        for &(at, len) in &punched {
            source.allocate(Allocate::PunchHole, at, len).unwrap();
        }
        let wanted = content(&source);
        let copied = file_in(disk.path(), "copy");
        let report = copy(&source, &copied, &CopyControl::NONE).unwrap();
        prop_assert_eq!(report.sums.crc, crc32c::crc32c(&wanted));
        prop_assert_eq!(report.sums.bytes, size);
        verify(&copied, &report, &|| false).unwrap();
        prop_assert!(content(&copied) == wanted);
        let slack = 64 * 4096;
        prop_assert!(
            copied.stat().unwrap().allocated_bytes
                <= source.stat().unwrap().allocated_bytes + slack
        );
    }
}

#[test]
fn a_stopped_copy_says_so() {
    let dir = in_memory();
    let source = file_in(dir.path(), "source");
    source.write_at(&vec![1; 8 * MIB as usize], 0).unwrap();
    let copied = file_in(dir.path(), "copy");
    let stopped = AtomicBool::new(false);
    let control = CopyControl {
        stop: &|| stopped.load(Ordering::Relaxed),
        moved: &|_, _| stopped.store(true, Ordering::Relaxed),
    };
    let error = copy(&source, &copied, &control).unwrap_err();
    assert!(matches!(error, CopyError::Stopped));
    assert_eq!(error.errno(), Errno::ECANCELED);
    let size = copied.stat().unwrap().size;
    assert!((MIB..8 * MIB).contains(&size));
    let sum = checksum(&source, 8 * MIB, &|| true).unwrap_err();
    assert_eq!(sum.raw_os_error(), Some(libc::ECANCELED));
}

#[test]
fn an_object_is_not_copied_onto_itself() {
    let dir = in_memory();
    let tier = tier_in(dir.path());
    let one = tier.create(ObjectId(1), &identity(1)).unwrap();
    one.write_at(b"the only copy", 0).unwrap();
    let same = tier.open(ObjectId(1)).unwrap();
    let error = copy(one.as_ref(), same.as_ref(), &CopyControl::NONE).unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL);
    assert_eq!(content(one.as_ref()), b"the only copy");
}

#[test]
fn where_holes_cannot_be_found_all_is_read() {
    let dir = in_memory();
    let (tier, source) = faulty_object(dir.path(), 1);
    source.set_len(2 * MIB).unwrap();
    source.write_at(b"x", MIB).unwrap();
    let fault = tier.inject(Operation::Seek, When::Every, Effect::Fail(Errno::EINVAL));
    let copied = file_in(dir.path(), "copy");
    let report = copy(source.as_ref(), &copied, &CopyControl::NONE).unwrap();
    // All of it is read; blocks of zeros stay holes.
    assert_eq!(report.data_bytes, 4096);
    assert_eq!(tier.fired(fault), 1, "asked once");
    verify(&copied, &report, &|| false).unwrap();
}

#[test]
fn errors_name_their_side() {
    let dir = in_memory();
    let (tier, source) = faulty_object(dir.path(), 1);
    source.write_at(&vec![7; 3 * MIB as usize], 0).unwrap();
    source.set_len(4 * MIB).unwrap(); // a hole to look for
    let plain = file_in(dir.path(), "copy");
    let fail = |errno| Effect::Fail(errno);

    let fault = tier.inject(Operation::Read, When::Nth(3), fail(Errno::EIO));
    let error = copy(source.as_ref(), &plain, &CopyControl::NONE).unwrap_err();
    assert!(matches!(&error, CopyError::Source(_)), "{error:?}");
    assert_eq!((error.errno(), tier.fired(fault)), (Errno::EIO, 1));
    tier.heal_all();

    let fault = tier.inject(Operation::Seek, When::Nth(1), fail(Errno::EIO));
    let error = copy(source.as_ref(), &plain, &CopyControl::NONE).unwrap_err();
    assert!(matches!(&error, CopyError::Source(_)), "{error:?}");
    assert_eq!(tier.fired(fault), 1);
    tier.heal_all();

    for (operation, errno) in [
        (Operation::Write, Errno::EDQUOT),
        (Operation::Stat, Errno::ESTALE),
    ] {
        let (target, copied) = faulty_object(in_memory().path(), 2);
        let fault = target.inject(operation, When::Every, fail(errno));
        let error = copy(source.as_ref(), copied.as_ref(), &CopyControl::NONE).unwrap_err();
        assert!(matches!(&error, CopyError::Destination(_)), "{error:?}");
        assert_eq!((error.errno(), target.fired(fault)), (errno, 1));
    }
}

#[test]
fn short_reads_and_writes_are_completed() {
    let dir = in_memory();
    let (from, source) = faulty_object(dir.path(), 1);
    let data = Random::new(5).bytes(MIB as usize + 77);
    source.write_at(&data, 0).unwrap();
    let (to, copied) = faulty_object(in_memory().path(), 2);
    let reads = from.inject(Operation::Read, When::Every, Effect::Short(100_001));
    let writes = to.inject(Operation::Write, When::Every, Effect::Short(9_999));
    let report = copy(source.as_ref(), copied.as_ref(), &CopyControl::NONE).unwrap();
    assert!(from.fired(reads) > 10 && to.fired(writes) > 100);
    assert_eq!(report.sums.crc, crc32c::crc32c(&data));
    verify(copied.as_ref(), &report, &|| false).unwrap();
    assert!(content(copied.as_ref()) == data);
}

#[test]
fn damage_in_the_copy_is_found() {
    let dir = in_memory();
    let source = file_in(dir.path(), "source");
    source.write_at(&vec![7; 3 * MIB as usize], 0).unwrap();
    let (tier, copied) = faulty_object(in_memory().path(), 2);
    let flip = tier.inject(Operation::Write, When::Nth(2), Effect::FlipBit(12345));
    let report = copy(&source, copied.as_ref(), &CopyControl::NONE).unwrap();
    assert_eq!(tier.fired(flip), 1);
    let error = verify(copied.as_ref(), &report, &|| false).unwrap_err();
    assert!(matches!(error, CopyError::Verify { expected, found, .. }
        if expected == report.sums.crc && found != expected));
    assert_eq!(error.errno(), Errno::EIO);

    // Cut short.
    let report = copy(&source, copied.as_ref(), &CopyControl::NONE).unwrap();
    copied.set_len(2 * MIB).unwrap();
    let error = verify(copied.as_ref(), &report, &|| false).unwrap_err();
    assert!(matches!(error, CopyError::Verify { offset_hint, .. } if offset_hint == 2 * MIB));
    let error = checksum(copied.as_ref(), 3 * MIB, &|| false).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
}

#[test]
fn a_source_that_changes_meanwhile_ends_the_copy_in_bounded_time() {
    let dir = in_memory();
    for seed in 0..20 {
        let source = file_in(dir.path(), &format!("source-{seed}"));
        source.write_at(&vec![7; 16 * MIB as usize], 0).unwrap();
        let copied = file_in(dir.path(), &format!("copy-{seed}"));
        let calls = AtomicU64::new(0);
        // Between chunks, so that it surely happens.
        let control = CopyControl {
            stop: &|| false,
            moved: &|_, _| {
                let size = match (seed + calls.fetch_add(1, Ordering::Relaxed)) % 4 {
                    0 => 64 * MIB,
                    1 => 3 * MIB + 5,
                    2 => 9 * MIB,
                    _ => 0,
                };
                source.set_len(size).unwrap();
                source.allocate(Allocate::PunchHole, MIB, 2 * MIB).unwrap();
            },
        };
        let report = copy(&source, &copied, &control).unwrap();
        assert!(calls.into_inner() > 0);
        assert!(report.sums.bytes <= 16 * MIB);
        assert_eq!(copied.stat().unwrap().size, report.sums.bytes);
        // What was checksummed is what was written.
        verify(&copied, &report, &|| false).unwrap();
    }
}

#[test]
fn a_full_destination_is_a_destination_error() {
    let Some(small) = Mounted::tmpfs("size=2m") else {
        return;
    };
    let dir = in_memory();
    let source = file_in(dir.path(), "source");
    source.write_at(&vec![7; 8 * MIB as usize], 0).unwrap();
    let copied = file_in(&small.path(), "copy");
    let error = copy(&source, &copied, &CopyControl::NONE).unwrap_err();
    assert!(matches!(&error, CopyError::Destination(_)), "{error:?}");
    assert_eq!(error.errno(), Errno::ENOSPC);
}

#[test]
fn the_null_tier_takes_and_gives_any_amount() {
    let null = NullTier::new("null", 1 << 40);
    let dir = in_memory();
    let source = file_in(dir.path(), "source");
    source.write_at(&vec![7; 8 * MIB as usize], 0).unwrap();
    let sink = null.create(ObjectId(1), &identity(1)).unwrap();
    let report = copy(&source, sink.as_ref(), &CopyControl::NONE).unwrap();
    assert_eq!(sink.stat().unwrap().size, report.sums.bytes);
    assert!(matches!(
        verify(sink.as_ref(), &report, &|| false),
        Err(CopyError::Verify { .. })
    ));
    let back = file_in(dir.path(), "back");
    let report = copy(sink.as_ref(), &back, &CopyControl::NONE).unwrap();
    assert_eq!((report.sums.bytes, report.data_bytes), (8 * MIB, 0));
    verify(&back, &report, &|| false).unwrap();
}

#[test]
fn an_earlier_copy_is_brought_up_to_date_by_what_changed() {
    const PIECE: u64 = 256 << 10;
    let (memory, disk) = (in_memory(), on_disk());
    let source = file_in(memory.path(), "source");
    source
        .write_at(&Random::new(3).bytes(4 * MIB as usize + 17), 0)
        .unwrap();
    let copied = file_in(disk.path(), "copy");
    let bring = || refresh(&source, &copied, &CopyControl::NONE).unwrap();
    let same = || assert!(content(&copied) == content(&source));
    assert_eq!(bring(), 4 * MIB + 17);
    same();
    assert_eq!(bring(), 0, "nothing has changed");
    source.write_at(b"changed", 2 * MIB + 5).unwrap();
    assert_eq!(bring(), PIECE);
    same();
    source.write_at(&[9; 100], 5 * MIB).unwrap();
    assert!(
        bring() <= 2 * PIECE,
        "the end before, and what was appended"
    );
    same();
    source.allocate(Allocate::PunchHole, MIB, 2 * MIB).unwrap();
    assert_eq!(bring(), 0, "holes are made, not written");
    same();
    source.set_len(MIB + 3).unwrap();
    bring();
    same();
    source.set_len(0).unwrap();
    source.set_len(9 * MIB).unwrap();
    assert_eq!(bring(), 0);
    same();
}

#[test]
fn write_behind_waits_for_what_is_too_far_behind() {
    let disk = on_disk();
    let copied = file_in(disk.path(), "copy");
    copied.write_at(&vec![7; 64 * MIB as usize], 0).unwrap();
    let Some(before) = unwritten_bytes(&copied) else {
        skip("the kernel does not tell what is unwritten");
        return;
    };
    assert!(
        before > 32 * MIB,
        "only {before} bytes wait in the page cache"
    );
    let behind = WriteBehind::default();
    behind.reached(&copied, 40 * MIB, 2 * MIB);
    let after = unwritten_bytes(&copied).unwrap();
    assert!(after <= 26 * MIB, "{after} bytes are not on the device");
    behind.reached(&copied, 64 * MIB, 2 * MIB);
    let after = unwritten_bytes(&copied).unwrap();
    assert!(after <= 2 * MIB, "{after} bytes are not on the device");
}

#[test]
fn a_copy_tells_how_far_it_is() {
    let dir = in_memory();
    let source = file_in(dir.path(), "source");
    source.write_at(&vec![7; 5 * MIB as usize], 0).unwrap();
    source
        .write_at(&vec![7; 3 * MIB as usize], 20 * MIB)
        .unwrap();
    let copied = file_in(dir.path(), "copy");
    let (moved, reached) = (AtomicU64::new(0), AtomicU64::new(0));
    let control = CopyControl {
        stop: &|| false,
        moved: &|bytes, end| {
            let moved = moved.fetch_add(bytes, Ordering::Relaxed) + bytes;
            assert!(reached.fetch_max(end, Ordering::Relaxed) < end);
            let hole = if moved > 5 * MIB { 15 * MIB } else { 0 };
            assert_eq!(end, moved + hole);
        },
    };
    copy(&source, &copied, &control).unwrap();
    assert_eq!(reached.into_inner(), 23 * MIB);
}

/// A file system on a disk that has less room than it says: what does not fit fails when it is
/// written back.
#[test]
fn an_error_of_write_back_that_a_wait_meets_is_told() {
    let Some(small) = Mounted::tmpfs("size=24m") else {
        return;
    };
    let image = small.path().join("image");
    std::fs::File::create(&image)
        .unwrap()
        .set_len(96 << 20)
        .unwrap();
    let run = |program: &str, args: &[&std::ffi::OsStr]| {
        let status = std::process::Command::new(program).args(args).status();
        assert!(status.unwrap().success(), "{program} {args:?}");
    };
    run(
        "mkfs.ext4",
        &["-q".as_ref(), "-F".as_ref(), image.as_os_str()],
    );
    let disk = Mounted::loop_disk(&image);
    for piecemeal in [true, false] {
        let file = file_in(&disk.path(), &format!("f{piecemeal}"));
        file.write_at(&vec![7; 40 * MIB as usize], 0).unwrap();
        let told = match piecemeal {
            true => {
                let behind = WriteBehind::default();
                behind.reached(&file, 40 * MIB, 0);
                behind.check()
            }
            false => wait_writeback(&file),
        };
        assert!(told.is_err(), "the disk has no room for it");
    }
}
