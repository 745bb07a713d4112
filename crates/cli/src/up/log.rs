//! Where the log goes, and how much of it there is.
//!
//! A log that cannot be written takes nothing else down: a line is lost, and counted. The log never
//! has more than two files of [`file::BYTES_MAX`], nor more than a few lines a minute of one kind
//! ([`limit`]).

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::fs::OFlags;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::exit::{Explain, Failure, reason};
use crate::out;
use crate::signals::Hangup;
use crate::state;

mod file;
mod journal;
mod limit;

use file::LogFile;
use journal::Journal;
use limit::{Kind, Limits, Surplus};

/// Starts logging: to the log file of `state` where the process is detached, else to standard
/// error, and where that is systemd's journal, to the journal with levels and fields. Times are in
/// UTC.
pub fn start(state: &Path, mount: Option<&Path>, detached: bool) -> Result<Log, Failure> {
    let filter = asked_filter()?;
    let failed = |error: &dyn std::error::Error| Failure::fatal(format!("log: {error}"));
    if !detached && journal::is_stderr() {
        let log = Log::new(Sink::Journal);
        match Journal::open(log.clone(), state, mount) {
            Ok(journal) => {
                let layers = tracing_subscriber::registry().with(filter).with(journal);
                layers.try_init().map_err(|error| failed(&error))?;
                return Ok(log);
            }
            // Its stream is there in any case.
            Err(error) => out::complain(&format!(
                "the journal takes no fields, only lines: {}",
                reason(&error)
            )),
        }
    }
    let sink = match detached {
        false => Sink::Stderr,
        true => {
            let path = state.join(state::LOG);
            let file = LogFile::new(&path, open_log)
                .explain(path.display(), "the log is written there")?;
            Sink::File(file)
        }
    };
    let log = Log::new(sink);
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(false)
        // The subscriber would report its errors on standard error, and panic where that cannot be
        // written either.
        .log_internal_errors(false)
        .with_writer(log.clone());
    builder.try_init().map_err(|error| failed(&*error))?;
    Ok(log)
}

/// Whether standard error is a stream into systemd's journal.
pub fn is_journal() -> bool {
    journal::is_stderr()
}

/// Whether a log could be started with what `FOREBAY_LOG` asks for.
pub fn check() -> Result<(), Failure> {
    asked_filter().map(drop)
}

fn asked_filter() -> Result<EnvFilter, Failure> {
    level_filter(std::env::var("FOREBAY_LOG").ok().as_deref())
}

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// What `FOREBAY_LOG` asks for: a level, or several directives with a level each. A word that is
/// none would be taken for the name of a module, and nothing be logged.
fn level_filter(asked: Option<&str>) -> Result<EnvFilter, Failure> {
    let asked = asked.map(str::trim).filter(|text| !text.is_empty());
    let Some(asked) = asked else {
        return Ok(EnvFilter::new("info"));
    };
    let has_level = |directive: &str| {
        let level = directive.rsplit('=').next().unwrap_or(directive).trim();
        LEVELS.iter().any(|known| level.eq_ignore_ascii_case(known))
    };
    match EnvFilter::try_new(asked) {
        Ok(filter) if asked.split(',').all(has_level) => Ok(filter),
        _ => Err(Failure::fatal(format!(
            "FOREBAY_LOG={asked}: it takes a level ({}) or MODULE=LEVEL, separated by commas",
            LEVELS.join(", ")
        ))),
    }
}

fn open_log(path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    let state = path.parent().ok_or(io::ErrorKind::NotFound)?;
    state::open(state, state::LOG, flags, 0o600)
}

/// What lines are written to.
#[derive(Debug)]
enum Sink {
    Stderr,
    /// Standard error is a stream of the journal. What the log says of itself goes there; all else
    /// goes with fields.
    Journal,
    File(LogFile),
}

impl Sink {
    fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        match self {
            Sink::Stderr | Sink::Journal => io::stderr().lock().write_all(line),
            Sink::File(file) => file.write_line(line),
        }
    }
}

#[derive(Debug)]
struct Inner {
    sink: Sink,
    limits: Limits,
    /// Lines that could not be written since one could.
    lost: u64,
}

/// The log of this process. Clones are the same log.
#[derive(Clone, Debug)]
pub struct Log {
    inner: Arc<Mutex<Inner>>,
}

impl Log {
    /// What SIGHUP means to a process with this log: the log is opened again, unless somebody's
    /// terminal goes away with the process in its foreground.
    pub fn hangup(&self, detached: bool) -> Hangup {
        if !detached && io::stdin().is_terminal() {
            return Hangup::Stops;
        }
        let log = self.clone();
        Hangup::Calls(Box::new(move || {
            if let Err(error) = log.reopen() {
                tracing::warn!("the log cannot be opened again: {}", reason(&error));
            }
        }))
    }

