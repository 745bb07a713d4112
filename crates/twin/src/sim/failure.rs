//! Applications fail, and read their newest checkpoint.

use forebay_policy::mtbf::on_restart;

use super::Sim;
use super::app::Phase;
use super::event::Event;
use super::node::{Access, Request, Worker};
use super::part::State;
use super::pfs::{PfsOperation, Purpose};
use crate::scenario::FailureMode;

impl Sim<'_> {
    pub(super) fn plan_failure(&mut self, app: u32) {
        let mtbf_s = self.apps[app as usize].mtbf_s;
        let begin_s = self.now_s.max(self.scenario.failures.from_s);
        let at_s = begin_s + self.failure_rng.exponential(mtbf_s);
        self.calendar.plan(at_s, Event::Fail(app));
    }

    /// [`crate::scenario::FailureMode::Draws`]: an application drawn at random reads a checkpoint
    /// and disturbs nothing.
    pub(super) fn draw_restart(&mut self) {
        let total = self.failure_weights.last().copied().unwrap_or(0.0);
        let at = self.draw_rng.share() * total;
        let app = self.failure_weights.partition_point(|sum| *sum <= at);
        let app = app.min(self.apps.len() - 1) as u32;
        self.count_restart(app);
    }

    /// A restart of the application's history.
    pub(super) fn note_restart(&mut self, app: u32) {
        self.count_restart(app);
    }

    /// Counts a restart, learns from it, and says whether the burst buffer had all of the newest
    /// checkpoint; `None` without a complete one.
    fn count_restart(&mut self, app: u32) -> Option<bool> {
        let newest = self.apps[app as usize].newest?;
        if self.scenario.nodes.is_some() {
            return Some(self.count_restart_of_parts(app, newest));
        }
        let stripe = self.nodes_of(app).len();
        let parts = self.apps[app as usize].parts.clone();
        let whole = parts
            .iter()
            .filter(|id| self.parts[**id].version == newest && self.parts[**id].is_whole());
        let is_hit = whole.count() == stripe;
        self.learn_from_restart(app, newest, is_hit);
        Some(is_hit)
    }

    /// What the burst buffer makes of a restart.
    pub(super) fn learn_from_restart(&mut self, app: u32, newest: u64, is_hit: bool) {
        let now_s = self.now_s;
        let parts = self.apps[app as usize].parts.clone();
        self.outcome.restarts += 1;
        self.outcome.hits += u64::from(is_hit);
        for id in &parts {
            if self.scenario.assume.reads_are_use && self.parts[*id].version == newest {
                self.access(*id);
            }
        }
        if !self.scenario.failures.mtbf_known {
            self.learn_mtbf(app);
        }
        self.apps[app as usize].last_restart_s = now_s;
    }

    /// A read moves a part in the order of the least recently used.
    fn access(&mut self, id: u32) {
        let part = self.parts[id];
        let mtbf_s = self.apps[part.app as usize].known_mtbf_s;
        let before = part.candidate(id, mtbf_s);
        self.parts[id].accessed_s = self.now_s;
        let after = self.parts[id].candidate(id, mtbf_s);
        let node = &mut self.nodes[part.node as usize];
        let queue = match part.state {
            State::Dirty => &mut node.dirty_queue,
            State::Clean => &mut node.clean_queue,
            State::Demoting | State::Writing | State::Second | State::Moving => return,
        };
        if queue.remove(&before) {
            queue.insert(&after);
        }
    }

    fn learn_mtbf(&mut self, app: u32) {
        let a = &self.apps[app as usize];
        let (old_s, new_s) = (
            a.known_mtbf_s,
            on_restart(a.known_mtbf_s, self.now_s, a.last_restart_s),
        );
        for node in self.nodes_used(app) {
            let n = &mut self.nodes[node];
            n.dirty_queue.rerank(u64::from(app), new_s);
            n.clean_queue.rerank(u64::from(app), new_s);
            let is_here = self.scenario.direct
                && self.apps[app as usize]
                    .parts
                    .iter()
                    .any(|id| self.parts[*id].node as usize == node);
            if is_here {
                if let Some(count) = n.residents.get_mut(&old_s.to_bits()) {
                    *count -= 1;
                    if *count == 0 {
                        n.residents.remove(&old_s.to_bits());
                    }
                }
                *n.residents.entry(new_s.to_bits()).or_default() += 1;
            }
        }
        self.apps[app as usize].known_mtbf_s = new_s;
    }

    /// [`crate::scenario::FailureMode::Process`]: what the application was writing is lost. It
    /// reads its newest checkpoint and goes on.
    pub(super) fn fail(&mut self, app: u32, by_node: bool) {
        let now_s = self.now_s;
        let a = &self.apps[app as usize];
        if a.has_ended || now_s > a.end_s {
            return;
        }
        // Its own next failure is planned when it has come back from the one before.
        let was_own = a.phase.is_some_and(|p| p.is_read && !p.by_node);
        let by_node = by_node && !was_own;
        self.abort_phase(app);
        let a = &mut self.apps[app as usize];
        self.outcome.lost_work_s += now_s - a.newest_s;
        a.attempt += 1;
        a.failures += 1;
        let attempt = a.attempt;
        if self.scenario.nodes.is_some() {
            self.read_parts(app, by_node);
            return;
        }
        let nodes = self.nodes_of(app);
        let hit = self.count_restart(app);
        self.apps[app as usize].phase = Some(Phase {
            is_read: true,
            arrive_s: now_s,
            started_s: None,
            parts_left: if hit == Some(true) {
                nodes.len() as u32
            } else {
                1
            },
            stall_s: 0.0,
            is_direct: false,
            by_node,
        });
        let kind = &self.scenario.applications[self.apps[app as usize].kind as usize];
        let newest = self.apps[app as usize].newest.unwrap_or(0);
        let bytes = kind.version_bytes(newest);
        match hit {
            Some(true) => {
                for node in &nodes {
                    self.advance(*node);
                    let request = Request {
                        app,
                        attempt,
                        bytes: (bytes / nodes.len() as u64).max(1),
                        is_read: true,
                        since_s: now_s,
                        slot: 0,
                        is_second: false,
                        moved: None,
                    };
                    self.enqueue(*node, request);
                    self.touched.push(*node);
                }
            }
            Some(false) => self.pfs_begin(PfsOperation {
                app,
                node: self.apps[app as usize].node,
                bytes,
                purpose: Purpose::Restart,
            }),
            // There is nothing to read: the application begins anew.
            None => self.end_of_part(app, 0.0),
        }
    }

    /// Ends what the application was doing, and removes what it has written of an incomplete
    /// version.
    pub(super) fn abort_phase(&mut self, app: u32) {
        let Some(phase) = self.apps[app as usize].phase.take() else {
            return;
        };
        self.pfs_abort(app);
        for node in self.nodes_used(app) {
            self.advance(node);
            let is_its = |w: &Worker| w.app == app && !matches!(w.access, Access::Copy(_));
            while let Some(worker) = self.nodes[node].workers.iter().position(is_its) {
                let w = self.nodes[node].workers.swap_remove(worker);
                self.way_ends(node, w.way);
                let class = match w.access {
                    Access::Read => forebay_policy::schedule::Class::Restart,
                    Access::Write(_) | Access::Second(_) | Access::Copy(_) => {
                        forebay_policy::schedule::Class::Checkpoint
                    }
                };
                if class == forebay_policy::schedule::Class::Restart
                    || self.nodes[node].shares.is_none()
                {
                    self.nodes[node].end_turn(u64::from(app), class, self.now_s);
                }
            }
            self.nodes[node].ends_worker = None;
            self.touched.push(node);
        }
        if phase.is_read {
            return;
        }
        let a = &self.apps[app as usize];
        let incomplete: Vec<u32> = a
            .parts
            .iter()
            .copied()
            .filter(|id| self.parts[*id].version == a.version)
            .collect();
        for id in incomplete {
            // With a first copy its second has gone.
            if self.apps[app as usize].parts.contains(&id) {
                self.drop_part(id);
            }
        }
    }

    /// The application has read its checkpoint and computes again.
    pub(super) fn end_restart(&mut self, app: u32, arrive_s: f64, by_node: bool) {
        let now_s = self.now_s;
        let a = &mut self.apps[app as usize];
        let kind = &self.scenario.applications[a.kind as usize];
        if let Some(newest) = a.newest {
            self.outcome.restart_read_bytes += kind.version_bytes(newest);
            self.outcome.restart_read_s += now_s - arrive_s;
        }
        a.newest_s = now_s;
        let given = usize::try_from(a.version).unwrap_or(usize::MAX);
        a.due_s = match kind.times_s.is_empty() {
            true => now_s + kind.interval_s,
            false => kind
                .times_s
                .get(given)
                .map_or(f64::INFINITY, |at_s| at_s.max(now_s)),
        };
        let (due_s, end_s, failures) = (a.due_s, a.end_s, a.failures);
        if due_s <= end_s && due_s.is_finite() {
            self.calendar.plan(due_s, Event::Checkpoint(app, failures));
        }
        if self.scenario.failures.mode == FailureMode::Process && !by_node {
            self.plan_failure(app);
        }
    }
}
