//! Undrained objects whose directory is gone from the PFS.

use std::sync::Arc;

use forebay_namespace::{Dir, File, FileRecord, on_pfs};
use forebay_types::{Errno, ObjectId, TierId};

use crate::buffer::Buffer;

/// An undrained object whose directory was not known to the start.
pub struct Stranded {
    /// The object.
    pub object: ObjectId,
    /// The tier that holds the object.
    pub tier: TierId,
    /// What it was called, as far as that is known.
    pub path: Vec<u8>,
}

impl Buffer {
    /// Whether all directories that a file has names in are gone from the PFS.
    pub fn is_stranded(&self, file: &File) -> bool {
        self.is_stranded_as(file, &mut |dir| self.is_gone(dir))
    }

    pub fn is_stranded_as(&self, file: &File, is_gone: &mut dyn FnMut(&Arc<Dir>) -> bool) -> bool {
        let names = file.lock().names.clone();
        !names.is_empty() && names.iter().all(|(dir, _)| is_gone(dir))
    }

    pub fn is_gone(&self, dir: &Arc<Dir>) -> bool {
        let stat = |handle| {
            self.ns
                .pfs()
                .stat_dir(&handle)
                .map_err(on_pfs("stat of a directory"))
        };
        match self.ns.open_dir(dir).and_then(stat) {
            Ok(stat) => stat.nlink == 0,
            Err(error) => matches!(
                error.errno(),
                Errno::ENOENT | Errno::ESTALE | Errno::ENOTDIR
            ),
        }
    }
}

impl Buffer {
    /// A record whose directory is not known: what it stands for counts, though it cannot be shown.
    pub(crate) fn book_stranded(&self, object: ObjectId, record: &FileRecord) {
        let tier = record.residency.tier;
        if record.residency.clean || self.tiers.get(tier).is_none() {
            return;
        }
        let found = self.tiers.open_object(tier, object).and_then(|o| o.stat());
        let bytes = found.map_or(record.meta.allocated_bytes, |stat| stat.allocated_bytes);
        self.ledger.arrive(object, tier, bytes, true);
        let name = record.names.first().map(|(_, name)| name.clone());
        let identity = self.tiers.get(tier).map(|slot| slot.tier.identity(object));
        let path = match identity {
            Some(Ok(Some(identity))) if identity.object == object => identity.path,
            _ => name.unwrap_or_default(),
        };
        self.stranded.lock().push(Stranded { object, tier, path });
    }
}
