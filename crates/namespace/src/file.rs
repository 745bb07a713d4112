//! Files in the burst buffer, as held in memory.

use std::sync::Arc;

use forebay_tiers::{ObjectStat, PfsTree};
use forebay_types::{Attr, Errno, FileKind, Generation, Ino, ObjectId, TierId, TimeSpec};
use parking_lot::{Mutex, MutexGuard};

use crate::NsError;
use crate::dir::Dir;
use crate::record::{FileRecord, Meta, Published, Residency, Temporary, Unplaced};

/// A name, and the directory that it is in.
pub(crate) type Name = (Arc<Dir>, Box<[u8]>);

/// A file that has an object in the burst buffer.
pub struct File {
    /// Its object.
    pub object: ObjectId,
    /// Its id in the mount.
    pub ino: Ino,
    /// Orders what must agree with the PFS: changes of names, of attributes that the PFS has too, of
    /// what is known to be there. Held during I/O on the PFS, taken after the order of directories.
    naming: Mutex<()>,
    /// Held while its object is copied to another tier.
    copying: Mutex<()>,
    state: Mutex<FileState>,
}

/// What changes about a file. Invariants:
///
/// 1. `names` is empty exactly when the file is unlinked, or `unnamed`; then the store has no record of it.
/// 2. Every `(dir, name)` in `names` maps to this file in that directory's children, and no other
///    child maps to it.
/// 3. `residency.clean` implies `residency.published` and not `residency.writing`.
/// 4. `residency.generation` never goes back.
/// 5. Every name that is not in `unplaced` is a link of `residency.published`, if there is one; `residency.clean`
///    implies that `unplaced` is empty.
/// 6. `unnamed` implies that `names` is empty, that the file is dirty, and that its object is not to be collected.
#[derive(Clone)]
pub struct FileState {
    /// Names, the one to publish under first.
    pub names: Vec<(Arc<Dir>, Box<[u8]>)>,
    /// It was made without a name (`O_TMPFILE`) in this directory, and may be given its first one.
    pub unnamed: Option<Arc<Dir>>,
    /// It was fsynced when it had no name: an fsync of the directory that has its first one is to do what that would have done.
    pub owes_fsync: bool,
    /// Attributes.
    pub meta: Meta,
    /// Extended attributes, while dirty.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Residency.
    pub residency: Residency,
    /// Of several names, those that are not links of what is published.
    pub unplaced: Vec<Unplaced>,
    /// It is not known whether the copy `residency.temporary` has got its names: that is to be found out before
    /// anything is done with them. A start looks after every such copy.
    pub unsettled: bool,
    /// A worker is copying it to the PFS now. Not kept across restarts.
    pub demoting: bool,
    /// Error of the last demotion: reported by the next fsync, shown until a demotion succeeds.
    pub error: Option<Errno>,
    /// That error has not been reported to an fsync yet.
    pub error_unreported: bool,
    /// So many wait for its demotion although it is open for unseen writing; the copy is only taken
    /// if the object stood still.
    pub drain_open: u32,
    /// The last generation that is on the PFS, of a file that was open for writing then.
    pub safe: Option<Generation>,
    /// In the list of records to be written soon.
    pub unsaved: bool,
}

impl File {
    pub(crate) fn new(object: ObjectId, ino: Ino, state: FileState) -> File {
        File {
            object,
            ino,
            naming: Mutex::new(()),
            copying: Mutex::new(()),
            state: Mutex::new(state),
        }
    }

    /// The right to change its names and what is on the PFS. `ETIMEDOUT` if somebody has it who waits for
    /// a PFS that is given up.
    pub(crate) fn naming(&self, pfs: &PfsTree) -> Result<MutexGuard<'_, ()>, NsError> {
        Ok(pfs.pulse().lock(&self.naming)?)
    }

    /// The same if it is to be had now; while the PFS answers, that is soon.
    pub(crate) fn try_naming(&self, pfs: &PfsTree) -> Option<MutexGuard<'_, ()>> {
        pfs.pulse().try_lock(&self.naming)
    }

    /// The right to copy its object to another tier: of two at once, the one that read first might write last.
    pub fn copying(&self) -> MutexGuard<'_, ()> {
        self.copying.lock()
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
        let state = self.state.lock();
        let named = state.names.first().map(|(dir, _)| dir);
        named.or(state.unnamed.as_ref()).map(|dir| dir.key.dev)
    }

    /// Tier of the object.
    pub fn tier(&self) -> TierId {
        self.state.lock().residency.tier
    }
}

impl FileState {
    pub(crate) fn attr(&self, ino: Ino) -> Attr {
        let meta = &self.meta;
        Attr {
            ino,
            kind: FileKind::Regular,
            perm: meta.perm,
            nlink: self.names.len() as u32,
            uid: meta.uid,
            gid: meta.gid,
            rdev: 0,
            size: meta.size,
            blocks: meta.allocated_bytes.div_ceil(512),
            atime: meta.atime,
            mtime: meta.mtime,
            ctime: meta.ctime,
        }
    }

    /// Whether the PFS has no whole copy of this content.
    pub fn is_dirty(&self) -> bool {
        !self.residency.clean
    }

