//! One plan for all nodes, and Brmax in shares: at each report every node is told its part.

use forebay_policy::engine::{Bandwidths, PlanChoice, in_force};
use forebay_policy::fairshare::{Work, divide, shares, together};
use forebay_policy::plan::{Plan, Rates};
use forebay_policy::throttle::{DemotionPace, Load, Pace, pace};

use super::super::node::Node;
use super::super::{Event, Sim};
use crate::scenario::Scenario;

/// A share that has changed by less than this part of it is no reason to look at a node.
const NOTICED: f64 = 1e-3;

const NOTHING: Rates = Rates {
    checkpoint_bytes_per_s: 0.0,
    demotion_bytes_per_s: 0.0,
};

/// What was said at the last report.
pub(super) struct Lent {
    /// Of all nodes together. Writes and capacity are in the applications' bytes, of which each is
    /// held by as many nodes as there are replicas.
    all: Bandwidths,
    capacity_bytes: f64,
    copies: f64,
    planned_bytes: Option<u64>,
    plan: Option<Plan>,
    load: Load,
    /// What the plan gives each tier.
    planned: Vec<Rates>,
    /// What each tier may drain.
    demotion: Vec<f64>,
    sum: f64,
}

impl Lent {
    pub fn new(scenario: &Scenario, tiers: &[Node]) -> Self {
        let copies = scenario.nodes.as_ref().map_or(1.0, |nodes| {
            f64::from(nodes.replicas.min(nodes.all.len() as u32))
        });
        let bandwidths: Vec<Bandwidths> = tiers
            .iter()
            .map(|tier| Bandwidths {
                bw_max_bytes_per_s: tier.input.bw_max_bytes_per_s / copies,
                bw_min_bytes_per_s: tier.input.bw_min_bytes_per_s / copies,
                br_max_bytes_per_s: tier.input.br_max_bytes_per_s,
                br_min_bytes_per_s: tier.input.br_min_bytes_per_s,
            })
            .collect();
        let all = together(&bandwidths, scenario.pfs.bytes_per_s);
        let capacity: f64 = tiers.iter().map(|tier| tier.capacity as f64).sum();
        Self {
            // A scenario has at least one node.
            all: all.unwrap_or_else(|| unreachable!("checked")),
            capacity_bytes: capacity / copies,
            copies,
            planned_bytes: None,
            plan: None,
            load: Load {
                dwsf_bytes: 0.0,
                dirty_bytes: 0.0,
                limit_bytes: capacity,
                under_way_bytes: 0.0,
                was_full: false,
                is_idle: false,
                is_starved: false,
            },
            planned: vec![NOTHING; tiers.len()],
            demotion: vec![0.0; tiers.len()],
            sum: 0.0,
        }
    }
}

