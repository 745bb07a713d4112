//! A centre's own history as a scenario: Slurm's accounting, job logs in the Standard Workload
//! Format, Darshan's records of I/O.
//!
//! No source tells everything. What is assumed is a parameter ([`Assumptions`]) and is written at
//! the top of the scenario.

mod darshan;
pub mod history;
mod sacct;
mod swf;
#[cfg(test)]
mod tests;

use std::fmt::Write;

/// One job as a source tells it.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Its number or name.
    pub name: String,
    /// When it started, in seconds from any origin.
    pub start_s: f64,
    /// How long it ran.
    pub runtime_s: f64,
    /// Compute nodes; processors where the source knows only these.
    pub nodes: u32,
    /// What it wrote in all, where the source tells.
    pub written_bytes: Option<u64>,
    /// Memory of all its processes, where the source tells.
    pub memory_bytes: Option<u64>,
}

/// Times beyond are damage: no clock of a centre has seen 30,000 years.
const TIME_MAX_S: f64 = 1e12;

impl Job {
    fn can_have_been(&self) -> bool {
        // No number compares with what is none.
        self.start_s.abs() <= TIME_MAX_S && self.runtime_s > 0.0 && self.runtime_s <= TIME_MAX_S
    }
}

/// What a source gave.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct History {
    /// Jobs that ran.
    pub jobs: Vec<Job>,
    /// Lines that are no jobs that ran: cancelled before the start, still running, damaged.
    pub skipped: usize,
}

/// The source of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Standard Workload Format, version 2.
    Swf,
    /// `sacct --parsable2` with a header.
    Sacct,
    /// The text that `darshan-parser` prints.
    Darshan,
}

/// Why nothing could be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// No source looks like this.
    #[error(
        "neither an SWF log, nor sacct --parsable2 with a header, nor the text of darshan-parser"
    )]
    Unknown,
    /// A column that is needed is not there.
    #[error("sacct: no column {0}; ask for it with --format (see docs/twin.md)")]
    Column(&'static str),
    /// A fact that is needed is not there.
    #[error("darshan: no '{0}' in the header")]
    Header(&'static str),
    /// Every line was skipped.
    #[error("no job that ran ({0} lines skipped)")]
    Empty(usize),
}

/// What the sources cannot tell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Assumptions {
    /// Time between two checkpoints; a shorter job writes one at its end.
    pub interval_s: f64,
    /// Part of a job's memory that a checkpoint holds, where the source tells the memory and not
    /// what was written.
    pub memory_share: f64,
    /// Size of a checkpoint per node, where the source tells neither.
    pub bytes_per_node: u64,
    /// Mean time between failures of one node.
    pub node_mtbf_s: f64,
}

impl Default for Assumptions {
    fn default() -> Self {
        Self {
            interval_s: 3600.0,
            memory_share: 0.5,
            bytes_per_node: 16_000_000_000,
            // Five years, a usual figure for one node.
            node_mtbf_s: 5.0 * 365.0 * 86_400.0,
        }
    }
}

impl Source {
    /// Recognises a source by what it looks like.
    pub fn guess(text: &str) -> Result<Self, TraceError> {
        let first = text
            .lines()
            .find(|line| !line.trim().is_empty())
            .unwrap_or_default();
        let numbers = || first.split_whitespace().map(str::parse::<f64>);
        if text.contains("# darshan log version") {
            Ok(Self::Darshan)
        } else if first.contains("JobID") && first.contains('|') {
            Ok(Self::Sacct)
        } else if first.starts_with(';')
            || (numbers().count() == 18 && numbers().all(|n| n.is_ok()))
        {
            Ok(Self::Swf)
        } else {
            Err(TraceError::Unknown)
        }
    }

