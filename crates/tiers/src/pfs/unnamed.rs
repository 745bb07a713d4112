//! Files that have no name until they are whole.
//!
//! Where the file system has them (`O_TMPFILE`: ext4, XFS, btrfs, tmpfs, overlayfs), a copy is one
//! change of a directory instead of two, nobody can see or touch it before it is whole, and a crash
//! leaves nothing behind. NFS, Lustre and most FUSE file systems do not: there a temporary name is
//! used instead.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno as Sys;

use super::tree::{PfsDir, PfsTree, checked, proc_path};

/// What file systems say that have no unnamed files, or cannot name them afterwards: EISDIR and
/// EINVAL come from kernels and file systems that do not know the flag at all.
fn cannot(error: Sys) -> bool {
    matches!(
        error,
        Sys::OPNOTSUPP | Sys::ISDIR | Sys::INVAL | Sys::NOSYS | Sys::XDEV
    )
}

impl PfsTree {
    /// Uses temporary names from now on.
    pub fn without_unnamed(&self) {
        self.unnamed.store(false, Ordering::Release);
    }

    /// Creates a file in the file system of `dir` that has no name yet. `None` where there are no
    /// such files, which is found out once and remembered.
    pub fn create_unnamed(&self, dir: &PfsDir, mode: u32) -> io::Result<Option<File>> {
        if !self.unnamed.load(Ordering::Acquire) {
            return Ok(None);
        }
        self.pass_to_change()?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode & 0o7777);
        match rustix::fs::openat(dir, c".", flags, mode) {
            Ok(fd) => {
                let file = File::from(fd);
                super::tree::read_without_trace(&file);
                Ok(Some(file))
            }
            Err(error) if cannot(error) => {
                self.without_unnamed();
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Gives an unnamed file its name, never replacing: `EEXIST` if it is taken. `Ok(false)`: this
    /// file system cannot, and from now on has no unnamed files.
    pub fn name_file(&self, file: &File, dir: &PfsDir, name: &[u8]) -> io::Result<bool> {
        self.pass_to_change()?;
        let name = checked(name)?;
        let linked = match rustix::fs::linkat(file, c"", dir, name, AtFlags::EMPTY_PATH) {
            // Without the privilege to do so; or the directory is gone, which the second try tells
            // again.
            Err(Sys::NOENT | Sys::PERM | Sys::INVAL) => {
                let path = proc_path(file.as_fd());
                rustix::fs::linkat(CWD, path, dir, name, AtFlags::SYMLINK_FOLLOW)
            }
            linked => linked,
        };
        match linked {
            Ok(()) => Ok(true),
            Err(error) if cannot(error) => {
                self.without_unnamed();
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }
}
