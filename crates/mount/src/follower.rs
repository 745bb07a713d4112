//! Follows what the server recalls: the kernel forgets it, and the server is told so.
//!
//! A recall is followed when the kernel has forgotten all that it was told before, and is told
//! nothing more of what was asked for before.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_client::Client;
use forebay_types::{Errno, Ino, limits};
use forebay_wire::Recall;

use crate::belief::Belief;
use crate::forgets::Forgets;
use crate::inflight::InFlightTable;
use crate::locks::{self, Locks};
use crate::notices::Notices;
use crate::pool::Pool;
use crate::recalled::Recalled;

/// Between two tries to listen to a server that is away, and between two looks whether the kernel
/// has taken up an answer.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(1));

/// Threads that drop pages when a session is lost: what was stored in pages goes to the server
/// first, and holds up its thread until that is there again.
const FORGETTERS: usize = 16;

/// Who follows recalls.
pub(crate) struct Follower {
    pub(crate) client: Client,
    pub(crate) recalled: Arc<Recalled>,
    pub(crate) notices: Arc<Notices>,
    pub(crate) belief: Arc<Belief>,
    pub(crate) forgets: Arc<Forgets>,
    pub(crate) in_flight: Arc<InFlightTable>,
    pub(crate) locks: Arc<Locks>,
    pub(crate) pool: Pool,
}

impl Follower {
    /// Follows recalls until the mount ends.
    pub(crate) fn run(&self) {
        // What was read before the server told this mount anything is dropped, too.
        let (mut seen, mut generation) = (0, 0);
        let mut is_lost = false;
        // The last session in which all pages of before were dropped.
        let mut settled = 0;
        while !self.in_flight.has_ended() {
            let told = self.client.recalls(seen, settled);
            let now = self.client.generation();
            let is_another = std::mem::replace(&mut generation, now) != now;
            let was_lost = std::mem::replace(&mut is_lost, is_of_lost_session(&told));
            if is_another || (is_lost && !was_lost) {
                let lost = match is_another {
                    true => now.saturating_sub(1),
                    false => now,
                };
                locks::wait_again(&self.locks, lost, (&self.client, &self.pool));
                self.forget_all();
                if is_another {
                    settled = now;
                }
            }
            match told {
                // Numbers of another session.
                Ok(_) if is_another => seen = 0,
                Ok((last, recalls)) => {
                    self.follow(&recalls);
                    seen = last;
                }
                // The next session numbers from the start.
                Err(_) => {
                    seen = 0;
                    std::thread::sleep(PAUSES.0);
                }
            }
        }
    }

    fn follow(&self, recalls: &[Recall]) {
        if recalls.is_empty() {
            return;
        }
        for recall in recalls {
            if let Recall::Granted(ticket) = recall {
                self.locks.granted(*ticket);
            }
        }
        let attrs = recalls.iter().filter_map(|recall| match recall {
            Recall::Attr(ino) => Some(*ino),
            _ => None,
        });
        self.recalled.begin(|| self.forgets.recalled(attrs));
        for recall in recalls {
            if let Recall::Attr(ino) = recall {
                self.forget_attr(*ino);
            }
        }
        // What was stored in pages goes to the server first, which takes time.
        for recall in recalls {
            if let Recall::Pages(ino) = recall {
                self.forget_pages(*ino);
            }
        }
        for recall in recalls {
            if let Recall::Grown { ino, end } = recall {
                self.grow(*ino, *end);
            }
        }
    }

    /// What the kernel has asked for meanwhile may be right, and shorter.
    fn grow(&self, ino: Ino, end: u64) {
        match self.notices.grow(ino, end) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            told => {
                self.told(told);
                self.forget_attr(ino);
            }
        }
    }

    /// A lookup that was answered gives the kernel a file that it does not have yet: it has it in a
    /// moment.
    fn forget_attr(&self, ino: Ino) {
        let until = Instant::now() + limits::SHOWN_FOR;
        loop {
            match self.notices.forget_attr(ino) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if !self.forgets.are_owed(ino) || Instant::now() > until {
                        return;
                    }
                    std::thread::sleep(PAUSES.1);
                }
                told => return self.told(told),
            }
        }
    }

    fn forget_pages(&self, ino: Ino) {
        match self.notices.forget_pages(ino) {
            // The kernel has forgotten the file by itself.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            told => self.told(told),
        }
    }

    /// The session is lost: what the kernel has is believed no more. Who has a file of it mapped
    /// gets a signal, where the program would go on with what the file was.
    fn forget_all(&self) {
        if self.in_flight.has_ended() {
            return;
        }
        self.recalled.begin(|| self.forgets.lost());
        let known = self.forgets.known();
        // The kernel waits for a page that is being read, and so for a server that is away: the
        // other files come first.
        let (being_read, mut inos): (Vec<Ino>, Vec<Ino>) = known
            .into_iter()
            .partition(|ino| self.belief.is_being_read(*ino));
        inos.extend(being_read);
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(ino) = inos.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.forget_pages(*ino);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..FORGETTERS.min(inos.len()) {
                let thread = std::thread::Builder::new().name("fb-recall".into());
                if let Err(error) = thread.spawn_scoped(scope, work) {
                    tracing::debug!("pages are dropped by fewer threads: {error}");
                }
            }
            work();
        });
    }

    /// The kernel believes for [`limits::SHOWN_FOR`] at most, and the server waits that long.
    fn told(&self, told: io::Result<()>) {
        if let Err(error) = told
            && !self.in_flight.has_ended()
        {
            tracing::warn!("the kernel was not told what to forget: {error}");
        }
    }
}

/// A server that is away may come back, and knows then what it has shown.
fn is_of_lost_session<T>(told: &Result<T, Errno>) -> bool {
    matches!(told, Err(Errno::ENOTCONN | Errno::ESTALE))
}
