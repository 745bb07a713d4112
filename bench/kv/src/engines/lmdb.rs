use std::path::Path;

use forebay_kv::{Batch, Durability, Error, Store};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions};

use super::engine_error;

/// Address space for the map; the file grows as needed.
const MAP_BYTES: usize = 1 << 30;

struct Lmdb {
    env: Env,
    database: Database<'static, Bytes, Bytes>,
}

pub fn open(dir: &Path, durability: Durability) -> Result<Box<dyn Store>, Error> {
    let mut options = EnvOpenOptions::new();
    options.map_size(MAP_BYTES);
    if durability == Durability::Buffered {
        // SAFETY: without flushes the file may be damaged by power loss, and reading a damaged map
        // is undefined. The directory is new and does not outlive this run.
        unsafe { options.flags(EnvFlags::NO_SYNC) };
    }
    // SAFETY: the directory belongs to this run, so nothing else changes the mapped file, and it is
    // opened once.
    let env = unsafe { options.open(dir) }.map_err(engine_error)?;
    let create = env.write_txn().map_err(engine_error)?;
    let created = env.create_databases_and_commit(create, |opener, create| {
        opener
            .create_database(create, None)
            .map(CommitOrAbort::<_, ()>::Commit)
    });
    let database = created
        .map_err(|error: heed::Error| engine_error(error))?
        .unwrap_commit();
    Ok(Box::new(Lmdb { env, database }))
}

impl Store for Lmdb {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let read = self.env.read_txn().map_err(engine_error)?;
        let value = self.database.get(&read, key).map_err(engine_error)?;
        Ok(value.map(<[u8]>::to_vec))
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
        let (expectations, changes) = batch.into_parts();
        let mut write = self.env.write_txn().map_err(engine_error)?;
        for (key, expected) in &expectations {
            let held = self.database.get(&write, key).map_err(engine_error)?;
            if held != expected.as_deref() {
                return Err(Error::Conflict);
            }
        }
        for (key, value) in &changes {
            match value {
                Some(value) => self.database.put(&mut write, key, value),
                None => self.database.delete(&mut write, key).map(drop),
            }
            .map_err(engine_error)?;
        }
        write.commit().map_err(engine_error)
    }

    fn sync(&self) -> Result<(), Error> {
        self.env.force_sync().map_err(engine_error)
    }

    fn mend(&self) -> Result<bool, Error> {
        Err(engine_error("not measured"))
    }
}
