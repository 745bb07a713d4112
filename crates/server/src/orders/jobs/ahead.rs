//! A list of files that a program works through: they come in ahead of it.

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

/// Goes on until the program has read all of them. Those that it has not read then are left.
pub(super) fn run(orders: &Orders, job: &Job, work: Vec<Visited>) {
    let item = |visited: &Visited| Item {
        dir: visited.dir.clone(),
        name: visited.name.clone(),
    };
    let reading = orders.ahead.begin_list(work.iter().map(item).collect());
    let is_ended = || job.cancelled.load(Ordering::Acquire) || orders.base.is_ending();
    let mut read = 0;
    while read < work.len() && !is_ended() && reading.idle() < GIVEN_UP_AFTER {
        orders.base.life().pause(LOOK);
        let (now, bytes) = reading.progress();
        job.progress.lock().files_done += (now - read) as u64;
        job.bytes_done.store(bytes, Ordering::Relaxed);
        read = now;
    }
    orders.ahead.end_list(&reading);
    for (index, visited) in work.iter().enumerate() {
        if !reading.has_read(index) {
            left(job, visited.path());
        }
    }
}
