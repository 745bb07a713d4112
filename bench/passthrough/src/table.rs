//! The inodes the kernel knows, and the files open on them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use fuser::{BackingId, FileHandle, FileType, INodeNo};
use parking_lot::Mutex;
use rustix::fs::{self as sys, AtFlags, Mode, OFlags, Stat};
use rustix::io::{Errno, Result};

/// An open source file. All opens of one inode share it, since the kernel wants one backing id per
/// inode.
#[derive(Debug)]
pub struct OpenFile {
    /// The source file, open for writing too where that is possible.
    pub file: File,
    /// What the kernel reads and writes through; none with `--plain`.
    pub backing: Option<BackingId>,
}

/// A directory's entries, as they were when it was opened.
pub type Entries = Vec<(u64, FileType, Box<OsStr>)>;

/// Where the source of an inode is found.
#[derive(Clone)]
pub enum Place {
    /// Open: by its descriptor, so that it is found without a name too.
    Open(Arc<OpenFile>),
    /// A directory used before: by its `O_PATH` descriptor.
    Dir(Arc<OwnedFd>),
    /// By an `O_PATH` descriptor, whatever its name is by now.
    Pinned(Arc<OwnedFd>),
    /// By its name in a directory.
    Name(Arc<OwnedFd>, Arc<OsStr>),
}

