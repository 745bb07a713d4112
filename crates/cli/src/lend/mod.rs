//! `forebay lend`: jobs get memory back that the burst buffer has borrowed.

mod lender;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args};
use forebay_policy::lending::CAPACITY_MIN_BYTES;
use forebay_types::{Errno, format_size, parse_duration, parse_size};
use forebay_wire::control::{
    Control, ControlResponse, LENDING_NAME_MAX, LENDING_ORDERS_MAX, LendingStatus,
};

use crate::control::{AskError, Daemon};
use crate::exit::{Exit, Explain, Failure};
use crate::show::json;
use crate::signals::Signals;
use crate::status::{lending_json, lending_waits as waits};
use crate::{out, usage};

/// Between two looks at what is still to leave.
const LOOK: Duration = Duration::from_millis(100);

/// Gives jobs memory back that the burst buffer has borrowed (--dram auto)
#[derive(Args)]
#[command(
    after_help = usage::EXIT_CODES,
    group(ArgGroup::new("how_much").args(["size", "end"]).required(true)),
    after_long_help = concat!(
        "For a prolog: the memory tier gets so much less than it may have otherwise, until another ",
        "order of the same name. Orders of several names add up: with --for each job on a node has its ",
        "own, and --end takes back that one alone. What is in it beyond that moves to flash, or is drained; programs go on reading and ",
        "writing. Pressure gives memory back by itself, but later than a job that knows what it needs. ",
        "The order is kept over restarts.\n\n",
        "Examples:\n",
        "  forebay lend 64GiB --wait 30s\n",
        "  forebay lend --end\n",
        "  forebay lend 64GiB --state /var/lib/forebay/bb --for \"$SLURM_JOB_ID\" --wait 30s\n",
        "  forebay lend --end --state /var/lib/forebay/bb --for \"$SLURM_JOB_ID\"\n\n",
        "Exit codes: 0 in force, and with --wait nothing is left beyond it; 4 some of it is still held when ",
        "the time is over: it goes on leaving; 1 it could not be ordered: one line says why."
    )
)]
pub struct LendArgs {
    /// How much jobs get back; 0 is the same as --end
    #[arg(value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// Take the order back: the tier may grow again
    #[arg(long)]
    end: bool,
    /// Whose order it is: those of other names stay in force, and all add up
    #[arg(long = "for", value_name = "NAME", value_parser = order_name)]
    order_of: Option<String>,
    /// Wait until it has left, so long at most
    #[arg(long, value_name = "DURATION", value_parser = span, conflicts_with = "end")]
    wait: Option<Duration>,
    /// State folder of the burst buffer; without it (and FOREBAY_STATE) the only one here that
    /// lends
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Print one JSON object: `lending` of `forebay status --json`
    #[arg(long)]
    json: bool,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

fn order_name(text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err("a name is not empty".into()),
        1..=LENDING_NAME_MAX if !text.chars().any(char::is_control) => Ok(text.into()),
        1..=LENDING_NAME_MAX => Err("a name has no control characters".into()),
        _ => Err(format!("a name has {LENDING_NAME_MAX} bytes at most")),
    }
}

