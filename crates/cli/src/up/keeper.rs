//! `--restart`: a small process that stays beside a detached server, and starts the server again
//! when that has died. What the kernel of the node has open by itself, and whatever else waits for
//! that server, then goes on within seconds.
//!
//! Invariants:
//!
//! 1. A server that was stopped in order stays stopped.
//! 2. The keeper has a lock of its own in the state folder for as long as it may start a server.
//!    [`dismiss`] ends it, so that what is stopped by hand stays stopped, too.
//! 3. A keeper that is ended leaves its server running.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal};

use super::detach::{self, Readiness};
use super::log::{self, Log};
use crate::control::Daemon;
use crate::exit::{Exit, Explain, Failure, reason};
use crate::state::{self, Holder};
use crate::{out, signals};

/// Told to the process that serves, with the number of its keeper.
const KEPT: &str = "--kept";

/// The first pause before a new start is short: programs wait.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));
/// A server that served for so long begins with the shortest pause again.
const STEADY: Duration = Duration::from_secs(60);
/// So many starts may fail one after the other, which takes some three minutes.
const TRIES: u32 = 12;
/// A keeper that is told to end does so within this time, and a server that it was starting, too.
const END_LIMIT: Duration = Duration::from_secs(5);
/// A server that starts itself anew has its lock again within this time.
const SOON: Duration = Duration::from_secs(20);

/// What a server is started with.
pub struct Starts {
    /// The arguments of each start.
    pub args: Vec<OsString>,
    /// Of the first one besides: what a person has ordered once.
    pub once: Vec<OsString>,
}

impl Starts {
    fn begin(&self, is_first: bool) -> Result<(Child, String), Failure> {
        let once = self.once.iter().filter(|_| is_first).cloned();
        let kept = [KEPT.into(), std::process::id().to_string().into()];
        detach::begin(self.args.iter().cloned().chain(once).chain(kept))
    }
}

/// Starts the server, says when it serves, and starts it again whenever it dies. Ends when the
/// server has stopped in order.
pub fn run(state: &Path, starts: &Starts, readiness: &mut Readiness) -> Result<Exit, Failure> {
    signals::only_hold_back_hangup().explain("signals", "")?;
    let (child, line) = starts.begin(true)?;
    let kept = Kept::begin(state).and_then(|kept| readiness.announce(&line).map(|()| kept));
    match kept {
        Ok(kept) => kept.go_on(child, starts),
        Err(failure) => {
            // It serves, but not as it was asked for, or nobody is there who wants it.
            end(child).explain("the process that serves", "")?;
            Err(failure)
        }
    }
}

/// The right to start a server again.
struct Kept {
    _lock: File,
    log: Log,
}

impl Kept {
    fn begin(state: &Path) -> Result<Kept, Failure> {
        let lock = take(state).explain(state.join(state::KEEPER).display(), "")?;
        let log = log::start(state, None, true)?;
        log.take_stderr().explain("standard error", "")?;
        Ok(Kept { _lock: lock, log })
    }

    fn go_on(self, mut child: Child, starts: &Starts) -> Result<Exit, Failure> {
        let mut tries = Tries::default();
        loop {
            let began = Instant::now();
            let ended = child.wait().explain("the process that serves", "")?;
            if is_ordered(ended) {
                return Ok(Exit::Complete);
            }
            if began.elapsed() >= STEADY {
                tries = Tries::default();
            }
            self.open_log();
            let (pid, how) = (child.id(), how(ended));
            tracing::warn!("the server (process {pid}) {how}; it is started again");
            child = self.again(starts, &mut tries)?;
        }
    }

    fn again(&self, starts: &Starts, tries: &mut Tries) -> Result<Child, Failure> {
        for pause in tries {
            std::thread::sleep(pause);
            self.open_log();
            match starts.begin(false) {
                Ok((child, line)) => {
                    tracing::info!("{line}");
                    return Ok(child);
                }
                Err(failure) => tracing::warn!("not started: {}", failure.message),
            }
        }
        let line = format!("{TRIES} starts have failed; start it by hand");
        tracing::error!("{line}");
        Err(Failure::fatal(line))
    }

    /// The server may have begun a new file since, and what a start says early goes there, too.
    fn open_log(&self) {
        if let Err(error) = self.log.reopen() {
            out::complain(&format!(
                "the log cannot be opened again: {}",
                reason(&error)
            ));
        }
    }
}

/// Whether a server has ended because somebody told it to: in order, or at once by a second signal.
fn is_ordered(ended: ExitStatus) -> bool {
    let told = [libc::SIGINT, libc::SIGTERM].map(|signal| 128 + signal);
    ended.success() || ended.code().is_some_and(|code| told.contains(&code))
}

/// In the process that serves, which keeper `keeper` has started: until it serves, it ends with its
/// keeper. Else a server would begin to serve after its keeper was dismissed.
pub fn begin_kept(keeper: i32) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have ended before.
    match getppid().map(Pid::as_raw_nonzero) {
        Some(parent) if parent.get() == keeper => Ok(()),
        _ => Err(io::Error::other("it has ended")),
    }
}

/// In the process that serves: from now on it lives by itself.
pub fn serves() -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(None)?;
    Ok(())
}

/// Pauses between starts.
#[derive(Debug, Default)]
struct Tries(u32);

impl Iterator for Tries {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let nth = self.0;
        self.0 += 1;
        (nth < TRIES).then(|| (PAUSES.0 * 2_u32.pow(nth)).min(PAUSES.1))
    }
}

