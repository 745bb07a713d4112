//! The requests of a link that have no reply yet, and what became of them.

use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;

use super::wire::Reader;
use crate::Response;

/// A request under way.
pub(crate) struct Call {
    pub number: u64,
    /// Of the socket over which it was sent.
    pub incarnation: u64,
    pub sent_ms: u64,
    pub room: usize,
    /// Its caller waits, and would read.
    pub waits: bool,
    pub outcome: Option<Outcome>,
}

pub(crate) enum Outcome {
    Whole(Answer, Vec<u8>),
    /// So much data follows, with this checksum: its caller reads on.
    Data(Answer, usize, u32, Box<Reader>),
    /// The server has not run it, and will not.
    NotRun,
}

/// What came of waiting for a reply.
pub(crate) enum Awaited {
    Reply(Answer),
    /// The socket broke before it came.
    Broken,
    /// See [`Outcome::NotRun`].
    NotRun,
}

pub(crate) struct Answer {
    pub response: Response,
    pub descriptor: Option<OwnedFd>,
}

/// One for each slot.
pub(crate) struct Calls(Box<[Option<Call>]>);

impl Calls {
    pub fn new(slots: u16) -> Calls {
        Calls((0..slots).map(|_| None).collect())
    }

    /// Notes of some by slot that they have not run. Of what came over an earlier socket than this
    /// that is not known.
    pub fn not_run(&mut self, incarnation: u64, which: impl Fn(u16, &Call) -> bool) {
        for (slot, call) in (0..).zip(self.iter_mut()) {
            if let Some(call) = call
                && call.incarnation == incarnation
                && call.outcome.is_none()
                && which(slot, call)
            {
                call.outcome = Some(Outcome::NotRun);
            }
        }
    }
}

impl Deref for Calls {
    type Target = [Option<Call>];

    fn deref(&self) -> &[Option<Call>] {
        &self.0
    }
}

impl DerefMut for Calls {
    fn deref_mut(&mut self) -> &mut [Option<Call>] {
        &mut self.0
    }
}
