//! Files of the PFS that somebody has open there.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_tiers::PfsId;
use parking_lot::Mutex;

/// Inode number and time of birth.
type Key = (u64, u64);

/// How many targets of open files are files of the PFS. Asked by renames, for which nothing may be
/// waited for.
#[derive(Debug, Default)]
pub struct PfsOpens(Mutex<HashMap<Key, Counts>>);

/// Of one file.
#[derive(Debug, Default)]
struct Counts {
    opens: usize,
    /// Of these, opened for writing as well.
    written: usize,
}

/// One of them is open for as long as this lives.
#[derive(Debug)]
pub struct OpenOnPfs {
    opens: Arc<PfsOpens>,
    key: Key,
    writes: AtomicBool,
}

impl PfsOpens {
    /// A file is open there from now on, also for writing if it `writes`.
    pub fn open(self: &Arc<PfsOpens>, id: PfsId, writes: bool) -> Arc<OpenOnPfs> {
        let key = (id.ino, id.btime_ns);
        self.0.lock().entry(key).or_default().opens += 1;
        let open = OpenOnPfs {
            opens: self.clone(),
            key,
            writes: AtomicBool::new(false),
        };
        if writes {
            open.note_writer();
        }
        Arc::new(open)
    }

    /// Whether somebody has a file open there, by inode number and time of birth.
    pub fn has(&self, ino: u64, btime_ns: u64) -> bool {
        self.0.lock().contains_key(&(ino, btime_ns))
    }

    /// The same of those that may change it.
    pub fn has_writer(&self, ino: u64, btime_ns: u64) -> bool {
        let opens = self.0.lock();
        opens
            .get(&(ino, btime_ns))
            .is_some_and(|counts| counts.written > 0)
    }
}

impl OpenOnPfs {
    /// Somebody has joined it who may write.
    pub fn note_writer(&self) {
        let mut opens = self.opens.0.lock();
        if !self.writes.swap(true, Ordering::Relaxed) {
            opens.entry(self.key).or_default().written += 1;
        }
    }
}

impl Drop for OpenOnPfs {
    fn drop(&mut self) {
        let mut opens = self.opens.0.lock();
        if let Some(counts) = opens.get_mut(&self.key) {
            counts.opens -= 1;
            counts.written -= usize::from(self.writes.load(Ordering::Relaxed));
            if counts.opens == 0 {
                opens.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_open_until_the_last_has_closed_it() {
        let opens = Arc::new(PfsOpens::default());
        let id = PfsId {
            dev: 1,
            ino: 2,
            btime_ns: 3,
        };
        let (first, second) = (opens.open(id, true), opens.open(id, false));
        assert!(opens.has_writer(2, 3));
        drop(first);
        assert!(opens.has(2, 3) && !opens.has(2, 4));
        assert!(!opens.has_writer(2, 3));
        second.note_writer();
        second.note_writer();
        assert!(opens.has_writer(2, 3));
        drop(second.clone());
        assert!(opens.has(2, 3));
        drop(second);
        assert!(!opens.has(2, 3) && !opens.has_writer(2, 3));
    }
}
