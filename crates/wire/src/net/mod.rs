//! The network: many clients, each over several sockets, and every request happens once.
//!
//! A client is a *session*, which outlives its sockets. Each of its *links* is one TCP or Unix
//! socket at a time. A request takes a *slot* of the session and the slot's next number, so the
//! server knows a request that is sent again after a link broke, and answers it from memory.
//!
//! Both sides prove to have the cluster's key; messages are sealed; data has a checksum or is
//! sealed, too. `docs/decisions/0008` says why this way, `docs/decisions/0009` why with threads.

mod client;
mod clock;
mod framing;
pub(crate) mod fuzzing;
mod hello;
mod host;
mod packet;
mod seal;
mod secret;
mod server;
mod stream;

pub use client::{ConnectError, LinkState, Lost, NetConfig, NetConnection};
pub use hello::CLUSTER_NAME_BYTES_MAX;
pub use host::{Answer, Guest, Host};
pub use packet::{ClientFacts, HOST_BYTES_MAX, LINKS_MAX, SessionId, clean_host};
pub use server::{
    LinkStatus, NetServer, NetServerConfig, NetStatus, NetView, RefusedFor, SessionStatus,
};
