//! Restarts: each part of the newest checkpoint is read from the nearest place that has it.

use forebay_policy::holders::HolderId;
use forebay_policy::replicators::{Place, Source, nearest};

use super::super::Sim;
use super::super::app::Phase;
use super::super::node::Request;
use super::super::part::{PartId, Role};
use super::super::pfs::{PfsOperation, Purpose};
use super::place::object;

/// A part of a restart whose only place is away.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    app: u32,
    attempt: u32,
    slot: u32,
    since_s: f64,
}

impl Sim<'_> {
    fn stripe(&self, app: u32) -> u32 {
        self.scenario.applications[self.apps[app as usize].kind as usize].stripe
    }

    /// Where a part of a version is read from.
    fn source(&self, app: u32, version: u64, slot: u32) -> Source {
        let mut is_on_pfs = true;
        let mut places = Vec::new();
        for id in &self.apps[app as usize].parts {
            let part = &self.parts[*id];
            if part.version != version || part.slot != slot {
                continue;
            }
            is_on_pfs &= part.role != Role::First || part.dirty() == 0;
            let node = &self.nodes[part.node as usize];
            if part.is_whole() {
                places.push(Place {
                    holder: HolderId(node.host as u16),
                    rack: self.fleet.hosts[node.host as usize].rack,
                    is_answering: node.is_up,
                    load_bytes: node.reserved(),
                });
            }
        }
        let reader = self.writer(app, slot);
        let object = object(app, version, slot);
        nearest(reader.holder, reader.rack, object, &places, is_on_pfs)
    }

    /// Counts a restart of an application. Says whether the burst buffer had all of it.
    pub(in super::super) fn count_restart_of_parts(&mut self, app: u32, newest: u64) -> bool {
        let mut is_hit = true;
        for slot in 0..self.stripe(app) {
            let is_here = matches!(self.source(app, newest, slot), Source::Holder(_));
            is_hit &= is_here;
            let own = (self.apps[app as usize].node + slot) as usize % self.fleet.hosts.len();
            let sums = &mut self.fleet.hosts[own].sums;
            sums.reads += 1;
            sums.hits += u64::from(is_here);
        }
        self.learn_from_restart(app, newest, is_hit);
        is_hit
    }

    /// An application that has failed reads its newest checkpoint.
    pub(in super::super) fn read_parts(&mut self, app: u32, by_node: bool) {
        let newest = self.apps[app as usize].newest;
        let stripe = self.stripe(app);
        self.apps[app as usize].phase = Some(Phase {
            is_read: true,
            arrive_s: self.now_s,
            started_s: None,
            parts_left: newest.map_or(1, |_| stripe),
            stall_s: 0.0,
            is_direct: false,
            by_node,
        });
        let Some(newest) = newest else {
            // There is nothing to read: the application begins anew.
            self.end_of_part(app, 0.0);
            return;
        };
        // Where a restart counts is what it finds when it begins.
        let sources: Vec<Source> = (0..stripe).map(|s| self.source(app, newest, s)).collect();
        self.count_restart_of_parts(app, newest);
        for (slot, source) in sources.into_iter().enumerate() {
            self.read_part(app, slot as u32, source);
        }
    }

    fn read_part(&mut self, app: u32, slot: u32, source: Source) {
        let a = &self.apps[app as usize];
        let kind = &self.scenario.applications[a.kind as usize];
        let newest = a.newest.unwrap_or(0);
        let (total, stripe) = (kind.version_bytes(newest), u64::from(kind.stripe));
        let bytes = (total / stripe + u64::from(u64::from(slot) < total % stripe)).max(1);
        let (attempt, newest) = (a.attempt, a.newest);
        match source {
            Source::Holder(holder) => {
                let host = u32::from(holder.0);
                let its = |id: &PartId| {
                    let part = &self.parts[*id];
                    let node = &self.nodes[part.node as usize];
                    (Some(part.version), part.slot, node.host) == (newest, slot, host)
                        && part.is_whole()
                };
                let found = self.apps[app as usize].parts.iter().copied().find(its);
                if let Some(id) = found {
                    self.access_ends_move(id);
                }
                let fallback = self.fleet.hosts[host as usize].pools.start;
                let node = found.map_or(fallback, |id| self.parts[id].node as usize);
                self.advance(node);
                let request = Request {
                    app,
                    attempt,
                    bytes,
                    is_read: true,
                    since_s: self.now_s,
                    slot,
                    is_second: false,
                    moved: None,
                };
                self.enqueue(node, request);
                self.touched.push(node);
            }
            Source::Pfs => self.pfs_begin(PfsOperation {
                app,
                node: 0,
                bytes,
                purpose: Purpose::Restart,
            }),
            Source::Nowhere => self.fleet.waiting.push(Waiting {
                app,
                attempt,
                slot,
                since_s: self.now_s,
            }),
        }
    }

    /// A node is back: who waited for what is there tries again.
    pub(super) fn read_what_waited(&mut self) {
        for waiting in std::mem::take(&mut self.fleet.waiting) {
            let a = &self.apps[waiting.app as usize];
            let Some(newest) = a.newest.filter(|_| a.attempt == waiting.attempt) else {
                continue;
            };
            let source = self.source(waiting.app, newest, waiting.slot);
            if source == Source::Nowhere {
                self.fleet.waiting.push(waiting);
                continue;
            }
            self.fleet.sums.waited_for_node_s += self.now_s - waiting.since_s;
            self.read_part(waiting.app, waiting.slot, source);
        }
    }
}
