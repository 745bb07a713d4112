//! What one client is still to forget.
//!
//! Invariants:
//!
//! 1. Recalls are numbered from 1, and told again until the client says that it has followed them.
//! 2. Who waits for a client to forget what it believes waits no longer than that is believed. Who
//!    waits for pages waits until they are dropped; a client that does not drop them is fenced.
//! 3. A client that does not follow costs a bounded queue.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use forebay_types::{Errno, limits};
use forebay_wire::net::Answer;
use forebay_wire::{Recall, Response};
use parking_lot::{Condvar, Mutex};

/// Longest queue of a client, in recalls: one that has more to forget does not follow.
const QUEUE_MAX: usize = 1 << 16;

#[derive(Default)]
struct State {
    /// Not followed yet; the last one has number `last`.
    queue: VecDeque<Recall>,
    last: u64,
    listener: Option<Answer>,
    /// The client follows recalls at all.
    listens: bool,
    ended: bool,
}

impl State {
    fn followed(&self) -> u64 {
        self.last - self.queue.len() as u64
    }

    fn answer(&self) -> Response {
        let recalls: Vec<Recall> = self
            .queue
            .iter()
            .take(limits::RECALLS_PER_REPLY_MAX)
            .copied()
            .collect();
        Response::Recalls {
            last: self.followed() + recalls.len() as u64,
            recalls,
        }
    }
}

/// See the module.
#[derive(Default)]
pub struct Recalls {
    /// What the client calls this life of its own.
    pub life: u64,
    returned: AtomicBool,
    state: Mutex<State>,
    followed: Condvar,
}

impl Recalls {
    /// Of a client that lives this life.
    pub fn of(life: u64) -> Recalls {
        Recalls {
            life,
            ..Recalls::default()
        }
    }

    /// The client was there before a restart of the server, or another session: it will listen.
    pub fn returns(&self) {
        self.returned.store(true, Ordering::Release);
    }

    /// Whether it is so.
    pub fn has_returned(&self) -> bool {
        self.returned.load(Ordering::Acquire)
    }

    /// Whether the client follows recalls.
    pub fn are_followed(&self) -> bool {
        self.state.lock().listens
    }

    /// The client has followed all up to number `seen`. What is left, at most one reply of it.
    pub fn follow(&self, seen: u64) -> Response {
        let mut state = self.state.lock();
        self.note_followed(&mut state, seen);
        state.answer()
    }

    fn note_followed(&self, state: &mut State, seen: u64) {
        // Before the first time nothing was told: the number is one of an earlier session.
        if !std::mem::replace(&mut state.listens, true) {
            return;
        }
        let count = seen.saturating_sub(state.followed()) as usize;
        let count = count.min(state.queue.len());
        if count > 0 {
            state.queue.drain(..count);
            self.followed.notify_all();
        }
    }

    /// The same, and waits for the next ones. The first time is answered at once: the client learns
    /// that there is a session in which it is told what to forget.
    pub fn listen(&self, seen: u64, answer: Answer) {
        let (before, now) = {
            let mut state = self.state.lock();
            if state.ended {
                drop(state);
                return answer(Response::Failed(Errno::ENOTCONN));
            }
            let is_first = !state.listens;
            self.note_followed(&mut state, seen);
            let before = state.listener.take();
            let now = match state.queue.is_empty() && !is_first {
                true => {
                    state.listener = Some(answer);
                    None
                }
                false => Some((answer, state.answer())),
            };
            (before.map(|before| (before, nothing(&state))), now)
        };
        for (answer, response) in before.into_iter().chain(now) {
            answer(response);
        }
    }

    /// Answers who listens, with nothing.
    pub fn hush(&self) {
        let (listener, nothing) = {
            let mut state = self.state.lock();
            (state.listener.take(), nothing(&state))
        };
        if let Some(answer) = listener {
            answer(nothing);
        }
    }

    /// The client is gone: nobody waits for it.
    pub fn end(&self) {
        self.state.lock().ended = true;
        self.followed.notify_all();
        self.hush();
    }

    /// Asks the client to forget something. The number by which that is waited for.
    pub fn recall(&self, what: Recall) -> u64 {
        let (number, listener) = {
            let mut state = self.state.lock();
            // Before it listens it is shown nothing firm. Of before a restart of the server it may
            // have pages and mappings.
            let is_of_pages = matches!(what, Recall::Pages(_) | Recall::Grown { .. });
            let counts = state.listens || (self.has_returned() && is_of_pages);
            if state.ended || !counts {
                return 0;
            }
            if state.queue.len() >= QUEUE_MAX {
                state.ended = true;
                self.followed.notify_all();
                return 0;
            }
            state.queue.push_back(what);
            state.last += 1;
            let listener = state.listener.take();
            (state.last, listener.map(|answer| (answer, state.answer())))
        };
        if let Some((answer, response)) = listener {
            answer(response);
        }
        number
    }

    /// Whether the client has forgotten all up to this number, or is gone.
    pub fn has_followed(&self, number: u64) -> bool {
        let state = self.state.lock();
        state.followed() >= number || state.ended
    }

    /// Whether the client is gone, or does not follow and is fenced.
    pub fn have_ended(&self) -> bool {
        self.state.lock().ended
    }

    /// Waits until the client has forgotten all up to this number, or is gone; false if that is not
    /// so by then.
    pub fn await_followed(&self, number: u64, until: Instant) -> bool {
        let mut state = self.state.lock();
        while state.followed() < number && !state.ended {
            if self.followed.wait_until(&mut state, until).timed_out() {
                return state.followed() >= number || state.ended;
            }
        }
        true
    }
}

