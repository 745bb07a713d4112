//! References that the kernel drops.
//!
//! The kernel says how many references of a number it drops, not of which session: after a new
//! session with the server the kernel may have the file twice under one number, once for each
//! session ([`fuser::Generation`]). Invariants:
//!
//! 1. A session is told to drop no reference that an earlier session has given.
//! 2. Once the kernel has dropped all that it was given under a number, the session is told to drop
//!    all that it has given.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use forebay_client::Client;
use forebay_types::{Ino, limits};
use parking_lot::Mutex;

use crate::company::Company;

/// So many are dropped at once, without waiting for more.
const BATCH: usize = 512;

const _: () = assert!(BATCH <= limits::FORGETS_PER_MESSAGE_MAX);

type Counts = HashMap<Ino, u64>;

/// What the kernel has, by the session that has given it.
#[derive(Default)]
struct References {
    /// Of this session.
    generation: u64,
    now: Counts,
    /// Of all earlier ones.
    before: Counts,
    /// Of this session, and to be dropped.
    waiting: Vec<(Ino, u64)>,
}

impl References {
    fn follow(&mut self, generation: u64) {
        if generation <= self.generation {
            return;
        }
        self.generation = generation;
        for (ino, count) in self.now.drain() {
            *self.before.entry(ino).or_default() += count;
        }
        // The end of its session has dropped them.
        self.waiting.clear();
    }

    fn gives(&mut self, ino: Ino, generation: u64) -> bool {
        self.follow(generation);
        let is_new = !self.now.contains_key(&ino) && !self.before.contains_key(&ino);
        let counts = match generation == self.generation {
            true => &mut self.now,
            false => &mut self.before,
        };
        *counts.entry(ino).or_default() += 1;
        is_new
    }

    /// Those of earlier sessions come first: a reference that is dropped too late costs memory, one
    /// that is dropped too early a file that is in use.
    ///
    /// Whether the kernel has none any more, of any session.
    fn drops(&mut self, ino: Ino, count: u64) -> bool {
        let rest = count - take(&mut self.before, ino, count);
        let dropped = take(&mut self.now, ino, rest);
        if dropped > 0 {
            self.waiting.push((ino, dropped));
        }
        !self.now.contains_key(&ino) && !self.before.contains_key(&ino)
    }
}

/// Takes at most so many of a number away; how many those are.
fn take(counts: &mut Counts, ino: Ino, count: u64) -> u64 {
    let Entry::Occupied(mut held) = counts.entry(ino) else {
        return 0;
    };
    let taken = count.min(*held.get());
    *held.get_mut() -= taken;
    if *held.get() == 0 {
        held.remove();
    }
    taken
}

/// Where a server is elsewhere, references are dropped many by one message: nobody waits for it.
pub(crate) struct Forgets {
    references: Mutex<References>,
    at_once: bool,
}

impl Forgets {
    pub(crate) fn new(company: Company) -> Forgets {
        Forgets {
            references: Mutex::default(),
            at_once: company == Company::Alone,
        }
    }

    /// The kernel is about to get a reference, as one of this generation. Whether it has had none.
    pub(crate) fn gives(&self, ino: Ino, generation: u64) -> bool {
        // A server in this process has one session, and nobody asks.
        self.at_once || self.references.lock().gives(ino, generation)
    }

    /// Whether the kernel has references, or is about to get some.
    pub(crate) fn are_owed(&self, ino: Ino) -> bool {
        let references = self.references.lock();
        references.now.contains_key(&ino) || references.before.contains_key(&ino)
    }

    /// All that the kernel has references of.
    pub(crate) fn known(&self) -> Vec<Ino> {
        let references = self.references.lock();
        let all = references.now.keys().chain(references.before.keys());
        all.copied().chain([Ino::ROOT]).collect()
    }

    /// The kernel has dropped some references.
    pub(crate) fn add(&self, client: &Client, nodes: impl Iterator<Item = (Ino, u64)>) {
        if self.at_once {
            return client.forget(nodes.collect());
        }
        let mut gone = Vec::new();
        let full = {
            let mut references = self.references.lock();
            references.follow(client.generation());
            for (ino, count) in nodes {
                if references.drops(ino, count) {
                    gone.push(ino);
                }
            }
            references.waiting.len() >= BATCH
        };
        gone.into_iter().for_each(|ino| client.forgotten(ino));
        if full {
            self.send(client);
        }
    }

