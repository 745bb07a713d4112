//! Recalls of files that have not been followed yet: whoever changes a file waits for all of them,
//! whoever has asked.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_types::Ino;
use parking_lot::Mutex;

use super::recalls::Recalls;

const SHARDS: usize = 16;

/// A client, and the number of what it was asked to forget.
pub type Asked = (Arc<Recalls>, u64);

/// See the module.
#[derive(Default)]
pub struct Pending([Mutex<HashMap<Ino, Vec<Asked>>>; SHARDS]);

impl Pending {
    /// Asks by `ask`, which nobody else does for this file meanwhile. All that is to be waited for.
    pub fn ask(&self, ino: Ino, ask: impl FnOnce() -> Vec<Asked>) -> Vec<Asked> {
        let mut shard = self.0[ino.0 as usize % SHARDS].lock();
        let asked = ask();
        let all = match shard.get_mut(&ino) {
            None if asked.is_empty() => return asked,
            None => shard.entry(ino).or_default(),
            Some(all) => all,
        };
        all.extend(asked);
        all.retain(|(client, number)| !client.has_followed(*number));
        let left = all.clone();
        if left.is_empty() {
            shard.remove(&ino);
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use forebay_wire::Recall;

    use super::*;

    #[test]
    fn who_comes_later_waits_for_what_others_have_asked_until_it_is_followed() {
        let (pending, client) = (Pending::default(), Arc::new(Recalls::default()));
        client.follow(0);
        let f = Ino(7);
        let ask = || vec![(client.clone(), client.recall(Recall::Pages(f)))];
        let numbers = |asked: Vec<Asked>| asked.iter().map(|(_, n)| *n).collect::<Vec<u64>>();
        assert_eq!(numbers(pending.ask(f, ask)), [1]);
        assert_eq!(numbers(pending.ask(f, Vec::new)), [1]);
        assert_eq!(numbers(pending.ask(f, ask)), [1, 2]);
        assert!(pending.ask(Ino(8), Vec::new).is_empty());
        client.follow(1);
        assert_eq!(numbers(pending.ask(f, Vec::new)), [2]);
        client.end();
        assert!(pending.ask(f, Vec::new).is_empty());
        assert!(pending.0.iter().all(|shard| shard.lock().is_empty()));
    }
}
