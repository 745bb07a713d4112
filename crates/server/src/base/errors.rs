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

    /// What was told of this path no longer is, unless something else was told of it since.
    pub fn clear_told(&self, path: &[u8], reason: &str) {
        let mut entries = self.entries.lock();
        entries.retain(|e| e.path != path || e.reason != reason);
    }

    /// What was told of this path and error.
    pub fn reason(&self, path: &[u8], errno: Errno) -> Option<String> {
        let entries = self.entries.lock();
        let told = entries.iter().find(|e| e.path == path && e.errno == errno);
        told.map(|e| e.reason.clone())
    }

    /// All of them.
    pub fn all(&self) -> Vec<PathFailure> {
        self.entries.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::{Errno, limits};

    use super::ErrorLog;

    fn paths(log: &ErrorLog) -> Vec<Vec<u8>> {
        log.all().into_iter().map(|entry| entry.path).collect()
    }

    #[test]
    fn the_last_error_of_a_path_counts_and_comes_last() {
        let log = ErrorLog::default();
        log.add(b"a".to_vec(), Errno::EIO, "first".into());
        log.add(b"b".to_vec(), Errno::EIO, "other".into());
        log.add(b"a".to_vec(), Errno::ENOSPC, "second".into());
        assert_eq!(paths(&log), [b"b", b"a"]);
        assert_eq!(log.all()[1].reason, "second");
        let told = |errno| log.reason(b"a", errno);
        assert_eq!(
            (told(Errno::ENOSPC), told(Errno::EIO)),
            (Some("second".into()), None)
        );
        log.clear(b"b");
        log.clear(b"never");
        assert_eq!(paths(&log), [b"a"]);
        log.clear(b"a");
        assert!(log.is_empty());
    }

    #[test]
    fn the_oldest_go_where_there_are_too_many() {
        let log = ErrorLog::default();
        for at in 0..limits::ERRORS_REMEMBERED_MAX + 3 {
            log.add(at.to_string().into_bytes(), Errno::EIO, String::new());
        }
        assert_eq!(log.all().len(), limits::ERRORS_REMEMBERED_MAX);
        assert_eq!(paths(&log)[0], b"3");
    }
}
