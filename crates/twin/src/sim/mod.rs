//! The simulation: a calendar of events, and bytes that flow between them.
//!
//! Between two events all rates of a node are constant, so a node is advanced only when something
//! happens to it. Every step costs O(log n) of the number of applications: the calendar and the
//! victim queues are ordered, nothing is scanned. Bytes are whole numbers and are only written into
//! space that is free, so capacity is never exceeded, not by a byte.

mod app;
mod event;
mod failure;
mod fleet;
mod flow;
mod node;
mod part;
mod pfs;
mod phase;
mod space;
mod stats;
#[cfg(test)]
mod tests;

pub use fleet::{FleetOutcome, MemoryOutcome, NodeOutcome};
pub use stats::{JobRecord, Outcome, Sample};

use forebay_policy::version::VersionTracker;
use smallvec::SmallVec;

use crate::rng::Rng;
use crate::scenario::{FailureMode, Pattern, Scenario};
use app::App;
use event::{Calendar, Event};
use fleet::Fleet;
use node::Node;
use part::Parts;
use pfs::PfsState;
use stats::Sums;

/// Steps between two looks at the progress.
const STEPS_PER_LOOK: u64 = 1 << 14;

/// Pages of the calendar in a period: the open one has some hundred events of ten thousand
/// applications.
const PAGES_PER_PERIOD: f64 = 64.0;

/// A step is never shorter: rounding cannot make time stand still.
const MIN_STEP_S: f64 = 1e-6;

/// Longer than any simulation: phases are not cut into turns (BBOS, I/O engine: I/O phases do not
/// interleave).
const WHOLE_PHASE_S: f64 = 1e18;

/// What a run is asked for beside its sums.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Keep every checkpoint, not only sums.
    pub records: bool,
    /// Keep the state so many times over the duration.
    pub samples: u32,
}

/// What a run gives.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Run {
    /// Sums and means.
    pub outcome: Outcome,
    /// Every checkpoint in the order of their ends, if asked for.
    pub records: Vec<JobRecord>,
    /// The state over time, if asked for.
    pub samples: Vec<Sample>,
    /// Node by node, where the scenario has nodes.
    pub fleet: Option<FleetOutcome>,
}

/// The run was stopped from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stopped")]
pub struct Stopped;

/// Simulates to the end.
pub fn run(scenario: &Scenario, options: Options) -> Run {
    // It fails only when asked to stop, and nobody asks.
    run_watched(scenario, options, |_| true).unwrap_or_default()
}

/// Simulates to the end; `watch` is told the share of the time that has passed, 0 to 1, and says
/// whether to go on.
pub fn run_watched(
    scenario: &Scenario,
    options: Options,
    mut watch: impl FnMut(f64) -> bool,
) -> Result<Run, Stopped> {
    let mut sim = Sim::new(scenario, options);
    while sim.step() {
        if sim.outcome.steps.is_multiple_of(STEPS_PER_LOOK)
            && !watch(sim.now_s / scenario.duration_s)
        {
            return Err(Stopped);
        }
    }
    Ok(sim.finish())
}

struct Sim<'a> {
    scenario: &'a Scenario,
    options: Options,
    now_s: f64,
    calendar: Calendar,
    apps: Vec<App>,
    parts: Parts,
    nodes: Vec<Node>,
    /// When the step of each node ends.
    node_next_s: Vec<f64>,
    /// Nodes whose surroundings have changed and that must think again.
    touched: Vec<usize>,
    pfs: PfsState,
    fleet: Fleet,
    jitter_rng: Rng,
    failure_rng: Rng,
    draw_rng: Rng,
    flush_rng: Rng,
    node_rng: Rng,
    /// Running sums of 1/MTBF, for draws.
    failure_weights: Vec<f64>,
    sums: Sums,
    outcome: Outcome,
    records: Vec<JobRecord>,
    samples: Vec<Sample>,
}

