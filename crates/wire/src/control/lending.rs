//! Memory that is borrowed.

use serde::{Deserialize, Serialize};

/// The memory tier in `status`, where jobs get memory back from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LendingStatus {
    /// What the tier may hold now, bytes.
    pub borrowed_bytes: u64,
    /// What it occupies, bytes.
    pub used_bytes: u64,
    /// It never falls below this, bytes.
    pub floor_bytes: u64,
    /// It never exceeds this now, bytes.
    pub ceiling_bytes: u64,
    /// By so much all orders together have lowered the ceiling, bytes; 0 without one.
    pub ordered_bytes: u64,
    /// The orders in force.
    pub orders: Vec<LendingOrder>,
    /// What is still to leave it, bytes.
    pub owed_bytes: u64,
    /// While something is: files in memory that cannot move before programs close them, for the
    /// kernel reads or writes them by itself, or they are deleted.
    pub waits_files: u64,
    /// What these occupy, bytes.
    pub waits_bytes: u64,
    /// The largest of them, [`LENDING_FILES_MAX`] at most.
    pub waits_for: Vec<LendingFile>,
    /// Why it has that size: `ceiling`, `ordered`, `jobs`, `stalls`, `calms` or `grows`.
    pub why: String,
    /// Memory of the machine, or the limit of a control group, bytes.
    pub memory_bytes: u64,
    /// Of that available, bytes.
    pub available_bytes: u64,
    /// Clean copies dropped to give memory back, since the start, bytes; `None` of a data server:
    /// the metadata server does that, and knows ([`NodeLending`]).
    pub dropped_bytes_total: Option<u64>,
    /// Files moved away for it, since the start, bytes; likewise.
    pub moved_bytes_total: Option<u64>,
}

/// Memory of another node that jobs may want back, as the metadata server knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLending {
    /// What is still to leave it, bytes.
    pub owed_bytes: u64,
    /// While something is: as in [`LendingStatus`].
    pub waits_files: u64,
    /// What these occupy, bytes.
    pub waits_bytes: u64,
    /// The largest of them, [`LENDING_FILES_MAX`] at most.
    pub waits_for: Vec<LendingFile>,
    /// Clean copies dropped to give it back, since the start of the metadata server, bytes.
    pub dropped_bytes_total: u64,
    /// Files moved to flash or to other nodes for it, likewise, bytes.
    pub moved_bytes_total: u64,
}

/// So many files are named that memory waits for.
pub const LENDING_FILES_MAX: usize = 16;

/// A file in memory that cannot move before it is closed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LendingFile {
    /// Relative to the root of the mount; of a deleted one what its object is.
    pub path: Vec<u8>,
    /// What it occupies, bytes.
    pub bytes: u64,
    /// It has no name any more.
    pub deleted: bool,
}

/// What one caller of `forebay lend` has given to jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LendingOrder {
    /// What the caller calls itself; empty where it does not.
    pub name: String,
    /// So much, bytes.
    pub bytes: u64,
}

/// Longest name of an order, bytes.
pub const LENDING_NAME_MAX: usize = 255;
/// Most orders that are in force at once.
pub const LENDING_ORDERS_MAX: usize = 1024;
