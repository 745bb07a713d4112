//! When to demote, and how fast: the BBOS equations (dissertation 2020; IEEE Access 2023, "when to
//! demote").
//!
//! Write and read bandwidth of the burst buffer trade on a line, [`InterferenceLine`]. Within one
//! period checkpoints of DWPP bytes arrive; what exceeds the capacity S, `C = DWPP − S`, must leave
//! while they still do. The plan is the shortest time of disturbance: `tc` undisturbed, `tdd` over
//! which both rates ramp linearly, `tds` at full demotion speed.
//!
//! - Pattern 1, DWPP ≤ S: demote only when the burst buffer is idle.
//! - Pattern 2 (tds = 0): `Bwmax·tc + (Bwmax+Bwmin)/2·tdd = DWPP`,
//!   `Brmin·tc + (Brmax+Brmin)/2·tdd = C`.
//! - Pattern 3 (tc = 0): `(Bwmax+Bwmin)/2·tdd + Bwmin·tds = DWPP`,
//!   `(Brmax+Brmin)/2·tdd + Brmax·tds = C`.
//!
//! The 2023 paper draws a start at 0.7 S for DWPP 1.2 S; its equations give 0.459 S, and the
//! equations are followed.

use crate::named::named;
use serde::{Deserialize, Serialize};

/// Measured bandwidths, capacity and prediction. All finite; all positive, but `br_min` may be 0 (a
/// checkpoint at full speed may leave demotion nothing) and `dwpp_bytes` may be 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PlanInput {
    /// S: capacity of the burst buffer.
    pub capacity_bytes: f64,
    /// DWPP: data written per period, as predicted.
    pub dwpp_bytes: f64,
    /// Bwmax: write bandwidth without demotion.
    pub bw_max_bytes_per_s: f64,
    /// Bwmin: write bandwidth beside demotion at full speed.
    pub bw_min_bytes_per_s: f64,
    /// Brmax: demotion bandwidth at full speed.
    pub br_max_bytes_per_s: f64,
    /// Brmin: demotion bandwidth beside a checkpoint at full speed.
    pub br_min_bytes_per_s: f64,
    /// Length of the planning window.
    pub period_s: f64,
}

/// Why no plan can be made.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// A quantity is zero, negative, infinite or not a number.
    #[error("{name} must be a positive number, not {value}")]
    NotPositive {
        /// The symbol of the papers.
        name: &'static str,
        /// What was given.
        value: f64,
    },
    /// A quantity that may be zero is negative, infinite or not a number.
    #[error("{name} must be zero or a positive number, not {value}")]
    Negative {
        /// The symbol of the papers.
        name: &'static str,
        /// What was given.
        value: f64,
    },
    /// Bwmin exceeds Bwmax.
    #[error("Bwmin {min} exceeds Bwmax {max}: demotion cannot make writes faster")]
    WriteBandwidths {
        /// Bwmin in bytes/s.
        min: f64,
        /// Bwmax in bytes/s.
        max: f64,
    },
    /// Brmin exceeds Brmax.
    #[error("Brmin {min} exceeds Brmax {max}: a checkpoint cannot make demotion faster")]
    ReadBandwidths {
        /// Brmin in bytes/s.
        min: f64,
        /// Brmax in bytes/s.
        max: f64,
    },
    /// DWPP exceeds what can arrive back to back without overflow.
    #[error(
        "DWPP {dwpp_bytes} exceeds S/(1 - Brmax/Bwmin) = {max_dwpp_bytes}: even demotion at full speed would overflow"
    )]
    Overflow {
        /// DWPP as given.
        dwpp_bytes: f64,
        /// Largest DWPP that can be served.
        max_dwpp_bytes: f64,
    },
}

/// Relative error below which a DWPP at the limit still counts as within it.
const LIMIT_TOLERANCE: f64 = 1e-9;

