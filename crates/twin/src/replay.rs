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
    /// The checkpoints of the experiment.
    pub jobs: Vec<LiveJob>,
    /// Restarts served from the burst buffer over all; absent without restarts.
    #[serde(default)]
    pub hit_ratio: Option<f64>,
}

/// One checkpoint as it was measured. Other keys of a job are not looked at.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct LiveJob {
    /// Counted from 0 through the applications of the scenario.
    pub application: u32,
    /// From 1.
    pub version: u64,
    /// From the moment when the checkpoint wanted to begin to its end; above 0.
    pub latency_s: f64,
    /// Its size; above 0.
    pub bytes: u64,
}

/// Why nothing was compared.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ReplayError {
    /// Not the JSON that docs/twin.md describes.
    #[error("{0}")]
    Json(String),
    /// A job with an impossible figure.
    #[error("jobs: application {application}, version {version}: {what} must be above 0")]
    Job {
        /// Its application.
        application: u32,
        /// Its version.
        version: u64,
        /// The key.
        what: &'static str,
    },
    /// The parameters make no scenario.
    #[error("parameters: {0}")]
    Parameters(String),
    /// The simulation was refused or stopped.
    #[error(transparent)]
    Run(#[from] ExperimentError),
    /// The experiment and the simulation have no job in common.
    #[error("no job of the experiment is in the simulation")]
    NothingInCommon,
}

/// Differences up to this count as agreement.
const AGREE: f64 = 0.10;

/// One job, measured and simulated, in this order.
struct Pair {
    application: u32,
    version: u64,
    latency_s: [f64; 2],
    /// Over the whole latency: from outside nobody can tell whether a first request waits for its
    /// turn or for space.
    bytes_per_s: [f64; 2],
}

impl Pair {
    fn new(live: &LiveJob, twin: &JobRecord) -> Pair {
        let latency_s = [live.latency_s, twin.latency_s()];
        Pair {
            application: live.application,
            version: live.version,
            latency_s,
            bytes_per_s: latency_s.map(|s| live.bytes as f64 / s.max(1e-9)),
        }
    }

    fn row(&self) -> Row {
        Row::default()
            .with("application", self.application)
            .with("version", self.version)
            .with("live_latency_s", self.latency_s[0])
            .with("twin_latency_s", self.latency_s[1])
            .with("live_throughput_bytes_per_s", self.bytes_per_s[0])
            .with("twin_throughput_bytes_per_s", self.bytes_per_s[1])
    }
}

/// Simulates the parameters and compares. One row a job; the notes compare the means of both
/// figures and the median throughput (in the mean the few fastest jobs count most).
///
/// # Errors
/// See [`ReplayError`].
pub fn replay(json: &str, watch: &mut dyn FnMut(f64) -> bool) -> Result<Report, ReplayError> {
    let live = read(json)?;
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
    let pairs: Vec<Pair> = live
        .jobs
        .iter()
        .filter_map(|job| Some(Pair::new(job, twin.get(&(job.application, job.version))?)))
        .collect();
    if pairs.is_empty() {
        return Err(ReplayError::NothingInCommon);
    }
    let mut notes = verdicts(&pairs);
    if let (Some(live), Some(twin)) = (live.hit_ratio, run.outcome.hit_ratio) {
        notes.push(compare("hit ratio", live, twin));
    }
    if pairs.len() < live.jobs.len() {
        notes.push(format!(
            "{} jobs of the experiment are not in the simulation",
            live.jobs.len() - pairs.len()
        ));
    }
    Ok(Report {
        nodes: Vec::new(),
        title: "Live experiment and twin".into(),
        rows: pairs.iter().map(Pair::row).collect(),
        figures: vec![figure(&pairs)],
        notes,
    })
}

fn read(json: &str) -> Result<Live, ReplayError> {
    let live: Live = serde_json::from_str(json).map_err(|e| ReplayError::Json(e.to_string()))?;
    for job in &live.jobs {
        let bad = if job.bytes == 0 {
            "bytes"
        } else if job.latency_s <= 0.0 {
            "latency_s"
        } else {
            continue;
        };
        return Err(ReplayError::Job {
            application: job.application,
            version: job.version,
            what: bad,
        });
    }
    Ok(live)
}

