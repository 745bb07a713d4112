//! File systems that are mounted inside the PFS, and subvolumes of it. The number of a device may
//! belong to another device after the next mount, so records do not hold it. They hold an ordinal.
//! An inner file system is known by the place where it is mounted and by its root. A snapshot has
//! the same root as what it was made of. So where the file system tells its subvolumes apart, a
//! subvolume is known by its own identity, wherever it is found.
//!
//! 1. Device numbers are only used as long as the process runs; where one is met below a directory
//!    of another device, the place says whose it is.
//! 2. An ordinal is on record before the key of any directory that has it.

use std::collections::HashMap;

use forebay_kv::Durability;
use forebay_tiers::{FsId, PfsId};
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
    /// What tells it apart from all other subvolumes and snapshots; 0 where nothing does.
    subvolume: u64,
}

impl Inner {
    fn is_at(&self, parent: DirKey, name: &[u8]) -> bool {
        self.parent == parent && self.name == name
    }

    fn has_root(&self, id: PfsId) -> bool {
        (self.root_ino, self.root_btime_ns) == (id.ino, id.btime_ns)
    }
}

/// The ordinal of the file system that has this root at this place, or is this subvolume.
fn ordinal_of(
    known: &[Inner],
    (parent, name): (DirKey, &[u8]),
    id: PfsId,
    subvolume: u64,
) -> Option<u64> {
    let is_it = |one: &Inner| match subvolume {
        0 => one.subvolume == 0 && one.is_at(parent, name) && one.has_root(id),
        subvolume => one.subvolume == subvolume,
    };
    known.iter().position(is_it).map(|at| at as u64 + 1)
}

fn subvolume_of(fs: FsId) -> u64 {
    match fs.names_subvolume {
        true => fs.id,
        false => 0,
    }
}

/// What a device number stands for in this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Number {
    ordinal: u64,
    /// Tells whether another file system has got the number since.
    fs: u64,
}

/// What a directory is known by.
#[derive(Clone, Copy)]
pub(crate) enum Met {
    /// A directory that has this key.
    Known(DirKey),
    /// It is on a device that has never been met at its place.
    New(FsId),
}

fn fact(ordinal: u64) -> Vec<u8> {
    format!("c/inner-{ordinal}").into_bytes()
}

/// Which ordinal a device number stands for.
pub(crate) struct Devices {
    by_number: RwLock<HashMap<u64, Number>>,
    /// The first has the ordinal 1.
    inner: Mutex<Vec<Inner>>,
}

impl Devices {
    /// As the last run has left them; no number is known but that of the PFS's root.
    pub(crate) fn load(store: &Log, root: u64, fs: FsId) -> Result<Devices, NsError> {
        let mut inner = Vec::new();
        while let Some(bytes) = store.get(&fact(inner.len() as u64 + 1))? {
            inner.push(record::decode(&bytes)?);
        }
        let outer = Number {
            ordinal: OUTER,
            fs: fs.id,
        };
        Ok(Devices {
            by_number: RwLock::new(HashMap::from([(root, outer)])),
            inner: Mutex::new(inner),
        })
    }

    fn known(&self, dev: u64) -> Option<Number> {
        self.by_number.read().get(&dev).copied()
    }

    /// The key of a directory on a device that has been met.
    pub(crate) fn key(&self, id: PfsId) -> DirKey {
        let known = self.known(id.dev);
        DirKey::new(id, known.map_or(UNKNOWN, |number| number.ordinal))
    }

    /// The key of a directory that is found under this name in that directory. `fs` says which file
    /// system it is on; who is below a directory of the same device is not asked.
    pub(crate) fn key_at(
        &self,
        (parent, name): (DirKey, &[u8]),
        id: PfsId,
        fs: &dyn Fn() -> Result<FsId, NsError>,
    ) -> Result<Met, NsError> {
        let known = self.known(id.dev);
        let is = |ordinal| Ok(Met::Known(DirKey::new(id, ordinal)));
        if known.is_some_and(|number| number.ordinal == parent.dev) {
            return is(parent.dev);
        }
        let at_place = ordinal_of(&self.inner.lock(), (parent, name), id, 0);
        if let (Some(known), Some(ordinal)) = (known, at_place)
            && known.ordinal == ordinal
        {
            return is(ordinal);
        }
        let fs = fs()?;
        let found = ordinal_of(&self.inner.lock(), (parent, name), id, subvolume_of(fs));
        match (found, known) {
            (Some(ordinal), _) => {
                self.number(id.dev, ordinal, fs);
                is(ordinal)
            }
            // A directory of it that is mounted elsewhere, too.
            (None, Some(known)) if known.fs == fs.id => is(known.ordinal),
            (None, _) => Ok(Met::New(fs)),
        }
    }

    /// The key of a directory that is found under this name in that directory. The file system that
    /// it is the root of gets an ordinal if it has none. `fs` says which that is, where the place
    /// does not.
    pub(crate) fn meet(
        &self,
        store: &Log,
        (parent, name): (DirKey, &[u8]),
        id: PfsId,
        fs: &dyn Fn() -> Result<FsId, NsError>,
    ) -> DirKey {
        let fs = match self.key_at((parent, name), id, fs) {
            Ok(Met::Known(key)) => return key,
            Ok(Met::New(fs)) => fs,
            Err(error) => {
                tracing::warn!("{}: {error}", name.escape_ascii());
                return self.key(id);
            }
        };
        let mut inner = self.inner.lock();
        if let Some(ordinal) = ordinal_of(&inner, (parent, name), id, subvolume_of(fs)) {
            // Somebody else has just met it.
            return DirKey::new(id, ordinal);
        }
        let ordinal = inner.len() as u64 + 1;
        let new = Inner {
            parent,
            name: name.to_vec(),
            root_ino: id.ino,
            root_btime_ns: id.btime_ns,
            subvolume: subvolume_of(fs),
        };
        let mut batch = Batch::new();
        let saved = record::encode(&new).and_then(|value| {
            batch.put(fact(ordinal), value);
            Ok(store.commit(batch, Durability::Buffered)?)
        });
        if let Err(error) = saved {
            // Nothing in it goes on record before it is.
            tracing::warn!("a file system inside the PFS is not known yet: {error}");
            return DirKey::new(id, UNKNOWN);
        }
        inner.push(new);
        // With the list held: who finds it there finds its number.
        self.number(id.dev, ordinal, fs);
        drop(inner);
        DirKey::new(id, ordinal)
    }

