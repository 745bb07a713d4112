//! One scenario with keys varied, and the smallest value of the first key that meets a target.
//! Example: how large must the burst buffer be?

use std::str::FromStr;

use forebay_types::{format_size, parse_duration, parse_size};

use crate::experiment::{ExperimentError, Report, Runner, summary, with_memory};
use crate::figure::Figure;
use crate::row::Row;
use crate::scenario::{Override, Scenario};
use crate::sim::Options;

/// Keys that may be named without their table.
const SHORT: [(&str, &str); 17] = [
    ("capacity", "bb.capacity"),
    ("bw_max", "bb.bw_max"),
    ("bw_min", "bb.bw_min"),
    ("br_max", "bb.br_max"),
    ("br_min", "bb.br_min"),
    ("idle", "bb.idle"),
    ("read", "bb.read"),
    ("servers", "pfs.servers"),
    ("ordered_flush", "pfs.ordered_flush"),
    ("period", "plan.period"),
    ("dwpp", "plan.dwpp"),
    ("pattern", "arrivals.pattern"),
    ("restarts_per_period", "failures.restarts_per_period"),
    ("checkpoint", "application.checkpoint"),
    ("interval", "application.interval"),
    ("count", "application.count"),
    ("mtbf", "application.mtbf"),
];

/// The full name of a key.
pub fn full_key(key: &str) -> String {
    let found = SHORT.iter().find(|(short, _)| *short == key);
    found.map_or(key, |(_, full)| full).to_owned()
}

/// Values of a range that gives no number of its own.
const DEFAULT_POINTS: u32 = 9;
const MAX_POINTS: u32 = 1000;
/// Runs of one sweep; more is a typing error.
const MAX_RUNS: usize = 100_000;

/// Wrong `--sweep`, `--set` or `--target`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadSweep(pub String);

/// One key and its values.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Full name.
    pub key: String,
    /// As they stand in the scenario.
    pub values: Vec<String>,
    /// The same as numbers, where they come from a range.
    numbers: Vec<f64>,
}

/// `KEY=VALUE` of `--set`.
pub fn parse_set(text: &str) -> Result<Override, BadSweep> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| BadSweep(format!("'{text}' must be KEY=VALUE")))?;
    Ok(Override {
        key: full_key(key.trim()),
        value: value.trim().into(),
    })
}

impl FromStr for Axis {
    type Err = BadSweep;

    /// `KEY=FROM..TO`, `KEY=FROM..TO:POINTS` (evenly spaced) or `KEY=A,B,C`.
    fn from_str(text: &str) -> Result<Self, BadSweep> {
        let set = parse_set(text)?;
        let Some((from, rest)) = set.value.split_once("..") else {
            let values: Vec<String> = set.value.split(',').map(|v| v.trim().into()).collect();
            return Ok(Self {
                key: set.key,
                numbers: values.iter().filter_map(|v| quantity(v)).collect(),
                values,
            });
        };
        let (to, points) = match rest.split_once(':') {
            None => (rest, DEFAULT_POINTS),
            Some((to, points)) => {
                let points = points.parse().ok().filter(|n| (2..=MAX_POINTS).contains(n));
                let why = || {
                    BadSweep(format!(
                        "'{text}': the number of points must be from 2 to {MAX_POINTS}"
                    ))
                };
                (to, points.ok_or_else(why)?)
            }
        };
        let number = |part: &str| {
            quantity(part).ok_or_else(|| {
                BadSweep(format!("'{text}': '{part}' is no number, size or duration"))
            })
        };
        let (low, high) = (number(from)?, number(to)?);
        if low >= high {
            return Err(BadSweep(format!("'{text}': the smaller end comes first")));
        }
        let numbers: Vec<f64> = (0..points)
            .map(|i| low + (high - low) * f64::from(i) / f64::from(points - 1))
            .collect();
        Ok(Self {
            key: set.key,
            values: numbers.iter().map(|n| written(*n)).collect(),
            numbers,
        })
    }
}

/// A number, a size or rate in bytes, or a duration in seconds.
fn quantity(text: &str) -> Option<f64> {
    let text = text.trim();
    let size = text.strip_suffix("/s").unwrap_or(text);
    let number = text
        .parse::<f64>()
        .ok()
        .filter(|n| n.is_finite() && *n >= 0.0);
    number
        .or_else(|| parse_size(size).ok().map(|bytes| bytes as f64))
        .or_else(|| parse_duration(text).ok().map(|d| d.as_secs_f64()))
}

