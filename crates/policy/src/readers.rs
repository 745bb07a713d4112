//! How many threads of a mount wait for requests of the kernel.
//!
//! The kernel gives a request to the thread that has waited longest. Where more wait than are busy
//! at once, each request wakes one that has been asleep for as many requests: its stack is cold,
//! and so may be its processor. So one waits beyond those that are busy, and the others are parked.

/// So many may always wait: the kernel tells of a close while the program goes on.
pub const READERS_MIN: usize = 2;

/// Whether one more has to wait, now that `busy` of the `allowed` serve requests. At most `most`
/// serve as a rule; more are allowed only in the place of those that block.
pub fn is_one_more_needed(busy: usize, allowed: usize, most: usize) -> bool {
    busy >= allowed && allowed < most
}

/// How many may wait or serve until the next look: `blocked` have served one request for long and
/// are replaced by as many of the `spares`. `busy_most` served at once since the last look.
///
/// Fewer are wanted by one at each look only: bursts come again.
pub fn allowed(
    before: usize,
    busy_most: usize,
    blocked: usize,
    (most, spares): (usize, usize),
) -> usize {
    let usual = match blocked {
        0 => (busy_most + 1).clamp(READERS_MIN.min(most), most),
        // Many others may come to block the same way.
        _ => most,
    };
    // Of those that blocked and do so no more none is needed: they come back.
    let slowly = before.saturating_sub(1).min(most + blocked);
    (usual + blocked).max(slowly).min(most + spares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whoever_blocks_is_replaced_and_one_waits(
            before in 1usize..130,
            busy in 0usize..130,
            blocked in 0usize..130,
            most in 1usize..65,
            spares in 0usize..65,
        ) {
            let busy = busy.min(most + spares);
            let blocked = blocked.min(busy);
            let found = allowed(before, busy, blocked, (most, spares));
            prop_assert!(found <= most + spares, "there are no more");
            prop_assert!(found <= most + blocked, "as a rule {most} serve");
            let wanted = match blocked {
                0 => (busy + 1).min(most),
                _ => most + blocked,
            };
            prop_assert!(found >= wanted.min(most + spares), "{found} of {wanted}");
        }

        #[test]
        fn after_a_burst_they_go_one_by_one(most in 1usize..65, spares in 0usize..65) {
            let mut before = most;
            for _ in 0..most {
                let now = allowed(before, 1, 0, (most, spares));
                prop_assert!(now + 1 >= before, "{before}, then {now}");
                before = now;
            }
            prop_assert_eq!(before, READERS_MIN.min(most));
        }

        #[test]
        fn a_burst_gets_all(most in 1usize..65) {
            let mut allowed = READERS_MIN.min(most);
            for busy in 1..=most {
                if is_one_more_needed(busy, allowed, most) {
                    allowed += 1;
                }
                prop_assert!(allowed > busy || allowed == most);
            }
            prop_assert!(!is_one_more_needed(most, allowed, most));
        }
    }
}
