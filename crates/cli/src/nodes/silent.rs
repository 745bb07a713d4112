//! Metadata servers that run and do not answer, as `forebay cluster stop --no-drain` ends them.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::control::Daemon;
use crate::exit::{Explain, Failure};
use crate::state::{self, Holder};
use crate::up::keeper;
use crate::within::within;

/// Who answers within this time is not silent.
pub const PATIENCE: Duration = Duration::from_secs(15);
/// A process that was killed ends within this time, unless a device keeps it.
const END_LIMIT: Duration = Duration::from_secs(30);

/// Ends the server of a state folder of this node if it does not answer for so long, and only then.
///
/// # Errors
/// It answers, or is not known to be the server, or does not end.
pub fn end_here(state: &Path, patience: Duration) -> Result<String, Failure> {
    let name = state.display();
    let Some(pid) = server_of(state)? else {
        // It is not to be started again.
        keeper::dismiss(state).explain(&name, "")?;
        return Ok("does not run".into());
    };
    let asked = state.to_path_buf();
    let ask = move || {
        Daemon::try_connect(&asked).is_ok_and(|daemon| match daemon {
            Some(daemon) => daemon.status().is_ok(),
            // It starts or ends, and comes to an end of that.
            None => true,
        })
    };
    if within(patience, ask).explain(&name, "")? == Some(true) {
        return Err(Failure::fatal(format!(
            "{name}: its server answers now, or starts or stops; try again"
        )));
    }
    let todo = "end it there by hand";
    let process = Pid::from_raw(pid.cast_signed()).ok_or_else(|| unknown(state))?;
    let process = pidfd_open(process, PidfdFlags::empty());
    let process = process.map_err(std::io::Error::from).explain(&name, todo)?;
    // The number may have been another's by the time that it was opened.
    if server_of(state)? != Some(pid) {
        return Err(Failure::fatal(format!(
            "{name}: its server has changed meanwhile; try again"
        )));
    }
    keeper::dismiss(state).explain(&name, todo)?;
    let killed = pidfd_send_signal(process, Signal::KILL);
    killed.map_err(std::io::Error::from).explain(&name, todo)?;
    let begun = Instant::now();
    while matches!(state::holder(state), Ok(Some(Holder::Process(_)))) {
        if begun.elapsed() >= END_LIMIT {
            return Err(Failure::fatal(format!(
                "{name}: its server does not answer, and does not end (process {pid})"
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(format!(
        "{name}: did not answer, and was ended (process {pid})"
    ))
}

/// The process that has the lock of a state folder.
fn server_of(state: &Path) -> Result<Option<u32>, Failure> {
    match state::holder(state).explain(state.display(), "")? {
        Some(Holder::Process(pid)) => pid.map(Some).ok_or_else(|| unknown(state)),
        Some(Holder::Nobody) | None => Ok(None),
    }
}

fn unknown(state: &Path) -> Failure {
    Failure::fatal(format!(
        "{}: its server does not answer, and does not say which process it is; end it by hand",
        state.display()
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    use super::*;

    /// A process that has the lock of a folder.
    const HOLDS: &str = "exec 9<>\"$0\"; flock 9; echo $$ >&9; exec sleep 300";

    #[test]
    fn who_has_the_folder_and_does_not_answer_is_ended_and_nobody_else() {
        let folder = tempfile::tempdir().expect("tempdir");
        let patience = Duration::from_millis(300);
        let end = || end_here(folder.path(), patience).map_err(|failure| failure.message);
        assert_eq!(end().expect("nobody"), "does not run");
        let lock = folder.path().join(state::LOCK);
        std::fs::write(&lock, "").expect("made");
        let mut holds = Command::new("sh");
        let mut server = holds.args(["-c", HOLDS]).arg(&lock).spawn().expect("sh");
        let has_it = Some(Holder::Process(Some(server.id())));
        let begun = Instant::now();
        while state::holder(folder.path()).expect("looked") != has_it {
            assert!(begun.elapsed() < END_LIMIT, "nobody takes it");
            std::thread::sleep(Duration::from_millis(5));
        }
        let starts = end().expect_err("it has no socket yet");
        assert!(starts.contains("starts or stops"), "{starts}");
        assert_eq!(server.try_wait().expect("asked"), None, "it runs");
        let _silent = UnixListener::bind(folder.path().join(state::SOCKET)).expect("bound");
        let ended = end().expect("ended");
        assert!(ended.contains("did not answer, and was ended"), "{ended}");
        assert!(!server.wait().expect("waited").success());
        assert_eq!(end().expect("nobody"), "does not run");
    }
}