/// Whole numbers stay whole.
fn written(number: f64) -> String {
    match number.abs() >= 100.0 {
        true => format!("{:.0}", number.round()),
        false => format!("{number}"),
    }
}

/// What must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    field: String,
    at_most: bool,
    limit: f64,
}

impl FromStr for Target {
    type Err = BadSweep;

    /// `stall<=1s`, `hit_ratio>=0.9`: a field of the row (`stall`, `wait` and `latency` mean the
    /// means), a comparison, a limit.
    fn from_str(text: &str) -> Result<Self, BadSweep> {
        let (field, limit, at_most) = text
            .split_once("<=")
            .map(|(f, l)| (f, l, true))
            .or_else(|| text.split_once(">=").map(|(f, l)| (f, l, false)))
            .ok_or_else(|| BadSweep(format!("'{text}' must be FIELD<=LIMIT or FIELD>=LIMIT")))?;
        let limit = quantity(limit).ok_or_else(|| {
            BadSweep(format!(
                "'{text}': '{limit}' is no number, size or duration"
            ))
        })?;
        let field = match field.trim() {
            "stall" => "mean_stall_s",
            "wait" => "mean_wait_s",
            "latency" => "mean_latency_s",
            other => other,
        };
        Ok(Self {
            field: field.into(),
            at_most,
            limit,
        })
    }
}

/// Fields that are means or maxima of the checkpoints that ended. Where none ended they are 0, and
/// where the worst did not end they flatter.
const OF_ENDED: [&str; 6] = [
    "mean_stall_s",
    "mean_wait_s",
    "mean_latency_s",
    "max_latency_s",
    "stalled",
    "mean_throughput_bytes_per_s",
];

impl Target {
    /// Whether the target can be met by a row: where it is about checkpoints that ended, some did,
    /// and no more than `unfinished` did not.
    fn may_be_met(&self, row: &Row, unfinished: f64) -> bool {
        let number = |field| row.number(field).unwrap_or(0.0);
        !OF_ENDED.contains(&self.field.as_str())
            || (number("checkpoints") > 0.0 && number("unfinished") <= unfinished)
    }

    /// Whether a row meets the target. A hit ratio without restarts meets none.
    fn is_met(&self, row: &Row) -> Result<bool, BadSweep> {
        let Some(value) = row.get(&self.field) else {
            let known: Vec<&str> = row.0.iter().map(|(name, _)| name.as_ref()).collect();
            return Err(BadSweep(format!(
                "no field '{}'; known are {}",
                self.field,
                known.join(", ")
            )));
        };
        Ok(value.as_f64().is_some_and(|value| match self.at_most {
            true => value <= self.limit,
            false => value >= self.limit,
        }))
    }
}

/// Why a sweep gave nothing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SweepError {
    /// Wrong arguments.
    #[error(transparent)]
    Bad(#[from] BadSweep),
    /// A run failed.
    #[error(transparent)]
    Run(#[from] ExperimentError),
}

/// The smallest value is found to this part of a step.
const RESOLUTION: f64 = 256.0;

/// Runs the scenario for every combination. With targets, the smallest value of the first key that
/// meets all of them is searched, for every combination of the others. The search runs between the
/// greatest value that does not meet them and the smallest that does.
pub fn sweep(
    text: &str,
    set: &[Override],
    axes: &[Axis],
    targets: &[Target],
    watch: &mut dyn FnMut(f64) -> bool,
) -> Result<Report, SweepError> {
    let Some((first, others)) = axes.split_first() else {
        return Err(BadSweep("nothing to sweep".into()).into());
    };
    let combinations = combinations(others);
    let runs = combinations.len().saturating_mul(first.values.len());
    if runs > MAX_RUNS {
        return Err(BadSweep(format!("{runs} runs; at most {MAX_RUNS} are done")).into());
    }
    let mut sweep = Sweep {
        text,
        set,
        targets,
        unfinished: f64::INFINITY,
        runner: Runner::new(0, watch),
        report: Report::default(),
    };
    // The search takes about as many runs again.
    let searches = if targets.is_empty() {
        0
    } else {
        combinations.len() * 8
    };
    sweep.runner.expect(runs + searches);
    let mut curves = Vec::new();
    for others in &combinations {
        let mut curve = Vec::new();
        sweep.unfinished = f64::INFINITY;
        for (place, value) in first.values.iter().enumerate() {
            let row = sweep.one(&first.key, value, others)?;
            let x = first.numbers.get(place).copied().unwrap_or(place as f64);
            curve.push((x, sweep.measure(&row)));
        }
        if !targets.is_empty() {
            sweep.search(first, others)?;
        }
        let name: Vec<String> = others
            .iter()
            .map(|o| format!("{}={}", o.key, o.value))
            .collect();
        curves.push((name.join(" "), curve));
    }
    let mut report = sweep.report;
    report.title = format!("{} by {}", scenario_name(text, set)?, first.key);
    let y = targets.first().map_or("mean_stall_s", |t| t.field.as_str());
    report
        .figures
        .push(Figure::lines("sweep", &report.title, &first.key, y, curves));
    Ok(report)
}

fn scenario_name(text: &str, set: &[Override]) -> Result<String, ExperimentError> {
    Ok(Scenario::parse(text, set)?.name)
}

struct Sweep<'a> {
    text: &'a str,
    set: &'a [Override],
    targets: &'a [Target],
    /// Most checkpoints that may be unfinished in a row that meets a target on checkpoints: those
    /// of the row with the largest value. No limit until that row is there.
    unfinished: f64,
    runner: Runner<'a>,
    report: Report,
}

