//! What files hold, as the ledger has it. The figures come from a file's state, and the state is
//! locked while the entry is made. So an older look at a file cannot overtake a newer one.

use forebay_namespace::{File, FileState};

use crate::buffer::Buffer;

impl Buffer {
    /// Settles what a file's object occupies. Answers whether the file is dirty.
    pub fn book(&self, file: &File, used_bytes: u64) -> bool {
        self.book_held(file, &file.lock(), used_bytes)
    }

    /// The same for who holds its state. Its owner may have come from the PFS, too.
    pub fn book_held(&self, file: &File, state: &FileState, used_bytes: u64) -> bool {
        let dirty = state.is_dirty();
        let tier = state.residency.tier;
        self.own_as(file, state);
        self.ledger.settle(file.object, tier, used_bytes, dirty);
        dirty
    }

    /// A file has become dirty or clean.
    pub fn book_state(&self, file: &File) {
        let state = file.lock();
        self.own_as(file, &state);
        self.ledger.set_dirty(file.object, state.is_dirty());
    }
}
