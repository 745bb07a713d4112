//! A connection that outlives the sessions of a server: where the server has forgotten the client,
//! it begins anew.
//!
//! Invariants:
//!
//! 1. A new session has another generation. What was found or opened in an earlier one is had again
//!    only where the server has restarted and has lost nothing ([`crate::had`]); else it is stale,
//!    also where the server would have the same number.
//! 2. While there is no session, requests wait. What was under way is asked again where that does
//!    no harm.
//! 3. Who closes the connection waits for nobody, and nobody waits after that.

use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use forebay_types::{Errno, Ino};
use forebay_wire::{Connection, NOT_SENT, OUT_OF_REACH, Reply, Request, Response, UNSETTLED};
use parking_lot::{Condvar, Mutex};

use crate::had::{Asks, Had};

/// Pauses between tries to begin anew: the shortest, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The pause is one part in so many of the time without a session: others may wait for this client
/// to come back, and who comes back late makes all of them wait.
const PART_OF_TIME: u32 = 8;

/// Between two times that a request is asked which waits for others to come back.
const UNSETTLED_PAUSE: Duration = Duration::from_millis(20);

/// The same where a file is on a node that does not answer.
const OUT_OF_REACH_PAUSE: Duration = Duration::from_millis(300);

/// Who waits for a session looks so often whether anybody waits for the answer.
const LOOK: Duration = Duration::from_millis(100);

/// Called when a session is lost.
pub type OnLost = Box<dyn Fn() + Send + Sync>;

/// Begins sessions.
pub trait Dial: Send + Sync {
    /// Begins one, in which nothing is open and nothing was found. `lost` is to be called once,
    /// when the server has forgotten it, from any thread. An error is one line for a person.
    /// The server is told this life of the client.
    fn dial(&self, life: u64, lost: OnLost) -> Result<Arc<dyn Connection>, String>;
}

#[derive(Default)]
struct State {
    session: Option<Arc<dyn Connection>>,
    /// Number of the last session, from 1.
    generation: u64,
    /// Numbers of sessions that were begun: no two have the same.
    tries: u64,
    /// Of the last session that there was, and of those that were begun since: the server waits for
    /// each of them to come back.
    lives: Vec<u64>,
    /// Those of them in which all was had that there is, oldest first: the answer that one is not
    /// awaited any more may have got lost.
    had_in: Vec<u64>,
    /// A thread begins the next one.
    dialing: bool,
    descriptors: Option<bool>,
    closed: bool,
}

struct Shared {
    dial: Box<dyn Dial>,
    had: Had,
    state: Mutex<State>,
    changed: Condvar,
    /// For how long requests wait for a session; `None`: until there is one.
    soft: Option<Duration>,
    /// See [`Connection::give_up_by`].
    is_given_up: OnceLock<fn() -> bool>,
}

/// See the module.
pub struct Lasting {
    shared: Arc<Shared>,
}

impl Lasting {
    /// Begins the first session.
    ///
    /// # Errors
    /// Those of the first dial: later ones are tried again.
    pub fn begin(dial: Box<dyn Dial>, soft: Option<Duration>) -> Result<Lasting, String> {
        let shared = Arc::new(Shared {
            dial,
            had: Had::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
            soft,
            is_given_up: OnceLock::new(),
        });
        shared.begin_session()?;
        Ok(Lasting { shared })
    }

    /// Ends it for good: who waits for a session gets `ENOTCONN`.
    pub fn close(&self) {
        let session = {
            let mut state = self.shared.state.lock();
            state.closed = true;
            state.session.take()
        };
        self.shared.changed.notify_all();
        if let Some(session) = session {
            session.close();
        }
    }
}

