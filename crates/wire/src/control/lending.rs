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
    /// By so much an order has lowered the ceiling, bytes; 0 without one.
    pub ordered_bytes: u64,
    /// What is still to leave it, bytes.
    pub owed_bytes: u64,
    /// Why it has that size: `ceiling`, `ordered`, `jobs`, `stalls`, `calms` or `grows`.
    pub why: String,
    /// Memory of the machine, or the limit of a control group, bytes.
    pub memory_bytes: u64,
    /// Of that available, bytes.
    pub available_bytes: u64,
    /// Clean copies dropped to give memory back, since the start, bytes.
    pub dropped_bytes_total: u64,
    /// Files moved to flash for it, since the start, bytes.
    pub moved_bytes_total: u64,
}
