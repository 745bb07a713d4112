//! Which node takes what is written, and what happens where it has no room.

use forebay_policy::durability::Durability;
use forebay_policy::handover::{Growing, WhenFull, when_full};
use forebay_policy::holders::{Holder, HolderId, Home, Wanted, Writer, choose_home};
use forebay_policy::placement::{
    NewFile, Placement, TierKind, TierSpace, choose_tier, waiting_tier,
};
use forebay_policy::replicas::second_holder;
use forebay_policy::schedule::Class;

use super::super::Sim;
use super::super::node::{Access, Moved, Request};
use super::super::part::{PartId, Role, State};
use super::super::pfs::{PfsOperation, Purpose};
use super::PutOff;
use crate::scenario::Nodes;

/// The policy's name for a part of a version.
pub(super) fn object(app: u32, version: u64, slot: u32) -> u64 {
    u64::from(app).rotate_left(40) ^ version.rotate_left(16) ^ u64::from(slot)
}

/// What the policy is told of a file of the twin.
pub(super) fn wanted(nodes: &Nodes, object: u64, bytes: u64) -> Wanted<'_> {
    Wanted {
        object,
        expected_bytes: Some(bytes),
        may_be_in_memory: nodes.replicas > 1 || nodes.fsync == Durability::Memory,
        rule: &nodes.rule,
    }
}

