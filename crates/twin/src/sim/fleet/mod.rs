//! A burst buffer of several data servers. Each tier of one is a [`Node`] of the simulation; a
//! [`Host`] has one or two of them, and a link.
//!
//! Where there is one tier in all, nothing of this changes what the simulation does.

mod copies;
mod downward;
#[cfg(test)]
mod downward_tests;
mod lend;
mod loss;
mod memory;
#[cfg(test)]
mod memory_tests;
mod moves;
mod outcome;
mod place;
mod read;
#[cfg(test)]
mod tests;

pub(super) use memory::Borrowed;
pub use outcome::{FleetOutcome, MemoryOutcome, NodeOutcome};

use std::ops::Range;

use forebay_policy::engine::Bandwidths;
use forebay_policy::forecast::Meter;
use forebay_policy::holders::{Holder, HolderId, Rack};
use forebay_policy::placement::TierKind;
use forebay_policy::plan::{DrainPolicy, PlanInput};
use forebay_policy::rereplication::ReReplication;
use forebay_policy::schedule::{ScheduleConfig, Scheduler};
use forebay_policy::share::Shares;

use super::node::{Access, Node, Request, Way};
use super::part::{PartId, Role};
use super::{Sim, WHOLE_PHASE_S};
use crate::scenario::{BurstBuffer, Scenario};
use lend::Lent;
use outcome::HostSums;
use read::Waiting;

/// A data server.
#[derive(Debug)]
pub(super) struct Host {
    /// Its tiers, memory before flash.
    pub pools: Range<usize>,
    pub rack: Rack,
    pub link_bytes_per_s: f64,
    pub is_up: bool,
    /// Since when it is away, if it is.
    pub failed_s: f64,
    /// Flows over its link, each direction.
    out: u32,
    into: u32,
    /// The tiers whose flows these are, each as often as it has one.
    flows: Vec<u32>,
    pub sums: HostSums,
}

/// What is done once nothing else is under way.
#[derive(Debug, Clone, Copy)]
pub(super) enum PutOff {
    /// A part of the application's phase of this attempt has ended, after so long a stall.
    EndOfPart(u32, u32, f64),
    /// Writers find no space on this tier.
    WhenFull(usize),
    /// This copy is given up, if it is still being filled.
    DropCopy(PartId),
    /// A part has left this memory: the next one follows.
    GiveBack(usize),
    /// This memory runs full.
    MoveDown(usize),
}

/// All data servers; empty where the scenario has no `[nodes]`.
pub(super) struct Fleet {
    pub hosts: Vec<Host>,
    /// What the policy sees of them; brought up to date before it is asked.
    holders: Vec<Holder>,
    /// Servers that hold undrained data.
    pub replicas: u32,
    /// Whether Brmax is lent in shares: there are several tiers.
    pub is_lent: bool,
    has_links: bool,
    restart_network_bytes_per_s: f64,
    lent: Lent,
    lost_copies: ReReplication,
    /// When the first loss happened that has not been made good.
    unprotected_since_s: Option<f64>,
    put_off: Vec<PutOff>,
    /// Restarts whose bytes are on a node that is away.
    waiting: Vec<Waiting>,
    /// A first part is on its way to another node: its second copy stays.
    is_moving: bool,
    pub sums: FleetOutcome,
}

impl Fleet {
    /// What a flow gets of the links on its way.
    pub fn way_share(&self, way: Way) -> f64 {
        let of = |host: Option<u32>, flows: fn(&Host) -> u32| {
            host.map_or(f64::INFINITY, |host| {
                let host = &self.hosts[host as usize];
                host.link_bytes_per_s / f64::from(flows(host).max(1))
            })
        };
        of(way.from, |h| h.out).min(of(way.to, |h| h.into))
    }

    /// The network that a copy of this kind goes over, where it is not the link.
    pub fn copy_network(&self, role: Role) -> f64 {
        match role {
            Role::Restart => self.restart_network_bytes_per_s,
            Role::First | Role::Second | Role::Moved => f64::INFINITY,
        }
    }
}

