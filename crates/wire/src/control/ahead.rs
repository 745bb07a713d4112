//! What was brought in before programs asked for it.

use serde::{Deserialize, Serialize};

/// Sums since the start, bytes, and what is read now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
}
