//! How many nodes, and with how many copies? One scenario with both varied, over several seeds.

use std::str::FromStr;

use crate::experiment::{ExperimentError, Report, Runner};
use crate::figure::Figure;
use crate::row::Row;
use crate::scenario::{MAX_NODES, Override, Scenario};
use crate::sim::{FleetOutcome, Options, Outcome};
use crate::sweep::BadSweep;

/// Whole numbers of a range that gives none itself: all up to so many, else doublings.
const ALL_UP_TO: u64 = 32;

/// Numbers of nodes, or of copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts(pub Vec<u64>);

impl FromStr for Counts {
    type Err = BadSweep;

    /// `1..16`, `4..1024` (doublings, for these are many) or `1,2,8`.
    fn from_str(text: &str) -> Result<Self, BadSweep> {
        let one =
            |part: &str| {
                let number = part.trim().parse().ok();
                number.filter(|n| (1..=MAX_NODES).contains(n)).ok_or_else(|| {
                BadSweep(format!(
                    "'{text}' must be FROM..TO or A,B,C of whole numbers from 1 to {MAX_NODES}"
                ))
            })
            };
        let Some((from, to)) = text.split_once("..") else {
            let mut all: Vec<u64> = text.split(',').map(one).collect::<Result<_, _>>()?;
            all.sort_unstable();
            all.dedup();
            return Ok(Self(all));
        };
        let (from, to) = (one(from)?, one(to)?);
        if from > to {
            return Err(BadSweep(format!("'{text}': the smaller end comes first")));
        }
        let mut all: Vec<u64> = match to - from < ALL_UP_TO {
            true => (from..=to).collect(),
            false => {
                let doubled = std::iter::successors(Some(from), |n| Some(n * 2));
                doubled.take_while(|n| *n < to).chain([to]).collect()
            }
        };
        all.dedup();
        Ok(Self(all))
    }
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Sizing {
    /// Numbers of nodes.
    pub nodes: Counts,
    /// Numbers of copies.
    pub replicas: Counts,
    /// Runs with seeds that follow each other.
    pub runs: u64,
    /// Greatest part of the time of checkpoints that may be stalls.
    pub max_stall: Option<f64>,
    /// Greatest part of the time of checkpoints that may be waits for a turn.
    pub max_wait: Option<f64>,
    /// Least hit ratio of restarts.
    pub min_hit_ratio: Option<f64>,
    /// Greatest part of the runs that may lose bytes of complete checkpoints.
    pub max_loss: Option<f64>,
}

impl Sizing {
    fn has_limits(&self) -> bool {
        let most = [self.max_stall, self.max_wait, self.max_loss];
        most.iter().any(Option::is_some) || self.min_hit_ratio.is_some()
    }

    /// A hit ratio without restarts meets no limit, nor do shares of the checkpoints' time where
    /// no checkpoint ended.
    fn is_met(&self, point: &Point) -> bool {
        let most = |value: f64, limit: Option<f64>| limit.is_none_or(|limit| value <= limit);
        let hits = self.min_hit_ratio;
        let of_ended = self.max_stall.or(self.max_wait);
        (of_ended.is_none() || point.checkpoints > 0)
            && most(point.stall_share(), self.max_stall)
            && most(point.wait_share(), self.max_wait)
            && most(point.loss_share(), self.max_loss)
            && hits.is_none_or(|limit| point.hit_ratio().is_some_and(|ratio| ratio >= limit))
    }
}

/// What the runs of one number of nodes and copies add up to.
#[derive(Debug, Default)]
struct Point {
    runs: u64,
    runs_with_loss: u64,
    lost_bytes: u64,
    stall_s: f64,
    wait_s: f64,
    latency_s: f64,
    checkpoints: u64,
    unfinished: u64,
    restarts: u64,
    hits: u64,
    failures: u64,
    max_at_risk_bytes: u64,
    re_replications: u64,
    re_replication_s: f64,
}

impl Point {
    fn add(&mut self, o: &Outcome, fleet: &FleetOutcome) {
        let n = o.checkpoints as f64;
        self.runs += 1;
        self.runs_with_loss += u64::from(fleet.lost_bytes > 0);
        self.lost_bytes += fleet.lost_bytes;
        self.stall_s += o.mean_stall_s * n;
        self.wait_s += o.mean_wait_s * n;
        self.latency_s += o.mean_latency_s * n;
        self.checkpoints += o.checkpoints;
        self.unfinished += o.unfinished;
        self.restarts += o.restarts;
        self.hits += o.hits;
        self.failures += fleet.failures();
        self.max_at_risk_bytes = self.max_at_risk_bytes.max(fleet.max_at_risk_bytes);
        self.re_replications += fleet.re_replications;
        self.re_replication_s += fleet.re_replication_s;
    }

