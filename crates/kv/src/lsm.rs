//! The embedded engine: a log-structured merge tree (fjall) in a directory.

use std::path::Path;

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};
use parking_lot::Mutex;

use crate::flush::SharedFlush;
use crate::{Batch, Durability, Error, Store, batch, range};

/// How large the in-memory part of the tree may grow before it is written out. The engine holds commits back when four of
/// this size wait to be written, so memory stays below about five. Larger ones cost memory and gave no more commits per
/// second.
const MEMTABLE_BYTES: u64 = 8 * 1024 * 1024;

/// Cache for blocks of the part on storage; the kernel's page cache is the larger one behind it.
const BLOCK_CACHE_BYTES: u64 = 8 * 1024 * 1024;

/// Journals are kept until the memtables they cover are written out. The least the engine allows.
const JOURNALS_BYTES: u64 = 64 * 1024 * 1024;

/// One thread writes memtables out while the other compacts; with a single one, memtables pile up behind compaction.
const WORKER_THREADS: usize = 2;

const KEYSPACE: &str = "forebay";

/// A store in a directory.
pub struct Lsm {
    /// 1. Held from judging expectations until the batch is applied, so that no other batch comes between.
    commits: Mutex<()>,
    flush: SharedFlush,
    keyspace: Keyspace,
    database: Database,
}

impl Lsm {
    /// Opens the store in `dir`, and creates both if they are not there. The store is locked until this value is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] if the store is open already; storage that fails or is damaged.
    pub fn open(dir: &Path) -> Result<Self, Error> {
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
        Ok(Self {
            commits: Mutex::new(()),
            flush: SharedFlush::default(),
            keyspace,
            database,
        })
    }

    /// Judges the expectations and hands the changes to the kernel.
    fn apply(&self, mut batch: Batch) -> Result<(), Error> {
        batch.keep_last_change_per_key();
        let mut write = self.database.batch().durability(Some(PersistMode::Buffer));
        let _one_at_a_time = self.commits.lock();
        if self.flush.has_failed() {
            return Err(Error::Poisoned);
        }
        for (key, expected) in &batch.expectations {
            let held = self.keyspace.get(key).map_err(from_engine)?;
            if held.as_deref() != expected.as_deref() {
                return Err(Error::Conflict);
            }
        }
        for (key, value) in batch.ops {
            match value {
                Some(value) => write.insert(&self.keyspace, key, value),
                None => write.remove(&self.keyspace, key),
            }
        }
        // The engine poisons itself as well, but not for a failure between its journal and its memtable.
        write
            .commit()
            .map_err(from_engine)
            .inspect_err(|_| self.flush.poison())
    }
}

impl Store for Lsm {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        batch::check_key(key)?;
        // Through a snapshot, because a plain read may see the first half of a batch that is being applied.
        let value = self
            .database
            .snapshot()
            .get(&self.keyspace, key)
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
        for entry in self.database.snapshot().range(&self.keyspace, bounds) {
            let (key, value) = entry.into_inner().map_err(from_engine)?;
            if !visit(&key, &value) {
                break;
            }
        }
        Ok(())
    }

    fn commit(&self, batch: Batch, durability: Durability) -> Result<(), Error> {
        batch.check_limits()?;
        self.apply(batch)?;
        match durability {
            Durability::Buffered => Ok(()),
            // Outside of the lock: those who commit meanwhile share the next flush.
            Durability::Synced => self.sync(),
        }
    }

    fn sync(&self) -> Result<(), Error> {
        // The journal has its length ahead of time, and its name is made durable when it is created.
        self.flush.run(|| {
            self.database
                .persist(PersistMode::SyncData)
                .map_err(from_engine)
        })
    }
}

fn from_engine(error: fjall::Error) -> Error {
    match error {
        fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source)) => {
            Error::Io(source)
        }
        fjall::Error::Poisoned => Error::Poisoned,
        fjall::Error::Locked => Error::InUse,
        fjall::Error::InvalidVersion(found) => Error::Version {
            found: found.map_or_else(|| "unknown".into(), |version| version.to_string()),
        },
        fjall::Error::Storage(fjall::LsmError::InvalidVersion(found)) => Error::Version {
            found: found.to_string(),
        },
        other => Error::Corrupt(other.to_string()),
    }
}
