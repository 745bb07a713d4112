//! Copies: what they are of, when they go, and how lost ones are made again.

use forebay_policy::holders::{HolderId, Home};
use forebay_policy::replicas::second_holder;
use forebay_policy::replicators::{
    DrainedVersion, GroupNode, LinkUse, Replication, RestartCopy, next,
};
use forebay_policy::rereplication::{NextCopy, OnlyCopy, Unprotected, rate_bytes_per_s};
use forebay_policy::schedule::Class;

use super::super::Sim;
use super::super::app::OnPfs;
use super::super::node::{Access, Way, Worker};
use super::super::part::{Part, PartId, Role, State};
use super::PutOff;
use super::place::{object, wanted};
use crate::scenario::Nodes;
use forebay_policy::placement::TierKind;

/// What the policy sees of parts, and these.
type Parts<T> = Vec<(T, PartId)>;

impl Sim<'_> {
    /// The copy of a part of a version that has this role.
    pub(in super::super) fn part_of(
        &self,
        app: u32,
        version: u64,
        slot: u32,
        role: Role,
    ) -> Option<PartId> {
        let parts = self.apps[app as usize].parts.iter().copied();
        parts.into_iter().find(|id| {
            let part = &self.parts[*id];
            (part.version, part.slot, part.role) == (version, slot, role)
        })
    }

    /// A part was removed: a first one takes its second along.
    pub(in super::super) fn part_is_gone(&mut self, id: PartId, part: &Part) {
        self.move_ends_with(id, part);
        if self.scenario.nodes.is_none() || part.role != Role::First || self.fleet.is_moving {
            return;
        }
        self.fleet.lost_copies.settled(u64::from(id));
        self.drop_second(part);
    }

    /// A first part is drained: its second copy has done its work.
    pub(in super::super) fn part_is_drained(&mut self, id: PartId) {
        if self.scenario.nodes.is_none() {
            return;
        }
        let part = self.parts[id];
        self.fleet.lost_copies.settled(u64::from(id));
        self.note_on_pfs(part.app, part.version);
        self.drop_second(&part);
    }

    pub(super) fn drop_second(&mut self, first: &Part) {
        let second = self.part_of(first.app, first.version, first.slot, Role::Second);
        if let Some(second) = second {
            self.drop_copy(second);
        }
    }

    /// Removes a copy and whoever fills it.
    pub(super) fn drop_copy(&mut self, id: PartId) {
        let node = self.parts[id].node as usize;
        self.advance(node);
        self.stop_copying(id);
        self.drop_part(id);
        self.touched.push(node);
    }

    /// Ends the work of whoever fills a copy.
    pub(in super::super) fn stop_copying(&mut self, id: PartId) {
        let part = self.parts[id];
        let node = part.node as usize;
        if part.role == Role::First || part.state != State::Writing {
            return;
        }
        let is_its = |w: &Worker| w.access.part() == Some(id);
        let Some(place) = self.nodes[node].workers.iter().position(is_its) else {
            return;
        };
        let w = self.nodes[node].workers.swap_remove(place);
        self.way_ends(node, w.way);
        if matches!(w.access, Access::Second(_)) {
            self.nodes[node].end_turn(u64::from(w.app), Class::Checkpoint, self.now_s);
            let attempt = self.apps[w.app as usize].attempt;
            self.put_off(PutOff::EndOfPart(w.app, attempt, w.stall_s));
        }
    }

    /// A part of the version under way went to the PFS directly.
    pub(in super::super) fn slot_is_on_pfs(&mut self, app: u32) {
        if self.scenario.nodes.is_some() {
            self.note_on_pfs(app, self.apps[app as usize].version);
        }
    }

    fn note_on_pfs(&mut self, app: u32, version: u64) {
        self.on_pfs(app, version).parts += 1;
        self.settle_version(app, version);
    }

    pub(in super::super) fn version_is_complete(&mut self, app: u32) {
        if self.scenario.nodes.is_some() {
            let (version, now_s) = (self.apps[app as usize].version, self.now_s);
            self.on_pfs(app, version).complete_s = now_s;
            self.settle_version(app, version);
        }
    }

    fn on_pfs(&mut self, app: u32, version: u64) -> &mut OnPfs {
        let all = &mut self.apps[app as usize].on_pfs;
        let place = all.iter().position(|v| v.version == version);
        let place = place.unwrap_or_else(|| {
            all.push(OnPfs {
                version,
                parts: 0,
                complete_s: f64::INFINITY,
            });
            all.len() - 1
        });
        &mut all[place]
    }

    /// Whether all of a version is on the PFS now.
    fn settle_version(&mut self, app: u32, version: u64) {
        let found = *self.on_pfs(app, version);
        let a = &mut self.apps[app as usize];
        let stripe = self.scenario.applications[a.kind as usize].stripe;
        if found.parts < stripe || found.complete_s.is_infinite() {
            return;
        }
        if a.safe.is_none_or(|safe| safe.0 < version) {
            a.safe = Some((version, found.complete_s));
        }
        a.on_pfs.retain(|v| v.version > version);
    }

    /// An undrained part has lost its second copy, or has become the only one.
    pub(super) fn wants_second(&mut self, id: PartId) {
        let part = self.parts[id];
        let n = &self.nodes[part.node as usize];
        // What is on a node that is away cannot be copied until that is back.
        if part.dirty() == 0 || !n.is_up {
            return;
        }
        self.fleet.unprotected_since_s.get_or_insert(self.now_s);
        let only_copy = match n.kind {
            TierKind::Dram => OnlyCopy::InMemory,
            TierKind::Ssd => OnlyCopy::OnFlash,
        };
        self.fleet.lost_copies.wants(Unprotected {
            id: u64::from(id),
            bytes: part.dirty(),
            only_copy,
            promised_at_s: Some(part.closed_s),
        });
    }

    /// Begins to make lost copies again, as many and as fast as the policy says.
    pub(super) fn make_lost_copies(&mut self, nodes: &Nodes) {
        if self.fleet.lost_copies.at_risk_bytes() == 0 {
            if let Some(since_s) = self.fleet.unprotected_since_s.take() {
                let sums = &mut self.fleet.sums;
                let took_s = self.now_s - since_s;
                sums.re_replications += 1;
                sums.re_replication_s += took_s;
                sums.max_re_replication_s = sums.max_re_replication_s.max(took_s);
            }
            return;
        }
        let up = self.fleet.hosts.iter().filter(|h| h.is_up);
        let (mut links, mut used) = (0.0, 0.0);
        for host in up {
            let pools = &self.nodes[host.pools.clone()];
            let device: f64 = pools.iter().map(|n| n.input.bw_max_bytes_per_s).sum();
            links += host.link_bytes_per_s.min(device);
            let workers = pools.iter().flat_map(|n| &n.workers);
            let others = workers.filter(|w| !matches!(w.access, Access::Copy(_)));
            used += others.map(|w| w.rate).sum::<f64>();
        }
        let rate = rate_bytes_per_s(links, used, nodes.copy_limit_bytes_per_s);
        self.fleet.lost_copies.set_rate(rate, self.now_s);
        while let NextCopy::Copy(id) = self.fleet.lost_copies.next(self.now_s) {
            if !self.begin_copy(nodes, id as PartId) {
                self.fleet.lost_copies.failed(id);
                return;
            }
        }
    }

    /// Begins a second copy that nobody waits for; `false` where no holder can take it now.
    fn begin_copy(&mut self, nodes: &Nodes, first: PartId) -> bool {
        let part = self.parts[first];
        let from = self.nodes[part.node as usize].host;
        if !self.fleet.hosts[from as usize].is_up {
            return false;
        }
        self.look_at_holders();
        let object = object(part.app, part.version, part.slot);
        let wanted = wanted(nodes, object, part.dirty());
        let found = second_holder(HolderId(from as u16), &self.fleet.holders, &wanted);
        let Some(Home::On { holder, .. }) = found else {
            return false;
        };
        let node = self.pool_for(holder, &wanted);
        self.fleet.sums.copied_again_bytes += part.dirty();
        let way = Way {
            from: Some(from),
            to: Some(self.nodes[node].host),
        };
        self.add_copy(node, &part, Role::Second, part.dirty(), way);
        true
    }

    pub(super) fn add_copy(
        &mut self,
        node: usize,
        of: &Part,
        role: Role,
        bytes: u64,
        way: Way,
    ) -> PartId {
        self.advance(node);
        let id = self.parts.add(Part {
            node: node as u32,
            role,
            // Restart copies are the first to be evicted.
            outdated: role == Role::Restart,
            is_drained_by_fsync: false,
            state: State::Writing,
            size: bytes,
            written: 0,
            demoted: 0,
            evicted: 0,
            arrived_s: self.now_s,
            ..*of
        });
        self.apps[of.app as usize].parts.push(id);
        self.note_resident(of.app, node as u32, true);
        // Restart copies go over a network of their own.
        let has_way = self.fleet.has_links && role != Role::Restart && way.from != way.to;
        let way = Some(way).filter(|_| has_way);
        self.nodes[node].workers.push(Worker {
            app: of.app,
            access: Access::Copy(id),
            remaining: bytes,
            rate: 0.0,
            carry: 0.0,
            stall_s: 0.0,
            way,
        });
        self.way_begins(node, way);
        self.touched.push(node);
        id
    }

    /// A node has no free space left: copies for restarts are not worth any other.
    pub(in super::super) fn end_restart_copies(&mut self, node: usize) {
        let workers = self.nodes[node].workers.iter();
        let copied = workers.filter_map(|w| match w.access {
            Access::Copy(id) => Some(id),
            Access::Write(_) | Access::Second(_) | Access::Read => None,
        });
        let ended: Vec<PartId> = copied
            .filter(|id| self.parts[*id].role == Role::Restart)
            .collect();
        for id in ended {
            self.put_off(PutOff::DropCopy(id));
        }
    }

    /// A part in no queue that has clean bytes: its demotion was broken off, or its fsync goes on
    /// with it.
    pub(in super::super) fn partly_clean(&self, node: usize) -> Option<PartId> {
        if self.scenario.nodes.is_none() || self.nodes[node].clean == 0 {
            return None;
        }
        let mut all = self.apps.iter().flat_map(|a| a.parts.iter().copied());
        all.find(|id| {
            let part = &self.parts[*id];
            let is_here = part.node as usize == node && part.role == Role::First;
            is_here && part.clean() > 0 && part.state != State::Clean
        })
    }

    /// A copy that nobody waited for is whole.
    pub(in super::super) fn end_copy(&mut self, id: PartId) {
        let part = self.parts[id];
        if part.role == Role::Moved {
            self.end_move(id);
            return;
        }
        if part.role == Role::Restart {
            self.parts[id].state = State::Clean;
            let part = self.parts[id];
            let mtbf_s = self.apps[part.app as usize].known_mtbf_s;
            let candidate = part.candidate(id, mtbf_s);
            self.nodes[part.node as usize]
                .clean_queue
                .insert(&candidate);
            self.fleet.sums.restart_copies += 1;
            self.fleet.sums.restart_copy_bytes += part.size;
            return;
        }
        self.parts[id].state = State::Second;
        if let Some(first) = self.part_of(part.app, part.version, part.slot, Role::First) {
            self.fleet.lost_copies.settled(u64::from(first));
        }
    }

    /// Begins copies of drained versions for restarts, one at a time from and to each node.
    pub(super) fn make_restart_copies(&mut self, nodes: &Nodes) {
        if nodes.restart_copies == 0 {
            return;
        }
        let hosts = self.fleet.hosts.len();
        let mut is_used = vec![false; hosts];
        for n in &self.nodes {
            let copying = n.workers.iter().filter_map(|w| match w.access {
                Access::Copy(id) => Some(id),
                Access::Write(_) | Access::Second(_) | Access::Read => None,
            });
            for id in copying.filter(|id| self.parts[*id].role == Role::Restart) {
                is_used[n.host as usize] = true;
                let part = &self.parts[id];
                if let Some(first) = self.part_of(part.app, part.version, part.slot, Role::First) {
                    is_used[self.nodes[self.parts[first].node as usize].host as usize] = true;
                }
            }
        }
        let (mut versions, copies) = self.drained();
        versions.retain(|(v, _)| !is_used[v.holder.0 as usize]);
        let mut copies = copies;
        loop {
            let known: Vec<DrainedVersion> = versions.iter().map(|(v, _)| *v).collect();
            let held: Vec<RestartCopy> = copies.iter().map(|(c, _)| *c).collect();
            let group = self.replication_group(&is_used);
            match next(&known, &held, &group, LinkUse::Spare, nodes.restart_copies) {
                Replication::Discard(old) => {
                    if let Some(place) = copies.iter().position(|(c, _)| *c == old) {
                        let (_, id) = copies.swap_remove(place);
                        self.drop_copy(id);
                    }
                }
                Replication::Copy {
                    application,
                    version,
                    from,
                    to,
                } => {
                    let same = |v: &DrainedVersion| {
                        (v.application, v.version, v.holder) == (application, version, from)
                    };
                    let Some(place) = versions.iter().position(|(v, _)| same(v)) else {
                        return;
                    };
                    let (_, id) = versions.swap_remove(place);
                    (is_used[from.0 as usize], is_used[to.0 as usize]) = (true, true);
                    versions.retain(|(v, _)| v.holder != from);
                    let part = self.parts[id];
                    let node = self.fleet.hosts[to.0 as usize].pools.end - 1;
                    let way = Way {
                        from: Some(u32::from(from.0)),
                        to: Some(u32::from(to.0)),
                    };
                    self.add_copy(node, &part, Role::Restart, part.size, way);
                }
                Replication::Rest => return,
            }
        }
    }

    /// The newest versions that are drained, and the restart copies there are, each with its part.
    fn drained(&self) -> (Parts<DrainedVersion>, Parts<RestartCopy>) {
        let (mut versions, mut copies) = (Vec::new(), Vec::new());
        for (app, a) in self.apps.iter().enumerate() {
            for id in &a.parts {
                let part = &self.parts[*id];
                let holder = HolderId(self.nodes[part.node as usize].host as u16);
                let others = || {
                    let parts = a.parts.iter().map(|other| &self.parts[*other]);
                    parts.filter(|o| o.version == part.version && o.slot == part.slot)
                };
                let is_up = self.nodes[part.node as usize].is_up;
                if part.role == Role::Restart && part.state == State::Clean {
                    let first = others().find(|o| o.role == Role::First);
                    let from = first.map_or(holder, |o| {
                        HolderId(self.nodes[o.node as usize].host as u16)
                    });
                    let copy = RestartCopy {
                        application: app as u64,
                        version: part.version,
                        from,
                        holder,
                        bytes: part.size,
                    };
                    copies.push((copy, *id));
                }
                let is_newest = a.newest == Some(part.version) && part.version > 0;
                let is_drained = part.is_drained() && part.is_whole();
                if part.role == Role::First && is_newest && is_drained && is_up {
                    let version = DrainedVersion {
                        application: app as u64,
                        version: part.version,
                        bytes: part.size,
                        holder,
                        mtbf_s: a.known_mtbf_s,
                        copies: others().filter(|o| o.role == Role::Restart).count(),
                        is_put_off: false,
                    };
                    versions.push((version, *id));
                }
            }
        }
        (versions, copies)
    }

    fn replication_group(&self, is_used: &[bool]) -> Vec<GroupNode> {
        let one = |(i, host): (usize, &super::Host)| GroupNode {
            holder: HolderId(i as u16),
            rack: host.rack,
            takes_files: host.is_up && !is_used[i],
            // Free space only, and that in the last tier of the node.
            bound_bytes: {
                let n = &self.nodes[host.pools.end - 1];
                n.free().saturating_sub(n.reserved())
            },
            spent_bytes: 0,
        };
        self.fleet.hosts.iter().enumerate().map(one).collect()
    }
}
