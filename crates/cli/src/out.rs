//! Standard output and error.

use std::io::{self, ErrorKind, Write};

/// What a shell reports for a program that SIGPIPE ended (128 + 13).
const BROKEN_PIPE_EXIT: i32 = 141;

/// Prints to standard output as it is. A reader that has gone (`forebay where … | head`) ends the
/// program quietly. SIGPIPE itself stays ignored, for it would also end the program when a burst
/// buffer closes its socket.
pub fn print(text: &str) {
    let mut stdout = io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    if let Err(error) = written {
        if error.kind() == ErrorKind::BrokenPipe {
            std::process::exit(BROKEN_PIPE_EXIT);
        }
        complain(&format!("cannot write to standard output: {error}"));
        std::process::exit(crate::exit::Exit::Fatal as i32);
    }
}

/// One line `forebay: …` on standard error. If nobody can read that, there is nobody to tell.
pub fn complain(message: &str) {
    let line = format!("forebay: {}\n", message.trim_end().replace('\n', " "));
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

/// The same for why a command has failed. In the journal it is an error, and not information as
/// all that stands on standard error: systemd takes the level from such a beginning (sd-daemon(3)).
pub fn fail(message: &str) {
    if crate::up::log::is_journal() {
        let _ = io::stderr().lock().write_all(b"<3>");
    }
    complain(message);
}
