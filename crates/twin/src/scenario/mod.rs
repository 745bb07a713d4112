//! What is simulated: the burst buffer, the PFS, the applications, and what goes wrong.
//! `docs/twin.md` describes every key.

mod dist;
mod lending;
mod nodes;
mod parse;
mod read;
#[cfg(test)]
mod tests;

pub use dist::Dist;
pub use lending::{DrawnJobs, Lending};
pub use nodes::{NodeSpec, Nodes};
pub use parse::{MAX_APPLICATIONS, MAX_NODES};
pub use read::{Override, ScenarioError};

use forebay_policy::demotion::PlacementPolicy;
use forebay_policy::plan::{DrainPolicy, PlanInput};

/// A scenario that was checked: sizes are positive, rates can be met, there is at least one
/// application.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// What it is called.
    pub name: String,
    /// All random numbers follow from it.
    pub seed: u64,
    /// How long is simulated.
    pub duration_s: f64,
    /// When data is demoted.
    pub policy: DrainPolicy,
    /// What is demoted and evicted first.
    pub placement: PlacementPolicy,
    /// Whether outdated checkpoint versions go first.
    pub version_aware: bool,
    /// Whether cold checkpoints go straight to the PFS.
    pub direct: bool,
    /// The burst buffer; with `nodes` all of them together.
    pub bb: BurstBuffer,
    /// Where it is of several data servers, these one by one.
    pub nodes: Option<Nodes>,
    /// Where their memory is borrowed from jobs, what those want of it.
    pub lending: Option<Lending>,
    /// What is behind it.
    pub pfs: Pfs,
    /// The planning window.
    pub plan: Planning,
    /// When checkpoints come.
    pub arrivals: Arrivals,
    /// What fails, and what it reads then.
    pub failures: Failures,
    /// Where the twin follows the servers in what the papers leave open.
    pub assume: Assume,
    /// Who writes; never empty.
    pub applications: Vec<Application>,
}

/// All nodes together; each has an equal part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BurstBuffer {
    /// Burst-buffer nodes.
    pub nodes: u32,
    /// S.
    pub capacity_bytes: u64,
    /// Bwmax.
    pub bw_max_bytes_per_s: f64,
    /// Bwmin.
    pub bw_min_bytes_per_s: f64,
    /// Brmax.
    pub br_max_bytes_per_s: f64,
    /// Brmin.
    pub br_min_bytes_per_s: f64,
    /// What a restart reads with.
    pub read_bytes_per_s: f64,
    /// Pause after which a node counts as idle.
    pub idle_s: f64,
}

/// The parallel file system.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pfs {
    /// Its servers; a burst-buffer node flushes to one at a time.
    pub servers: u32,
    /// All servers together.
    pub bytes_per_s: f64,
    /// Whether nodes take turns on the servers (TRIO) or hit one at random.
    pub ordered_flush: bool,
}

/// The planning window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Planning {
    /// Its length.
    pub period_s: f64,
    /// DWPP of all nodes where it is given; `None`: predicted from the periods before.
    pub dwpp_bytes: Option<u64>,
}

/// When the first checkpoints come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Spread evenly over the application's interval.
    Low,
    /// The gaps of `low` halved.
    Med,
    /// A tenth of the gaps of `low`.
    High,
    /// One after the other without a gap: the next begins as soon as the one before has ended.
    BackToBack,
    /// At random in the interval.
    Random,
    /// As the applications' `start` says.
    Given,
}

impl Pattern {
    /// Every pattern, with the name users write.
    pub const NAMES: [(&'static str, Self); 6] = [
        ("low", Self::Low),
        ("med", Self::Med),
        ("high", Self::High),
        ("back-to-back", Self::BackToBack),
        ("random", Self::Random),
        ("given", Self::Given),
    ];

    /// Part of the even gap between two arrivals (BBOS, evaluation: low, med, high).
    pub fn gap_share(self) -> f64 {
        match self {
            Self::Low => 1.0,
            Self::Med => 0.5,
            Self::High => 0.1,
            Self::BackToBack | Self::Random | Self::Given => 0.0,
        }
    }
}

/// When checkpoints come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrivals {
    /// The first of each application.
    pub pattern: Pattern,
}

/// What a failure does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureMode {
    /// Nothing fails.
    None,
    /// An application fails at exponential times of its MTBF, loses the checkpoint it is writing,
    /// reads the newest complete one and goes on.
    Process,
    /// Restarts are drawn: so many per period, each of an application chosen in proportion to
    /// 1/MTBF. They read and disturb nothing.
    Draws,
}