impl Sim<'_> {
    /// The data server that a part is written from; `None`: a compute node. While that server is
    /// away the application runs on the next one.
    pub(in super::super) fn writer_host(&self, app: u32, slot: u32) -> Option<u32> {
        let is_local = self.scenario.nodes.as_ref().is_some_and(|n| n.is_local);
        let hosts = self.fleet.hosts.len() as u32;
        let own = self.apps[app as usize].node + slot;
        let next = (0..hosts).map(|i| (own + i) % hosts);
        let mut up = next.filter(|host| self.fleet.hosts[*host as usize].is_up);
        is_local.then(|| up.next().unwrap_or(own % hosts))
    }

    pub(super) fn writer(&self, app: u32, slot: u32) -> Writer {
        let host = self.writer_host(app, slot);
        Writer {
            holder: host.map(|host| HolderId(host as u16)),
            rack: host.map(|host| self.fleet.hosts[host as usize].rack),
        }
    }

    /// Brings what the policy sees up to date.
    pub(super) fn look_at_holders(&mut self) {
        for (host, holder) in self.fleet.hosts.iter().zip(&mut self.fleet.holders) {
            let pools = &self.nodes[host.pools.clone()];
            holder.is_answering = host.is_up;
            holder.load_bytes = pools.iter().map(|pool| pool.reserved()).sum();
            holder.tiers.clear();
            let tiers = pools.iter().enumerate().map(|(i, pool)| pool.tier(i));
            holder.tiers.extend(tiers);
        }
    }

    /// The tier of a holder that the file goes to.
    pub(super) fn pool_for(&self, holder: HolderId, wanted: &Wanted) -> usize {
        let Holder { tiers, .. } = &self.fleet.holders[holder.0 as usize];
        let allowed = tiers
            .iter()
            .filter(|t| wanted.may_be_in_memory || t.space.kind == TierKind::Ssd);
        let now: Vec<TierSpace> = allowed.clone().map(|t| t.space).collect();
        let emptied = allowed.map(|t| TierSpace {
            free_bytes: t.space.free_bytes + t.evictable_bytes,
            ..t.space
        });
        let emptied: Vec<TierSpace> = emptied.collect();
        let file = NewFile {
            predicted_bytes: wanted.expected_bytes,
            durability: Durability::default(),
            series_fsyncs: false,
        };
        let found =
            [&now, &emptied]
                .into_iter()
                .find_map(|tiers| match choose_tier(tiers, &file) {
                    Placement::Tier(index) => Some(index),
                    Placement::Wait | Placement::Pfs => None,
                });
        let index = found.or_else(|| waiting_tier(&now, &file)).unwrap_or(0);
        self.fleet.hosts[holder.0 as usize].pools.start + index
    }

    /// Chooses the node of what an application writes, where it waits for its turn.
    pub(in super::super) fn place_first(&mut self, request: Request) {
        let scenario = self.scenario;
        let Some(nodes) = &scenario.nodes else {
            return;
        };
        self.look_at_holders();
        let writer = self.writer(request.app, request.slot);
        let version = self.apps[request.app as usize].version;
        let wanted = wanted(
            nodes,
            object(request.app, version, request.slot),
            request.bytes,
        );
        let node = match choose_home(&writer, &self.fleet.holders, &wanted) {
            Home::On { holder, .. } | Home::Wait(holder) => self.pool_for(holder, &wanted),
            Home::Pfs => {
                let host = writer.holder.map_or(0, |holder| holder.0 as usize);
                let node = self.fleet.hosts[host].pools.start;
                self.write_direct(node, &request);
                return;
            }
        };
        self.advance(node);
        self.enqueue(node, request);
        self.touched.push(node);
    }

    /// Chooses the node of the second copy of a part that is begun; without one its fsync drains
    /// it.
    pub(in super::super) fn begin_second(&mut self, first: PartId, request: &Request) {
        let scenario = self.scenario;
        let Some(nodes) = &scenario.nodes else {
            return;
        };
        self.look_at_holders();
        let primary = HolderId(self.nodes[self.parts[first].node as usize].host as u16);
        let version = self.parts[first].version;
        let wanted = wanted(
            nodes,
            object(request.app, version, request.slot),
            request.bytes,
        );
        let found = second_holder(primary, &self.fleet.holders, &wanted);
        let Some(Home::On { holder, .. }) = found else {
            self.parts[first].is_drained_by_fsync = true;
            return;
        };
        let node = self.pool_for(holder, &wanted);
        self.advance(node);
        self.enqueue(
            node,
            Request {
                is_second: true,
                since_s: self.now_s,
                ..*request
            },
        );
        self.touched.push(node);
    }

    /// Whether the second copy of a part, whose turn has come, is still wanted.
    pub(in super::super) fn needs_second(&self, request: &Request) -> bool {
        let version = self.apps[request.app as usize].version;
        let first = self.part_of(request.app, version, request.slot, Role::First);
        first.is_none_or(|id| !self.parts[id].is_drained())
    }

    /// Begins to drain what was written, where that is what its fsync waits for.
    pub(in super::super) fn begin_fsync(&mut self, id: PartId) -> bool {
        let part = &mut self.parts[id];
        if !part.is_drained_by_fsync {
            return false;
        }
        let (app, node, bytes) = (part.app, part.node, part.dirty());
        if bytes == 0 {
            let attempt = self.apps[app as usize].attempt;
            self.put_off(PutOff::EndOfPart(app, attempt, 0.0));
            return false;
        }
        part.state = State::Demoting;
        self.pfs_begin(PfsOperation {
            app,
            node,
            bytes,
            purpose: Purpose::Fsync(id),
        });
        true
    }

    /// The part is on the PFS, and its fsync returns.
    pub(in super::super) fn end_fsync(&mut self, app: u32, id: PartId) {
        let node = self.parts[id].node as usize;
        self.advance(node);
        let (part, n) = (&mut self.parts[id], &mut self.nodes[node]);
        let moved = part.dirty();
        part.demoted += moved;
        n.dirty -= moved;
        n.clean += moved;
        n.drained += moved;
        self.outcome.demoted_bytes += moved;
        self.fleet.sums.drained_by_fsync_bytes += moved;
        self.end_demotion(id);
        self.touched.push(node);
        self.end_of_part(app, 0.0);
    }

    /// Writers of a tier find no space.
    pub(in super::super) fn ask_when_full(&mut self, node: usize) {
        if self.fleet.is_lent {
            self.put_off(PutOff::WhenFull(node));
        }
    }

    /// Whether what is written at a full node goes on elsewhere.
    pub(super) fn when_full(&mut self, node: usize) {
        let scenario = self.scenario;
        let Some(nodes) = &scenario.nodes else {
            return;
        };
        let is_first = |id: &PartId| self.parts[*id].role == Role::First;
        let workers = self.nodes[node].writers().filter_map(|w| w.access.part());
        let writing: Vec<PartId> = workers.filter(is_first).collect();
        for id in writing {
            // One before it may have made room.
            if !self.nodes[node].is_up || !self.nodes[node].is_full() {
                return;
            }
            self.look_at_holders();
            let part = self.parts[id];
            let second = self.part_of(part.app, part.version, part.slot, Role::Second);
            if let Some(second) = second {
                // Both copies on one node would be one.
                let host = self.nodes[self.parts[second].node as usize].host as usize;
                self.fleet.holders[host].is_emptied = true;
            }
            let host = self.nodes[node].host;
            let growing = Growing {
                wanted: wanted(nodes, object(part.app, part.version, part.slot), part.size),
                tier: node - self.fleet.hosts[host as usize].pools.start,
                held_bytes: part.written,
                more_bytes: (part.size - part.written).min(self.nodes[node].unit()),
                is_written_unseen: false,
            };
            let found = when_full(HolderId(host as u16), &self.fleet.holders, &growing);
            let to = match found {
                WhenFull::OtherTier(index) => {
                    Some(self.fleet.hosts[host as usize].pools.start + index)
                }
                WhenFull::HandOver { to, .. } => Some(self.pool_for(to, &growing.wanted)),
                WhenFull::Goes | WhenFull::Evict { .. } | WhenFull::Wait | WhenFull::Pfs => None,
            };
            for holder in &mut self.fleet.holders {
                holder.is_emptied = false;
            }
            if let Some(to) = to.filter(|to| *to != node) {
                self.hand_over(node, id, to);
            }
        }
    }

    /// A part goes on at another node, with all that it has: its bytes are written there again.
    fn hand_over(&mut self, node: usize, id: PartId, to: usize) {
        self.advance(node);
        self.advance(to);
        let is_its = |w: &super::super::node::Worker| w.access == Access::Write(id);
        let Some(place) = self.nodes[node].workers.iter().position(is_its) else {
            return;
        };
        let w = self.nodes[node].workers.swap_remove(place);
        self.way_ends(node, w.way);
        self.nodes[node].end_turn(u64::from(w.app), Class::Checkpoint, self.now_s);
        let part = self.parts[id];
        self.fleet.sums.handed_over += 1;
        self.fleet.sums.handed_over_bytes += part.written;
        self.fleet.is_moving = true;
        self.drop_part(id);
        self.fleet.is_moving = false;
        let request = Request {
            app: part.app,
            attempt: self.apps[part.app as usize].attempt,
            bytes: part.size,
            is_read: false,
            since_s: self.now_s,
            slot: part.slot,
            is_second: false,
            moved: Some(Moved {
                stalled_s: w.stall_s,
                is_drained_by_fsync: part.is_drained_by_fsync,
            }),
        };
        self.enqueue(to, request);
        self.touched.extend([node, to]);
    }
}