impl PlanInput {
    /// Checks ranges and order; see [`PlanError`].
    pub fn check(&self) -> Result<(), PlanError> {
        let positive = [
            ("S", self.capacity_bytes),
            ("Bwmax", self.bw_max_bytes_per_s),
            ("Bwmin", self.bw_min_bytes_per_s),
            ("Brmax", self.br_max_bytes_per_s),
            ("period", self.period_s),
        ];
        for (name, value) in positive {
            if !(value.is_finite() && value > 0.0) {
                return Err(PlanError::NotPositive { name, value });
            }
        }
        for (name, value) in [
            ("DWPP", self.dwpp_bytes),
            ("Brmin", self.br_min_bytes_per_s),
        ] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(PlanError::Negative { name, value });
            }
        }
        let (min, max) = (self.bw_min_bytes_per_s, self.bw_max_bytes_per_s);
        if min > max {
            return Err(PlanError::WriteBandwidths { min, max });
        }
        let (min, max) = (self.br_min_bytes_per_s, self.br_max_bytes_per_s);
        if min > max {
            return Err(PlanError::ReadBandwidths { min, max });
        }
        Ok(())
    }

    /// Largest DWPP that can arrive back to back without overflow, `S/(1 − Brmax/Bwmin)`; infinite
    /// where demotion keeps up.
    pub fn max_dwpp_bytes(&self) -> f64 {
        let ratio = self.br_max_bytes_per_s / self.bw_min_bytes_per_s;
        reciprocal_share(self.capacity_bytes, ratio)
    }

    /// DWPP at which pattern 2 gives way to pattern 3: tc is 0 there. Infinite where demotion keeps
    /// up on the ramp.
    pub fn border_dwpp_bytes(&self) -> f64 {
        reciprocal_share(self.capacity_bytes, self.br_mean() / self.bw_mean())
    }

    fn bw_mean(&self) -> f64 {
        f64::midpoint(self.bw_max_bytes_per_s, self.bw_min_bytes_per_s)
    }

    fn br_mean(&self) -> f64 {
        f64::midpoint(self.br_max_bytes_per_s, self.br_min_bytes_per_s)
    }
}

/// `capacity / (1 − ratio)`, infinite from ratio 1 on.
fn reciprocal_share(capacity: f64, ratio: f64) -> f64 {
    if ratio < 1.0 {
        capacity / (1.0 - ratio)
    } else {
        f64::INFINITY
    }
}

/// When demotion starts and how it ramps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Plan {
    /// 1, 2 or 3.
    pub pattern: u8,
    /// Time checkpoints run at Bwmax before demotion starts.
    pub tc_s: f64,
    /// Time over which demotion ramps Brmin → Brmax and checkpoints Bwmax → Bwmin.
    pub tdd_s: f64,
    /// Time at Brmax and Bwmin.
    pub tds_s: f64,
    /// DWSF at which demotion starts, `Bwmax·tc`.
    pub start_dwsf_bytes: f64,
    /// DWSF at which demotion has reached full speed, `Bwmax·tc + (Bwmax+Bwmin)/2·tdd`.
    pub full_dwsf_bytes: f64,
    /// `(period − (tc + tdd + tds))·Brmax ≥ S`: the burst buffer is clean for the next period.
    pub feasible: bool,
    /// What it was made from.
    #[serde(skip)]
    input: PlanInput,
}

impl Plan {
    /// Solves the equations for `input`.
    pub fn new(input: PlanInput) -> Result<Self, PlanError> {
        input.check()?;
        let max_dwpp_bytes = input.max_dwpp_bytes();
        if input.dwpp_bytes > max_dwpp_bytes * (1.0 + LIMIT_TOLERANCE) {
            return Err(PlanError::Overflow {
                dwpp_bytes: input.dwpp_bytes,
                max_dwpp_bytes,
            });
        }
        let (pattern, tc_s, tdd_s, tds_s) = if input.dwpp_bytes <= input.capacity_bytes {
            let tc_s = input.dwpp_bytes / input.bw_max_bytes_per_s;
            (1, tc_s, 0.0, 0.0)
        } else if input.dwpp_bytes <= input.border_dwpp_bytes() {
            let (tc_s, tdd_s) = solve_pattern_2(&input);
            (2, tc_s, tdd_s, 0.0)
        } else {
            let (tdd_s, tds_s) = solve_pattern_3(&input);
            (3, 0.0, tdd_s, tds_s)
        };
        let start_dwsf_bytes = input.bw_max_bytes_per_s * tc_s;
        let left_s = input.period_s - (tc_s + tdd_s + tds_s);
        Ok(Self {
            pattern,
            tc_s,
            tdd_s,
            tds_s,
            start_dwsf_bytes,
            full_dwsf_bytes: start_dwsf_bytes + input.bw_mean() * tdd_s,
            feasible: left_s * input.br_max_bytes_per_s >= input.capacity_bytes,
            input,
        })
    }

