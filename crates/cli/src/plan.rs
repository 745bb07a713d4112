//! `forebay plan`: when demotion starts and how it ramps.

use std::time::Duration;

use clap::Args;
use forebay_policy::plan::{Plan, PlanError, PlanInput};
use forebay_types::{format_duration, format_size, parse_duration, parse_size};
use serde_json::{Value, json};

use crate::exit::{Exit, Failure};
use crate::show::json;
use crate::{out, usage};

/// Computes when demotion starts and how it ramps, from bandwidths and expected data
#[derive(Args)]
#[command(
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "Pattern 1: all fits, demote when idle. Pattern 2: checkpoints run undisturbed for tc, then ",
        "demotion ramps up over tdd. Pattern 3: it ramps up at once and runs at full speed for tds. ",
        "A plan is feasible if the burst buffer is clean again when the next period begins.\n\n",
        "Plain numbers are bytes and bytes/s; 3.2TB and 3.56GB/s are understood, too.\n\n",
        "JSON: {\"pattern\", \"tc_s\", \"tdd_s\", \"tds_s\", \"start_dwsf_bytes\", \"full_dwsf_bytes\", ",
        "\"feasible\"}; where no plan exists all are null, \"feasible\" is false and \"reason\" says why.\n\n",
        "Example:\n  forebay plan --capacity 3.2TB --dwpp 3.84TB --bw-max 3.56GB/s --bw-min 3GB/s \\\n",
        "      --br-max 1.6GB/s --br-min 80MB/s --period 3800s\n\n",
        "Exit codes: 0 computed (feasible or not); 1 numbers that make no sense."
    )
)]
pub struct PlanArgs {
    /// S: capacity of the burst buffer
    #[arg(long, value_name = "SIZE", value_parser = given)]
    capacity: Quantity,
    /// DWPP: data written per period, as expected
    #[arg(long, value_name = "SIZE", value_parser = given)]
    dwpp: Quantity,
    /// Bwmax: write bandwidth without demotion
    #[arg(long, value_name = "RATE", value_parser = given)]
    bw_max: Quantity,
    /// Bwmin: write bandwidth beside demotion at full speed
    #[arg(long, value_name = "RATE", value_parser = given)]
    bw_min: Quantity,
    /// Brmax: demotion bandwidth at full speed
    #[arg(long, value_name = "RATE", value_parser = given)]
    br_max: Quantity,
    /// Brmin: demotion bandwidth beside a checkpoint at full speed
    #[arg(long, value_name = "RATE", value_parser = given)]
    br_min: Quantity,
    /// Length of the period
    #[arg(long, value_name = "DUR", value_parser = parse_duration)]
    period: Duration,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &PlanArgs) -> Result<Exit, Failure> {
    let input = PlanInput {
        capacity_bytes: args.capacity.value,
        dwpp_bytes: args.dwpp.value,
        bw_max_bytes_per_s: args.bw_max.value,
        bw_min_bytes_per_s: args.bw_min.value,
        br_max_bytes_per_s: args.br_max.value,
        br_min_bytes_per_s: args.br_min.value,
        period_s: args.period.as_secs_f64(),
    };
    let plan = match Plan::new(input) {
        Ok(plan) => Ok(plan),
        Err(error @ PlanError::Overflow { .. }) => Err(error.to_string()),
        Err(error) => return Err(Failure::fatal(format!("plan: {error}"))),
    };
    match args.json {
        true => json::print(&to_json(&plan)),
        false => {
            let units = Units {
                is_size_binary: args.capacity.is_binary,
                is_rate_binary: args.bw_max.is_binary,
            };
            out::print(&render(&plan, &input, units));
        }
    }
    Ok(Exit::Complete)
}

/// Bytes, or bytes per second, and how people gave them.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Quantity {
    value: f64,
    /// In powers of 1024: `GiB`, not `GB`.
    is_binary: bool,
}

/// Bytes, or bytes per second: a plain number, in any notation, or a size with or without `/s`.
fn quantity(text: &str) -> Result<f64, String> {
    if let Ok(number) = text.parse::<f64>() {
        return Ok(number);
    }
    let size = text.strip_suffix("/s").unwrap_or(text);
    parse_size(size)
        .map(|bytes| bytes as f64)
        .map_err(|error| error.to_string())
}

/// The same, and its notation.
fn given(text: &str) -> Result<Quantity, String> {
    Ok(Quantity {
        value: quantity(text)?,
        is_binary: text.contains(['i', 'I']),
    })
}

/// What the answer is in: as the capacity, and as the greatest rate, were given.
#[derive(Clone, Copy)]
struct Units {
    is_size_binary: bool,
    is_rate_binary: bool,
}

