//! An object that holds no descriptor: there are only so many.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use forebay_types::{ObjectId, SetTime};
use rustix::fs::{AtFlags, OFlags};

use super::open_object;
use super::shards::{ObjectName, Shards};
use crate::file::object_stat;
use crate::{Allocate, Identity, Object, ObjectStat, Seek, ahead};

/// An object known by its name in the tier: opened for each call, but for a look at it.
pub(super) struct UnheldObject {
    id: ObjectId,
    shards: Arc<Shards>,
}

impl UnheldObject {
    pub fn new(id: ObjectId, shards: Arc<Shards>) -> UnheldObject {
        UnheldObject { id, shards }
    }

    fn open(&self) -> io::Result<Arc<dyn Object>> {
        open_object(&self.shards, self.id, OFlags::RDONLY)
    }
}

impl Object for UnheldObject {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.open()?.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        self.open()?.write_at(data, offset)
    }

    fn append(&self, data: &[u8]) -> io::Result<(usize, u64)> {
        self.open()?.append(data)
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.open()?.set_len(size)
    }

    fn allocate(&self, mode: Allocate, offset: u64, len: u64) -> io::Result<()> {
        self.open()?.allocate(mode, offset, len)
    }

    fn seek(&self, from: u64, what: Seek) -> io::Result<Option<u64>> {
        self.open()?.seek(from, what)
    }

    fn sync(&self, data_only: bool) -> io::Result<()> {
        self.open()?.sync(data_only)
    }

    fn stat(&self) -> io::Result<ObjectStat> {
        // One call, and possible where no descriptor can be had any more.
        let name = ObjectName::new(self.id);
        let dir = self.shards.dir(self.id);
        let stat = rustix::fs::statat(dir, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW)?;
        if ahead::is_suspected(&stat)
            && ahead::is_made_by(dir)
            && let Ok(held) = self.open().and_then(|object| object.stat())
        {
            return Ok(held);
        }
        Ok(object_stat(&stat, ahead::allocated_bytes(&stat)))
    }

    fn set_times(&self, atime: Option<SetTime>, mtime: Option<SetTime>) -> io::Result<()> {
        self.open()?.set_times(atime, mtime)
    }

    fn set_identity(&self, identity: &Identity) -> io::Result<()> {
        self.open()?.set_identity(identity)
    }

    fn has_writers(&self) -> io::Result<bool> {
        self.open()?.has_writers()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn is_held(&self) -> bool {
        false
    }
}
