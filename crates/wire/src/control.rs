//! What the command line says to a running burst buffer.

use forebay_types::{Errno, limits};
use serde::{Deserialize, Serialize};

mod ahead;
mod calibration;
mod fsck;
mod history;
mod lending;
mod live;
mod network;
mod nodes;
mod now;

pub use ahead::{AheadStatus, RunExpected, RunsStatus};
pub use calibration::{Calibrated, CalibrationStep};
pub use fsck::{CLEAN_COPY_GONE, CONTENT_LOST, FSYNCED_LEFT, Finding, FsckReport};
pub use history::{HistoryAsked, HistoryPage};
pub use lending::{
    LENDING_FILES_MAX, LENDING_NAME_MAX, LENDING_ORDERS_MAX, LendingFile, LendingOrder,
    LendingStatus, NodeLending,
};
pub use live::{InForce, LimitInForce, LimitStatus, Reloaded, RuleInForce, Whose};
pub use network::{ClientStatus, ConnectionStatus, NetworkStatus, RefusedStatus};
pub use nodes::{
    Awaited, AwaitedFile, DataServerStatus, EmptyingStatus, KeeperStatus, NodeStatus,
    SecondCopiesStatus, StandbyStatus,
};
pub use now::{CopyStatus, EarlierTotals, MovementStatus, TurnStatus};

/// An explicit movement of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Movement {
    /// PFS → burst buffer, kept there as clean copies.
    StageIn,
    /// Burst buffer → PFS.
    StageOut,
    /// PFS → memory.
    Prefetch,
    /// The same, in turn, while a program reads the files in this order.
    Ahead,
    /// Drops clean copies from the burst buffer.
    Release,
    /// Publishes versions as a whole.
    Commit,
}

/// A question or an order. Paths are relative to the root of the mount, without leading '/'; the
/// root itself is empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Control {
    /// Everything `forebay status` shows.
    Status,
    /// Residency of files; directories recurse. `after` continues a long answer.
    Where {
        paths: Vec<Vec<u8>>,
        after: Option<Vec<u8>>,
    },
    /// Starts a movement and answers with its job id.
    Start {
        movement: Movement,
        paths: Vec<Vec<u8>>,
    },
    /// Progress of a job.
    Job { id: u64 },
    /// Stops a job; what it has moved stays moved.
    Cancel { id: u64 },
    /// Stops taking new work and ends the server; with `drain`, when all is on the PFS.
    /// `timeout_ms` 0 means no limit.
    Shutdown { drain: bool, timeout_ms: u64 },
    /// One step of a calibration, of at most so long (up to a minute).
    Calibrate { step: CalibrationStep, time_ms: u64 },
    /// Takes another policy or placement, by name, until the next start; answers with the status.
    Policy {
        policy: Option<String>,
        placement: Option<String>,
    },
    /// Rules and limits in force.
    InForce,
    /// Reads the settings again, and takes those that can change while it runs.
    Reload,
    /// Has a data server's node emptied, so that no new file goes there either; or uses it again.
    /// Answers with the status.
    Node { server: u16, empty: bool },
    /// What is on record of versions, restarts and movements.
    History(HistoryAsked),
    /// Compares records, objects and PFS; repairs unless `dry_run`.
    Fsck { dry_run: bool, checksums: bool },
    /// Has jobs get so much of borrowed memory back until another order of that name; 0 takes it
    /// back. Orders of several names add up. Answers with the status.
    Lend { bytes: u64, name: String },
}

impl Control {
    /// Whether asking twice does no more than asking once.
    pub fn is_repeatable(&self) -> bool {
        match self {
            Control::Status
            | Control::Where { .. }
            | Control::Job { .. }
            | Control::History(_)
            | Control::InForce
            | Control::Lend { .. }
            | Control::Node { .. } => true,
            // A second start is a second job; the others act on what may have changed in between.
            Control::Start { .. }
            | Control::Cancel { .. }
            | Control::Shutdown { .. }
            | Control::Calibrate { .. }
            | Control::Policy { .. }
            | Control::Reload
            | Control::Fsck { .. } => false,
        }
    }

