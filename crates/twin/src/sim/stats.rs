//! What a run adds up to.

use serde::Serialize;

/// One checkpoint, as it is compared with a live one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct JobRecord {
    /// The application, counted through all kinds in the order of the scenario.
    pub application: u32,
    /// From 1.
    pub version: u64,
    /// When the checkpoint wanted to begin.
    pub arrive_s: f64,
    /// Time until the checkpoint had its turn.
    pub wait_s: f64,
    /// Time in its turn in which the checkpoint could not write, for want of space.
    pub stall_s: f64,
    /// The rest of the time: writing at the rate that was allowed.
    pub execution_s: f64,
    /// Its size.
    pub bytes: u64,
    /// Whether it went straight to the PFS, all or in part.
    pub direct: bool,
}

impl JobRecord {
    /// Wait, stall and execution.
    pub fn latency_s(&self) -> f64 {
        self.wait_s + self.stall_s + self.execution_s
    }

    /// Bytes over stall and execution, that is over its turn.
    pub fn throughput_bytes_per_s(&self) -> f64 {
        self.bytes as f64 / (self.stall_s + self.execution_s).max(1e-9)
    }
}

/// Running sums of the checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Sums {
    pub checkpoints: u64,
    pub bytes: u64,
    pub throughput: f64,
    pub latency_s: f64,
    pub max_latency_s: f64,
    pub wait_s: f64,
    pub stall_s: f64,
    pub stalled: u64,
}

impl Sums {
    pub fn add(&mut self, record: &JobRecord) {
        self.checkpoints += 1;
        self.bytes += record.bytes;
        self.throughput += record.throughput_bytes_per_s();
        self.latency_s += record.latency_s();
        self.max_latency_s = self.max_latency_s.max(record.latency_s());
        self.wait_s += record.wait_s;
        self.stall_s += record.stall_s;
        self.stalled += u64::from(record.stall_s > 0.0);
    }
}

/// The state at a time, all nodes together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sample {
    /// When.
    pub at_s: f64,
    /// Bytes that are only in the burst buffer.
    pub dirty_bytes: u64,
    /// Bytes that are in the burst buffer and on the PFS.
    pub clean_bytes: u64,
    /// Undrained bytes of complete checkpoints with one copy, where the scenario has nodes.
    pub at_risk_bytes: u64,
}

/// What came of a scenario. Means are over checkpoints that ended.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
pub struct Outcome {
    /// Checkpoints that ended.
    pub checkpoints: u64,
    /// Their bytes.
    pub checkpoint_bytes: u64,
    /// Checkpoints that had begun or waited at the end, or whose application was never given space.
    pub unfinished: u64,
    /// Mean of bytes over time, the time without the wait.
    pub mean_throughput_bytes_per_s: f64,
    /// Mean of wait + stall + execution.
    pub mean_latency_s: f64,
    /// The longest.
    pub max_latency_s: f64,
    /// Mean time until its turn.
    pub mean_wait_s: f64,
    /// Mean time without space.
    pub mean_stall_s: f64,
    /// Checkpoints that stalled.
    pub stalled: u64,
    /// Copied from the burst buffer to the PFS.
    pub demoted_bytes: u64,
    /// Written straight to the PFS.
    pub direct_bytes: u64,
    /// Restarts of applications that had a complete checkpoint.
    pub restarts: u64,
    /// Of these, served from the burst buffer alone.
    pub hits: u64,
    /// Hits over restarts; `None` without restarts.
    pub hit_ratio: Option<f64>,
    /// Read by restarts that disturb others, and how long that took, all restarts together.
    pub restart_read_bytes: u64,
    /// See above.
    pub restart_read_s: f64,
    /// Work done again after failures, all applications together.
    pub lost_work_s: f64,
    /// Staged in before applications started.
    pub staged_bytes: u64,
    /// Most bytes on any one node at any time.
    pub max_used_bytes: u64,
    /// Most undrained bytes on any one node.
    pub max_dirty_bytes: u64,
    /// Undrained at the end.
    pub dirty_at_end_bytes: u64,
    /// Most undrained bytes at the end of a period.
    pub dirty_at_period_end_bytes: u64,
    /// Steps of the simulation, for the benchmark.
    pub steps: u64,
}
