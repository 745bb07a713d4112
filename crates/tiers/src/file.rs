//! An object over any open file.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use forebay_types::{SetTime, TimeSpec};
use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom, Timespec, Timestamps, XattrFlags};
use rustix::io::{Errno as Sys, ReadWriteFlags};

use crate::{Allocate, Identity, Object, ObjectStat, Seek, ahead, writers};

/// Attribute that carries an [`Identity`].
pub(crate) const IDENTITY_XATTR: &str = "user.forebay.object";

/// An [`Object`] over any open regular file, for example one on the PFS.
#[derive(Debug)]
pub struct FileObject {
    file: File,
    shared: bool,
}

/// The file to change an object through.
enum Writable<'a> {
    Own(&'a File),
    /// Open for one change.
    Opened(File),
}

impl std::ops::Deref for Writable<'_> {
    type Target = File;

    fn deref(&self) -> &File {
        match self {
            Writable::Own(file) => file,
            Writable::Opened(file) => file,
        }
    }
}

impl FileObject {
    /// Wraps a file that was opened for reading, for writing, or for both.
    pub fn new(file: File) -> FileObject {
        let shared = false;
        FileObject { file, shared }
    }

    /// Wraps a file that was opened for reading and that others write through descriptors of their
    /// own. A change through this object opens the file for as long as that takes, so that
    /// [`Object::has_writers`] tells of the others.
    pub fn shared(file: File) -> FileObject {
        let shared = true;
        FileObject { file, shared }
    }

    fn writable(&self) -> io::Result<Writable<'_>> {
        match self.shared {
            false => Ok(Writable::Own(&self.file)),
            true => reopen(self.file.as_fd(), OFlags::WRONLY).map(Writable::Opened),
        }
    }

    /// Takes away what [`Object::set_identity`] has left: the file is an ordinary one from now on.
    pub fn clear_identity(&self) -> io::Result<()> {
        match rustix::fs::fremovexattr(&self.file, IDENTITY_XATTR) {
            Ok(()) | Err(Sys::NODATA | Sys::OPNOTSUPP) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file back.
    pub fn into_file(self) -> File {
        self.file
    }
}

/// Asks the kernel to drop the clean pages of a file.
pub(crate) fn drop_cache_of(file: BorrowedFd<'_>) -> io::Result<()> {
    let all = None;
    let unwanted = rustix::fs::Advice::DontNeed;
    Ok(rustix::fs::fadvise(file, 0, all, unwanted)?)
}

impl From<OwnedFd> for FileObject {
    fn from(fd: OwnedFd) -> FileObject {
        FileObject::new(File::from(fd))
    }
}

/// The same file once more, whatever its name is by now, or whether it has one.
pub(crate) fn reopen(file: BorrowedFd<'_>, access: OFlags) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let fd = rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty())?;
    Ok(File::from(fd))
}

/// A time as utimensat(2) wants it; `None` leaves it as it is.
pub(crate) fn timespec(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_OMIT,
        },
        Some(SetTime::Now) => Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_NOW,
        },
        Some(SetTime::At(time)) => Timespec {
            tv_sec: time.sec,
            tv_nsec: i64::from(time.nsec),
        },
    }
}

pub(crate) fn timestamps(atime: Option<SetTime>, mtime: Option<SetTime>) -> Timestamps {
    Timestamps {
        last_access: timespec(atime),
        last_modification: timespec(mtime),
    }
}

/// What of it is an object's, which takes so much space.
pub(crate) fn object_stat(stat: &rustix::fs::Stat, allocated_bytes: u64) -> ObjectStat {
    ObjectStat {
        size: stat.st_size as u64,
        allocated_bytes,
        atime: TimeSpec {
            sec: stat.st_atime,
            nsec: stat.st_atime_nsec as u32,
        },
        mtime: TimeSpec {
            sec: stat.st_mtime,
            nsec: stat.st_mtime_nsec as u32,
        },
        is_removed: stat.st_nlink == 0,
    }
}

