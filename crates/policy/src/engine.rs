//! Which plan is in force, and what follows from it: limits, turns, passthrough.

use crate::plan::{DrainPolicy, Plan, PlanError, PlanInput};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The four bandwidths of a burst buffer, bytes/s; see [`PlanInput`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bandwidths {
    /// Bwmax.
    pub bw_max_bytes_per_s: f64,
    /// Bwmin.
    pub bw_min_bytes_per_s: f64,
    /// Brmax.
    pub br_max_bytes_per_s: f64,
    /// Brmin.
    pub br_min_bytes_per_s: f64,
}

impl Bandwidths {
    /// Input of a plan.
    pub fn input(&self, capacity_bytes: f64, dwpp_bytes: f64, period_s: f64) -> PlanInput {
        PlanInput {
            capacity_bytes,
            dwpp_bytes,
            bw_max_bytes_per_s: self.bw_max_bytes_per_s,
            bw_min_bytes_per_s: self.bw_min_bytes_per_s,
            br_max_bytes_per_s: self.br_max_bytes_per_s,
            br_min_bytes_per_s: self.br_min_bytes_per_s,
            period_s,
        }
    }

    /// Refuses what no plan can be made from, with the reason.
    pub fn check(&self) -> Result<(), PlanError> {
        self.input(1.0, 0.0, 1.0).check()
    }

    /// Measured values in the order that plans need: a slower checkpoint beside demotion, a slower
    /// demotion beside a checkpoint. Noise can turn them round.
    #[must_use]
    pub fn ordered(self) -> Self {
        Self {
            bw_min_bytes_per_s: self.bw_min_bytes_per_s.min(self.bw_max_bytes_per_s),
            br_min_bytes_per_s: self.br_min_bytes_per_s.min(self.br_max_bytes_per_s),
            ..self
        }
    }

    /// Corrects Brmax by what demotion was seen to reach at full speed: by an eighth of the
    /// difference each time. Brmin and order are kept.
    #[must_use]
    pub fn corrected_br_max(self, seen_bytes_per_s: f64) -> Self {
        if !(seen_bytes_per_s.is_finite() && seen_bytes_per_s > 0.0) {
            return self;
        }
        let br_max = self.br_max_bytes_per_s + (seen_bytes_per_s - self.br_max_bytes_per_s) / 8.0;
        Self {
            br_max_bytes_per_s: br_max.max(self.br_min_bytes_per_s),
            ..self
        }
    }
}

/// Greatest share of the capacity that copies under way are taken to hold.
const UNDER_WAY_MAX: f64 = 1.0 / 8.0;

/// S of a plan: the capacity less what copies to the PFS hold. A file is undrained until its copy
/// is whole, flushed and named, so that much of the capacity is never there to be filled. The
/// papers' equations let every demoted byte free its place at once.
pub fn fillable_bytes(capacity_bytes: f64, copies: usize, mean_file_bytes: f64) -> f64 {
    let under_way_bytes = copies as f64 * mean_file_bytes.max(0.0);
    capacity_bytes - under_way_bytes.min(capacity_bytes * UNDER_WAY_MAX)
}

/// What a plan is chosen from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlanChoice {
    /// As configured.
    pub policy: DrainPolicy,
    /// `None`: neither configured nor measured.
    pub bandwidths: Option<Bandwidths>,
    /// S.
    pub capacity_bytes: f64,
    /// DWPP; `None`: no period has ended yet.
    pub dwpp_bytes: Option<f64>,
    /// Length of a period.
    pub period_s: f64,
}

/// Why the plan in force is what it is; for `status`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reason {
    /// No bandwidths.
    NotCalibrated,
    /// No DWPP yet.
    NothingLearned,
    /// The numbers cannot be used.
    Refused(PlanError),
    /// More is expected than can arrive without overflow: demotion at full speed from the first
    /// byte.
    Overflow {
        /// DWPP over the largest that can be served.
        ratio: f64,
    },
    /// A plan of this pattern, which leaves the burst buffer clean in time or not.
    Pattern {
        /// 1, 2 or 3.
        pattern: u8,
        /// [`Plan::feasible`].
        feasible: bool,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotCalibrated => f.write_str(
                "thresholds only: the bandwidths are not known (forebay calibrate, or [engine] in the configuration)",
            ),
            Self::NothingLearned => {
                f.write_str("thresholds only: no period has ended yet, so what one brings is not known")
            }
            Self::Refused(error) => write!(f, "thresholds only: {error}"),
            Self::Overflow { ratio } => write!(
                f,
                "full speed from the first byte: {ratio:.2} times of what can be served is expected"
            ),
            Self::Pattern { pattern, feasible } => {
                f.write_str(match pattern {
                    1 => "pattern 1: all that is expected fits, demotion waits for quiet",
                    2 => "pattern 2: checkpoints run undisturbed first, then demotion ramps up",
                    _ => "pattern 3: demotion ramps up at once, then runs at full speed",
                })?;
                match feasible {
                    true => Ok(()),
                    false => f.write_str("; the period is too short to become clean in"),
                }
            }
        }
    }
}

/// The plan in force.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InForce {
    /// `None`: thresholds decide.
    pub plan: Option<Plan>,
    /// Why this plan, or why none.
    pub reason: Reason,
    /// More is expected than fits: applications disturb each other, writes may have to be slowed.
    pub is_contended: bool,
}