    fn new(sink: Sink) -> Log {
        let inner = Inner {
            sink,
            limits: Limits::default(),
            lost: 0,
        };
        Log {
            inner: Arc::new(Mutex::new(inner)),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Standard error goes to the log file, so that a panic is found there.
    pub fn take_stderr(&self) -> io::Result<()> {
        match &mut self.inner().sink {
            Sink::Stderr | Sink::Journal => Ok(()),
            Sink::File(file) => file.take_stderr(),
        }
    }

    /// Opens the log file again: somebody has renamed it. `false` where there is none.
    pub fn reopen(&self) -> io::Result<bool> {
        match &mut self.inner().sink {
            Sink::Stderr | Sink::Journal => Ok(false),
            Sink::File(file) => file.reopen().map(|()| true),
        }
    }

    /// Says what was held back, once its minute is over. To be called now and then.
    pub fn tell_surplus(&self) {
        let mut inner = self.inner();
        for surplus in inner.limits.due(Instant::now()) {
            inner.tell(&surplus);
        }
    }
}

impl Inner {
    fn line(&mut self, kind: Option<Kind>, line: &[u8]) {
        if kind.is_none_or(|kind| self.admits(kind, line)) {
            self.write(line);
        }
    }

    /// Whether a line is to be written; says what was held back before it.
    fn admits(&mut self, kind: Kind, line: &[u8]) -> bool {
        let (admitted, before) = self.limits.admit(kind, Instant::now(), line);
        if let Some(surplus) = before {
            self.tell(&surplus);
        }
        admitted
    }

    fn write(&mut self, line: &[u8]) {
        if self.lost > 0 {
            let note = self.stamped(&format!(
                "{} lines before this one could not be written",
                self.lost
            ));
            if self.sink.write_line(note.as_bytes()).is_err() {
                self.lost += 1;
                return;
            }
            self.lost = 0;
        }
        if self.sink.write_line(line).is_err() {
            self.lost += 1;
        }
    }

    fn tell(&mut self, surplus: &Surplus) {
        let text = format!(
            "{} more lines of one kind in a minute; the last of them: {}",
            surplus.lines,
            String::from_utf8_lossy(&surplus.last).trim_end()
        );
        let line = self.stamped(&text);
        self.write(line.as_bytes());
    }

    /// A line of the log about the log itself.
    fn stamped(&self, text: &str) -> String {
        if matches!(self.sink, Sink::Journal) {
            // The journal has the time, and reads the level off the beginning (sd-daemon(3)).
            return format!("<4>{text}\n");
        }
        let mut line = String::new();
        // A time that cannot be formatted leaves a line without one.
        let _ = SystemTime.format_time(&mut Writer::new(&mut line));
        line.push_str(&format!("  WARN {text}\n"));
        line
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line {
            log: self,
            kind: None,
        }
    }

    fn make_writer_for(&'a self, meta: &tracing::Metadata<'_>) -> Line<'a> {
        Line {
            log: self,
            kind: Kind::of(meta),
        }
    }
}

/// Takes one line.
pub struct Line<'a> {
    log: &'a Log,
    kind: Option<Kind>,
}

impl Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.log.inner().line(self.kind.clone(), line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_level_that_is_none_is_refused() {
        let said = |asked| level_filter(asked).map(|filter| filter.to_string());
        assert_eq!(said(None).ok().as_deref(), Some("info"));
        assert_eq!(said(Some("")).ok().as_deref(), Some("info"));
        assert_eq!(said(Some("DEBUG")).ok().as_deref(), Some("debug"));
        assert!(said(Some("warn,forebay_server=trace")).is_ok());
        for wrong in ["foo", "debgu", "forebay_server=loud", "info,foo"] {
            let Err(failure) = said(Some(wrong)) else {
                panic!("{wrong} is taken");
            };
            assert!(failure.message.contains(wrong), "{failure:?}");
        }
    }

    #[test]
    fn a_log_that_cannot_be_written_loses_lines_and_says_how_many() {
        let folder = tempfile::tempdir().expect("tempdir");
        let full = LogFile::new(Path::new("/dev/full"), file::plain).expect("open");
        let log = Log::new(Sink::File(full));
        for _ in 0..3 {
            log.make_writer().write_all(b"lost\n").expect("no error");
        }
        assert_eq!(log.inner().lost, 3, "the device took lines");
        let path = folder.path().join("log");
        log.inner().sink = Sink::File(LogFile::new(&path, file::plain).expect("open"));
        log.make_writer().write_all(b"kept\n").expect("no error");
        let text = std::fs::read_to_string(&path).expect("read");
        assert!(text.contains("3 lines before this one"), "{text}");
        assert!(text.ends_with("kept\n"), "{text}");
    }

    #[test]
    fn what_is_held_back_is_summed_up_in_one_line() {
        let folder = tempfile::tempdir().expect("tempdir");
        let path = folder.path().join("log");
        let log = Log::new(Sink::File(LogFile::new(&path, file::plain).expect("open")));
        tracing::subscriber::with_default(
            tracing_subscriber::fmt().with_writer(log.clone()).finish(),
            || {
                for at in 0..1000 {
                    tracing::warn!("of one kind, number {at}");
                }
            },
        );
        let ended = log.inner().limits.end_all();
        for surplus in ended {
            log.inner().tell(&surplus);
        }
        let text = std::fs::read_to_string(&path).expect("read");
        assert_eq!(text.lines().count(), limit::WARNINGS_MAX as usize + 1);
        assert!(text.contains("980 more lines"), "{text}");
        assert!(text.contains("number 999"), "{text}");
    }
}
