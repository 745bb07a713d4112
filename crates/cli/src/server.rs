//! `forebay server`: a burst buffer for the mounts of many nodes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use forebay_policy::patience::STANDBY_DATA_SERVERS;
use forebay_server::{Instance, ServerStore, StoreSetting};
use forebay_wire::Key;
use forebay_wire::net::{NetServer, NetServerConfig};

use crate::cluster::config::{Cluster, Server};
use crate::control::Daemon;
use crate::data;
use crate::exit::{Exit, Explain, Failure};
use crate::state::{self, Holder};
use crate::up::again::Again;
use crate::up::detach::{self, Readiness};
use crate::up::front::{Front, OpenFront};
use crate::up::keeper::{self, Starts};
use crate::up::layers::BOOT_ID;
use crate::up::settle::{Plan, Read};
use crate::up::supervisor::Supervisor;
use crate::up::{resources, start_planned, tiers};
use crate::usage;
use crate::usage::server_id;

/// Serves a burst buffer to the mounts of many nodes
#[derive(Args)]
#[command(
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "The file names the servers of the cluster, the slow file system and the cluster's key. It is the same ",
        "on every node. A file with all its keys:\n\n",
        include_str!("cluster/sample.toml"),
        "\n",
        "Nobody gets in without the key (`forebay keygen`). `forebay mount` shows the burst buffer on a node. ",
        "After a crash or kill -9 the same command finds everything again and finishes what was under way. ",
        "With the records in a store on a server, another node takes them over by the same command, once ",
        "the addresses in the file are its own. It waits until the hold of a dead server is over (10 s). ",
        "Of several servers with the role metadata, which takes a store in etcd, one leads. The others stand ",
        "by, and take over by themselves when it has died. ",
        "On its own node `forebay status --state DIR` shows the server, and `forebay down --state DIR` stops it; ",
        "DIR is its `state` in the file.\n\n",
        "Examples:\n",
        "  forebay keygen /etc/forebay/bb0.key\n",
        "  forebay server --config /etc/forebay/cluster.toml --id 1 --detach --restart\n\n",
        "Exit codes: 0 stopped in order, or (--detach) serving or standing by; 1 it could not be started: one line says why."
    )
)]
pub struct ServerArgs {
    /// The cluster
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Which of its servers this is
    #[arg(long, value_name = "N", value_parser = server_id)]
    id: u16,
    /// Take the records over from a server that cannot be reached: its node is cut off, or its
    /// state folder is newer than this one (stores on a server only)
    #[arg(long)]
    take_over: bool,
    /// Return when it serves, or stands by; log in STATE/forebay.log, process id in forebay.pid
    #[arg(long)]
    detach: bool,
    /// With --detach: start it again whenever it dies. A small process stays beside it for that;
    /// `forebay down` stops both
    #[arg(long, requires = "detach")]
    restart: bool,
    /// Set by --detach for the process that stays.
    #[arg(long, hide = true, requires = "detach")]
    detached: bool,
    /// Set by --restart for the process that serves: who keeps it.
    #[arg(long, hide = true, requires = "restart", value_name = "PID")]
    kept: Option<i32>,
}

/// Runs the command.
pub fn run(args: &ServerArgs) -> Result<Exit, Failure> {
    detach::run((args.detach, args.detached), |readiness| {
        if let Some(keeper) = args.kept {
            // One that starts itself anew has its keeper, and lives by itself already.
            if !readiness.is_anew() {
                keeper::begin_kept(keeper).explain("what starts the server again", "")?;
            }
            return start(args, readiness);
        }
        let state = Cluster::load(&args.config)?.server(args.id)?.state.clone();
        // What was to start an earlier one again is not to come between.
        if !readiness.is_anew() && matches!(state::holder(&state), Ok(Some(Holder::Nobody))) {
            keeper::dismiss(&state).explain(state.display(), "")?;
        }
        match args.restart {
            true => {
                check_not_running(&state)?;
                keeper::run(&state, &starts(args)?, readiness)
            }
            false => start(args, readiness),
        }
    })
}

