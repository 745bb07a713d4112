//! `forebay stage-out`.

use clap::Args;
use forebay_wire::control::Movement;

use crate::exit::{Exit, Failure};
use crate::movement::{self, MoveArgs};
use crate::usage;

/// Copies files that are not yet on the PFS there, now
#[derive(Args)]
#[command(
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "Without --wait the command returns when the files are queued ahead of the ordinary drain; ",
        "with it, when they are on the PFS, verified. Directories recurse.\n\n",
        "Examples:\n  forebay stage-out --wait /bb/run7\n  forebay stage-out --wait --timeout 30m --json /bb\n\n",
        "Exit codes: 0 complete, also where there is no regular file (an empty directory, a FIFO, a link ",
        "that leads nowhere); 1 none of the paths is there; 3 some paths failed (each is named); 4 timed out ",
        "(what is left is named); 130 stopped by Ctrl-C (what is done stays done)."
    )
)]
pub struct StageOutArgs {
    #[command(flatten)]
    common: MoveArgs,
    /// Wait until the files are on the PFS, verified
    #[arg(long)]
    wait: bool,
}

/// Runs the command.
pub fn run(args: &StageOutArgs) -> Result<Exit, Failure> {
    movement::run(Movement::StageOut, &args.common, args.wait)
}