    /// Reads a job log of this format.
    pub fn read(self, text: &str) -> Result<History, TraceError> {
        let mut history = match self {
            Self::Swf => swf::read(text),
            Self::Sacct => sacct::read(text)?,
            Self::Darshan => darshan::read(text)?,
        };
        let all = history.jobs.len();
        history.jobs.retain(Job::can_have_been);
        history.skipped += all - history.jobs.len();
        match history.jobs.is_empty() {
            true => Err(TraceError::Empty(history.skipped)),
            false => Ok(history),
        }
    }

    /// What it cannot tell, and what is taken instead.
    pub fn limits(self) -> &'static str {
        match self {
            Self::Swf => {
                "SWF tells nothing of I/O: a checkpoint is a share of the memory where it is known, else a size per processor; \
                 processors stand for nodes"
            }
            Self::Sacct => {
                "sacct tells the sum of a job's writes (AveDiskWrite x NTasks of its steps), not when: they are spread evenly over \
                 checkpoints; without them a checkpoint is a size per node"
            }
            Self::Darshan => {
                "Darshan's counters tell the sum of a job's writes, not when, nor its nodes: writes are spread evenly over \
                 checkpoints, processes stand for nodes"
            }
        }
    }
}

/// The history as a scenario. The burst buffer in it is the papers' and is meant to be replaced.
pub fn scenario(source: Source, history: &History, a: &Assumptions) -> String {
    let start_s = history
        .jobs
        .iter()
        .map(|j| j.start_s)
        .fold(f64::INFINITY, f64::min);
    let end_s = history
        .jobs
        .iter()
        .map(|j| j.start_s + j.runtime_s)
        .fold(0.0, f64::max);
    let period_s = a.interval_s.max(60.0);
    let mut toml = format!(
        "# {} jobs, {} lines skipped.\n# {}.\n# Assumed: a checkpoint every {} s (at the end of shorter jobs), {} of the memory or {} bytes per node, \
         one node fails every {} s.\nname = \"imported\"\nduration = {}\n\n# The papers' burst buffer: put yours here.\n[bb]\n\
         capacity = \"3.2TB\"\nbw_max = \"3.56GB/s\"\nbw_min = \"3GB/s\"\nbr_max = \"1.6GB/s\"\nbr_min = \"80MB/s\"\n\n\
         [plan]\nperiod = {period_s}\ndwpp = \"predicted\"\n\n[arrivals]\npattern = \"given\"\n\n[failures]\nmode = \"process\"\n",
        history.jobs.len(),
        history.skipped,
        source.limits(),
        a.interval_s,
        a.memory_share,
        a.bytes_per_node,
        a.node_mtbf_s,
        (end_s - start_s).ceil() + period_s,
    );
    for job in &history.jobs {
        // Writing to a string cannot fail.
        let _ = application(&mut toml, job, start_s, a);
    }
    toml
}

fn application(toml: &mut String, job: &Job, origin_s: f64, a: &Assumptions) -> std::fmt::Result {
    // A job that is shorter than the interval writes at its end.
    let interval_s = a.interval_s.min(job.runtime_s * 0.999).max(0.001);
    let checkpoints = (job.runtime_s / interval_s).floor().max(1.0) as u64;
    let bytes = match (job.written_bytes, job.memory_bytes) {
        (Some(written), _) => written / checkpoints,
        (None, Some(memory)) => (memory as f64 * a.memory_share) as u64,
        (None, None) => a.bytes_per_node.saturating_mul(u64::from(job.nodes)),
    };
    let mtbf_s = (a.node_mtbf_s / f64::from(job.nodes.max(1))).max(1.0);
    let name: String = job
        .name
        .chars()
        .filter(|c| !c.is_control() && *c != '"' && *c != '\\')
        .collect();
    write!(
        toml,
        "\n[[application]]\nname = \"{name}\"\nstart = {:.3}\nruntime = {:.3}\nnodes = {}\ncheckpoint = {}\ninterval = {interval_s:.3}\nmtbf = {mtbf_s:.0}\n",
        job.start_s - origin_s,
        job.runtime_s,
        job.nodes.max(1),
        // A number of a TOML file goes no further.
        bytes.clamp(1, i64::MAX as u64),
    )
}
