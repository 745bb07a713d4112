//! `forebay mount`: shows the burst buffer of a server, which may be on another node.

pub mod generator;
mod helper;
mod near;
mod place;
mod relay;
mod run;
mod samepfs;
mod scope;
mod utab;

pub use helper::is_alone;
pub use place::{log_of, shows};

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use forebay_policy::links::Distribution;
use forebay_types::parse_duration;

use crate::cluster::config::Cluster;
use crate::cluster::patient_enough;
use crate::exit::{Exit, Explain, Failure, reason};
use crate::mounts::{self, MountEntry};
use crate::state::{Lock, LockError};
use crate::up::detach;
use crate::{out, usage};

/// The name under which mount(8) calls this program for the type `forebay`.
const HELPERS: [&str; 2] = ["mount.forebay", "mount.fuse.forebay"];

/// Mounts the burst buffer of a cluster on this node
#[derive(Args, Clone, Debug, Default)]
#[command(
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "The burst buffer is shown at DIR, an existing directory outside of the slow file system. Programs on ",
        "all nodes see the same files: a read after a completed write sees the write, on every node. On the ",
        "server's own node programs read and write at the speed of the server's memory and flash.\n\n",
        "By default a program waits while the server is away, and goes on when the server is back; with --soft ",
        "the program gets an I/O error after that time. `umount DIR` ends the mount. ",
        "As umount.forebay the program serves umount(8): an unmount returns when the process of the mount has ",
        "ended, and memory is on flash. As mount.forebay it serves mount(8) and /etc/fstab:

",
        "  /etc/forebay/cluster.toml  /bb  forebay  _netdev,connections=8  0 0\n\n",
        "Example:\n",
        "  forebay mount --config /etc/forebay/cluster.toml /bb --detach\n\n",
        "Exit codes: 0 unmounted, or (--detach) mounted; 1 it could not be mounted: one line says why."
    )
)]
pub struct MountArgs {
    /// The cluster
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Where to show it: an existing directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Sockets to the server, 1 to 64 (default: the file's, else 4)
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(1..=64))]
    connections: Option<u16>,
    /// How requests are spread over them: auto, ttos or ttom
    #[arg(long, value_name = "NAME")]
    distribution: Option<Distribution>,
    /// A program gets an I/O error when the server has not answered for so long
    #[arg(long, value_name = "DUR", value_parser = parse_soft)]
    soft: Option<Duration>,
    /// Encrypt data on the way
    #[arg(long)]
    encrypt: bool,
    /// Use the network also on the server's own node
    #[arg(long)]
    no_local: bool,
    /// Let other users use the mount (default for root, and whoever else may mount)
    #[arg(long)]
    allow_other: bool,
    /// Only this user may use the mount
    #[arg(long, conflicts_with = "allow_other")]
    no_allow_other: bool,
    /// Return when the mount answers; the log and the process id are in the mount's run folder
    #[arg(long)]
    detach: bool,
    /// Set by --detach for the process that stays.
    #[arg(long, hide = true, requires = "detach")]
    detached: bool,
}

/// As `soft` in the configuration.
fn parse_soft(text: &str) -> Result<Duration, String> {
    let given = parse_duration(text).map_err(|error| error.to_string())?;
    patient_enough(given).map_err(|problem| problem.to_string())
}

/// Runs the command.
pub fn run(args: &MountArgs) -> Result<Exit, Failure> {
    detach::run((args.detach, args.detached), |readiness| {
        run::mount(args, readiness)
    })
}

/// Whether mount(8) has called, by the name of the program.
pub fn is_called_by_mount(program: Option<&OsString>) -> bool {
    let name = program.map(PathBuf::from);
    let name = name.as_ref().and_then(|path| path.file_name());
    name.is_some_and(|name| HELPERS.iter().any(|helper| name == *helper))
}

/// Does what mount(8) asks for, in the background.
pub fn run_for_mount(args: impl Iterator<Item = OsString>) -> Result<Exit, Failure> {
    match helper::translate(args)? {
        // For mount(8) it is another source than that of fstab, so `mount -a` asks again.
        Some((file, place, _)) if is_here(&file, &place) => {
            out::complain(&format!("{}: already mounted", place.display()));
            Ok(Exit::Complete)
        }
        Some((_, place, command_line)) => {
            let exit = detach::spawn_in(scope::around(&absolute(&place)?), command_line)?;
            // Who may not write to /run may not unmount what others have mounted either.
            if rustix::process::geteuid().is_root()
                && let Err(error) = utab::note(&place)
            {
                out::complain(&format!(
                    "{}: `umount` will return before the process has ended: {}",
                    place.display(),
                    reason(&error)
                ));
            }
            Ok(exit)
        }
        // Only tried, not done.
        None => Ok(Exit::Complete),
    }
}

/// Whether what a file says is mounted at a place, and runs: of `forebay up` its state folder, else
/// its cluster. Another user's mount of the same cluster is not the same: not all may use it.
fn is_here(file: &Path, place: &Path) -> bool {
    let table = mounts::read().unwrap_or_default();
    let place = mounts::resolved(&table, place);
    let Some(entry) = mounts::topmost(&table, &place).filter(|entry| entry.is_forebay()) else {
        return false;
    };
    let is_that = match helper::state_of(file) {
        Some(state) => entry.source == state,
        None => shows_cluster(entry, file),
    };
    is_that && matches!(Lock::take(&entry.source), Err(LockError::Held { .. }))
}

/// Whether all of a file's cluster is mounted there. A file that is none is left to the command.
fn shows_cluster(entry: &MountEntry, file: &Path) -> bool {
    let config = std::path::absolute(file);
    let cluster = config.ok().and_then(|file| Cluster::load(&file).ok());
    entry.root == Path::new("/")
        && place::is_run_folder(&entry.source)
        && cluster.is_some_and(|cluster| shows(&entry.source, &cluster))
}

fn absolute(place: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(place).explain(place.display(), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_has_the_same_least_on_the_command_line_as_in_the_file() {
        assert_eq!(parse_soft("1s"), Ok(Duration::from_secs(1)));
        let refused = parse_soft("0s").expect_err("too short");
        assert!(refused.starts_with("soft is 0 ms; "), "{refused}");
        assert!(parse_soft("soon").is_err());
    }
}
