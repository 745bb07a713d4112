//! `forebay down`: ends a burst buffer, if asked to with all its data on the PFS.

mod away;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use forebay_server::StopSummary;
use forebay_types::{Errno, format_duration, parse_duration};
use forebay_wire::control::StatusBits;
use serde_json::{Value, json};

use crate::control::{AskError, Daemon, failure_line, files_and_bytes};
use crate::dead::{in_memory_bytes, not_running};
use crate::ended::{self, is_drained};
use crate::exit::{Exit, Explain, Failure};
use crate::instance::state_or_only;
use crate::mounts;
use crate::mounts::{in_mount, shown};
use crate::movement::{NAMED_MAX, name_left};
use crate::show::json;
use crate::show::progress::{Amount, Progress};
use crate::show::text::{files, show_path};
use crate::signals::Signals;
use crate::starter::Starter;
use crate::state::{self, Holder};
use crate::status::{mount_of, name_of};
use crate::{kept, out, usage};

/// Time between two looks at the daemon: a short end is seen at once, a long one not disturbed.
const LOOK_FIRST: Duration = Duration::from_millis(5);
const LOOK_LAST: Duration = Duration::from_millis(250);
/// How long stopping itself may take where no time was given: data in memory moves to flash then.
const STOP_LIMIT: Duration = Duration::from_secs(600);
/// After this time the user is told what `down` waits for.
const STOP_NOTICE: Duration = Duration::from_secs(5);
/// The daemon keeps the deadline of a drain. `down` waits so much longer for the daemon to say that
/// it has given up the drain.
const GIVE_UP_GRACE: Duration = Duration::from_secs(2);
/// A drain that fails and moves nothing for so long is left to itself, so that this command ends.
const STALL_LIMIT: Duration = Duration::from_secs(120);
/// How long the search for the names of undrained files may take.
const NAMING_LIMIT: Duration = Duration::from_secs(10);

/// Ends a burst buffer; with --drain, when all its data is on the PFS
#[derive(Args)]
#[command(
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "Without --drain, data that is not yet on the PFS stays in the state folder and the flash ",
        "directories; the next start with the same state folder goes on with it. Data in memory does ",
        "not survive a restart of the machine.\n\n",
        "The state folder of a cluster's server is the `state` in cluster.toml: `down` stops the server, ",
        "and the mounts of all nodes wait until it is started again. Where a further metadata server stands ",
        "by, that takes over, also after --drain: `forebay cluster stop` ends all. A mount alone ends by ",
        "`umount DIR`.\n\n",
        "With --drain and --timeout: if the time is too short, what is left is named, and the burst ",
        "buffer goes on running. Without --timeout a drain that fails and moves nothing for two ",
        "minutes is reported (exit 3), and goes on being tried.\n\n",
        "Of a burst buffer that has died, a mount that is left is taken away (exit 1: not running).\n\n",
        "Examples:\n  forebay down --state /var/lib/forebay\n",
        "  forebay down --state /var/lib/forebay --drain --timeout 30m\n\n",
        "Exit codes: 0 stopped; 1 not running, not yours, or died; 3 the drain fails (each file is named), ",
        "or it was stopped before all was drained; 4 timed out (what is left is named); 130 stopped ",
        "waiting (it goes on)."
    )
)]
pub struct DownArgs {
    /// State folder of the burst buffer; without it (and FOREBAY_STATE) the only one mounted here
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// First copy everything to the PFS
    #[arg(long)]
    drain: bool,
    /// How long it may take; without it a drain has no limit
    #[arg(long, value_name = "DUR", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
}

/// How waiting for the end ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// In order, and this is what the daemon has left.
    Stopped(StopSummary),
    /// Without leaving a note.
    Died,
    TimedOut,
    Stalled,
    Interrupted,
}

