//! `forebay keygen`: makes the key of a cluster.

use std::path::PathBuf;

use clap::Args;
use forebay_wire::Key;

use crate::exit::{Exit, Explain, Failure};
use crate::{out, usage};

/// Makes the key that the nodes of a cluster know each other by
#[derive(Args)]
#[command(
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "Whoever can read the key can join the cluster, and read and change every file in it. FILE is made ",
        "so that only its owner can read it. Each node needs the same file, with the same permissions, under ",
        "the path that `key` in cluster.toml names; a key that others may read is not used.\n\n",
        "Example:\n  forebay keygen /etc/forebay/bb0.key\n\n",
        "Exit codes: 0 made; 1 it could not be made: one line says why (a file that exists is never replaced)."
    )
)]
pub struct KeygenArgs {
    /// Where to keep the key; the file must not exist
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Runs the command.
pub fn run(args: &KeygenArgs) -> Result<Exit, Failure> {
    let path = std::path::absolute(&args.file).explain(args.file.display(), "")?;
    Key::create(&path).map_err(|error| Failure::fatal(error.to_string()))?;
    let path = path.display();
    out::print(&format!(
        "the key is in {path}\n\
         copy it to every node of the cluster over a connection that nobody reads along (scp -p keeps its\n\
         permissions), and name it in cluster.toml: key = \"{path}\"\n"
    ));
    Ok(Exit::Complete)
}
