//! What goes on at the moment of a `status`.

use serde::{Deserialize, Serialize};

use super::Movement;

/// Totals that were on record at the start of the server. Some are put there only now and then:
/// after a kill they are less than was said before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierTotals {
    /// Of [`StatusBits::demoted_bytes_total`](super::StatusBits::demoted_bytes_total).
    pub demoted_bytes: u64,
    /// Of [`StatusBits::demoted_files_total`](super::StatusBits::demoted_files_total).
    pub demoted_files: u64,
    /// Of [`StatusBits::evicted_bytes_total`](super::StatusBits::evicted_bytes_total).
    pub evicted_bytes: u64,
    /// Of [`ScrubStatus::checked_bytes`](super::ScrubStatus::checked_bytes).
    pub scrubbed_bytes: u64,
    /// Of [`ScrubStatus::found`](super::ScrubStatus::found).
    pub damaged_objects: u64,
}

/// Who writes a checkpoint while others wait for it to end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnStatus {
    /// Whose devices it is about.
    pub server: u16,
    /// Application that has the turn.
    pub application: String,
    /// Writes that wait there, also its own.
    pub waiting: u64,
}

/// A large file on its way to the PFS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyStatus {
    /// Relative to the root of the mount.
    pub path: Vec<u8>,
    /// What there is to copy.
    pub bytes: u64,
    /// What is copied.
    pub copied_bytes: u64,
}

/// An ordered movement that goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovementStatus {
    /// Which.
    pub movement: Movement,
    /// Its files are still looked for: there may be more.
    pub counting: bool,
    /// Files found so far.
    pub files_total: u64,
    /// Of those, done.
    pub files_done: u64,
    /// Bytes likewise.
    pub bytes_total: u64,
    /// Bytes likewise.
    pub bytes_done: u64,
    /// Since it was ordered, milliseconds.
    pub age_ms: u64,
}
