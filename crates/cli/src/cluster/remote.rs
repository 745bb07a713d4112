//! A cluster's server, asked over the network without a mount.
//!
//! The server knows that it is a command that asks: the command is in no list of clients, has
//! nothing, and its session ends with its socket. A server that does not answer is not waited for
//! long.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_types::Errno;
use forebay_wire::control::{Control, ControlResponse, StatusBits};
use forebay_wire::net::NetConnection;
use forebay_wire::{Connection, Key, NOT_SENT, Request, Response};

use super::config::Cluster;
use super::reach;
use crate::control::AskError;
use crate::exit::{Explain, Failure};
use crate::within::within;

/// For so long a server is waited for: to be reached at one of its addresses, and for each answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// A server that has let this command in.
pub struct Remote {
    connection: Arc<NetConnection>,
    cluster: String,
}

impl Remote {
    /// Connects to the server that serves names, with the cluster's key.
    pub fn connect(config: &Path) -> Result<Remote, Failure> {
        let path = std::path::absolute(config).explain(config.display(), "")?;
        let cluster = Cluster::load(&path)?;
        let key = Key::read(&cluster.key).map_err(|e| Failure::fatal(e.to_string()))?;
        let mut ways = cluster.ways(&key);
        for way in &mut ways {
            way.encrypt = cluster.mount.encrypt;
            way.soft = Some(PATIENCE);
            way.facts.command = true;
        }
        let name = cluster.name;
        let refused = |why: String| Failure::fatal(format!("cluster {name}: {why}"));
        let connected = within(PATIENCE, move || reach::connect(ways));
        match connected.explain("a thread", "")? {
            Some(Ok(connection)) => Ok(Remote {
                connection: Arc::new(connection),
                cluster: name,
            }),
            Some(Err(why)) => Err(refused(why)),
            None => Err(refused(
                "its server did not answer in time; is `forebay server` running there?".into(),
            )),
        }
    }

    /// What `forebay status` shows.
    pub fn status(&self) -> Result<StatusBits, AskError> {
        match self.ask(Control::Status)? {
            ControlResponse::Status(bits) => Ok(*bits),
            _ => Err(another_question()),
        }
    }

    /// Asks one question, or gives an order.
    pub fn ask(&self, control: Control) -> Result<ControlResponse, AskError> {
        let groups = rustix::process::getgroups().unwrap_or_default();
        let request = Request::ControlFor {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(|group| group.as_raw()).collect(),
            control,
        };
        let connection = self.connection.clone();
        let asked = within(PATIENCE, move || connection.call(request, &[], &mut []));
        let reply = match asked.map_err(|error| AskError::Protocol(error.to_string()))? {
            Some(Ok(reply)) => reply,
            // The session is over, or nobody answers.
            Some(Err(Errno::ENOTCONN | NOT_SENT | Errno::ESTALE | Errno::EIO)) | None => {
                return Err(AskError::Gone);
            }
            Some(Err(errno)) => return Err(AskError::Refused(errno)),
        };
        match reply.response {
            Response::Control(answer) => Ok(answer),
            _ => Err(another_question()),
        }
    }

    /// An [`AskError`] as the end of a command; `doing` completes "not allowed to ...".
    pub fn failure(&self, error: AskError, doing: &str) -> Failure {
        let cluster = &self.cluster;
        Failure::fatal(match error {
            AskError::Gone => format!(
                "cluster {cluster}: its server has stopped, or does not answer any more; its log, on its own node, \
                 says more"
            ),
            AskError::Refused(errno) => format!("cluster {cluster}: cannot {doing}: {errno}"),
            AskError::Protocol(why) => format!("cluster {cluster}: {why}"),
        })
    }
}

fn another_question() -> AskError {
    AskError::Protocol("the server answered another question".into())
}
