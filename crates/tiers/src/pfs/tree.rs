//! The tree, directories, and what every call on them needs.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use forebay_types::{Errno, FileKind, Statfs, check_name, limits};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno as Sys;

use crate::PfsHealth;

/// A directory of the PFS, held open. Clones share the descriptor.
#[derive(Clone, Debug)]
pub struct PfsDir(pub(super) Arc<OwnedFd>);

impl AsFd for PfsDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PfsEntry {
    /// Name.
    pub name: Vec<u8>,
    /// Inode number.
    pub ino: u64,
    /// Kind.
    pub kind: FileKind,
}

/// Whether changes are let through now; all are, where nobody says otherwise.
#[derive(Default)]
pub(super) struct Changing(Option<Box<dyn Fn() -> bool + Send + Sync>>);

impl fmt::Debug for Changing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "watched" } else { "any" })
    }
}

/// The tree below: the directory given as `--pfs`, and what is beneath it.
#[derive(Debug)]
pub struct PfsTree {
    pub(super) root: PfsDir,
    /// Asked before every call, so that nobody begins to wait for a PFS that is known to be silent.
    pub(super) health: PfsHealth,
    /// Files without a name are to be had, as far as is known.
    pub(super) unnamed: AtomicBool,
    /// Two names can be exchanged, as far as is known.
    pub(super) exchange: AtomicBool,
    /// The time of change of a file stands still when nobody changes it, as far as is known.
    pub(super) steady_ctime: AtomicBool,
    /// One syncfs(2) does for many files.
    pub(super) syncfs_counts: bool,
    /// Asked before every change.
    pub(super) changing: Changing,
}

/// Opened only to be a starting point: needs search permission on the way, none on itself.
pub(super) const DIR_FLAGS: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

pub(super) const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);

pub(super) const STATX: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// Refuses what is no single component, before the kernel sees it.
pub(super) fn checked(name: &[u8]) -> io::Result<&[u8]> {
    match check_name(name) {
        Ok(()) => Ok(name),
        Err(error) => Err(Errno::from(error).into()),
    }
}

/// The kernel's own name of a descriptor, for calls that take no `O_PATH` descriptor. It leads to
/// the very inode, whatever was renamed since, and to a link itself, not to where it points.
pub(super) fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