    /// What it is called in a log.
    pub fn name(&self) -> &'static str {
        match self {
            Control::Status => "status",
            Control::Where { .. } => "where",
            Control::Start { .. } => "start of a job",
            Control::Job { .. } => "progress of a job",
            Control::Cancel { .. } => "cancel of a job",
            Control::Shutdown { .. } => "down",
            Control::Calibrate { .. } => "calibrate",
            Control::Policy { .. } => "policy",
            Control::InForce => "rules and limits",
            Control::Reload => "reload",
            Control::Node { .. } => "order for a node",
            Control::History(_) => "history",
            Control::Fsck { .. } => "fsck",
            Control::Lend { .. } => "lend",
        }
    }

    /// Whether it may come from another node than the server's own.
    pub fn may_come_from_elsewhere(&self) -> bool {
        match self {
            Control::Status
            | Control::Where { .. }
            | Control::Start { .. }
            | Control::Job { .. }
            | Control::History(_)
            | Control::InForce
            | Control::Node { .. }
            | Control::Cancel { .. } => true,
            Control::Shutdown { .. }
            | Control::Calibrate { .. }
            | Control::Policy { .. }
            | Control::Reload
            | Control::Lend { .. }
            | Control::Fsck { .. } => false,
        }
    }

    /// Bounds on the number and length of paths.
    pub fn check(&self) -> Result<(), Errno> {
        let paths = match self {
            Control::Where { paths, .. } | Control::Start { paths, .. } => paths,
            Control::Lend { name, .. } if name.len() > LENDING_NAME_MAX => {
                return Err(Errno::ENAMETOOLONG);
            }
            _ => return Ok(()),
        };
        if paths.len() > limits::PATHS_PER_MESSAGE_MAX {
            return Err(Errno::E2BIG);
        }
        if paths.iter().any(|p| p.len() > limits::PATH_BYTES_MAX) {
            return Err(Errno::ENAMETOOLONG);
        }
        if paths.iter().any(|p| p.contains(&0)) {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }
}

/// What comes back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum ControlResponse {
    Status(Box<StatusBits>),
    Where {
        files: Vec<WhereEntry>,
        more_after: Option<Vec<u8>>,
        failures: Vec<PathFailure>,
    },
    Started {
        id: u64,
    },
    Job(JobProgress),
    Stopping,
    Calibrated(Calibrated),
    History(HistoryPage),
    InForce(InForce),
    Reloaded(Reloaded),
    Fsck(FsckReport),
}

/// A path that could not be served, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathFailure {
    /// Relative to the root of the mount.
    pub path: Vec<u8>,
    /// Error number.
    pub errno: Errno,
    /// One line for a person.
    pub reason: String,
}

/// A file of which an outsider's version and ours stand beside each other on the PFS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConflictEntry {
    /// Relative to the root of the mount.
    pub path: Vec<u8>,
    /// The other version, likewise.
    pub kept_as: Vec<u8>,
    /// When, seconds since the epoch.
    pub at_s: i64,
    /// One line for a person.
    pub reason: String,
}

/// State of a movement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobProgress {
    /// Still listing the files: the totals may grow.
    pub counting: bool,
    /// No more will happen.
    pub finished: bool,
    /// It was ended before all was done: somebody has cancelled it, or the server is ending.
    pub cancelled: bool,
    /// Files to move, done, and already where they should be.
    pub files_total: u64,
    /// Files done with, also those that failed.
    pub files_done: u64,
    /// Of these, files that failed.
    pub files_failed: u64,
    /// Files that needed nothing.
    pub files_skipped: u64,
    /// Bytes to move.
    pub bytes_total: u64,
    /// Bytes moved.
    pub bytes_done: u64,
    /// All failures so far, at most [`limits::ERRORS_REMEMBERED_MAX`].
    pub failures: Vec<PathFailure>,
    /// Failures in all.
    pub failed: u64,
    /// Paths not done yet, at most [`limits::ERRORS_REMEMBERED_MAX`]; filled once the job is
    /// cancelled or out of time.
    pub left: Vec<Vec<u8>>,
}

/// Residency of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhereEntry {
    /// Relative to the root of the mount.
    pub path: Vec<u8>,
    /// Names of the tiers that hold it, fastest first.
    pub tiers: Vec<String>,
    /// `dirty`, `demoting`, `clean`, or `pfs` for a file that is only there.
    pub state: String,
    /// Logical size, bytes.
    pub size_bytes: u64,
    /// Application.
    pub application: String,
    /// Checkpoint version.
    pub version: Option<u64>,
    /// CRC-32C of the content, where it has been computed.
    pub crc32c: Option<u32>,
    /// Why its last demotion failed.
    pub error: Option<String>,
    /// It belongs to a version that the PFS does not show yet.
    pub unpublished: bool,
    /// What fsync promises of it; `None` for a file that is only on the PFS.
    pub durability: Option<String>,
    /// Of `tiers`, those with a copy of what it was.
    pub stale_tiers: Vec<String>,
}

