//! Objects on flash that the kernel writes by itself, or that were closed and not flushed since:
//! each is held open. The kernel keeps the error of a write-back with what it knows of a file, and
//! forgets that when memory is short and nobody has the file open. It tells each descriptor that
//! was open before, once. To one that is opened after somebody was told it tells nothing: a program
//! hears it by `msync` or a write with `O_SYNC`, and the flush before the drain would not. So the
//! descriptor that is held was opened before what it is to hear of was written, and is asked by
//! each flush.

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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Programs may write it.
    Open,
    /// It was closed as the so manieth.
    Closed(u64),
    /// There are too many. It is asked once more.
    Leaving,
}

struct Entry {
    held: Held,
    /// Of this entry alone.
    stamp: u64,
    place: Place,
}

#[derive(Default)]
struct All {
    entries: HashMap<ObjectId, Entry>,
    /// By when they were closed.
    closed: BTreeMap<u64, ObjectId>,
    /// How many are open.
    open: usize,
    next_stamp: u64,
    next_place: u64,
}

impl All {
    fn take(&mut self, object: ObjectId) -> Option<Held> {
        let entry = self.entries.remove(&object)?;
        match entry.place {
            Place::Open => self.open -= 1,
            Place::Closed(place) => drop(self.closed.remove(&place)),
            Place::Leaving => {}
        }
        Some(entry.held)
    }

    /// There is none of this object.
    fn put(&mut self, held: Held, place: Place) {
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        let object = held.file.object;
        match place {
            Place::Open => self.open += 1,
            Place::Closed(place) => drop(self.closed.insert(place, object)),
            Place::Leaving => {}
        }
        let entry = Entry { held, stamp, place };
        self.entries.insert(object, entry);
    }
}

/// All of them.
#[derive(Default)]
pub struct Unflushed {
    all: Mutex<All>,
}

/// What an object is held by now.
pub struct Known {
    /// The descriptor.
    pub object: Arc<dyn Object>,
    stamp: u64,
}

/// What has to be done for there to be no more than so many.
#[derive(Default)]
pub struct Excess {
    /// Its write-back is to begin.
    pub start: Option<Held>,
    /// Its write-back is to be waited for, and then it goes.
    pub wait: Option<(Held, Known)>,
}

impl Unflushed {
    /// The kernel is about to write one by itself. It is held whatever others are. Answers with
    /// what it was held by before.
    pub fn hold_open(&self, one: Held) -> Option<Held> {
        let mut all = self.all.lock();
        let before = all.take(one.file.object);
        all.put(one, Place::Open);
        before
    }

    /// Holds one more that was closed. From half of `most` on the write-back of the older half is
    /// begun, so that who has to wait for it, when there are too many, does not wait for long.
    pub fn hold(&self, one: Held, most: usize) -> Excess {
        let mut all = self.all.lock();
        // What it was held by before has been open for longer, and hears as much.
        let one = all
            .take(one.file.object)
            .filter(|old| old.tier == one.tier)
            .unwrap_or(one);
        let place = all.next_place;
        all.next_place += 1;
        all.put(one, Place::Closed(place));
        let all = &mut *all;
        let due = place.checked_sub((most / 2) as u64);
        let due = due.and_then(|due| all.closed.get(&due));
        let start = due.and_then(|object| all.entries.get(object));
        let start = start.map(|entry| entry.held.clone());
        let oldest = match all.closed.len() > most {
            true => all.closed.pop_first().map(|(_, object)| object),
            false => None,
        };
        let wait = oldest.and_then(|object| all.entries.get_mut(&object));
        let wait = wait.map(|entry| {
            // Until it is asked it may be what a flush has to ask.
            entry.place = Place::Leaving;
            (entry.held.clone(), entry.known())
        });
        Excess { start, wait }
    }

    /// How many the kernel may write by itself now.
    pub fn open(&self) -> usize {
        self.all.lock().open
    }

    /// What an object in `tier` is held by.
    pub fn of(&self, object: ObjectId, tier: TierId) -> Option<Known> {
        let all = self.all.lock();
        let entry = all.entries.get(&object)?;
        (entry.held.tier == tier).then(|| entry.known())
    }

    /// It has been flushed since, and `known` was asked. Who can be written still, or has been
    /// closed since, is held on.
    pub fn let_go_of(&self, object: ObjectId, known: &Known) {
        let mut all = self.all.lock();
        let entry = all.entries.get(&object);
        let is_same = |entry: &Entry| entry.stamp == known.stamp && entry.place != Place::Open;
        let held = match entry.is_some_and(is_same) {
            true => all.take(object),
            false => None,
        };
        // The descriptor is closed without the lock.
        drop(all);
        drop(held);
    }

    /// It is gone.
    pub fn let_go(&self, object: ObjectId) {
        // As above.
        let held = self.all.lock().take(object);
        drop(held);
    }

    /// The same of what is in `tier`. The object in another tier may be what the file is, and not
    /// be flushed.
    pub fn let_go_in(&self, object: ObjectId, tier: TierId) {
        let mut all = self.all.lock();
        let is_there = all
            .entries
            .get(&object)
            .is_some_and(|e| e.held.tier == tier);
        let held = if is_there { all.take(object) } else { None };
        drop(all);
        drop(held);
    }

    /// How many there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.all.lock().entries.len()
    }
}

impl Entry {
    fn known(&self) -> Known {
        Known {
            object: self.held.object.clone(),
            stamp: self.stamp,
        }
    }
}