/// Runs the command.
pub fn run(args: &DownArgs) -> Result<Exit, Failure> {
    let state = state_or_only(args.state.as_deref())?;
    let Some(daemon) = kept::running(&state, args.drain)? else {
        return Err(not_running(&state));
    };
    let starter = Starter::of(&state);
    if let Starter::Mount(point) = &starter {
        return unmount(args, &state, &daemon, &point.display().to_string());
    }
    let signals = Signals::count().explain("signals", "")?;
    let fail = |error| daemon.failure(error, "stop it");
    let before = daemon.status().map_err(fail)?;
    let plain = match (&before.data_server, &before.standby) {
        (Some(_), _) => Some("data_server"),
        (None, Some(_)) => Some("standby"),
        (None, None) => None,
    };
    if let Some(what) = plain {
        let name = name_of(&before);
        if args.drain {
            return Err(Failure::fatal(format!(
                "{name}: it has nothing to drain by itself; `forebay down --drain` of the metadata server that leads drains all"
            )));
        }
        return end_plain(args, &state, &daemon, (what, &name), "stopped");
    }
    let others = starter
        .id()
        .map_or_else(Vec::new, |id| standbys(&before, id));
    if let Some(line) = who_is_cut_off(&before, args.drain, &others) {
        out::complain(&line);
    }
    let timeout_ms = args.timeout.map_or(0, |t| {
        u64::try_from(t.as_millis()).unwrap_or(u64::MAX).max(1)
    });
    daemon.shutdown(args.drain, timeout_ms).map_err(fail)?;
    // A server that dies while it stops is not to come back.
    let was_kept = kept::stays_down(&state)?;
    let mut wait = Wait::new(args, &state, starter, before);
    let end = wait.follow(&daemon, &signals)?;
    let left = wait.report(&daemon, end);
    if args.json {
        json::print(&wait.to_json(end, &left));
    }
    let unpublished = wait.name_unpublished(end);
    if was_kept && !matches!(end, End::Stopped(_) | End::Died) {
        out::complain("while it goes on, it is not started again by itself if it dies");
    }
    Ok(match end {
        End::Stopped(left) if args.drain && (unpublished > 0 || !is_drained(&left)) => {
            Exit::Partial
        }
        End::Stopped(left) if left.unflushed_files > 0 => Exit::Partial,
        End::Stopped(_) => Exit::Complete,
        End::Died => Exit::Fatal,
        End::TimedOut => Exit::TimedOut,
        End::Stalled => Exit::Partial,
        End::Interrupted => Exit::Interrupted,
    })
}

/// Ids of the metadata servers that take over from server `id`, where they run.
fn standbys(bits: &StatusBits, id: u16) -> Vec<u16> {
    let others = bits.nodes.iter();
    let others = others.filter(|node| node.metadata && node.server != id);
    others.map(|node| node.server).collect()
}

/// Whom the stop will keep from their files, and who takes over, for the person who orders it.
fn who_is_cut_off(bits: &StatusBits, drain: bool, standbys: &[u16]) -> Option<String> {
    let (name, open) = (name_of(bits), files(bits.open_files));
    let clients = bits.network.as_ref().map_or(0, |net| net.clients_total);
    if !standbys.is_empty() {
        let ids: Vec<String> = standbys.iter().map(u16::to_string).collect();
        let (ids, clients) = (ids.join(" or "), counted(clients));
        return Some(format!(
            "{name}: server {ids} stands by and takes over, where it runs; {clients} connected, {open} open: their programs \
             wait for some seconds, and go on there. To stop all: `forebay cluster stop`"
        ));
    }
    match bits.network {
        Some(_) if clients > 0 => Some(format!(
            "{name}: {} connected, {open} open; their programs wait until the server is started again (on \
             a soft mount they get errors)",
            counted(clients)
        )),
        None if bits.open_files > 0 && !drain => Some(format!(
            "{name}: {open} open; programs that use them will get errors"
        )),
        _ => None,
    }
}

fn counted(clients: u64) -> String {
    match clients {
        1 => "1 client is".into(),
        many => format!("{many} clients are"),
    }
}

