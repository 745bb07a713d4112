//! When demotion runs, and how many dirty bytes there may be.

use crate::plan::Plan;

/// Demotion uses an idle burst buffer after that long without foreground bytes: longer than the
/// gaps inside a burst.
pub const DEFAULT_IDLE_S: f64 = 0.5;

/// Dirty share at which demotion starts where there is no plan.
pub const DEFAULT_START_FRACTION: f64 = 0.5;

/// Dirty share at which demotion runs at full speed.
pub const DEFAULT_HIGH_FRACTION: f64 = 0.8;

/// Demotion stops at this part of the threshold that started it, so that it does not flutter around
/// it.
const STOP_PART: f64 = 0.8;

/// Thresholds of a [`Trigger`]. Fractions are dirty bytes over capacity, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TriggerConfig {
    /// Seconds without foreground bytes until the burst buffer counts as idle, at least 0.
    pub idle_s: f64,
    /// Below this, demotion that a threshold started stops.
    pub stop_fraction: f64,
    /// From this on, data is demoted beside checkpoints.
    pub start_fraction: f64,
    /// Below this, demotion at full speed is paced again.
    pub high_stop_fraction: f64,
    /// From this on, demotion runs at full speed.
    pub high_fraction: f64,
}

impl Default for TriggerConfig {
    fn default() -> Self {
        Self::starting_at(DEFAULT_START_FRACTION)
    }
}

impl TriggerConfig {
    /// Defaults around a start threshold, 0 to 1.
    pub fn starting_at(start_fraction: f64) -> Self {
        let start = start_fraction.clamp(0.0, 1.0);
        let high = DEFAULT_HIGH_FRACTION.max(start);
        Self {
            idle_s: DEFAULT_IDLE_S,
            stop_fraction: start * STOP_PART,
            start_fraction: start,
            high_stop_fraction: (high * STOP_PART).max(start * STOP_PART),
            high_fraction: high,
        }
    }

    /// Starts where the plan does: until then nearly all that was written is dirty. In pattern 1
    /// the threshold only serves a prediction that was too low.
    pub fn from_plan(plan: &Plan) -> Self {
        let start_fraction = plan.start_dwsf_bytes / plan.input().capacity_bytes;
        Self::starting_at(match plan.pattern {
            1 => start_fraction.max(DEFAULT_START_FRACTION),
            _ => start_fraction,
        })
    }

    /// Checks ranges and order.
    pub fn check(&self) -> Result<(), TriggerError> {
        if !(self.idle_s.is_finite() && self.idle_s >= 0.0) {
            return Err(TriggerError::Idle(self.idle_s));
        }
        let ordered = 0.0 <= self.stop_fraction
            && self.stop_fraction <= self.start_fraction
            && self.start_fraction <= self.high_fraction
            && self.stop_fraction <= self.high_stop_fraction
            && self.high_stop_fraction <= self.high_fraction
            && self.high_fraction <= 1.0;
        if ordered {
            Ok(())
        } else {
            Err(TriggerError::Order {
                stop: self.stop_fraction,
                start: self.start_fraction,
                high_stop: self.high_stop_fraction,
                high: self.high_fraction,
            })
        }
    }
}

/// Why thresholds are refused.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum TriggerError {
    /// The idle time is negative or not a number.
    #[error("the idle time must be zero or a positive number of seconds, not {0}")]
    Idle(f64),
    /// Thresholds out of order or outside 0 to 1.
    #[error(
        "thresholds must be ordered 0 <= stop {stop} <= start {start} <= high {high} <= 1, with high_stop {high_stop} from stop to high"
    )]
    Order {
        /// `stop_fraction`.
        stop: f64,
        /// `start_fraction`.
        start: f64,
        /// `high_stop_fraction`.
        high_stop: f64,
        /// `high_fraction`.
        high: f64,
    },
}

