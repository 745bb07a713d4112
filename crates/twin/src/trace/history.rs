//! The history of a burst buffer as what [`crate::replay`] takes: the very checkpoints, when they
//! came and how large they were, and the very restarts.

use std::collections::BTreeMap;

use forebay_types::history::{Record, What};
use serde_json::{Map, Value, json};

/// What an application that never restarted is taken for, seconds.
const MTBF_S: f64 = 86_400.0;
/// Below that a checkpoint took no time that could be measured, seconds.
const SHORTEST_S: f64 = 1e-3;

/// The burst buffer that the history is of.
#[derive(Debug, Clone, PartialEq)]
pub struct Site {
    /// Its capacity, bytes.
    pub capacity_bytes: u64,
    /// Bwmax, Bwmin, Brmax, Brmin, bytes/s, where they are known.
    pub bandwidths: Option<[f64; 4]>,
    /// The planning window, seconds.
    pub period_s: f64,
    /// The policy.
    pub policy: String,
    /// The order of victims.
    pub placement: String,
}

/// A history that can be simulated.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// The scenario: tables and keys as in TOML.
    pub parameters: Value,
    /// What was measured.
    pub jobs: Vec<Value>,
    /// Restarts served from the burst buffer over all.
    pub hit_ratio: Option<f64>,
    /// What the history does not tell, and what is taken instead.
    pub assumed: Vec<String>,
}

/// Why there is nothing to simulate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no version was written in that time")]
pub struct Nothing;

/// What an application did.
#[derive(Default)]
struct Doings<'a> {
    versions: Vec<&'a Record>,
    restarts: Vec<u64>,
}

/// Makes a trace of a history.
///
/// # Errors
/// [`Nothing`], if there is no version in it.
pub fn trace(records: &[Record], site: &Site) -> Result<Trace, Nothing> {
    let mut applications: BTreeMap<(&str, u32), Doings<'_>> = BTreeMap::new();
    for record in records {
        let key = (record.application.as_str(), record.uid);
        match record.what {
            What::Version if record.bytes > 0 => {
                applications.entry(key).or_default().versions.push(record);
            }
            What::Restart => {
                let of = applications.entry(key).or_default();
                of.restarts.push(record.begun_ms);
            }
            _ => {}
        }
    }
    // What only restarted has written nothing that could be read.
    applications.retain(|_, of| !of.versions.is_empty());
    let all = || applications.values().flat_map(|of| of.versions.iter());
    let origin_ms = all().map(|r| r.begun_ms).min().ok_or(Nothing)?;
    let last_ms = all().map(|r| r.ended_ms).max().ok_or(Nothing)?;
    let since_s = |ms: u64| ms.saturating_sub(origin_ms) as f64 / 1e3;
    let span_s = since_s(last_ms);
    let mut assumed = vec![
        "an application writes no faster than its fastest version here".to_string(),
        format!("an application that never restarted has an MTBF of {MTBF_S} s"),
    ];
    let bandwidths = site.bandwidths.unwrap_or_else(|| {
        assumed.push(
            "the burst buffer was never calibrated: Bwmax is the fastest version, Brmax the fastest drain, Bwmin 0.85 of Bwmax, \
             Brmin 0.05 of Brmax"
                .into(),
        );
        guessed(records)
    });
    let (mut tables, mut jobs) = (Vec::new(), Vec::new());
    let mut restarts = 0;
    for (at, ((name, uid), of)) in applications.iter_mut().enumerate() {
        of.versions.sort_by_key(|r| r.begun_ms);
        let table = application(&format!("{name} ({uid})"), of, site, &since_s, span_s);
        tables.push(table);
        let versions = of.versions.iter().enumerate();
        jobs.extend(versions.map(|(nth, record)| job(at, nth + 1, record)));
        restarts += of.restarts.len();
    }
    let (_, hits) = forebay_policy::history::figures::restarts(records);
    Ok(Trace {
        parameters: json!({
            "name": "history",
            "duration": span_s + site.period_s,
            "policy": site.policy,
            "placement": site.placement,
            "direct_checkpoint": true,
            "bb": {
                "capacity": site.capacity_bytes,
                "bw_max": bandwidths[0],
                "bw_min": bandwidths[1],
                "br_max": bandwidths[2],
                "br_min": bandwidths[3],
            },
            "plan": { "period": site.period_s, "dwpp": "predicted" },
            "arrivals": { "pattern": "given" },
            "application": tables,
        }),
        jobs,
        hit_ratio: (restarts > 0).then(|| hits.min(restarts as u64) as f64 / restarts as f64),
        assumed,
    })
}

