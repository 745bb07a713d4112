//! Once and only once: what the slots of a session remember.
//!
//! A client numbers the requests of each slot. The last number runs once; sent again, it is
//! answered from memory, or, where a second run does no harm, runs again. Invariants:
//!
//! 1. A number runs only if no higher one of its slot has been seen.
//! 2. One request of a slot runs at a time.
//! 3. The reply of a request that is not repeatable is remembered before it is sent, and until a
//!    higher number comes.

use parking_lot::Mutex;

use super::super::packet::Ticket;
use crate::Response;

#[derive(Default)]
struct Slot {
    /// The highest number seen; 0 before the first.
    last: u64,
    under_way: bool,
    /// The reply to it, unless it may run again.
    remembered: Option<Response>,
}

pub(crate) struct Slots(Box<[Mutex<Slot>]>);

/// What to do with a request.
#[derive(Debug, PartialEq)]
pub(crate) enum Turn {
    /// Run it; [`Slots::finish`] follows.
    Run,
    /// It has run: this is the reply.
    Answered(Response),
    /// A higher number has been seen: nobody waits for the reply.
    Late,
    /// No client of ours does this.
    Wrong(&'static str),
}

impl Slots {
    pub fn new(count: u16) -> Slots {
        Slots((0..count).map(|_| Mutex::default()).collect())
    }

    pub fn begin(&self, ticket: Ticket, repeatable: bool) -> Turn {
        let Some(slot) = self.0.get(usize::from(ticket.slot)) else {
            return Turn::Wrong("a slot that does not exist");
        };
        let mut slot = slot.lock();
        if ticket.number < slot.last {
            return Turn::Late;
        }
        if slot.under_way {
            return Turn::Wrong("two requests in one slot");
        }
        if ticket.number == slot.last {
            return match &slot.remembered {
                Some(response) => Turn::Answered(response.clone()),
                None if repeatable && ticket.number > 0 => {
                    slot.under_way = true;
                    Turn::Run
                }
                None => Turn::Wrong("another request under the number of one that may run again"),
            };
        }
        *slot = Slot {
            last: ticket.number,
            under_way: true,
            remembered: None,
        };
        Turn::Run
    }

    /// The request has run; `remembered` is its reply unless it is repeatable.
    pub fn finish(&self, ticket: Ticket, remembered: Option<Response>) {
        let mut slot = self.0[usize::from(ticket.slot)].lock();
        debug_assert!(slot.under_way && slot.last == ticket.number);
        slot.under_way = false;
        slot.remembered = remembered;
    }

    /// The request has not run, and may come again.
    pub fn forget(&self, ticket: Ticket) {
        let mut slot = self.0[usize::from(ticket.slot)].lock();
        slot.under_way = false;
        slot.last = slot.last.min(ticket.number.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(number: u64) -> Ticket {
        Ticket { slot: 1, number }
    }

    #[test]
    fn what_has_run_is_answered_and_what_is_late_is_not() {
        let slots = Slots::new(2);
        assert_eq!(slots.begin(ticket(1), false), Turn::Run);
        assert!(
            matches!(slots.begin(ticket(1), false), Turn::Wrong(_)),
            "it runs"
        );
        assert!(
            matches!(slots.begin(ticket(2), false), Turn::Wrong(_)),
            "it runs"
        );
        slots.finish(ticket(1), Some(Response::Done));
        assert_eq!(
            slots.begin(ticket(1), false),
            Turn::Answered(Response::Done)
        );
        assert_eq!(
            slots.begin(ticket(7), true),
            Turn::Run,
            "some were never sent"
        );
        slots.finish(ticket(7), None);
        assert_eq!(slots.begin(ticket(1), false), Turn::Late);
        assert_eq!(slots.begin(ticket(6), true), Turn::Late);
        assert_eq!(slots.begin(ticket(7), true), Turn::Run, "again");
        assert_eq!(
            slots.begin(ticket(6), true),
            Turn::Late,
            "also while it runs"
        );
        slots.finish(ticket(7), None);
        assert!(matches!(slots.begin(ticket(7), false), Turn::Wrong(_)));
        assert_eq!(slots.begin(ticket(8), false), Turn::Run);
        slots.forget(ticket(8));
        assert_eq!(slots.begin(ticket(6), true), Turn::Late);
        assert_eq!(slots.begin(ticket(8), false), Turn::Run, "it has not run");
    }

    #[test]
    fn numbers_begin_at_one_and_slots_are_counted() {
        let slots = Slots::new(2);
        assert!(matches!(slots.begin(ticket(0), true), Turn::Wrong(_)));
        let beyond = Ticket { slot: 2, number: 1 };
        assert!(matches!(slots.begin(beyond, true), Turn::Wrong(_)));
    }
}
