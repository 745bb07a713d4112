//! Who serves which request, so that a request that blocks does not hold up the others.
//!
//! The thread that reads a request serves it, or hands it to the pool if it may take long. When the
//! PFS stops answering, a thread may block in a call on the PFS until the PFS answers again. Then
//! the watchdog acts:
//!
//! 1. It lets a spare reader read in the place of the thread that blocks.
//! 2. It tells by itself what was last known of the root, whoever does not answer: `umount` asks.
//! 3. It has a thread of the pool ask once more for what may be known without the PFS: a name,
//!    attributes.
//! 4. It answers what is left with an error.
//! 5. It lets go who has been killed, whatever the request waits for: the kernel lets a program end
//!    only with the answer.
//!
//! For that, the reply of every request under way lies in the slot of its thread, and whoever takes
//! the reply out answers.

use std::cell::OnceCell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use forebay_client::Client;
use forebay_policy::readers;
use forebay_types::{Errno, Handle, Ino, Statfs};
use forebay_wire::Shown;
use fuser::{
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLock,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::asker;
use crate::belief::Belief;
use crate::convert::{attr, errno};
use crate::forgets::{Began, Forgets};
use crate::paced::PacedAnswers;
use crate::recalled::{Asked, Recalled};

mod watch;

pub(crate) use watch::{Watched, watch};

/// Readers of the kernel's requests beyond those that serve as a rule. So many may block at once
/// before nobody is left; each costs its stack.
pub(crate) const SPARES: usize = 62;
/// Time between two looks of the watchdog.
const TICK: Duration = Duration::from_millis(100);
/// A thread that serves one request for so many ticks is replaced.
const REPLACED_AFTER_TICKS: u64 = 2;
/// A request as old as this is asked again without the PFS, if that does not answer.
const ASKED_AGAIN_AFTER_TICKS: u64 = 10;

macro_rules! replies {
    ($($name:ident),* $(,)?) => {
        /// The reply of a request under way.
        pub(crate) enum Pending {
            $($name($name),)*
            /// A name that may be known without the PFS.
            Lookup(ReplyEntry, Ino, Box<[u8]>, u32),
            /// An id whose attributes may be known without the PFS.
            Getattr(ReplyAttr, Ino, Option<Handle>),
        }

        impl Pending {
            fn fail(self, with: Errno) {
                match self {
                    $(Pending::$name(reply) => reply.error(errno(with)),)*
                    Pending::Lookup(reply, ..) => reply.error(errno(with)),
                    Pending::Getattr(reply, ..) => reply.error(errno(with)),
                }
            }
        }

        $(impl From<$name> for Pending {
            fn from(reply: $name) -> Pending {
                Pending::$name(reply)
            }
        })*
    };
}

replies!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyDirectory,
    ReplyEmpty,
    ReplyEntry,
    ReplyLock,
    ReplyLseek,
    ReplyOpen,
    ReplyStatfs,
    ReplyWrite,
    ReplyXattr,
);

/// Types of replies as they come back out of a slot.
pub(crate) trait Answer: Sized {
    fn of(pending: Pending) -> Option<Self>;
}

macro_rules! answers {
    ($($name:ident: $($pattern:pat => $reply:ident),+;)*) => {
        $(impl Answer for $name {
            fn of(pending: Pending) -> Option<$name> {
                match pending {
                    $($pattern => Some($reply),)+
                    _ => None,
                }
            }
        })*
    };
}

answers! {
    ReplyAttr: Pending::ReplyAttr(reply) | Pending::Getattr(reply, ..) => reply;
    ReplyCreate: Pending::ReplyCreate(reply) => reply;
    ReplyData: Pending::ReplyData(reply) => reply;
    ReplyDirectory: Pending::ReplyDirectory(reply) => reply;
    ReplyEmpty: Pending::ReplyEmpty(reply) => reply;
    ReplyEntry: Pending::ReplyEntry(reply) | Pending::Lookup(reply, ..) => reply;
    ReplyLock: Pending::ReplyLock(reply) => reply;
    ReplyLseek: Pending::ReplyLseek(reply) => reply;
    ReplyOpen: Pending::ReplyOpen(reply) => reply;
    ReplyStatfs: Pending::ReplyStatfs(reply) => reply;
    ReplyWrite: Pending::ReplyWrite(reply) => reply;
    ReplyXattr: Pending::ReplyXattr(reply) => reply;
}