fn how(ended: ExitStatus) -> String {
    match (ended.code(), ended.signal()) {
        (Some(code), _) => format!("has ended with exit code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "has ended".into(),
    }
}

fn end(mut child: Child) -> io::Result<()> {
    let pid = Pid::from_raw(child.id().cast_signed()).ok_or(io::ErrorKind::NotFound)?;
    rustix::process::kill_process(pid, Signal::TERM)?;
    child.wait().map(drop)
}

/// Takes the lock of the keeper.
fn take(state: &Path) -> io::Result<File> {
    let mut file = state::open(state, state::KEEPER, OFlags::RDWR | OFlags::CREATE, 0o600)?;
    let begun = Instant::now();
    // Who looks whether there is one has it for a moment.
    while let Err(error) = file.try_lock() {
        if begun.elapsed() >= END_LIMIT {
            return Err(error.into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    state::write_pid(&mut file)?;
    Ok(file)
}

fn open(state: &Path) -> io::Result<Option<File>> {
    match state::open(state, state::KEEPER, OFlags::RDONLY, 0o600) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// Whether there is a keeper of a state folder, which starts the server again if that has died.
pub fn is_there(state: &Path) -> bool {
    matches!(open(state), Ok(Some(file)) if file.try_lock_shared().is_err())
}

/// Ends the keeper of a state folder, so that nobody starts its server again: whether there was
/// one. A server that runs is left as it is; one that it was starting ends.
///
/// # Errors
/// The keeper is another user's or another machine's, or does not end.
pub fn dismiss(state: &Path) -> io::Result<bool> {
    let Some(mut file) = open(state)? else {
        return Ok(false);
    };
    let begun = Instant::now();
    // One that starts itself anew has no lock for a moment, and lives on without its keeper.
    while begun.elapsed() < SOON && state::is_between(state) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let begun = Instant::now();
    let mut was_there = false;
    while file.try_lock_shared().is_err() {
        was_there = true;
        if let Some(keeper) = process_of(&mut file)? {
            match pidfd_send_signal(&keeper, Signal::TERM) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if begun.elapsed() >= END_LIMIT {
            return Err(io::Error::other(format!(
                "what starts its server again does not end, or is not on this machine ({})",
                state::KEEPER
            )));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(file);
    // What it was starting has the state folder until it ends.
    while was_there && is_starting(state) && begun.elapsed() < END_LIMIT {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(was_there)
}

/// A process has the state folder, and does not answer.
fn is_starting(state: &Path) -> bool {
    matches!(state::holder(state), Ok(Some(Holder::Process(_))))
        && !matches!(Daemon::try_connect(state), Ok(Some(_)))
}

/// The process that has the lock: of the number that the file says, if that process is the folder's
/// owner's and has this very file open. The number alone proves nothing.
fn process_of(file: &mut File) -> io::Result<Option<OwnedFd>> {
    let number = state::read_pid(file).and_then(|pid| Pid::from_raw(pid.cast_signed()));
    let Some(number) = number else {
        return Ok(None);
    };
    let process = match pidfd_open(number, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(None),
        opened => opened?,
    };
    let own = file.metadata()?;
    let folder = format!("/proc/{}", number.as_raw_nonzero());
    // A process that has gone meanwhile has neither.
    let is_owners = std::fs::metadata(&folder).is_ok_and(|meta| meta.uid() == own.uid());
    let Ok(open) = std::fs::read_dir(format!("{folder}/fd")) else {
        return Ok(None);
    };
    let mut open = open.filter_map(|entry| std::fs::metadata(entry.ok()?.path()).ok());
    let has_it = open.any(|meta| (meta.dev(), meta.ino()) == (own.dev(), own.ino()));
    Ok((is_owners && has_it).then_some(process))
}

/// A server that has died and is about to be started again, once it answers; `None` where nobody
/// starts it, or that takes longer.
pub fn await_server(state: &Path, limit: Duration) -> Result<Option<Daemon>, Failure> {
    let begun = Instant::now();
    while is_there(state) && begun.elapsed() < limit {
        if let Some(daemon) = Daemon::try_connect(state)? {
            return Ok(Some(daemon));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end() {
        let pauses: Vec<Duration> = Tries::default().collect();
        assert_eq!(pauses.len(), TRIES as usize);
        assert_eq!(pauses[0], PAUSES.0);
        assert!(pauses.windows(2).all(|two| two[0] <= two[1]));
        assert_eq!(pauses.last(), Some(&PAUSES.1));
    }

    #[test]
    fn who_is_told_to_stop_has_not_died() {
        let of = |status: i32| ExitStatus::from_raw(status);
        assert!(is_ordered(of(0)) && is_ordered(of(143 << 8)) && is_ordered(of(130 << 8)));
        assert!(!is_ordered(of(libc::SIGKILL)) && !is_ordered(of(1 << 8)));
        assert!(!is_ordered(of(libc::SIGTERM)), "nobody has heard it");
    }

    /// A number in a file that somebody else may have written is no reason to end a process.
    #[test]
    fn a_process_that_has_not_the_file_is_not_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut bystander = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("sleep");
        let mut file = take(folder.path()).expect("the lock");
        file.set_len(0).expect("truncate");
        std::os::unix::fs::FileExt::write_all_at(&file, bystander.id().to_string().as_bytes(), 0)
            .expect("write");
        assert!(process_of(&mut file).expect("a look").is_none());
        dismiss(folder.path()).expect_err("nobody ends");
        assert!(bystander.try_wait().expect("wait").is_none(), "it lives");
        bystander.kill().expect("kill");
        bystander.wait().expect("wait");
    }

    #[test]
    fn who_keeps_nothing_need_not_be_dismissed() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(!dismiss(folder.path()).expect("no keeper"));
        drop(take(folder.path()).expect("the lock"));
        assert!(!dismiss(folder.path()).expect("a dead keeper"));
    }
}
