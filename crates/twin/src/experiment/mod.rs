//! The built-in experiments: the papers' evaluations with the papers' constants. Each varies a few
//! keys of a scenario file.

mod checkpoint;
mod direct;
mod onfs;
mod restart;
mod runs;
#[cfg(test)]
mod tests;
mod utilisation;
mod versions;

use crate::figure::Figure;
use crate::row::Row;
use crate::scenario::{Override, Scenario, ScenarioError};
use crate::sim::{
    FleetOutcome, MemoryOutcome, NodeOutcome, Options, Outcome, Run, Stopped, run_watched,
};

/// The scenario that most experiments vary.
pub const BBOS: &str = include_str!("../../scenarios/bbos.toml");

/// The scenario of `bbos-versions`.
pub const BBOS_VERSIONS: &str = include_str!("../../scenarios/bbos-versions.toml");

/// The scenario of `onfs`.
pub const ONFS: &str = include_str!("../../scenarios/onfs.toml");

/// Capacity of the papers' burst buffer in checkpoints, and the size of one.
const CHECKPOINTS_IN_S: f64 = 40.0;
const CHECKPOINT_BYTES: f64 = 80e9;
const S: f64 = CHECKPOINTS_IN_S * CHECKPOINT_BYTES;
const PERIOD_S: f64 = 3800.0;

/// Seeds that are averaged where MTBFs are drawn at random.
const SEEDS: u64 = 5;

/// What an experiment or a scenario gave.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// What was simulated.
    pub title: String,
    /// The results.
    pub rows: Vec<Row>,
    /// Node by node, where the scenario has nodes.
    pub nodes: Vec<Row>,
    /// Drawn.
    pub figures: Vec<Figure>,
    /// What must be known to read them.
    pub notes: Vec<String>,
}

/// Why an experiment gave nothing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ExperimentError {
    /// The scenario is refused.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// Stopped from outside.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Runs scenarios and reports progress over all of them.
pub struct Runner<'a> {
    watch: &'a mut dyn FnMut(f64) -> bool,
    seed: u64,
    done: f64,
    total: f64,
}

impl<'a> Runner<'a> {
    /// `watch` is told the share that is done, 0 to 1, and says whether to go on.
    pub fn new(seed: u64, watch: &'a mut dyn FnMut(f64) -> bool) -> Self {
        Self {
            watch,
            seed,
            done: 0.0,
            total: 1.0,
        }
    }

    /// How many runs there will be, about.
    pub fn expect(&mut self, runs: usize) {
        self.total = runs.max(1) as f64;
    }

    /// Parses and runs.
    pub fn run(
        &mut self,
        text: &str,
        overrides: &[Override],
        options: Options,
    ) -> Result<Run, ExperimentError> {
        let scenario = Scenario::parse(text, overrides)?;
        let (done, total) = (self.done, self.total);
        let watch = &mut *self.watch;
        let run = run_watched(&scenario, options, |share| {
            watch(((done + share) / total).min(1.0))
        })?;
        self.done += 1.0;
        match (self.watch)((self.done / self.total).min(1.0)) {
            true => Ok(run),
            false => Err(Stopped.into()),
        }
    }

    /// The sums of a run of a built-in scenario with keys replaced.
    fn outcome(&mut self, text: &str, set: &[(&str, String)]) -> Result<Outcome, ExperimentError> {
        Ok(self.run_with(text, set)?.outcome)
    }

    /// As [`Runner::outcome`], with all that came of the run.
    fn run_with(&mut self, text: &str, set: &[(&str, String)]) -> Result<Run, ExperimentError> {
        let overrides: Vec<Override> = set
            .iter()
            .map(|(key, value)| Override {
                key: (*key).into(),
                value: value.clone(),
            })
            .collect();
        self.run(text, &overrides, Options::default())
    }
}

/// A built-in experiment.
pub struct Experiment {
    /// What it is called.
    pub name: &'static str,
    /// In a line.
    pub about: &'static str,
    /// The scenario it varies; empty where there is none.
    pub scenario: &'static str,
    run: fn(&mut Runner<'_>) -> Result<Report, ExperimentError>,
}

/// All built-in experiments.
pub const EXPERIMENTS: [Experiment; 7] = [
    Experiment {
        name: "bbos-utilisation",
        about: "largest data per period that each policy serves, over the capacity",
        scenario: BBOS,
        run: utilisation::run,
    },
    Experiment {
        name: "bbos-checkpoint",
        about: "throughput and latency of checkpoints by policy, load and congestion",
        scenario: BBOS,
        run: checkpoint::run,
    },
    Experiment {
        name: "bbos-direct",
        about: "data demoted with and without direct checkpoints to the PFS",
        scenario: BBOS,
        run: direct::run,
    },
    Experiment {
        name: "bbos-restart",
        about: "restarts served from the burst buffer, by placement, load and spread of MTBF",
        scenario: BBOS,
        run: restart::run,
    },
    Experiment {
        name: "bbos-versions",
        about: "restarts served from the burst buffer with and without knowing versions",
        scenario: BBOS_VERSIONS,
        run: versions::run,
    },
    Experiment {
        name: "onfs",
        about: "writes, restarts and jobs beside no, fixed and borrowed memory",
        scenario: ONFS,
        run: onfs::run,
    },
    Experiment {
        name: "runs",
        about: "what is there before each run of an application that reads the same files again",
        scenario: "",
        run: runs::run,
    },
];

impl Experiment {
    /// The one of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        EXPERIMENTS.iter().find(|e| e.name == name)
    }

    /// Runs it.
    pub fn run(
        &self,
        seed: u64,
        watch: &mut dyn FnMut(f64) -> bool,
    ) -> Result<Report, ExperimentError> {
        (self.run)(&mut Runner::new(seed, watch))
    }
}

