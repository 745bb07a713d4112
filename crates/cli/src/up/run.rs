//! The life of a burst buffer in this process: start, open, serve, close, stop.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use forebay_server::{FsckOrders, Instance, StartError, StopReason, StopSummary, Told};
use forebay_wire::control::{Control, ControlResponse, FsckReport, StatusBits};
use forebay_wire::{Peer, Request, Response, Service, UnixServer};

use super::Announce;
use super::front::Front;
use super::log::Log;
use super::notify::Stopping;
use super::settle::Plan;
use super::standby::{Standby, Watch};
use super::supervisor::{Served, Supervisor};
use crate::control::files_and_bytes;
use crate::ended::{self, Note};
use crate::exit::{Exit, Explain, Failure, reason};
use crate::signals::Hangup;
use crate::state::{self, SocketPath};
use crate::web::Web;
use crate::{mounts, out, signals, starter};

/// What a start has found to be lost: whoever starts it is not to look for that.
pub fn tell_losses(detached: bool, files: u64) {
    let files = match files {
        0 => return,
        1 => "1 file".to_string(),
        n => format!("{n} files"),
    };
    tell_early(
        detached,
        &format!(
            "{files} lost what was not on the PFS yet, in whole or in part: 'forebay status' says which, and why"
        ),
    );
}

/// Serves until it is told to stop; the caller holds the lock of the state folder. `announce` is
/// called when it answers; if that fails, nobody wants it any more.
pub fn serve(
    plan: &Plan,
    front: &dyn Front,
    detached: bool,
    log: &Log,
    announce: &mut Announce<'_>,
) -> Result<Exit, Failure> {
    let served = Served::default();
    let watch = Watch::default();
    watch_signals(plan, detached, log, (served.clone(), watch.clone()))
        .explain("cannot watch signals", "")?;
    let supervisor = Supervisor::start(log.clone(), served.clone(), plan.settings.mount.as_deref())
        .explain("cannot start a thread", "")?;
    tracing::info!("forebay {} starts", env!("CARGO_PKG_VERSION"));
    tracing::debug!("{:?}", plan.settings);
    let note = Note::begin(&plan.settings.state);
    note_command(&plan.settings.state, front);
    let standby = Standby::new(plan, front, detached, watch.clone(), announce);
    let tell_start = |line: &str| tell_early(detached, line);
    let stands_by = |leader: &str| standby.stands_by(leader);
    let told = Told::of(&tell_start).standing_by(&stands_by);
    let instance = match Instance::start_telling(plan.settings.clone(), told) {
        Err(StartError::NotWanted) => {
            // Who leads has what there is.
            end_note(note, &StopSummary::default(), &[]);
            return standby.end(log);
        }
        started => started.map_err(|e| Failure::fatal(e.to_string()))?,
    };
    // Nobody else sets `served`.
    let _ = served.set(instance.clone());
    let mut announce = standby.take_over(instance.losses());
    if watch.is_to_stop() {
        // While it took over.
        instance.request_stop();
    }
    // As long as this process does: all that is left to do belongs to the stop.
    let mut told = None;
    let ways: Ways<'_> = (&mut announce, &mut told);
    let outcome = open_and_wait(plan, front, &instance, &supervisor, ways);
    if instance.is_deposed()
        && let Some(arguments) = front.arguments()
    {
        // As after a kill: nothing that this process has is of use to anybody.
        tracing::warn!("this server does not lead any more; it starts anew, and stands by");
        return Err(start_anew(arguments, detached, log));
    }
    let summary = instance.stop();
    if outcome.is_ok()
        && instance.is_to_start_anew()
        && let Some(arguments) = front.arguments()
    {
        return Err(start_anew(arguments, detached, log));
    }
    if outcome.is_err() {
        // The state folder may be removed. Directories that this start has made its own would then
        // belong to an instance that nobody knows.
        instance.give_back();
    }
    for file in [state::PID, state::SOCKET] {
        // Both files only repeat what the lock says.
        let _ = std::fs::remove_file(plan.settings.state.join(file));
    }
    if outcome.is_ok() {
        let settings = &plan.settings;
        let line = ended::farewell(
            front.name(plan).display(),
            "stopped",
            &settings.state,
            &summary,
        );
        tell(detached, &line);
    }
    if instance.broken().is_none() {
        end_note(note, &summary, &instance.unflushed());
    }
    instance.release();
    log.tell_surplus();
    match (outcome, instance.broken()) {
        (Ok(()), Some(what)) => Err(Failure::fatal(format!(
            "{}: ended, because {what}; the log says more",
            front.name(plan).display()
        ))),
        (outcome, _) => outcome.map(|()| Exit::Complete),
    }
}