impl<'a> Sim<'a> {
    fn new(scenario: &'a Scenario, options: Options) -> Self {
        let rng = |purpose| Rng::new(scenario.seed, purpose);
        let (nodes, fleet) = fleet::build(scenario);
        let mut sim = Self {
            scenario,
            options,
            now_s: 0.0,
            calendar: Calendar::new(scenario.plan.period_s / PAGES_PER_PERIOD),
            apps: Vec::new(),
            parts: Parts::default(),
            node_next_s: vec![f64::INFINITY; nodes.len()],
            nodes,
            touched: Vec::new(),
            pfs: PfsState::new(&scenario.pfs, fleet.is_lent),
            fleet,
            jitter_rng: rng(1),
            failure_rng: rng(2),
            draw_rng: rng(3),
            flush_rng: rng(4),
            node_rng: rng(6),
            failure_weights: Vec::new(),
            sums: Sums::default(),
            outcome: Outcome::default(),
            records: Vec::new(),
            samples: Vec::new(),
        };
        sim.add_applications(&mut rng(5));
        sim.calendar.plan(0.0, Event::Period);
        sim.plan_nodes();
        for i in 1..=options.samples {
            let at_s = scenario.duration_s * f64::from(i) / f64::from(options.samples);
            sim.calendar.plan(at_s, Event::Sample);
        }
        sim
    }

    fn add_applications(&mut self, rng: &mut Rng) {
        let scenario = self.scenario;
        let mut weight = 0.0;
        for (kind, a) in scenario.applications.iter().enumerate() {
            for i in 0..a.count {
                let index = self.apps.len() as u32;
                let mtbf_s = a.mtbf.sample(rng);
                let start_s = a.start.sample(rng);
                let gap_s = a.interval_s / f64::from(a.count);
                let given_s = a.times_s.first();
                let offset_s = match scenario.arrivals.pattern {
                    _ if given_s.is_some() => given_s.map_or(0.0, |at_s| at_s - start_s),
                    Pattern::Random => rng.share() * a.interval_s,
                    Pattern::Given => a.interval_s,
                    pattern => gap_s * f64::from(i) * pattern.gap_share(),
                };
                weight += 1.0 / mtbf_s.max(1e-9);
                self.failure_weights.push(weight);
                self.apps.push(App {
                    kind: kind as u32,
                    node: index % scenario.bb.nodes,
                    end_s: start_s + a.runtime_s,
                    mtbf_s,
                    known_mtbf_s: match scenario.failures.mtbf_known {
                        true => mtbf_s,
                        false => forebay_policy::mtbf::prior_s(a.nodes),
                    },
                    last_restart_s: start_s,
                    version: 0,
                    newest: None,
                    newest_s: start_s,
                    safe: None,
                    on_pfs: SmallVec::new(),
                    tracker: VersionTracker::default(),
                    parts: SmallVec::new(),
                    due_s: start_s + offset_s,
                    attempt: 0,
                    failures: 0,
                    phase: None,
                    has_ended: false,
                });
                self.calendar.plan(start_s, Event::Start(index));
                for at_s in &a.restarts_s {
                    self.calendar.plan(*at_s, Event::Restart(index));
                }
            }
        }
    }

    /// Does what happens next; `false` at the end.
    fn step(&mut self) -> bool {
        let (node, node_s) = self.next_node();
        let event_s = self.calendar.next_s();
        let at_s = event_s.min(node_s).min(self.pfs.next_s);
        if at_s > self.scenario.duration_s || at_s == f64::INFINITY {
            return false;
        }
        self.now_s = self.now_s.max(at_s);
        self.outcome.steps += 1;
        if event_s <= at_s {
            if let Some(event) = self.calendar.pop() {
                self.happen(event);
            }
        } else if node_s <= at_s {
            self.touch(node);
        } else {
            self.pfs_step();
        }
        self.settle();
        true
    }

