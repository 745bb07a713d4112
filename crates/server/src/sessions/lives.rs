//! Which clients were alive when the server ended: only those may have again what they had.
//!
//! Invariants:
//!
//! 1. A client whose session has ended is not on record when anybody else is let near what it had.
//! 2. Nobody may have anything again after the node has started anew: what was not flushed may be
//!    lost, and no fsync would tell.
//! 3. Nor after the time of grace: who is silent for so long is fenced, restart or not.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// For how long after its start a server lets clients reclaim.
pub const GRACE: Duration = Duration::from_secs(90);

/// Puts the record where the next run finds it.
pub type Put = Box<dyn Fn(&[u8]) -> Result<(), String> + Send + Sync>;

#[derive(Default)]
struct Now {
    alive: HashSet<u64>,
    /// The server stops in order: who is alive now is alive.
    stopping: bool,
}

/// See the module.
pub struct Lives {
    boot: String,
    before: HashSet<u64>,
    since: Instant,
    now: Mutex<Now>,
    put: Put,
}

impl Lives {
    /// Reads what the last run has left. `boot` names the node's start.
    pub fn open(record: Option<&[u8]>, boot: &str, put: Put) -> Lives {
        Lives {
            boot: boot.to_string(),
            before: record.map(|record| read(record, boot)).unwrap_or_default(),
            since: Instant::now(),
            now: Mutex::default(),
            put,
        }
    }

    /// Nobody, and nothing is kept.
    #[cfg(test)]
    pub fn none() -> Lives {
        Lives::open(None, "", Box::new(|_| Ok(())))
    }

    /// A client comes; 0 for one that wants nothing again.
    pub fn begin(&self, life: u64) {
        let mut now = self.now.lock();
        if life != 0 && now.alive.insert(life) {
            self.record(&now);
        }
    }

    /// A client has gone.
    pub fn end(&self, life: u64) {
        let mut now = self.now.lock();
        if !now.stopping && now.alive.remove(&life) {
            self.record(&now);
        }
    }

    /// The server stops in order.
    pub fn stop(&self) {
        self.now.lock().stopping = true;
    }

    /// Whether what a client had in this life may be had again.
    pub fn may_reclaim(&self, life: u64) -> bool {
        self.before.contains(&life) && self.since.elapsed() < GRACE
    }

    fn record(&self, now: &Now) {
        // Where the kernel does not name its start, nobody knows what may be lost.
        if self.boot.is_empty() {
            return;
        }
        let mut record = Vec::with_capacity(self.boot.len() + 1 + 8 * now.alive.len());
        record.extend(self.boot.as_bytes());
        record.push(b'\n');
        for life in &now.alive {
            record.extend(life.to_le_bytes());
        }
        // One who has gone must not stay on record: then rather nobody.
        if let Err(error) = (self.put)(&record).or_else(|_| (self.put)(b"")) {
            tracing::error!("who is connected cannot be recorded: {error}");
        }
    }
}

fn read(record: &[u8], boot: &str) -> HashSet<u64> {
    let mark = [boot.as_bytes(), b"\n"].concat();
    let lives = record.strip_prefix(&mark[..]).filter(|_| !boot.is_empty());
    let lives = lives.unwrap_or_default().chunks_exact(8);
    lives
        .map(|life| u64::from_le_bytes(life.try_into().unwrap_or_default()))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    type Kept = Arc<Mutex<Vec<u8>>>;

    fn run(kept: &Kept, boot: &str) -> Lives {
        let record = kept.lock().clone();
        let kept = kept.clone();
        let put = move |record: &[u8]| {
            *kept.lock() = record.to_vec();
            Ok(())
        };
        Lives::open(Some(&record), boot, Box::new(put))
    }

    #[test]
    fn who_was_alive_when_the_server_ended_may_reclaim_and_nobody_else() {
        let kept = Kept::default();
        let first = run(&kept, "boot-1");
        assert!(!first.may_reclaim(1));
        for life in [1, 2, 3] {
            first.begin(life);
        }
        first.end(2);
        let second = run(&kept, "boot-1");
        let may = [1, 2, 3, 4].map(|life| second.may_reclaim(life));
        assert_eq!(may, [true, false, true, false]);
        second.begin(5);
        second.stop();
        second.end(5);
        let third = run(&kept, "boot-1");
        assert_eq!([1, 5].map(|life| third.may_reclaim(life)), [false, true]);
        let anew = run(&kept, "boot-2");
        assert!(!anew.may_reclaim(5));
    }

    #[test]
    fn a_record_that_cannot_be_kept_is_of_nobody() {
        let kept = Kept::default();
        run(&kept, "boot").begin(1);
        let held = kept.clone();
        let put = move |record: &[u8]| match record.is_empty() {
            true => {
                held.lock().clear();
                Ok(())
            }
            false => Err("full".to_string()),
        };
        Lives::open(None, "boot", Box::new(put)).begin(2);
        assert!(!run(&kept, "boot").may_reclaim(1));
        let unknown = run(&kept, "");
        unknown.begin(3);
        assert!(!run(&kept, "").may_reclaim(3));
    }
}
