//! `--detach`: a child of its own session serves; the parent waits until it says that the mount
//! answers, or why not.
//!
//! The child is this program again, not a fork: a fork would have to happen before there are
//! threads, and all checks would then run twice. Its standard output is a pipe to the parent, on
//! which it says one line: `ready TEXT` or `failed CODE TEXT`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::io::FdFlags;

use super::{keeper, notify};
use crate::exit::{Exit, Explain, Failure};
use crate::out;

/// Starts the child with this command line and waits until it says that it is ready or has failed.
pub fn spawn(args: impl Iterator<Item = OsString>) -> Result<Exit, Failure> {
    keep_from_child().explain("descriptors of the caller", "")?;
    let (_, line) = begin(args.chain(["--detached".into()]))?;
    out::print(&format!("{line}\n"));
    Ok(Exit::Complete)
}

/// The same, where there is one by a command that runs another one, such as in a scope of systemd.
/// Where that command fails, without it.
pub fn spawn_in(around: Option<Command>, args: Vec<OsString>) -> Result<Exit, Failure> {
    let Some(mut command) = around else {
        return spawn(args.into_iter());
    };
    keep_from_child().explain("descriptors of the caller", "")?;
    let program = command.get_program().to_os_string();
    command.args(&args).arg("--detached");
    let heard = start(&mut command);
    if let Ok((mut child, said)) = heard {
        if let Some(word) = parse(&said) {
            let (_, line) = understood(word, child)?;
            out::print(&format!("{line}\n"));
            return Ok(Exit::Complete);
        }
        child.wait().explain("the process that serves", "")?;
    }
    out::complain(&format!(
        "{} has not started it; it is started without",
        program.display()
    ));
    spawn(args.into_iter())
}

/// Starts a process that says when it serves: the process, and what it said.
pub fn begin(args: impl Iterator<Item = OsString>) -> Result<(Child, String), Failure> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("forebay").args(args);
    let (mut child, said) = start(&mut command)?;
    match parse(&said) {
        Some(word) => understood(word, child),
        None => {
            let status = child.wait().explain("the process that serves", "")?;
            let how = match (status.code(), status.signal()) {
                (Some(code), _) => format!("exit {code}"),
                (None, Some(signal)) => format!("signal {signal}"),
                (None, None) => "an unknown end".into(),
            };
            Err(Failure::fatal(format!(
                "the process that serves ended ({how}) before it answered; see its forebay.log"
            )))
        }
    }
}

fn start(command: &mut Command) -> Result<(Child, String), Failure> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .explain("cannot start the process that serves", "")?;
    let said = hear(&mut child).explain("the process that serves", "")?;
    Ok((child, said))
}

fn understood(word: Word<'_>, mut child: Child) -> Result<(Child, String), Failure> {
    match word {
        Word::Ready(line) => Ok((child, line.to_string())),
        Word::Failed(exit, message) => {
            // Its clean-up is part of the failure; that it cannot be waited for changes nothing.
            drop(child.wait());
            Err(Failure {
                errno: None,
                exit,
                message: message.to_string(),
            })
        }
    }
}

/// What the caller has open, above standard error, is not the child's: it would be open for as long
/// as the child runs. A file of the burst buffer among it would never be drained.
fn keep_from_child() -> io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let number: Option<RawFd> = name.to_str().and_then(|name| name.parse().ok());
        if let Some(number) = number.filter(|number| *number > libc::STDERR_FILENO) {
            // SAFETY: nothing here closes descriptors, and there is no other thread.
            let fd = unsafe { BorrowedFd::borrow_raw(number) };
            rustix::io::fcntl_setfd(fd, FdFlags::CLOEXEC)?;
        }
    }
    Ok(())
}

/// Runs `serve` here, or in a process of its own where `detach` was given. `detached` is what that
/// process is told: its parent hears of a failure.
pub fn run(
    (detach, detached): (bool, bool),
    serve: impl FnOnce(&mut Readiness) -> Result<Exit, Failure>,
) -> Result<Exit, Failure> {
    if detach && !detached {
        return spawn(std::env::args_os().skip(1));
    }
    let mut readiness = Readiness::new(detached)?;
    match serve(&mut readiness) {
        Err(failure) if detached => {
            readiness.failed(&failure);
            Ok(failure.exit)
        }
        other => other,
    }
}

