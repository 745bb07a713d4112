//! What a stage-out has to do with files that were changed in place on the PFS: there is nothing to
//! copy, but all the more to flush.

use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_types::Errno;

use super::{Job, fail_file, left};
use crate::base::failure::Failure;
use crate::files::inplace::Standing;
use crate::files::losses::OnPfs;
use crate::orders::Orders;
use crate::orders::walk::Visited;

/// Between two looks at one that is waited for.
const LOOK: Duration = Duration::from_millis(50);

/// A file to be flushed.
pub struct Wanted {
    path: Vec<u8>,
    which: OnPfs,
    /// The last change that it is about.
    upto: u64,
}

fn which(orders: &Orders, visited: &Visited) -> Option<OnPfs> {
    match &visited.file {
        // What is dirty replaces what is there.
        Some(file) if file.lock().is_dirty() => None,
        Some(file) => OnPfs::published(file),
        None => {
            let losses = orders.files.losses();
            let all_tell = losses.all_tell();
            let id = visited.id_on_pfs(&orders.ns).ok()?;
            losses.met(id, visited.place(), all_tell);
            Some(id.into())
        }
    }
}

/// Orders the flush of a file, if it was changed in place.
pub fn order(orders: &Orders, visited: &Visited) -> Option<Wanted> {
    if orders.files.in_place().is_empty() && orders.files.losses().is_empty() {
        return None;
    }
    let which = which(orders, visited)?;
    let upto = orders.files.order_flush(which)?;
    let path = visited.path();
    Some(Wanted { path, which, upto })
}

/// Waits for all of them.
pub fn wait(orders: &Orders, job: &Job, wanted: Vec<Wanted>) {
    for one in wanted {
        loop {
            match orders.files.flush_standing(one.which, one.upto) {
                Standing::Flushed => job.progress.lock().files_done += 1,
                Standing::Failed(failure) => fail_file(job, one.path, &failure),
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
