//! Which clients keep pages of which files, and so have to drop them before and after another
//! client changes the content.
//!
//! 1. Who reads pages is on record before the read is answered.
//! 2. Who was asked to drop pages is not on record until it reads some again.

use std::collections::HashMap;

use forebay_types::Ino;
use parking_lot::Mutex;

use super::shown::Viewers;

const SHARDS: usize = 16;

/// See the module.
#[derive(Default)]
pub struct Keepers([Mutex<HashMap<Ino, Viewers>>; SHARDS]);

impl Keepers {
    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, Viewers>> {
        &self.0[ino.0 as usize % SHARDS]
    }

    /// A client is about to read pages.
    pub fn keeps(&self, ino: Ino, client: u32) {
        let mut shard = self.shard(ino).lock();
        let keepers = shard.entry(ino).or_default();
        if !keepers.contains(&client) {
            keepers.push(client);
        }
    }

    /// All but one are about to drop their pages; who they are.
    pub fn take_others(&self, ino: Ino, client: u32) -> Viewers {
        let mut shard = self.shard(ino).lock();
        let Some(keepers) = shard.get_mut(&ino) else {
            return Viewers::new();
        };
        let others = keepers.iter().copied().filter(|one| *one != client);
        let others: Viewers = others.collect();
        keepers.retain(|one| *one == client);
        if keepers.is_empty() {
            shard.remove(&ino);
        }
        others
    }

    /// A client has forgotten a file, and its pages with it.
    pub fn forget_file(&self, ino: Ino, client: u32) {
        let mut shard = self.shard(ino).lock();
        if let Some(keepers) = shard.get_mut(&ino) {
            keepers.retain(|one| *one != client);
            if keepers.is_empty() {
                shard.remove(&ino);
            }
        }
    }

    /// A client is gone, and its pages with it.
    pub fn forget(&self, client: u32) {
        for shard in &self.0 {
            shard.lock().retain(|_, keepers| {
                keepers.retain(|one| *one != client);
                !keepers.is_empty()
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_drop_their_pages_once_and_who_is_gone_has_none() {
        let keepers = Keepers::default();
        let f = Ino(7);
        for client in [1, 2, 2, 3] {
            keepers.keeps(f, client);
        }
        assert_eq!(keepers.take_others(f, 2)[..], [1, 3]);
        assert!(keepers.take_others(f, 2).is_empty());
        assert_eq!(keepers.take_others(f, 1)[..], [2]);
        keepers.keeps(f, 4);
        keepers.keeps(f, 5);
        keepers.forget(4);
        keepers.forget_file(Ino(8), 5);
        keepers.forget_file(f, 5);
        assert!(keepers.take_others(f, 1).is_empty());
        assert!(keepers.0.iter().all(|shard| shard.lock().is_empty()));
    }
}
