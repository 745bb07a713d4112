//! Holding a rate: token buckets, and the rates of the plan's ramps
//! ([`crate::plan::Plan::rates_at`], BBOS, throttler).

use crate::plan::{DrainPolicy, Plan};

/// A bucket holds what its rate gives in this time, as a credit for who comes late: a thread that
/// slept longer than it was told, a disk that flushed. With less credit the rate falls short. With
/// this one a window of 10 s passes 2.5 % too much at most.
pub const BURST_S: f64 = 0.25;

/// Longest pause that one request is told to make: a rate that rises meanwhile is noticed by then.
pub const PAUSE_MAX_S: f64 = 0.25;

/// Holds a rate. Requests are served at once and pay by the pause before the next one, so that a
/// request may be larger than the bucket: over any window of w seconds at most
/// `rate·w + rate·BURST_S` bytes and one request pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenBucket {
    /// `None`: no limit.
    rate_bytes_per_s: Option<f64>,
    /// Negative: debt.
    tokens_bytes: f64,
    filled_s: f64,
}

impl TokenBucket {
    /// Begins empty. A rate of 0 lets nothing pass; NaN and negative ones are taken for 0.
    pub fn new(rate_bytes_per_s: Option<f64>, now_s: f64) -> Self {
        Self {
            rate_bytes_per_s: rate_bytes_per_s.map(|r| r.max(0.0)),
            tokens_bytes: 0.0,
            filled_s: now_s,
        }
    }

    /// The rate in force.
    pub fn rate_bytes_per_s(&self) -> Option<f64> {
        self.rate_bytes_per_s
    }

    /// Sets another rate; what was earned or owed at the old one stays. Lifting the limit forgives
    /// debt.
    pub fn set_rate(&mut self, rate_bytes_per_s: Option<f64>, now_s: f64) {
        self.fill(now_s);
        let was_limited = self.rate_bytes_per_s.is_some();
        self.rate_bytes_per_s = rate_bytes_per_s.map(|r| r.max(0.0));
        if !was_limited || rate_bytes_per_s.is_none() {
            self.tokens_bytes = 0.0;
        }
        self.cap();
    }

    /// Seconds to wait before the next request may pass: 0 if it may now, at most [`PAUSE_MAX_S`],
    /// after which to ask again.
    pub fn pause_s(&mut self, now_s: f64) -> f64 {
        self.fill(now_s);
        match self.rate_bytes_per_s {
            None => 0.0,
            Some(rate) if rate > 0.0 => (-self.tokens_bytes / rate).clamp(0.0, PAUSE_MAX_S),
            Some(_) => PAUSE_MAX_S,
        }
    }

    /// Seconds until what is owed is earned, 0 where nothing is; infinite at a rate of 0.
    pub fn debt_s(&mut self, now_s: f64) -> f64 {
        self.fill(now_s);
        match self.rate_bytes_per_s {
            Some(rate) if self.tokens_bytes < 0.0 => -self.tokens_bytes / rate,
            _ => 0.0,
        }
    }

    /// `bytes` pass, whatever the bucket holds.
    pub fn take(&mut self, bytes: u64, now_s: f64) {
        self.fill(now_s);
        if self.rate_bytes_per_s.is_some() {
            self.tokens_bytes -= bytes as f64;
        }
    }

    fn fill(&mut self, now_s: f64) {
        let passed_s = (now_s - self.filled_s).max(0.0);
        self.filled_s = self.filled_s.max(now_s);
        if let Some(rate) = self.rate_bytes_per_s {
            self.tokens_bytes += rate * passed_s;
        }
        self.cap();
    }

    fn cap(&mut self) {
        let most = self.rate_bytes_per_s.map_or(0.0, |r| r * BURST_S);
        self.tokens_bytes = self.tokens_bytes.min(most);
    }
}

/// What demotion may do now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DemotionPace {
    /// Nothing.
    Stop,
    /// At most so many bytes per second.
    Rate(f64),
    /// As fast as it goes.
    Full,
}

