//! A metadata server's side: tiers whose objects are on another node.

use std::io;
use std::sync::Arc;

use forebay_tiers::{
    CopiesOut, CopyControl, CopyReport, Elsewhere, Identity, IdentityError, Object, Outside,
    OutsideError, Space, Tier, TierKind,
};
use forebay_types::{Errno, ObjectId, TierId, limits};
use forebay_wire::{
    Connection, ObjectCall, ObjectKey, ObjectReply, ObjectTier, ObjectUse, Response,
};

use crate::claim::Claim;
use crate::object::RemoteObject;
use crate::way::{Held, Way, odd};

/// All tiers of one data server.
#[derive(Clone)]
pub struct RemoteTiers {
    way: Arc<Way>,
}

impl RemoteTiers {
    /// At the other end of a connection.
    pub fn new(connection: Arc<dyn Connection>, claim: Claim) -> RemoteTiers {
        RemoteTiers::with_replication(connection, None, claim)
    }

    /// The same. Where there is a second connection, the bytes of copies that nobody waits for go
    /// over that ([`RemoteTier::for_copies`]).
    pub fn with_replication(
        connection: Arc<dyn Connection>,
        replication: Option<Arc<dyn Connection>>,
        claim: Claim,
    ) -> RemoteTiers {
        RemoteTiers {
            way: Arc::new(Way::new(connection, replication, claim)),
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
        self.way.shut();
        self.named(server, tiers)
    }

    /// One of before that a data server does not name now: what is asked of it ends with
    /// `EHOSTDOWN`, whatever becomes of the others.
    pub fn absent(&self, server: &str, facts: ObjectTier) -> RemoteTier {
        let way = Arc::new(self.way.another());
        way.shut();
        let name = format!("{server}:{}", facts.name);
        RemoteTier {
            way,
            id: TierId(0),
            name,
            facts,
            for_copies: false,
        }
    }

    fn named(&self, server: &str, tiers: Vec<ObjectTier>) -> Vec<RemoteTier> {
        let numbered = tiers.into_iter().zip(0u8..);
        let tiers = numbered.map(|(facts, id)| RemoteTier {
            way: self.way.clone(),
            id: TierId(id),
            name: format!("{server}:{}", facts.name),
            facts,
            for_copies: false,
        });
        tiers.collect()
    }

    /// Whether the data server answers, and what it has is not to be used before a start of the
    /// metadata server has looked at it. Finds out whether it is what it was.
    pub fn is_to_be_looked_at(&self) -> bool {
        self.way.is_to_be_looked_at()
    }

    /// Whether bytes of copies that nobody waits for get there now. Waits a little where the
    /// network for them has just gone.
    pub fn takes_copies(&self) -> bool {
        self.way.takes_copies()
    }

    /// Whether a data server has said that a later start of the metadata server has come.
    pub fn is_replaced(&self) -> bool {
        self.way.claim().is_replaced()
    }

    /// Nothing of it is used before a start has looked at it.
    pub fn shut(&self) {
        self.way.shut();
    }

    /// The same, and no start need look at it as long as it is what it is now.
    pub fn refuse(&self) {
        self.way.refuse();
    }
}

/// A tier of a data server.
pub struct RemoteTier {
    way: Arc<Way>,
    id: TierId,
    name: String,
    facts: ObjectTier,
    /// What is read and written goes over the connection for copies.
    for_copies: bool,
}

impl RemoteTier {
    /// The same tier for copies that nobody waits for. Where there is a second connection, what is
    /// read from its objects and written to them goes over that, or fails with `EHOSTDOWN` while
    /// its network is away. All else is as here.
    pub fn for_copies(&self) -> RemoteTier {
        RemoteTier {
            way: self.way.clone(),
            id: self.id,
            name: self.name.clone(),
            facts: self.facts.clone(),
            for_copies: true,
        }
    }

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
        let object = RemoteObject::new(self.way.clone(), key, how, held);
        Arc::new(object.for_copies(self.for_copies))
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
        let (instance, tier) = (self.way.claim().instance(), self.id);
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
                lent_bytes,
            } => Ok(Space {
                total_bytes,
                free_bytes,
                lent_bytes,
            }),
            _ => Err(odd()),
        }
    }

    fn boot(&self) -> Option<String> {
        self.way.boot()
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