/// The place of one thread. Only that thread and the watchdog use it.
struct Slot {
    /// Tick at which the request under way began; 0 for none. Changed with `pending` held.
    since: AtomicU64,
    /// The thread of a program that waits for the answer; 0 for none.
    asker: AtomicU32,
    pending: Mutex<Option<Pending>>,
    /// Nobody waits for the answer any more.
    given_up: AtomicBool,
    /// The thread reads requests.
    reads: AtomicBool,
}

/// Whether nobody waits any more for the answer to what this thread asks.
pub(crate) fn is_given_up() -> bool {
    let is_given_up = |seat: &Seat| seat.slot.given_up.load(Ordering::Acquire);
    SLOT.with(|held| held.get().is_some_and(is_given_up))
}

thread_local! {
    static SLOT: OnceCell<Seat> = const { OnceCell::new() };
}

/// A thread's hold of its slot: it goes when the thread ends.
struct Seat {
    slot: Arc<Slot>,
    in_flight: Weak<InFlightTable>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.slot.reads.load(Ordering::Relaxed)
            && let Some(in_flight) = self.in_flight.upgrade()
        {
            in_flight.reader_ended();
        }
    }
}

/// Told which thread has died.
pub(crate) type OnDeath = Box<dyn Fn(String) + Send + Sync>;

#[derive(Default)]
struct Parked {
    ended: bool,
}

/// All threads of one mount.
pub(crate) struct InFlightTable {
    slots: Mutex<Vec<Arc<Slot>>>,
    /// Counts the watchdog's looks, from 1.
    tick: AtomicU64,
    /// Readers that serve at most while none blocks.
    readers: usize,
    /// Readers that serve a request.
    busy: AtomicUsize,
    /// The most of them at once since the watchdog's last look.
    busy_most: AtomicUsize,
    /// Readers that may serve now.
    allowed: AtomicUsize,
    /// Readers that are not parked.
    running: AtomicUsize,
    parked: Mutex<Parked>,
    unparked: Condvar,
    nudged: Condvar,
    /// The connection to the kernel; its end ends the readers.
    device: OnceLock<OwnedFd>,
    on_death: OnceLock<OnDeath>,
    recalled: Arc<Recalled>,
    pub(crate) paced: PacedAnswers,
    me: Weak<InFlightTable>,
}

/// A request under way on this thread.
pub(crate) struct Turn<'a> {
    in_flight: &'a InFlightTable,
    slot: Arc<Slot>,
    /// It is that of a thread that reads requests.
    reads: bool,
    /// When it began.
    pub(crate) asked: Asked,
}

impl Turn<'_> {
    /// The reply, unless the watchdog has answered already.
    pub(crate) fn reply<R: Answer>(&self) -> Option<R> {
        self.slot.pending.lock().take().and_then(R::of)
    }

    /// The request goes on with a reply that was taken out.
    pub(crate) fn goes_on(&self, reply: impl Into<Pending>) {
        let mut pending = self.slot.pending.lock();
        *pending = Some(reply.into());
        let now = self.in_flight.tick.load(Ordering::Relaxed);
        self.slot.since.store(now, Ordering::Relaxed);
    }

    /// Whether nobody has answered yet.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.slot.pending.lock().is_some()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        {
            let mut pending = self.slot.pending.lock();
            *pending = None;
            self.slot.since.store(0, Ordering::Relaxed);
            self.slot.given_up.store(false, Ordering::Release);
        }
        if self.reads {
            self.in_flight.busy.fetch_sub(1, Ordering::SeqCst);
            self.in_flight.park_if_too_many();
        }
    }
}

