//! Every tier passes the same suite; what is particular to one is tested after it.

mod common;

use std::cell::RefCell;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use common::{INSTANCE, in_memory, on_disk, tier_in};
use forebay_testkit::{LoopFs, needs_program, needs_root};
use forebay_tiers::conformance::{self, Random, identity};
use forebay_tiers::testing::FaultyTier;
use forebay_tiers::{
    Allocate, DirError, DirTier, FileObject, Identity, IdentityError, NullTier, Object, Tier,
    TierKind, checksum,
};
use forebay_types::{Generation, ObjectId};
use proptest::prelude::*;
use tempfile::TempDir;

/// Runs the suite with tiers in fresh directories.
fn suite(make_dir: fn() -> TempDir, wrap: &dyn Fn(&Path) -> Arc<dyn Tier>) {
    let dirs = RefCell::new(Vec::new());
    conformance::all(&|| {
        let dir = make_dir();
        let tier = wrap(dir.path());
        dirs.borrow_mut().push(dir);
        tier
    });
}

#[test]
fn a_directory_in_memory_conforms() {
    suite(in_memory, &tier_in);
}

#[test]
fn a_directory_on_disk_conforms() {
    suite(on_disk, &tier_in);
}

#[test]
fn a_directory_without_attributes_conforms() {
    suite(in_memory, &|dir| {
        let hex: String = INSTANCE.iter().map(|b| format!("{b:02x}")).collect();
        let marker =
            format!("forebay tier\nversion 2\ninstance {hex}\ntier {hex}\nidentity sidecar\n");
        std::fs::write(dir.join("forebay-tier"), marker).unwrap();
        tier_in(dir)
    });
}

#[test]
fn identities_beside_objects_go_with_them_and_keep_nobody_from_giving_the_directory_back() {
    let dir = in_memory();
    let hex: String = INSTANCE.iter().map(|b| format!("{b:02x}")).collect();
    let marker = format!("forebay tier\nversion 2\ninstance {hex}\ntier {hex}\nidentity sidecar\n");
    std::fs::write(dir.path().join("forebay-tier"), marker).unwrap();
    let tier = DirTier::open("pfs", TierKind::Pfs, dir.path(), None, INSTANCE).unwrap();
    let at = |name: &str| dir.path().join("objects").join(&name[14..16]).join(name);
    for id in [0x1u64, 0x2, 0x3] {
        drop(tier.create(ObjectId(id), &identity(id)).unwrap());
        assert!(at(&format!("{id:016x}.id")).exists());
    }
    // One becomes a file elsewhere, of the other a crash has left the identity.
    std::fs::remove_file(at("0000000000000001")).unwrap();
    let gone = tier.remove(ObjectId(1)).unwrap_err();
    assert_eq!(gone.raw_os_error(), Some(libc::ENOENT));
    assert!(!at("0000000000000001.id").exists());
    std::fs::remove_file(at("0000000000000002")).unwrap();
    let refused = tier.unmake().unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENOTEMPTY));
    assert!(!at("0000000000000002.id").exists() && at("0000000000000003.id").exists());
    tier.remove(ObjectId(3)).unwrap();
    tier.unmake().unwrap();
    assert!(!dir.path().join("objects").exists());
}

#[test]
fn the_null_tier_conforms() {
    conformance::all(&|| Arc::new(NullTier::new("null", 1 << 40)));
}

#[test]
fn a_faulty_tier_without_faults_conforms() {
    suite(in_memory, &|dir| Arc::new(FaultyTier::new(tier_in(dir))));
    suite(in_memory, &|dir| {
        Arc::new(FaultyTier::with_crashes(tier_in(dir)))
    });
}

