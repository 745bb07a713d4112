//! The embedded engine: a log-structured merge tree (fjall) in a directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fjall::{
    AbstractTree, Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Slice,
};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::flush::SharedFlush;
use crate::tail::{Change, Tail};
use crate::{Batch, Durability, Entry, Error, Store, batch, media, range};

/// How large the in-memory part of the tree may grow before it is written out. The engine holds
/// commits back when four of this size wait to be written, so memory stays below about five. Larger
/// ones cost memory and gave no more commits per second.
const MEMTABLE_BYTES: u64 = 8 * 1024 * 1024;

/// Cache for blocks of the part on storage; the kernel's page cache is the larger one behind it.
const BLOCK_CACHE_BYTES: u64 = 8 * 1024 * 1024;

/// Journals are kept until the memtables they cover are written out. The least the engine allows.
const JOURNALS_BYTES: u64 = 64 * 1024 * 1024;

/// One thread writes memtables out while the other compacts; with a single one, memtables pile up
/// behind compaction.
const WORKER_THREADS: usize = 2;

const KEYSPACE: &str = "forebay";

/// Where so much was committed since the last flush, the next commit flushes: it is all kept in
/// memory until then.
const TAIL_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The engine's own wait for a memtable has no end once its threads have died. It begins at four,
/// and one commit can add two; so this store waits before, where it sees whether they have.
const SEALED_MEMTABLES_MAX: usize = 1;
const MEMTABLE_LOOK: Duration = Duration::from_millis(5);

/// Room that opening a store again needs, beyond what is written again.
const ROOM_BYTES: u64 = 4 * 1024 * 1024;

/// Reads under way may take so long before a store is closed.
const LAST_READS: Duration = Duration::from_millis(500);

/// What is written again goes in batches of about this size.
const AGAIN_BYTES: usize = 1024 * 1024;

/// A store in a directory.
pub struct Lsm {
    dir: PathBuf,
    /// Held from judging expectations until the batch is applied, so that no other batch comes
    /// between.
    commits: Mutex<Committed>,
    flush: SharedFlush,
    /// `None` after opening again has failed.
    engine: RwLock<Option<Arc<Engine>>>,
}

/// What storage may not have.
#[derive(Default)]
struct Committed {
    tail: Tail,
    /// Keys of commits that failed on their way to the journal: the engine does not show them,
    /// storage may have them.
    uncertain: Vec<Slice>,
    /// What keys are to hold again whose commits failed after they were applied.
    back: Vec<Change>,
    /// A flush has failed, or may have: what the kernel shows of the journals may be on no storage.
    is_flush_in_doubt: bool,
}

