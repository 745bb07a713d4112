//! Setting attributes, never through a link.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use forebay_types::{Errno, FileKind, SetAttr};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid};

use super::node::PfsNode;
use super::tree::{PfsDir, PfsTree, proc_path};
use crate::file::timestamps;

impl PfsTree {
    /// Sets attributes. `EOPNOTSUPP` for permission bits of a link.
    pub fn set_attr(&self, node: &PfsNode, set: &SetAttr) -> io::Result<()> {
        self.pass_to_change()?;
        apply(node.as_fd(), node.kind(), set)
    }

    /// Sets attributes of a directory.
    pub fn set_attr_dir(&self, dir: &PfsDir, set: &SetAttr) -> io::Result<()> {
        self.pass_to_change()?;
        apply(dir.as_fd(), FileKind::Directory, set)
    }

    /// Sets attributes of an open regular file; for a size, it must be open for writing.
    pub fn set_attr_file(&self, file: &File, set: &SetAttr) -> io::Result<()> {
        self.pass_to_change()?;
        if let Some(size) = set.size {
            file.set_len(size)?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            rustix::fs::fchown(file, set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw))?;
        }
        if let Some(perm) = set.perm {
            rustix::fs::fchmod(file, mode(perm))?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            rustix::fs::futimens(file, &timestamps(set.atime, set.mtime))?;
        }
        Ok(())
    }
}

fn mode(perm: u16) -> Mode {
    Mode::from_raw_mode(u32::from(perm & 0o7777))
}

/// The order matters: a change of size needs the old permissions, clears set-id bits and sets the
/// times; chown(2) clears set-id bits too.
fn apply(fd: BorrowedFd<'_>, kind: FileKind, set: &SetAttr) -> io::Result<()> {
    let path = proc_path(fd);
    if let Some(size) = set.size {
        match kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR.into()),
            _ => return Err(Errno::EINVAL.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::open(path.as_str(), flags, Mode::empty())?;
        rustix::io::retry_on_intr(|| rustix::fs::ftruncate(&file, size))?;
    }
    if set.uid.is_some() || set.gid.is_some() {
        rustix::fs::chownat(
            fd,
            c"",
            set.uid.map(Uid::from_raw),
            set.gid.map(Gid::from_raw),
            AtFlags::EMPTY_PATH,
        )?;
    }
    if let Some(perm) = set.perm {
        if kind == FileKind::Symlink {
            // Some file systems would change a link's mode, which then means nothing.
            return Err(Errno::EOPNOTSUPP.into());
        }
        rustix::fs::chmod(path.as_str(), mode(perm))?;
    }
    if set.atime.is_some() || set.mtime.is_some() {
        let times = timestamps(set.atime, set.mtime);
        rustix::fs::utimensat(CWD, path.as_str(), &times, AtFlags::empty())?;
    }
    Ok(())
}
