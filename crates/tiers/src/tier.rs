//! A tier: a place that holds objects.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use forebay_types::{ObjectId, TierId};

use crate::{CopiesOut, Identity, Object};

/// What a tier is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TierKind {
    /// Memory: a private tmpfs. Survives the daemon, not the node.
    Dram,
    /// Flash, or any directory on stable storage.
    Ssd,
    /// A directory of the parallel file system.
    Pfs,
    /// Remembers sizes only; for measuring everything else.
    Null,
}

/// Physical space of the file system below a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// All of it, bytes.
    pub total_bytes: u64,
    /// What ordinary users may still take, bytes.
    pub free_bytes: u64,
    /// What the tier may not hold of its capacity at present, bytes: memory that jobs have.
    pub lent_bytes: u64,
}

/// Where an object of another node is, for who is on that node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// Whose object it is.
    pub instance: [u8; 16],
    /// The tier, as that node counts its own.
    pub tier: TierId,
    /// The object.
    pub object: ObjectId,
}

/// A place that holds objects by id.
///
/// Invariants:
/// 1. An id names at most one object in a tier; `create` of one that is there fails with `EEXIST`.
/// 2. An object that was removed stays whole for those that have it open.
/// 3. Nothing here decides which object goes where: that is policy.
pub trait Tier: Send + Sync {
    /// Its name in the configuration and in `status`: `dram`, `ssd`, `ssd1`.
    fn name(&self) -> &str;

    /// What it is made of.
    fn kind(&self) -> TierKind;

    /// What it was called by when it was made, which nothing else is called: it tells what is in
    /// its place now from what was there before. `None` where there is no such thing.
    fn mark(&self) -> Option<[u8; 16]> {
        None
    }

    /// What it may hold, bytes: as configured, or all of the file system below.
    fn capacity_bytes(&self) -> u64;

    /// Physical space of the file system below.
    fn space(&self) -> io::Result<Space>;

    /// How the kernel of the node that it is on calls the present start of that node; `None`: it is
    /// on this node.
    fn boot(&self) -> Option<String> {
        None
    }

    /// Whether the node that it is on answers, as far as is known: who has a choice asks another
    /// tier. What is asked of one that does not answer ends with `EHOSTDOWN`.
    fn is_answering(&self) -> bool {
        true
    }

    /// Makes an empty object. `EEXIST` if the id is taken.
    fn create(&self, id: ObjectId, identity: &Identity) -> io::Result<Arc<dyn Object>>;

    /// As [`Tier::create`]; others will write the object through descriptors of their own. What is
    /// made holds none for writing, and is slower to write through.
    fn create_shared(&self, id: ObjectId, identity: &Identity) -> io::Result<Arc<dyn Object>> {
        self.create(id, identity)
    }

    /// Opens an object for reading and writing. `ENOENT` if there is none.
    fn open(&self, id: ObjectId) -> io::Result<Arc<dyn Object>>;

    /// As [`Tier::open`], for who reads, and where others write: see [`Tier::create_shared`].
    fn open_shared(&self, id: ObjectId) -> io::Result<Arc<dyn Object>> {
        self.open(id)
    }

    /// An object that takes no descriptor while nothing is done with it; `None` where there is no
    /// such. It is looked for by its id with every call, so it must not be removed before. To be
    /// looked at, not to be written: of an error of write-back only who holds it open is told.
    fn unheld(&self, id: ObjectId) -> Option<Arc<dyn Object>> {
        let _ = id;
        None
    }

    /// Whether [`Object::has_writers`] works here: only then may others write objects through
    /// descriptors of their own.
    fn tells_writers(&self) -> bool {
        false
    }

    /// Where its objects are on another node: what is to be asked for there. `None`: on this node.
    fn elsewhere(&self, id: ObjectId) -> Option<Elsewhere> {
        let _ = id;
        None
    }

    /// Where its bytes are elsewhere: the way to have objects copied there. `None`: here is the
    /// best place.
    fn copies_out(&self) -> Option<&dyn CopiesOut> {
        None
    }

    /// Removes an object. `ENOENT` if there is none.
    fn remove(&self, id: ObjectId) -> io::Result<()>;

    /// Takes an object that is not to be trusted out of the tier without destroying it, with its
    /// identity, and answers with where it is now. `EOPNOTSUPP` where there is no such place.
    fn quarantine(&self, id: ObjectId) -> io::Result<String> {
        let _ = id;
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    /// Takes back what opening the tier has made, where nothing was put in it since: else it would
    /// go on belonging to an instance that never was. `ENOTEMPTY` if there is something.
    fn give_back(&self) -> io::Result<()> {
        Ok(())
    }

    /// The identity carried beside an object; `None` if it carries none. `ENOENT` if there is no
    /// such object; one that cannot be decoded is an error of kind `InvalidData` around
    /// [`crate::IdentityError`].
    fn identity(&self, id: ObjectId) -> io::Result<Option<Identity>>;

    /// Visits every object, in no order. What is created or removed meanwhile may or may not
    /// appear.
    fn list(&self, visit: &mut dyn FnMut(ObjectId)) -> io::Result<()>;

    /// What one flush of all that is in the tier is asked by; to be had before the first byte is
    /// written, so that the flush is told of every error of a write-back since. `None`: each object
    /// is flushed by itself.
    fn flush_together(&self) -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }

    /// Puts content, identities and names of all objects on stable storage, with whatever else is
    /// in the file system.
    ///
    /// # Errors
    /// Of any write-back in the file system since `together` was had; also of somebody else's.
    fn sync_together(&self, together: &OwnedFd) -> io::Result<()> {
        Ok(rustix::fs::syncfs(together)?)
    }

    /// Puts what was created or removed before on stable storage: the names. Content is put there
    /// by [`Object::sync`]. Nothing to do for `dram`.
    fn sync_all(&self) -> io::Result<()>;
}