/// Chooses the plan.
pub fn in_force(choice: &PlanChoice) -> InForce {
    let none = |reason| InForce {
        plan: None,
        reason,
        is_contended: false,
    };
    let Some(bandwidths) = &choice.bandwidths else {
        return none(Reason::NotCalibrated);
    };
    let Some(dwpp_bytes) = choice.dwpp_bytes else {
        return none(Reason::NothingLearned);
    };
    let input = bandwidths.input(choice.capacity_bytes, dwpp_bytes, choice.period_s);
    match Plan::new(input) {
        Ok(plan) => InForce {
            plan: Some(plan),
            reason: Reason::Pattern {
                pattern: plan.pattern,
                feasible: plan.feasible,
            },
            is_contended: plan.pattern > 1,
        },
        Err(PlanError::Overflow {
            dwpp_bytes,
            max_dwpp_bytes,
        }) => InForce {
            // The plan at the limit is the one that never rests.
            plan: Plan::new(PlanInput {
                dwpp_bytes: max_dwpp_bytes,
                ..input
            })
            .ok(),
            reason: Reason::Overflow {
                ratio: dwpp_bytes / max_dwpp_bytes,
            },
            is_contended: true,
        },
        Err(error) => none(Reason::Refused(error)),
    }
}

impl InForce {
    /// Whether the kernel may write objects by itself: nobody can slow it down or make it wait for
    /// its turn, so only while the plan sees no contention.
    pub fn allows_passthrough(&self) -> bool {
        !self.is_contended
    }

    /// Whether applications take turns: where more is expected than fits, also while only one does
    /// I/O, which is then not disturbed by the next. `dedicated` schedules nothing.
    pub fn has_turns(&self, policy: DrainPolicy) -> bool {
        self.is_contended && policy != DrainPolicy::Dedicated
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const B: Bandwidths = Bandwidths {
        bw_max_bytes_per_s: 3.56e9,
        bw_min_bytes_per_s: 3e9,
        br_max_bytes_per_s: 1.6e9,
        br_min_bytes_per_s: 0.08e9,
    };
    const S: f64 = 3.2e12;

    fn choice(dwpp: Option<f64>) -> PlanChoice {
        PlanChoice {
            policy: DrainPolicy::Bbos,
            bandwidths: Some(B),
            capacity_bytes: S,
            dwpp_bytes: dwpp.map(|d| d * S),
            period_s: 3800.0,
        }
    }

    #[test]
    fn why_is_said() {
        let why = |c: &PlanChoice| in_force(c).reason.to_string();
        let blind = PlanChoice {
            bandwidths: None,
            ..choice(Some(1.0))
        };
        assert!(why(&blind).contains("forebay calibrate"));
        assert!(why(&choice(None)).contains("no period has ended"));
        assert!(why(&choice(Some(0.5))).starts_with("pattern 1"));
        assert!(why(&choice(Some(1.2))).starts_with("pattern 2"));
        assert!(why(&choice(Some(1.8))).starts_with("pattern 3"));
        assert!(why(&choice(Some(3.0))).starts_with("full speed"));
        let short = PlanChoice {
            period_s: 10.0,
            ..choice(Some(0.5))
        };
        assert!(why(&short).contains("too short"));
        let bad = PlanChoice {
            period_s: 0.0,
            ..choice(Some(0.5))
        };
        assert!(why(&bad).contains("period must be a positive number"));
    }

    #[test]
    fn copies_under_way_are_no_room() {
        assert_eq!(fillable_bytes(1000.0, 2, 25.0), 950.0);
        assert_eq!(fillable_bytes(1000.0, 4, 0.0), 1000.0);
        assert_eq!(fillable_bytes(1000.0, 4, 1e6), 875.0);
    }

    #[test]
    fn passthrough_and_turns_follow_contention() {
        let calm = in_force(&choice(Some(0.9)));
        assert!(calm.allows_passthrough() && !calm.has_turns(DrainPolicy::Bbos));
        let unknown = in_force(&choice(None));
        assert!(unknown.allows_passthrough());
        let full = in_force(&choice(Some(1.2)));
        assert!(!full.allows_passthrough());
        assert!(full.has_turns(DrainPolicy::MaxBw) && full.has_turns(DrainPolicy::Bbos));
        assert!(!full.has_turns(DrainPolicy::Dedicated));
    }

    #[test]
    fn bad_bandwidths_are_refused_with_the_reason() {
        let bad = Bandwidths {
            br_min_bytes_per_s: 2e9,
            ..B
        };
        let why = bad.check().unwrap_err().to_string();
        assert!(why.contains("Brmin") && why.contains("Brmax"), "{why}");
        assert_eq!(B.check(), Ok(()));
        assert_eq!(bad.ordered().br_min_bytes_per_s, 1.6e9);
        assert!(B.corrected_br_max(0.8e9).br_max_bytes_per_s == 1.5e9);
        assert_eq!(B.corrected_br_max(f64::NAN), B);
    }

    proptest! {
        #[test]
        fn what_overflows_runs_at_full_speed_from_the_start(dwpp in 2.15..100.0f64) {
            let plan = in_force(&choice(Some(dwpp))).plan.expect("a plan at the limit");
            let rates = plan.rates_at(1e-3 * S);
            prop_assert!(rates.demotion_bytes_per_s > 0.9 * B.br_max_bytes_per_s);
        }
    }
}
