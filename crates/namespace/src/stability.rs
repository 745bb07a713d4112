//! How many of the commits to a store would survive a loss of power. `models/` runs this file
//! under every order of its steps.

use std::collections::HashMap;

use forebay_types::ObjectId;

use super::sync::{AtomicU64, Mutex, Ordering};

/// A place in the order of commits. A store keeps a prefix of that order when power is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position(u64);

/// What of a store is on stable storage. Invariants:
///
/// 1. A commit is counted only after the store has it: what was counted before a flush began, that
///    flush covers.
/// 2. `stable` never exceeds what some flush has covered.
/// 3. The position of a file's last record is known from before `note` returns until a flush has
///    covered it.
#[derive(Default)]
pub(crate) struct Stability {
    /// Commits that have returned.
    committed: AtomicU64,
    /// All up to this position survive a loss of power.
    stable: AtomicU64,
    /// Positions of the last records of files, beyond what was stable at the last flush.
    recorded: Mutex<HashMap<ObjectId, u64>>,
}

impl Stability {
    /// What a flush that begins now will cover.
    pub(crate) fn now(&self) -> Position {
        Position(self.committed.load(Ordering::Acquire))
    }

    /// A commit with records of these files has returned, also with an error: whether it was
    /// applied is not known then. `flushed`: what was counted before it, if it was flushed.
    pub(crate) fn note(&self, records: Vec<ObjectId>, flushed: Option<Position>) {
        let position = self.committed.fetch_add(1, Ordering::AcqRel) + 1;
        if !records.is_empty() {
            let mut recorded = self.recorded.lock();
            for file in records {
                let Some(before) = flushed else {
                    recorded.insert(file, position);
                    continue;
                };
                // A record of the same file that came meanwhile may be behind the flush.
                if recorded.get(&file).is_some_and(|last| *last <= before.0) {
                    recorded.remove(&file);
                }
            }
        }
        if let Some(before) = flushed {
            self.stable.fetch_max(before.0, Ordering::AcqRel);
        }
    }

    /// A flush has ended well that began when `before` was all there was.
    pub(crate) fn flushed(&self, before: Position) {
        self.stable.fetch_max(before.0, Ordering::AcqRel);
        let is_later = |_: &ObjectId, position: &mut u64| *position > before.0;
        self.recorded.lock().retain(is_later);
    }

    /// Whether the last record of a file survives a loss of power.
    pub(crate) fn is_stable(&self, file: ObjectId) -> bool {
        let position = self.recorded.lock().get(&file).copied().unwrap_or(0);
        position <= self.stable.load(Ordering::Acquire)
    }

    #[cfg(test)]
    pub(crate) fn has_positions(&self) -> bool {
        !self.recorded.lock().is_empty()
    }
}