/// A path that leads to what is open as `fd`.
pub fn path_of(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

struct Node {
    parent: Arc<OwnedFd>,
    name: Arc<OsStr>,
    /// `None` where the table does not pin.
    pin: Option<Arc<OwnedFd>>,
    /// Opened at the first use as a parent. Follows the directory through renames.
    dir: Option<Arc<OwnedFd>>,
    /// Weak here and strong by handle: the last release closes the file.
    open: Weak<OpenFile>,
    /// Tells the kernel that the source has given an old inode number to a new file.
    generation: u64,
    lookups: u64,
}

/// Inodes by the source's inode number (the root is 1), open files and directories by handle.
pub struct Table {
    pins: bool,
    nodes: Mutex<HashMap<u64, Node>>,
    files: Mutex<HashMap<u64, Arc<OpenFile>>>,
    dirs: Mutex<HashMap<u64, Arc<Entries>>>,
    next_handle: AtomicU64,
}

impl Table {
    /// `pins`: each file that the kernel knows is kept open. Without that a lookup that overtakes a
    /// rename leaves the old name behind, and what is done next is done to whatever has that name.
    pub fn new(root: OwnedFd, pins: bool) -> Self {
        let root = Arc::new(root);
        let node = Node {
            parent: Arc::clone(&root),
            name: Arc::from(OsStr::new(".")),
            pin: None,
            dir: Some(root),
            open: Weak::new(),
            generation: 0,
            lookups: 1,
        };
        Self {
            pins,
            nodes: Mutex::new(HashMap::from([(INodeNo::ROOT.0, node)])),
            files: Mutex::default(),
            dirs: Mutex::default(),
            next_handle: AtomicU64::new(1),
        }
    }

    /// What is called `name` in a directory, and what pins it.
    pub fn find(&self, parent: &OwnedFd, name: &OsStr) -> Result<(Stat, Option<OwnedFd>)> {
        if !self.pins {
            return Ok((sys::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?, None));
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let pin = sys::openat(parent, name, flags, Mode::empty())?;
        Ok((sys::fstat(&pin)?, Some(pin)))
    }

    /// What is open, and what pins it.
    pub fn find_open(&self, file: impl AsFd) -> Result<(Stat, Option<OwnedFd>)> {
        let stat = sys::fstat(&file)?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let pin = self
            .pins
            .then(|| sys::open(path_of(file), flags, Mode::empty()));
        Ok((stat, pin.transpose()?))
    }

    /// Counts one more reference of the kernel to what was found as `name`. Returns its generation.
    pub fn remember(
        &self,
        (stat, pin): (&Stat, Option<OwnedFd>),
        parent: &Arc<OwnedFd>,
        name: &OsStr,
        is_new: bool,
    ) -> u64 {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get_mut(&stat.st_ino) {
            node.lookups += 1;
            if is_new {
                node.generation += 1;
                node.pin = pin.map(Arc::new);
                node.dir = None;
                node.open = Weak::new();
            }
            if &*node.name != name || !Arc::ptr_eq(&node.parent, parent) {
                node.name = Arc::from(name);
                node.parent = Arc::clone(parent);
            }
            return node.generation;
        }
        let node = Node {
            parent: Arc::clone(parent),
            name: Arc::from(name),
            pin: pin.map(Arc::new),
            dir: None,
            open: Weak::new(),
            generation: 0,
            lookups: 1,
        };
        nodes.insert(stat.st_ino, node);
        0
    }

    /// The kernel has dropped `count` references to `ino`.
    pub fn forget(&self, ino: INodeNo, count: u64) {
        let mut nodes = self.nodes.lock();
        if ino != INodeNo::ROOT
            && let Some(node) = nodes.get_mut(&ino.0)
        {
            node.lookups = node.lookups.saturating_sub(count);
            if node.lookups == 0 {
                nodes.remove(&ino.0);
            }
        }
    }

    /// After a rename: the inode now found at `name` is there from now on.
    pub fn moved(&self, parent: &Arc<OwnedFd>, name: &OsStr) -> Result<()> {
        let stat = sys::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if let Some(node) = self.nodes.lock().get_mut(&stat.st_ino) {
            node.name = Arc::from(name);
            node.parent = Arc::clone(parent);
        }
        Ok(())
    }

    pub fn place(&self, ino: INodeNo) -> Result<Place> {
        let nodes = self.nodes.lock();
        let node = nodes.get(&ino.0).ok_or(Errno::STALE)?;
        Ok(match (node.open.upgrade(), &node.dir, &node.pin) {
            (Some(open), _, _) => Place::Open(open),
            (None, Some(dir), _) => Place::Dir(Arc::clone(dir)),
            (None, None, Some(pin)) => Place::Pinned(Arc::clone(pin)),
            (None, None, None) => Place::Name(Arc::clone(&node.parent), Arc::clone(&node.name)),
        })
    }

    /// The name that `ino` was found by last; the root's is `.`.
    pub fn name(&self, ino: INodeNo) -> Result<Arc<OsStr>> {
        let nodes = self.nodes.lock();
        let node = nodes.get(&ino.0).ok_or(Errno::STALE)?;
        Ok(Arc::clone(&node.name))
    }

    /// The directory `ino`, opened if it is not yet.
    pub fn dir(&self, ino: INodeNo) -> Result<Arc<OwnedFd>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match self.place(ino)? {
            Place::Dir(dir) => return Ok(dir),
            Place::Pinned(pin) => sys::openat(pin, ".", flags, Mode::empty())?,
            Place::Name(parent, name) => sys::openat(parent, &*name, flags, Mode::empty())?,
            Place::Open(_) => return Err(Errno::NOTDIR),
        };
        let opened = Arc::new(opened);
        let mut nodes = self.nodes.lock();
        let node = nodes.get_mut(&ino.0).ok_or(Errno::STALE)?;
        Ok(Arc::clone(node.dir.get_or_insert(opened)))
    }

    /// Makes `opened` the open file of `ino`, unless another thread was quicker: then that one is
    /// used.
    pub fn share(&self, ino: INodeNo, opened: OpenFile) -> Arc<OpenFile> {
        let opened = Arc::new(opened);
        if let Some(node) = self.nodes.lock().get_mut(&ino.0) {
            match node.open.upgrade() {
                Some(first) => return first,
                None => node.open = Arc::downgrade(&opened),
            }
        }
        opened
    }

    pub fn add_file(&self, file: Arc<OpenFile>) -> FileHandle {
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.files.lock().insert(handle, file);
        FileHandle(handle)
    }

    pub fn file(&self, handle: FileHandle) -> Result<Arc<OpenFile>> {
        let files = self.files.lock();
        files.get(&handle.0).cloned().ok_or(Errno::BADF)
    }

    /// Drops a handle; the caller closes the file by dropping what it gets, outside the lock.
    pub fn remove_file(&self, handle: FileHandle) -> Option<Arc<OpenFile>> {
        self.files.lock().remove(&handle.0)
    }

    pub fn add_dir(&self, entries: Entries) -> FileHandle {
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.dirs.lock().insert(handle, Arc::new(entries));
        FileHandle(handle)
    }

    pub fn entries(&self, handle: FileHandle) -> Result<Arc<Entries>> {
        let dirs = self.dirs.lock();
        dirs.get(&handle.0).cloned().ok_or(Errno::BADF)
    }

    pub fn remove_dir(&self, handle: FileHandle) {
        self.dirs.lock().remove(&handle.0);
    }
}