/// A keeper hears how its server has ended, which only who has started that server can.
fn check_not_running(state: &Path) -> Result<(), Failure> {
    let Some(daemon) = Daemon::try_connect(state)? else {
        return Ok(());
    };
    let what = state.display();
    let pid = match state::holder(state) {
        Ok(Some(Holder::Process(Some(pid)))) => format!(" (process {pid})"),
        _ => String::new(),
    };
    let kept = match daemon.status().map(|bits| bits.keeper) {
        Ok(Some(keeper)) if keeper.runs => {
            let keeper = keeper.pid;
            format!("and process {keeper} starts it again if it dies: nothing is to be done")
        }
        _ => format!(
            "and nothing starts it again if it dies. To change that: `forebay down --state {what}`, then this command \
             again; programs wait meanwhile"
        ),
    };
    Err(Failure::fatal(format!(
        "{what}: the server of this state folder runs already{pid}, {kept}"
    )))
}

/// How a keeper starts it. What took the records over once is not to do so again: by then another
/// server may have been told to.
fn starts(args: &ServerArgs) -> Result<Starts, Failure> {
    let config = std::path::absolute(&args.config).explain(args.config.display(), "")?;
    let args_of_each = [
        "server".into(),
        "--config".into(),
        config.into_os_string(),
        "--id".into(),
        args.id.to_string().into(),
        "--detach".into(),
        "--detached".into(),
        "--restart".into(),
    ];
    Ok(Starts {
        args: args_of_each.into(),
        once: args
            .take_over
            .then(|| "--take-over".into())
            .into_iter()
            .collect(),
    })
}

fn start(args: &ServerArgs, readiness: &mut Readiness) -> Result<Exit, Failure> {
    let refused = |error: &dyn std::error::Error| Failure::fatal(error.to_string());
    let config = std::path::absolute(&args.config).explain(args.config.display(), "")?;
    let (cluster, texts) = Cluster::load_with_texts(&config)?;
    let server = cluster.server(args.id)?.clone();
    let key = Key::read(&cluster.key).map_err(|e| refused(&e))?;
    cluster.check_here(&server)?;
    cluster.check_pfs()?;
    let mut plan = cluster.plan(&server, resources::may_mount())?;
    plan.settings.keeper = args.kept;
    forebay_types::failpoint::arm_from_environment().map_err(|e| refused(&e))?;
    if !server.metadata {
        let command = command(&config, &server);
        let own = (&cluster, &server, &key);
        return data::start(own, plan, &command, args.detached, readiness);
    }
    plan.settings.server = server.id;
    plan.settings.rack = cluster.rack(&server);
    plan.settings.store = store(&cluster, args.take_over)?;
    plan.settings.holders = cluster.holders(&server, &key);
    plan.settings.nodes = cluster.nodes();
    let boot = std::env::var(BOOT_ID).ok();
    plan.settings.boot_id = boot.filter(|id| !id.is_empty());
    if cluster.has_standby() {
        plan.settings.wait_for_holders = STANDBY_DATA_SERVERS;
    }
    let in_force = Read {
        plan: plan.clone(),
        texts,
    };
    let front = Network {
        again: again(&config, server.id, &in_force),
        cluster,
        server,
        key,
        config,
        kept: args.kept,
    };
    start_planned(plan, &front, args.detached, readiness)
}

/// The settings, to be read again while it runs.
fn again(config: &Path, id: u16, in_force: &Read) -> Arc<Again> {
    let read_all = move |path: &Path| {
        let read = Cluster::read_for(path, id, resources::may_mount());
        Ok(read?)
    };
    Arc::new(Again::of(Box::new(read_all), Some(config.into()), in_force))
}

/// Where the records are.
fn store(cluster: &Cluster, take_over: bool) -> Result<StoreSetting, Failure> {
    match &cluster.store {
        StoreSetting::Server(store) => Ok(StoreSetting::Server(ServerStore {
            take_over,
            ..store.clone()
        })),
        StoreSetting::Embedded if take_over => Err(Failure::fatal(
            "--take-over: the records of this cluster are in the state folder (store = \"embedded\"), \
             so that no other node can have them",
        )),
        StoreSetting::Embedded => Ok(StoreSetting::Embedded),
    }
}

