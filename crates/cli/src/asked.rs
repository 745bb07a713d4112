//! Whom `status` and `top` ask: a burst buffer on this node, or a cluster's server.

use std::path::{Path, PathBuf};

use clap::Args;
use forebay_wire::control::{Control, ControlResponse, StatusBits};

use crate::cluster::remote::Remote;
use crate::control::{AskError, Daemon};
use crate::exit::Failure;
use crate::instance;

/// What completes "not allowed to ...".
const DOING: &str = "ask for its status";

/// Which of them.
#[derive(Args)]
pub struct Whom {
    /// State folder of the burst buffer; without it (and FOREBAY_STATE) the only one mounted here
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    state: Option<PathBuf>,
    /// The cluster whose server is asked, over the network; nothing need be mounted here
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Whom {
    /// The server of a cluster.
    pub fn of(config: &Path) -> Whom {
        Whom {
            state: None,
            config: Some(config.into()),
        }
    }

    /// Connects.
    pub fn connect(&self) -> Result<Asked, Failure> {
        match &self.config {
            Some(config) => Remote::connect(config).map(Asked::There),
            None => Asked::here(self.state.as_deref()),
        }
    }
}

/// One that answers.
pub enum Asked {
    /// Through its state folder, which is the second.
    Here(Daemon, PathBuf),
    /// Over the network.
    There(Remote),
}

impl Asked {
    fn here(state: Option<&Path>) -> Result<Asked, Failure> {
        let state = instance::state_or_only(state)?;
        Ok(Asked::Here(Daemon::connect(&state)?, state))
    }

    /// Asks or orders something else.
    pub fn ask(&self, control: Control) -> Result<ControlResponse, AskError> {
        match self {
            Asked::Here(daemon, _) => daemon.ask(control),
            Asked::There(remote) => remote.ask(control),
        }
    }

    /// What `forebay status` shows.
    pub fn status(&self) -> Result<StatusBits, AskError> {
        match self {
            Asked::Here(daemon, _) => daemon.status(),
            Asked::There(remote) => remote.status(),
        }
    }

    /// An [`AskError`] as the end of a command.
    pub fn failure(&self, error: AskError) -> Failure {
        self.failure_to(error, DOING)
    }

    /// The same of a command that does something else: `doing` completes "not allowed to ...".
    pub fn failure_to(&self, error: AskError, doing: &str) -> Failure {
        match self {
            Asked::Here(daemon, _) => daemon.failure(error, doing),
            Asked::There(remote) => remote.failure(error, doing),
        }
    }

    /// The end of a command that has had answers, and gets none any more.
    pub fn stopped(&self) -> Failure {
        match self {
            Asked::Here(_, state) => {
                Failure::fatal(format!("{}: the burst buffer has stopped", state.display()))
            }
            Asked::There(remote) => remote.failure(AskError::Gone, DOING),
        }
    }
}
