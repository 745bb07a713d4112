//! Ticks of the PFS's clock. Two changes in the same one leave the same time behind: a look in
//! between does not show that there was a second. A look after the tick does.

use std::time::Duration;

use forebay_tiers::PfsStat;
use forebay_types::TimeSpec;

use crate::record::Published;

/// A file of the PFS that has not been changed for so long is not being changed without a trace.
/// Clocks of nodes are not that far apart, and one call to write, which leaves the time of its
/// begin, does not take that long. A page that somebody stores into through a mapping leaves the
/// time of the first store only until the kernel there writes it back, some 35 s later.
const QUIET: Duration = Duration::from_secs(60);

/// So long after a change its tick is over. Linux ticks at least 100 times a second.
pub(crate) const FINE: Duration = Duration::from_millis(20);
/// The same for file systems that count whole seconds, or two.
pub(crate) const COARSE: Duration = Duration::from_secs(3);

/// How long it takes until a further change shows: `None` where it does now. Nobody can set the
/// time of change, so one without nanoseconds tells of a file system that has none.
pub(crate) fn left(stat: &PfsStat, now: TimeSpec) -> Option<Duration> {
    let tick = tick_of(stat.ctime);
    let left = nanoseconds(stat.ctime) + tick.as_nanos() as i128 - nanoseconds(now);
    match u64::try_from(left) {
        // A clock that is ahead of ours is not waited for.
        Ok(nanoseconds) => Some(Duration::from_nanos(nanoseconds).min(tick)),
        Err(_) if left > 0 => Some(tick),
        Err(_) => None,
    }
}

fn tick_of(ctime: TimeSpec) -> Duration {
    match ctime.nsec {
        0 => COARSE,
        _ => FINE,
    }
}

fn nanoseconds(t: TimeSpec) -> i128 {
    i128::from(t.sec) * 1_000_000_000 + i128::from(t.nsec)
}

impl Published {
    /// Whether a change of the content that has come since would show: it leaves the time at which
    /// it was made as the time of modification. A copy that was written in the tick in which it
    /// got its name has that time already.
    pub fn shows_changes(&self) -> bool {
        let apart = nanoseconds(self.ctime).abs_diff(nanoseconds(self.mtime));
        apart > tick_of(self.ctime).as_nanos()
    }

    /// Whether every change of a file of the PFS that is made from `now` on leaves another `stat`,
    /// and none is under way.
    pub fn is_quiet(stat: &PfsStat, now: TimeSpec) -> bool {
        let since = nanoseconds(now) - nanoseconds(stat.ctime);
        stat.has_steady_ctime && since > QUIET.as_nanos() as i128
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

    #[test]
    fn what_is_written_in_the_tick_of_its_name_hides_a_change() {
        let top = tempfile::tempdir().unwrap();
        let tree = PfsTree::open(top.path()).unwrap();
        let mut stat = tree.stat_dir(tree.root()).unwrap();
        let at = |sec, nsec| TimeSpec { sec, nsec };
        let shows = |mtime, ctime| {
            let stat = PfsStat {
                mtime,
                ctime,
                ..stat
            };
            Published::from(&stat).shows_changes()
        };
        assert!(!shows(at(100, 5), at(100, 5)));
        assert!(!shows(at(100, 5), at(100, 20_000_005)));
        assert!(shows(at(100, 5), at(100, 20_000_006)));
        assert!(shows(at(101, 5), at(100, 5)), "clocks that differ");
        assert!(!shows(at(98, 0), at(100, 0)), "whole seconds");
        assert!(shows(at(96, 0), at(100, 0)));
        stat.ctime = at(100, 5);
        stat.has_steady_ctime = true;
        assert!(!Published::is_quiet(&stat, at(100, 5)));
        assert!(
            !Published::is_quiet(&stat, at(90, 5)),
            "a clock ahead of ours"
        );
        assert!(!Published::is_quiet(&stat, at(160, 5)));
        assert!(Published::is_quiet(&stat, at(160, 6)));
        stat.has_steady_ctime = false;
        assert!(!Published::is_quiet(&stat, at(1000, 0)));
    }
}
