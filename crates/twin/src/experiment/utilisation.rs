//! Largest DWPP that each policy serves, over S.
//!
//! - *Burst*: the burst buffer is empty, checkpoints arrive back to back, none stalls.
//! - *Sustained*: in each of five periods checkpoints arrive back to back at its begin, and all
//!   data has left by its end.

use forebay_policy::plan::DrainPolicy;

use super::{BBOS, ExperimentError, PERIOD_S, Report, Runner, S, bytes};
use crate::figure::Figure;
use crate::row::Row;
use crate::sim::Outcome;

/// Halvings of the interval 0 to 3 S: the result is exact to 3/2^16.
const HALVINGS: usize = 16;
const MOST: f64 = 3.0;
const JOBS: f64 = 40.0;

/// A part of the time that may pass in stalls and still counts as none. Where the plan fills the
/// burst buffer to the last byte, rounding to whole bytes and steps shows.
const NO_STALL: f64 = 1e-4;

pub(super) fn run(runner: &mut Runner<'_>) -> Result<Report, ExperimentError> {
    runner.expect(DrainPolicy::ALL.len() * 2 * HALVINGS);
    let mut rows = Vec::new();
    for policy in DrainPolicy::ALL {
        let burst = largest(runner, *policy, false)?;
        let sustained = largest(runner, *policy, true)?;
        rows.push(
            Row::default()
                .with("policy", policy.name())
                .with("utilisation_burst", burst)
                .with("utilisation_sustained", sustained),
        );
    }
    let bar = |field: &str| -> Vec<f64> { rows.iter().filter_map(|r| r.number(field)).collect() };
    let figure = Figure::bars(
        "utilisation",
        "Largest data per period over the capacity",
        "policy",
        "DWPP / S",
        rows.iter().map(|r| r.text("policy")).collect(),
        vec![
            ("burst".into(), bar("utilisation_burst")),
            ("sustained".into(), bar("utilisation_sustained")),
        ],
    );
    Ok(Report {
        nodes: Vec::new(),
        title: "Burst-buffer utilisation".into(),
        rows,
        figures: vec![figure],
        notes: vec![
            "burst: from empty, back to back, no stall (less than 0.01 % of the time); sustained: each of five periods is drained by its end".into(),
        ],
    })
}

fn largest(
    runner: &mut Runner<'_>,
    policy: DrainPolicy,
    sustained: bool,
) -> Result<f64, ExperimentError> {
    let (mut served, mut refused) = (0.0, MOST);
    for _ in 0..HALVINGS {
        let dwpp = f64::midpoint(served, refused);
        match serves(runner, policy, dwpp, sustained)? {
            true => served = dwpp,
            false => refused = dwpp,
        }
    }
    // The resolution of the search is 5e-5.
    Ok((served * 1e4).round() / 1e4)
}

fn serves(
    runner: &mut Runner<'_>,
    policy: DrainPolicy,
    dwpp: f64,
    sustained: bool,
) -> Result<bool, ExperimentError> {
    let total = dwpp * S;
    let periods = if sustained { 5.0 } else { 1.0 };
    let outcome = runner.outcome(
        BBOS,
        &[
            ("policy", policy.name().into()),
            ("plan.dwpp", bytes(total)),
            ("arrivals.pattern", "back-to-back".into()),
            ("application.count", format!("{JOBS}")),
            ("application.checkpoint", bytes((total / JOBS).max(1.0))),
            // A job holds what it was given: its part of S, however much it writes.
            ("application.dedicated", bytes(S / JOBS)),
            ("duration", format!("{}", periods * PERIOD_S)),
        ],
    );
    match outcome {
        Ok(outcome) => Ok(is_served(&outcome, sustained, periods)),
        // More than the burst buffer can take in a period at its fastest.
        Err(ExperimentError::Scenario(_)) => Ok(false),
        Err(stopped) => Err(stopped),
    }
}

fn is_served(o: &Outcome, sustained: bool, periods: f64) -> bool {
    let all_came = o.checkpoints as f64 >= JOBS * periods && o.direct_bytes == 0;
    let rounding = S * 1e-6;
    match sustained {
        true => all_came && (o.dirty_at_period_end_bytes as f64) < rounding,
        false => {
            let writing_s = o.checkpoint_bytes as f64 / o.mean_throughput_bytes_per_s;
            all_came && o.mean_stall_s * JOBS <= NO_STALL * writing_s
        }
    }
}