impl FailureMode {
    /// Every mode, with the name users write.
    pub const NAMES: [(&'static str, Self); 3] = [
        ("none", Self::None),
        ("process", Self::Process),
        ("draws", Self::Draws),
    ];
}

/// What fails.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Failures {
    /// How.
    pub mode: FailureMode,
    /// For [`FailureMode::Draws`].
    pub restarts_per_period: u32,
    /// Failures begin after that many seconds, when the burst buffer holds what it usually does.
    pub from_s: f64,
    /// Whether the burst buffer knows each application's true MTBF from the beginning, and keeps to
    /// it. Otherwise it begins with the prior and learns from restarts.
    pub mtbf_known: bool,
}

/// What the papers leave open and the servers decide. Other values serve to see what a difference
/// from the papers comes from (docs/reproduction.md); no server does so. Defaults are what the
/// servers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assume {
    /// Demoted copies stay until their space is wanted.
    pub copies_stay: bool,
    /// Reads of restarts count as use (placement `lru`).
    pub reads_are_use: bool,
    /// Only what is closed is demoted, as the servers do; else bytes go while their checkpoint is
    /// still being written, as in the papers' equations.
    pub whole_files: bool,
}

/// One kind of application.
#[derive(Debug, Clone, PartialEq)]
pub struct Application {
    /// What it is called; several of a kind get a number.
    pub name: String,
    /// How many of the kind there are.
    pub count: u32,
    /// Compute nodes of one.
    pub nodes: u32,
    /// Size of a checkpoint.
    pub checkpoint_bytes: u64,
    /// Time from one checkpoint's begin to the next.
    pub interval_s: f64,
    /// Part of the interval by which a checkpoint comes earlier or later at random, 0 to 1.
    pub jitter: f64,
    /// Versions it keeps; older ones it deletes. `None`: all.
    pub versions: Option<u64>,
    /// True mean time between failures.
    pub mtbf: Dist,
    /// When it starts.
    pub start: Dist,
    /// How long it runs; infinite: to the end.
    pub runtime_s: f64,
    /// Fastest rate at which it writes and reads; infinite: as fast as the burst buffer.
    pub link_bytes_per_s: f64,
    /// Burst-buffer nodes one checkpoint is spread over.
    pub stripe: u32,
    /// Bytes staged in from the PFS before it starts.
    pub stage_in_bytes: u64,
    /// Space it holds for its life under the policy `dedicated`.
    pub dedicated_bytes: u64,
    /// When its checkpoints begin, where a history says so; else by the interval.
    pub times_s: Vec<f64>,
    /// The sizes of these checkpoints; none: all as large as `checkpoint_bytes`.
    pub sizes_bytes: Vec<u64>,
    /// When it restarts, where a history says so: it reads, and disturbs nothing.
    pub restarts_s: Vec<f64>,
}

impl Application {
    /// The size of a version, from 1 on.
    pub fn version_bytes(&self, version: u64) -> u64 {
        let at = usize::try_from(version.saturating_sub(1)).unwrap_or(usize::MAX);
        let known = self.sizes_bytes.get(at);
        known.copied().unwrap_or(self.checkpoint_bytes)
    }
}

impl Scenario {
    /// Reads a TOML file; `overrides` replace values of it.
    pub fn parse(text: &str, overrides: &[Override]) -> Result<Self, ScenarioError> {
        parse::parse(text, overrides)
    }

    /// Applications of all kinds.
    pub fn application_count(&self) -> u64 {
        self.applications.iter().map(|a| u64::from(a.count)).sum()
    }

    /// What one node plans with.
    pub fn node_plan(&self, dwpp_bytes: f64) -> PlanInput {
        let nodes = f64::from(self.bb.nodes);
        PlanInput {
            capacity_bytes: self.node_capacity_bytes() as f64,
            dwpp_bytes,
            bw_max_bytes_per_s: self.bb.bw_max_bytes_per_s / nodes,
            bw_min_bytes_per_s: self.bb.bw_min_bytes_per_s / nodes,
            br_max_bytes_per_s: self.bb.br_max_bytes_per_s / nodes,
            br_min_bytes_per_s: self.bb.br_min_bytes_per_s / nodes,
            period_s: self.plan.period_s,
        }
    }

    /// Capacity of one node.
    pub fn node_capacity_bytes(&self) -> u64 {
        self.bb.capacity_bytes / u64::from(self.bb.nodes)
    }
}