impl InFlightTable {
    /// A table for a session in which so many readers serve while none blocks, with [`SPARES`]
    /// more.
    pub(crate) fn new(readers: usize, recalled: Arc<Recalled>) -> Arc<InFlightTable> {
        Arc::new_cyclic(|me| InFlightTable {
            me: me.clone(),
            device: OnceLock::new(),
            on_death: OnceLock::new(),
            recalled: recalled.clone(),
            paced: PacedAnswers::default(),
            slots: Mutex::default(),
            tick: AtomicU64::new(1),
            readers,
            busy: AtomicUsize::new(0),
            busy_most: AtomicUsize::new(0),
            allowed: AtomicUsize::new(readers),
            running: AtomicUsize::new(readers + SPARES),
            parked: Mutex::default(),
            unparked: Condvar::new(),
            nudged: Condvar::new(),
        })
    }

    /// Takes the device that readers read from.
    pub(crate) fn serves(&self, device: OwnedFd) {
        // A mount has one device, so it is set once.
        let _ = self.device.set(device);
    }

    /// Calls `f` when a thread ends before the mount does. Of several such calls the first counts.
    pub(crate) fn on_death(&self, f: OnDeath) {
        let _ = self.on_death.set(f);
    }

    fn reader_ended(&self) {
        if self.parked.lock().ended || self.device.get().is_none_or(is_gone) {
            return;
        }
        if let Some(tell) = self.on_death.get() {
            let name = std::thread::current();
            let name = name.name().unwrap_or("of the mount");
            tell(format!("thread {name} ended"));
        }
    }

