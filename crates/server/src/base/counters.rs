//! Counts.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts that only grow. What was demoted and evicted counts since the state folder was made, all
/// else since the server started.
#[derive(Default)]
pub struct Counters {
    /// Written to the PFS and verified, bytes.
    pub demoted_bytes: AtomicU64,
    /// Likewise, files.
    pub demoted_files: AtomicU64,
    /// Dropped clean copies, bytes.
    pub evicted_bytes: AtomicU64,
    /// Checkpoints made on the PFS because they were colder than what would have had to leave for
    /// them. What went there for want of room is not among them.
    pub direct_files: AtomicU64,
    /// Files that went on on another node while they were written: theirs was full.
    pub handed_over_files: AtomicU64,
    /// Objects removed, bytes.
    pub deleted_bytes: AtomicU64,
    /// Writes that waited for space.
    pub waited_writes: AtomicU64,
    /// How long they did, all together, microseconds.
    pub space_wait_us: AtomicU64,
    /// Bytes written by programs through requests or seen at close.
    pub written_bytes: AtomicU64,
    /// Errors.
    pub errors: AtomicU64,
    /// Of the errors, files that lost something.
    pub losses: AtomicU64,
    earlier: OnceLock<Earlier>,
}

/// What earlier runs have put on record.
#[derive(Clone, Copy, Default)]
pub struct Earlier {
    /// See [`Counters::demoted_bytes`].
    pub demoted_bytes: u64,
    /// See [`Counters::demoted_files`].
    pub demoted_files: u64,
    /// See [`Counters::evicted_bytes`].
    pub evicted_bytes: u64,
}

impl Counters {
    /// Goes on with what earlier runs have counted; once, before anything is counted.
    pub fn go_on(&self, earlier: Earlier) {
        let earlier = self.earlier.get_or_init(|| earlier);
        for (count, from) in [
            (&self.demoted_bytes, earlier.demoted_bytes),
            (&self.demoted_files, earlier.demoted_files),
            (&self.evicted_bytes, earlier.evicted_bytes),
        ] {
            count.store(from, Ordering::Relaxed);
        }
    }

    /// What of the counts is of earlier runs.
    pub fn earlier(&self) -> Earlier {
        self.earlier.get().copied().unwrap_or_default()
    }

    /// Mean size of what was demoted, bytes; 0 before the first file.
    pub fn mean_demoted_bytes(&self) -> f64 {
        let files = self.demoted_files.load(Ordering::Relaxed);
        self.demoted_bytes.load(Ordering::Relaxed) as f64 / files.max(1) as f64
    }

    /// A write has waited for space for so long.
    pub fn note_space_wait(&self, waited: Duration) {
        self.space_wait_us
            .fetch_add(waited.as_micros() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_earlier_runs_have_counted_is_known_beside_the_sums() {
        let counters = Counters::default();
        assert_eq!(counters.earlier().demoted_bytes, 0);
        counters.go_on(Earlier {
            demoted_bytes: 100,
            demoted_files: 3,
            evicted_bytes: 7,
        });
        counters.demoted_bytes.fetch_add(50, Ordering::Relaxed);
        assert_eq!(counters.demoted_bytes.load(Ordering::Relaxed), 150);
        let earlier = counters.earlier();
        assert_eq!(
            (
                earlier.demoted_bytes,
                earlier.demoted_files,
                earlier.evicted_bytes
            ),
            (100, 3, 7)
        );
    }
}
