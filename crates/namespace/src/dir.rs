//! Directories: all of them live on the PFS; some hold names of files that are only in the buffer.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forebay_tiers::{PfsDir, PfsStat, PfsTree};
use forebay_types::{Errno, Ino};
use parking_lot::{Mutex, MutexGuard};

use crate::NsError;
use crate::devices::{Devices, Met};
use crate::file::File;
use crate::record::DirKey;
use crate::times::DirTimes;
use crate::vacancy::Vacancy;

/// Most open directory descriptors that are kept; the oldest are closed beyond that.
const HANDLES_MAX: usize = 2048;
/// For how long a directory's set-group-id bit and group are believed without asking the PFS.
const GROUP_RULE_TTL: Duration = Duration::from_secs(1);

/// For how long a name that the PFS did not have is believed to be free. An outsider who takes it in
/// between is noticed when the new file is demoted, as one who takes it later.
const ABSENT_TTL: Duration = Duration::from_millis(50);

/// A name in a directory.
pub type Place = (Arc<Dir>, Box<[u8]>);

/// Value of a directory's default ACL, if it has one.
pub(crate) type DefaultAcl = Option<Arc<[u8]>>;

/// Names of burst-buffer files in one directory.
pub(crate) type Children = HashMap<Box<[u8]>, Arc<File>>;

/// A directory of the PFS.
pub struct Dir {
    /// Identity on the PFS.
    pub key: DirKey,
    /// Id in the mount.
    pub ino: Ino,
    /// Parent and name; `None` for the root. An outsider may move the directory: a lookup that
    /// finds it elsewhere corrects this.
    place: Mutex<Option<Place>>,
    /// Orders all changes of names in this directory. Held while the PFS is asked and changed; who only
    /// wants to know what is here takes `children`.
    order: Mutex<()>,
    /// Burst-buffer files here. Changed with `order` held too; never held during I/O on the PFS.
    children: Mutex<Children>,
    handle: Mutex<Option<PfsDir>>,
    /// Its times, as far as the PFS does not tell them.
    pub(crate) times: DirTimes,
    /// Default ACL, as the PFS last told it.
    default_acl: Mutex<Option<(Instant, DefaultAcl)>>,
    /// What the PFS last said of the directory itself, and when.
    seen: Mutex<Option<(Instant, PfsStat)>>,
    /// The name last found missing on the PFS, and when.
    absent: Mutex<Option<(Instant, Box<[u8]>)>>,
    /// Whether the PFS has any name here.
    pub(crate) vacancy: Vacancy,
    /// The store has this directory's record, and so its parents'.
    pub(crate) persisted: AtomicBool,
    /// Removed through the mount: no further names.
    pub(crate) removed: AtomicBool,
    /// Its name on the PFS, while that is another: it is a version that is not published yet.
    hidden: Mutex<Option<Hidden>>,
    /// Such directories in this one, by the names that they are shown under.
    unpublished: Mutex<HashMap<Box<[u8]>, Arc<Dir>>>,
}

