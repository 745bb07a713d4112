//! Extended attributes, never through a link.
//!
//! What is held by a descriptor that cannot be used for them is named by the kernel's own name of
//! that, which leads to the very inode.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use forebay_types::{Errno, limits};
use rustix::fs::XattrFlags;
use rustix::io::Errno as Sys;

use super::node::PfsNode;
use super::tree::{PfsDir, PfsTree, proc_path};

/// Sizes that are tried in turn: most attributes fit the first, the kernel has none larger than the
/// last.
const TRY_BYTES: [usize; 3] = [1 << 10, 8 << 10, limits::XATTR_VALUE_BYTES_MAX];

fn dir_path(dir: &PfsDir) -> Vec<u8> {
    proc_path(dir.as_fd()).into_bytes()
}

/// Flags as setxattr(2) numbers them; `EINVAL` for others.
fn flags(bits: u32) -> io::Result<XattrFlags> {
    match bits as libc::c_int {
        0 => Ok(XattrFlags::empty()),
        libc::XATTR_CREATE => Ok(XattrFlags::CREATE),
        libc::XATTR_REPLACE => Ok(XattrFlags::REPLACE),
        _ => Err(Errno::EINVAL.into()),
    }
}

/// Calls `read` with larger and larger buffers until one is large enough.
fn read_all(mut read: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> io::Result<Vec<u8>> {
    for size in TRY_BYTES {
        let mut buffer = vec![0; size];
        match read(&mut buffer) {
            Ok(count) => {
                buffer.truncate(count);
                return Ok(buffer);
            }
            Err(Sys::RANGE) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::E2BIG.into())
}

/// Names as listxattr(2) packs them: each ends with NUL.
fn split(names: Vec<u8>) -> Vec<Vec<u8>> {
    let parts = names.split(|&byte| byte == 0);
    parts
        .filter(|name| !name.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}

impl PfsTree {
    /// Value of an attribute. `ENODATA` if there is none.
    pub fn get_xattr(&self, node: &PfsNode, attribute: &[u8]) -> io::Result<Vec<u8>> {
        self.health.pass()?;
        let path = node.path();
        read_all(|buffer| rustix::fs::getxattr(&path[..], attribute, buffer))
    }

    /// Value of an attribute of a directory.
    pub fn get_xattr_dir(&self, dir: &PfsDir, attribute: &[u8]) -> io::Result<Vec<u8>> {
        self.health.pass()?;
        let path = dir_path(dir);
        read_all(|buffer| rustix::fs::getxattr(&path[..], attribute, buffer))
    }

    /// Value of an attribute of an open file.
    pub fn get_xattr_file(&self, file: &File, attribute: &[u8]) -> io::Result<Vec<u8>> {
        self.health.pass()?;
        read_all(|buffer| rustix::fs::fgetxattr(file, attribute, buffer))
    }

    /// Sets an attribute. `bits`: 0, `XATTR_CREATE` or `XATTR_REPLACE`.
    pub fn set_xattr(
        &self,
        node: &PfsNode,
        attribute: &[u8],
        value: &[u8],
        bits: u32,
    ) -> io::Result<()> {
        self.pass_to_change()?;
        let path = node.path();
        Ok(rustix::fs::setxattr(
            &path[..],
            attribute,
            value,
            flags(bits)?,
        )?)
    }

    /// Sets an attribute of a directory.
    pub fn set_xattr_dir(
        &self,
        dir: &PfsDir,
        attribute: &[u8],
        value: &[u8],
        bits: u32,
    ) -> io::Result<()> {
        self.pass_to_change()?;
        let path = dir_path(dir);
        Ok(rustix::fs::setxattr(
            &path[..],
            attribute,
            value,
            flags(bits)?,
        )?)
    }

    /// Sets an attribute of an open file.
    pub fn set_xattr_file(
        &self,
        file: &File,
        attribute: &[u8],
        value: &[u8],
        bits: u32,
    ) -> io::Result<()> {
        self.pass_to_change()?;
        Ok(rustix::fs::fsetxattr(file, attribute, value, flags(bits)?)?)
    }

    /// Names of the attributes.
    pub fn list_xattr(&self, node: &PfsNode) -> io::Result<Vec<Vec<u8>>> {
        self.health.pass()?;
        let path = node.path();
        read_all(|buffer| rustix::fs::listxattr(&path[..], buffer)).map(split)
    }

    /// Names of a directory's attributes.
    pub fn list_xattr_dir(&self, dir: &PfsDir) -> io::Result<Vec<Vec<u8>>> {
        self.health.pass()?;
        let path = dir_path(dir);
        read_all(|buffer| rustix::fs::listxattr(&path[..], buffer)).map(split)
    }

    /// Names of an open file's attributes.
    pub fn list_xattr_file(&self, file: &File) -> io::Result<Vec<Vec<u8>>> {
        self.health.pass()?;
        read_all(|buffer| rustix::fs::flistxattr(file, buffer)).map(split)
    }

    /// Removes an attribute. `ENODATA` if there is none.
    pub fn remove_xattr(&self, node: &PfsNode, attribute: &[u8]) -> io::Result<()> {
        self.pass_to_change()?;
        let path = node.path();
        Ok(rustix::fs::removexattr(&path[..], attribute)?)
    }

    /// Removes an attribute of a directory.
    pub fn remove_xattr_dir(&self, dir: &PfsDir, attribute: &[u8]) -> io::Result<()> {
        self.pass_to_change()?;
        Ok(rustix::fs::removexattr(&dir_path(dir)[..], attribute)?)
    }

    /// Removes an attribute of an open file.
    pub fn remove_xattr_file(&self, file: &File, attribute: &[u8]) -> io::Result<()> {
        self.pass_to_change()?;
        Ok(rustix::fs::fremovexattr(file, attribute)?)
    }
}
