//! Copies of objects: which are on another node, too, and for whom, and their end.

use std::collections::HashMap;

use forebay_types::{ObjectId, TierId};

use super::Ledger;

impl Ledger {
    /// Of undrained objects, by tier, those that fsync has put on another node, too: how many, and
    /// their bytes.
    pub fn elsewhere(
        &self,
        server_of: impl Fn(TierId) -> Option<u16>,
    ) -> HashMap<TierId, (u64, u64)> {
        let books = self.books.lock();
        let mut found: HashMap<TierId, (u64, u64)> = HashMap::new();
        for (object, shadow) in &books.shadows {
            let charge = books.charges.get(object).filter(|one| one.is_undrained());
            let Some(charge) = charge else { continue };
            let tier = TierId(charge.tier);
            if server_of(TierId(shadow.tier)) != server_of(tier) {
                let sum = found.entry(tier).or_default();
                *sum = (sum.0 + 1, sum.1 + charge.used_bytes);
            }
        }
        found
    }

    /// What copies of drained objects take, by the tier that they are in, bytes. Not those that an
    /// fsync has made, and that are about to be removed since the PFS has the object.
    pub fn restart_copies(&self) -> HashMap<TierId, u64> {
        let books = self.books.lock();
        let mut found = HashMap::new();
        for (object, copy) in &books.shadows {
            let is_drained = books.charges.get(object).is_some_and(|one| !one.dirty);
            if is_drained && !copy.nameless {
                *found.entry(TierId(copy.tier)).or_default() += copy.used_bytes;
            }
        }
        found
    }

    /// The copy of an object on flash is none any more, and is about to be removed.
    pub fn expire_shadow(&self, object: ObjectId) {
        if let Some(shadow) = self.books.lock().shadows.get_mut(&object) {
            shadow.nameless = true;
        }
    }

    /// The copy of an object on flash is gone, or has become the object.
    pub fn release_shadow(&self, object: ObjectId) {
        let mut books = self.books.lock();
        books.take_shadow(object);
        drop(books);
        self.freed.notify_all();
    }
}