    /// The number of the device that a directory is on; that of none where it is not mounted.
    pub(crate) fn number_of(&self, key: DirKey) -> u64 {
        let by_number = self.by_number.read();
        let found = by_number.iter().find(|(_, of)| of.ordinal == key.dev);
        found.map_or(UNKNOWN, |(number, _)| *number)
    }

    /// From now on the ordinal has this number, and no other.
    fn number(&self, dev: u64, ordinal: u64, fs: FsId) {
        let mut by_number = self.by_number.write();
        by_number.retain(|_, of| of.ordinal != ordinal);
        by_number.insert(dev, Number { ordinal, fs: fs.id });
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

    fn plain(id: u64) -> FsId {
        FsId {
            id,
            names_subvolume: false,
        }
    }

    fn subvolume(id: u64) -> FsId {
        FsId {
            id,
            names_subvolume: true,
        }
    }

    fn outer() -> DirKey {
        DirKey::new(id(ROOT, 2), OUTER)
    }

    fn devices(inner: &[(&[u8], u64)]) -> Devices {
        let inner = inner.iter().map(|(name, subvolume)| Inner {
            parent: outer(),
            name: name.to_vec(),
            root_ino: 2,
            root_btime_ns: 7,
            subvolume: *subvolume,
        });
        let number = Number {
            ordinal: OUTER,
            fs: 1,
        };
        Devices {
            by_number: RwLock::new(HashMap::from([(ROOT, number)])),
            inner: Mutex::new(inner.collect()),
        }
    }

    /// The ordinal of what has this name in the root; `None`: it has none yet.
    fn met(devices: &Devices, name: &[u8], id: PfsId, fs: FsId) -> Option<u64> {
        let met = devices.key_at((outer(), name), id, &|| Ok(fs)).unwrap();
        match met {
            Met::Known(key) => Some(key.dev),
            Met::New(found) => {
                assert_eq!(found, fs);
                None
            }
        }
    }

    #[test]
    fn the_place_says_which_of_two_alike_file_systems_a_number_stands_for() {
        for (a, b) in [(50, 51), (51, 50)] {
            let devices = devices(&[(b"a", 0), (b"b", 0)]);
            assert_eq!(devices.key(id(a, 12)).dev, UNKNOWN);
            assert_eq!(met(&devices, b"a", id(a, 2), plain(9)), Some(1));
            assert_eq!(met(&devices, b"b", id(b, 2), plain(9)), Some(2));
            assert_eq!(
                (devices.key(id(a, 12)).dev, devices.key(id(b, 12)).dev),
                (1, 2)
            );
            // They are mounted anew, the other way round.
            assert_eq!(met(&devices, b"a", id(b, 2), plain(9)), Some(1));
            assert_eq!(met(&devices, b"b", id(a, 2), plain(9)), Some(2));
            assert_eq!(
                (devices.key(id(b, 12)).dev, devices.key(id(a, 12)).dev),
                (1, 2)
            );
        }
    }

    #[test]
    fn another_file_system_at_the_same_place_is_not_taken_for_the_one_on_record() {
        let devices = devices(&[(b"a", 0)]);
        assert_eq!(met(&devices, b"a", id(50, 3), plain(9)), None);
        // Nothing is mounted there.
        assert_eq!(met(&devices, b"a", id(ROOT, 9), plain(1)), Some(OUTER));
        assert_eq!(met(&devices, b"a", id(50, 2), plain(9)), Some(1));
    }

    #[test]
    fn a_snapshot_in_the_place_of_its_source_is_not_taken_for_it() {
        for met_before in [false, true] {
            let devices = devices(&[(b"live", 70), (b"snap", 71)]);
            if met_before {
                assert_eq!(met(&devices, b"live", id(50, 2), subvolume(70)), Some(1));
                assert_eq!(met(&devices, b"snap", id(51, 2), subvolume(71)), Some(2));
            }
            // mv live broken; mv snap live
            assert_eq!(met(&devices, b"live", id(51, 2), subvolume(71)), Some(2));
            assert_eq!(met(&devices, b"broken", id(50, 2), subvolume(70)), Some(1));
            // A further one of the same root.
            assert_eq!(met(&devices, b"live", id(52, 2), subvolume(72)), None);
        }
    }

    #[test]
    fn a_number_that_another_file_system_has_got_is_not_inherited() {
        let devices = devices(&[(b"a", 0)]);
        assert_eq!(met(&devices, b"a", id(50, 2), plain(9)), Some(1));
        // A directory of it is mounted elsewhere, too.
        assert_eq!(met(&devices, b"b", id(50, 33), plain(9)), Some(1));
        // It is gone, and its number belongs to another one.
        assert_eq!(met(&devices, b"b", id(50, 2), plain(8)), None);
        assert_eq!(met(&devices, b"b", id(50, 2), subvolume(8)), None);
    }
}