fn span(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

/// Runs the command.
pub fn run(args: &LendArgs) -> Result<Exit, Failure> {
    let signals = Signals::count().explain("signals", "")?;
    let state = lender::state(args.state.as_deref())?;
    let daemon = Daemon::connect(&state)?;
    let bytes = args.size.filter(|_| !args.end).unwrap_or(0);
    let name = args.order_of.as_deref().unwrap_or_default();
    let status = || daemon.status();
    let before = status().map_err(|e| daemon.failure(e, "show its status"))?;
    let is_unknown = bytes == 0
        && before
            .lending
            .as_deref()
            .is_some_and(|l| !has_order(l, name));
    let not_borrowed =
        || lender::not_borrowed(&state, before.tiers.iter().map(|tier| tier.name.as_str()));
    let ordered = match order(&daemon, bytes, name)? {
        Ordered::Status(status) => status,
        Ordered::NotBorrowed => return Err(not_borrowed()),
    };
    let Some(mut lending) = ordered else {
        // The order of an earlier start is gone, and there is no other.
        out::complain(FIXED);
        return Ok(Exit::Complete);
    };
    if is_unknown {
        let whose = match name {
            "" => String::new(),
            name => format!(" of '{name}'"),
        };
        out::complain(&format!("lend: no order{whose} was in force"));
    }
    let begun = Instant::now();
    let exit = loop {
        match args.wait {
            None => break Exit::Complete,
            Some(_) if lending.owed_bytes == 0 => break Exit::Complete,
            Some(limit) if begun.elapsed() >= limit => break Exit::TimedOut,
            Some(_) => {}
        }
        if signals.sleep(LOOK) {
            break Exit::Interrupted;
        }
        let bits = status().map_err(|e| daemon.failure(e, "show its status"))?;
        lending = *bits.lending.ok_or_else(not_borrowed)?;
    };
    match args.json {
        true => json::print(&lending_json(&lending)),
        false => {
            let most = before.lending.as_deref().and_then(most_bytes);
            out::print(&format!("{}\n", in_words(&lending, most)));
        }
    }
    Ok(exit)
}

fn has_order(lending: &LendingStatus, name: &str) -> bool {
    lending.orders.iter().any(|order| order.name == name)
}

/// What came of an order.
enum Ordered {
    /// `None` where nothing is borrowed, and so no order can be in force.
    Status(Option<LendingStatus>),
    /// Nothing is borrowed, and so nothing goes back.
    NotBorrowed,
}

fn order(daemon: &Daemon, bytes: u64, name: &str) -> Result<Ordered, Failure> {
    let name = name.to_string();
    match daemon.ask(Control::Lend { bytes, name }) {
        Ok(ControlResponse::Status(bits)) => {
            Ok(Ordered::Status(bits.lending.map(|lending| *lending)))
        }
        Ok(_) => Err(daemon.failure(AskError::other_question(), "lend memory")),
        Err(AskError::Refused(Errno::EOPNOTSUPP)) => Ok(Ordered::NotBorrowed),
        Err(AskError::Refused(Errno::EDQUOT)) => Err(Failure::fatal(format!(
            "lend: {LENDING_ORDERS_MAX} orders are in force, or fewer with long names (64 KiB in all); `forebay status --json` names them, `forebay lend --end --for NAME` takes one back"
        ))),
        Err(error) => Err(daemon.failure(error, "lend memory")),
    }
}

const FIXED: &str =
    "lend: the memory tier has a fixed size, or there is none: no order is in force";

/// What all orders together get at most, bytes: the tier without its floor. `None` where orders
/// have lowered it to that already, for then nothing says how much it had.
fn most_bytes(lending: &LendingStatus) -> Option<u64> {
    let above = lending.ceiling_bytes.checked_sub(lending.floor_bytes)?;
    let is_known = above > 0 || lending.ordered_bytes == 0;
    is_known.then(|| above.saturating_add(lending.ordered_bytes))
}

fn in_words(lending: &LendingStatus, most_bytes: Option<u64>) -> String {
    let may = format_size(lending.ceiling_bytes);
    let owed = format_size(lending.owed_bytes);
    if lending.ordered_bytes == 0 {
        let order = format!("no order is in force: the memory tier may have {may}");
        return match lending.owed_bytes {
            0 => order,
            // What an order has taken comes back step by step, and so does what jobs have left.
            _ => format!(
                "{order}; it has {} now, and {owed} leave it unless it grows before{}",
                format_size(lending.borrowed_bytes),
                waits(lending)
            ),
        };
    }
    let by = match lending.orders.len() {
        0 | 1 => String::new(),
        orders => format!(" by {orders} orders"),
    };
    let bytes = format_size(lending.ordered_bytes);
    let kept = match lending.ceiling_bytes > lending.floor_bytes {
        true => String::new(),
        false => kept(lending, most_bytes),
    };
    let order = format!("{bytes} go back to jobs{by}: the memory tier may have {may}{kept}");
    match lending.owed_bytes {
        0 => order,
        _ => format!("{order}; {owed} are still to leave it{}", waits(lending)),
    }
}

/// Of a tier that orders have lowered to its floor.
fn kept(lending: &LendingStatus, most_bytes: Option<u64>) -> String {
    // The least that any tier has no setting lowers.
    let who = match lending.floor_bytes > CAPACITY_MIN_BYTES {
        true => "dram_min",
        false => "it",
    };
    match most_bytes {
        Some(most) => format!(
            ", which {who} keeps whatever is ordered: {} go back at most",
            format_size(most)
        ),
        None => format!(
            ", which {who} keeps whatever is ordered: no more goes back than it had beyond that"
        ),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use forebay_wire::control::{LendingFile, LendingOrder};

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        lend: LendArgs,
    }

    #[test]
    fn a_size_or_an_end_is_asked_for() {
        let said = |words: &[&str]| {
            let asked = Alone::try_parse_from([&["lend"], words].concat());
            asked
                .map(|a| (a.lend.size, a.lend.end))
                .map_err(|e| e.to_string())
        };
        let missing = said(&[]).expect_err("neither");
        assert!(missing.contains("<SIZE|--end>"), "{missing}");
        assert!(said(&["1GiB", "--end"]).is_err(), "both");
        assert_eq!(said(&["--end"]), Ok((None, true)));
        assert_eq!(said(&["0"]), Ok((Some(0), false)));
    }

    #[test]
    fn a_name_of_an_order_is_one_line() {
        assert_eq!(order_name("job 7"), Ok("job 7".to_string()));
        for name in ["", "a\nb", &"x".repeat(256)] {
            assert!(order_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn an_order_is_told_with_what_is_left_of_it() {
        let mut lending = LendingStatus {
            ceiling_bytes: 4 << 30,
            ordered_bytes: 8 << 30,
            owed_bytes: 1 << 30,
            ..LendingStatus::default()
        };
        assert_eq!(
            in_words(&lending, None),
            "8.0 GiB go back to jobs: the memory tier may have 4.0 GiB; 1.0 GiB are still to leave it"
        );
        lending.orders = vec![LendingOrder::default(); 2];
        (lending.waits_files, lending.waits_bytes) = (3, 512 << 20);
        let file = |path: &[u8], deleted| LendingFile {
            path: path.to_vec(),
            bytes: 1,
            deleted,
        };
        lending.waits_for = vec![file(b"run/a", false), file(b"(unlinked object 1)", true)];
        assert_eq!(
            in_words(&lending, None),
            "8.0 GiB go back to jobs by 2 orders: the memory tier may have 4.0 GiB; 1.0 GiB are still to leave it: \
             512.0 MiB stay until programs close 3 files (run/a, (unlinked object 1), ...)"
        );
        (lending.ordered_bytes, lending.owed_bytes) = (0, 0);
        assert_eq!(
            in_words(&lending, None),
            "no order is in force: the memory tier may have 4.0 GiB"
        );
    }

    #[test]
    fn an_order_beyond_what_there_is_is_told_what_goes_back() {
        let before = LendingStatus {
            floor_bytes: 4 << 20,
            ceiling_bytes: 64 << 20,
            ..LendingStatus::default()
        };
        let most = most_bytes(&before);
        assert_eq!(most, Some(60 << 20));
        let mut lending = LendingStatus {
            ceiling_bytes: 4 << 20,
            ordered_bytes: 1 << 40,
            ..before.clone()
        };
        assert_eq!(
            in_words(&lending, most),
            "1.0 TiB go back to jobs: the memory tier may have 4.0 MiB, which it keeps whatever is ordered: \
             60.0 MiB go back at most"
        );
        // By orders of before; of how much they have not taken nobody knows.
        assert_eq!(most_bytes(&lending), None);
        lending.orders = vec![LendingOrder::default(); 2];
        let line = in_words(&lending, None);
        assert!(line.contains("by 2 orders"), "{line}");
        assert!(
            line.ends_with("no more goes back than it had beyond that"),
            "{line}"
        );
        let part = LendingStatus {
            ceiling_bytes: 40 << 20,
            ordered_bytes: 24 << 20,
            ..before.clone()
        };
        assert_eq!(most_bytes(&part), most);
        lending.floor_bytes = 8 << 20;
        lending.ceiling_bytes = 8 << 20;
        let line = in_words(&lending, Some(56 << 20));
        assert!(
            line.contains("which dram_min keeps whatever is ordered: 56.0 MiB"),
            "{line}"
        );
    }

    #[test]
    fn what_leaves_after_an_order_has_ended_is_no_contradiction() {
        let lending = LendingStatus {
            borrowed_bytes: 4 << 20,
            ceiling_bytes: 64 << 20,
            owed_bytes: 35 << 20,
            ..LendingStatus::default()
        };
        assert_eq!(
            in_words(&lending, None),
            "no order is in force: the memory tier may have 64.0 MiB; it has 4.0 MiB now, and 35.0 MiB leave it \
             unless it grows before"
        );
    }
}
