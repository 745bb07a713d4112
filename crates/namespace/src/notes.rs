//! Values of the caller's own beside the records, many of a kind, in the order of their keys.

use forebay_kv::Durability;

use crate::error::NsError;
use crate::log::Batch;
use crate::namespace::Namespace;
use crate::record::NOTE_PREFIX;

/// So many changes are committed together: what any store takes at once.
const TOGETHER_MAX: usize = 64;

fn key_of(key: &[u8]) -> Vec<u8> {
    [NOTE_PREFIX, key].concat()
}

impl Namespace {
    /// Puts values, and removes those that are `None`. A kill may come between any two of them.
    pub fn write_notes(&self, changes: &[(Vec<u8>, Option<Vec<u8>>)]) -> Result<(), NsError> {
        for together in changes.chunks(TOGETHER_MAX) {
            let mut batch = Batch::new();
            for (key, value) in together {
                match value {
                    Some(value) => batch.put(key_of(key), value.clone()),
                    None => batch.delete(key_of(key)),
                };
            }
            self.store.commit(batch, Durability::Buffered)?;
        }
        Ok(())
    }

    /// Visits values whose keys begin so, in the order of their keys and from behind `after` on,
    /// until `visit` says that it has enough.
    pub fn visit_notes(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), NsError> {
        let after = after.map(key_of);
        Ok(self
            .store
            .scan(&key_of(prefix), after.as_deref(), &mut |key, value| {
                visit(&key[NOTE_PREFIX.len()..], value)
            })?)
    }
}
