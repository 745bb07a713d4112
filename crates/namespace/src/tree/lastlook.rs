//! When a file was last compared with the PFS.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// For how long a look is good at what a path names. The path is asked for where it matters only.
pub type Trust = Box<dyn Fn(&dyn Fn() -> Vec<u8>) -> Duration + Send + Sync>;

/// A moment that many may read while one sets it. What was never set has none.
#[derive(Default)]
pub(crate) struct LastLook(AtomicU64);

/// Milliseconds since a fixed moment before all looks; never 0, which is "never".
fn since_begin_ms(moment: Instant) -> u64 {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    let begun = *BEGUN.get_or_init(|| moment);
    1 + moment.saturating_duration_since(begun).as_millis() as u64
}

impl LastLook {
    /// A look that began then has found nothing new. An older one changes nothing.
    pub(crate) fn set(&self, begun: Instant) {
        self.0.fetch_max(since_begin_ms(begun), Ordering::Relaxed);
    }

    /// For how long nobody has looked; `None`: never.
    pub(crate) fn age(&self) -> Option<Duration> {
        let set = self.0.load(Ordering::Relaxed);
        let now = since_begin_ms(Instant::now());
        (set > 0).then(|| Duration::from_millis(now.saturating_sub(set)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_youngest_look_counts_and_none_is_no_age() {
        let look = LastLook::default();
        assert_eq!(look.age(), None);
        let now = Instant::now();
        look.set(now);
        let Some(before) = now.checked_sub(Duration::from_secs(3600)) else {
            return;
        };
        look.set(before);
        assert!(
            look.age() < Some(Duration::from_secs(3000)),
            "{:?}",
            look.age()
        );
    }
}