    /// Whether nothing is mounted any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.parked.lock().ended || self.device.get().is_some_and(is_gone)
    }

    /// A request begins on a thread that reads requests.
    pub(crate) fn turn(&self, reply: impl Into<Pending>) -> Turn<'_> {
        self.begin(reply.into(), true)
    }

    /// A request begins on a thread of the pool.
    pub(crate) fn waiting_turn(&self, reply: impl Into<Pending>) -> Turn<'_> {
        self.begin(reply.into(), false)
    }

    fn begin(&self, reply: Pending, reads: bool) -> Turn<'_> {
        let seat = || Seat {
            slot: self.new_slot(reads),
            in_flight: self.me.clone(),
        };
        let slot = SLOT.with(|held| held.get_or_init(seat).slot.clone());
        let mut pending = slot.pending.lock();
        *pending = Some(reply);
        let now = self.tick.load(Ordering::Relaxed);
        slot.since.store(now, Ordering::Relaxed);
        slot.asker.store(asker::get(), Ordering::Relaxed);
        drop(pending);
        if reads {
            slot.reads.store(true, Ordering::Relaxed);
            self.one_more_is_busy();
        }
        Turn {
            in_flight: self,
            slot,
            reads,
            asked: self.recalled.asked(),
        }
    }

    fn new_slot(&self, reads: bool) -> Arc<Slot> {
        let slot = Arc::new(Slot {
            since: AtomicU64::new(0),
            asker: AtomicU32::new(0),
            pending: Mutex::new(None),
            given_up: AtomicBool::new(false),
            reads: AtomicBool::new(reads),
        });
        self.slots.lock().push(slot.clone());
        slot
    }

    fn one_more_is_busy(&self) {
        let busy = self.busy.fetch_add(1, Ordering::SeqCst) + 1;
        if busy > self.busy_most.load(Ordering::Relaxed) {
            self.busy_most.fetch_max(busy, Ordering::Relaxed);
        }
        let allowed = self.allowed.load(Ordering::SeqCst);
        if readers::is_one_more_needed(busy, allowed, self.readers) {
            self.allow_one_more_than_busy(&self.parked.lock());
        }
    }

    /// Others may have become busy, or been allowed, before the lock was had.
    fn allow_one_more_than_busy(&self, _held: &MutexGuard<'_, Parked>) {
        let allowed = self.allowed.load(Ordering::SeqCst);
        let busy = self.busy.load(Ordering::SeqCst);
        if readers::is_one_more_needed(busy, allowed, self.readers) {
            self.allow(allowed, (busy + 1).min(self.readers));
        }
    }

    /// With `parked` held. As many are woken as may come in.
    fn allow(&self, before: usize, now: usize) {
        self.allowed.store(now, Ordering::SeqCst);
        for _ in before..now {
            self.unparked.notify_one();
        }
    }

    /// A reader that has answered waits here while enough others serve.
    fn park_if_too_many(&self) {
        let too_many =
            || self.running.load(Ordering::Acquire) > self.allowed.load(Ordering::Acquire);
        if !too_many() {
            return;
        }
        let mut parked = self.parked.lock();
        if parked.ended || !too_many() {
            return;
        }
        self.running.fetch_sub(1, Ordering::AcqRel);
        while !parked.ended
            && self.running.load(Ordering::Acquire) >= self.allowed.load(Ordering::Acquire)
        {
            self.unparked.wait(&mut parked);
        }
        self.running.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends parked readers and the watchdog, because the mount is gone.
    pub(crate) fn end(&self) {
        self.parked.lock().ended = true;
        self.unparked.notify_all();
        self.nudged.notify_all();
    }

    /// Makes the watchdog look now.
    pub(crate) fn nudge(&self) {
        self.nudged.notify_all();
    }

    /// Replaces readers that block. Returns the age of the oldest request, in ticks.
    fn look(&self, now: u64) -> u64 {
        let (mut blocked, mut oldest) = (0, 0);
        for slot in self.slots.lock().iter() {
            let since = slot.since.load(Ordering::Relaxed);
            let age = if since == 0 {
                0
            } else {
                now.saturating_sub(since)
            };
            oldest = oldest.max(age);
            let reads = slot.reads.load(Ordering::Relaxed);
            blocked += usize::from(reads && age >= REPLACED_AFTER_TICKS);
        }
        let parked = self.parked.lock();
        let busy_most = self
            .busy_most
            .swap(self.busy.load(Ordering::SeqCst), Ordering::AcqRel);
        let before = self.allowed.load(Ordering::SeqCst);
        let there_are = (self.readers, SPARES);
        let now_allowed = readers::allowed(before, busy_most, blocked, there_are);
        self.allow(before, now_allowed);
        // Who became busy meanwhile may have seen the number of before.
        self.allow_one_more_than_busy(&parked);
        drop(parked);
        oldest
    }

    /// Takes the replies of requests that are at least `age` ticks old and that `wanted` accepts.
    /// With whom they are for.
    fn take(&self, now: u64, age: u64, wanted: impl Fn(&Pending) -> bool) -> Vec<(Pending, u32)> {
        let mut taken = Vec::new();
        for slot in self.slots.lock().iter() {
            let mut pending = slot.pending.lock();
            let since = slot.since.load(Ordering::Relaxed);
            let old = since != 0 && now.saturating_sub(since) >= age;
            if old && pending.as_ref().is_some_and(&wanted) {
                let asker = slot.asker.load(Ordering::Relaxed);
                taken.extend(pending.take().map(|pending| (pending, asker)));
            }
        }
        taken
    }

    /// Takes the replies that nobody but a killed program waits for.
    fn take_of_the_dying(&self, now: u64) -> Vec<Pending> {
        let old = |since: u64| since != 0 && now.saturating_sub(since) >= REPLACED_AFTER_TICKS;
        let slots = self.slots.lock();
        let waiting = slots.iter().filter_map(|slot| {
            let since = slot.since.load(Ordering::Relaxed);
            let asker = slot.asker.load(Ordering::Relaxed);
            old(since).then(|| (slot.clone(), since, asker))
        });
        let mut waiting: Vec<_> = waiting.collect();
        drop(slots);
        waiting.retain(|(_, _, asker)| asker::is_dying(*asker));
        let taken = waiting.iter().filter_map(|(slot, since, asker)| {
            let mut pending = slot.pending.lock();
            let is_same = slot.since.load(Ordering::Relaxed) == *since
                && slot.asker.load(Ordering::Relaxed) == *asker;
            let taken = pending.take_if(|_| is_same);
            slot.given_up.fetch_or(taken.is_some(), Ordering::AcqRel);
            taken
        });
        taken.collect()
    }
}