    /// Part of the checkpoints' time in which they had no space.
    fn stall_share(&self) -> f64 {
        self.stall_s / self.latency_s.max(f64::MIN_POSITIVE)
    }

    /// Part of the checkpoints' time in which others had the turn.
    fn wait_share(&self) -> f64 {
        self.wait_s / self.latency_s.max(f64::MIN_POSITIVE)
    }

    fn loss_share(&self) -> f64 {
        self.runs_with_loss as f64 / self.runs.max(1) as f64
    }

    fn hit_ratio(&self) -> Option<f64> {
        (self.restarts > 0).then(|| self.hits as f64 / self.restarts as f64)
    }

    fn row(&self, nodes: u64, replicas: u64) -> Row {
        let repairs = self.re_replications;
        Row::default()
            .with("nodes", nodes)
            .with("replicas", replicas)
            .with("stall_share", self.stall_share())
            .with("wait_share", self.wait_share())
            .with(
                "mean_latency_s",
                self.latency_s / self.checkpoints.max(1) as f64,
            )
            .with("hit_ratio", self.hit_ratio())
            .with("loss_probability", self.loss_share())
            .with("lost_bytes", self.lost_bytes)
            .with("max_at_risk_bytes", self.max_at_risk_bytes)
            .with("node_failures", self.failures)
            .with(
                "mean_re_replication_s",
                (repairs > 0).then(|| self.re_replication_s / repairs as f64),
            )
            .with("unfinished", self.unfinished)
    }
}

/// Runs the scenario for every number of nodes and copies. Names the fewest nodes that meet the
/// limits, for each number of copies.
pub fn size(
    text: &str,
    set: &[Override],
    sizing: &Sizing,
    watch: &mut dyn FnMut(f64) -> bool,
) -> Result<Report, ExperimentError> {
    let mut runner = Runner::new(0, watch);
    let points = sizing.nodes.0.len() * sizing.replicas.0.len();
    runner.expect(points * sizing.runs as usize);
    let mut report = Report::default();
    let mut curves = Vec::new();
    for &replicas in &sizing.replicas.0 {
        let (mut curve, mut smallest) = (Vec::new(), None);
        for &nodes in &sizing.nodes.0 {
            let mut point = Point::default();
            for run in 0..sizing.runs {
                one(text, set, [nodes, replicas, run], &mut runner, &mut point)?;
            }
            curve.push((nodes as f64, point.stall_share()));
            let mut row = point.row(nodes, replicas);
            if sizing.has_limits() {
                let meets = sizing.is_met(&point);
                let is_smallest = meets && smallest.is_none();
                smallest = smallest.or(meets.then_some((nodes, point.unfinished)));
                row = row
                    .with("meets_limits", meets)
                    .with("smallest", is_smallest);
            }
            report.rows.push(row);
        }
        curves.push((format!("replicas={replicas}"), curve));
        if sizing.has_limits() {
            report.notes.push(match smallest {
                Some((nodes, unfinished)) => format!(
                    "fewest nodes that meet the limits: {nodes} (checkpoints unfinished: \
                     {unfinished}), replicas = {replicas}"
                ),
                None => format!("no number of nodes meets the limits, replicas = {replicas}"),
            });
        }
    }
    report.title = format!("{} by nodes", Scenario::parse(text, set)?.name);
    let figure = Figure::lines("sizing", &report.title, "nodes", "stall_share", curves);
    report.figures.push(figure);
    Ok(report)
}

/// One run; its seed follows that of the scenario.
fn one(
    text: &str,
    set: &[Override],
    [nodes, replicas, run]: [u64; 3],
    runner: &mut Runner<'_>,
    point: &mut Point,
) -> Result<(), ExperimentError> {
    let mut overrides = set.to_vec();
    let mut replace = |key: &str, value: u64| {
        overrides.push(Override {
            key: key.into(),
            value: value.to_string(),
        });
    };
    replace("nodes.count", nodes);
    replace("nodes.replicas", replicas);
    if run > 0 {
        replace("seed", Scenario::parse(text, set)?.seed + run);
    }
    let found = runner.run(
        text,
        &overrides,
        Options {
            samples: 50,
            ..Options::default()
        },
    )?;
    if let Some(fleet) = &found.fleet {
        point.add(&found.outcome, fleet);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: &str = include_str!("../scenarios/four-nodes.toml");

    fn sizing(nodes: &str, replicas: &str) -> Sizing {
        Sizing {
            nodes: nodes.parse().unwrap(),
            replicas: replicas.parse().unwrap(),
            runs: 2,
            max_stall: None,
            max_wait: None,
            min_hit_ratio: None,
            max_loss: None,
        }
    }

    #[test]
    fn counts_are_lists_and_ranges() {
        let counts = |text: &str| text.parse::<Counts>().map(|c| c.0);
        assert_eq!(counts("1..4").unwrap(), [1, 2, 3, 4]);
        assert_eq!(counts("2, 1,2").unwrap(), [1, 2]);
        assert_eq!(
            counts("4..1000").unwrap(),
            [4, 8, 16, 32, 64, 128, 256, 512, 1000]
        );
        for bad in ["", "0", "4..1", "1..x", "1.5", "5000"] {
            assert!(counts(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn runs_in_which_no_checkpoint_ended_meet_no_limit_on_stalls() {
        let mut asked = sizing("1", "1");
        let empty = Point::default();
        asked.max_loss = Some(0.1);
        assert!(asked.is_met(&empty));
        asked.max_stall = Some(0.1);
        assert!(!asked.is_met(&empty));
        asked.max_stall = None;
        asked.max_wait = Some(0.1);
        assert!(!asked.is_met(&empty));
        let some = Point {
            checkpoints: 1,
            ..Point::default()
        };
        assert!(asked.is_met(&some));
    }

    #[test]
    fn the_fewest_nodes_that_are_enough_are_named() {
        let set = [("duration", "2h"), ("application.checkpoint", "64GB")];
        let set: Vec<Override> = set
            .iter()
            .map(|(key, value)| Override {
                key: (*key).into(),
                value: (*value).into(),
            })
            .collect();
        let mut asked = sizing("1..6", "1,2");
        asked.max_stall = Some(0.001);
        let report = size(FOUR, &set, &asked, &mut |_| true).unwrap();
        assert_eq!(report, size(FOUR, &set, &asked, &mut |_| true).unwrap());
        assert_eq!(report.rows.len(), 12);
        for rows in report.rows.chunks(6) {
            let smallest = rows
                .iter()
                .position(|r| r.get("smallest") == Some(&true.into()));
            let first = rows
                .iter()
                .position(|r| r.number("stall_share").unwrap() <= 0.001);
            assert_eq!(smallest, first);
        }
        assert_eq!(report.rows[0].get("smallest"), Some(&false.into()));
        assert!(
            report.notes[0].contains("replicas = 1"),
            "{:?}",
            report.notes
        );
        let lost = |row: &Row| row.number("lost_bytes").unwrap();
        assert!(report.rows[6..].iter().all(|row| lost(row) == 0.0));
    }
}