/// What was found out about objects at rest on flash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// They are read in the background.
    pub enabled: bool,
    /// Objects that passes looked at, since the state was made.
    pub checked_objects: u64,
    /// Bytes that they compared with a checksum.
    pub checked_bytes: u64,
    /// Damaged objects that passes, opens, drains and prefetches found.
    pub found: u64,
    /// Passes that ended.
    pub passes: u64,
    /// When the last of them did, seconds since the epoch.
    pub last_pass_end_s: Option<i64>,
    /// When the one under way began; `None` between two.
    pub pass_begun_s: Option<i64>,
    /// Objects that it has still to look at.
    pub left_objects: u64,
    /// Contents that opens compared, since the start.
    pub compared_at_open: u64,
    /// Blocks of larger contents that reads and first changes compared, since the start.
    pub compared_blocks: u64,
    /// Undrained contents that were read to put their checksum on record, since the start.
    pub sealed: u64,
}

/// A version that the PFS does not show yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionStatus {
    /// Its directory, relative to the root of the mount.
    pub path: Vec<u8>,
    /// Files of it in the burst buffer.
    pub files: u64,
    /// Of those not whole on the PFS.
    pub undrained_files: u64,
    /// Their bytes.
    pub undrained_bytes: u64,
    /// Of its files, open for writing.
    pub written_files: u64,
    /// It was ordered to be published.
    pub committed: bool,
    /// It was not when the last run ended: only an order publishes it.
    pub interrupted: bool,
    /// Files of it that were lost with the machine's power and are not there again.
    pub lost_files: u64,
    /// When it was made, seconds since the epoch.
    pub since_s: i64,
    /// Why it cannot be published now.
    pub error: Option<String>,
}

/// One tier in `status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierStatus {
    /// Name.
    pub name: String,
    /// Capacity, bytes.
    pub capacity_bytes: u64,
    /// Held by objects, bytes.
    pub used_bytes: u64,
    /// Of those not yet on the PFS, bytes.
    pub dirty_bytes: u64,
    /// Set aside for files that are being written, bytes.
    pub reserved_bytes: u64,
    /// The node that has it does not answer.
    pub out_of_reach: bool,
}

/// One application in `status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplicationStatus {
    /// Name: its path with the numbers of version and writer taken out.
    pub name: String,
    /// Newest version seen.
    pub version: Option<u64>,
    /// Written in this period, bytes.
    pub dwsf_bytes: u64,
    /// Expected per period, bytes; `None` in its first period.
    pub dwpp_bytes: Option<u64>,
    /// Mean time between failures, milliseconds; `None` until known.
    pub mtbf_ms: Option<u64>,
    /// In the burst buffer, bytes.
    pub resident_bytes: u64,
    /// Of those not yet on the PFS, bytes.
    pub dirty_bytes: u64,
    /// Files in the burst buffer.
    pub files: u64,
}

/// The plan in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanStatus {
    /// One line for a person.
    pub why: String,
    /// 1, 2 or 3; `None` where thresholds decide.
    pub pattern: Option<u8>,
    /// Data written in a period at which demotion starts, bytes.
    pub start_dwsf_bytes: Option<u64>,
    /// And at which it runs at full speed.
    pub full_dwsf_bytes: Option<u64>,
    /// The burst buffer becomes clean within the period.
    pub feasible: Option<bool>,
    /// Limit of checkpoint writes; `None`: none.
    pub checkpoint_limit_bytes_per_s: Option<u64>,
    /// Limit of demotion; `None`: none, 0: it waits.
    pub demotion_limit_bytes_per_s: Option<u64>,
    /// Length of a period, milliseconds.
    pub period_ms: u64,
    /// Bwmax, Bwmin, Brmax, Brmin, bytes/s, where they are known.
    pub bandwidths: Option<[u64; 4]>,
}

