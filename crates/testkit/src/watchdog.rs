//! Ends the daemon of a test that hangs.

use std::process::Child;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A test that takes longer hangs: its daemon is killed, so that whatever waits for it ends.
const WATCHDOG: Duration = Duration::from_secs(150);

/// The daemon's process, while there is one.
pub(crate) type Slot = Arc<Mutex<Option<Child>>>;

pub(crate) fn locked(slot: &Slot) -> MutexGuard<'_, Option<Child>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills the daemon when time is up; the other end of the channel ends it before.
pub(crate) struct Watchdog {
    _end: mpsc::Sender<()>,
}

pub(crate) fn watch(slot: Slot) -> Watchdog {
    let (end, ended) = mpsc::channel();
    std::thread::spawn(move || {
        if ended.recv_timeout(WATCHDOG) == Err(RecvTimeoutError::Timeout)
            && let Some(child) = &mut *locked(&slot)
        {
            eprintln!("the test hangs: its burst buffer is killed");
            // If it has just ended, all the better.
            drop(child.kill());
        }
    });
    Watchdog { _end: end }
}
