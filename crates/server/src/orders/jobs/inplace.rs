//! What a stage-out has to do with files that were changed in place on the PFS: there is nothing to
//! copy, but all the more to flush.

use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_tiers::PfsId;
use forebay_types::Errno;

use super::{Job, fail_file, left};
use crate::base::failure::Failure;
use crate::files::inplace::Standing;
use crate::orders::Orders;
use crate::orders::walk::Visited;

/// Between two looks at one that is waited for.
const LOOK: Duration = Duration::from_millis(50);

/// A file to be flushed.
pub struct Wanted {
    path: Vec<u8>,
    which: Which,
    /// The last change that it is about.
    upto: u64,
}

/// Which file of the PFS it is; of a copy in the burst buffer the device is not on record.
#[derive(Clone, Copy)]
struct Which {
    dev: Option<u64>,
    ino: u64,
    btime_ns: u64,
}

impl Which {
    fn of(orders: &Orders, visited: &Visited) -> Option<Which> {
        let (dev, ino, btime_ns) = match &visited.file {
            Some(file) => {
                let state = file.lock();
                // What is dirty replaces what is there.
                let published = state.residency.published.filter(|_| !state.is_dirty())?;
                (None, published.ino, published.btime_ns)
            }
            None => {
                let id = visited.id_on_pfs(&orders.ns).ok()?;
                (Some(id.dev), id.ino, id.btime_ns)
            }
        };
        Some(Which { dev, ino, btime_ns })
    }

    fn is(&self, id: &PfsId) -> bool {
        (self.ino, self.btime_ns) == (id.ino, id.btime_ns)
            && self.dev.is_none_or(|dev| dev == id.dev)
    }
}

/// Orders the flush of a file, if it was changed in place.
pub fn order(orders: &Orders, visited: &Visited) -> Option<Wanted> {
    let in_place = orders.files.in_place();
    if in_place.is_empty() {
        return None;
    }
    let which = Which::of(orders, visited)?;
    let upto = in_place.order(&|id| which.is(id))?;
    let path = visited.path();
    Some(Wanted { path, which, upto })
}

/// Waits for all of them.
pub fn wait(orders: &Orders, job: &Job, wanted: Vec<Wanted>) {
    for one in wanted {
        loop {
            let standing = (orders.files.in_place()).standing(&|id| one.which.is(id), one.upto);
            match standing {
                Standing::Flushed => job.progress.lock().files_done += 1,
                Standing::Failed(lost) => {
                    let failure = Failure::new(lost.errno, lost.reason);
                    fail_file(job, one.path, &failure);
                }
                Standing::Pending if job.cancelled.load(Ordering::Acquire) => {
                    left(job, one.path);
                }
                Standing::Pending if orders.base.is_ending() => left(job, one.path),
                Standing::Pending => {
                    let Some(why) = orders.base.given_up() else {
                        orders.files.in_place().wait_settled(LOOK);
                        continue;
                    };
                    let reason = format!("changed in place on the PFS and not flushed: {why}");
                    let failure = Failure::new(Errno::ETIMEDOUT, reason);
                    fail_file(job, one.path, &failure);
                }
            }
            break;
        }
    }
}
