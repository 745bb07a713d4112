//! Calls about locks of files.

use forebay_types::{Errno, LockMode};
use forebay_wire::{LockHolder, LockOf, Request, Response};

use crate::{Client, Progress, unexpected};

impl Client {
    /// Locks bytes of a file for process `pid`. With a ticket, which no other lock that waits may
    /// have, the lock may be waited for: then it is there once the server says so, see
    /// [`forebay_wire::Recall::Granted`]. `EBUSY`: to be asked again.
    pub fn lock(
        &self,
        lock: LockOf,
        mode: LockMode,
        pid: u32,
        ticket: Option<u64>,
    ) -> Result<Progress<()>, Errno> {
        let request = Request::Lock {
            lock,
            mode,
            pid,
            ticket,
            again: false,
        };
        match self.call(request)? {
            Response::Done => Ok(Progress::Done(())),
            Response::WouldWait => Ok(Progress::WouldWait),
            other => unexpected(other),
        }
    }

    /// Gives bytes back.
    pub fn unlock(&self, lock: LockOf) -> Result<(), Errno> {
        self.done(Request::Unlock { lock })
    }

    /// Who is in the way of a lock, if anybody is.
    pub fn test_lock(&self, lock: LockOf, mode: LockMode) -> Result<Option<LockHolder>, Errno> {
        match self.call(Request::TestLock { lock, mode })? {
            Response::LockHolder(holder) => Ok(holder),
            other => unexpected(other),
        }
    }

    /// Gives up waiting for a lock; `ENOENT` where it is not waited for.
    pub fn cancel_lock(&self, ticket: u64) -> Result<(), Errno> {
        self.done(Request::CancelLock { ticket })
    }
}
