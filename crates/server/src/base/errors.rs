//! The errors that people are told of.

use std::collections::VecDeque;

use forebay_types::{Errno, limits};
use forebay_wire::control::PathFailure;
use parking_lot::Mutex;

/// The last errors, oldest first, one per path.
#[derive(Default)]
pub struct ErrorLog {
    entries: Mutex<VecDeque<PathFailure>>,
}

impl ErrorLog {
    /// Remembers an error; a newer one of the same path replaces the older.
    pub fn add(&self, path: Vec<u8>, errno: Errno, reason: String) {
        let mut entries = self.entries.lock();
        entries.retain(|e| e.path != path);
        if entries.len() >= limits::ERRORS_REMEMBERED_MAX {
            entries.pop_front();
        }
        entries.push_back(PathFailure {
            path,
            errno,
            reason,
        });
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.lock().is_empty()
    }

    /// What was wrong with this path no longer is.
    pub fn clear(&self, path: &[u8]) {
        let mut entries = self.entries.lock();
        if !entries.is_empty() {
            entries.retain(|e| e.path != path);
        }
    }

    /// All of them.
    pub fn all(&self) -> Vec<PathFailure> {
        self.entries.lock().iter().cloned().collect()
    }
}
