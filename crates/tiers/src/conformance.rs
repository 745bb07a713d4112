//! What every tier must do, as functions that take a factory; each call of it gives an empty tier.
//!
//! They panic where a tier falls short, so they are called from tests.

use std::sync::Arc;

use forebay_types::{Errno, Generation, ObjectId, SetTime, TimeSpec};

use crate::{
    Allocate, CopyControl, Identity, Object, ParentKey, Seek, Tier, TierKind, checksum, copy,
    verify,
};

/// Makes an empty tier.
pub type Factory<'a> = &'a dyn Fn() -> Arc<dyn Tier>;

/// Everything. Tiers of kind `Null` are excused from keeping bytes.
pub fn all(factory: Factory<'_>) {
    names(factory);
    identities(factory);
    sizes_and_times(factory);
    edges(factory);
    removed_objects_stay_open(factory);
    many_objects(factory);
    if factory().kind() != TierKind::Null {
        shared(factory);
        unheld(factory);
        bytes(factory);
        holes(factory);
        for seed in 1..=8 {
            random_operations(factory, seed);
        }
        appends(factory);
        copies(factory);
    }
}

/// An identity for tests.
pub fn identity(object: u64) -> Identity {
    Identity {
        instance: [7; 16],
        object: ObjectId(object),
        path: format!("project/ckpt/{object}").into_bytes(),
        parent: ParentKey {
            dev_ordinal: 1,
            ino: 2,
            btime_ns: 3,
        },
        name: b"\xff\n name".to_vec(),
        mode: libc::S_IFREG | 0o640,
        uid: 1000,
        gid: 1001,
        generation: Generation(5),
        shadow: false,
    }
}

/// A small generator, so that a seed gives the same run everywhere (splitmix64).
pub struct Random(u64);

impl Random {
    /// The run of this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// That many bytes, hardly any of them zero.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.number() as u8 | 1).collect()
    }
}

#[track_caller]
fn errno<T>(result: std::io::Result<T>) -> Errno {
    match result {
        Ok(_) => panic!("should have failed"),
        Err(error) => Errno::of(&error),
    }
}

fn content(object: &dyn Object) -> Vec<u8> {
    let size = object.stat().expect("stat").size as usize;
    let mut bytes = vec![0xee; size + 10];
    let count = object.read_at(&mut bytes, 0).expect("read");
    assert_eq!(count, size, "a read ends where the object ends");
    bytes.truncate(count);
    bytes
}

fn ids(tier: &dyn Tier) -> Vec<u64> {
    let mut ids = Vec::new();
    tier.list(&mut |id| ids.push(id.0)).expect("list");
    ids.sort_unstable();
    ids
}

/// Create, open, remove and list; `EEXIST` and `ENOENT`.
pub fn names(factory: Factory<'_>) {
    let tier = factory();
    assert!(ids(tier.as_ref()).is_empty());
    assert!(!tier.name().is_empty());
    assert!(tier.capacity_bytes() > 0);
    let space = tier.space().expect("space");
    assert!(space.free_bytes <= space.total_bytes);
    let id = ObjectId(0xfeed_0000_0000_1234);
    assert_eq!(errno(tier.open(id)), Errno::ENOENT);
    assert_eq!(errno(tier.remove(id)), Errno::ENOENT);
    assert_eq!(errno(tier.identity(id)), Errno::ENOENT);
    let object = tier.create(id, &identity(id.0)).expect("create");
    assert_eq!(object.stat().expect("stat").size, 0);
    assert_eq!(errno(tier.create(id, &identity(1))), Errno::EEXIST);
    assert_eq!(
        tier.identity(id).expect("identity"),
        Some(identity(id.0)),
        "a create that failed changed nothing"
    );
    drop(object);
    tier.open(id).expect("open");
    assert_eq!(ids(tier.as_ref()), [id.0]);
    tier.sync_all().expect("sync");
    tier.remove(id).expect("remove");
    assert_eq!(errno(tier.open(id)), Errno::ENOENT);
    assert_eq!(errno(tier.remove(id)), Errno::ENOENT);
    assert!(ids(tier.as_ref()).is_empty());
    tier.create(id, &identity(id.0)).expect("create again");
    tier.sync_all().expect("sync");
    tier.sync_all().expect("sync of nothing");
    assert_eq!(ids(tier.as_ref()), [id.0]);
    if let Some(together) = tier.flush_together().expect("open") {
        tier.create(ObjectId(id.0 - 1), &identity(1))
            .expect("one more");
        tier.sync_together(&together).expect("sync of everything");
        tier.sync_all().expect("sync of nothing");
    }
}

