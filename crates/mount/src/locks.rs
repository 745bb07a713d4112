//! Locks of files that others may have open, too: the server keeps them.
//!
//! A lock that is waited for holds no thread. Its reply lies here until the server says that the
//! lock is there, or a signal ends the wait. Invariants:
//!
//! 1. Whoever takes the reply out answers, and nobody else.
//! 2. A signal that comes before the wait has begun ends it all the same.
//! 3. A lock that the server has granted is never answered with an error: the program would not
//!    give it back.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use forebay_client::{Client, Progress};
use forebay_types::{ByteRange, Errno, Handle, Ino, LockClass, LockMode};
use forebay_wire::LockOf;
use fuser::{LockOwner, ReplyEmpty, ReplyLock};
use parking_lot::Mutex;

use crate::convert::errno;
use crate::inflight::{Turn, finish};
use crate::pool::Pool;
use crate::serving::Adapter;

/// Signals that are remembered although nobody waits yet.
const EARLY_MAX: usize = 1024;
/// Between two tries where the server is not ready yet.
const PAUSE: Duration = Duration::from_millis(50);
/// The kernel tells of the last close of a file after close(2) has returned, and a lock that goes
/// with it is still there for a moment: who finds it looks again after these pauses.
const CLOSING: [Duration; 4] = [
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(4),
    Duration::from_millis(8),
];
/// What the server says while it waits for clients of before a restart.
const AWAITED: Errno = Errno::EBUSY;

/// A lock that is asked for.
#[derive(Clone, Copy)]
struct Ask {
    lock: LockOf,
    mode: LockMode,
    pid: u32,
}

struct Wait {
    reply: ReplyEmpty,
    ask: Ask,
    /// Whose lock it is to be.
    owner: Option<(Ino, u64)>,
    /// The session in which it is asked for.
    generation: u64,
    /// The server knows of it.
    asked: bool,
    /// Somebody asks the server.
    asking: bool,
    interrupted: bool,
}

#[derive(Default)]
struct State {
    /// By which locks were asked for.
    handles: HashSet<Handle>,
    /// By the number that the kernel has given to the request.
    waits: HashMap<u64, Wait>,
    /// Requests whose programs were sent a signal, and that have not come to wait.
    early: VecDeque<u64>,
    /// Who has, or may have, locks of bytes of a file.
    owners: HashMap<Ino, Vec<u64>>,
}

/// What an asked-for lock has come to.
#[derive(PartialEq, Eq)]
enum Then {
    Nothing,
    GiveUp,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Locks(Mutex<State>);

impl Locks {
    /// Notes that an owner may have locks from here on.
    fn note(&self, ino: Ino, owner: u64) {
        let mut state = self.0.lock();
        let owners = state.owners.entry(ino).or_default();
        if !owners.contains(&owner) {
            owners.push(owner);
        }
    }

    /// Notes that locks may go with a handle.
    fn note_handle(&self, handle: Handle) {
        self.0.lock().handles.insert(handle);
    }

    /// Whether locks may go with a handle, which is closed.
    pub(crate) fn take_handle(&self, handle: Handle) -> bool {
        self.0.lock().handles.remove(&handle)
    }

    /// Whether an owner may have locks; it has none from here on.
    fn take(&self, ino: Ino, owner: u64) -> bool {
        let mut state = self.0.lock();
        let Some(owners) = state.owners.get_mut(&ino) else {
            return false;
        };
        let before = owners.len();
        owners.retain(|one| *one != owner);
        let had = owners.len() < before;
        if owners.is_empty() {
            state.owners.remove(&ino);
        }
        had
    }

    /// The kernel does not know the file any more.
    pub(crate) fn forgotten(&self, ino: Ino) {
        let mut state = self.0.lock();
        if !state.owners.is_empty() {
            state.owners.remove(&ino);
        }
    }

