//! Who goes first by [`order_demotion`](crate::demotion::order_demotion), kept up to date change by
//! change, for who has many files and takes one at a time: every change costs O(log n) instead of a
//! sort.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::demotion::{Candidate, PlacementPolicy};

/// Maps a float to an integer with the same order (that of [`f64::total_cmp`]).
pub(crate) fn rank(x: f64) -> u64 {
    let bits = x.to_bits();
    if bits >> 63 == 1 {
        !bits
    } else {
        bits | 1 << 63
    }
}

/// Outdated and current files of an application stand apart, as in the sort.
type Group = (u64, bool);

/// Version (`None` behind all others), close, id.
type Member = (u64, u64, u64);

/// Outdated first (0), then the coldest, then the longest waiting, then the application or file.
type Key = (u8, u64, u64, u64);

#[derive(Debug, Clone)]
struct Members {
    key: Key,
    /// In order; never none. Most groups have one file, which is found without following a pointer.
    files: SmallVec<[Member; 1]>,
}

/// Files that are not in use. The first is always the one that
/// [`order_demotion`](crate::demotion::order_demotion) puts first among the same candidates; a
/// property test holds the two together.
///
/// What it needs that the sort does not:
///
/// 1. All candidates of an application have the application's MTBF (change it with
///    [`VictimQueue::rerank`]).
/// 2. Ids are unique.
/// 3. Under [`PlacementPolicy::Coolness`] files have neutral ratios (`closed_to_open_s` =
///    `open_to_close_s`): other ratios change the order while time passes.
#[derive(Debug, Clone)]
pub struct VictimQueue {
    policy: PlacementPolicy,
    order: BTreeSet<Key>,
    groups: FxHashMap<Group, Members>,
    len: usize,
}

impl VictimQueue {
    /// An empty queue.
    pub fn new(policy: PlacementPolicy) -> Self {
        Self {
            policy,
            order: BTreeSet::new(),
            groups: FxHashMap::default(),
            len: 0,
        }
    }

    /// Files in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first to go.
    pub fn first(&self) -> Option<u64> {
        let key = self.order.first()?;
        match self.policy {
            PlacementPolicy::Bbos => {
                let group = self.groups.get(&(key.3, key.0 == 0))?;
                group.files.first().map(|file| file.2)
            }
            _ => Some(key.3),
        }
    }

    /// Adds a file that is not there yet.
    pub fn insert(&mut self, c: &Candidate) {
        self.len += 1;
        if self.policy != PlacementPolicy::Bbos {
            self.order.insert(self.flat_key(c));
            return;
        }
        let waiting = rank(c.closed_at_s);
        let key = (
            u8::from(!c.outdated),
            !rank(c.mtbf_s),
            waiting,
            c.application,
        );
        let group = self
            .groups
            .entry((c.application, c.outdated))
            .or_insert_with(|| Members {
                key,
                files: SmallVec::new(),
            });
        if group.files.is_empty() {
            self.order.insert(key);
        } else if waiting < group.key.2 {
            self.order.remove(&group.key);
            group.key.2 = waiting;
            self.order.insert(group.key);
        }
        let member = member(c);
        let at = group.files.partition_point(|other| *other < member);
        group.files.insert(at, member);
    }

    /// Takes a file out. `c` is as it was inserted, but for the MTBF. `false` where it is not
    /// there.
    pub fn remove(&mut self, c: &Candidate) -> bool {
        let was_there = match self.policy {
            PlacementPolicy::Bbos => self.remove_member(c),
            _ => self.order.remove(&self.flat_key(c)),
        };
        self.len -= usize::from(was_there);
        was_there
    }

    /// The MTBF of an application is another one now (after a restart).
    pub fn rerank(&mut self, application: u64, mtbf_s: f64) {
        for outdated in [false, true] {
            if let Some(group) = self.groups.get_mut(&(application, outdated))
                && self.order.remove(&group.key)
            {
                group.key.1 = !rank(mtbf_s);
                self.order.insert(group.key);
            }
        }
    }

    fn remove_member(&mut self, c: &Candidate) -> bool {
        let Some(group) = self.groups.get_mut(&(c.application, c.outdated)) else {
            return false;
        };
        let Ok(at) = group.files.binary_search(&member(c)) else {
            return false;
        };
        group.files.remove(at);
        let Some(waiting) = group.files.iter().map(|file| file.1).min() else {
            self.order.remove(&group.key);
            self.groups.remove(&(c.application, c.outdated));
            return true;
        };
        if waiting != group.key.2 {
            self.order.remove(&group.key);
            group.key.2 = waiting;
            self.order.insert(group.key);
        }
        true
    }