fn nothing(state: &State) -> Response {
    Response::Recalls {
        last: state.followed(),
        recalls: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{self, Receiver};
    use std::time::Duration;

    use forebay_types::Ino;

    use super::*;

    /// A client that has been told that it is listened to.
    fn followed() -> Recalls {
        let recalls = Recalls::default();
        assert_eq!(listen(&recalls, 0).try_recv(), Ok(told(0, &[])));
        recalls
    }

    fn listen(recalls: &Recalls, seen: u64) -> Receiver<Response> {
        let (tell, told) = mpsc::channel();
        recalls.listen(seen, Box::new(move |response| drop(tell.send(response))));
        told
    }

    fn told(last: u64, inos: &[u64]) -> Response {
        Response::Recalls {
            last,
            recalls: inos.iter().map(|ino| Recall::Attr(Ino(*ino))).collect(),
        }
    }

    fn recall(recalls: &Recalls, ino: u64) -> u64 {
        recalls.recall(Recall::Attr(Ino(ino)))
    }

    #[test]
    fn who_does_not_listen_is_not_waited_for() {
        let recalls = Recalls::default();
        assert_eq!(recall(&recalls, 7), 0);
        assert_eq!(recalls.follow(0), told(0, &[]));
    }

    #[test]
    fn who_does_not_listen_yet_is_waited_for_where_it_may_have_pages() {
        let recalls = Recalls::default();
        assert_eq!(recalls.recall(Recall::Pages(Ino(7))), 0);
        recalls.returns();
        let number = recalls.recall(Recall::Pages(Ino(7)));
        let grown = recalls.recall(Recall::Grown {
            ino: Ino(7),
            end: 9,
        });
        assert_eq!((number, grown), (1, 2));
        // A number that an earlier session has told.
        assert!(matches!(
            recalls.follow(2),
            Response::Recalls { last: 2, recalls } if recalls.len() == 2
        ));
        assert!(!recalls.has_followed(number));
        recalls.follow(2);
        assert!(recalls.has_followed(grown));
    }

    #[test]
    fn a_recall_is_told_until_it_is_followed() {
        let recalls = followed();
        let waits = listen(&recalls, 0);
        assert!(waits.try_recv().is_err());
        assert_eq!(recall(&recalls, 7), 1);
        assert_eq!(waits.try_recv(), Ok(told(1, &[7])));
        assert_eq!(recall(&recalls, 8), 2);
        // The answer was lost on the way.
        assert_eq!(listen(&recalls, 0).try_recv(), Ok(told(2, &[7, 8])));
        assert_eq!(listen(&recalls, 1).try_recv(), Ok(told(2, &[8])));
        // What was never told is not followed.
        let waits = listen(&recalls, 9);
        assert!(waits.try_recv().is_err());
        assert_eq!(recall(&recalls, 9), 3);
        assert_eq!(waits.try_recv(), Ok(told(3, &[9])));
    }

    #[test]
    fn who_listens_is_answered_by_the_next_one_the_hush_and_the_end() {
        let recalls = followed();
        let first = listen(&recalls, 0);
        let second = listen(&recalls, 0);
        assert_eq!(first.try_recv(), Ok(told(0, &[])));
        recalls.hush();
        assert_eq!(second.try_recv(), Ok(told(0, &[])));
        let third = listen(&recalls, 0);
        recalls.end();
        assert_eq!(third.try_recv(), Ok(told(0, &[])));
        let gone = Ok(Response::Failed(Errno::ENOTCONN));
        assert_eq!(listen(&recalls, 0).try_recv(), gone);
        assert_eq!(recall(&recalls, 7), 0);
    }

    #[test]
    fn who_waits_goes_on_when_it_is_followed_at_the_end_and_in_time() {
        let long = || Instant::now() + Duration::from_secs(60);
        let ways: [fn(&Recalls); 2] = [|recalls| drop(recalls.follow(1)), |recalls| recalls.end()];
        for way in ways {
            let recalls = Arc::new(Recalls::default());
            recalls.follow(0);
            let number = recall(&recalls, 7);
            let waits = {
                let recalls = recalls.clone();
                std::thread::spawn(move || recalls.await_followed(number, long()))
            };
            way(&recalls);
            waits.join().expect("no panic");
        }
        let recalls = Recalls::default();
        recalls.follow(0);
        let number = recall(&recalls, 7);
        assert!(!recalls.await_followed(number, Instant::now()));
        assert!(!recalls.has_followed(number));
        recalls.follow(number);
        assert!(recalls.has_followed(number));
    }

    #[test]
    fn who_never_follows_is_fenced() {
        let recalls = Recalls::default();
        recalls.follow(0);
        let asked = (0..=QUEUE_MAX as u64).map(|ino| recall(&recalls, ino));
        assert_eq!(asked.last(), Some(0));
        assert!(recalls.have_ended());
    }

    #[test]
    fn a_reply_is_bounded() {
        let recalls = Recalls::default();
        recalls.follow(0);
        let most = limits::RECALLS_PER_REPLY_MAX as u64;
        for ino in 1..=most + 3 {
            recall(&recalls, ino);
        }
        let Response::Recalls {
            last,
            recalls: first,
        } = recalls.follow(0)
        else {
            panic!("recalls");
        };
        assert_eq!((last, first.len() as u64), (most, most));
        assert_eq!(
            recalls.follow(most),
            told(most + 3, &[most + 1, most + 2, most + 3])
        );
    }
}
