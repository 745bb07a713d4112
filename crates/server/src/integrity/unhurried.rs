//! Reading in the background: no faster than a rate, and beside programs that write only where it
//! is told to.

use std::time::{Duration, Instant};

use forebay_policy::scrub::next_due_s;
use parking_lot::Mutex;

use crate::integrity::Integrity;

/// Who waits for that looks so often.
const LOOK: Duration = Duration::from_millis(200);

/// Somebody who reads and is in no hurry.
pub struct Unhurried<'a> {
    integrity: &'a Integrity,
    rate_bytes_per_s: f64,
    origin: Instant,
    /// The next bytes are due then, seconds from `origin`.
    due_s: Mutex<f64>,
    /// Whether to read now, by whether it is calm.
    may_read: &'a (dyn Fn(bool) -> bool + Sync),
}

impl<'a> Unhurried<'a> {
    /// Nothing has been read yet.
    pub fn new(
        integrity: &'a Integrity,
        rate_bytes_per_s: f64,
        may_read: &'a (dyn Fn(bool) -> bool + Sync),
    ) -> Unhurried<'a> {
        Unhurried {
            integrity,
            rate_bytes_per_s,
            origin: Instant::now(),
            due_s: Mutex::new(0.0),
            may_read,
        }
    }

    /// Waits until more may be read; whether the server ends instead.
    pub fn is_over(&self) -> bool {
        self.is_over_for(&|| true)
    }

    /// The same for who holds something open: also over where that `is_wanted` no more. What is
    /// held takes its space until then.
    pub fn is_over_for(&self, is_wanted: &dyn Fn() -> bool) -> bool {
        let calm_s = self.integrity.settings.scrub.calm.as_secs_f64();
        while !self.integrity.base.is_ending() && is_wanted() {
            let ahead_s = *self.due_s.lock() - self.origin.elapsed().as_secs_f64();
            match ahead_s > 0.0 {
                true => self
                    .integrity
                    .base
                    .life()
                    .pause(Duration::from_secs_f64(ahead_s).min(LOOK)),
                false if (self.may_read)(self.integrity.buffer.activity().quiet_s() >= calm_s) => {
                    return false;
                }
                false => self.integrity.base.life().pause(LOOK),
            }
        }
        true
    }

    /// So much was read, or is about to be.
    pub fn spend(&self, bytes: u64) {
        let now_s = self.origin.elapsed().as_secs_f64();
        let mut due_s = self.due_s.lock();
        *due_s = next_due_s(*due_s, now_s, bytes, self.rate_bytes_per_s);
    }
}
