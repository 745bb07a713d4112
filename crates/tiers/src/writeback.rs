//! Page cache that is to reach its device soon: so that a rate is held there, too, and a flush has
//! little left to do.

use std::io;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use forebay_types::Errno;

use crate::{Object, WriteBack};

/// Starts to write dirty pages of `len` bytes from `offset` to the device. Best effort: the flush
/// finds every error.
pub fn start_writeback(object: &dyn Object, offset: u64, len: u64) {
    // Nobody waits, so no error is taken from the descriptor.
    let _result = object.write_back(WriteBack::Start, offset, len);
}

/// Waits until what was written of an object is on its device; no flush. The kernel tells a
/// descriptor of an error once: who drops this one hides it from the flush.
pub fn wait_writeback(object: &dyn Object) -> io::Result<()> {
    object.write_back(WriteBack::Finish, 0, 0)
}

/// Whether write-back of an object has failed since its descriptor was opened, or was not told to
/// anybody before; waits for its first page at most. The kernel tells it once, as above.
pub fn heard_of_writeback(object: &dyn Object) -> io::Result<()> {
    object.write_back(WriteBack::Wait, 0, 1)
}

/// The same, and waits for nothing.
pub fn heard_so_far(object: &dyn Object) -> io::Result<()> {
    // No page is there.
    object.write_back(WriteBack::Wait, 1 << 62, 1)
}

/// Less is left for the flush: many small files go to the device together, not one by one.
const PIECE_BYTES: u64 = 1 << 20;

/// A stream of writes that runs no further ahead of its device than it is told. Without it a copy,
/// or a program, fills the page cache at the speed of memory. The device is then busy with that
/// long after a copy was told to stop, and the next flush waits for all of it.
#[derive(Default)]
pub struct WriteBehind {
    started: AtomicU64,
    waited: AtomicU64,
    /// Error number of a write-back that failed; 0: none.
    failed: AtomicI32,
}

impl WriteBehind {
    /// The stream has written `destination` up to `end`. Waits until no more than `ahead_bytes`, a
    /// piece of 1 MiB, and what came since the last call are on their way to the device. What is
    /// written before the furthest `end` is left to the flush, and so may be what several threads
    /// write out of order.
    pub fn reached(&self, destination: &dyn Object, end: u64, ahead_bytes: u64) {
        let started = self.started.load(Ordering::Relaxed);
        if end < started.saturating_add(PIECE_BYTES) {
            return;
        }
        self.started.fetch_max(end, Ordering::Relaxed);
        start_writeback(destination, started, end - started);
        let due = end.saturating_sub(ahead_bytes);
        let waited = self.waited.fetch_max(due, Ordering::Relaxed);
        if waited < due {
            let done = destination.write_back(WriteBack::Wait, waited, due - waited);
            if let Err(error) = done {
                self.failed.store(Errno::of(&error).0, Ordering::Release);
            }
        }
    }

    /// The error that a wait has met, for good: the flush of the same descriptor does not hear of
    /// it any more.
    pub fn check(&self) -> io::Result<()> {
        match self.failed.load(Ordering::Acquire) {
            0 => Ok(()),
            errno => Err(Errno(errno).into()),
        }
    }
}
