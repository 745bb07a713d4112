//! What tiers may hold, and what the file systems below them can.

use forebay_types::TierId;

use super::{Books, Ledger};

impl Ledger {
    /// Hard cap on undrained data, bytes.
    pub fn dirty_cap_bytes(&self) -> u64 {
        self.books.lock().dirty_cap_bytes
    }

    /// A tier may hold more, or less, from now on: the cap on undrained data follows. What is held
    /// beyond it stays until it goes, and nothing new is set aside before.
    pub fn set_capacity(&self, tier: TierId, bytes: u64) {
        let mut books = self.books.lock();
        books.tiers[tier.0 as usize].capacity_bytes = bytes;
        books.set_dirty_cap(self.dirty_cap_fraction);
        drop(books);
        self.freed.notify_all();
    }

    /// What the file system below a tier can still give.
    pub fn set_physical_free(&self, tier: TierId, free_bytes: u64) {
        let mut books = self.books.lock();
        let sums = &mut books.tiers[tier.0 as usize];
        sums.physical_limit_bytes = Some(sums.used_bytes.saturating_add(free_bytes));
    }

    /// What the file system below a tier has beyond all that is held there, as it was last asked,
    /// bytes.
    pub fn beyond_bytes(&self, tier: TierId) -> u64 {
        let sums = self.books.lock().tiers[tier.0 as usize];
        let physical = sums.physical_limit_bytes.unwrap_or(0);
        physical.saturating_sub(sums.held_bytes)
    }
}

impl Books {
    pub(super) fn set_dirty_cap(&mut self, fraction: f64) {
        let limited = self.tiers.iter().filter(|t| t.kind.is_some());
        let capacity: u64 = limited.map(|t| t.capacity_bytes).sum();
        self.dirty_cap_bytes = (capacity as f64 * fraction) as u64;
    }
}