/// What was measured of one version, and what may be looked at beside that.
fn job(application: usize, version: usize, record: &Record) -> Value {
    json!({
        "application": application,
        "version": version,
        "latency_s": record.lasted_s().max(SHORTEST_S),
        "bytes": record.bytes,
        "name": record.application,
        "labelled": record.version,
        "wait_s": record.wait_us as f64 / 1e6,
        "stall_s": record.stall_us as f64 / 1e6,
        "direct": record.direct_files > 0,
    })
}

fn application(
    name: &str,
    of: &Doings<'_>,
    site: &Site,
    since_s: &dyn Fn(u64) -> f64,
    span_s: f64,
) -> Value {
    let times: Vec<f64> = of.versions.iter().map(|r| since_s(r.begun_ms)).collect();
    let sizes: Vec<u64> = of.versions.iter().map(|r| r.bytes).collect();
    let rates = of.versions.iter().map(|r| rate_of(r));
    let mut table = Map::new();
    let mut set = |key: &str, value: Value| drop(table.insert(key.into(), value));
    set("name", name.into());
    set("checkpoint", sizes.iter().copied().max().into());
    set("interval", site.period_s.into());
    set("bandwidth", rates.fold(1.0, f64::max).into());
    set("times", times.into());
    set("sizes", sizes.into());
    if !of.restarts.is_empty() {
        let restarts = of.restarts.iter().map(|ms| since_s(*ms));
        set("restarts", restarts.collect::<Vec<f64>>().into());
        let mtbf_s = span_s / of.restarts.len() as f64;
        set("mtbf", mtbf_s.max(1.0).into());
    }
    Value::Object(table)
}

/// While it neither waited for its turn nor for space. Waits are added up over all who write: as
/// long as the version or longer, they do not tell how fast it was between them.
fn rate_of(version: &Record) -> f64 {
    let (lasted_s, held_s) = (
        version.lasted_s(),
        version.wait_us.saturating_add(version.stall_us) as f64 / 1e6,
    );
    let wrote_s = match held_s < lasted_s {
        true => lasted_s - held_s,
        false => lasted_s,
    };
    version.bytes as f64 / wrote_s.max(SHORTEST_S)
}

fn guessed(records: &[Record]) -> [f64; 4] {
    let versions = records
        .iter()
        .filter(|r| r.what == What::Version && r.bytes > 0);
    let bw_max = versions.map(rate_of).fold(1e6, f64::max);
    let drains = records.iter().filter_map(Record::drain_bytes_per_s);
    let br_max = drains.fold(0.0, f64::max);
    let br_max = match br_max > 0.0 {
        true => br_max.min(bw_max),
        false => bw_max / 2.0,
    };
    [bw_max, 0.85 * bw_max, br_max, 0.05 * br_max]
}

impl Trace {
    /// As `--replay` takes it.
    pub fn json(&self) -> String {
        let mut all = Map::new();
        all.insert("assumed".into(), self.assumed.clone().into());
        all.insert("parameters".into(), self.parameters.clone());
        all.insert("jobs".into(), self.jobs.clone().into());
        if let Some(hit_ratio) = self.hit_ratio {
            all.insert("hit_ratio".into(), hit_ratio.into());
        }
        format!("{:#}\n", Value::Object(all))
    }

    /// The scenario as `simulate` takes it.
    ///
    /// # Errors
    /// None of a trace that this module has made.
    pub fn toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(&self.parameters)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::experiment;
    use crate::replay::replay;
    use crate::sweep::parse_set;

    fn site(capacity_bytes: u64) -> Site {
        Site {
            capacity_bytes,
            bandwidths: Some([2e9, 1.7e9, 1e9, 5e7]),
            period_s: 3600.0,
            policy: "bbos".into(),
            placement: "bbos".into(),
        }
    }

    fn version(application: &str, begun_s: u64, lasted_ms: u64, bytes: u64) -> Record {
        let begun_ms = 1_700_000_000_000 + begun_s * 1000;
        Record {
            ended_ms: begun_ms + lasted_ms,
            files: 1,
            bytes,
            ..Record::new(What::Version, application.into(), 1000, begun_ms)
        }
    }

    fn restart(application: &str, at_s: u64, from_pfs_bytes: u64) -> Record {
        Record {
            what: What::Restart,
            from_pfs_bytes,
            ..version(application, at_s, 0, 1)
        }
    }

