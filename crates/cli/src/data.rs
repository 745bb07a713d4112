//! `forebay server` of a node that only holds data: it serves its tiers to the metadata server.

use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_holder::{
    BorrowedMemory, DataHost, DataServer, end_order_of_before, open_flash, open_memory,
};
use forebay_server::Settings;
use forebay_tiers::{PfsTree, Tier};
use forebay_types::Errno;
use forebay_wire::control::{Control, ControlResponse, DataServerStatus, StatusBits, TierStatus};
use forebay_wire::net::{NetServer, NetServerConfig};
use forebay_wire::{Key, Peer, Reply, Request, Response, Service, UnixServer};

use crate::cluster::config::{Cluster, Server};
use crate::exit::{Exit, Explain, Failure, reason};
use crate::server::socket_for_mounts;
use crate::state::{self, SocketPath};
use crate::up::again;
use crate::up::detach::Readiness;
use crate::up::layers::BOOT_ID;
use crate::up::log::Log;
use crate::up::resources::may_mount;
use crate::up::run::{tell, web};
use crate::up::settle::Plan;
use crate::up::{Announce, start_with, tiers};
use crate::{signals, starter};

/// In the state folder: which start of a metadata server was the latest to come.
const LATEST: &str = "forebay-latest";
/// In the state folder: the memory tier.
const MEMORY: &str = "dram";
/// In the state folder: orders to lend memory.
const ORDERS: &str = "lend-orders";
/// Between two looks at memory while it may be needed any moment.
const TENSE: Duration = Duration::from_millis(250);
/// Between two looks at memory else.
const CALM: Duration = Duration::from_secs(1);
/// Between two looks at what the log holds back.
const TICK: Duration = Duration::from_secs(5);

/// Starts it, after all checks, and serves until it is told to stop.
pub fn start(
    own: (&Cluster, &Server, &Key),
    plan: Plan,
    command: &str,
    detached: bool,
    readiness: &mut Readiness,
) -> Result<Exit, Failure> {
    start_with(plan, detached, readiness, |plan, log, announce| {
        serve(own, plan, command, detached, log, announce)
    })
}

