//! Memory that is borrowed from jobs: how much a memory tier has, by the policy's
//! [`Lender`], and what jobs have to wait for.

use forebay_policy::lending::{Lender, Memory, Pool, Target, Why};

use super::super::node::Node;
use super::super::{Event, Sim};
use super::MemoryOutcome;
use crate::rng::Rng;
use crate::scenario::Lending;

/// Time between two looks while the tier is not as large as it may be, and else; those of the
/// servers.
const TENSE_S: f64 = 0.25;
const CALM_S: f64 = 1.0;

/// Streams of random numbers from here on are those of the jobs, one for each tier.
const JOBS_STREAM: u64 = 1 << 32;

/// What two looks have to agree on so that a third would find nothing new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    capacity: u64,
    why: Why,
    sum: u64,
}

/// A memory tier that jobs may want memory back from.
#[derive(Debug)]
pub(in super::super) struct Borrowed {
    lender: Lender,
    /// Memory of the node, bytes.
    total: u64,
    /// What jobs have or want, bytes.
    wanted: u64,
    rng: Rng,
    seen: Option<Seen>,
    is_tense: bool,
    /// A look is in the calendar.
    is_planned: bool,
    /// Something is to leave that can move nowhere: it is drained in a hurry.
    pub is_stuck: bool,
    /// For how long jobs have waited that wait now, seconds.
    waits_for_s: Option<f64>,
    capacity_s: f64,
    capacity_since_s: f64,
    pub sums: MemoryOutcome,
}

impl Borrowed {
    /// Of a tier of that capacity, the most it may have.
    pub fn new(seed: u64, lending: &Lending, node: &Node) -> Self {
        Self {
            lender: new_lender(lending, node.full),
            total: lending.total_bytes,
            wanted: 0,
            rng: Rng::new(seed, JOBS_STREAM + u64::from(node.host)),
            seen: None,
            is_tense: false,
            is_planned: false,
            is_stuck: false,
            waits_for_s: None,
            capacity_s: 0.0,
            capacity_since_s: 0.0,
            sums: MemoryOutcome::default(),
        }
    }

    /// What jobs want and do not get while the tier has so much; negative: they have that to spare.
    fn missing(&self, used: u64) -> i128 {
        i128::from(used) + i128::from(self.wanted) - i128::from(self.total)
    }

    /// Time has passed in which the tier went from one use to the other, evenly.
    pub fn passed(&mut self, dt: f64, used: [u64; 2], is_up: bool) {
        let [begin, end] = used.map(|used| self.missing(used));
        if !is_up || (begin <= 0 && end <= 0) {
            self.waits_for_s = None;
            return;
        }
        // Where nothing is missing at one end, that begins or ends on the way.
        let waited_s = match (begin > 0, end > 0) {
            (true, true) => dt,
            _ => dt * begin.max(end) as f64 / begin.abs_diff(end) as f64,
        };
        let before_s = self.waits_for_s.unwrap_or_else(|| {
            self.sums.job_waits += 1;
            0.0
        });
        // Added up as the sum of all is, so that no wait is longer than that.
        let so_far_s = before_s + waited_s;
        self.sums.job_wait_s += waited_s;
        self.sums.max_job_wait_s = self.sums.max_job_wait_s.max(so_far_s);
        self.waits_for_s = (end > 0).then_some(so_far_s);
    }
}

fn new_lender(lending: &Lending, most_bytes: u64) -> Lender {
    Lender::new(lending.bounds(most_bytes)).unwrap_or_else(|_| unreachable!("checked"))
}

