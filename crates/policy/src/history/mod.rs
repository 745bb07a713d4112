//! What is put on record of what was written, read and moved: when a record begins, what belongs to
//! it, when nothing more can come, how long it is kept.
//!
//! Times are milliseconds since 1970. Files are known by the numbers of their objects.

mod book;
#[cfg(test)]
mod book_tests;
pub mod figures;

pub use book::{Book, Changes, Found, Key};

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
    /// How many of the oldest records go: `kept` has, from the oldest on, when each ended and its
    /// bytes.
    pub fn to_drop(&self, kept: impl Iterator<Item = (u64, u64)> + Clone, now_ms: u64) -> usize {
        let since_ms = now_ms.saturating_sub(self.for_ms);
        let mut left_bytes: u64 = kept.clone().map(|(_, bytes)| bytes).sum();
        let goes = |(ended_ms, bytes): &(u64, u64)| {
            let goes = *ended_ms < since_ms || left_bytes > self.bytes;
            left_bytes -= bytes;
            goes
        };
        kept.take_while(goes).count()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
