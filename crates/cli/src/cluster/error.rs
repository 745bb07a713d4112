//! What is wrong with a `cluster.toml`: one line, `FILE: line N: what; what to do`.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use forebay_policy::lending::LendingError;

use crate::exit::{Failure, reason};
use crate::up::settle::bounds_in_words;

/// Why a cluster's configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read, is no TOML, has an unknown key, or a value of the wrong kind. The line
    /// is as `up` says it of its own file.
    #[error("{0}")]
    Unreadable(String),
    /// A value makes no sense.
    #[error("{}: line {line}: {problem}", .path.display())]
    At {
        /// The file.
        path: PathBuf,
        /// Where in it, from 1.
        line: usize,
        /// What is wrong.
        problem: Problem,
    },
    /// Something is wrong with no line of its own: it is missing, or this node is another one.
    #[error("{}: {problem}", .path.display())]
    In {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: Problem,
    },
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Failure {
        Failure::fatal(error.to_string())
    }
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages say
pub enum Problem {
    #[error("has no section [cluster]; it says what all nodes have in common")]
    NoCluster,
    #[error("has no [[server]]; each server of the cluster has one")]
    NoServer,
    #[error("no server has the role \"metadata\"; give it to one")]
    NoMetadata,
    #[error("'{0}' is no {1}: letters, digits, '-', '_' and '.', at most {max}, a letter or digit first", max = super::checks::NAME_BYTES_MAX)]
    Name(String, &'static str),
    #[error("{key} '{}' is relative; the file is the same on every node, so give it an absolute path", .path.display())]
    Relative { key: &'static str, path: PathBuf },
    #[error(
        "unknown store \"{0}\"; it is \"embedded\", \"redis://HOST:PORT/DB\" or \"etcd://HOST:PORT,HOST:PORT\""
    )]
    UnknownStore(String),
    #[error("replicas is {0}; it is the number of copies, 1 or 2")]
    Replicas(usize),
    #[error(
        "replicas = 2 needs two servers with the role data and flash; give a second one ssd = [\"/DIR:SIZE\"]"
    )]
    NoSecondServer,
    #[error("durability replica needs replicas = 2 in [cluster]")]
    ReplicaWithoutTwo,
    #[error("replica_rate is {0}/s; the least is {1}/s")]
    ReplicaRate(String, String),
    #[error("restart_copies is {0}; it is 0, or 1 for one copy on another node")]
    RestartCopies(usize),
    #[error(
        "restart_copies_space is {0}; it is a part of each node's flash, above 0 and at most 1 (100%), and restart_copies = 0 makes no copies"
    )]
    RestartCopiesSpace(f64),
    #[error(
        "server {0}: a second server with the role metadata takes over by itself, which needs store = \"etcd://...\"; use that, or write roles = [\"data\"]"
    )]
    StandbyStore(u16),
    #[error(
        "server {0}: with a second metadata server none may hold data, which nobody could reach when another takes over; give its memory and flash to a [[server]] of its own on that node, with roles = [\"data\"] and another port"
    )]
    StandbyWithTiers(u16),
    #[error(
        "server {0} has memory or flash and not the role data; add \"data\", or leave dram and ssd out"
    )]
    TierWithoutData(u16),
    #[error(
        "no server has the role data: there is no place for files; write roles = [\"metadata\", \"data\"]"
    )]
    NoData,
    #[error("id is {0}; it must be 1 to {max}", max = u16::MAX)]
    Id(usize),
    #[error("id {0} is taken: the [[server]] of line {1} has it")]
    SameId(u16, usize),
    #[error("server {0} has no role; write roles = [\"metadata\", \"data\"]")]
    NoRole(u16),
    #[error("server {0} has a role twice")]
    SameRole(u16),
    #[error(
        "server {0}: '{1}' is no name that a node is reached by; letters, digits, '-', '_', '.', ':' and '@', a letter or digit first"
    )]
    Host(u16, String),
    #[error("server {0} has no address; write {1} = [\"10.0.0.1:7070\"]")]
    NoAddress(u16, &'static str),
    #[error(
        "server {0} has no replication_addresses, and others have: data servers know a metadata server by the address that it comes from; give it one in that network"
    )]
    NoReplicationAddress(u16),
    #[error("'{written}': {why}")]
    Address {
        written: String,
        why: super::address::AddressError,
    },
    #[error("{0} is given twice: first in line {1}")]
    SameAddress(SocketAddr, usize),
    #[error("server {0} has neither dram nor ssd; its data need memory or flash")]
    NoTier(u16),
    #[error("server {0}: {error}", error = bounds_in_words(.1))]
    Lending(u16, LendingError),
    #[error("{0} is too small for a tier; the least is {1}")]
    SmallTier(String, String),
    #[error(
        "server {0} has no flash, which durability ssd needs; give it ssd = [\"/DIR:SIZE\"], or choose memory or pfs"
    )]
    NoFlash(u16),
    #[error("{0} is empty; name one at least, or leave it out")]
    RuleEmpty(&'static str),
    #[error(
        "servers: there is no server {id}; the servers with the role data are {}", list(.known)
    )]
    RuleServer { id: usize, known: Vec<u16> },
    #[error("racks: no server has rack = \"{rack}\"; {}", racks(.known))]
    RuleRack { rack: String, known: Vec<String> },
    #[error("no server that the rule names holds data; name one with the role data")]
    RuleWithoutData,
    #[error(
        "durability replica needs two servers with flash, and the rule names {0}; name more, or write durability = \"ssd\""
    )]
    RuleWithoutTwo(usize),
    #[error("lease is {0}; it must be {1} to {2}")]
    Lease(String, String, String),
    #[error("connection_rate is {0}/s; the least is {1}/s, and without it there is no limit")]
    ConnectionRate(String, String),
    #[error("connections is {0}; it must be 1 to {1}")]
    Connections(usize, usize),
    #[error(
        "soft is {0}; a server that is only busy would fail programs; at least {1}, or false to wait"
    )]
    Soft(String, String),
    #[error(
        "encrypt = false in [mount], but the servers take encrypted connections only; leave it out"
    )]
    Encrypt,
    #[error("{0}")]
    Setting(String),
    #[error("there is no server {id}; there is {}", list(.known))]
    NoSuchServer { id: u16, known: Vec<u16> },
    #[error("server {id}: {address} is no address of this node{}", here(.others))]
    Elsewhere {
        id: u16,
        address: SocketAddr,
        others: Vec<u16>,
    },
    #[error("server {id}: cannot find out whether {address} is an address of this node: {}", reason(.source))]
    Unclear {
        id: u16,
        address: SocketAddr,
        source: io::Error,
    },
    #[error("pfs {}: {}; mount the parallel file system on this node first", .path.display(), reason(.source))]
    NoPfs { path: PathBuf, source: io::Error },
    #[error("pfs {}: what is there on this node is not the PFS of cluster {cluster}: a file that its server has made does not show; mount that PFS there, or leave the directory empty, for a mount needs no PFS on its node", .path.display())]
    AnotherPfs { path: PathBuf, cluster: String },
    #[error("pfs {} is not a directory; name where the parallel file system is mounted", .path.display())]
    PfsNoDirectory { path: PathBuf },
}

fn list(ids: &[u16]) -> String {
    let ids: Vec<String> = ids.iter().map(u16::to_string).collect();
    ids.join(", ")
}

fn racks(known: &[String]) -> String {
    match known {
        [] => "write it into the [[server]] of those that are in it".into(),
        _ => format!("the racks are \"{}\"", known.join("\", \"")),
    }
}

fn here(others: &[u16]) -> String {
    match others {
        [] => "; start it on its own node, or correct its addresses".into(),
        _ => format!("; this node is server {}", list(others)),
    }
}
