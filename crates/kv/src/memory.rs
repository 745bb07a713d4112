//! The engine without storage: an ordered map behind a lock.

use std::collections::BTreeMap;

use parking_lot::RwLock;

use crate::{Batch, Durability, Error, Store, batch, range};

/// How many entries a scan copies under one hold of the lock: enough that the lock costs little,
/// few enough that a commit need not wait for a large directory to be listed.
const SCAN_CHUNK_ENTRIES: usize = 256;

/// A store in memory. It keeps neither durability: everything dies with the value.
#[derive(Debug, Default)]
pub struct Memory {
    map: RwLock<BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl Memory {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn chunk(&self, prefix: &[u8], after: Option<&[u8]>) -> Vec<(Vec<u8>, Vec<u8>)> {
        let Some(bounds) = range::bounds(prefix, after) else {
            return Vec::new();
        };
        let map = self.map.read();
        let entries = map.range(bounds).take(SCAN_CHUNK_ENTRIES);
        entries
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }
}

impl Store for Memory {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        batch::check_key(key)?;
        Ok(self.map.read().get(key).cloned())
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error> {
        let mut after = after.map(<[u8]>::to_vec);
        loop {
            // The lock is not held while visiting, so `visit` may commit.
            let mut chunk = self.chunk(prefix, after.as_deref());
            for (key, value) in &chunk {
                if !visit(key, value) {
                    return Ok(());
                }
            }
            if chunk.len() < SCAN_CHUNK_ENTRIES {
                return Ok(());
            }
            after = chunk.pop().map(|(key, _)| key);
        }
    }

    fn commit(&self, batch: Batch, _durability: Durability) -> Result<(), Error> {
        batch.check_limits()?;
        let mut map = self.map.write();
        for (key, expected) in &batch.expectations {
            if map.get(key) != expected.as_ref() {
                return Err(Error::Conflict);
            }
        }
        for (key, value) in batch.ops {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), Error> {
        Ok(())
    }

    fn mend(&self) -> Result<bool, Error> {
        Ok(false)
    }
}
