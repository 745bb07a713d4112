//! Ends the daemon of a test that hangs, and the suite if that does not help.

use std::io::Write;
use std::process::Child;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

/// A test that takes longer hangs: its daemon is killed, so that whatever waits for it ends.
const WATCHDOG: Duration = Duration::from_secs(150);

/// The daemon's process, while there is one.
pub(crate) type Slot = Arc<Mutex<Option<Child>>>;

pub(crate) fn locked(slot: &Slot) -> MutexGuard<'_, Option<Child>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills the daemon when time is up; the other end of the channel ends it before.
pub(crate) struct Watchdog {
    _end: mpsc::Sender<()>,
}

pub(crate) fn watch(slot: Slot) -> Watchdog {
    let (end, ended) = mpsc::channel();
    std::thread::spawn(move || {
        if ended.recv_timeout(WATCHDOG) == Err(RecvTimeoutError::Timeout)
            && let Some(child) = &mut *locked(&slot)
        {
            eprintln!("the test hangs: its burst buffer is killed");
            // If it has just ended, all the better.
            drop(child.kill());
        }
    });
    Watchdog { _end: end }
}

/// A test that takes longer ends the suite, with a report of what waits for what: several times
/// what the longest takes on a machine under load. `FOREBAY_TEST_MAX_S`: another limit, in seconds.
const TEST_MAX: Duration = Duration::from_secs(8 * 60);
/// Time between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// After the test's programs were killed, a test that only waited for them ends by itself.
const GRACE: Duration = Duration::from_secs(20);

/// The tests that run, by name.
static RUNNING: Mutex<Vec<(String, Instant)>> = Mutex::new(Vec::new());

/// One test, until its thread ends.
struct Entry(String);

impl Drop for Entry {
    fn drop(&mut self) {
        running().retain(|(name, _)| *name != self.0);
    }
}

fn running() -> MutexGuard<'static, Vec<(String, Instant)>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bounds the time of the test that runs on this thread. The runner names the threads of tests.
pub(crate) fn bound_this_test() {
    thread_local! {
        static THIS: Option<Entry> = {
            let name = std::thread::current().name().map(str::to_owned);
            name.filter(|name| name != "main").map(enter)
        };
    }
    THIS.with(|_| ());
}

fn enter(name: String) -> Entry {
    static LOOKS: Once = Once::new();
    LOOKS.call_once(|| drop(std::thread::spawn(look)));
    running().push((name.clone(), Instant::now()));
    Entry(name)
}

fn look() {
    let given = std::env::var("FOREBAY_TEST_MAX_S").ok();
    let seconds = given.map(|text| text.parse().expect("FOREBAY_TEST_MAX_S in seconds"));
    let limit = seconds.map_or(TEST_MAX, Duration::from_secs);
    loop {
        std::thread::sleep(PAUSE);
        let late = late(limit);
        if late.is_empty() {
            continue;
        }
        say(&format!("more than {limit:?} took: {}", late.join(", ")));
        let descendants = descendants();
        for pid in std::iter::once(std::process::id()).chain(descendants.iter().copied()) {
            report(pid);
        }
        for pid in descendants {
            // SAFETY: takes integers, touches no memory of ours.
            unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
        }
        std::thread::sleep(GRACE);
        if self::late(limit).iter().any(|name| late.contains(name)) {
            say(&format!(
                "the tests end here: {} would never",
                late.join(", ")
            ));
            std::process::exit(101);
        }
    }
}

fn late(limit: Duration) -> Vec<String> {
    let is_late = |since: &Instant| since.elapsed() > limit;
    let running = running();
    let late = running.iter().filter(|(_, since)| is_late(since));
    late.map(|(name, _)| name.clone()).collect()
}

/// The programs that this process started, and theirs.
fn descendants() -> Vec<u32> {
    let parents: Vec<(u32, u32)> = numbers_in("/proc")
        .into_iter()
        .filter_map(|pid| Some((pid, parent_of(pid)?)))
        .collect();
    let mut found = vec![std::process::id()];
    let mut looked_at = 0;
    while let Some(&parent) = found.get(looked_at) {
        let children = parents.iter().filter(|(_, of)| *of == parent);
        found.extend(children.map(|(pid, _)| *pid));
        looked_at += 1;
    }
    found.split_off(1)
}

fn parent_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}

fn numbers_in(folder: &str) -> Vec<u32> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Past the runner, which keeps what a test says until the test ends.
fn say(line: &str) {
    // Where nobody listens nothing can be said.
    drop(writeln!(std::io::stderr(), "{line}"));
}

/// What a process is, and where in the kernel each of its threads waits.
fn report(pid: u32) {
    let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let words = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
    say(&format!("process {pid}: {words}"));
    for thread in numbers_in(&format!("/proc/{pid}/task")) {
        let read = |file: &str| {
            let text = read(&format!("task/{thread}/{file}"));
            String::from_utf8_lossy(&text).trim().to_owned()
        };
        // The stack is root's to read; where it is empty the name of the place says something.
        let stack = read("stack").replace('\n', "; ");
        say(&format!("    {}: {} {stack}", read("comm"), read("wchan")));
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::bound_this_test;
    use crate::process::run_bounded;

    const MINUTES: Duration = Duration::from_secs(120);

    #[test]
    #[ignore = "hangs; the next test runs it"]
    fn hangs() {
        bound_this_test();
        // What it waits for ends with the programs that are killed; the test does not.
        drop(Command::new("sleep").arg("1000").status());
        std::thread::sleep(MINUTES);
    }

    #[test]
    fn a_test_that_hangs_ends_the_suite_with_a_report() {
        let mut suite = Command::new(std::env::current_exe().expect("path of the test"));
        suite.args(["--ignored", "--exact", "watchdog::tests::hangs"]);
        let output = run_bounded(suite.env("FOREBAY_TEST_MAX_S", "1"), MINUTES);
        assert_eq!(output.code, 101, "{output:?}");
        for word in [
            "took: watchdog::tests::hangs",
            ": sleep 1000",
            "would never",
        ] {
            assert!(output.stderr.contains(word), "{word}: {output:?}");
        }
    }
}