/// What the throttler sets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Limit for checkpoint writes, bytes/s. `None`: none, they run at Bwmax by themselves.
    pub checkpoint_bytes_per_s: Option<f64>,
    /// Demotion.
    pub demotion: DemotionPace,
}

/// What the throttler looks at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Written in this period.
    pub dwsf_bytes: f64,
    /// Not on the PFS yet.
    pub dirty_bytes: f64,
    /// Dirty bytes at which writes begin to wait: the capacity, or the cap on dirty bytes.
    pub limit_bytes: f64,
    /// Of that, what copies under way hold ([`crate::engine::fillable_bytes`]); 0 where every
    /// demoted byte frees its place at once.
    pub under_way_bytes: f64,
    /// [`is_full`] said so a moment ago.
    pub was_full: bool,
    /// No application reads or writes.
    pub is_idle: bool,
    /// A write waits for space.
    pub is_starved: bool,
}

/// Rates of a policy. `plan` is what [`DrainPolicy::Bbos`] follows. Where there is none (nothing is
/// known yet, or no plan avoids an overflow), `bbos` slows nobody. It then demotes beside
/// checkpoints at full speed once half of the limit is dirty.
///
/// The thresholds are those of the papers: `maxeff` 0 S, `maxbw` and `dedicated` 1 S, `bbos` the
/// plan's start. A plan keeps checkpoints at Bwmin also where a write waits for space: those that
/// need none would take from the demotion it waits for. In a pause its limit for them stays, for
/// whoever ends the pause meets a demotion at full speed.
pub fn pace(policy: DrainPolicy, plan: Option<&Plan>, load: &Load) -> Pace {
    let free = |demotion| Pace {
        checkpoint_bytes_per_s: None,
        demotion,
    };
    if load.dirty_bytes <= 0.0 {
        return free(DemotionPace::Stop);
    }
    let is_full = is_full(policy, load);
    match (policy, plan) {
        (DrainPolicy::Bbos, Some(plan)) => follow(plan, load),
        _ if load.is_idle || is_full => free(DemotionPace::Full),
        (DrainPolicy::MaxEff, _) => free(DemotionPace::Full),
        (DrainPolicy::MaxBw | DrainPolicy::Dedicated, _) => free(DemotionPace::Stop),
        (DrainPolicy::Bbos, None) => {
            let beside = load.dirty_bytes >= load.limit_bytes * UNPLANNED_START;
            free(if beside {
                DemotionPace::Full
            } else {
                DemotionPace::Stop
            })
        }
    }
}

/// Whether demotion is at its limit. It stays there while what is free is only what copies have
/// just left, or demotion would rest whenever that is as much as the next files take. Of
/// `dedicated` nobody may take what others have left.
pub fn is_full(policy: DrainPolicy, load: &Load) -> bool {
    let left_bytes = match policy {
        DrainPolicy::Dedicated => 0.0,
        _ if load.was_full => load.under_way_bytes,
        _ => 0.0,
    };
    load.is_starved || load.dirty_bytes >= load.limit_bytes - left_bytes
}

/// Dirty share of the limit from which on data is demoted beside checkpoints where there is no
/// plan.
pub const UNPLANNED_START: f64 = 0.5;

/// Dirty share of the limit from which on a plan is taken for failed: its prediction was too low,
/// or its bandwidths too high.
pub const PLAN_FAILED_AT: f64 = 0.97;

