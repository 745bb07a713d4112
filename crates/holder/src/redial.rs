//! A connection to a data server that begins anew where its session is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_types::Errno;
use forebay_wire::net::{ConnectError, NetConnection};
use forebay_wire::{Connection, NOT_SENT, Reply, Request};
use parking_lot::Mutex;

/// Between two tries.
const TRY_AGAIN: Duration = Duration::from_millis(200);
/// Who asks waits for so long for a data server that cannot be reached. After that nobody waits
/// until it is back: what is on others goes on.
const PATIENCE: Duration = Duration::from_secs(60);

const UNREACHABLE: Errno = Errno(libc::EHOSTDOWN);

/// Begins a session.
pub type Dial = dyn Fn() -> Result<NetConnection, ConnectError> + Send + Sync;

/// One session after the other, each begun by who asks first. What was under way when one ended
/// gets `ENOTCONN`. A data server that cannot be reached is waited for, then it is `EHOSTDOWN`.
pub struct Redialing {
    name: String,
    dial: Box<Dial>,
    /// Held while somebody dials: the others want the same session.
    state: Mutex<State>,
    /// For who does not want to wait for `state`.
    answers: AtomicBool,
}

#[derive(Default)]
struct State {
    session: Option<Arc<NetConnection>>,
    /// Counts the sessions.
    generation: u64,
    failed: Option<Failed>,
}

/// Tries that failed, one after the other.
#[derive(Clone, Copy)]
struct Failed {
    first: Instant,
    last: Instant,
    /// What the last one met.
    errno: Errno,
}

impl Redialing {
    /// To the data server that messages call so.
    pub fn new(name: String, dial: Box<Dial>) -> Redialing {
        Redialing {
            name,
            dial,
            state: Mutex::default(),
            answers: AtomicBool::new(true),
        }
    }

    fn session(&self) -> Result<(u64, Arc<NetConnection>), Errno> {
        loop {
            let mut state = self.state.lock();
            if let Some(session) = &state.session {
                return Ok((state.generation, session.clone()));
            }
            let is_due = |failed: Failed| failed.last.elapsed() >= TRY_AGAIN;
            if state.failed.is_none_or(is_due) {
                self.try_to_begin(&mut state);
                continue;
            }
            let failed = state.failed;
            drop(state);
            match failed {
                Some(Failed { first, errno, .. })
                    if errno != UNREACHABLE || first.elapsed() >= PATIENCE =>
                {
                    return Err(errno);
                }
                _ => std::thread::sleep(TRY_AGAIN / 4),
            }
        }
    }

    fn try_to_begin(&self, state: &mut State) {
        let error = match (self.dial)() {
            Ok(session) => {
                state.generation += 1;
                state.session = Some(Arc::new(session));
                state.failed = None;
                self.answers.store(true, Ordering::Release);
                tracing::info!("{} answers", self.name);
                return;
            }
            Err(error) => error,
        };
        if state.failed.is_none() {
            tracing::warn!("{} is waited for: {error}", self.name);
        }
        self.answers.store(false, Ordering::Release);
        let now = Instant::now();
        state.failed = Some(Failed {
            first: state.failed.map_or(now, |failed| failed.first),
            last: now,
            // Who is refused need not wait: that does not change by itself.
            errno: match error {
                ConnectError::Refused { errno, .. } => errno,
                ConnectError::Key { .. } | ConnectError::Cluster { .. } => Errno::EACCES,
                _ => UNREACHABLE,
            },
        });
    }

    fn is_over(&self, generation: u64) {
        let mut state = self.state.lock();
        if state.generation == generation && state.session.take().is_some() {
            tracing::warn!(
                "{}: the session is over, and the next one begins",
                self.name
            );
        }
    }
}

impl Connection for Redialing {
    fn call(&self, request: Request, payload: &[u8], into: &mut [u8]) -> Result<Reply, Errno> {
        let (generation, session) = self.session()?;
        let answered = session.call(request, payload, into);
        if let Err(Errno::ENOTCONN | NOT_SENT) = &answered {
            self.is_over(generation);
        }
        answered
    }

    fn generation(&self) -> u64 {
        let state = self.state.lock();
        // Without a session what is open is open no more.
        state.generation + u64::from(state.session.is_none())
    }

    fn is_answering(&self) -> bool {
        self.answers.load(Ordering::Acquire)
    }

    fn hands_over_descriptors(&self) -> bool {
        false
    }
}
