//! What is given on the command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use forebay_types::parse_duration;

use super::via::Via;
use crate::asked::Whom;
use crate::usage::server_id;

/// Which nodes, and how they are reached.
#[derive(Args)]
pub struct NodesArgs {
    /// The cluster; the same file, at the same path, on every node
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Where the burst buffer is shown on each node
    #[arg(long, value_name = "DIR")]
    pub mount: PathBuf,
    /// Nodes with a mount: names with commas, or a file with one a line (default: within a
    /// Slurm job its nodes, else the servers' nodes)
    #[arg(long, value_name = "FILE|HOST,HOST")]
    pub nodes: Option<String>,
    /// How a command gets to a node: ssh, srun, or a command with {host} (and {command}, for one
    /// that takes a shell's line), such as 'nsenter --net=/run/netns/{host}' (default: srun within
    /// a Slurm job, else ssh)
    #[arg(long, value_name = "HOW", value_parser = Via::parse)]
    pub via: Option<Via>,
    /// The program on the nodes (default: where this one is)
    #[arg(long, value_name = "FILE")]
    pub forebay: Option<PathBuf>,
}

/// Starts all servers and mounts of a cluster
#[derive(Args)]
#[command(after_long_help = concat!(
    "First all nodes are looked at: whether they answer, have this version of forebay and this very\n",
    "file, and may start what is to be on them. If one may not, nothing is started. Whatever fails\n",
    "later, or Ctrl-C, takes back what this command has started. Directories of mounts are made where\n",
    "they are missing. What runs is left alone, so the command may be given again. A server that dies is\n",
    "started again by itself (see `forebay server --restart`), but not with srun.\n\n",
    "Example:\n",
    "  forebay cluster start --config cluster.toml --mount /tmp/bb\n\n",
    "Exit codes: 0 all runs; 1 one line for each node says why not; 130 interrupted."
))]
pub struct StartArgs {
    #[command(flatten)]
    pub nodes: NodesArgs,
    /// How long each step may take on a node
    #[arg(long, value_name = "DUR", value_parser = parse_duration, default_value = "2m")]
    pub timeout: Duration,
    /// Do not start a server again by itself when it dies (with srun none is: servers are in the
    /// foreground of a step there)
    #[arg(long)]
    pub no_restart: bool,
}

/// Unmounts a cluster everywhere, copies all to the slow file system, and stops its servers
#[derive(Args)]
#[command(after_long_help = concat!(
    "A mount that is in use stops the command before anything is drained: end the programs and give it\n",
    "again. If not all is on the slow file system in time, the servers go on running and what is left is\n",
    "named; `forebay cluster start` mounts again. When all is drained, memory that was borrowed is given\n",
    "back.\n\n",
    "Example:\n",
    "  forebay cluster stop --config cluster.toml --mount /tmp/bb --timeout 30m\n\n",
    "Exit codes: 0 stopped, and all is on the slow file system; 1 fatal; 3 partial: a mount is in use, a\n",
    "node did not answer, or files cannot be drained (each is named); 4 timed out (what is left is\n",
    "named); 130 interrupted."
))]
pub struct StopArgs {
    #[command(flatten)]
    pub nodes: NodesArgs,
    /// How long all of it may take
    #[arg(long, value_name = "DUR", value_parser = parse_duration, default_value = "1h")]
    pub timeout: Duration,
    /// Leave undrained data where it is, for the next start
    #[arg(long)]
    pub no_drain: bool,
}

/// Empties a node while jobs run: nothing new goes there, and all that it holds leaves
#[derive(Args)]
#[command(after_long_help = concat!(
    "What is not drained there is drained before all else, and what is drained is dropped from the node.\n",
    "Files that are open there move, too, but for those that the kernel of the node's own mount has by\n",
    "itself: they leave after their close. All that are open are named. The command ends when the node\n",
    "holds nothing, and may be ended before: the node goes on being emptied, also over a restart of the\n",
    "metadata server. It gets no files until `forebay cluster use-node`.\n\n",
    "Example:\n",
    "  forebay cluster drain-node 3 --config /etc/forebay/cluster.toml --timeout 30m\n\n",
    "Exit codes: 0 empty; 1 no such node, or not allowed; 4 timed out (open files are named); 130\n",
    "interrupted (it goes on)."
))]
pub struct DrainNodeArgs {
    /// Id of its server
    #[arg(value_name = "ID", value_parser = server_id)]
    pub node: u16,
    #[command(flatten)]
    pub whom: Whom,
    /// How long to wait for it; without it as long as it takes
    #[arg(long, value_name = "DUR", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
    /// Only give the order
    #[arg(long)]
    pub no_wait: bool,
    /// Print one JSON object at the end
    #[arg(long)]
    pub json: bool,
}

/// Lets new files go to a node again that was emptied
#[derive(Args)]
#[command(after_long_help = concat!(
    "Example:\n",
    "  forebay cluster use-node 3 --config /etc/forebay/cluster.toml\n\n",
    "Exit codes: 0 used again; 1 no such node, or not allowed."
))]
pub struct UseNodeArgs {
    /// Id of its server
    #[arg(value_name = "ID", value_parser = server_id)]
    pub node: u16,
    #[command(flatten)]
    pub whom: Whom,
}
