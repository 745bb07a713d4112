//! A client as the server knows it: its links, what runs for it, and when it ends.
//!
//! Invariants, all under `state`:
//!
//! 1. A link is let in only when nothing runs any more that came over the link before it with
//!    the same number.
//! 2. After the end has begun nothing new runs. Where the server stops in order, nothing does but
//!    what another one may wait for, which runs already: that recalls are followed, and for that
//!    pages written back and read.
//! 3. A client is told that the server stops when nothing of its session runs any more, and
//!    nothing but the following of recalls begins after that: what it has no reply for by then has
//!    not run, and will not.
//! 4. The guest is told of the end once, when nothing runs any more.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::super::clock;
use super::super::host::Guest;
use super::super::packet::{ClientFacts, SessionId, random_bytes};
use super::link::Link;
use super::slots::Slots;
use crate::Request;

pub(crate) struct Session {
    pub id: SessionId,
    /// The client's own random number.
    pub client: [u8; 16],
    pub facts: ClientFacts,
    pub guest: Arc<dyn Guest>,
    pub slots: Slots,
    pub slot_count: u16,
    /// When it began.
    pub since_ms: u64,
    requests: AtomicU64,
    heard_ms: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    seats: HashMap<u16, Seat>,
    running: usize,
    /// Those of them that wait for recalls, and change nothing.
    listening: usize,
    /// The server stops in order.
    stopping: bool,
    /// The client is told so.
    told: bool,
    ending: bool,
    ended: bool,
}

/// A link's number, and who has it.
struct Seat {
    link: Arc<Link>,
    open: bool,
    /// What came over `link` and runs.
    running: usize,
    /// Who gets the number next.
    next: Option<Arc<Link>>,
}

/// Whether a request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begins {
    Now,
    /// The server stops: the client asks the next one.
    NotRun,
    /// Its link is gone.
    Never,
}

/// Whether a request waits for recalls, and changes nothing.
pub(crate) fn listens(request: &Request) -> bool {
    matches!(request, Request::Recalls { .. })
}

/// Whether a kernel that is to drop pages may wait for this one first.
fn is_of_pages(request: &Request) -> bool {
    match request {
        Request::Read { pages, .. } => *pages,
        Request::Write { how, .. } => how.write_back,
        _ => false,
    }
}

/// What follows from a change; the caller does it, with no lock held.
#[derive(Default)]
#[must_use]
pub(crate) struct After {
    /// This link is let in.
    pub attach: Option<Arc<Link>>,
    /// Whoever listens for recalls is to be answered: the request keeps a seat, or the session.
    pub hush: bool,
    /// These are to be closed.
    pub close: Vec<Arc<Link>>,
    /// The session has ended: the guest is to be told.
    pub ended: bool,
}

impl Session {
    pub fn new(
        client: [u8; 16],
        facts: ClientFacts,
        guest: Arc<dyn Guest>,
        slot_count: u16,
    ) -> std::io::Result<Session> {
        let now_ms = clock::now_ms();
        Ok(Session {
            id: SessionId(random_bytes()?),
            client,
            facts,
            guest,
            slots: Slots::new(slot_count),
            slot_count,
            since_ms: now_ms,
            requests: AtomicU64::new(0),
            heard_ms: AtomicU64::new(now_ms),
            state: Mutex::default(),
        })
    }

    /// Something came from the client.
    pub fn heard(&self) {
        self.heard_ms.fetch_max(clock::now_ms(), Ordering::Relaxed);
    }

    pub fn heard_ms(&self) -> u64 {
        self.heard_ms.load(Ordering::Relaxed)
    }

    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    pub fn links(&self) -> Vec<Arc<Link>> {
        let state = self.state.lock();
        let open = state.seats.values().filter(|seat| seat.open);
        open.map(|seat| seat.link.clone()).collect()
    }

