//! Movements under way, followed to their end.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use forebay_types::{Errno, limits};
use forebay_wire::NOT_SENT;
use forebay_wire::control::{JobProgress, Movement, PathFailure};

use crate::control::{AskError, Daemon, batches, failure_line};
use crate::exit::Failure;
use crate::paths::Target;
use crate::show::progress::{Amount, Progress};
use crate::show::text::files;
use crate::signals::Signals;
use crate::starter::Starter;

/// Time between two looks at a job: short jobs end at once, long ones are not disturbed.
const LOOK_FIRST: Duration = Duration::from_millis(5);
const LOOK_LAST: Duration = Duration::from_millis(250);
/// Later looks come after this part of the time that has passed, so the end is noticed that much
/// late at most.
const LOOK_PART: u32 = 32;
/// How long a cancelled job may take to say what it has not done.
const CANCEL_LIMIT: Duration = Duration::from_secs(10);
/// A server that is started anew is waited for so long.
const AWAY_LIMIT: Duration = Duration::from_secs(90);
/// What a server has not done that was started anew is ordered again so often: one that ends each
/// time may end for it.
const REPEATS_MAX: u32 = 3;
/// A server that ends jobs has stopped after this.
const STOPS_WITHIN: Duration = Duration::from_secs(1);

/// How following a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All that could be done was done.
    Finished,
    /// The files are listed and queued; nobody waited for more.
    Queued,
    /// The time was up; the job was cancelled.
    TimedOut,
    /// Ctrl-C; the job was cancelled.
    Interrupted,
    /// Somebody else has cancelled it, or the burst buffer is stopping.
    Cancelled,
}

/// What to wait for.
#[derive(Clone, Copy, Debug)]
pub struct Until {
    /// The end; otherwise only until the files are queued.
    pub finished: bool,
    /// How long at most.
    pub timeout: Option<Duration>,
}

/// Starts a movement and follows it; `each` is told how far it has come. The result is the sum over
/// its jobs.
pub fn follow(
    daemon: &Daemon,
    movement: Movement,
    target: &Target,
    until: Until,
    signals: &Signals,
    each: &mut dyn FnMut(&JobProgress),
) -> Result<(End, JobProgress), Failure> {
    let doing = format!("{} files", name(movement));
    let fail = |error| daemon.failure(error, &doing);
    let deadline = until.timeout.map(|timeout| Instant::now() + timeout);
    let mut jobs = Jobs::new(daemon, movement, &target.paths);
    let mut progress = Progress::new(name(movement));
    let mut said = HashSet::new();
    let mut say = |now: &JobProgress, progress: &mut Progress| {
        for failure in &now.failures {
            if said.insert((failure.path.clone(), failure.errno.0)) {
                progress.say(&failure_line(&target.mount, failure));
            }
        }
    };
    let begun = Instant::now();
    let end = loop {
        let now = jobs.look().map_err(fail)?;
        say(&now, &mut progress);
        progress.show(&amount(&now));
        each(&now);
        if now.finished {
            break End::Finished;
        }
        if !until.finished && !now.counting {
            break End::Queued;
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            break End::TimedOut;
        }
        let pause = (begun.elapsed() / LOOK_PART).clamp(LOOK_FIRST, LOOK_LAST);
        let left = deadline.map_or(pause, |d| {
            d.saturating_duration_since(Instant::now()).min(pause)
        });
        if signals.sleep(left) {
            break End::Interrupted;
        }
    };
    if matches!(end, End::TimedOut | End::Interrupted) {
        jobs.cancel().map_err(fail)?;
    }
    let mut last = jobs.look().map_err(fail)?;
    if !last.finished && last.left.is_empty() {
        // The PFS does not answer, and neither does the job: what was asked for is what is left.
        let named = target.paths.iter().take(limits::ERRORS_REMEMBERED_MAX);
        last.left = named.cloned().collect();
    }
    say(&last, &mut progress);
    progress.finish();
    Ok((end_of(end, &last), last))
}

/// A job that ended while it was being cancelled is complete; one that others have ended is not.
fn end_of(end: End, last: &JobProgress) -> End {
    let complete = last.finished && !last.cancelled && last.files_done >= last.files_total;
    match end {
        End::TimedOut if complete => End::Finished,
        End::Finished if last.cancelled => End::Cancelled,
        end => end,
    }
}

/// The jobs of one movement: one for every batch of paths that fits into a message, as many at a
/// time as the burst buffer takes.
struct Jobs<'a> {
    daemon: &'a Daemon,
    movement: Movement,
    /// Not started yet.
    waiting: VecDeque<Batch<'a>>,
    /// Under way.
    running: Vec<(u64, Batch<'a>)>,
    /// The server is behind a mount, and may be started anew while that goes on. Its jobs end then.
    is_behind: bool,
    /// By who follows them.
    cancelled: bool,
    /// Since when it cannot be asked.
    away_since: Option<Instant>,
    /// A server that stops is asked for no more until then.
    not_before: Option<Instant>,
    /// The last progress of jobs that have ended.
    finished: Vec<JobProgress>,
}

