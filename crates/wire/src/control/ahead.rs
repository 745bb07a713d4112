//! What was brought in before programs asked for it.

use serde::{Deserialize, Serialize};

/// Sums since the start, bytes, and what is read now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AheadStatus {
    /// Brought in before a program asked.
    pub guessed_bytes: u64,
    /// Of those, read since.
    pub hit_bytes: u64,
    /// Of those, gone before anybody read them.
    pub wasted_bytes: u64,
    /// Of those, there and not read yet.
    pub unread_bytes: u64,
    /// Lists that programs work through.
    pub lists: u64,
    /// Folders of which more is expected.
    pub folders: u64,
    /// What programs read every so often.
    pub runs: RunsStatus,
}

/// Runs that repeat. The bytes are parts of those in [`AheadStatus`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunsStatus {
    /// Runs whose time is known.
    pub expected: u64,
    /// Brought in before they started, bytes.
    pub guessed_bytes: u64,
    /// Of those, read since, bytes.
    pub hit_bytes: u64,
    /// Of those, in vain, bytes.
    pub wasted_bytes: u64,
    /// The next ones.
    pub next: Vec<RunExpected>,
}

/// A run whose time is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunExpected {
    /// Its folder, from the root of the mount.
    pub path: Vec<u8>,
    /// Between two starts, milliseconds.
    pub period_ms: u64,
    /// Until the next start, milliseconds; negative: it is late.
    pub next_in_ms: i64,
    /// What it is expected to read, bytes.
    pub bytes: u64,
    /// Of that, what is here; 0 before its files are looked after, bytes.
    pub here_bytes: u64,
}