fn end_note(note: std::io::Result<Note>, summary: &StopSummary, unflushed: &[Vec<u8>]) {
    if let Err(error) = note.and_then(|note| note.end(summary, unflushed)) {
        tracing::warn!(
            "what is left is not noted for `forebay down`: {}",
            reason(&error)
        );
    }
}

/// The same process again, from its beginning: nothing of this life is left over. Answers only if
/// that cannot be.
fn start_anew(arguments: Vec<OsString>, detached: bool, log: &Log) -> Failure {
    log.tell_surplus();
    let mut command = Command::new("/proc/self/exe");
    command.arg0("forebay").args(arguments);
    if detached {
        command.args(["--detach", "--detached"]);
    }
    let error = command.exec();
    Failure::fatal(format!("cannot start anew: {}", reason(&error)))
}

/// For messages of commands that find the state folder.
fn note_command(state: &Path, front: &dyn Front) {
    if let Err(error) = starter::note(state, front.command().as_deref()) {
        tracing::warn!("how to start again is not noted: {}", reason(&error));
    }
}

/// To say that it answers, and to have said that it stops.
type Ways<'a> = (
    &'a mut dyn FnMut() -> Result<(), Failure>,
    &'a mut Option<Stopping>,
);

fn open_and_wait(
    plan: &Plan,
    front: &dyn Front,
    instance: &Arc<Instance>,
    supervisor: &Supervisor,
    (announce, told): Ways<'_>,
) -> Result<(), Failure> {
    if let Some(again) = front.again() {
        instance.reload_by(Box::new(again.call(instance)));
    }
    let settings = &plan.settings;
    let socket = SocketPath::of(&settings.state).explain(settings.state.display(), "")?;
    let control = UnixServer::start(&socket.path, instance.service()).explain(
        format_args!("{}: control socket", settings.state.display()),
        "",
    )?;
    let open = front.open(plan, instance, supervisor)?;
    let web = web(plan, instance.service());
    let ready = announce();
    if ready.is_ok() {
        tracing::info!("{} answers", front.name(plan).display());
        if front.stands_by_as().is_some() {
            read_again(instance);
        }
        let why = wait_stop(front, instance);
        tracing::info!("stopping: {why}");
    }
    if instance.is_deposed() {
        // Nobody is to be told anything more.
        std::mem::forget((open, control));
        return ready;
    }
    // The unmount writes what the kernel still has.
    *told = tell_stop(instance);
    drop(web);
    open.close(instance);
    drop(control);
    ready
}

/// The file may have changed while the server stood by. Nobody waits until it is read, with the
/// names of hosts in it.
fn read_again(instance: &Arc<Instance>) {
    let instance = Arc::downgrade(instance);
    let read = std::thread::Builder::new()
        .name("fb-reload".into())
        .spawn(move || {
            // The log says what came of it.
            instance.upgrade().map(|instance| instance.reload())
        });
    if let Err(error) = read {
        tracing::error!("the file is not read again: {}", reason(&error));
    }
}

/// Of what starts itself anew systemd need not hear.
fn tell_stop(instance: &Instance) -> Option<Stopping> {
    if instance.is_to_start_anew() {
        return None;
    }
    Stopping::begin()
        .inspect_err(|error| {
            tracing::warn!("systemd is not told of the stop: {}", reason(error));
        })
        .ok()
}

/// Who watches a burst buffer must not keep it from serving.
pub fn web(plan: &Plan, service: Arc<dyn Service>) -> Option<Web> {
    let listen = plan.http.clone()?;
    if !listen.is_loopback() {
        tracing::warn!("[http] listen = {listen}: everybody who reaches it sees the status");
    }
    Web::start(listen, plan.http_names, service)
        .inspect_err(|error| tracing::error!("no metrics and no page: {}", reason(error)))
        .ok()
}

