//! `forebay top`: the status, live.

use std::cmp::Reverse;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use clap::Args;
use forebay_wire::control::ApplicationStatus;
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
        "Keys: up and down, page up and page down scroll; s sorts the applications by what they have in the burst ",
        "buffer, by what is undrained, or by name; q ends it. Long names lose their middle on a narrow terminal.\n\n",
        "Where standard output is no terminal, one page is printed below the other. On a narrow terminal columns that ",
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
    let mut written = Written::default();
    for page in 1..=count {
        let now = Instant::now();
        let mut bits = asked.status()?;
        let rate = written.rate(now, bits.dwsf_bytes);
        loop {
            screen.order.sort(&mut bits.applications);
            screen.show(|room| status::render_live(&bits, room, rate));
            if page == count {
                break;
            }
            match screen.wait(now + EVERY, signals) {
                Next::Page => break,
                Next::Again => {}
                Next::End => return Ok(()),
            }
        }
    }
    Ok(())
}

/// What programs write, from one look to the next.
#[derive(Default)]
struct Written {
    last: Option<(Instant, u64)>,
}

impl Written {
    /// Bytes/s since the look before. A figure that falls has begun anew with a period: since then
    /// it is what it says.
    fn rate(&mut self, now: Instant, bytes: u64) -> Option<f64> {
        let (then, before) = self.last.replace((now, bytes))?;
        let grown = bytes.checked_sub(before).unwrap_or(bytes);
        let passed_s = now.saturating_duration_since(then).as_secs_f64();
        (passed_s > 0.0).then(|| grown as f64 / passed_s)
    }
}

/// What the applications are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Order {
    #[default]
    Resident,
    Undrained,
    Name,
}

impl Order {
    fn next(self) -> Order {
        match self {
            Order::Resident => Order::Undrained,
            Order::Undrained => Order::Name,
            Order::Name => Order::Resident,
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Order::Resident => "what they have here",
            Order::Undrained => "what is undrained",
            Order::Name => "name",
        }
    }

    fn sort(self, applications: &mut [ApplicationStatus]) {
        match self {
            Order::Resident => applications.sort_by_key(|one| Reverse(one.resident_bytes)),
            Order::Undrained => applications.sort_by_key(|one| Reverse(one.dirty_bytes)),
            Order::Name => applications.sort_by(|one, other| one.name.cmp(&other.name)),
        }
    }
}

/// What comes after a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Its time is over.
    Page,
    /// A key has changed how it is shown.
    Again,
    End,
}