fn bytes(bytes: f64) -> String {
    format!("{bytes:.0}")
}

/// Runs a scenario of a user's own: one row.
pub fn scenario(
    text: &str,
    overrides: &[Override],
    watch: &mut dyn FnMut(f64) -> bool,
) -> Result<Report, ExperimentError> {
    let scenario = Scenario::parse(text, overrides)?;
    let mut runner = Runner::new(scenario.seed, watch);
    let options = Options {
        records: false,
        samples: 400,
    };
    let run = runner.run(text, overrides, options)?;
    let gb = |bytes: u64| bytes as f64 / 1e9;
    let dirty = run.samples.iter().map(|s| (s.at_s, gb(s.dirty_bytes)));
    let used = run
        .samples
        .iter()
        .map(|s| (s.at_s, gb(s.dirty_bytes + s.clean_bytes)));
    let figure = Figure::lines(
        "occupancy",
        "What the burst buffer holds",
        "time, s",
        "GB",
        vec![
            ("undrained".into(), dirty.collect()),
            ("undrained and clean".into(), used.collect()),
        ],
    );
    let mut report = Report {
        title: scenario.name.clone(),
        rows: vec![summary(&scenario, &run.outcome)],
        figures: vec![figure],
        ..Report::default()
    };
    if let Some(found) = &run.fleet {
        report.rows = vec![with_nodes(report.rows.remove(0), found)];
        report.nodes = node_rows(found);
        let at_risk = run.samples.iter().map(|s| (s.at_s, gb(s.at_risk_bytes)));
        report.figures.push(Figure::lines(
            "at-risk",
            "Undrained bytes of complete checkpoints with one copy",
            "time, s",
            "GB",
            vec![("at risk".into(), at_risk.collect())],
        ));
    }
    Ok(report)
}

/// What several nodes add to the row of a run.
pub fn with_nodes(row: Row, found: &FleetOutcome) -> Row {
    let row = row
        .with("nodes", found.nodes.len() as u64)
        .with("node_failures", found.failures())
        .with("lost_bytes", found.lost_bytes)
        .with("lost_versions", found.lost_versions)
        .with("max_at_risk_bytes", found.max_at_risk_bytes)
        .with("re_replications", found.re_replications)
        .with("mean_re_replication_s", found.mean_re_replication_s())
        .with("max_re_replication_s", found.max_re_replication_s)
        .with("copied_again_bytes", found.copied_again_bytes)
        .with("drained_by_fsync_bytes", found.drained_by_fsync_bytes)
        .with("handed_over", found.handed_over)
        .with("handed_over_bytes", found.handed_over_bytes)
        .with("restart_copies", found.restart_copies)
        .with("restart_copy_bytes", found.restart_copy_bytes)
        .with("interrupted", found.interrupted)
        .with("begun_again", found.begun_again)
        .with("waited_for_node_s", found.waited_for_node_s);
    match &found.memory {
        None => row,
        Some(memory) => with_memory(row, memory),
    }
}

/// What borrowed memory adds.
pub fn with_memory(row: Row, memory: &MemoryOutcome) -> Row {
    row.with("job_wait_s", memory.job_wait_s)
        .with("job_waits", memory.job_waits)
        .with("max_job_wait_s", memory.max_job_wait_s)
        .with("mean_memory_bytes", memory.mean_memory_bytes)
        .with("given_back_clean_bytes", memory.dropped_bytes)
        .with("moved_to_flash_bytes", memory.moved_to_flash_bytes)
        .with("moved_to_nodes_bytes", memory.moved_to_nodes_bytes)
}

/// A row for each node.
fn node_rows(found: &FleetOutcome) -> Vec<Row> {
    let one = |(i, n): (usize, &NodeOutcome)| {
        Row::default()
            .with("node", i as u64 + 1)
            .with("rack", n.rack)
            .with("capacity_bytes", n.capacity_bytes)
            .with("peak_bytes", n.peak_bytes)
            .with("written_bytes", n.written_bytes)
            .with("drained_bytes", n.drained_bytes)
            .with("stalls", n.stalls)
            .with("stall_s", n.stall_s)
            .with("reads", n.reads)
            .with("hit_ratio", n.hit_ratio)
            .with("failures", n.failures)
            .with("away_s", n.away_s)
    };
    found.nodes.iter().enumerate().map(one).collect()
}

/// The row of one run.
pub fn summary(scenario: &Scenario, o: &Outcome) -> Row {
    Row::default()
        .with("policy", scenario.policy.name())
        .with("placement", scenario.placement.name())
        .with("capacity_bytes", scenario.bb.capacity_bytes)
        .with("applications", scenario.application_count())
        .with("checkpoints", o.checkpoints)
        .with("unfinished", o.unfinished)
        .with("checkpoint_bytes", o.checkpoint_bytes)
        .with("mean_throughput_bytes_per_s", o.mean_throughput_bytes_per_s)
        .with("mean_latency_s", o.mean_latency_s)
        .with("max_latency_s", o.max_latency_s)
        .with("mean_wait_s", o.mean_wait_s)
        .with("mean_stall_s", o.mean_stall_s)
        .with("stalled", o.stalled)
        .with("demoted_bytes", o.demoted_bytes)
        .with("direct_bytes", o.direct_bytes)
        .with("staged_bytes", o.staged_bytes)
        .with("restarts", o.restarts)
        .with("hit_ratio", o.hit_ratio)
        .with("lost_work_s", o.lost_work_s)
        .with("max_dirty_bytes", o.max_dirty_bytes)
        .with("dirty_at_end_bytes", o.dirty_at_end_bytes)
}