/// A mount of a server that may be elsewhere: nothing is left with it.
fn unmount(args: &DownArgs, run: &Path, daemon: &Daemon, point: &str) -> Result<Exit, Failure> {
    if args.drain {
        return Err(Failure::fatal(format!(
            "{point}: a mount has nothing to drain; `forebay stage-out --wait {point}` copies all to the PFS, \
             `forebay down --drain` on the server's node stops the server"
        )));
    }
    end_plain(args, run, daemon, ("mount", point), "unmounted")
}

/// Ends what leaves nothing to look after.
fn end_plain(
    args: &DownArgs,
    run: &Path,
    daemon: &Daemon,
    (what, name): (&str, &str),
    how: &str,
) -> Result<Exit, Failure> {
    let signals = Signals::count().explain("signals", "")?;
    let stopped = daemon.shutdown(false, 0);
    stopped.map_err(|error| daemon.failure(error, "stop it"))?;
    kept::stays_down(run)?;
    let begun = Instant::now();
    while matches!(state::holder(run), Ok(Some(Holder::Process(_)))) {
        if signals.sleep(Duration::from_millis(20)) {
            return Ok(Exit::Interrupted);
        }
        if args.timeout.is_some_and(|limit| begun.elapsed() >= limit) {
            out::complain(&format!("{name}: not {how} yet; is it in use?"));
            return Ok(Exit::TimedOut);
        }
    }
    match args.json {
        true => json::print(&serde_json::json!({"outcome": how, what: name})),
        false => out::print(&format!("{name}: {how}\n")),
    }
    Ok(Exit::Complete)
}

/// Waiting for the end of a daemon.
struct Wait<'a> {
    args: &'a DownArgs,
    state: &'a Path,
    /// What starts it again.
    starter: Starter,
    begun: Instant,
    /// The newest status.
    last: StatusBits,
    /// Whether the mount was visible at the start.
    mounted: bool,
    /// Whether the user was told that stopping takes a while.
    noticed: bool,
    /// Most undrained bytes seen: the whole of the progress bar.
    most_bytes: u64,
    /// When undrained data last became less or the drain moved.
    moved: Instant,
    /// Errors already shown, counted since the daemon's start.
    errors_shown: u64,
    /// Tries that were named since this command began.
    failures_said: HashSet<(Vec<u8>, Errno)>,
}

