//! The clock of leases: it counts while a machine is suspended, and nobody can set it.

use std::time::Duration;

/// Milliseconds since the machine was booted, time in suspension included.
pub(crate) fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    // Neither is negative, and in 2^64 ms nobody reads this.
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// How long ago a moment of this clock was.
pub(crate) fn since(moment_ms: u64) -> Duration {
    Duration::from_millis(now_ms().saturating_sub(moment_ms))
}
