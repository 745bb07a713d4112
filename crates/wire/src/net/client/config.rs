//! What a client needs to connect, and why it could not.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use forebay_types::Errno;

use super::super::hello::{CLUSTER_NAME_BYTES_MAX, TRANSPORT_VERSION};
use super::super::packet::{ClientFacts, LINKS_MAX};
use crate::Key;
use crate::frame::PROTOCOL_VERSION;

/// How to reach a server.
#[derive(Clone)]
pub struct NetConfig {
    /// The server's addresses; links are spread over them.
    pub addresses: Vec<SocketAddr>,
    /// Addresses of other servers that may lead in this one's place. Only whether one of them does
    /// is asked there, while this one is silent: a session is with one server.
    pub elsewhere: Vec<SocketAddr>,
    /// The server's socket on this machine. Where it answers, all links go there, and replies may
    /// carry descriptors.
    pub unix: Option<PathBuf>,
    /// Over a network, too, descriptors are of use: those of a data server on this node.
    pub near: bool,
    /// Name of the cluster, up to 64 bytes.
    pub cluster: String,
    /// The cluster's key.
    pub key: Key,
    /// Sockets to the server, from 1 to [`LINKS_MAX`].
    pub links: usize,
    /// One socket more, for [`crate::Request::Recalls`] alone: they do not wait behind data, and
    /// nobody has to read replies for somebody else because of them.
    pub recalls: bool,
    /// Data is encrypted as messages are; else it has a checksum.
    pub encrypt: bool,
    /// Requests fail with `EIO` when the server cannot be reached for so long; without it they wait
    /// as long as the lease lasts.
    pub soft: Option<Duration>,
    /// The session is over once no link has been up for so long, and nothing was heard of the
    /// server: requests under way are not waited for any more. Without it they wait as long as the
    /// lease lasts. The server may keep the session: only for servers that end it when the next one
    /// begins.
    pub gone_after: Option<Duration>,
    /// What the server is told of this client. `address` and `local` are the server's to fill in.
    pub facts: ClientFacts,
}

impl NetConfig {
    /// One link to no address, of this process on this node, with plain data.
    pub fn new(cluster: &str, key: Key) -> NetConfig {
        let host = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        NetConfig {
            addresses: Vec::new(),
            elsewhere: Vec::new(),
            unix: None,
            near: false,
            cluster: cluster.to_string(),
            key,
            links: 1,
            recalls: false,
            encrypt: false,
            soft: None,
            gone_after: None,
            facts: ClientFacts {
                host,
                pid: std::process::id(),
                address: None,
                local: false,
                mount_uid: rustix::process::geteuid().as_raw(),
                life: 0,
                command: false,
            },
        }
    }

    pub(super) fn check(&self) -> Result<(), ConnectError> {
        if self.addresses.is_empty() && self.unix.is_none() {
            return Err(ConnectError::Setting("no address of a server is given"));
        }
        if self.links == 0 || self.links > usize::from(LINKS_MAX) {
            return Err(ConnectError::Setting(
                "the number of connections is from 1 to 64",
            ));
        }
        if self.cluster.len() > CLUSTER_NAME_BYTES_MAX {
            return Err(ConnectError::Setting(
                "the cluster's name is longer than 64 bytes",
            ));
        }
        Ok(())
    }
}

/// Why there is no connection. `server` is the address that was tried.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the texts say
pub enum ConnectError {
    #[error("{0}")]
    Setting(&'static str),
    #[error("{server} cannot be reached: {error}")]
    Unreachable {
        server: String,
        #[source]
        error: std::io::Error,
    },
    #[error("{server} did not answer in time")]
    Silent { server: String },
    #[error("{server} is not a Forebay server")]
    NotForebay { server: String },
    #[error(
        "{server} speaks version {messages}.{transport}, this side {PROTOCOL_VERSION}.\
         {TRANSPORT_VERSION}; use the same forebay on both"
    )]
    Version {
        server: String,
        messages: u32,
        transport: u32,
    },
    #[error("{server} does not belong to cluster {cluster:?}; look at the cluster's name")]
    Cluster { server: String, cluster: String },
    #[error("{server} has another key; copy the cluster's key file to both")]
    Key { server: String },
    #[error("{server} has too many connections")]
    TooMany { server: String },
    #[error("{server} takes encrypted data only; use encrypt = true, or --encrypt")]
    Clear { server: String },
    #[error("{server} takes no clients: {errno}")]
    Refused { server: String, errno: Errno },
    /// Of a further connection of a session.
    #[error("{server} does not know the session any more")]
    Forgotten { server: String, epoch: u64 },
    #[error("{server} does not keep to the protocol: {what}")]
    Broken { server: String, what: String },
    #[error("no random numbers, or no thread: {0}")]
    Local(#[source] std::io::Error),
    #[error("the connection was closed meanwhile")]
    Closed,
}
