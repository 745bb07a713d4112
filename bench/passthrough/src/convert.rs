//! Attributes, times and errors as FUSE wants them.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, INodeNo, TimeOrNow};
use rustix::fs::{self as sys, Stat, Timespec};

/// What a failed call says.
pub fn errno(error: impl Into<io::Error>) -> Errno {
    Errno::from(error.into())
}

/// A time as the kernel counts it.
fn time(seconds: i64, nanos: u64) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = if seconds < 0 {
        UNIX_EPOCH - whole
    } else {
        UNIX_EPOCH + whole
    };
    base + Duration::from_nanos(nanos)
}

/// The same on the way down; `None` leaves it as it is.
pub fn timespec(time: Option<TimeOrNow>) -> Timespec {
    let nsec = match time {
        None => sys::UTIME_OMIT,
        Some(TimeOrNow::Now) => sys::UTIME_NOW,
        Some(TimeOrNow::SpecificTime(at)) => {
            let nanos = match at.duration_since(UNIX_EPOCH) {
                Ok(after) => i128::try_from(after.as_nanos()).unwrap_or(0),
                Err(before) => -i128::try_from(before.duration().as_nanos()).unwrap_or(0),
            };
            return Timespec {
                tv_sec: nanos.div_euclid(1_000_000_000) as i64,
                tv_nsec: nanos.rem_euclid(1_000_000_000) as i64,
            };
        }
    };
    Timespec {
        tv_sec: 0,
        tv_nsec: nsec,
    }
}

/// What a directory entry is.
pub fn kind(file_type: sys::FileType) -> FileType {
    match file_type {
        sys::FileType::Directory => FileType::Directory,
        sys::FileType::Symlink => FileType::Symlink,
        sys::FileType::Fifo => FileType::NamedPipe,
        sys::FileType::Socket => FileType::Socket,
        sys::FileType::CharacterDevice => FileType::CharDevice,
        sys::FileType::BlockDevice => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

/// What `stat` knows of a file.
pub fn attr(ino: u64, stat: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        crtime: UNIX_EPOCH,
        kind: kind(sys::FileType::from_raw_mode(stat.st_mode)),
        perm: (stat.st_mode & 0o7777) as u16,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: stat.st_rdev as u32,
        blksize: stat.st_blksize as u32,
        flags: 0,
    }
}
