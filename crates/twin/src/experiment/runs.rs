//! Periodic runs that are learned (ONFS 2017, upward migration): what is there before each starts.

use super::{ExperimentError, Report, Runner};
use crate::figure::Figure;
use crate::periodic::{Periodic, Rhythm, simulate};
use crate::row::Row;
use crate::sim::Stopped;

/// What `bench/ahead.py --only runs` measures: 25 files of 8 MiB, a PFS of 100 MiB/s.
const REGULAR: Periodic = Periodic {
    name: "regular",
    runs: 5,
    period_s: 60.0,
    rhythm: Rhythm::Jitter(0.0),
    files: 25,
    file_bytes: 8 << 20,
    changing: 0.0,
    pfs_bytes_per_s: 104_857_600.0,
};

/// Runs of those that go on for longer.
const RUNS: u32 = 12;

const APPLICATIONS: [Periodic; 6] = [
    REGULAR,
    Periodic {
        name: "jitter",
        runs: RUNS,
        rhythm: Rhythm::Jitter(0.1),
        ..REGULAR
    },
    Periodic {
        name: "missing",
        runs: RUNS,
        rhythm: Rhythm::Without(6),
        ..REGULAR
    },
    Periodic {
        name: "changing",
        runs: RUNS,
        changing: 0.2,
        ..REGULAR
    },
    // Staging takes longer than half a period, before which it does not begin.
    Periodic {
        name: "large",
        runs: RUNS,
        file_bytes: 160 << 20,
        ..REGULAR
    },
    Periodic {
        name: "irregular",
        runs: 20,
        rhythm: Rhythm::Random,
        ..REGULAR
    },
];

pub(super) fn run(runner: &mut Runner<'_>) -> Result<Report, ExperimentError> {
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    for (nth, application) in APPLICATIONS.iter().enumerate() {
        let share = nth as f64 / APPLICATIONS.len() as f64;
        if !(runner.watch)(share) {
            return Err(Stopped.into());
        }
        let (mut read, mut points) = (0, Vec::new());
        for (nth, run) in simulate(application, runner.seed).iter().enumerate() {
            read += run.bytes;
            let there = run.there_bytes as f64 / run.bytes as f64;
            points.push((nth as f64 + 1.0, there));
            rows.push(
                Row::default()
                    .with("application", application.name)
                    .with("run", nth as u64 + 1)
                    .with("start_s", run.start_s)
                    .with("there_share", there)
                    .with("read_s", run.takes_s)
                    .with("staged_bytes", run.brought_bytes)
                    .with("wasted_share", run.wasted_bytes as f64 / read as f64),
            );
        }
        lines.push((application.name.to_owned(), points));
    }
    let figure = Figure::lines(
        "there",
        "What was there before a run started",
        "run",
        "share of its bytes",
        lines,
    );
    Ok(Report {
        nodes: Vec::new(),
        title: "Periodic runs that are learned".into(),
        rows,
        figures: vec![figure],
        notes: vec![
            "staged_bytes and wasted_share are sums until the next run, the share over all that was read; after the last run two periods are waited".into(),
        ],
    })
}
