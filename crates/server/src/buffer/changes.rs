//! Changes of an open file's content that are under way.

use std::sync::atomic::{AtomicU64, Ordering};

/// Requests that may be changing the content. Who has changed it asks after that whether somebody
/// still has the file open for writing; a close asks for changes after it has given up its handle.
/// So one of them takes in what the file has become.
#[derive(Default)]
pub struct Changes(AtomicU64);

impl Changes {
    /// A request is about to change the content, until this is dropped.
    pub fn begin(&self) -> Change<'_> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Change(&self.0)
    }

    /// Whether a request may be changing it at the moment.
    pub fn are_under_way(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }
}

/// See [`Changes::begin`].
pub struct Change<'a>(&'a AtomicU64);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