/// Identities are kept as they were given, and can be replaced.
pub fn identities(factory: Factory<'_>) {
    let tier = factory();
    let id = ObjectId(3);
    let mut wanted = identity(3);
    let object = tier.create(id, &wanted).expect("create");
    for (generation, shadow) in [(6, true), (u64::MAX, false)] {
        wanted.generation = Generation(generation);
        wanted.shadow = shadow;
        wanted.name = vec![b'n'; generation.min(255) as usize];
        object.set_identity(&wanted).expect("set_identity");
        let found = tier.identity(id).expect("identity");
        assert_eq!(found.as_ref(), Some(&wanted));
    }
    wanted.path = vec![b'p'; 4096];
    object
        .set_identity(&wanted)
        .expect("set_identity, long path");
    let found = tier.identity(id).expect("identity").expect("is there");
    assert!(
        found.path == wanted.path || found.path.is_empty(),
        "the hint is whole or not there"
    );
    wanted.path = found.path.clone();
    assert_eq!(found, wanted);
}

/// Size and times.
pub fn sizes_and_times(factory: Factory<'_>) {
    let tier = factory();
    let object = tier.create(ObjectId(1), &identity(1)).expect("create");
    assert_eq!(object.write_at(b"12345", 10).expect("write"), 5);
    assert_eq!(object.stat().expect("stat").size, 15);
    object.set_len(4).expect("cut");
    assert_eq!(content(object.as_ref()), [0; 4]);
    object.set_len(1 << 33).expect("grow");
    assert_eq!(object.stat().expect("stat").size, 1 << 33);
    let time = |sec| TimeSpec { sec, nsec: 7 };
    object
        .set_times(
            Some(SetTime::At(time(1_000_000_000))),
            Some(SetTime::At(time(1_100_000_000))),
        )
        .expect("set_times");
    object.set_times(None, None).expect("set_times of nothing");
    let stat = object.stat().expect("stat");
    assert_eq!(stat.atime, time(1_000_000_000));
    assert_eq!(stat.mtime, time(1_100_000_000));
    object.set_times(None, Some(SetTime::Now)).expect("now");
    let stat = object.stat().expect("stat");
    assert_eq!(stat.atime, time(1_000_000_000));
    assert!(stat.mtime.sec > 1_600_000_000);
    object.sync(true).expect("sync");
    object.sync(false).expect("sync");
}

/// Empty requests, reads beyond the end, sizes beyond the limit.
pub fn edges(factory: Factory<'_>) {
    let tier = factory();
    let object = tier.create(ObjectId(1), &identity(1)).expect("create");
    assert_eq!(object.write_at(b"", 100).expect("empty write"), 0);
    assert_eq!(object.stat().expect("stat").size, 0);
    assert_eq!(object.seek(0, Seek::Data).expect("seek"), None);
    assert_eq!(object.seek(0, Seek::Hole).expect("seek"), None);
    object.write_at(b"x", 0).expect("write");
    assert_eq!(object.read_at(&mut [], 0).expect("empty read"), 0);
    assert_eq!(object.read_at(&mut [1; 4], 1).expect("at the end"), 0);
    assert_eq!(object.read_at(&mut [1; 4], 1 << 40).expect("beyond"), 0);
    assert_eq!(object.seek(0, Seek::Data).expect("seek"), Some(0));
    assert_eq!(object.seek(0, Seek::Hole).expect("seek"), Some(1));
    assert_eq!(object.seek(1, Seek::Hole).expect("seek"), None);
    object.set_len(u64::MAX).expect_err("too large");
    object.write_at(b"x", u64::MAX).expect_err("too far");
    assert_eq!(
        errno(object.allocate(Allocate::Reserve, 0, 0)),
        Errno::EINVAL
    );
    assert_eq!(object.stat().expect("stat").size, 1);
}

