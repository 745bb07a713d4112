//! The calendar: what happens at which point in time, in this order.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

/// Something that happens to an application, or to all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A period begins.
    Period,
    /// The application starts.
    Start(u32),
    /// The application's next checkpoint begins, unless the application has failed since (the
    /// second number counts failures).
    Checkpoint(u32, u32),
    /// The application fails.
    Fail(u32),
    /// The application restarts, as its history says: it reads and disturbs nothing.
    Restart(u32),
    /// The application ends.
    End(u32),
    /// An application drawn at random restarts, [`crate::scenario::FailureMode::Draws`].
    Draw,
    /// The state is noted for the figures.
    Sample,
    /// Holders report, and are lent shares of Brmax.
    Report,
    /// A data server fails; `None`: one drawn at random.
    NodeFails(Option<u32>),
    /// A data server is back.
    NodeIsBack(u32),
    /// It is looked how much memory this tier may have.
    Look(u32),
    /// Jobs beside this tier have another amount of memory: the second number counts them, in the
    /// scenario's list.
    JobsWant(u32, u32),
    /// A job comes that was drawn.
    JobComes(u32),
    /// It ends.
    JobEnds(u32),
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

/// The calendar. Events that are far off lie unordered in their page. Only the open page is kept in
/// order, and is small enough for the processor's caches whatever the number of applications.
#[derive(Debug)]
pub(super) struct Calendar {
    page_s: f64,
    /// All events of pages before `open_until`. Never empty while there are others.
    open: BinaryHeap<Entry>,
    open_until: u64,
    /// All other events, by page.
    later: BTreeMap<u64, Vec<Entry>>,
    planned: u64,
}

impl Calendar {
    /// An empty calendar. A page is `page_s` long, seconds, more than 0.
    pub fn new(page_s: f64) -> Self {
        Self {
            page_s,
            open: BinaryHeap::new(),
            open_until: 0,
            later: BTreeMap::new(),
            planned: 0,
        }
    }

    pub fn plan(&mut self, at_s: f64, event: Event) {
        let entry = Entry {
            at_s,
            nth: self.planned,
            event,
        };
        self.planned += 1;
        // An event before the first page, or behind all pages, is not lost: the cast saturates.
        let page = (at_s / self.page_s) as u64;
        if page < self.open_until {
            self.open.push(entry);
        } else {
            self.later.entry(page).or_default().push(entry);
            self.turn_page();
        }
    }

    pub fn next_s(&self) -> f64 {
        self.open.peek().map_or(f64::INFINITY, |entry| entry.at_s)
    }

    pub fn pop(&mut self) -> Option<Event> {
        let event = self.open.pop().map(|entry| entry.event);
        self.turn_page();
        event
    }

    /// Opens the next page that has something on it, once the open one is empty.
    fn turn_page(&mut self) {
        if self.open.is_empty()
            && let Some((page, entries)) = self.later.pop_first()
        {
            self.open.extend(entries);
            self.open_until = page.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn first_first_and_ties_in_the_order_of_planning() {
        let mut calendar = Calendar::new(10.0);
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

    proptest! {
        #[test]
        fn whatever_the_pages_the_order_is_that_of_a_sort(
            steps in proptest::collection::vec((0u8..3, 0u32..40), 1..200),
            page_s in 0.3..50.0f64,
        ) {
            let mut calendar = Calendar::new(page_s);
            let (mut waiting, mut now): (Vec<(u32, u32)>, u32) = (Vec::new(), 0);
            for (nth, (what, ahead)) in steps.into_iter().enumerate() {
                if what == 0 {
                    waiting.sort_unstable();
                    let first = (!waiting.is_empty()).then(|| waiting.remove(0));
                    prop_assert_eq!(calendar.next_s(), first.map_or(f64::INFINITY, |f| f64::from(f.0)));
                    prop_assert_eq!(calendar.pop(), first.map(|f| Event::Start(f.1)));
                    now = first.map_or(now, |f| f.0);
                } else {
                    waiting.push((now + ahead, nth as u32));
                    calendar.plan(f64::from(now + ahead), Event::Start(nth as u32));
                }
            }
        }
    }
}
