//! What a file does beside its state: locks, and what is told of it.

use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_tiers::PfsTree;
use forebay_types::{Attr, Ino, ObjectId, TierId};
use parking_lot::{Mutex, MutexGuard};

use super::lastlook::LastLook;
use super::{File, FileState};
use crate::NsError;
use crate::error::on_pfs;

impl File {
    pub(crate) fn new(object: ObjectId, ino: Ino, state: FileState) -> File {
        File {
            object,
            ino,
            naming: Mutex::new(()),
            copying: Mutex::new(()),
            copy_wanted: AtomicUsize::new(0),
            looked_at: LastLook::default(),
            state: Mutex::new(state),
        }
    }

    /// The right to change its names and what is on the PFS. `ETIMEDOUT` if somebody has it who
    /// waits for a PFS that is given up.
    pub(crate) fn naming(&self, pfs: &PfsTree) -> Result<MutexGuard<'_, ()>, NsError> {
        pfs.health()
            .lock(&self.naming)
            .map_err(on_pfs("wait for another change of names"))
    }

    /// The same if it is to be had now; while the PFS answers, that is soon.
    pub(crate) fn try_naming(&self, pfs: &PfsTree) -> Option<MutexGuard<'_, ()>> {
        pfs.health().try_lock(&self.naming)
    }

    /// The right to copy its object to another tier: of two at once, the one that read first might
    /// write last.
    pub fn copying(&self) -> MutexGuard<'_, ()> {
        self.copy_wanted.fetch_add(1, Ordering::AcqRel);
        let copying = self.copying.lock();
        self.copy_wanted.fetch_sub(1, Ordering::AcqRel);
        copying
    }

    /// Whether somebody waits for that: who has it, and takes its time, hurries.
    pub fn is_copy_wanted(&self) -> bool {
        self.copy_wanted.load(Ordering::Acquire) > 0
    }

    /// The same, unless somebody has it.
    pub fn try_copying(&self) -> Option<MutexGuard<'_, ()>> {
        self.copying.try_lock()
    }

    /// The state. Hold it briefly: no I/O on the PFS meanwhile. Taken after a directory's lock.
    pub fn lock(&self) -> MutexGuard<'_, FileState> {
        self.state.lock()
    }

    /// The state, unless somebody holds it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, FileState>> {
        self.state.try_lock()
    }

    /// Attributes as of the last close or explicit change.
    pub fn attr(&self) -> Attr {
        self.state.lock().attr(self.ino)
    }

    /// The same, and whether it is being written in a way that is not seen.
    pub fn attr_and_writing(&self) -> (Attr, bool) {
        let state = self.state.lock();
        (state.attr(self.ino), state.residency.writing)
    }

    /// Path from the root of the mount, or a description of an unlinked file.
    pub fn path(&self) -> Vec<u8> {
        let (name, unnamed) = {
            let state = self.state.lock();
            (state.names.first().cloned(), state.unnamed.is_some())
        };
        match name {
            Some((dir, name)) => dir.path_of(&name),
            None if unnamed => format!("(object {} without a name)", self.object).into_bytes(),
            None => format!("(unlinked object {})", self.object).into_bytes(),
        }
    }

    /// Ordinal of the file system that its names are in, or would be; all of them are in one.
    pub(crate) fn file_system(&self) -> Option<u64> {
        let state = self.lock();
        let named = state.names.first().map(|(dir, _)| dir);
        named.or(state.unnamed.as_ref()).map(|dir| dir.key.dev)
    }

    /// Tier of the object.
    pub fn tier(&self) -> TierId {
        self.state.lock().residency.tier
    }
}
