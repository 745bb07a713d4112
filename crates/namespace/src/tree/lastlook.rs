//! When a file was last compared with the PFS.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// For how long a look is good at what a path names. The path is asked for where it matters only.
pub type Trust = Box<dyn Fn(&dyn Fn() -> Vec<u8>) -> Duration + Send + Sync>;

/// A moment on a clock that goes on while the machine sleeps, and that nobody sets; milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    /// This one; never 0.
    pub(crate) fn now() -> Moment {
        let now = clock_gettime(ClockId::Boottime);
        Moment(1 + now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000)
    }
}

/// When was looked last. Many may ask while one says so.
#[derive(Default)]
pub(crate) struct LastLook(AtomicU64);

impl LastLook {
    /// A look that began then has found nothing new. An older one changes nothing.
    pub(crate) fn set(&self, begun: Moment) {
        self.0.fetch_max(begun.0, Ordering::Relaxed);
    }

    /// For how long nobody has looked; `None`: nobody ever has.
    pub(crate) fn age(&self) -> Option<Duration> {
        let set = self.0.load(Ordering::Relaxed);
        (set > 0).then(|| Duration::from_millis(Moment::now().0.saturating_sub(set)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_youngest_look_counts_and_none_is_no_age() {
        let look = LastLook::default();
        assert_eq!(look.age(), None);
        let Moment(now) = Moment::now();
        look.set(Moment(now));
        look.set(Moment(1));
        assert!(look.0.load(Ordering::Relaxed) == now);
    }
}
