//! One directory that is measured.

use std::io;
use std::path::Path;

use forebay_types::Errno;

use super::crew::Crew;
use super::plan::{Pattern, Scale};
use super::report::{Results, Unit};
use super::work::{Done, Order, Pieces};
use crate::exit::{Exit, Explain, Failure, reason};
use crate::scratch::{Scratch, Stop};
use crate::show::text::show_path;

/// A directory, the processes in it, and what was measured.
pub struct Site {
    shown: String,
    // Ends before its files go.
    crew: Crew,
    scratch: Scratch,
    stop: Stop,
    /// Number of the next file.
    next_file: u64,
    /// What was measured.
    pub results: Results,
}

/// Hears of each step: its name, and the bytes that it has moved.
pub type Hear<'a> = &'a mut dyn FnMut(&str, u64);

impl Site {
    /// Makes a directory in `dir`, and starts the processes in it.
    pub fn open(dir: &Path, scale: &Scale, stop: &Stop) -> Result<Site, Failure> {
        use std::os::unix::ffi::OsStrExt;
        let shown = show_path(dir.as_os_str().as_bytes());
        let scratch = Scratch::new(dir, "bench").explain(
            format_args!("{shown}: no directory can be made there"),
            "give a directory that you may write to",
        )?;
        let crew = Crew::start(scratch.path(), scale.processes)
            .explain("cannot start the processes of the benchmark", "")?;
        Ok(Site {
            shown,
            scratch,
            crew,
            stop: stop.clone(),
            next_file: 1,
            results: Results::default(),
        })
    }

    /// Where its files are.
    pub fn path(&self) -> &Path {
        self.scratch.path()
    }

    /// The ids of its processes.
    pub fn ids(&self) -> Vec<u32> {
        self.crew.ids()
    }

    /// Ends the processes, and removes the files.
    pub fn close(self) -> Result<Results, Failure> {
        drop(self.crew);
        let path = self.scratch.path().to_path_buf();
        let removed = self.scratch.remove();
        removed.explain(
            format_args!("{}: cannot be removed", path.display()),
            "remove it",
        )?;
        Ok(self.results)
    }

    /// Measures one pattern once.
    pub fn measure(
        &mut self,
        pattern: Pattern,
        scale: &Scale,
        hear: Hear<'_>,
    ) -> Result<(), Failure> {
        match pattern {
            Pattern::Own => self.bytes(pattern, ["n-n write", "n-n read"], scale, hear),
            Pattern::Segmented => self.bytes(
                pattern,
                ["n-1 segmented write", "n-1 segmented read"],
                scale,
                hear,
            ),
            Pattern::Strided => self.bytes(
                pattern,
                ["n-1 strided write", "n-1 strided read"],
                scale,
                hear,
            ),
            Pattern::Metadata => self.names(scale, hear),
            Pattern::Checkpoint => self.checkpoints(scale, hear),
        }
    }