fn hear(child: &mut Child) -> io::Result<String> {
    let mut said = Vec::new();
    if let Some(pipe) = child.stdout.take() {
        BufReader::new(pipe).read_until(b'\n', &mut said)?;
    }
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// What the child says.
#[derive(Debug, PartialEq, Eq)]
enum Word<'a> {
    Ready(&'a str),
    Failed(Exit, &'a str),
}

fn parse(said: &str) -> Option<Word<'_>> {
    let line = said.strip_suffix('\n')?;
    if let Some(text) = line.strip_prefix("ready ") {
        return Some(Word::Ready(text));
    }
    let (code, text) = line.strip_prefix("failed ")?.split_once(' ')?;
    Some(Word::Failed(Exit::from_code(code.parse().ok()?), text))
}

/// Whether this process leads its session.
fn leads_session() -> bool {
    // In a container the session may be of a process outside: its id is 0 there, which is no `Pid`.
    // SAFETY: neither call takes a pointer.
    unsafe { libc::getsid(0) == libc::getpid() }
}

/// How the serving process says that the mount answers.
pub struct Readiness {
    detached: bool,
    announced: bool,
    /// The process has started itself anew: its parent has heard all there is to hear.
    is_anew: bool,
}

impl Readiness {
    /// For the child of `--detach`, which leaves its parent's session, or for the foreground.
    pub fn new(detached: bool) -> Result<Readiness, Failure> {
        let leads = leads_session();
        if detached && !leads {
            rustix::process::setsid()
                .explain("cannot leave the session", "--detached is not for people")?;
        }
        Ok(Readiness {
            detached,
            announced: false,
            is_anew: detached && leads,
        })
    }

    /// Whether the process has started itself anew.
    pub fn is_anew(&self) -> bool {
        self.is_anew
    }

    /// Whether [`Readiness::announce`] has been called.
    pub fn is_announced(&self) -> bool {
        self.announced
    }

    /// Says that the mount answers. An error means that the parent was interrupted, so nobody wants
    /// the mount.
    pub fn announce(&mut self, line: &str) -> Result<(), Failure> {
        self.announced = true;
        if !self.detached {
            match notify::is_asked() {
                true => out::complain(line),
                false => out::complain(&format!("{line}; Ctrl-C stops it")),
            }
            return notify::ready(line).explain("NOTIFY_SOCKET", "systemd waits for it");
        }
        // Before anybody is told: whoever ends the keeper from now on leaves the server.
        keeper::serves().explain("what starts the server again", "")?;
        say(&one_line(&format!("ready {line}"))).explain("interrupted", "")?;
        let null = File::options()
            .read(true)
            .write(true)
            .open("/dev/null")
            .explain("/dev/null", "")?;
        rustix::stdio::dup2_stdout(&null).explain("standard output", "")?;
        // Otherwise the daemon would keep its folder busy for as long as it runs.
        std::env::set_current_dir(Path::new("/")).explain("/", "")
    }

    /// Says that the start has failed.
    pub fn failed(&self, failure: &Failure) {
        tracing::error!("{}", failure.message);
        if self.announced {
            return;
        }
        if self.is_anew {
            // Standard error is the log, which may not have been opened again yet.
            return out::complain(&failure.message);
        }
        // If the parent has gone there is nobody to tell.
        let code = failure.exit as u8;
        let _ = say(&one_line(&format!("failed {code} {}", failure.message)));
    }
}

/// The parent reads one line and goes: what came after it would find the pipe closed. A mount point
/// may have a newline in its name.
fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

fn say(line: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_childs_word_is_understood() {
        assert_eq!(parse("ready /bb is up\n"), Some(Word::Ready("/bb is up")));
        assert_eq!(
            parse("failed 1 /x: no\n"),
            Some(Word::Failed(Exit::Fatal, "/x: no"))
        );
        let odd = format!("{}\n", one_line("ready /b\nb is up"));
        assert_eq!(parse(&odd), Some(Word::Ready("/b b is up")));
        assert_eq!(odd.lines().count(), 1);
        assert_eq!(parse(""), None);
        assert_eq!(parse("ready half"), None);
        assert_eq!(parse("thread panicked\n"), None);
    }
}