impl Sweep<'_> {
    /// One run and its row.
    fn one(&mut self, key: &str, value: &str, others: &[Override]) -> Result<Row, SweepError> {
        let mut overrides = self.set.to_vec();
        overrides.push(Override {
            key: key.into(),
            value: value.into(),
        });
        overrides.extend_from_slice(others);
        let scenario = Scenario::parse(self.text, &overrides).map_err(ExperimentError::from)?;
        let run = self.runner.run(self.text, &overrides, Options::default())?;
        let mut row = Row::default().with(key.to_owned(), value);
        for other in others {
            row = row.with(other.key.clone(), other.value.clone());
        }
        // What is swept is a column already, under the name that the user gave it.
        let mut found = summary(&scenario, &run.outcome);
        if let Some(memory) = run.fleet.as_ref().and_then(|fleet| fleet.memory.as_ref()) {
            found = with_memory(found, memory);
        }
        for (name, value) in found.0 {
            if row.get(&name).is_none() {
                row.0.push((name, value));
            }
        }
        if !self.targets.is_empty() {
            let mut meets = true;
            for target in self.targets {
                meets &= target.is_met(&row)? && target.may_be_met(&row, self.unfinished);
            }
            row = row.with("meets_target", meets).with("smallest", false);
        }
        self.report.rows.push(row.clone());
        Ok(row)
    }

    /// Why no row met the targets, where that is more than a missed limit.
    fn why_none(&self, rows: &[Row]) -> String {
        let unknown = |t: &&Target| rows.iter().all(|row| row.number(&t.field).is_none());
        if let Some(target) = self.targets.iter().find(unknown) {
            return format!(": no row has a {} (no restarts?)", target.field);
        }
        let ended = |row: &Row| row.number("checkpoints").unwrap_or(0.0) > 0.0;
        let of_ended = |t: &Target| OF_ENDED.contains(&t.field.as_str());
        match self.targets.iter().any(of_ended) && !rows.iter().any(ended) {
            true => ": no row has a checkpoint that ended".into(),
            false => String::new(),
        }
    }

    fn measure(&self, row: &Row) -> f64 {
        let field = self
            .targets
            .first()
            .map_or("mean_stall_s", |t| t.field.as_str());
        row.number(field).unwrap_or(0.0)
    }

    /// Takes the row of the largest value as the measure of what stays unfinished in any case:
    /// rows since `of_axis` with more of it meet no target on checkpoints.
    fn compare_unfinished(&mut self, axis: &Axis, of_axis: usize) {
        if axis.numbers.len() != axis.values.len() {
            // Of names none is the largest.
            return;
        }
        let by_number = |a: &usize, b: &usize| axis.numbers[*a].total_cmp(&axis.numbers[*b]);
        let Some(largest) = (0..axis.numbers.len()).max_by(by_number) else {
            return;
        };
        let rows = &mut self.report.rows[of_axis..];
        let limit = rows[largest].number("unfinished").unwrap_or(0.0);
        for row in rows {
            if self.targets.iter().any(|t| !t.may_be_met(row, limit)) {
                row.set("meets_target", false);
            }
        }
        self.unfinished = limit;
    }

    fn search(&mut self, axis: &Axis, others: &[Override]) -> Result<(), SweepError> {
        let of_axis = self.report.rows.len() - axis.values.len();
        self.compare_unfinished(axis, of_axis);
        let meets: Vec<bool> = self.report.rows[of_axis..]
            .iter()
            .map(|row| row.get("meets_target") == Some(&true.into()))
            .collect();
        let note = |report: &mut Report, text: String| {
            let where_: Vec<String> = others
                .iter()
                .map(|o| format!(", {} = {}", o.key, o.value))
                .collect();
            report.notes.push(format!("{text}{}", where_.concat()));
        };
        let Some(place) = meets.iter().position(|m| *m) else {
            let why = self.why_none(&self.report.rows[of_axis..]);
            note(
                &mut self.report,
                format!("no {} of the sweep meets the target{why}", axis.key),
            );
            return Ok(());
        };
        let mut best = (of_axis + place, axis.values[place].clone());
        let is_range = axis.numbers.len() == axis.values.len();
        if place > 0 && is_range {
            let (mut fails, mut holds) = (axis.numbers[place - 1], axis.numbers[place]);
            let end = (holds - fails) / RESOLUTION;
            while holds - fails > end.max(holds / RESOLUTION) {
                let middle = f64::midpoint(fails, holds);
                let row = self.one(&axis.key, &written(middle), others)?;
                if row.get("meets_target") == Some(&true.into()) {
                    holds = middle;
                    best = (self.report.rows.len() - 1, written(middle));
                } else {
                    fails = middle;
                }
            }
        }
        self.report.rows[best.0].set("smallest", true);
        let unfinished = self.report.rows[best.0].number("unfinished").unwrap_or(0.0);
        let value = match (axis.key.ends_with("capacity"), best.1.parse::<u64>()) {
            (true, Ok(bytes)) => format!("{} ({})", best.1, format_size(bytes)),
            _ => best.1,
        };
        note(
            &mut self.report,
            format!(
                "smallest {} that meets the target: {value} (checkpoints unfinished: {unfinished})",
                axis.key
            ),
        );
        Ok(())
    }
}

