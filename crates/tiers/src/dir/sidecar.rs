//! Identities in files of their own, for file systems without user attributes.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use forebay_types::{ObjectId, SetTime};
use rustix::fs::{AtFlags, Mode, RawDir};
use rustix::io::Errno as Sys;

use super::shards::{DIRENTS_BYTES, Shards, parse_name};
use super::small::{read_small, write_small};
use crate::{Allocate, FileObject, Identity, Object, ObjectStat, Seek};

fn name_of(id: ObjectId) -> String {
    format!("{id}.id")
}

/// The encoded identity; `None` if there is none, `ENOENT` if there is no object either.
pub(super) fn read(shards: &Shards, id: ObjectId) -> io::Result<Option<Vec<u8>>> {
    let dir = shards.dir(id);
    let bytes = read_small(dir, name_of(id).as_bytes(), Identity::ENCODED_BYTES_MAX)?;
    if bytes.is_none() {
        rustix::fs::statat(dir, id.to_string(), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(bytes)
}

/// Removes an object and its identity. The identity goes last: what a crash leaves of it is
/// replaced when the id is used again. It goes also where the object has become a file elsewhere:
/// `ENOENT` then.
pub(super) fn remove(shards: &Shards, id: ObjectId) -> io::Result<()> {
    let _one_at_a_time = shards.sidecars.lock();
    let removed = rustix::fs::unlinkat(shards.dir(id), id.to_string(), AtFlags::empty());
    if !matches!(removed, Ok(()) | Err(Sys::NOENT)) {
        return Ok(removed?);
    }
    match rustix::fs::unlinkat(shards.dir(id), name_of(id), AtFlags::empty()) {
        Ok(()) | Err(Sys::NOENT) => Ok(removed?),
        Err(error) => Err(error.into()),
    }
}

/// Removes the identities that a crash has left in a directory without their objects.
pub(super) fn sweep(dir: BorrowedFd<'_>) -> io::Result<()> {
    let fd = rustix::fs::openat(dir, c".", super::shards::DIR_FLAGS, Mode::empty())?;
    let mut buffer = [MaybeUninit::uninit(); DIRENTS_BYTES];
    let mut entries = RawDir::new(fd, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        let id = name.strip_suffix(b".new").unwrap_or(name);
        let Some(id) = id.strip_suffix(b".id").and_then(parse_name) else {
            continue;
        };
        let object = rustix::fs::statat(dir, id.to_string(), AtFlags::SYMLINK_NOFOLLOW);
        if object.is_err_and(|error| error == Sys::NOENT) {
            rustix::fs::unlinkat(dir, entry.file_name(), AtFlags::empty())?;
        }
    }
    Ok(())
}

/// An object whose identity is a file beside it.
pub(super) struct SidecarObject {
    file: FileObject,
    id: ObjectId,
    shards: Arc<Shards>,
}

impl SidecarObject {
    pub fn new(file: FileObject, id: ObjectId, shards: Arc<Shards>) -> SidecarObject {
        SidecarObject { file, id, shards }
    }
}

impl Object for SidecarObject {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        self.file.write_at(data, offset)
    }

    fn append(&self, data: &[u8]) -> io::Result<(usize, u64)> {
        self.file.append(data)
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.file.set_len(size)
    }

    fn allocate(&self, mode: Allocate, offset: u64, len: u64) -> io::Result<()> {
        self.file.allocate(mode, offset, len)
    }

    fn seek(&self, from: u64, what: Seek) -> io::Result<Option<u64>> {
        self.file.seek(from, what)
    }

    fn sync(&self, data_only: bool) -> io::Result<()> {
        self.file.sync(data_only)
    }

    fn stat(&self) -> io::Result<ObjectStat> {
        self.file.stat()
    }

    fn set_times(&self, atime: Option<SetTime>, mtime: Option<SetTime>) -> io::Result<()> {
        self.file.set_times(atime, mtime)
    }

    fn set_identity(&self, identity: &Identity) -> io::Result<()> {
        let _one_at_a_time = self.shards.sidecars.lock();
        if rustix::fs::fstat(self.file.file())?.st_nlink == 0 {
            // Removed: the name may be another object's by now.
            return Ok(());
        }
        let name = name_of(self.id);
        write_small(
            self.shards.dir(self.id),
            name.as_bytes(),
            format!("{name}.new").as_bytes(),
            &identity.encode(),
        )?;
        self.shards.mark_changed(Shards::index(self.id));
        Ok(())
    }

    fn has_writers(&self) -> io::Result<bool> {
        self.file.has_writers()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.descriptor()
    }
}
