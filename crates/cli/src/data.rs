//! `forebay server` of a node that only holds data: it serves its tiers to the metadata server.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use forebay_holder::{DataHost, DataServer, open_flash, open_memory};
use forebay_server::Settings;
use forebay_tiers::Tier;
use forebay_types::Errno;
use forebay_wire::control::{Control, ControlResponse};
use forebay_wire::net::{NetServer, NetServerConfig};
use forebay_wire::{Key, Peer, Reply, Request, Response, Service, UnixServer};

use crate::cluster::config::{Cluster, Server};
use crate::exit::{Exit, Explain, Failure, reason};
use crate::signals;
use crate::state::{self, SocketPath};
use crate::up::detach::Readiness;
use crate::up::log::{self, Log};
use crate::up::run::{say_who_serves, tell};
use crate::up::settle::Plan;
use crate::up::{lock, preflight, resources, tiers};

/// Between two looks at what the log holds back.
const TICK: Duration = Duration::from_secs(5);

/// Serves until it is told to stop.
pub fn serve(
    (cluster, server, key): (&Cluster, &Server, &Key),
    mut plan: Plan,
    command: &str,
    detached: bool,
    readiness: &mut Readiness,
) -> Result<Exit, Failure> {
    let ground = preflight::check(&mut plan)?;
    let state = plan.settings.state.clone();
    let made = preflight::make_state(&state)?;
    let mut start = || {
        let _lock = lock(&state)?;
        let log = log::start(detached.then_some(state.as_path()))?;
        resources::raise_open_files();
        for warning in &ground.warnings {
            crate::out::complain(warning);
        }
        let (events, heard) = mpsc::channel();
        watch_signals(detached, &log, events.clone()).explain("cannot watch signals", "")?;
        tracing::info!(
            "forebay {} starts as a data server",
            env!("CARGO_PKG_VERSION")
        );
        if let Err(error) = crate::starter::note(&state, Some(command)) {
            tracing::warn!("how to start again is not noted: {}", reason(&error));
        }
        let front = open((cluster, server, key), &plan.settings)?;
        let control = Stops { events };
        let socket = SocketPath::of(&state).explain(state.display(), "")?;
        let control = UnixServer::start(&socket.path, Arc::new(control))
            .explain(format_args!("{}: control socket", state.display()), "")?;
        if detached {
            log.take_stderr().explain("standard error", "")?;
        }
        say_who_serves(&state)?;
        readiness.announce(&announcement(cluster, server, &plan))?;
        let why = wait(&heard, &log);
        tracing::info!("stopping: {why}");
        drop(control);
        // Calls that are under way end first.
        drop(front);
        for file in [state::PID, state::SOCKET] {
            // Both files only repeat what the lock says.
            let _ = std::fs::remove_file(state.join(file));
        }
        log.tell_surplus();
        tell(
            detached,
            &format!("server {}: stopped; its objects stay", server.id),
        );
        Ok(Exit::Complete)
    };
    let served = start();
    if served.is_err() && made && !readiness.is_announced() {
        preflight::unmake_state(&state);
    }
    served
}

fn announcement(cluster: &Cluster, server: &Server, plan: &Plan) -> String {
    let addresses: Vec<String> = server.addresses.iter().map(ToString::to_string).collect();
    format!(
        "server {} of {} holds data at {}, with {} (process {})",
        server.id,
        cluster.name,
        addresses.join(", "),
        tiers(plan),
        std::process::id()
    )
}

/// Listens. The tiers are opened when the metadata server has come: it says whose they are.
fn open(
    (cluster, server, key): (&Cluster, &Server, &Key),
    settings: &Settings,
) -> Result<NetServer, Failure> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .explain("the kernel's boot id", "")?;
    let metadata = cluster.servers.iter().filter(|server| server.metadata);
    let metadata: Vec<IpAddr> = metadata
        .flat_map(|server| {
            server
                .addresses
                .iter()
                .map(|address| address.ip().to_canonical())
        })
        .collect();
    let theirs = settings.clone();
    let open = Box::new(move |instance| open_tiers(&theirs, instance));
    let data = DataServer::new(boot.trim().to_string(), metadata, open);
    let config = NetServerConfig {
        tcp: server.addresses.clone(),
        encrypt: cluster.encrypt,
        lease: cluster.lease,
        connection_rate: cluster.connection_rate,
        ..NetServerConfig::new(&cluster.name, key.clone())
    };
    NetServer::start(config, Arc::new(DataHost(data))).explain(
        format_args!("server {}: cannot listen", server.id),
        "is another server running at this address?",
    )
}

fn open_tiers(settings: &Settings, instance: [u8; 16]) -> std::io::Result<Vec<Arc<dyn Tier>>> {
    let mut tiers: Vec<Arc<dyn Tier>> = Vec::new();
    if let Some(size) = settings.dram_bytes {
        let overrun = settings.overrun_bytes();
        // It stays mounted when this process ends: the metadata server knows what is in it.
        let (tier, _mounted) = open_memory(&settings.state, size, overrun, instance)?;
        tiers.push(Arc::new(tier));
    }
    for (at, ssd) in settings.ssd.iter().enumerate() {
        let (tier, _) = open_flash(at, ssd, instance)?;
        tiers.push(Arc::new(tier));
    }
    tracing::info!("the metadata server has come");
    Ok(tiers)
}

/// Answers `forebay down`.
struct Stops {
    events: Sender<&'static str>,
}

impl Service for Stops {
    fn handle(&self, peer: Peer<'_>, request: Request, _: &[u8], _: &mut [u8]) -> Reply {
        match request {
            Request::Control(Control::Shutdown { .. }) if peer.is_trusted() => {
                // If nobody listens any more it is stopping already.
                let _ = self.events.send("ordered");
                Response::Control(ControlResponse::Stopping).into()
            }
            Request::Control(Control::Shutdown { .. }) => Errno::EPERM.into(),
            // The metadata server knows what is in its tiers.
            _ => Errno::EOPNOTSUPP.into(),
        }
    }
}

fn wait(heard: &Receiver<&'static str>, log: &Log) -> &'static str {
    loop {
        match heard.recv_timeout(TICK) {
            Ok(why) => return why,
            Err(RecvTimeoutError::Timeout) => log.tell_surplus(),
            Err(RecvTimeoutError::Disconnected) => return "nobody is left to say why",
        }
    }
}

fn watch_signals(detached: bool, log: &Log, events: Sender<&'static str>) -> std::io::Result<()> {
    signals::ignore_user_signals()?;
    let hangup = log.hangup(detached);
    signals::watch(hangup, move |signal, nth| {
        if nth > 1 || events.send("a signal").is_err() {
            std::process::exit(128 + signal);
        }
    })
}
