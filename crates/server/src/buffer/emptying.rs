//! Nodes that are being emptied, by order: no new file goes there, and what is there leaves.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use forebay_namespace::{Namespace, NsError, in_record};
use forebay_policy::patience::STAYS_FOR;
use forebay_types::{Generation, ObjectId};
use forebay_wire::control::{Awaited, AwaitedFile};
use parking_lot::{Mutex, RwLock};

/// The record of the order. It outlives a start; who has none has no such node.
const NAME: &str = "emptied-nodes";
const WHAT: &str = "nodes that are emptied";

/// A file that is neither open nor gone after so long, and has changed since, is waited for.
const BUSY_AFTER: Duration = Duration::from_secs(5);
/// Files that are named.
const NAMED_MAX: usize = 10;

/// Files that are waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// How many somebody has open.
    pub open_files: u64,
    /// The first that are waited for.
    pub awaited: Vec<AwaitedFile>,
}

impl Held {
    /// Names a file, where there are not many already.
    pub fn name(&mut self, path: impl FnOnce() -> Vec<u8>, why: Awaited) {
        if self.awaited.len() < NAMED_MAX {
            let path = path();
            self.awaited.push(AwaitedFile { path, why });
        }
    }
}

/// Undrained files that nobody had open at the last look: since when, and as they were then.
#[derive(Default)]
pub struct Seen(HashMap<ObjectId, (Instant, Generation)>);

impl Seen {
    /// Goes on with a file of the look before. Whether it is busy: it is still there, and is not
    /// what it was.
    pub fn go_on(
        &mut self,
        before: &Seen,
        (object, generation): (ObjectId, Generation),
        now: Instant,
    ) -> bool {
        let seen = before.0.get(&object).copied().unwrap_or((now, generation));
        self.0.insert(object, seen);
        let (since, was) = seen;
        now.duration_since(since) >= BUSY_AFTER && was != generation
    }
}

/// A file that is to move to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaver {
    /// Its object.
    pub object: ObjectId,
    /// The server that takes it.
    pub to: u16,
}

/// By the ids of servers.
#[derive(Default)]
pub struct Emptying {
    servers: RwLock<BTreeSet<u16>>,
    /// Held while the order is changed: what is on record is what is in force.
    changing: Mutex<()>,
    /// As they were last looked at.
    held: Mutex<BTreeMap<u16, Held>>,
    /// Of the last look.
    seen: Mutex<Seen>,
    /// As they were last chosen, the next first.
    leavers: Mutex<VecDeque<Leaver>>,
    /// What is moving now.
    moving: Mutex<Option<ObjectId>>,
    /// Files that could not move, and when that may be tried again: until then they are drained.
    stay: Mutex<HashMap<ObjectId, Instant>>,
}

impl Emptying {
    /// Goes on with the orders of before.
    pub fn restore(&self, ns: &Namespace) -> Result<(), NsError> {
        if let Some(bytes) = ns.get_fact(NAME)? {
            *self.servers.write() = postcard::from_bytes(&bytes).map_err(in_record(WHAT))?;
        }
        Ok(())
    }

    /// Orders it, or takes the order back. It is on stable storage when this returns. False, and
    /// nothing is changed, if of `all` that hold data no other would be left: two orders at once
    /// must not each take the other's for the one that stays.
    pub fn order(
        &self,
        ns: &Namespace,
        (server, emptied): (u16, bool),
        all: &[u16],
    ) -> Result<bool, NsError> {
        let _one = self.changing.lock();
        let mut servers = self.servers.read().clone();
        let stays = |other: &u16| *other != server && !servers.contains(other);
        if emptied && !all.iter().any(stays) {
            return Ok(false);
        }
        match emptied {
            true => servers.insert(server),
            false => servers.remove(&server),
        };
        let bytes = postcard::to_stdvec(&servers).map_err(in_record(WHAT))?;
        ns.put_fact(NAME, &bytes)?;
        ns.sync()?;
        *self.servers.write() = servers;
        Ok(true)
    }

    /// Whether a server's node is to be empty.
    pub fn has(&self, server: u16) -> bool {
        self.servers.read().contains(&server)
    }

    /// All of them.
    pub fn servers(&self) -> BTreeSet<u16> {
        self.servers.read().clone()
    }