/// What demotion does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Drive {
    /// Nothing: there is nothing dirty, or checkpoints go first.
    Stop,
    /// Full speed while nobody writes; the next foreground byte ends it, unless a threshold is
    /// passed.
    Idle,
    /// Beside checkpoints, at the rates the plan gives (or Brmin without one).
    Paced,
    /// Full speed whatever arrives.
    Full,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Pressure {
    None,
    Paced,
    Full,
}

/// Decides when demotion runs; one per tier or burst buffer.
#[derive(Debug, Clone)]
pub struct Trigger {
    config: TriggerConfig,
    pressure: Pressure,
    /// Last foreground byte.
    foreground_s: f64,
}

impl Trigger {
    /// Begins at `now_s` as if a foreground byte had just passed.
    pub fn new(config: TriggerConfig, now_s: f64) -> Result<Self, TriggerError> {
        config.check()?;
        Ok(Self {
            config,
            pressure: Pressure::None,
            foreground_s: now_s,
        })
    }

    /// Takes new thresholds, for instance of the next period's plan.
    pub fn reconfigure(&mut self, config: TriggerConfig) -> Result<(), TriggerError> {
        config.check()?;
        self.config = config;
        Ok(())
    }

    /// Bytes were read or written by an application.
    pub fn on_foreground(&mut self, now_s: f64) {
        self.foreground_s = self.foreground_s.max(now_s);
    }

    /// What demotion does from now on, with `dirty_bytes` of `capacity_bytes` not on the PFS yet.
    /// Clean copies do not count: they give way at once.
    pub fn drive(&mut self, dirty_bytes: u64, capacity_bytes: u64, now_s: f64) -> Drive {
        if dirty_bytes == 0 {
            self.pressure = Pressure::None;
            return Drive::Stop;
        }
        let fraction = dirty_bytes as f64 / capacity_bytes.max(1) as f64;
        self.pressure = self.next_pressure(fraction);
        let is_idle = now_s - self.foreground_s >= self.config.idle_s;
        match self.pressure {
            Pressure::Full => Drive::Full,
            _ if is_idle => Drive::Idle,
            Pressure::Paced => Drive::Paced,
            Pressure::None => Drive::Stop,
        }
    }

    /// When [`Drive::Idle`] begins if nothing else happens; for a timer.
    pub fn idle_at_s(&self) -> f64 {
        self.foreground_s + self.config.idle_s
    }

    fn next_pressure(&self, fraction: f64) -> Pressure {
        let c = &self.config;
        // What the fraction alone starts, and what it lets go on.
        let starts = if fraction >= c.high_fraction {
            Pressure::Full
        } else if fraction >= c.start_fraction {
            Pressure::Paced
        } else {
            Pressure::None
        };
        let holds = if fraction >= c.high_stop_fraction {
            Pressure::Full
        } else if fraction >= c.stop_fraction {
            Pressure::Paced
        } else {
            Pressure::None
        };
        starts.max(self.pressure.min(holds))
    }
}

/// Whether a write may make more bytes dirty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Admission {
    /// The write goes on at once.
    Admit,
    /// Not before something was demoted.
    Wait,
    /// Never in one piece: it is larger than the cap. Split it, or write it straight to the PFS.
    Bypass,
}

