//! A batch of verified copies gets its names, and they are put on stable storage.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_namespace::{Confirmed, Demotion, Dir, NsError, Placed};
use forebay_tiers::{CopyReport, PfsDir, TierKind};
use forebay_types::{Errno, failpoint};

use super::{Copying, Unfinished, give_up, has_moved, note_failure};
use crate::base::failure::Failure;
use crate::buffer::queue::Finished;
use crate::drain::Drain;

pub(super) fn publish(drain: &Drain, verified: Vec<Copying>) {
    let mut placed = Vec::new();
    let mut dirs = Directories::default();
    for one in verified {
        match drain.ns.place(&one.demotion, one.made.copy()) {
            Ok(Placed::Superseded) => give_up(drain, &one.demotion, Unfinished::Superseded),
            Ok(outcome) => {
                let demotion = &one.demotion;
                if drain.buffer.tiers().kind(demotion.tier) == TierKind::Ssd && !has_moved(demotion)
                {
                    // The checksum about to go on record was made from these very bytes.
                    let object = demotion.file.object;
                    drain
                        .integrity
                        .at_rest()
                        .seal(object, demotion.generation, &one.made.before);
                }
                match dirs.add(drain, demotion) {
                    Ok(of_file) => placed.push((one.demotion, one.made.report, outcome, of_file)),
                    Err(error) => give_up(drain, &one.demotion, error.into()),
                }
            }
            Err(error) => give_up(drain, &one.demotion, error.into()),
        }
    }
    let unflushed = dirs.flush(drain);
    if !placed.is_empty() {
        failpoint::hit(failpoint::Point::DemoteDir);
    }
    let mut durable = Vec::with_capacity(placed.len());
    for (demotion, report, outcome, of_file) in &placed {
        match of_file.iter().find_map(|dir| unflushed.get(dir)) {
            Some(errno) => give_up(drain, demotion, Unfinished::Failed(not_flushed(*errno))),
            None => durable.push((demotion, report, outcome)),
        }
    }
    settle(drain, &durable);
    let mut left = false;
    for (demotion, _, _) in durable {
        drain.buffer.leave_overflow(&demotion.file);
        left |= drain.plan.leave_outdated(&demotion.file);
    }
    if left {
        drain.buffer.wake_collector();
    }
}

/// Why a file is not called clean whose names are there.
pub(super) fn not_flushed(errno: Errno) -> Failure {
    Failure::new(errno, "its directory was not flushed")
}

/// The directories on the PFS in which a batch has got names.
#[derive(Default)]
pub(super) struct Directories(HashMap<*const Dir, (Arc<Dir>, PfsDir)>);

impl Directories {
    /// Those of one file, which has several names perhaps: answers with their keys.
    pub(super) fn add(
        &mut self,
        drain: &Drain,
        demotion: &Demotion,
    ) -> Result<Vec<*const Dir>, NsError> {
        let first = (demotion.dir.clone(), demotion.handle.clone());
        let mut keys = vec![Arc::as_ptr(&demotion.dir)];
        self.0.insert(keys[0], first);
        let further: Vec<_> = {
            let state = demotion.file.lock();
            let names = state.names.iter().skip(1);
            names.map(|(dir, _)| dir.clone()).collect()
        };
        for dir in further {
            let key = Arc::as_ptr(&dir);
            if !keys.contains(&key) {
                let handle = drain.ns.open_dir(&dir)?;
                self.0.insert(key, (dir, handle));
                keys.push(key);
            }
        }
        Ok(keys)
    }

    /// Puts the names on stable storage; answers with the directories of which that failed.
    pub(super) fn flush(&self, drain: &Drain) -> HashMap<*const Dir, Errno> {
        let mut unflushed = HashMap::new();
        for (key, (dir, handle)) in &self.0 {
            drain.ns.put_times_back(dir, handle);
            if let Err(error) = drain.ns.pfs().sync_dir(handle) {
                let reason = format!("flush of the directory on the PFS: {error}");
                drain.base.report(dir.path(), Errno::of(&error), reason);
                unflushed.insert(*key, Errno::of(&error));
            }
        }
        unflushed
    }
}

/// The copies are durable under their names, or beside them.
pub(super) fn settle(drain: &Drain, placed: &[(&Demotion, &CopyReport, &Placed)]) {
    // Whoever waits for the files finds the conflicts in `status`.
    drain.base.absorb_conflicts();
    let published: Vec<_> = placed
        .iter()
        .map(|(d, report, _)| (*d, &report.sums))
        .collect();
    let outcomes = drain.ns.confirm(&published);
    let mut finished = Vec::with_capacity(published.len());
    for ((demotion, report, outcome), confirmed) in placed.iter().zip(outcomes) {
        let object = demotion.file.object;
        if let Ok(Confirmed {
            outdated_shadow: Some(_),
            ..
        }) = &confirmed
        {
            drain.buffer.ledger().expire_shadow(object);
        }
        drain.buffer.book_state(&demotion.file);
        match confirmed {
            Ok(Confirmed {
                current,
                outdated_shadow,
            }) => {
                if let Some(flash) = outdated_shadow {
                    drain.buffer.drop_outdated_shadow(&demotion.file, flash);
                }
                if **outcome == Placed::Published && !drain.base.errors().is_empty() {
                    drain
                        .base
                        .errors()
                        .clear(&demotion.dir.path_of(&demotion.name));
                }
                let counters = &drain.base.counters();
                counters
                    .demoted_bytes
                    .fetch_add(report.data_bytes, Ordering::Relaxed);
                counters.demoted_files.fetch_add(1, Ordering::Relaxed);
                if current {
                    drain.catalog.history().drained(object, report.data_bytes);
                }
                finished.push(Finished {
                    object,
                    again: !current,
                    failed: false,
                });
            }
            Err(error) => {
                note_failure(drain, &demotion.file, error.errno(), &error.to_string());
                finished.push(Finished::failed(object));
            }
        }
    }
    drain.buffer.queue().finished(&finished);
}
