//! A data server's answers to one session: calls on the node's own tiers.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_tiers::{BlocksWriters, Identity, IdentityError, Object, Tier, TierKind};
use forebay_types::{Errno, Handle, ObjectId, TierId, limits};
use forebay_wire::{
    Descriptor, NOT_BEGUN, ObjectCall, ObjectKey, ObjectPlace, ObjectReply, ObjectRequest,
    ObjectTier, ObjectUse, OutsideFile, Peer, Reply, Request, Response, Service,
};
use parking_lot::{Mutex, RwLock};

use crate::convert;
use crate::copies::Copies;
use crate::failures::{self, Failures};
use crate::server::{DataServer, Tiers, Turn};

/// An id in the answer to [`ObjectCall::List`], bytes.
const ID_BYTES: usize = size_of::<u64>();

/// Answers one session of a metadata server.
///
/// Invariants:
/// 1. Nothing is done before the session has said whose objects it wants ([`ObjectCall::Begin`]),
///    and nothing after another one has. What a mount of this node asks for says it by itself, and
///    needs no turn: its kernel reads and writes the object beside whoever has the turn.
/// 2. A handle is never given twice, also not by another session or another run: who asks with one
///    of before gets `EBADF`, and nothing is done.
/// 3. What is open in the session is closed when it is dropped, and who had to wait goes on.
/// 4. A session that has joined another ([`ObjectCall::Join`]) has nothing of its own: it reads and
///    writes what is open there, while that one has the turn. It does nothing else.
pub struct DataSession {
    server: Arc<DataServer>,
    /// Once it has begun.
    begun: OnceLock<Begun>,
    /// Held by who begins it, or joins another.
    beginning: Mutex<()>,
    /// The turn of the session that it has joined.
    joined: RwLock<Option<Turn>>,
    has: Arc<Has>,
    /// Of this data server; never given twice.
    number: u64,
}

/// What a session has.
#[derive(Default)]
pub(crate) struct Has {
    open: RwLock<HashMap<Handle, OpenObject>>,
    /// Copies that are made for it.
    copies: Arc<Copies>,
}

impl Has {
    /// Who had to wait goes on. A request of the session may wait with them.
    pub fn let_writers_go(&self, patience: Duration) {
        // Who has it for longer hangs on the tier's device, and so would all else.
        if let Some(mut open) = self.open.try_write_for(patience) {
            for open in open.values_mut() {
                open.write_blocker = None;
            }
        }
    }

    fn known(&self, handle: Handle) -> Result<(ObjectKey, Arc<dyn Object>), Errno> {
        let open = self.open.read();
        let found = open
            .get(&handle)
            .map(|open| (open.key, open.object.clone()));
        found.ok_or(Errno::EBADF)
    }

    /// Nothing is open any more, and no copy goes on.
    pub fn end(&self, failures: &Failures) {
        self.copies.end_all();
        let open = std::mem::take(&mut *self.open.write());
        for open in open.into_values() {
            failures.closes(open.key, &*open.object);
        }
    }
}

/// An open object.
struct OpenObject {
    key: ObjectKey,
    object: Arc<dyn Object>,
    /// While others who write it have to wait.
    write_blocker: Option<Box<dyn BlocksWriters>>,
}

impl Drop for DataSession {
    fn drop(&mut self) {
        self.close_all();
    }
}

/// What a session that has begun works with.
struct Begun {
    turn: Turn,
    tiers: Tiers,
}

impl DataSession {
    pub(crate) fn new(server: Arc<DataServer>) -> DataSession {
        DataSession {
            number: server.next_handle().0,
            server,
            begun: OnceLock::new(),
            beginning: Mutex::default(),
            joined: RwLock::default(),
            has: Arc::default(),
        }
    }

    /// Objects that are open in the session.
    pub fn open_objects(&self) -> usize {
        self.has.open.read().len()
    }

    /// Somebody else may have the turn.
    pub(crate) fn give_up_turn(&self) {
        if let Some(begun) = self.begun.get() {
            self.server.end(&begun.turn);
        }
    }

    /// Nothing is open any more.
    pub(crate) fn close_all(&self) {
        self.has.end(&self.server.failures);
    }

    fn begin(&self, claim: ([u8; 16], u32)) -> io::Result<ObjectReply> {
        {
            // Many may ask at once: the second to take a turn would end that of the first.
            let _one = self.beginning.lock();
            if self.joined.read().is_some() {
                return Err(Errno::EINVAL.into());
            }
            if self.begun.get().is_none() {
                let (turn, tiers) = self.server.begin(claim, self.has.clone())?;
                drop(self.begun.set(Begun { turn, tiers }));
            } else {
                self.server.check_latest(claim)?;
                // What was asked long ago may have come late, and have taken the turn from the
                // session that has come instead: this one is over, and the next one takes it back.
                let begun = self.begun.get();
                if begun.is_some_and(|begun| begun.turn.take().is_none()) {
                    return Err(Errno::ENOTCONN.into());
                }
            }
        }
        let tiers = self.begun.get().map(|begun| &begun.tiers);
        let tiers = tiers.ok_or(NOT_BEGUN)?.iter();
        Ok(ObjectReply::Tiers {
            boot: self.server.boot().to_string(),
            tiers: tiers.map(|tier| described(&**tier)).collect(),
        })
    }

