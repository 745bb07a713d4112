//! The way to one data server: sessions one after the other, and what is asked in them.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_types::{Errno, Handle, limits};
use forebay_wire::{
    Connection, NOT_BEGUN, OUT_OF_REACH, ObjectCall, ObjectKey, ObjectReply, ObjectTier, ObjectUse,
    Reply, Request, Response,
};
use parking_lot::Mutex;

use crate::claim::Claim;
use crate::replication::Replication;
use crate::unanswered::CallError;

/// As many closed handles wait for the next call at most.
const CLOSES_MAX: usize = 64;

/// Sessions that may come between.
const TRIES: u32 = 4;

/// Another answer than the question has.
pub(crate) fn odd() -> io::Error {
    io::Error::from_raw_os_error(libc::EPROTO)
}

/// Which session that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    pub generation: u64,
}

/// What is open there, and in which session.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub handle: Handle,
    pub session: Session,
}

/// What a data server has said of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    /// The start of its node.
    boot: String,
    /// Its tiers by their numbers: names and marks.
    tiers: Vec<(String, [u8; 16])>,
}

impl Found {
    fn of(boot: String, tiers: &[ObjectTier]) -> Found {
        let known = tiers.iter().map(|tier| (tier.name.clone(), tier.mark));
        Found {
            boot,
            tiers: known.collect(),
        }
    }
}

/// The way to one data server, shared by its tiers and their objects.
///
/// Invariants:
/// 1. Once the data server has other tiers than those that were found first, or its node was
///    started anew, the way is shut for good: what is there may be something else, or may have lost
///    what was not flushed. Whoever asks gets `EHOSTDOWN`.
/// 2. So it is from the beginning where the tiers are only expected, and once a start of the
///    metadata server has shut it, which could not look at what is there.
/// 3. The data server counts as answering only once it has let the present session begin. An error
///    of that says nothing about any object.
pub(crate) struct Way {
    connection: Arc<dyn Connection>,
    /// For bytes of copies that nobody waits for.
    replication: Option<Replication>,
    claim: Claim,
    session: Mutex<Option<Session>>,
    introducing: Mutex<()>,
    /// What was found first.
    found: OnceLock<Found>,
    /// What is there has to be looked at, by a start of the metadata server, before it is used.
    shut: AtomicBool,
    /// A start has looked, and has found that this is not to be used.
    refused: Mutex<Option<Found>>,
    /// Handles that nobody needs any more: they travel together.
    closes: Mutex<Vec<Handle>>,
}

impl Way {
    pub fn new(
        connection: Arc<dyn Connection>,
        replication: Option<Arc<dyn Connection>>,
        claim: Claim,
    ) -> Way {
        Way {
            connection,
            replication: replication.map(Replication::new),
            claim,
            session: Mutex::default(),
            introducing: Mutex::default(),
            found: OnceLock::new(),
            shut: AtomicBool::new(false),
            refused: Mutex::default(),
            closes: Mutex::default(),
        }
    }

    /// Another one to the same data server, on which nothing was said yet.
    pub fn another(&self) -> Way {
        Way::new(self.connection.clone(), None, self.claim.clone())
    }

    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// How the data server's node calls its start, once it was found.
    pub fn boot(&self) -> Option<String> {
        self.found.get().map(|found| found.boot.clone())
    }

    /// See [`crate::RemoteTiers::shut`].
    pub fn shut(&self) {
        self.shut.store(true, Ordering::Release);
    }

    /// See [`crate::RemoteTiers::refuse`].
    pub fn refuse(&self) {
        *self.refused.lock() = self.found.get().cloned();
        self.shut();
    }

    /// See [`crate::RemoteTiers::is_to_be_looked_at`].
    pub fn is_to_be_looked_at(&self) -> bool {
        if !self.connection.is_answering() {
            return false;
        }
        // An error says that it is another one now, or not there after all.
        drop(self.session());
        if !self.shut.load(Ordering::Acquire) {
            return false;
        }
        let there = self.ask_who();
        there.is_some() && there != *self.refused.lock()
    }

    /// See [`crate::RemoteTiers::takes_copies`].
    pub fn takes_copies(&self) -> bool {
        let Some(replication) = &self.replication else {
            return self.is_answering();
        };
        let session = self.session();
        session.is_ok_and(|session| replication.is_there(&self.claim, session))
    }

