//! Servers that are started again by themselves, and are to be stopped.

use std::path::Path;
use std::time::Duration;

use crate::control::Daemon;
use crate::dead::not_running;
use crate::exit::{Explain, Failure};
use crate::state::{self, Holder};
use crate::up::keeper;

/// A server that has died is started again within this time, unless it takes long to start.
const STARTS_WITHIN: Duration = Duration::from_secs(20);
/// Nobody who wants it down waits longer for a server that does not start.
const SHORTLY: Duration = Duration::from_secs(5);

/// The server, if it is to be stopped. One that has died and is about to be started again is waited
/// for, longer where it is to be drained. One that does not come stays down.
///
/// # Errors
/// It stays down, or does not answer.
pub fn running(state: &Path, drains: bool) -> Result<Option<Daemon>, Failure> {
    if let Some(daemon) = Daemon::try_connect(state)? {
        return Ok(Some(daemon));
    }
    // One that has died is ended in order once it is there again: then nothing is left to repair.
    let limit = if drains { STARTS_WITHIN } else { SHORTLY };
    if let Some(daemon) = keeper::await_server(state, limit)? {
        return Ok(Some(daemon));
    }
    // Who is to be drained is not ended while it starts: what it has would stay undrained.
    if drains && matches!(state::holder(state), Ok(Some(Holder::Process(_)))) {
        return Ok(None);
    }
    if !stays_down(state)? {
        return Ok(None);
    }
    // It may have begun to serve just now.
    if let Some(daemon) = Daemon::try_connect(state)? {
        return Ok(Some(daemon));
    }
    let mut failure = not_running(state);
    let line = "; it was to be started again by itself, and is not now";
    failure.message.push_str(line);
    Err(failure)
}

/// From now on nothing starts the server again; whether something would have.
pub fn stays_down(state: &Path) -> Result<bool, Failure> {
    match keeper::dismiss(state) {
        // The server does not stop for this user either, and says so.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(false),
        done => done.explain(state.display(), ""),
    }
}
