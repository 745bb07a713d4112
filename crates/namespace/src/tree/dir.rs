//! What a directory does: all of them live on the PFS; some hold names of files that are only in
//! the buffer.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay_tiers::{PfsDir, PfsStat, PfsTree};
use forebay_types::Ino;
use parking_lot::{Mutex, MutexGuard};

use super::{Children, DefaultAcl, Dir, File, Hidden, Name, Place};
use crate::NsError;
use crate::empty_dirs::EmptyDirs;
use crate::error::on_pfs;
use crate::record::DirKey;
use crate::times::DirTimes;

/// For how long a directory's set-group-id bit and group are believed without asking the PFS.
const GROUP_RULE_TTL: Duration = Duration::from_secs(1);

/// For how long a name that the PFS did not have is believed to be free. An outsider who takes it
/// in between is noticed when the new file is demoted, as one who takes it later.
const ABSENT_TTL: Duration = Duration::from_millis(50);

/// While it is held, a name leads elsewhere on the PFS than here.
pub(crate) struct NameChange<'a> {
    dir: &'a Dir,
    name: Name,
}

impl Drop for NameChange<'_> {
    fn drop(&mut self) {
        let mut names = self.dir.in_change.lock();
        if let Some(at) = names.iter().position(|one| *one == self.name) {
            names.swap_remove(at);
        }
        drop(names);
        self.dir.note_change(&self.name);
    }
}

impl Dir {
    pub(crate) fn new(key: DirKey, ino: Ino, place: Option<Place>) -> Dir {
        Dir {
            key,
            ino,
            place: Mutex::new(place),
            order: Mutex::new(()),
            children: Mutex::new(HashMap::new()),
            handle: Mutex::new(None),
            times: DirTimes::default(),
            default_acl: Mutex::new(None),
            in_change: Mutex::default(),
            changed: Default::default(),
            seen: Mutex::new(None),
            absent: Mutex::new(None),
            empty_dirs: EmptyDirs::unknown(),
            persisted: AtomicBool::new(false),
            removed: AtomicBool::new(false),
            hidden: Mutex::new(None),
            unpublished: Mutex::default(),
        }
    }

    /// What it is called on the PFS while it is not published.
    pub fn hidden(&self) -> Option<Hidden> {
        self.hidden.lock().clone()
    }

    pub(crate) fn hide(&self, hidden: Option<Hidden>) {
        *self.hidden.lock() = hidden;
    }

    /// Whether a file of the burst buffer or an unpublished version has this name.
    pub(crate) fn is_taken(&self, name: &[u8]) -> bool {
        self.children.lock().contains_key(name) || self.unpublished.lock().contains_key(name)
    }

    pub(crate) fn unpublished_child(&self, name: &[u8]) -> Option<Arc<Dir>> {
        self.unpublished.lock().get(name).cloned()
    }

    pub(crate) fn unpublished_names(&self) -> Vec<(Name, Arc<Dir>)> {
        let unpublished = self.unpublished.lock();
        unpublished
            .iter()
            .map(|(name, dir)| (name.clone(), dir.clone()))
            .collect()
    }

    pub(crate) fn add_unpublished(&self, name: &[u8], dir: Arc<Dir>) {
        self.unpublished.lock().insert(name.into(), dir);
    }

    pub(crate) fn remove_unpublished(&self, name: &[u8]) {
        self.unpublished.lock().remove(name);
    }

    /// Parent and name; `None` for the root.
    pub fn place(&self) -> Option<Place> {
        self.place.lock().clone()
    }

    pub(crate) fn move_to(&self, parent: Arc<Dir>, name: &[u8]) {
        *self.place.lock() = Some((parent, name.into()));
    }

