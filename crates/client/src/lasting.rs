//! A connection that outlives the sessions of a server: where the server has forgotten the client,
//! it begins anew.
//!
//! Invariants:
//!
//! 1. A new session has another generation. What was found or opened in an earlier one is of no use
//!    in it: the server says `ESTALE`, also where it would have the same number.
//! 2. While there is no session, requests about what was found before get `ESTALE` at once, and
//!    those that begin at the root wait.
//! 3. Who closes the connection waits for nobody, and nobody waits after that.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_types::{Errno, Ino};
use forebay_wire::{Connection, Reply, Request};
use parking_lot::{Condvar, Mutex};

/// Pauses between tries to begin anew: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Called when a session is lost.
pub type OnLost = Box<dyn Fn() + Send + Sync>;

/// Begins sessions.
pub trait Dial: Send + Sync {
    /// Begins one, in which nothing is open and nothing was found. `lost` is to be called once,
    /// when the server has forgotten it, from any thread. An error is one line for a person.
    fn dial(&self, lost: OnLost) -> Result<Arc<dyn Connection>, String>;
}

#[derive(Default)]
struct State {
    session: Option<Arc<dyn Connection>>,
    /// Counts sessions, from 1.
    generation: u64,
    /// A thread begins the next one.
    dialing: bool,
    descriptors: Option<bool>,
    closed: bool,
}

struct Shared {
    dial: Box<dyn Dial>,
    state: Mutex<State>,
    changed: Condvar,
    /// For how long requests wait for a session; `None`: until there is one.
    soft: Option<Duration>,
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
            state: Mutex::default(),
            changed: Condvar::new(),
            soft,
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
        let generation = self.state.lock().generation + 1;
        let lost = {
            let shared = Arc::downgrade(self);
            Box::new(move || {
                if let Some(shared) = shared.upgrade() {
                    shared.lose(generation);
                }
            })
        };
        let session = self.dial.dial(lost)?;
        let mut state = self.state.lock();
        if state.closed {
            return Err("closed meanwhile".into());
        }
        if let Some(yes) = state.descriptors {
            session.accept_descriptors(yes);
        }
        if state.generation < generation {
            state.generation = generation;
            state.session = Some(session);
        }
        drop(state);
        self.changed.notify_all();
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
        tracing::warn!(
            "the server has forgotten this mount: what is open is lost, and it begins anew"
        );
        let shared = Arc::downgrade(self);
        let spawned = std::thread::Builder::new()
            .name("fb-redial".into())
            .spawn(move || {
                drop(gone);
                let (mut pause, longest) = PAUSES;
                while let Some(shared) = shared.upgrade() {
                    if shared.state.lock().closed {
                        return;
                    }
                    // Before it begins: it may be lost at once.
                    shared.state.lock().dialing = false;
                    match shared.begin_session() {
                        Ok(()) => {
                            tracing::info!("the server serves this mount again");
                            return;
                        }
                        Err(why) => tracing::debug!("no session: {why}"),
                    }
                    if std::mem::replace(&mut shared.state.lock().dialing, true) {
                        return;
                    }
                    drop(shared);
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(longest);
                }
            });
        if let Err(error) = spawned {
            tracing::error!("no thread to begin anew: {error}");
        }
    }

    /// Asks, and asks again what a lost session has left without an answer, where that may be.
    fn ask(
        self: &Arc<Shared>,
        request: Request,
        call: &mut dyn FnMut(&dyn Connection, Request) -> Result<Reply, Errno>,
    ) -> Result<Reply, Errno> {
        let is_stale = names_something(&request);
        let may_be_asked_again = !is_stale && !request.changes();
        let mut again = may_be_asked_again.then(|| request.clone());
        let mut request = request;
        loop {
            let (session, generation) = self.session_for(&request)?;
            match call(&*session, request) {
                Err(Errno::ENOTCONN) if !self.state.lock().closed => self.lose(generation),
                answer => return answer,
            }
            request = match &mut again {
                Some(again) => again.clone(),
                None if is_stale => return Err(Errno::ESTALE),
                // Whether it has happened is not known.
                None => return Err(Errno::EIO),
            };
        }
    }

    /// The session for a request, with its generation.
    fn session_for(&self, request: &Request) -> Result<(Arc<dyn Connection>, u64), Errno> {
        let mut state = self.state.lock();
        if let Some(session) = &state.session {
            return Ok((session.clone(), state.generation));
        }
        if names_something(request) {
            return Err(Errno::ESTALE);
        }
        let is_command = matches!(request, Request::Control(_) | Request::ControlFor { .. });
        let is_of_now = matches!(
            request,
            Request::Forget(_) | Request::PfsHealth | Request::Recalls { .. }
        );
        if is_command || is_of_now {
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
            let timed_out = match end {
                Some(end) => self.changed.wait_until(&mut state, end).timed_out(),
                None => {
                    self.changed.wait(&mut state);
                    false
                }
            };
            if timed_out && state.session.is_none() {
                return Err(Errno::EIO);
            }
        }
    }
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

/// Whether it is about something that was found or opened before: that is of its session.
fn names_something(request: &Request) -> bool {
    let mut nodes = request.nodes().into_iter().flatten();
    !request.handles().is_empty() || nodes.any(|ino| ino != Ino::ROOT)
}

impl Connection for Lasting {
    fn call(&self, request: Request, payload: &[u8], into: &mut [u8]) -> Result<Reply, Errno> {
        let mut call = |session: &dyn Connection, request| session.call(request, payload, into);
        self.shared.ask(request, &mut call)
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

    fn close(&self) {
        Lasting::close(self);
    }

    fn hands_over_descriptors(&self) -> bool {
        let state = self.shared.state.lock();
        let session = state.session.as_ref();
        session.is_some_and(|session| session.hands_over_descriptors())
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
        fn dial(&self, lost: OnLost) -> Result<Arc<dyn Connection>, String> {
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
        Request::Lookup(Link {
            parent: Ino::ROOT,
            name: b"a".to_vec(),
        })
    }

    #[test]
    fn what_was_found_before_is_stale_and_what_begins_at_the_root_waits() {
        let lab = Lab::new(None);
        assert_eq!(ask(&lab.lasting, look()), Ok(Response::Position(1)));
        assert_eq!(lab.lasting.generation(), 1);
        lab.lose();
        let stale = [
            Request::Getattr {
                ino: Ino(7),
                handle: None,
            },
            Request::Release { handle: Handle(3) },
            Request::ReleaseMany(vec![Handle(3), Handle(4)]),
        ];
        for request in stale {
            assert_eq!(ask(&lab.lasting, request), Err(Errno::ESTALE));
        }
        let waits = {
            let lasting = lab.lasting.clone();
            std::thread::spawn(move || ask(&lasting, look()))
        };
        lab.sessions.send(2).expect("room");
        assert_eq!(waits.join().expect("no panic"), Ok(Response::Position(2)));
        assert_eq!(lab.lasting.generation(), 2);
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
        for (parent, wanted) in [(Ino::ROOT, Errno::EIO), (Ino(7), Errno::ESTALE)] {
            let lab = Lab::beginning_with(BROKEN, None);
            assert_eq!(ask(&lab.lasting, changes(parent)), Err(wanted));
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
        fn dial(&self, lost: OnLost) -> Result<Arc<dyn Connection>, String> {
            let session = self.0.lock().take().ok_or("nobody there")?;
            self.1.send(lost).expect("the test listens");
            Ok(session)
        }
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
