//! Files that come before a program asks for them: the next ones of a list that it works through,
//! of a folder that it reads as a whole or one after the other, and those that it reads every so
//! often.
//!
//! 1. What is guessed (folders, runs) takes free space only, and no more of that than its share
//!    until it is read. For a run, copies leave that nobody has opened for longer than its period.
//!    A list has been ordered: for it clean copies may leave, as for any stage-in.
//! 2. It comes in turns, after what programs write and restart from, and not at all while the
//!    plan holds writes to a rate.
//! 3. A folder whose guesses were in vain is left alone for a while. What was brought in for a run
//!    that does not come leaves first.

pub(crate) mod bring;
mod kept;
pub(crate) mod readers;
mod readings;
mod runs;
pub(crate) mod watch;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Instant;

use forebay_namespace::DirKey;
use parking_lot::Mutex;

use crate::base::Base;
use crate::buffer::Buffer;
use crate::catalog::Catalog;
use crate::files::Files;
use crate::plan::Plan;
use kept::Kept;
use readers::Folder;
use readings::Readings;
use runs::{Learned, UnderWay};

/// What is brought in ahead, and for whom.
pub struct Ahead {
    base: Arc<Base>,
    buffer: Arc<Buffer>,
    plan: Arc<Plan>,
    catalog: Arc<Catalog>,
    files: Arc<Files>,
    /// Programs on their way through files.
    readings: Mutex<Readings>,
    /// Folders in which something was opened of late.
    folders: Mutex<HashMap<DirKey, Folder>>,
    /// Runs. No other lock is taken by who holds it.
    learned: Mutex<Learned>,
    /// What of that is on record. `learned` may be taken by who holds it.
    kept: Mutex<Kept>,
    /// Runs that are expected or go on, by number.
    under_way: Mutex<HashMap<u64, UnderWay>>,
    /// Held by who makes room for a run.
    making_room: Mutex<()>,
    next_id: AtomicU64,
    /// Threads that bring files in.
    bringing: AtomicUsize,
    /// What they bring in now, and is not there yet, bytes.
    coming_bytes: AtomicU64,
    begun: Instant,
}

impl Ahead {
    /// Nobody reads anything.
    pub fn new(files: &Arc<Files>) -> Ahead {
        let drain = files.drain();
        let ahead = Ahead {
            base: drain.base().clone(),
            buffer: drain.buffer().clone(),
            plan: drain.plan().clone(),
            catalog: drain.catalog().clone(),
            files: files.clone(),
            readings: Mutex::default(),
            folders: Mutex::default(),
            learned: Mutex::default(),
            kept: Mutex::default(),
            under_way: Mutex::default(),
            making_room: Mutex::default(),
            next_id: AtomicU64::new(1),
            bringing: AtomicUsize::new(0),
            coming_bytes: AtomicU64::new(0),
            begun: Instant::now(),
        };
        if ahead.share() > 0.0 {
            ahead.buffer.guesses().is_interested();
        }
        ahead
    }

    /// Of the capacity, what guesses may take until they are read, 0 to 1.
    fn share(&self) -> f64 {
        self.base.settings().engine.read_ahead
    }

    fn now_s(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Lists and folders that are read now.
    pub fn counts(&self) -> (u64, u64) {
        let readings = self.readings.lock();
        let lists = readings.values().filter(|r| r.is_list()).count();
        let runs = readings.keys().filter(|id| runs::run_of(**id).is_some());
        let folders = readings.len() - lists - runs.count();
        (lists as u64, folders as u64)
    }
}
