//! Directories and files as held in memory. A directory holds its files by name, and a file its
//! names: so both are declared here, and what they do is in the files below.
//!
//! Nobody else assigns to a field: what changes is either behind a lock that only these files take,
//! or, of a file, in a [`FileState`], which others read, and change by its transitions.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::time::Instant;

use forebay_tiers::{PfsDir, PfsStat};
use forebay_types::{Errno, Generation, Ino, ObjectId};
use parking_lot::Mutex;

use crate::empty_dirs::EmptyDirs;
use crate::record::{DirKey, Meta, Residency, Temporary, Unplaced, Xattrs};
use crate::times::DirTimes;
use crate::tree::lastlook::LastLook;

mod dir;
mod file;
pub(crate) mod handles;
pub(crate) mod lastlook;
pub(crate) mod state;
pub(crate) mod transition;

/// Names of a directory that share a count of changes are looked up once too often.
const NAME_MARKS: usize = 16;

/// A name in a directory.
pub type Place = (Arc<Dir>, Name);

/// A name in a directory. Shared: a file has it, and so has its directory.
pub type Name = Arc<[u8]>;

/// Value of a directory's default ACL, if it has one.
pub(crate) type DefaultAcl = Option<Arc<[u8]>>;

/// Names of burst-buffer files in one directory.
pub(crate) type Children = HashMap<Name, Arc<File>>;

/// A directory of the PFS. Invariants:
///
/// 1. `children` and `unpublished` have no name in common.
/// 2. `children` changes with `order` held.
/// 3. `persisted` implies that the store has the records of all directories above, too.
/// 4. `removed` never goes back, and `handle` is not forgotten from then on: nothing else leads
///    there.
/// 5. Of the locks of a directory only `order` and that of changes of `times` are held during I/O
///    on the PFS.
pub struct Dir {
    /// Identity on the PFS.
    pub key: DirKey,
    /// Id in the mount.
    pub ino: Ino,
    /// Parent and name; `None` for the root. An outsider may move the directory: a lookup that
    /// finds it elsewhere corrects this.
    place: Mutex<Option<Place>>,
    /// Orders all changes of names in this directory. Held while the PFS is asked and changed; who
    /// only wants to know what is here takes `children`.
    order: Mutex<()>,
    /// Burst-buffer files here.
    children: Mutex<Children>,
    handle: Mutex<Option<PfsDir>>,
    /// Its times, as far as the PFS does not tell them.
    pub(crate) times: DirTimes,
    /// Default ACL, as the PFS last told it.
    default_acl: Mutex<Option<(Instant, DefaultAcl)>>,
    /// Names that lead elsewhere on the PFS than here, or are about to: who finds one on the PFS
    /// waits for who changes it.
    in_change: Mutex<Vec<Name>>,
    /// Count such changes, each those of some names: who has met a name on the PFS learns that it
    /// has been changed meanwhile, although it is not any more.
    changed: [AtomicU32; NAME_MARKS],
    /// What the PFS last said of the directory itself, and when.
    seen: Mutex<Option<(Instant, PfsStat)>>,
    /// The name last found missing on the PFS, when, and how often it had changed before.
    absent: Mutex<Option<(Instant, Name, u32)>>,
    /// Whether the PFS has any name here.
    pub(crate) empty_dirs: EmptyDirs,
    /// The store has this directory's record, and so its parents'.
    persisted: AtomicBool,
    /// Removed through the mount: no further names.
    removed: AtomicBool,
    /// Its name on the PFS, while that is another: it is a version that is not published yet.
    hidden: Mutex<Option<Hidden>>,
    /// Such directories in this one, by the names that they are shown under.
    unpublished: Mutex<HashMap<Name, Arc<Dir>>>,
}

/// A directory that outsiders do not see yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// Its name on the PFS.
    pub name: Name,
    /// It was ordered to be published.
    pub committed: bool,
    /// When it was made, seconds since the epoch.
    pub since_s: i64,
    /// Files of it that a loss of power has taken, and that are not there again.
    pub lost: Vec<(DirKey, Vec<u8>)>,
    /// It was not ordered when the last run ended: whether all of it is there, nobody knows.
    pub interrupted: bool,
}

