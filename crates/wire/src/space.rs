//! Space and holes of a file, as fallocate(2) and lseek(2) speak of them.

use serde::{Deserialize, Serialize};

/// The modes of fallocate(2) that Forebay serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpaceChange {
    /// Allocates and extends the file (mode 0).
    Allocate,
    /// Allocates without extending (`KEEP_SIZE`).
    Reserve,
    /// `PUNCH_HOLE | KEEP_SIZE`.
    PunchHole,
    /// `ZERO_RANGE`.
    ZeroRange,
    /// `ZERO_RANGE | KEEP_SIZE`.
    ZeroRangeKeepSize,
}

/// What lseek(2) looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeekWhat {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`.
    Hole,
}
