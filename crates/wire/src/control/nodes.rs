//! The nodes of a cluster in `status`.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::NodeLending;

/// One server of a cluster in `status`, as the metadata server sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its id in the cluster.
    pub server: u16,
    /// What fails together with it, as the configuration calls it; `None`: nothing does.
    pub rack: Option<String>,
    /// Where it listens.
    pub addresses: Vec<SocketAddr>,
    /// It serves names.
    pub metadata: bool,
    /// It holds data.
    pub data: bool,
    /// The records of all files are in its state folder.
    pub has_records: bool,
    /// It answers.
    pub answers: bool,
    /// For how long it has not, milliseconds.
    pub missing_ms: Option<u64>,
    /// Sockets of the metadata server to it that are connected; 0 on the metadata server's node.
    pub links_up: u64,
    /// How many there should be, once there was a session.
    pub links: u64,
    /// Over them from the node in this session, bytes.
    pub in_bytes: u64,
    /// Over them to the node, likewise.
    pub out_bytes: u64,
    /// Its tiers, by name.
    pub tiers: Vec<String>,
    /// Their capacity, bytes.
    pub capacity_bytes: u64,
    /// Of that held by objects, bytes.
    pub used_bytes: u64,
    /// Of that by copies of other nodes' drained files, for restarts: they go first where space is
    /// wanted, bytes.
    pub restart_copy_bytes: u64,
    /// Of the objects not yet on the PFS, bytes.
    pub dirty_bytes: u64,
    /// Of those on no other node either: what would be lost with it, bytes.
    pub only_here_bytes: u64,
    /// Files likewise.
    pub only_here_files: u64,
    /// Of those bytes in its memory: a restart of the node takes what no fsync has put elsewhere.
    pub only_in_memory_bytes: u64,
    /// Copies to the PFS of files that it holds, under way.
    pub copies_under_way: u64,
    /// It is being emptied, or is empty by order: no new file goes there.
    pub emptying: Option<EmptyingStatus>,
    /// It lends memory, or has since the start of the metadata server.
    pub lending: Option<Box<NodeLending>>,
}

/// What is still on a node that is to be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmptyingStatus {
    /// Files, and copies of files; 0: it is empty.
    pub files: u64,
    /// Of those, files that somebody has open.
    pub open_files: u64,
    /// The first of the files that are waited for, and why.
    pub awaited: Vec<AwaitedFile>,
}

/// A file that keeps a node from being empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwaitedFile {
    /// Its path.
    pub path: Vec<u8>,
    /// Why it is still there.
    pub why: Awaited,
}

/// Why a file is still on a node that is to be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Awaited {
    /// It is open, and could not move.
    Open,
    /// It changes again before it is drained or has moved.
    Changes,
    /// Its second copy is there, and it is open: it is not drained before its close.
    SecondOfOpen,
    /// Its second copy is there, and it changes again before it is drained.
    SecondChanges,
}

/// Files that were promised a second copy on another server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecondCopiesStatus {
    /// Somebody has looked since the start: before, the figures say nothing.
    pub known: bool,
    /// How many have none, as of the last look.
    pub missing_files: u64,
    /// Their bytes.
    pub missing_bytes: u64,
}

/// A data server, which holds objects and knows no files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataServerStatus {
    /// Its id in the cluster.
    pub server: u16,
    /// The cluster's name.
    pub cluster: String,
    /// A metadata server is connected.
    pub is_used: bool,
}

/// The process that starts a server again if that dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperStatus {
    /// Its process id, as the server was told.
    pub pid: u32,
    /// Whether it is there still.
    pub runs: bool,
}

/// A metadata server that stands by while another leads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandbyStatus {
    /// Its id in the cluster.
    pub server: u16,
    /// The cluster's name.
    pub cluster: String,
    /// Who leads, as that one calls itself.
    pub leader: String,
}