    /// Whether some wait to be sent.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.references.lock().waiting.is_empty()
    }

    /// Sends those that wait.
    pub(crate) fn send(&self, client: &Client) {
        let waiting = {
            let mut references = self.references.lock();
            references.follow(client.generation());
            std::mem::take(&mut references.waiting)
        };
        for batch in waiting.chunks(limits::FORGETS_PER_MESSAGE_MAX) {
            client.forget(batch.to_vec());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use forebay_policy::links::Distribution;
    use forebay_types::Errno;
    use forebay_wire::{Connection, Reply, Request, Response};

    use super::*;

    const FILE: Ino = Ino(7);

    /// Notes what it is told to drop.
    struct Server {
        generation: AtomicU64,
        dropped: Mutex<Vec<(Ino, u64)>>,
    }

    impl Connection for Server {
        fn call(&self, request: Request, _: &[u8], _: &mut [u8]) -> Result<Reply, Errno> {
            if let Request::Forget(nodes) = request {
                self.dropped.lock().extend(nodes);
            }
            Ok(Response::Done.into())
        }

        fn generation(&self) -> u64 {
            self.generation.load(Ordering::Relaxed)
        }

        fn hands_over_descriptors(&self) -> bool {
            false
        }
    }

    struct Lab {
        server: Arc<Server>,
        client: Client,
        forgets: Forgets,
    }

    impl Lab {
        fn new() -> Lab {
            let server = Arc::new(Server {
                generation: AtomicU64::new(1),
                dropped: Mutex::default(),
            });
            Lab {
                client: Client::of_another_node(server.clone(), Distribution::default()),
                server,
                forgets: Forgets::new(Company::Shared),
            }
        }

        fn give(&self, count: u64) {
            let generation = self.client.generation();
            for _ in 0..count {
                self.forgets.gives(FILE, generation);
            }
        }

        /// The kernel drops so many; what the server is told.
        fn drop(&self, count: u64) -> Vec<(Ino, u64)> {
            self.forgets
                .add(&self.client, std::iter::once((FILE, count)));
            self.forgets.send(&self.client);
            std::mem::take(&mut *self.server.dropped.lock())
        }

        fn begin_session(&self) {
            self.server.generation.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_an_earlier_session_gave_is_not_dropped_in_the_next() {
        let lab = Lab::new();
        lab.give(3);
        assert_eq!(lab.drop(1), [(FILE, 1)]);
        lab.begin_session();
        lab.give(2);
        // The kernel has the file twice, and drops the one that it had before.
        assert_eq!(lab.drop(2), []);
        assert_eq!(lab.drop(2), [(FILE, 2)]);
    }

    #[test]
    fn whichever_goes_first_all_go_in_the_end() {
        let lab = Lab::new();
        lab.give(5);
        lab.begin_session();
        lab.give(2);
        assert_eq!(lab.drop(2), []);
        assert_eq!(lab.drop(5), [(FILE, 2)]);
        assert_eq!(lab.drop(1), []);
    }

    #[test]
    fn what_was_to_be_dropped_in_an_earlier_session_is_not_sent() {
        let lab = Lab::new();
        lab.give(1);
        lab.forgets.add(&lab.client, std::iter::once((FILE, 1)));
        assert!(lab.forgets.is_waiting());
        lab.begin_session();
        lab.give(1);
        assert!(!lab.forgets.is_waiting());
        assert_eq!(lab.drop(1), [(FILE, 1)]);
    }

    #[test]
    fn an_answer_of_an_earlier_session_that_comes_late_is_of_that_one() {
        let lab = Lab::new();
        lab.begin_session();
        lab.give(1);
        lab.forgets.gives(FILE, 1);
        assert_eq!(lab.drop(1), []);
        assert_eq!(lab.drop(1), [(FILE, 1)]);
    }
}
