//! Version-aware placement: jobs that write every 60, 30 and 20 minutes, 1.9 S an hour together.

use super::{BBOS_VERSIONS, ExperimentError, Report, Runner, S, SEEDS, bytes};
use crate::figure::Figure;
use crate::row::Row;

const LOAD: f64 = 1.9;

/// Jobs that write once, twice and three times an hour. The nearest whole numbers to what 1.9 S of
/// 80 GB would be.
const MIXES: [(&str, [f64; 3]); 2] = [("1:1:1", [13.0, 13.0, 13.0]), ("5:2:1", [30.0, 12.0, 6.0])];

pub(super) fn run(runner: &mut Runner<'_>) -> Result<Report, ExperimentError> {
    runner.expect(MIXES.len() * 2 * SEEDS as usize);
    let mut rows = Vec::new();
    for (mix, counts) in MIXES {
        for aware in [true, false] {
            let hit_ratio = hit_ratio(runner, counts, aware)?;
            rows.push(
                Row::default()
                    .with("mix", mix)
                    .with("version_aware", aware)
                    .with("hit_ratio", hit_ratio),
            );
        }
    }
    let values = |aware: bool| -> Vec<f64> {
        let of_kind = rows
            .iter()
            .filter(|r| r.get("version_aware") == Some(&aware.into()));
        of_kind.filter_map(|r| r.number("hit_ratio")).collect()
    };
    let figure = Figure::bars(
        "versions",
        "Restarts from the burst buffer",
        "mix of 60, 30 and 20 minutes",
        "hit ratio",
        MIXES.iter().map(|(mix, _)| (*mix).to_owned()).collect(),
        vec![
            ("versions known".into(), values(true)),
            ("not known".into(), values(false)),
        ],
    );
    Ok(Report {
        nodes: Vec::new(),
        title: "Version-aware placement".into(),
        rows,
        figures: vec![figure],
        notes: vec![format!("means over {SEEDS} seeds")],
    })
}

fn hit_ratio(
    runner: &mut Runner<'_>,
    counts: [f64; 3],
    aware: bool,
) -> Result<f64, ExperimentError> {
    let per_hour = counts[0] + 2.0 * counts[1] + 3.0 * counts[2];
    let (mut hits, mut restarts) = (0, 0);
    for i in 0..SEEDS {
        let seed = runner.seed + i;
        let o = runner.outcome(
            BBOS_VERSIONS,
            &[
                ("seed", seed.to_string()),
                ("version_aware", aware.to_string()),
                ("application.checkpoint", bytes(LOAD * S / per_hour)),
                ("application.hourly.count", format!("{}", counts[0])),
                ("application.half-hourly.count", format!("{}", counts[1])),
                ("application.third-hourly.count", format!("{}", counts[2])),
            ],
        )?;
        hits += o.hits;
        restarts += o.restarts;
    }
    Ok(hits as f64 / restarts.max(1) as f64)
}
