//! A tier that fails on demand, for the tests of every crate above.
//!
//! Wraps any tier. Faults are injected while it runs and counted, so that a test can prove that its
//! fault fired. With [`FaultyTier::with_crashes`] it also remembers what is not on stable
//! storage yet, and [`FaultyTier::crash`] takes that away, whole or torn.

mod crash;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use forebay_types::{Errno, ObjectId, SetTime};
use parking_lot::Mutex;

use crate::{Allocate, Identity, Object, ObjectStat, Seek, Space, Tier, TierKind, WriteBack};
use crash::{Ledger, Unsynced};

/// Operations that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Operation {
    /// [`Tier::space`].
    Space,
    /// [`Tier::create`].
    Create,
    /// [`Tier::open`].
    Open,
    /// [`Tier::remove`].
    Remove,
    /// [`Tier::identity`].
    Identity,
    /// [`Tier::list`].
    List,
    /// [`Tier::sync_all`].
    SyncAll,
    /// [`Object::read_at`].
    Read,
    /// [`Object::write_at`].
    Write,
    /// [`Object::set_len`].
    SetLen,
    /// [`Object::allocate`].
    Allocate,
    /// [`Object::seek`].
    Seek,
    /// [`Object::sync`].
    Sync,
    /// [`Object::write_back`].
    WriteBack,
    /// [`Object::stat`].
    Stat,
    /// [`Object::set_times`].
    SetTimes,
    /// [`Object::set_identity`].
    SetIdentity,
}

const OPERATIONS: usize = Operation::SetIdentity as usize + 1;

/// Which calls of an operation a fault hits, counted from 1 since it was injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Only this one.
    Nth(u64),
    /// This one and all after it.
    From(u64),
    /// All.
    Every,
}

/// What a fault does. One that makes no sense for an operation (short `Sync`) does nothing there,
/// and still counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Fails with this number; nothing is done.
    Fail(Errno),
    /// Reads or writes at most this many bytes.
    Short(usize),
    /// Waits, then does as asked.
    Delay(Duration),
    /// Looks, then waits ([`Operation::Stat`]): what it answers is of before.
    Late(Duration),
    /// Flips bit `n % (8 × bytes)` of what was read or is written.
    FlipBit(u64),
}

/// Names an injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FaultId(usize);

struct Fault {
    operation: Operation,
    when: When,
    effect: Effect,
    seen: u64,
    fired: u64,
    healed: bool,
}

#[derive(Default)]
struct Faults {
    faults: Vec<Fault>,
    calls: [u64; OPERATIONS],
}

/// What all the objects of one tier share.
#[derive(Default)]
struct Shared {
    faults: Mutex<Faults>,
    /// Only with crashes.
    ledger: Option<Mutex<Ledger>>,
}

/// What the faults say about one call.
#[derive(Clone, Copy, Default)]
struct Verdict {
    short: Option<usize>,
    flip: Option<u64>,
    late: Option<Duration>,
}

impl Shared {
    /// Counts a call and applies every fault that hits it; waits outside the lock.
    fn call(&self, operation: Operation) -> io::Result<Verdict> {
        let mut verdict = Verdict::default();
        let mut failure = None;
        let mut delay = Duration::ZERO;
        let mut faults = self.faults.lock();
        faults.calls[operation as usize] += 1;
        for fault in &mut faults.faults {
            if fault.operation != operation || fault.healed {
                continue;
            }
            fault.seen += 1;
            let hits = match fault.when {
                When::Nth(n) => fault.seen == n,
                When::From(n) => fault.seen >= n,
                When::Every => true,
            };
            if !hits {
                continue;
            }
            fault.fired += 1;
            match fault.effect {
                Effect::Fail(errno) => failure = failure.or(Some(errno)),
                Effect::Short(bytes) => verdict.short = Some(bytes),
                Effect::Delay(time) => delay += time,
                Effect::Late(time) => verdict.late = Some(time),
                Effect::FlipBit(bit) => verdict.flip = Some(bit),
            }
        }
        drop(faults);
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        match failure {
            Some(errno) => Err(errno.into()),
            None => Ok(verdict),
        }
    }
}