/// How it is started again.
fn command(config: &Path, server: &Server) -> String {
    format!(
        "forebay server --config {} --id {}",
        config.display(),
        server.id
    )
}

/// Where mounts on the server's own node connect.
pub fn socket_for_mounts(state: &Path) -> PathBuf {
    state.join(state::MOUNTS)
}

/// Mounts of many nodes, over the network.
struct Network {
    cluster: Cluster,
    server: Server,
    key: Key,
    /// Where the cluster's file is.
    config: PathBuf,
    again: Arc<Again>,
    /// Who keeps it.
    kept: Option<i32>,
}

impl Front for Network {
    fn name<'a>(&self, plan: &'a Plan) -> &'a Path {
        &plan.settings.state
    }

    fn command(&self) -> Option<String> {
        Some(command(&self.config, &self.server))
    }

    fn arguments(&self) -> Option<Vec<OsString>> {
        let id = self.server.id.to_string();
        let args = [
            "server".into(),
            "--config".into(),
            self.config.clone().into(),
        ];
        let kept = self.kept.map(|keeper| {
            let keeper = keeper.to_string().into();
            ["--restart".into(), "--kept".into(), keeper]
        });
        let args = args.into_iter().chain(["--id".into(), id.into()]);
        Some(args.chain(kept.into_iter().flatten()).collect())
    }

    fn again(&self) -> Option<&Arc<Again>> {
        Some(&self.again)
    }

    fn stands_by_as(&self) -> Option<(u16, &str)> {
        let is_one = self.cluster.has_standby();
        is_one.then_some((self.server.id, &*self.cluster.name))
    }

    fn check_start(&self) -> Result<(), Failure> {
        // Somebody may be writing the file at the moment.
        let cluster = Cluster::load(&self.config)?;
        let server = cluster.server(self.server.id)?;
        Key::read(&cluster.key).map_err(|error| Failure::fatal(error.to_string()))?;
        cluster.check_here(server)?;
        cluster.check_pfs()?;
        cluster.plan(server, resources::may_mount())?;
        Ok(())
    }

    fn announcement(&self, plan: &Plan) -> String {
        let addresses: Vec<String> = self
            .server
            .addresses
            .iter()
            .map(ToString::to_string)
            .collect();
        let records = match &plan.settings.store {
            StoreSetting::Embedded => String::new(),
            StoreSetting::Server(store) => {
                let loses = match store.location.accepts_loss() {
                    true => ", which may lose its last two seconds when its node loses power",
                    false => "",
                };
                format!(", records in {}{loses}", store.location)
            }
        };
        let tiers = match plan.settings.has_tiers() {
            true => format!(", with {}", tiers(plan)),
            false => String::new(),
        };
        format!(
            "server {} of {} serves {} at {}{tiers}{records} (process {})",
            self.server.id,
            self.cluster.name,
            plan.settings.pfs.display(),
            addresses.join(", "),
            std::process::id()
        )
    }

    fn open(
        &self,
        plan: &Plan,
        instance: &Arc<Instance>,
        _: &Supervisor,
    ) -> Result<Box<dyn OpenFront>, Failure> {
        let config = NetServerConfig {
            tcp: self.server.addresses.clone(),
            unix: Some(socket_for_mounts(&plan.settings.state)),
            encrypt: self.cluster.encrypt,
            lease: self.cluster.lease,
            connection_rate: self.cluster.connection_rate,
            ..NetServerConfig::new(&self.cluster.name, self.key.clone())
        };
        instance.sessions().lease(self.cluster.lease);
        if self.cluster.squash_root {
            instance.squash_root();
        }
        let server = NetServer::start(config, instance.sessions().clone()).explain(
            format_args!("server {}: cannot listen", self.server.id),
            "is another server running at this address?",
        )?;
        instance.show_clients_of(server.view());
        Ok(Box::new(OpenNetwork { server }))
    }
}

struct OpenNetwork {
    server: NetServer,
}

impl OpenFront for OpenNetwork {
    fn close(self: Box<Self>, instance: &Instance) {
        instance.sessions().stop();
        // Sessions end with it: what clients have open is closed.
        drop(self.server);
    }
}
