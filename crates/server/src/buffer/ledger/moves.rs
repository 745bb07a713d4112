//! Space for objects on their way to another node, where they go.

use forebay_types::{ObjectId, TierId};

use super::{Books, Charge, Ledger, NOBODYS, Refused};

impl Ledger {
    /// Sets space aside for an object that is about to move there, if there is room.
    pub fn try_hold_move(&self, object: ObjectId, tier: TierId, bytes: u64) -> Result<(), Refused> {
        let mut books = self.books.lock();
        if !books.charges.contains_key(&object) {
            return Err(Refused::Gone);
        }
        books.take_move(object);
        books.must_fit(tier, bytes)?;
        let held = Charge {
            tier: tier.0,
            held_bytes: bytes,
            application: NOBODYS,
            ..Charge::default()
        };
        books.tier(held).add(held);
        books.moves.insert(object, held);
        Ok(())
    }

    /// It has moved, or stays.
    pub fn release_move(&self, object: ObjectId) {
        let mut books = self.books.lock();
        books.take_move(object);
        drop(books);
        self.freed.notify_all();
    }
}

impl Books {
    pub(super) fn take_move(&mut self, object: ObjectId) {
        if let Some(old) = self.moves.remove(&object) {
            self.tier(old).subtract(old);
        }
    }
}
