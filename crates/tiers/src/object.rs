//! An object: the bytes that one tier holds of one file.

use std::io;
use std::os::fd::BorrowedFd;

use forebay_types::{SetTime, TimeSpec};

use crate::file::drop_cache_of;
use crate::pages::of_descriptor;
use crate::{BlocksWriters, Identity, WriteBack, WriteBlocker};

/// What is known of an object without reading it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectStat {
    /// Logical size, bytes.
    pub size: u64,
    /// Space it takes in its tier, bytes; less than `size` where there are holes. What XFS sets
    /// aside by itself for a file that grows is not counted.
    pub allocated_bytes: u64,
    /// Last access.
    pub atime: TimeSpec,
    /// Last change of content.
    pub mtime: TimeSpec,
    /// Somebody has removed it from its tier: it goes with whoever has it open last.
    pub is_removed: bool,
}

impl ObjectStat {
    /// Bytes of content that take space: no holes, and nothing that is set aside beyond the end.
    pub fn written_bytes(&self) -> u64 {
        self.size.min(self.allocated_bytes)
    }
}

/// The kinds of fallocate(2) that an object knows. Collapsing and inserting ranges are left out:
/// tmpfs has neither, and a caller answers `EOPNOTSUPP`, as tmpfs does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Allocate {
    /// Takes the space; the size stays (`KEEP_SIZE`).
    Reserve,
    /// Takes the space and grows the file to the end of the range, if that lies beyond; a file does
    /// not grow by one that fails, where its file system knows [`Allocate::Reserve`].
    Extend,
    /// Gives the space back; the range reads as zeros, the size stays.
    PunchHole,
    /// Makes the range read as zeros, with its space taken; grows the file like
    /// [`Allocate::Extend`].
    ZeroRange,
    /// As [`Allocate::ZeroRange`]; the size stays.
    ZeroRangeKeepSize,
}

/// What to look for in [`Object::seek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Seek {
    /// The first data at or after the offset.
    Data,
    /// The first hole at or after the offset; the end of the file counts as one.
    Hole,
}

/// The bytes of one file in one tier. All offsets are absolute: an object has no position.
pub trait Object: Send + Sync {
    /// Fills `buf` from `offset`. Fewer bytes than asked for: the end of the object was there.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `data`, or as much as went before an error that comes back on the next call
    /// (as pwrite(2) on a full file system).
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize>;

    /// Writes at the end, wherever that is by then: two appends at once do not overwrite each
    /// other. Answers with how much was written, which may be less than all of `data`, and with
    /// an offset that this did not end before.
    fn append(&self, data: &[u8]) -> io::Result<(usize, u64)>;

    /// Cuts or grows (with a hole) to `size`.
    fn set_len(&self, size: u64) -> io::Result<()>;

    /// Takes space, gives it back, or zeroes a range.
    fn allocate(&self, mode: Allocate, offset: u64, len: u64) -> io::Result<()>;

    /// Next data or hole at or after `from`; `None` where lseek(2) says `ENXIO`: `from` is at or
    /// beyond the end, or (for data) only a hole follows.
    fn seek(&self, from: u64, what: Seek) -> io::Result<Option<u64>>;

    /// Puts content, size and (unless `data_only`) times and identity on stable storage.
    fn sync(&self, data_only: bool) -> io::Result<()>;

    /// Writes dirty pages of `len` bytes (0: all) from `offset` to the device, or waits for them;
    /// nothing where there are none, or no descriptor.
    ///
    /// # Errors
    /// Of a write-back that has failed, which each descriptor is told once.
    fn write_back(&self, what: WriteBack, offset: u64, len: u64) -> io::Result<()> {
        of_descriptor(self.descriptor(), what, (offset, len))
    }

    /// Size, space and times.
    fn stat(&self) -> io::Result<ObjectStat>;

    /// Sets the times that are given.
    fn set_times(&self, atime: Option<SetTime>, mtime: Option<SetTime>) -> io::Result<()>;

    /// Replaces the identity carried beside the data.
    fn set_identity(&self, identity: &Identity) -> io::Result<()>;

    /// Whether anybody has the object open for writing or mapped so that they can store into it;
    /// this object counts if it was opened for writing. What was `false` stays so until somebody
    /// opens the object for writing.
    ///
    /// # Errors
    /// Where [`crate::Tier::tells_writers`] is `false`.
    fn has_writers(&self) -> io::Result<bool>;

    /// Makes others who write the object wait, until what is returned is dropped. The object must
    /// not be empty.
    ///
    /// # Errors
    /// See [`WriteBlocker::on`].
    fn block_writers(&self) -> io::Result<Box<dyn BlocksWriters>> {
        let blocker = WriteBlocker::on(self.descriptor(), self.stat()?.size)?;
        Ok(Box::new(blocker))
    }

    /// The content was compared and is whole: a flush that has failed before is told to nobody any
    /// more. Only what tells of one again has something to forget: a kernel tells each descriptor
    /// once.
    fn forget_failed_flushes(&self) -> io::Result<()> {
        Ok(())
    }

    /// Asks the kernel that has the object's pages to drop the clean ones, so that the next read
    /// comes from the medium. Only a hint.
    fn drop_cache(&self) -> io::Result<()> {
        self.descriptor().map_or(Ok(()), drop_cache_of)
    }

    /// The open file behind the object, for passthrough and zero copy; `None` where there is none.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Whether it holds what it needs for as long as it lives; else see [`crate::Tier::unheld`].
    fn is_held(&self) -> bool {
        true
    }
}