impl Drop for Lasting {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn begin_session(self: &Arc<Shared>) -> Result<(), String> {
        let (generation, before, had_in) = {
            let mut state = self.state.lock();
            state.tries = state.tries.max(state.generation) + 1;
            (state.tries, state.lives.clone(), state.had_in.clone())
        };
        let lost = {
            let shared = Arc::downgrade(self);
            Box::new(move || {
                if let Some(shared) = shared.upgrade() {
                    shared.lose(generation);
                }
            })
        };
        let life = another_life();
        let session = self.dial.dial(life, lost)?;
        self.state.lock().lives.push(life);
        let descriptors = {
            let wanted = self.state.lock().descriptors;
            wanted.unwrap_or_else(|| session.hands_over_descriptors())
        };
        // What is open and was served by requests is had again so.
        session.accept_descriptors(false);
        let reclaim =
            |life, done| match session.call(Request::MayReclaim { life, done }, &[], &mut []) {
                Ok(_) => Ok(true),
                Err(Errno::ESTALE) => Ok(false),
                Err(error) => Err(format!("what was open cannot be had again yet: {error}")),
            };
        let mut again = None;
        for had in had_in {
            if again.is_none() && reclaim(had, false)? {
                again = Some(had);
            }
        }
        self.had.begins(generation, again);
        if !self.had.reclaim(&*session, generation, descriptors) {
            return Err("it was lost before all was had again".into());
        }
        self.state.lock().had_in.push(life);
        for life in before {
            reclaim(life, true)?;
        }
        let mut state = self.state.lock();
        (state.lives, state.had_in) = (vec![life], vec![life]);
        if state.closed {
            return Err("closed meanwhile".into());
        }
        session.accept_descriptors(state.descriptors.unwrap_or(descriptors));
        if state.generation < generation {
            state.generation = generation;
            state.session = Some(session.clone());
        }
        drop(state);
        self.changed.notify_all();
        for handle in self.had.take_closed(generation) {
            // What stays open is closed with the session.
            drop(session.call(Request::Release { handle }, &[], &mut []));
        }
        Ok(())
    }

    /// A session is lost: another one begins, from a thread of its own.
    fn lose(self: &Arc<Shared>, generation: u64) {
        // Its end may wait for the thread that this runs on.
        let gone = {
            let mut state = self.state.lock();
            if state.closed || state.generation > generation {
                return;
            }
            // Lost before it was here: it must not come later.
            state.generation = generation;
            let gone = state.session.take();
            if std::mem::replace(&mut state.dialing, true) {
                drop(state);
                end_elsewhere(gone);
                return;
            }
            gone
        };
        tracing::warn!("the session with the server is over, and the next one begins");
        let shared = Arc::downgrade(self);
        let spawned = std::thread::Builder::new()
            .name("fb-redial".into())
            .spawn(move || {
                drop(gone);
                redial(&shared);
            });
        if let Err(error) = spawned {
            tracing::error!("no thread to begin anew: {error}");
            self.state.lock().dialing = false;
        }
    }

