//! Open files.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_tiers::{ObjectStat, WriteBehind};
use forebay_types::{Dirent, Errno, Generation, Handle, Ino, ObjectId, OpenFlags, Process};
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

use crate::buffer::blocks::Blocks;
use crate::buffer::changes::Changes;
use crate::buffer::onpfs::PfsOpens;
use crate::buffer::stays::Stays;
use crate::buffer::target::Target;
use crate::buffer::unsent::{LostUnopened, Unsent};

/// Locks are spread over so many shards by id.
pub const SHARDS: usize = 64;
/// Who waits for a claim looks this often whether the PFS has been given up.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Counts of handles.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// All handles.
    pub opens: u32,
    /// Handles for writing.
    pub writers: u32,
    /// Those of them that may be mapped to be stored into.
    pub storers: u32,
}

/// A file under unseen writing as it was when the PFS had its content.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    /// Size and times of the object.
    pub stat: ObjectStat,
    /// What its generation is for as long as nobody has changed it by a request.
    pub generation: Generation,
    /// Checksum of the content.
    pub crc: Option<u32>,
}

impl Before {
    /// Whether nothing tells of a change since: a store through a mapping need not leave a trace.
    pub fn looks_like(&self, now: &ObjectStat) -> bool {
        (self.stat.size, self.stat.mtime) == (now.size, now.mtime)
    }
}