/// Everything `forebay status` shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusBits {
    /// Version of the program.
    pub version: String,
    /// The slow file system.
    pub pfs: Vec<u8>,
    /// Where it is shown.
    pub mount: Vec<u8>,
    /// State folder.
    pub state: Vec<u8>,
    /// Process id of the server.
    pub pid: u32,
    /// Since the start, milliseconds.
    pub uptime_ms: u64,
    /// Durability level of fsync.
    pub durability: String,
    /// Policy in force.
    pub policy: String,
    /// Order of victims in force.
    pub placement: String,
    /// The plan and its limits.
    pub plan: PlanStatus,
    /// Whether the kernel reads and writes objects by itself.
    pub passthrough: bool,
    /// Tiers, fastest first.
    pub tiers: Vec<TierStatus>,
    /// Data written in this period, bytes.
    pub dwsf_bytes: u64,
    /// Data expected per period, bytes.
    pub dwpp_bytes: u64,
    /// Hard cap on dirty bytes.
    pub dirty_cap_bytes: u64,
    /// Undrained bytes.
    pub dirty_bytes: u64,
    /// Rate of the drain in the last seconds, bytes/s.
    pub drain_rate_bytes_per_s: u64,
    /// Files waiting for it.
    pub drain_queued_files: u64,
    /// Of those, files whose last try failed.
    pub drain_failing_files: u64,
    /// When the next of them is tried, milliseconds from now.
    pub drain_next_try_ms: Option<u64>,
    /// Written to the PFS and verified since the state was made, bytes.
    pub demoted_bytes_total: u64,
    /// Files likewise.
    pub demoted_files_total: u64,
    /// Dropped clean copies, bytes.
    pub evicted_bytes_total: u64,
    /// What of these and of the scrub's totals is of earlier runs.
    pub earlier: EarlierTotals,
    /// Writes that had to wait for space.
    pub waited_writes_total: u64,
    /// How long they waited, all together, milliseconds.
    pub space_wait_ms_total: u64,
    /// Restarts counted since the start of the server.
    pub restarts_total: u64,
    /// Of those, that found their data in the burst buffer.
    pub restart_hits_total: u64,
    /// Checkpoints made on the PFS because they were colder than what would have had to leave for
    /// them. What went there for want of room is not among them.
    pub direct_files_total: u64,
    /// Files that went on on another node while they were written, since theirs was full.
    pub handed_over_files_total: u64,
    /// Files in the burst buffer.
    pub files: u64,
    /// Open files.
    pub open_files: u64,
    /// Files that the daemon holds a descriptor of: all open ones, as long as they are few.
    pub held_files: u64,
    /// Files that can be stored into while nothing but the kernel knows of it, as the last drain
    /// for a stop has found them: it waits for their close. What is undrained is not among them.
    pub holding_files: u64,
    /// Paths of the first of them.
    pub holding: Vec<Vec<u8>>,
    /// An order to stop is in force, be it after a drain.
    pub stopping: bool,
    /// Descriptors that the daemon may have; `None`: any number.
    pub descriptors_max: Option<u64>,
    /// For how long the PFS has not answered, milliseconds; `None` while it does.
    pub pfs_silent_ms: Option<u64>,
    /// Where the records are: `embedded`, or the URL of a store on a server, without a password.
    pub store: String,
    /// Why the records take no changes; `None` while they do.
    pub store_failing: Option<String>,
    /// The last errors.
    pub errors: Vec<PathFailure>,
    /// Errors since the start.
    pub errors_total: u64,
    /// The last conflicts with changes made on the PFS.
    pub conflicts: Vec<ConflictEntry>,
    /// Conflicts since the state was made.
    pub conflicts_total: u64,
    /// Versions that are not published yet.
    pub unpublished: Vec<VersionStatus>,
    /// Who has the turn, by server.
    pub turns: Vec<TurnStatus>,
    /// Large files that are copied to the PFS now.
    pub copies: Vec<CopyStatus>,
    /// Ordered movements that go on.
    pub movements: Vec<MovementStatus>,
    /// What was found out about objects at rest.
    pub scrub: ScrubStatus,
    /// Applications: those with most bytes in the burst buffer.
    pub applications: Vec<ApplicationStatus>,
    /// How many have any.
    pub applications_total: u64,
    /// What users and groups with a limit have here: those with most.
    pub limits: Vec<LimitStatus>,
    /// What was brought in before programs asked for it.
    pub ahead: AheadStatus,
    /// How many have any.
    pub limits_total: u64,
    /// Clients, where a network server serves them.
    pub network: Option<Box<NetworkStatus>>,
    /// The servers of the cluster; empty without one.
    pub nodes: Vec<NodeStatus>,
    /// Memory that is borrowed; `None` where the memory tier has a fixed size, or there is none.
    pub lending: Option<Box<LendingStatus>>,
    /// Second copies; `None` where none are promised.
    pub second_copies: Option<SecondCopiesStatus>,
    /// It is a data server: it knows of its tiers, and of nothing else here.
    pub data_server: Option<Box<DataServerStatus>>,
    /// It stands by: it knows who leads, and of nothing else here.
    pub standby: Option<Box<StandbyStatus>>,
    /// Who starts it again if it dies; `None` if it was started without.
    pub keeper: Option<KeeperStatus>,
    /// Names of files are left out: who asks is neither root nor the user who runs the server.
    pub names_hidden: bool,
}
