//! A data server's side: calls on the node's own tiers.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_tiers::{Identity, IdentityError, Object, Tier, TierKind};
use forebay_types::{Errno, Handle, ObjectId, TierId, limits};
use forebay_wire::{
    Descriptor, ObjectCall, ObjectKey, ObjectReply, ObjectRequest, ObjectTier, ObjectUse, Peer,
    Reply, Request, Response, Service,
};
use parking_lot::RwLock;

use crate::convert;

/// An id in the answer to [`ObjectCall::List`], bytes.
const ID_BYTES: usize = size_of::<u64>();

/// Answers a metadata server, for one session of it.
///
/// Invariants:
/// 1. A handle is never given twice, also not by another session or another run: who asks with one
///    of before gets `EBADF`, and nothing is done.
/// 2. What is open in the session is closed when the service is dropped.
pub struct DataService {
    tiers: Vec<Arc<dyn Tier>>,
    boot: String,
    open: RwLock<HashMap<Handle, Arc<dyn Object>>>,
    next: Arc<AtomicU64>,
}

impl DataService {
    /// Serves these tiers, which have the numbers that are their places here. `boot` names this
    /// start of the node.
    pub fn new(tiers: Vec<Arc<dyn Tier>>, boot: String) -> DataService {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let first = since.map_or(1, |since| since.as_nanos() as u64);
        DataService {
            tiers,
            boot,
            open: RwLock::default(),
            next: Arc::new(AtomicU64::new(first)),
        }
    }

    /// The same tiers for another session.
    pub fn again(&self) -> DataService {
        DataService {
            tiers: self.tiers.clone(),
            boot: self.boot.clone(),
            open: RwLock::default(),
            next: self.next.clone(),
        }
    }

    /// Objects that are open in the session.
    pub fn open_objects(&self) -> usize {
        self.open.read().len()
    }

    fn tier(&self, id: TierId) -> Result<&dyn Tier, Errno> {
        match self.tiers.get(usize::from(id.0)) {
            Some(tier) => Ok(&**tier),
            None => Err(Errno::ENODEV),
        }
    }

    fn object(&self, handle: Handle) -> Result<Arc<dyn Object>, Errno> {
        self.open.read().get(&handle).cloned().ok_or(Errno::EBADF)
    }

    fn answer(
        &self,
        call: ObjectCall,
        payload: &[u8],
        into: &mut [u8],
        local: bool,
    ) -> io::Result<Reply> {
        let done = match call {
            ObjectCall::Tiers => ObjectReply::Tiers {
                boot: self.boot.clone(),
                tiers: self.tiers.iter().map(|tier| described(&**tier)).collect(),
            },
            ObjectCall::Space(tier) => {
                let space = self.tier(tier)?.space()?;
                ObjectReply::Space {
                    total_bytes: space.total_bytes,
                    free_bytes: space.free_bytes,
                }
            }
            ObjectCall::Create { key, identity, how } => {
                let identity = Identity::decode(&identity).map_err(|_| Errno::EINVAL)?;
                let tier = self.tier(key.tier)?;
                let object = match how {
                    ObjectUse::Write => tier.create(key.object, &identity)?,
                    ObjectUse::Share => tier.create_shared(key.object, &identity)?,
                };
                return self.opened(object, local);
            }
            ObjectCall::Open { key, how } => {
                let tier = self.tier(key.tier)?;
                let object = match how {
                    ObjectUse::Write => tier.open(key.object)?,
                    ObjectUse::Share => tier.open_shared(key.object)?,
                };
                return self.opened(object, local);
            }
            ObjectCall::Close(handles) => {
                let mut open = self.open.write();
                let closed: Vec<_> = handles.iter().map(|handle| open.remove(handle)).collect();
                drop(open);
                // Closing may take long; nobody waits for the table meanwhile.
                drop(closed);
                return Ok(Response::Done.into());
            }
            ObjectCall::Remove(key) => {
                self.tier(key.tier)?.remove(key.object)?;
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
                return Ok(Response::Done.into());
            }
            ObjectCall::On(handle, request) => {
                let object = self.object(handle)?;
                return Ok(on(&*object, request, payload, into)?.into());
            }
        };
        Ok(Response::Object(done).into())
    }

    fn opened(&self, object: Arc<dyn Object>, local: bool) -> io::Result<Reply> {
        let mut open = self.open.write();
        if open.len() >= limits::HANDLES_PER_SESSION_MAX {
            return Err(Errno::ENFILE.into());
        }
        let handle = Handle(self.next.fetch_add(1, Ordering::Relaxed));
        open.insert(handle, object.clone());
        drop(open);
        let descriptor = match object.descriptor().filter(|_| local) {
            Some(file) => Some(Arc::new(Handed(file.try_clone_to_owned()?)) as Arc<dyn Descriptor>),
            None => None,
        };
        Ok(Reply {
            response: Response::Object(ObjectReply::Opened(handle)),
            descriptor,
        })
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

impl Service for DataService {
    fn handle(&self, peer: Peer<'_>, request: Request, payload: &[u8], into: &mut [u8]) -> Reply {
        let Request::Object(call) = request else {
            return Errno::ENOSYS.into();
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
        ObjectRequest::HasWriters => ObjectReply::Truth(object.has_writers()?),
    };
    Ok(Response::Object(reply))
}
