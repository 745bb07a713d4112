//! Who has locked which bytes of which file, and who waits for that.
//!
//! Invariants:
//!
//! 1. A lock goes with what it was asked through, and with the session of its client, if not
//!    before: after the files are closed, so that who gets it finds what was written under it.
//! 2. Who waits takes no thread. A lock that is granted is the waiting owner's from then on,
//!    whether the client has been told already or not.
//! 3. A ticket that was cancelled is not granted, and one that was granted is not cancelled.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use forebay_policy::locks::{FileLocks, Held, would_deadlock};
use forebay_types::{ByteRange, Errno, Handle, Ino, LockClass, LockMode, limits};
use forebay_wire::{LockHolder, LockOf, Recall};
use parking_lot::Mutex;

use super::recalls::Recalls;

/// A lock that is asked for.
#[derive(Clone, Copy)]
pub struct Ask {
    /// Whose, and of which bytes.
    pub lock: LockOf,
    /// Shared or exclusive.
    pub mode: LockMode,
    /// Who asks, as the client's node calls it.
    pub pid: u32,
    /// It may be waited for.
    pub ticket: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Owner {
    client: u32,
    id: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Via {
    handle: Handle,
    pid: u32,
}

type Lock = Held<Owner, Via>;

struct Waiter {
    wants: Lock,
    ticket: u64,
    client: Arc<Recalls>,
}

/// Clients that have been granted what they have waited for, with their tickets.
type Granted = Vec<(Arc<Recalls>, u64)>;

#[derive(Default)]
struct OfFile {
    locks: FileLocks<Owner, Via>,
    waiting: VecDeque<Waiter>,
}

impl OfFile {
    fn is_free(&self, lock: &Lock) -> bool {
        let mut in_the_way = self.locks.in_the_way(lock.owner, lock.range, lock.mode);
        in_the_way.next().is_none()
    }

    /// Grants what nobody is in the way of any more.
    fn grant(&mut self) -> Granted {
        let mut granted = Granted::new();
        for waiter in std::mem::take(&mut self.waiting) {
            match self.is_free(&waiter.wants) {
                true => {
                    self.locks.give(waiter.wants);
                    granted.push((waiter.client, waiter.ticket));
                }
                false => self.waiting.push_back(waiter),
            }
        }
        granted
    }

    /// Locks that each client holds or waits for.
    fn counts(&self) -> HashMap<u32, usize> {
        let held = self.locks.held().iter().map(|held| held.owner);
        let owners = held.chain(self.waiting.iter().map(|waiter| waiter.wants.owner));
        let mut counts = HashMap::new();
        owners.for_each(|owner| *counts.entry(owner.client).or_default() += 1);
        counts
    }

    /// Takes away what is to go, also of those who wait.
    fn drop_where(&mut self, goes: impl Fn(&Lock) -> bool) {
        self.waiting.retain(|waiter| !goes(&waiter.wants));
        self.locks.drop_where(goes);
    }
}

#[derive(Default)]
struct State {
    files: HashMap<(Ino, LockClass), OfFile>,
    /// Locks that a client holds and waits for.
    counts: HashMap<u32, usize>,
}

impl State {
    /// Changes what there is of one file, grants what that makes free, and tells who has it now: in
    /// that order, for the table is locked meanwhile.
    fn change(&mut self, key: (Ino, LockClass), change: impl FnOnce(&mut OfFile)) {
        let file = self.files.entry(key).or_default();
        let before = file.counts();
        change(file);
        let granted = file.grant();
        let after = file.counts();
        for (client, count) in &before {
            let left = self.counts.get(client).copied().unwrap_or(0);
            self.counts.insert(*client, left.saturating_sub(*count));
        }
        for (client, count) in after {
            *self.counts.entry(client).or_default() += count;
        }
        for client in before.keys() {
            if self.counts.get(client) == Some(&0) {
                self.counts.remove(client);
            }
        }
        if file.locks.held().is_empty() && file.waiting.is_empty() {
            self.files.remove(&key);
        }
        for (client, ticket) in granted {
            // Of a client that has gone, the end of its session takes the lock away again.
            client.recall(Recall::Granted(ticket));
        }
    }

    fn has_too_many(&self, client: u32) -> bool {
        let count = self.counts.get(&client).copied().unwrap_or(0);
        count >= limits::LOCKS_PER_SESSION_MAX
    }

    /// Whether who asks would wait for itself.
    fn would_deadlock(&self, key: (Ino, LockClass), wants: &Lock) -> bool {
        let in_the_way = |file: &OfFile, wants: &Lock| -> Vec<Owner> {
            let held = file.locks.in_the_way(wants.owner, wants.range, wants.mode);
            held.map(|held| held.owner).collect()
        };
        let waits_for = |owner: Owner| -> Vec<Owner> {
            let files = self.files.iter().filter(|((_, class), _)| *class == key.1);
            let waits = files.flat_map(|(_, file)| file.waiting.iter().map(move |w| (file, w)));
            let waits = waits.filter(|(_, waiter)| waiter.wants.owner == owner);
            let others = waits.flat_map(|(file, waiter)| in_the_way(file, &waiter.wants));
            others.collect()
        };
        let first = self.files.get(&key).map(|file| in_the_way(file, wants));
        would_deadlock(wants.owner, first.unwrap_or_default(), waits_for)
    }
}

/// See the module.
#[derive(Default)]
pub struct LockTable(Mutex<State>);

impl LockTable {
    /// Locks bytes for a client. Whether that is done, or waited for.
    ///
    /// # Errors
    /// `EAGAIN` where somebody is in the way and no ticket was given, or the client could not be
    /// told; `EDEADLK` where the owner would wait for itself; `ENOLCK` where the client has too
    /// many.
    pub fn lock(
        &self,
        ino: Ino,
        (client, node): (&Arc<Recalls>, u32),
        ask: Ask,
    ) -> Result<bool, Errno> {
        let (key, wants) = ((ino, ask.lock.class), wanted(node, &ask));
        let mut state = self.0.lock();
        if state.has_too_many(node) {
            return Err(Errno::ENOLCK);
        }
        if ask.lock.class == LockClass::Whole {
            // As flock(2) does: another mode is got after the first was given back.
            state.change(key, |file| {
                file.locks
                    .drop_where(|held| held.owner == wants.owner && held.mode != wants.mode);
            });
        }
        let is_free = state
            .files
            .get(&key)
            .is_none_or(|file| file.is_free(&wants));
        let waits = match (is_free, ask.ticket) {
            (true, _) => None,
            (false, Some(ticket)) if client.are_followed() => Some(ticket),
            (false, _) => return Err(Errno::EAGAIN),
        };
        // Linux looks for that only among locks of fcntl(2).
        if waits.is_some()
            && ask.lock.class == LockClass::Bytes
            && state.would_deadlock(key, &wants)
        {
            return Err(Errno::EDEADLK);
        }
        state.change(key, |file| match waits {
            None => file.locks.give(wants),
            Some(ticket) => {
                // Who asks again does not wait twice.
                file.waiting
                    .retain(|waiter| (waiter.wants.owner.client, waiter.ticket) != (node, ticket));
                file.waiting.push_back(Waiter {
                    wants,
                    ticket,
                    client: client.clone(),
                });
            }
        });
        Ok(waits.is_none())
    }

    /// Gives bytes back.
    ///
    /// # Errors
    /// `ENOLCK` where that makes two locks of one, and the client has too many.
    pub fn unlock(&self, ino: Ino, node: u32, lock: &LockOf) -> Result<(), Errno> {
        let owner = owner(node, lock);
        let mut state = self.0.lock();
        let file = state.files.get(&(ino, lock.class));
        let splits = file.is_some_and(|file| {
            file.locks.held().iter().any(|held| {
                held.owner == owner
                    && held.range.first < lock.range.first
                    && held.range.last > lock.range.last
            })
        });
        if splits && state.has_too_many(node) {
            return Err(Errno::ENOLCK);
        }
        state.change((ino, lock.class), |file| {
            file.locks.drop_range(owner, lock.range);
        });
        Ok(())
    }

    /// Who is in the way of a lock.
    pub fn in_the_way(
        &self,
        ino: Ino,
        node: u32,
        lock: &LockOf,
        mode: LockMode,
    ) -> Option<LockHolder> {
        let state = self.0.lock();
        let file = state.files.get(&(ino, lock.class))?;
        let owner = owner(node, lock);
        let held = file.locks.in_the_way(owner, lock.range, mode).next()?;
        Some(LockHolder {
            range: held.range,
            mode: held.mode,
            // On another node it would name another process.
            pid: match held.owner.client == node {
                true => held.via.pid,
                false => 0,
            },
        })
    }

    /// Ends a wait; `ENOENT` where nobody waits with this ticket.
    pub fn cancel(&self, node: u32, ticket: u64) -> Result<(), Errno> {
        let is_it = |waiter: &Waiter| waiter.wants.owner.client == node && waiter.ticket == ticket;
        let mut state = self.0.lock();
        let found = state
            .files
            .iter()
            .find(|(_, file)| file.waiting.iter().any(is_it));
        let key = *found.ok_or(Errno::ENOENT)?.0;
        state.change(key, |file| file.waiting.retain(|waiter| !is_it(waiter)));
        Ok(())
    }

    /// What was asked for through a handle goes with it.
    pub fn release(&self, ino: Ino, handle: Handle) {
        let mut state = self.0.lock();
        for class in [LockClass::Bytes, LockClass::Whole] {
            if state.files.contains_key(&(ino, class)) {
                let goes = |lock: &Lock| lock.via.handle == handle;
                state.change((ino, class), |file| file.drop_where(goes));
            }
        }
    }

    /// A client has gone.
    pub fn end(&self, node: u32) {
        let mut state = self.0.lock();
        if !state.counts.contains_key(&node) {
            return;
        }
        let keys: Vec<(Ino, LockClass)> = state.files.keys().copied().collect();
        for key in keys {
            let goes = |lock: &Lock| lock.owner.client == node;
            state.change(key, |file| file.drop_where(goes));
        }
    }
}

fn owner(node: u32, lock: &LockOf) -> Owner {
    Owner {
        client: node,
        id: lock.owner,
    }
}

fn wanted(node: u32, ask: &Ask) -> Lock {
    Held {
        owner: owner(node, &ask.lock),
        range: match ask.lock.class {
            LockClass::Bytes => ask.lock.range,
            LockClass::Whole => ByteRange::ALL,
        },
        mode: ask.mode,
        via: Via {
            handle: ask.lock.handle,
            pid: ask.pid,
        },
    }
}

#[cfg(test)]
mod tests {
    use forebay_wire::Response;

    use super::*;

    const FILE: Ino = Ino(7);
    const SHARED: LockMode = LockMode::Shared;
    const EXCLUSIVE: LockMode = LockMode::Exclusive;

    #[derive(Default)]
    struct Lab {
        table: LockTable,
        clients: HashMap<u32, (Arc<Recalls>, u64)>,
    }

    fn of(class: LockClass, owner: u64, (first, last): (u64, u64)) -> LockOf {
        LockOf {
            handle: Handle(owner),
            class,
            owner,
            range: ByteRange { first, last },
        }
    }

    fn bytes(owner: u64, range: (u64, u64)) -> LockOf {
        of(LockClass::Bytes, owner, range)
    }

    fn whole(owner: u64) -> LockOf {
        of(LockClass::Whole, owner, (0, 0))
    }

    impl Lab {
        fn ask(
            &mut self,
            node: u32,
            lock: LockOf,
            mode: LockMode,
            ticket: Option<u64>,
        ) -> Result<bool, Errno> {
            let (client, _) = self.clients.entry(node).or_insert_with(|| {
                let client = Arc::new(Recalls::default());
                client.follow(0);
                (client, 0)
            });
            let ask = Ask {
                lock,
                mode,
                pid: 100 + node,
                ticket,
            };
            self.table.lock(FILE, (client, node), ask)
        }

        /// The tickets that a client has been told of since the last time.
        fn told(&mut self, node: u32) -> Vec<u64> {
            let (client, seen) = self.clients.get_mut(&node).expect("a client");
            let Response::Recalls { last, recalls } = client.follow(*seen) else {
                panic!("no recalls");
            };
            *seen = last;
            let ticket = |recall: Recall| match recall {
                Recall::Granted(ticket) => ticket,
                other => panic!("{other:?}"),
            };
            recalls.into_iter().map(ticket).collect()
        }

        fn unlock(&self, node: u32, lock: &LockOf) {
            self.table.unlock(FILE, node, lock).expect("few");
        }

        fn is_empty(&self) -> bool {
            let state = self.table.0.lock();
            state.files.is_empty() && state.counts.is_empty()
        }
    }

    #[test]
    fn who_waits_is_granted_in_the_order_of_coming_and_told_once() {
        let mut lab = Lab::default();
        assert_eq!(lab.ask(1, bytes(1, (0, 9)), EXCLUSIVE, None), Ok(true));
        assert_eq!(
            lab.ask(2, bytes(1, (5, 5)), SHARED, None),
            Err(Errno::EAGAIN)
        );
        assert_eq!(lab.ask(2, bytes(1, (5, 5)), EXCLUSIVE, Some(4)), Ok(false));
        assert_eq!(lab.ask(3, bytes(1, (5, 6)), EXCLUSIVE, Some(9)), Ok(false));
        lab.unlock(1, &bytes(1, (0, 4)));
        assert!(lab.told(2).is_empty());
        lab.unlock(1, &bytes(1, (5, 6)));
        assert_eq!((lab.told(2), lab.told(3)), (vec![4], vec![]));
        lab.table.release(FILE, Handle(1));
        // All handles of this test have one number: what the second one had went, too.
        assert!(lab.is_empty());
    }

    #[test]
    fn what_a_client_had_goes_with_the_client_and_with_its_handle() {
        let mut lab = Lab::default();
        assert_eq!(lab.ask(1, bytes(1, (0, 9)), EXCLUSIVE, None), Ok(true));
        assert_eq!(lab.ask(1, whole(1), EXCLUSIVE, None), Ok(true));
        assert_eq!(lab.ask(2, bytes(2, (0, 9)), EXCLUSIVE, Some(5)), Ok(false));
        assert_eq!(lab.ask(3, whole(3), SHARED, Some(6)), Ok(false));
        assert_eq!(lab.ask(4, whole(4), SHARED, Some(7)), Ok(false));
        lab.table.end(1);
        assert_eq!(lab.told(2), [5]);
        assert_eq!((lab.told(3), lab.told(4)), (vec![6], vec![7]));
        lab.table.release(FILE, Handle(2));
        lab.table.release(FILE, Handle(3));
        assert_eq!(lab.ask(1, whole(1), EXCLUSIVE, Some(8)), Ok(false));
        lab.table.end(1);
        lab.table.end(4);
        assert!(lab.told(1).is_empty());
        assert!(lab.is_empty());
    }

    #[test]
    fn a_wait_that_was_ended_is_not_granted_and_one_that_was_granted_not_ended() {
        let mut lab = Lab::default();
        assert_eq!(lab.ask(1, bytes(1, (0, 9)), EXCLUSIVE, None), Ok(true));
        assert_eq!(lab.ask(2, bytes(2, (0, 9)), EXCLUSIVE, Some(5)), Ok(false));
        assert_eq!(lab.ask(3, bytes(3, (0, 9)), EXCLUSIVE, Some(5)), Ok(false));
        assert_eq!(lab.table.cancel(2, 6), Err(Errno::ENOENT));
        assert_eq!(lab.table.cancel(2, 5), Ok(()));
        lab.unlock(1, &bytes(1, (0, 9)));
        assert_eq!((lab.told(2), lab.told(3)), (vec![], vec![5]));
        assert_eq!(lab.table.cancel(3, 5), Err(Errno::ENOENT));
    }

    #[test]
    fn who_would_wait_for_itself_is_refused_and_holds_on_to_what_it_has() {
        let mut lab = Lab::default();
        assert_eq!(lab.ask(1, bytes(1, (0, 0)), EXCLUSIVE, None), Ok(true));
        assert_eq!(lab.ask(2, bytes(2, (1, 1)), EXCLUSIVE, None), Ok(true));
        assert_eq!(lab.ask(3, bytes(3, (2, 2)), EXCLUSIVE, None), Ok(true));
        assert_eq!(lab.ask(1, bytes(1, (1, 1)), EXCLUSIVE, Some(1)), Ok(false));
        assert_eq!(lab.ask(2, bytes(2, (2, 2)), SHARED, Some(1)), Ok(false));
        let last = lab.ask(3, bytes(3, (0, 0)), SHARED, Some(1));
        assert_eq!(last, Err(Errno::EDEADLK));
        lab.unlock(3, &bytes(3, (2, 2)));
        assert_eq!((lab.told(2), lab.told(1)), (vec![1], vec![]));
    }

    #[test]
    fn two_who_share_a_file_and_both_want_it_alone_do_not_wait_for_ever() {
        let mut lab = Lab::default();
        assert_eq!(lab.ask(1, whole(1), SHARED, None), Ok(true));
        assert_eq!(lab.ask(2, whole(2), SHARED, None), Ok(true));
        // As flock(2) says: what it has had goes first.
        assert_eq!(lab.ask(1, whole(1), EXCLUSIVE, Some(1)), Ok(false));
        assert_eq!(lab.ask(2, whole(2), EXCLUSIVE, Some(2)), Ok(false));
        assert_eq!((lab.told(1), lab.told(2)), (vec![1], vec![]));
        // Who wants less gives all back first: the other one was here before.
        assert_eq!(lab.ask(1, whole(1), SHARED, None), Err(Errno::EAGAIN));
        assert_eq!(lab.told(2), [2]);
    }

    #[test]
    fn who_is_in_the_way_is_named_on_its_own_node_only() {
        let mut lab = Lab::default();
        assert_eq!(lab.ask(1, bytes(1, (3, 5)), SHARED, None), Ok(true));
        let look = |node, owner, mode| {
            let lock = bytes(owner, (0, ByteRange::END));
            lab.table.in_the_way(FILE, node, &lock, mode)
        };
        let holder = |pid| LockHolder {
            range: ByteRange { first: 3, last: 5 },
            mode: SHARED,
            pid,
        };
        assert_eq!(look(1, 1, EXCLUSIVE), None);
        assert_eq!(look(1, 2, SHARED), None);
        assert_eq!(look(1, 2, EXCLUSIVE), Some(holder(101)));
        assert_eq!(look(2, 1, EXCLUSIVE), Some(holder(0)));
    }

    #[test]
    fn a_client_has_so_many_and_no_more() {
        let mut lab = Lab::default();
        let most = limits::LOCKS_PER_SESSION_MAX as u64;
        // Counted, not locked one by one.
        lab.table.0.lock().counts.insert(1, most as usize);
        assert_eq!(
            lab.ask(1, bytes(1, (0, 0)), SHARED, None),
            Err(Errno::ENOLCK)
        );
        assert_eq!(lab.ask(2, bytes(1, (0, 9)), SHARED, None), Ok(true));
        lab.table.0.lock().counts.insert(2, most as usize);
        let unlock = |range| lab.table.unlock(FILE, 2, &bytes(1, range));
        assert_eq!(unlock((3, 4)), Err(Errno::ENOLCK), "it makes two of one");
        assert_eq!(unlock((0, 4)), Ok(()));
    }

    #[test]
    fn who_cannot_be_told_does_not_wait() {
        let mut lab = Lab::default();
        assert_eq!(lab.ask(1, whole(1), EXCLUSIVE, None), Ok(true));
        lab.clients.insert(2, Default::default());
        assert_eq!(lab.ask(2, whole(2), EXCLUSIVE, Some(1)), Err(Errno::EAGAIN));
    }
}
