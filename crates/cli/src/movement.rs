//! What stage-in, stage-out, prefetch and release have in common.

use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use forebay_types::{format_duration, format_size, limits, parse_duration};
use forebay_wire::control::{JobProgress, Movement};
use serde_json::{Value, json};

use crate::control::{Daemon, files_and_bytes};
use crate::exit::{Exit, Explain, Failure, is_missing};
use crate::job::{self, End, Until};
use crate::mounts::in_mount;
use crate::out;
use crate::paths::{PathArgs, Refused, Resolved, Target};
use crate::show::json;
use crate::show::text::{files, rate, show_path};
use crate::signals::Signals;

/// Paths named when time is up; more are only counted.
pub const NAMED_MAX: usize = 20;

/// A program is told again of what has not changed after this time: time itself goes on.
const SAY_AGAIN: Duration = Duration::from_secs(1);

/// Arguments of every movement.
#[derive(Args, Clone, Debug)]
pub struct MoveArgs {
    #[command(flatten)]
    paths: PathArgs,
    /// Stop after this time (exit 4, naming what is left); without it there is no limit
    #[arg(long, value_name = "DUR", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Print one JSON object with totals, failures and what is left
    #[arg(long)]
    json: bool,
    /// The same as lines for a program: how far it has come (its "outcome" is null), then the
    /// object
    #[arg(long, conflicts_with = "json")]
    json_lines: bool,
}

impl MoveArgs {
    /// With the paths that a file names.
    pub fn with_list(&self, list: &Path) -> MoveArgs {
        let mut args = self.clone();
        args.paths.from_file = Some(list.to_path_buf());
        args
    }
}

/// Runs a movement; without `wait` only until its files are queued.
pub fn run(movement: Movement, args: &MoveArgs, wait: bool) -> Result<Exit, Failure> {
    if !args.json_lines {
        return run_on(movement, args, wait, args.paths.resolve()?);
    }
    let done = match args.paths.resolve_silently() {
        Ok(Resolved::Within(target)) => run_on(movement, args, wait, target),
        Ok(Resolved::Nowhere(refused)) => {
            let nothing = JobProgress::default();
            let told = Told::new(movement, Path::new(""), &refused);
            json::print_line(&told.object(Some(End::Finished), &nothing));
            return Ok(Exit::Fatal);
        }
        Err(failure) => Err(failure),
    };
    done.map_err(json::tell)
}

fn run_on(
    movement: Movement,
    args: &MoveArgs,
    wait: bool,
    target: Target,
) -> Result<Exit, Failure> {
    if movement == Movement::Ahead && target.paths.len() > limits::PATHS_PER_MESSAGE_MAX {
        return Err(Failure::fatal(format!(
            "a list of {} paths: {} at most; name folders, which are read in the order of their names, or give the rest when the program is that far",
            target.paths.len(),
            limits::PATHS_PER_MESSAGE_MAX
        )));
    }
    let signals = Signals::count().explain("signals", "")?;
    let daemon = Daemon::connect(&target.state)?;
    let begun = Instant::now();
    let until = Until {
        finished: wait,
        timeout: args.timeout,
    };
    let told = Told::new(movement, &target.mount, &target.refused);
    let mut last: Option<(Instant, JobProgress)> = None;
    let mut each = |now: &JobProgress| {
        let is_news = match &last {
            Some((said, before)) => before != now || said.elapsed() >= SAY_AGAIN,
            None => true,
        };
        if args.json_lines && is_news {
            json::print_line(&told.object(None, now));
            last = Some((Instant::now(), now.clone()));
        }
    };
    let (end, job) = job::follow(&daemon, movement, &target, until, &signals, &mut each)?;
    let took = begun.elapsed();
    if args.json_lines {
        json::print_line(&told.object(Some(end), &job));
    } else if args.json {
        json::print(&told.object(Some(end), &job));
    } else {
        let refused = target.refused.len() as u64;
        out::print(&format!(
            "{}\n",
            summary(movement, end, &job, refused, took)
        ));
    }
    complain(movement, &target.mount, end, &job);
    Ok(match exit(movement, end, &job) {
        Exit::Complete if !target.refused.is_empty() => Exit::Partial,
        exit => exit,
    })
}

/// The exit code: what stopped the movement decides, else what failed. Exit 1 where no path led to
/// a file and each failure was a missing path; of `commit`, where there was no version.
fn exit(movement: Movement, end: End, job: &JobProgress) -> Exit {
    let none = movement == Movement::Commit || job.failures.iter().all(|f| is_missing(f.errno));
    let nothing = job.files_total == 0 && none;
    match end {
        End::TimedOut => Exit::TimedOut,
        End::Interrupted => Exit::Interrupted,
        End::Cancelled => Exit::Partial,
        End::Finished | End::Queued if job.failed == 0 => Exit::Complete,
        End::Finished | End::Queued if nothing => Exit::Fatal,
        End::Finished | End::Queued => Exit::Partial,
    }
}