impl Sim<'_> {
    /// Brmax, which nothing that is lent exceeds.
    #[cfg(test)]
    pub(in super::super) fn br_max(&self) -> f64 {
        self.fleet.lent.all.br_max_bytes_per_s
    }

    /// Every node reports what it has to drain and to write, and is lent its share.
    pub(in super::super) fn report(&mut self) {
        let scenario = self.scenario;
        let Some(nodes) = &scenario.nodes else {
            return;
        };
        if self.fleet.is_lent {
            for node in 0..self.nodes.len() {
                self.advance(node);
            }
            self.plan_for_all();
            self.lend();
        }
        self.make_lost_copies(nodes);
        self.make_restart_copies(nodes);
        self.calendar
            .plan(self.now_s + nodes.report_s, Event::Report);
    }

    fn plan_for_all(&mut self) {
        let (now_s, scenario) = (self.now_s, self.scenario);
        let lent = &mut self.fleet.lent;
        lent.load.dwsf_bytes = 0.0;
        let mut predicted: Option<u64> = None;
        for node in &mut self.nodes {
            lent.load.dwsf_bytes += node.meter.dwsf_bytes(now_s) as f64;
            if let Some(bytes) = node.meter.dwpp_bytes(now_s) {
                predicted = Some(predicted.unwrap_or(0) + bytes);
            }
        }
        lent.load.dirty_bytes = self.nodes.iter().map(|n| n.dirty as f64).sum();
        lent.load.is_idle = self.nodes.iter().all(|n| is_idle(n, now_s, scenario));
        lent.load.is_starved = self.nodes.iter().any(is_starved);
        let dwpp = scenario.plan.dwpp_bytes.or(predicted);
        let capacity: f64 = self.nodes.iter().map(|n| n.capacity as f64).sum();
        // Memory was borrowed or given back.
        let is_other = capacity / lent.copies != lent.capacity_bytes;
        lent.capacity_bytes = capacity / lent.copies;
        lent.load.limit_bytes = capacity;
        if dwpp == lent.planned_bytes && !is_other {
            return;
        }
        lent.planned_bytes = dwpp;
        let choice = PlanChoice {
            policy: scenario.policy,
            bandwidths: Some(lent.all),
            capacity_bytes: lent.capacity_bytes,
            dwpp_bytes: dwpp.map(|bytes| bytes as f64),
            period_s: scenario.plan.period_s,
        };
        lent.plan = in_force(&choice).plan;
    }

    fn lend(&mut self) {
        let (now_s, scenario) = (self.now_s, self.scenario);
        let lent = &mut self.fleet.lent;
        let all = pace(scenario.policy, lent.plan.as_ref(), &lent.load);
        let rates = Rates {
            checkpoint_bytes_per_s: all
                .checkpoint_bytes_per_s
                .unwrap_or(lent.all.bw_max_bytes_per_s),
            demotion_bytes_per_s: match all.demotion {
                DemotionPace::Stop => 0.0,
                DemotionPace::Rate(rate) => rate,
                DemotionPace::Full => lent.all.br_max_bytes_per_s,
            },
        };
        let to_drain = |n: &Node| Work {
            bytes: if n.is_up { n.dirty - n.seconds } else { 0 },
            most_bytes_per_s: n.input.br_max_bytes_per_s,
        };
        let to_write = |n: &Node| Work {
            // Who has nothing to write now may begin before the next report.
            bytes: if n.is_up { n.reserved().max(1) } else { 0 },
            most_bytes_per_s: n.input.bw_max_bytes_per_s / lent.copies,
        };
        let mut drains: Vec<Work> = self.nodes.iter().map(to_drain).collect();
        let writes: Vec<Work> = self.nodes.iter().map(to_write).collect();
        lent.planned = divide(rates, &drains, &writes);
        for (node, n) in self.nodes.iter().enumerate() {
            // A quiet node, or one without space, drains as fast as it can, whatever the others do.
            let is_free = is_idle(n, now_s, scenario) || lent.load.is_starved;
            if !is_free {
                drains[node].most_bytes_per_s = lent.planned[node].demotion_bytes_per_s;
            }
        }
        let demotion = shares(lent.all.br_max_bytes_per_s, &drains);
        lent.sum = demotion.iter().sum();
        for (node, share) in demotion.iter().enumerate() {
            let old = std::mem::replace(&mut lent.demotion[node], *share);
            let n = &self.nodes[node];
            let is_other = (old - share).abs() > NOTICED * old.max(*share);
            if is_other || !n.workers.is_empty() || n.flow.is_some() || n.dirty > n.seconds {
                self.touched.push(node);
            }
        }
    }

    /// What a node may drain now: its share, less where operations that go to the PFS directly take
    /// theirs.
    pub(in super::super) fn lent_now(&self, node: usize) -> f64 {
        let lent = &self.fleet.lent;
        let left = self.pfs.left_for_flows() / lent.sum.max(f64::MIN_POSITIVE);
        lent.demotion[node] * left.min(1.0)
    }

    /// The limit for writes and the cap for demotion of a node between two reports.
    pub(in super::super) fn lent_pace(&self, node: usize) -> (f64, f64) {
        let (lent, n) = (&self.fleet.lent, &self.nodes[node]);
        let bw_max = n.input.bw_max_bytes_per_s;
        let has_writers = n.fillers().next().is_some();
        let own = Load {
            dirty_bytes: n.dirty.max(u64::from(has_writers)) as f64,
            is_idle: is_idle(n, self.now_s, self.scenario),
            is_starved: lent.load.is_starved || is_starved(n),
            limit_bytes: n.capacity as f64,
            ..lent.load
        };
        let Pace {
            checkpoint_bytes_per_s,
            demotion,
        } = pace(self.scenario.policy, lent.plan.as_ref(), &own);
        let part = &lent.planned[node];
        let even = lent.all.bw_max_bytes_per_s / self.nodes.len() as f64;
        let limit = part.checkpoint_bytes_per_s.max(even) * lent.copies;
        let limit = checkpoint_bytes_per_s.map_or(bw_max, |_| limit.min(bw_max));
        let cap = match demotion {
            DemotionPace::Stop => 0.0,
            DemotionPace::Rate(_) | DemotionPace::Full => n.input.br_max_bytes_per_s,
        };
        (limit, cap)
    }
}

fn is_idle(n: &Node, now_s: f64, scenario: &Scenario) -> bool {
    !n.is_busy() && now_s >= n.foreground_s + scenario.bb.idle_s
}

fn is_starved(n: &Node) -> bool {
    (n.fillers().next().is_some() && n.is_full()) || !n.blocked.is_empty() || n.must_drain()
}
