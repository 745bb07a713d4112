//! Locks of files between nodes, taken by real processes.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use forebay_testkit::{Fleet, needs_nodes, wait_until};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::Obedient;

/// A process that obeys `programs/locker.py`'s orders.
struct Locker(Obedient);

impl Locker {
    fn new(path: &Path) -> Locker {
        let mut locker = Locker(Obedient::new("locker.py"));
        let opened = locker.ask(&format!("open f {}", path.display()));
        assert_eq!(opened, "done");
        locker
    }

    fn order(&mut self, order: &str) {
        self.0.order(order);
    }

    fn answer(&mut self) -> String {
        self.0.answer()
    }

    fn ask(&mut self, order: &str) -> String {
        self.0.ask(order)
    }

    fn pid(&self) -> Pid {
        self.0.pid()
    }

    /// Whether it stands in a call that waits.
    fn waits(&self) -> bool {
        let pid = self.pid().as_raw_nonzero();
        let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
        let number = call.split(' ').next().and_then(|n| n.parse::<i64>().ok());
        number.is_some_and(|n| [libc::SYS_fcntl, libc::SYS_flock].contains(&n))
    }
}

fn refused() -> String {
    format!("errno {}", libc::EAGAIN)
}

#[test]
fn promise_2_a_lock_is_free_once_the_file_is_closed() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(2, "");
    let open = |node| {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        options.open(fleet.mnt(node, "f")).expect("open")
    };
    for round in 0..150 {
        // On another node, and on the same one.
        let (held, next) = (open(1), open(1 + round % 2));
        flock(&held, FlockOperation::NonBlockingLockExclusive).expect("free");
        drop(held);
        let taken = flock(&next, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(taken, Ok(()), "round {round}");
    }
}

#[test]
fn promise_2_locks_hold_between_nodes() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(2, "");
    let mut one = Locker::new(&fleet.mnt(1, "f"));
    let mut two = Locker::new(&fleet.mnt(2, "f"));
    assert_eq!(one.ask("try f ex 10 19"), "done");
    assert_eq!(one.ask("try f sh 20 29"), "done");
    assert_eq!(two.ask("try f sh 15 15"), refused());
    assert_eq!(two.ask("try f sh 25 40"), "done");
    assert_eq!(two.ask("holder f 0 12"), "ex 10 19 0");
    let mut neighbour = Locker::new(&fleet.mnt(1, "f"));
    let pid = one.pid().as_raw_nonzero();
    assert_eq!(neighbour.ask("holder f 0 12"), format!("ex 10 19 {pid}"));
    // The two kinds do not see each other.
    assert_eq!(two.ask("tryflock f ex"), "done");
    assert_eq!(one.ask("tryflock f sh"), refused());
    // Who waits gets it when it is given back.
    two.order("lock f ex 12 15");
    wait_until("it waits", || two.waits());
    assert_eq!(one.ask("unlock f 0 13"), "done");
    assert!(two.waits());
    assert_eq!(one.ask("unlock f 14 19"), "done");
    assert_eq!(two.answer(), "done");
    // Any close of the file by the process gives all its locks of bytes back, as fcntl(2) says.
    let path = fleet.mnt(2, "f");
    assert_eq!(two.ask(&format!("open again {}", path.display())), "done");
    assert_eq!(two.ask("close again"), "done");
    assert_eq!(one.ask("holder f 0 100"), "nobody");
    // That of flock(2) stays until its own file is closed.
    assert_eq!(one.ask("tryflock f sh"), refused());
    one.order("flock f sh");
    wait_until("it waits", || one.waits());
    assert_eq!(two.ask("close f"), "done");
    assert_eq!(one.answer(), "done");
}

#[test]
fn promise_2_who_counts_under_a_lock_counts_right_on_several_nodes() {
    if needs_nodes() {
        return;
    }
    const TIMES: usize = 60;
    let fleet = Fleet::new(3, "");
    for order in ["count", "fcount"] {
        let name = format!("number-of-{order}");
        let mut lockers: Vec<Locker> = (0..6)
            .map(|n| Locker::new(&fleet.mnt(n % 3 + 1, &name)))
            .collect();
        for locker in &mut lockers {
            locker.order(&format!("{order} f {TIMES}"));
        }
        for locker in &mut lockers {
            assert_eq!(locker.answer(), "done");
        }
        let number = std::fs::read_to_string(fleet.mnt(1, &name)).expect("read");
        assert_eq!(number, (6 * TIMES).to_string());
    }
}

