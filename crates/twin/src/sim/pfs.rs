//! The parallel file system: servers that share their bandwidth among the nodes that flush to them, and what goes to it or comes
//! from it directly, one operation after the other.

use std::collections::VecDeque;

use forebay_policy::demotion::flush_target;

use super::part::{Part, State};
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
}

#[derive(Debug, Clone, Copy)]
pub(super) struct PfsOperation {
    pub app: u32,
    pub attempt: u32,
    pub bytes: u64,
    pub purpose: Purpose,
}

/// Who uses the servers.
#[derive(Debug)]
pub(super) struct PfsState {
    server_bytes_per_s: f64,
    /// Nodes that flush to each server.
    flows: Vec<Vec<u32>>,
    queue: VecDeque<PfsOperation>,
    active: Option<PfsOperation>,
    /// Bytes of the active operation that are left; fractions matter to nobody here.
    left: f64,
    rate: f64,
    last_s: f64,
    pub next_s: f64,
}

impl PfsState {
    pub fn new(pfs: &Pfs) -> Self {
        Self {
            server_bytes_per_s: pfs.bytes_per_s / f64::from(pfs.servers),
            flows: vec![Vec::new(); pfs.servers as usize],
            queue: VecDeque::new(),
            active: None,
            left: 0.0,
            rate: 0.0,
            last_s: 0.0,
            next_s: f64::INFINITY,
        }
    }

    /// What one more flow at a server gets.
    fn share(&self, server: usize) -> f64 {
        let flows = self.flows[server].len() + usize::from(self.active.is_some());
        self.server_bytes_per_s / flows.max(1) as f64
    }
}

impl Sim<'_> {
    /// What the PFS leaves for the demotion of a node, which from now on flushes to a server.
    pub(super) fn pfs_share(&mut self, node: usize) -> f64 {
        if let Some(server) = self.nodes[node].flow {
            return self.pfs.share(server as usize);
        }
        let servers = self.scenario.pfs.servers;
        let target = match self.scenario.pfs.ordered_flush {
            true => flush_target(node as u32, self.nodes[node].round, servers).unwrap_or(0),
            false => self.flush_rng.below(u64::from(servers)) as u32,
        };
        self.nodes[node].flow = Some(target);
        self.pfs.flows[target as usize].push(node as u32);
        self.flows_changed(target as usize, node);
        self.pfs.share(target as usize)
    }

    pub(super) fn leave_pfs(&mut self, node: usize) {
        let Some(server) = self.nodes[node].flow.take() else {
            return;
        };
        self.pfs.flows[server as usize].retain(|other| *other as usize != node);
        self.flows_changed(server as usize, node);
    }

    fn flows_changed(&mut self, server: usize, but: usize) {
        let others = self.pfs.flows[server].iter().map(|node| *node as usize);
        self.touched.extend(others.filter(|node| *node != but));
        self.pfs_advance();
        self.pfs_rate();
    }

    pub(super) fn pfs_enqueue(&mut self, operation: PfsOperation) {
        self.pfs.queue.push_back(operation);
        if self.pfs.active.is_none() {
            self.pfs_next();
        }
    }

    fn pfs_advance(&mut self) {
        let dt = self.now_s - self.pfs.last_s;
        self.pfs.last_s = self.now_s;
        if self.pfs.active.is_some() && dt > 0.0 {
            self.pfs.left = (self.pfs.left - self.pfs.rate * dt).max(0.0);
        }
    }

    fn pfs_rate(&mut self) {
        let Some(active) = self.pfs.active else {
            self.pfs.next_s = f64::INFINITY;
            return;
        };
        let kind = self.apps[active.app as usize].kind as usize;
        let link = self.scenario.applications[kind].link_bytes_per_s;
        let servers = 0..self.pfs.flows.len();
        let rate: f64 = servers.map(|server| self.pfs.share(server)).sum();
        self.pfs.rate = rate.min(link);
        self.pfs.next_s = self.now_s + (self.pfs.left / self.pfs.rate).max(MIN_STEP_S);
    }

    /// Begins the next operation, if there is one.
    fn pfs_next(&mut self) {
        self.pfs_advance();
        self.pfs.active = None;
        while let Some(operation) = self.pfs.queue.pop_front() {
            if self.apps[operation.app as usize].attempt == operation.attempt {
                self.pfs.active = Some(operation);
                self.pfs.left = operation.bytes as f64;
                if let Some(phase) = &mut self.apps[operation.app as usize].phase {
                    phase.started_s.get_or_insert(self.now_s);
                }
                break;
            }
        }
        let flowing = self.pfs.flows.iter().flatten().map(|node| *node as usize);
        self.touched.extend(flowing);
        self.pfs_rate();
    }

    /// The active operation has ended.
    pub(super) fn pfs_step(&mut self) {
        self.pfs_advance();
        let Some(operation) = self.pfs.active.take() else {
            self.pfs.next_s = f64::INFINITY;
            return;
        };
        let is_void = self.apps[operation.app as usize].attempt != operation.attempt;
        match operation.purpose {
            _ if is_void => {}
            Purpose::Direct => {
                self.outcome.direct_bytes += operation.bytes;
                self.end_of_part(operation.app, 0.0);
            }
            Purpose::Restart => self.end_of_part(operation.app, 0.0),
            Purpose::StageIn => {
                self.stage_in(&operation);
                self.begin_work(operation.app);
            }
        }
        self.pfs_next();
    }

    /// What was read from the PFS stays as a clean copy, if there is room beside what is not drained.
    fn stage_in(&mut self, operation: &PfsOperation) {
        let node = self.apps[operation.app as usize].node as usize;
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