    /// Asks, and asks again what a lost session has left without an answer, where that may be.
    fn ask(
        self: &Arc<Shared>,
        request: Request,
        call: &mut dyn FnMut(&dyn Connection, Request) -> Result<Reply, Errno>,
    ) -> Result<Reply, Errno> {
        let mut waits_since = None;
        loop {
            if self.is_given_up(&request) {
                return Err(Errno::EINTR);
            }
            let (session, generation) = match self.session_for(&request) {
                Ok(found) => found,
                // With its session the handle has gone.
                Err(Errno::ESTALE) if closes(&request) => return Ok(Response::Done.into()),
                Err(error) => return Err(error),
            };
            let asks = Asks::of(&request);
            let mut inner = request.clone();
            let answer = match self.had.enter(&*session, generation, &mut inner) {
                Ok(()) => call(&*session, inner),
                Err(Errno::ESTALE) if closes(&request) => return Ok(Response::Done.into()),
                // What has to be found first was asked for, and not the request.
                Err(Errno::ENOTCONN) => Err(NOT_SENT),
                Err(error) => Err(error),
            };
            let error = match answer {
                // A session that has begun meanwhile has other locks.
                Ok(_) if is_about_locks(&request) && !self.is_present(generation) => NOT_SENT,
                Ok(reply) if self.must_not_show(&request, &reply) => {
                    give_back(&*session, &reply);
                    OUT_OF_REACH
                }
                Ok(reply) => {
                    self.had.note(asks, generation, &reply);
                    return Ok(reply);
                }
                Err(error) => error,
            };
            if let Some(pause) = pause_after(error) {
                let since = *waits_since.get_or_insert_with(Instant::now);
                if self.soft.is_some_and(|soft| since.elapsed() >= soft) {
                    return Err(Errno::EIO);
                }
                self.pause(pause)?;
                continue;
            }
            let is_sent = error != NOT_SENT;
            if is_sent && error != Errno::ENOTCONN {
                self.had.note(asks, generation, &error.into());
                return Err(error);
            }
            if self.state.lock().closed {
                return Err(Errno::ENOTCONN);
            }
            self.lose(generation);
            if is_of_its_session(&request) {
                return Err(Errno::ENOTCONN);
            }
            // Whether it has happened is not known.
            if is_sent && !request.may_be_asked_again() {
                return Err(Errno::EIO);
            }
        }
    }

    /// See [`forebay_wire::Shown::outdated`].
    fn must_not_show(&self, request: &Request, reply: &Reply) -> bool {
        match (request, &reply.response) {
            (Request::Lookup { .. }, Response::Attr(shown)) if shown.outdated => {
                self.had.is_open_by_requests(shown.attr.ino)
            }
            _ => false,
        }
    }

    /// Waits a little before something is asked again.
    fn pause(&self, time: Duration) -> Result<(), Errno> {
        let mut state = self.state.lock();
        self.changed.wait_for(&mut state, time);
        match state.closed {
            true => Err(Errno::ENOTCONN),
            false => Ok(()),
        }
    }

    /// What gives something back is asked for in any case.
    fn is_given_up(&self, request: &Request) -> bool {
        let gives_back = closes(request)
            || is_of_its_session(request)
            || matches!(request, Request::Unlock { .. } | Request::CancelLock { .. });
        !gives_back
            && self
                .is_given_up
                .get()
                .is_some_and(|is_given_up| is_given_up())
    }

    fn is_present(&self, generation: u64) -> bool {
        let state = self.state.lock();
        state.session.is_some() && state.generation == generation
    }

    /// The session for a request, with its generation.
    fn session_for(&self, request: &Request) -> Result<(Arc<dyn Connection>, u64), Errno> {
        let mut state = self.state.lock();
        if let Some(session) = &state.session {
            return Ok((session.clone(), state.generation));
        }
        if closes(request) && !state.closed {
            for handle in request.handles() {
                self.had.close_without_session(*handle);
            }
            return Err(Errno::ESTALE);
        }
        let is_command = matches!(request, Request::Control(_) | Request::ControlFor { .. });
        if is_command || is_of_its_session(request) || *request == Request::PfsHealth {
            return Err(Errno::ENOTCONN);
        }
        let end = self.soft.map(|soft| Instant::now() + soft);
        loop {
            if state.closed {
                return Err(Errno::ENOTCONN);
            }
            if let Some(session) = &state.session {
                return Ok((session.clone(), state.generation));
            }
            let look = Instant::now() + LOOK;
            let until = end.map_or(look, |end| end.min(look));
            self.changed.wait_until(&mut state, until);
            if state.session.is_none() && end.is_some_and(|end| end <= Instant::now()) {
                return Err(Errno::EIO);
            }
            if self.is_given_up(request) {
                return Err(Errno::EINTR);
            }
        }
    }
}

/// When to ask again what could not be done yet; `None`: that is no such error.
fn pause_after(error: Errno) -> Option<Duration> {
    match error {
        UNSETTLED => Some(UNSETTLED_PAUSE),
        OUT_OF_REACH => Some(OUT_OF_REACH_PAUSE),
        _ => None,
    }
}

