//! A live experiment replayed: the same parameters simulated, and both compared job by job.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use crate::experiment::{ExperimentError, Report, Runner};
use crate::figure::Figure;
use crate::row::Row;
use crate::sim::{JobRecord, Options};

/// What a live experiment writes.
#[derive(Debug, Clone, Deserialize)]
pub struct Live {
    /// A scenario as JSON: the same tables and keys as in TOML.
    pub parameters: Value,
    /// Its checkpoints.
    pub jobs: Vec<LiveJob>,
    /// Restarts served from the burst buffer over all; absent without restarts.
    #[serde(default)]
    pub hit_ratio: Option<f64>,
}

/// One checkpoint as it was measured.
#[derive(Debug, Clone, Deserialize)]
pub struct LiveJob {
    /// Counted from 0 through the applications of the scenario.
    pub application: u32,
    /// From 1.
    pub version: u64,
    /// When it wanted to begin.
    pub arrive_s: f64,
    /// Until its turn.
    pub wait_s: f64,
    /// In its turn, without space.
    pub stall_s: f64,
    /// The rest.
    pub execution_s: f64,
    /// Its size.
    pub bytes: u64,
}

/// Why nothing was compared.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ReplayError {
    /// Not the JSON that docs/twin.md describes.
    #[error("{0}")]
    Json(String),
    /// The parameters make no scenario.
    #[error("parameters: {0}")]
    Parameters(String),
    /// The simulation was refused or stopped.
    #[error(transparent)]
    Run(#[from] ExperimentError),
    /// No job of one is in the other.
    #[error("no job of the experiment is in the simulation")]
    NothingInCommon,
}

/// Differences up to this count as agreement.
const AGREE: f64 = 0.10;

/// Simulates the parameters and compares. One row a job; the notes compare the means.
pub fn replay(json: &str, watch: &mut dyn FnMut(f64) -> bool) -> Result<Report, ReplayError> {
    let live: Live = serde_json::from_str(json).map_err(|e| ReplayError::Json(e.to_string()))?;
    let toml =
        toml::to_string(&live.parameters).map_err(|e| ReplayError::Parameters(e.to_string()))?;
    let options = Options {
        records: true,
        samples: 0,
    };
    let run = Runner::new(0, watch).run(&toml, &[], options)?;
    let twin: HashMap<(u32, u64), &JobRecord> = run
        .records
        .iter()
        .map(|r| ((r.application, r.version), r))
        .collect();
    let mut rows = Vec::new();
    let (mut latency, mut throughput) = ([0.0; 2], [0.0; 2]);
    let mut curves = [Vec::new(), Vec::new()];
    for job in &live.jobs {
        let Some(record) = twin.get(&(job.application, job.version)) else {
            continue;
        };
        let both_latency = [
            job.wait_s + job.stall_s + job.execution_s,
            record.latency_s(),
        ];
        let live_speed = job.bytes as f64 / (job.stall_s + job.execution_s).max(1e-9);
        let both_speed = [live_speed, record.throughput_bytes_per_s()];
        for side in 0..2 {
            latency[side] += both_latency[side];
            throughput[side] += both_speed[side];
            curves[side].push((rows.len() as f64, both_latency[side]));
        }
        rows.push(
            Row::default()
                .with("application", job.application)
                .with("version", job.version)
                .with("live_latency_s", both_latency[0])
                .with("twin_latency_s", both_latency[1])
                .with("live_throughput_bytes_per_s", both_speed[0])
                .with("twin_throughput_bytes_per_s", both_speed[1]),
        );
    }
    if rows.is_empty() {
        return Err(ReplayError::NothingInCommon);
    }
    let n = rows.len() as f64;
    let mut notes = vec![
        compare("mean latency, s", latency[0] / n, latency[1] / n),
        compare(
            "mean throughput, bytes/s",
            throughput[0] / n,
            throughput[1] / n,
        ),
    ];
    if let (Some(live), Some(twin)) = (live.hit_ratio, run.outcome.hit_ratio) {
        notes.push(compare("hit ratio", live, twin));
    }
    if rows.len() < live.jobs.len() {
        notes.push(format!(
            "{} jobs of the experiment are not in the simulation",
            live.jobs.len() - rows.len()
        ));
    }
    let [live_curve, twin_curve] = curves;
    let lines = vec![("live".into(), live_curve), ("twin".into(), twin_curve)];
    Ok(Report {
        title: "Live experiment and twin".into(),
        rows,
        figures: vec![Figure::lines(
            "replay",
            "Latency of each checkpoint",
            "checkpoint",
            "s",
            lines,
        )],
        notes,
    })
}

fn compare(what: &str, live: f64, twin: f64) -> String {
    let difference = if live == twin {
        0.0
    } else {
        (twin - live) / live.abs().max(1e-12)
    };
    let verdict = match difference.abs() <= AGREE {
        true => "agree within 10 %",
        false => "DIFFER by more than 10 %",
    };
    format!(
        "{what}: live {live:.4}, twin {twin:.4} ({:+.1} %): {verdict}",
        difference * 100.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(execution_s: f64) -> String {
        format!(
            r#"{{"parameters":{{"duration":100,"policy":"maxbw",
            "bb":{{"capacity":"10GB","bw_max":1e9,"bw_min":8e8,"br_max":2e8,"br_min":1e7}},
            "plan":{{"period":"100s"}},"arrivals":{{"pattern":"low"}},
            "application":[{{"name":"a","count":2,"checkpoint":"1GB"}}]}},
            "jobs":[{{"application":0,"version":1,"arrive_s":0,"wait_s":0,"stall_s":0,"execution_s":{execution_s},"bytes":1000000000}},
                    {{"application":1,"version":1,"arrive_s":50,"wait_s":0,"stall_s":0,"execution_s":{execution_s},"bytes":1000000000}}]}}"#
        )
    }

    #[test]
    fn agreement_and_disagreement_are_told_apart() {
        let report = replay(&live(1.05), &mut |_| true).unwrap();
        assert_eq!(report.rows.len(), 2);
        assert!((report.rows[0].number("twin_latency_s").unwrap() - 1.0).abs() < 1e-4);
        assert!(
            report.notes.iter().all(|n| n.contains("agree within")),
            "{:?}",
            report.notes
        );
        let report = replay(&live(2.0), &mut |_| true).unwrap();
        assert!(
            report.notes.iter().all(|n| n.contains("DIFFER")),
            "{:?}",
            report.notes
        );
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(matches!(
            replay("{}", &mut |_| true),
            Err(ReplayError::Json(_))
        ));
        let none = live(1.0).replace("\"application\":0", "\"application\":7");
        let none = none.replace("\"application\":1", "\"application\":8");
        assert_eq!(
            replay(&none, &mut |_| true),
            Err(ReplayError::NothingInCommon)
        );
        let bad = live(1.0).replace("10GB", "-10GB");
        assert!(
            replay(&bad, &mut |_| true)
                .unwrap_err()
                .to_string()
                .contains("positive size")
        );
    }
}
