//! What stands behind a network server.

use std::sync::Arc;

use forebay_types::Errno;

use super::packet::ClientFacts;
use crate::Service;

/// Whoever serves clients: makes a [`Guest`] of each.
pub trait Host: Send + Sync {
    /// A number that is another one after each start: nothing from before is taken for what is now.
    fn epoch(&self) -> u64;

    /// A client has come. An error is told to the client, which does not get in. May block.
    fn begin(&self, facts: &ClientFacts) -> Result<Arc<dyn Guest>, Errno>;
}

/// What serves one client's session.
pub trait Guest: Service {
    /// The session is over: closes all that the client had. It is called once, when no request of
    /// the session runs any more, and may take time.
    fn end(&self);
}