#[test]
fn objects_survive_reopening_and_modes_are_private() {
    let dir = on_disk();
    {
        let tier = DirTier::open("ssd", TierKind::Ssd, dir.path(), Some(1 << 30), INSTANCE);
        let tier = tier.unwrap();
        assert!(tier.is_new());
        assert_eq!(tier.capacity_bytes(), 1 << 30);
        let object = tier.create(ObjectId(0x1ff), &identity(0x1ff)).unwrap();
        object.write_at(b"kept", 0).unwrap();
        object.sync(false).unwrap();
        tier.sync_all().unwrap();
    }
    let mode = |path: &str| {
        let meta = std::fs::metadata(dir.path().join(path)).unwrap();
        meta.permissions().mode() & 0o777
    };
    assert_eq!(mode("objects"), 0o700);
    assert_eq!(mode("objects/ff"), 0o700);
    assert_eq!(mode("objects/ff/00000000000001ff"), 0o600);
    let tier = DirTier::open("ssd", TierKind::Ssd, dir.path(), None, INSTANCE).unwrap();
    assert!(!tier.is_new());
    assert_eq!(tier.capacity_bytes(), tier.space().unwrap().total_bytes);
    let object = tier.open(ObjectId(0x1ff)).unwrap();
    let mut bytes = [0; 4];
    object.read_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"kept");
    assert_eq!(
        tier.identity(ObjectId(0x1ff)).unwrap(),
        Some(identity(0x1ff))
    );
}

#[test]
fn a_directory_is_given_back_as_it_was_unless_something_is_in_it() {
    let dir = in_memory();
    let entries = || std::fs::read_dir(dir.path()).unwrap().count();
    tier_in(dir.path()).give_back().unwrap();
    assert_eq!(entries(), 0);
    let tier = tier_in(dir.path());
    tier.create(ObjectId(0x1ff), &identity(0x1ff)).unwrap();
    let refused = tier.give_back().unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENOTEMPTY));
    // Whoever opens it next has not made it.
    let tier = tier_in(dir.path());
    tier.open(ObjectId(0x1ff)).unwrap();
    tier.remove(ObjectId(0x1ff)).unwrap();
    tier.give_back().unwrap();
    assert_eq!(entries(), 2, "the objects' directory and the marker");
}

#[test]
fn directories_of_others_are_refused() {
    let refused =
        |dir: &Path, instance| match DirTier::open("ssd", TierKind::Ssd, dir, None, instance) {
            Ok(_) => panic!("should have been refused"),
            Err(error) => DirError::of(&error).cloned().expect("a typed refusal"),
        };
    let dir = in_memory();
    tier_in(dir.path());
    let other = refused(dir.path(), [0xab; 16]);
    assert!(
        matches!(&other, DirError::OtherInstance { found, .. } if found.starts_with("666f7265"))
    );
    assert!(other.to_string().contains("another instance"));

    let marker = dir.path().join("forebay-tier");
    let text = std::fs::read_to_string(&marker).unwrap();
    std::fs::write(&marker, text.replace("version 2", "version 9")).unwrap();
    assert!(matches!(
        refused(dir.path(), INSTANCE),
        DirError::Version { found, .. } if found == "9"
    ));
    std::fs::write(&marker, "").unwrap();
    assert!(matches!(
        refused(dir.path(), INSTANCE),
        DirError::Damaged(_)
    ));
    std::fs::remove_file(&marker).unwrap();
    assert!(matches!(
        refused(dir.path(), INSTANCE),
        DirError::NoMarker(_)
    ));
}

#[test]
fn foreign_files_among_objects_are_not_listed() {
    let dir = in_memory();
    let tier = tier_in(dir.path());
    let shard = dir.path().join("objects/01");
    // Not an id; an id of another shard; an identity.
    for name in ["README", "0000000000000002", "0000000000000001.id"] {
        std::fs::write(shard.join(name), "x").unwrap();
    }
    tier.list(&mut |id| panic!("{id}")).unwrap();
}

#[test]
fn a_link_in_the_place_of_an_object_is_not_followed() {
    let dir = in_memory();
    let outside = in_memory();
    let secret = outside.path().join("secret");
    std::fs::write(&secret, "secret").unwrap();
    let tier = tier_in(dir.path());
    let place = dir.path().join("objects/01/0000000000000001");
    std::os::unix::fs::symlink(&secret, place).unwrap();
    assert_eq!(
        tier.open(ObjectId(1)).err().unwrap().raw_os_error(),
        Some(libc::ELOOP)
    );
    assert!(tier.create(ObjectId(1), &identity(1)).is_err());
    assert!(tier.identity(ObjectId(1)).is_err());
}

