//! The figures of a report.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_policy::history::figures::{
    fastest_drain_bytes_per_s, most_written_bytes, restarts, saved_s,
};
use forebay_twin::experiment;
use forebay_twin::sweep::parse_set;
use forebay_types::history::{Record, What};
use forebay_types::{format_duration, format_size};

use crate::exit::Failure;
use crate::history::Answer;
use crate::show::text;

/// Capacities that are simulated, as parts of the one there is.
pub const SIZES: [f64; 5] = [0.25, 0.5, 1.0, 2.0, 4.0];
/// Bars over the time of the report, at most.
const BARS_MAX: u64 = 48;
const HOUR_MS: u64 = 3_600_000;

/// What a report says.
pub struct Figures {
    /// The rate of the PFS, bytes/s, and from where it is known.
    pub pfs: Option<(f64, &'static str)>,
    /// Waiting time that was saved, seconds.
    pub saved_s: Option<f64>,
    /// The most that was written in a period, bytes.
    pub most_written_bytes: u64,
    /// The capacity, bytes.
    pub capacity_bytes: u64,
    /// The period, seconds.
    pub period_s: f64,
    /// Restarts, and those that read nothing from the PFS.
    pub restarts: (u64, u64),
    /// Versions.
    pub versions: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of those, written on the PFS.
    pub direct_bytes: u64,
    /// What their writes waited for space, seconds.
    pub stall_s: f64,
    /// What their writes waited for a turn, seconds.
    pub wait_s: f64,
    /// Mean of the time that a version took, seconds.
    pub mean_s: f64,
    /// Bytes written, by time: the length of a step in milliseconds, and the bytes of each.
    pub written: (u64, Vec<u64>),
    /// By application.
    pub applications: Vec<Application>,
    /// What other capacities would have done.
    pub what_if: Vec<WhatIf>,
    /// What was assumed for that.
    pub assumed: Vec<String>,
}

/// What one application did.
#[derive(Default)]
pub struct Application {
    /// Its name.
    pub name: String,
    /// Versions.
    pub versions: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What they took, seconds.
    pub took_s: f64,
    /// What their writes waited for space, seconds.
    pub stall_s: f64,
    /// From the end to the drain, seconds, of those that were drained.
    pub drain_s: f64,
    /// How many those are.
    pub drained: u64,
    /// Restarts, and those that read nothing from the PFS.
    pub restarts: (u64, u64),
}

/// One capacity, simulated.
pub struct WhatIf {
    /// The part of the capacity there is.
    pub share: f64,
    /// Bytes.
    pub capacity_bytes: u64,
    /// Mean of the time that a version takes, its wait, and its stall, seconds.
    pub mean_s: f64,
    /// See above.
    pub wait_s: f64,
    /// See above.
    pub stall_s: f64,
    /// Versions that stalled.
    pub stalled: f64,
    /// Restarts served from the burst buffer over all.
    pub hit_ratio: Option<f64>,
    /// Written on the PFS, bytes.
    pub direct_bytes: f64,
}

/// The figures of a history.
pub fn of(answer: &Answer) -> Result<Figures, Failure> {
    let records = &answer.records;
    let site = answer.site();
    let trace = answer.trace()?;
    let toml = trace
        .toml()
        .map_err(|error| Failure::fatal(format!("report: {error}")))?;
    let mut what_if = Vec::new();
    for share in SIZES {
        what_if.push(simulated(&toml, share, site.capacity_bytes)?);
    }
    let measured = answer.status.plan.bandwidths.map(|four| four[2] as f64);
    let pfs = match measured {
        Some(rate) => Some((
            rate,
            "Brmax, as it is measured and corrected while the burst buffer runs",
        )),
        None => fastest_drain_bytes_per_s(records)
            .map(|rate| (rate, "the fastest drain of a version in this time")),
    };
    let versions = || records.iter().filter(|r| r.what == What::Version);
    let count = versions().count() as u64;
    let sum = |of: fn(&Record) -> u64| versions().map(of).fold(0, u64::saturating_add);
    Ok(Figures {
        saved_s: pfs.map(|(rate, _)| saved_s(records, rate)),
        pfs,
        most_written_bytes: most_written_bytes(records, (site.period_s * 1e3) as u64),
        capacity_bytes: site.capacity_bytes,
        period_s: site.period_s,
        restarts: restarts(records),
        versions: count,
        bytes: sum(|r| r.bytes),
        direct_bytes: sum(|r| r.direct_bytes),
        stall_s: sum(|r| r.stall_us) as f64 / 1e6,
        wait_s: sum(|r| r.wait_us) as f64 / 1e6,
        mean_s: versions().map(Record::lasted_s).sum::<f64>() / count.max(1) as f64,
        written: by_time(answer),
        applications: by_application(records),
        what_if,
        assumed: trace.assumed,
    })
}

fn simulated(toml: &str, share: f64, capacity_bytes: u64) -> Result<WhatIf, Failure> {
    let fatal = |error: &dyn std::fmt::Display| Failure::fatal(format!("report: {error}"));
    let capacity_bytes = ((capacity_bytes as f64 * share) as u64).max(1);
    let set = parse_set(&format!("capacity={capacity_bytes}")).map_err(|e| fatal(&e))?;
    let report = experiment::scenario(toml, &[set], &mut |_| true).map_err(|e| fatal(&e))?;
    let number = |field: &str| report.rows.first().and_then(|row| row.number(field));
    Ok(WhatIf {
        share,
        capacity_bytes,
        mean_s: number("mean_latency_s").unwrap_or(0.0),
        wait_s: number("mean_wait_s").unwrap_or(0.0),
        stall_s: number("mean_stall_s").unwrap_or(0.0),
        stalled: number("stalled").unwrap_or(0.0),
        hit_ratio: number("hit_ratio"),
        direct_bytes: number("direct_bytes").unwrap_or(0.0),
    })
}

/// Bytes of versions by the time of their end, in whole hours or days where that is enough.
fn by_time(answer: &Answer) -> (u64, Vec<u64>) {
    let versions = || answer.records.iter().filter(|r| r.what == What::Version);
    let first_ms = versions().map(|r| r.ended_ms).min().unwrap_or(0);
    let last_ms = versions().map(|r| r.ended_ms).max().unwrap_or(0);
    let span_ms = (last_ms - first_ms).saturating_add(1);
    let steps_ms = [60_000, HOUR_MS, 24 * HOUR_MS];
    let even_ms = span_ms.div_ceil(BARS_MAX);
    let step_ms = steps_ms.into_iter().find(|step| *step >= even_ms);
    let step_ms = step_ms.unwrap_or(even_ms);
    let mut written = vec![0u64; usize::try_from(span_ms.div_ceil(step_ms)).unwrap_or(1)];
    for record in versions() {
        let at = usize::try_from((record.ended_ms - first_ms) / step_ms).unwrap_or(0);
        written[at] = written[at].saturating_add(record.bytes);
    }
    (step_ms, written)
}

/// Those that wrote most first.
fn by_application(records: &[Record]) -> Vec<Application> {
    let mut all: BTreeMap<&str, Application> = BTreeMap::new();
    for record in records {
        let of = all.entry(&record.application).or_default();
        match record.what {
            What::Version => {
                of.versions += 1;
                of.bytes = of.bytes.saturating_add(record.bytes);
                of.took_s += record.lasted_s();
                of.stall_s += record.stall_us as f64 / 1e6;
                if let Some(at_ms) = record.all_drained_ms() {
                    of.drained += 1;
                    of.drain_s += at_ms.saturating_sub(record.ended_ms) as f64 / 1e3;
                }
            }
            What::Restart => {
                of.restarts.0 += 1;
                of.restarts.1 += u64::from(record.from_pfs_bytes == 0);
            }
            _ => {}
        }
    }
    let named = all.into_iter().map(|(name, of)| Application {
        name: name.into(),
        ..of
    });
    let mut named: Vec<Application> = named.filter(|a| a.versions + a.restarts.0 > 0).collect();
    named.sort_by_key(|a| std::cmp::Reverse(a.bytes));
    named
}

/// Seconds for people, also less than none.
pub fn span(seconds: f64) -> String {
    let sign = if seconds < 0.0 { "−" } else { "" };
    let span = Duration::try_from_secs_f64(seconds.abs()).unwrap_or_default();
    format!("{sign}{}", format_duration(span))
}

impl Figures {
    /// The most of a period over the capacity.
    pub fn oversubscription(&self) -> f64 {
        self.most_written_bytes as f64 / self.capacity_bytes.max(1) as f64
    }

    /// In a few lines, for the terminal.
    pub fn summary(&self) -> String {
        let (all, hits) = self.restarts;
        let saved = self.saved_s.map_or("not known".into(), span);
        format!(
            "{}, {}; waiting time saved: {saved}; over-subscription: {:.2} S; restarts from the buffer: {}\n",
            text::versions(self.versions),
            format_size(self.bytes),
            self.oversubscription(),
            match all {
                0 => "no restarts".into(),
                _ => format!("{hits} of {all} ({})", text::percent(hits, all)),
            }
        )
    }
}
