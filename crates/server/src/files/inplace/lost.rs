//! What was to be written in place, and was not.

use forebay_tiers::PfsId;
use forebay_types::Errno;

use super::{InPlace, Unflushed};

impl InPlace {
    /// The kernel has lost a store into a file. That is told as an error of a flush is, but for
    /// fsync: the kernel tells that itself. Whether nothing was told of the file before.
    pub(crate) fn lost_store(&self, id: PfsId, path: Vec<u8>, errno: Errno, reason: &str) -> bool {
        let mut state = self.state.lock();
        let is_news = !state.failed.contains_key(&id);
        if is_news {
            state.remember(Unflushed {
                id,
                path,
                errno,
                reason: reason.into(),
                owed: false,
            });
        }
        is_news
    }
}
