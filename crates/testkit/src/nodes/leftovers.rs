//! Processes that a test has left on its nodes, or that a killed test could not take away.
//!
//! Every process on a node has a variable that says whose it is; its children inherit it.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::namespace::{Id, id_of};

/// `PID-NAMESPACE PID START` of the test that has started the process.
const OWNER: &str = "TESTKIT_NODES_OWNER";
/// A killed process is gone soon after, unless the kernel holds it.
const GONE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);

/// Says whose a command's process is.
pub fn mark(command: &mut Command) {
    let this = rustix::process::getpid();
    let started = started(this).expect("this process runs");
    let own = this.as_raw_nonzero();
    command.env(OWNER, format!("{} {own} {started}", pid_space()));
}

/// Kills what tests have left that were killed themselves.
pub fn sweep() {
    for pid in all_pids() {
        // Held before it is looked at: a number alone may be another process's by the time of the
        // signal. What ends meanwhile, or is another user's, is none of ours.
        let Ok(held) = pidfd_open(pid, PidfdFlags::empty()) else {
            continue;
        };
        let environ = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero()));
        if environ.is_ok_and(|environ| is_orphan(&environ)) {
            // It may have ended.
            let _ = pidfd_send_signal(&held, Signal::KILL);
        }
    }
}

/// Whether these are variables of a process whose test is gone.
fn is_orphan(environ: &[u8]) -> bool {
    let mut variables = environ.split(|&byte| byte == 0);
    let owner = variables.find_map(|one| one.strip_prefix(format!("{OWNER}=").as_bytes()));
    let owner = owner.and_then(|owner| std::str::from_utf8(owner).ok());
    let words: Vec<&str> = owner.unwrap_or_default().split(' ').collect();
    let [space, pid, start] = words[..] else {
        return false;
    };
    // Of another container nobody here knows what runs.
    let pid = pid.parse().ok().and_then(Pid::from_raw);
    space == pid_space() && pid.is_some_and(|pid| started(pid).as_deref() != Some(start))
}

/// Kills all processes in these namespaces, and waits for their end. Never panics: it runs while a
/// test fails.
pub fn kill_all(spaces: &[Id]) {
    let begun = Instant::now();
    loop {
        let left: Vec<Pid> = spaces.iter().flat_map(|&space| inside(space)).collect();
        if left.is_empty() {
            return;
        }
        for &pid in &left {
            signal_inside(pid, spaces, Signal::KILL);
        }
        if begun.elapsed() > GONE {
            eprintln!("processes that do not end by SIGKILL are left on nodes: {left:?}");
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Sends a signal to a process if it is (still) in one of these namespaces.
pub fn signal_inside(pid: Pid, spaces: &[Id], signal: Signal) {
    let Ok(held) = pidfd_open(pid, PidfdFlags::empty()) else {
        return;
    };
    if space_of(pid).is_some_and(|space| spaces.contains(&space)) {
        // It may have ended.
        let _ = pidfd_send_signal(&held, signal);
    }
}

/// The processes in a namespace. One that has ended and is not waited for is in none.
pub fn inside(space: Id) -> Vec<Pid> {
    let mut pids = all_pids();
    pids.retain(|&pid| space_of(pid) == Some(space));
    pids
}

fn space_of(pid: Pid) -> Option<Id> {
    let meta = fs::metadata(format!("/proc/{}/ns/net", pid.as_raw_nonzero()));
    meta.ok().map(|meta| id_of(&meta))
}

fn all_pids() -> Vec<Pid> {
    let entries = fs::read_dir("/proc").expect("/proc");
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names
        .filter_map(|name| Pid::from_raw(name.parse().ok()?))
        .collect()
}

fn pid_space() -> String {
    let link = fs::read_link("/proc/self/ns/pid").expect("namespace of processes");
    link.to_string_lossy().into_owned()
}

/// When a process has started, in ticks since the boot: number and start are one process's only.
fn started(pid: Pid) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name, in brackets, may contain anything; the start is field 22, the state field 3.
    let (_, fields) = stat.rsplit_once(')')?;
    let start = fields.split_whitespace().nth(22 - 3)?;
    Some(start.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_dead_test_has_left_is_an_orphan() {
        let this = rustix::process::getpid();
        let start = started(this).expect("this process runs");
        let (space, pid) = (pid_space(), this.as_raw_nonzero());
        let orphan = |text: &str| is_orphan(format!("A=1\0{text}\0B=2\0").as_bytes());
        assert!(!orphan("C=3"));
        assert!(!orphan(&format!("{OWNER}={space} {pid} {start}")));
        assert!(orphan(&format!("{OWNER}={space} {pid} {start}0")));
        // The greatest number of a process is far below.
        assert!(orphan(&format!("{OWNER}={space} {} 1", i32::MAX)));
        assert!(!orphan(&format!("{OWNER}=pid:[1] {pid} 1")));
        assert!(!orphan(&format!("{OWNER}={space} {pid}")));
        assert!(!orphan(&format!("{OWNER}={space} all 1")));
        assert!(!orphan(&format!("NOT_{OWNER}={space} {pid} 1")));
    }
}