/// An open file, shared by all its handles. The kernel wants all opens of one file to be of one
/// kind, so how it is served is fixed from the first open to the last close.
pub struct OpenFile {
    /// Its id.
    pub ino: Ino,
    /// See [`OpenFile::is_passthrough`].
    passthrough: AtomicBool,
    /// Where the bytes are. Writers of the lock move the file; readers do I/O, on what
    /// `Files::target` has opened, or look.
    pub target: RwLock<Target>,
    /// Handles.
    pub counts: Mutex<Counts>,
    /// Bytes that may still be written before space must be asked for again.
    pub budget_bytes: AtomicI64,
    /// Held while asking for space.
    pub growing: Mutex<()>,
    /// Held while the end is set, and from a look at the end to what relies on it.
    pub end: Mutex<()>,
    /// While one is under way, a close does not say how large the file is.
    pub changes: Changes,
    /// Space set aside for unseen writing, bytes; 0 without.
    pub lease_bytes: AtomicU64,
    /// The lease is larger than the tier has room for.
    pub borrowed: AtomicBool,
    /// See [`Before`].
    pub before: Mutex<Option<Before>>,
    /// Written, truncated or given times through requests since it was opened.
    pub touched: AtomicBool,
    /// Who opened it for writing last: where the file is to lie if it comes from the PFS for that.
    pub writer: Mutex<Option<Process>>,
    /// An fsync was asked for.
    pub fsynced: AtomicBool,
    /// Hash of the series that the file was created or opened as a member of; 0 until that is
    /// known.
    pub series: AtomicU64,
    /// How large the file will be, if its series has shown that; else 0.
    pub predicted_bytes: AtomicU64,
    /// What its second copy on another server lacks.
    pub unsent: Unsent,
    /// A hand-over that came to nothing is not tried again at once.
    pub stays: Stays,
    /// Of what goes straight to the PFS.
    pub behind: WriteBehind,
    /// There are `blocks`: every read asks.
    has_blocks: AtomicBool,
    /// What was opened without being read, until all of it has been compared.
    blocks: Mutex<Option<Arc<Blocks>>>,
    /// Requests have used the bytes since somebody looked.
    used: AtomicBool,
    /// How many open files hold a descriptor, this one included if it does.
    held: Arc<AtomicU64>,
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if self.target.get_mut().is_held() {
            self.held.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl OpenFile {
    fn new(ino: Ino, target: Target, passthrough: bool, held: Arc<AtomicU64>) -> OpenFile {
        held.fetch_add(u64::from(target.is_held()), Ordering::Relaxed);
        OpenFile {
            ino,
            passthrough: AtomicBool::new(passthrough),
            target: RwLock::new(target),
            counts: Mutex::new(Counts::default()),
            budget_bytes: AtomicI64::new(0),
            growing: Mutex::new(()),
            end: Mutex::new(()),
            changes: Changes::default(),
            lease_bytes: AtomicU64::new(0),
            borrowed: AtomicBool::new(false),
            before: Mutex::new(None),
            touched: AtomicBool::new(false),
            writer: Mutex::new(None),
            fsynced: AtomicBool::new(false),
            series: AtomicU64::new(0),
            predicted_bytes: AtomicU64::new(0),
            unsent: Unsent::default(),
            stays: Stays::default(),
            behind: WriteBehind::default(),
            has_blocks: AtomicBool::new(false),
            blocks: Mutex::new(None),
            // Of what the kernel has opened for itself nobody needs the descriptor soon.
            used: AtomicBool::new(!passthrough),
            held,
        }
    }

    /// From here on its bytes are there. `target` is its own, locked.
    pub fn put(&self, target: &mut Target, now: Target) {
        match (target.is_held(), now.is_held()) {
            (true, false) => self.held.fetch_sub(1, Ordering::Relaxed),
            (false, true) => self.held.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        *target = now;
    }

    /// Its bytes are used. To be called with its target locked.
    pub fn note_use(&self) {
        // Most often it is known: then nobody else's cache loses it.
        if !self.is_used() {
            self.used.store(true, Ordering::Release);
        }
    }

    /// Whether they were since [`Self::take_use`].
    pub fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// The same; from here on they were not.
    pub fn take_use(&self) -> bool {
        self.used.swap(false, Ordering::AcqRel)
    }

    /// The same, of a content that has not been compared with its checksum yet.
    pub fn not_compared(mut self, blocks: Option<Arc<Blocks>>) -> OpenFile {
        self.has_blocks = AtomicBool::new(blocks.is_some());
        self.blocks = Mutex::new(blocks);
        self
    }

    /// Its blocks, if not all of them have been compared.
    pub fn uncompared(&self) -> Option<Arc<Blocks>> {
        match self.has_blocks.load(Ordering::Acquire) {
            true => self.blocks.lock().clone(),
            false => None,
        }
    }

    /// Whether these are still its blocks, and its content is what they are about.
    pub fn is_uncompared(&self, blocks: &Blocks) -> bool {
        let held = self.blocks.lock();
        held.as_ref()
            .is_some_and(|held| std::ptr::eq(&**held, blocks))
    }

    /// All of them have been compared, or what was in them does not matter any more.
    pub fn mark_verified(&self) {
        *self.blocks.lock() = None;
        self.has_blocks.store(false, Ordering::Release);
    }

    /// Whether an object may be what is open here. While the file is being moved, which may wait
    /// for the PFS, that is not known.
    fn may_hold(&self, object: ObjectId) -> bool {
        match self.target.try_read().as_deref() {
            Some(Target::Buffer { file, .. }) => file.object == object,
            Some(Target::Pfs { .. }) => false,
            None => true,
        }
    }

    /// Whether a kernel reads and writes the object by itself.
    pub fn is_passthrough(&self) -> bool {
        self.passthrough.load(Ordering::Acquire)
    }

    /// As if a kernel had it, for tests.
    #[cfg(test)]
    pub fn begin_passthrough(&self) {
        self.passthrough.store(true, Ordering::Release);
    }

    /// The file has gone on elsewhere, and no kernel has what it is now: nothing was set aside for
    /// one, and nobody asks for its writers. Whoever has the file open goes on by requests.
    pub fn end_passthrough(&self) {
        self.passthrough.store(false, Ordering::Release);
        self.lease_bytes.store(0, Ordering::Release);
        self.borrowed.store(false, Ordering::Release);
    }

    /// Whether anybody has it open for writing.
    pub fn is_written(&self) -> bool {
        self.counts.lock().writers > 0
    }

    /// Whether somebody may store into it through a mapping, and only the kernel knows of that.
    pub fn is_stored_unheard(&self) -> bool {
        !self.is_passthrough() && self.counts.lock().storers > 0
    }
}

#[derive(Clone)]
enum Entry {
    File(Arc<OpenFile>, OpenFlags),
    Dir(Ino, Arc<Vec<Dirent>>),
}

#[derive(Default)]
struct ByIno {
    open: HashMap<Ino, Arc<OpenFile>>,
    claimed: HashSet<Ino>,
}

#[derive(Default)]
struct Shard {
    by_ino: Mutex<ByIno>,
    freed: Condvar,
}

impl Shard {
    /// Locks the shard once nobody has a claim on `ino`, or once `impatient` is set.
    fn unclaimed(&self, ino: Ino, impatient: &AtomicBool) -> MutexGuard<'_, ByIno> {
        let mut by_ino = self.by_ino.lock();
        while by_ino.claimed.contains(&ino) && !impatient.load(Ordering::Acquire) {
            self.freed.wait_for(&mut by_ino, LOOK_AGAIN);
        }
        by_ino
    }
}

/// The right to open and close one file: nobody else opens or closes it while the claim lives. It
/// may be held during I/O, also on the PFS: only those who want the same file wait for it.
pub struct Claim<'a> {
    shard: &'a Shard,
    ino: Ino,
}

impl Claim<'_> {
    /// Of what it is.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// The file, if it is open.
    pub fn open(&self) -> Option<Arc<OpenFile>> {
        self.shard.by_ino.lock().open.get(&self.ino).cloned()
    }

    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        self.shard.by_ino.lock().open.contains_key(&self.ino)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.shard.by_ino.lock().claimed.remove(&self.ino);
        self.shard.freed.notify_all();
    }
}

