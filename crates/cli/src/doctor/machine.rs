//! The kernel, rights and limits of this process, and the clock.

use std::io;

use forebay_tiers::WriteBlocker;
use rustix::fs::MemfdFlags;

use super::finding::{Finding, Grade};
use crate::exit::reason;
use crate::show::text::show_path;
use crate::up::resources::{has_capability, may_mount};

/// Bits of capabilities.
const CAP_SYS_RESOURCE: u64 = 1 << 24;
/// Descriptors that a burst buffer wants, and more for each flash directory (operations.md).
const DESCRIPTORS_MIN: u64 = 1024;
const DESCRIPTORS_PER_SSD: u64 = 256;
/// Tasks that should be left: a burst buffer with a flash directory has some 90 threads at rest on
/// two cores, and more while files move.
const TASKS_MIN: u64 = 256;
/// How often the clock is read to see it go backwards.
const READINGS: usize = 200_000;
/// Clock sources that a program reads without a system call.
const FAST_CLOCKS: [&str; 5] = [
    "tsc",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "arch_sys_counter",
    "timebase",
];

/// Everything about this process and its kernel, with so many flash directories.
pub fn findings(ssds: usize) -> Vec<Finding> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut findings = vec![kernel(), judge_rights(may_mount())];
    findings.push(judge_descriptors(&Descriptors::now(&status), ssds as u64));
    findings.push(judge_tasks(super::groups::tasks()));
    findings.push(judge_write_blocker(try_write_blocker(), may_mount()));
    findings.push(judge_monotone(goes_back()));
    findings.push(synchronised());
    findings.extend(clock_source());
    findings
}

fn kernel() -> Finding {
    let name = rustix::system::uname();
    let text = |part: &std::ffi::CStr| show_path(part.to_bytes());
    let found = format!(
        "{} {} {}",
        text(name.sysname()),
        text(name.release()),
        text(name.machine())
    );
    Finding::ok("kernel", found)
}

fn judge_rights(mounts: bool) -> Finding {
    let uid = rustix::process::geteuid().as_raw();
    match mounts {
        true => Finding::ok(
            "rights",
            format!("user {uid}, who may mount (CAP_SYS_ADMIN)"),
        ),
        false => Finding::new(
            "rights",
            Grade::Note,
            format!("user {uid}, who may not mount by itself"),
            "the mount is for this user alone, and memory is borrowed in /dev/shm; as root others may use the mount, too",
        ),
    }
}

/// Limits of descriptors.
struct Descriptors {
    /// `ulimit -Hn`; `None`: none.
    hard: Option<u64>,
    /// `fs.nr_open`, where this process may go so far.
    kernel: Option<u64>,
}

impl Descriptors {
    fn now(status: &str) -> Descriptors {
        use rustix::process::{Resource, getrlimit};
        let most = std::fs::read_to_string("/proc/sys/fs/nr_open");
        let most = most.ok().and_then(|text| text.trim().parse().ok());
        Descriptors {
            hard: getrlimit(Resource::Nofile).maximum,
            kernel: most.filter(|_| has_capability(status, "CapEff:", CAP_SYS_RESOURCE)),
        }
    }
}

fn judge_descriptors(limits: &Descriptors, ssds: u64) -> Finding {
    let wanted = DESCRIPTORS_MIN + DESCRIPTORS_PER_SSD * ssds;
    let (found, most) = match (limits.kernel, limits.hard) {
        (Some(kernel), _) => (
            format!("{kernel} (fs.nr_open, which this process may use)"),
            kernel,
        ),
        (None, Some(hard)) => (format!("{hard} (the hard limit)"), hard),
        (None, None) => ("without limit".into(), u64::MAX),
    };
    match most >= wanted {
        true => Finding::ok("open files", found),
        false => Finding::new(
            "open files",
            Grade::Slow,
            format!("{found}, and {wanted} are wanted: descriptors are closed and opened again"),
            format!(
                "raise the hard limit (`ulimit -Hn`, LimitNOFILE= of systemd) to {wanted} or more"
            ),
        ),
    }
}

fn judge_tasks(left: Option<(u64, String)>) -> Finding {
    match left {
        None => Finding::ok("tasks", "no limit was found"),
        Some((left, whose)) if left >= TASKS_MIN => {
            Finding::ok("tasks", format!("{left} more may be started ({whose})"))
        }
        Some((left, whose)) => Finding::new(
            "tasks",
            Grade::Bad,
            format!("{left} more may be started ({whose}), and {TASKS_MIN} should be left"),
            "raise that limit: a thread that cannot be started ends the burst buffer, or its start",
        ),
    }
}

