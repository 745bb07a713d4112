//! Data demoted with and without direct checkpoints: six periods, MTBF 1 to 100 minutes, known.

use super::{
    BBOS, CHECKPOINT_BYTES, CHECKPOINTS_IN_S, ExperimentError, PERIOD_S, Report, Runner, SEEDS,
    bytes,
};
use crate::figure::Figure;
use crate::row::Row;

const LOADS: [f64; 7] = [0.9, 1.1, 1.3, 1.5, 1.7, 1.9, 2.1];
const PERIODS: f64 = 6.0;

pub(super) fn run(runner: &mut Runner<'_>) -> Result<Report, ExperimentError> {
    runner.expect(LOADS.len() * 2 * SEEDS as usize);
    let mut rows = Vec::new();
    for load in LOADS {
        let without = demoted(runner, load, false)?;
        let with = demoted(runner, load, true)?;
        rows.push(
            Row::default()
                .with("dwpp_s", load)
                .with("demoted_bytes", without)
                .with("demoted_bytes_direct", with),
        );
    }
    let line = |name: &str, field: &str| {
        let points = rows
            .iter()
            .filter_map(|r| Some((r.number("dwpp_s")?, r.number(field)? / 1e12)));
        (name.to_owned(), points.collect::<Vec<_>>())
    };
    let figure = Figure::lines(
        "demoted",
        "Data demoted in six periods",
        "DWPP / S",
        "TB",
        vec![
            line("all through the burst buffer", "demoted_bytes"),
            line("cold checkpoints direct", "demoted_bytes_direct"),
        ],
    );
    Ok(Report {
        nodes: Vec::new(),
        title: "Direct checkpoints to the PFS".into(),
        rows,
        figures: vec![figure],
        notes: vec![format!("means over {SEEDS} seeds, {PERIODS} periods each")],
    })
}

fn demoted(runner: &mut Runner<'_>, load: f64, direct: bool) -> Result<u64, ExperimentError> {
    let jobs = (load * CHECKPOINTS_IN_S).round();
    let mut sum = 0;
    for i in 0..SEEDS {
        let seed = runner.seed + i;
        let text = with_mtbf(BBOS, 100);
        let o = runner.outcome(
            &text,
            &[
                ("seed", seed.to_string()),
                ("plan.dwpp", bytes(jobs * CHECKPOINT_BYTES)),
                ("application.count", format!("{jobs}")),
                ("direct_checkpoint", direct.to_string()),
                ("failures.mtbf_known", "true".into()),
                ("duration", format!("{}", PERIODS * PERIOD_S)),
            ],
        )?;
        sum += o.demoted_bytes;
    }
    Ok(sum / SEEDS)
}

/// The scenario with MTBFs uniform in whole minutes from 1 to `max_min`.
pub(super) fn with_mtbf(text: &str, max_min: u32) -> String {
    let interval = "interval = \"3800s\"";
    text.replace(
        interval,
        &format!("{interval}\nmtbf = {{ uniform = [\"0m\", \"{max_min}m\"], step = \"1m\" }}"),
    )
}