    /// Lets all think again whose surroundings have changed, and does what they have put off.
    fn settle(&mut self) {
        loop {
            while let Some(node) = self.touched.pop() {
                self.touch(node);
            }
            if !self.do_what_was_put_off() {
                return;
            }
        }
    }

    fn next_node(&self) -> (usize, f64) {
        let mut first = (0, f64::INFINITY);
        for (node, at_s) in self.node_next_s.iter().enumerate() {
            if *at_s < first.1 {
                first = (node, *at_s);
            }
        }
        first
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Period => self.begin_period(),
            Event::Start(app) => self.start_application(app),
            Event::Checkpoint(app, failures) => self.begin_checkpoint(app, failures),
            Event::Fail(app) => self.fail(app, false),
            Event::Restart(app) => self.note_restart(app),
            Event::End(app) => self.end_application(app),
            Event::Draw => self.draw_restart(),
            Event::Sample => self.sample(),
            Event::Report => self.report(),
            Event::NodeFails(host) => self.node_fails(host),
            Event::NodeIsBack(host) => self.node_is_back(host),
            Event::Look(node) => self.look(node as usize),
            Event::JobsWant(node, nth) => self.jobs_want(node as usize, nth),
            Event::JobComes(node) => self.job_comes(node as usize),
            Event::JobEnds(node) => self.job_ends(node as usize),
        }
    }

    fn begin_period(&mut self) {
        self.advance_all();
        if self.now_s > 0.0 {
            let dirty = self.nodes.iter().map(|n| n.dirty).sum();
            let most = &mut self.outcome.dirty_at_period_end_bytes;
            *most = (*most).max(dirty);
        }
        let (period_s, failures) = (self.scenario.plan.period_s, &self.scenario.failures);
        if failures.mode == FailureMode::Draws && self.now_s >= failures.from_s {
            for _ in 0..failures.restarts_per_period {
                let at_s = self.now_s + self.draw_rng.share() * period_s;
                self.calendar.plan(at_s, Event::Draw);
            }
        }
        self.calendar.plan(self.now_s + period_s, Event::Period);
    }

    fn advance_all(&mut self) {
        for node in 0..self.nodes.len() {
            self.advance(node);
            self.touched.push(node);
        }
    }

    fn sample(&mut self) {
        self.advance_all();
        self.note_at_risk();
        self.samples.push(Sample {
            at_s: self.now_s,
            dirty_bytes: self.nodes.iter().map(|n| n.dirty).sum(),
            clean_bytes: self.nodes.iter().map(|n| n.clean).sum(),
            at_risk_bytes: self.fleet.sums.at_risk_bytes,
        });
    }

    fn finish(mut self) -> Run {
        self.now_s = self.scenario.duration_s.max(self.now_s);
        for node in 0..self.nodes.len() {
            self.advance(node);
        }
        let fleet = self.fleet_outcome();
        let (sums, n) = (self.sums, self.sums.checkpoints.max(1) as f64);
        let mut o = self.outcome;
        o.checkpoints = sums.checkpoints;
        o.checkpoint_bytes = sums.bytes;
        o.unfinished = self
            .apps
            .iter()
            .filter(|a| a.phase.is_some_and(|p| !p.is_read))
            .count() as u64;
        o.mean_throughput_bytes_per_s = sums.throughput / n;
        o.mean_latency_s = sums.latency_s / n;
        o.max_latency_s = sums.max_latency_s;
        o.mean_wait_s = sums.wait_s / n;
        o.mean_stall_s = sums.stall_s / n;
        o.stalled = sums.stalled;
        o.hit_ratio = (o.restarts > 0).then(|| o.hits as f64 / o.restarts as f64);
        o.dirty_at_end_bytes = self.nodes.iter().map(|n| n.dirty).sum();
        Run {
            outcome: o,
            records: self.records,
            samples: self.samples,
            fleet,
        }
    }
}