    fn flat_key(&self, c: &Candidate) -> Key {
        let at_s = match self.policy {
            PlacementPolicy::Fifo => c.arrived_at_s,
            PlacementPolicy::Lru => c.accessed_at_s,
            // With neutral ratios the coolest is the one closed longest ago.
            PlacementPolicy::Coolness | PlacementPolicy::Bbos => c.closed_at_s,
        };
        (0, rank(at_s), 0, c.id)
    }
}

fn member(c: &Candidate) -> Member {
    (c.version.unwrap_or(u64::MAX), rank(c.closed_at_s), c.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demotion::order_demotion;
    use proptest::prelude::*;

    fn candidate(id: u64, application: u64, version: Option<u64>, mtbf_s: f64) -> Candidate {
        Candidate {
            id,
            application,
            version,
            outdated: false,
            mtbf_s,
            arrived_at_s: 0.0,
            accessed_at_s: 0.0,
            closed_at_s: 0.0,
            closed_to_open_s: 1.0,
            open_to_close_s: 1.0,
            bytes: 1,
            in_use: false,
        }
    }

    fn drain(queue: &mut VictimQueue, candidates: &[Candidate]) -> Vec<u64> {
        let mut ids = Vec::new();
        while let Some(id) = queue.first() {
            let c = candidates.iter().find(|c| c.id == id).unwrap();
            assert!(queue.remove(c), "{id} was named and is not there");
            ids.push(id);
        }
        assert!(queue.is_empty());
        ids
    }

    #[test]
    fn a_restart_moves_all_files_of_its_application() {
        let files = [
            candidate(1, 1, Some(1), 100.0),
            candidate(2, 1, Some(2), 100.0),
            candidate(3, 2, Some(1), 50.0),
        ];
        let mut queue = VictimQueue::new(PlacementPolicy::Bbos);
        files.iter().for_each(|c| queue.insert(c));
        assert_eq!(queue.first(), Some(1));
        queue.rerank(1, 20.0);
        assert_eq!(queue.len(), 3);
        assert_eq!(drain(&mut queue, &files), [3, 1, 2]);
    }

    #[test]
    fn what_is_not_there_cannot_be_removed() {
        let mut queue = VictimQueue::new(PlacementPolicy::Bbos);
        let c = candidate(1, 1, None, 1.0);
        assert!(!queue.remove(&c));
        queue.insert(&c);
        assert!(!queue.remove(&candidate(2, 1, None, 1.0)));
        assert!(queue.remove(&c));
        assert_eq!((queue.len(), queue.first()), (0, None));
    }

    fn any_candidates() -> impl Strategy<Value = Vec<Candidate>> {
        let one = (
            0u64..5,
            proptest::option::of(0u64..4),
            any::<bool>(),
            (0u8..4, 0u8..4, 0u8..4),
        );
        proptest::collection::vec(one, 0..40).prop_map(|all| {
            let build = |(i, (application, version, outdated, times)): (usize, _)| Candidate {
                outdated,
                arrived_at_s: f64::from({
                    let (a, _, _): (u8, u8, u8) = times;
                    a
                }),
                accessed_at_s: f64::from(times.1),
                closed_at_s: f64::from(times.2),
                // Two applications share an MTBF.
                ..candidate(i as u64, application, version, (application / 2) as f64)
            };
            all.into_iter().enumerate().map(build).collect()
        })
    }

    proptest! {
        #[test]
        fn the_order_is_that_of_the_sort(candidates in any_candidates(), gone in any::<u64>()) {
            for policy in PlacementPolicy::ALL {
                let mut queue = VictimQueue::new(*policy);
                candidates.iter().for_each(|c| queue.insert(c));
                let (out, mut left): (Vec<Candidate>, Vec<Candidate>) =
                    candidates.iter().partition(|c| gone >> (c.id % 64) & 1 == 1);
                for c in &out {
                    prop_assert!(queue.remove(c));
                }
                prop_assert_eq!(queue.len(), left.len());
                while !left.is_empty() {
                    order_demotion(*policy, &mut left, 10.0);
                    prop_assert_eq!(queue.first(), Some(left[0].id), "{}", policy);
                    prop_assert!(queue.remove(&left.remove(0)));
                }
                prop_assert_eq!(queue.first(), None);
            }
        }
    }
}
