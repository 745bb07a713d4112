//! What happens at a point in time, first first.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Something that happens to an application, or to all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A period begins.
    Period,
    /// The application starts.
    Start(u32),
    /// Its next checkpoint begins, unless it has failed since (the second number counts failures).
    Checkpoint(u32, u32),
    /// It fails.
    Fail(u32),
    /// It ends.
    End(u32),
    /// Somebody restarts, [`crate::scenario::FailureMode::Draws`].
    Draw,
    /// The state is noted for the figures.
    Sample,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    at_s: f64,
    /// Events of one time happen in the order in which they were planned.
    nth: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The greatest is the first to happen, as a [`BinaryHeap`] wants it.
    fn cmp(&self, other: &Self) -> Ordering {
        other
            .at_s
            .total_cmp(&self.at_s)
            .then(other.nth.cmp(&self.nth))
    }
}

/// The calendar.
#[derive(Debug, Default)]
pub(super) struct Calendar {
    heap: BinaryHeap<Entry>,
    planned: u64,
}

impl Calendar {
    pub fn plan(&mut self, at_s: f64, event: Event) {
        self.heap.push(Entry {
            at_s,
            nth: self.planned,
            event,
        });
        self.planned += 1;
    }

    pub fn next_s(&self) -> f64 {
        self.heap.peek().map_or(f64::INFINITY, |entry| entry.at_s)
    }

    pub fn pop(&mut self) -> Option<Event> {
        self.heap.pop().map(|entry| entry.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_first_and_ties_in_the_order_of_planning() {
        let mut calendar = Calendar::default();
        calendar.plan(2.0, Event::Period);
        calendar.plan(1.0, Event::Start(1));
        calendar.plan(1.0, Event::Start(2));
        calendar.plan(0.5, Event::Draw);
        assert_eq!(calendar.next_s(), 0.5);
        let order: Vec<Event> = std::iter::from_fn(|| calendar.pop()).collect();
        assert_eq!(
            order,
            [Event::Draw, Event::Start(1), Event::Start(2), Event::Period]
        );
        assert_eq!(calendar.next_s(), f64::INFINITY);
    }
}
