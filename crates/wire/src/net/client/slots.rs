//! The slots of a session, as the client hands them out.

use std::time::Duration;

use forebay_types::Errno;
use parking_lot::{Condvar, Mutex};

use super::super::packet::Ticket;

pub(crate) struct Slots {
    state: Mutex<State>,
    given_back: Condvar,
}

struct State {
    /// The one that was used last comes first: what the server remembers for it is in a cache.
    free: Vec<u16>,
    /// The last number of each.
    last: Vec<u64>,
    ended: Option<Errno>,
}

impl Slots {
    pub fn new(count: u16) -> Slots {
        Slots {
            state: Mutex::new(State {
                free: (0..count).rev().collect(),
                last: vec![0; usize::from(count)],
                ended: None,
            }),
            given_back: Condvar::new(),
        }
    }

    /// A slot and its next number. While there is none, `go_on` is asked now and then whether to
    /// wait further.
    pub fn take(&self, go_on: impl Fn() -> Result<(), Errno>) -> Result<Ticket, Errno> {
        let mut state = self.state.lock();
        loop {
            if let Some(errno) = state.ended {
                return Err(errno);
            }
            if let Some(slot) = state.free.pop() {
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
        self.state.lock().free.push(slot);
        self.given_back.notify_one();
    }

    /// Nobody gets a slot any more.
    pub fn end(&self, errno: Errno) {
        self.state.lock().ended = Some(errno);
        self.given_back.notify_all();
    }
}