/// The terminal while it shows pages in place; or just standard output.
struct Screen {
    /// The terminal's settings before, if pages are shown in place.
    before: Option<Termios>,
    pages: u64,
    /// Lines that are scrolled away.
    above: usize,
    /// Lines of the last page, and those of it that fit.
    lines: (usize, usize),
    order: Order,
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
        Screen {
            before,
            pages: 0,
            above: 0,
            lines: (0, 0),
            order: Order::default(),
        }
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
                let (rows, columns): (usize, usize) =
                    size.map_or((24, 80), |s| (s.ws_row.into(), s.ws_col.into()));
                let page = page(Some(columns));
                // One line for the keys, and one that the cursor is in.
                self.lines = (page.lines().count(), rows.saturating_sub(2));
                self.scroll(0);
                let page = part(&page, self.above, self.lines.1, self.order);
                out::print(&frame(&page, rows, columns));
            }
            None if self.pages > 1 => out::print(&format!("\n{}", page(None))),
            None => out::print(&page(None)),
        }
    }

    /// Moves the page by so many lines; its last line stays the last.
    fn scroll(&mut self, by: isize) {
        let most = self.lines.0.saturating_sub(self.lines.1);
        self.above = self.above.saturating_add_signed(by).min(most);
    }

    /// Waits for the time of the next page, or for a key that does something.
    fn wait(&mut self, until: Instant, signals: &Signals) -> Next {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Next::Page;
            }
            let slice = left.min(Duration::from_millis(100));
            let pressed = match self.before {
                None if signals.sleep(left) => return Next::End,
                None => Vec::new(),
                Some(_) if signals.sleep(Duration::ZERO) => return Next::End,
                Some(_) => match pressed(slice) {
                    Some(keys) => keys,
                    None => return Next::End,
                },
            };
            match self.take(&pressed) {
                Next::Page => {}
                next => return next,
            }
        }
    }

    /// Does what keys say; `Page`: nothing.
    fn take(&mut self, keys: &[u8]) -> Next {
        let screen = isize::try_from(self.lines.1).unwrap_or(1);
        let mut rest = keys;
        let mut next = Next::Page;
        while let [first, after @ ..] = rest {
            let (lines, used) = match rest {
                [0x1b, b'[', b'A', ..] => (Some(-1), 3),
                [0x1b, b'[', b'B', ..] => (Some(1), 3),
                [0x1b, b'[', b'5', b'~', ..] => (Some(-screen), 4),
                [0x1b, b'[', b'6', b'~', ..] => (Some(screen), 4),
                _ => (None, rest.len() - after.len()),
            };
            match (lines, first) {
                (Some(lines), _) => {
                    self.scroll(lines);
                    next = Next::Again;
                }
                (None, b's' | b'S') => {
                    self.order = self.order.next();
                    next = Next::Again;
                }
                (None, b'q' | b'Q') => return Next::End,
                (None, _) => {}
            }
            rest = &rest[used..];
        }
        next
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

/// What of a page fits, and a line with the keys.
fn part(page: &str, above: usize, room: usize, order: Order) -> String {
    let total = page.lines().count();
    let mut text: String = page
        .lines()
        .skip(above)
        .take(room)
        .flat_map(|line| [line, "\n"])
        .collect();
    let place = match total > room {
        true => format!(
            "lines {} to {} of {total}; ",
            above + 1,
            (above + room).min(total)
        ),
        false => String::new(),
    };
    text.push_str(&format!(
        "-- {place}s: applications by {}; q: end\n",
        order.describe()
    ));
    text
}

/// Keys that come within a time; `None` where nothing can come any more.
fn pressed(wait: Duration) -> Option<Vec<u8>> {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let wait = Timespec::try_from(wait).ok();
    if !matches!(poll(&mut fds, wait.as_ref()), Ok(1..)) {
        return Some(Vec::new());
    }
    let mut keys = [0u8; 64];
    match rustix::io::read(stdin.as_fd(), &mut keys) {
        Ok(0) => None,
        Ok(n) => Some(keys[..n].to_vec()),
        Err(_) => Some(Vec::new()),
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

    fn screen(lines: usize, room: usize) -> Screen {
        Screen {
            before: None,
            pages: 0,
            above: 0,
            lines: (lines, room),
            order: Order::default(),
        }
    }

    #[test]
    fn keys_scroll_sort_and_end() {
        let mut screen = screen(30, 10);
        for (keys, next, above) in [
            (&b"x"[..], Next::Page, 0),
            (b"\x1b[B\x1b[B", Next::Again, 2),
            (b"\x1b[A", Next::Again, 1),
            (b"\x1b[6~", Next::Again, 11),
            (b"\x1b[6~\x1b[6~", Next::Again, 20),
            (b"\x1b[5~", Next::Again, 10),
            (b"\x1b[5~\x1b[5~", Next::Again, 0),
            (b"\x1b[", Next::Page, 0),
            (b"\x1b[Bq", Next::End, 1),
        ] {
            assert_eq!((screen.take(keys), screen.above), (next, above), "{keys:?}");
        }
        let name = |name: &str, resident_bytes, dirty_bytes| ApplicationStatus {
            name: name.into(),
            version: None,
            dwsf_bytes: 0,
            dwpp_bytes: None,
            mtbf_ms: None,
            resident_bytes,
            dirty_bytes,
            files: 1,
        };
        let mut all = [name("b", 3, 1), name("c", 2, 9), name("a", 1, 2)];
        for order in ["bca", "cab", "abc", "bca"] {
            screen.order.sort(&mut all);
            let names: String = all.iter().map(|one| one.name.as_str()).collect();
            assert_eq!(names, order);
            assert_eq!(screen.take(b"s"), Next::Again);
        }
    }

    #[test]
    fn a_part_says_where_it_is() {
        let page = "1\n2\n3\n4\n";
        let text = part(page, 1, 2, Order::Name);
        assert_eq!(
            text,
            "2\n3\n-- lines 2 to 3 of 4; s: applications by name; q: end\n"
        );
        let text = part(page, 0, 9, Order::Resident);
        assert!(
            text.starts_with("1\n2\n3\n4\n-- s: applications by what"),
            "{text}"
        );
    }

    #[test]
    fn what_is_written_takes_two_looks() {
        let begin = Instant::now();
        let mut written = Written::default();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        assert_eq!(written.rate(at(0), 100), None);
        assert_eq!(written.rate(at(2), 300), Some(100.0));
        assert_eq!(written.rate(at(3), 50), Some(50.0), "a new period");
        assert_eq!(written.rate(at(3), 60), None);
    }
}
