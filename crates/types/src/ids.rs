//! Newtypes for ids, so that no two can be mistaken for each other.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A file or directory as the mount shows it. `1` is the root.
///
/// Ids of things that live on the PFS are the PFS's own inode numbers; files born in the burst
/// buffer have bit 62 set, so that the two never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ino(pub u64);

impl Ino {
    /// The root of the mount.
    pub const ROOT: Ino = Ino(1);
    /// First id of files born in the burst buffer.
    pub const FIRST_BORN: u64 = 1 << 62;

    /// Of a file that is created in the burst buffer, as this object.
    pub fn of_new(object: ObjectId) -> Ino {
        Ino(Ino::FIRST_BORN | object.0)
    }

    /// Whether the file was created in, or brought into, the burst buffer under an id of its own.
    pub fn is_born_here(self) -> bool {
        self.0 >= Self::FIRST_BORN
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The part of one file that one data server holds in one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ObjectId(pub u64);

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// An open file, as client and server name it to each other. Never reused within a server's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Handle(pub u64);

/// Position of a tier in the server's list of tiers (`dram` first, then the `ssd` ones).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TierId(pub u8);

/// Counts the changes of a file's content. A demotion publishes only what it copied under the
/// generation it began with.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Generation(pub u64);

impl Generation {
    /// The generation after this one.
    #[must_use]
    pub fn next(self) -> Generation {
        Generation(self.0 + 1)
    }
}