/// A file that has an object in the burst buffer.
pub struct File {
    /// Its object.
    pub object: ObjectId,
    /// Its id in the mount.
    pub ino: Ino,
    /// Orders what must agree with the PFS: changes of names, of attributes that the PFS has too,
    /// of what is known to be there. Held during I/O on the PFS, taken after the order of
    /// directories.
    naming: Mutex<()>,
    /// Held while its object is copied to another tier.
    copying: Mutex<()>,
    /// So many wait for that.
    copy_wanted: AtomicUsize,
    /// When the PFS was last seen to have what is published.
    pub(crate) looked_at: LastLook,
    state: Mutex<FileState>,
}

/// What changes about a file: its facts, which everybody reads, and what only the namespace goes
/// by. Both change by transitions alone, which keep the invariants:
///
/// 1. `names` is empty exactly when the file is unlinked, or `unnamed`; then the store has no
///    record of it but that of a file without a name (`nameless.rs`).
/// 2. Every `(dir, name)` in `names` maps to this file in that directory's children, and no other
///    child maps to it.
/// 3. `residency.clean` implies `residency.published` and not `residency.writing`.
/// 4. `residency.generation` never goes back, but for a change that could not be recorded, while
///    nobody has seen it.
/// 5. Every name that is not in `unplaced` is a link of `residency.published`, if there is one;
///    `residency.clean` implies that `unplaced` is empty.
/// 6. `unnamed` implies that `names` is empty, that the file is dirty, and that its object is not
///    to be collected.
/// 7. No generation that is noted (`residency.flushed`, `.promised` and `.shadow`,
///    `temporary`, `safe`) is newer than `residency.generation`.
/// 8. `error_unreported` implies `error`.
/// 9. `unsettled` implies `temporary`.
/// 10. `unsaved` is set exactly while the file is in the list of records to be written.
/// 11. `residency.flush_failed` implies that the file is dirty.
/// 12. Unless `noted`, the record of the file names no copy.
/// 13. `evicted` implies that `names` is empty and `residency.clean`.
#[derive(Clone)]
pub struct FileState {
    facts: FileFacts,
    /// Of several names, those that are not links of what is published.
    unplaced: Vec<Unplaced>,
    /// It is not known whether the copy `temporary` has got its names: that is to be
    /// found out before anything is done with them. A start looks after every such copy.
    unsettled: bool,
    /// The record may name a copy, which a start would look for under its temporary name.
    noted: bool,
    /// The error has not been reported to an fsync yet.
    error_unreported: bool,
    /// In the list of records to be written soon.
    unsaved: bool,
    /// It has left the burst buffer, and what is published has its names.
    evicted: bool,
}

/// What everybody may read of a file. A [`FileState`] lends them out, and never to be written to.
#[derive(Clone)]
pub struct FileFacts {
    /// Names, the one to publish under first.
    pub names: Vec<Place>,
    /// It was made without a name (`O_TMPFILE`) in this directory, and may be given its first one.
    pub unnamed: Option<Arc<Dir>>,
    /// It was fsynced when it had no name: an fsync of the directory that has its first one is to
    /// do what that would have done.
    pub owes_fsync: bool,
    /// Attributes.
    pub meta: Meta,
    /// Extended attributes, while dirty.
    pub xattrs: Xattrs,
    /// Residency.
    pub residency: Residency,
    /// Its copy on the PFS that is under way. Few files have one at a time, so it is kept apart.
    pub temporary: Option<Box<Temporary>>,
    /// A worker is copying it to the PFS now. Not kept across restarts.
    pub demoting: bool,
    /// Error of the last demotion: reported by the next fsync, shown until a demotion succeeds.
    pub error: Option<Errno>,
    /// So many wait for its demotion although it is open for unseen writing; the copy is only taken
    /// if the object stood still.
    pub drain_open: u32,
    /// The last generation that is on the PFS, of a file that was open for writing then.
    pub safe: Option<Generation>,
    /// How often it was cut since it is known here, and cuts that are under way: what was flushed
    /// of it before may be gone.
    pub cuts: u32,
    /// See `cuts`.
    pub cutting: u32,
    /// Renames of it under way: what it replaces may still be changed by who has it open, and no
    /// copy gets the name meanwhile.
    pub renaming: u32,
}

impl Deref for FileState {
    type Target = FileFacts;

    fn deref(&self) -> &FileFacts {
        &self.facts
    }
}
