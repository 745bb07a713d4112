//! Small files beside the objects, which are replaced as a whole.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use forebay_types::Errno;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno as Sys;

use crate::{FileObject, Object};

/// Reads a small file whole; `None` if there is none. More than `max` bytes: `EFBIG`.
pub(super) fn read_small(dir: &OwnedFd, name: &[u8], max: usize) -> io::Result<Option<Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Err(Sys::NOENT) => return Ok(None),
        result => result?,
    };
    let file = FileObject::from(fd);
    let mut buffer = vec![0; max + 1];
    let count = file.read_at(&mut buffer, 0)?;
    if count > max {
        return Err(Errno::EFBIG.into());
    }
    buffer.truncate(count);
    Ok(Some(buffer))
}

/// Puts a small file in place whole: a new one, synced, renamed over the old one.
pub(super) fn write_small(
    dir: &OwnedFd,
    name: &[u8],
    temporary: &[u8],
    content: &[u8],
) -> io::Result<()> {
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, temporary, flags, Mode::from_raw_mode(0o600))?;
    let file = File::from(fd);
    io::Write::write_all(&mut &file, content)?;
    file.sync_all()?;
    Ok(rustix::fs::renameat(dir, temporary, dir, name)?)
}
