//! `forebay top`: the status, live.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::asked::{Asked, Whom};
use crate::control::AskError;
use crate::exit::{Exit, Explain, Failure};
use crate::signals::Signals;
use crate::{out, status, usage};

/// Time between two pages.
const EVERY: Duration = Duration::from_secs(1);

/// Cursor home.
const HOME: &str = "\x1b[H";
/// Clears to the end of the line, of the screen.
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";
/// A screen of its own, and back; the cursor hidden, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The same as status, live: once a second in place, until q or Ctrl-C
#[derive(Args)]
#[command(
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "Where standard output is no terminal, one page is printed below the other. On a narrow terminal columns that\n",
        "say less are left out; `forebay status` has all.\n\n",
        "Examples:\n  forebay top\n  forebay top --state /var/lib/forebay --count 3\n",
        "  forebay top --config /etc/forebay/cluster.toml\n\n",
        "Exit codes: 0 ended by q, Ctrl-C or --count; 1 nothing runs there, or it stopped."
    )
)]
pub struct TopArgs {
    #[command(flatten)]
    whom: Whom,
    /// End after so many pages
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

/// Runs the command.
pub fn run(args: &TopArgs) -> Result<Exit, Failure> {
    let asked = args.whom.connect()?;
    let signals = Signals::count().explain("signals", "")?;
    let mut screen = Screen::open();
    let ended = pages(
        &asked,
        args.count.unwrap_or(u64::MAX),
        &signals,
        &mut screen,
    );
    drop(screen);
    match ended {
        Ok(()) => Ok(Exit::Complete),
        Err(AskError::Gone) => Err(asked.stopped()),
        Err(error) => Err(asked.failure(error)),
    }
}

fn pages(
    asked: &Asked,
    count: u64,
    signals: &Signals,
    screen: &mut Screen,
) -> Result<(), AskError> {
    for page in 1..=count {
        let next = Instant::now() + EVERY;
        let bits = asked.status()?;
        screen.show(|room| status::render_within(&bits, room));
        if page < count && screen.wait(next, signals) {
            break;
        }
    }
    Ok(())
}

/// The terminal while it shows pages in place; or just standard output.
struct Screen {
    /// The terminal's settings before, if pages are shown in place.
    before: Option<Termios>,
    pages: u64,
}

impl Screen {
    fn open() -> Screen {
        let terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
        let before = terminal.then(|| tcgetattr(io::stdin()).ok()).flatten();
        if let Some(before) = &before {
            // Keys arrive at once and unseen; Ctrl-C stays a signal.
            let mut raw = before.clone();
            raw.local_modes
                .remove(LocalModes::ICANON | LocalModes::ECHO);
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, &raw);
            out::print(ENTER);
        }
        Screen { before, pages: 0 }
    }

    /// Shows a page, made for so many columns where they are known.
    fn show(&mut self, page: impl Fn(Option<usize>) -> String) {
        self.pages += 1;
        match self.before {
            Some(_) => {
                // A terminal that does not know its size says 0.
                let size = tcgetwinsize(io::stdout())
                    .ok()
                    .filter(|s| s.ws_row > 0 && s.ws_col > 0);
                let (rows, columns) = size.map_or((24, 80), |s| (s.ws_row.into(), s.ws_col.into()));
                out::print(&frame(&page(Some(columns)), rows, columns));
            }
            None if self.pages > 1 => out::print(&format!("\n{}", page(None))),
            None => out::print(&page(None)),
        }
    }

    /// Waits for the time of the next page; whether the user wants to leave.
    fn wait(&self, until: Instant, signals: &Signals) -> bool {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let slice = left.min(Duration::from_millis(100));
            match self.before {
                None if signals.sleep(left) => return true,
                None => {}
                Some(_) if signals.sleep(Duration::ZERO) || quit_pressed(slice) => return true,
                Some(_) => {}
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            out::print(LEAVE);
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

/// One page in place of the last, cut to the terminal's size.
fn frame(page: &str, rows: usize, columns: usize) -> String {
    let mut text = String::from(HOME);
    for line in page.lines().take(rows.saturating_sub(1)) {
        text.extend(line.chars().take(columns));
        text.push_str(CLEAR_LINE);
        text.push_str("\r\n");
    }
    text.push_str(CLEAR_BELOW);
    text
}

fn quit_pressed(wait: Duration) -> bool {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let wait = Timespec::try_from(wait).ok();
    if !matches!(poll(&mut fds, wait.as_ref()), Ok(1..)) {
        return false;
    }
    let mut keys = [0u8; 64];
    match rustix::io::read(stdin.as_fd(), &mut keys) {
        Ok(0) => true,
        Ok(n) => keys[..n].iter().any(|key| matches!(key, b'q' | b'Q')),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_fits_the_terminal() {
        let text = frame("abcdef\nsecond\nthird\n", 3, 4);
        assert_eq!(text, "\x1b[Habcd\x1b[K\r\nseco\x1b[K\r\n\x1b[J");
    }
}