fn combinations(axes: &[Axis]) -> Vec<Vec<Override>> {
    let mut all = vec![Vec::new()];
    for axis in axes {
        all = all
            .iter()
            .flat_map(|before| {
                axis.values.iter().map(move |value| {
                    let mut one = before.clone();
                    one.push(Override {
                        key: axis.key.clone(),
                        value: value.clone(),
                    });
                    one
                })
            })
            .collect();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{BBOS, BBOS_VERSIONS};

    fn go(axes: &[&str], targets: &[&str], set: &[&str]) -> Result<Report, SweepError> {
        let axes: Result<Vec<Axis>, _> = axes.iter().map(|a| a.parse()).collect();
        let targets: Result<Vec<Target>, _> = targets.iter().map(|t| t.parse()).collect();
        let set: Result<Vec<Override>, _> = set.iter().map(|s| parse_set(s)).collect();
        sweep(BBOS, &set?, &axes?, &targets?, &mut |_| true)
    }

    #[test]
    fn ranges_lists_and_what_is_wrong_with_them() {
        let axis: Axis = "capacity=1TB..3TB:3".parse().unwrap();
        assert_eq!(axis.key, "bb.capacity");
        assert_eq!(
            axis.values,
            ["1000000000000", "2000000000000", "3000000000000"]
        );
        let axis: Axis = "policy=bbos, maxbw".parse().unwrap();
        assert_eq!((axis.key.as_str(), axis.values.len()), ("policy", 2));
        for bad in [
            "capacity",
            "capacity=3TB..1TB",
            "capacity=1TB..x",
            "capacity=1TB..2TB:1",
        ] {
            assert!(bad.parse::<Axis>().is_err(), "{bad}");
        }
        for bad in ["stall", "stall<1", "stall<=fast"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_smallest_buffer_without_stall_under_maxbw_is_the_data_of_a_period() {
        let set = ["policy=maxbw", "arrivals.pattern=back-to-back"];
        let report = go(&["capacity=1TB..5TB:5"], &["stall<=0.001s"], &set).unwrap();
        let smallest: Vec<&Row> = report
            .rows
            .iter()
            .filter(|r| r.get("smallest") == Some(&true.into()))
            .collect();
        assert_eq!(smallest.len(), 1);
        let bytes = smallest[0].number("capacity_bytes").unwrap();
        assert!((bytes / 3.2e12 - 1.0).abs() < 0.01, "{bytes}");
        assert!(
            report.notes[0].contains("smallest bb.capacity"),
            "{:?}",
            report.notes
        );
    }

    /// One application whose only checkpoints come at the end of each hour.
    const HOURLY: &str = "duration = \"86400\"\n[bb]\ncapacity = \"1GB\"\nbw_max = \"3GB/s\"\n\
        bw_min = \"2.5GB/s\"\nbr_max = \"100MB/s\"\nbr_min = \"20MB/s\"\n[plan]\nperiod = 3600\n\
        [[application]]\ncheckpoint = \"2TB\"\ninterval = 3600\n";

    #[test]
    fn a_buffer_in_which_no_checkpoint_ends_meets_no_target_on_checkpoints() {
        for target in ["stall<=1s", "wait<=1s", "latency<=1000s", "stalled<=0"] {
            let axes = ["capacity=1GB..5TB".parse().unwrap()];
            let targets = [target.parse().unwrap()];
            let report = sweep(HOURLY, &[], &axes, &targets, &mut |_| true).unwrap();
            assert_eq!(report.rows[0].number("checkpoints"), Some(0.0));
            let meets = report.rows[0].get("meets_target");
            assert_eq!(meets, Some(&false.into()), "{target}");
        }
        // The target is about something else.
        let axes = ["capacity=1GB..5TB".parse().unwrap()];
        let targets = ["demoted_bytes>=0".parse().unwrap()];
        let report = sweep(HOURLY, &[], &axes, &targets, &mut |_| true).unwrap();
        assert_eq!(report.rows[0].get("meets_target"), Some(&true.into()));
    }

    #[test]
    fn the_answer_leaves_no_more_unfinished_than_the_largest_and_says_how_many() {
        let axes = ["capacity=1GB..5TB".parse().unwrap()];
        let targets = ["stall<=20000s".parse().unwrap()];
        let report = sweep(HOURLY, &[], &axes, &targets, &mut |_| true).unwrap();
        let unfinished = |row: &Row| row.number("unfinished").unwrap();
        let limit = unfinished(&report.rows[8]);
        for row in &report.rows {
            let meets = row.get("meets_target") == Some(&true.into());
            assert!(!meets || unfinished(row) <= limit, "{row:?}");
        }
        let note = &report.notes[0];
        assert!(
            note.contains("smallest")
                && note.contains(&format!("(checkpoints unfinished: {limit})")),
            "{note}"
        );
    }

    #[test]
    fn several_keys_at_once() {
        let report = go(
            &["capacity=1TB..4TB:2", "policy=bbos,maxbw,maxeff"],
            &[],
            &[],
        )
        .unwrap();
        assert_eq!(report.rows.len(), 6);
        assert_eq!(report.rows[5].text("policy"), "maxeff");
        let columns = report.rows[5].0.iter().filter(|(name, _)| name == "policy");
        assert_eq!(columns.count(), 1);
    }

    #[test]
    fn unknown_keys_fields_and_unreachable_targets_are_named() {
        let error = go(&["bb.size=1TB..2TB"], &[], &[]).unwrap_err();
        assert!(error.to_string().contains("no such key"), "{error}");
        let error = go(&["capacity=1TB..2TB:2"], &["speed>=1"], &[]).unwrap_err();
        assert!(error.to_string().contains("no field 'speed'"), "{error}");
        let report = go(&["capacity=1TB..2TB:2"], &["hit_ratio>=0.5"], &[]).unwrap();
        assert!(
            report.notes[0].starts_with("no bb.capacity"),
            "{:?}",
            report.notes
        );
    }

    #[test]
    fn what_jobs_wait_for_can_be_a_target() {
        let axes = ["lending.job_share=0.2,0.8".parse().unwrap()];
        let targets = ["job_wait_s<=1000".parse().unwrap()];
        let set = [parse_set("duration=1h").unwrap()];
        let text = crate::experiment::ONFS;
        let report = sweep(text, &set, &axes, &targets, &mut |_| true).unwrap();
        let wait = |row: usize| report.rows[row].number("job_wait_s").unwrap();
        assert!(wait(0) < wait(1), "{:?}", report.rows);
    }

    #[test]
    fn a_hit_ratio_needs_capacity() {
        let axes = ["capacity=0.5TB..8TB:4".parse().unwrap()];
        let targets = ["hit_ratio>=0.95".parse().unwrap()];
        let set = [parse_set("duration=8h").unwrap()];
        let report = sweep(BBOS_VERSIONS, &set, &axes, &targets, &mut |_| true).unwrap();
        assert!(
            report.notes[0].contains("smallest bb.capacity"),
            "{:?}",
            report.notes
        );
    }
}
