//! Files that the kernel writes by itself, after their last descriptor was closed: whether anybody
//! can still write them, and whether anybody has.
//!
//! A mapping outlives its descriptor, and a descriptor outlives the daemon that served its file.
//! The kernel knows of both ([`forebay_tiers::Object::has_writers`]). Invariants:
//!
//! 1. `Residency::writing` is taken off a file that was open for unseen writing only after the
//!    kernel said that nobody can write its object. Until then the file keeps a handle of the
//!    server's own for writing: it counts as open, so it is watched over, not copied, moved, sealed
//!    or evicted, and its space stays set aside.
//! 2. A file that was clean when it was opened for unseen writing is clean again only after its
//!    content was compared with the checksum on record. A store through a mapping may leave size
//!    and times as they were.

pub(crate) mod watch;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use forebay_namespace::File;
use forebay_types::{Generation, Handle};
use parking_lot::{Condvar, Mutex};

use crate::buffer::opens::Before;

/// Between two questions to the kernel about the same file: at first, for a close through FUSE is
/// told a moment before the kernel lets go of the object.
const LOOK_FIRST: Duration = Duration::from_millis(1);

/// And at last.
const LOOK_LAST: Duration = Duration::from_millis(50);

/// Questions may take this part of the time: one in so many.
const SHARE_OF_TIME: u32 = 50;

/// Without being woken the threads look this often whether all is to end.
const SLEEP: Duration = Duration::from_millis(100);

/// A file that was opened clean, closed, and shows no trace of a change.
pub struct Untouched {
    /// The file.
    pub file: Arc<File>,
    /// What it was.
    pub before: Before,
    /// Its generation since its close.
    pub generation: Generation,
    /// Hash of its series; 0 where that is not known.
    pub series: u64,
    /// An fsync was asked for.
    pub fsynced: bool,
}

impl Untouched {
    /// Whether it has been changed, drained, opened for writing or unlinked since its close.
    fn is_over(&self) -> bool {
        let state = self.file.lock();
        let residency = &state.residency;
        residency.generation != self.generation
            || residency.clean
            || residency.writing
            || state.is_unlinked()
    }
}

/// Work for the two threads of this module.
#[derive(Default)]
pub struct Unseen {
    /// Handles of the server's own of files that somebody can still write.
    outliving: Mutex<Vec<Handle>>,
    outlived: Condvar,
    untouched: Mutex<VecDeque<Untouched>>,
    closed: Condvar,
    /// The kernel has refused to tell, and that was said.
    is_blind: AtomicBool,
}

impl Unseen {
    /// Somebody can still write what this handle has open; it is closed when nobody can any more.
    pub fn keep(&self, handle: Handle) {
        tracing::trace!("{handle:?} is kept: its file can still be written");
        self.outliving.lock().push(handle);
        self.outlived.notify_all();
    }

    /// A file was closed without a trace of a change: whether its content is what it was is still
    /// to be seen.
    pub fn compare(&self, one: Untouched) {
        self.untouched.lock().push_back(one);
        self.closed.notify_one();
    }

    /// Waits until there is another one, or so long.
    fn wait_outliving(&self, pause: Duration) -> (Vec<Handle>, bool) {
        let mut outliving = self.outliving.lock();
        let pause = if outliving.is_empty() { SLEEP } else { pause };
        let slept = self.outlived.wait_for(&mut outliving, pause);
        (outliving.clone(), !slept.timed_out())
    }

    fn forget(&self, handle: Handle) {
        self.outliving.lock().retain(|kept| *kept != handle);
    }

    fn next_untouched(&self) -> Option<Untouched> {
        let mut untouched = self.untouched.lock();
        if untouched.is_empty() {
            self.closed.wait_for(&mut untouched, SLEEP);
        }
        untouched.pop_front()
    }
}
