//! Who may lock which bytes of a file, and who waits for whom.
//!
//! Invariants:
//!
//! 1. No two owners hold locks of one byte, unless both share it.
//! 2. An owner holds at most one lock of a byte: the last one that was asked for, as fcntl(2) says.
//! 3. Who waits is granted in the order of coming, as soon as nobody is in the way.
//! 4. Nobody waits for somebody who waits for the first, over however many others.

use std::collections::HashSet;
use std::hash::Hash;

use forebay_types::{ByteRange, LockMode};

/// A lock that somebody holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held<O, V> {
    /// Whose it is.
    pub owner: O,
    /// Which bytes.
    pub range: ByteRange,
    /// Shared or exclusive.
    pub mode: LockMode,
    /// What it was asked through: it may go with that.
    pub via: V,
}

/// The locks of one file, all of one class.
#[derive(Clone, Debug)]
pub struct FileLocks<O, V> {
    held: Vec<Held<O, V>>,
}

impl<O, V> Default for FileLocks<O, V> {
    fn default() -> FileLocks<O, V> {
        FileLocks { held: Vec::new() }
    }
}

impl<O: Copy + Eq, V: Copy + Eq> FileLocks<O, V> {
    /// Those who are in the way of a lock.
    pub fn in_the_way(
        &self,
        owner: O,
        range: ByteRange,
        mode: LockMode,
    ) -> impl Iterator<Item = &Held<O, V>> {
        self.held.iter().filter(move |held| {
            held.owner != owner && held.range.overlaps(range) && held.mode.excludes(mode)
        })
    }

    /// Gives a lock that nobody is in the way of. What the owner has had of these bytes, it
    /// replaces.
    pub fn give(&mut self, lock: Held<O, V>) {
        self.drop_range(lock.owner, lock.range);
        let mut lock = lock;
        // Neighbours of the same kind become one, so that who locks byte by byte costs one.
        self.held.retain(|held| {
            let alike = (held.owner, held.mode, held.via) == (lock.owner, lock.mode, lock.via);
            let before = held.range.last.checked_add(1) == Some(lock.range.first);
            let after = lock.range.last.checked_add(1) == Some(held.range.first);
            if !alike || !(before || after) {
                return true;
            }
            lock.range.first = lock.range.first.min(held.range.first);
            lock.range.last = lock.range.last.max(held.range.last);
            false
        });
        self.held.push(lock);
    }

    /// Takes these bytes out of what the owner has locked.
    pub fn drop_range(&mut self, owner: O, range: ByteRange) {
        let mut left = Vec::with_capacity(self.held.len() + 1);
        for held in self.held.drain(..) {
            if held.owner != owner || !held.range.overlaps(range) {
                left.push(held);
                continue;
            }
            let before = (held.range.first < range.first).then(|| ByteRange {
                first: held.range.first,
                last: range.first - 1,
            });
            let after = (held.range.last > range.last).then(|| ByteRange {
                first: range.last + 1,
                last: held.range.last,
            });
            let parts = before.into_iter().chain(after);
            left.extend(parts.map(|range| Held { range, ..held }));
        }
        self.held = left;
    }

    /// Takes all locks away that are to go.
    pub fn drop_where(&mut self, goes: impl Fn(&Held<O, V>) -> bool) {
        self.held.retain(|held| !goes(held));
    }

    /// All that are held, in no order.
    pub fn held(&self) -> &[Held<O, V>] {
        &self.held
    }
}