impl PfsTree {
    /// Opens the tree. Links on the way to `root` are the administrator's and are followed.
    pub fn open(root: &Path) -> io::Result<PfsTree> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(root, flags, Mode::empty())?;
        Ok(PfsTree {
            syncfs_counts: super::flush::syncfs_counts(&fd)?,
            root: PfsDir(Arc::new(fd)),
            health: PfsHealth::none(),
            unnamed: AtomicBool::new(true),
            exchange: AtomicBool::new(true),
            steady_ctime: AtomicBool::new(true),
            changing: Changing::default(),
        })
    }

    /// The same, and watches from now on whether the file system answers: where it is silent, every
    /// call here waits for it up to `give_up_after` and then fails with `ETIMEDOUT`. A call that is
    /// under way when the silence begins blocks as long as that.
    pub fn watched(root: &Path, give_up_after: Duration) -> io::Result<PfsTree> {
        let mut tree = PfsTree::open(root)?;
        let root = tree.root.0.try_clone()?;
        tree.health = PfsHealth::ask(give_up_after, move || {
            let how = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
            let _ = rustix::fs::statx(&root, c"", how, StatxFlags::BASIC_STATS);
            rustix::fs::fstatvfs(&root).ok().map(totals)
        })?;
        Ok(tree)
    }

    /// From now on the file system below is changed only while `may` says so; otherwise a change
    /// fails with `EIO`. For a server that another one may replace while it stands still: what it
    /// had begun before must not happen after that. To be called once.
    pub fn change_only_while(&mut self, may: impl Fn() -> bool + Send + Sync + 'static) {
        self.changing = Changing(Some(Box::new(may)));
    }

    /// Asked last before a change, also by who changes what was opened here. The answer may have
    /// taken its time.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT` while the file system below is given up, `EIO` while it must not be changed.
    pub fn pass_to_change(&self) -> io::Result<()> {
        self.health.pass()?;
        match &self.changing.0 {
            Some(may) if !may() => Err(io::Error::other(
                "nothing is changed there while another server may have taken over",
            )),
            _ => Ok(()),
        }
    }

    /// Whether the file system answers.
    pub fn health(&self) -> &PfsHealth {
        &self.health
    }

    /// The top.
    pub fn root(&self) -> &PfsDir {
        &self.root
    }

    /// Opens a directory by its name. `ENOTDIR` for anything else, links included.
    pub fn open_dir(&self, parent: &PfsDir, name: &[u8]) -> io::Result<PfsDir> {
        self.health.pass()?;
        let fd = rustix::fs::openat(parent, checked(name)?, DIR_FLAGS, Mode::empty())?;
        Ok(PfsDir(Arc::new(fd)))
    }

    /// Opens a directory by its path from the top; an empty path, or "/", is the top. `ELOOP` where
    /// a link is on the way, `EINVAL` for `.` and `..`.
    pub fn open_dir_path(&self, path: &[u8]) -> io::Result<PfsDir> {
        self.health.pass()?;
        let path = path.strip_prefix(b"/").unwrap_or(path);
        if path.is_empty() {
            return Ok(self.root.clone());
        }
        if path.len() >= limits::PATH_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        for component in path.split(|&byte| byte == b'/') {
            checked(component)?;
        }
        match rustix::fs::openat2(&self.root, path, DIR_FLAGS, Mode::empty(), RESOLVE) {
            Ok(fd) => Ok(PfsDir(Arc::new(fd))),
            // Kernels before 5.6, and containers that filter the call.
            Err(Sys::NOSYS | Sys::PERM) => self.walk(path),
            Err(error) => Err(error.into()),
        }
    }

    /// As openat2(2) does it, one component at a time.
    fn walk(&self, path: &[u8]) -> io::Result<PfsDir> {
        let mut dir = self.root.clone();
        for component in path.split(|&byte| byte == b'/') {
            dir = self.open_dir(&dir, component)?;
        }
        Ok(dir)
    }

    /// Whether this thread's user may find names in a directory; `EACCES` if not.
    pub fn may_search(&self, dir: &PfsDir) -> io::Result<()> {
        self.health.pass()?;
        // The way from a directory to itself takes the permission to search it.
        rustix::fs::openat(dir, c".", DIR_FLAGS, Mode::empty())?;
        Ok(())
    }

    /// Whether this thread's user may list a directory; `EACCES` if not.
    pub fn may_list(&self, dir: &PfsDir) -> io::Result<()> {
        self.health.pass()?;
        reopen(dir).map(drop)
    }

    /// Whether this thread's user may read a file; `EACCES` if not. No link is followed.
    pub fn may_read(&self, dir: &PfsDir, name: &[u8]) -> io::Result<()> {
        use rustix::fs::{Access, AtFlags};
        self.health.pass()?;
        let flags = AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW;
        Ok(rustix::fs::accessat(dir, name, Access::READ_OK, flags)?)
    }

    /// Opens a regular file for reading, or for reading and writing; never waits. `ELOOP` for a
    /// link, `EISDIR` for a directory, `ENXIO` for FIFOs, sockets and devices.
    ///
    /// A file that its owner may write but not read is opened for writing only.
    pub fn open_file(&self, dir: &PfsDir, name: &[u8], write: bool) -> io::Result<File> {
        self.health.pass()?;
        let name = checked(name)?;
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        // NONBLOCK: a FIFO put in the file's place must not hold a thread.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(dir, name, access | flags, Mode::empty()) {
            Err(Sys::ACCESS) if write => {
                rustix::fs::openat(dir, name, OFlags::WRONLY | flags, Mode::empty())?
            }
            // Somebody holds a lease on the file: it is safe to wait once it is known to be one.
            Err(Sys::AGAIN) => self.open_waiting(dir, name, access)?,
            result => result?,
        };
        refuse_irregular(fd.as_fd())?;
        Ok(File::from(fd))
    }

    fn open_waiting(&self, dir: &PfsDir, name: &[u8], access: OFlags) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(dir, name, flags, Mode::empty())?;
        refuse_irregular(fd.as_fd())?;
        let path = proc_path(fd.as_fd());
        Ok(rustix::fs::open(
            path,
            access | OFlags::CLOEXEC,
            Mode::empty(),
        )?)
    }

    /// Creates a file that is to be renamed when it is whole. `EEXIST` if the name is taken.
    pub fn create_temporary(&self, dir: &PfsDir, name: &[u8], mode: u32) -> io::Result<File> {
        self.pass_to_change()?;
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode & 0o7777);
        let name = checked(name)?;
        // Never with O_NOATIME: where the PFS gives a new file another owner than this thread's
        // user, that fails although the file has been made.
        let file = File::from(rustix::fs::openat(dir, name, flags, mode)?);
        read_without_trace(&file);
        Ok(file)
    }

    /// Space and inodes of the file system below.
    pub fn statfs(&self) -> io::Result<Statfs> {
        self.health.pass()?;
        Ok(totals(rustix::fs::fstatvfs(&self.root)?))
    }

    /// Type of the file system below, as statfs(2) numbers it.
    pub fn fs_type(&self) -> io::Result<u64> {
        self.health.pass()?;
        Ok(rustix::fs::fstatfs(&self.root)?.f_type as u64)
    }

    /// Which file system a directory is on, as statfs(2) tells it.
    pub fn fs_id(&self, dir: &PfsDir) -> io::Result<FsId> {
        self.health.pass()?;
        let fs_type = rustix::fs::fstatfs(dir)?.f_type as u64;
        let id = rustix::fs::fstatvfs(dir)?.f_fsid;
        Ok(FsId {
            id,
            names_subvolume: SUBVOLUME_TYPES.contains(&fs_type) && id != 0,
        })
    }
}

