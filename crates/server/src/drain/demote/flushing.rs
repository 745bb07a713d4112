//! The flush of a batch: all that is about to be named, or called clean, is on stable storage
//! first.

use std::sync::Arc;
use std::thread::ScopedJoinHandle;

use forebay_namespace::File;
use forebay_tiers::{FlushTogether, start_writeback};
use forebay_types::Errno;
use forebay_wire::OUT_OF_REACH;

use super::{Begun, Copying, Unfinished, give_up, on_pfs};
use crate::base::failure::Failure;
use crate::drain::Drain;
use crate::integrity::atrest::is_out_of_reach;

/// From so many files on, one flush of a whole file system is cheaper than one for each.
const TOGETHER_FILES: usize = 8;
/// Where every file is flushed by itself, so many are at a time: each waits for the answer of a
/// server.
const SIDE_BY_SIDE: usize = 8;

/// The flush of a batch that is about to be copied, where one does for all.
pub(super) fn together(drain: &Drain, files: usize) -> Option<FlushTogether> {
    match files < TOGETHER_FILES {
        true => None,
        // Each by itself does as well; what fails here will fail there.
        false => drain.ns.pfs().flush_together().ok().flatten(),
    }
}

/// Puts copies on stable storage; answers with those that are.
pub(super) fn flush(
    drain: &Drain,
    copied: Vec<Copying>,
    together: Option<&FlushTogether>,
) -> Vec<Copying> {
    let together = together.filter(|_| copied.len() >= TOGETHER_FILES);
    let (covered, single): (Vec<_>, Vec<_>) = copied
        .into_iter()
        .partition(|one| together.is_some_and(|together| together.covers(&one.made.stat)));
    let mut flushed = match together {
        Some(together) if !covered.is_empty() => flush_covered(drain, covered, together),
        _ => covered,
    };
    flushed.extend(flush_single(drain, single));
    flushed
}

fn kept(drain: &Drain, one: Copying, outcome: Result<(), Unfinished>) -> Option<Copying> {
    match outcome {
        Ok(()) => Some(one),
        Err(failure) => {
            give_up(drain, &one.demotion, failure);
            None
        }
    }
}

fn flush_covered(drain: &Drain, copied: Vec<Copying>, together: &FlushTogether) -> Vec<Copying> {
    let outcome = |one: &Copying, flushed: &std::io::Result<()>| match flushed {
        Ok(()) => one.made.check_flushed(),
        Err(error) => Err(Unfinished::Failed(Failure::new(
            Errno::of(error),
            format!("flush of the PFS: {error}"),
        ))),
    };
    let flushed = drain.ns.pfs().sync_together(together);
    let keep = |one: Copying| {
        let outcome = outcome(&one, &flushed);
        kept(drain, one, outcome)
    };
    copied.into_iter().filter_map(keep).collect()
}

fn flush_single(drain: &Drain, copied: Vec<Copying>) -> Vec<Copying> {
    let pfs = drain.ns.pfs();
    let flush = |one: &Copying| one.made.sync(pfs);
    let died = || on_pfs("flush")(thread_died());
    let outcomes = side_by_side(&copied, &flush, &died);
    let pairs = copied.into_iter().zip(outcomes);
    pairs
        .filter_map(|(one, outcome)| kept(drain, one, outcome))
        .collect()
}

fn thread_died() -> std::io::Error {
    std::io::Error::other("its thread died")
}

/// Flushes each by itself, several at a time where there are many. Answers in their order.
fn side_by_side<T: Sync, R: Send, E: Send>(
    all: &[T],
    flush: &(dyn Fn(&T) -> Result<R, E> + Sync),
    died: &dyn Fn() -> E,
) -> Vec<Result<R, E>> {
    let each = |some: &[T]| -> Vec<_> { some.iter().map(flush).collect() };
    if all.len() < TOGETHER_FILES {
        return each(all);
    }
    std::thread::scope(|scope| {
        let share = all.len().div_ceil(SIDE_BY_SIDE);
        let threads: Vec<_> = all
            .chunks(share)
            .map(|some| (some.len(), scope.spawn(move || each(some))))
            .collect();
        let ended = |(files, thread): (usize, ScopedJoinHandle<'_, Vec<_>>)| {
            let died = |_| (0..files).map(|_| Err(died())).collect();
            thread.join().unwrap_or_else(died)
        };
        threads.into_iter().flat_map(ended).collect()
    })
}

/// Puts the objects on flash that are about to be copied on stable storage there; answers with
/// those that are. What is read of one afterwards is what its device has taken, and a loss of power
/// leaves no torn one behind a record that calls it clean. One flush of the whole file system would
/// wait for what programs are writing there now, and that of the tier is of names only.
/// `doubtful`: those that are good to be copied, and no more.
pub(super) fn flush_sources(
    drain: &Drain,
    begun: Vec<Begun>,
    doubtful: &mut Vec<Arc<File>>,
) -> Vec<Begun> {
    let is_due = |one: &Begun| {
        let demotion = &one.demotion;
        drain
            .integrity
            .is_to_be_flushed(&demotion.file, demotion.tier)
    };
    let (due, mut flushed): (Vec<_>, Vec<_>) = begun.into_iter().partition(is_due);
    for one in &due {
        // All of them are on their way before the first is waited for.
        start_writeback(&*one.source, 0, 0);
    }
    let flush = |one: &Begun| {
        let (file, tier) = (&one.demotion.file, one.demotion.tier);
        drain.integrity.flush_to_copy(file, tier, &*one.source)
    };
    let outcomes = side_by_side(&due, &flush, &thread_died);
    for (one, outcome) in due.into_iter().zip(outcomes) {
        match outcome {
            Ok(is_stable) => {
                if !is_stable {
                    doubtful.push(one.demotion.file.clone());
                }
                flushed.push(one);
            }
            Err(error) => {
                let what = format!("flush on flash: {error}");
                let errno = match is_out_of_reach(&error) {
                    true => OUT_OF_REACH,
                    false => Errno::EIO,
                };
                let failure = Failure::new(errno, what);
                give_up(drain, &one.demotion, Unfinished::Failed(failure));
            }
        }
    }
    flushed
}
