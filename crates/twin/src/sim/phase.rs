//! From "the application wants to write" to "the version is complete".

use forebay_policy::schedule::Class;
use forebay_policy::share::ShareAdmission;
use forebay_policy::victims::{Incoming, is_direct};

use super::app::Phase;
use super::event::Event;
use super::fleet::PutOff;
use super::node::{Access, Request, Worker};
use super::part::{Part, Role, State};
use super::pfs::{PfsOperation, Purpose};
use super::{JobRecord, Sim};
use crate::scenario::FailureMode;

impl Sim<'_> {
    pub(super) fn start_application(&mut self, app: u32) {
        let a = &self.apps[app as usize];
        let kind = &self.scenario.applications[a.kind as usize];
        if kind.stage_in_bytes > 0 {
            let node = self.stage_node(a.node);
            self.pfs_begin(PfsOperation {
                app,
                node,
                bytes: kind.stage_in_bytes,
                purpose: Purpose::StageIn,
            });
        } else {
            self.begin_work(app);
        }
    }

    /// The application computes; its first checkpoint and its first failure are planned.
    pub(super) fn begin_work(&mut self, app: u32) {
        let now_s = self.now_s;
        let a = &mut self.apps[app as usize];
        a.due_s = a.due_s.max(now_s);
        a.newest_s = now_s;
        a.last_restart_s = now_s;
        let (due_s, end_s, failures) = (a.due_s, a.end_s, a.failures);
        if end_s.is_finite() {
            self.calendar.plan(end_s.max(now_s), Event::End(app));
        }
        if due_s <= end_s {
            self.calendar.plan(due_s, Event::Checkpoint(app, failures));
        }
        if self.scenario.failures.mode == FailureMode::Process {
            self.plan_failure(app);
        }
    }

    pub(super) fn end_application(&mut self, app: u32) {
        let a = &mut self.apps[app as usize];
        a.has_ended = true;
        for node in self.nodes_of(app) {
            if let Some(shares) = &mut self.nodes[node].shares {
                shares.release(u64::from(app));
            }
            self.touched.push(node);
        }
    }

    /// Nodes that hold a part of every checkpoint of the application.
    pub(super) fn nodes_of(&self, app: u32) -> Vec<usize> {
        let a = &self.apps[app as usize];
        let stripe = self.scenario.applications[a.kind as usize].stripe;
        let node = |i| ((a.node + i) % self.scenario.bb.nodes) as usize;
        (0..stripe).map(node).collect()
    }

    pub(super) fn begin_checkpoint(&mut self, app: u32, failures: u32) {
        let now_s = self.now_s;
        let a = &mut self.apps[app as usize];
        if a.has_ended || a.phase.is_some() || a.failures != failures {
            return;
        }
        let kind = &self.scenario.applications[a.kind as usize];
        a.version += 1;
        a.attempt += 1;
        let attempt = a.attempt;
        let stripe = u64::from(kind.stripe);
        a.phase = Some(Phase {
            is_read: false,
            arrive_s: now_s,
            started_s: None,
            parts_left: kind.stripe * self.fleet.replicas,
            stall_s: 0.0,
            is_direct: false,
            by_node: false,
        });
        let total = kind.version_bytes(a.version);
        for i in 0..stripe {
            let request = Request {
                app,
                attempt,
                // The first parts are a byte larger where it does not come out even.
                bytes: total / stripe + u64::from(i < total % stripe),
                is_read: false,
                since_s: now_s,
                slot: i as u32,
                is_second: false,
                moved: None,
            };
            if self.scenario.nodes.is_some() {
                self.place_first(request);
                continue;
            }
            let node =
                ((self.apps[app as usize].node + i as u32) % self.scenario.bb.nodes) as usize;
            self.advance(node);
            self.enqueue(node, request);
            self.touched.push(node);
        }
    }

    /// Lets a request wait for its turn. Where applications have space of their own there are no
    /// turns.
    pub(super) fn enqueue(&mut self, node: usize, request: Request) {
        let class = match request.is_read {
            true => Class::Restart,
            false => Class::Checkpoint,
        };
        if self.nodes[node].shares.is_some() && !request.is_read {
            self.begin_in_own_space(node, request);
        } else {
            if !request.is_read {
                self.nodes[node].queued += request.bytes;
            }
            if self.scenario.nodes.is_some() {
                self.nodes[node]
                    .waiting
                    .push((request.app, request.attempt));
            }
            let scheduler = &mut self.nodes[node].scheduler;
            scheduler.enqueue(u64::from(request.app), class, request, self.now_s);
        }
    }

    pub(super) fn give_turns(&mut self, node: usize) {
        while let Some(started) = self.nodes[node].scheduler.start(self.now_s) {
            let request = started.ticket;
            if !request.is_read {
                self.nodes[node].queued -= request.bytes;
            }
            let waiting = &mut self.nodes[node].waiting;
            if let Some(place) = waiting
                .iter()
                .position(|w| *w == (request.app, request.attempt))
            {
                waiting.swap_remove(place);
            }
            let is_void = self.apps[request.app as usize].attempt != request.attempt;
            if is_void {
                self.nodes[node].end_turn(started.application, started.class, self.now_s);
                continue;
            }
            if request.is_read {
                self.note_start(request.app);
                self.add_worker(node, request, Access::Read);
            } else if request.is_second && !self.needs_second(&request) {
                self.nodes[node].end_turn(started.application, started.class, self.now_s);
                self.put_off(PutOff::EndOfPart(request.app, request.attempt, 0.0));
            } else if !request.is_second && self.is_direct(node, &request) {
                self.nodes[node].end_turn(started.application, started.class, self.now_s);
                self.write_direct(node, &request);
            } else {
                self.begin_part(node, request);
            }
        }
    }

    fn note_start(&mut self, app: u32) {
        let now_s = self.now_s;
        if let Some(phase) = &mut self.apps[app as usize].phase {
            phase.started_s.get_or_insert(now_s);
        }
    }

    fn is_direct(&self, node: usize, request: &Request) -> bool {
        let a = &self.apps[request.app as usize];
        let n = &self.nodes[node];
        let incoming = Incoming {
            application: u64::from(request.app),
            mtbf_s: a.known_mtbf_s,
            is_newest_version: true,
            must_make_room: n.free() < request.bytes,
        };
        // The policy asks whether all others are warmer; it is enough to show it the coldest of
        // them.
        let own = a
            .parts
            .iter()
            .any(|id| self.parts[*id].node as usize == node);
        let own_key = a.known_mtbf_s.to_bits();
        let mut coldest = n.residents.iter().rev().filter_map(|(key, count)| {
            let others = count - u32::from(own && *key == own_key);
            (others > 0).then_some(f64::from_bits(*key))
        });
        let coldest = coldest.next().map(|mtbf_s| (u64::MAX, mtbf_s));
        is_direct(
            self.scenario.direct,
            self.scenario.placement,
            &incoming,
            coldest,
        )
    }

    pub(super) fn write_direct(&mut self, node: usize, request: &Request) {
        if let Some(phase) = &mut self.apps[request.app as usize].phase {
            phase.is_direct = true;
            // What is on the PFS needs no second copy.
            phase.parts_left -= self.fleet.replicas - 1;
        }
        self.pfs_begin(PfsOperation {
            app: request.app,
            node: node as u32,
            bytes: request.bytes,
            purpose: Purpose::Direct,
        });
    }

    fn begin_part(&mut self, node: usize, request: Request) {
        self.note_start(request.app);
        let now_s = self.now_s;
        let version = self.apps[request.app as usize].version;
        let id = self.parts.add(Part {
            app: request.app,
            node: node as u32,
            version,
            slot: request.slot,
            role: match request.is_second {
                true => Role::Second,
                false => Role::First,
            },
            is_drained_by_fsync: request.moved.is_some_and(|m| m.is_drained_by_fsync),
            outdated: false,
            state: State::Writing,
            size: request.bytes,
            written: 0,
            demoted: 0,
            evicted: 0,
            arrived_s: now_s,
            accessed_s: now_s,
            closed_s: now_s,
        });
        self.apps[request.app as usize].parts.push(id);
        self.note_resident(request.app, node as u32, true);
        let access = match request.is_second {
            true => Access::Second(id),
            false => Access::Write(id),
        };
        self.add_worker(node, request, access);
        // What was handed over has its second copy, or one that waits for its turn.
        if self.fleet.replicas > 1 && !request.is_second && request.moved.is_none() {
            self.begin_second(id, &request);
        }
    }

    fn add_worker(&mut self, node: usize, request: Request, access: Access) {
        let way = self.way(node, &request, access);
        let n = &mut self.nodes[node];
        n.foreground_s = self.now_s;
        n.workers.push(Worker {
            app: request.app,
            access,
            remaining: request.bytes,
            rate: 0.0,
            carry: 0.0,
            stall_s: self.now_s - request.since_s.min(self.now_s),
            way,
        });
        // Time in the queue is a wait; only time without space of one's own is a stall.
        if n.shares.is_none()
            && let Some(worker) = n.workers.last_mut()
        {
            let moved = request
                .moved
                .map(|m| m.stalled_s + self.now_s - request.since_s);
            worker.stall_s = moved.unwrap_or(0.0);
        }
        self.way_begins(node, way);
    }

    /// Policy `dedicated`: the application writes at once, in its own space, over its own older
    /// versions. Where these are not on the PFS yet, it waits for them. Without space of its own it
    /// writes straight to the PFS.
    fn begin_in_own_space(&mut self, node: usize, request: Request) {
        let own = self.apps[request.app as usize].parts.clone();
        for id in own {
            let part = &self.parts[id];
            if part.node as usize == node && part.state == State::Clean {
                self.drop_part(id);
            }
        }
        let Some(shares) = &mut self.nodes[node].shares else {
            return;
        };
        match shares.admit(u64::from(request.app), request.bytes) {
            ShareAdmission::Admit => self.begin_part(node, request),
            ShareAdmission::Wait => {
                self.note_start(request.app);
                self.nodes[node].blocked.push(request);
            }
            ShareAdmission::TooLarge | ShareAdmission::NoShare => {
                self.write_direct(node, &request);
            }
        }
    }

    /// Something left the burst buffer: who waits for its own space tries again.
    pub(super) fn unblock(&mut self, node: usize) {
        for request in std::mem::take(&mut self.nodes[node].blocked) {
            if self.apps[request.app as usize].attempt == request.attempt {
                self.begin_in_own_space(node, request);
            }
        }
    }

    pub(super) fn end_worker(&mut self, node: usize, worker: usize) {
        let w = self.nodes[node].workers.swap_remove(worker);
        self.way_ends(node, w.way);
        if let Access::Copy(id) = w.access {
            self.end_copy(id);
            return;
        }
        self.nodes[node].foreground_s = self.now_s;
        let app = u64::from(w.app);
        match w.access {
            Access::Copy(_) => {}
            Access::Read => {
                self.nodes[node].end_turn(app, Class::Restart, self.now_s);
            }
            Access::Write(id) | Access::Second(id) => {
                if self.nodes[node].shares.is_none() {
                    self.nodes[node].end_turn(app, Class::Checkpoint, self.now_s);
                }
                let part = &mut self.parts[id];
                part.closed_s = self.now_s;
                part.accessed_s = self.now_s;
                if part.role == Role::Second {
                    part.state = State::Second;
                    self.end_of_part(w.app, w.stall_s);
                    return;
                }
                if self.begin_fsync(id) {
                    self.end_of_part(w.app, w.stall_s);
                    return;
                }
                let part = &mut self.parts[id];
                part.state = State::Dirty;
                let candidate = part.candidate(id, self.apps[w.app as usize].known_mtbf_s);
                if part.dirty() > 0 {
                    self.nodes[node].dirty_queue.insert(&candidate);
                } else {
                    self.end_demotion(id);
                }
            }
        }
        self.note_stall(node, w.stall_s);
        self.end_of_part(w.app, w.stall_s);
    }

    /// One part of the phase has ended.
    pub(super) fn end_of_part(&mut self, app: u32, stall_s: f64) {
        let Some(phase) = &mut self.apps[app as usize].phase else {
            return;
        };
        phase.stall_s = phase.stall_s.max(stall_s);
        phase.parts_left -= 1;
        if phase.parts_left > 0 {
            return;
        }
        let phase = *phase;
        self.apps[app as usize].phase = None;
        match phase.is_read {
            true => self.end_restart(app, phase.arrive_s, phase.by_node),
            false => self.end_checkpoint(app, &phase),
        }
    }

    fn end_checkpoint(&mut self, app: u32, phase: &Phase) {
        let now_s = self.now_s;
        let a = &mut self.apps[app as usize];
        let kind = &self.scenario.applications[a.kind as usize];
        let started_s = phase.started_s.unwrap_or(phase.arrive_s);
        let record = JobRecord {
            application: app,
            version: a.version,
            arrive_s: phase.arrive_s,
            wait_s: started_s - phase.arrive_s,
            stall_s: phase.stall_s,
            execution_s: (now_s - started_s - phase.stall_s).max(0.0),
            bytes: kind.version_bytes(a.version),
            direct: phase.is_direct,
        };
        self.version_is_complete(app);
        let a = &mut self.apps[app as usize];
        let kind = &self.scenario.applications[a.kind as usize];
        let (before, parts) = (a.newest.replace(a.version), &self.parts);
        a.tracker.committed(a.version, now_s);
        // The tracker forgets a version that has no bytes here.
        if let Some(before) = before
            && !a.parts.iter().any(|id| parts[*id].version == before)
        {
            a.tracker.removed(before);
        }
        a.newest_s = now_s;
        let given = usize::try_from(a.version).unwrap_or(usize::MAX);
        a.due_s = match kind.times_s.is_empty() {
            true => (a.due_s + kind.interval_s).max(now_s),
            // The next checkpoint, or none.
            false => kind
                .times_s
                .get(given)
                .map_or(f64::INFINITY, |at_s| at_s.max(now_s)),
        };
        let jitter = match kind.jitter > 0.0 {
            true => (self.jitter_rng.share() - 0.5) * 2.0 * kind.jitter * kind.interval_s,
            false => 0.0,
        };
        let (next_s, end_s, failures) = ((a.due_s + jitter).max(now_s), a.end_s, a.failures);
        self.sums.add(&record);
        if self.options.records {
            self.records.push(record);
        }
        self.retire_old_versions(app);
        if next_s <= end_s && next_s.is_finite() {
            self.calendar.plan(next_s, Event::Checkpoint(app, failures));
        }
    }

    /// A new version is complete: older ones are outdated, and the application deletes what it does
    /// not keep.
    fn retire_old_versions(&mut self, app: u32) {
        let a = &self.apps[app as usize];
        let (newest, kind) = (a.version, a.kind as usize);
        let keep = self.scenario.applications[kind].versions;
        let oldest_kept = keep.map_or(0, |keep| (newest + 1).saturating_sub(keep));
        let mut place = 0;
        while let Some(&id) = self.apps[app as usize].parts.get(place) {
            let part = self.parts[id];
            let node = part.node as usize;
            if part.version < oldest_kept {
                self.advance(node);
                self.stop_copying(id);
                self.drop_part(id);
                self.touched.push(node);
                // With a first copy its second goes, which may have stood before it.
                place = 0;
                continue;
            }
            let a = &self.apps[app as usize];
            let is_outdated = self.scenario.version_aware
                && !part.outdated
                && a.tracker.is_outdated(part.version, self.now_s);
            let candidate = part.candidate(id, a.known_mtbf_s);
            if is_outdated {
                self.parts[id].outdated = true;
                if self.outdate(id, &candidate) {
                    continue;
                }
            }
            place += 1;
        }
    }

    /// Moves a part to its new place in the order; `true` where it has left at once.
    fn outdate(&mut self, id: u32, before: &forebay_policy::demotion::Candidate) -> bool {
        use forebay_policy::demotion::{Candidate, CleanCandidate, Residency, leaves_at_once};
        let part = &self.parts[id];
        let node = &mut self.nodes[part.node as usize];
        let after = Candidate {
            outdated: true,
            ..*before
        };
        match part.state {
            State::Dirty => {
                node.dirty_queue.remove(before);
                node.dirty_queue.insert(&after);
            }
            State::Clean => {
                node.clean_queue.remove(before);
                node.clean_queue.insert(&after);
                let leaves = CleanCandidate::new(after, Residency::Clean)
                    .is_some_and(|c| leaves_at_once(self.scenario.placement, &c));
                if leaves {
                    self.drop_part(id);
                    return true;
                }
            }
            State::Demoting | State::Writing | State::Second | State::Moving => {}
        }
        false
    }
}