    /// What it was made from.
    pub fn input(&self) -> &PlanInput {
        &self.input
    }

    /// Checkpoint and demotion rate once `dwsf_bytes` were written in this period, while
    /// checkpoints arrive.
    ///
    /// The ramps are linear in time. On the ramp
    /// `dwsf − start = tdd·(Bwmax·x − (Bwmax−Bwmin)·x²/2)` for the share x of tdd gone by; solved
    /// for x it gives both rates. Beyond DWPP (the prediction was too low) demotion runs at full
    /// speed. In pattern 1 nothing is demoted beside a checkpoint.
    pub fn rates_at(&self, dwsf_bytes: f64) -> Rates {
        let i = &self.input;
        let beyond_bytes = dwsf_bytes - self.start_dwsf_bytes;
        if beyond_bytes.is_nan() || beyond_bytes <= 0.0 {
            let demotion = if self.pattern == 1 {
                0.0
            } else {
                i.br_min_bytes_per_s
            };
            return Rates {
                checkpoint_bytes_per_s: i.bw_max_bytes_per_s,
                demotion_bytes_per_s: demotion,
            };
        }
        let x = if dwsf_bytes >= self.full_dwsf_bytes || self.tdd_s <= 0.0 {
            1.0
        } else {
            let fall = i.bw_max_bytes_per_s - i.bw_min_bytes_per_s;
            let mean = beyond_bytes / self.tdd_s;
            let root = (i.bw_max_bytes_per_s.powi(2) - 2.0 * fall * mean)
                .max(0.0)
                .sqrt();
            // The form without a difference in the numerator: exact where fall is 0, too.
            (2.0 * mean / (i.bw_max_bytes_per_s + root)).clamp(0.0, 1.0)
        };
        Rates {
            checkpoint_bytes_per_s: lerp(i.bw_max_bytes_per_s, i.bw_min_bytes_per_s, x),
            demotion_bytes_per_s: lerp(i.br_min_bytes_per_s, i.br_max_bytes_per_s, x),
        }
    }
}

fn lerp(from: f64, to: f64, x: f64) -> f64 {
    from * (1.0 - x) + to * x
}

/// `(tc, tdd)` in seconds.
fn solve_pattern_2(i: &PlanInput) -> (f64, f64) {
    let (d, c) = (i.dwpp_bytes, i.dwpp_bytes - i.capacity_bytes);
    let (wm, rm) = (i.bw_mean(), i.br_mean());
    // Demotion at Brmin alone carries C away before the last byte arrives: no ramp is needed. Also
    // covers the bandwidths that do not disturb each other, for which the equations below are not
    // independent.
    let undisturbed_s = d / i.bw_max_bytes_per_s;
    if i.br_min_bytes_per_s * undisturbed_s >= c {
        return (undisturbed_s, 0.0);
    }
    let det = i.bw_max_bytes_per_s * rm - wm * i.br_min_bytes_per_s;
    if det <= 0.0 {
        return (undisturbed_s, 0.0);
    }
    let tc = (d * rm - wm * c) / det;
    let tdd = (i.bw_max_bytes_per_s * c - i.br_min_bytes_per_s * d) / det;
    (tc.max(0.0), tdd.max(0.0))
}

/// `(tdd, tds)` in seconds.
fn solve_pattern_3(i: &PlanInput) -> (f64, f64) {
    let (d, c) = (i.dwpp_bytes, i.dwpp_bytes - i.capacity_bytes);
    let (wm, rm) = (i.bw_mean(), i.br_mean());
    let det = wm * i.br_max_bytes_per_s - i.bw_min_bytes_per_s * rm;
    if det <= 0.0 {
        return (0.0, d / i.bw_min_bytes_per_s);
    }
    let tdd = (d * i.br_max_bytes_per_s - i.bw_min_bytes_per_s * c) / det;
    let tds = (wm * c - rm * d) / det;
    (tdd.max(0.0), tds.max(0.0))
}

