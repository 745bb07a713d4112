//! Objects on another node.
//!
//! A data server holds objects; a metadata server knows which file each is of. [`DataServer`] is
//! the data server's side: it answers [`forebay_wire::ObjectCall`] out of the node's own tiers.
//! [`RemoteTier`] is the metadata server's: a [`forebay_tiers::Tier`] like any other, whose bytes
//! are elsewhere. Both know nothing of names, files and policy.

mod claim;
mod convert;
mod copies;
mod failures;
mod kept;
mod latest;
mod lending;
mod local;
mod object;
mod redial;
mod remote;
mod replication;
mod server;
mod service;
mod unanswered;
mod way;

pub use claim::Claim;
pub use lending::{
    BorrowedMemory, end_order_of_before, memory_seen, pools_of, tell_of_missing_group,
};
pub use local::{SsdSetting, open_flash, open_memory};
pub use object::RemoteObject;
pub use redial::{Dial, Redialing};
pub use remote::{RemoteTier, RemoteTiers};
pub use server::{DataHost, DataServer, OpenTiers};
pub use service::DataSession;
