use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_kv::{Batch, Durability, Error, Store};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::{CACHE_BYTES, engine_error};

/// Connections for reading, so that two threads need not share one.
const READERS: usize = 2;

struct Sqlite {
    writer: Mutex<Connection>,
    readers: [Mutex<Connection>; READERS],
}

pub fn open(dir: &Path, synchronous: &str) -> Result<Box<dyn Store>, Error> {
    let writer = connect(dir, synchronous)?;
    writer
        .execute_batch("CREATE TABLE IF NOT EXISTS entries (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")
        .map_err(engine_error)?;
    let readers = [
        Mutex::new(connect(dir, synchronous)?),
        Mutex::new(connect(dir, synchronous)?),
    ];
    Ok(Box::new(Sqlite {
        writer: Mutex::new(writer),
        readers,
    }))
}

fn connect(dir: &Path, synchronous: &str) -> Result<Connection, Error> {
    let connection = Connection::open(dir.join("sqlite")).map_err(engine_error)?;
    let cache_kib = CACHE_BYTES / 1024;
    connection
        .execute_batch(&format!(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous={synchronous}; PRAGMA cache_size=-{cache_kib};"
        ))
        .map_err(engine_error)?;
    Ok(connection)
}

fn select(connection: &Connection, key: &[u8]) -> Result<Option<Vec<u8>>, rusqlite::Error> {
    let mut statement = connection.prepare_cached("SELECT value FROM entries WHERE key = ?1")?;
    statement
        .query_row(params![key], |row| row.get(0))
        .optional()
}

impl Sqlite {
    fn reader(&self) -> MutexGuard<'_, Connection> {
        let free = self
            .readers
            .iter()
            .find_map(|reader| reader.try_lock().ok());
        free.unwrap_or_else(|| {
            self.readers[0]
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        })
    }

    fn apply(&self, batch: Batch) -> Result<bool, rusqlite::Error> {
        let (expectations, changes) = batch.into_parts();
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let write = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for (key, expected) in &expectations {
            if select(&write, key)? != *expected {
                return Ok(false);
            }
        }
        for (key, value) in &changes {
            match value {
                Some(value) => write
                    .prepare_cached("INSERT OR REPLACE INTO entries VALUES (?1, ?2)")?
                    .execute(params![key, value]),
                None => write
                    .prepare_cached("DELETE FROM entries WHERE key = ?1")?
                    .execute(params![key]),
            }?;
        }
        write.commit()?;
        Ok(true)
    }
}

impl Store for Sqlite {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        select(&self.reader(), key).map_err(engine_error)
    }

    fn scan(
        &self,
        _prefix: &[u8],
        _after: Option<&[u8]>,
        _visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error> {
        Err(engine_error("not measured"))
    }

    fn commit(&self, batch: Batch, _durability: Durability) -> Result<(), Error> {
        if self.apply(batch).map_err(engine_error)? {
            Ok(())
        } else {
            Err(Error::Conflict)
        }
    }

    fn sync(&self) -> Result<(), Error> {
        Err(engine_error("not measured"))
    }

    fn mend(&self) -> Result<bool, Error> {
        Err(engine_error("not measured"))
    }
}