    /// Belongs to the session that has the turn, from now on and as long as that has it.
    fn join(&self, claim: ([u8; 16], u32)) -> io::Result<Response> {
        let _one = self.beginning.lock();
        if self.begun.get().is_some() {
            return Err(Errno::EINVAL.into());
        }
        *self.joined.write() = Some(self.server.join(claim)?);
        Ok(Response::Done)
    }

    /// What a further connection of a session asks for; `None`: it is none.
    fn answer_further(
        &self,
        call: &ObjectCall,
        payload: &[u8],
        into: &mut [u8],
    ) -> Option<io::Result<Response>> {
        let request = match call {
            ObjectCall::Join { instance, epoch } => return Some(self.join((*instance, *epoch))),
            ObjectCall::Begin { .. } | ObjectCall::HandOver(_) => return None,
            ObjectCall::On(handle, request) => Some((*handle, request)),
            _ => None,
        };
        let turn = self.joined.read().clone()?;
        let moves_bytes = |request: &ObjectRequest| {
            matches!(
                request,
                ObjectRequest::Read { .. } | ObjectRequest::Write { .. }
            )
        };
        let Some((handle, request)) = request.filter(|(_, request)| moves_bytes(request)) else {
            return Some(Err(Errno::EPERM.into()));
        };
        // For as long as the call runs nobody else begins.
        let Some(_turn) = turn.take() else {
            return Some(Err(NOT_BEGUN.into()));
        };
        let found = turn.has().known(handle).map_err(io::Error::from);
        Some(found.and_then(|(_, object)| on(&*object, request.clone(), payload, into)))
    }

    fn tier(&self, id: TierId) -> Result<&dyn Tier, Errno> {
        let begun = self.begun.get().ok_or(NOT_BEGUN)?;
        match begun.tiers.get(usize::from(id.0)) {
            Some(tier) => Ok(&**tier),
            None => Err(Errno::ENODEV),
        }
    }

    fn object(&self, handle: Handle) -> Result<Arc<dyn Object>, Errno> {
        Ok(self.has.known(handle)?.1)
    }

    fn on(
        &self,
        handle: Handle,
        request: ObjectRequest,
        payload: &[u8],
        into: &mut [u8],
    ) -> io::Result<Response> {
        let (key, object) = self.has.known(handle)?;
        let failures = &self.server.failures;
        if request == ObjectRequest::ForgetFailedFlushes {
            failures.settle(key, self.number);
            return Ok(Response::Done);
        }
        let tells = failures::tells(&request);
        let empties = request == ObjectRequest::SetLen { size: 0 };
        let done = on(&*object, request, payload, into);
        if tells {
            return failures.answer(key, self.number, done);
        }
        if empties && done.is_ok() {
            failures.forget(key);
        }
        done
    }

    fn answer(
        &self,
        call: ObjectCall,
        payload: &[u8],
        into: &mut [u8],
        local: bool,
    ) -> io::Result<Reply> {
        let done = match call {
            ObjectCall::Begin { instance, epoch } => self.begin((instance, epoch))?,
            ObjectCall::Space(tier) => convert::space(&self.tier(tier)?.space()?),
            ObjectCall::Create { key, identity, how } => {
                let identity = Identity::decode(&identity).map_err(|_| Errno::EINVAL)?;
                let tier = self.tier(key.tier)?;
                let object = match how {
                    ObjectUse::Write => tier.create(key.object, &identity)?,
                    ObjectUse::Share => tier.create_shared(key.object, &identity)?,
                };
                self.server.failures.forget(key);
                return self.opened(key, object);
            }
            ObjectCall::Open { key, how } => {
                let tier = self.tier(key.tier)?;
                let object = match how {
                    ObjectUse::Write => tier.open(key.object)?,
                    ObjectUse::Share => tier.open_shared(key.object)?,
                };
                return self.opened(key, object);
            }
            ObjectCall::Close(handles) => {
                let mut open = self.has.open.write();
                let closed: Vec<_> = handles.iter().map(|handle| open.remove(handle)).collect();
                drop(open);
                // Closing may take long; nobody waits for the table meanwhile.
                drop(closed);
                return Ok(Response::Done.into());
            }
            ObjectCall::Remove(key) => {
                self.tier(key.tier)?.remove(key.object)?;
                self.server.failures.forget(key);
                return Ok(Response::Done.into());
            }
            ObjectCall::Quarantine(key) => {
                ObjectReply::Place(self.tier(key.tier)?.quarantine(key.object)?)
            }
            ObjectCall::Identity(key) => self.identity(key)?,
            ObjectCall::List { tier, after } => {
                let bytes = list(self.tier(tier)?, after, into)?;
                return Ok(Response::Moved(bytes).into());
            }
            ObjectCall::SyncAll(tier) => {
                self.tier(tier)?.sync_all()?;
                return Ok(Response::Done.into());
            }
            ObjectCall::GiveBack(tier) => {
                self.tier(tier)?.give_back()?;
                // Who begins next finds what is there then.
                self.server.forget_tiers();
                return Ok(Response::Done.into());
            }
            // Answered before.
            ObjectCall::Join { .. } => return Err(Errno::EINVAL.into()),
            call @ (ObjectCall::CopyOut { .. }
            | ObjectCall::CopyGo { .. }
            | ObjectCall::CopySums { .. }
            | ObjectCall::CopyEnd(_)) => return self.answer_copy(call, into),
            ObjectCall::HandOver(place) => return self.hand_over(place, local),
            ObjectCall::On(handle, ObjectRequest::HoldWriters(held)) => {
                ObjectReply::Truth(self.hold_writers(handle, held)?)
            }
            ObjectCall::On(handle, request) => {
                return Ok(self.on(handle, request, payload, into)?.into());
            }
        };
        Ok(Response::Object(done).into())
    }