/// Failures were named as they came; what is left is named here.
fn complain(movement: Movement, mount: &Path, end: End, job: &JobProgress) {
    let name = job::name(movement);
    if let Some(more @ 1..) = job.failed.checked_sub(job.failures.len() as u64) {
        out::complain(&format!(
            "and {more} more failed; `forebay status` shows the last errors"
        ));
    }
    if matches!(end, End::TimedOut | End::Interrupted | End::Cancelled) {
        let why = match end {
            End::TimedOut => "timed out",
            End::Cancelled => "was cancelled by somebody else, or the burst buffer is stopping",
            _ => "stopped",
        };
        let left = job.files_total.saturating_sub(job.files_done);
        out::complain(&format!("{name} {why}: {}", what_is_left(job)));
        name_left(mount, &job.left, left);
    }
}

/// How much is left, as far as it is known.
fn what_is_left(job: &JobProgress) -> String {
    let left = job.files_total.saturating_sub(job.files_done);
    let bytes = job.bytes_total.saturating_sub(job.bytes_done);
    match (job.counting, left, job.left.is_empty()) {
        (true, ..) | (false, 0, false) => "files were still being counted; left:".into(),
        (false, 0, true) => "nothing is left".into(),
        _ => format!("{} left:", files_and_bytes(left, bytes)),
    }
}

/// Names the first of what is left, and counts the rest.
pub fn name_left(mount: &Path, left: &[Vec<u8>], total: u64) {
    for path in left.iter().take(NAMED_MAX) {
        out::complain(&format!("left: {}", show_path(&in_mount(mount, path))));
    }
    let named = left.len().min(NAMED_MAX) as u64;
    if total > named {
        out::complain(&format!("and {} more", total - named));
    }
}

fn summary(
    movement: Movement,
    end: End,
    job: &JobProgress,
    refused: u64,
    took: Duration,
) -> String {
    let name = job::name(movement);
    let mut line = match end {
        End::Queued if movement == Movement::Ahead => format!(
            "{name}: {} to be read in this order come in ahead of whoever reads them; `forebay status` shows how far that is",
            files_and_bytes(
                job.files_total.saturating_sub(job.files_done),
                job.bytes_total
            )
        ),
        End::Queued => format!(
            "{name}: {} queued; `forebay status` shows the drain, `forebay {name} --wait` waits for it",
            files_and_bytes(
                job.files_total.saturating_sub(job.files_done),
                job.bytes_total
            )
        ),
        _ => format!(
            "{name}: {} of {}, {} in {}{}",
            moved(job),
            files(job.files_total),
            format_size(job.bytes_done),
            format_duration(took),
            speed(movement, job.bytes_done, took)
        ),
    };
    if job.files_skipped > 0 {
        line.push_str(&format!("; {} needed nothing", job.files_skipped));
    }
    if job.failed + refused > 0 {
        line.push_str(&format!("; {} failed", job.failed + refused));
    }
    line
}

/// Files that are where they should be.
fn moved(job: &JobProgress) -> u64 {
    job.files_done.saturating_sub(job.files_failed)
}

/// Of copies; to let go of one takes as long whatever its size.
fn speed(movement: Movement, bytes: u64, took: Duration) -> String {
    let copies = movement != Movement::Release;
    match copies && bytes > 0 && took > Duration::from_millis(1) {
        true => format!(" ({})", rate(bytes as f64 / took.as_secs_f64())),
        false => String::new(),
    }
}

/// What a program is told of a movement.
struct Told<'a> {
    movement: Movement,
    mount: &'a Path,
    refused: &'a [Refused],
    begun: Instant,
}

impl<'a> Told<'a> {
    fn new(movement: Movement, mount: &'a Path, refused: &'a [Refused]) -> Told<'a> {
        Told {
            movement,
            mount,
            refused,
            begun: Instant::now(),
        }
    }

    /// How far it has come, and how it has ended.
    fn object(&self, end: Option<End>, job: &JobProgress) -> Value {
        let outcome = end.map(|end| match end {
            End::Finished => "finished",
            End::Queued => "queued",
            End::TimedOut => "timed-out",
            End::Interrupted => "interrupted",
            End::Cancelled => "cancelled",
        });
        json!({
            "movement": job::name(self.movement),
            "outcome": outcome,
            "counting": job.counting,
            "files_total": job.files_total,
            "files_done": moved(job),
            "files_skipped": job.files_skipped,
            "files_failed": job.failed + self.refused.len() as u64,
            "bytes_total": job.bytes_total,
            "bytes_done": job.bytes_done,
            "elapsed_s": self.begun.elapsed().as_secs_f64(),
            "failures": json::failures(self.mount, self.refused, &job.failures),
            "left": json::path_list(self.mount, &job.left),
        })
    }
}

#[cfg(test)]
mod tests {
    use forebay_wire::control::PathFailure;

    use crate::paths::Refused;

    use forebay_types::Errno;

    use super::*;

