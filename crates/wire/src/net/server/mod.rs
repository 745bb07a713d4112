//! The serving side: one epoll instance, a few threads, and a session for each client.

mod admit;
mod buffers;
mod core;
mod door;
mod knock;
mod link;
mod poller;
mod pool;
mod refusals;
mod serve;
mod session;
mod slots;
mod start;
mod status;
mod worker;

pub use refusals::RefusedFor;
pub use start::{NetServer, NetServerConfig};
pub use status::{LinkStatus, NetStatus, NetView, SessionStatus};