    /// A wait is about to begin.
    fn begin(&self, ticket: u64, reply: ReplyEmpty, ask: Ask, owner: Option<(Ino, u64)>) {
        let mut state = self.0.lock();
        let interrupted = state.early.contains(&ticket);
        let wait = Wait {
            reply,
            ask,
            owner,
            generation: 0,
            asked: false,
            asking: false,
            interrupted,
        };
        state.waits.insert(ticket, wait);
    }

    /// Somebody is about to ask the server, alone. False if that is not to be done.
    fn begin_asking(&self, ticket: u64) -> bool {
        let mut state = self.0.lock();
        let Some(wait) = state.waits.get_mut(&ticket) else {
            return false;
        };
        !std::mem::replace(&mut wait.asking, true)
    }

    /// The server is about to be asked. False if a signal has ended the wait.
    fn asks(&self, ticket: u64) -> bool {
        let mut state = self.0.lock();
        let Some(wait) = state.waits.get_mut(&ticket) else {
            return false;
        };
        wait.asked = false;
        !wait.interrupted
    }

    /// The server knows of a wait, in this session.
    fn waits(&self, ticket: u64, generation: u64) -> Then {
        let mut state = self.0.lock();
        let Some(wait) = state.waits.get_mut(&ticket) else {
            return Then::Nothing;
        };
        wait.asked = true;
        wait.asking = false;
        wait.generation = generation;
        match wait.interrupted {
            true => Then::GiveUp,
            false => Then::Nothing,
        }
    }

    /// A program that waits for something was sent a signal.
    fn interrupt(&self, ticket: u64) -> Then {
        let mut state = self.0.lock();
        let Some(wait) = state.waits.get_mut(&ticket) else {
            // The numbers are used once: one that never comes to wait does no harm.
            if state.early.len() >= EARLY_MAX {
                state.early.pop_front();
            }
            state.early.push_back(ticket);
            return Then::Nothing;
        };
        wait.interrupted = true;
        match wait.asked {
            true => Then::GiveUp,
            false => Then::Nothing,
        }
    }

    /// Whether a wait is one of an earlier session: nobody grants it any more.
    fn is_of_before(&self, ticket: u64, generation: u64) -> bool {
        let state = self.0.lock();
        let wait = state.waits.get(&ticket);
        wait.is_some_and(|wait| wait.generation < generation)
    }

    /// Answers who waits with this ticket, if somebody does.
    fn answer(&self, ticket: u64, outcome: Result<(), Errno>) {
        let wait = self.0.lock().waits.remove(&ticket);
        // A close beside the wait may have taken the note away.
        if let (Some((ino, owner)), Ok(())) = (wait.as_ref().and_then(|w| w.owner), outcome) {
            self.note(ino, owner);
        }
        match (wait.map(|wait| wait.reply), outcome) {
            (Some(reply), Ok(())) => reply.ok(),
            (Some(reply), Err(error)) => reply.error(errno(error)),
            (None, _) => {}
        }
    }

    /// The server has granted it.
    pub(crate) fn granted(&self, ticket: u64) {
        self.answer(ticket, Ok(()));
    }

    /// Who has waited in a session up to this one, and is to wait in the next.
    fn waited(&self, generation: u64) -> Vec<(u64, Ask)> {
        let state = self.0.lock();
        let asked = state.waits.iter();
        let asked = asked.filter(|(_, wait)| wait.asked && wait.generation <= generation);
        asked.map(|(ticket, wait)| (*ticket, wait.ask)).collect()
    }
}

/// Sessions up to this one are lost: who has waited in one waits in the next. Locks that are held
/// the client has again by itself.
pub(crate) fn wait_again(locks: &Arc<Locks>, lost: u64, (client, pool): (&Client, &Pool)) {
    for (ticket, ask) in locks.waited(lost) {
        let waits = Waits {
            client: client.clone(),
            locks: locks.clone(),
            ticket,
        };
        pool.run(Box::new(move |_| waits.ask_until_known(ask)));
    }
}

/// A lock as the kernel asks for it.
pub(crate) struct Wanted {
    pub(crate) ino: Ino,
    pub(crate) handle: Handle,
    pub(crate) owner: LockOwner,
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) kind: i32,
    pub(crate) pid: u32,
    pub(crate) by_flock: bool,
}