/// A size for people, in powers of 1024 or of 1000.
fn show(bytes: f64, is_binary: bool) -> String {
    if is_binary {
        return format_size(bytes as u64);
    }
    let units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let (mut value, mut unit) = (bytes, 0);
    while value >= 999.95 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    match unit {
        0 => format!("{value:.0} B"),
        _ => format!("{value:.1} {}", units[unit]),
    }
}

fn to_json(plan: &Result<Plan, String>) -> Value {
    match plan {
        Ok(plan) => json!({
            "pattern": plan.pattern,
            "tc_s": plan.tc_s,
            "tdd_s": plan.tdd_s,
            "tds_s": plan.tds_s,
            "start_dwsf_bytes": plan.start_dwsf_bytes,
            "full_dwsf_bytes": plan.full_dwsf_bytes,
            "feasible": plan.feasible,
        }),
        Err(reason) => json!({
            "pattern": null, "tc_s": null, "tdd_s": null, "tds_s": null,
            "start_dwsf_bytes": null, "full_dwsf_bytes": null,
            "feasible": false, "reason": reason,
        }),
    }
}

fn render(plan: &Result<Plan, String>, input: &PlanInput, units: Units) -> String {
    let plan = match plan {
        Ok(plan) => plan,
        Err(reason) => return format!("not feasible: {reason}\n"),
    };
    let time =
        |s: f64| Duration::try_from_secs_f64(s).map_or_else(|_| "forever".into(), format_duration);
    let place = |bytes: f64| {
        format!(
            "{} ({:.3} S)",
            show(bytes, units.is_size_binary),
            bytes / input.capacity_bytes
        )
    };
    let how = match plan.pattern {
        1 => "all fits: demote only when idle",
        2 => "undisturbed first, then demotion ramps up",
        _ => "demotion ramps up at once, then runs at full speed",
    };
    let mut text = format!("pattern {}   {how}\n", plan.pattern);
    text.push_str(&format!("tc          {}\n", time(plan.tc_s)));
    text.push_str(&format!("tdd         {}\n", time(plan.tdd_s)));
    text.push_str(&format!("tds         {}\n", time(plan.tds_s)));
    if plan.pattern > 1 {
        text.push_str(&format!(
            "starts at   {} written\n",
            place(plan.start_dwsf_bytes)
        ));
        text.push_str(&format!(
            "full speed  {} written\n",
            place(plan.full_dwsf_bytes)
        ));
    }
    text.push_str(match plan.feasible {
        true => "feasible    the burst buffer is clean for the next period\n",
        false => "NOT feasible: the period is too short to drain what is left\n",
    });
    text.push('\n');
    text.push_str(&chart(plan, input, units.is_rate_binary));
    text
}

/// Columns of the chart.
const COLUMNS: usize = 48;
const LEVELS: [char; 9] = [
    ' ', '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}',
    '\u{2588}',
];