#[test]
fn a_damaged_identity_is_an_error_and_a_missing_one_is_none() {
    let dir = in_memory();
    let tier = tier_in(dir.path());
    tier.create(ObjectId(1), &identity(1)).unwrap();
    let path = dir.path().join("objects/01/0000000000000001");
    rustix::fs::setxattr(
        &path,
        "user.forebay.object",
        b"\x01nonsense",
        rustix::fs::XattrFlags::REPLACE,
    )
    .unwrap();
    let error = tier.identity(ObjectId(1)).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
    let inner = error.get_ref().unwrap().downcast_ref::<IdentityError>();
    assert!(matches!(inner, Some(IdentityError::Checksum { .. })));
    rustix::fs::removexattr(&path, "user.forebay.object").unwrap();
    assert_eq!(tier.identity(ObjectId(1)).unwrap(), None);
}

#[test]
fn creators_in_many_threads_get_one_object_each() {
    let dir = in_memory();
    let tier = tier_in(dir.path());
    let created: usize = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let create = |id| tier.create(ObjectId(id), &identity(id)).is_ok();
                    let count = (0..500).filter(|&id| create(id)).count();
                    tier.sync_all().unwrap();
                    count
                })
            })
            .collect();
        workers.into_iter().map(|w| w.join().unwrap()).sum()
    });
    assert_eq!(created, 500);
}

fn any_identity() -> impl Strategy<Value = Identity> {
    let ids = (any::<[u8; 16]>(), any::<[u64; 5]>(), any::<[u32; 3]>());
    let texts = (
        prop::collection::vec(any::<u8>(), 0..4096),
        prop::collection::vec(any::<u8>(), 0..255),
    );
    (ids, texts, any::<bool>()).prop_map(|((instance, long, short), (path, name), shadow)| {
        Identity {
            instance,
            object: ObjectId(long[0]),
            generation: Generation(long[1]),
            parent: forebay_tiers::ParentKey {
                dev_ordinal: long[2],
                ino: long[3],
                btime_ns: long[4],
            },
            mode: short[0],
            uid: short[1],
            gid: short[2],
            path,
            name,
            shadow,
        }
    })
}

proptest! {
    #[test]
    fn identities_round_trip(identity in any_identity()) {
        let bytes = identity.encode();
        prop_assert!(bytes.len() <= Identity::ENCODED_BYTES_MAX);
        prop_assert_eq!(Identity::decode(&bytes), Ok(identity));
    }

    #[test]
    fn decoding_anything_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..8192)) {
        let _ = Identity::decode(&bytes);
    }

    /// With a checksum that fits, so that what lies behind it is reached.
    #[test]
    fn decoding_well_sealed_nonsense_never_panics(
        mut bytes in prop::collection::vec(any::<u8>(), 2..400),
        flags in 0u8..3,
    ) {
        bytes[0] = 1;
        bytes[1] = flags;
        let crc = crc32c::crc32c(&bytes);
        bytes.extend(crc.to_le_bytes());
        if let Ok(identity) = Identity::decode(&bytes) {
            prop_assert_eq!(identity.encode(), bytes);
        }
    }

    #[test]
    fn any_damage_to_an_identity_is_noticed(
        identity in any_identity(),
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let mut bytes = identity.encode();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(Identity::decode(&bytes).is_err());
        prop_assert!(Identity::decode(&bytes[..at]).is_err());
    }
}

#[test]
fn an_identity_too_long_for_its_name_keeps_the_rest() {
    let mut long = identity(1);
    long.name = vec![b'n'; 256];
    long.path = vec![b'p'; 4097];
    let found = Identity::decode(&long.encode()).unwrap();
    assert!(found.name.is_empty() && found.path.is_empty());
    assert_eq!(found.object, long.object);
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, usize),
    SetLen(u64),
    Allocate(Allocate, u64, u64),
    Check,
}

fn any_step() -> impl Strategy<Value = Step> {
    const SIZE_MAX: u64 = 1 << 18;
    let mode = prop::sample::select(vec![
        Allocate::Reserve,
        Allocate::Extend,
        Allocate::PunchHole,
        Allocate::ZeroRange,
        Allocate::ZeroRangeKeepSize,
    ]);
    prop_oneof![
        4 => (0..SIZE_MAX, 1usize..100_000).prop_map(|(at, len)| Step::Write(at, len)),
        1 => (0..SIZE_MAX).prop_map(Step::SetLen),
        2 => (mode, 0..SIZE_MAX, 1..SIZE_MAX).prop_map(|(m, at, len)| Step::Allocate(m, at, len)),
        1 => Just(Step::Check),
    ]
}

