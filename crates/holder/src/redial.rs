//! A connection to a data server that begins anew where its session is lost.

use std::sync::{Arc, Weak};
use std::time::Instant;

use forebay_policy::patience::{DATA_SERVER_GONE, DATA_SERVER_TRY};
use forebay_types::Errno;
use forebay_wire::net::{ConnectError, NetConnection};
use forebay_wire::{Carried, Connection, NOT_SENT, OUT_OF_REACH, ObjectCall, Reply, Request};
use parking_lot::{Condvar, Mutex};

/// Begins a session.
pub type Dial = dyn Fn() -> Result<NetConnection, ConnectError> + Send + Sync;

/// One session after the other. What was under way when one ended gets `ENOTCONN`. While there is
/// none, a thread of its own tries to begin one. A data server that cannot be reached is waited for
/// a little, then it is `EHOSTDOWN`.
pub struct Redialing {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    dial: Box<Dial>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    session: Option<Arc<NetConnection>>,
    /// Counts the sessions.
    generation: u64,
    /// Since when there is none.
    away: Option<Away>,
    /// A thread begins the next one.
    dialing: bool,
    closed: bool,
}

/// No session, and why.
#[derive(Clone, Copy)]
struct Away {
    since: Instant,
    /// What the last try met; `None`: none has ended yet.
    errno: Option<Errno>,
}

impl Redialing {
    /// To the data server that messages call so.
    pub fn new(name: String, dial: Box<Dial>) -> Redialing {
        Redialing {
            shared: Arc::new(Shared {
                name,
                dial,
                state: Mutex::default(),
                changed: Condvar::new(),
            }),
        }
    }
}

impl Drop for Redialing {
    fn drop(&mut self) {
        let gone = {
            let mut state = self.shared.state.lock();
            state.closed = true;
            state.session.take()
        };
        self.shared.changed.notify_all();
        // Its threads are waited for: not under the lock.
        drop(gone);
    }
}

impl Shared {
    fn session(self: &Arc<Shared>) -> Result<(u64, Arc<NetConnection>), Errno> {
        let mut state = self.state.lock();
        loop {
            if let Some(session) = &state.session {
                return Ok((state.generation, session.clone()));
            }
            self.begin(&mut state)?;
            let away = state.away.ok_or(OUT_OF_REACH)?;
            // Who is refused need not wait: that does not change by itself.
            if let Some(errno) = away.errno.filter(|errno| *errno != OUT_OF_REACH) {
                return Err(errno);
            }
            let until = away.since + DATA_SERVER_GONE;
            if Instant::now() >= until {
                return Err(OUT_OF_REACH);
            }
            self.changed.wait_until(&mut state, until);
        }
    }

    /// Has a thread begin the next session, if none does.
    fn begin(self: &Arc<Shared>, state: &mut State) -> Result<(), Errno> {
        state.away.get_or_insert_with(|| Away {
            since: Instant::now(),
            errno: None,
        });
        if state.closed || state.dialing {
            return Ok(());
        }
        let shared = Arc::downgrade(self);
        let spawned = std::thread::Builder::new()
            .name("fb-holder".into())
            .spawn(move || dial(&shared));
        match spawned {
            Ok(_) => {
                state.dialing = true;
                Ok(())
            }
            Err(error) => {
                tracing::error!("{}: no thread to reach it: {error}", self.name);
                Err(Errno::of(&error))
            }
        }
    }

    fn is_over(self: &Arc<Shared>, generation: u64) {
        let gone = {
            let mut state = self.state.lock();
            let is_this = state.generation == generation;
            let gone = state.session.take_if(|_| is_this);
            if gone.is_none() || state.closed {
                return;
            }
            tracing::warn!("{}: the session is over, the next one begins", self.name);
            if let Some(session) = &gone {
                let now = Instant::now();
                // Nobody waits twice for the same silence.
                let since = now.checked_sub(session.gone_for()).unwrap_or(now);
                state.away = Some(Away { since, errno: None });
            }
            // An error is logged, and whoever asks next tries again.
            let _ = self.begin(&mut state);
            gone
        };
        drop(gone);
    }

    /// A session that a thread has begun is everybody's.
    fn install(self: &Arc<Shared>, session: NetConnection) {
        let session = Arc::new(session);
        let generation = {
            let mut state = self.state.lock();
            state.dialing = false;
            if state.closed {
                return;
            }
            state.generation += 1;
            state.session = Some(session.clone());
            state.away = None;
            state.generation
        };
        tracing::info!("{} answers", self.name);
        self.changed.notify_all();
        let shared = Arc::downgrade(self);
        session.on_lost(move |_| {
            if let Some(shared) = shared.upgrade() {
                shared.is_over(generation);
            }
        });
    }

    fn failed(&self, error: &ConnectError) {
        let mut state = self.state.lock();
        let Some(away) = &mut state.away else {
            return;
        };
        if away.errno.is_none() {
            tracing::warn!("{} is waited for: {error}", self.name);
        }
        away.errno = Some(match error {
            ConnectError::Refused { errno, .. } => *errno,
            ConnectError::Key { .. } | ConnectError::Cluster { .. } => Errno::EACCES,
            _ => OUT_OF_REACH,
        });
        drop(state);
        self.changed.notify_all();
    }
}

/// Tries until there is a session, or nobody wants one any more.
fn dial(shared: &Weak<Shared>) {
    while let Some(shared) = shared.upgrade() {
        if shared.state.lock().closed {
            return;
        }
        match (shared.dial)() {
            Ok(session) => return shared.install(session),
            Err(error) => shared.failed(&error),
        }
        drop(shared);
        std::thread::sleep(DATA_SERVER_TRY);
    }
}

impl Connection for Redialing {
    fn call(&self, request: Request, payload: &[u8], into: &mut [u8]) -> Result<Reply, Errno> {
        let begun = self.shared.session();
        let (generation, session) = begun.map_err(|errno| match &request {
            Request::Object(ObjectCall::Begin { .. }) => errno,
            // Why there is no session is no answer to anything else.
            _ => OUT_OF_REACH,
        })?;
        let answered = session.call(request, payload, into);
        if let Err(Errno::ENOTCONN | NOT_SENT) = &answered {
            self.shared.is_over(generation);
        }
        answered
    }

    fn generation(&self) -> u64 {
        let state = self.shared.state.lock();
        // Without a session what is open is open no more.
        state.generation + u64::from(state.session.is_none())
    }

    fn is_answering(&self) -> bool {
        let state = self.shared.state.lock();
        let session = state.session.as_ref();
        session.is_some_and(|session| session.is_answering())
    }

    fn carried(&self) -> Carried {
        let session = self.shared.state.lock().session.clone();
        session.map_or_else(Carried::default, |session| session.carried())
    }

    fn hands_over_descriptors(&self) -> bool {
        false
    }
}