/// tmpfs and some network file systems cannot zero a range: a hole with space put under it reads
/// the same.
fn zero_by_hole(file: &File, keep_size: bool, offset: u64, len: u64) -> rustix::io::Result<()> {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let take = if keep_size {
        FallocateFlags::KEEP_SIZE
    } else {
        FallocateFlags::empty()
    };
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, punch, offset, len))?;
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, take, offset, len))
}

impl FileObject {}

impl Object for FileObject {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        let file = self.writable()?;
        let mut done = 0;
        while done < data.len() {
            match file.write_at(&data[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn append(&self, data: &[u8]) -> io::Result<(usize, u64)> {
        let file = self.writable()?;
        let part = [io::IoSlice::new(data)];
        // One call: what a second one writes might lie behind somebody else's append.
        let done = loop {
            match rustix::io::pwritev2(&*file, &part, 0, ReadWriteFlags::APPEND) {
                Err(Sys::INTR) => {}
                done => break done?,
            }
        };
        Ok((done, file.metadata()?.len()))
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.writable()?.set_len(size)
    }

    fn allocate(&self, mode: Allocate, offset: u64, len: u64) -> io::Result<()> {
        let flags = match mode {
            Allocate::Reserve => FallocateFlags::KEEP_SIZE,
            Allocate::Extend => FallocateFlags::empty(),
            Allocate::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Allocate::ZeroRange => FallocateFlags::ZERO_RANGE,
            Allocate::ZeroRangeKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        };
        let file = &*self.writable()?;
        let allocate =
            |flags| rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, flags, offset, len));
        if mode == Allocate::Extend {
            // One that fails half-way would have made the file longer. NFS does not know this one.
            match allocate(FallocateFlags::KEEP_SIZE) {
                Ok(()) | Err(Sys::OPNOTSUPP) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match (mode, allocate(flags)) {
            (Allocate::ZeroRange, Err(Sys::OPNOTSUPP)) => {
                Ok(zero_by_hole(file, false, offset, len)?)
            }
            (Allocate::ZeroRangeKeepSize, Err(Sys::OPNOTSUPP)) => {
                Ok(zero_by_hole(file, true, offset, len)?)
            }
            (_, result) => Ok(result?),
        }
    }

    fn seek(&self, from: u64, what: Seek) -> io::Result<Option<u64>> {
        let whence = match what {
            Seek::Data => SeekFrom::Data(from),
            Seek::Hole => SeekFrom::Hole(from),
        };
        match rustix::fs::seek(&self.file, whence) {
            Ok(offset) => Ok(Some(offset)),
            Err(Sys::NXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn sync(&self, data_only: bool) -> io::Result<()> {
        if data_only {
            self.file.sync_data()
        } else {
            self.file.sync_all()
        }
    }

    fn stat(&self) -> io::Result<ObjectStat> {
        let stat = rustix::fs::fstat(&self.file)?;
        let allocated_bytes = ahead::charged_bytes(&self.file, &stat);
        Ok(object_stat(&stat, allocated_bytes))
    }

    fn set_times(&self, atime: Option<SetTime>, mtime: Option<SetTime>) -> io::Result<()> {
        Ok(rustix::fs::futimens(&self.file, &timestamps(atime, mtime))?)
    }

    fn set_identity(&self, identity: &Identity) -> io::Result<()> {
        let set = |value: &[u8]| {
            rustix::fs::fsetxattr(&self.file, IDENTITY_XATTR, value, XattrFlags::empty())
        };
        match set(&identity.encode()) {
            // ext4 keeps all attributes of a file in one block and says "no space" for more.
            Err(Sys::NOSPC | Sys::TOOBIG | Sys::RANGE) if !identity.path.is_empty() => {
                Ok(set(&identity.encode_without_path())?)
            }
            result => Ok(result?),
        }
    }

    fn has_writers(&self) -> io::Result<bool> {
        writers::exist(self.file.as_fd())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}
