//! `forebay report`: one page with what the burst buffer was worth in a time.

mod draw;
mod figures;
mod page;

use std::path::PathBuf;

use clap::Args;

use crate::exit::{Exit, Failure};
use crate::history::Which;
use crate::{out, usage, whole};

/// Writes one HTML page: waiting time saved, over-subscription, restarts, and other sizes
#[derive(Args)]
#[command(
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "The page needs nothing beside itself: no script, no other file, no network. Each figure says how ",
        "it is reckoned. What a smaller or larger burst buffer would have done is simulated with this very ",
        "history (docs/twin.md). Users get a report of what is theirs, root of all. The burst buffer must run.\n\n",
        "Times are UTC. --since and --until take 2026-11-27, 2026-11-27T20:03, or a time ago: 12h, 7d.\n\n",
        "Example:\n  forebay report --since 2026-11-01 --until 2026-12-01 -o november.html\n\n",
        "Exit codes: 0 written; 1 nothing runs there, or not allowed, or no version in that time."
    )
)]
pub struct ReportArgs {
    #[command(flatten)]
    which: Which,
    /// The page
    #[arg(short, long, value_name = "FILE.html")]
    out: PathBuf,
}

/// Runs the command.
pub fn run(args: &ReportArgs) -> Result<Exit, Failure> {
    let answer = args.which.ask()?;
    let figures = figures::of(&answer)?;
    whole::write(&args.out, page::page(&answer, &figures).as_bytes())?;
    out::print(&figures.summary());
    Ok(Exit::Complete)
}
