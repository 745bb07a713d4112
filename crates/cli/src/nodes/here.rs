//! What `forebay cluster` asks and orders on a node itself.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use forebay_wire::Key;
use serde_json::{Value, json};

use super::plan::fingerprint;
use super::silent;
use super::standbys::{self, Standing};
use crate::cluster::config::Cluster;
use crate::control::Daemon;
use crate::exit::{Exit, Explain, Failure, reason};
use crate::mount::shows;
use crate::mounts::{self, MountEntry};
use crate::show::json;
use crate::state::{self, Holder};
use crate::up::resources;
use crate::within::within;
use crate::{ended, out};

/// What may hang on a node is waited for so long.
const PATIENCE: Duration = Duration::from_secs(20);
/// After its mount is gone a process has so long to end.
const END_LIMIT: Duration = Duration::from_secs(30);

/// One question or order of `forebay cluster`, on the node where it is run
#[derive(Args)]
pub struct OnNodeArgs {
    /// The cluster
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Servers that are to run here
    #[arg(long, value_name = "N")]
    id: Vec<u16>,
    /// Where a mount is to be
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// End that mount
    #[arg(long, requires = "mount")]
    unmount: bool,
    /// Whether these servers do not run, and have left nothing undrained
    #[arg(long, requires = "id")]
    is_drained: bool,
    /// Give the memory of these servers back, of which all is drained
    #[arg(long, requires = "id")]
    free_memory: bool,
    /// What the metadata server with this id does
    #[arg(long, requires = "id")]
    standing: bool,
    /// Stop the server with this id if it stands by
    #[arg(long, requires = "id")]
    end_standby: bool,
    /// End the server with this id if it does not answer
    #[arg(long, requires = "id")]
    end_silent: bool,
}

/// Runs it.
pub fn run(args: &OnNodeArgs) -> Result<Exit, Failure> {
    if args.free_memory {
        return free_memory(args);
    }
    if args.is_drained {
        return is_drained(args);
    }
    if args.standing || args.end_standby || args.end_silent {
        return standby(args);
    }
    match &args.mount {
        Some(mount) if args.unmount => unmount(mount, &Cluster::load(&args.config)?),
        _ => {
            json::print(&look(args));
            Ok(Exit::Complete)
        }
    }
}

/// Whether what is to be here is here, or else may be started.
fn look(args: &OnNodeArgs) -> Value {
    let config = args.config.clone();
    let ids = args.id.clone();
    let mount = args.mount.clone();
    // The PFS may not answer, nor the resolver.
    let looked = within(PATIENCE, move || facts(&config, &ids, mount.as_deref()));
    match looked {
        Ok(Some(Ok(facts))) => facts,
        Ok(Some(Err(failure))) => json!({ "error": failure.message }),
        Ok(None) => {
            json!({ "error": "the slow file system or the resolver does not answer there" })
        }
        Err(error) => json!({ "error": reason(&error) }),
    }
}

fn facts(config: &Path, ids: &[u16], mount: Option<&Path>) -> Result<Value, Failure> {
    let cluster = Cluster::load(config)?;
    let print = fingerprint(config).explain(config.display(), "")?;
    let mut servers = Vec::new();
    for id in ids {
        let server = cluster.server(*id)?;
        let runs = matches!(state::holder(&server.state), Ok(Some(Holder::Process(_))));
        if !runs {
            Key::read(&cluster.key).map_err(|error| Failure::fatal(error.to_string()))?;
            cluster.check_here(server)?;
            cluster.check_pfs()?;
            cluster.plan(server, resources::may_mount())?;
            for ssd in &server.ssd {
                let todo = "make it, or mount what is to be there";
                std::fs::metadata(&ssd.dir).explain(ssd.dir.display(), todo)?;
            }
        }
        let serves = runs && Daemon::try_connect(&server.state)?.is_some();
        servers.push(json!({ "id": id, "runs": runs, "serves": serves }));
    }
    let mounted = match mount {
        Some(mount) => Some(look_at_mount(mount, &cluster)?),
        None => None,
    };
    Ok(json!({ "file": print, "servers": servers, "mounted": mounted }))
}

