//! The life of a mount: connect, mount, serve, unmount.

use std::io::ErrorKind::NotFound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use forebay_client::{Client, Dial, Lasting, OnLost};
use forebay_mount::{Company, MountOptions, Mounted};
use forebay_wire::net::NetConfig;
use forebay_wire::{Connection, Key, UnixServer};

use super::MountArgs;
use super::near::{Beside, Near};
use super::place::{RunFolder, make_again, note_cluster};
use super::relay::Relay;
use super::samepfs;
use crate::abort::Aborter;
use crate::cluster::address::is_here;
use crate::cluster::config::{Cluster, MountSettings, Server};
use crate::cluster::reach;
use crate::exit::{Exit, Explain, Failure};
use crate::instance::mount_table;
use crate::server::socket_for_mounts;
use crate::signals;
use crate::state::{self, Lock, LockError, SocketPath};
use crate::up::detach::Readiness;
use crate::up::front::unmount;
use crate::up::log::{self, Log};
use crate::up::run::{say_who_serves, tell};
use crate::up::{lock, preflight, resources};
use crate::{mounts, out};

/// Between two looks at what the log holds back.
const TICK: Duration = Duration::from_secs(5);
/// How long the process of a mount that is out of the tree may take to end. Without a server it
/// takes several seconds.
const LEAVING_LIMIT: Duration = Duration::from_secs(15);

