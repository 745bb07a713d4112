//! Threads of the server: one that dies ends it, in order.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::base::Base;

/// At the end, threads that wait for a silent PFS are waited for so long.
const LAST_CALLS: Duration = Duration::from_secs(1);
/// After the death of a thread the others are waited for so long.
const LAST_THREADS: Duration = Duration::from_secs(10);

/// On the stack of a thread that everything depends on.
pub struct Watched {
    base: Arc<Base>,
    name: String,
    /// Its body may come to an end while the server runs.
    may_end: bool,
}

impl Watched {
    /// For a thread that is about to start; unless it `may_end` by itself, its end is the end of
    /// the server.
    pub fn new(base: &Arc<Base>, name: &str, may_end: bool) -> Watched {
        Watched {
            base: base.clone(),
            name: name.to_string(),
            may_end,
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let name = &self.name;
        if std::thread::panicking() {
            self.base.life().broke(format!("thread {name} panicked"));
        } else if !self.may_end && !self.base.is_ending() {
            self.base.life().broke(format!("thread {name} ended"));
        }
    }
}

/// Waits for the end of threads. One that blocks in a call on a PFS that does not answer is left
/// behind: what it has not done yet the next start does.
pub fn join_all(base: &Base, threads: Vec<JoinHandle<()>>) {
    let begun = Instant::now();
    for thread in threads {
        // Who waits for a thread that has died waits for ever.
        let is_hopeless = || {
            let elapsed = begun.elapsed();
            base.health().is_silent() && elapsed > LAST_CALLS
                || base.life().is_broken() && elapsed > LAST_THREADS
        };
        while !thread.is_finished() && !is_hopeless() {
            std::thread::sleep(Duration::from_millis(2));
        }
        if !thread.is_finished() {
            tracing::warn!(
                "a thread waits for the PFS, or for one that has died, and is left behind"
            );
            continue;
        }
        // How it died has been said.
        drop(thread.join());
    }
}