/// All open files and directories.
pub struct OpenTable {
    by_ino: Vec<Shard>,
    handles: Vec<Mutex<HashMap<Handle, Entry>>>,
    next: AtomicU64,
    files: AtomicU64,
    held: Arc<AtomicU64>,
    pfs_given_up: AtomicBool,
    on_pfs: Arc<PfsOpens>,
    /// See there.
    pub lost: LostUnopened,
}

impl OpenTable {
    /// Nothing is open. A handle of another epoch is never taken for one of this.
    pub fn new(epoch: u32) -> OpenTable {
        OpenTable {
            by_ino: (0..SHARDS).map(|_| Shard::default()).collect(),
            handles: (0..SHARDS).map(|_| Mutex::default()).collect(),
            next: AtomicU64::new(u64::from(epoch) << 32 | 1),
            files: AtomicU64::new(0),
            held: Arc::default(),
            pfs_given_up: AtomicBool::new(false),
            on_pfs: Arc::default(),
            lost: LostUnopened::default(),
        }
    }

    /// A file about to get its first handle.
    pub fn make(&self, ino: Ino, target: Target, passthrough: bool) -> OpenFile {
        OpenFile::new(ino, target, passthrough, self.held.clone())
    }

    /// What programs have written to a file that is open is lost: all handles that there are are to
    /// be told so.
    pub fn lose(&self, open: &OpenFile) {
        open.unsent.lose(Handle(self.next.load(Ordering::Acquire)));
    }

    /// Files that hold a descriptor.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Files that the kernel writes by itself.
    pub fn written_unseen(&self) -> Vec<Arc<OpenFile>> {
        let mut found = Vec::new();
        for shard in &self.by_ino {
            let by_ino = shard.by_ino.lock();
            let written = by_ino.open.values().filter(|open| open.is_passthrough());
            found.extend(written.filter(|open| open.is_written()).cloned());
        }
        found
    }

    fn shard(&self, ino: Ino) -> &Shard {
        &self.by_ino[ino.0 as usize % SHARDS]
    }

