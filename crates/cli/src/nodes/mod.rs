//! `forebay cluster`: all nodes of a cluster at once.
//!
//! - `args`: what is given on the command line;
//! - `via`: how a command gets to a node;
//! - `run`: commands on many nodes;
//! - `plan`: which nodes there are, and what is to be on each;
//! - `here`: what these commands ask and order on a node itself;
//! - `standbys`: metadata servers that stand by, and how they are ended;
//! - `start`, `stop`, `drain`: what they are called.

mod args;
mod drain;
mod here;
mod plan;
mod run;
mod silent;
mod standbys;
mod start;
mod stop;
mod via;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::asked::Whom;
use crate::exit::{Exit, Failure};
use crate::status;
use args::{DrainNodeArgs, StartArgs, StopArgs, UseNodeArgs};

/// Starts and stops a whole cluster: a job's own burst buffer with one command
#[derive(Args)]
#[command(
    after_help = "Exit codes: 0 complete; 1 wrong usage or fatal; 3 partial; 4 timed out; 130 interrupted.",
    after_long_help = concat!(
        "`start` starts the data servers, the metadata server and the mounts of all nodes; what runs ",
        "already is left alone. `stop` unmounts everywhere, copies all to the slow file system, and stops ",
        "the servers. Both go to the nodes by ssh; within a Slurm job by srun, on the job's nodes. A node is ",
        "reached under the `host` of its section [[server]], else under its first address. ",
        "`drain-node` has a node emptied while jobs run, so that it can be taken away; a node has the id of ",
        "its server.\n\n",
        "Examples:\n",
        "  forebay cluster start --config cluster.toml --mount /bb\n",
        "  forebay cluster start --config cluster.toml --mount /bb --nodes node1,node2,node3\n",
        "  forebay cluster status --config cluster.toml\n",
        "  forebay cluster drain-node 3 --config cluster.toml\n",
        "  forebay cluster stop --config cluster.toml --mount /bb --timeout 30m\n\n",
        "Exit codes: 0 complete; 1 wrong usage, or it could not be done and nothing is left of it; ",
        "3 partial (each node that failed is named); 4 timed out (what is left is named); 130 interrupted."
    )
)]
pub struct ClusterArgs {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Subcommand)]
enum ClusterCommand {
    Start(StartArgs),
    Stop(StopArgs),
    Status(StatusArgs),
    DrainNode(DrainNodeArgs),
    UseNode(UseNodeArgs),
    #[command(hide = true)]
    OnNode(here::OnNodeArgs),
}

/// Shows the nodes of a cluster, and all else that `forebay status --config` shows
#[derive(Args)]
struct StatusArgs {
    /// The cluster
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &ClusterArgs) -> Result<Exit, Failure> {
    match &args.command {
        ClusterCommand::Start(args) => start::run(args),
        ClusterCommand::Stop(args) => stop::run(args),
        ClusterCommand::Status(args) => {
            status::run(&status::StatusArgs::of(Whom::of(&args.config), args.json))
        }
        ClusterCommand::DrainNode(args) => drain::drain(args),
        ClusterCommand::UseNode(args) => drain::use_again(args),
        ClusterCommand::OnNode(args) => here::run(args),
    }
}
