//! Objects on flash that were written, closed, and not flushed since: each is held open. The kernel
//! keeps the error of a write-back with what it knows of a file, and forgets that when memory is
//! short and nobody has the file open. The flush before the drain would hear of nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use forebay_namespace::File;
use forebay_tiers::Object;
use forebay_types::{ObjectId, TierId};
use parking_lot::Mutex;

/// One of them.
#[derive(Clone)]
pub struct Held {
    /// The file.
    pub file: Arc<File>,
    /// Tier of its object.
    pub tier: TierId,
    /// Open for reading only: it is no writer.
    pub object: Arc<dyn Object>,
}

#[derive(Default)]
struct All {
    /// By when they were closed.
    held: BTreeMap<u64, Held>,
    places: HashMap<ObjectId, u64>,
    next: u64,
}

impl All {
    fn take(&mut self, object: ObjectId) -> Option<Held> {
        let place = self.places.remove(&object)?;
        self.held.remove(&place)
    }
}

/// All of them.
#[derive(Default)]
pub struct Unflushed {
    all: Mutex<All>,
}

/// What has to be done for there to be no more than so many.
#[derive(Default)]
pub struct Excess {
    /// Its write-back is to begin.
    pub start: Option<Held>,
    /// It is held no longer: its write-back is to be waited for.
    pub wait: Option<Held>,
}

impl Unflushed {
    /// Holds one more. From half of `most` on the write-back of the older half is begun, so that
    /// who has to wait for it, when there are too many, does not wait for long.
    pub fn hold(&self, one: Held, most: usize) -> Excess {
        let object = one.file.object;
        let mut all = self.all.lock();
        // What it was held by before has been open for longer, and hears as much.
        let one = all
            .take(object)
            .filter(|old| old.tier == one.tier)
            .unwrap_or(one);
        let place = all.next;
        all.next += 1;
        all.held.insert(place, one);
        all.places.insert(object, place);
        let due = place.checked_sub((most / 2) as u64);
        let start = due.and_then(|due| all.held.get(&due).cloned());
        let wait = match all.held.len() > most {
            true => all.held.pop_first().map(|(_, oldest)| oldest),
            false => None,
        };
        if let Some(oldest) = &wait {
            all.places.remove(&oldest.file.object);
        }
        Excess { start, wait }
    }

    /// It has been flushed, or is gone.
    pub fn let_go(&self, object: ObjectId) {
        // The descriptor is closed without the lock.
        let held = self.all.lock().take(object);
        drop(held);
    }

    /// How many there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.all.lock().held.len()
    }
}
