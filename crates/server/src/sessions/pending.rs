//! Recalls of files that have not been followed yet: whoever changes a file waits for all of them,
//! whoever has asked.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use forebay_types::Ino;
use parking_lot::Mutex;

use super::recalls::Recalls;

const SHARDS: usize = 16;

/// What a client was asked to forget.
#[derive(Clone)]
pub struct Asked {
    /// The client.
    pub client: Arc<Recalls>,
    /// The number of the recall.
    pub number: u64,
    /// Nobody waits for it after that.
    pub until: Instant,
}

impl Asked {
    /// Waits until it is followed, at most until then; whether it is.
    pub fn wait(&self, until: Instant) -> bool {
        self.client.await_followed(self.number, until)
    }
}

/// See the module.
#[derive(Default)]
pub struct Pending([Mutex<HashMap<Ino, Vec<Asked>>>; SHARDS]);

impl Pending {
    /// Asks by `ask`, which nobody else does for this file meanwhile. All that is to be waited for
    /// and that `counts`.
    pub fn ask(
        &self,
        ino: Ino,
        counts: impl Fn(&Asked) -> bool,
        ask: impl FnOnce() -> Vec<Asked>,
    ) -> Vec<Asked> {
        let mut shard = self.0[ino.0 as usize % SHARDS].lock();
        let asked = ask();
        let all = match shard.get_mut(&ino) {
            None if asked.is_empty() => return asked,
            None => shard.entry(ino).or_default(),
            Some(all) => all,
        };
        all.extend(asked);
        all.retain(|asked| !asked.client.has_followed(asked.number) && counts(asked));
        let left = all.clone();
        if left.is_empty() {
            shard.remove(&ino);
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_wire::Recall;

    use super::*;

    #[test]
    fn who_comes_later_waits_for_what_others_have_asked_until_it_is_followed() {
        let (pending, client) = (Pending::default(), Arc::new(Recalls::default()));
        client.follow(0);
        let f = Ino(7);
        let until = Instant::now() + Duration::from_secs(60);
        let ask = || {
            vec![Asked {
                client: client.clone(),
                number: client.recall(Recall::Pages(f)),
                until,
            }]
        };
        let all = |_: &Asked| true;
        let numbers = |asked: Vec<Asked>| asked.iter().map(|a| a.number).collect::<Vec<u64>>();
        assert_eq!(numbers(pending.ask(f, all, ask)), [1]);
        assert_eq!(numbers(pending.ask(f, all, Vec::new)), [1]);
        assert_eq!(numbers(pending.ask(f, all, ask)), [1, 2]);
        assert!(pending.ask(Ino(8), all, Vec::new).is_empty());
        client.follow(1);
        assert_eq!(numbers(pending.ask(f, all, Vec::new)), [2]);
        // What nobody can believe any more.
        assert!(
            pending
                .ask(f, |asked| asked.until > until, Vec::new)
                .is_empty()
        );
        assert_eq!(numbers(pending.ask(f, all, ask)), [3]);
        client.end();
        assert!(pending.ask(f, all, Vec::new).is_empty());
        assert!(pending.0.iter().all(|shard| shard.lock().is_empty()));
    }
}
