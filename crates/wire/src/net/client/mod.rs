//! The asking side: a session over one or more links.

mod calls;
mod config;
mod connection;
mod dial;
mod link;
mod slots;
mod wire;

pub use config::{ConnectError, NetConfig};
pub use connection::{Lost, NetConnection};
pub use link::LinkState;
