//! Page cache that is to reach its device soon: so that a rate is held there, too, and a flush has little left to do.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Object;

/// Starts to write dirty pages of `len` bytes from `offset` to the device. Best effort: the flush finds every error.
pub fn start_writeback(object: &dyn Object, offset: u64, len: u64) {
    range(object, offset, len, libc::SYNC_FILE_RANGE_WRITE);
}

/// Waits until what was written of an object is on its device. Best effort, as [`start_writeback`].
pub fn wait_writeback(object: &dyn Object) {
    let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    range(object, 0, 0, all);
}

fn range(object: &dyn Object, offset: u64, len: u64, flags: libc::c_uint) {
    if let Some(fd) = object.descriptor() {
        // SAFETY: a valid descriptor and numbers; the call touches no memory of ours.
        let _result =
            unsafe { libc::sync_file_range(fd.as_raw_fd(), offset as i64, len as i64, flags) };
    }
}

/// Less is left for the flush: many small files go to the device together, not one by one.
const PIECE_BYTES: u64 = 1 << 20;

/// A copy that runs no further ahead of its device than so many bytes. Without it a copy fills the page cache at the speed of
/// memory, and the device goes on with what is there long after the copy was told to stop.
pub struct WriteBehind<'a> {
    destination: &'a dyn Object,
    ahead_bytes: u64,
    started: AtomicU64,
    waited: AtomicU64,
}

impl<'a> WriteBehind<'a> {
    /// At most `ahead_bytes`, a piece of 1 MiB, and what comes between two calls of [`WriteBehind::reached`].
    pub fn new(destination: &'a dyn Object, ahead_bytes: u64) -> WriteBehind<'a> {
        WriteBehind {
            destination,
            ahead_bytes,
            started: AtomicU64::new(0),
            waited: AtomicU64::new(0),
        }
    }

    /// All that the copy has written lies before `end`. Waits for what is too far behind. By one thread at a time.
    pub fn reached(&self, end: u64) {
        let started = self.started.load(Ordering::Relaxed);
        if end < started + PIECE_BYTES {
            return;
        }
        self.started.store(end, Ordering::Relaxed);
        start_writeback(self.destination, started, end - started);
        let due = end.saturating_sub(self.ahead_bytes);
        let waited = self.waited.fetch_max(due, Ordering::Relaxed);
        if waited < due {
            let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE;
            range(self.destination, waited, due - waited, flags);
        }
    }
}
