//! Whether programs write: demotion in pauses, limits and background reading depend on it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

/// When a program last wrote, and whether one does now.
pub struct Activity {
    origin: Instant,
    /// Since the origin.
    last_ms: AtomicU64,
    /// Requests under way: one may take longer than a pause has to, held by a limit, a turn, a full
    /// tier or a slow device.
    under_way: AtomicU32,
}

impl Activity {
    /// Nothing was written before `origin`.
    pub fn new(origin: Instant) -> Activity {
        Activity {
            origin,
            last_ms: AtomicU64::new(0),
            under_way: AtomicU32::new(0),
        }
    }

    /// A program wrote, or opened or closed what it writes. Cheap: called for every request.
    pub fn note(&self) {
        let ms = self.origin.elapsed().as_millis() as u64;
        self.last_ms.store(ms, Ordering::Relaxed);
    }

    /// A program's request is under way until the answer is dropped, which counts as the moment at
    /// which it last wrote.
    pub fn begin(&self) -> Request<'_> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        Request(self)
    }

    /// When a program last wrote, seconds since the origin: now, while a request is under way.
    pub fn last_s(&self) -> f64 {
        // In this order: a request that ends in between has left its time.
        match self.under_way.load(Ordering::Acquire) {
            0 => self.last_ms.load(Ordering::Relaxed) as f64 / 1e3,
            _ => self.origin.elapsed().as_secs_f64(),
        }
    }

    /// For how long no program has written, seconds.
    pub fn quiet_s(&self) -> f64 {
        let last_s = self.last_s();
        (self.origin.elapsed().as_secs_f64() - last_s).max(0.0)
    }
}

/// See [`Activity::begin`].
pub struct Request<'a>(&'a Activity);

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.0.note();
        self.0.under_way.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_long_request_is_no_pause_and_none_begins_before_its_end() {
        let origin = Instant::now()
            .checked_sub(Duration::from_secs(100))
            .expect("the machine has been up for longer");
        let activity = Activity::new(origin);
        assert!(activity.quiet_s() >= 100.0);
        let long = activity.begin();
        let short = activity.begin();
        drop(short);
        assert!(activity.last_s() >= 100.0 && activity.quiet_s() < 50.0);
        // As if both had begun long ago.
        activity.last_ms.store(0, Ordering::Relaxed);
        assert!(activity.quiet_s() < 50.0, "one is still under way");
        drop(long);
        assert!(activity.quiet_s() < 50.0, "the pause begins now");
        activity.last_ms.store(0, Ordering::Relaxed);
        assert!(activity.quiet_s() >= 100.0);
    }
}