/// Identity of a file system, beside the number of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsId {
    /// Does not change while it is mounted; 0 where it does not tell.
    pub id: u64,
    /// It is the same after the next mount, and another for each subvolume and snapshot. Elsewhere
    /// it may be made of the number of the device.
    pub names_subvolume: bool,
}

/// File systems whose snapshots have the root of what they are of: Btrfs, ZFS.
pub(super) const SUBVOLUME_TYPES: [u64; 2] = [0x9123_683e, 0x2fc1_2fc1];

/// Reading the copy back must not move the time of last access that it is given, where that can be
/// had.
pub(super) fn read_without_trace(file: &File) {
    if let Ok(flags) = rustix::fs::fcntl_getfl(file) {
        // Refused where the file is not this thread's user's.
        let _ = rustix::fs::fcntl_setfl(file, flags | OFlags::NOATIME);
    }
}

pub(super) fn totals(stat: rustix::fs::StatVfs) -> Statfs {
    Statfs {
        block_bytes: u32::try_from(stat.f_frsize).unwrap_or(u32::MAX),
        blocks: stat.f_blocks,
        blocks_free: stat.f_bfree,
        blocks_available: stat.f_bavail,
        files: stat.f_files,
        files_free: stat.f_ffree,
        name_bytes_max: u32::try_from(stat.f_namemax).unwrap_or(u32::MAX),
    }
}

/// A descriptor of the same directory that can be read and synced, with a position of its own.
pub(super) fn reopen(dir: &PfsDir) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, c".", flags, Mode::empty())?)
}

pub(super) fn refuse_irregular(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mode = rustix::fs::fstat(fd)?.st_mode;
    match FileKind::from_mode(mode) {
        Some(FileKind::Regular) => Ok(()),
        Some(FileKind::Directory) => Err(Errno::EISDIR.into()),
        Some(FileKind::Symlink) => Err(Errno::ELOOP.into()),
        _ => Err(Errno::ENXIO.into()),
    }
}

/// Opens whatever has this name, without following it and without touching it.
pub(super) fn open_path(dir: &PfsDir, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(
        dir,
        checked(name)?,
        flags,
        Mode::empty(),
    )?)
}
