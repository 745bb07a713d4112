//! The thread that keeps the hold on a store.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::Error;

/// A word is due so often within the time that a hold is valid: two may be lost.
const WORDS_PER_LEASE: u32 = 3;

/// Repeats the holder's word until it is stopped, or somebody else holds the store.
pub(crate) struct Keeper {
    stop: Arc<Stop>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Stop {
    is_asked_for: Mutex<bool>,
    asked: Condvar,
}

impl Keeper {
    /// `keep` says false when the hold has gone to somebody else. What the network fails is tried
    /// again: if the hold is lost by that, commits find it out.
    pub(crate) fn start(
        lease: Duration,
        keep: impl Fn() -> Result<bool, Error> + Send + 'static,
    ) -> Result<Keeper, Error> {
        let stop = Arc::new(Stop::default());
        let thread = std::thread::Builder::new().name("fb-hold".into()).spawn({
            let stop = stop.clone();
            move || while stop.wait(lease / WORDS_PER_LEASE) && !matches!(keep(), Ok(false)) {}
        })?;
        Ok(Keeper {
            stop,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Returns when the thread has ended; false if it was stopped before.
    pub(crate) fn stop(&self) -> bool {
        *self.stop.is_asked_for.lock() = true;
        self.stop.asked.notify_all();
        let thread = self.thread.lock().take();
        // It ends by itself, or has panicked: either way it keeps nothing any more.
        thread.map(JoinHandle::join).is_some()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Stop {
    /// False once the thread has to end.
    fn wait(&self, time: Duration) -> bool {
        let mut is_asked_for = self.is_asked_for.lock();
        if !*is_asked_for {
            self.asked.wait_for(&mut is_asked_for, time);
        }
        !*is_asked_for
    }
}
