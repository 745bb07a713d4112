//! `forebay calibrate`: measures the bandwidths that plans are made from.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use forebay_types::{Errno, parse_duration};
use forebay_wire::control::{Calibrated, CalibrationStep, Control, ControlResponse};
use serde_json::json;

use crate::control::{AskError, Daemon};
use crate::exit::{Exit, Failure};
use crate::show::json;
use crate::show::text::rate;
use crate::{instance, out, usage};

/// Shorter measurements say little, longer ones hold up programs that write.
const SPANS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(60);

/// Measures Bwmax, Bwmin, Brmax and Brmin of the tiers at hand and plans with them from then on
#[derive(Args)]
#[command(
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "Writes to the first flash directory (memory where there is none) and copies to the PFS, each ",
        "alone and both at once, into files without names. Run it when little else does I/O. The outcome ",
        "is kept in the state folder; bandwidths in the configuration go before it. A measurement is ",
        "tried three times or more (nine at most), until tries agree. The command says how far tries lie ",
        "apart. Where they lie too far apart it says so, and nothing changes.\n\n",
        "Examples:\n  forebay calibrate --state /var/lib/forebay\n  forebay calibrate --json --time 10s\n\n",
        "Exit codes: 0 measured; 1 nothing runs there, no room, tries too far apart, or it is ",
        "another user's."
    )
)]
pub struct CalibrateArgs {
    /// State folder of the burst buffer; without it (and FOREBAY_STATE) the only one mounted here
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Time of three tries of each measurement, 0.1 s to a minute
    #[arg(long, value_name = "DUR", default_value = "3s", value_parser = parse_span)]
    time: Duration,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &CalibrateArgs) -> Result<Exit, Failure> {
    let state = instance::state_or_only(args.state.as_deref())?;
    let daemon = Daemon::connect(&state)?;
    let fail = |error| daemon.failure(error, "measure its bandwidths");
    // Asked before the command says that it begins: who is not told names may not measure either.
    if daemon.status().map_err(fail)?.names_hidden {
        return Err(fail(AskError::Refused(Errno::EPERM)));
    }
    let steps = [
        (CalibrationStep::Write, "1/3 writing to the burst buffer"),
        (CalibrationStep::Demote, "2/3 copying to the PFS"),
        (CalibrationStep::Both, "3/3 both at once"),
    ];
    let mut last = Calibrated::default();
    let mut spread_permille = 0;
    for (step, what) in steps {
        if !args.json {
            out::print(&format!("{what} ...\n"));
        }
        last = ask(&daemon, step, args.time).map_err(|e| match e {
            AskError::Refused(Errno::EBUSY) => Failure::fatal(
                "calibrate: somebody else measures this burst buffer now; try again when that has ended",
            ),
            AskError::Refused(Errno::ENOSPC) => Failure::fatal(
                "calibrate: no space to write to: the measurement needs space in the first tier and on the PFS; make room there",
            ),
            e => fail(e),
        })?;
        if let Some((low, high)) = last.unsettled {
            return Err(Failure::fatal(unsettled(what, low, high)));
        }
        spread_permille = spread_permille.max(last.spread_permille);
    }
    let Some([bw_max, bw_min, br_max, br_min]) = last.bandwidths else {
        return Err(Failure::fatal(
            "calibrate: the last step gave no bandwidths",
        ));
    };
    if args.json {
        json::print(&json!({
            "bw_max_bytes_per_s": bw_max,
            "bw_min_bytes_per_s": bw_min,
            "br_max_bytes_per_s": br_max,
            "br_min_bytes_per_s": br_min,
            "spread": spread_permille as f64 / 1e3,
            "line": last.line.map(|(m, b)| json!({"m": m as f64 / 1e6, "b_bytes_per_s": b})),
        }));
        return Ok(Exit::Complete);
    }
    let rate = |bytes: u64| rate(bytes as f64);
    let line = match last.line {
        Some((m, b)) => format!("write = {:.2} x demotion + {}", m as f64 / 1e6, rate(b)),
        None => "not to be had: demotion moved nothing".into(),
    };
    out::print(&format!(
        "Bwmax {}  writes alone\nBwmin {}  writes beside demotion at full speed\nBrmax {}  demotion alone\n\
         Brmin {}  demotion that does not disturb\nline  {line}\ntries lie within {:.0} % of each other\n",
        rate(bw_max),
        rate(bw_min),
        rate(br_max),
        rate(br_min),
        spread_permille as f64 / 10.0
    ));
    Ok(Exit::Complete)
}

fn parse_span(text: &str) -> Result<Duration, String> {
    let span = parse_duration(text).map_err(|e| e.to_string())?;
    match SPANS.contains(&span) {
        true => Ok(span),
        false => Err("a measurement takes 100ms to 60s".into()),
    }
}

fn unsettled(what: &str, low: u64, high: u64) -> String {
    format!(
        "calibrate: {what}: tries from {} to {}: no bandwidth to plan with, and nothing was changed; run it when little \
         else does I/O, or with a longer --time",
        rate(low as f64),
        rate(high as f64)
    )
}

fn ask(daemon: &Daemon, step: CalibrationStep, time: Duration) -> Result<Calibrated, AskError> {
    let time_ms = time.as_millis() as u64;
    match daemon.ask(Control::Calibrate { step, time_ms })? {
        ControlResponse::Calibrated(calibrated) => Ok(calibrated),
        _ => Err(AskError::Protocol(
            "the daemon answered another question".into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_takes_a_sane_time() {
        assert_eq!(parse_span("10s"), Ok(Duration::from_secs(10)));
        for text in ["0", "5m", "99ms", "61", "soon"] {
            assert!(parse_span(text).is_err(), "{text}");
        }
    }
}
