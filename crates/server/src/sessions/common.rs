//! What the sessions of one server have in common, and how one has the others forget.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_kv::Hold;
use forebay_policy::patience::CLIENT_OF_AWAY_NODE;
use forebay_types::{Errno, Ino};
use forebay_wire::{NOT_SENT, OUT_OF_REACH, Recall, Request, Response, Service, UNSETTLED};
use parking_lot::{Mutex, RwLock};

use super::effect::{Concerned, Patience};
use super::holding::Holding;
use super::kept::Keepers;
use super::lives::Lives;
use super::locks::LockTable;
use super::pending::{Asked as Recalled, Pending};
use super::recalls::Recalls;
use super::shown::{BELIEVED_FOR, ShownLately, Targets, Viewers};
use super::turns::Turns;
use super::{OWN, Sessions};
use crate::base::processes::Processes;

/// A client that has not dropped its pages for so long is fenced, as one that is silent; or for its
/// lease, if that is longer: one that is cut off has them until then.
const FENCED_AFTER: Duration = Duration::from_secs(30);

/// What the sessions of one server have in common.
pub(super) struct Common {
    pub(super) server: Arc<dyn Service>,
    pub(super) processes: Arc<Processes>,
    pub(super) lately: ShownLately,
    pub(super) keepers: Keepers,
    pub(super) locks: LockTable,
    pub(super) lives: Lives,
    pub(super) holding: Arc<dyn Holding>,
    /// What clients had open when the server stopped in order, and what of it by themselves.
    pub(super) open_at_the_end: Mutex<HashMap<Ino, bool>>,
    /// Attributes and pages that others have been asked to forget.
    pub(super) attrs: Pending,
    pub(super) pages: Pending,
    /// Who changes whose a file is.
    pub(super) turns: Turns,
    pub(super) clients: RwLock<HashMap<u32, Arc<Recalls>>>,
    /// Some client follows recalls, or did.
    pub(super) followed: AtomicBool,
    /// Up to then clients may believe what an earlier start of the server has shown.
    pub(super) quiet_until: Option<Instant>,
    /// What may be answered as long as it is valid, where another server may lead.
    pub(super) hold: OnceLock<Hold>,
    /// Which files may be had again to be written, where not all may.
    pub(super) is_kept: OnceLock<Box<IsKept>>,
    /// Whether a data server is away; where there are such.
    pub(super) is_any_away: OnceLock<Box<AnyAway>>,
    /// Whether some kernel may write a file by itself.
    pub(super) is_written: OnceLock<Box<IsWritten>>,
}

/// Whether a data server is away.
pub(crate) type AnyAway = dyn Fn() -> bool + Send + Sync;

/// Whether some kernel may write a file by itself just now: that node's kernel was asked.
pub(crate) type IsWritten = dyn Fn(Ino) -> bool + Send + Sync;

/// Whether a file has lost nothing that was written to it, by its id.
pub(crate) type IsKept = dyn Fn(Ino) -> bool + Send + Sync;

impl Sessions {
    /// What clients had open when the server stopped in order, and whether a kernel had it by
    /// itself; and whether others, who have not come back since an earlier stop, may have more.
    pub fn open_at_the_end(&self) -> (HashMap<Ino, bool>, bool) {
        let open = self.common.open_at_the_end.lock().clone();
        (open, self.common.lives.are_awaited())
    }

    /// Clients are fenced that are silent for so long.
    pub fn lease(&self, lease: Duration) {
        self.common.lives.lease(lease);
    }

    /// The server stops in order: who is here may have again what it has when the next one starts.
    pub fn stop(&self) {
        self.common.lives.stop();
    }

    /// Nothing is answered once this hold is over: another server may lead by then, and have
    /// changed what the answer says. It is said once.
    pub fn answer_while(&self, hold: Hold) {
        drop(self.common.hold.set(hold));
    }