/// Drops the reference of an answer that is not passed on.
fn give_back(session: &dyn Connection, reply: &Reply) {
    if let Response::Attr(shown) = &reply.response {
        let forget = Request::Forget(vec![(shown.attr.ino, 1)]);
        // A session that is over has dropped it.
        drop(session.call(forget, &[], &mut []));
    }
}

/// Begins sessions, one after the other, until there is one.
fn redial(shared: &Weak<Shared>) {
    let since = Instant::now();
    while let Some(shared) = shared.upgrade() {
        if shared.state.lock().closed {
            return;
        }
        let begun = shared.begin_session();
        {
            let mut state = shared.state.lock();
            // One that was lost at once is not there.
            if state.session.is_some() || state.closed {
                state.dialing = false;
                tracing::info!("the server serves this mount again");
                return;
            }
        }
        if let Err(why) = begun {
            tracing::debug!("no session: {why}");
        }
        drop(shared);
        std::thread::sleep(pause_between_tries(since.elapsed()));
    }
}

/// How long to wait before the next try, after so long without a session.
fn pause_between_tries(away: Duration) -> Duration {
    let (shortest, longest) = PAUSES;
    (away / PART_OF_TIME).clamp(shortest, longest)
}

/// Lets go of a session on a thread of its own.
fn end_elsewhere(gone: Option<Arc<dyn Connection>>) {
    let Some(gone) = gone else {
        return;
    };
    let spawned = std::thread::Builder::new()
        .name("fb-redial".into())
        .spawn(move || drop(gone));
    if let Err(error) = spawned {
        tracing::error!("no thread to end a session: {error}");
    }
}

/// Tells this life of the client from all others.
fn another_life() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // Seeded by the kernel; 0 stands for none.
    RandomState::new().build_hasher().finish().max(1)
}

fn is_about_locks(request: &Request) -> bool {
    matches!(request, Request::Lock { .. } | Request::Unlock { .. })
}

fn closes(request: &Request) -> bool {
    matches!(
        request,
        Request::Release { .. } | Request::ReleaseMany(_) | Request::CloseDir { .. }
    )
}

/// Whether a request is of no use in another session: it counts what this one has given and told.
fn is_of_its_session(request: &Request) -> bool {
    matches!(request, Request::Forget(_) | Request::Recalls { .. })
}

impl Connection for Lasting {
    fn call(&self, request: Request, payload: &[u8], into: &mut [u8]) -> Result<Reply, Errno> {
        let mut call = |session: &dyn Connection, request| session.call(request, payload, into);
        self.shared.ask(request, &mut call)
    }

    fn call_in(&self, generation: u64, request: Request) -> Result<Reply, Errno> {
        let session = {
            let state = self.shared.state.lock();
            let is_it = state.generation == generation;
            state.session.clone().filter(|_| is_it)
        };
        let session = session.ok_or(Errno::ENOTCONN)?;
        session.call(request, &[], &mut [])
    }

    fn links(&self) -> usize {
        let state = self.shared.state.lock();
        state.session.as_ref().map_or(1, |session| session.links())
    }

