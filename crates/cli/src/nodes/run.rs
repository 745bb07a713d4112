//! Commands on other nodes, many at once: none is waited for beyond its time, and of what they say
//! no more is kept than fits.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::via::Via;
use crate::exit::reason;
use crate::out;
use crate::show::text::show_path;
use crate::signals::Signals;

/// Commands under way at once.
const AT_ONCE: usize = 32;
/// Kept of what a command says on each of its outputs, bytes.
const SAID_MAX: usize = 64 << 10;
/// Longest line of it that is shown, bytes.
const LINE_MAX: usize = 500;
/// Between two looks whether a command has ended.
const LOOK: Duration = Duration::from_millis(20);
/// What a command has left running may keep its outputs open: they are read for so long after its
/// end.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Runs commands on nodes.
pub struct Runner {
    /// How they get there.
    pub via: Via,
    /// Ctrl-C ends the wait for them.
    pub signals: Signals,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Its exit code; of one that a signal ended 128 and the signal, as of a shell.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Said {
    /// Why it failed: its last line, for people.
    pub fn why(&self) -> String {
        let lines = self.stderr.lines().rev().chain(self.stdout.lines().rev());
        let last = lines.map(str::trim).find(|line| !line.is_empty());
        let line = last.unwrap_or("it said nothing");
        let line = line.strip_prefix("forebay: ").unwrap_or(line);
        match self.code {
            1 => shown(line),
            127 => format!("{} (exit 127: there is no such program there)", shown(line)),
            code => format!("{} (exit {code})", shown(line)),
        }
    }
}

/// A line from elsewhere: cut, and without what moves the cursor. ssh ends lines with CR and LF.
pub fn shown(line: &str) -> String {
    let mut text = show_path(line.trim_end_matches('\r').as_bytes());
    if let Some((at, _)) = text.char_indices().find(|(at, _)| *at >= LINE_MAX) {
        text.truncate(at);
        text.push_str("...");
    }
    text
}

impl Runner {
    /// Runs words on a node, for so long at most; `told` lines of its standard error are shown as
    /// they come. What does not end in time is left to itself on the node: an error says so.
    pub fn run(
        &self,
        host: &str,
        words: &[OsString],
        limit: Duration,
        told: bool,
    ) -> Result<Said, String> {
        let mut command = self.via.command(host, words);
        // Ctrl-C is this program's: it says what becomes of what is under way.
        command.process_group(0);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let what = || command.get_program().to_string_lossy().into_owned();
        let program = what();
        let mut child = command
            .spawn()
            .map_err(|error| format!("{program}: {}", reason(&error)))?;
        let prefix = told.then(|| host.to_string());
        let outputs = Heard::of(child.stdout.take(), None)
            .and_then(|stdout| Ok((stdout, Heard::of(child.stderr.take(), prefix)?)));
        let ended = self.wait(&mut child, limit);
        let (stdout, stderr) = outputs.map_err(|error| format!("a thread: {}", reason(&error)))?;
        let status = ended?;
        let signal = status.signal().map(|signal| 128 + signal);
        Ok(Said {
            code: status.code().or(signal).unwrap_or(1),
            stdout: stdout.text(),
            stderr: stderr.text(),
        })
    }

    fn wait(&self, child: &mut Child, limit: Duration) -> Result<ExitStatus, String> {
        let begun = Instant::now();
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) => {}
                Err(error) => return Err(reason(&error)),
            }
            let why = match self.signals.sleep(LOOK) {
                true => "interrupted",
                false if begun.elapsed() >= limit => "no answer in time",
                false => continue,
            };
            kill_group(child);
            return Err(why.to_string());
        }
    }

    /// Starts what is to go on, with its output in a file: as long as it runs here, the command
    /// runs there.
    pub fn keep(&self, host: &str, words: &[OsString], log: std::fs::File) -> io::Result<Child> {
        let mut command: Command = self.via.command(host, words);
        command.process_group(0);
        command.stdout(log.try_clone()?).stderr(log).spawn()
    }

    /// Whether the user wants no more.
    pub fn is_interrupted(&self) -> bool {
        self.signals.sleep(Duration::ZERO)
    }
}

fn kill_group(child: &mut Child) {
    if let Ok(pid) = i32::try_from(child.id())
        && let Some(pid) = Pid::from_raw(pid)
    {
        // It may have ended meanwhile.
        let _ = kill_process_group(pid, Signal::KILL);
    }
    // It was killed: what is left is to take its end in.
    let _ = child.wait();
}

