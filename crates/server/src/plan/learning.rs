//! What is learned while serving: DWSF and DWPP, restarts and MTBF. It is kept over restarts of the
//! server.

pub(crate) mod lessons;

use std::collections::HashMap;
use std::time::Instant;

use forebay_policy::forecast::Learner;
use forebay_policy::mtbf::{Opener, RestartDetector};
use forebay_types::{ObjectId, Process};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

const NAME: &str = "learning";

/// What was learned is on record after so long at the latest.
const SAVE_EVERY_S: f64 = 10.0;

/// Writers of an application that are remembered: those that came last.
const WRITERS_MAX: usize = 16;

/// The kernel is asked for the session of a writer no more often: a program that makes many files
/// changes it rarely, and the answer takes as long as a file.
const SESSION_ASKED_AFTER_S: f64 = 10.0;

/// A process that reads many files is asked about so often at most.
const BYSTANDER_S: f64 = 1.0;

/// Counts of files that are not open any more are thrown away from so many on.
const COUNTED_SPARE: usize = 1024;

/// A process that started so long before the last write was there when it was written; its start is
/// known to 10 ms.
const START_SLACK_S: f64 = 0.05;

/// What was learned is one value of the store: so much of it is kept of what applications bring,
/// and as much of their restarts.
const KEPT_BYTES: usize = forebay_kv::MAX_VALUE_BYTES / 2 - 1024;

/// What is kept of an application takes so much at most, without its name.
const KEPT_ENTRY_BYTES: usize = 96;

/// Restarts of applications that are not here are remembered of so many.
const STORED_MAX: usize = 2048;

#[derive(Serialize, Deserialize)]
struct Stored {
    learner: Learner<String>,
    /// Name, MTBF and time of the last restart in seconds since 1970.
    applications: Vec<(String, f64, f64)>,
}

impl Stored {
    /// What there is room for: those applications that bring most in a period, and the last
    /// restarts.
    fn of(learner: &Learner<String>, mut applications: Vec<(String, f64, f64)>) -> Stored {
        let room = || {
            let mut left_bytes = KEPT_BYTES;
            move |name: &String| {
                let bytes = name.len() + KEPT_ENTRY_BYTES;
                let fits = bytes <= left_bytes;
                left_bytes = left_bytes.saturating_sub(bytes);
                fits
            }
        };
        applications.sort_by(|a, b| b.2.total_cmp(&a.2));
        let mut fits = room();
        let kept = applications.into_iter().take_while(|a| fits(&a.0));
        Stored {
            applications: kept.collect(),
            learner: learner.worthiest(room()),
        }
    }
}

struct Runs {
    detector: RestartDetector,
    /// Processes, the last to write last.
    writers: Vec<Writer>,
    /// Who wrote last.
    writer: Opener,
    written_s: f64,
    /// The process whose read was found to be no restart, and when: it need not be asked about for
    /// a while.
    bystander: Option<(Process, f64)>,
}

/// A process that has written.
struct Writer {
    process: Process,
    opener: Opener,
    /// When the kernel was asked for its session.
    asked_s: f64,
}

impl Runs {
    /// Takes a process for the last that has written; `ask` tells what it belongs to.
    fn has_written(
        &mut self,
        process: Process,
        now_s: f64,
        ask: impl FnOnce() -> Opener,
    ) -> Opener {
        let mut writers = self.writers.iter();
        let known = writers.position(|writer| writer.process == process);
        let known = known.map(|at| self.writers.remove(at));
        let writer = known.filter(|writer| now_s - writer.asked_s < SESSION_ASKED_AFTER_S);
        let writer = writer.unwrap_or_else(|| Writer {
            process,
            opener: ask(),
            asked_s: now_s,
        });
        if self.writers.len() >= WRITERS_MAX {
            self.writers.remove(0);
        }
        let opener = writer.opener;
        self.writers.push(writer);
        opener
    }
}

struct Inner {
    learner: Learner<String>,
    /// Bytes of files being written that were counted.
    counted: HashMap<ObjectId, Counted>,
    runs: HashMap<u32, Runs>,
    /// By name, until the application is seen again.
    stored: HashMap<String, (f64, f64)>,
    changed: bool,
    /// When it was last saved, or tried to be.
    saved_s: f64,
    /// That failed, and was told.
    unsaved: bool,
    restarts: u64,
    hits: u64,
}

#[derive(Clone, Copy)]
struct Counted {
    /// When first seen open.
    base_bytes: u64,
    bytes: u64,
}

/// What was learned of the applications so far.
pub struct Learning {
    inner: Mutex<Inner>,
    /// Files that were closed after being written, with the bytes that they occupy.
    closed: Mutex<Vec<(ObjectId, u64)>>,
    origin: Instant,
    /// Of `origin`, in seconds since 1970.
    origin_s: f64,
    verify_window_s: f64,
    prior_s: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_fits_in_one_value_however_much_there_is() {
        for name_bytes in [8, 60, 1000] {
            let mut learner = Learner::new(60.0).expect("valid");
            let mut applications = Vec::new();
            for n in 0..4096u64 {
                let name = format!("{n:0name_bytes$}");
                for period in 0..3 {
                    learner.on_write(&name, u64::MAX >> 12, 1e9 + 100.0 * f64::from(period));
                }
                applications.push((name, 1e5, n as f64));
            }
            learner.on_write(&"large".to_string(), u64::MAX, 1e9);
            let stored = Stored::of(&learner, applications);
            assert_eq!(stored.applications[0].2, 4095.0, "the last restart");
            let bytes = postcard::to_stdvec(&stored).expect("encodes");
            let limit = forebay_kv::MAX_VALUE_BYTES;
            assert!(bytes.len() <= limit, "{name_bytes}: {}", bytes.len());
            assert!(bytes.len() > limit / 3, "{name_bytes}: {}", bytes.len());
            let mut kept: Stored = postcard::from_bytes(&bytes).expect("decodes");
            assert!(kept.learner.application(&"large".to_string()).is_some());
        }
    }

    #[test]
    fn writers_are_few_and_asked_about_now_and_then() {
        let opener = |session| Opener {
            process: 7,
            session,
        };
        let mut runs = Runs {
            detector: RestartDetector::new(60.0, 1.0),
            writers: Vec::new(),
            writer: opener(0),
            written_s: 0.0,
            bystander: None,
        };
        let one = Process::here(7);
        assert_eq!(runs.has_written(one, 0.0, || opener(1)), opener(1));
        runs.has_written(Process::here(8), 1.0, || opener(2));
        let not_asked = || unreachable!("it is known");
        assert_eq!(runs.has_written(one, 2.0, not_asked), opener(1));
        let processes = |runs: &Runs| -> Vec<Process> {
            runs.writers.iter().map(|writer| writer.process).collect()
        };
        assert_eq!(processes(&runs), [Process::here(8), one]);
        let later = runs.has_written(one, SESSION_ASKED_AFTER_S, || opener(3));
        assert_eq!(later, opener(3));
        for pid in (u32::MAX - 100)..u32::MAX {
            runs.has_written(Process::here(pid), 20.0, || opener(4));
        }
        assert_eq!(processes(&runs).len(), WRITERS_MAX);
        let last = Process::here(u32::MAX - 1);
        assert_eq!(processes(&runs)[WRITERS_MAX - 1], last);
    }
}