/// A directory that outsiders do not see yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// Its name on the PFS.
    pub name: Box<[u8]>,
    /// It was ordered to be published.
    pub committed: bool,
    /// When it was made, seconds since the epoch.
    pub since_s: i64,
    /// Files of it that a loss of power has taken, and that are not there again.
    pub lost: Vec<(DirKey, Vec<u8>)>,
    /// It was not ordered when the last run ended: whether all of it is there, nobody knows.
    pub interrupted: bool,
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
            seen: Mutex::new(None),
            absent: Mutex::new(None),
            vacancy: Vacancy::unknown(),
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

    pub(crate) fn unpublished_names(&self) -> Vec<(Box<[u8]>, Arc<Dir>)> {
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

    /// The right to change names here. `ETIMEDOUT` if somebody has it who waits for a PFS that is given up.
    pub(crate) fn order(&self, pfs: &PfsTree) -> Result<MutexGuard<'_, ()>, NsError> {
        Ok(pfs.pulse().lock(&self.order)?)
    }

    /// The same if it is to be had now; while the PFS answers, that is soon.
    pub(crate) fn try_order(&self, pfs: &PfsTree) -> Option<MutexGuard<'_, ()>> {
        pfs.pulse().try_lock(&self.order)
    }

    /// The same, without waiting.
    pub(crate) fn order_now(&self) -> Option<MutexGuard<'_, ()>> {
        self.order.try_lock()
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
        if absent.as_ref().is_some_and(|(_, n)| **n == *name) {
            *absent = None;
        }
    }

    /// The PFS has just said that it has no such name.
    pub(crate) fn note_absent(&self, name: &[u8]) {
        *self.absent.lock() = Some((Instant::now(), name.into()));
    }

    /// Whether it said so a moment ago: the kernel looks a name up before it creates it.
    pub(crate) fn is_absent(&self, name: &[u8]) -> bool {
        self.absent
            .lock()
            .as_ref()
            .is_some_and(|(at, n)| at.elapsed() < ABSENT_TTL && **n == *name)
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

/// Opens directories by walking down from the root, and keeps a bounded number of them open.
pub(crate) struct Handles {
    open: Mutex<VecDeque<Weak<Dir>>>,
    /// So many are kept.
    most: AtomicUsize,
}

impl Handles {
    pub(crate) fn new() -> Handles {
        Handles {
            open: Mutex::new(VecDeque::new()),
            most: AtomicUsize::new(HANDLES_MAX),
        }
    }

    /// No more than so many are kept from here on.
    pub(crate) fn keep(&self, most: usize) {
        self.most.store(most.min(HANDLES_MAX), Ordering::Relaxed);
    }

    /// The directory's descriptor. `ESTALE` when an outsider has moved or replaced it.
    pub(crate) fn get(
        &self,
        pfs: &PfsTree,
        devices: &Devices,
        dir: &Arc<Dir>,
    ) -> Result<PfsDir, NsError> {
        if let Some(handle) = &*dir.handle.lock() {
            return Ok(handle.clone());
        }
        let Some((parent, name)) = dir.place() else {
            return Ok(pfs.root().clone());
        };
        if dir.removed.load(Ordering::Acquire) {
            return Err(Errno::ENOENT.into());
        }
        let above = self.get(pfs, devices, &parent)?;
        let opened = match dir.hidden() {
            None => pfs.open_dir(&above, &name)?,
            Some(hidden) => match pfs.open_dir(&above, &hidden.name) {
                // It is just getting its name.
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
                    let name = dir.place().map_or_else(|| name.clone(), |(_, name)| name);
                    pfs.open_dir(&above, &name)?
                }
                opened => opened?,
            },
        };
        let stat = pfs.stat_dir(&opened)?;
        let fs = || Ok(pfs.fs_id(&opened)?);
        match devices.key_at((parent.key, &name), stat.id, &fs)? {
            Met::Known(key) if key == dir.key => {}
            _ => return Err(Errno::ESTALE.into()),
        }
        dir.learn(&stat);
        *dir.handle.lock() = Some(opened.clone());
        let mut open = self.open.lock();
        open.push_back(Arc::downgrade(dir));
        while open.len() > self.most.load(Ordering::Relaxed) {
            if let Some(old) = open.pop_front().and_then(|w| w.upgrade()) {
                self.forget(&old);
            }
        }
        Ok(opened)
    }

    /// Forgets a descriptor that may no longer be right. That of a directory that was removed is all that leads to it.
    pub(crate) fn forget(&self, dir: &Dir) {
        let mut handle = dir.handle.lock();
        if !dir.removed.load(Ordering::Acquire) {
            *handle = None;
        }
    }

    /// It was removed: who has it open goes on with this descriptor.
    pub(crate) fn keep_removed(&self, dir: &Dir, handle: PfsDir) {
        let mut held = dir.handle.lock();
        dir.removed.store(true, Ordering::Release);
        *held = Some(handle);
    }
}
