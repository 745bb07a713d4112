use std::fs::File;
use std::io;
use std::path::Path;

use forebay_kv::{Batch, Durability, Error, Store};
use redb::backends::FileBackend;
use redb::{Builder, Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};

use super::{CACHE_BYTES, engine_error};

const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("entries");

/// A file that is never flushed. `Durability::None` would not do: such a commit lives in the
/// process until the next durable one. With this backend each commit reaches the kernel, and
/// survives the death of the process.
#[derive(Debug)]
struct Unflushed(FileBackend);

impl StorageBackend for Unflushed {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}

struct Redb(Database);

pub fn open(dir: &Path, durability: Durability) -> Result<Box<dyn Store>, Error> {
    let path = dir.join("redb");
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    let database = match durability {
        Durability::Synced => builder.create(path),
        Durability::Buffered => {
            let file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)?;
            let backend = FileBackend::new(file).map_err(engine_error)?;
            builder.create_with_backend(Unflushed(backend))
        }
    };
    let database = database.map_err(engine_error)?;
    let create = database.begin_write().map_err(engine_error)?;
    create.open_table(TABLE).map_err(engine_error)?;
    create.commit().map_err(engine_error)?;
    Ok(Box::new(Redb(database)))
}

impl Store for Redb {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let read = self.0.begin_read().map_err(engine_error)?;
        let table = read.open_table(TABLE).map_err(engine_error)?;
        let value = table.get(key).map_err(engine_error)?;
        Ok(value.map(|value| value.value().to_vec()))
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
        let write = self.0.begin_write().map_err(engine_error)?;
        {
            let mut table = write.open_table(TABLE).map_err(engine_error)?;
            for (key, expected) in &expectations {
                let held = table.get(key.as_slice()).map_err(engine_error)?;
                if held.map(|held| held.value().to_vec()) != *expected {
                    return Err(Error::Conflict);
                }
            }
            for (key, value) in &changes {
                match value {
                    Some(value) => table.insert(key.as_slice(), value.as_slice()).map(drop),
                    None => table.remove(key.as_slice()).map(drop),
                }
                .map_err(engine_error)?;
            }
        }
        write.commit().map_err(engine_error)
    }

    fn sync(&self) -> Result<(), Error> {
        Err(engine_error("not measured"))
    }

    fn mend(&self) -> Result<bool, Error> {
        Err(engine_error("not measured"))
    }
}