/// Paths of one job.
struct Batch<'a> {
    paths: &'a [Vec<u8>],
    /// How often it was ordered again.
    repeats: u32,
    /// What a job of it has told that ended with its server, or that may do so.
    told: Vec<PathFailure>,
}

impl Batch<'_> {
    /// What an earlier job has told of and a later one does not see any more: a conflict, and what
    /// was lost. All else it meets again.
    fn with_told(self, mut progress: JobProgress) -> JobProgress {
        for failure in self.told {
            let is_once = matches!(failure.errno, Errno::EEXIST | Errno::EIO);
            let is_known = progress.failures.iter().any(|now| now.path == failure.path);
            if is_once && !is_known {
                progress.failed += 1;
                progress.failures.push(failure);
            }
        }
        progress
    }

    /// Nobody does it.
    fn left(self) -> JobProgress {
        let named = self.paths.iter().take(limits::ERRORS_REMEMBERED_MAX);
        let left = JobProgress {
            finished: true,
            cancelled: true,
            files_total: self.paths.len() as u64,
            left: named.cloned().collect(),
            ..JobProgress::default()
        };
        self.with_told(left)
    }
}

/// Whether an answer says that the server is away, or was started anew.
fn is_away(error: &AskError) -> bool {
    matches!(error, AskError::Refused(Errno::ENOTCONN | NOT_SENT))
}

