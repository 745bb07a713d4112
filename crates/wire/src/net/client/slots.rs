//! The slots of a session, as the client hands them out.
//!
//! Requests that may take long leave some slots to the others: many writers that wait for space do
//! not keep a close or a look from the server.

use std::time::Duration;

use forebay_types::Errno;
use parking_lot::{Condvar, Mutex};

use super::super::packet::Ticket;

/// One slot of so many is not for requests that may take long.
const LEFT_TO_OTHERS: u16 = 4;

pub(crate) struct Slots {
    state: Mutex<State>,
    given_back: Condvar,
}

struct State {
    /// The one that was used last comes first: what the server remembers for it is in a cache.
    free: Vec<u16>,
    /// The last number of each.
    last: Vec<u64>,
    /// Those of requests that may take long.
    long: Vec<bool>,
    /// How many of those there are, and may be.
    long_taken: u16,
    long_max: u16,
    ended: Option<Errno>,
}

impl Slots {
    pub fn new(count: u16) -> Slots {
        Slots {
            state: Mutex::new(State {
                free: (0..count).rev().collect(),
                last: vec![0; usize::from(count)],
                long: vec![false; usize::from(count)],
                long_taken: 0,
                long_max: count - count / LEFT_TO_OTHERS,
                ended: None,
            }),
            given_back: Condvar::new(),
        }
    }

    /// A slot and its next number, for a request that may take `long` or not. While there is none,
    /// `go_on` is asked now and then whether to wait further.
    pub fn take(&self, long: bool, go_on: impl Fn() -> Result<(), Errno>) -> Result<Ticket, Errno> {
        let mut state = self.state.lock();
        loop {
            if let Some(errno) = state.ended {
                return Err(errno);
            }
            let may_take = !long || state.long_taken < state.long_max;
            if may_take && let Some(slot) = state.free.pop() {
                state.long[usize::from(slot)] = long;
                state.long_taken += u16::from(long);
                let number = &mut state.last[usize::from(slot)];
                *number += 1;
                let number = *number;
                return Ok(Ticket { slot, number });
            }
            self.given_back
                .wait_for(&mut state, Duration::from_millis(100));
            go_on()?;
        }
    }

    /// The request of this slot has been answered, or was never sent.
    pub fn give_back(&self, slot: u16) {
        let mut state = self.state.lock();
        state.free.push(slot);
        let was_long = std::mem::take(&mut state.long[usize::from(slot)]);
        state.long_taken -= u16::from(was_long);
        drop(state);
        // Not to one alone: it may be one that may take long, and this slot not for such.
        self.given_back.notify_all();
    }

    /// Nobody gets a slot any more.
    pub fn end(&self, errno: Errno) {
        self.state.lock().ended = Some(errno);
        self.given_back.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(slots: &Slots, long: bool) -> Result<u16, Errno> {
        slots.take(long, || Err(Errno::EAGAIN)).map(|t| t.slot)
    }

    #[test]
    fn what_may_take_long_leaves_some_to_the_rest() {
        let slots = Slots::new(8);
        let long: Vec<u16> = (0..6).map(|_| take(&slots, true).expect("free")).collect();
        assert_eq!(take(&slots, true), Err(Errno::EAGAIN));
        let short = take(&slots, false).expect("left");
        take(&slots, false).expect("left");
        assert_eq!(take(&slots, false), Err(Errno::EAGAIN));
        slots.give_back(short);
        assert_eq!(take(&slots, true), Err(Errno::EAGAIN));
        slots.give_back(long[0]);
        assert!(take(&slots, true).is_ok());
        // The last one is anybody's.
        let one = Slots::new(1);
        let slot = take(&one, true).expect("free");
        one.give_back(slot);
        assert_eq!(take(&one, false), Ok(slot));
    }
}
