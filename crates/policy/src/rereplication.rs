//! Making second copies again after a holder was lost (ONFS 2017, dual replicas: the other is
//! promoted on failure and filled again).
//!
//! Which file first: one whose only copy is at risk, then the oldest promise. How fast: as fast as
//! the network has to spare, but at least an eighth of it, for until it is done a second loss is
//! one of data; and never faster than the limit that a person has set.

use crate::throttle::{PAUSE_MAX_S, TokenBucket};
use std::collections::{BTreeMap, BTreeSet};

/// Least part of the network that re-replication is given, whatever else goes over it.
const LEAST_SHARE: f64 = 1.0 / 8.0;

/// Rate of re-replication, bytes/s: of a network of `link_bytes_per_s`, of which others use
/// `used_bytes_per_s`, and at most `limit_bytes_per_s`.
pub fn rate_bytes_per_s(
    link_bytes_per_s: f64,
    used_bytes_per_s: f64,
    limit_bytes_per_s: Option<f64>,
) -> f64 {
    let spare = (link_bytes_per_s - used_bytes_per_s).max(link_bytes_per_s * LEAST_SHARE);
    spare
        .min(limit_bytes_per_s.unwrap_or(f64::INFINITY))
        .max(0.0)
}

/// Most copies under way at once: more would only end later, all of them, where the network is
/// slower than the rate.
const COPIES_MAX: usize = 8;

/// How safe the only copy of a file is, least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OnlyCopy {
    /// On a holder that is silent or being emptied.
    OnItsWayOut,
    /// In memory: lost with the next power cut.
    InMemory,
    /// On flash.
    OnFlash,
}

/// An undrained file that was promised two copies and has one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unprotected {
    /// The caller's name for the file.
    pub id: u64,
    /// Its size.
    pub bytes: u64,
    /// Where the one copy is.
    pub only_copy: OnlyCopy,
    /// The fsync that promised two; `None`: it was closed but never fsynced. Seconds of the
    /// caller's clock.
    pub promised_at_s: Option<f64>,
}

/// Place in the queue. Times are compared as bits: the order of floats that are not negative.
type Key = (OnlyCopy, bool, u64, u64);

fn key(file: &Unprotected) -> Key {
    let at_s = file.promised_at_s.unwrap_or(0.0).max(0.0);
    (
        file.only_copy,
        file.promised_at_s.is_none(),
        at_s.to_bits(),
        file.id,
    )
}

/// What re-replication does next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NextCopy {
    /// This file is copied, and pays for itself.
    Copy(u64),
    /// None for so long: ask again then, or when one under way has ended. Seconds.
    Pause(f64),
    /// All have two copies, or a copy under way.
    Nothing,
}

/// Files that wait for a second copy. Invariant: a file that was handed out and neither settled nor
/// failed is not handed out again.
#[derive(Debug, Clone)]
pub struct ReReplication {
    waiting: BTreeMap<u64, Unprotected>,
    order: BTreeSet<Key>,
    under_way: BTreeMap<u64, Unprotected>,
    bucket: TokenBucket,
}

impl ReReplication {
    /// None waits; `rate_bytes_per_s` as in [`rate_bytes_per_s`].
    pub fn new(rate_bytes_per_s: f64, now_s: f64) -> Self {
        Self {
            waiting: BTreeMap::new(),
            order: BTreeSet::new(),
            under_way: BTreeMap::new(),
            bucket: TokenBucket::new(Some(rate_bytes_per_s), now_s),
        }
    }

    /// Another rate from now on.
    pub fn set_rate(&mut self, rate_bytes_per_s: f64, now_s: f64) {
        self.bucket.set_rate(Some(rate_bytes_per_s), now_s);
    }

    /// A file has lost a copy, or what is known of it has changed. One whose copy is under way is
    /// left alone.
    pub fn wants(&mut self, file: Unprotected) {
        if self.under_way.contains_key(&file.id) {
            return;
        }
        if let Some(old) = self.waiting.insert(file.id, file) {
            self.order.remove(&key(&old));
        }
        self.order.insert(key(&file));
    }

    /// A file has two copies, is drained, or is gone.
    pub fn settled(&mut self, id: u64) {
        self.under_way.remove(&id);
        if let Some(old) = self.waiting.remove(&id) {
            self.order.remove(&key(&old));
        }
    }

    /// The copy of a file that was handed out came to nothing: it waits again. What was copied
    /// stays paid for.
    pub fn failed(&mut self, id: u64) {
        if let Some(file) = self.under_way.remove(&id) {
            self.wants(file);
        }
    }

    /// The file to copy now.
    pub fn next(&mut self, now_s: f64) -> NextCopy {
        let Some(first) = self.order.first().copied() else {
            return NextCopy::Nothing;
        };
        let pause_s = match self.under_way.len() < COPIES_MAX {
            true => self.bucket.pause_s(now_s),
            false => PAUSE_MAX_S,
        };
        if pause_s > 0.0 {
            return NextCopy::Pause(pause_s);
        }
        self.order.remove(&first);
        let id = first.3;
        if let Some(file) = self.waiting.remove(&id) {
            self.bucket.take(file.bytes, now_s);
            self.under_way.insert(id, file);
        }
        NextCopy::Copy(id)
    }

