//! Movements ordered from the command line: stage-in, stage-out, prefetch, release.

mod ahead;
pub(crate) mod inplace;
pub(crate) mod run;
pub(in crate::orders) mod stores;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_types::{Errno, limits};
use forebay_wire::control::{JobProgress, Movement, MovementStatus, PathFailure};
use parking_lot::Mutex;

use crate::base::failure::Failure;
use crate::orders::asker::Asker;
use crate::orders::unreachable::{explains, failure};

/// Jobs of root and the server's own user that run at once. Each has a thread: who wants more waits
/// for one to end.
const RUNNING_TRUSTED_MAX: usize = 64;

/// The same of one other user, and of all others together.
const RUNNING_PER_USER_MAX: usize = 8;

const RUNNING_OTHERS_MAX: usize = 64;

/// Lists of files that programs of one user work through, and those of all.
const LISTS_PER_USER_MAX: usize = 8;

const LISTS_MAX: usize = 64;

/// Jobs of one user that can be asked for, finished ones included.
const KEPT_PER_USER_MAX: usize = 64;

/// The same of all but root and the server's own user: what they remember of failures takes memory.
const KEPT_OTHERS_MAX: usize = 256;

/// A file that is still open for writing may be closed within this time (close(2) returns before
/// the server hears of it).
pub const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// A file between two places in the queue is there again much sooner.
const IDLE_GRACE: Duration = Duration::from_secs(5);

/// Least time between two looks at the files that are waited for: demotions end in swarms.
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

/// The progress shows how far so many of the files have come that are not done yet.
const UNDER_WAY_MAX: usize = 256;

/// One job.
pub struct Job {
    id: u64,
    /// Who has started it.
    uid: u32,
    trusted: bool,
    movement: Movement,
    begun: Instant,
    /// As the command line is told.
    pub progress: Mutex<JobProgress>,
    /// It is to end.
    pub cancelled: AtomicBool,
    /// Of files that are done, or copied one by one.
    pub bytes_done: AtomicU64,
    /// Of files that are not done yet.
    bytes_under_way: AtomicU64,
}

impl Job {
    fn is_finished(&self) -> bool {
        self.progress.lock().finished
    }

    fn progress_now(&self) -> JobProgress {
        let mut progress = self.progress.lock().clone();
        let bytes = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let moved = bytes(&self.bytes_done) + bytes(&self.bytes_under_way);
        progress.bytes_done = moved.min(progress.bytes_total);
        progress
    }
}

/// All jobs. They are their user's: for others, but root and the server's own user, they do not
/// exist.
pub struct Jobs {
    jobs: Mutex<HashMap<u64, Arc<Job>>>,
    next: AtomicU64,
}

impl Jobs {
    /// None yet. Ids of another start of the server are not those of this one: who asks for a job
    /// of before is not told of another.
    pub fn of_start(epoch: u32) -> Jobs {
        Jobs {
            jobs: Mutex::default(),
            next: AtomicU64::new(u64::from(epoch) << 32),
        }
    }

    fn find(&self, id: u64, asker: &Asker) -> Option<Arc<Job>> {
        let job = self.jobs.lock().get(&id).cloned()?;
        (asker.is_trusted() || job.uid == asker.uid()).then_some(job)
    }

    /// Progress of a job.
    pub fn progress(&self, id: u64, asker: &Asker) -> Option<JobProgress> {
        Some(self.find(id, asker)?.progress_now())
    }

    /// The same while the PFS is given up. A job that is still not finished then blocks in a call
    /// on the PFS: it is cancelled, and whoever waits for it hears so.
    pub fn progress_without_pfs(&self, id: u64, asker: &Asker, why: &str) -> Option<JobProgress> {
        let mut progress = self.progress(id, asker)?;
        if !progress.finished {
            self.cancel(id, asker);
            progress.finished = true;
            progress.failed += 1;
            progress.failures.push(PathFailure {
                path: Vec::new(),
                errno: Errno::ETIMEDOUT,
                reason: format!("{why}; the rest is given up"),
            });
        }
        Some(progress)
    }

    /// Stops a job; its progress, if there is such a job.
    pub fn cancel(&self, id: u64, asker: &Asker) -> Option<JobProgress> {
        let job = self.find(id, asker)?;
        job.cancelled.store(true, Ordering::Release);
        Some(job.progress_now())
    }

    /// Those that go on, oldest first.
    pub fn under_way(&self, most: usize) -> Vec<MovementStatus> {
        let jobs = self.jobs.lock();
        let mut running: Vec<_> = jobs.values().filter(|job| !job.is_finished()).collect();
        running.sort_unstable_by_key(|job| job.id);
        running.truncate(most);
        let status = |job: &&Arc<Job>| {
            let progress = job.progress_now();
            MovementStatus {
                movement: job.movement,
                counting: progress.counting,
                files_total: progress.files_total,
                files_done: progress.files_done,
                bytes_total: progress.bytes_total,
                bytes_done: progress.bytes_done,
                age_ms: job.begun.elapsed().as_millis() as u64,
            }
        };
        running.iter().map(status).collect()
    }

