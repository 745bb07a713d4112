//! What is given on the command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use forebay_types::parse_duration;

use super::via::Via;

/// Which nodes, and how they are reached.
#[derive(Args)]
pub struct NodesArgs {
    /// The cluster; the same file, at the same path, on every node
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Where the burst buffer is shown on each node
    #[arg(long, value_name = "DIR")]
    pub mount: PathBuf,
    /// Nodes with a mount: names with commas, or a file with one a line (default: within a Slurm
    /// job its nodes, else the servers' nodes)
    #[arg(long, value_name = "FILE|HOST,HOST")]
    pub nodes: Option<String>,
    /// How a command gets to a node: ssh, srun, or a command with {host} (and {command}, for one
    /// that takes a shell's line), such as 'ip netns exec {host}' (default: srun within a Slurm job,
    /// else ssh)
    #[arg(long, value_name = "HOW", value_parser = Via::parse)]
    pub via: Option<Via>,
    /// The program on the nodes (default: where this one is)
    #[arg(long, value_name = "FILE")]
    pub forebay: Option<PathBuf>,
}

/// Starts all servers and mounts of a cluster
#[derive(Args)]
#[command(after_long_help = concat!(
    "First all nodes are looked at: whether they answer, have this version of forebay and this very file, and may\n",
    "start what is to be on them. If one may not, nothing is started. Whatever fails later, or Ctrl-C, takes back\n",
    "what this command has started. Directories of mounts are made where they are missing. What runs is left\n",
    "alone, so the command may be given again.\n\n",
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
}

/// Unmounts a cluster everywhere, copies all to the slow file system, and stops its servers
#[derive(Args)]
#[command(after_long_help = concat!(
    "A mount that is in use stops the command before anything is drained: end the programs and give it again.\n",
    "If not all is on the slow file system in time, the servers go on running and what is left is named;\n",
    "`forebay cluster start` mounts again. When all is drained, memory that was borrowed is given back.\n\n",
    "Example:\n",
    "  forebay cluster stop --config cluster.toml --mount /tmp/bb --timeout 30m\n\n",
    "Exit codes: 0 stopped, and all is on the slow file system; 1 fatal; 3 partial: a mount is in use, a node did\n",
    "not answer, or files cannot be drained (each is named); 4 timed out (what is left is named); 130 interrupted."
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