fn verdicts(pairs: &[Pair]) -> Vec<String> {
    let side = |figure: fn(&Pair) -> [f64; 2], side: usize| -> Vec<f64> {
        pairs.iter().map(|pair| figure(pair)[side]).collect()
    };
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    let latency = |n| side(|pair| pair.latency_s, n);
    let speed = |n| side(|pair| pair.bytes_per_s, n);
    vec![
        compare("mean latency, s", mean(latency(0)), mean(latency(1))),
        compare("mean throughput, bytes/s", mean(speed(0)), mean(speed(1))),
        compare(
            "median throughput, bytes/s",
            median(speed(0)),
            median(speed(1)),
        ),
    ]
}

/// Of an even number the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len() - 1;
    (values[last / 2] + values[last.div_ceil(2)]) / 2.0
}

fn figure(pairs: &[Pair]) -> Figure {
    let curve = |side: usize| {
        let latencies = pairs.iter().map(|pair| pair.latency_s[side]);
        (0..).map(f64::from).zip(latencies).collect()
    };
    let lines = vec![("live".into(), curve(0)), ("twin".into(), curve(1))];
    Figure::lines(
        "replay",
        "Latency of each checkpoint",
        "checkpoint",
        "s",
        lines,
    )
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

    fn live(latency_s: f64) -> String {
        format!(
            r#"{{"parameters":{{"duration":100,"policy":"maxbw",
            "bb":{{"capacity":"10GB","bw_max":1e9,"bw_min":8e8,"br_max":2e8,"br_min":1e7}},
            "plan":{{"period":"100s"}},"arrivals":{{"pattern":"low"}},
            "application":[{{"name":"a","count":2,"checkpoint":"1GB"}}]}},
            "jobs":[{{"application":0,"version":1,"latency_s":{latency_s},"bytes":1000000000}},
                    {{"application":1,"version":1,"latency_s":{latency_s},"bytes":1000000000}}]}}"#
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
    fn a_run_of_several_nodes_is_compared_as_any() {
        let one = live(1.0);
        let bb = "\"plan\":";
        let several = one.replace(bb, "\"nodes\":{\"count\":2,\"replicas\":2},\"plan\":");
        assert_ne!(one, several);
        let report = replay(&several, &mut |_| true).unwrap();
        assert_eq!(report.rows.len(), 2);
        // Each writes 1 GB at 1 GB/s, and its second copy at the other node.
        assert_eq!(report.rows[0].number("twin_latency_s"), Some(1.0));
    }

    #[test]
    fn of_throughput_the_mean_and_the_middle_are_compared() {
        // One job as simulated (1 s), one in 4 s: means of 0.625 and 1 GB/s, and two is their
        // middle.
        let two = live(1.0).replacen("\"latency_s\":1", "\"latency_s\":4", 1);
        let notes = replay(&two, &mut |_| true).unwrap().notes;
        assert_eq!(notes.len(), 3, "{notes:?}");
        assert!(notes[0].contains("live 2.5000, twin 1.0000"), "{notes:?}");
        assert!(notes[1].contains("live 625000000.0000"), "{notes:?}");
        assert!(notes[2].contains("live 625000000.0000"), "{notes:?}");
        assert_eq!(median(vec![9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![9.0, 1.0, 2.0, 4.0]), 3.0);
        assert_eq!(median(vec![5.0]), 5.0);
    }

    #[test]
    fn nonsense_is_refused() {
        for (good, bad, what) in [
            ("\"latency_s\":1", "\"latency_s\":0", "latency_s"),
            ("\"latency_s\":1", "\"latency_s\":-1", "latency_s"),
            ("\"bytes\":1000000000", "\"bytes\":0", "bytes"),
        ] {
            let error = replay(&live(1.0).replace(good, bad), &mut |_| true).unwrap_err();
            let words = format!("application 0, version 1: {what} must be above 0");
            assert!(error.to_string().contains(&words), "{error}");
        }
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
