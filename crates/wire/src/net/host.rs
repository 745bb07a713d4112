//! What stands behind a network server.

use std::sync::Arc;

use forebay_types::Errno;

use super::packet::ClientFacts;
use crate::{Response, Service};

/// Takes the answer to a request that waits without a thread.
pub type Answer = Box<dyn FnOnce(Response) + Send>;

/// Whoever serves clients: makes a [`Guest`] of each.
pub trait Host: Send + Sync {
    /// A number that is another one after each start: nothing from before is taken for what is now.
    fn epoch(&self) -> u64;

    /// Whether what the host says counts. Where it does not, nobody is answered: the client asks
    /// elsewhere.
    fn may_answer(&self) -> bool {
        true
    }

    /// A client has come. An error is told to the client, which does not get in. May block.
    fn begin(&self, facts: &ClientFacts) -> Result<Arc<dyn Guest>, Errno>;
}

/// What serves one client's session.
pub trait Guest: Service {
    /// The session is over: closes all that the client had. It is called once, when no request of
    /// the session runs any more, and may take time.
    fn end(&self);

    /// The client has followed all recalls up to number `seen`, and waits for the next ones:
    /// `answer` is to be called once, at any time and from any thread, with
    /// [`Response::Recalls`]. It may be `settled`: it has no pages from before. Must not block.
    fn listen(&self, _seen: u64, _settled: bool, answer: Answer) {
        answer(Response::Failed(Errno::ENOSYS));
    }

    /// Files that the client has open.
    fn open_files(&self) -> u64 {
        0
    }

    /// Answers whoever listens, with nothing: the way to the client breaks. Must not block.
    fn hush(&self) {}
}
