//! File systems that are mounted inside the PFS, and subvolumes of it. The number of a device may be another's after the next
//! mount, so records do not hold it: an inner file system is known by the place where it is mounted and by its root, and goes by
//! an ordinal.
//!
//! 1. Device numbers are only used as long as the process runs; where one is met below a directory of another device, the
//!    place says whose it is.
//! 2. An ordinal is on record before the key of any directory that has it.

use std::collections::HashMap;

use forebay_kv::Durability;
use forebay_tiers::PfsId;
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};

use crate::NsError;
use crate::log::{Batch, Log};
use crate::record::{self, DirKey};

/// The ordinal of the device that the root of the PFS is on.
const OUTER: u64 = 0;
/// Stands for a device that has not been met at its place.
const UNKNOWN: u64 = u64::MAX;

/// One inner file system, as the record says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Inner {
    /// The directory that it is mounted in.
    parent: DirKey,
    /// The name there.
    name: Vec<u8>,
    /// Inode number of its root.
    root_ino: u64,
    /// The root's time of birth, nanoseconds; 0 where it does not tell.
    root_btime_ns: u64,
}

impl Inner {
    fn is_at(&self, parent: DirKey, name: &[u8]) -> bool {
        self.parent == parent && self.name == name
    }

    fn has_root(&self, id: PfsId) -> bool {
        (self.root_ino, self.root_btime_ns) == (id.ino, id.btime_ns)
    }
}

/// The ordinal of the file system that has this root at this place.
fn ordinal_of(known: &[Inner], parent: DirKey, name: &[u8], id: PfsId) -> Option<u64> {
    let is_it = |one: &Inner| one.is_at(parent, name) && one.has_root(id);
    known.iter().position(is_it).map(|at| at as u64 + 1)
}

fn fact(ordinal: u64) -> Vec<u8> {
    format!("c/inner-{ordinal}").into_bytes()
}

/// Which ordinal a device number stands for.
pub(crate) struct Devices {
    by_number: RwLock<HashMap<u64, u64>>,
    /// The first has the ordinal 1.
    inner: Mutex<Vec<Inner>>,
}

impl Devices {
    /// As the last run has left them; no number is known but that of the PFS's root.
    pub(crate) fn load(store: &Log, root: u64) -> Result<Devices, NsError> {
        let mut inner = Vec::new();
        while let Some(bytes) = store.get(&fact(inner.len() as u64 + 1))? {
            inner.push(record::decode(&bytes)?);
        }
        Ok(Devices {
            by_number: RwLock::new(HashMap::from([(root, OUTER)])),
            inner: Mutex::new(inner),
        })
    }

    /// The key of a directory on a device that has been met.
    pub(crate) fn key(&self, id: PfsId) -> DirKey {
        let known = self.by_number.read().get(&id.dev).copied();
        DirKey::new(id, known.unwrap_or(UNKNOWN))
    }

    /// The key of a directory that is found under this name in that directory; of one on a device that has never been met there the
    /// ordinal is not known.
    pub(crate) fn key_at(&self, parent: DirKey, name: &[u8], id: PfsId) -> DirKey {
        let known = self.by_number.read().get(&id.dev).copied();
        if known == Some(parent.dev) {
            return DirKey::new(id, parent.dev);
        }
        let place = ordinal_of(&self.inner.lock(), parent, name, id);
        match place {
            Some(ordinal) => {
                self.number(id.dev, ordinal);
                DirKey::new(id, ordinal)
            }
            None => DirKey::new(id, known.unwrap_or(UNKNOWN)),
        }
    }

    /// The key of a directory that is found under this name in that directory. The file system that it is the root of gets an
    /// ordinal if it has none.
    pub(crate) fn meet(&self, store: &Log, parent: DirKey, name: &[u8], id: PfsId) -> DirKey {
        let key = self.key_at(parent, name, id);
        if key.dev != UNKNOWN {
            return key;
        }
        let mut inner = self.inner.lock();
        if let Some(ordinal) = ordinal_of(&inner, parent, name, id) {
            // Somebody else has just met it.
            return DirKey::new(id, ordinal);
        }
        let ordinal = inner.len() as u64 + 1;
        let new = Inner {
            parent,
            name: name.to_vec(),
            root_ino: id.ino,
            root_btime_ns: id.btime_ns,
        };
        let mut batch = Batch::new();
        let saved = record::encode(&new).and_then(|value| {
            batch.put(fact(ordinal), value);
            Ok(store.commit(batch, Durability::Buffered)?)
        });
        if let Err(error) = saved {
            // Nothing in it goes on record before it is.
            tracing::warn!("a file system inside the PFS is not known yet: {error}");
            return key;
        }
        inner.push(new);
        // With the list held: who finds it there finds its number.
        self.number(id.dev, ordinal);
        drop(inner);
        DirKey::new(id, ordinal)
    }

    /// The number of the device that a directory is on; that of none where it is not mounted.
    pub(crate) fn number_of(&self, key: DirKey) -> u64 {
        let by_number = self.by_number.read();
        let found = by_number.iter().find(|(_, ordinal)| **ordinal == key.dev);
        found.map_or(UNKNOWN, |(number, _)| *number)
    }

    /// From now on the ordinal has this number, and no other.
    fn number(&self, dev: u64, ordinal: u64) {
        let mut by_number = self.by_number.write();
        by_number.retain(|_, of| *of != ordinal);
        by_number.insert(dev, ordinal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: u64 = 40;

    fn id(dev: u64, ino: u64) -> PfsId {
        PfsId {
            dev,
            ino,
            btime_ns: 7,
        }
    }

    fn devices(names: &[&[u8]]) -> Devices {
        let outer = DirKey::new(id(ROOT, 2), OUTER);
        let inner = names.iter().map(|name| Inner {
            parent: outer,
            name: name.to_vec(),
            root_ino: 2,
            root_btime_ns: 7,
        });
        Devices {
            by_number: RwLock::new(HashMap::from([(ROOT, OUTER)])),
            inner: Mutex::new(inner.collect()),
        }
    }

    #[test]
    fn the_place_says_which_of_two_alike_file_systems_a_number_stands_for() {
        let outer = DirKey::new(id(ROOT, 2), OUTER);
        for (a, b) in [(50, 51), (51, 50)] {
            let devices = devices(&[b"a", b"b"]);
            assert_eq!(devices.key(id(a, 12)).dev, UNKNOWN);
            assert_eq!(devices.key_at(outer, b"a", id(a, 2)).dev, 1);
            assert_eq!(devices.key_at(outer, b"b", id(b, 2)).dev, 2);
            assert_eq!(
                (devices.key(id(a, 12)).dev, devices.key(id(b, 12)).dev),
                (1, 2)
            );
            // They are mounted anew, the other way round.
            assert_eq!(devices.key_at(outer, b"a", id(b, 2)).dev, 1);
            assert_eq!(devices.key_at(outer, b"b", id(a, 2)).dev, 2);
            assert_eq!(
                (devices.key(id(b, 12)).dev, devices.key(id(a, 12)).dev),
                (1, 2)
            );
        }
    }

    #[test]
    fn another_file_system_at_the_same_place_is_not_taken_for_the_one_on_record() {
        let outer = DirKey::new(id(ROOT, 2), OUTER);
        let devices = devices(&[b"a"]);
        assert_eq!(devices.key_at(outer, b"a", id(50, 3)).dev, UNKNOWN);
        // Nothing is mounted there.
        assert_eq!(devices.key_at(outer, b"a", id(ROOT, 9)).dev, OUTER);
        assert_eq!(devices.key_at(outer, b"a", id(50, 2)).dev, 1);
    }
}