/// Both rates from the first byte to the last, each against its greatest value.
fn chart(plan: &Plan, input: &PlanInput, is_binary: bool) -> String {
    let all_s = plan.tc_s + plan.tdd_s + plan.tds_s;
    if all_s <= 0.0 {
        return String::new();
    }
    let mut lines = [String::new(), String::new()];
    for column in 0..COLUMNS {
        let at_s = (column as f64 + 0.5) / COLUMNS as f64 * all_s;
        // Share of the ramp that is behind.
        let x = match at_s - plan.tc_s {
            before if before < 0.0 => 0.0,
            after if after < plan.tdd_s => after / plan.tdd_s,
            _ => 1.0,
        };
        let write =
            input.bw_max_bytes_per_s - (input.bw_max_bytes_per_s - input.bw_min_bytes_per_s) * x;
        let demotion = match plan.pattern {
            1 => 0.0,
            _ => {
                input.br_min_bytes_per_s + (input.br_max_bytes_per_s - input.br_min_bytes_per_s) * x
            }
        };
        let shares = [
            write / input.bw_max_bytes_per_s,
            demotion / input.br_max_bytes_per_s,
        ];
        for (line, share) in lines.iter_mut().zip(shares) {
            line.push(LEVELS[(share * 8.0).round().clamp(0.0, 8.0) as usize]);
        }
    }
    let rate = |bytes: f64| format!("{}/s", show(bytes, is_binary));
    let end = Duration::try_from_secs_f64(all_s).map_or_else(|_| "forever".into(), format_duration);
    format!(
        "writes      |{}| of {}\ndemotion    |{}| of {}\n             0{end:>width$}\n",
        lines[0],
        rate(input.bw_max_bytes_per_s),
        lines[1],
        rate(input.br_max_bytes_per_s),
        width = COLUMNS - 1,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn papers(dwpp_in_s: f64) -> PlanInput {
        PlanInput {
            capacity_bytes: 3.2e12,
            dwpp_bytes: dwpp_in_s * 3.2e12,
            bw_max_bytes_per_s: 3.56e9,
            bw_min_bytes_per_s: 3e9,
            br_max_bytes_per_s: 1.6e9,
            br_min_bytes_per_s: 0.08e9,
            period_s: 3800.0,
        }
    }

    #[test]
    fn quantities_in_any_notation() {
        assert_eq!(quantity("3.2e12"), Ok(3.2e12));
        assert_eq!(quantity("3.2TB"), Ok(3.2e12));
        assert_eq!(quantity("80MB/s"), Ok(8e7));
        assert_eq!(quantity("80000000"), Ok(8e7));
        assert!(quantity("fast").is_err());
    }

    #[test]
    fn json_has_the_promised_fields() {
        let value = to_json(&Plan::new(papers(1.2)).map_err(|e| e.to_string()));
        assert_eq!(value["pattern"], 2);
        assert_eq!(value["feasible"], true);
        for field in [
            "tc_s",
            "tdd_s",
            "tds_s",
            "start_dwsf_bytes",
            "full_dwsf_bytes",
        ] {
            assert!(value[field].is_f64(), "{field}");
        }
        let overflow = to_json(&Plan::new(papers(2.2)).map_err(|e| e.to_string()));
        assert_eq!(overflow["feasible"], false);
        assert!(
            overflow["reason"]
                .as_str()
                .is_some_and(|r| r.contains("overflow"))
        );
    }

    #[test]
    fn people_read_shares_of_the_capacity() {
        let text = render(
            &Plan::new(papers(1.2)).map_err(|e| e.to_string()),
            &papers(1.2),
            DECIMAL,
        );
        assert!(text.contains("(0.459 S) written"), "{text}");
        assert!(text.contains("feasible    the burst"), "{text}");
    }

    const DECIMAL: Units = Units {
        is_size_binary: false,
        is_rate_binary: false,
    };

    #[test]
    fn who_asks_in_gb_is_answered_in_gb() {
        let is_binary = |text: &str| given(text).map(|given| given.is_binary);
        assert_eq!(is_binary("3.2TB"), Ok(false));
        assert_eq!(is_binary("3.2TiB"), Ok(true));
        assert_eq!(is_binary("80MiB/s"), Ok(true));
        assert_eq!(is_binary("3.2e12"), Ok(false));
        let plan = Plan::new(papers(1.2)).map_err(|e| e.to_string());
        let text = render(&plan, &papers(1.2), DECIMAL);
        assert!(text.contains("starts at   1.5 TB (0.459 S)"), "{text}");
        assert!(text.contains("| of 3.6 GB/s\n"), "{text}");
        let rates = Units {
            is_rate_binary: true,
            ..DECIMAL
        };
        let text = render(&plan, &papers(1.2), rates);
        assert!(text.contains("starts at   1.5 TB (0.459 S)"), "{text}");
        assert!(text.contains("| of 3.3 GiB/s\n"), "{text}");
        assert_eq!(show(999.0, false), "999 B");
        assert_eq!(show(999_960.0, false), "1.0 MB");
    }

    #[test]
    fn the_chart_shows_where_demotion_starts() {
        let plan = Plan::new(papers(1.2)).expect("a plan");
        let text = chart(&plan, &papers(1.2), false);
        let line = |name: &str| {
            let line = text.lines().find(|l| l.starts_with(name)).expect("a line");
            line.split('|').nth(1).expect("columns").to_string()
        };
        let (writes, demotion) = (line("writes"), line("demotion"));
        assert_eq!(writes.chars().count(), COLUMNS);
        assert_eq!(writes.chars().next(), Some(LEVELS[8]));
        assert_eq!(writes.chars().last(), Some(LEVELS[7]), "3 of 3.56 GB/s");
        let quiet = demotion.chars().take_while(|c| *c == LEVELS[0]).count();
        let start = (plan.tc_s / (plan.tc_s + plan.tdd_s) * COLUMNS as f64) as usize;
        assert!(
            quiet >= start && quiet < start + 5,
            "{quiet} of {start}: {text}"
        );
        assert_eq!(demotion.chars().last(), Some(LEVELS[8]));
        let calm = chart(
            &Plan::new(papers(0.5)).expect("a plan"),
            &papers(0.5),
            false,
        );
        assert!(
            !calm.lines().nth(1).expect("demotion").contains(LEVELS[1]),
            "{calm}"
        );
        let none = papers(0.0);
        assert_eq!(chart(&Plan::new(none).expect("a plan"), &none, false), "");
    }
}