/// Invariant 2 of [`Tier`].
pub fn removed_objects_stay_open(factory: Factory<'_>) {
    let tier = factory();
    let id = ObjectId(1);
    let first = tier.create(id, &identity(1)).expect("create");
    first.write_at(b"still here", 0).expect("write");
    tier.remove(id).expect("remove");
    let second = tier.create(id, &identity(1)).expect("create again");
    assert_eq!(second.stat().expect("stat").size, 0);
    first.write_at(b"!", 10).expect("write");
    assert_eq!(first.stat().expect("stat").size, 11);
    first.set_identity(&identity(9)).expect("set_identity");
    assert_eq!(
        tier.identity(id).expect("identity"),
        Some(identity(1)),
        "the removed object's identity is not the new one's"
    );
}

/// More objects than there are shards.
pub fn many_objects(factory: Factory<'_>) {
    let tier = factory();
    let mut random = Random::new(1);
    let mut wanted: Vec<u64> = (0..600).map(|_| random.number()).collect();
    for &id in &wanted {
        tier.create(ObjectId(id), &identity(id)).expect("create");
    }
    wanted.sort_unstable();
    assert_eq!(ids(tier.as_ref()), wanted);
    for &id in &wanted {
        let found = tier.identity(ObjectId(id)).expect("identity");
        assert_eq!(found.map(|identity| identity.object.0), Some(id));
        tier.remove(ObjectId(id)).expect("remove");
    }
    assert!(ids(tier.as_ref()).is_empty());
}

/// Bytes come back, also through another opening.
pub fn bytes(factory: Factory<'_>) {
    let tier = factory();
    let id = ObjectId(1);
    let object = tier.create(id, &identity(1)).expect("create");
    let data = Random::new(2).bytes(3_000_001);
    assert_eq!(object.write_at(&data, 17).expect("write"), data.len());
    object.sync(true).expect("sync");
    let again = tier.open(id).expect("open");
    let whole = content(again.as_ref());
    assert_eq!(whole[..17], [0; 17]);
    assert!(whole[17..] == data[..]);
    let sum = checksum(again.as_ref(), whole.len() as u64, &|| false).expect("checksum");
    assert_eq!(sum, crate::crc32c_update(0, &whole));
}

/// What is written through a shared object is there, also without a name; who else can write it is
/// told.
pub fn shared(factory: Factory<'_>) {
    let tier = factory();
    let (made, found) = (ObjectId(1), ObjectId(2));
    let object = tier.create_shared(made, &identity(1)).expect("create");
    assert_eq!(errno(tier.create_shared(made, &identity(1))), Errno::EEXIST);
    drop(tier.create(found, &identity(2)).expect("create"));
    let other = tier.open_shared(found).expect("open");
    for object in [&object, &other] {
        object.write_at(b"0123456789", 3).expect("write");
        object.set_len(9).expect("set_len");
        object.allocate(Allocate::Extend, 0, 11).expect("allocate");
        assert_eq!(content(object.as_ref()), b"\0\0\x00012345\0\0");
        object.sync(false).expect("sync");
    }
    if tier.tells_writers() {
        assert!(!object.has_writers().expect("writers"));
        let writer = tier.open(made).expect("open");
        assert!(object.has_writers().expect("writers"));
        drop(writer);
        assert!(!object.has_writers().expect("writers"));
    }
    tier.remove(made).expect("remove");
    object.write_at(b"!", 0).expect("write");
    assert_eq!(content(object.as_ref())[0], b'!');
}

