//! Waiting, always with an end and a reason.

use std::time::{Duration, Instant};

/// How long a condition may take before the test has failed. Far more than any of them needs: a
/// machine under load must not fail a test.
pub const LONG: Duration = Duration::from_secs(60);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);
/// Promised time within which changes made on the PFS are seen, with a little for the clock's
/// grain.
const REVALIDATION: Duration = Duration::from_millis(1050);

/// Waits until `condition` holds; panics with `what` if it does not within [`LONG`].
#[track_caller]
pub fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    wait_until_for(LONG, what, condition);
}

/// The same with a limit of its own.
#[track_caller]
pub fn wait_until_for(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < limit, "waited {limit:?} in vain: {what}");
        std::thread::sleep(PAUSE);
    }
}

/// Sleeps for the time after which a change on the PFS must be seen through the mount.
pub fn settle_for_revalidation() {
    std::thread::sleep(REVALIDATION);
}