/// What ends a mount.
pub enum Event {
    /// Somebody wants it, for this reason.
    Stop(&'static str),
    /// It was unmounted.
    Unmounted,
    /// A thread has died.
    Died(String),
}

/// What a mount is made of.
struct Plan {
    cluster: Cluster,
    settings: MountSettings,
    key: Key,
    mount: PathBuf,
    run: PathBuf,
    allow_other: bool,
    local: bool,
}

/// Mounts, and serves until the mount ends.
pub fn mount(args: &MountArgs, readiness: &mut Readiness) -> Result<Exit, Failure> {
    let config = std::path::absolute(&args.config).explain(args.config.display(), "")?;
    let cluster = Cluster::load(&config)?;
    let key = Key::read(&cluster.key).map_err(|e| Failure::fatal(e.to_string()))?;
    let dir = std::path::absolute(&args.dir).explain(args.dir.display(), "")?;
    let mut run = RunFolder::of(&dir)?;
    let mounted = plan(args, (cluster, key), &dir, run.path())
        .and_then(|plan| mount_planned(&plan, args.detached, readiness));
    if readiness.is_announced() {
        run.keep();
    }
    mounted
}

fn mount_planned(plan: &Plan, detached: bool, readiness: &mut Readiness) -> Result<Exit, Failure> {
    let _lock = lock_when_left(&plan.run, &plan.mount)?;
    preflight::clear_dead_mounts(&plan.run, Some(&plan.mount))?;
    let log = log::start(&plan.run, Some(&plan.mount), detached)?;
    if let Err(error) = rustix::thread::set_name(c"forebay") {
        tracing::debug!("the process keeps its name: {error}");
    }
    resources::raise_open_files();
    let (events, heard) = mpsc::channel();
    watch_signals(plan, detached, &log, events.clone()).explain("cannot watch signals", "")?;
    watch_panics(events.clone());
    let outcome = serve(plan, detached, &log, (events, &heard), readiness);
    for file in [state::PID, state::SOCKET, state::MOUNT, state::CLUSTER] {
        // They only repeat what the lock says.
        let _ = std::fs::remove_file(plan.run.join(file));
    }
    log.tell_surplus();
    outcome
}

/// The lock of a mount's run folder. `umount` returns before the process of the mount has ended, so
/// whoever mounts again waits for that.
fn lock_when_left(run: &Path, point: &Path) -> Result<Lock, Failure> {
    let begun = Instant::now();
    let mut is_made_again = false;
    loop {
        let pid = match Lock::take(run) {
            Ok(taken) => return Ok(taken),
            Err(LockError::Held { pid }) => pid,
            Err(LockError::Io(error)) if error.kind() == NotFound && !is_made_again => {
                is_made_again = true;
                make_again(run).explain(run.display(), "")?;
                continue;
            }
            Err(LockError::Io(_)) => return lock(run),
        };
        let process = pid.map_or_else(String::new, |pid| format!("process {pid} "));
        let point = point.display();
        if !mounts::of_state(&mount_table()?, run).is_empty() {
            return Err(Failure::fatal(format!(
                "{point}: is already a Forebay mount: {process}shows a burst buffer there; `umount {point}` ends it"
            )));
        }
        if begun.elapsed() > LEAVING_LIMIT {
            let end = pid.map_or_else(String::new, |pid| {
                format!(", or `kill {pid}`, by which those programs get errors")
            });
            return Err(Failure::fatal(format!(
                "{point}: {process}mounts a burst buffer there, or serves programs that still use what `umount -l` \
                 took away; try again when it has ended{end}"
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn plan(
    args: &MountArgs,
    (cluster, key): (Cluster, Key),
    dir: &Path,
    run: &Path,
) -> Result<Plan, Failure> {
    let mut settings = cluster.mount.clone();
    if let Some(connections) = args.connections {
        settings.connections = usize::from(connections);
    }
    settings.distribution = args.distribution.unwrap_or(settings.distribution);
    settings.soft = args.soft.or(settings.soft);
    settings.encrypt |= args.encrypt;
    let may_mount = resources::may_mount();
    let allow_other = match (args.allow_other, args.no_allow_other) {
        (true, _) => true,
        (_, true) => false,
        _ => settings.allow_other.unwrap_or(may_mount),
    };
    let mut ground = preflight::Ground::default();
    let mount = preflight::check_mount(dir, run, &mount_table()?, &mut ground)?;
    preflight::check_mount_and_pfs(&mount, &cluster.pfs)?;
    for server in &cluster.servers {
        preflight::check_mount_and_state(&mount, &server.state)?;
    }
    resources::check_fuse()?;
    if allow_other {
        resources::check_allow_other()?;
    }
    for warning in &ground.warnings {
        out::complain(warning);
    }
    Ok(Plan {
        cluster,
        settings,
        key,
        mount,
        run: run.to_path_buf(),
        allow_other,
        local: may_mount && !args.no_local,
    })
}

/// Begins sessions with the server that serves names.
struct ToServer {
    /// To each metadata server, of which one leads.
    ways: Vec<NetConfig>,
    /// The data server of this node.
    near: Option<Arc<Near>>,
}

impl Dial for ToServer {
    fn dial(&self, life: u64, lost: OnLost) -> Result<Arc<dyn Connection>, String> {
        let mut ways = self.ways.clone();
        ways.iter_mut().for_each(|way| way.facts.life = life);
        let connection = reach::connect(ways)?;
        connection.on_lost(move |why| {
            tracing::warn!("the session with the server is lost: {why}");
            lost();
        });
        Ok(match &self.near {
            Some(near) => Arc::new(Beside::new(connection, near.clone())),
            None => Arc::new(connection),
        })
    }
}

/// On its own node a server hands over descriptors, by a socket in its state folder: the one that
/// serves names, if it has tiers and no other may take over, or else a data server.
fn dialer(plan: &Plan) -> ToServer {
    let mut ways = plan.cluster.ways(&plan.key);
    let is_here = |server: &Server| {
        let mut addresses = server.addresses.iter();
        plan.local && addresses.any(|address| is_here(*address).unwrap_or(false))
    };
    let mut near = plan
        .cluster
        .servers
        .iter()
        .find(|server| server.data && is_here(server));
    let mut servers = plan.cluster.metadata_servers();
    if let ([way], Some(server)) = (&mut ways[..], servers.next())
        && near.is_none_or(|near| near.id == server.id)
    {
        let socket = socket_for_mounts(&server.state);
        way.unix = (is_here(server) && socket.exists()).then_some(socket);
        near = None;
    }
    let near = near.map(|near| Arc::new(Near::new(&plan.cluster, near, &plan.key)));
    for way in &mut ways {
        way.near = near.is_some();
        way.links = plan.settings.connections;
        way.recalls = true;
        way.encrypt = plan.settings.encrypt;
        way.soft = plan.settings.soft;
    }
    ToServer { ways, near }
}

fn serve(
    plan: &Plan,
    detached: bool,
    log: &Log,
    (events, heard): (Sender<Event>, &Receiver<Event>),
    readiness: &mut Readiness,
) -> Result<Exit, Failure> {
    let dial = dialer(plan);
    let descriptors = dial.ways.iter().any(|way| way.unix.is_some());
    let passthrough = descriptors || dial.near.is_some();
    let lasting = Lasting::begin(Box::new(dial), plan.settings.soft)
        .map_err(|why| Failure::fatal(format!("{}: {why}", plan.cluster.name)))?;
    let lasting = Arc::new(lasting);
    samepfs::check(&*lasting, &plan.cluster)?;
    let socket = SocketPath::of(&plan.run).explain(plan.run.display(), "")?;
    let relay = Relay {
        server: lasting.clone(),
        mount: plan.mount.clone(),
        events: events.clone(),
    };
    let control = UnixServer::start(&socket.path, Arc::new(relay))
        .explain(format_args!("{}: control socket", plan.run.display()), "")?;
    let options = MountOptions {
        mount_point: plan.mount.clone(),
        source: plan.run.to_string_lossy().into_owned(),
        allow_other: plan.allow_other,
        threads: plan.settings.threads(descriptors),
        passthrough,
        company: Company::Shared,
        root_squashed: plan.cluster.squash_root && !descriptors,
    };
    note_cluster(&plan.run, &plan.cluster).explain(plan.run.join(state::CLUSTER).display(), "")?;
    let client = Client::of_another_node(lasting.clone(), plan.settings.distribution);
    let what = format!("{}: cannot mount", plan.mount.display());
    let mounted = forebay_mount::mount(client, &options).explain(what, "")?;
    let aborter = Aborter::start(&plan.mount);
    let told = events.clone();
    mounted.on_unmounted(Box::new(move || drop(told.send(Event::Unmounted))));
    mounted.on_thread_death(Box::new(move |what| drop(events.send(Event::Died(what)))));
    let ready = ready(plan, detached, log, readiness);
    let why = ready.as_ref().ok().map(|()| wait(heard, log));
    drop(aborter);
    // Once nobody can use the mount any more, nobody is to wait for the server.
    if let Some(Event::Unmounted) = why {
        lasting.close();
    }
    unmount_all(&mounted, &plan.mount, &lasting);
    drop(control);
    ready?;
    let point = plan.mount.display();
    match why {
        Some(Event::Died(what)) => Err(Failure::fatal(format!(
            "{point}: ended, because {what}; the log says more"
        ))),
        _ => {
            tell(detached, &format!("{point}: unmounted"));
            Ok(Exit::Complete)
        }
    }
}

fn ready(plan: &Plan, detached: bool, log: &Log, readiness: &mut Readiness) -> Result<(), Failure> {
    let point = plan.mount.display();
    state::write(&plan.run, state::MOUNT, &format!("{point}\n"))
        .explain(plan.run.join(state::MOUNT).display(), "")?;
    say_who_serves(&plan.run)?;
    if detached {
        log.take_stderr().explain("standard error", "")?;
    }
    tracing::info!("{point} answers");
    readiness.announce(&format!(
        "{point} shows {} of {} (process {})",
        plan.cluster.pfs.display(),
        plan.cluster.name,
        std::process::id()
    ))
}

fn wait(heard: &Receiver<Event>, log: &Log) -> Event {
    loop {
        match heard.recv_timeout(TICK) {
            Ok(event) => {
                if let Event::Stop(why) = &event {
                    tracing::info!("stopping: {why}");
                }
                return event;
            }
            Err(RecvTimeoutError::Timeout) => log.tell_surplus(),
            Err(RecvTimeoutError::Disconnected) => return Event::Stop("nobody is left to say why"),
        }
    }
}

/// Takes the mount out of the tree, and lets go of whoever still waits for the server.
fn unmount_all(mounted: &Mounted, point: &Path, lasting: &Lasting) {
    unmount(mounted, point);
    lasting.close();
}

/// The first signal unmounts, the second ends the process at once.
fn watch_signals(
    plan: &Plan,
    detached: bool,
    log: &Log,
    events: Sender<Event>,
) -> std::io::Result<()> {
    signals::ignore_user_signals()?;
    let hangup = log.hangup(detached);
    let mount = plan.mount.clone();
    signals::watch(hangup, move |signal, nth| {
        if nth > 1 || events.send(Event::Stop("a signal")).is_err() {
            mounts::detach_ours(&mount);
            std::process::exit(128 + signal);
        }
    })
}

/// A thread that panics ends the mount.
fn watch_panics(events: Sender<Event>) {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name").to_string();
        // If nobody listens any more the mount is ending already.
        let _ = events.send(Event::Died(format!("thread {name} panicked")));
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_mounts_beside_one_that_fails_has_a_folder_all_the_same() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = folder.path().canonicalize().expect("canonical");
        let run = run.join("base").join("bb");
        let taken = lock_when_left(&run, Path::new("/bb"));
        assert!(taken.is_ok(), "{:?}", taken.err().map(|f| f.message));
        assert!(run.join(state::LOCK).exists());
    }

    #[test]
    fn who_mounts_again_waits_for_the_process_that_leaves() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = folder.path().canonicalize().expect("canonical");
        let (tell, told) = mpsc::channel();
        let (wait, waited) = mpsc::channel::<()>();
        let leaving = {
            let run = run.clone();
            std::thread::spawn(move || {
                let held = Lock::take(&run).expect("nobody has it");
                tell.send(()).expect("the test listens");
                // It ends while the other one is looking.
                waited.recv_timeout(Duration::from_millis(300)).ok();
                drop(held);
            })
        };
        told.recv_timeout(Duration::from_secs(30)).expect("held");
        let taken = lock_when_left(&run, Path::new("/bb"));
        drop(wait);
        leaving.join().expect("no panic");
        assert!(taken.is_ok(), "{:?}", taken.err().map(|f| f.message));
    }
}
