//! What copies of objects say of these: which are on another node, too, and for whom.

use std::collections::HashMap;

use forebay_types::TierId;

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
}