impl Sim<'_> {
    /// What jobs want, and the first look.
    pub(super) fn plan_jobs(&mut self) {
        let scenario = self.scenario;
        let Some(lending) = &scenario.lending else {
            return;
        };
        let borrowed: Vec<usize> = self.borrowed_tiers().collect();
        for (nth, node) in borrowed.into_iter().enumerate() {
            let later_s = nth as f64 * lending.apart_s;
            for (job, (at_s, _)) in lending.jobs.iter().enumerate() {
                let event = Event::JobsWant(node as u32, job as u32);
                self.calendar.plan(at_s + later_s, event);
            }
            self.plan_job(node);
            self.calendar.plan(0.0, Event::Look(node as u32));
            if let Some(borrowed) = &mut self.nodes[node].borrowed {
                borrowed.is_planned = true;
            }
        }
    }

    fn borrowed_tiers(&self) -> impl Iterator<Item = usize> + use<'_> {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].borrowed.is_some())
    }

    /// The next job that is drawn.
    fn plan_job(&mut self, node: usize) {
        let drawn = self
            .scenario
            .lending
            .as_ref()
            .and_then(|l| l.drawn.as_ref());
        if let (Some(drawn), Some(borrowed)) = (drawn, &mut self.nodes[node].borrowed) {
            let at_s = self.now_s + borrowed.rng.exponential(drawn.every_s);
            self.calendar.plan(at_s, Event::JobComes(node as u32));
        }
    }

    /// The next entry of the list.
    pub(in super::super) fn jobs_want(&mut self, node: usize, nth: u32) {
        let lending = self.scenario.lending.as_ref();
        if let Some((_, bytes)) = lending.and_then(|l| l.jobs.get(nth as usize)) {
            self.want(node, *bytes);
        }
    }

    /// A job that was drawn comes. Where those that are there leave it no room the scheduler sends
    /// it elsewhere.
    pub(in super::super) fn job_comes(&mut self, node: usize) {
        let drawn = self
            .scenario
            .lending
            .as_ref()
            .and_then(|l| l.drawn.as_ref());
        if let (Some(drawn), Some(borrowed)) = (drawn, &mut self.nodes[node].borrowed) {
            let (wanted, lasts_s) = (
                borrowed.wanted.saturating_add(drawn.bytes),
                drawn.lasts.sample(&mut borrowed.rng),
            );
            if wanted <= borrowed.total {
                let end_s = self.now_s + lasts_s;
                self.calendar.plan(end_s, Event::JobEnds(node as u32));
                self.want(node, wanted);
            }
        }
        self.plan_job(node);
    }

    pub(in super::super) fn job_ends(&mut self, node: usize) {
        let drawn = self
            .scenario
            .lending
            .as_ref()
            .and_then(|l| l.drawn.as_ref());
        if let (Some(drawn), Some(borrowed)) = (drawn, &self.nodes[node].borrowed) {
            let wanted = borrowed.wanted.saturating_sub(drawn.bytes);
            self.want(node, wanted);
        }
    }

    /// Jobs want another amount of memory from now on.
    fn want(&mut self, node: usize, bytes: u64) {
        // The looks that were left out would have found until now what this one finds.
        self.look_now(node);
        if let Some(borrowed) = &mut self.nodes[node].borrowed {
            borrowed.wanted = bytes;
            borrowed.seen = None;
        }
        self.plan_look(node);
    }

    fn plan_look(&mut self, node: usize) {
        let now_s = self.now_s;
        let Some(borrowed) = &mut self.nodes[node].borrowed else {
            return;
        };
        if !std::mem::replace(&mut borrowed.is_planned, true) {
            let next_s = match borrowed.is_tense {
                true => now_s + TENSE_S,
                // At whole seconds: a job comes at any time between two looks.
                false => (now_s / CALM_S).floor() * CALM_S + CALM_S,
            };
            self.calendar.plan(next_s, Event::Look(node as u32));
        }
    }

    /// A look that was in the calendar.
    pub(in super::super) fn look(&mut self, node: usize) {
        if let Some(borrowed) = &mut self.nodes[node].borrowed {
            borrowed.is_planned = false;
        }
        self.look_now(node);
    }

    /// Has the policy say how much memory the tier has from now on, and gives back what it has
    /// beyond. Looks go on while they find something new.
    fn look_now(&mut self, node: usize) {
        self.advance(node);
        let Some(target) = self.ask_lender(node) else {
            return;
        };
        self.set_capacity(node, target.capacity_bytes);
        self.give_back(node);
        let n = &mut self.nodes[node];
        let (used, owed) = (n.used(), n.owed());
        let Some(borrowed) = &mut n.borrowed else {
            return;
        };
        borrowed.is_tense = target.is_tense();
        let seen = Seen {
            capacity: target.capacity_bytes,
            why: target.why,
            sum: borrowed.total - borrowed.wanted,
        };
        let is_settled = matches!(target.why, Why::Ceiling | Why::Ordered | Why::Jobs);
        let is_same = borrowed.seen.replace(seen) == Some(seen);
        if !(is_same && is_settled && owed == 0 && borrowed.missing(used) <= 0) {
            self.plan_look(node);
        }
    }

    /// `None` while the node is away.
    fn ask_lender(&mut self, node: usize) -> Option<Target> {
        let now_s = self.now_s;
        let n = &mut self.nodes[node];
        let used = n.used();
        let borrowed = n.borrowed.as_mut().filter(|_| n.is_up)?;
        let total = borrowed.total;
        let free = total.saturating_sub(used);
        let memory = Memory {
            now_s,
            total_bytes: total,
            pool: Pool {
                total_bytes: total,
                available_bytes: free.saturating_sub(borrowed.wanted),
            },
            // Who wants memory that is not there stalls.
            stall_us: (borrowed.sums.job_wait_s * 1e6) as u64,
            capacity_bytes: n.capacity,
            used_bytes: used,
        };
        Some(borrowed.lender.step(&memory, None))
    }

    fn set_capacity(&mut self, node: usize, bytes: u64) {
        let n = &mut self.nodes[node];
        if n.capacity == bytes {
            return;
        }
        if let Some(borrowed) = &mut n.borrowed {
            borrowed.capacity_s += n.capacity as f64 * (self.now_s - borrowed.capacity_since_s);
            borrowed.capacity_since_s = self.now_s;
        }
        n.capacity = bytes;
        n.most = bytes.max(n.used());
        // A node that plans for itself makes a plan for its new capacity.
        n.input.capacity_bytes = bytes as f64;
        n.planned_bytes = None;
        self.touched.push(node);
    }

    /// The node is there again, with empty memory: it begins as after a start.
    pub(super) fn borrow_anew(&mut self, node: usize) {
        let n = &mut self.nodes[node];
        let full = n.full;
        if let (Some(lending), Some(borrowed)) = (&self.scenario.lending, &mut n.borrowed) {
            borrowed.lender = new_lender(lending, full);
            borrowed.seen = None;
            self.look_now(node);
        }
    }

    /// All tiers together.
    pub(super) fn memory_outcome(&mut self) -> Option<MemoryOutcome> {
        self.scenario.lending.as_ref()?;
        let now_s = self.now_s;
        let mut all = MemoryOutcome::default();
        for n in &self.nodes {
            let Some(borrowed) = &n.borrowed else {
                continue;
            };
            let last_s = now_s - borrowed.capacity_since_s;
            let (sums, capacity_s) = (
                borrowed.sums,
                borrowed.capacity_s + n.capacity as f64 * last_s,
            );
            all.job_wait_s += sums.job_wait_s;
            all.job_waits += sums.job_waits;
            all.max_job_wait_s = all.max_job_wait_s.max(sums.max_job_wait_s);
            all.mean_memory_bytes += capacity_s / now_s;
            all.dropped_bytes += sums.dropped_bytes;
            all.moved_to_flash_bytes += sums.moved_to_flash_bytes;
            all.moved_to_nodes_bytes += sums.moved_to_nodes_bytes;
        }
        Some(all)
    }
}
