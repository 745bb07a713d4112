//! Ticks of the PFS's clock. Two changes in the same one leave the same time behind: a look in
//! between does not show that there was a second. A look after the tick does.

use std::time::Duration;

use forebay_tiers::PfsStat;
use forebay_types::TimeSpec;

/// So long after a change its tick is over. Linux ticks at least 100 times a second.
pub(crate) const FINE: Duration = Duration::from_millis(20);
/// The same for file systems that count whole seconds, or two.
pub(crate) const COARSE: Duration = Duration::from_secs(3);

/// How long it takes until a further change shows: `None` where it does now. Nobody can set the
/// time of change, so one without nanoseconds tells of a file system that has none.
pub(crate) fn left(stat: &PfsStat, now: TimeSpec) -> Option<Duration> {
    let tick = match stat.ctime.nsec {
        0 => COARSE,
        _ => FINE,
    };
    let nanoseconds = |t: TimeSpec| i128::from(t.sec) * 1_000_000_000 + i128::from(t.nsec);
    let left = nanoseconds(stat.ctime) + tick.as_nanos() as i128 - nanoseconds(now);
    match u64::try_from(left) {
        // A clock that is ahead of ours is not waited for.
        Ok(nanoseconds) => Some(Duration::from_nanos(nanoseconds).min(tick)),
        Err(_) if left > 0 => Some(tick),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use forebay_tiers::PfsTree;

    use super::*;

    #[test]
    fn a_change_shows_when_the_tick_of_the_last_one_is_over() {
        let top = tempfile::tempdir().unwrap();
        let tree = PfsTree::open(top.path()).unwrap();
        let mut stat = tree.stat_dir(tree.root()).unwrap();
        let at = |sec, nsec| TimeSpec { sec, nsec };
        stat.ctime = at(100, 500);
        let ten_ms = Duration::from_millis(10);
        assert_eq!(left(&stat, at(100, 10_000_500)), Some(ten_ms));
        assert_eq!(left(&stat, at(100, 30_000_000)), None);
        assert_eq!(left(&stat, at(90, 0)), Some(FINE), "a clock ahead of ours");
        stat.ctime = at(100, 0);
        assert_eq!(left(&stat, at(102, 0)), Some(Duration::from_secs(1)));
        assert_eq!(left(&stat, at(104, 0)), None);
        assert_eq!(left(&stat, at(-1 << 60, 0)), Some(COARSE));
    }
}