#[test]
fn promise_2_a_wait_for_a_lock_ends_with_a_signal_and_two_do_not_wait_for_each_other() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(2, "");
    let mut one = Locker::new(&fleet.mnt(1, "f"));
    let mut two = Locker::new(&fleet.mnt(2, "f"));
    let mut third = Locker::new(&fleet.mnt(2, "f"));
    assert_eq!(one.ask("try f ex 0 0"), "done");
    for order in ["lock f ex 0 0", "lock f sh 0 0"] {
        two.order(order);
        wait_until("it waits", || two.waits());
        kill_process(two.pid(), Signal::USR1).expect("kill");
        assert_eq!(two.answer(), "interrupted");
    }
    third.order("lock f ex 0 0");
    wait_until("it waits", || third.waits());
    kill_process(third.pid(), Signal::KILL).expect("kill");
    third.0.wait().expect("it ends although it waits");
    assert_eq!(two.ask("try f ex 1 1"), "done");
    two.order("lock f ex 0 0");
    wait_until("it waits", || two.waits());
    let deadlock = format!("errno {}", libc::EDEADLK);
    assert_eq!(one.ask("lock f sh 1 1"), deadlock);
    // The ends of those who had it, and of who has waited, leave it to the next.
    kill_process(one.pid(), Signal::KILL).expect("kill");
    assert_eq!(two.answer(), "done");
}

#[test]
fn promise_8_the_locks_of_a_mount_that_dies_go_to_who_waits() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::new(2, "");
    let mut one = Locker::new(&fleet.mnt(1, "f"));
    let mut two = Locker::new(&fleet.mnt(2, "f"));
    let mut other = Locker::new(&fleet.mnt(2, "f"));
    assert_eq!(one.ask("try f ex 0 9"), "done");
    assert_eq!(one.ask("tryflock f ex"), "done");
    two.order("lock f ex 0 9");
    other.order("flock f ex");
    wait_until("they wait", || two.waits() && other.waits());
    fleet.kill_mount(1);
    assert_eq!(two.answer(), "done");
    assert_eq!(other.answer(), "done");
}

#[test]
fn promise_8_locks_are_held_over_a_restart_of_the_server() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::new(2, "");
    let mut one = Locker::new(&fleet.mnt(1, "f"));
    let mut two = Locker::new(&fleet.mnt(2, "f"));
    assert_eq!(one.ask("try f ex 0 9"), "done");
    assert_eq!(one.ask("tryflock f sh"), "done");
    two.order("lock f ex 5 9");
    wait_until("it waits", || two.waits());
    fleet.kill_server();
    fleet.start_server();
    // What the first one had, it has, and who waits goes on waiting.
    let mut third = Locker::new(&fleet.mnt(2, "f"));
    for (order, wanted) in [
        ("try f ex 5 5", refused()),
        ("try f ex 10 10", "done".to_string()),
        ("tryflock f ex", refused()),
        ("tryflock f sh", "done".to_string()),
    ] {
        assert_eq!(third.ask(order), wanted, "{order}");
    }
    assert!(two.waits());
    assert_eq!(one.ask("unlock f 0 9"), "done");
    assert_eq!(two.answer(), "done");
}

#[test]
fn promise_8_nobody_gets_a_lock_before_who_had_it_has_come_back() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::new(2, "");
    let mut one = Locker::new(&fleet.mnt(1, "f"));
    assert_eq!(one.ask("try f ex 0 9"), "done");
    fleet.kill_server();
    fleet.node(1).cut();
    fleet.start_server();
    let mut two = Locker::new(&fleet.mnt(2, "f"));
    two.order("try f ex 5 9");
    let mut other = Locker::new(&fleet.mnt(2, "g"));
    other.order("flock f ex");
    std::thread::sleep(Duration::from_secs(1));
    fleet.node(1).heal();
    assert_eq!(two.answer(), refused());
    assert_eq!(other.answer(), "done");
    assert_eq!(one.ask("unlock f 0 9"), "done");
    assert_eq!(two.ask("try f ex 5 9"), "done");
}

#[test]
fn promise_8_a_server_that_is_stopped_in_order_keeps_open_files_and_locks() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::new(2, "");
    let mut one = Locker::new(&fleet.mnt(1, "f"));
    let mut two = Locker::new(&fleet.mnt(2, "f"));
    assert_eq!(one.ask("lock f ex 0 0"), "done");
    two.order("lock f ex 0 0");
    wait_until("it waits", || two.waits());
    // As flock(1) does: of a file that is only read, and that was drained meanwhile.
    std::fs::write(fleet.mnt(1, "l"), b"").expect("write");
    let held = std::fs::File::open(fleet.mnt(1, "l")).expect("open");
    rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive).expect("lock");
    wait_until("it is drained", || fleet.pfs("l").exists());
    fleet.stop_server();
    fleet.start_server();
    let other = std::fs::File::open(fleet.mnt(2, "l")).expect("open");
    let refused_there = rustix::fs::flock(&other, FlockOperation::NonBlockingLockShared);
    assert_eq!(refused_there, Err(rustix::io::Errno::AGAIN));
    held.metadata().expect("it is open");
    let mut third = Locker::new(&fleet.mnt(2, "f"));
    assert_eq!(third.ask("try f ex 0 0"), refused());
    assert!(two.waits());
    assert_eq!(one.ask("unlock f 0 0"), "done");
    assert_eq!(two.answer(), "done");
    assert_eq!(two.ask("count f 3"), "done");
}