    fn job(total: u64, done: u64, failures: &[Errno]) -> JobProgress {
        let failure = |errno: &Errno| PathFailure {
            path: b"a".to_vec(),
            errno: *errno,
            reason: String::new(),
        };
        JobProgress {
            finished: true,
            files_total: total,
            files_done: done,
            bytes_total: total << 20,
            bytes_done: done << 20,
            failed: failures.len() as u64,
            failures: failures.iter().map(failure).collect(),
            ..JobProgress::default()
        }
    }

    #[test]
    fn exit_codes() {
        let exit = |end, job: &JobProgress| exit(Movement::Release, end, job);
        assert_eq!(exit(End::Finished, &job(3, 3, &[])), Exit::Complete);
        assert_eq!(exit(End::Finished, &job(0, 0, &[])), Exit::Complete);
        assert_eq!(
            exit(End::Finished, &job(3, 3, &[Errno::EDQUOT])),
            Exit::Partial
        );
        assert_eq!(
            exit(End::Finished, &job(1, 1, &[Errno::EDQUOT])),
            Exit::Partial
        );
        assert_eq!(
            exit(End::Finished, &job(0, 0, &[Errno::ENOENT])),
            Exit::Fatal
        );
        // It is there: `not your file`.
        assert_eq!(
            exit(End::Finished, &job(0, 0, &[Errno::EPERM])),
            Exit::Partial
        );
        assert_eq!(
            exit(End::Finished, &job(0, 0, &[Errno::EACCES])),
            Exit::Fatal
        );
        assert_eq!(
            super::exit(
                Movement::Commit,
                End::Finished,
                &job(0, 0, &[Errno::EINVAL])
            ),
            Exit::Fatal
        );
        assert_eq!(
            exit(End::Finished, &job(2, 2, &[Errno::ENOENT])),
            Exit::Partial
        );
        assert_eq!(exit(End::Queued, &job(2, 0, &[])), Exit::Complete);
        assert_eq!(exit(End::TimedOut, &job(2, 1, &[])), Exit::TimedOut);
        assert_eq!(exit(End::Interrupted, &job(2, 1, &[])), Exit::Interrupted);
        assert_eq!(exit(End::Cancelled, &job(2, 1, &[])), Exit::Partial);
    }

    #[test]
    fn the_summary_counts_what_arrived() {
        let took = Duration::from_secs(2);
        let line = summary(
            Movement::StageOut,
            End::Finished,
            &job(3, 3, &[Errno::EIO]),
            1,
            took,
        );
        assert_eq!(
            line,
            "stage-out: 3 of 3 files, 3.0 MiB in 2.0 s (1.5 MiB/s); 2 failed"
        );
        let mut some = job(3, 3, &[Errno::EIO]);
        some.files_failed = 1;
        let line = summary(Movement::StageOut, End::Finished, &some, 0, took);
        assert!(
            line.starts_with("stage-out: 2 of 3 files") && line.ends_with("; 1 failed"),
            "{line}"
        );
        let line = summary(Movement::Release, End::Finished, &job(3, 3, &[]), 0, took);
        assert_eq!(line, "release: 3 of 3 files, 3.0 MiB in 2.0 s");
        let line = summary(Movement::StageOut, End::Queued, &job(3, 0, &[]), 0, took);
        assert!(
            line.starts_with("stage-out: 3 files (3.0 MiB) queued; `forebay status`"),
            "{line}"
        );
    }

    #[test]
    fn what_is_left_is_not_called_nothing_before_it_is_counted() {
        let mut early = job(0, 0, &[]);
        early.left = vec![b"dir".to_vec()];
        assert_eq!(
            what_is_left(&early),
            "files were still being counted; left:"
        );
        assert_eq!(what_is_left(&job(3, 1, &[])), "2 files (2.0 MiB) left:");
        assert_eq!(what_is_left(&job(3, 3, &[])), "nothing is left");
    }

    #[test]
    fn json_tells_what_failed_and_what_is_left() {
        let mut job = job(2, 1, &[Errno::EIO]);
        job.left = vec![b"b".to_vec()];
        let target = Target {
            state: "/var/bb".into(),
            mount: "/bb".into(),
            paths: vec![Vec::new()],
            refused: vec![Refused {
                path: "/elsewhere".into(),
                errno: Errno::EXDEV,
                why: "not in a burst buffer".into(),
            }],
        };
        let told = Told::new(Movement::StageIn, &target.mount, &target.refused);
        assert_eq!(told.object(None, &job)["outcome"], Value::Null);
        let value = told.object(Some(End::TimedOut), &job);
        assert_eq!(value["movement"], "stage-in");
        assert_eq!(value["outcome"], "timed-out");
        assert_eq!(value["files_failed"], 2);
        assert_eq!(value["failures"][0]["path"], "/elsewhere");
        assert_eq!(value["failures"][0]["error"], "not in a burst buffer");
        assert_eq!(value["failures"][1]["errno"], "EIO");
        assert_eq!(value["left"][0]["path"], "/bb/b");
    }
}