fn apply(object: &dyn Object, model: &mut Vec<u8>, step: &Step, random: &mut Random) {
    let grow = |model: &mut Vec<u8>, end: usize| model.resize(model.len().max(end), 0);
    match *step {
        Step::Write(at, len) => {
            let data = random.bytes(len);
            object.write_at(&data, at).unwrap();
            grow(model, at as usize + len);
            model[at as usize..at as usize + len].copy_from_slice(&data);
        }
        Step::SetLen(size) => {
            object.set_len(size).unwrap();
            model.resize(size as usize, 0);
        }
        Step::Allocate(mode, at, len) => {
            object.allocate(mode, at, len).unwrap();
            let (start, end) = (at as usize, (at + len) as usize);
            if matches!(mode, Allocate::Extend | Allocate::ZeroRange) {
                grow(model, end);
            }
            if !matches!(mode, Allocate::Reserve | Allocate::Extend) {
                let (start, end) = (start.min(model.len()), end.min(model.len()));
                model[start..end].fill(0);
            }
        }
        Step::Check => {
            let sum = checksum(object, model.len() as u64, &|| false).unwrap();
            assert_eq!(sum, crc32c::crc32c(model));
        }
    }
    assert_eq!(object.stat().unwrap().size, model.len() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn random_operations_leave_what_they_would_leave_in_memory(
        steps in prop::collection::vec(any_step(), 1..40),
        seed in any::<u64>(),
    ) {
        for dir in [in_memory(), on_disk()] {
            let file = std::fs::File::options().read(true).write(true).create_new(true)
                .open(dir.path().join("object")).unwrap();
            let object = FileObject::new(file);
            let mut model = Vec::new();
            let mut random = Random::new(seed);
            for step in &steps {
                apply(&object, &mut model, step, &mut random);
            }
            let mut found = vec![1; model.len()];
            prop_assert_eq!(object.read_at(&mut found, 0).unwrap(), model.len());
            prop_assert!(found == model);
        }
    }
}

#[test]
fn any_file_is_an_object() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"abc").unwrap();
    let object = FileObject::new(file);
    assert!(object.descriptor().is_some());
    let mut bytes = [0; 8];
    assert_eq!(object.read_at(&mut bytes, 1).unwrap(), 2);
    object.sync(true).unwrap();
    object.drop_cache().unwrap();
    assert_eq!(object.into_file().metadata().unwrap().len(), 3);
}

/// XFS sets space aside for whoever appends, and takes it back when it likes.
#[test]
fn what_xfs_sets_aside_for_a_file_that_grows_is_not_its_space() {
    const MIB: usize = 1 << 20;
    if needs_root() || needs_program("mkfs.xfs") {
        return;
    }
    let dir = on_disk();
    let point = dir.path().join("xfs");
    std::fs::create_dir(&point).unwrap();
    let _xfs = LoopFs::of_kind("xfs", dir.path(), &point, 2 << 30);
    let tier = tier_in(&point);
    let id = ObjectId(7);
    let object = tier.create(id, &identity(7)).unwrap();
    let in_blocks = || {
        let file = object.descriptor().unwrap();
        rustix::fs::fstat(file).unwrap().st_blocks as u64 * 512
    };
    let append = |from: usize, to: usize| {
        for at in from..to {
            object.write_at(&vec![1; MIB], (at * MIB) as u64).unwrap();
        }
    };
    append(0, 40);
    assert!(in_blocks() > 50 * MIB as u64, "nothing was set aside");
    let held = || object.stat().unwrap().allocated_bytes;
    let unheld = || {
        let object = tier.unheld(id).unwrap();
        object.stat().unwrap().allocated_bytes
    };
    for bytes in [held(), unheld()] {
        assert_eq!(bytes, 40 * MIB as u64);
    }
    // What a program has asked for is its own.
    object
        .allocate(Allocate::Reserve, 0, 100 * MIB as u64)
        .unwrap();
    for bytes in [held(), unheld()] {
        assert!(bytes >= 100 * MIB as u64, "{bytes} of {}", in_blocks());
    }
}