/// Whether the cluster is mounted there. The directory is made.
fn look_at_mount(mount: &Path, cluster: &Cluster) -> Result<bool, Failure> {
    let at = mount.display();
    if let Some(entry) = mounted_at(mount)? {
        let is_alive = matches!(state::holder(&entry.source), Ok(Some(Holder::Process(_))));
        // The next mount takes the place of a dead one.
        if !is_alive {
            return Ok(false);
        }
        return match shows(&entry.source, cluster) {
            true => Ok(true),
            false => Err(Failure::fatal(format!(
                "{}; choose another directory",
                foreign(mount, cluster)
            ))),
        };
    }
    std::fs::create_dir_all(mount).explain(at, "choose another directory")?;
    Ok(false)
}

/// The burst buffer that is mounted at a directory; what else may be there is no concern.
fn mounted_at(mount: &Path) -> Result<Option<MountEntry>, Failure> {
    let table = mounts::read().explain("the mount table", "")?;
    let ours = |entry: &MountEntry| entry.is_forebay() && entry.point == mount;
    Ok(table.into_iter().rev().find(ours))
}

fn foreign(mount: &Path, cluster: &Cluster) -> String {
    format!(
        "{}: another burst buffer is mounted there, not that of cluster {}",
        mount.display(),
        cluster.name
    )
}

/// An error has `Partial` where the mount stays: it is in use, or somebody else's.
fn unmount(mount: &Path, cluster: &Cluster) -> Result<Exit, Failure> {
    let at = mount.display();
    let Some(entry) = mounted_at(mount)? else {
        return Ok(Exit::Complete);
    };
    if !shows(&entry.source, cluster) {
        return Err(Failure {
            errno: None,
            exit: Exit::Partial,
            message: format!(
                "{}; give the directory of this cluster's mount, or the nodes that have it (--nodes)",
                foreign(mount, cluster)
            ),
        });
    }
    match mounts::unmount(mount) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            return Err(Failure {
                errno: None,
                exit: Exit::Partial,
                message: format!("{at} is in use; end the programs that use it, and try again"),
            });
        }
        Err(error) => return Err(error).explain(at, ""),
    }
    let begun = Instant::now();
    while let Ok(Some(Holder::Process(pid))) = state::holder(&entry.source) {
        if begun.elapsed() >= END_LIMIT {
            let pid = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
            return Err(Failure::fatal(format!(
                "{at}: unmounted, but its process{pid} does not end: a container, or a job with mounts of its own, may \
                 have it mounted as well; `grep -l {} /proc/[0-9]*/mountinfo` names the processes that do",
                mounts::FOREBAY_TYPE
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(Exit::Complete)
}

/// `Partial` where they are not.
fn is_drained(args: &OnNodeArgs) -> Result<Exit, Failure> {
    let cluster = Cluster::load(&args.config)?;
    for id in &args.id {
        let state = &cluster.server(*id)?.state;
        let rests = matches!(state::holder(state), Ok(Some(Holder::Nobody)));
        if !rests || !ended::last_left_nothing(state) {
            return Ok(Exit::Partial);
        }
    }
    Ok(Exit::Complete)
}

fn standby(args: &OnNodeArgs) -> Result<Exit, Failure> {
    let cluster = Cluster::load(&args.config)?;
    for id in &args.id {
        let state = &cluster.server(*id)?.state;
        let said = match (args.end_standby, args.end_silent) {
            (true, _) => standbys::end_here(state)?,
            (false, true) => silent::end_here(state, silent::PATIENCE)?,
            (false, false) => Standing::of(state)?.word().to_string(),
        };
        out::print(&format!("{said}\n"));
    }
    Ok(Exit::Complete)
}

/// Only where no server runs: nobody has anything there any more.
fn free_memory(args: &OnNodeArgs) -> Result<Exit, Failure> {
    use rustix::mount::{UnmountFlags, unmount};
    let cluster = Cluster::load(&args.config)?;
    let table = mounts::read().explain("the mount table", "")?;
    for id in &args.id {
        let server = cluster.server(*id)?;
        let runs = matches!(state::holder(&server.state), Ok(Some(Holder::Process(_))));
        let dram = server.state.join("dram");
        let is_mounted = table
            .iter()
            .any(|entry| entry.point == dram && entry.fs_type == "tmpfs");
        if !runs && is_mounted {
            unmount(&dram, UnmountFlags::NOFOLLOW).explain(dram.display(), "unmount it")?;
        }
    }
    Ok(Exit::Complete)
}