    /// Who comes back from a run on another node, or in another start of this one, gets to write
    /// only what that says of. It is said once.
    pub fn reopen_only(&self, is_kept: Box<IsKept>) {
        drop(self.common.is_kept.set(is_kept));
    }

    /// Takes the way to ask whether a data server is away, where there are such. It is said once.
    pub fn nodes_by(&self, is_any_away: Box<AnyAway>) {
        drop(self.common.is_any_away.set(is_any_away));
    }

    /// Takes the way to ask whether some kernel may write a file by itself. It is said once.
    pub fn writers_by(&self, is_written: Box<IsWritten>) {
        drop(self.common.is_written.set(is_written));
    }

    /// Whether clients may still come back: those of before this start, and, of a server that
    /// stops, all that it had.
    pub fn awaits_clients(&self) -> bool {
        self.common.lives.are_kept() || self.common.lives.are_awaited()
    }

    /// Has all clients forget what they keep of a file whose content has changed without them.
    /// Waits for nobody: who is not told in time may be on the node that has gone.
    pub fn recall_content(&self, ino: Ino) {
        let concerned = Concerned {
            changed: Targets::from_slice(&[ino]),
            unknown: false,
        };
        self.common.recall_pages(ino, NO_CLIENT, Patience::None);
        self.common.recall(concerned, NO_CLIENT, Patience::None);
    }
}

/// No client has this number.
const NO_CLIENT: u32 = u32::MAX;

