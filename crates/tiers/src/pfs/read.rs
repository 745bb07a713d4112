//! Listing directories and reading links.

use std::io;
use std::mem::MaybeUninit;

use forebay_types::{Errno, FileKind, Generation, ObjectId};
use rustix::fs::{FileType, RawDir};

use super::names::{INSTANCE_BYTES, PREFIX};
use super::node::PfsNode;
use super::tree::{PfsDir, PfsEntry, PfsTree, reopen};

/// One getdents64(2): some thousand short names. On the stack.
const DIRENTS_BYTES: usize = 32 << 10;

fn kind_of(kind: FileType) -> Option<FileKind> {
    Some(match kind {
        FileType::RegularFile => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        _ => return None,
    })
}

impl PfsTree {
    /// Visits every entry but `.`, `..` and Forebay's own files that are not whole yet, in the
    /// order of the file system below. Readers do not disturb each other.
    pub fn read_dir(&self, dir: &PfsDir, visit: &mut dyn FnMut(PfsEntry)) -> io::Result<()> {
        self.health.pass()?;
        let fd = reopen(dir)?;
        let mut buffer = [MaybeUninit::uninit(); DIRENTS_BYTES];
        let mut entries = RawDir::new(fd, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." || PfsTree::is_temporary(name) {
                continue;
            }
            let kind = match kind_of(entry.file_type()) {
                Some(kind) => kind,
                None => match self.stat(dir, name) {
                    Ok(stat) => stat.kind(),
                    // Removed since it was listed.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                },
            };
            visit(PfsEntry {
                name: name.to_vec(),
                ino: entry.ino(),
                kind,
            });
        }
        Ok(())
    }

    /// Names in a directory of files that an instance has not finished copying.
    pub fn temporaries(&self, dir: &PfsDir, instance: [u8; 16]) -> io::Result<Vec<Vec<u8>>> {
        let mut names = self.hidden_names(dir, instance)?;
        names.retain(|name| !PfsTree::is_version(name));
        Ok(names)
    }

    /// Names in a directory of versions that an instance has not published.
    pub fn versions(&self, dir: &PfsDir, instance: [u8; 16]) -> io::Result<Vec<Vec<u8>>> {
        let mut names = self.hidden_names(dir, instance)?;
        names.retain(|name| PfsTree::is_version(name));
        Ok(names)
    }

    fn hidden_names(&self, dir: &PfsDir, instance: [u8; 16]) -> io::Result<Vec<Vec<u8>>> {
        self.health.pass()?;
        let own = PfsTree::temporary_name(instance, ObjectId(0), Generation(0));
        let prefix = &own[..own.len().min(PREFIX.len() + 2 * INSTANCE_BYTES)];
        let fd = reopen(dir)?;
        let mut buffer = [MaybeUninit::uninit(); DIRENTS_BYTES];
        let mut entries = RawDir::new(fd, &mut buffer);
        let mut names = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            // The one with object 0 is the directory of the overflow.
            if PfsTree::is_temporary(name) && name.starts_with(prefix) && name != own {
                names.push(name.to_vec());
            }
        }
        Ok(names)
    }

    /// Where a link points. `EINVAL` for anything else.
    pub fn readlink(&self, node: &PfsNode) -> io::Result<Vec<u8>> {
        self.health.pass()?;
        match node.kind() {
            FileKind::Symlink => Ok(rustix::fs::readlinkat(node, c"", Vec::new())?.into_bytes()),
            _ => Err(Errno::EINVAL.into()),
        }
    }
}
