//! Advisory locks of files, as programs ask for them.

use serde::{Deserialize, Serialize};

/// Which of the two kinds of locks that Linux has; the two do not see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LockClass {
    /// Of bytes, by fcntl(2): they belong to a process, or to an open file (`F_OFD_SETLK`).
    Bytes,
    /// Of a whole file, by flock(2): they belong to an open file.
    Whole,
}

/// Who else may have a lock of the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LockMode {
    /// Others may share them (`F_RDLCK`, `LOCK_SH`).
    Shared,
    /// Nobody (`F_WRLCK`, `LOCK_EX`).
    Exclusive,
}

impl LockMode {
    /// Whether two owners may not have locks of these modes at once.
    pub fn excludes(self, other: LockMode) -> bool {
        self == LockMode::Exclusive || other == LockMode::Exclusive
    }
}

/// Bytes of a file, both ends included: the last one is [`ByteRange::END`] where a lock goes on to
/// the end of the file, wherever that comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ByteRange {
    /// The first byte.
    pub first: u64,
    /// The last byte, not before the first.
    pub last: u64,
}

impl ByteRange {
    /// The last byte of what has no end, as the kernel says it.
    pub const END: u64 = i64::MAX as u64;
    /// The whole file.
    pub const ALL: ByteRange = ByteRange {
        first: 0,
        last: Self::END,
    };

    /// Whether the two have a byte in common.
    pub fn overlaps(self, other: ByteRange) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}
