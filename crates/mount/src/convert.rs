//! Conversions between fuser's types and Forebay's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_types::{Attr, Cred, Errno, FileKind, Ino, Process, SetTime, TimeSpec, XattrMode};
use forebay_wire::{SeekWhat, SpaceChange};
use fuser::{FileAttr, FileType, INodeNo, Request, TimeOrNow};

pub(crate) fn time(at: TimeSpec) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(at.nsec));
    match u64::try_from(at.sec) {
        Ok(sec) => UNIX_EPOCH + Duration::from_secs(sec) + nanos,
        Err(_) => UNIX_EPOCH - Duration::from_secs(at.sec.unsigned_abs()) + nanos,
    }
}

pub(crate) fn time_spec(at: SystemTime) -> TimeSpec {
    match at.duration_since(UNIX_EPOCH) {
        Ok(since) => TimeSpec {
            sec: since.as_secs() as i64,
            nsec: since.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            let (sec, nsec) = (-(before.as_secs() as i64), before.subsec_nanos());
            match nsec {
                0 => TimeSpec { sec, nsec: 0 },
                nsec => TimeSpec {
                    sec: sec - 1,
                    nsec: 1_000_000_000 - nsec,
                },
            }
        }
    }
}

pub(crate) fn set_time(at: TimeOrNow) -> SetTime {
    match at {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(at) => SetTime::At(time_spec(at)),
    }
}

pub(crate) fn kind(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

pub(crate) fn attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino.0),
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: kind(attr.kind),
        perm: attr.perm,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: 1 << 20,
        flags: 0,
    }
}

pub(crate) fn cred(request: &Request) -> Cred {
    Cred {
        uid: request.uid(),
        gid: request.gid(),
        process: Process::here(request.pid()),
        umask: 0,
    }
}

/// Who sends a request that creates something, with the umask.
pub(crate) fn maker(request: &Request, umask: u32) -> Cred {
    Cred {
        umask: (umask & 0o777) as u16,
        ..cred(request)
    }
}

pub(crate) fn ino(ino: INodeNo) -> Ino {
    Ino(ino.0)
}

pub(crate) fn errno(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.0)
}

/// What the flags of setxattr(2) ask for; `None` if they contradict each other or are unknown.
pub(crate) fn xattr_mode(flags: i32) -> Option<XattrMode> {
    match flags {
        0 => Some(XattrMode::Set),
        libc::XATTR_CREATE => Some(XattrMode::Create),
        libc::XATTR_REPLACE => Some(XattrMode::Replace),
        _ => None,
    }
}

/// The change that a mode of fallocate(2) asks for; `None` if it is not supported.
pub(crate) fn space_change(mode: i32) -> Option<SpaceChange> {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    match mode {
        0 => Some(SpaceChange::Allocate),
        KEEP => Some(SpaceChange::Reserve),
        m if m == libc::FALLOC_FL_PUNCH_HOLE | KEEP => Some(SpaceChange::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Some(SpaceChange::ZeroRange),
        m if m == libc::FALLOC_FL_ZERO_RANGE | KEEP => Some(SpaceChange::ZeroRangeKeepSize),
        _ => None,
    }
}

/// What lseek(2) looks for, data or a hole; the kernel does all other kinds by itself.
pub(crate) fn seek_what(whence: i32) -> Option<SeekWhat> {
    match whence {
        libc::SEEK_DATA => Some(SeekWhat::Data),
        libc::SEEK_HOLE => Some(SeekWhat::Hole),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_the_epoch_survive() {
        for at in [
            TimeSpec { sec: 0, nsec: 0 },
            TimeSpec {
                sec: 1_700_000_000,
                nsec: 999_999_999,
            },
            TimeSpec {
                sec: -1,
                nsec: 500_000_000,
            },
            TimeSpec { sec: -7, nsec: 0 },
        ] {
            assert_eq!(time_spec(time(at)), at);
        }
    }
}
