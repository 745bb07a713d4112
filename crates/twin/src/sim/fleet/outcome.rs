//! What a run of several nodes adds up to, node by node and in sum.

use serde::Serialize;

use super::super::Sim;

/// One data server.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct NodeOutcome {
    /// Its rack.
    pub rack: u16,
    /// All its tiers.
    pub capacity_bytes: u64,
    /// Most bytes that were ever on its tiers, each tier at its fullest.
    pub peak_bytes: u64,
    /// Written by applications.
    pub written_bytes: u64,
    /// Drained to the PFS.
    pub drained_bytes: u64,
    /// Parts of checkpoints that found no space here for a while, second copies included.
    pub stalls: u64,
    /// For how long.
    pub stall_s: f64,
    /// Parts of checkpoints that restarts wanted that had run here.
    pub reads: u64,
    /// Of these, found in the burst buffer, here or elsewhere.
    pub hits: u64,
    /// Hits over reads; `None` without reads.
    pub hit_ratio: Option<f64>,
    /// How often it failed.
    pub failures: u64,
    /// How long it was away after failures from which it came back.
    pub away_s: f64,
}

/// All of them.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct FleetOutcome {
    /// One by one.
    pub nodes: Vec<NodeOutcome>,
    /// Undrained bytes of complete checkpoints that a failure took with their last copy.
    pub lost_bytes: u64,
    /// Newest complete checkpoints that were damaged so.
    pub lost_versions: u64,
    /// Undrained bytes of complete checkpoints with one copy, at the last look.
    pub at_risk_bytes: u64,
    /// The most of them at any look: at samples and at failures.
    pub max_at_risk_bytes: u64,
    /// Times from a loss of second copies until all were made again or drained.
    pub re_replications: u64,
    /// Their sum.
    pub re_replication_s: f64,
    /// The longest.
    pub max_re_replication_s: f64,
    /// Bytes of second copies that were begun to be made again.
    pub copied_again_bytes: u64,
    /// Drained by an fsync that found no second holder.
    pub drained_by_fsync_bytes: u64,
    /// Files that a full node handed over while they were written.
    pub handed_over: u64,
    /// What was written of them before.
    pub handed_over_bytes: u64,
    /// Copies of drained versions that were made for restarts.
    pub restart_copies: u64,
    /// Their bytes.
    pub restart_copy_bytes: u64,
    /// Applications whose own node failed.
    pub interrupted: u64,
    /// Checkpoints and restarts begun again, for a node failed that had a part in them.
    pub begun_again: u64,
    /// Time that restarts waited for a node that was away.
    pub waited_for_node_s: f64,
    /// What came of borrowed memory, where the scenario has that.
    pub memory: Option<MemoryOutcome>,
}

/// What jobs and the burst buffer had of memory that was borrowed; all nodes together.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct MemoryOutcome {
    /// Time in which jobs wanted more memory than there was.
    pub job_wait_s: f64,
    /// How often they did.
    pub job_waits: u64,
    /// The longest of these times.
    pub max_job_wait_s: f64,
    /// Memory of the tiers, the mean over time, bytes.
    pub mean_memory_bytes: f64,
    /// Dropped for jobs: clean copies, bytes.
    pub dropped_bytes: u64,
    /// Moved for jobs to the flash of the same node, bytes.
    pub moved_to_flash_bytes: u64,
    /// Moved for jobs to another node, bytes.
    pub moved_to_nodes_bytes: u64,
}

impl FleetOutcome {
    /// Failures of all nodes.
    pub fn failures(&self) -> u64 {
        self.nodes.iter().map(|n| n.failures).sum()
    }

    /// Mean time until lost second copies were made again.
    pub fn mean_re_replication_s(&self) -> Option<f64> {
        let n = self.re_replications;
        (n > 0).then(|| self.re_replication_s / n as f64)
    }
}

/// Running sums of one node.
#[derive(Debug, Clone, Copy, Default)]
pub(in super::super) struct HostSums {
    pub stalls: u64,
    pub stall_s: f64,
    pub reads: u64,
    pub hits: u64,
    pub failures: u64,
    pub away_s: f64,
}

impl Sim<'_> {
    pub(in super::super) fn note_stall(&mut self, node: usize, stall_s: f64) {
        let host = self.nodes[node].host as usize;
        if let Some(host) = self.fleet.hosts.get_mut(host).filter(|_| stall_s > 0.0) {
            host.sums.stalls += 1;
            host.sums.stall_s += stall_s;
        }
    }

    pub(in super::super) fn fleet_outcome(&mut self) -> Option<FleetOutcome> {
        let nodes = self.scenario.nodes.as_ref()?;
        self.note_at_risk();
        let memory = self.memory_outcome();
        let mut found = std::mem::take(&mut self.fleet.sums);
        found.memory = memory;
        for (host, spec) in self.fleet.hosts.iter().zip(&nodes.all) {
            let (pools, sums) = (&self.nodes[host.pools.clone()], host.sums);
            found.nodes.push(NodeOutcome {
                rack: spec.rack,
                capacity_bytes: pools.iter().map(|n| n.full).sum(),
                peak_bytes: pools.iter().map(|n| n.peak).sum(),
                written_bytes: pools.iter().map(|n| n.written).sum(),
                drained_bytes: pools.iter().map(|n| n.drained).sum(),
                stalls: sums.stalls,
                stall_s: sums.stall_s,
                reads: sums.reads,
                hits: sums.hits,
                hit_ratio: (sums.reads > 0).then(|| sums.hits as f64 / sums.reads as f64),
                failures: sums.failures,
                away_s: sums.away_s,
            });
        }
        Some(found)
    }
}