    /// A new job; `EAGAIN` if the user has too many under way.
    fn add(&self, asker: &Asker, movement: Movement) -> Result<Arc<Job>, Errno> {
        let (uid, trusted) = (asker.uid(), asker.is_trusted());
        let mut jobs = self.jobs.lock();
        if movement == Movement::Ahead {
            make_way_for_list(&jobs, uid);
        }
        let counts = |job: &&Arc<Job>| job.movement != Movement::Ahead && !job.is_finished();
        let running = jobs.values().filter(counts);
        let (mut own, mut alike) = (0, 0);
        for job in running {
            own += usize::from(job.uid == uid);
            alike += usize::from(job.trusted == trusted);
        }
        let is_full = match trusted {
            true => alike >= RUNNING_TRUSTED_MAX,
            false => own >= RUNNING_PER_USER_MAX || alike >= RUNNING_OTHERS_MAX,
        };
        if is_full && movement != Movement::Ahead {
            return Err(Errno::EAGAIN);
        }
        forget_oldest(&mut jobs, KEPT_PER_USER_MAX, &|job| job.uid == uid);
        forget_oldest(&mut jobs, KEPT_OTHERS_MAX, &|job| !job.trusted);
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let progress = JobProgress {
            counting: true,
            ..JobProgress::default()
        };
        let job = Arc::new(Job {
            id,
            uid,
            trusted,
            movement,
            begun: Instant::now(),
            progress: Mutex::new(progress),
            cancelled: AtomicBool::new(false),
            bytes_done: AtomicU64::new(0),
            bytes_under_way: AtomicU64::new(0),
        });
        jobs.insert(id, job.clone());
        Ok(job)
    }
}

/// Of too many lists of files, those that were ordered first end: their programs have read them, or
/// will not. They hold up no other movement.
fn make_way_for_list(jobs: &HashMap<u64, Arc<Job>>, uid: u32) {
    let lists = || {
        let is_list = |job: &&Arc<Job>| job.movement == Movement::Ahead;
        let live = |job: &&Arc<Job>| !job.is_finished() && !job.cancelled.load(Ordering::Acquire);
        jobs.values().filter(is_list).filter(live)
    };
    let own = || lists().filter(|job| job.uid == uid);
    let end_first = |job: Option<&Arc<Job>>| {
        job.into_iter()
            .for_each(|job| job.cancelled.store(true, Ordering::Release));
    };
    if own().count() >= LISTS_PER_USER_MAX {
        end_first(own().min_by_key(|job| job.id));
    } else if lists().count() >= LISTS_MAX {
        end_first(lists().min_by_key(|job| job.id));
    }
}

/// Makes room for one more of these jobs: those that have finished longest ago go.
fn forget_oldest(jobs: &mut HashMap<u64, Arc<Job>>, max: usize, which: &dyn Fn(&Job) -> bool) {
    let mut ids: Vec<u64> = jobs
        .values()
        .filter(|job| which(job))
        .map(|job| job.id)
        .collect();
    let Some(excess) = (ids.len() + 1).checked_sub(max) else {
        return;
    };
    ids.retain(|id| jobs[id].is_finished());
    ids.sort_unstable();
    for id in ids.into_iter().take(excess) {
        jobs.remove(&id);
    }
}

/// Names what a walk has not come by: `lost` are files that are here all the same, of which nobody
/// is told that there is no such file.
fn fail_missing(job: &Job, missing: Vec<(Vec<u8>, Failure)>, lost: Vec<Vec<u8>>) {
    for (path, failure) in missing {
        if failure.errno() != Errno::ENOENT || !explains(&lost, &path) {
            fail(job, path, failure.errno(), failure.in_brief());
        }
    }
    for failed in lost.into_iter().map(failure) {
        job.progress.lock().files_total += 1;
        let failure = Failure::new(failed.errno, failed.reason);
        fail_file(job, failed.path, &failure);
    }
}

/// Names what failed.
pub fn fail(job: &Job, path: Vec<u8>, errno: Errno, reason: String) {
    let mut progress = job.progress.lock();
    progress.failed += 1;
    if progress.failures.len() < limits::ERRORS_REMEMBERED_MAX {
        progress.failures.push(PathFailure {
            path,
            errno,
            reason,
        });
    }
}

/// The same of a file that counts as one to move.
fn fail_file(job: &Job, path: Vec<u8>, failure: &Failure) {
    fail(job, path, failure.errno(), failure.to_string());
    let mut progress = job.progress.lock();
    progress.files_failed += 1;
    progress.files_done += 1;
}

/// Names what was not done.
pub fn left(job: &Job, path: Vec<u8>) {
    let mut progress = job.progress.lock();
    // What is stopped in the midst may come by it twice.
    if progress.left.len() < limits::ERRORS_REMEMBERED_MAX && !progress.left.contains(&path) {
        progress.left.push(path);
    }
}

enum Outcome {
    Done(u64),
    Failed(Failure),
    Pending,
}

/// Since when files are as they are, by object.
#[derive(Default)]
struct Seen {
    open: HashMap<u64, Instant>,
    idle: HashMap<u64, Instant>,
}