/// An object that is not held is the one that was made, says the same of itself, and takes nothing
/// between two calls.
pub fn unheld(factory: Factory<'_>) {
    let tier = factory();
    let id = ObjectId(0x1ff);
    let Some(object) = tier.unheld(id) else {
        return;
    };
    assert!(!object.is_held() && object.descriptor().is_none());
    assert_eq!(errno(object.stat()), Errno::ENOENT);
    assert_eq!(errno(object.read_at(&mut [0], 0)), Errno::ENOENT);
    let held = tier.create(id, &identity(0x1ff)).expect("create");
    assert!(held.is_held());
    held.write_at(b"0123456789", 1 << 20).expect("write");
    object.sync(false).expect("sync");
    assert_eq!(object.stat().expect("stat"), held.stat().expect("stat"));
    assert_eq!(
        object.seek(0, Seek::Data).expect("seek"),
        held.seek(0, Seek::Data).expect("seek")
    );
    if tier.tells_writers() {
        assert!(object.has_writers().expect("writers"));
        drop(held);
        assert!(!object.has_writers().expect("writers"));
    }
    object.write_at(b"ab", (1 << 20) + 1).expect("write");
    object.set_len((1 << 20) + 5).expect("set_len");
    object
        .allocate(Allocate::Extend, 0, (1 << 20) + 6)
        .expect("allocate");
    let at = TimeSpec { sec: 7, nsec: 9 };
    object
        .set_times(None, Some(SetTime::At(at)))
        .expect("set_times");
    assert_eq!(object.stat().expect("stat").mtime, at);
    assert_eq!(&content(object.as_ref())[1 << 20..], b"0ab34\0");
    let other = identity(0x2ff);
    object.set_identity(&other).expect("set_identity");
    assert_eq!(tier.identity(id).expect("identity"), Some(other));
    tier.remove(id).expect("remove");
    assert_eq!(errno(object.stat()), Errno::ENOENT);
}

/// Every mode of [`Allocate`], and that holes are found.
pub fn holes(factory: Factory<'_>) {
    const MIB: u64 = 1 << 20;
    let tier = factory();
    let object = tier.create(ObjectId(1), &identity(1)).expect("create");
    let data = vec![0xaa; MIB as usize];
    for at in [0, 4 * MIB, 8 * MIB] {
        object.write_at(&data, at).expect("write");
    }
    object
        .allocate(Allocate::PunchHole, 4 * MIB, MIB)
        .expect("punch");
    assert_eq!(object.stat().expect("stat").size, 9 * MIB);
    assert_eq!(object.seek(MIB, Seek::Data).expect("seek"), Some(8 * MIB));
    assert_eq!(object.seek(0, Seek::Hole).expect("seek"), Some(MIB));
    assert_eq!(object.seek(9 * MIB, Seek::Data).expect("seek"), None);
    object
        .allocate(Allocate::ZeroRangeKeepSize, 8 * MIB, 2 * MIB)
        .expect("zero");
    assert_eq!(object.stat().expect("stat").size, 9 * MIB);
    object
        .allocate(Allocate::ZeroRange, MIB / 2, 10 * MIB)
        .expect("zero and grow");
    let mut wanted = vec![0; 10 * MIB as usize + MIB as usize / 2];
    wanted[..MIB as usize / 2].fill(0xaa);
    assert!(content(object.as_ref()) == wanted);
    object.set_len(MIB / 4).expect("cut");
    object
        .allocate(Allocate::Reserve, 0, 2 * MIB)
        .expect("reserve");
    assert_eq!(object.stat().expect("stat").size, MIB / 4);
    assert!(object.stat().expect("stat").allocated_bytes >= 2 * MIB);
    object
        .allocate(Allocate::Extend, 0, 2 * MIB)
        .expect("extend");
    assert_eq!(object.stat().expect("stat").size, 2 * MIB);
    assert!(
        content(object.as_ref())[MIB as usize / 4..]
            .iter()
            .all(|&b| b == 0)
    );
}