/// Answers with what was made by a request that began in that session. If the watchdog has answered
/// already, drops the reference that the kernel would have got.
pub(crate) fn answer_entry(
    (client, began): (&Client, u64),
    (belief, forgets): (&Belief, &Forgets),
    made: Result<Shown, Errno>,
    turn: &Turn<'_>,
) {
    match (turn.reply::<ReplyEntry>(), made) {
        (Some(reply), Ok(made)) => {
            let believed = belief.show(&made, turn.asked);
            let sessions = (began, client.generation());
            forgets.gives_made(&made, sessions, believed.by_mount());
            let name = believed.of_name();
            let generation = fuser::Generation(client.generation_of(made.ino));
            reply.entry_with_ttls(&believed.of_attr, &name, &attr(&made), generation);
        }
        (Some(reply), Err(e)) => reply.error(errno(e)),
        (None, Ok(made)) => client.give_back(made.ino),
        (None, Err(_)) => {}
    }
}

/// The same of a name that was looked for by a request that began then: the mount may answer the
/// next one.
pub(crate) fn answer_found(
    (client, began): (&Client, Began),
    (belief, forgets): (&Belief, &Forgets),
    (name, found): ((Ino, &[u8]), Result<Shown, Errno>),
    turn: &Turn<'_>,
) {
    let (reply, found) = match (turn.reply::<ReplyEntry>(), found) {
        (Some(reply), Ok(found)) => (reply, found),
        (Some(reply), Err(e)) => return reply.error(errno(e)),
        (None, Ok(found)) => return client.give_back(found.ino),
        (None, Err(_)) => return,
    };
    let believed = belief.show(&found, turn.asked);
    let generation = client.generation();
    let span = believed.by_mount();
    let of_attr = match forgets.gives_found(name, &found, (began, generation), span) {
        true => believed.of_attr,
        false => Duration::ZERO,
    };
    let generation = fuser::Generation(client.generation_of(found.ino));
    let of_name = believed.of_name();
    reply.entry_with_ttls(&of_attr, &of_name, &attr(&found), generation);
}

/// Answers a request for attributes. Whether the watchdog had not done so already.
pub(crate) fn answer_attr(belief: &Belief, found: Result<Shown, Errno>, turn: &Turn<'_>) -> bool {
    let Some(reply) = turn.reply::<ReplyAttr>() else {
        return false;
    };
    match found {
        Ok(found) => {
            let believed = belief.show(&found, turn.asked);
            reply.attr(&believed.of_attr, &attr(&found));
        }
        Err(e) => reply.error(errno(e)),
    }
    true
}

/// Answers a request for totals.
pub(crate) fn answer_totals(belief: &Belief, found: Result<Statfs, Errno>, turn: &Turn<'_>) {
    match (turn.reply::<ReplyStatfs>(), found) {
        (Some(reply), Ok(totals)) => {
            belief.known.note_totals(&totals);
            say_totals(reply, &totals);
        }
        (Some(reply), Err(e)) => reply.error(errno(e)),
        (None, _) => {}
    }
}

fn say_totals(reply: ReplyStatfs, totals: &Statfs) {
    reply.statfs(
        totals.blocks,
        totals.blocks_free,
        totals.blocks_available,
        totals.files,
        totals.files_free,
        totals.block_bytes,
        totals.name_bytes_max,
        totals.block_bytes,
    );
}

/// Answers a request whose reply says only whether it succeeded. Whether the watchdog had not done
/// so already.
pub(crate) fn finish(done: Result<(), Errno>, turn: &Turn<'_>) -> bool {
    let Some(reply) = turn.reply::<ReplyEmpty>() else {
        return false;
    };
    match done {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno(e)),
    }
    true
}

