//! Who waits for the answer to a request, and whether it is about to end.
//!
//! A program that waits for the answer of a mount acts on no signal. Not even SIGKILL ends it
//! before the answer: only the mount can let it go.

use std::cell::Cell;

thread_local! {
    static ASKER: Cell<u32> = const { Cell::new(0) };
}

/// Bit of SIGKILL in the sets that the kernel shows.
const SIGKILL: u64 = 1 << (libc::SIGKILL - 1);
/// `PF_EXITING`, in the flags that the kernel shows.
const EXITING: u64 = 4;

/// This thread works for that thread of a program from here on; 0: for nobody.
pub(crate) fn set(pid: u32) {
    ASKER.set(pid);
}

/// For whom this thread works.
pub(crate) fn get() -> u32 {
    ASKER.get()
}

/// Whether it has been killed, or is at its end. Any signal that ends a program kills its threads.
pub(crate) fn is_dying(pid: u32) -> bool {
    if pid == 0 {
        return false;
    }
    let read = |file| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    is_killed(&read("status")) || is_exiting(&read("stat"))
}

fn is_killed(status: &str) -> bool {
    let sets = status.lines().filter_map(|line| {
        let set = line
            .strip_prefix("SigPnd:")
            .or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(set.trim(), 16).ok()
    });
    sets.fold(0, |all, set| all | set) & SIGKILL != 0
}

fn is_exiting(stat: &str) -> bool {
    // The name of a program may have blanks and brackets; the flags are the seventh field after it.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let flags = fields.split_ascii_whitespace().nth(6);
    flags
        .and_then(|flags| flags.parse::<u64>().ok())
        .is_some_and(|flags| flags & EXITING != 0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_killed_program_is_told_from_one_that_lives() {
        assert!(!is_dying(0) && !is_dying(std::process::id()));
        assert!(!is_dying(u32::MAX), "there is no such program");
        let of_thread = "SigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n";
        let of_all = "SigPnd:\t0000000000000000\nShdPnd:\t0000000000000102\n";
        let other = "SigPnd:\t0000000000000002\nSigBlk:\t0000000000000100\n";
        assert!(is_killed(of_thread) && is_killed(of_all) && !is_killed(other));
        // One that has ended, and whose end nobody has taken note of, is at its end.
        let mut child = Command::new("true").spawn().expect("it runs");
        let begun = std::time::Instant::now();
        while !is_dying(child.id()) {
            assert!(begun.elapsed().as_secs() < 60, "it has ended");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.wait().expect("it has ended");
    }

    #[test]
    fn the_flags_are_found_whatever_the_program_is_called() {
        let stat = "42 (a ) b) R 1 2 3 4 5 4194308 0 0";
        assert!(is_exiting(stat));
        assert!(!is_exiting(&stat.replace("4194308", "4194304")));
        assert!(!is_exiting(""));
    }
}