impl<'a> Wait<'a> {
    fn new(args: &'a DownArgs, state: &'a Path, starter: Starter, before: StatusBits) -> Wait<'a> {
        let now = Instant::now();
        Wait {
            args,
            state,
            starter,
            begun: now,
            most_bytes: before.dirty_bytes,
            errors_shown: before.errors_total,
            last: before,
            mounted: is_mounted(state),
            noticed: false,
            failures_said: HashSet::new(),
            moved: now,
        }
    }

    fn follow(&mut self, daemon: &Daemon, signals: &Signals) -> Result<End, Failure> {
        let mut progress = Progress::new("drain");
        let mut pause = LOOK_FIRST;
        let end = loop {
            match daemon.status() {
                Ok(bits) => self.look(bits, &mut progress),
                Err(AskError::Gone) => break self.wait_for_lock(signals),
                // The daemon may refuse further questions while it stops.
                Err(AskError::Refused(_)) => {}
                Err(error) => return Err(daemon.failure(error, "stop it")),
            }
            if let Some(end) = self.given_up() {
                break end;
            }
            if !self.noticed && !self.args.drain && self.begun.elapsed() >= STOP_NOTICE {
                self.noticed = true;
                progress.say("still stopping: data in memory moves to flash where there is room");
            }
            if signals.sleep(pause) {
                break End::Interrupted;
            }
            pause = (pause * 2).min(LOOK_LAST);
        };
        progress.finish();
        Ok(end)
    }

    fn look(&mut self, bits: StatusBits, progress: &mut Progress) {
        if bits.dirty_bytes != self.last.dirty_bytes || bits.drain_rate_bytes_per_s > 0 {
            self.moved = Instant::now();
        }
        self.most_bytes = self.most_bytes.max(bits.dirty_bytes);
        if self.args.drain {
            for line in self.new_failures(&bits) {
                progress.say(&line);
            }
            progress.show(&Amount {
                done: drained_bytes(self.most_bytes, &bits),
                total: self.most_bytes,
                detail: match bits.open_files {
                    0 => format!("{} queued", files(bits.drain_queued_files)),
                    open => format!(
                        "{} queued, {} open",
                        files(bits.drain_queued_files),
                        files(open)
                    ),
                },
            });
        }
        self.last = bits;
    }

    /// Lines about tries that have failed since the last look: each file once, and in all a
    /// screenful at most.
    fn new_failures(&mut self, bits: &StatusBits) -> Vec<String> {
        let new = bits.errors_total.saturating_sub(self.errors_shown);
        let new = usize::try_from(new).unwrap_or(usize::MAX);
        self.errors_shown = self.errors_shown.max(bits.errors_total);
        let skip = bits.errors.len().saturating_sub(new);
        let mut lines = Vec::new();
        for failure in &bits.errors[skip..] {
            let said = self.failures_said.len();
            let is_new = said <= NAMED_MAX
                && (self.failures_said).insert((failure.path.clone(), failure.errno));
            if is_new && said < NAMED_MAX {
                let line = failure_line(mount_of(bits), failure);
                let is_conflict = (bits.conflicts.iter())
                    .any(|c| (&c.path, &c.reason) == (&failure.path, &failure.reason));
                // There is nothing to try again: both versions are on the PFS.
                lines.push(match is_conflict {
                    true => line,
                    false => format!("still trying: {line}"),
                });
            } else if is_new {
                lines.push("more tries fail; `forebay status` names the last of them".into());
            }
        }
        lines
    }

    fn given_up(&self) -> Option<End> {
        let elapsed = self.begun.elapsed();
        let drains = self.args.drain && !self.is_stopping();
        let limit = match (drains, self.args.timeout) {
            // The daemon keeps the deadline, and has withdrawn its order to stop.
            (true, Some(timeout)) if !self.last.stopping => timeout,
            (true, Some(timeout)) => timeout.saturating_add(GIVE_UP_GRACE),
            (true, None) => Duration::MAX,
            (false, Some(timeout)) if !self.args.drain => timeout,
            (false, timeout) => timeout.unwrap_or_default().saturating_add(STOP_LIMIT),
        };
        let mut tiers = self.last.tiers.iter();
        // Its node has to come back first.
        let is_away = tiers.any(|tier| tier.out_of_reach && tier.dirty_bytes > 0);
        let failing = self.last.errors_total > 0
            || is_away
            || !self.last.errors.is_empty()
            || self.last.pfs_silent_ms.is_some();
        let stalled = drains && self.args.timeout.is_none() && self.moved.elapsed() >= STALL_LIMIT;
        if elapsed >= limit {
            Some(End::TimedOut)
        } else if failing && stalled {
            Some(End::Stalled)
        } else {
            None
        }
    }

    /// Whether the drain is over: the mount that was there has gone, or, where it cannot be seen
    /// from here, nothing is left to drain.
    fn is_stopping(&self) -> bool {
        match self.mounted {
            true => !is_mounted(self.state),
            false => self.last.dirty_bytes == 0 && undrained_files(&self.last) == 0,
        }
    }

    /// The connection has closed; the process may still be on its way out.
    fn wait_for_lock(&self, signals: &Signals) -> End {
        let begun = Instant::now();
        while let Ok(Some(Holder::Process(_))) = state::holder(self.state) {
            if begun.elapsed() >= self.args.timeout.unwrap_or(STOP_LIMIT) {
                return End::TimedOut;
            }
            if signals.sleep(Duration::from_millis(20)) {
                return End::Interrupted;
            }
        }
        match ended::read(self.state, self.last.pid) {
            Some(left) => End::Stopped(left),
            None => End::Died,
        }
    }

    /// Says how the daemon ended; names what is left where that is asked for.
    fn report(&self, daemon: &Daemon, end: End) -> Vec<Vec<u8>> {
        let bits = &self.last;
        let name = name_of(bits);
        let undrained = files_and_bytes(undrained_files(bits), bits.dirty_bytes);
        match end {
            End::Stopped(left) => {
                let farewell = self.farewell(&left);
                if self.args.drain && !is_drained(&left) || left.unflushed_files > 0 {
                    out::complain(&farewell);
                } else if !self.args.json {
                    out::print(&format!("{farewell}\n"));
                }
                let unflushed = ended::unflushed(self.state, bits.pid);
                for path in &unflushed {
                    // Where very many are lost, the names of the last are not kept.
                    let path = match path.is_empty() {
                        true => "a file of which no name is known".into(),
                        false => shown(mount_of(bits), path),
                    };
                    out::complain(&format!("may be lost: {path}"));
                }
                return unflushed;
            }
            End::Died => out::complain(&format!(
                "{name}: the burst buffer has died (process {}) before it had stopped; {undrained} were not on the PFS when it \
                 last answered and stay with {}: {} goes on; the log says more",
                bits.pid,
                self.state.display(),
                self.starter
            )),
            End::TimedOut if undrained_files(bits) == 0 || !self.args.drain => {
                out::complain(&format!(
                    "{name}: process {} has not stopped after {}; it goes on stopping{}",
                    bits.pid,
                    format_duration(self.begun.elapsed()),
                    match self.starter.is_server() {
                        true => "; its log says more",
                        false => ": is the mount in use?",
                    }
                ))
            }
            End::TimedOut | End::Stalled => return self.report_failing_drain(daemon, end),
            End::Interrupted => out::complain(&format!(
                "{name}: no longer waiting; {undrained} not yet on the PFS; it goes on draining or stopping, \
                 see `forebay status`"
            )),
        }
        Vec::new()
    }

    /// The drain does not end, or not in time: says so, and names what is left.
    fn report_failing_drain(&self, daemon: &Daemon, end: End) -> Vec<Vec<u8>> {
        let bits = &self.last;
        let name = name_of(bits);
        let undrained = files_and_bytes(undrained_files(bits), bits.dirty_bytes);
        let why = if end == End::TimedOut {
            "timed out"
        } else {
            "the drain fails and moves nothing"
        };
        let then = match end {
            End::TimedOut => "the burst buffer goes on running and draining",
            _ => "the burst buffer goes on trying, and stops when all is drained",
        };
        out::complain(&format!(
            "{name}: {why}: {undrained} not yet on the PFS{}; {then}",
            match bits.open_files {
                0 => String::new(),
                open => format!(
                    ", {} open (what is open for writing drains when it is closed)",
                    files(open)
                ),
            }
        ));
        if let Some(line) = away::who_is(bits) {
            out::complain(&format!("{name}: {line}"));
        }
        let mut left = undrained_paths(daemon);
        left.extend(bits.holding.iter().cloned());
        left.truncate(NAMED_MAX);
        name_left(
            mount_of(bits),
            &left,
            undrained_files(bits).max(left.len() as u64),
        );
        left
    }

    /// Names versions that nobody has committed. After a drain all their files are on the PFS, but
    /// not visible.
    fn name_unpublished(&self, end: End) -> usize {
        let versions = self.last.unpublished.iter().filter(|v| !v.committed);
        let versions: Vec<_> = versions
            .filter(|_| matches!(end, End::Stopped(_)))
            .collect();
        for version in versions.iter().take(NAMED_MAX) {
            let path = in_mount(mount_of(&self.last), &version.path);
            out::complain(&format!(
                "not published: {}: the PFS has it under a hidden name; after {}, `forebay commit` publishes it",
                show_path(&path),
                self.starter
            ));
        }
        versions.len()
    }

    fn farewell(&self, left: &StopSummary) -> String {
        let how = match (self.args.drain, ended::is_all_there(left)) {
            (true, true) => {
                format!("stopped after {}", format_duration(self.begun.elapsed()))
            }
            (true, false) => "stopped before all was drained".to_string(),
            (false, _) => "stopped".to_string(),
        };
        ended::farewell(name_of(&self.last), &how, self.state, left)
    }

    fn to_json(&self, end: End, left: &[Vec<u8>]) -> Value {
        let bits = &self.last;
        let seen = || StopSummary {
            undrained_files: undrained_files(bits),
            undrained_bytes: bits.dirty_bytes,
            // Clean copies may be in memory, too.
            in_memory_bytes: in_memory_bytes(self.state).min(bits.dirty_bytes),
            unflushed_files: 0,
            unpublished_versions: bits.unpublished.len() as u64,
        };
        let (outcome, summary) = match end {
            End::Stopped(summary) => ("stopped", summary),
            End::Died => ("died", seen()),
            End::TimedOut => ("timed-out", seen()),
            End::Stalled => ("stalled", seen()),
            End::Interrupted => ("interrupted", seen()),
        };
        json!({
            "outcome": outcome,
            "undrained_bytes": summary.undrained_bytes,
            "undrained_files": summary.undrained_files,
            "in_memory_bytes": summary.in_memory_bytes,
            "unflushed_files": summary.unflushed_files,
            "unpublished_versions": summary.unpublished_versions,
            "elapsed_s": self.begun.elapsed().as_secs_f64(),
            "left": json::path_list(mount_of(bits), left),
        })
    }
}

