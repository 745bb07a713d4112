//! What one mount serves with.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use forebay_client::Client;
use forebay_types::{Errno, Handle, Ino};
use fuser::{FileHandle, Generation, ReplyEntry};
use parking_lot::Mutex;

use crate::backing::Backings;
use crate::belief::Belief;
use crate::convert::{attr, errno};
use crate::forgets::Forgets;
use crate::inflight::{InFlightTable, Turn, answer_entry};
use crate::kept::Kept;
use crate::locks::Locks;
use crate::pool::Pool;
use crate::releases::Releases;
use crate::waiting::Waiting;

/// What to call when the mount ends.
pub(crate) type EndCall = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// Threads of [`Adapter::forgetters`].
const FORGETTERS: usize = 4;

pub(crate) struct Adapter {
    pub(crate) client: Client,
    pub(crate) backings: Backings,
    pub(crate) pool: Pool,
    /// Threads that make the kernel drop pages: these may be locked until reads are answered, which
    /// threads of the other pool do.
    pub(crate) forgetters: Pool,
    pub(crate) in_flight: Arc<InFlightTable>,
    pub(crate) belief: Arc<Belief>,
    pub(crate) kept: Kept,
    pub(crate) waiting: Arc<Waiting>,
    pub(crate) passthrough: AtomicBool,
    /// Root gets no answer from memory: the server does as nobody what root asks for.
    pub(crate) root_squashed: bool,
    pub(crate) forgets: Arc<Forgets>,
    pub(crate) locks: Arc<Locks>,
    pub(crate) releases: Arc<Releases>,
    pub(crate) ended: EndCall,
}

pub(crate) fn handle(fh: FileHandle) -> Handle {
    Handle(fh.0)
}

impl Adapter {
    pub(crate) fn new(
        client: Client,
        (passthrough, root_squashed): (bool, bool),
        forgets: Arc<Forgets>,
        in_flight: Arc<InFlightTable>,
        pool: Pool,
        belief: Arc<Belief>,
        locks: Arc<Locks>,
    ) -> io::Result<Adapter> {
        Ok(Adapter {
            client,
            backings: Backings::default(),
            pool,
            forgetters: Pool::of(FORGETTERS),
            in_flight,
            belief,
            kept: Kept::default(),
            waiting: Arc::default(),
            passthrough: AtomicBool::new(passthrough),
            root_squashed,
            forgets,
            locks,
            releases: Arc::default(),
            ended: EndCall::default(),
        })
    }

    pub(crate) fn on_destroy(&self) -> EndCall {
        self.ended.clone()
    }

    pub(crate) fn forgotten(&self, nodes: &[(Ino, u64)]) {
        for (node, _) in nodes {
            self.belief.forgotten(*node);
            self.kept.forgotten(*node);
        }
        if self.forgets.add(&self.client, nodes.iter().copied()) {
            let (forgets, client) = (self.forgets.clone(), self.client.clone());
            self.pool.run(Box::new(move |_| forgets.send(&client)));
        }
        for (node, _) in nodes {
            // A lookup may have been answered meanwhile that the kernel has not taken up.
            if !self.forgets.are_owed(*node) {
                self.locks.forgotten(*node);
                self.belief.has_no_pages(*node);
            }
        }
    }

    /// Answers with a directory that the mount knows, or that there is nothing; else the reply is
    /// still to be given. What root may look up where root is squashed, only the server knows.
    pub(crate) fn answer_known(
        &self,
        name: (Ino, &[u8]),
        uid: u32,
        reply: ReplyEntry,
    ) -> Option<ReplyEntry> {
        if self.root_squashed && uid == 0 {
            return Some(reply);
        }
        let generation = self.client.generation();
        let _held = self.belief.hold();
        let Some((found, span)) = self.forgets.give_known(name, generation) else {
            if !self.forgets.lacks(name, generation) {
                return Some(reply);
            }
            reply.error(errno(Errno::ENOENT));
            return None;
        };
        let generation = Generation(self.client.generation_of(found.ino));
        reply.entry_with_ttls(&span, &Duration::ZERO, &attr(&found), generation);
        None
    }

    pub(crate) fn entry(
        &self,
        made: Result<forebay_wire::Shown, Errno>,
        (turn, began): (&Turn<'_>, u64),
    ) {
        let by = (&self.client, began);
        answer_entry(by, (&self.belief, &self.forgets), made, turn);
    }
}
