//! References that the kernel drops.

use forebay_client::Client;
use forebay_types::{Ino, limits};
use parking_lot::Mutex;

use crate::company::Company;

/// So many are dropped at once, without waiting for more.
const BATCH: usize = 512;

const _: () = assert!(BATCH <= limits::FORGETS_PER_MESSAGE_MAX);

/// Where a server is elsewhere, references are dropped many by one message: nobody waits for it.
pub(crate) struct Forgets {
    waiting: Mutex<Vec<(Ino, u64)>>,
    at_once: bool,
}

impl Forgets {
    pub(crate) fn new(company: Company) -> Forgets {
        Forgets {
            waiting: Mutex::default(),
            at_once: company == Company::Alone,
        }
    }

    /// The kernel has dropped some references.
    pub(crate) fn add(&self, client: &Client, nodes: impl Iterator<Item = (Ino, u64)>) {
        if self.at_once {
            return client.forget(nodes.collect());
        }
        let full = {
            let mut waiting = self.waiting.lock();
            waiting.extend(nodes);
            waiting.len() >= BATCH
        };
        if full {
            self.send(client);
        }
    }

    /// Whether some wait to be sent.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.lock().is_empty()
    }

    /// Sends those that wait.
    pub(crate) fn send(&self, client: &Client) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for batch in waiting.chunks(limits::FORGETS_PER_MESSAGE_MAX) {
            client.forget(batch.to_vec());
        }
    }
}
