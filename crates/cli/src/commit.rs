//! `forebay commit`.

use clap::Args;
use forebay_wire::control::Movement;

use crate::exit::{Exit, Failure};
use crate::movement::{self, MoveArgs};
use crate::usage;

/// Publishes checkpoint versions: all files of one become visible on the PFS together
#[derive(Args)]
#[command(
    mut_arg("paths", |paths| paths.help("Versions, below the mount or below the PFS directory behind it")),
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "A version is a directory made through the mount under a path rule with `group`. Until it is ",
        "published, the PFS does not show it; its files drain all the same. The order survives a ",
        "restart. Without --wait the command returns when it is given; with it, when the version is ",
        "on the PFS under its name, durable. The attribute user.forebay.commit, set on the directory ",
        "to any value, gives the same order.\n\n",
        "Examples:\n  forebay commit --wait /bb/run7/ckpt-000120\n",
        "  forebay commit --wait --timeout 30m --json /bb/run7/ckpt-000120\n\n",
        "Exit codes: 0 complete; 1 no such version; 3 some failed (each is named; the order stands); ",
        "4 timed out (what is left is named; the order stands); 130 stopped by Ctrl-C."
    )
)]
pub struct CommitArgs {
    #[command(flatten)]
    common: MoveArgs,
    /// Wait until the versions are visible on the PFS
    #[arg(long)]
    wait: bool,
}

/// Runs the command.
pub fn run(args: &CommitArgs) -> Result<Exit, Failure> {
    movement::run(Movement::Commit, &args.common, args.wait)
}