impl Wanted {
    fn of(&self) -> LockOf {
        let class = match self.by_flock {
            true => LockClass::Whole,
            false => LockClass::Bytes,
        };
        LockOf {
            handle: self.handle,
            class,
            owner: self.owner.0,
            range: ByteRange {
                first: self.first,
                last: self.last,
            },
        }
    }

    /// `None` to give bytes back.
    fn mode(&self) -> Result<Option<LockMode>, Errno> {
        match self.kind {
            libc::F_RDLCK => Ok(Some(LockMode::Shared)),
            libc::F_WRLCK => Ok(Some(LockMode::Exclusive)),
            libc::F_UNLCK => Ok(None),
            _ => Err(Errno::EINVAL),
        }
    }
}

impl Adapter {
    /// Answers a request to lock or unlock. `ticket` is the kernel's number of the request, where
    /// the lock may be waited for.
    pub(crate) fn answer_lock(&self, wanted: &Wanted, ticket: Option<u64>, reply: ReplyEmpty) {
        let lock = wanted.of();
        let mode = match wanted.mode() {
            Ok(mode) => mode,
            Err(error) => return reply.error(errno(error)),
        };
        let Some(mode) = mode else {
            let turn = self.in_flight.turn(reply);
            finish(self.client.unlock(lock), &turn);
            return;
        };
        if lock.class == LockClass::Bytes {
            self.locks.note(wanted.ino, lock.owner);
        }
        self.locks.note_handle(lock.handle);
        let client = self.client.clone();
        let pid = wanted.pid;
        let Some(ticket) = ticket else {
            return self.try_lock((lock, mode, pid), reply);
        };
        let owner = (lock.class == LockClass::Bytes).then_some((wanted.ino, lock.owner));
        let ask = Ask { lock, mode, pid };
        self.locks.begin(ticket, reply, ask, owner);
        let waits = Waits {
            client,
            locks: self.locks.clone(),
            ticket,
        };
        // The server may be away, and the watchdog sees only replies that lie in slots.
        self.pool.run(Box::new(move |_| waits.ask_until_known(ask)));
    }

    /// Answers who is in the way of a lock.
    pub(crate) fn answer_lock_holder(&self, wanted: &Wanted, reply: ReplyLock) {
        let turn = self.in_flight.turn(reply);
        let mode = wanted.mode().and_then(|mode| mode.ok_or(Errno::EINVAL));
        let found = mode.and_then(|mode| self.client.test_lock(wanted.of(), mode));
        match (turn.reply::<ReplyLock>(), found) {
            (Some(reply), Ok(None)) => reply.locked(0, 0, libc::F_UNLCK, 0),
            (Some(reply), Ok(Some(holder))) => {
                let kind = match holder.mode {
                    LockMode::Shared => libc::F_RDLCK,
                    LockMode::Exclusive => libc::F_WRLCK,
                };
                reply.locked(holder.range.first, holder.range.last, kind, holder.pid);
            }
            (Some(reply), Err(error)) => reply.error(errno(error)),
            (None, _) => {}
        }
    }

