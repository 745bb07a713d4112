//! How long a store is this process's, and the thread that keeps it so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::boottime;
use crate::Error;

/// A word is due so often within the time that a hold is valid: two may be lost.
const WORDS_PER_LEASE: u32 = 3;
/// After a word that was lost the next follows sooner.
const TRIES_PER_LEASE: u32 = 24;

/// Until when a store is surely this process's. Clones tell the same.
///
/// The store needs nobody to look at it: each commit is refused once another has taken the store.
/// What is changed elsewhere, as on the PFS, is to be changed only while the hold is valid.
#[derive(Clone, Debug, Default)]
pub struct Hold(Arc<Until>);

#[derive(Debug, Default)]
struct Until {
    /// Milliseconds of the boot clock.
    valid_ms: AtomicU64,
    is_lost: AtomicBool,
}

impl Hold {
    /// The server was asked at `sent`, so it counts from that moment or later.
    pub(crate) fn extend(&self, sent: Duration, lease: Duration) {
        let until = u64::try_from((sent + lease).as_millis()).unwrap_or(u64::MAX);
        self.0.valid_ms.fetch_max(until, Ordering::SeqCst);
    }

    /// It is about to be given back.
    pub(crate) fn end(&self) {
        self.0.valid_ms.store(0, Ordering::SeqCst);
    }

    /// The server says that it has gone.
    pub(crate) fn lose(&self) {
        self.end();
        self.0.is_lost.store(true, Ordering::SeqCst);
    }

    /// The time since boot (`CLOCK_BOOTTIME`) until which nobody else can hold the store, unless a
    /// person orders it with [`Options::take_over`](super::Options::take_over); zero once it has
    /// gone.
    pub fn valid_until(&self) -> Duration {
        Duration::from_millis(self.0.valid_ms.load(Ordering::SeqCst))
    }

    /// Nobody else can hold the store at this moment.
    pub fn is_valid(&self) -> bool {
        boottime::now() < self.valid_until()
    }

    /// It has gone for good: this process can commit nothing more.
    pub fn is_lost(&self) -> bool {
        self.0.is_lost.load(Ordering::SeqCst)
    }
}

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
            move || {
                let mut next = lease / WORDS_PER_LEASE;
                while stop.wait(next) {
                    next = match keep() {
                        Ok(true) => lease / WORDS_PER_LEASE,
                        Ok(false) => break,
                        Err(_) => lease / TRIES_PER_LEASE,
                    };
                }
            }
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
