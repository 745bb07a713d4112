//! A clock that goes on while the machine sleeps, and that nobody sets.

use std::time::Duration;

/// Time since the machine was started.
pub(crate) fn now() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: it writes a struct that lives across the call.
    let read = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    // It fails for a clock that the kernel does not have, and this one is older than this program.
    assert_eq!(read, 0, "CLOCK_BOOTTIME");
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(time.tv_sec.try_into().unwrap_or_default(), nanoseconds)
}