    /// Somebody has looked what is waited for.
    pub fn note_held(&self, held: BTreeMap<u16, Held>, seen: Seen) {
        *self.held.lock() = held;
        *self.seen.lock() = seen;
    }

    /// What the last look has seen; the next one has its own.
    pub fn take_seen(&self) -> Seen {
        std::mem::take(&mut *self.seen.lock())
    }

    /// Somebody has chosen which files are to move.
    pub fn note_leavers(&self, leavers: impl Iterator<Item = Leaver>) {
        *self.leavers.lock() = leavers.collect();
    }

    /// The next of them. It moves until [`Self::moved`].
    pub fn next_leaver(&self) -> Option<Leaver> {
        let leaver = self.leavers.lock().pop_front()?;
        *self.moving.lock() = Some(leaver.object);
        Some(leaver)
    }

    /// It has moved, or could not; then it is drained for a while.
    pub fn moved(&self, leaver: &Leaver, done: bool) {
        *self.moving.lock() = None;
        if !done {
            let until = Instant::now() + STAYS_FOR;
            self.stay.lock().insert(leaver.object, until);
        }
    }

    /// Whether it is moving now.
    pub fn is_moving(&self, object: ObjectId) -> bool {
        *self.moving.lock() == Some(object)
    }

    /// Whether it could not move a moment ago.
    pub fn stays(&self, object: ObjectId) -> bool {
        self.stay.lock().contains_key(&object)
    }

    /// Those whose time is over may be tried again.
    pub fn try_again(&self) {
        let now = Instant::now();
        self.stay.lock().retain(|_, until| *until > now);
    }

    /// What is waited for on a node that is emptied.
    pub fn held(&self, server: u16) -> Held {
        self.held.lock().get(&server).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use forebay_kv::memory::Memory;
    use forebay_tiers::PfsTree;

    use super::*;

    #[test]
    fn a_file_is_busy_that_stays_and_changes() {
        let begun = Instant::now();
        let (idle, busy) = (ObjectId(1), ObjectId(2));
        let look = |before: &Seen, changes: u64, after: Duration| {
            let (mut seen, now) = (Seen::default(), begun + after);
            let is_idle_busy = seen.go_on(before, (idle, Generation(1)), now);
            let is_busy = seen.go_on(before, (busy, Generation(changes)), now);
            assert!(!is_idle_busy, "it waits for its turn");
            (seen, is_busy)
        };
        let (first, is_busy) = look(&Seen::default(), 1, Duration::ZERO);
        assert!(!is_busy);
        let (second, is_busy) = look(&first, 2, BUSY_AFTER / 2);
        assert!(!is_busy, "it may be drained yet");
        let (_, is_busy) = look(&second, 3, BUSY_AFTER);
        assert!(is_busy);
        // Gone for a look: it is there anew.
        let (_, is_busy) = look(&Seen::default(), 4, BUSY_AFTER * 2);
        assert!(!is_busy);
    }

    #[test]
    fn not_more_are_named_than_people_read() {
        let mut held = Held::default();
        for _ in 0..100 {
            held.name(|| b"a".to_vec(), Awaited::Open);
        }
        assert_eq!(held.awaited.len(), NAMED_MAX);
    }

    #[test]
    fn of_two_orders_at_once_one_leaves_a_node() {
        let pfs = tempfile::tempdir().expect("tempdir");
        for _ in 0..50 {
            let tree = PfsTree::open(pfs.path()).expect("open");
            let (ns, _) = Namespace::open(tree, Box::new(Memory::new()), [7; 16]).expect("open");
            let emptying = Emptying::default();
            let order = |server: u16, emptied| {
                let ordered = emptying.order(&ns, (server, emptied), &[1, 2]);
                ordered.expect("on record")
            };
            let both = std::thread::scope(|scope| {
                let order = &order;
                let both = [1, 2].map(|server| scope.spawn(move || order(server, true)));
                both.map(|one| one.join().expect("ordered"))
            });
            assert_ne!(both[0], both[1]);
            let (ordered, other) = if both[0] { (1, 2) } else { (2, 1) };
            assert!(emptying.has(ordered) && !emptying.has(other));
            assert!(order(ordered, true), "again");
            assert!(order(ordered, false) && order(other, true));
        }
    }
}
