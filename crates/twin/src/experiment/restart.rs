//! Restarts served from the burst buffer, by placement: ten periods, failures drawn in proportion
//! to 1/MTBF after two of them.

use forebay_policy::demotion::PlacementPolicy;

use super::direct::with_mtbf;
use super::{
    BBOS, CHECKPOINT_BYTES, CHECKPOINTS_IN_S, ExperimentError, PERIOD_S, Report, Runner, SEEDS,
    bytes,
};
use crate::figure::Figure;
use crate::row::Row;

const LOADS: [f64; 4] = [1.5, 1.7, 1.9, 2.1];
const MTBF_MAX_MIN: [u32; 3] = [20, 50, 100];
const PLACEMENTS: [PlacementPolicy; 3] = [
    PlacementPolicy::Bbos,
    PlacementPolicy::Fifo,
    PlacementPolicy::Lru,
];
const PERIODS: f64 = 10.0;
const WARM_UP_PERIODS: f64 = 2.0;

pub(super) fn run(runner: &mut Runner<'_>) -> Result<Report, ExperimentError> {
    runner.expect(LOADS.len() * MTBF_MAX_MIN.len() * PLACEMENTS.len() * SEEDS as usize);
    let mut rows = Vec::new();
    for mtbf_max_min in MTBF_MAX_MIN {
        for load in LOADS {
            for placement in PLACEMENTS {
                let hit_ratio = hit_ratio(runner, load, mtbf_max_min, placement)?;
                rows.push(
                    Row::default()
                        .with("placement", placement.name())
                        .with("dwpp_s", load)
                        .with("mtbf_max_min", mtbf_max_min)
                        .with("hit_ratio", hit_ratio),
                );
            }
        }
    }
    let figures = MTBF_MAX_MIN.iter().map(|max| {
        let series = PLACEMENTS.iter().map(|placement| {
            let of_line = rows.iter().filter(|r| {
                r.text("placement") == placement.name()
                    && r.number("mtbf_max_min") == Some(f64::from(*max))
            });
            let points =
                of_line.filter_map(|r| Some((r.number("dwpp_s")?, r.number("hit_ratio")?)));
            (placement.name().to_owned(), points.collect())
        });
        Figure::lines(
            &format!("hits-mtbf-{max}"),
            &format!("Restarts from the burst buffer, MTBF up to {max} min"),
            "DWPP / S",
            "hit ratio",
            series.collect(),
        )
    });
    let figures = figures.collect();
    Ok(Report {
        nodes: Vec::new(),
        title: "Restart hit ratio by placement".into(),
        rows,
        figures,
        notes: vec![format!(
            "means over {SEEDS} seeds; a hit is a restart whose newest complete checkpoint is whole in the burst buffer"
        )],
    })
}

fn hit_ratio(
    runner: &mut Runner<'_>,
    load: f64,
    mtbf_max_min: u32,
    placement: PlacementPolicy,
) -> Result<f64, ExperimentError> {
    let jobs = (load * CHECKPOINTS_IN_S).round();
    let (mut hits, mut restarts) = (0, 0);
    for i in 0..SEEDS {
        let seed = runner.seed + i;
        let o = runner.outcome(
            &with_mtbf(BBOS, mtbf_max_min),
            &[
                ("seed", seed.to_string()),
                ("placement", placement.name().into()),
                ("plan.dwpp", bytes(jobs * CHECKPOINT_BYTES)),
                ("application.count", format!("{jobs}")),
                ("failures.mode", "draws".into()),
                ("failures.restarts_per_period", "500".into()),
                ("failures.from", format!("{}", WARM_UP_PERIODS * PERIOD_S)),
                ("failures.mtbf_known", "true".into()),
                ("duration", format!("{}", PERIODS * PERIOD_S)),
            ],
        )?;
        hits += o.hits;
        restarts += o.restarts;
    }
    Ok(hits as f64 / restarts.max(1) as f64)
}