/// Does something for each, many at a time, in the order of what is given.
pub fn for_each<T: Sync, R: Send>(all: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let mut done = Vec::with_capacity(all.len());
    for some in all.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            let work = &work;
            let begun: Vec<_> = some
                .iter()
                .map(|one| scope.spawn(move || work(one)))
                .collect();
            for one in begun {
                match one.join() {
                    Ok(result) => done.push(result),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        });
    }
    done
}

/// What comes out of a command.
struct Heard {
    said: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Heard {
    fn of<R: Read + Send + 'static>(from: Option<R>, told: Option<String>) -> io::Result<Heard> {
        let said = Arc::new(Mutex::new(Vec::new()));
        let theirs = said.clone();
        let read = move |mut from: R| {
            let (mut bytes, mut line) = ([0u8; 4096], Vec::new());
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                let new = &bytes[..count];
                let mut said = theirs.lock().unwrap_or_else(PoisonError::into_inner);
                let room = SAID_MAX.saturating_sub(said.len());
                said.extend_from_slice(&new[..count.min(room)]);
                drop(said);
                if let Some(host) = &told {
                    tell(host, new, &mut line);
                }
            }
        };
        let spawn = |from| {
            std::thread::Builder::new()
                .name("fb-ask".into())
                .spawn(move || read(from))
        };
        let reader = from.map(spawn).transpose()?;
        Ok(Heard { said, reader })
    }

    fn text(self) -> String {
        let begun = Instant::now();
        let is_read = || self.reader.as_ref().is_none_or(JoinHandle::is_finished);
        while !is_read() && begun.elapsed() < LAST_WORDS {
            std::thread::sleep(Duration::from_millis(2));
        }
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&said).into_owned()
    }
}

/// Shows whole lines as they come.
fn tell(host: &str, new: &[u8], line: &mut Vec<u8>) {
    for &byte in new {
        match byte {
            b'\n' => {
                let text = String::from_utf8_lossy(line).into_owned();
                let text = text.strip_prefix("forebay: ").unwrap_or(&text);
                out::complain(&format!("{host}: {}", shown(text)));
                line.clear();
            }
            _ if line.len() <= LINE_MAX => line.push(byte),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runner() -> Runner {
        Runner {
            via: Via::parse("env HOST={host}").expect("a template"),
            signals: Signals::never(),
        }
    }

    fn sh(script: &str) -> Vec<OsString> {
        ["sh", "-c", script].map(OsString::from).to_vec()
    }

    #[test]
    fn the_end_of_a_line_is_not_shown() {
        assert_eq!(shown("Connection closed.\r"), "Connection closed.");
        assert_eq!(shown("one\rtwo"), "one\\x0dtwo");
    }

    #[test]
    fn what_commands_say_is_cut_and_what_hangs_is_left() {
        let limit = Duration::from_secs(60);
        let said = runner().run("n1", &sh("echo $HOST; echo no >&2; exit 3"), limit, false);
        let said = said.expect("it runs");
        assert_eq!((said.code, &*said.stdout), (3, "n1\n"));
        assert_eq!(said.why(), "no (exit 3)");
        let much = runner().run("n1", &sh("yes | head -c 10000000"), limit, false);
        assert_eq!(much.expect("it runs").stdout.len(), SAID_MAX);
        let begun = Instant::now();
        let short = Duration::from_millis(50);
        let hung = runner().run("n1", &sh("sleep 600; echo"), short, false);
        assert_eq!(hung, Err("no answer in time".into()));
        // A daemon keeps the outputs open.
        let daemon = runner().run("n1", &sh("sleep 3 & echo up"), limit, false);
        assert_eq!(daemon.expect("it runs").stdout, "up\n");
        assert!(begun.elapsed() < Duration::from_secs(30));
        let none = Runner {
            via: Via::Template(vec!["/nowhere/{host}".into()]),
            signals: Signals::never(),
        };
        let said = none.run("n1", &sh(""), limit, false).expect_err("none");
        assert_eq!(said, "/nowhere/n1: No such file or directory");
    }

    #[test]
    fn all_are_asked_and_their_answers_keep_the_order() {
        let all: Vec<u32> = (0..100).collect();
        assert_eq!(for_each(&all, |n| n + 1), (1..=100).collect::<Vec<_>>());
    }

    #[test]
    fn no_node_draws_on_the_terminal() {
        assert_eq!(shown("a\x1b[2Jb"), "a\\x1b[2Jb");
        assert_eq!(shown(&"ä".repeat(1000)).chars().count(), LINE_MAX / 2 + 3);
    }
}