impl Common {
    /// Has other clients forget what they were shown, and waits until they have.
    pub(super) fn recall(&self, concerned: Concerned, client: u32, patience: Patience) {
        let now = Instant::now();
        let until = now + BELIEVED_FOR;
        let mut asked = Vec::new();
        // Who was asked long ago and has not followed can believe nothing any more.
        let counts = |asked: &Recalled| asked.until > now;
        for ino in concerned.changed {
            asked.extend(self.attrs.ask(ino, counts, || {
                let viewers = match ino {
                    // A kernel keeps the root's access list for as long as it is mounted.
                    Ino::ROOT => self.others(client),
                    _ => Viewers::new(),
                };
                let others = self.lately.attr_changed(ino, client);
                self.ask(viewers.into_iter().chain(others), Recall::Attr(ino), until)
            }));
        }
        if patience == Patience::None {
            return;
        }
        for asked in asked {
            asked.wait(asked.until);
        }
        if concerned.unknown {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
    }

    /// Asks clients to forget something; what to wait for.
    fn ask(
        &self,
        viewers: impl Iterator<Item = u32>,
        what: Recall,
        until: Instant,
    ) -> Vec<Recalled> {
        let clients = self.clients.read();
        let viewers = viewers.filter_map(|viewer| clients.get(&viewer).cloned());
        let viewers: Vec<Arc<Recalls>> = viewers.collect();
        drop(clients);
        let asked = viewers.into_iter().map(|client| {
            let number = client.recall(what);
            if client.have_ended() {
                self.lives.end(client.life);
            }
            Recalled {
                client,
                number,
                until,
            }
        });
        asked.collect()
    }

    /// Has all clients but one drop their pages of a file, and waits until they have.
    pub(super) fn recall_pages(&self, ino: Ino, client: u32, patience: Patience) {
        let until = Instant::now() + self.fenced_after();
        let asked = self.pages.ask(
            ino,
            |_| true,
            || {
                let keepers = self.keepers.take_others(ino, client);
                self.ask(keepers.into_iter(), Recall::Pages(ino), until)
            },
        );
        self.await_pages(ino, asked, patience);
    }

    /// Tells all clients but one that have a file mapped where it ends now, if that is new to them,
    /// and has them drop their pages; waits until they have.
    pub(super) fn recall_pages_after(&self, ino: Ino, client: u32, patience: Patience) {
        let until = Instant::now() + self.fenced_after();
        let end = match patience {
            // What is written back grows no file.
            Patience::None => None,
            _ => self.end_for_others(ino, client),
        };
        let asked = self.pages.ask(
            ino,
            |_| true,
            || {
                let keepers = self.keepers.take_others(ino, client);
                let mut asked = self.ask(keepers.into_iter(), Recall::Pages(ino), until);
                if let Some((end, mapped)) = end {
                    let grown = Recall::Grown { ino, end };
                    asked.extend(self.ask(mapped.into_iter(), grown, until));
                }
                asked
            },
        );
        self.await_pages(ino, asked, patience);
    }

    /// Where a file ends, and who of the others has to hear of it.
    fn end_for_others(&self, ino: Ino, client: u32) -> Option<(u64, Viewers)> {
        let look = self.keepers.look(ino, client)?;
        let end = self.end_of(ino)?;
        Some((end, self.keepers.ends_at(ino, client, end, look)))
    }

    /// Where a file ends; `None` if it is gone.
    pub(super) fn end_of(&self, ino: Ino) -> Option<u64> {
        let look = Request::Getattr { ino, handle: None };
        match self.server.handle(OWN, look, &[], &mut []).response {
            Response::Attr(shown) => Some(shown.attr.size),
            other => {
                tracing::warn!(
                    "mappings elsewhere of {ino:?} do not hear where it ends: {other:?}"
                );
                None
            }
        }
    }

    /// Waits for pages that write-backs have asked others to drop, and have not waited for.
    pub(super) fn await_dropped(&self, ino: Ino) {
        let asked = self.pages.ask(ino, |_| true, Vec::new);
        self.await_pages(ino, asked, Patience::Full);
    }

    fn fenced_after(&self) -> Duration {
        FENCED_AFTER.max(self.lives.lease_length())
    }

    fn is_any_node_away(&self) -> bool {
        self.is_any_away
            .get()
            .is_some_and(|is_any_away| is_any_away())
    }

    /// An error as a client is told: some mean other things there, and a dead PFS behind FUSE may
    /// say them, too.
    pub(super) fn as_told(&self, errno: Errno) -> Errno {
        match errno {
            Errno::ENOTCONN | NOT_SENT | UNSETTLED => Errno::EIO,
            OUT_OF_REACH if self.is_any_away.get().is_none() => Errno::EIO,
            errno => errno,
        }
    }

    fn await_pages(&self, ino: Ino, asked: Vec<Recalled>, patience: Patience) {
        if asked.is_empty() {
            return;
        }
        let short = Instant::now() + BELIEVED_FOR;
        for asked in asked {
            match patience {
                Patience::None => {}
                Patience::Short => drop(asked.wait(short)),
                Patience::Full => {
                    let mut until = asked.until;
                    let mut dropped = asked.wait(until);
                    // Its kernel waits with the pages for a node that is away: it is no liar.
                    let longest = Instant::now() + CLIENT_OF_AWAY_NODE;
                    while !dropped && self.is_any_node_away() && Instant::now() < longest {
                        until = Instant::now() + BELIEVED_FOR;
                        dropped = asked.wait(until);
                    }
                    if !dropped {
                        tracing::error!(
                            "a client does not drop its pages of {ino:?}: it is fenced"
                        );
                        // It must not have again what it had, whatever becomes of this server.
                        self.lives.end(asked.client.life);
                        asked.client.end();
                    }
                }
            }
        }
        // What was followed is not kept.
        drop(self.pages.ask(ino, |_| true, Vec::new));
    }

    /// All clients but this one.
    fn others(&self, client: u32) -> Viewers {
        let clients = self.clients.read();
        let others = clients.keys().filter(|other| **other != client);
        others.copied().collect()
    }

    /// Whether the start of the server is so long ago that who waits a short time only goes on.
    pub(super) fn is_long_since_start(&self) -> bool {
        self.quiet_until
            .is_none_or(|until| until + BELIEVED_FOR <= Instant::now())
    }

    /// Waits until nobody believes what an earlier start of the server has shown.
    pub(super) fn await_quiet(&self) {
        if let Some(until) = self.quiet_until {
            let left = until.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                std::thread::sleep(left);
            }
        }
    }
}
