//! The two ends of a rename, and the directories that they are in.

use std::sync::Arc;

use forebay_tiers::{PfsDir, PfsStat};
use forebay_types::FileKind;
use parking_lot::MutexGuard;

use crate::File;
use crate::record::PlaceKey;
use crate::tree::{Children, Dir, Name, Place};

/// Children of one or two directories, locked in the order of their keys.
pub(crate) struct Locked<'a> {
    pub(crate) from: MutexGuard<'a, Children>,
    to: Option<MutexGuard<'a, Children>>,
}

impl<'a> Locked<'a> {
    pub(crate) fn new(from: &'a Arc<Dir>, to: &'a Arc<Dir>) -> Locked<'a> {
        if Arc::ptr_eq(from, to) {
            return Locked {
                from: from.lock(),
                to: None,
            };
        }
        if from.key < to.key {
            let first = from.lock();
            Locked {
                from: first,
                to: Some(to.lock()),
            }
        } else {
            let first = to.lock();
            Locked {
                from: from.lock(),
                to: Some(first),
            }
        }
    }

    pub(crate) fn to(&mut self) -> &mut Children {
        self.to.as_mut().unwrap_or(&mut self.from)
    }
}

/// One end of a rename.
pub(crate) struct End {
    pub(crate) dir: Arc<Dir>,
    pub(crate) handle: PfsDir,
    pub(crate) name: Name,
    pub(crate) file: Option<Arc<File>>,
    pub(crate) stat: Option<PfsStat>,
    /// What the PFS has is not what was published of the file.
    pub(crate) foreign: bool,
    /// Somebody has what the PFS has here open there.
    pub(crate) in_use: bool,
}

impl End {
    pub(crate) fn is_dir(&self) -> bool {
        self.stat
            .as_ref()
            .is_some_and(|s| s.kind() == FileKind::Directory)
    }

    /// Whether the PFS has something under this name that belongs to it.
    pub(crate) fn on_pfs(&self) -> bool {
        match &self.file {
            Some(_) => self.stat.is_some() && !self.foreign,
            None => self.stat.is_some(),
        }
    }

    pub(crate) fn place(&self) -> Place {
        (self.dir.clone(), self.name.clone())
    }

    pub(crate) fn key(&self) -> PlaceKey {
        (self.dir.key, self.name.to_vec())
    }
}