/// Files that are not on the PFS, or may not be: programs can store into them unheard.
fn undrained_files(bits: &StatusBits) -> u64 {
    bits.drain_queued_files + bits.holding_files
}

/// Whether the burst buffer with this state folder is mounted here.
fn is_mounted(state: &Path) -> bool {
    mounts::read().is_ok_and(|table| !mounts::of_state(&table, state).is_empty())
}

/// The first undrained files. Best effort: names are worth seconds, not more.
fn undrained_paths(daemon: &Daemon) -> Vec<Vec<u8>> {
    let begun = Instant::now();
    let mut paths = Vec::new();
    let located = daemon.locate(&[Vec::new()], |part| {
        let dirty = part
            .files
            .into_iter()
            .filter(|f| matches!(f.state.as_str(), "dirty" | "demoting"));
        paths.extend(dirty.map(|file| file.path));
        // The directories of these files are gone from the PFS.
        let lost = part.failures.into_iter();
        paths.extend(lost.filter(|f| f.errno == Errno::ESTALE).map(|f| f.path));
        paths.len() < NAMED_MAX && begun.elapsed() < NAMING_LIMIT
    });
    // Without the names there is still their number, which the caller prints.
    drop(located);
    paths.truncate(NAMED_MAX);
    paths
}

/// Of so much, what is on the PFS: files that are whole there, and the begin of those under way.
fn drained_bytes(most: u64, bits: &StatusBits) -> u64 {
    let begun: u64 = bits.copies.iter().map(|copy| copy.copied_bytes).sum();
    // A copy may begin anew, and of a file that was cut there is less to copy.
    let left = bits.dirty_bytes.saturating_sub(begun);
    most.saturating_sub(left)
}