fn is_gone(device: &OwnedFd) -> bool {
    // No events are asked for: poll(2) reports errors all the same, and does not report requests.
    let mut ask = libc::pollfd {
        fd: device.as_raw_fd(),
        events: 0,
        revents: 0,
    };
    // SAFETY: the pointer is to one live pollfd, and the descriptor in it is open.
    let told = unsafe { libc::poll(&raw mut ask, 1, 0) };
    told > 0 && ask.revents & (libc::POLLERR | libc::POLLHUP) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_ends_before_its_mount_is_told_of() {
        let (said, heard) = std::sync::mpsc::channel();
        let in_flight = InFlightTable::new(1, Arc::default());
        in_flight.on_death(Box::new(move |what| said.send(what).expect("heard")));
        let (ours, kernels) = std::os::unix::net::UnixStream::pair().expect("pair");
        in_flight.serves(ours.into());
        let serve = |name: &str, reads: bool| {
            let in_flight = in_flight.clone();
            let body = move || {
                let seat = Seat {
                    slot: in_flight.new_slot(reads),
                    in_flight: in_flight.me.clone(),
                };
                assert!(SLOT.with(|held| held.set(seat).is_ok()));
            };
            let thread = std::thread::Builder::new().name(name.into()).spawn(body);
            thread.expect("thread").join().expect("no panic");
        };
        serve("of-the-pool", false);
        serve("early", true);
        assert_eq!(heard.try_recv().as_deref(), Ok("thread early ended"));
        drop(kernels);
        serve("with-the-mount", true);
        assert!(heard.try_recv().is_err(), "nothing else was told");
    }

    #[test]
    fn before_the_last_reader_serves_another_one_is_let_in() {
        const READERS: usize = 5;
        let in_flight = InFlightTable::new(READERS, Arc::default());
        in_flight.running.store(READERS, Ordering::Release);
        for tick in 1..=READERS as u64 {
            in_flight.look(tick);
        }
        let parks = |_| {
            let in_flight = in_flight.clone();
            std::thread::spawn(move || in_flight.park_if_too_many())
        };
        let mut parked: Vec<_> = (0..3).map(parks).collect();
        let runs = |count| {
            while in_flight.running.load(Ordering::Acquire) != count {
                std::thread::yield_now();
            }
        };
        runs(2);
        in_flight.one_more_is_busy();
        assert_eq!(in_flight.allowed.load(Ordering::SeqCst), 2);
        for busy in 2..=READERS {
            in_flight.one_more_is_busy();
            runs((busy + 1).min(READERS));
        }
        parked.drain(..).for_each(|one| one.join().expect("let in"));
        assert_eq!(in_flight.allowed.load(Ordering::SeqCst), READERS);
        // All answer at once, and are missed one at a time.
        in_flight.busy.store(0, Ordering::SeqCst);
        in_flight.look(9);
        in_flight.look(10);
        assert_eq!(in_flight.allowed.load(Ordering::SeqCst), READERS - 1);
    }

    #[test]
    fn readers_beyond_the_usual_park_and_come_back_for_those_that_block() {
        let in_flight = InFlightTable::new(1, Arc::default());
        in_flight.running.store(2, Ordering::Release);
        let parks = {
            let in_flight = in_flight.clone();
            std::thread::spawn(move || in_flight.park_if_too_many())
        };
        while in_flight.running.load(Ordering::Acquire) != 1 {
            std::thread::yield_now();
        }
        // The other one blocks.
        let slot = in_flight.new_slot(true);
        slot.since.store(1, Ordering::Relaxed);
        assert_eq!(in_flight.look(1), 0);
        assert!(!parks.is_finished());
        assert_eq!(
            in_flight.look(1 + REPLACED_AFTER_TICKS),
            REPLACED_AFTER_TICKS
        );
        parks.join().unwrap();
        assert_eq!(in_flight.running.load(Ordering::Acquire), 2);
        // It is back: one is too many again, until the end.
        slot.since.store(0, Ordering::Relaxed);
        in_flight.look(9);
        let parks = {
            let in_flight = in_flight.clone();
            std::thread::spawn(move || in_flight.park_if_too_many())
        };
        while in_flight.running.load(Ordering::Acquire) != 1 {
            std::thread::yield_now();
        }
        in_flight.end();
        parks.join().unwrap();
    }
}
