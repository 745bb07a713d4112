//! Bytes in motion: a node is advanced to now, what has ended is ended, and new rates are set.

use forebay_policy::engine::{Bandwidths, PlanChoice, in_force};
use forebay_policy::plan::Plan;
use forebay_policy::throttle::{DemotionPace, Load, pace};

use super::node::Access;
use super::part::{Role, State};
use super::{MIN_STEP_S, Sim};

/// A ramp of the plan is walked in so many steps. Rates are linear in time there, so a step runs at
/// the mean of its ends.
const RAMP_STEPS: f64 = 64.0;

impl Sim<'_> {
    /// Advances a node to now, and plans its next step.
    pub(super) fn touch(&mut self, node: usize) {
        self.advance(node);
        self.end_what_is_done(node);
        self.replan(node);
    }

    /// Moves the bytes of the time since the last look. Rates were constant.
    pub(super) fn advance(&mut self, node: usize) {
        let now_s = self.now_s;
        let n = &mut self.nodes[node];
        let (begun_s, dt) = (n.last_s, now_s - n.last_s);
        if dt <= 0.0 {
            return;
        }
        let used_before = n.used();
        n.last_s = now_s;
        if n.is_busy() {
            n.foreground_s = now_s;
        }
        let is_end = now_s >= self.node_next_s[node];
        let exact = n.demotion_rate * dt + n.demotion_carry;
        let mut demote = exact.floor() as u64;
        n.demotion_carry = exact - exact.floor();
        if is_end && n.ends_demotion {
            demote = u64::MAX;
        }
        // What was there before the step is demoted first: a writer in a full burst buffer gets its
        // space.
        demote -= self.demote(node, demote);
        let mut written = 0;
        for worker in 0..self.nodes[node].workers.len() {
            written += self.work(node, worker, dt, is_end);
        }
        if demote < u64::MAX / 2 {
            self.demote(node, demote);
        }
        let n = &mut self.nodes[node];
        if written > 0 {
            n.meter.on_write(written, begun_s);
            n.written += written;
        }
        let used = n.used();
        debug_assert!(used <= n.most);
        n.most = n.capacity.max(used);
        if let Some(borrowed) = &mut n.borrowed {
            borrowed.passed(dt, [used_before, used], n.is_up);
        }
        n.peak = n.peak.max(used);
        self.outcome.max_used_bytes = self.outcome.max_used_bytes.max(used);
        self.outcome.max_dirty_bytes = self.outcome.max_dirty_bytes.max(n.dirty);
    }

    /// Turns up to `bytes` of the part in demotion clean. Where no part is in demotion, and that is
    /// allowed, it takes the part being written. Returns how many bytes became clean.
    fn demote(&mut self, node: usize, bytes: u64) -> u64 {
        let may_take_open = self.may_demote_open(node);
        let n = &mut self.nodes[node];
        let is_moving = n.demotion_rate > 0.0;
        let open = || n.writing_part().filter(|_| may_take_open);
        let Some(id) = n.demoting.or_else(open).filter(|_| is_moving) else {
            return 0;
        };
        let part = &mut self.parts[id];
        let moved = bytes.min(part.dirty());
        part.demoted += moved;
        n.dirty -= moved;
        n.clean += moved;
        n.drained += moved;
        self.outcome.demoted_bytes += moved;
        moved
    }

    /// Whether bytes of a part that is being written may be demoted. They may where nothing else
    /// can make room: the servers let such a file go on on the PFS.
    fn may_demote_open(&self, node: usize) -> bool {
        !self.scenario.assume.whole_files || self.nodes[node].is_full()
    }

    /// Moves the bytes of a worker. Returns those that an application wrote: second copies are not
    /// written again by anybody.
    fn work(&mut self, node: usize, worker: usize, dt: f64, is_end: bool) -> u64 {
        let n = &mut self.nodes[node];
        let is_last = is_end && n.ends_worker == Some(worker);
        let stall_s = dt * n.stall_share;
        let w = &mut n.workers[worker];
        let exact = w.rate * dt + w.carry;
        let mut bytes = exact.floor() as u64;
        w.carry = exact - exact.floor();
        if is_last {
            bytes = w.remaining;
        }
        bytes = bytes.min(w.remaining);
        let Some(id) = w.access.part() else {
            w.remaining -= bytes;
            return 0;
        };
        w.stall_s += stall_s;
        let role = self.parts[id].role;
        if role != Role::Restart && self.nodes[node].free() < bytes {
            self.make_room(node, bytes);
        }
        let n = &mut self.nodes[node];
        bytes = bytes.min(n.free());
        n.workers[worker].remaining -= bytes;
        self.parts[id].written += bytes;
        match role {
            Role::First => n.dirty += bytes,
            Role::Second | Role::Moved => {
                n.dirty += bytes;
                n.seconds += bytes;
            }
            // What it is a copy of is on the PFS.
            Role::Restart => {
                n.clean += bytes;
                self.parts[id].demoted += bytes;
            }
        }
        match role {
            Role::First => bytes,
            Role::Second | Role::Restart | Role::Moved => 0,
        }
    }

    fn end_what_is_done(&mut self, node: usize) {
        while let Some(worker) = self.nodes[node]
            .workers
            .iter()
            .position(|w| w.remaining == 0)
        {
            self.end_worker(node, worker);
        }
        if let Some(id) = self.nodes[node].demoting
            && self.parts[id].dirty() == 0
        {
            self.end_demotion(id);
            self.unblock(node);
        }
    }

    /// Gives turns, chooses a victim and sets rates until something changes.
    fn replan(&mut self, node: usize) {
        if !self.nodes[node].is_up {
            self.leave_pfs(node);
            self.nodes[node].demotion_rate = 0.0;
            self.node_next_s[node] = f64::INFINITY;
            return;
        }
        self.give_turns(node);
        self.look_downward(node);
        if !self.is_lent() {
            self.update_plan(node);
        }
        let has_writers = self.nodes[node].writers().next().is_some();
        let needs_room = self.nodes[node].fillers().next().is_some();
        if needs_room && self.nodes[node].free() < self.nodes[node].unit() {
            self.end_restart_copies(node);
            let unit = self.nodes[node].unit();
            self.make_room(node, unit);
        }
        let (limit, demotion_cap) = self.pace(node, has_writers);
        let demotion = self.set_demotion(node, demotion_cap, has_writers);
        let mut total = self.set_rates(node, limit, demotion);
        let n = &mut self.nodes[node];
        n.stall_share = 0.0;
        let is_full = n.is_full() && n.shares.is_none();
        let is_owing = n.dirty > n.capacity;
        if is_full && total > demotion {
            // Nothing comes before what was given back has left.
            let share = if is_owing { 0.0 } else { demotion / total };
            n.stall_share = 1.0 - share;
            n.workers
                .iter_mut()
                .filter(|w| w.access.part().is_some())
                .for_each(|w| w.rate *= share);
            total = if is_owing { 0.0 } else { demotion };
            self.ask_when_full(node);
        }
        let n = &mut self.nodes[node];
        // Only what is being written can be demoted, so no faster than it is written.
        if n.demoting.is_none() && n.demotion_rate > total && !is_owing {
            n.demotion_rate = total;
        }
        self.end_of_step(node, total, is_full);
    }

    /// Sets the rates of all workers of a node. Returns that of those that need space.
    fn set_rates(&mut self, node: usize, limit: f64, demotion: f64) -> f64 {
        let scenario = self.scenario;
        let n = &mut self.nodes[node];
        let bw_max = n.input.bw_max_bytes_per_s;
        let physical = n.line.map_or(bw_max, |line| line.write_beside(demotion));
        let writing = physical.min(limit).min(bw_max);
        let writers = n.fillers().count();
        let readers = n.workers.len() - writers;
        let reading = n.read_bytes_per_s / readers.max(1) as f64;
        let (mut total, apps) = (0.0, &self.apps);
        for w in &mut n.workers {
            let link = scenario.applications[apps[w.app as usize].kind as usize].link_bytes_per_s;
            let way = w.way.map_or(f64::INFINITY, |way| self.fleet.way_share(way));
            w.rate = match w.access {
                Access::Write(_) | Access::Second(_) => {
                    (writing / writers as f64).min(link).min(way)
                }
                Access::Read => reading.min(link).min(way),
                Access::Copy(part) => {
                    let network = self.fleet.copy_network(self.parts[part].role);
                    (writing / writers as f64).min(network).min(way)
                }
            };
            if w.access.part().is_some() {
                total += w.rate;
            }
        }
        total
    }

    fn end_of_step(&mut self, node: usize, total: f64, is_full: bool) {
        let now_s = self.now_s;
        let idle_s = self.scenario.bb.idle_s;
        let n = &mut self.nodes[node];
        let mut dt = f64::INFINITY;
        n.ends_worker = None;
        n.ends_demotion = false;
        for (i, w) in n.workers.iter().enumerate() {
            let takes_s = w.remaining as f64 / w.rate;
            if takes_s < dt {
                dt = takes_s;
                n.ends_worker = Some(i);
            }
        }
        let mut bound = |other_s: f64| {
            let is_first = other_s < dt;
            if is_first {
                dt = other_s;
            }
            is_first
        };
        let mut cut = false;
        if let Some(id) = n.demoting.filter(|_| n.demotion_rate > 0.0) {
            n.ends_demotion = bound(self.parts[id].dirty() as f64 / n.demotion_rate);
            cut |= n.ends_demotion;
        }
        if n.dirty > n.capacity && n.demotion_rate > 0.0 {
            cut |= bound((n.dirty - n.capacity) as f64 / n.demotion_rate);
        }
        let free = n.free();
        if total > 0.0 && !is_full {
            cut |= bound(free as f64 / total);
        }
        if total > 0.0
            && let Some(plan) = n.plan.as_ref().filter(|_| !self.fleet.is_lent)
        {
            let dwsf = n.meter.dwsf_bytes(now_s) as f64;
            cut |= bound(ramp_end(plan, dwsf) / total);
        }
        // Where shares are lent, reports end periods.
        if !n.workers.is_empty()
            && !self.fleet.is_lent
            && let Some(begun_s) = n.meter.begun_s()
        {
            cut |= bound(begun_s + n.meter.period_s() - now_s);
        }
        if !n.is_busy() && n.dirty > 0 {
            let idle_at_s = n.foreground_s + idle_s;
            if idle_at_s > now_s {
                cut |= bound(idle_at_s - now_s);
            }
        }
        if cut {
            n.ends_worker = None;
            // Several things may end at once: demotion ends, too, if it is over by the end of the
            // step.
            if let Some(id) = n.demoting.filter(|_| n.demotion_rate > 0.0) {
                n.ends_demotion = self.parts[id].dirty() as f64 / n.demotion_rate <= dt;
            }
        }
        self.node_next_s[node] = now_s + dt.max(MIN_STEP_S);
    }

    /// The limit for writes and the cap for demotion, both in bytes/s, as the throttler of the
    /// servers would set them.
    fn pace(&mut self, node: usize, has_writers: bool) -> (f64, f64) {
        if self.is_lent() {
            return self.lent_pace(node);
        }
        let now_s = self.now_s;
        let scenario = self.scenario;
        let n = &mut self.nodes[node];
        let is_idle = !n.is_busy() && now_s >= n.foreground_s + scenario.bb.idle_s;
        let dwsf = n.meter.dwsf_bytes(now_s) as f64;
        let left: u64 = n.writers().map(|w| w.remaining).sum();
        let end = match &n.plan {
            Some(plan) if has_writers => dwsf + ramp_end(plan, dwsf).min(left as f64),
            _ => dwsf,
        };
        let load = Load {
            dwsf_bytes: dwsf,
            // What the step will write counts already.
            dirty_bytes: n.dirty.max(u64::from(has_writers)) as f64,
            limit_bytes: n.capacity as f64,
            under_way_bytes: 0.0,
            was_full: false,
            is_idle,
            is_starved: (has_writers && n.is_full()) || !n.blocked.is_empty() || n.must_drain(),
        };
        let (bw_max, br_max) = (n.input.bw_max_bytes_per_s, n.input.br_max_bytes_per_s);
        let rates = |dwsf_bytes: f64| {
            let load = Load { dwsf_bytes, ..load };
            let pace = pace(scenario.policy, n.plan.as_ref(), &load);
            let limit = pace.checkpoint_bytes_per_s;
            let demotion = match pace.demotion {
                DemotionPace::Stop => 0.0,
                DemotionPace::Rate(rate) => rate,
                DemotionPace::Full => br_max,
            };
            (limit.unwrap_or(bw_max), demotion)
        };
        let on_ramp = n
            .plan
            .as_ref()
            .is_some_and(|p| ramp_step(p, dwsf).is_some());
        let (begin, end) = (rates(dwsf), rates(if on_ramp { end } else { dwsf }));
        (f64::midpoint(begin.0, end.0), f64::midpoint(begin.1, end.1))
    }

    /// Chooses a victim where one is wanted, and the rate the PFS leaves for it.
    fn set_demotion(&mut self, node: usize, cap: f64, has_writers: bool) -> f64 {
        if cap > 0.0 && self.nodes[node].demoting.is_none() {
            self.choose_victim(node);
        }
        let has_target =
            self.nodes[node].demoting.is_some() || (has_writers && self.may_demote_open(node));
        let rate = match cap > 0.0 && has_target {
            true => cap.min(self.pfs_share(node)),
            false => {
                self.leave_pfs(node);
                0.0
            }
        };
        self.nodes[node].demotion_rate = rate;
        rate
    }

    fn choose_victim(&mut self, node: usize) {
        let n = &mut self.nodes[node];
        // Who waits for its own space is served first.
        let own = n.blocked.first().map(|request| request.app);
        let own = own.and_then(|app| {
            let parts = self.apps[app as usize].parts.iter().copied();
            parts.into_iter().find(|id| {
                self.parts[*id].state == State::Dirty && self.parts[*id].node as usize == node
            })
        });
        let Some(id) = own.or_else(|| n.dirty_queue.first().map(|id| id as u32)) else {
            return;
        };
        let part = &mut self.parts[id];
        let mtbf_s = self.apps[part.app as usize].known_mtbf_s;
        n.dirty_queue.remove(&part.candidate(id, mtbf_s));
        part.state = State::Demoting;
        n.demoting = Some(id);
        self.leave_pfs(node);
        self.nodes[node].round = self.nodes[node].round.wrapping_add(1);
    }

    /// A plan for what this period will bring.
    fn update_plan(&mut self, node: usize) {
        let now_s = self.now_s;
        let scenario = self.scenario;
        let given = scenario
            .plan
            .dwpp_bytes
            .map(|bytes| bytes / u64::from(scenario.bb.nodes));
        let n = &mut self.nodes[node];
        let dwpp = given.or_else(|| n.meter.dwpp_bytes(now_s));
        if dwpp == n.planned_bytes {
            return;
        }
        n.planned_bytes = dwpp;
        let input = n.input;
        let choice = PlanChoice {
            policy: scenario.policy,
            bandwidths: Some(Bandwidths {
                bw_max_bytes_per_s: input.bw_max_bytes_per_s,
                bw_min_bytes_per_s: input.bw_min_bytes_per_s,
                br_max_bytes_per_s: input.br_max_bytes_per_s,
                br_min_bytes_per_s: input.br_min_bytes_per_s,
            }),
            capacity_bytes: input.capacity_bytes,
            dwpp_bytes: dwpp.map(|bytes| bytes as f64),
            period_s: input.period_s,
        };
        n.plan = in_force(&choice).plan;
    }
}

/// Place on the ramp: number of the step, and its length in bytes; `None` before and behind it.
fn ramp_step(plan: &Plan, dwsf: f64) -> Option<(f64, f64)> {
    let (start, full) = (plan.start_dwsf_bytes, plan.full_dwsf_bytes);
    let step = (full - start) / RAMP_STEPS;
    (dwsf >= start && dwsf < full && step >= 1.0).then(|| (((dwsf - start) / step).floor(), step))
}

/// Bytes until the rates of the plan change.
fn ramp_end(plan: &Plan, dwsf: f64) -> f64 {
    let (start, full) = (plan.start_dwsf_bytes, plan.full_dwsf_bytes);
    match ramp_step(plan, dwsf) {
        Some((nth, step)) => (start + (nth + 1.0) * step - dwsf).max(1.0),
        None if dwsf < start => (start - dwsf).max(1.0),
        None if dwsf < full => (full - dwsf).max(1.0),
        None => f64::INFINITY,
    }
}
