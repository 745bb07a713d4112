//! What lies on disks: records, what objects say of themselves, access lists.

use std::cell::RefCell;

use forebay_kv::memory::Memory;
use forebay_kv::{Batch, Durability, MAX_KEY_BYTES, Store};
use forebay_namespace::testing::{read_acl, read_record, records};
use forebay_namespace::{DirKey, Namespace};
use forebay_tiers::{Identity, ParentKey, PfsTree};
use forebay_types::{Generation, ObjectId};

use super::{KIB, Target};
use crate::note;
use crate::notes::note_words;

pub const RECORDS: Target = Target {
    name: "records",
    about: "records of the metadata store: the two bytes of a key that say of what kind, and the value",
    run: run_records,
    seeds: || {
        let all = records(DirKey::default()).into_iter();
        all.map(|(key, value)| [&key[..2], &value].concat())
            .filter(|input| !input.starts_with(b"c/"))
            .collect()
    },
    words: &["f/", "d/", "k/", "g/", "u/", "r/"],
    bytes: 64 * KIB,
    bytes_per_byte: 1024,
    cost: 1,
};

pub const STORE: Target = Target {
    name: "store",
    about: "a whole metadata store as a start finds it: length of a key, key, length of a value, value, and so on",
    run: store,
    seeds: || {
        let with_root = |(_, root): &(tempfile::TempDir, DirKey)| {
            let all = records(*root);
            let mut seeds: Vec<Vec<u8>> = all
                .iter()
                .map(|record| listed(std::slice::from_ref(record)))
                .collect();
            seeds.push(listed(&all));
            seeds
        };
        PFS.with_borrow(with_root)
    },
    words: &["f/", "d/", "k/", "g/", "u/", "r/", "c/next-object", "c/"],
    bytes: 512 * KIB,
    bytes_per_byte: 1024,
    cost: 10,
};

pub const IDENTITY: Target = Target {
    name: "identity",
    about: "what an object says of itself; as it is, and with a checksum that fits",
    run: identity,
    seeds: || {
        let named = sample();
        let unnamed = Identity {
            name: Vec::new(),
            path: Vec::new(),
            ..sample()
        };
        vec![
            named.encode(),
            unnamed.encode(),
            named.unfinished().encode(),
        ]
    },
    words: &["/"],
    bytes: 64 * KIB,
    bytes_per_byte: 16,
    cost: 1,
};

pub const ACL: Target = Target {
    name: "acl",
    about: "access control lists in extended attributes",
    run: acl,
    seeds: || {
        let entry = |tag: u16, perm: u16, id: u32| {
            [
                &tag.to_le_bytes()[..],
                &perm.to_le_bytes(),
                &id.to_le_bytes(),
            ]
            .concat()
        };
        let nobody = u32::MAX;
        let list = |entries: &[Vec<u8>]| [2u32.to_le_bytes().to_vec(), entries.concat()].concat();
        let (owner, group, other) = (
            entry(1, 7, nobody),
            entry(4, 5, nobody),
            entry(0x20, 0, nobody),
        );
        vec![
            list(&[owner.clone(), group.clone(), other.clone()]),
            list(&[
                owner,
                entry(2, 6, 1000),
                group,
                entry(8, 4, 100),
                entry(0x10, 7, nobody),
                other,
            ]),
        ]
    },
    words: &[],
    bytes: 64 * KIB,
    bytes_per_byte: 16,
    cost: 1,
};

fn run_records(input: &[u8]) {
    let Some((kind, value)) = input.split_at_checked(2) else {
        return note("short");
    };
    // A key of any directory or object.
    let key = [kind, &[7; 24]].concat();
    match read_record(&key, value) {
        Some(Ok(())) => note(("read", kind)),
        Some(Err(error)) => {
            note(kind);
            note_words(error);
        }
        None => note("of no kind"),
    }
}

thread_local! {
    /// A PFS without files, and the key of its root: making one for every input would take all of
    /// the time.
    static PFS: RefCell<(tempfile::TempDir, DirKey)> = RefCell::new(empty_pfs());
}

fn empty_pfs() -> (tempfile::TempDir, DirKey) {
    let pfs = tempfile::tempdir().expect("a temporary directory");
    let tree = PfsTree::open(pfs.path()).expect("an empty PFS");
    let (namespace, _) =
        Namespace::open(tree, Box::new(Memory::new()), [7; 16]).expect("an empty store");
    let root = namespace.root().key;
    drop(namespace);
    (pfs, root)
}

/// Records as the target takes them.
fn listed(records: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for part in records.iter().flat_map(|(key, value)| [key, value]) {
        out.extend((part.len() as u16).to_le_bytes());
        out.extend_from_slice(part);
    }
    out
}

/// The next part of such a list; what is left where its length says more.
fn part<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, tail) = rest.split_first_chunk::<2>()?;
    let (part, tail) = tail.split_at(usize::from(u16::from_le_bytes(*len)).min(tail.len()));
    *rest = tail;
    Some(part)
}

fn store(input: &[u8]) {
    let store = Memory::new();
    let mut rest = input;
    while let (Some(key), Some(value)) = (part(&mut rest), part(&mut rest)) {
        if !key.is_empty() && key.len() <= MAX_KEY_BYTES {
            let mut batch = Batch::new();
            batch.put(key.to_vec(), value.to_vec());
            store
                .commit(batch, Durability::Buffered)
                .expect("memory takes what is within its limits");
        }
    }
    PFS.with_borrow(|(pfs, _)| {
        let tree = PfsTree::open(pfs.path()).expect("an empty PFS");
        match Namespace::open(tree, Box::new(store), [7; 16]) {
            Ok((namespace, loaded)) => {
                note((
                    loaded.files.len(),
                    loaded.lost.len(),
                    loaded.unreadable.len(),
                    loaded.dirs.len(),
                    loaded.changes.len(),
                ));
                note(loaded.garbage.len());
                note(
                    namespace
                        .check_records()
                        .map_or(0, |troubles| 1 + troubles.len()),
                );
                note(namespace.recorded_dirs().map_or(0, |dirs| 1 + dirs.len()));
            }
            Err(error) => note_words(error),
        }
    });
}

fn sample() -> Identity {
    Identity {
        instance: [7; 16],
        object: ObjectId(5),
        path: b"me/run7/ckpt-000120/rank-0".to_vec(),
        parent: ParentKey {
            dev_ordinal: 0,
            ino: 77,
            btime_ns: 1 << 60,
        },
        name: b"rank-0".to_vec(),
        mode: libc::S_IFREG | 0o640,
        uid: 1000,
        gid: 100,
        generation: Generation(3),
        shadow: false,
    }
}

fn identity(input: &[u8]) {
    if let Err(error) = Identity::decode(input) {
        note_words(error);
    }
    // The checksum hides what is behind it from whoever changes bytes.
    let Some((body, _)) = input.split_last_chunk::<4>() else {
        return;
    };
    let whole = [body, &crc32c::crc32c(body).to_le_bytes()].concat();
    match Identity::decode(&whole) {
        Ok(identity) => {
            assert_eq!(Identity::decode(&identity.encode()).as_ref(), Ok(&identity));
            assert_eq!(identity.encode(), whole);
            assert!(identity.unfinished().is_unfinished());
            note((
                identity.shadow,
                identity.is_unfinished(),
                identity.is_unnamed(),
                identity.path.is_empty(),
            ));
        }
        Err(error) => note_words(error),
    }
}

fn acl(input: &[u8]) {
    match read_acl(input) {
        Ok(written) => {
            assert_eq!(written, input);
            note(("list", input.len()));
        }
        Err(errno) => note(errno),
    }
}
