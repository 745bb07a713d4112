//! Clients that come over the network, in the status.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// One connection of a client in `status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// Its number, from 0.
    pub number: u16,
    /// From the client since its socket was connected, bytes.
    pub in_bytes: u64,
    /// To the client, likewise.
    pub out_bytes: u64,
}

/// One client of a network server in `status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientStatus {
    /// The node's name as the client gives it, cut, without control characters.
    pub host: String,
    /// Its process on that node, as it says.
    pub pid: u32,
    /// The user who runs it, as it says.
    pub uid: u32,
    /// Where it came from, as the server sees it; `None` on the server's own node.
    pub address: Option<SocketAddr>,
    /// How long it has been there, milliseconds.
    pub age_ms: u64,
    /// How long nothing has been heard of it, milliseconds.
    pub silent_ms: u64,
    /// Files that it has open.
    pub open_files: u64,
    /// Its requests so far.
    pub requests: u64,
    /// Its sockets.
    pub connections: Vec<ConnectionStatus>,
}

/// Peers that a network server refused for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedStatus {
    /// The reason, in a word.
    pub reason: String,
    /// How many there were since the start.
    pub peers: u64,
}

/// What a network server does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkStatus {
    /// Clients: those whose connections have carried most.
    pub clients: Vec<ClientStatus>,
    /// How many there are.
    pub clients_total: u64,
    /// Their connections.
    pub connections_total: u64,
    /// Peers that were refused since the start, by reason.
    pub refused: Vec<RefusedStatus>,
    /// How many those are.
    pub refused_total: u64,
    /// Threads that serve requests.
    pub threads: u64,
    /// Of those, busy with one.
    pub threads_busy: u64,
}
