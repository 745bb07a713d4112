//! The engine thread, and what changes the plan in force.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_policy::engine::{PlanChoice, fillable_bytes};
use forebay_policy::schedule::Class;
use forebay_policy::throttle::{DemotionPace, Load};
use forebay_tiers::TierKind;
use forebay_types::Errno;

use super::{SHARES_EVERY_TICKS, TICK, Turn};
use crate::buffer::opens::OpenFile;
use crate::buffer::target::Target;
use crate::plan::Plan;
use crate::plan::eviction::Leaving;

impl Plan {
    /// Takes another policy or placement by name.
    pub fn choose_policy(
        &self,
        policy: Option<&str>,
        placement: Option<&str>,
    ) -> Result<(), Errno> {
        let policy = policy.map(str::parse).transpose();
        let placement = placement.map(str::parse).transpose();
        let (Ok(policy), Ok(placement)) = (policy, placement) else {
            return Err(Errno::EINVAL);
        };
        self.engine.choose(policy, placement);
        tracing::info!(
            "policy {}, placement {}",
            self.engine.policy(),
            self.engine.placement()
        );
        self.buffer.queue().wake_all();
        Ok(())
    }

    /// Whether an idle burst buffer is drained, and it is idle now.
    pub fn is_quiet(&self) -> bool {
        let demotion = &self.settings.demotion;
        demotion.idle && self.buffer.activity().quiet_s() >= demotion.idle_after.as_secs_f64()
    }

    /// Of so many bytes that may be dirty, what copies under way hold.
    pub fn under_way_bytes(&self, limit_bytes: f64) -> f64 {
        limit_bytes
            - fillable_bytes(
                limit_bytes,
                self.copies(),
                self.base.counters().mean_demoted_bytes(),
            )
    }

    /// How far each of the copies to the PFS may run ahead of it, bytes.
    pub fn copy_ahead_bytes(&self) -> u64 {
        self.engine.ahead_bytes(self.copies())
    }

    /// Copies to the PFS side by side, all servers together: each has its own workers.
    fn copies(&self) -> usize {
        let tiers = self.buffer.tiers().iter();
        let fast = tiers.filter(|(_, slot)| slot.kind != TierKind::Pfs);
        let servers: HashSet<u16> = fast.map(|(_, slot)| slot.server).collect();
        self.settings.demotion.workers * servers.len().max(1)
    }

    /// For a copy to ask with every part that it copies. Demotion that is fast because of a pause
    /// ends with the pause, not with the next tick.
    pub fn notice_end_of_pause(&self) {
        if self.engine.is_in_pause.load(Ordering::Relaxed) && !self.is_quiet() {
            look(self);
        }
    }

    /// Waits for turn and rate of a request of `bytes` on a file of the burst buffer. Only to be
    /// asked where `Engine::is_throttled`. The request is under way until the answer is dropped.
    pub fn take_turn(&self, open: &OpenFile, class: Class, bytes: u64) -> Option<Turn<'_>> {
        let (object, server) = match &*open.target.read() {
            Target::Buffer { file, tier, .. }
                if self.buffer.tiers().kind(*tier) != TierKind::Pfs =>
            {
                (file.object, self.buffer.tiers().get(*tier)?.server)
            }
            _ => return None,
        };
        let (application, _) = self.catalog.apps().of(object)?;
        let begun = std::time::Instant::now();
        let turn = self.engine.enter(server, application.into(), class);
        if class == Class::Checkpoint && turn.is_some() {
            self.catalog.history().waited(object, begun.elapsed());
        }
        if class == Class::Checkpoint && bytes > 0 {
            self.engine.pace_write(bytes);
        }
        turn
    }
}

/// The engine's thread: learns, chooses the plan, sets limits.
pub fn run(plan: &Arc<Plan>) {
    let mut ticks = 0u32;
    let mut leaving = Leaving::downward(plan);
    while !plan.base.is_ending() {
        std::thread::sleep(TICK);
        plan.learn();
        look(plan);
        if ticks.is_multiple_of(SHARES_EVERY_TICKS) {
            plan.tend_shares();
            leaving.tend(plan);
        }
        ticks = ticks.wrapping_add(1);
    }
    // The device outlives the server, and may have other users.
    plan.engine.block_io.limit(None);
}

fn look(plan: &Plan) {
    let (dirty, capacity) = plan.buffer.ledger().dirty_and_capacity();
    let engine = &plan.engine;
    let (dwsf, dwpp) = plan.learning.figures();
    let limit_bytes = capacity.min(plan.buffer.ledger().dirty_cap_bytes()) as f64;
    let under_way_bytes = plan.under_way_bytes(limit_bytes);
    let choice = PlanChoice {
        policy: engine.policy(),
        bandwidths: engine.bandwidths(),
        capacity_bytes: limit_bytes - under_way_bytes,
        dwpp_bytes: dwpp.map(|b| b as f64),
        period_s: engine.period_s,
    };
    let is_pressed = plan.buffer.queue().is_pressed();
    let is_idle = plan.is_quiet();
    let has_work = plan.buffer.queue().has_work();
    let load = Load {
        dwsf_bytes: dwsf as f64,
        // Files in the overflow and empty ones hold no bytes of ours, and have to go all the same.
        dirty_bytes: dirty.max(u64::from(has_work)) as f64,
        limit_bytes,
        under_way_bytes,
        was_full: engine.is_full(),
        is_idle,
        is_starved: plan.buffer.queue().is_starved(),
    };
    engine.follow(&choice, &load, is_pressed);
    let is_full = engine.view().pace.demotion == DemotionPace::Full && is_idle;
    engine.correct(is_full, dirty > 0 && has_work);
}
