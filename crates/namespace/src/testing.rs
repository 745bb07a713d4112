//! Records and access lists for the fuzzer: what reads them is private to this crate.

use std::fmt::Debug;

use forebay_types::{Errno, Generation, Ino, ObjectId, TierId, TimeSpec};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::NsError;
use crate::acl::Acl;
use crate::record::{self, *};

/// Reads a record as a start does, by what its key says it is; `None` for a key of no kind. Panics
/// where what is written of it is read as something else.
pub fn read_record(key: &[u8], value: &[u8]) -> Option<Result<(), NsError>> {
    let is_known = match key.get(..2)? {
        record::DIR_PREFIX | record::UNPUBLISHED_PREFIX => DirKey::from_bytes(&key[2..]).is_some(),
        _ => true,
    };
    let read = match key.get(..2)? {
        record::FILE_PREFIX => again::<FileRecord>(value),
        record::DIR_PREFIX => again::<DirRecord>(value),
        record::SUMS_PREFIX => again::<SumsRecord>(value),
        record::NAMELESS_PREFIX => again::<NamelessRecord>(value),
        record::GARBAGE_PREFIX => again::<[Option<TierId>; 2]>(value),
        record::UNPUBLISHED_PREFIX => again::<UnpublishedRecord>(value),
        record::LEFT_PREFIX => again::<Vec<TierId>>(value),
        record::INTENT_PREFIX => again::<Intent>(value),
        _ => return None,
    };
    is_known.then_some(read)
}

fn again<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &[u8]) -> Result<(), NsError> {
    let first: T = record::decode(value)?;
    let second: T = record::decode(&record::encode(&first)?)?;
    assert_eq!(first, second);
    Ok(())
}

/// Reads the value of an access list and writes it again.
pub fn read_acl(value: &[u8]) -> Result<Vec<u8>, Errno> {
    let acl = Acl::parse(value)?;
    let perm = acl.perm(0o4000);
    assert_eq!(acl.with_perm(perm).perm(0o4000), perm);
    assert_eq!(
        acl.inherited(0o777).perm(0) & !acl.perm(0),
        0,
        "more than both allow"
    );
    Ok(acl.to_bytes())
}

/// Keys and values of one record of every kind, of a tree that hangs together below `root`.
pub fn records(root: DirKey) -> Vec<(Vec<u8>, Vec<u8>)> {
    let dir = DirKey {
        ino: 77,
        btime_ns: 1 << 60,
        ..root
    };
    let place = |name: &[u8]| (dir, name.to_vec());
    let parent = DirRecord {
        parent: root,
        name: b"run7".to_vec(),
    };
    let version = UnpublishedRecord {
        parent: dir,
        name: b"ckpt-3".to_vec(),
        hidden: b".ckpt-3.forebay".to_vec(),
        committed: true,
        since_s: 1_700_000_000,
        lost: vec![place(b"rank-9")],
    };
    let sums = SumsRecord {
        crc: 7,
        bytes: 9 << 20,
        block_bytes: 4 << 20,
        after_blocks: vec![1, 2],
    };
    let (object, other) = (ObjectId(5), ObjectId(6));
    let written = |record: Result<Vec<u8>, NsError>| record.expect("a sample is encoded");
    let mut all = vec![
        (record::dir_key(dir), written(record::encode(&parent))),
        (
            record::unpublished_key(DirKey { ino: 78, ..dir }),
            written(record::encode(&version)),
        ),
        (
            record::file_key(object),
            written(record::encode(&file(dir))),
        ),
        (record::sums_key(object), written(record::encode(&sums))),
        (
            record::nameless_key(other),
            written(record::encode(&nameless(dir))),
        ),
        (
            record::garbage_key(other),
            written(record::encode(&[Some(TierId(0)), None])),
        ),
        (
            record::NEXT_OBJECT_KEY.to_vec(),
            written(record::encode(&64u64)),
        ),
    ];
    let published = file(dir).residency.published.expect("published");
    let intents = intents(place(b"rank-0"), place(b"rank-1"), dir, published);
    all.extend(
        (1..)
            .zip(intents)
            .map(|(at, intent)| (record::intent_key(at), written(record::encode(&intent)))),
    );
    all
}

pub(crate) fn file(dir: DirKey) -> FileRecord {
    let time = TimeSpec {
        sec: 1_700_000_000,
        nsec: 5,
    };
    let looks = Looks {
        perm: 0o640,
        uid: 1000,
        gid: 100,
    };
    let published = Published {
        ino: 90,
        btime_ns: 91,
        size: 92,
        mtime: time,
        ctime: time,
        looks,
    };
    let temporary = Temporary {
        generation: Generation(3),
        ino: 93,
        btime_ns: 94,
        size: 95,
        mtime: time,
        looks,
        xattrs_crc: 96,
    };
    FileRecord {
        ino: Ino(Ino::FIRST_BORN + 1),
        names: vec![(dir, b"rank-0".to_vec()), (dir, b"latest".to_vec())],
        meta: Meta {
            perm: 0o640,
            uid: 1000,
            gid: 100,
            size: 9 << 20,
            allocated_bytes: 9 << 20,
            atime: time,
            mtime: time,
            ctime: time,
        },
        xattrs: vec![(b"user.forebay.app".to_vec(), b"climate".to_vec())],
        residency: Residency {
            tier: TierId(0),
            shadow: Some((TierId(1), Generation(2))),
            flushed: Some(Flushed {
                generation: Generation(3),
                bytes: 4096,
            }),
            generation: Generation(3),
            published: Some(published),
            clean: false,
            writing: true,
            by_kernel: false,
            crc: Some(0xe306_9283),
            has_sums: true,
            flush_failed: true,
            promised: Some(Generation(2)),
            owes_loss: true,
        },
        temporary: Some(temporary),
        unplaced: vec![Unplaced {
            place: (dir, b"latest".to_vec()),
            older: Some(published),
        }],
    }
}

fn nameless(dir: DirKey) -> NamelessRecord {
    NamelessRecord {
        lives: vec![7, u64::MAX],
        unnamed: Some(dir),
        file: FileRecord {
            ino: Ino(Ino::FIRST_BORN + 2),
            names: Vec::new(),
            ..file(dir)
        },
    }
}

fn intents(from: PlaceKey, to: PlaceKey, dir: DirKey, published: Published) -> Vec<Intent> {
    let link = |change| {
        Intent::Link(LinkIntent {
            place: from.clone(),
            target: published,
            change,
            holder: Some(to.clone()),
        })
    };
    vec![
        Intent::Rename(RenameIntent {
            from: from.clone(),
            to: to.clone(),
            moving: published,
            file: Some(ObjectId(5)),
            dir: Some(dir),
            replaced: None,
        }),
        Intent::Exchange(ExchangeIntent {
            a: from.clone(),
            b: to.clone(),
            on_pfs_a: Some(published),
            on_pfs_b: None,
        }),
        link(LinkChange::Added),
        link(LinkChange::Removed),
        link(LinkChange::Replaced),
    ]
}