/// The tiers of all nodes, and what is known of several of them.
pub(super) fn build(scenario: &Scenario) -> (Vec<Node>, Fleet) {
    let (mut tiers, mut hosts, mut holders) = (Vec::new(), Vec::new(), Vec::new());
    let nodes = scenario.nodes.as_ref();
    if nodes.is_none() {
        let input = scenario.node_plan(0.0);
        let read = scenario.bb.read_bytes_per_s / f64::from(scenario.bb.nodes);
        let capacity = scenario.node_capacity_bytes();
        for host in 0..scenario.bb.nodes {
            let mut node = new_node(scenario, capacity, input, read);
            node.host = host;
            tiers.push(node);
        }
    }
    for (nodes, spec) in nodes.iter().flat_map(|n| n.all.iter().map(move |s| (n, s))) {
        let begin = tiers.len();
        let kinds = [
            (TierKind::Dram, nodes.memory_of(spec)),
            (TierKind::Ssd, nodes.flash_of(spec)),
        ];
        for (kind, bb) in kinds.iter().filter(|(_, bb)| bb.capacity_bytes > 0) {
            let input = bandwidths(bb).input(bb.capacity_bytes as f64, 0.0, scenario.plan.period_s);
            let mut node = new_node(scenario, bb.capacity_bytes, input, bb.read_bytes_per_s);
            (node.host, node.kind) = (hosts.len() as u32, *kind);
            if let Some(lending) = scenario
                .lending
                .as_ref()
                .filter(|_| *kind == TierKind::Dram)
            {
                node.borrowed = Some(Box::new(Borrowed::new(scenario.seed, lending, &node)));
            }
            tiers.push(node);
        }
        holders.push(Holder {
            id: HolderId(hosts.len() as u16),
            rack: Rack(spec.rack),
            is_answering: true,
            is_emptied: false,
            tiers: Vec::new(),
            load_bytes: 0,
        });
        hosts.push(Host {
            pools: begin..tiers.len(),
            rack: Rack(spec.rack),
            link_bytes_per_s: spec.link_bytes_per_s,
            is_up: true,
            failed_s: 0.0,
            out: 0,
            into: 0,
            flows: Vec::new(),
            sums: HostSums::default(),
        });
    }
    let fleet = Fleet {
        replicas: nodes.map_or(1, |n| n.replicas),
        is_lent: nodes.is_some() && tiers.len() > 1,
        has_links: hosts.iter().any(|h| h.link_bytes_per_s.is_finite()),
        restart_network_bytes_per_s: nodes.map_or(0.0, |n| n.restart_network_bytes_per_s),
        lent: Lent::new(scenario, &tiers),
        lost_copies: ReReplication::new(0.0, 0.0),
        unprotected_since_s: None,
        put_off: Vec::new(),
        waiting: Vec::new(),
        is_moving: false,
        sums: FleetOutcome::default(),
        hosts,
        holders,
    };
    (tiers, fleet)
}

fn bandwidths(bb: &BurstBuffer) -> Bandwidths {
    Bandwidths {
        bw_max_bytes_per_s: bb.bw_max_bytes_per_s,
        bw_min_bytes_per_s: bb.bw_min_bytes_per_s,
        br_max_bytes_per_s: bb.br_max_bytes_per_s,
        br_min_bytes_per_s: bb.br_min_bytes_per_s,
    }
}

/// Phases are not cut into turns (BBOS, I/O engine: I/O phases do not interleave).
pub(super) fn new_scheduler() -> Scheduler<Request> {
    let config = ScheduleConfig {
        turn_s: WHOLE_PHASE_S,
        // The next phase begins at once.
        linger_s: f64::MIN_POSITIVE,
        linger_flushing_s: f64::MIN_POSITIVE,
        linger_closed_s: f64::MIN_POSITIVE,
        max_wait_s: WHOLE_PHASE_S,
        limits: [u32::MAX, 1, 1, 1],
    };
    Scheduler::new(config).unwrap_or_else(|_| unreachable!("constant"))
}

fn new_node(scenario: &Scenario, capacity: u64, input: PlanInput, read: f64) -> Node {
    let share = scenario
        .applications
        .iter()
        .map(|a| a.dedicated_bytes.div_ceil(u64::from(a.stripe)))
        .max()
        .unwrap_or(1)
        .clamp(1, capacity);
    let shares = match scenario.policy {
        DrainPolicy::Dedicated => Shares::new(capacity, share).ok(),
        _ => None,
    };
    // A checked scenario has a period of more than 0.
    let meter = Meter::new(scenario.plan.period_s).unwrap_or_else(|_| unreachable!("checked"));
    let scheduler = new_scheduler();
    Node::new(
        capacity,
        scenario.placement,
        scheduler,
        shares,
        meter,
        input,
        read,
    )
}