/// What the throttler sets.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rates {
    /// Upper bound for checkpoint writes.
    pub checkpoint_bytes_per_s: f64,
    /// Upper bound for demotion; 0: none beside a checkpoint.
    pub demotion_bytes_per_s: f64,
}

/// When data is demoted beside checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrainPolicy {
    /// As the plan says (BBOS).
    #[default]
    Bbos,
    /// Never beside a checkpoint, until the burst buffer is full (Harmonia MaxBW, threshold 1 S).
    MaxBw,
    /// Always at full speed (Harmonia MaxEff, threshold 0 S).
    MaxEff,
    /// Each job owns a share of the space for its lifetime and nothing is scheduled (DataWarp).
    Dedicated,
}

named!(DrainPolicy, "policy", Bbos => "bbos", MaxBw => "maxbw", MaxEff => "maxeff", Dedicated => "dedicated");

impl DrainPolicy {
    /// Rates while checkpoints arrive: `dwsf_bytes` were written in this period, `dirty_bytes` are
    /// not on the PFS yet. For [`DrainPolicy::Dedicated`], `dirty_bytes` and the plan's S are those
    /// of one job's allocation.
    pub fn rates_at(self, plan: &Plan, dwsf_bytes: f64, dirty_bytes: f64) -> Rates {
        let i = plan.input();
        let full_speed = Rates {
            checkpoint_bytes_per_s: i.bw_min_bytes_per_s,
            demotion_bytes_per_s: i.br_max_bytes_per_s,
        };
        match self {
            Self::Bbos => plan.rates_at(dwsf_bytes),
            Self::MaxEff => full_speed,
            Self::MaxBw | Self::Dedicated if dirty_bytes >= i.capacity_bytes => full_speed,
            Self::MaxBw | Self::Dedicated => Rates {
                checkpoint_bytes_per_s: i.bw_max_bytes_per_s,
                demotion_bytes_per_s: 0.0,
            },
        }
    }
}

/// `BWw = m·BWr + b`: write bandwidth left beside demotion at BWr (BBOS, interference model).
/// `m ≤ 0`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct InterferenceLine {
    /// Slope, without unit.
    pub m: f64,
    /// Write bandwidth without demotion, in bytes/s.
    pub b_bytes_per_s: f64,
}

impl InterferenceLine {
    /// The line through (Brmin, Bwmax) and (Brmax, Bwmin). `None` where Brmin equals Brmax.
    pub fn through(input: &PlanInput) -> Option<Self> {
        let (br_min, br_max) = (input.br_min_bytes_per_s, input.br_max_bytes_per_s);
        Self::fit(&[
            (br_min, input.bw_max_bytes_per_s),
            (br_max, input.bw_min_bytes_per_s),
        ])
    }

    /// Least squares through measured pairs (demotion, write) in bytes/s. `None` for fewer than two
    /// different demotion rates or anything that is not finite. A rising line is noise: it is
    /// returned flat, through the mean.
    pub fn fit(samples: &[(f64, f64)]) -> Option<Self> {
        let n = samples.len() as f64;
        let mean_r = samples.iter().map(|s| s.0).sum::<f64>() / n;
        let mean_w = samples.iter().map(|s| s.1).sum::<f64>() / n;
        let spread: f64 = samples.iter().map(|s| (s.0 - mean_r).powi(2)).sum();
        let joint: f64 = samples
            .iter()
            .map(|s| (s.0 - mean_r) * (s.1 - mean_w))
            .sum();
        let m = (joint / spread).min(0.0);
        let b_bytes_per_s = mean_w - m * mean_r;
        (spread > 0.0 && (joint / spread).is_finite() && b_bytes_per_s.is_finite())
            .then_some(Self { m, b_bytes_per_s })
    }

    /// Write bandwidth beside demotion at `br_bytes_per_s`, at least 0.
    pub fn write_beside(&self, br_bytes_per_s: f64) -> f64 {
        (self.m * br_bytes_per_s + self.b_bytes_per_s).max(0.0)
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
