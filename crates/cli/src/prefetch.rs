//! `forebay prefetch`.

use clap::Args;
use forebay_wire::control::Movement;

use crate::exit::{Exit, Failure};
use crate::movement::{self, MoveArgs};
use crate::usage;

/// Brings files from the PFS into memory, ahead of a restart
#[derive(Args)]
#[command(
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "Like stage-in, but into the fastest tier. Directories recurse.\n\n",
        "Examples:\n  forebay prefetch /bb/run7/ckpt-000120\n  forebay prefetch --json /bb/input\n\n",
        "Exit codes: 0 complete, also where there is no regular file (an empty directory, a FIFO, a link\n",
        "that leads nowhere); 1 none of the paths is there; 3 some paths failed (each is named); 4 timed out\n",
        "(what is left is named); 130 stopped by Ctrl-C (what is done stays done)."
    )
)]
pub struct PrefetchArgs {
    #[command(flatten)]
    common: MoveArgs,
}

/// Runs the command.
pub fn run(args: &PrefetchArgs) -> Result<Exit, Failure> {
    movement::run(Movement::Prefetch, &args.common, true)
}