    fn answer_copy(&self, call: ObjectCall, into: &mut [u8]) -> io::Result<Reply> {
        let done = match call {
            ObjectCall::CopyOut { handle, to } => self.copy_out(handle, to)?,
            ObjectCall::CopyGo { copy, upto_bytes } => self.has.copies.go(copy, upto_bytes)?,
            ObjectCall::CopySums { copy, from } => {
                let bytes = self.has.copies.sums(copy, from, into)?;
                return Ok(Response::Moved(bytes).into());
            }
            ObjectCall::CopyEnd(copy) => {
                self.has.copies.end(copy)?;
                return Ok(Response::Done.into());
            }
            _ => return Err(Errno::EINVAL.into()),
        };
        Ok(Response::Object(done).into())
    }

    fn copy_out(&self, handle: Handle, to: OutsideFile) -> io::Result<ObjectReply> {
        let (pfs, source) = (self.server.pfs()?, self.object(handle)?);
        let copy = self.server.next_handle();
        self.has.copies.begin(copy, pfs, source, to)?;
        Ok(ObjectReply::Opened(copy))
    }

    fn opened(&self, key: ObjectKey, object: Arc<dyn Object>) -> io::Result<Reply> {
        let mut open = self.has.open.write();
        if open.len() >= limits::HANDLES_PER_SESSION_MAX {
            return Err(Errno::ENFILE.into());
        }
        let handle = self.server.next_handle();
        let write_blocker = None;
        open.insert(
            handle,
            OpenObject {
                key,
                object,
                write_blocker,
            },
        );
        Ok(Response::Object(ObjectReply::Opened(handle)).into())
    }

    /// To a mount of this node, whose kernel opens it for itself.
    fn hand_over(&self, place: ObjectPlace, local: bool) -> io::Result<Reply> {
        if !local {
            return Err(Errno::EACCES.into());
        }
        let object = self.server.open_shared(&place)?;
        let file = object.descriptor().ok_or(Errno::EOPNOTSUPP)?;
        Ok(Reply {
            response: Response::Done,
            descriptor: Some(Arc::new(Handed(file.try_clone_to_owned()?))),
        })
    }

    /// Whether it works, so far.
    fn hold_writers(&self, handle: Handle, held: bool) -> io::Result<bool> {
        let mut open = self.has.open.write();
        let open = open.get_mut(&handle).ok_or(Errno::EBADF)?;
        match (held, &open.write_blocker) {
            (false, _) => open.write_blocker = None,
            (true, Some(_)) => {}
            (true, None) => open.write_blocker = Some(open.object.block_writers()?),
        }
        let blocker = open.write_blocker.as_ref();
        Ok(blocker.is_none_or(|blocker| !blocker.has_failed()))
    }

    fn identity(&self, key: ObjectKey) -> io::Result<ObjectReply> {
        match self.tier(key.tier)?.identity(key.object) {
            Ok(found) => Ok(ObjectReply::Identity(found.map(|found| found.encode()))),
            Err(error) if error.get_ref().is_some_and(|e| e.is::<IdentityError>()) => {
                tracing::warn!("object {}: {error}", key.object);
                Ok(ObjectReply::IdentityDamaged)
            }
            Err(error) => Err(error),
        }
    }
}