/// Operations by chance, against bytes in memory.
pub fn random_operations(factory: Factory<'_>, seed: u64) {
    const SIZE_MAX: u64 = 300_000;
    let tier = factory();
    let object = tier.create(ObjectId(1), &identity(1)).expect("create");
    let mut model: Vec<u8> = Vec::new();
    let mut random = Random::new(seed);
    for step in 0..300 {
        let offset = random.below(SIZE_MAX);
        let len = random.below(SIZE_MAX - offset) + 1;
        let (start, end) = (offset as usize, (offset + len) as usize);
        let grow = |model: &mut Vec<u8>, end: usize| model.resize(model.len().max(end), 0);
        match random.below(8) {
            0..=2 => {
                let data = random.bytes(len as usize);
                assert_eq!(object.write_at(&data, offset).expect("write"), data.len());
                grow(&mut model, end);
                model[start..end].copy_from_slice(&data);
            }
            3 => {
                object.set_len(offset).expect("set_len");
                model.resize(start, 0);
            }
            4 => {
                object
                    .allocate(Allocate::PunchHole, offset, len)
                    .expect("punch");
                let (start, end) = (start.min(model.len()), end.min(model.len()));
                model[start..end].fill(0);
            }
            5 => {
                object
                    .allocate(Allocate::ZeroRange, offset, len)
                    .expect("zero");
                grow(&mut model, end);
                model[start..end].fill(0);
            }
            6 => {
                object
                    .allocate(Allocate::Extend, offset, len)
                    .expect("extend");
                grow(&mut model, end);
            }
            _ => {
                let mut part = vec![0; len as usize];
                let count = object.read_at(&mut part, offset).expect("read");
                let wanted = model.get(start..end.min(model.len())).unwrap_or_default();
                assert!(part[..count] == *wanted, "seed {seed}, step {step}");
            }
        }
        assert_eq!(object.stat().expect("stat").size, model.len() as u64);
    }
    assert!(content(object.as_ref()) == model, "seed {seed}");
    let sum = checksum(object.as_ref(), model.len() as u64, &|| false).expect("checksum");
    assert_eq!(sum, crate::crc32c_update(0, &model), "seed {seed}");
}

/// Appends of several threads lie one behind the other, whole.
pub fn appends(factory: Factory<'_>) {
    const WRITERS: u8 = 4;
    const APPENDS: usize = 50;
    const BYTES: usize = 3000;
    let tier = factory();
    let object = tier.create(ObjectId(1), &identity(1)).expect("create");
    std::thread::scope(|scope| {
        for writer in 1..=WRITERS {
            let object = &object;
            scope.spawn(move || {
                for _ in 0..APPENDS {
                    let (count, end) = object.append(&[writer; BYTES]).expect("append");
                    assert_eq!(count, BYTES);
                    assert!(end >= BYTES as u64);
                }
            });
        }
    });
    let content = content(&*object);
    assert_eq!(content.len(), usize::from(WRITERS) * APPENDS * BYTES);
    let mut seen = [0; WRITERS as usize];
    for part in content.chunks(BYTES) {
        assert!(part.iter().all(|&byte| byte == part[0]), "a torn append");
        seen[usize::from(part[0]) - 1] += 1;
    }
    assert_eq!(seen, [APPENDS; WRITERS as usize]);
}

/// A copy within the tier: content, length, holes and checksum.
pub fn copies(factory: Factory<'_>) {
    const MIB: u64 = 1 << 20;
    let tier = factory();
    let source = tier.create(ObjectId(1), &identity(1)).expect("create");
    let data = Random::new(3).bytes(700_001);
    source.write_at(&data, 0).expect("write");
    source.write_at(&data, 64 * MIB).expect("write");
    source.set_len(128 * MIB).expect("grow");
    let copied = tier.create(ObjectId(2), &identity(2)).expect("create");
    copied.write_at(b"rubbish", 32 * MIB).expect("write");
    let report = copy(source.as_ref(), copied.as_ref(), &CopyControl::NONE).expect("copy");
    assert_eq!(report.sums.bytes, 128 * MIB);
    // Holes begin at a boundary of the file system's own choice.
    assert!((1_400_002..=10 * MIB).contains(&report.data_bytes));
    verify(copied.as_ref(), &report, &|| false).expect("verify");
    assert!(copied.stat().expect("stat").allocated_bytes <= 16 * MIB);
    assert!(content(copied.as_ref()) == content(source.as_ref()));
}
