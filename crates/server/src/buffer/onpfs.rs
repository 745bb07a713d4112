//! Files of the PFS that somebody has open there.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_tiers::PfsId;
use parking_lot::Mutex;

/// Inode number and time of birth.
type Key = (u64, u64);

/// How many targets of open files are files of the PFS. Asked by renames, for which nothing may be
/// waited for.
#[derive(Debug, Default)]
pub struct PfsOpens(Mutex<HashMap<Key, usize>>);

/// One of them is open for as long as this lives.
#[derive(Debug)]
pub struct OpenOnPfs {
    opens: Arc<PfsOpens>,
    key: Key,
}

impl PfsOpens {
    /// A file is open there from now on.
    pub fn open(self: &Arc<PfsOpens>, id: PfsId) -> Arc<OpenOnPfs> {
        let key = (id.ino, id.btime_ns);
        *self.0.lock().entry(key).or_default() += 1;
        Arc::new(OpenOnPfs {
            opens: self.clone(),
            key,
        })
    }

    /// Whether somebody has a file open there, by inode number and time of birth.
    pub fn has(&self, ino: u64, btime_ns: u64) -> bool {
        self.0.lock().contains_key(&(ino, btime_ns))
    }
}

impl Drop for OpenOnPfs {
    fn drop(&mut self) {
        let mut opens = self.opens.0.lock();
        if let Some(count) = opens.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
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
        let (first, second) = (opens.open(id), opens.open(id));
        drop(first);
        assert!(opens.has(2, 3) && !opens.has(2, 4));
        drop(second.clone());
        assert!(opens.has(2, 3));
        drop(second);
        assert!(!opens.has(2, 3));
    }
}
