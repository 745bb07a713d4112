//! Exit codes, and the one-line errors that lead to them.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use forebay_types::Errno;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// All done.
    Complete = 0,
    /// Wrong usage, or nothing could be done.
    Fatal = 1,
    /// Some paths failed; each was named.
    Partial = 3,
    /// Out of time; what is left was named.
    TimedOut = 4,
    /// Content that does not match its checksum.
    Corrupt = 5,
    /// Stopped by Ctrl-C, as a shell reports it (128 + SIGINT).
    Interrupted = 130,
}

impl Exit {
    /// Inverse of `exit as u8`, for what a child process reports.
    pub fn from_code(code: u8) -> Exit {
        match code {
            0 => Exit::Complete,
            3 => Exit::Partial,
            4 => Exit::TimedOut,
            5 => Exit::Corrupt,
            130 => Exit::Interrupted,
            _ => Exit::Fatal,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// Whether nothing was found at a path, or nothing that its user may know of.
pub fn is_missing(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES)
}

/// Why a command cannot go on: one line, `what: why; what to do`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// The line, without `forebay: ` in front.
    pub message: String,
    /// What programs are told beside it, where there is a number for it.
    pub errno: Option<Errno>,
}

impl Failure {
    /// Exit 1.
    pub fn fatal(message: impl Into<String>) -> Failure {
        Failure {
            exit: Exit::Fatal,
            message: message.into(),
            errno: None,
        }
    }

    /// The same, with a number for programs.
    pub fn with(self, errno: Errno) -> Failure {
        Failure {
            errno: Some(errno),
            ..self
        }
    }
}

/// Adds to an I/O error what was being done and what helps.
pub trait Explain<T> {
    /// `what: why; todo`, or `what: why` where `todo` is empty.
    fn explain(self, what: impl Display, todo: &str) -> Result<T, Failure>;
}

impl<T, E: Into<io::Error>> Explain<T> for Result<T, E> {
    fn explain(self, what: impl Display, todo: &str) -> Result<T, Failure> {
        self.map_err(|error| {
            let error = error.into();
            let why = reason(&error);
            Failure::fatal(match todo {
                "" => format!("{what}: {why}"),
                _ => format!("{what}: {why}; {todo}"),
            })
            .with(Errno::of(&error))
        })
    }
}

/// The text of an error, without "(os error 2)".
pub fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => Errno(number).message(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_survive_the_way_from_a_child() {
        use Exit::*;
        for exit in [Complete, Fatal, Partial, TimedOut, Corrupt, Interrupted] {
            assert_eq!(Exit::from_code(exit as u8), exit);
        }
        assert_eq!(Exit::from_code(101), Fatal);
    }

    #[test]
    fn an_error_is_one_line_that_says_what_to_do() {
        let missing: Result<(), io::Error> = Err(io::Error::from_raw_os_error(libc::ENOENT));
        let failure = missing.explain("/nowhere", "create it").unwrap_err();
        assert_eq!(
            failure.message,
            "/nowhere: No such file or directory; create it"
        );
        assert_eq!(failure.exit, Exit::Fatal);
    }
}
