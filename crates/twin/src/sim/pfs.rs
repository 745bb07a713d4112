//! The parallel file system. Its servers share their bandwidth among the nodes that flush to them
//! and the operations that go to the PFS or come from it directly. Each such operation is spread
//! over all servers.

use std::collections::BTreeMap;

use forebay_policy::demotion::flush_target;

use super::part::{Part, PartId, Role, State};
use super::{MIN_STEP_S, Sim};
use crate::scenario::Pfs;

/// What a direct operation is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A checkpoint that does not come into the burst buffer.
    Direct,
    /// A restart from the PFS.
    Restart,
    /// Input of an application that starts.
    StageIn,
    /// An fsync drains the part, for there is no second holder.
    Fsync(PartId),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct PfsOperation {
    pub app: u32,
    /// The node that a direct checkpoint would have come to, or that what is read comes to.
    pub node: u32,
    pub bytes: u64,
    pub purpose: Purpose,
}

/// Operations of applications whose links are as fast as each other. At any moment all of them get
/// the same rate, so one count of bytes serves for all. Each operation ends when the count has come
/// to a mark that was set when the operation began.
#[derive(Debug)]
struct Lane {
    link_bytes_per_s: f64,
    /// Bytes that an operation which has been under way since the lane was last empty has moved.
    served: f64,
    rate: f64,
    /// Operations by mark, then by arrival. A mark is held as its bits: marks are not negative, so
    /// their bits are ordered alike.
    under_way: BTreeMap<(u64, u64), PfsOperation>,
}

impl Lane {
    /// Seconds until the first one ends.
    fn first_end_s(&self) -> f64 {
        match self.under_way.first_key_value() {
            Some(((mark, _), _)) => (f64::from_bits(*mark) - self.served).max(0.0) / self.rate,
            None => f64::INFINITY,
        }
    }
}

/// The servers, and who uses them.
#[derive(Debug)]
pub(super) struct PfsState {
    server_bytes_per_s: f64,
    /// Nodes that flush to each server.
    flows: Vec<Vec<u32>>,
    lanes: Vec<Lane>,
    operations: usize,
    arrivals: u64,
    last_s: f64,
    pub next_s: f64,
}

impl PfsState {
    /// `is_one`: nodes share it by their reports, not server by server.
    pub fn new(pfs: &Pfs, is_one: bool) -> Self {
        let servers = if is_one { 1 } else { pfs.servers };
        Self {
            server_bytes_per_s: pfs.bytes_per_s / f64::from(servers),
            flows: vec![Vec::new(); servers as usize],
            lanes: Vec::new(),
            operations: 0,
            arrivals: 0,
            last_s: 0.0,
            next_s: f64::INFINITY,
        }
    }

    /// What one flow, or one operation, gets of a server.
    fn share(&self, server: usize) -> f64 {
        let users = self.flows[server].len() + self.operations;
        self.server_bytes_per_s / users.max(1) as f64
    }

    /// What operations leave for all that is demoted together.
    pub fn left_for_flows(&self) -> f64 {
        let flows: usize = self.flows.iter().map(Vec::len).sum();
        let all: f64 = self.server_bytes_per_s * self.flows.len() as f64;
        match self.operations {
            0 => all,
            operations => all * flows as f64 / (flows + operations) as f64,
        }
    }

    fn lane(&mut self, link_bytes_per_s: f64) -> &mut Lane {
        let same = |lane: &Lane| lane.link_bytes_per_s == link_bytes_per_s;
        let at = self.lanes.iter().position(same).unwrap_or_else(|| {
            self.lanes.push(Lane {
                link_bytes_per_s,
                served: 0.0,
                rate: 0.0,
                under_way: BTreeMap::new(),
            });
            self.lanes.len() - 1
        });
        &mut self.lanes[at]
    }

    /// The operation that ends now.
    fn pop(&mut self) -> Option<PfsOperation> {
        let used = self.lanes.iter_mut().filter(|l| !l.under_way.is_empty());
        let lane = used.min_by(|a, b| a.first_end_s().total_cmp(&b.first_end_s()))?;
        let ((mark, _), operation) = lane.under_way.pop_first()?;
        lane.served = match lane.under_way.is_empty() {
            // An empty lane counts from nothing again, so that the count stays exact.
            true => 0.0,
            false => lane.served.max(f64::from_bits(mark)),
        };
        self.operations -= 1;
        Some(operation)
    }
}