    #[test]
    fn a_history_is_replayed_checkpoint_by_checkpoint() {
        // 1 GB/s, at times of no even distance, of different sizes.
        let records = [
            version("a", 0, 10_000, 10_000_000_000),
            version("a", 100, 5_000, 5_000_000_000),
            version("a", 1000, 1_000, 1_000_000_000),
            version("b\"\n", 500, 2_000, 2_000_000_000),
            restart("a", 600, 0),
            restart("nobody", 600, 0),
        ];
        let trace = trace(&records, &site(100_000_000_000)).expect("versions");
        assert_eq!(trace.hit_ratio, Some(1.0));
        let report = replay(&trace.json(), &mut |_| true).expect("replayed");
        let rows: Vec<[Option<f64>; 3]> = report
            .rows
            .iter()
            .map(|row| ["version", "live_latency_s", "twin_latency_s"].map(|key| row.number(key)))
            .collect();
        let found = |version, live| {
            rows.iter().any(|row| {
                row[0] == Some(version)
                    && row[1] == Some(live)
                    && (row[2].unwrap_or(0.0) - live).abs() < 1e-6
            })
        };
        assert_eq!(rows.len(), 4, "{rows:?}");
        assert!(
            found(1.0, 10.0) && found(2.0, 5.0) && found(3.0, 1.0) && found(1.0, 2.0),
            "{rows:?}"
        );
        assert!(
            report.notes.iter().any(|note| note.contains("hit ratio")),
            "{:?}",
            report.notes
        );
    }

    #[test]
    fn waits_of_many_writers_make_no_application_faster_than_it_was() {
        let mut record = version("a", 0, 600, 600_000_000);
        assert_eq!(rate_of(&record), 1e9);
        record.wait_us = 200_000;
        assert!(
            (rate_of(&record) - 1.5e9).abs() < 1.0,
            "while it did not wait"
        );
        // Four writers, of which each waited for half a second.
        record.wait_us = 2_000_000;
        assert_eq!(rate_of(&record), 1e9);
    }

    #[test]
    fn a_smaller_buffer_would_have_had_fewer_hits() {
        let mut records = Vec::new();
        for n in 0..20 {
            for application in ["a", "b", "c", "d"] {
                records.push(version(application, n * 600, 10_000, 10_000_000_000));
            }
            records.push(restart("a", n * 600 + 400, 0));
        }
        let trace = trace(&records, &site(200_000_000_000)).expect("versions");
        let toml = trace.toml().expect("a scenario");
        let hits = |capacity: &str| {
            let set = parse_set(&format!("capacity={capacity}")).expect("a key");
            let report = experiment::scenario(&toml, &[set], &mut |_| true).expect("simulated");
            assert_eq!(report.rows[0].number("restarts"), Some(20.0));
            report.rows[0].number("hit_ratio").expect("restarts")
        };
        let (small, large) = (hits("12GB"), hits("200GB"));
        assert!(small < large && large == 1.0, "{small} {large}");
    }

    #[test]
    fn without_versions_there_is_nothing() {
        assert_eq!(trace(&[], &site(1)), Err(Nothing));
        assert_eq!(trace(&[restart("a", 1, 0)], &site(1)), Err(Nothing));
    }

    proptest! {
        /// Whatever is on record makes a scenario that is simulated to its end.
        #[test]
        fn any_history_can_be_simulated(
            versions in prop::collection::vec(
                (0usize..3, 0u64..100_000, 0u64..10_000, 1u64..1_000_000_000_000), 1..12),
            restarts in prop::collection::vec((0usize..3, 0u64..100_000), 0..4),
            is_calibrated in any::<bool>(),
        ) {
            let name = |at: usize| ["a", "b c", "ü"][at];
            let mut records: Vec<Record> = versions
                .iter()
                .map(|(of, at, lasted, bytes)| version(name(*of), *at, *lasted, *bytes))
                .collect();
            records.extend(restarts.iter().map(|(of, at)| restart(name(*of), *at, 0)));
            let mut site = site(1_000_000_000_000);
            site.bandwidths = site.bandwidths.filter(|_| is_calibrated);
            let trace = trace(&records, &site).expect("versions");
            prop_assert_eq!(trace.jobs.len(), versions.len());
            let report = replay(&trace.json(), &mut |_| true);
            // Where the first is not over when the time is, nothing can be compared.
            let fine = matches!(&report, Ok(_) | Err(crate::replay::ReplayError::NothingInCommon));
            prop_assert!(fine, "{:?}", report.err());
        }
    }
}