fn follow(plan: &Plan, load: &Load) -> Pace {
    if load.is_starved || load.dirty_bytes >= load.limit_bytes * PLAN_FAILED_AT {
        return Pace {
            checkpoint_bytes_per_s: Some(plan.input().bw_min_bytes_per_s),
            demotion: DemotionPace::Full,
        };
    }
    let rates = plan.rates_at(load.dwsf_bytes);
    let slowed = rates.checkpoint_bytes_per_s < plan.input().bw_max_bytes_per_s;
    Pace {
        checkpoint_bytes_per_s: slowed.then_some(rates.checkpoint_bytes_per_s),
        demotion: if load.is_idle {
            DemotionPace::Full
        } else if rates.demotion_bytes_per_s > 0.0 {
            DemotionPace::Rate(rates.demotion_bytes_per_s)
        } else {
            DemotionPace::Stop
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PlanInput;
    use proptest::prelude::*;

    fn plan(dwpp: f64) -> Plan {
        Plan::new(PlanInput {
            capacity_bytes: 1000.0,
            dwpp_bytes: dwpp * 1000.0,
            bw_max_bytes_per_s: 3.56,
            bw_min_bytes_per_s: 3.0,
            br_max_bytes_per_s: 1.6,
            br_min_bytes_per_s: 0.08,
            period_s: 3800.0,
        })
        .expect("valid")
    }

    fn load(dwsf: f64, dirty: f64) -> Load {
        Load {
            dwsf_bytes: dwsf,
            dirty_bytes: dirty,
            limit_bytes: 1000.0,
            under_way_bytes: 0.0,
            was_full: false,
            is_idle: false,
            is_starved: false,
        }
    }

    #[test]
    fn the_thresholds_of_the_papers() {
        let at = |policy, dirty| pace(policy, Some(&plan(1.3)), &load(dirty, dirty)).demotion;
        assert_eq!(at(DrainPolicy::MaxEff, 1.0), DemotionPace::Full);
        assert_eq!(at(DrainPolicy::MaxBw, 999.0), DemotionPace::Stop);
        assert_eq!(at(DrainPolicy::MaxBw, 1000.0), DemotionPace::Full);
        assert_eq!(at(DrainPolicy::Dedicated, 999.0), DemotionPace::Stop);
        assert_eq!(at(DrainPolicy::Bbos, 0.0), DemotionPace::Stop);
        let start = plan(1.3).start_dwsf_bytes;
        let before = at(DrainPolicy::Bbos, start * 0.9);
        let beyond = at(DrainPolicy::Bbos, start * 1.5);
        assert_eq!(before, DemotionPace::Rate(0.08));
        assert!(matches!(beyond, DemotionPace::Rate(r) if r > 0.08 && r < 1.6));
    }

    #[test]
    fn idle_and_starved_demote_at_full_speed() {
        for policy in DrainPolicy::ALL {
            for (is_idle, is_starved) in [(true, false), (false, true)] {
                let load = Load {
                    is_idle,
                    is_starved,
                    ..load(10.0, 10.0)
                };
                for plan in [None, Some(&plan(1.3))] {
                    let now = pace(*policy, plan, &load);
                    assert_eq!(now.demotion, DemotionPace::Full);
                    let is_held = is_starved && plan.is_some() && *policy == DrainPolicy::Bbos;
                    assert_eq!(now.checkpoint_bytes_per_s, is_held.then_some(3.0));
                }
            }
        }
    }

    #[test]
    fn a_pause_does_not_lift_the_limit_of_the_plan() {
        let plan = plan(1.9);
        let dwsf = plan.full_dwsf_bytes * 1.1;
        let writing = load(dwsf, 500.0);
        let idle = Load {
            is_idle: true,
            ..writing
        };
        let paces = [writing, idle].map(|l| pace(DrainPolicy::Bbos, Some(&plan), &l));
        assert_eq!(paces.map(|p| p.checkpoint_bytes_per_s), [Some(3.0); 2]);
        assert_eq!(paces[1].demotion, DemotionPace::Full);
    }

    #[test]
    fn once_full_it_is_drained_on_while_what_is_free_is_only_what_copies_have_just_left() {
        let of = |policy, was_full, dirty| {
            let load = Load {
                under_way_bytes: 50.0,
                was_full,
                ..load(dirty, dirty)
            };
            pace(policy, None, &load).demotion
        };
        let at = |was_full, dirty| of(DrainPolicy::MaxBw, was_full, dirty);
        assert_eq!(at(false, 999.0), DemotionPace::Stop);
        assert_eq!(at(false, 1000.0), DemotionPace::Full);
        assert_eq!(at(true, 950.0), DemotionPace::Full);
        assert_eq!(at(true, 949.0), DemotionPace::Stop);
        assert_eq!(of(DrainPolicy::Dedicated, true, 999.0), DemotionPace::Stop);
    }

    #[test]
    fn without_a_plan_half_is_the_start() {
        let at = |dirty| pace(DrainPolicy::Bbos, None, &load(dirty, dirty)).demotion;
        assert_eq!(at(499.0), DemotionPace::Stop);
        assert_eq!(at(500.0), DemotionPace::Full);
    }

    /// Serves requests of `size` as one thread would that oversleeps by `late_s`, for `span_s`; the
    /// bytes of each moment.
    fn serve(bucket: &mut TokenBucket, size: u64, late_s: f64, span_s: f64) -> Vec<(f64, u64)> {
        let (mut now_s, mut served) = (0.0, Vec::new());
        while now_s < span_s {
            let pause_s = bucket.pause_s(now_s);
            if pause_s > 0.0 {
                now_s += pause_s + late_s;
                continue;
            }
            bucket.take(size, now_s);
            served.push((now_s, size));
            now_s += 1e-3;
        }
        served
    }

    #[test]
    fn no_limit_and_no_flow() {
        let mut bucket = TokenBucket::new(None, 0.0);
        bucket.take(u64::MAX, 0.0);
        assert_eq!(bucket.pause_s(0.0), 0.0);
        bucket.set_rate(Some(0.0), 1.0);
        assert_eq!(bucket.pause_s(1e9), PAUSE_MAX_S);
        bucket.set_rate(Some(100.0), 1e9);
        bucket.take(1000, 1e9);
        assert!(bucket.pause_s(1e9) > 0.0);
        bucket.set_rate(None, 1e9);
        assert_eq!(bucket.pause_s(1e9), 0.0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn rates_hold_within_five_percent_over_ten_seconds(
            rate in 1e7..5e9f64, size in 4096u64..1 << 20, late_s in 0.0..0.1f64,
        ) {
            let mut bucket = TokenBucket::new(Some(rate), 0.0);
            let served = serve(&mut bucket, size, late_s, 24.0);
            for from_s in [0.0, 1.3, 5.7, 13.9] {
                let window = served.iter().filter(|(at, _)| (from_s..from_s + 10.0).contains(at));
                let bytes: u64 = window.map(|(_, b)| b).sum();
                let share = bytes as f64 / (rate * 10.0);
                // A thread that serves one request in 1 ms cannot go beyond that.
                let reachable = (size as f64 / 1e-3 / rate).min(1.0);
                prop_assert!(share < 1.05, "share {}", share);
                prop_assert!(reachable < 1.0 || share > 0.95, "share {}", share);
            }
        }

        #[test]
        fn rates_follow_the_ramps_without_steps(dwpp in 1.01..2.14f64, dwsf in 0.0..2500.0f64) {
            let plan = plan(dwpp);
            let here = pace(DrainPolicy::Bbos, Some(&plan), &load(dwsf, 1.0));
            let rate = |p: &Pace| match p.demotion { DemotionPace::Rate(r) => r, _ => f64::NAN };
            let write = here.checkpoint_bytes_per_s.unwrap_or(3.56);
            prop_assert!((3.0 - 1e-9..=3.56).contains(&write));
            prop_assert!((0.08 - 1e-9..=1.6 + 1e-9).contains(&rate(&here)));
            let next = pace(DrainPolicy::Bbos, Some(&plan), &load(dwsf + 1e-6, 1.0));
            prop_assert!(rate(&next) >= rate(&here) - 1e-9, "demotion only rises");
            prop_assert!((rate(&next) - rate(&here)).abs() < 0.01 || plan.tdd_s < 1.0);
        }
    }
}