fn serve(
    own: (&Cluster, &Server, &Key),
    plan: &Plan,
    command: &str,
    detached: bool,
    log: &Log,
    announce: &mut Announce<'_>,
) -> Result<Exit, Failure> {
    let (cluster, server, _) = own;
    let state = &plan.settings.state;
    let (events, heard) = mpsc::channel();
    watch_signals(detached, log, events.clone()).explain("cannot watch signals", "")?;
    let version = env!("CARGO_PKG_VERSION");
    tracing::info!("forebay {version} starts as a data server");
    if let Err(error) = starter::note(state, Some(command)) {
        tracing::warn!("how to start again is not noted: {}", reason(&error));
    }
    let borrowed = borrowed(&plan.settings)?;
    let data = holder(own, &plan.settings, borrowed.clone())?;
    let front = listen(own, data.clone())?;
    let looking = Looking::start(borrowed.clone())?;
    let orders = Orders::new((cluster, server), plan, (&data, borrowed), events);
    let socket = SocketPath::of(state).explain(state.display(), "")?;
    let orders = Arc::new(orders);
    let control = UnixServer::start(&socket.path, orders.clone())
        .explain(format_args!("{}: control socket", state.display()), "")?;
    let web = web(plan, orders);
    announce(&announcement(cluster, server, plan))?;
    let why = wait(&heard, log);
    tracing::info!("stopping: {why}");
    drop((control, web, looking));
    // Calls that are under way end first.
    drop(front);
    for file in [state::PID, state::SOCKET] {
        // Both files only repeat what the lock says.
        let _ = std::fs::remove_file(state.join(file));
    }
    log.tell_surplus();
    let line = format!("server {}: stopped; its objects stay", server.id);
    tell(detached, &line);
    Ok(Exit::Complete)
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

/// The tiers are opened when the metadata server has come: it says whose they are.
fn holder(
    (cluster, _, _): (&Cluster, &Server, &Key),
    settings: &Settings,
    borrowed: Option<Arc<BorrowedMemory>>,
) -> Result<Arc<DataServer>, Failure> {
    let boot = match std::env::var(BOOT_ID) {
        Ok(boot) if !boot.is_empty() => boot,
        _ => std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .explain("the kernel's boot id", "")?,
    };
    let metadata = cluster.servers.iter().filter(|server| server.metadata);
    let addresses =
        metadata.flat_map(|server| server.addresses.iter().chain(&server.replication_addresses));
    let metadata: Vec<IpAddr> = addresses.map(|one| one.ip().to_canonical()).collect();
    let theirs = settings.clone();
    let open = Box::new(move |instance| open_tiers(&theirs, instance, borrowed.as_deref()));
    let pfs = PfsTree::open(&settings.pfs).explain(settings.pfs.display(), "")?;
    let boot = boot.trim().to_string();
    let data = DataServer::new(boot, metadata, open, Some(pfs));
    let latest = settings.state.join(LATEST);
    (data.keep_latest(latest)).explain(settings.state.display(), "")?;
    Ok(data)
}

fn listen(
    (cluster, server, key): (&Cluster, &Server, &Key),
    data: Arc<DataServer>,
) -> Result<NetServer, Failure> {
    let addresses = server.addresses.iter().chain(&server.replication_addresses);
    let config = NetServerConfig {
        tcp: addresses.copied().collect(),
        unix: Some(socket_for_mounts(&server.state)),
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

fn open_tiers(
    settings: &Settings,
    instance: [u8; 16],
    borrowed: Option<&BorrowedMemory>,
) -> std::io::Result<Vec<Arc<dyn Tier>>> {
    let mut tiers: Vec<Arc<dyn Tier>> = Vec::new();
    if let Some(size) = settings.dram_bytes {
        let overrun = settings.overrun_bytes();
        // It stays mounted when this process ends: the metadata server knows what is in it.
        let (tier, _mounted) = open_memory(&settings.state, size, overrun, instance)?;
        tiers.push(Arc::new(match borrowed {
            Some(borrowed) => tier.lending(borrowed.lent_bytes()),
            None => tier,
        }));
    }
    for ssd in &settings.ssd {
        let name = ssd.dir.display().to_string();
        tiers.push(Arc::new(open_flash(&name, ssd, instance)?));
    }
    tracing::info!("the metadata server has come");
    Ok(tiers)
}

/// Memory that jobs get back when they need it; `None` where its size is fixed.
fn borrowed(settings: &Settings) -> Result<Option<Arc<BorrowedMemory>>, Failure> {
    let (Some(lending), Some(full)) = (&settings.lending, settings.dram_bytes) else {
        return Ok(None);
    };
    if !may_mount() {
        return Err(Failure::fatal(
            "dram = \"auto\" of a data server needs root: only of a tmpfs of its own it knows what it holds; give dram a size",
        ));
    }
    let paths = (settings.state.join(MEMORY), settings.state.join(ORDERS));
    let source = lending.memory.0.clone();
    let borrowed = BorrowedMemory::new(lending.bounds, source, full, paths)
        .explain(settings.state.display(), "")?;
    Ok(Some(Arc::new(borrowed)))
}

/// The thread that looks at memory, for as long as this lives.
struct Looking(Option<(Sender<()>, JoinHandle<()>)>);

impl Looking {
    fn start(borrowed: Option<Arc<BorrowedMemory>>) -> Result<Looking, Failure> {
        let Some(borrowed) = borrowed else {
            return Ok(Looking(None));
        };
        let (stop, stopped) = mpsc::channel();
        let look = move || {
            loop {
                let pause = match borrowed.look() {
                    true => TENSE,
                    false => CALM,
                };
                match stopped.recv_timeout(pause) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        let thread = std::thread::Builder::new().name("fb-lend".into());
        let thread = thread.spawn(look).explain("no thread", "")?;
        Ok(Looking(Some((stop, thread))))
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.0.take() {
            drop(stop);
            if thread.join().is_err() {
                tracing::error!("the thread that looks at memory has panicked");
            }
        }
    }
}

/// Answers `forebay status`, `forebay lend` and `forebay down`.
struct Orders {
    status: StatusBits,
    since: Instant,
    data: Arc<DataServer>,
    borrowed: Option<Arc<BorrowedMemory>>,
    settings: Settings,
    events: Sender<&'static str>,
}

impl Orders {
    fn new(
        (cluster, server): (&Cluster, &Server),
        plan: &Plan,
        (data, borrowed): (&Arc<DataServer>, Option<Arc<BorrowedMemory>>),
        events: Sender<&'static str>,
    ) -> Orders {
        let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
        let tier = |name: String, capacity_bytes: Option<u64>| TierStatus {
            name,
            capacity_bytes: capacity_bytes.unwrap_or(0),
            ..TierStatus::default()
        };
        let settings = &plan.settings;
        let memory = settings
            .dram_bytes
            .map(|bytes| tier("dram".into(), Some(bytes)));
        let flash = settings.ssd.iter();
        let flash = flash.map(|ssd| tier(ssd.dir.display().to_string(), ssd.capacity_bytes));
        let status = StatusBits {
            version: env!("CARGO_PKG_VERSION").into(),
            pfs: bytes(&settings.pfs),
            mount: bytes(&settings.pfs),
            state: bytes(&settings.state),
            pid: std::process::id(),
            tiers: memory.into_iter().chain(flash).collect(),
            data_server: Some(Box::new(DataServerStatus {
                server: server.id,
                cluster: cluster.name.clone(),
                is_used: false,
            })),
            ..StatusBits::default()
        };
        Orders {
            status,
            since: Instant::now(),
            data: data.clone(),
            borrowed,
            settings: settings.clone(),
            events,
        }
    }

    fn lend(&self, name: &str, bytes: u64) -> Reply {
        let done = match &self.borrowed {
            Some(borrowed) => borrowed.order(name, bytes),
            None if bytes > 0 => Err(Errno::EOPNOTSUPP.into()),
            None => end_order_of_before(&self.settings.state.join(ORDERS), name),
        };
        match done {
            Ok(()) => Response::Control(ControlResponse::Status(Box::new(self.status()))).into(),
            Err(error) if Errno::of(&error) == Errno::EOPNOTSUPP => Errno::EOPNOTSUPP.into(),
            Err(error) => {
                tracing::error!("the order to lend memory: {error}");
                Errno::of(&error).into()
            }
        }
    }

    fn status(&self) -> StatusBits {
        let mut status = self.status.clone();
        status.uptime_ms = self.since.elapsed().as_millis() as u64;
        status.keeper = self.settings.keeper_status();
        if let Some(data) = &mut status.data_server {
            data.is_used = self.data.is_used();
        }
        let borrowed = self.borrowed.as_ref();
        status.lending = borrowed
            .and_then(|borrowed| borrowed.status())
            .map(Box::new);
        status
    }
}

impl Service for Orders {
    fn handle(&self, peer: Peer<'_>, request: Request, _: &[u8], _: &mut [u8]) -> Reply {
        match request {
            Request::Control(Control::Status) => {
                let status = Box::new(self.status());
                Response::Control(ControlResponse::Status(status)).into()
            }
            Request::Control(Control::Lend { bytes, name }) if peer.is_trusted() => {
                self.lend(&name, bytes)
            }
            Request::Control(Control::Shutdown { .. }) if peer.is_trusted() => {
                // If nobody listens any more it is stopping already.
                let _ = self.events.send("ordered");
                Response::Control(ControlResponse::Stopping).into()
            }
            Request::Control(Control::Lend { .. } | Control::Shutdown { .. }) => {
                Errno::EPERM.into()
            }
            Request::Control(Control::Reload) => again::refused(
                "a data server takes its settings when it starts; rules, limits and policy are the metadata server's: \
                 `forebay reload` there"
                    .into(),
            ),
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
