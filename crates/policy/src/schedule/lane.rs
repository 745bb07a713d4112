//! The requests of one class: a queue for each application, the applications in rotation.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rustc_hash::FxHashMap;

use crate::queue::rank;

#[derive(Debug, Clone)]
struct Waiting<T> {
    ticket: T,
    since_s: f64,
}

#[derive(Debug, Clone)]
struct Queue<T> {
    /// Never empty.
    requests: VecDeque<Waiting<T>>,
    /// Its key in [`Lane::ring`].
    place: u64,
}

/// Places begin here: there are more than enough on either side.
const MIDDLE: u64 = 1 << 63;

/// Requests of one class.
#[derive(Debug, Clone)]
pub(super) struct Lane<T> {
    queues: FxHashMap<u64, Queue<T>>,
    /// The list of a queue that has become empty, for the next one.
    spare: VecDeque<Waiting<T>>,
    /// Applications with a queue, next first. The same set as the keys of `queues`.
    ring: BTreeMap<u64, u64>,
    /// The key of the next that joins the ring, greater than all in it.
    next_place: u64,
    /// The least that was given.
    first_place: u64,
    /// Since when the first request of each queue waits (as [`rank`] orders it), and whose it is.
    /// The same set again.
    fronts: BTreeSet<(u64, u64)>,
    waiting: usize,
    running: FxHashMap<u64, u32>,
    running_sum: u32,
}

impl<T> Lane<T> {
    pub fn new() -> Self {
        Self {
            queues: FxHashMap::default(),
            spare: VecDeque::new(),
            ring: BTreeMap::new(),
            next_place: MIDDLE,
            first_place: MIDDLE,
            fronts: BTreeSet::new(),
            waiting: 0,
            running: FxHashMap::default(),
            running_sum: 0,
        }
    }

    /// Adds a request at the end of its application's queue; whether it is the only one there.
    pub fn push(&mut self, application: u64, ticket: T, now_s: f64) -> bool {
        let place = self.next_place;
        let queue = self.queues.entry(application).or_insert_with(|| Queue {
            requests: std::mem::take(&mut self.spare),
            place,
        });
        let is_only = queue.requests.is_empty();
        if is_only {
            self.next_place += 1;
            self.ring.insert(place, application);
            self.fronts.insert((rank(now_s), application));
        }
        queue.requests.push_back(Waiting {
            ticket,
            since_s: now_s,
        });
        self.waiting += 1;
        is_only
    }

    /// Takes the oldest request of an application and moves the application to the end of the ring.
    pub fn pop(&mut self, application: u64) -> Option<T> {
        let queue = self.queues.get_mut(&application)?;
        let gone = queue.requests.pop_front()?;
        self.ring.remove(&queue.place);
        self.fronts.remove(&(rank(gone.since_s), application));
        if let Some(next) = queue.requests.front() {
            queue.place = self.next_place;
            self.next_place += 1;
            self.ring.insert(queue.place, application);
            self.fronts.insert((rank(next.since_s), application));
        } else {
            let emptied = self.queues.remove(&application);
            self.spare = emptied.map(|queue| queue.requests).unwrap_or_default();
        }
        self.waiting -= 1;
        *self.running.entry(application).or_default() += 1;
        self.running_sum += 1;
        Some(gone.ticket)
    }

    /// A request of the application is done. One that was never started changes nothing.
    pub fn finish(&mut self, application: u64) {
        if let Some(count) = self.running.get_mut(&application) {
            *count -= 1;
            self.running_sum -= 1;
            if *count == 0 {
                self.running.remove(&application);
            }
        }
    }

    /// Puts an application that waits before all others in the ring.
    pub fn advance(&mut self, application: u64) {
        if let Some(queue) = self.queues.get_mut(&application) {
            self.ring.remove(&queue.place);
            self.first_place -= 1;
            queue.place = self.first_place;
            self.ring.insert(queue.place, application);
        }
    }

    /// The application whose oldest request has waited longest, and since when; of equals the least
    /// number.
    pub fn oldest(&self) -> Option<(u64, f64)> {
        let (_, application) = self.fronts.first()?;
        let front = self.queues.get(application)?.requests.front()?;
        Some((*application, front.since_s))
    }

    /// The application that is next in rotation.
    pub fn first(&self) -> Option<u64> {
        self.ring.values().next().copied()
    }