    /// In a session that has begun. Where another one has come between, nothing was done.
    pub fn call(
        &self,
        call: &ObjectCall,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<Reply, CallError> {
        Ok(self.call_in_session(call, payload, into)?.1)
    }

    /// The same, with the session that has answered.
    fn call_in_session(
        &self,
        call: &ObjectCall,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<(Session, Reply), CallError> {
        for _ in 0..TRIES {
            let session = self.session()?;
            let request = Request::Object(call.clone());
            match self.connection.call(request, payload, into) {
                Err(NOT_BEGUN) => *self.session.lock() = None,
                // Another one may have come before the call: then it says nothing of this one.
                Ok(_) if self.connection.generation() != session.generation => {
                    return Err(CallError::Lost);
                }
                answered => return Ok((session, answered?)),
            }
        }
        Err(CallError::Unasked)
    }

    /// Reads or writes what is open, over the connection for copies if there is one.
    pub fn call_for_copy(
        &self,
        of: &Held,
        call: &ObjectCall,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<Reply, CallError> {
        match &self.replication {
            Some(replication) => {
                let by = (&self.claim, of.session);
                replication.call(by, call, payload, into)
            }
            None => self.call(call, payload, into),
        }
    }

    pub fn ask(&self, call: ObjectCall) -> Result<ObjectReply, CallError> {
        match self.call(&call, &[], &mut [])?.response {
            Response::Object(reply) => Ok(reply),
            _ => Err(odd().into()),
        }
    }

    pub fn order(&self, call: ObjectCall) -> Result<(), CallError> {
        match self.call(&call, &[], &mut [])?.response {
            Response::Done => Ok(()),
            _ => Err(odd().into()),
        }
    }

    /// The session that calls go to now, and what is at its other end.
    pub fn session(&self) -> io::Result<Session> {
        let generation = self.connection.generation();
        let known = *self.session.lock();
        match known.filter(|known| known.generation == generation) {
            Some(known) => Ok(known),
            None => {
                // One asks, and the others have the answer.
                let _one = self.introducing.lock();
                let known = *self.session.lock();
                match known.filter(|known| known.generation == self.connection.generation()) {
                    Some(known) => Ok(known),
                    None => match self.introduce() {
                        Ok((session, _)) => Ok(session),
                        Err(error) => {
                            tracing::debug!("a data server does not let a session begin: {error}");
                            Err(OUT_OF_REACH.into())
                        }
                    },
                }
            }
        }
    }

    /// Asks who is there. A call of the session before may be under way there for long.
    pub fn introduce(&self) -> io::Result<(Session, Vec<ObjectTier>)> {
        if self.shut.load(Ordering::Acquire) {
            return Err(OUT_OF_REACH.into());
        }
        for _ in 0..TRIES {
            let before = self.connection.generation();
            let request = self.claim.begin()?;
            let begun = match self.connection.call(request, &[], &mut []) {
                // What hangs there would be waited for again.
                Err(Errno::EAGAIN) => return Err(OUT_OF_REACH.into()),
                Err(Errno::ESTALE) => {
                    self.claim.note_replaced();
                    return Err(Errno::ESTALE.into());
                }
                begun => begun?,
            };
            let Response::Object(ObjectReply::Tiers { boot, tiers }) = begun.response else {
                return Err(odd());
            };
            let found = Found::of(boot, &tiers);
            if *self.found.get_or_init(|| found.clone()) != found {
                if !self.shut.swap(true, Ordering::AcqRel) {
                    tracing::warn!("a data server is not what it was: it has to be looked at");
                }
                return Err(OUT_OF_REACH.into());
            }
            // Else it may have answered in the one before, or in the one after.
            let generation = self.connection.generation();
            if before == generation {
                let session = Session { generation };
                *self.session.lock() = Some(session);
                return Ok((session, tiers));
            }
        }
        Err(OUT_OF_REACH.into())
    }

    /// Asked for each new file: what costs least is looked at first.
    pub fn is_answering(&self) -> bool {
        if self.shut.load(Ordering::Acquire) {
            return false;
        }
        let Some(begun) = *self.session.lock() else {
            return false;
        };
        begun.generation == self.connection.generation() && self.connection.is_answering()
    }

    /// Who is there now, as far as it can be asked.
    fn ask_who(&self) -> Option<Found> {
        let begin = self.claim.begin().ok()?;
        let answer = self.connection.call(begin, &[], &mut []).ok()?;
        match answer.response {
            Response::Object(ObjectReply::Tiers { boot, tiers }) => Some(Found::of(boot, &tiers)),
            _ => None,
        }
    }

    pub fn open(&self, key: ObjectKey, how: ObjectUse) -> Result<Held, CallError> {
        self.opened(ObjectCall::Open { key, how })
    }

    pub fn opened(&self, call: ObjectCall) -> Result<Held, CallError> {
        self.send_closes();
        let (session, reply) = self.call_in_session(&call, &[], &mut [])?;
        match reply.response {
            Response::Object(ObjectReply::Opened(handle)) => Ok(Held { handle, session }),
            _ => Err(odd().into()),
        }
    }

    /// Nobody uses a handle any more.
    pub fn close(&self, held: &Held) {
        if held.session.generation != self.connection.generation() {
            // It has gone with its session.
            return;
        }
        let mut closes = self.closes.lock();
        closes.push(held.handle);
        let due = closes.len() >= CLOSES_MAX;
        drop(closes);
        if due {
            self.send_closes();
        }
    }

    /// A close that is lost was one of a session that is over.
    pub fn send_closes(&self) {
        let closes = std::mem::take(&mut *self.closes.lock());
        for some in closes.chunks(limits::RELEASES_PER_MESSAGE_MAX) {
            if let Err(error) = self.order(ObjectCall::Close(some.to_vec())) {
                tracing::debug!("closing {} objects elsewhere: {error:?}", some.len());
            }
        }
    }
}

impl Drop for Way {
    /// What waits to be closed would be taken for somebody's who can still write it, for as long as
    /// the session lasts.
    fn drop(&mut self) {
        let closes = std::mem::take(self.closes.get_mut());
        if closes.is_empty() || !self.is_answering() {
            return;
        }
        for some in closes.chunks(limits::RELEASES_PER_MESSAGE_MAX) {
            let close = Request::Object(ObjectCall::Close(some.to_vec()));
            if let Err(error) = self.connection.call(close, &[], &mut []) {
                tracing::debug!("closing {} objects elsewhere: {error}", some.len());
                return;
            }
        }
    }
}