/// A start anew that would fail is put off: what there is goes on.
fn wait_stop(front: &dyn Front, instance: &Instance) -> StopReason {
    loop {
        let why = instance.wait_stop();
        match (why, front.check_start()) {
            (StopReason::Anew, Err(failure)) => {
                tracing::error!("cannot start anew yet: {}", failure.message);
                instance.put_off_start_anew();
            }
            _ => return why,
        }
    }
}

/// The file with the process id.
pub fn say_who_serves(state: &Path) -> Result<(), Failure> {
    let pid = format!("{}\n", std::process::id());
    state::write(state, state::PID, &pid).explain(state.join(state::PID).display(), "")
}

/// The first signal stops in order, the second at once; what fsync promised is safe either way.
/// SIGHUP opens the log again and reads the settings again, unless somebody's terminal goes away
/// with this process in its foreground.
fn watch_signals(
    plan: &Plan,
    detached: bool,
    log: &Log,
    (served, watch): (Served, Watch),
) -> std::io::Result<()> {
    let state = plan.settings.state.clone();
    let mount = plan.settings.mount.clone();
    signals::ignore_user_signals()?;
    let (log, serving) = (log.clone(), served.clone());
    let hangup = match !detached && std::io::stdin().is_terminal() {
        true => Hangup::Stops,
        false => Hangup::Calls(Box::new(move || {
            match log.reopen() {
                Ok(true) => tracing::info!("the log was opened again"),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!("the log cannot be opened again: {}", reason(&error));
                }
            }
            if let Some(instance) = serving.get() {
                // It says in the log what came of it.
                instance.reload();
            }
        })),
    };
    signals::watch(hangup, move |signal, nth| match served.get() {
        Some(instance) if nth == 1 => {
            let line = stopping_line(&state, status(&*instance.service()));
            tell(detached, &line);
            instance.request_stop();
        }
        None if nth == 1 && watch.stop() => {}
        _ => {
            mount.iter().for_each(|mount| mounts::detach_ours(mount));
            std::process::exit(128 + signal);
        }
    })
}

/// To the user where there is one, else to the log.
pub fn tell(detached: bool, line: &str) {
    match detached {
        true => tracing::info!("{line}"),
        false => out::complain(line),
    }
}

/// To the user of a start, who still has standard error where it is detached, and to the log.
pub fn tell_early(detached: bool, line: &str) {
    out::complain(line);
    if detached {
        tracing::warn!("{line}");
    }
}

/// The status, asked as the owner would ask.
fn status(service: &dyn Service) -> Option<StatusBits> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    status_for(service, (uid.as_raw(), gid.as_raw()))
}

/// The status as a user of this node with this group is shown it.
pub fn status_for(service: &dyn Service, (uid, gid): (u32, u32)) -> Option<StatusBits> {
    let peer = Peer {
        uid,
        gid,
        groups: &[],
        local: true,
        near: false,
        mount: false,
        socket: None,
    };
    let reply = service.handle(peer, Request::Control(Control::Status), &[], &mut []);
    match reply.response {
        Response::Control(ControlResponse::Status(bits)) => Some(*bits),
        _ => None,
    }
}

fn stopping_line(state: &Path, bits: Option<StatusBits>) -> String {
    let undrained = match bits {
        Some(bits) if bits.dirty_bytes > 0 => format!(
            " {} not yet on the PFS stay with {};",
            files_and_bytes(bits.drain_queued_files, bits.dirty_bytes),
            state.display()
        ),
        _ => String::new(),
    };
    format!("stopping;{undrained} the same signal again stops at once")
}

/// Checks and repairs a burst buffer that does not run; the caller holds its lock.
pub fn fsck_offline(state: &Path, orders: &FsckOrders) -> Result<FsckReport, Failure> {
    let report = forebay_server::fsck_offline(state, orders, &out::complain);
    report.map_err(|error| Failure::fatal(error.to_string()))
}
