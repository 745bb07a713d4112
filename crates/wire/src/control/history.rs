//! What is on record of versions, restarts and movements.

use forebay_types::history::Record;
use serde::{Deserialize, Serialize};

/// Which records are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryAsked {
    /// Those that ended then or later, milliseconds since 1970.
    pub since_ms: u64,
    /// Those that began then or earlier.
    pub until_ms: u64,
    /// Those of applications with this in their names.
    pub application: Option<String>,
    /// Those of this user.
    pub uid: Option<u32>,
    /// Continues a long answer.
    pub after: Option<Vec<u8>>,
}

/// A part of the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryPage {
    /// In the order of their ends; those that are not over come last. In an answer of several parts
    /// they come in the first of them, and what is saved meanwhile may come again.
    pub records: Vec<Record>,
    /// There are more, from behind this on.
    pub more_after: Option<Vec<u8>>,
    /// For so long records are kept, milliseconds; 0: nothing is put on record.
    pub kept_for_ms: u64,
}