    /// A new socket for a link's number. `None` when the session ends.
    pub fn seat(&self, link: &Arc<Link>) -> Option<After> {
        let mut state = self.state.lock();
        if state.ending || state.stopping {
            return None;
        }
        let mut after = After::default();
        match state.seats.get_mut(&link.number) {
            None => {
                state.seats.insert(link.number, Seat::of(link.clone()));
                after.attach = Some(link.clone());
            }
            Some(seat) => {
                if seat.open {
                    after.close.push(seat.link.clone());
                }
                (seat.open, after.hush) = (false, true);
                after.close.extend(seat.next.replace(link.clone()));
                after.attach = seat.move_up();
            }
        }
        Some(after)
    }

    /// A request that came over a link is about to run, if it may.
    pub fn begin(&self, link: &Arc<Link>, request: &Request) -> Begins {
        let listens = listens(request);
        let mut state = self.state.lock();
        let may_run = !state.stopping || listens || (is_of_pages(request) && !state.told);
        let is_ending = state.ending;
        let seat = state.seats.get_mut(&link.number);
        let seat = seat.filter(|seat| seat.open && Arc::ptr_eq(&seat.link, link) && !is_ending);
        let Some(seat) = seat else {
            return Begins::Never;
        };
        if !may_run {
            return Begins::NotRun;
        }
        seat.running += 1;
        state.running += 1;
        state.listening += usize::from(listens);
        self.requests.fetch_add(1, Ordering::Relaxed);
        Begins::Now
    }

    /// It has run.
    pub fn finish(&self, link: &Arc<Link>, listened: bool) -> After {
        let mut state = self.state.lock();
        let mut after = After::default();
        state.running -= 1;
        state.listening -= usize::from(listened);
        if let Some(seat) = state.seats.get_mut(&link.number) {
            seat.running -= 1;
            after.attach = seat.move_up();
        }
        if state.ending {
            after.attach = None;
            after.ended = state.end_if_idle();
        }
        after
    }

    /// A link's socket is broken.
    pub fn closed(&self, link: &Arc<Link>) -> After {
        let mut state = self.state.lock();
        let mut after = After {
            hush: true,
            ..After::default()
        };
        let ending = state.ending;
        if let Some(seat) = state.seats.get_mut(&link.number) {
            if Arc::ptr_eq(&seat.link, link) {
                seat.open = false;
                if !ending {
                    after.attach = seat.move_up();
                }
            } else if seat
                .next
                .as_ref()
                .is_some_and(|next| Arc::ptr_eq(next, link))
            {
                seat.next = None;
            }
        }
        after
    }

    /// The server stops in order: from now on nothing runs but what has begun.
    pub fn stop(&self) {
        self.state.lock().stopping = true;
    }

    /// Whether the server stops in order.
    pub fn is_stopping(&self) -> bool {
        self.state.lock().stopping
    }

    /// After [`Session::stop`]: whether all that had begun has its reply, or is on its way to it.
    pub fn has_settled(&self) -> bool {
        let state = self.state.lock();
        state.running == state.listening
    }

    /// The same; if so, nothing begins any more but the following of recalls.
    pub fn may_be_told(&self) -> bool {
        let mut state = self.state.lock();
        state.told |= state.running == state.listening;
        state.told
    }

    /// The session is over: nothing new runs.
    pub fn end(&self) -> After {
        let mut state = self.state.lock();
        let mut after = After {
            hush: true,
            ..After::default()
        };
        state.ending = true;
        for seat in state.seats.values_mut() {
            if std::mem::take(&mut seat.open) {
                after.close.push(seat.link.clone());
            }
            after.close.extend(seat.next.take());
        }
        after.ended = state.end_if_idle();
        after
    }

    pub fn is_ending(&self) -> bool {
        self.state.lock().ending
    }
}

impl Seat {
    fn of(link: Arc<Link>) -> Seat {
        Seat {
            link,
            open: true,
            running: 0,
            next: None,
        }
    }

    /// The next link takes the seat, if the one before has gone.
    fn move_up(&mut self) -> Option<Arc<Link>> {
        if self.open || self.running > 0 {
            return None;
        }
        let link = self.next.take()?;
        *self = Seat::of(link.clone());
        Some(link)
    }
}

impl State {
    /// Whether this is the moment at which the session has ended.
    fn end_if_idle(&mut self) -> bool {
        if self.running > 0 || self.ended {
            return false;
        }
        self.ended = true;
        // Links know their session, too.
        self.seats.clear();
        true
    }
}
