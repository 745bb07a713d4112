//! What stat(2) shows, and what may be set.

use serde::{Deserialize, Serialize};

use crate::Ino;

/// Seconds and nanoseconds since the epoch; seconds may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TimeSpec {
    /// Whole seconds.
    pub sec: i64,
    /// Nanoseconds, 0..1e9.
    pub nsec: u32,
}

impl TimeSpec {
    /// The wall clock now.
    pub fn now() -> TimeSpec {
        match std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
            Ok(since) => TimeSpec {
                sec: since.as_secs() as i64,
                nsec: since.subsec_nanos(),
            },
            Err(before) => TimeSpec {
                sec: -(before.duration().as_secs() as i64) - 1,
                nsec: 0,
            },
        }
    }

    /// Seconds as a floating-point number, for arithmetic that needs no nanoseconds.
    pub fn as_secs_f64(self) -> f64 {
        self.sec as f64 + f64::from(self.nsec) / 1e9
    }
}

/// Kind of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum FileKind {
    /// Regular file: the only kind that the burst buffer holds.
    Regular = 0,
    /// Directory.
    Directory = 1,
    /// Symbolic link.
    Symlink = 2,
    /// FIFO.
    Fifo = 3,
    /// Socket.
    Socket = 4,
    /// Character device.
    CharDevice = 5,
    /// Block device.
    BlockDevice = 6,
}

impl FileKind {
    /// Kind from the file-type bits of `st_mode`; `None` for bits no Linux file system uses.
    pub fn from_mode(mode: u32) -> Option<FileKind> {
        Some(match mode & libc::S_IFMT {
            libc::S_IFREG => FileKind::Regular,
            libc::S_IFDIR => FileKind::Directory,
            libc::S_IFLNK => FileKind::Symlink,
            libc::S_IFIFO => FileKind::Fifo,
            libc::S_IFSOCK => FileKind::Socket,
            libc::S_IFCHR => FileKind::CharDevice,
            libc::S_IFBLK => FileKind::BlockDevice,
            _ => return None,
        })
    }

    /// The file-type bits of `st_mode`.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::Regular => libc::S_IFREG,
            FileKind::Directory => libc::S_IFDIR,
            FileKind::Symlink => libc::S_IFLNK,
            FileKind::Fifo => libc::S_IFIFO,
            FileKind::Socket => libc::S_IFSOCK,
            FileKind::CharDevice => libc::S_IFCHR,
            FileKind::BlockDevice => libc::S_IFBLK,
        }
    }

    /// Inverse of `kind as u8`.
    pub fn from_u8(value: u8) -> Option<FileKind> {
        [
            FileKind::Regular,
            FileKind::Directory,
            FileKind::Symlink,
            FileKind::Fifo,
            FileKind::Socket,
            FileKind::CharDevice,
            FileKind::BlockDevice,
        ]
        .get(value as usize)
        .copied()
    }
}

/// Attributes of one file as the mount shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    /// Id, also `st_ino`.
    pub ino: Ino,
    /// Kind.
    pub kind: FileKind,
    /// Permission bits with suid, sgid and sticky: 0..=0o7777.
    pub perm: u16,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of device files.
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
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetTime {
    /// The server's clock.
    Now,
    /// This time.
    At(TimeSpec),
}

/// Attributes to set; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAttr {
    /// Permission bits, 0..=0o7777.
    pub perm: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size, bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
}

/// A process of one of the nodes. The default is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Process {
    /// The node: 0 for the server's own, else a number that the server gave to the session of the
    /// node's mount. What a client says here does not count.
    pub node: u32,
    /// What the node's kernel calls it; 0 where unknown.
    pub pid: u32,
}

impl Process {
    /// A process of the server's own node.
    pub const fn here(pid: u32) -> Process {
        Process { node: 0, pid }
    }

    /// One number for both.
    pub const fn number(self) -> u64 {
        (self.node as u64) << 32 | self.pid as u64
    }
}

/// Who asks, as the kernel told the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cred {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// The process: by it, supplementary groups and the job are found.
    pub process: Process,
    /// Permission bits that a new file does not get, unless the directory's default ACL decides.
    pub umask: u16,
}

/// How a file is opened: the bits of open(2) that matter below the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFlags(pub u32);

impl OpenFlags {
    /// Opened for reading.
    pub fn reads(self) -> bool {
        matches!(
            self.0 as i32 & libc::O_ACCMODE,
            libc::O_RDONLY | libc::O_RDWR
        )
    }
    /// Opened for writing.
    pub fn writes(self) -> bool {
        matches!(
            self.0 as i32 & libc::O_ACCMODE,
            libc::O_WRONLY | libc::O_RDWR
        )
    }
    /// Opened for reading and writing: only then can it be mapped to be stored into.
    pub fn can_store(self) -> bool {
        self.0 as i32 & libc::O_ACCMODE == libc::O_RDWR
    }
    /// `O_TRUNC`.
    pub fn truncates(self) -> bool {
        self.0 as i32 & libc::O_TRUNC != 0
    }
    /// `O_APPEND`.
    pub fn appends(self) -> bool {
        self.0 as i32 & libc::O_APPEND != 0
    }
    /// `O_EXCL`.
    pub fn exclusive(self) -> bool {
        self.0 as i32 & libc::O_EXCL != 0
    }
    /// The same without what an open does once: `O_CREAT`, `O_EXCL`, `O_TRUNC`.
    #[must_use]
    pub fn without_making(self) -> OpenFlags {
        OpenFlags(self.0 & !((libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC) as u32))
    }
    /// `O_DIRECT`.
    pub fn direct(self) -> bool {
        self.0 as i32 & libc::O_DIRECT != 0
    }
}

/// What statfs(2) shows; sizes in units of `block_bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statfs {
    /// Block size, bytes.
    pub block_bytes: u32,
    /// All blocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for ordinary users.
    pub blocks_available: u64,
    /// All inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Longest name, bytes.
    pub name_bytes_max: u32,
}
