//! Calls about the session itself.

use forebay_types::{Errno, Ino};
use forebay_wire::{Recall, Request, Response};

use crate::{Client, unexpected};

impl Client {
    /// The session in which a file of this id was first found: the number by which the kernel tells
    /// it from another one that has had the same id.
    pub fn generation_of(&self, ino: Ino) -> u64 {
        self.connection.generation_of(ino)
    }

    /// The kernel has no reference on this id any more of those that so many answers have given.
    /// The session in which the client has one of its own to be dropped, if no other answer has
    /// given one since.
    pub fn forgotten(&self, ino: Ino, answers: u64) -> Option<u64> {
        self.connection.forgotten(ino, answers)
    }

    /// Drops the reference that an answer has given: nobody waits for the answer any more.
    pub fn give_back(&self, ino: Ino) {
        let own = self.forgotten(ino, 1);
        self.forget(vec![(ino, 1 + u64::from(own.is_some()))]);
    }

    /// Counts the sessions with the server: files of another one are stale, unless it was a restart
    /// of the server that has ended it.
    pub fn generation(&self) -> u64 {
        self.connection.generation()
    }

    /// Waits until something is to be forgotten that was shown as firm, and says that all recalls
    /// up to number `seen` have been followed. The number of the last one, and what is to be
    /// forgotten: nothing, where the wait was cut short. `settled` is the number of a session
    /// ([`Self::generation`]) since whose beginning all pages of before were dropped; 0 of none.
    pub fn recalls(&self, seen: u64, settled: u64) -> Result<(u64, Vec<Recall>), Errno> {
        match self.call(Request::Recalls { seen, settled })? {
            Response::Recalls { last, recalls } => Ok((last, recalls)),
            other => unexpected(other),
        }
    }
}