    /// Bytes with one copy only, those under way included; for `status`.
    pub fn at_risk_bytes(&self) -> u64 {
        let all = self.waiting.values().chain(self.under_way.values());
        all.map(|f| f.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::throttle::BURST_S;
    use proptest::prelude::*;

    fn file(id: u64, only_copy: OnlyCopy, promised_at_s: Option<f64>) -> Unprotected {
        Unprotected {
            id,
            bytes: 0,
            only_copy,
            promised_at_s,
        }
    }

    fn all_in_order(queue: &mut ReReplication) -> Vec<u64> {
        std::iter::from_fn(|| match queue.next(0.0) {
            NextCopy::Copy(id) => Some(id),
            _ => None,
        })
        .collect()
    }

    #[test]
    fn what_is_at_risk_first_then_the_oldest_promise() {
        let mut queue = ReReplication::new(1.0, 0.0);
        queue.wants(file(1, OnlyCopy::OnFlash, Some(5.0)));
        queue.wants(file(2, OnlyCopy::InMemory, None));
        queue.wants(file(3, OnlyCopy::InMemory, Some(9.0)));
        queue.wants(file(4, OnlyCopy::InMemory, Some(8.0)));
        queue.wants(file(5, OnlyCopy::OnFlash, Some(4.0)));
        queue.wants(file(5, OnlyCopy::OnItsWayOut, Some(4.0)));
        assert_eq!(all_in_order(&mut queue), [5, 4, 3, 2, 1]);
        queue.failed(3);
        queue.settled(4);
        queue.wants(file(1, OnlyCopy::InMemory, Some(0.0)));
        assert_eq!(all_in_order(&mut queue), [3], "1 is under way");
    }

    #[test]
    fn copies_that_do_not_end_are_not_piled_up() {
        let mut queue = ReReplication::new(1.0, 0.0);
        (0..20).for_each(|id| queue.wants(file(id, OnlyCopy::OnFlash, None)));
        assert_eq!(all_in_order(&mut queue).len(), COPIES_MAX);
        assert_eq!(queue.next(1e9), NextCopy::Pause(PAUSE_MAX_S));
        queue.settled(0);
        assert_eq!(queue.next(1e9), NextCopy::Copy(8));
    }

    #[test]
    fn the_rate_is_what_is_spare_but_never_nothing() {
        assert_eq!(rate_bytes_per_s(800.0, 300.0, None), 500.0);
        assert_eq!(rate_bytes_per_s(800.0, 799.0, None), 100.0);
        assert_eq!(rate_bytes_per_s(800.0, 900.0, Some(40.0)), 40.0);
    }

    proptest! {
        #[test]
        fn the_rate_is_held_and_each_file_is_copied_once(
            sizes in prop::collection::vec(1u64..1000, 1..60),
            rate in 100.0..5000.0f64,
        ) {
            let mut queue = ReReplication::new(rate, 0.0);
            for (id, bytes) in sizes.iter().enumerate() {
                queue.wants(Unprotected { bytes: *bytes, ..file(id as u64, OnlyCopy::OnFlash, Some(id as f64)) });
            }
            let total: u64 = sizes.iter().sum();
            prop_assert_eq!(queue.at_risk_bytes(), total);
            let (mut now_s, mut copied, mut passed) = (0.0, Vec::new(), 0.0);
            loop {
                match queue.next(now_s) {
                    NextCopy::Copy(id) => {
                        // One file may pass before it is paid for.
                        prop_assert!(passed <= rate * (now_s + BURST_S) + 1.0);
                        passed += sizes[id as usize] as f64;
                        copied.push(id);
                        queue.settled(id);
                    }
                    NextCopy::Pause(s) => {
                        prop_assert!(s > 0.0);
                        now_s += s.max(1e-6);
                    }
                    NextCopy::Nothing => break,
                }
            }
            prop_assert_eq!(copied, (0..sizes.len() as u64).collect::<Vec<_>>());
            prop_assert!(now_s <= total as f64 / rate + 0.1, "no slower than the rate either");
            prop_assert_eq!(queue.at_risk_bytes(), 0);
        }

        #[test]
        fn what_was_handed_out_is_not_handed_out_again(
            ops in prop::collection::vec((0u8..4, 0u64..6, 0.0..9.0f64), 0..200),
        ) {
            let mut queue = ReReplication::new(1.0, 0.0);
            let mut under_way = std::collections::BTreeSet::new();
            for (op, id, at_s) in ops {
                match op {
                    0 => queue.wants(file(id, OnlyCopy::OnFlash, Some(at_s))),
                    1 => { queue.settled(id); under_way.remove(&id); }
                    2 => { queue.failed(id); under_way.remove(&id); }
                    _ => if let NextCopy::Copy(id) = queue.next(0.0) {
                        prop_assert!(under_way.insert(id));
                    }
                }
                prop_assert_eq!(queue.order.len(), queue.waiting.len());
            }
        }
    }
}