    fn call_on(
        &self,
        link: usize,
        request: Request,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<Reply, Errno> {
        let mut call =
            |session: &dyn Connection, request| session.call_on(link, request, payload, into);
        self.shared.ask(request, &mut call)
    }

    fn generation(&self) -> u64 {
        self.shared.state.lock().generation
    }

    fn generation_of(&self, ino: Ino) -> u64 {
        let found = self.shared.had.since(ino);
        found.unwrap_or_else(|| self.generation())
    }

    fn forgotten(&self, ino: Ino, answers: u64) -> Option<u64> {
        let generation = self.shared.state.lock().generation;
        let has_one = self.shared.had.forget((ino, answers), generation);
        has_one.then_some(generation)
    }

    fn close(&self) {
        Lasting::close(self);
    }

    fn hands_over_descriptors(&self) -> bool {
        let state = self.shared.state.lock();
        let session = state.session.as_ref();
        session.is_some_and(|session| session.hands_over_descriptors())
    }

    fn give_up_by(&self, is_given_up: fn() -> bool) {
        // A mount has one way, so it is set once.
        let _ = self.shared.is_given_up.set(is_given_up);
    }

    fn accept_descriptors(&self, yes: bool) {
        let mut state = self.shared.state.lock();
        state.descriptors = Some(yes);
        if let Some(session) = &state.session {
            session.accept_descriptors(yes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use forebay_types::Handle;
    use forebay_wire::{Link, Response};

    use super::*;

    /// A session that was lost without having been told so.
    const BROKEN: u64 = 0;

    struct Answers(u64);

    impl Connection for Answers {
        fn call(&self, _: Request, _: &[u8], _: &mut [u8]) -> Result<Reply, Errno> {
            match self.0 {
                BROKEN => Err(Errno::ENOTCONN),
                number => Ok(Response::Position(number).into()),
            }
        }

        fn hands_over_descriptors(&self) -> bool {
            false
        }
    }

    /// Gives the sessions that the test has put there; refuses while there is none.
    struct Script {
        sessions: Mutex<mpsc::Receiver<u64>>,
        lost: mpsc::Sender<OnLost>,
    }

    impl Dial for Script {
        fn dial(&self, _: u64, lost: OnLost) -> Result<Arc<dyn Connection>, String> {
            let session = self.sessions.lock().try_recv();
            let session = session.map_err(|_| "nobody there".to_string())?;
            self.lost.send(lost).expect("the test listens");
            Ok(Arc::new(Answers(session)))
        }
    }

    struct Lab {
        sessions: mpsc::Sender<u64>,
        lost: mpsc::Receiver<OnLost>,
        lasting: Arc<Lasting>,
    }

    const LIMIT: Duration = Duration::from_secs(30);

    impl Lab {
        fn new(soft: Option<Duration>) -> Lab {
            Lab::beginning_with(1, soft)
        }

        fn beginning_with(first: u64, soft: Option<Duration>) -> Lab {
            let (sessions, given) = mpsc::channel();
            let (said, lost) = mpsc::channel();
            sessions.send(first).expect("room");
            let dial = Script {
                sessions: Mutex::new(given),
                lost: said,
            };
            let lasting = Lasting::begin(Box::new(dial), soft).expect("the first one");
            Lab {
                sessions,
                lost,
                lasting: Arc::new(lasting),
            }
        }

        fn lose(&self) {
            self.lost.recv_timeout(LIMIT).expect("a session")();
        }
    }

    fn ask(lasting: &Lasting, request: Request) -> Result<Response, Errno> {
        lasting
            .call(request, &[], &mut [])
            .map(|reply| reply.response)
    }

    fn look() -> Request {
        let link = Link {
            parent: Ino::ROOT,
            name: b"a".to_vec(),
        };
        Request::Lookup { link, uid: 0 }
    }

    #[test]
    fn requests_wait_for_the_next_session_where_what_was_found_before_is_stale() {
        let lab = Lab::new(None);
        assert_eq!(ask(&lab.lasting, look()), Ok(Response::Position(1)));
        assert_eq!(lab.lasting.generation(), 1);
        lab.lose();
        let closed = ask(&lab.lasting, Request::Release { handle: Handle(3) });
        assert_eq!(closed, Ok(Response::Done));
        let before = Request::Getattr {
            ino: Ino(7),
            handle: None,
        };
        let waits = [look(), before].map(|request| {
            let lasting = lab.lasting.clone();
            std::thread::spawn(move || ask(&lasting, request))
        });
        lab.sessions.send(2).expect("room");
        let answers = waits.map(|waits| waits.join().expect("no panic"));
        assert_eq!(answers, [Ok(Response::Position(2)), Err(Errno::ESTALE)]);
        // A try that finds nobody counts, too.
        assert!(lab.lasting.generation() > 1);
    }

    #[test]
    fn a_soft_one_gives_up_and_a_closed_one_lets_go() {
        let soft = Lab::new(Some(Duration::from_millis(20)));
        soft.lose();
        assert_eq!(ask(&soft.lasting, look()), Err(Errno::EIO));
        let hard = Lab::new(None);
        hard.lose();
        let waits = {
            let lasting = hard.lasting.clone();
            std::thread::spawn(move || ask(&lasting, look()))
        };
        hard.lasting.close();
        assert_eq!(waits.join().expect("no panic"), Err(Errno::ENOTCONN));
    }

    #[test]
    fn what_a_lost_session_did_not_answer_is_asked_again_where_that_may_be() {
        let lab = Lab::beginning_with(BROKEN, None);
        lab.sessions.send(2).expect("room");
        let asked = ask(&lab.lasting, look());
        assert_eq!(asked, Ok(Response::Position(2)));
        let changes = |parent| Request::Mkdir {
            link: Link {
                parent,
                name: b"d".to_vec(),
            },
            perm: 0o755,
            cred: forebay_types::Cred {
                uid: 0,
                gid: 0,
                process: forebay_types::Process::here(0),
                umask: 0,
            },
        };
        for parent in [Ino::ROOT, Ino(7)] {
            let lab = Lab::beginning_with(BROKEN, None);
            assert_eq!(ask(&lab.lasting, changes(parent)), Err(Errno::EIO));
        }
    }

    /// Ends only when who has told of the loss has returned.
    struct Joined(Arc<Mutex<()>>);

    impl Drop for Joined {
        fn drop(&mut self) {
            assert!(self.0.try_lock_for(LIMIT).is_some(), "it waits for itself");
        }
    }

    impl Connection for Joined {
        fn call(&self, _: Request, _: &[u8], _: &mut [u8]) -> Result<Reply, Errno> {
            Ok(Response::Done.into())
        }

        fn hands_over_descriptors(&self) -> bool {
            false
        }
    }

    struct Once(Mutex<Option<Arc<Joined>>>, mpsc::Sender<OnLost>);

    impl Dial for Once {
        fn dial(&self, _: u64, lost: OnLost) -> Result<Arc<dyn Connection>, String> {
            let session = self.0.lock().take().ok_or("nobody there")?;
            self.1.send(lost).expect("the test listens");
            Ok(session)
        }
    }

    #[test]
    fn who_waits_for_a_leader_comes_back_soon_after_it() {
        let (mut away, mut tries) = (Duration::ZERO, Vec::new());
        while away < Duration::from_secs(600) {
            away += pause_between_tries(away);
            tries.push(away);
        }
        for taken_over in [1, 2, 3, 5, 8].map(Duration::from_secs) {
            let next = tries.iter().find(|at| **at >= taken_over).expect("a try");
            let late = *next - taken_over;
            assert!(late <= taken_over / 7, "{late:?} after {taken_over:?}");
        }
        // Who waits for long asks seldom.
        assert!(tries.len() < 200, "{}", tries.len());
        assert_eq!(pause_between_tries(Duration::from_secs(600)), PAUSES.1);
    }

    #[test]
    fn a_session_does_not_end_within_the_word_of_its_loss() {
        let telling = Arc::new(Mutex::new(()));
        let (said, lost) = mpsc::channel();
        let session = Arc::new(Joined(telling.clone()));
        let gone = Arc::downgrade(&session);
        let dial = Once(Mutex::new(Some(session)), said);
        let lasting = Lasting::begin(Box::new(dial), None).expect("the first one");
        {
            let _telling = telling.lock();
            lost.recv_timeout(LIMIT).expect("a session")();
        }
        let begun = Instant::now();
        while gone.upgrade().is_some() {
            assert!(begun.elapsed() < LIMIT, "it does not end");
            std::thread::yield_now();
        }
        drop(lasting);
    }
}
