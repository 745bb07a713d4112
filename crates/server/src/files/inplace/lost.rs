//! What was to be written in place, and was not.

use forebay_namespace::PlainNode;
use forebay_types::Errno;

use super::{InPlace, Unflushed};

impl InPlace {
    /// The kernel has lost a store into a file. That is told as an error of a flush is, but for
    /// fsync: the kernel tells that itself. Whether nothing was told of the file before.
    pub(crate) fn lost_store(&self, node: &PlainNode, errno: Errno, reason: &str) -> bool {
        let (id, parent) = (node.id, node.parent.clone());
        let path = parent.path_of(&node.name);
        let mut state = self.state.lock();
        let is_news = !state.failed.contains_key(&id);
        if is_news {
            state.remember(Unflushed {
                id,
                parent,
                path,
                errno,
                reason: reason.into(),
            });
        }
        is_news
    }
}
