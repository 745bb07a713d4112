//! What clients have open, for who keeps it over a restart of the server.

use forebay_namespace::Namespace;
use forebay_types::Ino;

/// Knows which clients have files open that they may have again after a restart of the server, also
/// where those have no name.
pub trait Holding: Send + Sync {
    /// A client has opened a file in this life of its own, and is about to hear of it.
    fn hold(&self, ino: Ino, life: u64);

    /// It has closed that.
    fn let_go(&self, ino: Ino, life: u64);

    /// Nobody comes for what was open in this life before the restart.
    fn end_wait_for(&self, life: u64);
}

impl Holding for Namespace {
    fn hold(&self, ino: Ino, life: u64) {
        if let Err(error) = Namespace::hold(self, ino, life) {
            tracing::warn!("{ino:?} has no name, and would not outlive a restart: {error}");
        }
    }

    fn let_go(&self, ino: Ino, life: u64) {
        Namespace::let_go(self, ino, life);
    }

    fn end_wait_for(&self, life: u64) {
        Namespace::end_wait_for(self, life);
    }
}