    /// The right to change names here. `ETIMEDOUT` if somebody has it who waits for a PFS that is
    /// given up.
    pub(crate) fn order(&self, pfs: &PfsTree) -> Result<MutexGuard<'_, ()>, NsError> {
        pfs.health()
            .lock(&self.order)
            .map_err(on_pfs("wait for another change of names"))
    }

    /// The same if it is to be had now; while the PFS answers, that is soon.
    pub(crate) fn try_order(&self, pfs: &PfsTree) -> Option<MutexGuard<'_, ()>> {
        pfs.health().try_lock(&self.order)
    }

    /// The same, without waiting.
    pub(crate) fn order_now(&self) -> Option<MutexGuard<'_, ()>> {
        self.order.try_lock()
    }

    /// A name is about to change on the PFS, by who has the right to change names here.
    pub(crate) fn change_name(&self, name: &Name) -> NameChange<'_> {
        self.in_change.lock().push(name.clone());
        self.mark(name).fetch_add(1, Ordering::AcqRel);
        NameChange {
            dir: self,
            name: name.clone(),
        }
    }

    /// The PFS is about to get a name that it did not have, by who has the right to change names
    /// here.
    pub(crate) fn note_change(&self, name: &[u8]) {
        self.mark(name).fetch_add(1, Ordering::AcqRel);
    }

    fn mark(&self, name: &[u8]) -> &AtomicU32 {
        let sum = name.iter().fold(0usize, |sum, byte| {
            sum.wrapping_mul(31) ^ usize::from(*byte)
        });
        &self.changed[sum % self.changed.len()]
    }

    /// Counts changes of a name, and of some others.
    pub(crate) fn changes_of(&self, name: &[u8]) -> u32 {
        self.mark(name).load(Ordering::Acquire)
    }

    /// Whether a name is changed at this moment.
    pub(crate) fn is_in_change(&self, name: &[u8]) -> bool {
        self.in_change.lock().iter().any(|one| **one == *name)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Children> {
        self.children.lock()
    }

    /// The file of the burst buffer that has this name.
    pub fn child(&self, name: &[u8]) -> Option<Arc<File>> {
        self.children.lock().get(name).cloned()
    }

    /// The files of the burst buffer in it.
    pub fn files(&self) -> Vec<Arc<File>> {
        self.children.lock().values().cloned().collect()
    }

    /// Whether it was removed; who has it open goes on.
    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// It was removed through the mount.
    pub(crate) fn mark_removed(&self) {
        self.removed.store(true, Ordering::Release);
    }

    /// It was removed: who has it open goes on with this descriptor.
    pub(crate) fn keep_removed(&self, handle: PfsDir) {
        let mut held = self.handle.lock();
        self.mark_removed();
        *held = Some(handle);
    }

    /// Its descriptor, while it is kept open.
    pub(crate) fn handle(&self) -> Option<PfsDir> {
        self.handle.lock().clone()
    }

    /// It is kept open.
    pub(crate) fn keep_open(&self, handle: PfsDir) {
        *self.handle.lock() = Some(handle);
    }

    /// Forgets a descriptor that may no longer be right. That of a directory that was removed is
    /// all that leads to it.
    pub(crate) fn forget_handle(&self) {
        let mut handle = self.handle.lock();
        if !self.is_removed() {
            *handle = None;
        }
    }

    /// Whether the store has its record.
    pub(crate) fn is_persisted(&self) -> bool {
        self.persisted.load(Ordering::Acquire)
    }

    /// The store has its record. Whether that is news.
    pub(crate) fn mark_persisted(&self) -> bool {
        !self.persisted.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn has_children(&self) -> bool {
        !self.children.lock().is_empty()
    }

    /// Path from the root of the mount, without leading '/'; empty for the root.
    pub fn path(&self) -> Vec<u8> {
        let mut parts = Vec::new();
        let mut place = self.place();
        while let Some((parent, name)) = place {
            parts.push(name);
            place = parent.place();
        }
        parts.reverse();
        parts.join(&b'/')
    }

    /// Path of an entry of this directory.
    pub fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let mut path = self.path();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }

    /// The name is taken after all.
    pub(crate) fn note_present(&self, name: &[u8]) {
        let mut absent = self.absent.lock();
        if absent.as_ref().is_some_and(|(_, n, _)| **n == *name) {
            *absent = None;
        }
    }

    /// The PFS has just said that it has no such name, which had changed so often before.
    pub(crate) fn note_absent(&self, name: &[u8], changes: u32) {
        *self.absent.lock() = Some((Instant::now(), name.into(), changes));
    }

    /// Whether it said so a moment ago, of a name that has changed so often: the kernel looks a
    /// name up before it creates it.
    pub(crate) fn is_absent(&self, name: &[u8], changes: u32) -> bool {
        self.absent
            .lock()
            .as_ref()
            .is_some_and(|(at, n, c)| at.elapsed() < ABSENT_TTL && **n == *name && *c == changes)
    }

    pub(crate) fn learn(&self, stat: &PfsStat) {
        *self.seen.lock() = Some((Instant::now(), *stat));
    }

    /// What the PFS last said of it, however long ago.
    pub(crate) fn seen(&self) -> Option<PfsStat> {
        self.seen.lock().map(|(_, stat)| stat)
    }

    /// The directory's default ACL; asked of the PFS at most every [`GROUP_RULE_TTL`].
    pub(crate) fn default_acl(
        &self,
        ask: impl FnOnce() -> std::io::Result<Vec<u8>>,
    ) -> std::io::Result<DefaultAcl> {
        if let Some((at, acl)) = &*self.default_acl.lock()
            && at.elapsed() < GROUP_RULE_TTL
        {
            return Ok(acl.clone());
        }
        let found = match ask() {
            Ok(value) => Some(value.into()),
            Err(e) if e.raw_os_error() == Some(libc::ENODATA) => None,
            Err(e) => return Err(e),
        };
        *self.default_acl.lock() = Some((Instant::now(), found.clone()));
        Ok(found)
    }

    /// It has been changed.
    pub(crate) fn forget_default_acl(&self) {
        *self.default_acl.lock() = None;
    }

    pub(crate) fn group_rule(&self) -> Option<Option<u32>> {
        let (at, stat) = (*self.seen.lock())?;
        let rule = (stat.mode & libc::S_ISGID != 0).then_some(stat.gid);
        (at.elapsed() < GROUP_RULE_TTL).then_some(rule)
    }
}

impl std::fmt::Debug for Dir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dir({:?})", String::from_utf8_lossy(&self.path()))
    }
}