/// The very thing that holds writers back, on a file in memory that has no name.
fn try_write_blocker() -> io::Result<bool> {
    use std::os::fd::AsFd;
    let file = rustix::fs::memfd_create("forebay-doctor", MemfdFlags::CLOEXEC)?;
    rustix::io::write(&file, b"x")?;
    let blocker = WriteBlocker::on(Some(file.as_fd()), 1)?;
    for _ in 0..100 {
        if blocker.is_held() {
            return Ok(true);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    Ok(false)
}

fn judge_write_blocker(held: io::Result<bool>, passthrough: bool) -> Finding {
    let check = "userfaultfd";
    let why = match held {
        Ok(true) => return Finding::ok(check, "a writer can be made to wait"),
        Ok(false) => "the kernel did not wait for the page".to_string(),
        Err(error) => reason(&error),
    };
    let found = format!("a writer cannot be made to wait: {why}");
    match passthrough {
        true => Finding::new(
            check,
            Grade::Bad,
            found,
            "allow userfaultfd(2) (CONFIG_USERFAULTFD=y, the seccomp profile of the container), or start with \
             --no-passthrough: else a file that outgrows its tier may fail with ENOSPC",
        ),
        false => Finding::ok(
            check,
            format!("{found}; only passthrough needs it, and that needs root"),
        ),
    }
}

/// How often the monotone clock went back, over many readings.
fn goes_back() -> usize {
    use rustix::time::{ClockId, clock_gettime};
    // Not `std::time::Instant`, which hides steps back.
    let read = || {
        let now = clock_gettime(ClockId::Monotonic);
        (now.tv_sec, now.tv_nsec)
    };
    steps_back((0..READINGS).map(|_| read()))
}

fn steps_back(readings: impl Iterator<Item = (i64, i64)>) -> usize {
    let (mut last, mut back) = ((0, 0), 0);
    for now in readings {
        back += usize::from(now < last);
        last = now;
    }
    back
}

fn judge_monotone(back: usize) -> Finding {
    match back {
        0 => Finding::ok(
            "monotone clock",
            format!("did not go back in {READINGS} readings on one thread"),
        ),
        _ => Finding::new(
            "monotone clock",
            Grade::Bad,
            format!("went back {back} times in {READINGS} readings"),
            "choose another clock source (clocksource= of the kernel): leases and deadlines are wrong with this one",
        ),
    }
}

/// What the kernel believes of its own clock.
fn synchronised() -> Finding {
    // SAFETY: a timex is plain data for which zeros are valid; `modes` 0 only reads.
    let (state, timex) = unsafe {
        let mut timex = std::mem::zeroed::<libc::timex>();
        (libc::adjtimex(&mut timex), timex)
    };
    if state < 0 {
        let why = reason(&io::Error::last_os_error());
        return Finding::new(
            "clock",
            Grade::Note,
            format!("not known whether it is synchronised: {why}"),
            "",
        );
    }
    judge_synchronised(state == libc::TIME_ERROR || timex.status & libc::STA_UNSYNC != 0)
}

fn judge_synchronised(unsynchronised: bool) -> Finding {
    match unsynchronised {
        false => Finding::ok("clock", "synchronised, as the kernel says (adjtimex)"),
        true => Finding::new(
            "clock",
            Grade::Note,
            "not synchronised, as the kernel says (adjtimex); what sets a clock without telling the kernel is not seen",
            "run chrony or ntpd: files get the times of this clock. Leases and deadlines do not depend on it",
        ),
    }
}

fn clock_source() -> Option<Finding> {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = std::fs::read_to_string(path).ok()?;
    Some(judge_clock_source(source.trim()))
}

fn judge_clock_source(source: &str) -> Finding {
    match FAST_CLOCKS.contains(&source) {
        true => Finding::ok("clock source", source),
        false => Finding::new(
            "clock source",
            Grade::Slow,
            format!("{source}: each reading of the clock is a system call"),
            "see whether /sys/devices/system/clocksource/clocksource0/available_clocksource has tsc, and why it is not in use",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_for_each_flash_directory() {
        let judge =
            |hard, kernel, ssds| judge_descriptors(&Descriptors { hard, kernel }, ssds).grade;
        assert_eq!(judge(Some(1024), None, 0), Grade::Ok);
        assert_eq!(judge(Some(1024), None, 1), Grade::Slow);
        assert_eq!(judge(Some(1024), Some(1 << 20), 1), Grade::Ok);
        assert_eq!(judge(None, None, 9), Grade::Ok);
    }

    #[test]
    fn tasks() {
        assert_eq!(judge_tasks(Some((10, "pids.max".into()))).grade, Grade::Bad);
        assert_eq!(
            judge_tasks(Some((10_000, "pids.max".into()))).grade,
            Grade::Ok
        );
        assert_eq!(judge_tasks(None).grade, Grade::Ok);
    }

    #[test]
    fn only_passthrough_needs_the_write_blocker() {
        let no = || Err(io::Error::from_raw_os_error(libc::EPERM));
        assert_eq!(judge_write_blocker(no(), true).grade, Grade::Bad);
        assert_eq!(judge_write_blocker(no(), false).grade, Grade::Ok);
        assert_eq!(judge_write_blocker(Ok(false), true).grade, Grade::Bad);
        assert_eq!(judge_write_blocker(Ok(true), true).grade, Grade::Ok);
    }

    #[test]
    fn a_clock_that_goes_back_is_seen() {
        assert_eq!(steps_back([(1, 5), (1, 5), (1, 6), (2, 0)].into_iter()), 0);
        assert_eq!(steps_back([(1, 5), (1, 4), (2, 0), (1, 9)].into_iter()), 2);
        assert_eq!(judge_monotone(0).grade, Grade::Ok);
        assert_eq!(judge_monotone(1).grade, Grade::Bad);
        assert_eq!(goes_back(), 0);
    }

    #[test]
    fn clocks() {
        assert_eq!(judge_synchronised(true).grade, Grade::Note);
        assert_eq!(judge_clock_source("tsc").grade, Grade::Ok);
        assert_eq!(judge_clock_source("acpi_pm").grade, Grade::Slow);
    }
}
