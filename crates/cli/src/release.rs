//! `forebay release`.

use clap::Args;
use forebay_wire::control::Movement;

use crate::exit::{Exit, Failure};
use crate::movement::{self, MoveArgs};
use crate::usage;

/// Drops clean copies from the burst buffer; the files stay on the PFS
#[derive(Args)]
#[command(
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "Data that is not yet on the PFS is never dropped: such a file is named and the exit code is 3; ",
        "stage-out --wait comes first. Directories recurse.\n\n",
        "Examples:\n  forebay release /bb/run6\n  forebay stage-out --wait /bb/run6 && forebay release /bb/run6\n\n",
        "Exit codes: 0 complete, also where there is no regular file (an empty directory, a FIFO, a link ",
        "that leads nowhere); 1 none of the paths is there; 3 some paths failed (each is named); 4 timed out ",
        "(what is left is named); 130 stopped by Ctrl-C (what is done stays done)."
    )
)]
pub struct ReleaseArgs {
    #[command(flatten)]
    common: MoveArgs,
}

/// Runs the command.
pub fn run(args: &ReleaseArgs) -> Result<Exit, Failure> {
    movement::run(Movement::Release, &args.common, true)
}