impl Service for DataSession {
    fn handle(&self, peer: Peer<'_>, request: Request, payload: &[u8], into: &mut [u8]) -> Reply {
        let Request::Object(call) = request else {
            return Errno::ENOSYS.into();
        };
        if let Some(done) = self.answer_further(&call, payload, into) {
            return done.map_or_else(|error| Errno::of(&error).into(), Reply::from);
        }
        // For as long as the call runs nobody else begins.
        let _turn = match (&call, self.begun.get()) {
            (ObjectCall::Begin { .. } | ObjectCall::HandOver(_), _) => None,
            (_, None) => return NOT_BEGUN.into(),
            (_, Some(begun)) => match begun.turn.take() {
                Some(turn) => Some(turn),
                // Its turn is over: who wants one begins, and hears whether it was replaced.
                None => return NOT_BEGUN.into(),
            },
        };
        match self.answer(call, payload, into, peer.local) {
            Ok(reply) => reply,
            Err(error) => Errno::of(&error).into(),
        }
    }
}

/// A descriptor that goes over to another process.
struct Handed(OwnedFd);

impl Descriptor for Handed {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn described(tier: &dyn Tier) -> ObjectTier {
    ObjectTier {
        name: tier.name().to_string(),
        mark: tier.mark().unwrap_or_default(),
        is_memory: tier.kind() == TierKind::Dram,
        capacity_bytes: tier.capacity_bytes(),
        tells_writers: tier.tells_writers(),
    }
}

/// Puts ids after `after` into a reply, in ascending order; the tier has them in none.
fn list(tier: &dyn Tier, after: Option<ObjectId>, into: &mut [u8]) -> io::Result<u32> {
    let room = into.len() / ID_BYTES;
    let mut ids = Vec::new();
    tier.list(&mut |id| {
        if after.is_none_or(|after| id > after) {
            ids.push(id);
            // What does not fit is left out now and then, so that memory has a limit.
            if ids.len() >= 4 * room.max(1024) {
                smallest(&mut ids, room);
            }
        }
    })?;
    smallest(&mut ids, room);
    ids.sort_unstable();
    for (place, id) in into.chunks_exact_mut(ID_BYTES).zip(&ids) {
        place.copy_from_slice(&id.0.to_le_bytes());
    }
    Ok((ids.len() * ID_BYTES) as u32)
}

fn smallest(ids: &mut Vec<ObjectId>, most: usize) {
    if ids.len() > most {
        ids.select_nth_unstable(most);
        ids.truncate(most);
    }
}

fn on(
    object: &dyn Object,
    request: ObjectRequest,
    payload: &[u8],
    into: &mut [u8],
) -> io::Result<Response> {
    let reply = match request {
        ObjectRequest::Read { offset, len } => {
            let len = into.len().min(len as usize);
            let count = object.read_at(&mut into[..len], offset)?;
            return Ok(Response::Moved(count as u32));
        }
        ObjectRequest::Write { offset } => {
            return Ok(Response::Moved(object.write_at(payload, offset)? as u32));
        }
        ObjectRequest::Append => {
            let (bytes, end) = object.append(payload)?;
            let bytes = bytes as u32;
            ObjectReply::Appended { bytes, end }
        }
        ObjectRequest::SetLen { size } => {
            object.set_len(size)?;
            return Ok(Response::Done);
        }
        ObjectRequest::Allocate {
            change,
            offset,
            len,
        } => {
            object.allocate(convert::allocation(change), offset, len)?;
            return Ok(Response::Done);
        }
        ObjectRequest::Seek { from, what } => {
            ObjectReply::Found(object.seek(from, convert::seek(what))?)
        }
        ObjectRequest::Sync { data_only } => {
            object.sync(data_only)?;
            return Ok(Response::Done);
        }
        ObjectRequest::WriteBack { what, offset, len } => {
            object.write_back(convert::write_back(what), offset, len)?;
            return Ok(Response::Done);
        }
        ObjectRequest::Stat => ObjectReply::Stat(convert::facts(&object.stat()?)),
        ObjectRequest::SetTimes { atime, mtime } => {
            object.set_times(atime, mtime)?;
            return Ok(Response::Done);
        }
        ObjectRequest::SetIdentity(identity) => {
            let identity = Identity::decode(&identity).map_err(|_| Errno::EINVAL)?;
            object.set_identity(&identity)?;
            return Ok(Response::Done);
        }
        ObjectRequest::DropCache => {
            object.drop_cache()?;
            return Ok(Response::Done);
        }
        ObjectRequest::HasWriters => ObjectReply::Truth(object.has_writers()?),
        // Of the session, which has what is held, and of the data server, which has what failed.
        ObjectRequest::HoldWriters(_) | ObjectRequest::ForgetFailedFlushes => {
            return Err(Errno::EINVAL.into());
        }
    };
    Ok(Response::Object(reply))
}