#[cfg(test)]
mod tests {
    use forebay_types::Errno;
    use forebay_wire::control::{ConflictEntry, NodeStatus, PathFailure};

    use super::*;

    fn args(drain: bool, timeout: Option<Duration>) -> DownArgs {
        DownArgs {
            state: None,
            drain,
            timeout,
            json: false,
        }
    }

    fn dirty(bytes: u64) -> StatusBits {
        StatusBits {
            mount: b"/bb".to_vec(),
            dirty_bytes: bytes,
            drain_queued_files: bytes.min(2),
            ..StatusBits::default()
        }
    }

    #[test]
    fn the_drain_moves_within_a_large_file() {
        let copy = |copied_bytes| forebay_wire::control::CopyStatus {
            path: b"big".to_vec(),
            bytes: 80,
            copied_bytes,
        };
        let mut bits = StatusBits {
            dirty_bytes: 100,
            ..StatusBits::default()
        };
        assert_eq!(drained_bytes(120, &bits), 20);
        bits.copies = vec![copy(30), copy(10)];
        assert_eq!(drained_bytes(120, &bits), 60);
        bits.copies = vec![copy(300)];
        assert_eq!(drained_bytes(120, &bits), 120);
    }

    #[test]
    fn a_drain_without_a_limit_goes_on_and_one_with_ends() {
        let unlimited = args(true, None);
        let mut wait = Wait::new(&unlimited, Path::new("/s"), Starter::Up, dirty(5));
        assert_eq!(wait.given_up(), None);
        wait.last.errors_total = 1;
        assert_eq!(wait.given_up(), None);
        let long_ago = Instant::now().checked_sub(STOP_LIMIT * 2).expect("uptime");
        wait.moved = long_ago;
        assert_eq!(wait.given_up(), Some(End::Stalled));
        let limited = args(true, Some(Duration::from_secs(1)));
        let mut wait = Wait::new(&limited, Path::new("/s"), Starter::Up, dirty(5));
        assert_eq!(wait.given_up(), None);
        wait.begun = long_ago;
        assert_eq!(wait.given_up(), Some(End::TimedOut));
        let plain = args(false, None);
        let mut wait = Wait::new(&plain, Path::new("/s"), Starter::Up, dirty(5));
        assert_eq!(wait.given_up(), None);
        wait.begun = long_ago;
        assert_eq!(wait.given_up(), Some(End::TimedOut));
    }

