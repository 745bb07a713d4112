//! Entries of directories, and how names and attributes are replaced. Messages carry these words,
//! and the tree acts by them.

use serde::{Deserialize, Serialize};

use crate::{FileKind, Ino};

/// What a rename does when the new name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RenameMode {
    /// Replaces it, as rename(2).
    Replace,
    /// Fails with `EEXIST` (`RENAME_NOREPLACE`).
    NoReplace,
    /// Swaps the two (`RENAME_EXCHANGE`).
    Exchange,
}

/// What a setxattr does when the attribute exists, or does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrMode {
    /// Creates or replaces.
    Set,
    /// Fails with `EEXIST` if it exists (`XATTR_CREATE`).
    Create,
    /// Fails with `ENODATA` if it does not (`XATTR_REPLACE`).
    Replace,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dirent {
    /// `d_ino`.
    pub ino: Ino,
    /// `d_type`.
    pub kind: FileKind,
    /// Name.
    pub name: Vec<u8>,
    /// Position after this entry, for the next read of the directory.
    pub next: u64,
}
