//! Throughput and latency of checkpoints: one period from an empty burst buffer, one checkpoint of
//! 80 GB per job.

use forebay_policy::plan::DrainPolicy;

use super::{
    BBOS, CHECKPOINT_BYTES, CHECKPOINTS_IN_S, ExperimentError, PERIOD_S, Report, Runner, bytes,
};
use crate::figure::Figure;
use crate::row::Row;

const LOADS: [f64; 3] = [1.3, 1.6, 1.9];
const CONGESTION: [&str; 3] = ["low", "med", "high"];

pub(super) fn run(runner: &mut Runner<'_>) -> Result<Report, ExperimentError> {
    runner.expect(DrainPolicy::ALL.len() * LOADS.len() * CONGESTION.len());
    let mut rows = Vec::new();
    for load in LOADS {
        for congestion in CONGESTION {
            for policy in [
                DrainPolicy::Dedicated,
                DrainPolicy::MaxBw,
                DrainPolicy::MaxEff,
                DrainPolicy::Bbos,
            ] {
                rows.push(one(runner, load, congestion, policy)?);
            }
        }
    }
    let mut figures = Vec::new();
    for (field, name, what, unit, scale) in [
        (
            "mean_throughput_bytes_per_s",
            "throughput",
            "Mean checkpoint throughput",
            "GB/s",
            1e-9,
        ),
        (
            "mean_latency_s",
            "latency",
            "Mean checkpoint latency",
            "s",
            1.0,
        ),
    ] {
        let categories = LOADS
            .iter()
            .flat_map(|load| CONGESTION.iter().map(move |c| format!("{load} S {c}")))
            .collect();
        let series = DrainPolicy::ALL.iter().map(|policy| {
            let of_policy = rows.iter().filter(|r| r.text("policy") == policy.name());
            let values = of_policy.filter_map(|r| Some(r.number(field)? * scale));
            (policy.name().to_owned(), values.collect())
        });
        let series = series.collect();
        figures.push(Figure::bars(
            name,
            what,
            "load and congestion",
            unit,
            categories,
            series,
        ));
    }
    Ok(Report {
        nodes: Vec::new(),
        title: "Checkpoints by policy, load and congestion".into(),
        rows,
        figures,
        notes: vec![
            "throughput: bytes over stall and execution; latency: wait, stall and execution".into(),
            "dedicated: jobs that find no share left write straight to the PFS".into(),
        ],
    })
}

fn one(
    runner: &mut Runner<'_>,
    load: f64,
    congestion: &'static str,
    policy: DrainPolicy,
) -> Result<Row, ExperimentError> {
    let jobs = (load * CHECKPOINTS_IN_S).round();
    let dwpp = jobs * CHECKPOINT_BYTES;
    let o = runner.outcome(
        BBOS,
        &[
            ("policy", policy.name().into()),
            ("plan.dwpp", bytes(dwpp)),
            ("application.count", format!("{jobs}")),
            ("arrivals.pattern", congestion.into()),
            // One checkpoint each; the second period lets the last ones end.
            ("application.runtime", format!("{}", PERIOD_S - 1.0)),
            ("duration", format!("{}", 3.0 * PERIOD_S)),
        ],
    )?;
    Ok(Row::default()
        .with("policy", policy.name())
        .with("dwpp_s", load)
        .with("congestion", congestion)
        .with("mean_throughput_bytes_per_s", o.mean_throughput_bytes_per_s)
        .with("mean_latency_s", o.mean_latency_s)
        .with("max_latency_s", o.max_latency_s)
        .with("mean_wait_s", o.mean_wait_s)
        .with("mean_stall_s", o.mean_stall_s))
}