    #[test]
    fn failures_fill_a_screen_at_most() {
        let drain = args(true, None);
        let mut wait = Wait::new(&drain, Path::new("/s"), Starter::Up, dirty(5));
        let mut lines = Vec::new();
        for round in 1..=10 {
            let mut bits = dirty(5);
            bits.errors_total = round * 100;
            let failed = |at: u64| PathFailure {
                path: format!("{at}").into_bytes(),
                errno: Errno::ENOSPC,
                reason: String::new(),
            };
            // The same few in the first rounds: each is named once.
            bits.errors = (0..if round < 5 { 3 } else { 100 }).map(failed).collect();
            lines.extend(wait.new_failures(&bits));
        }
        assert_eq!(lines.len(), NAMED_MAX + 1, "{lines:?}");
        assert!(lines[0].contains("/bb/0"), "{lines:?}");
        assert!(lines[NAMED_MAX].contains("more tries fail"), "{lines:?}");
    }

    #[test]
    fn a_conflict_is_no_try_that_failed() {
        let drain = args(true, None);
        let mut wait = Wait::new(&drain, Path::new("/s"), Starter::Up, dirty(5));
        let told = |name: &str, errno, reason: &str| PathFailure {
            path: name.into(),
            errno,
            reason: reason.into(),
        };
        let mut bits = dirty(5);
        let parted = "changed on the PFS; ours is now beside it";
        bits.errors = vec![
            told("a", Errno::EEXIST, parted),
            told("b", Errno::ENOSPC, "full"),
        ];
        bits.errors_total = 2;
        bits.conflicts = vec![ConflictEntry {
            path: b"a".to_vec(),
            kept_as: b"a.forebay-conflict-1".to_vec(),
            at_s: 1,
            reason: parted.into(),
        }];
        let lines = wait.new_failures(&bits);
        assert!(lines[0].starts_with("/bb/a: "), "{lines:?}");
        assert!(lines[1].starts_with("still trying: /bb/b: "), "{lines:?}");
    }