impl Sim<'_> {
    /// Whether Brmax is lent in shares; else each node plans for itself.
    pub(super) fn is_lent(&self) -> bool {
        self.fleet.is_lent
    }

    pub(super) fn put_off(&mut self, what: PutOff) {
        self.fleet.put_off.push(what);
    }

    /// `false` where there was nothing.
    pub(super) fn do_what_was_put_off(&mut self) -> bool {
        let all = std::mem::take(&mut self.fleet.put_off);
        for what in &all {
            match *what {
                PutOff::EndOfPart(app, attempt, stall_s) => {
                    if self.apps[app as usize].attempt == attempt {
                        self.end_of_part(app, stall_s);
                    }
                }
                PutOff::WhenFull(node) => self.when_full(node),
                PutOff::GiveBack(node) => self.give_back(node),
                PutOff::MoveDown(node) => self.move_down(node),
                PutOff::DropCopy(id) => {
                    let node = self.parts[id].node as usize;
                    let mut workers = self.nodes[node].workers.iter();
                    if workers.any(|w| w.access == Access::Copy(id)) {
                        self.drop_copy(id);
                    }
                }
            }
        }
        !all.is_empty()
    }

    /// Where what is staged in goes: the last tier of the node.
    pub(super) fn stage_node(&self, host: u32) -> u32 {
        let found = self.fleet.hosts.get(host as usize);
        found.map_or(host, |host| host.pools.end as u32 - 1)
    }

    /// Tiers that an application has something on.
    pub(super) fn nodes_used(&self, app: u32) -> Vec<usize> {
        if self.scenario.nodes.is_none() {
            return self.nodes_of(app);
        }
        let a = &self.apps[app as usize];
        // What is read may have been evicted since.
        if a.phase.is_some_and(|phase| phase.is_read) {
            return (0..self.nodes.len()).collect();
        }
        let mut used: Vec<usize> = a
            .parts
            .iter()
            .map(|id| self.parts[*id].node as usize)
            .collect();
        used.sort_unstable();
        used.dedup();
        used
    }

    /// The links that the bytes of a request go over.
    pub(super) fn way(&self, node: usize, request: &Request, access: Access) -> Option<Way> {
        if !self.fleet.has_links {
            return None;
        }
        let here = Some(self.nodes[node].host);
        let version = self.apps[request.app as usize].version;
        let there = match request.is_second {
            true => {
                let first = self.part_of(request.app, version, request.slot, Role::First);
                first.map(|id| self.nodes[self.parts[id].node as usize].host)
            }
            false => self.writer_host(request.app, request.slot),
        };
        match access {
            _ if there == here => None,
            Access::Read => Some(Way {
                from: here,
                to: there,
            }),
            Access::Write(_) | Access::Second(_) | Access::Copy(_) => Some(Way {
                from: there,
                to: here,
            }),
        }
    }

    pub(super) fn way_begins(&mut self, node: usize, way: Option<Way>) {
        self.way_changes(node, way, true);
    }

    pub(super) fn way_ends(&mut self, node: usize, way: Option<Way>) {
        self.nodes[node].ends_worker = None;
        self.way_changes(node, way, false);
    }

    fn way_changes(&mut self, node: usize, way: Option<Way>, begins: bool) {
        let Some(way) = way else {
            return;
        };
        for (host, is_out) in [(way.from, true), (way.to, false)] {
            let Some(host) = host.map(|host| &mut self.fleet.hosts[host as usize]) else {
                continue;
            };
            let flows = if is_out {
                &mut host.out
            } else {
                &mut host.into
            };
            match begins {
                true => {
                    *flows += 1;
                    host.flows.push(node as u32);
                }
                false => {
                    *flows -= 1;
                    if let Some(place) = host.flows.iter().position(|n| *n as usize == node) {
                        host.flows.swap_remove(place);
                    }
                }
            }
            let others = host.flows.iter().map(|n| *n as usize);
            self.touched.extend(others.filter(|n| *n != node));
        }
    }
}
