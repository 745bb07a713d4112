//! Where the log goes.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::OFlags;
use tracing_subscriber::EnvFilter;

use crate::exit::{Explain, Failure};
use crate::state;

/// Starts logging, with times in UTC: to standard error, or to the log file of `state`, which
/// standard error then is, too.
pub fn start(state: Option<&Path>) -> Result<(), Failure> {
    let filter = EnvFilter::try_from_env("FOREBAY_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(false);
    let set = match state {
        None => builder.with_writer(io::stderr).try_init(),
        Some(state) => {
            let path = state.join(state::LOG);
            let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
            let file = state::open(state, state::LOG, flags, 0o600)
                .explain(path.display(), "the log is written there")?;
            builder.with_writer(Arc::new(file)).try_init()
        }
    };
    set.map_err(|error| Failure::fatal(format!("log: {error}")))
}

/// Standard error goes to the log file, so that a panic is found there.
pub fn take_stderr(state: &Path) -> io::Result<()> {
    let file = state::open(state, state::LOG, OFlags::WRONLY | OFlags::APPEND, 0)?;
    rustix::stdio::dup2_stderr(file)?;
    Ok(())
}