    fn bytes(
        &mut self,
        pattern: Pattern,
        [write, read]: [&'static str; 2],
        scale: &Scale,
        hear: Hear<'_>,
    ) -> Result<(), Failure> {
        let all = self.pieces(pattern, "files", scale);
        self.make("files")?;
        let spent = self.write(&all)?;
        self.results
            .add(write, Unit::BytesPerS, scale.bytes() as f64 / spent);
        hear(write, scale.bytes());
        self.read(&all, read, scale)?;
        hear(read, scale.bytes());
        self.remove("files")
    }

    /// Each process's part; the files get new numbers, so that what a file of before has left is
    /// known for what it is.
    fn pieces(&mut self, pattern: Pattern, folder: &str, scale: &Scale) -> Vec<Pieces> {
        let first = self.next_file;
        self.next_file += scale.processes as u64;
        let ranks = 0..scale.processes;
        ranks
            .map(|rank| scale.pieces(pattern, folder, first, rank))
            .collect()
    }

    /// Seconds from the first open to the last close, fsync included.
    fn write(&mut self, all: &[Pieces]) -> Result<f64, Failure> {
        self.order("preparing data", |rank| Order::Prepare(all[rank].clone()))?;
        let done = self.order("writing", |rank| Order::Write(all[rank].clone()))?;
        Ok(spent(&done))
    }

    /// Each process reads its neighbour's part, after the kernel was asked to forget the pages.
    fn read(&mut self, all: &[Pieces], name: &'static str, scale: &Scale) -> Result<f64, Failure> {
        let forgotten = self.order("forgetting pages", |rank| {
            Order::Forget(all[rank].name.clone())
        })?;
        let pages = forgotten.iter().map(|done| done.pages);
        let pages = pages.reduce(|a, b| a.zip(b).map(|(a, b)| (a.0 + b.0, a.1 + b.1)));
        let theirs = |rank| all[scale.neighbour(rank)].clone();
        let done = self.order("reading", |rank| Order::Read(theirs(rank)))?;
        self.order("comparing", |rank| Order::Check(theirs(rank)))?;
        let spent = spent(&done);
        let speed = scale.bytes() as f64 / spent;
        self.results
            .add_read(name, Unit::BytesPerS, speed, pages.flatten());
        Ok(spent)
    }

    fn names(&mut self, scale: &Scale, hear: Hear<'_>) -> Result<(), Failure> {
        type Make = fn(String, u64) -> Order;
        let steps: [(&'static str, Make); 4] = [
            ("create", Order::Create),
            ("stat", Order::Stat),
            ("rename", Order::Rename),
            ("unlink", Order::Unlink),
        ];
        self.make("names")?;
        for (name, make) in steps {
            let done = self.order(name, |rank| make(format!("names/dir-{rank}"), scale.files))?;
            let count = scale.processes as u64 * scale.files;
            self.results
                .add(name, Unit::OpsPerS, count as f64 / spent(&done));
            hear(name, 0);
        }
        self.remove("names")
    }

    fn checkpoints(&mut self, scale: &Scale, hear: Hear<'_>) -> Result<(), Failure> {
        let folder = |version: u64| format!("ckpt-{version:06}");
        let mut newest = Vec::new();
        for version in 0..scale.checkpoints {
            let name = folder(version);
            newest = self.pieces(Pattern::Checkpoint, &name, scale);
            self.order("preparing data", |rank| {
                Order::Prepare(newest[rank].clone())
            })?;
            self.make(&name)?;
            let done = self.order("writing", |rank| Order::Write(newest[rank].clone()))?;
            let spent = spent(&done);
            self.results.add("checkpoint wait", Unit::Seconds, spent);
            self.results.add(
                "checkpoint write",
                Unit::BytesPerS,
                scale.bytes() as f64 / spent,
            );
            hear("checkpoint", scale.bytes());
            if let Some(old) = scale.outdated(version) {
                self.remove(&folder(old))?;
            }
            self.sleep(scale.pause)?;
        }
        let spent = self.read(&newest, "restart read", scale)?;
        self.results.add("restart wait", Unit::Seconds, spent);
        hear("restart", scale.bytes());
        let kept = scale.checkpoints.saturating_sub(2)..scale.checkpoints;
        kept.map(folder).try_for_each(|name| self.remove(&name))
    }

    fn sleep(&self, time: std::time::Duration) -> Result<(), Failure> {
        // In pieces, so that Ctrl-C need not wait.
        let until = std::time::Instant::now() + time;
        loop {
            self.stop.check().map_err(|_| interrupted())?;
            let left = until.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(std::time::Duration::from_millis(50)));
        }
    }

    fn make(&self, name: &str) -> Result<(), Failure> {
        std::fs::create_dir(self.scratch.name(name))
            .map_err(|error| self.failure("making a directory", &error))
    }

    fn remove(&self, name: &str) -> Result<(), Failure> {
        std::fs::remove_dir_all(self.scratch.name(name))
            .map_err(|error| self.failure("removing files", &error))
    }

    fn failure(&self, what: &str, error: &io::Error) -> Failure {
        match self.stop.is_ordered() {
            true => interrupted(),
            false => Failure::fatal(format!("{}: {what}: {}", self.shown, reason(error))),
        }
    }

    /// An order for each process, and what came of it; the first that failed is the error.
    fn order(&mut self, what: &str, order: impl Fn(usize) -> Order) -> Result<Vec<Done>, Failure> {
        self.stop.check().map_err(|_| interrupted())?;
        let done = self
            .crew
            .obey(order)
            .map_err(|error| self.failure(what, &error))?;
        self.stop.check().map_err(|_| interrupted())?;
        for one in &done {
            if let Some((number, step)) = &one.error {
                let why = Errno(*number).message();
                let shown = &self.shown;
                return Err(Failure::fatal(format!("{shown}: {what}: {step}: {why}")));
            }
            if let Some(damage) = &one.damage {
                return Err(Failure {
                    exit: Exit::Corrupt,
                    message: format!(
                        "{}: what was read is not what was written: {damage}",
                        self.shown
                    ),
                    errno: None,
                });
            }
        }
        Ok(done)
    }
}

/// Ctrl-C; what is to be said is said by who removes the files.
pub fn interrupted() -> Failure {
    Failure {
        exit: Exit::Interrupted,
        message: "bench: interrupted; its files are removed".into(),
        errno: None,
    }
}

/// From the first begin to the last end, seconds.
fn spent(done: &[Done]) -> f64 {
    let begun = done.iter().map(|one| one.begun_ns).min().unwrap_or(0);
    let ended = done.iter().map(|one| one.ended_ns).max().unwrap_or(0);
    // A clock that stands still would give a speed without end.
    (ended.saturating_sub(begun) as f64 / 1e9).max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_from_the_first_begin_to_the_last_end() {
        let done = |begun_ns, ended_ns| Done {
            begun_ns,
            ended_ns,
            ..Done::default()
        };
        assert_eq!(
            spent(&[
                done(2_000_000_000, 3_000_000_000),
                done(1_500_000_000, 2_500_000_000)
            ]),
            1.5
        );
    }
}