    #[test]
    fn the_farewell_says_what_stays() {
        let left = StopSummary {
            undrained_files: 2,
            undrained_bytes: 4 << 20,
            in_memory_bytes: 1 << 20,
            unflushed_files: 0,
            unpublished_versions: 0,
        };
        let none = StopSummary::default();
        let plain = args(false, None);
        let wait = Wait::new(&plain, Path::new("/var/bb"), Starter::Up, dirty(9 << 20));
        assert_eq!(
            wait.farewell(&left),
            "/bb: stopped; 2 files (4.0 MiB), of them 1.0 MiB in memory (lost if this machine restarts), not yet on the PFS \
             stay with /var/bb; `forebay up` with the same --state goes on"
        );
        assert_eq!(wait.to_json(End::Stopped(left), &[])["undrained_files"], 2);
        assert_eq!(wait.farewell(&none), "/bb: stopped; all data is on the PFS");
        let unflushed = StopSummary {
            unflushed_files: 1,
            ..none
        };
        let said = wait.farewell(&unflushed);
        assert!(said.starts_with("/bb: stopped; what was changed in 1 file or"));
        let both = StopSummary {
            unflushed_files: 2,
            ..left
        };
        let said = wait.farewell(&both);
        assert!(
            said.contains("goes on; what was changed in 2 files or"),
            "{said}"
        );
        let drain = args(true, None);
        let wait = Wait::new(&drain, Path::new("/var/bb"), Starter::Up, dirty(0));
        let farewell = wait.farewell(&left);
        assert!(farewell.starts_with("/bb: stopped before all was drained; 2 files"));
        let said = wait.to_json(End::Died, &[]);
        assert_eq!(said["outcome"], "died");
    }

    #[test]
    fn who_stops_a_server_is_told_of_its_clients() {
        let mut bits = StatusBits {
            open_files: 2,
            ..dirty(0)
        };
        let said = |bits: &StatusBits, drain| who_is_cut_off(bits, drain, &[]).unwrap_or_default();
        assert_eq!(
            said(&bits, false),
            "/bb: 2 files open; programs that use them will get errors"
        );
        assert_eq!(said(&bits, true), "", "they are closed first");
        (bits.pfs, bits.mount) = (b"/scratch".to_vec(), b"/scratch".to_vec());
        bits.network = Some(Box::default());
        assert_eq!(said(&bits, false), "");
        bits.network.as_mut().expect("a server").clients_total = 3;
        for drain in [false, true] {
            let line = said(&bits, drain);
            let begin =
                "server of /scratch: 3 clients are connected, 2 files open; their programs wait";
            assert!(line.starts_with(begin), "{line}");
        }
        let node = |server, metadata| NodeStatus {
            server,
            metadata,
            data: !metadata,
            ..NodeStatus::default()
        };
        bits.nodes = vec![node(1, true), node(2, true), node(3, false)];
        let others = standbys(&bits, 1);
        assert_eq!(others, [2]);
        let line = who_is_cut_off(&bits, false, &others).expect("a line");
        assert!(line.contains("server 2 stands by and takes over"), "{line}");
        bits.nodes.clear();
        assert!(standbys(&bits, 1).is_empty());
        let server = Starter::Server("forebay server --config /c --id 1".into());
        let plain = args(false, None);
        let left = StopSummary {
            undrained_files: 1,
            ..StopSummary::default()
        };
        let folder = tempfile::tempdir().expect("tempdir");
        crate::starter::note(folder.path(), Some("forebay server --config /c --id 1"))
            .expect("noted");
        let wait = Wait::new(&plain, folder.path(), server, bits);
        let line = wait.farewell(&left);
        assert!(
            line.starts_with("server of /scratch: stopped; 1 file "),
            "{line}"
        );
        assert!(
            line.ends_with("`forebay server --config /c --id 1` goes on"),
            "{line}"
        );
    }
}
