//! A further connection to a data server, over another network: the bytes of copies that nobody
//! waits for.

use std::sync::Arc;

use forebay_types::Errno;
use forebay_wire::{Connection, NOT_BEGUN, OUT_OF_REACH, ObjectCall, Reply, Request};
use parking_lot::Mutex;

use crate::claim::Claim;
use crate::unanswered::CallError;
use crate::way::Session;

/// Sessions that may come between.
const TRIES: u32 = 4;

/// The connection. It opens nothing: it reads and writes what is open over the first one, and has
/// no turn of its own. So whatever ends the session of the first ends what it may do.
///
/// Invariant: a call goes out only once the connection, in its present session, has joined the
/// session of the first one in which the handle was given.
pub(crate) struct Replication {
    connection: Arc<dyn Connection>,
    joined: Mutex<Option<Joined>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Joined {
    /// Which of its own sessions.
    own: u64,
    /// Which of the first connection's.
    of: Session,
}

impl Replication {
    pub fn new(connection: Arc<dyn Connection>) -> Replication {
        Replication {
            connection,
            joined: Mutex::default(),
        }
    }

    /// Whether bytes get there now. Waits for a data server that has just gone.
    pub fn is_there(&self, claim: &Claim, of: Session) -> bool {
        self.join(claim, of).is_ok() && self.connection.is_answering()
    }

    /// Reads or writes what was opened in a session of the first connection.
    pub fn call(
        &self,
        (claim, of): (&Claim, Session),
        call: &ObjectCall,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<Reply, CallError> {
        for _ in 0..TRIES {
            let joined = self.join(claim, of)?;
            let request = Request::Object(call.clone());
            match self.connection.call(request, payload, into) {
                Err(NOT_BEGUN) => self.leave(joined),
                // Another one may have come before the call.
                Ok(_) if self.connection.generation() != joined.own => {
                    return Err(CallError::Lost);
                }
                // The patience of the connection is over: nothing is wrong with the object.
                Err(Errno::EIO) if !self.connection.is_answering() => {
                    return Err(OUT_OF_REACH.into());
                }
                answered => return Ok(answered?),
            }
        }
        Err(CallError::Unasked)
    }

    /// No error of that says anything about an object.
    fn join(&self, claim: &Claim, of: Session) -> Result<Joined, CallError> {
        // One asks, and the others have the answer.
        let mut joined = self.joined.lock();
        for _ in 0..TRIES {
            let own = self.connection.generation();
            let now = Joined { own, of };
            if *joined == Some(now) {
                return Ok(now);
            }
            match self.connection.call(claim.join()?, &[], &mut []) {
                Ok(_) if self.connection.generation() == own => *joined = Some(now),
                Ok(_) => {}
                // The session that it is to join is over, which the first connection learns.
                Err(NOT_BEGUN) => return Err(CallError::Unasked),
                Err(Errno::ESTALE) => {
                    claim.note_replaced();
                    return Err(OUT_OF_REACH.into());
                }
                Err(errno) => {
                    tracing::debug!("a data server is not reached for copies: {errno}");
                    return Err(OUT_OF_REACH.into());
                }
            }
        }
        Err(OUT_OF_REACH.into())
    }

    /// What it had joined is over.
    fn leave(&self, over: Joined) {
        self.joined.lock().take_if(|joined| *joined == over);
    }
}