impl<'a> Jobs<'a> {
    fn new(daemon: &'a Daemon, movement: Movement, paths: &'a [Vec<u8>]) -> Jobs<'a> {
        let batch = |paths| Batch {
            paths,
            repeats: 0,
            told: Vec::new(),
        };
        Jobs {
            daemon,
            movement,
            waiting: batches(paths).into_iter().map(batch).collect(),
            running: Vec::new(),
            is_behind: Starter::of(daemon.state()).is_mount(),
            cancelled: false,
            away_since: None,
            not_before: None,
            finished: Vec::new(),
        }
    }

    /// Starts what can be started, and asks how far all have come. What a server that was started
    /// anew does not know any more is ordered again: what is done already is passed over.
    fn look(&mut self) -> Result<JobProgress, AskError> {
        let mut parts = Vec::new();
        match self.start().and_then(|()| self.ask(&mut parts)) {
            Ok(()) => self.away_since = None,
            Err(error) if self.may_come_back(&error) => {}
            Err(error) if self.cancelled && is_away(&error) => self.give_up(),
            Err(error) => return Err(error),
        }
        parts.extend(self.finished.iter().cloned());
        let mut all = sum(parts);
        if !self.waiting.is_empty() || self.away_since.is_some() {
            (all.finished, all.counting) = (false, true);
        }
        Ok(all)
    }

    fn start(&mut self) -> Result<(), AskError> {
        if self.not_before.is_some_and(|then| Instant::now() < then) {
            return Ok(());
        }
        while let Some(batch) = self.waiting.pop_front() {
            match self.daemon.start(self.movement, batch.paths) {
                Ok(id) => self.running.push((id, batch)),
                Err(error) => {
                    self.waiting.push_front(batch);
                    return match error {
                        // There are enough of this user's under way: one of them will end.
                        AskError::Refused(Errno::EAGAIN) => Ok(()),
                        error => Err(error),
                    };
                }
            }
        }
        Ok(())
    }

    fn ask(&mut self, parts: &mut Vec<JobProgress>) -> Result<(), AskError> {
        let mut asked = std::mem::take(&mut self.running).into_iter();
        while let Some((id, mut batch)) = asked.next() {
            match self.daemon.job(id) {
                // Nobody but a server that stops ends the jobs of others.
                Ok(progress) if progress.cancelled && self.is_behind && !self.cancelled => {
                    batch.told.extend(progress.failures);
                    self.again(batch);
                }
                Ok(progress) if progress.finished => self.finished.push(batch.with_told(progress)),
                Ok(progress) => {
                    let news = progress
                        .failures
                        .iter()
                        .filter(|now| !batch.told.contains(now));
                    let news: Vec<_> = news.cloned().collect();
                    batch.told.extend(news);
                    self.running.push((id, batch));
                    parts.push(progress);
                }
                Err(AskError::Refused(Errno::ENOENT)) if self.is_behind => self.again(batch),
                Err(error) => {
                    self.running.push((id, batch));
                    self.running.extend(asked);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// The server that had it is no more.
    fn again(&mut self, mut batch: Batch<'a>) {
        batch.repeats += 1;
        if self.cancelled || batch.repeats > REPEATS_MAX {
            return self.finished.push(batch.left());
        }
        self.waiting.push_back(batch);
        self.not_before = Some(Instant::now() + STOPS_WITHIN);
    }

    /// Whether the server may answer again, and what was ordered is done then.
    fn may_come_back(&mut self, error: &AskError) -> bool {
        if !is_away(error) || !self.is_behind || self.cancelled {
            return false;
        }
        let since = *self.away_since.get_or_insert_with(Instant::now);
        since.elapsed() < AWAY_LIMIT
    }

    /// What nobody has done yet is left.
    fn give_up(&mut self) {
        self.away_since = None;
        let running = std::mem::take(&mut self.running).into_iter();
        let batches = running
            .map(|(_, batch)| batch)
            .chain(self.waiting.drain(..));
        self.finished.extend(batches.map(Batch::left));
    }

    fn cancel(&mut self) -> Result<(), AskError> {
        self.cancelled = true;
        self.away_since = None;
        self.finished
            .extend(self.waiting.drain(..).map(Batch::left));
        for (job, _) in &self.running {
            match self.daemon.cancel(*job) {
                // It has ended with its server.
                Err(AskError::Refused(Errno::ENOENT)) if self.is_behind => {}
                Err(error) if self.is_behind && is_away(&error) => {}
                done => done?,
            }
        }
        let begun = Instant::now();
        while begun.elapsed() < CANCEL_LIMIT && !self.look()?.finished {
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// Several jobs as one.
fn sum(parts: Vec<JobProgress>) -> JobProgress {
    let nothing = JobProgress {
        finished: true,
        ..JobProgress::default()
    };
    parts.into_iter().fold(nothing, |mut all, part| {
        all.counting |= part.counting;
        all.finished &= part.finished;
        all.cancelled |= part.cancelled;
        all.files_total += part.files_total;
        all.files_done += part.files_done;
        all.files_failed += part.files_failed;
        all.files_skipped += part.files_skipped;
        all.bytes_total += part.bytes_total;
        all.bytes_done += part.bytes_done;
        all.failed += part.failed;
        all.failures.extend(part.failures);
        all.failures.truncate(limits::ERRORS_REMEMBERED_MAX);
        all.left.extend(part.left);
        all.left.truncate(limits::ERRORS_REMEMBERED_MAX);
        all
    })
}

fn amount(job: &JobProgress) -> Amount {
    let counting = if job.counting { " so far" } else { "" };
    let failed = match job.failed {
        0 => String::new(),
        n => format!(", {n} failed"),
    };
    Amount {
        done: job.bytes_done,
        total: job.bytes_total,
        detail: format!(
            "{} of {}{counting}{failed}",
            job.files_done,
            files(job.files_total)
        ),
    }
}

/// The name of the command that starts a movement.
pub fn name(movement: Movement) -> &'static str {
    match movement {
        Movement::StageIn => "stage-in",
        Movement::StageOut => "stage-out",
        Movement::Prefetch | Movement::Ahead => "prefetch",
        Movement::Release => "release",
        Movement::Commit => "commit",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_have_ended_is_not_complete() {
        let job = |cancelled, files_done| JobProgress {
            finished: true,
            cancelled,
            files_total: 2,
            files_done,
            ..JobProgress::default()
        };
        assert_eq!(end_of(End::Finished, &job(false, 2)), End::Finished);
        assert_eq!(end_of(End::Finished, &job(true, 1)), End::Cancelled);
        assert_eq!(end_of(End::TimedOut, &job(true, 1)), End::TimedOut);
        assert_eq!(end_of(End::TimedOut, &job(false, 2)), End::Finished);
        assert_eq!(end_of(End::Interrupted, &job(true, 2)), End::Interrupted);
    }

    #[test]
    fn what_a_repeat_does_not_see_any_more_is_told() {
        let failure = |path: &str, errno| PathFailure {
            path: path.into(),
            errno,
            reason: String::new(),
        };
        let (conflict, away) = (failure("a", Errno::EEXIST), failure("b", Errno::ETIMEDOUT));
        let paths = vec![b"d".to_vec(), b"e".to_vec()];
        let batch = |told: &[&PathFailure]| Batch {
            paths: &paths,
            repeats: 1,
            told: told.iter().map(|told| (*told).clone()).collect(),
        };
        let whole = batch(&[&conflict, &away]).with_told(JobProgress::default());
        assert_eq!((whole.failed, whole.failures), (1, vec![conflict.clone()]));
        let again = JobProgress {
            failed: 1,
            failures: vec![conflict.clone()],
            ..JobProgress::default()
        };
        assert_eq!(batch(&[&conflict]).with_told(again.clone()), again, "once");
        let left = batch(&[&conflict]).left();
        assert!(left.finished && left.cancelled);
        assert_eq!(
            (left.files_total, left.left, left.failed),
            (2, paths.clone(), 1)
        );
    }

    #[test]
    fn several_jobs_are_one() {
        let job = |finished, counting| JobProgress {
            finished,
            counting,
            files_total: 2,
            files_done: 1,
            bytes_total: 10,
            bytes_done: 5,
            ..JobProgress::default()
        };
        let all = sum(vec![job(true, false), job(false, true)]);
        assert!(!all.finished && all.counting);
        assert_eq!(
            (
                all.files_total,
                all.files_done,
                all.bytes_total,
                all.bytes_done
            ),
            (4, 2, 20, 10)
        );
        assert!(sum(vec![]).finished);
        assert!(!all.cancelled);
        assert_eq!(amount(&all).detail, "2 of 4 files so far");
    }
}
