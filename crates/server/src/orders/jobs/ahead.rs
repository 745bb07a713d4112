//! A list of files that a program works through: they come in ahead of it.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Job, left};
use crate::ahead::readers::Item;
use crate::orders::Orders;
use crate::orders::walk::Visited;

/// Between two looks at how far the program is.
const LOOK: Duration = Duration::from_millis(50);
/// A program that opens nothing for so long does not come any more.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(3600);
/// One that has opened the last file may still come back for some before it, for so long.
const AT_THE_END: Duration = Duration::from_secs(10);

/// Goes on until the program has read all of them.
pub(super) fn run(orders: &Orders, job: &Job, mut work: Vec<Visited>) {
    let mut known = HashSet::new();
    // Named twice, it is read twice, and comes in once.
    work.retain(|visited| {
        let is_new = known.insert(visited.path());
        if !is_new {
            job.progress.lock().files_done += 1;
        }
        is_new
    });
    let item = |visited: &Visited| Item {
        dir: visited.dir.clone(),
        name: visited.name.clone(),
    };
    let reading = orders.ahead.begin_list(work.iter().map(item).collect());
    let is_ended = || job.cancelled.load(Ordering::Acquire) || orders.base.is_ending();
    let mut read = 0;
    loop {
        let (now, bytes) = reading.progress();
        job.progress.lock().files_done += (now - read) as u64;
        job.bytes_done.store(bytes, Ordering::Relaxed);
        read = now;
        let patience = match reading.has_reached_end() {
            true => AT_THE_END,
            false => GIVEN_UP_AFTER,
        };
        if reading.is_done() || is_ended() || reading.idle() >= patience {
            break;
        }
        orders.base.life().pause(LOOK);
    }
    orders.ahead.end_list(&reading);
    for (index, visited) in work.iter().enumerate() {
        if is_ended() && !reading.has_read(index) {
            left(job, visited.path());
        }
    }
}