    /// The first in rotation that is not this one.
    pub fn first_but(&self, application: u64) -> Option<u64> {
        self.ring.values().copied().find(|a| *a != application)
    }

    pub fn is_waiting(&self, application: u64) -> bool {
        self.queues.contains_key(&application)
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    pub fn is_running(&self, application: u64) -> bool {
        self.running.contains_key(&application)
    }

    /// Requests under way.
    pub fn running(&self) -> u32 {
        self.running_sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same, said plainly: a list of what waits, the ring as a list; everything is searched.
    #[derive(Default)]
    struct Plain {
        waiting: Vec<(u64, u32, f64)>,
        ring: Vec<u64>,
        running: Vec<u64>,
    }

    impl Plain {
        fn push(&mut self, application: u64, ticket: u32, now_s: f64) {
            if !self.ring.contains(&application) {
                self.ring.push(application);
            }
            self.waiting.push((application, ticket, now_s));
        }

        fn pop(&mut self, application: u64) -> Option<u32> {
            let at = self.waiting.iter().position(|w| w.0 == application)?;
            let (_, ticket, _) = self.waiting.remove(at);
            self.ring.retain(|a| *a != application);
            if self.waiting.iter().any(|w| w.0 == application) {
                self.ring.push(application);
            }
            self.running.push(application);
            Some(ticket)
        }

        fn advance(&mut self, application: u64) {
            if let Some(at) = self.ring.iter().position(|a| *a == application) {
                self.ring[..=at].rotate_right(1);
            }
        }

        fn finish(&mut self, application: u64) {
            if let Some(at) = self.running.iter().position(|a| *a == application) {
                self.running.swap_remove(at);
            }
        }

        fn oldest(&self) -> Option<(u64, f64)> {
            let front = |a: &u64| self.waiting.iter().find(|w| w.0 == *a).map(|w| (*a, w.2));
            let mut applications = self.ring.clone();
            applications.sort_unstable();
            let fronts = applications.iter().filter_map(front);
            fronts.min_by(|a, b| a.1.total_cmp(&b.1))
        }
    }

    #[derive(Debug, Clone)]
    enum Change {
        /// At a time that may also be earlier than the one before: the clock is the caller's.
        Push(u64, f64),
        Pop(u64),
        PopFirst,
        PopOldest,
        Finish(u64),
        Advance(u64),
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            4 => (0u64..6, -2i8..20).prop_map(|(a, t)| Change::Push(a, f64::from(t) / 2.0)),
            1 => (0u64..6).prop_map(Change::Pop),
            1 => Just(Change::PopFirst),
            1 => Just(Change::PopOldest),
            2 => (0u64..6).prop_map(Change::Finish),
            1 => (0u64..6).prop_map(Change::Advance),
        ]
    }

    proptest! {
        #[test]
        fn it_decides_as_the_plain_one(changes in proptest::collection::vec(change(), 1..300)) {
            let (mut lane, mut plain) = (Lane::new(), Plain::default());
            for (ticket, change) in changes.into_iter().enumerate() {
                let ticket = ticket as u32;
                let popped = match change {
                    Change::Push(application, at_s) => {
                        let is_only = !plain.ring.contains(&application);
                        prop_assert_eq!(lane.push(application, ticket, at_s), is_only);
                        plain.push(application, ticket, at_s);
                        None
                    }
                    Change::Finish(application) => {
                        lane.finish(application);
                        plain.finish(application);
                        None
                    }
                    Change::Advance(application) => {
                        lane.advance(application);
                        plain.advance(application);
                        None
                    }
                    Change::Pop(application) => Some(application),
                    Change::PopFirst => plain.ring.first().copied(),
                    Change::PopOldest => plain.oldest().map(|(a, _)| a),
                };
                if let Some(application) = popped {
                    prop_assert_eq!(lane.pop(application), plain.pop(application));
                }
                prop_assert_eq!(lane.oldest(), plain.oldest());
                prop_assert_eq!(lane.first(), plain.ring.first().copied());
                prop_assert_eq!(lane.waiting(), plain.waiting.len());
                prop_assert_eq!(lane.running() as usize, plain.running.len());
                for a in 0..6 {
                    prop_assert_eq!(lane.first_but(a), plain.ring.iter().copied().find(|b| *b != a));
                    prop_assert_eq!(lane.is_waiting(a), plain.ring.contains(&a));
                    prop_assert_eq!(lane.is_running(a), plain.running.contains(&a));
                }
            }
        }
    }
}
