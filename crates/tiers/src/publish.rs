//! Metadata of a file that is about to appear on the PFS.

use std::fs::File;
use std::io;

use forebay_types::{Errno, SetAttr, SetTime, TimeSpec};

use crate::{PfsStat, PfsTree};

/// Metadata that the PFS could not take. The data is whole; a person should hear of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetadataWarning {
    /// One extended attribute.
    #[error("extended attribute '{}' was not stored: {errno}", name.escape_ascii())]
    Xattr {
        /// Its name.
        name: Vec<u8>,
        /// What the PFS said.
        errno: Errno,
    },
    /// The PFS says by itself whom its files belong to. There are no set-id bits then.
    #[error(
        "belongs to user {uid} and group {gid} there: the PFS gives files the owner that it chooses"
    )]
    Owner {
        /// Whom it belongs to there.
        uid: u32,
        /// Its group there.
        gid: u32,
    },
}

/// Bits that would lend somebody else's rights where the owner is not the one that was meant.
const SET_ID: u16 = 0o6000;

/// The attribute of a file's access control list.
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// What a file shall look like on the PFS.
#[derive(Clone, Copy, Debug)]
pub struct Appearance<'a> {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits, 0..=0o7777.
    pub perm: u16,
    /// Extended attributes: names and values.
    pub xattrs: &'a [(Vec<u8>, Vec<u8>)],
    /// Last access.
    pub atime: TimeSpec,
    /// Last change of content.
    pub mtime: TimeSpec,
}

/// Gives `file`, which looks like `now`, its owner, mode, attributes and times, in this order:
/// chown(2) clears set-id bits, and everything before the times would change them.
///
/// Attributes that the PFS cannot hold (it has none, not of that name space, or not so large) come
/// back as warnings; anything else that fails is an error.
pub fn apply_metadata(
    tree: &PfsTree,
    file: &File,
    now: &PfsStat,
    wanted: &Appearance<'_>,
) -> io::Result<Vec<MetadataWarning>> {
    // A file created as its owner needs no chown, which a PFS that squashes root would refuse.
    let (uid, gid) = (now.uid != wanted.uid, now.gid != wanted.gid);
    let owner = SetAttr {
        uid: uid.then_some(wanted.uid),
        gid: gid.then_some(wanted.gid),
        ..SetAttr::default()
    };
    let mut warnings = Vec::new();
    let mut perm = wanted.perm;
    if uid || gid {
        let given = give_away(tree, file, &owner)?;
        if (given.uid, given.gid) != (wanted.uid, wanted.gid) {
            perm &= !SET_ID;
            let (uid, gid) = (given.uid, given.gid);
            warnings.push(MetadataWarning::Owner { uid, gid });
        }
    }
    let mode = SetAttr {
        perm: (uid || gid || now.perm() != perm).then_some(perm),
        ..SetAttr::default()
    };
    match tree.set_attr_file(file, &mode) {
        // Who does not own it there has no say in its mode, either.
        Err(e) if !warnings.is_empty() && e.raw_os_error() == Some(libc::EPERM) => {}
        set => set?,
    }
    if !wanted.xattrs.iter().any(|(name, _)| name == ACCESS_LIST) {
        // The directory's default list may have given it one, but the file is as it was made.
        match tree.remove_xattr_file(file, ACCESS_LIST) {
            Err(e) if !matches!(e.raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP)) => {
                return Err(e);
            }
            _ => {}
        }
    }
    for (name, value) in wanted.xattrs {
        let Err(error) = tree.set_xattr_file(file, name, value, 0) else {
            continue;
        };
        match error.raw_os_error() {
            Some(errno @ (libc::EOPNOTSUPP | libc::EPERM | libc::E2BIG | libc::ERANGE)) => {
                warnings.push(MetadataWarning::Xattr {
                    name: name.clone(),
                    errno: Errno(errno),
                });
            }
            _ => return Err(error),
        }
    }
    let times = SetAttr {
        atime: Some(SetTime::At(wanted.atime)),
        mtime: Some(SetTime::At(wanted.mtime)),
        ..SetAttr::default()
    };
    tree.set_attr_file(file, &times)?;
    Ok(warnings)
}

/// Hands a file to its owner; answers with what it looks like then. Where the PFS squashes owners
/// (NFS with `all_squash`, `bindfs --force-user`) it refuses, or says yes and does nothing.
fn give_away(tree: &PfsTree, file: &File, owner: &SetAttr) -> io::Result<PfsStat> {
    match tree.set_attr_file(file, owner) {
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => {}
        set => set?,
    }
    tree.stat_file(file)
}
