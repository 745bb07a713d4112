//! What is known of a file of the PFS.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

use forebay_types::{FileKind, TimeSpec};
use rustix::fs::{AtFlags, Statx, StatxAttributes, StatxFlags, StatxTimestamp};

use super::tree::{PfsDir, PfsTree, STATX, checked};

/// Tells a file of the PFS apart from another that reuses its inode number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PfsId {
    /// Device.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Time of birth, nanoseconds since the epoch; 0 where unknown.
    pub btime_ns: u64,
}

/// What statx(2) says of a file of the PFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PfsStat {
    /// Which file it is.
    pub id: PfsId,
    /// Type and permission bits.
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of device files, as FUSE encodes it.
    pub rdev: u32,
    /// Logical size, bytes.
    pub size: u64,
    /// Allocated space, units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: TimeSpec,
    /// Last change of content.
    pub mtime: TimeSpec,
    /// Last change of content or attributes.
    pub ctime: TimeSpec,
    /// Whether `ctime` stands still when nobody changes the file: see [`PfsTree::rename`].
    pub has_steady_ctime: bool,
    /// Nobody may change it, root neither (`chattr +i`).
    pub is_immutable: bool,
    /// Nobody may change what is in it, but append to it (`chattr +a`).
    pub is_append_only: bool,
}

impl PfsStat {
    /// Kind. Type bits that Linux does not know count as a socket: nothing that is ever opened.
    pub fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode).unwrap_or(FileKind::Socket)
    }

    /// Permission bits with suid, sgid and sticky.
    pub fn perm(&self) -> u16 {
        (self.mode & 0o7777) as u16
    }

    /// Whether no other file can take its place on the PFS: it is changed there, or not at all.
    pub fn keeps_its_place(&self) -> bool {
        self.is_immutable || self.is_append_only
    }

    /// Whether nothing says that the content changed between the two: the same file, of the same
    /// size, with the same times of change.
    pub fn same_content(&self, other: &PfsStat) -> bool {
        self.id == other.id
            && self.size == other.size
            && self.mtime == other.mtime
            && (self.ctime == other.ctime || !(self.has_steady_ctime && other.has_steady_ctime))
    }
}

fn time(stamp: StatxTimestamp) -> TimeSpec {
    TimeSpec {
        sec: stamp.tv_sec,
        nsec: stamp.tv_nsec,
    }
}

impl From<Statx> for PfsStat {
    fn from(stat: Statx) -> PfsStat {
        let has_birth = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
        let birth = stat.stx_btime;
        let birth_ns = i128::from(birth.tv_sec) * 1_000_000_000 + i128::from(birth.tv_nsec);
        PfsStat {
            id: PfsId {
                dev: libc::makedev(stat.stx_dev_major, stat.stx_dev_minor),
                ino: stat.stx_ino,
                btime_ns: match u64::try_from(birth_ns) {
                    Ok(birth_ns) if has_birth => birth_ns,
                    _ => 0,
                },
            },
            mode: u32::from(stat.stx_mode),
            nlink: stat.stx_nlink,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            // The lower half is the kernel's own 32-bit encoding.
            rdev: libc::makedev(stat.stx_rdev_major, stat.stx_rdev_minor) as u32,
            size: stat.stx_size,
            blocks: stat.stx_blocks,
            atime: time(stat.stx_atime),
            mtime: time(stat.stx_mtime),
            ctime: time(stat.stx_ctime),
            has_steady_ctime: true,
            is_immutable: stat.stx_attributes.contains(StatxAttributes::IMMUTABLE),
            is_append_only: stat.stx_attributes.contains(StatxAttributes::APPEND),
        }
    }
}

impl PfsTree {
    /// Of a directory.
    pub fn stat_dir(&self, dir: &PfsDir) -> io::Result<PfsStat> {
        self.health.pass()?;
        self.stat_fd(dir.as_fd())
    }

    /// Of an entry; of a link itself. What the kernel believes of it: of a network or FUSE file
    /// system that may be some seconds old, and wrong in its time of change.
    pub fn stat(&self, dir: &PfsDir, name: &[u8]) -> io::Result<PfsStat> {
        self.stat_entry(dir, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// The same as the PFS itself has it: to be compared with what was published, or kept for that.
    pub fn stat_now(&self, dir: &PfsDir, name: &[u8]) -> io::Result<PfsStat> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
        self.stat_entry(dir, name, flags)
    }

    fn stat_entry(&self, dir: &PfsDir, name: &[u8], flags: AtFlags) -> io::Result<PfsStat> {
        self.health.pass()?;
        let stat = rustix::fs::statx(dir, checked(name)?, flags, STATX)?;
        Ok(self.stat_of(stat))
    }

    /// statx(2) of an open file, of any kind, as the PFS itself has it.
    pub(super) fn stat_fd(&self, fd: BorrowedFd<'_>) -> io::Result<PfsStat> {
        let how = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        Ok(self.stat_of(rustix::fs::statx(fd, c"", how, STATX)?))
    }

    fn stat_of(&self, stat: Statx) -> PfsStat {
        PfsStat {
            has_steady_ctime: self.steady_ctime.load(Ordering::Acquire),
            ..PfsStat::from(stat)
        }
    }

    /// Of an open file.
    pub fn stat_file(&self, file: &File) -> io::Result<PfsStat> {
        self.health.pass()?;
        self.stat_fd(file.as_fd())
    }
}
