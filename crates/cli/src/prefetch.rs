//! `forebay prefetch`.

use std::path::PathBuf;

use clap::Args;
use forebay_wire::control::Movement;

use crate::exit::{Exit, Failure};
use crate::movement::{self, MoveArgs};
use crate::usage;

/// Brings files from the PFS into memory, ahead of a restart
#[derive(Args)]
#[command(
    mut_arg("paths", |arg| arg.required_unless_present_any(["from_file", "list"])),

    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "Like stage-in, but into the fastest tier. Directories recurse.\n\n",
        "Examples:\n  forebay prefetch /bb/run7/ckpt-000120\n  forebay prefetch --json /bb/input\n  forebay prefetch --list epoch.txt && python3 train.py\n\n",
        "Exit codes: 0 complete, also where there is no regular file (an empty directory, a FIFO, a link ",
        "that leads nowhere); 1 none of the paths is there; 3 some paths failed (each is named); 4 timed out ",
        "(what is left is named); 130 stopped by Ctrl-C (what is done stays done)."
    )
)]
pub struct PrefetchArgs {
    #[command(flatten)]
    common: MoveArgs,
    /// FILE names files in the order in which a program is about to read them, one per line: they
    /// come in ahead of it, while it reads. Returns at once
    #[arg(long, value_name = "FILE", conflicts_with_all = ["paths", "from_file"])]
    list: Option<PathBuf>,
    /// With --list: goes on until the program has read all of them, and shows how far it is;
    /// Ctrl-C ends the reading ahead
    #[arg(long, requires = "list")]
    wait: bool,
}

/// Runs the command.
pub fn run(args: &PrefetchArgs) -> Result<Exit, Failure> {
    match &args.list {
        Some(list) => movement::run(Movement::Ahead, &args.common.with_list(list), args.wait),
        None => movement::run(Movement::Prefetch, &args.common, true),
    }
}