impl Sim<'_> {
    /// What the PFS leaves for the demotion of a node, which from now on flushes to a server.
    pub(super) fn pfs_share(&mut self, node: usize) -> f64 {
        if self.nodes[node].flow.is_none() {
            self.join_pfs(node);
        }
        match (self.is_lent(), self.nodes[node].flow) {
            (false, Some(server)) => self.pfs.share(server as usize),
            _ => self.lent_now(node),
        }
    }

    fn join_pfs(&mut self, node: usize) {
        let servers = self.pfs.flows.len() as u32;
        let target = match self.scenario.pfs.ordered_flush {
            true => flush_target(node as u32, self.nodes[node].round, servers).unwrap_or(0),
            false => self.flush_rng.below(u64::from(servers)) as u32,
        };
        self.nodes[node].flow = Some(target);
        self.pfs.flows[target as usize].push(node as u32);
        self.flows_changed(target as usize, node);
    }

    pub(super) fn leave_pfs(&mut self, node: usize) {
        let Some(server) = self.nodes[node].flow.take() else {
            return;
        };
        self.pfs.flows[server as usize].retain(|other| *other as usize != node);
        self.flows_changed(server as usize, node);
    }

    fn flows_changed(&mut self, server: usize, but: usize) {
        // Shares that are lent stay what they are until the next report.
        if !self.is_lent() {
            let others = self.pfs.flows[server].iter().map(|node| *node as usize);
            self.touched.extend(others.filter(|node| *node != but));
        }
        self.pfs_advance();
        self.pfs_rate();
    }

    /// Begins an operation at once, beside all others: there are no turns on the PFS.
    pub(super) fn pfs_begin(&mut self, operation: PfsOperation) {
        self.pfs_advance();
        let app = &mut self.apps[operation.app as usize];
        if let Some(phase) = &mut app.phase {
            phase.started_s.get_or_insert(self.now_s);
        }
        let link = self.scenario.applications[app.kind as usize].link_bytes_per_s;
        self.pfs.arrivals += 1;
        let arrival = self.pfs.arrivals;
        let lane = self.pfs.lane(link);
        let mark = lane.served + operation.bytes as f64;
        lane.under_way.insert((mark.to_bits(), arrival), operation);
        self.pfs.operations += 1;
        self.note_direct(&operation, true);
        self.operations_changed();
    }

    /// A node whose application writes straight to the PFS counts as busy, as if the node took the
    /// checkpoint.
    fn note_direct(&mut self, operation: &PfsOperation, begins: bool) {
        if operation.purpose != Purpose::Direct {
            return;
        }
        let node = operation.node as usize;
        self.advance(node);
        let direct = &mut self.nodes[node].direct;
        *direct = match begins {
            true => *direct + 1,
            false => *direct - 1,
        };
        self.nodes[node].foreground_s = self.now_s;
        self.touched.push(node);
    }

    /// Ends what an application had under way.
    pub(super) fn pfs_abort(&mut self, app: u32) {
        self.pfs_advance();
        let mut aborted = Vec::new();
        for lane in &mut self.pfs.lanes {
            lane.under_way.retain(|_, operation| {
                let stays = operation.app != app;
                if !stays {
                    aborted.push(*operation);
                }
                stays
            });
        }
        self.pfs.operations -= aborted.len();
        for operation in &aborted {
            self.note_direct(operation, false);
        }
        self.operations_changed();
    }

    fn operations_changed(&mut self) {
        let flowing = self.pfs.flows.iter().flatten().map(|node| *node as usize);
        self.touched.extend(flowing);
        self.pfs_rate();
    }

    fn pfs_advance(&mut self) {
        let dt = self.now_s - self.pfs.last_s;
        self.pfs.last_s = self.now_s;
        let used = self.pfs.lanes.iter_mut();
        for lane in used.filter(|lane| dt > 0.0 && !lane.under_way.is_empty()) {
            lane.served += lane.rate * dt;
        }
    }

    fn pfs_rate(&mut self) {
        let servers = 0..self.pfs.flows.len();
        let fair: f64 = servers.map(|server| self.pfs.share(server)).sum();
        let mut first_s = f64::INFINITY;
        for lane in &mut self.pfs.lanes {
            lane.rate = fair.min(lane.link_bytes_per_s);
            first_s = first_s.min(lane.first_end_s());
        }
        self.pfs.next_s = self.now_s + first_s.max(MIN_STEP_S);
    }

    /// An operation has ended.
    pub(super) fn pfs_step(&mut self) {
        self.pfs_advance();
        let Some(operation) = self.pfs.pop() else {
            self.pfs.next_s = f64::INFINITY;
            return;
        };
        self.note_direct(&operation, false);
        match operation.purpose {
            Purpose::Direct => {
                self.outcome.direct_bytes += operation.bytes;
                self.slot_is_on_pfs(operation.app);
                self.end_of_part(operation.app, 0.0);
            }
            Purpose::Restart => self.end_of_part(operation.app, 0.0),
            Purpose::Fsync(part) => self.end_fsync(operation.app, part),
            Purpose::StageIn => {
                self.stage_in(&operation);
                self.begin_work(operation.app);
            }
        }
        self.operations_changed();
    }

    /// What was read from the PFS stays as a clean copy, if there is room beside what is not
    /// drained.
    fn stage_in(&mut self, operation: &PfsOperation) {
        let node = operation.node as usize;
        self.advance(node);
        if self.nodes[node].free() < operation.bytes {
            self.make_room(node, operation.bytes);
        }
        let n = &mut self.nodes[node];
        if n.free() < operation.bytes || n.shares.is_some() {
            return;
        }
        n.clean += operation.bytes;
        self.outcome.staged_bytes += operation.bytes;
        let part = Part {
            app: operation.app,
            node: node as u32,
            version: 0,
            slot: 0,
            role: Role::First,
            is_drained_by_fsync: false,
            outdated: false,
            state: State::Clean,
            size: operation.bytes,
            written: operation.bytes,
            demoted: operation.bytes,
            evicted: 0,
            arrived_s: self.now_s,
            accessed_s: self.now_s,
            closed_s: self.now_s,
        };
        let id = self.parts.add(part);
        let app = &mut self.apps[operation.app as usize];
        app.parts.push(id);
        let candidate = part.candidate(id, app.known_mtbf_s);
        self.nodes[node].clean_queue.insert(&candidate);
        self.note_resident(operation.app, node as u32, true);
        self.touched.push(node);
    }
}