impl Lsm {
    /// Opens the store in `dir`, and creates both if they are not there. The store is locked until
    /// this value is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] if the store is open already; storage that fails or is damaged.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let engine = Engine::open(dir)?;
        Ok(Self {
            dir: dir.to_path_buf(),
            commits: Mutex::default(),
            flush: SharedFlush::default(),
            engine: RwLock::new(Some(Arc::new(engine))),
        })
    }

    fn engine(&self) -> Result<Arc<Engine>, Error> {
        self.engine.read().clone().ok_or(Error::Poisoned)
    }

    /// Judges the expectations and hands the changes to the kernel. Returns the number of the first
    /// change after it.
    fn apply(&self, batch: &Batch, changes: Vec<Change>) -> Result<(u64, bool), Error> {
        let mut committed = self.commits.lock();
        if self.flush.has_failed() {
            return Err(Error::Poisoned);
        }
        let engine = self.engine()?;
        for (key, expected) in &batch.expectations {
            if engine.get(key)?.as_deref() != expected.as_deref() {
                return Err(Error::Conflict);
            }
        }
        self.write(&mut committed, &engine, changes)?;
        let tail = &committed.tail;
        Ok((tail.end(), tail.bytes() > TAIL_BYTES_MAX))
    }

    fn write(
        &self,
        committed: &mut MutexGuard<'_, Committed>,
        engine: &Engine,
        changes: Vec<Change>,
    ) -> Result<(), Error> {
        // The engine poisons itself as well, but not for a failure between its journal and its
        // memtable.
        match engine.write(&changes) {
            Ok(()) => committed.tail.extend(changes),
            Err(error) => {
                self.flush.poison();
                // A thread of the engine has failed: nobody knows in what.
                committed.is_flush_in_doubt |= matches!(error, Error::Poisoned);
                committed
                    .uncertain
                    .extend(changes.into_iter().map(|(key, _)| key));
                return Err(error);
            }
        }
        Ok(())
    }

    /// A commit has failed after it was applied: it is taken back, but for what somebody has
    /// changed since.
    fn take_back(&self, before: Vec<Change>, end: u64) {
        let mut committed = self.commits.lock();
        let mut back = before;
        back.retain(|(key, _)| !committed.tail.has_after(key, end));
        let is_mended = !self.flush.has_failed();
        if is_mended
            && let Ok(engine) = self.engine()
            && self.write(&mut committed, &engine, back.clone()).is_ok()
        {
            return;
        }
        committed.back.extend(back);
    }

    /// Opens storage anew and writes there what it may not have.
    fn open_again(&self, committed: &mut Committed) -> Result<(), Error> {
        let mut slot = self.engine.write();
        if let Some(engine) = slot.as_ref() {
            let keys = committed.uncertain.iter();
            let held = keys.map(|key| Ok((key.clone(), engine.get(key)?)));
            let held = held.collect::<Result<Vec<Change>, Error>>()?;
            committed.tail.extend(held);
            committed.uncertain.clear();
        }
        committed.tail.extend(committed.back.drain(..));
        if let Some(engine) = slot.take()
            && let Err(engine) = close(engine)
        {
            *slot = Some(engine);
            return Err(Error::InUse(None));
        }
        if committed.is_flush_in_doubt {
            media::write_anew(&self.dir)?;
            committed.is_flush_in_doubt = false;
        }
        let engine = slot.insert(Arc::new(Engine::open(&self.dir)?));
        let (mut batch, mut bytes) = (Vec::new(), 0);
        for (key, value) in committed.tail.iter() {
            bytes += key.len() + value.as_ref().map_or(0, |value| value.len());
            batch.push((key.clone(), value.clone()));
            if bytes >= AGAIN_BYTES {
                engine.write_again(std::mem::take(&mut batch))?;
                bytes = 0;
            }
        }
        engine.write_again(batch)?;
        let flushed = engine.database.persist(PersistMode::SyncAll);
        flushed
            .map_err(from_engine)
            .inspect_err(|_| committed.is_flush_in_doubt = true)
    }
}

