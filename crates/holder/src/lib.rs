//! Objects on another node.
//!
//! A data server holds objects; a metadata server knows which file each is of. [`DataService`] is
//! the data server's side: it answers [`forebay_wire::ObjectCall`] out of the node's own tiers.
//! [`RemoteTier`] is the metadata server's: a [`forebay_tiers::Tier`] like any other, whose bytes
//! are elsewhere. Both know nothing of names, files and policy.

mod convert;
mod object;
mod remote;
mod service;

pub use object::RemoteObject;
pub use remote::{RemoteTier, RemoteTiers};
pub use service::DataService;
