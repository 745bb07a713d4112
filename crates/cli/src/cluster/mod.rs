//! The nodes of a cluster as `cluster.toml` names them: the same file on every node.
//!
//! - `written`: the file's keys and types;
//! - `address`: from what is written to addresses of sockets;
//! - `checks`: what makes no sense is refused, with its line;
//! - `placing`: where its rules have files lie;
//! - `config`: what the commands work with;
//! - `reach`: which of the metadata servers leads;
//! - `remote`: a server, asked over the network.

pub mod address;
mod checks;
pub mod config;
pub mod error;
mod holders;
mod placing;
pub mod reach;
pub mod remote;
mod written;

pub use checks::patient_enough;
