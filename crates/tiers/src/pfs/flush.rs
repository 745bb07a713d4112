//! What is on stable storage, and how that is asked for.
//!
//! syncfs(2) is one call for any number of files, but only some file systems have everything on
//! stable storage when it returns. To a FUSE file system the kernel sends nothing at all, and other
//! file systems promise nothing. There every file is flushed by its own fsync(2).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use forebay_types::FileKind;

use super::stat::PfsStat;
use super::tree::{PfsDir, PfsTree, reopen};

/// File systems on devices of this node that have everything on stable storage when syncfs(2)
/// returns: ext2 to ext4, XFS, btrfs; and tmpfs, which has none.
const SYNCFS_COUNTS: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994];

/// Whether syncfs(2) is all that it takes on the file system of `dir`.
pub(crate) fn syncfs_counts(dir: impl AsFd) -> io::Result<bool> {
    let kind = rustix::fs::fstatfs(dir)?.f_type as u64;
    // Some architectures extend the sign.
    Ok(SYNCFS_COUNTS.contains(&(kind & 0xffff_ffff)))
}

/// One flush for many files. The kernel tells each descriptor once of an error of the file system's
/// write-back. This descriptor is nobody else's. If it was opened before the files were written, it
/// is told of every error of theirs.
#[derive(Debug)]
pub struct FlushTogether {
    dir: OwnedFd,
    dev: u64,
}

impl FlushTogether {
    /// Whether the flush covers this file: other file systems may be mounted in the tree.
    pub fn covers(&self, file: &PfsStat) -> bool {
        file.id.dev == self.dev
    }
}

impl PfsTree {
    /// Whether one flush does for all files of the file system.
    pub fn flushes_together(&self) -> bool {
        self.syncfs_counts
    }

    /// To be had before the first byte is written. `None` where files have to be flushed one by
    /// one.
    pub fn flush_together(&self) -> io::Result<Option<FlushTogether>> {
        if !self.syncfs_counts {
            return Ok(None);
        }
        self.health.pass()?;
        let dir = reopen(&self.root)?;
        let dev = self.stat_fd(dir.as_fd())?.id.dev;
        Ok(Some(FlushTogether { dir, dev }))
    }

    /// Puts all that was written in the file system on stable storage.
    pub fn sync_together(&self, together: &FlushTogether) -> io::Result<()> {
        self.health.pass()?;
        Ok(rustix::fs::syncfs(&together.dir)?)
    }

    /// Puts the names in a directory on stable storage.
    pub fn sync_dir(&self, dir: &PfsDir) -> io::Result<()> {
        self.health.pass()?;
        Ok(rustix::fs::fsync(reopen(dir)?)?)
    }

    /// Puts a directory with all that is below it on stable storage, other file systems that are
    /// mounted there too.
    pub fn sync_tree(&self, dir: &PfsDir) -> io::Result<()> {
        let together = self.flush_together()?;
        if let Some(together) = &together {
            self.sync_together(together)?;
        }
        self.sync_below(dir, together.as_ref())
    }

    /// One by one, but for what a flush has covered.
    fn sync_below(&self, dir: &PfsDir, done: Option<&FlushTogether>) -> io::Result<()> {
        if done.is_some_and(|done| self.stat_dir(dir).is_ok_and(|stat| done.covers(&stat))) {
            return Ok(());
        }
        let (mut dirs, mut files) = (Vec::new(), Vec::new());
        self.read_dir(dir, &mut |entry| match entry.kind {
            FileKind::Directory => dirs.push(entry.name),
            FileKind::Regular => files.push(entry.name),
            _ => {}
        })?;
        for name in dirs {
            match self.open_dir(dir, &name) {
                Ok(child) => self.sync_below(&child, done)?,
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        for name in files {
            match self.open_file(dir, &name, false) {
                Ok(file) => self.sync_file(&file)?,
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        self.sync_dir(dir)
    }

    /// Puts a file on stable storage.
    pub fn sync_file(&self, file: &File) -> io::Result<()> {
        self.health.pass()?;
        file.sync_all()
    }
}

/// Removed or replaced meanwhile; or nobody without privilege may open it, who could not have
/// changed it either.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::EISDIR | libc::EACCES)
    )
}