/// Closes an engine that nobody else uses; else gives it back.
fn close(mut engine: Arc<Engine>) -> Result<(), Arc<Engine>> {
    let begun = Instant::now();
    loop {
        match Arc::try_unwrap(engine) {
            Ok(engine) => {
                drop(engine);
                return Ok(());
            }
            Err(shared) if begun.elapsed() > LAST_READS => return Err(shared),
            Err(shared) => engine = shared,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The engine while it is open.
struct Engine {
    keyspace: Keyspace,
    database: Database,
}

impl Engine {
    fn open(dir: &Path) -> Result<Self, Error> {
        media::remove_half_made(dir)?;
        let database = Database::builder(dir)
            .cache_size(BLOCK_CACHE_BYTES)
            .max_journaling_size(JOURNALS_BYTES)
            .worker_threads(WORKER_THREADS)
            .manual_journal_persist(true)
            .open()
            .map_err(from_engine)?;
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(MEMTABLE_BYTES)
                .manual_journal_persist(true)
        };
        let keyspace = database.keyspace(KEYSPACE, options).map_err(from_engine)?;
        Ok(Self { keyspace, database })
    }

    /// For whoever keeps others from committing meanwhile.
    fn get(&self, key: &[u8]) -> Result<Option<Slice>, Error> {
        self.keyspace.get(key).map_err(from_engine)
    }

    fn write(&self, changes: &[Change]) -> Result<(), Error> {
        self.wait_for_memtables()?;
        let mut write = self.database.batch().durability(Some(PersistMode::Buffer));
        for (key, value) in changes {
            match value {
                Some(value) => write.insert(&self.keyspace, key.clone(), value.clone()),
                None => write.remove(&self.keyspace, key.clone()),
            }
        }
        write.commit().map_err(from_engine)
    }

    /// The same for what was written before, of which a key's last change counts.
    fn write_again(&self, changes: Vec<Change>) -> Result<(), Error> {
        // One batch has one version, so that two changes of a key in it have no order.
        let last: BTreeMap<Slice, Option<Slice>> = changes.into_iter().collect();
        self.write(&last.into_iter().collect::<Vec<_>>())
    }

    fn wait_for_memtables(&self) -> Result<(), Error> {
        while self.keyspace.tree.sealed_memtable_count() > SEALED_MEMTABLES_MAX {
            // Fails if a thread of the engine has.
            let handed = self.database.persist(PersistMode::Buffer);
            handed.map_err(from_engine)?;
            std::thread::sleep(MEMTABLE_LOOK);
        }
        Ok(())
    }
}

fn change_of((key, value): Entry) -> Change {
    (key.into(), value.map(Into::into))
}

impl Store for Lsm {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        batch::check_key(key)?;
        let engine = self.engine()?;
        // Through a snapshot, because a plain read may see the first half of a batch that is being
        // applied.
        let value = engine
            .database
            .snapshot()
            .get(&engine.keyspace, key)
            .map_err(from_engine)?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error> {
        let Some(bounds) = range::bounds(prefix, after) else {
            return Ok(());
        };
        let engine = self.engine()?;
        for entry in engine.database.snapshot().range(&engine.keyspace, bounds) {
            let (key, value) = entry.into_inner().map_err(from_engine)?;
            if !visit(&key, &value) {
                break;
            }
        }
        Ok(())
    }

    fn commit(&self, mut batch: Batch, durability: Durability) -> Result<(), Error> {
        batch.check_limits()?;
        batch.keep_last_change_per_key();
        let changes: Vec<Change> = std::mem::take(&mut batch.ops)
            .into_iter()
            .map(change_of)
            .collect();
        if durability == Durability::Buffered {
            let (_, is_long) = self.apply(&batch, changes)?;
            if is_long && let Err(error) = self.sync() {
                // This batch is applied, as it was to be; the store is poisoned, and says so to the
                // next.
                debug_assert!(self.flush.has_failed(), "{error}");
            }
            return Ok(());
        }
        let engine = self.engine()?;
        let old = changes.iter().map(|(key, _)| {
            let value = engine.get(key)?;
            Ok((key.clone(), value))
        });
        let before = old.collect::<Result<Vec<Change>, Error>>()?;
        drop(engine);
        let (end, _) = self.apply(&batch, changes)?;
        // Outside of the lock: those who commit meanwhile share the next flush.
        self.sync().inspect_err(|_| self.take_back(before, end))
    }

    fn sync(&self) -> Result<(), Error> {
        self.flush.run(|| {
            let engine = self.engine()?;
            let end = self.commits.lock().tail.end();
            // The journal has its length ahead of time, and its name is made durable when it is
            // created.
            let flushed = engine.database.persist(PersistMode::SyncData);
            let mut committed = self.commits.lock();
            match flushed {
                Ok(()) => committed.tail.forget(end),
                Err(_) => committed.is_flush_in_doubt = true,
            }
            flushed.map_err(from_engine)
        })
    }

    fn mend(&self) -> Result<bool, Error> {
        if !self.flush.has_failed() {
            return Ok(false);
        }
        let mut committed = self.commits.lock();
        let again = 2 * committed.tail.bytes();
        let copies = match committed.is_flush_in_doubt {
            true => media::journal_bytes(&self.dir)?,
            false => 0,
        };
        media::need_room(&self.dir, ROOM_BYTES + again + copies)?;
        self.open_again(&mut committed)?;
        let end = committed.tail.end();
        committed.tail.forget(end);
        self.flush.mended();
        Ok(true)
    }
}

fn from_engine(error: fjall::Error) -> Error {
    match error {
        fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source)) => {
            Error::Io(source)
        }
        fjall::Error::Poisoned => Error::Poisoned,
        fjall::Error::Locked => Error::InUse(None),
        fjall::Error::InvalidVersion(found) => Error::Version {
            found: found.map_or_else(|| "unknown".into(), |version| version.to_string()),
        },
        fjall::Error::Storage(fjall::LsmError::InvalidVersion(found)) => Error::Version {
            found: found.to_string(),
        },
        other => Error::Corrupt(other.to_string()),
    }
}
