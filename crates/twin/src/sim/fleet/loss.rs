//! Nodes fail and come back.

use super::super::app::Phase;
use super::super::part::{PartId, Role, State};
use super::super::{Event, Sim};
use super::new_scheduler;
use forebay_policy::placement::TierKind;

/// An application that a failure has interrupted.
struct Stopped {
    app: u32,
    phase: Option<Phase>,
    /// It ran on the node that has failed.
    runs_here: bool,
}

impl Sim<'_> {
    /// The first failures, and the first report.
    pub(in super::super) fn plan_nodes(&mut self) {
        let scenario = self.scenario;
        let Some(nodes) = &scenario.nodes else {
            return;
        };
        for at_s in &nodes.fail_at_s {
            self.calendar.plan(*at_s, Event::NodeFails(None));
        }
        for host in 0..nodes.all.len() as u32 {
            self.plan_node_failure(host);
        }
        self.calendar.plan(0.0, Event::Report);
        self.plan_jobs();
    }

    fn plan_node_failure(&mut self, host: u32) {
        let mtbf_s = self
            .scenario
            .nodes
            .as_ref()
            .map_or(f64::INFINITY, |n| n.mtbf_s);
        if mtbf_s.is_finite() {
            let at_s = self.now_s + self.node_rng.exponential(mtbf_s);
            self.calendar.plan(at_s, Event::NodeFails(Some(host)));
        }
    }

    /// A node is gone: its memory is lost, and sometimes its flash.
    pub(in super::super) fn node_fails(&mut self, host: Option<u32>) {
        let scenario = self.scenario;
        let Some(nodes) = &scenario.nodes else {
            return;
        };
        let host = match host {
            Some(host) => host as usize,
            None => {
                let up: Vec<usize> = (0..self.fleet.hosts.len())
                    .filter(|host| self.fleet.hosts[*host].is_up)
                    .collect();
                let Some(host) = up.get(self.node_rng.below(up.len() as u64) as usize) else {
                    return;
                };
                *host
            }
        };
        let loses_flash = self.node_rng.share() < nodes.flash_loss;
        self.advance_all();
        self.note_at_risk();
        let stopped = self.applications_at(host as u32);
        // Its own work and all that was under way there ends, before anybody looks for a new place.
        for stopped in &stopped {
            self.abort_phase(stopped.app);
            self.apps[stopped.app as usize].attempt += 1;
        }
        let pools = self.fleet.hosts[host].pools.clone();
        for node in pools.clone() {
            self.end_copies_at(node);
            let n = &mut self.nodes[node];
            n.is_up = false;
            // All who waited here have been stopped, and are void.
            (n.scheduler, n.queued) = (new_scheduler(), 0);
            n.blocked.clear();
            n.waiting.clear();
            if let Some(id) = n.demoting.take() {
                self.parts[id].state = State::Dirty;
                let part = self.parts[id];
                let mtbf_s = self.apps[part.app as usize].known_mtbf_s;
                let candidate = part.candidate(id, mtbf_s);
                self.nodes[node].dirty_queue.insert(&candidate);
            }
        }
        let h = &mut self.fleet.hosts[host];
        (h.is_up, h.failed_s) = (false, self.now_s);
        h.sums.failures += 1;
        for node in pools {
            let is_lost = self.nodes[node].kind == TierKind::Dram || loses_flash;
            self.lose(node, is_lost);
        }
        self.note_at_risk();
        for stopped in stopped {
            self.begin_again(&stopped);
        }
        self.calendar
            .plan(self.now_s + nodes.repair_s, Event::NodeIsBack(host as u32));
    }

    /// The node is there again, with the flash that it had, and empty memory.
    pub(in super::super) fn node_is_back(&mut self, host: u32) {
        let h = &mut self.fleet.hosts[host as usize];
        h.is_up = true;
        h.sums.away_s += self.now_s - h.failed_s;
        for node in h.pools.clone() {
            self.advance(node);
            self.nodes[node].is_up = true;
            self.touched.push(node);
            self.borrow_anew(node);
        }
        self.read_what_waited();
        self.protect_what_is_back(host);
        self.plan_node_failure(host);
    }

    /// What came back with the node and has no second copy gets one.
    fn protect_what_is_back(&mut self, host: u32) {
        if self.fleet.replicas == 1 {
            return;
        }
        let all = self.apps.iter().flat_map(|a| &a.parts).copied();
        let its: Vec<PartId> = all
            .filter(|id| {
                let part = &self.parts[*id];
                let is_here = self.nodes[part.node as usize].host == host;
                is_here && part.role == Role::First && part.state == State::Dirty
            })
            .collect();
        for id in its {
            let part = self.parts[id];
            let second = self.part_of(part.app, part.version, part.slot, Role::Second);
            if second.is_none() {
                self.wants_second(id);
            }
        }
    }

    /// Applications that a failure of the node interrupts, and what they were doing.
    fn applications_at(&self, host: u32) -> Vec<Stopped> {
        let is_local = self.scenario.nodes.as_ref().is_some_and(|n| n.is_local);
        let mut found = Vec::new();
        for (app, a) in self.apps.iter().enumerate() {
            let app = app as u32;
            let stripe = self.scenario.applications[a.kind as usize].stripe;
            let runs = !a.has_ended && a.version > 0 && is_local;
            let runs_here = runs && (0..stripe).any(|s| self.writer_host(app, s) == Some(host));
            if runs_here || (a.phase.is_some() && self.has_work_at(app, host)) {
                found.push(Stopped {
                    app,
                    phase: a.phase,
                    runs_here,
                });
            }
        }
        found
    }

    fn has_work_at(&self, app: u32, host: u32) -> bool {
        let a = &self.apps[app as usize];
        let pools = self.fleet.hosts[host as usize].pools.clone();
        let is_writing = a.phase.is_some_and(|p| !p.is_read);
        pools.clone().any(|node| {
            let n = &self.nodes[node];
            n.workers.iter().any(|w| w.app == app) || n.waiting.contains(&(app, a.attempt))
        }) || is_writing
            && a.parts.iter().any(|id| {
                let part = &self.parts[*id];
                part.version == a.version && pools.contains(&(part.node as usize))
            })
    }

    /// What an interrupted application does: it reads its newest checkpoint where its own node has
    /// failed, or begins again what it was doing.
    fn begin_again(&mut self, stopped: &Stopped) {
        let app = stopped.app;
        match stopped.phase {
            phase if stopped.runs_here => {
                // The restart of a failure of its own goes on.
                self.apps[app as usize].phase = phase.filter(|p| p.is_read);
                self.fleet.sums.interrupted += 1;
                self.fail(app, true);
            }
            Some(phase) if phase.is_read => {
                self.fleet.sums.begun_again += 1;
                self.read_parts(app, phase.by_node);
            }
            Some(phase) => {
                self.fleet.sums.begun_again += 1;
                let a = &mut self.apps[app as usize];
                a.version -= 1;
                let failures = a.failures;
                self.begin_checkpoint(app, failures);
                if let Some(again) = &mut self.apps[app as usize].phase {
                    again.arrive_s = phase.arrive_s;
                    again.started_s = phase.started_s;
                }
            }
            None => {}
        }
    }

    /// Copies on the node that nobody waits for end.
    fn end_copies_at(&mut self, node: usize) {
        let workers = self.nodes[node].workers.iter();
        let filled: Vec<PartId> = workers.filter_map(|w| w.access.part()).collect();
        for id in filled {
            let part = self.parts[id];
            self.drop_copy(id);
            if let Some(first) = self.part_of(part.app, part.version, part.slot, Role::First) {
                self.fleet.lost_copies.failed(u64::from(first));
            }
        }
    }

    /// What becomes of what was on a tier of a node that has failed.
    fn lose(&mut self, node: usize, is_lost: bool) {
        let here: Vec<PartId> = self
            .apps
            .iter()
            .flat_map(|a| a.parts.iter().copied())
            .filter(|id| self.parts[*id].node as usize == node)
            .collect();
        let mut damaged = Vec::new();
        for id in here {
            // Its copies may have gone with one before it.
            let part = self.parts[id];
            if !self.apps[part.app as usize].parts.contains(&id) {
                continue;
            }
            match part.role {
                Role::Restart if is_lost => self.drop_copy(id),
                Role::Restart => {}
                Role::Moved => self.drop_copy(id),
                Role::Second => {
                    self.drop_copy(id);
                    if let Some(first) =
                        self.part_of(part.app, part.version, part.slot, Role::First)
                    {
                        self.wants_second(first);
                    }
                }
                Role::First if part.dirty() > 0 => {
                    if self.promote(id) {
                        continue;
                    }
                    // A copy of it that was being made has no source now.
                    self.drop_second(&part);
                    self.fleet.lost_copies.settled(u64::from(id));
                    if is_lost {
                        self.fleet.sums.lost_bytes += part.dirty();
                        damaged.push((part.app, part.version));
                        self.drop_part(id);
                    }
                }
                Role::First if is_lost => self.drop_part(id),
                Role::First => {}
            }
        }
        for (app, version) in damaged {
            self.fall_back(app, version);
        }
        self.touched.push(node);
    }

    /// The second copy of a part takes the place of the first, and is made again.
    fn promote(&mut self, first: PartId) -> bool {
        let part = self.parts[first];
        let second = self.part_of(part.app, part.version, part.slot, Role::Second);
        let is_alive = |id: &PartId| {
            let second = &self.parts[*id];
            second.is_second() && self.nodes[second.node as usize].is_up
        };
        let Some(second) = second.filter(is_alive) else {
            return false;
        };
        self.stop_moving(second);
        // A copy that goes with its first one is no longer its second.
        self.parts[second].role = Role::First;
        self.parts[second].state = State::Dirty;
        let node = self.parts[second].node as usize;
        self.advance(node);
        self.nodes[node].seconds -= self.parts[second].dirty();
        self.drop_part(first);
        let mtbf_s = self.apps[part.app as usize].known_mtbf_s;
        let candidate = self.parts[second].candidate(second, mtbf_s);
        self.nodes[node].dirty_queue.insert(&candidate);
        self.touched.push(node);
        self.wants_second(second);
        true
    }

    /// A version that an application had completed has lost bytes.
    fn fall_back(&mut self, app: u32, version: u64) {
        let a = &mut self.apps[app as usize];
        let keep = self.scenario.applications[a.kind as usize].versions;
        let oldest_kept = keep.map_or(0, |keep| (a.version + 1).saturating_sub(keep));
        if a.newest != Some(version) {
            return;
        }
        self.fleet.sums.lost_versions += 1;
        let safe = a.safe.filter(|safe| safe.0 >= oldest_kept);
        a.newest = safe.map(|safe| safe.0);
        a.newest_s = safe.map_or(a.last_restart_s, |safe| safe.1);
    }

    /// Notes how many undrained bytes there are once only.
    pub(in super::super) fn note_at_risk(&mut self) {
        if self.scenario.nodes.is_none() {
            return;
        }
        let mut bytes = 0;
        for a in &self.apps {
            for id in &a.parts {
                let part = &self.parts[*id];
                let is_promised = a.newest.is_some_and(|newest| part.version <= newest);
                if part.role != Role::First || !is_promised || part.dirty() == 0 {
                    continue;
                }
                let second =
                    a.parts.iter().map(|id| &self.parts[*id]).any(|o| {
                        (o.version, o.slot, o.is_second()) == (part.version, part.slot, true)
                    });
                if !second {
                    bytes += part.dirty();
                }
            }
        }
        let sums = &mut self.fleet.sums;
        sums.at_risk_bytes = bytes;
        sums.max_at_risk_bytes = sums.max_at_risk_bytes.max(bytes);
    }
}
