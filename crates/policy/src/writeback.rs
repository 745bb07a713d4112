//! When what was changed in place on the PFS is put on stable storage there, if nobody asks for it.

/// A file that was not changed for so long is flushed, seconds: most often it has been closed.
pub const QUIET_S: f64 = 3.0;
/// One that is changed all the time is flushed so long after the first change, seconds.
pub const LONGEST_S: f64 = 30.0;

/// Whether a file is flushed now that was changed so long ago for the last and for the first time,
/// seconds, since its last flush. Both are at least 0, and `last_s_ago` is the smaller.
pub fn is_due(last_s_ago: f64, first_s_ago: f64) -> bool {
    last_s_ago >= QUIET_S || first_s_ago >= LONGEST_S
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rests_is_flushed_and_what_does_not_is_flushed_in_the_end() {
        assert!(!is_due(0.0, 0.0));
        assert!(!is_due(QUIET_S - 0.1, LONGEST_S - 0.1));
        assert!(is_due(QUIET_S, QUIET_S));
        assert!(is_due(0.0, LONGEST_S));
    }
}
