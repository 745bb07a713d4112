//! A metadata server's side: tiers whose objects are on another node.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_tiers::{
    CopiesOut, CopyControl, CopyReport, Elsewhere, Identity, IdentityError, Object, Outside,
    OutsideError, Space, Tier, TierKind,
};
use forebay_types::{Errno, Handle, ObjectId, TierId, limits};
use forebay_wire::{
    Connection, NOT_BEGUN, OUT_OF_REACH, ObjectCall, ObjectKey, ObjectReply, ObjectTier, ObjectUse,
    Reply, Request, Response,
};
use parking_lot::Mutex;

use crate::claim::Claim;
use crate::object::RemoteObject;
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
    /// In a session that has begun. Where another one has come between, nothing was done.
    pub fn call(
        &self,
        call: &ObjectCall,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<Reply, CallError> {
        for _ in 0..TRIES {
            let session = self.session()?;
            let request = Request::Object(call.clone());
            match self.connection.call(request, payload, into) {
                Err(NOT_BEGUN) => *self.session.lock() = None,
                // Another one may have come before the call: then it says nothing of this one.
                Ok(_) if self.connection.generation() != session.generation => {
                    return Err(CallError::Lost);
                }
                answered => return Ok(answered?),
            }
        }
        Err(CallError::Unasked)
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
    fn introduce(&self) -> io::Result<(Session, Vec<ObjectTier>)> {
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
    fn is_answering(&self) -> bool {
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

    fn opened(&self, call: ObjectCall) -> Result<Held, CallError> {
        let session = self.session()?;
        self.send_closes();
        match self.ask(call)? {
            ObjectReply::Opened(handle) => Ok(Held { handle, session }),
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

/// All tiers of one data server.
#[derive(Clone)]
pub struct RemoteTiers {
    way: Arc<Way>,
}

impl RemoteTiers {
    /// At the other end of a connection.
    pub fn new(connection: Arc<dyn Connection>, claim: Claim) -> RemoteTiers {
        RemoteTiers {
            way: Arc::new(Way {
                connection,
                claim,
                session: Mutex::default(),
                introducing: Mutex::default(),
                found: OnceLock::new(),
                shut: AtomicBool::new(false),
                refused: Mutex::default(),
                closes: Mutex::default(),
            }),
        }
    }

    /// Asks which tiers there are. Their names begin with that of the data server.
    ///
    /// # Errors
    /// The connection's.
    pub fn find(&self, server: &str) -> io::Result<Vec<RemoteTier>> {
        let (_, tiers) = self.way.introduce()?;
        Ok(self.named(server, tiers))
    }

    /// Those of before, of a data server that is not there: what is asked of them ends with
    /// `EHOSTDOWN`, also when it is back.
    pub fn expect(&self, server: &str, tiers: Vec<ObjectTier>) -> Vec<RemoteTier> {
        self.way.shut.store(true, Ordering::Release);
        self.named(server, tiers)
    }

    fn named(&self, server: &str, tiers: Vec<ObjectTier>) -> Vec<RemoteTier> {
        let numbered = tiers.into_iter().zip(0u8..);
        let tiers = numbered.map(|(facts, id)| RemoteTier {
            way: self.way.clone(),
            id: TierId(id),
            name: format!("{server}:{}", facts.name),
            facts,
        });
        tiers.collect()
    }

    /// Whether the data server answers, and what it has is not to be used before a start of the
    /// metadata server has looked at it. Finds out whether it is what it was.
    pub fn is_to_be_looked_at(&self) -> bool {
        let way = &self.way;
        if !way.connection.is_answering() {
            return false;
        }
        // An error says that it is another one now, or not there after all.
        drop(way.session());
        if !way.shut.load(Ordering::Acquire) {
            return false;
        }
        let there = way.ask_who();
        there.is_some() && there != *way.refused.lock()
    }

    /// Whether a data server has said that a later start of the metadata server has come.
    pub fn is_replaced(&self) -> bool {
        self.way.claim.is_replaced()
    }

    /// Nothing of it is used before a start has looked at it.
    pub fn shut(&self) {
        self.way.shut.store(true, Ordering::Release);
    }

    /// The same, and no start need look at it as long as it is what it is now.
    pub fn refuse(&self) {
        *self.way.refused.lock() = self.way.found.get().cloned();
        self.shut();
    }
}

/// A tier of a data server.
pub struct RemoteTier {
    way: Arc<Way>,
    id: TierId,
    name: String,
    facts: ObjectTier,
}

impl RemoteTier {
    /// As the data server tells of it.
    pub fn facts(&self) -> &ObjectTier {
        &self.facts
    }

    fn key(&self, object: ObjectId) -> ObjectKey {
        let tier = self.id;
        ObjectKey { tier, object }
    }

    fn make(
        &self,
        id: ObjectId,
        identity: &Identity,
        how: ObjectUse,
    ) -> io::Result<Arc<dyn Object>> {
        let key = self.key(id);
        let create = || {
            self.way.opened(ObjectCall::Create {
                key,
                identity: identity.encode(),
                how,
            })
        };
        let held = match create() {
            // It may have been made in the session that has ended. An id is never given twice, so
            // what is there is this.
            Err(error) if error.is_lost() => match self.way.open(key, how) {
                Err(error) if error.is(Errno::ENOENT) => create()?,
                opened => opened?,
            },
            made => made?,
        };
        Ok(self.object(key, how, held))
    }

    fn find(&self, id: ObjectId, how: ObjectUse) -> io::Result<Arc<dyn Object>> {
        let key = self.key(id);
        let held = match self.way.open(key, how) {
            Err(error) if error.is_lost() => self.way.open(key, how)?,
            opened => opened?,
        };
        Ok(self.object(key, how, held))
    }

    fn object(&self, key: ObjectKey, how: ObjectUse, held: Held) -> Arc<dyn Object> {
        Arc::new(RemoteObject::new(self.way.clone(), key, how, held))
    }
}

impl CopiesOut for RemoteTier {
    fn copy_out(
        &self,
        object: ObjectId,
        to: &Outside,
        control: &CopyControl<'_>,
    ) -> Result<CopyReport, OutsideError> {
        let key = self.key(object);
        let held = self.way.open(key, ObjectUse::Share);
        let held = held.map_err(|error| OutsideError::Unreached(error.into()))?;
        RemoteObject::new(self.way.clone(), key, ObjectUse::Share, held).copy_out(to, control)
    }
}

impl Tier for RemoteTier {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_answering(&self) -> bool {
        self.way.is_answering()
    }

    fn tells_writers(&self) -> bool {
        self.facts.tells_writers
    }

    fn elsewhere(&self, object: ObjectId) -> Option<Elsewhere> {
        let (instance, tier) = (self.way.claim.instance(), self.id);
        Some(Elsewhere {
            instance,
            tier,
            object,
        })
    }

    fn kind(&self) -> TierKind {
        match self.facts.is_memory {
            true => TierKind::Dram,
            false => TierKind::Ssd,
        }
    }

    fn mark(&self) -> Option<[u8; 16]> {
        Some(self.facts.mark).filter(|mark| *mark != [0; 16])
    }

    fn capacity_bytes(&self) -> u64 {
        self.facts.capacity_bytes
    }

    fn space(&self) -> io::Result<Space> {
        match self.way.ask(ObjectCall::Space(self.id))? {
            ObjectReply::Space {
                total_bytes,
                free_bytes,
            } => Ok(Space {
                total_bytes,
                free_bytes,
            }),
            _ => Err(odd()),
        }
    }

    fn boot(&self) -> Option<String> {
        self.way.found.get().map(|found| found.boot.clone())
    }

    fn create(&self, id: ObjectId, identity: &Identity) -> io::Result<Arc<dyn Object>> {
        self.make(id, identity, ObjectUse::Write)
    }

    fn create_shared(&self, id: ObjectId, identity: &Identity) -> io::Result<Arc<dyn Object>> {
        self.make(id, identity, ObjectUse::Share)
    }

    fn open(&self, id: ObjectId) -> io::Result<Arc<dyn Object>> {
        self.find(id, ObjectUse::Write)
    }

    fn open_shared(&self, id: ObjectId) -> io::Result<Arc<dyn Object>> {
        self.find(id, ObjectUse::Share)
    }

    fn copies_out(&self) -> Option<&dyn CopiesOut> {
        Some(self)
    }

    fn remove(&self, id: ObjectId) -> io::Result<()> {
        // Else the object would keep its space for as long as nothing else is opened.
        self.way.send_closes();
        let key = self.key(id);
        match self.way.order(ObjectCall::Remove(key)) {
            Err(error) if error.is_lost() => match self.way.order(ObjectCall::Remove(key)) {
                // It was removed in the session that has ended, or was not there: either way it
                // is not.
                Err(error) if error.is(Errno::ENOENT) => Ok(()),
                done => Ok(done?),
            },
            done => Ok(done?),
        }
    }

    fn quarantine(&self, id: ObjectId) -> io::Result<String> {
        match self.way.ask(ObjectCall::Quarantine(self.key(id)))? {
            ObjectReply::Place(place) => Ok(place),
            _ => Err(odd()),
        }
    }

    fn give_back(&self) -> io::Result<()> {
        Ok(self.way.order(ObjectCall::GiveBack(self.id))?)
    }

    fn identity(&self, id: ObjectId) -> io::Result<Option<Identity>> {
        match self.way.ask(ObjectCall::Identity(self.key(id)))? {
            ObjectReply::Identity(None) => Ok(None),
            ObjectReply::Identity(Some(bytes)) => Ok(Some(Identity::decode(&bytes)?)),
            ObjectReply::IdentityDamaged => Err(IdentityError::Elsewhere.into()),
            _ => Err(odd()),
        }
    }

    fn list(&self, visit: &mut dyn FnMut(ObjectId)) -> io::Result<()> {
        let mut room = vec![0; limits::IO_BYTES_MAX];
        let mut after = None;
        loop {
            let tier = self.id;
            let call = ObjectCall::List { tier, after };
            let Response::Moved(bytes) = self.way.call(&call, &[], &mut room)?.response else {
                return Err(odd());
            };
            let (ids, rest) = room
                .get(..bytes as usize)
                .ok_or_else(odd)?
                .as_chunks::<{ size_of::<u64>() }>();
            if !rest.is_empty() {
                return Err(odd());
            }
            let Some(last) = ids.last() else {
                return Ok(());
            };
            let last = ObjectId(u64::from_le_bytes(*last));
            if after.is_some_and(|after| last <= after) {
                return Err(odd());
            }
            for id in ids {
                visit(ObjectId(u64::from_le_bytes(*id)));
            }
            after = Some(last);
        }
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(self.way.order(ObjectCall::SyncAll(self.id))?)
    }
}