    /// Answers a request for a lock that is not waited for.
    fn try_lock(&self, (lock, mode, pid): (LockOf, LockMode, u32), reply: ReplyEmpty) {
        let client = self.client.clone();
        // Of a lock that nobody waits for any more nobody knows: it is given back.
        let end = {
            let client = client.clone();
            move |done: Result<(), Errno>, turn: &Turn<'_>| {
                if !finish(done, turn)
                    && done.is_ok()
                    && let Err(error) = client.unlock(lock)
                {
                    tracing::warn!("a lock of a killed program stays: {error}");
                }
            }
        };
        let try_it = move || client.lock(lock, mode, pid, None).map(drop);
        let turn = self.in_flight.turn(reply);
        let done = try_it();
        if !matches!(done, Err(AWAITED | Errno::EAGAIN)) {
            return end(done, &turn);
        }
        let Some(reply) = turn.reply::<ReplyEmpty>() else {
            return;
        };
        let in_flight = self.in_flight.clone();
        self.pool.run(Box::new(move |_| {
            let turn = in_flight.waiting_turn(reply);
            let mut done = done;
            let mut closing = CLOSING.into_iter();
            while turn.is_waited_for() {
                let pause = match done {
                    Err(AWAITED) => Some(PAUSE),
                    Err(Errno::EAGAIN) => closing.next(),
                    _ => None,
                };
                let Some(pause) = pause else {
                    break;
                };
                std::thread::sleep(pause);
                done = try_it();
            }
            end(done, &turn);
        }));
    }

    /// A process closes a file: its locks of bytes of that file go, as fcntl(2) says.
    pub(crate) fn answer_close(
        &self,
        (ino, handle): (Ino, Handle),
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        if !self.locks.take(ino, owner.0) {
            return reply.ok();
        }
        let turn = self.in_flight.turn(reply);
        let unlocked = self.client.unlock(LockOf {
            handle,
            class: LockClass::Bytes,
            owner: owner.0,
            range: ByteRange::ALL,
        });
        // With the session of the file its locks have gone, too.
        let unlocked = match unlocked {
            Err(Errno::ESTALE) => Ok(()),
            unlocked => unlocked,
        };
        finish(unlocked, &turn);
    }

    /// A program that waits for something was sent a signal.
    pub(crate) fn interrupted(&self, ticket: u64) {
        if self.locks.interrupt(ticket) == Then::GiveUp {
            let waits = Waits {
                client: self.client.clone(),
                locks: self.locks.clone(),
                ticket,
            };
            self.pool.run(Box::new(move |_| waits.give_up()));
        }
    }
}

/// A lock that is waited for.
struct Waits {
    client: Client,
    locks: Arc<Locks>,
    ticket: u64,
}

impl Waits {
    /// Asks the server until the wait is known there, or over.
    fn ask_until_known(&self, ask: Ask) {
        if !self.locks.begin_asking(self.ticket) {
            return;
        }
        while !self.ask(ask) {
            std::thread::sleep(PAUSE);
        }
    }

    /// Asks the server once. Whether that need not be done again.
    fn ask(&self, ask: Ask) -> bool {
        let Ask { lock, mode, pid } = ask;
        if !self.locks.asks(self.ticket) {
            self.locks.answer(self.ticket, Err(Errno::EINTR));
            return true;
        }
        let before = self.client.generation();
        match self.client.lock(lock, mode, pid, Some(self.ticket)) {
            Ok(Progress::WouldWait) => {
                let now = self.client.generation();
                // Which of two sessions has answered is not known: what waits there is asked for
                // once more, and is the same wait.
                if before != now {
                    return false;
                }
                if self.locks.waits(self.ticket, now) == Then::GiveUp {
                    self.give_up();
                }
                true
            }
            // Nobody can be told yet of what is granted, or others have not come back yet.
            Err(Errno::EAGAIN | AWAITED) => false,
            outcome => {
                self.locks.answer(self.ticket, outcome.map(drop));
                true
            }
        }
    }

    /// Ends the wait. One that has been granted meanwhile is answered by who follows the server.
    fn give_up(&self) {
        let generation = self.client.generation();
        match self.client.cancel_lock(self.ticket) {
            Ok(()) => self.locks.answer(self.ticket, Err(Errno::EINTR)),
            Err(Errno::ENOENT) if !self.locks.is_of_before(self.ticket, generation) => {}
            Err(Errno::ENOENT) => self.locks.answer(self.ticket, Err(Errno::EINTR)),
            Err(error) => self.locks.answer(self.ticket, Err(error)),
        }
    }
}
