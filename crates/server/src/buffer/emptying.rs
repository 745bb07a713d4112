//! Nodes that are being emptied, by order: no new file goes there, and what is there leaves.

use std::collections::{BTreeMap, BTreeSet};

use forebay_namespace::{Namespace, NsError, in_record};
use parking_lot::{Mutex, RwLock};

/// The record of the order. It outlives a start; who has none has no such node.
const NAME: &str = "emptied-nodes";
const WHAT: &str = "nodes that are emptied";

/// Files that somebody has open, and which therefore stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// How many.
    pub files: u64,
    /// Paths of the first of them.
    pub paths: Vec<Vec<u8>>,
}

/// By the ids of servers.
#[derive(Default)]
pub struct Emptying {
    servers: RwLock<BTreeSet<u16>>,
    /// Held while the order is changed: what is on record is what is in force.
    changing: Mutex<()>,
    /// As they were last looked at.
    held: Mutex<BTreeMap<u16, Held>>,
}

impl Emptying {
    /// Goes on with the orders of before.
    pub fn restore(&self, ns: &Namespace) -> Result<(), NsError> {
        if let Some(bytes) = ns.get_fact(NAME)? {
            *self.servers.write() = postcard::from_bytes(&bytes).map_err(in_record(WHAT))?;
        }
        Ok(())
    }

    /// Orders it, or takes the order back. It is on stable storage when this returns.
    pub fn order(&self, ns: &Namespace, server: u16, emptied: bool) -> Result<(), NsError> {
        let _one = self.changing.lock();
        let mut servers = self.servers.read().clone();
        match emptied {
            true => servers.insert(server),
            false => servers.remove(&server),
        };
        let bytes = postcard::to_stdvec(&servers).map_err(in_record(WHAT))?;
        ns.put_fact(NAME, &bytes)?;
        ns.sync()?;
        *self.servers.write() = servers;
        Ok(())
    }

    /// Whether a server's node is to be empty.
    pub fn has(&self, server: u16) -> bool {
        self.servers.read().contains(&server)
    }

    /// All of them.
    pub fn servers(&self) -> BTreeSet<u16> {
        self.servers.read().clone()
    }

    /// Somebody has looked who has what open there.
    pub fn note_held(&self, held: BTreeMap<u16, Held>) {
        *self.held.lock() = held;
    }

    /// What is open on a node that is emptied.
    pub fn held(&self, server: u16) -> Held {
        self.held.lock().get(&server).cloned().unwrap_or_default()
    }
}