    /// Waits until nobody opens or closes this file; nobody else will while the claim lives.
    pub fn claim(&self, ino: Ino) -> Claim<'_> {
        let shard = self.shard(ino);
        let patient = AtomicBool::new(false);
        shard.unclaimed(ino, &patient).claimed.insert(ino);
        Claim { shard, ino }
    }

    /// The same for who holds what others wait for, with a claim of theirs perhaps: `None` if
    /// somebody has it for longer than `patience`.
    pub fn claim_within(&self, ino: Ino, patience: Duration) -> Option<Claim<'_>> {
        let end = Instant::now() + patience;
        let shard = self.shard(ino);
        let mut by_ino = shard.by_ino.lock();
        while !by_ino.claimed.insert(ino) {
            if shard.freed.wait_until(&mut by_ino, end).timed_out() {
                // A claim that is made and dropped would end the other's.
                return by_ino.claimed.insert(ino).then(|| Claim { shard, ino });
            }
        }
        Some(Claim { shard, ino })
    }

    /// The same if nobody has it now.
    pub fn try_claim(&self, ino: Ino) -> Option<Claim<'_>> {
        let shard = self.shard(ino);
        let fresh = shard.by_ino.lock().claimed.insert(ino);
        // Made only then: a claim that is dropped ends the one that there is.
        fresh.then(|| Claim { shard, ino })
    }

    /// The open file with this id. Waits for who is just opening or closing it, unless that may
    /// wait for the PFS and the PFS is given up.
    pub fn by_ino(&self, ino: Ino) -> Option<Arc<OpenFile>> {
        let by_ino = self.shard(ino).unclaimed(ino, &self.pfs_given_up);
        by_ino.open.get(&ino).cloned()
    }

    /// Says whether the PFS is given up.
    pub fn note_given_up(&self, given_up: bool) {
        self.pfs_given_up.store(given_up, Ordering::Release);
    }

    /// Looks at it while nobody opens or closes it; `see` does no I/O.
    pub fn look<T>(&self, ino: Ino, see: impl FnOnce(Option<&Arc<OpenFile>>) -> T) -> T {
        let by_ino = self.shard(ino).unclaimed(ino, &self.pfs_given_up);
        see(by_ino.open.get(&ino))
    }

    /// The same without waiting: what is just being opened or closed is open.
    pub fn is_open_now(&self, ino: Ino) -> bool {
        let by_ino = self.shard(ino).by_ino.lock();
        by_ino.claimed.contains(&ino) || by_ino.open.contains_key(&ino)
    }

    /// Whether an object may be what is open under this id, or what is just being opened or closed.
    /// Waits for nobody: who makes space asks, and who has the claim may wait for that.
    pub fn may_hold(&self, ino: Ino, object: ObjectId) -> bool {
        let by_ino = self.shard(ino).by_ino.lock();
        let open = by_ino.open.get(&ino);
        by_ino.claimed.contains(&ino) || open.is_some_and(|open| open.may_hold(object))
    }

    fn handles(&self, handle: Handle) -> MutexGuard<'_, HashMap<Handle, Entry>> {
        self.handles[handle.0 as usize % SHARDS].lock()
    }

    fn insert(&self, entry: Entry) -> Handle {
        let handle = Handle(self.next.fetch_add(1, Ordering::Relaxed));
        self.handles(handle).insert(handle, entry);
        handle
    }

    /// Adds a handle to a file that the caller has claimed.
    pub fn add(&self, claim: &Claim<'_>, file: &Arc<OpenFile>, flags: OpenFlags) -> Handle {
        {
            let mut counts = file.counts.lock();
            counts.opens += 1;
            counts.writers += u32::from(flags.writes());
            counts.storers += u32::from(flags.can_store());
        }
        let mut by_ino = claim.shard.by_ino.lock();
        let before = by_ino.open.insert(file.ino, file.clone());
        drop(by_ino);
        if !before.is_none_or(|before| Arc::ptr_eq(&before, file)) {
            // Who holds the other may write where nobody looks.
            tracing::error!("file {} is open twice", file.ino.0);
            debug_assert!(false, "a file is open once");
        }
        self.files.fetch_add(1, Ordering::Relaxed);
        self.insert(Entry::File(file.clone(), flags))
    }

    /// The file behind a handle.
    pub fn file(&self, handle: Handle) -> Result<(Arc<OpenFile>, OpenFlags), Errno> {
        match self.handles(handle).get(&handle) {
            Some(Entry::File(file, flags)) => Ok((file.clone(), *flags)),
            _ => Err(Errno::EBADF),
        }
    }

    /// Removes a handle. The caller then claims the file and finishes with [`Self::drop_count`].
    pub fn remove(&self, handle: Handle) -> Result<(Arc<OpenFile>, OpenFlags), Errno> {
        let mut handles = self.handles(handle);
        match handles.remove(&handle) {
            Some(Entry::File(file, flags)) => {
                self.files.fetch_sub(1, Ordering::Relaxed);
                Ok((file, flags))
            }
            Some(other) => {
                handles.insert(handle, other);
                Err(Errno::EBADF)
            }
            None => Err(Errno::EBADF),
        }
    }

    /// Adds a handle in the place of one that was removed and is still counted.
    pub fn put_back(&self, file: Arc<OpenFile>, flags: OpenFlags) -> Handle {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.insert(Entry::File(file, flags))
    }

    /// Counts one handle less; with the last, the file leaves the table.
    pub fn drop_count(&self, claim: &Claim<'_>, file: &Arc<OpenFile>, flags: OpenFlags) -> Counts {
        let left = {
            let mut counts = file.counts.lock();
            counts.opens -= 1;
            counts.writers -= u32::from(flags.writes());
            counts.storers -= u32::from(flags.can_store());
            *counts
        };
        // The counts are free again: who looks at all files asks for counts with a shard locked.
        // Nobody adds a handle meanwhile, for that takes the claim.
        if left.opens == 0 {
            claim.shard.by_ino.lock().open.remove(&file.ino);
        }
        left
    }

    /// Opens a directory: what is in it is looked up when it is read from the start.
    pub fn add_dir(&self, ino: Ino) -> Handle {
        self.insert(Entry::Dir(ino, Arc::default()))
    }

    /// An open directory's id.
    pub fn dir(&self, handle: Handle) -> Result<Ino, Errno> {
        match self.handles(handle).get(&handle) {
            Some(Entry::Dir(ino, _)) => Ok(*ino),
            _ => Err(Errno::EBADF),
        }
    }

    /// What was in it when it was last read from the start.
    pub fn entries(&self, handle: Handle) -> Result<Arc<Vec<Dirent>>, Errno> {
        match self.handles(handle).get(&handle) {
            Some(Entry::Dir(_, entries)) => Ok(entries.clone()),
            _ => Err(Errno::EBADF),
        }
    }

    /// It is read from the start: this is in it now.
    pub fn set_entries(&self, handle: Handle, now: Arc<Vec<Dirent>>) -> Result<(), Errno> {
        match self.handles(handle).get_mut(&handle) {
            Some(Entry::Dir(_, entries)) => {
                *entries = now;
                Ok(())
            }
            _ => Err(Errno::EBADF),
        }
    }

    /// Closes a directory.
    pub fn remove_dir(&self, handle: Handle) -> Result<(), Errno> {
        let mut handles = self.handles(handle);
        match handles.get(&handle) {
            Some(Entry::Dir(..)) => {
                handles.remove(&handle);
                Ok(())
            }
            _ => Err(Errno::EBADF),
        }
    }

    /// Handles of files.
    pub fn open_files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Files of the PFS that are open there.
    pub fn on_pfs(&self) -> &Arc<PfsOpens> {
        &self.on_pfs
    }

    /// Visits all open files.
    pub fn each(&self, mut visit: impl FnMut(&Arc<OpenFile>)) {
        for shard in 0..SHARDS {
            self.of_shard(shard).iter().for_each(&mut visit);
        }
    }

    /// The open files of one of [`SHARDS`] parts.
    pub fn of_shard(&self, shard: usize) -> Vec<Arc<OpenFile>> {
        let by_ino = self.by_ino[shard].by_ino.lock();
        by_ino.open.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use crate::testing::{Lab, create};

    use super::*;

    #[test]
    fn who_closes_and_who_looks_at_all_files_do_not_wait_for_each_other() {
        const ROUNDS: usize = 200_000;
        let lab = Lab::new();
        let handle = create(lab.rooms(), b"f", b"content");
        let (open, flags) = lab.rooms().buffer.opens().file(handle).expect("open");
        let target = open.target.read().clone();
        let opens = Arc::new(OpenTable::new(1));
        let done = Arc::new(AtomicBool::new(false));
        let (ended, both) = mpsc::channel();
        // No scope: threads that wait for each other are never joined.
        let (table, stop, end) = (opens.clone(), done.clone(), ended.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Acquire) {
                table.written_unseen();
            }
            end.send(()).expect("who tests is there");
        });
        std::thread::spawn(move || {
            for _ in 0..ROUNDS {
                let claim = opens.claim(Ino(7));
                let file = Arc::new(opens.make(Ino(7), target.clone(), true));
                let handle = opens.add(&claim, &file, flags);
                drop(claim);
                opens.remove(handle).expect("just added");
                opens.drop_count(&opens.claim(Ino(7)), &file, flags);
            }
            done.store(true, Ordering::Release);
            ended.send(()).expect("who tests is there");
        });
        for _ in 0..2 {
            let end = both.recv_timeout(Duration::from_secs(60));
            assert!(end.is_ok(), "they wait for each other");
        }
    }

    #[test]
    fn who_holds_what_others_wait_for_does_not_wait_for_a_claim_for_ever() {
        let opens = OpenTable::new(1);
        let (ino, moment) = (Ino(7), Duration::from_millis(50));
        let claim = opens.claim(ino);
        assert!(opens.claim_within(ino, moment).is_none());
        for _ in 0..2 {
            assert!(opens.try_claim(ino).is_none(), "it is the first's still");
        }
        std::thread::scope(|scope| {
            let later = scope.spawn(|| opens.claim_within(ino, Duration::from_secs(60)).is_some());
            drop(claim);
            assert!(later.join().expect("claimed"));
        });
        assert!(
            opens.claim_within(ino, moment).is_some(),
            "it was given back"
        );
    }
}
