//! `forebay stage-in`.

use clap::Args;
use forebay_wire::control::Movement;

use crate::exit::{Exit, Failure};
use crate::movement::{self, MoveArgs};
use crate::usage;

/// Copies files from the PFS into the burst buffer, where they stay as clean copies
#[derive(Args)]
#[command(
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "The copies serve reads until their space is needed. Directories recurse.\n\n",
        "Examples:\n  forebay stage-in /bb/input\n  forebay stage-in --timeout 10m --from-file list.txt\n\n",
        "Exit codes: 0 complete, also where there is no regular file (an empty directory, a FIFO, a link ",
        "that leads nowhere); 1 none of the paths is there; 3 some paths failed (each is named); 4 timed out ",
        "(what is left is named); 130 stopped by Ctrl-C (what is done stays done)."
    )
)]
pub struct StageInArgs {
    #[command(flatten)]
    common: MoveArgs,
}

/// Runs the command.
pub fn run(args: &StageInArgs) -> Result<Exit, Failure> {
    movement::run(Movement::StageIn, &args.common, true)
}