fn flip(bytes: &mut [u8], bit: u64) {
    if !bytes.is_empty() {
        let bit = bit % (8 * bytes.len() as u64);
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

/// A tier that fails on demand. Its objects give no descriptor: every byte passes by here.
pub struct FaultyTier {
    inner: Arc<dyn Tier>,
    shared: Arc<Shared>,
}

impl FaultyTier {
    /// Wraps `inner`; no faults yet.
    pub fn new(inner: Arc<dyn Tier>) -> FaultyTier {
        FaultyTier {
            inner,
            shared: Arc::default(),
        }
    }

    /// As [`FaultyTier::new`], and remembers what is not synced, for [`FaultyTier::crash`]. What
    /// `inner` holds now counts as synced.
    pub fn with_crashes(inner: Arc<dyn Tier>) -> FaultyTier {
        FaultyTier {
            inner,
            shared: Arc::new(Shared {
                ledger: Some(Mutex::default()),
                ..Shared::default()
            }),
        }
    }

    /// Adds a fault.
    pub fn inject(&self, operation: Operation, when: When, effect: Effect) -> FaultId {
        let mut faults = self.shared.faults.lock();
        faults.faults.push(Fault {
            operation,
            when,
            effect,
            seen: 0,
            fired: 0,
            healed: false,
        });
        FaultId(faults.faults.len() - 1)
    }

    /// Takes a fault away; its count stays.
    pub fn heal(&self, fault: FaultId) {
        if let Some(fault) = self.shared.faults.lock().faults.get_mut(fault.0) {
            fault.healed = true;
        }
    }

    /// Takes all faults away; their counts stay.
    pub fn heal_all(&self) {
        for fault in &mut self.shared.faults.lock().faults {
            fault.healed = true;
        }
    }

    /// How often the fault fired.
    pub fn fired(&self, fault: FaultId) -> u64 {
        let faults = self.shared.faults.lock();
        faults.faults.get(fault.0).map_or(0, |fault| fault.fired)
    }

    /// How often the operation was called.
    pub fn calls(&self, operation: Operation) -> u64 {
        self.shared.faults.lock().calls[operation as usize]
    }

    /// Cuts the power. Names that were not synced (`sync_all`) go back to what they were. Of
    /// content that was not synced (`Object::sync`), each page stays with a chance of
    /// `keep_percent`, by `seed`: 0 drops all, 100 keeps all. Objects that are open answer `EIO`
    /// from now on; the tier goes on as after a restart.
    ///
    /// Fails with `EINVAL` on a tier that was made without crashes.
    pub fn crash(&self, seed: u64, keep_percent: u8) -> io::Result<()> {
        let Some(ledger) = &self.shared.ledger else {
            return Err(Errno::EINVAL.into());
        };
        ledger
            .lock()
            .crash(self.inner.as_ref(), seed, keep_percent.min(100))
    }

    /// Fails the write-back of all content that was not synced, as a device does that takes nothing
    /// for a while. Such content then reads as it was at the last sync, and as zeros where there
    /// was nothing. The next sync of each object that has lost something fails with `errno`, once.
    ///
    /// Fails with `EINVAL` on a tier that was made without crashes.
    pub fn lose_write_back(&self, errno: Errno) -> io::Result<()> {
        let Some(ledger) = &self.shared.ledger else {
            return Err(Errno::EINVAL.into());
        };
        ledger.lock().lose(self.inner.as_ref(), errno)
    }

    fn wrap(&self, inner: Arc<dyn Object>, unsynced: Option<Unsynced>) -> Arc<dyn Object> {
        Arc::new(FaultyObject {
            inner,
            shared: self.shared.clone(),
            unsynced,
        })
    }
}

impl Tier for FaultyTier {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn kind(&self) -> TierKind {
        self.inner.kind()
    }

    fn mark(&self) -> Option<[u8; 16]> {
        self.inner.mark()
    }

    fn is_answering(&self) -> bool {
        self.inner.is_answering()
    }

    fn capacity_bytes(&self) -> u64 {
        self.inner.capacity_bytes()
    }

    fn give_back(&self) -> io::Result<()> {
        self.inner.give_back()
    }

    fn space(&self) -> io::Result<Space> {
        self.shared.call(Operation::Space)?;
        self.inner.space()
    }

    fn create(&self, id: ObjectId, identity: &Identity) -> io::Result<Arc<dyn Object>> {
        self.shared.call(Operation::Create)?;
        let Some(ledger) = &self.shared.ledger else {
            return Ok(self.wrap(self.inner.create(id, identity)?, None));
        };
        let mut ledger = ledger.lock();
        ledger.finish_removal(self.inner.as_ref(), id)?;
        let object = self.inner.create(id, identity)?;
        let unsynced = ledger.created(id);
        Ok(self.wrap(object, Some(unsynced)))
    }

    fn open(&self, id: ObjectId) -> io::Result<Arc<dyn Object>> {
        self.shared.call(Operation::Open)?;
        let Some(ledger) = &self.shared.ledger else {
            return Ok(self.wrap(self.inner.open(id)?, None));
        };
        let mut ledger = ledger.lock();
        ledger.refuse_removed(id)?;
        let object = self.inner.open(id)?;
        let unsynced = ledger.opened(id);
        Ok(self.wrap(object, Some(unsynced)))
    }

    fn remove(&self, id: ObjectId) -> io::Result<()> {
        self.shared.call(Operation::Remove)?;
        match &self.shared.ledger {
            None => self.inner.remove(id),
            Some(ledger) => ledger.lock().remove(self.inner.as_ref(), id),
        }
    }

    fn identity(&self, id: ObjectId) -> io::Result<Option<Identity>> {
        self.shared.call(Operation::Identity)?;
        if let Some(ledger) = &self.shared.ledger {
            ledger.lock().refuse_removed(id)?;
        }
        self.inner.identity(id)
    }

    fn list(&self, visit: &mut dyn FnMut(ObjectId)) -> io::Result<()> {
        self.shared.call(Operation::List)?;
        let mut ids = Vec::new();
        self.inner.list(&mut |id| ids.push(id))?;
        if let Some(ledger) = &self.shared.ledger {
            let ledger = ledger.lock();
            ids.retain(|&id| ledger.refuse_removed(id).is_ok());
        }
        ids.into_iter().for_each(visit);
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.shared.call(Operation::SyncAll)?;
        if let Some(ledger) = &self.shared.ledger {
            ledger.lock().sync_names(self.inner.as_ref())?;
        }
        self.inner.sync_all()
    }
}

struct FaultyObject {
    inner: Arc<dyn Object>,
    shared: Arc<Shared>,
    unsynced: Option<Unsynced>,
}

impl FaultyObject {
    /// Remembers what the range holds, and the size, before they change for the first time since
    /// the last sync. Holds off other changes until the guard goes.
    fn before_change(&self, offset: u64, len: u64) -> io::Result<Option<crash::Guard<'_>>> {
        match &self.unsynced {
            None => Ok(None),
            Some(unsynced) => unsynced
                .before_change(self.inner.as_ref(), offset, len)
                .map(Some),
        }
    }

    fn refuse_dead(&self) -> io::Result<()> {
        self.unsynced.as_ref().map_or(Ok(()), Unsynced::refuse_dead)
    }
}

impl Object for FaultyObject {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let verdict = self.shared.call(Operation::Read)?;
        self.refuse_dead()?;
        let want = verdict.short.unwrap_or(buf.len()).min(buf.len());
        let count = self.inner.read_at(&mut buf[..want], offset)?;
        if let Some(bit) = verdict.flip {
            flip(&mut buf[..count], bit);
        }
        Ok(count)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        let verdict = self.shared.call(Operation::Write)?;
        let count = verdict.short.unwrap_or(data.len()).min(data.len());
        let data = &data[..count];
        let _guard = self.before_change(offset, count as u64)?;
        match verdict.flip {
            None => self.inner.write_at(data, offset),
            Some(bit) => {
                let mut damaged = data.to_vec();
                flip(&mut damaged, bit);
                self.inner.write_at(&damaged, offset)
            }
        }
    }

    fn append(&self, data: &[u8]) -> io::Result<(usize, u64)> {
        let verdict = self.shared.call(Operation::Write)?;
        let count = verdict.short.unwrap_or(data.len()).min(data.len());
        let mut data = data[..count].to_vec();
        if let Some(bit) = verdict.flip {
            flip(&mut data, bit);
        }
        loop {
            let end = self.inner.stat()?.size;
            let guard = self.before_change(end, count as u64)?;
            // What was saved lies elsewhere if somebody was faster.
            if guard.is_none() || self.inner.stat()?.size == end {
                return self.inner.append(&data);
            }
        }
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.shared.call(Operation::SetLen)?;
        // What lies beyond is about to go.
        let _guard = self.before_change(size, u64::MAX)?;
        self.inner.set_len(size)
    }

    fn allocate(&self, mode: Allocate, offset: u64, len: u64) -> io::Result<()> {
        self.shared.call(Operation::Allocate)?;
        // Of a reservation without bounds, only what is there can change.
        let size = self.inner.stat()?.size;
        let at_risk = match mode {
            Allocate::Reserve | Allocate::Extend => 0,
            _ => len.min(size.saturating_sub(offset)),
        };
        let _guard = self.before_change(offset, at_risk)?;
        self.inner.allocate(mode, offset, len)
    }

    fn seek(&self, from: u64, what: Seek) -> io::Result<Option<u64>> {
        self.shared.call(Operation::Seek)?;
        self.refuse_dead()?;
        self.inner.seek(from, what)
    }

    fn sync(&self, data_only: bool) -> io::Result<()> {
        self.shared.call(Operation::Sync)?;
        match &self.unsynced {
            None => self.inner.sync(data_only),
            Some(unsynced) => unsynced.sync(self.inner.as_ref(), data_only),
        }
    }

    fn write_back(&self, what: WriteBack, offset: u64, len: u64) -> io::Result<()> {
        self.shared.call(Operation::WriteBack)?;
        self.inner.write_back(what, offset, len)
    }

    fn stat(&self) -> io::Result<ObjectStat> {
        let verdict = self.shared.call(Operation::Stat)?;
        self.refuse_dead()?;
        let stat = self.inner.stat();
        if let Some(late) = verdict.late {
            std::thread::sleep(late);
        }
        stat
    }

    fn set_times(&self, atime: Option<SetTime>, mtime: Option<SetTime>) -> io::Result<()> {
        self.shared.call(Operation::SetTimes)?;
        self.refuse_dead()?;
        self.inner.set_times(atime, mtime)
    }

    fn set_identity(&self, identity: &Identity) -> io::Result<()> {
        self.shared.call(Operation::SetIdentity)?;
        self.refuse_dead()?;
        self.inner.set_identity(identity)
    }

    fn has_writers(&self) -> io::Result<bool> {
        self.inner.has_writers()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Bytes of a file that are only in the page cache: cachestat(2), Linux 6.5. `None` where the
/// kernel does not know it, and of an object without a descriptor.
pub fn unwritten_bytes(object: &dyn Object) -> Option<u64> {
    const CACHESTAT: libc::c_long = 451;
    let fd = object.descriptor()?;
    let (range, mut found) = ([0u64, 0], [0u64; 5]);
    // SAFETY: both arrays have the layout and the size that the call reads and fills.
    let result = unsafe {
        libc::syscall(
            CACHESTAT,
            fd.as_raw_fd(),
            range.as_ptr(),
            found.as_mut_ptr(),
            0,
        )
    };
    // Cached, dirty, under write-back, evicted, lately evicted; pages.
    (result == 0).then_some((found[1] + found[2]) * 4096)
}
