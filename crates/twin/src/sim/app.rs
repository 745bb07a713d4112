//! One application: its checkpoints, its failures.

use forebay_policy::version::VersionTracker;

use smallvec::SmallVec;

use super::part::PartId;

/// State of one application.
#[derive(Debug)]
pub(super) struct App {
    /// Place of the application's kind in the scenario.
    pub kind: u32,
    /// First burst-buffer node that the application writes to.
    pub node: u32,
    pub end_s: f64,
    /// True MTBF.
    pub mtbf_s: f64,
    /// The MTBF that the burst buffer knows of.
    pub known_mtbf_s: f64,
    pub last_restart_s: f64,
    /// The last version begun; 0 before the first.
    pub version: u64,
    /// The newest complete version.
    pub newest: Option<u64>,
    /// When the newest version was complete; before the first, when the application started.
    pub newest_s: f64,
    /// The newest version that is on the PFS as a whole, and when it was complete; kept where nodes
    /// fail.
    pub safe: Option<(u64, f64)>,
    /// Of versions under way to the PFS: how many parts are there, and when each was complete.
    pub on_pfs: SmallVec<[OnPfs; 2]>,
    pub tracker: VersionTracker,
    /// Parts in the burst buffer, in the order in which they were begun.
    pub parts: SmallVec<[PartId; 4]>,
    /// When the checkpoint under way should have come, without jitter.
    pub due_s: f64,
    /// Counts restarts and checkpoints: requests of earlier attempts are void.
    pub attempt: u32,
    pub failures: u32,
    pub phase: Option<Phase>,
    pub has_ended: bool,
}

/// A version on its way to the PFS.
#[derive(Debug, Clone, Copy)]
pub(super) struct OnPfs {
    pub version: u64,
    pub parts: u32,
    /// When the application had written it; infinite before.
    pub complete_s: f64,
}

/// A checkpoint or a restart under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Phase {
    pub is_read: bool,
    pub arrive_s: f64,
    /// When the first part had its turn.
    pub started_s: Option<f64>,
    pub parts_left: u32,
    pub stall_s: f64,
    pub is_direct: bool,
    /// A restart after the failure of a node, not of the application.
    pub by_node: bool,
}
