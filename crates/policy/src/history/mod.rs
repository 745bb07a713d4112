//! What is put on record of what was written, read and moved: when a record begins, what belongs to
//! it, when nothing more can come, how long it is kept.
//!
//! Times are milliseconds since 1970. Files are known by the numbers of their objects.

mod book;
#[cfg(test)]
mod book_tests;
pub mod figures;
mod key;

pub use book::{Book, Changes, Found};
pub use key::Key;

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Records that ended longer ago go; 0: nothing is put on record.
    pub for_ms: u64,
    /// The oldest go beyond that, bytes.
    pub bytes: u64,
}

impl Default for Keep {
    fn default() -> Keep {
        Keep {
            for_ms: 90 * 24 * 3600 * 1000,
            bytes: 16 << 20,
        }
    }
}

impl Keep {
    /// Whether anything is put on record. Else nothing that was is kept.
    pub fn is_on(&self) -> bool {
        self.for_ms > 0 && self.bytes > 0
    }

    /// A time that a user may have set on a file, in seconds and nanoseconds: not after now, and
    /// not so early that what is put on record with it would go at once.
    pub fn possible_ms(&self, at: (i64, u32), now_ms: u64) -> u64 {
        let at_ms = u64::try_from(at.0).unwrap_or(0).saturating_mul(1000);
        let at_ms = at_ms.saturating_add(u64::from(at.1) / 1_000_000);
        at_ms.clamp(now_ms.saturating_sub(self.for_ms), now_ms)
    }

    /// How many of the oldest records go: `kept` has, from the oldest on, when each ended and its
    /// bytes.
    pub fn to_drop(&self, kept: impl Iterator<Item = (u64, u64)> + Clone, now_ms: u64) -> usize {
        let since_ms = now_ms.saturating_sub(self.for_ms);
        let sizes = kept.clone().map(|(_, bytes)| bytes);
        let mut left_bytes = sizes.fold(0, u64::saturating_add);
        let goes = |(ended_ms, bytes): &(u64, u64)| {
            let goes = *ended_ms < since_ms || left_bytes > self.bytes;
            left_bytes = left_bytes.saturating_sub(*bytes);
            goes
        };
        kept.take_while(goes).count()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn no_time_of_a_file_is_in_the_future_or_older_than_what_is_kept() {
        let keep = Keep {
            for_ms: 60_000,
            bytes: 1,
        };
        let now_ms = 1_000_000;
        let at = |sec, nsec| keep.possible_ms((sec, nsec), now_ms);
        assert_eq!(at(990, 7_000_000), 990_007);
        for late in [(1000, 1_000_000), (i64::MAX, u32::MAX)] {
            assert_eq!(at(late.0, late.1), now_ms);
        }
        for early in [i64::MIN, -1, 0, 939] {
            assert_eq!(at(early, 999), 940_000);
        }
        let always = Keep {
            for_ms: u64::MAX,
            bytes: 1,
        };
        assert_eq!(always.possible_ms((0, 0), now_ms), 0);
    }

    proptest! {
        #[test]
        fn what_stays_is_young_and_fits_and_nothing_else_goes(
            mut kept in prop::collection::vec((0u64..1000, 1u64..50), 0..60),
            for_ms in 0u64..1000,
            bytes in 0u64..1000,
            now_ms in 0u64..2000,
        ) {
            kept.sort_unstable();
            let keep = Keep { for_ms, bytes };
            let dropped = keep.to_drop(kept.iter().copied(), now_ms);
            let stays: u64 = kept[dropped..].iter().map(|(_, bytes)| bytes).sum();
            let is_young = |ended_ms: u64| ended_ms + for_ms >= now_ms;
            prop_assert!(kept[dropped..].iter().all(|(ended_ms, _)| is_young(*ended_ms)));
            prop_assert!(stays <= bytes);
            if let Some((ended_ms, last_bytes)) = dropped.checked_sub(1).map(|at| kept[at]) {
                prop_assert!(!is_young(ended_ms) || stays + last_bytes > bytes);
            }
        }
    }
}