    /// Whether the PFS has a version of it under all its names.
    pub fn is_published(&self) -> bool {
        self.residency.published.is_some() && self.unplaced.is_empty()
    }

    /// Whether the file has no name: it has been unlinked, or has not got one yet.
    pub fn is_unlinked(&self) -> bool {
        self.names.is_empty()
    }

    /// What the PFS has under a name of the file, as far as is known.
    pub(crate) fn expected_at(&self, dir: &Dir, name: &[u8]) -> Option<Published> {
        match self.unplaced.iter().find(|one| is_at(one, dir, name)) {
            Some(unplaced) => unplaced.older,
            None => self.residency.published,
        }
    }

    /// Under this name the PFS has not what is published.
    pub(crate) fn set_unplaced(&mut self, dir: &Dir, name: &[u8], older: Option<Published>) {
        self.set_placed(dir, name);
        let place = (dir.key, name.to_vec());
        self.unplaced.push(Unplaced { place, older });
    }

    /// Under this name the PFS has what is published.
    pub(crate) fn set_placed(&mut self, dir: &Dir, name: &[u8]) {
        self.unplaced.retain(|one| !is_at(one, dir, name));
    }

    /// Whether what is published is so under this name, if it is at all.
    pub(crate) fn is_placed(&self, dir: &Dir, name: &[u8]) -> bool {
        !self.unplaced.iter().any(|one| is_at(one, dir, name))
    }

    /// The PFS has nothing of the file under this name any more.
    pub(crate) fn lose_published_at(&mut self, dir: &Dir, name: &[u8]) {
        match self.names.len() {
            0 | 1 => self.residency.published = None,
            _ if self.residency.published.is_some() => self.set_unplaced(dir, name, None),
            _ => {}
        }
    }

    /// One name has become another, wherever the PFS has it.
    pub(crate) fn rename_name(&mut self, old: &Name, new: Name) {
        if let Some(one) = self
            .unplaced
            .iter_mut()
            .find(|one| is_at(one, &old.0, &old.1))
        {
            one.place = (new.0.key, new.1.to_vec());
        }
        let is_old = |name: &&mut Name| Arc::ptr_eq(&name.0, &old.0) && name.1 == old.1;
        if let Some(name) = self.names.iter_mut().find(is_old) {
            *name = new;
        }
    }

    /// One name is gone.
    pub(crate) fn drop_name(&mut self, dir: &Arc<Dir>, name: &[u8]) {
        self.names
            .retain(|(d, n)| !(Arc::ptr_eq(d, dir) && **n == *name));
        self.set_placed(dir, name);
        if let ([_], [last]) = (&self.names[..], &self.unplaced[..]) {
            self.residency.published = last.older;
            self.unplaced.clear();
        }
    }

    /// Whether a copy is what is published.
    pub(crate) fn is_published_as(&self, copy: Temporary) -> bool {
        let published = self.residency.published;
        published.is_some_and(|p| (p.ino, p.btime_ns) == (copy.ino, copy.btime_ns))
    }

    /// The content has changed: a copy of an older generation will not be published.
    pub fn changed(&mut self) {
        let residency = &mut self.residency;
        residency.generation = residency.generation.next();
        if residency.clean {
            residency.flushed = None;
        }
        residency.clean = false;
        residency.crc = None;
    }

    /// What the object is now. Nobody writes it.
    pub fn take_stat(&mut self, stat: &ObjectStat) {
        self.meta.size = stat.size;
        self.meta.allocated_bytes = stat.allocated_bytes;
        self.meta.atime = stat.atime;
        self.meta.mtime = stat.mtime;
        self.meta.ctime = ctime_after(self.meta.ctime, stat.mtime);
    }

    /// The PFS has the content: whatever kept it from getting there is over.
    pub fn settled(&mut self) {
        self.residency.clean = true;
        self.error = None;
        self.error_unreported = false;
        self.xattrs = Vec::new();
    }

    /// All names, for whoever reads the log.
    pub(crate) fn told_names(&self) -> String {
        let paths = self.names.iter().map(|(dir, name)| dir.path_of(name));
        let told: Vec<_> = paths.map(|p| p.escape_ascii().to_string()).collect();
        told.join(", ")
    }

    /// Generation of the content.
    pub fn generation(&self) -> Generation {
        self.residency.generation
    }

    pub(crate) fn record(&self, ino: Ino) -> FileRecord {
        FileRecord {
            ino,
            names: self
                .names
                .iter()
                .map(|(dir, name)| (dir.key, name.to_vec()))
                .collect(),
            meta: self.meta,
            xattrs: self.xattrs.clone(),
            residency: self.residency,
            unplaced: self.unplaced.clone(),
        }
    }
}

fn is_at(unplaced: &Unplaced, dir: &Dir, name: &[u8]) -> bool {
    unplaced.place.0 == dir.key && unplaced.place.1 == name
}

/// Time of change of a file whose content has this time of modification. One in the future was set
/// by somebody, and says nothing of when that was.
pub fn ctime_after(ctime: TimeSpec, mtime: TimeSpec) -> TimeSpec {
    match mtime > TimeSpec::now() {
        true => ctime,
        false => ctime.max(mtime),
    }
}
