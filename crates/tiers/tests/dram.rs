//! Borrowed memory: mounted, used again after a death, resized, given back.

mod common;

use std::path::Path;

use common::{INSTANCE, Mounted, on_disk};
use forebay_testkit::{needs_root, skip};
use forebay_tiers::conformance::identity;
use forebay_tiers::{DirTier, DramError, DramMount, Tier, TierKind, mount_dram};
use forebay_types::ObjectId;

const MIB: u64 = 1 << 20;

/// Unmounts on drop, whatever the test did.
struct Cleanup<'a>(&'a Path);

impl Drop for Cleanup<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// `None` where mounting is not allowed: the stand-in directory is tested elsewhere.
fn mounted(dir: &Path, size_bytes: u64) -> Option<DramMount> {
    if needs_root() {
        return None;
    }
    let dram = mount_dram(dir, size_bytes).unwrap();
    if dram.is_private() {
        return Some(dram);
    }
    skip("cannot mount");
    dram.unmount().unwrap();
    None
}

#[test]
fn memory_survives_its_daemon_and_is_given_back() {
    let dir = on_disk();
    let _cleanup = Cleanup(dir.path());
    let Some(first) = mounted(dir.path(), 64 * MIB) else {
        return;
    };
    assert!(!first.was_reused());
    assert_eq!(first.path(), dir.path());
    let open = |size| DirTier::open("dram", TierKind::Dram, dir.path(), size, INSTANCE).unwrap();
    let tier = open(Some(64 * MIB));
    let object = tier.create(ObjectId(1), &identity(1)).unwrap();
    object.write_at(b"kept", 0).unwrap();
    tier.sync_all().unwrap();
    assert_eq!(tier.space().unwrap().total_bytes, 64 * MIB);
    drop((object, tier, first)); // as after kill -9

    let second = mount_dram(dir.path(), 32 * MIB).unwrap();
    assert!(second.was_reused() && second.is_private());
    assert_eq!(second.size_bytes(), 32 * MIB);
    let tier = open(None);
    assert!(!tier.is_new());
    assert_eq!(tier.capacity_bytes(), 32 * MIB);
    let object = tier.open(ObjectId(1)).unwrap();
    let mut bytes = [0; 4];
    object.read_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"kept");

    second.resize(48 * MIB).unwrap();
    assert_eq!(tier.space().unwrap().total_bytes, 48 * MIB);
    object.write_at(&vec![1; 8 * MIB as usize], 0).unwrap();
    let full = second.resize(4 * MIB).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(libc::EBUSY));
    assert_eq!(second.size_bytes(), 48 * MIB);
    drop(second);
    // A smaller configuration does not lose what is there.
    let third = mount_dram(dir.path(), 4 * MIB).unwrap();
    assert_eq!(third.size_bytes(), 48 * MIB);
    drop((object, tier));
    third.unmount().unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn mount_options_and_mode_are_private() {
    let dir = on_disk();
    let _cleanup = Cleanup(dir.path());
    let Some(dram) = mounted(dir.path(), 16 * MIB) else {
        return;
    };
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table
        .lines()
        .find(|line| line.contains(dir.path().to_str().unwrap()))
        .unwrap();
    for option in ["nosuid", "nodev", "noexec", "size=16384k", "mode=700"] {
        assert!(line.contains(option), "{option} in {line}");
    }
    assert!(!line.contains("shared:"), "{line}");
    dram.unmount().unwrap();
}

#[test]
fn small_and_sparse_files_take_little_more_than_they_hold() {
    let dir = on_disk();
    let _cleanup = Cleanup(dir.path());
    let Some(dram) = mounted(dir.path(), 64 * MIB) else {
        return;
    };
    let tier = DirTier::open("dram", TierKind::Dram, dir.path(), None, INSTANCE).unwrap();
    for (id, len) in [(1, 1), (2, 100_000), (3, 3_000_000)] {
        let object = tier.create(ObjectId(id), &identity(id)).unwrap();
        object.write_at(&vec![1; len], 0).unwrap();
        let taken = object.stat().unwrap().allocated_bytes;
        assert!(taken < len as u64 + 4096, "{taken} for {len}");
    }
    drop(tier);
    dram.unmount().unwrap();
}

#[test]
fn what_is_in_the_way_is_left_alone() {
    let dir = on_disk();
    std::fs::write(dir.path().join("file"), "mine").unwrap();
    let error = mount_dram(dir.path(), MIB).unwrap_err();
    assert!(matches!(
        DramError::of(&error),
        Some(DramError::NotEmpty(_))
    ));
    assert!(mount_dram(&dir.path().join("file"), MIB).is_err());
    assert!(mount_dram(&dir.path().join("absent"), MIB).is_err());

    let Some(other) = Mounted::tmpfs("size=1m") else {
        return;
    };
    let error = mount_dram(&other.path(), MIB).unwrap_err();
    assert!(matches!(
        DramError::of(&error),
        Some(DramError::OtherMount(_))
    ));
    let empty = on_disk();
    assert!(
        mount_dram(empty.path(), 0).is_err(),
        "0 is no limit to tmpfs"
    );
}
