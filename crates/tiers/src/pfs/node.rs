//! One inode of the PFS, whatever is done to its names.
//!
//! Between a look at a name and a change of what it stands for, whoever may write to the directory
//! can give the name to something else. So what has a name is opened once, compared with what it is
//! taken for, and from then on known by its descriptor only.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use forebay_types::FileKind;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};

use super::stat::PfsStat;
use super::tree::{PfsDir, PfsTree, checked, open_path, proc_path, refuse_irregular};

/// Anything on the PFS, held by a descriptor that neither follows nor touches it.
#[derive(Debug)]
pub struct PfsNode {
    fd: OwnedFd,
    found: PfsStat,
}

impl PfsNode {
    /// What was found under the name.
    pub fn found(&self) -> &PfsStat {
        &self.found
    }

    /// Kind.
    pub fn kind(&self) -> FileKind {
        self.found.kind()
    }

    /// A path that leads to it and nothing else, for calls that take no such descriptor.
    pub(super) fn path(&self) -> String {
        proc_path(self.fd.as_fd())
    }
}

impl AsFd for PfsNode {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl PfsTree {
    /// What has a name; a link itself.
    pub fn node(&self, dir: &PfsDir, name: &[u8]) -> io::Result<PfsNode> {
        self.health.pass()?;
        let fd = open_path(dir, name)?;
        let found = self.stat_fd(fd.as_fd())?;
        Ok(PfsNode { fd, found })
    }

    /// What it is like now.
    pub fn stat_node(&self, node: &PfsNode) -> io::Result<PfsStat> {
        self.health.pass()?;
        self.stat_fd(node.as_fd())
    }

    /// Gives it a further name, which must be free.
    pub fn link_node(&self, node: &PfsNode, dir: &PfsDir, name: &[u8]) -> io::Result<()> {
        self.pass_to_change()?;
        let name = checked(name)?;
        let follow = AtFlags::SYMLINK_FOLLOW;
        Ok(rustix::fs::linkat(CWD, node.path(), dir, name, follow)?)
    }

    /// Opens it, a regular file, for reading, or for reading and writing; see
    /// [`PfsTree::open_file`].
    pub fn open_node(&self, node: &PfsNode, write: bool) -> io::Result<File> {
        self.health.pass()?;
        refuse_irregular(node.as_fd())?;
        let open = |access: OFlags| {
            let flags = access | OFlags::NOCTTY | OFlags::CLOEXEC;
            rustix::fs::open(node.path(), flags, Mode::empty())
        };
        let fd = match write {
            false => open(OFlags::RDONLY),
            true => match open(OFlags::RDWR) {
                Err(rustix::io::Errno::ACCESS) => open(OFlags::WRONLY),
                opened => opened,
            },
        };
        Ok(fd?.into())
    }
}