/// Admits a write of `len_bytes` under a hard cap on dirty bytes. Writing what is dirty already
/// adds nothing: pass only the bytes that become dirty.
pub fn admit_write(dirty_bytes: u64, cap_bytes: u64, len_bytes: u64) -> Admission {
    if len_bytes == 0 {
        return Admission::Admit;
    }
    if len_bytes > cap_bytes {
        return Admission::Bypass;
    }
    match dirty_bytes.checked_add(len_bytes) {
        Some(after) if after <= cap_bytes => Admission::Admit,
        _ => Admission::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PlanInput;
    use proptest::prelude::*;

    fn trigger() -> Trigger {
        Trigger::new(TriggerConfig::default(), 0.0).unwrap()
    }

    #[test]
    fn idle_demotes_and_foreground_stops_it() {
        let mut t = trigger();
        assert_eq!(t.drive(1, 100, 0.4), Drive::Stop);
        assert_eq!(t.drive(1, 100, 0.5), Drive::Idle);
        assert_eq!(t.drive(0, 100, 9.0), Drive::Stop);
        t.on_foreground(10.0);
        assert_eq!(t.drive(1, 100, 10.1), Drive::Stop);
        assert_eq!(t.idle_at_s(), 10.5);
    }

    #[test]
    fn thresholds_have_hysteresis() {
        let mut t = trigger();
        let mut at = |dirty| t.drive(dirty, 100, 0.0);
        let seen = [49, 50, 45, 41, 39, 45, 80, 70, 65, 63, 79, 39].map(&mut at);
        use Drive::{Full, Paced, Stop};
        assert_eq!(
            seen,
            [
                Stop, Paced, Paced, Paced, Stop, Stop, Full, Full, Full, Paced, Paced, Stop
            ]
        );
    }

    #[test]
    fn the_plan_sets_the_start() {
        let start = |dwpp_bytes| {
            let plan = Plan::new(PlanInput {
                capacity_bytes: 3.2e12,
                dwpp_bytes,
                bw_max_bytes_per_s: 3.56e9,
                bw_min_bytes_per_s: 3e9,
                br_max_bytes_per_s: 1.6e9,
                br_min_bytes_per_s: 0.08e9,
                period_s: 3800.0,
            });
            TriggerConfig::from_plan(&plan.unwrap()).start_fraction
        };
        assert!((start(1.2 * 3.2e12) - 0.459).abs() < 1e-3);
        assert_eq!(start(2.0 * 3.2e12), 0.0);
        assert_eq!(start(0.1 * 3.2e12), 0.5);
    }

    #[test]
    fn thresholds_out_of_order_are_refused() {
        let bad = TriggerConfig {
            stop_fraction: 0.9,
            ..TriggerConfig::default()
        };
        assert!(matches!(
            Trigger::new(bad, 0.0),
            Err(TriggerError::Order { .. })
        ));
        let bad = TriggerConfig {
            idle_s: f64::NAN,
            ..TriggerConfig::default()
        };
        assert!(matches!(
            trigger().reconfigure(bad),
            Err(TriggerError::Idle(_))
        ));
    }

    #[test]
    fn the_cap_is_hard() {
        assert_eq!(admit_write(90, 100, 10), Admission::Admit);
        assert_eq!(admit_write(90, 100, 11), Admission::Wait);
        assert_eq!(admit_write(0, 100, 101), Admission::Bypass);
        assert_eq!(admit_write(200, 100, 0), Admission::Admit);
        assert_eq!(admit_write(u64::MAX, u64::MAX, 1), Admission::Wait);
    }

    proptest! {
        #[test]
        fn configs_from_any_start_are_valid(start in any::<f64>()) {
            let start = if start.is_nan() { 0.0 } else { start };
            prop_assert_eq!(TriggerConfig::starting_at(start).check(), Ok(()));
        }

        #[test]
        fn admitted_bytes_stay_under_the_cap(cap in any::<u64>(), writes in proptest::collection::vec(any::<u64>(), 0..50)) {
            let mut dirty = 0u64;
            for len in writes {
                if admit_write(dirty, cap, len) == Admission::Admit {
                    dirty += len;
                }
                prop_assert!(dirty <= cap);
            }
        }

        #[test]
        fn drive_follows_the_thresholds(steps in proptest::collection::vec((0u64..=100, 0.0..1.0f64, any::<bool>()), 1..100)) {
            let (mut t, mut now_s) = (trigger(), 0.0);
            for (dirty, gap_s, foreground) in steps {
                now_s += gap_s;
                if foreground {
                    t.on_foreground(now_s);
                }
                let drive = t.drive(dirty, 100, now_s);
                prop_assert!(dirty < 80 || drive == Drive::Full);
                prop_assert!(dirty < 50 || drive != Drive::Stop);
                prop_assert!(dirty > 0 || drive == Drive::Stop);
                prop_assert!(!(foreground && drive == Drive::Idle));
            }
        }
    }
}
