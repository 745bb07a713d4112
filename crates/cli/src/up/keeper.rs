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

use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::detach::{self, Readiness};
use super::log;
use crate::exit::{Exit, Explain, Failure, reason};
use crate::{signals, state};

/// Told to the process that serves.
pub const KEPT: &str = "--kept";

/// The first pause before a new start is short: programs wait.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));
/// A server that served for so long begins with the shortest pause again.
const STEADY: Duration = Duration::from_secs(60);
/// So many starts may fail one after the other, which takes some three minutes.
const TRIES: u32 = 12;
/// A keeper that is told to end does so within this time.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Starts the server with this process's arguments, says when it serves, and starts it again
/// whenever it dies. Ends when the server has stopped in order.
pub fn run(state: &Path, readiness: &mut Readiness) -> Result<Exit, Failure> {
    signals::hold_none_back().explain("signals", "")?;
    let args = || std::env::args_os().skip(1).chain([KEPT.into()]);
    let (mut child, line) = detach::begin(args())?;
    let _lock = match take(state) {
        Ok(lock) => lock,
        Err(error) => {
            let why = format!(
                "{}: {}",
                state.join(state::KEEPER).display(),
                reason(&error)
            );
            // It serves, but not as it was asked for.
            end(child).explain("the process that serves", "")?;
            return Err(Failure::fatal(why));
        }
    };
    let told = log::start(state, None, true)?;
    told.take_stderr().explain("standard error", "")?;
    readiness.announce(&line)?;
    let mut tries = Tries::default();
    loop {
        let began = Instant::now();
        let ended = child.wait().explain("the process that serves", "")?;
        if ended.success() {
            return Ok(Exit::Complete);
        }
        tracing::warn!(
            "the server (process {}) {}; it is started again",
            child.id(),
            how(ended)
        );
        if began.elapsed() >= STEADY {
            tries = Tries::default();
        }
        child = loop {
            let Some(pause) = tries.next() else {
                let line = format!("{TRIES} starts have failed; start it by hand");
                tracing::error!("{line}");
                return Err(Failure::fatal(line));
            };
            std::thread::sleep(pause);
            match detach::begin(args()) {
                Ok((child, line)) => {
                    tracing::info!("{line}");
                    break child;
                }
                // The process that failed has told why in the log.
                Err(failure) => tracing::warn!("not started: {}", failure.message),
            }
        };
    }
}

/// In the process that serves: until it serves, it ends with its keeper. Else a server would begin
/// to serve after its keeper was dismissed.
pub fn begin_kept() -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(())
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

/// Takes the lock of the keeper; one that is held is another keeper's.
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

/// Whether there is a keeper of a state folder, which starts the server again if that has died.
pub fn is_there(state: &Path) -> bool {
    state::open(state, state::KEEPER, OFlags::RDONLY, 0o600)
        .is_ok_and(|file| file.try_lock_shared().is_err())
}

/// Ends the keeper of a state folder, so that nobody starts its server again: whether there was
/// one. The server is left as it is.
///
/// # Errors
/// The keeper is another user's, or does not end.
pub fn dismiss(state: &Path) -> io::Result<bool> {
    let mut file = match state::open(state, state::KEEPER, OFlags::RDONLY, 0o600) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    let begun = Instant::now();
    let mut told = None;
    while file.try_lock_shared().is_err() {
        // It writes its number when it has the lock.
        if told.is_none()
            && let Some(pid) =
                state::read_pid(&mut file).and_then(|pid| Pid::from_raw(pid.cast_signed()))
        {
            let process = pidfd_open(pid, PidfdFlags::empty())?;
            // The number may have been another's by the time that it was opened.
            if file.try_lock_shared().is_ok() {
                return Ok(true);
            }
            pidfd_send_signal(&process, Signal::TERM)?;
            told = Some(process);
        }
        if begun.elapsed() >= END_LIMIT {
            return Err(io::Error::other(
                "what starts the server again does not end",
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(told.is_some())
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
    fn who_keeps_nothing_need_not_be_dismissed() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(!dismiss(folder.path()).expect("no keeper"));
        drop(take(folder.path()).expect("the lock"));
        assert!(!dismiss(folder.path()).expect("a dead keeper"));
    }
}
