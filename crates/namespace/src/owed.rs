//! Directories whose times the PFS is to be told without a drain.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::tree::Dir;

/// Directories in which names came or went without a drain that would tell the PFS, and since when.
#[derive(Default)]
pub(crate) struct OwedTimes(Mutex<Vec<(Weak<Dir>, Instant)>>);

impl OwedTimes {
    /// One more.
    pub(crate) fn add(&self, dir: &Arc<Dir>) {
        self.0.lock().push((Arc::downgrade(dir), Instant::now()));
    }

    /// Those that have waited so long.
    pub(crate) fn take(&self, age: Duration) -> Vec<Arc<Dir>> {
        let mut owed = self.0.lock();
        let due = owed.iter().take_while(|(_, since)| since.elapsed() >= age);
        let due = due.count();
        owed.drain(..due)
            .filter_map(|(dir, _)| dir.upgrade())
            .collect()
    }
}