/// Whether an owner that waits for `first` would, over others, wait for itself. `waits_for` says
/// whom an owner waits for.
pub fn would_deadlock<O, I>(owner: O, first: I, waits_for: impl Fn(O) -> I) -> bool
where
    O: Copy + Eq + Hash,
    I: IntoIterator<Item = O>,
{
    let mut seen = HashSet::new();
    let mut next: Vec<O> = first.into_iter().collect();
    while let Some(other) = next.pop() {
        if other == owner {
            return true;
        }
        if seen.insert(other) {
            next.extend(waits_for(other));
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const BYTES: u64 = 12;

    /// The same, byte by byte.
    type Model = HashMap<(u8, u64), LockMode>;

    #[derive(Clone, Debug)]
    enum Step {
        Lock(u8, ByteRange, LockMode, u8),
        Unlock(u8, ByteRange),
        Close(u8),
    }

    fn range() -> impl Strategy<Value = ByteRange> {
        (0..BYTES, 0..BYTES).prop_map(|(a, b)| ByteRange {
            first: a.min(b),
            last: a.max(b),
        })
    }

    fn step() -> impl Strategy<Value = Step> {
        let mode = prop_oneof![Just(LockMode::Shared), Just(LockMode::Exclusive)];
        prop_oneof![
            6 => (0u8..3, range(), mode, 0u8..2)
                .prop_map(|(owner, range, mode, via)| Step::Lock(owner, range, mode, via)),
            3 => (0u8..3, range()).prop_map(|(owner, range)| Step::Unlock(owner, range)),
            1 => (0u8..3).prop_map(Step::Close),
        ]
    }

    fn bytes(range: ByteRange) -> impl Iterator<Item = u64> {
        range.first..=range.last
    }

    fn may(model: &Model, owner: u8, range: ByteRange, mode: LockMode) -> bool {
        !model.iter().any(|((other, byte), held)| {
            *other != owner && bytes(range).any(|b| b == *byte) && held.excludes(mode)
        })
    }

    proptest! {
        #[test]
        fn locks_are_what_they_are_byte_by_byte(steps in prop::collection::vec(step(), 1..60)) {
            let mut locks = FileLocks::<u8, u8>::default();
            let mut model = Model::new();
            for step in steps {
                match step {
                    Step::Lock(owner, range, mode, via) => {
                        let free = locks.in_the_way(owner, range, mode).next().is_none();
                        prop_assert_eq!(free, may(&model, owner, range, mode));
                        if free {
                            locks.give(Held { owner, range, mode, via });
                            model.extend(bytes(range).map(|byte| ((owner, byte), mode)));
                        }
                    }
                    Step::Unlock(owner, range) => {
                        locks.drop_range(owner, range);
                        model.retain(|(other, byte), _| {
                            *other != owner || !bytes(range).any(|b| b == *byte)
                        });
                    }
                    Step::Close(owner) => {
                        locks.drop_where(|held| held.owner == owner);
                        model.retain(|(other, _), _| *other != owner);
                    }
                }
                let mut held = Model::new();
                for lock in locks.held() {
                    for byte in bytes(lock.range) {
                        prop_assert_eq!(held.insert((lock.owner, byte), lock.mode), None);
                    }
                }
                prop_assert_eq!(&held, &model);
            }
        }
    }

    #[test]
    fn neighbours_become_one_where_they_go_together() {
        let mut locks = FileLocks::<u8, u8>::default();
        let lock = |byte: u64, via: u8| Held {
            owner: 1,
            range: ByteRange {
                first: byte,
                last: byte,
            },
            mode: LockMode::Shared,
            via,
        };
        for byte in [0, 2, 1, 3] {
            locks.give(lock(byte, 0));
        }
        assert_eq!(locks.held().len(), 1);
        locks.give(lock(4, 1));
        assert_eq!(locks.held().len(), 2);
        locks.drop_where(|held| held.via == 0);
        assert_eq!(locks.held(), [lock(4, 1)]);
    }

    #[test]
    fn the_end_of_what_has_no_end_is_no_overflow() {
        let mut locks = FileLocks::<u8, u8>::default();
        for (first, last) in [(0, u64::MAX), (7, u64::MAX), (0, ByteRange::END)] {
            let range = ByteRange { first, last };
            let (owner, mode, via) = (1, LockMode::Exclusive, 0);
            locks.give(Held {
                owner,
                range,
                mode,
                via,
            });
        }
        locks.drop_range(1, ByteRange::ALL);
        let left = ByteRange {
            first: ByteRange::END + 1,
            last: u64::MAX,
        };
        assert_eq!(locks.held()[0].range, left);
    }

    #[test]
    fn who_would_wait_for_itself_is_told() {
        let waits = HashMap::from([(1, vec![2, 3]), (2, vec![]), (3, vec![4]), (4, vec![3])]);
        let of = |owner: i32| waits.get(&owner).cloned().unwrap_or_default();
        assert!(would_deadlock(4, vec![1], of));
        assert!(would_deadlock(2, vec![1], of));
        assert!(!would_deadlock(5, vec![1], of));
        assert!(!would_deadlock(1, vec![4], of));
    }
}
