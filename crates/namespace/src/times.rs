//! Times of a directory, as programs see them.
//!
//! A name that is in the burst buffer only changes the times of its directory, and the PFS does not
//! know of it. A drain changes them on the PFS, and nothing has changed for programs. So the times
//! of the PFS are shown, but for changes that are the drain's own:
//!
//! 1. Such a change is known by the times that it left on the PFS.
//! 2. As long as the PFS has exactly these, the times from before the drain are shown.
//! 3. When the drain is done, it puts the time of modification back on the PFS.
//! 4. Whatever else moves the times, through the mount or by an outsider, counts.
//!
//! Where a name came and went before any drain, or was changed on the PFS a moment before it was
//! noted here, the PFS gets the time that is shown a little later
//! ([`crate::Namespace::put_owed_times`]).
//!
//! Where a file that loses a name lives on under a hidden one until it is closed (NFS, FUSE by
//! libfuse), the end of that name moves the times once more, after the drain.

use std::time::{Duration, Instant};

use forebay_tiers::{PfsStat, PfsTree};
use forebay_types::{SetAttr, TimeSpec};
use parking_lot::{Mutex, MutexGuard};

/// Times of modification and of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    mtime: TimeSpec,
    ctime: TimeSpec,
}

impl Stamp {
    fn of(stat: &PfsStat) -> Stamp {
        Stamp {
            mtime: stat.mtime,
            ctime: stat.ctime,
        }
    }
}

/// A change of the PFS that programs do not see.
#[derive(Clone, Copy, Debug)]
struct Unseen {
    /// What it left on the PFS.
    left: Stamp,
    /// What is shown instead.
    shown: Stamp,
    /// Until then the end of a hidden name may move the times: that is not an outsider's doing.
    may_move_until: Option<Instant>,
}

/// A hidden name ends within this time after its file is closed.
const HIDDEN_NAME_ENDS_WITHIN: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
struct State {
    /// When a name was last added or removed that the PFS has not seen.
    touched: Option<TimeSpec>,
    unseen: Option<Unseen>,
    /// The PFS is to hear of that without a drain: it stands in [`crate::owed::OwedTimes`].
    owed: bool,
}

impl State {
    /// Without names that the PFS has not seen.
    fn base(&mut self, stat: &PfsStat) -> Stamp {
        let now = Stamp::of(stat);
        let Some(unseen) = &mut self.unseen else {
            return now;
        };
        let may_move = unseen
            .may_move_until
            .is_some_and(|until| Instant::now() < until);
        if may_move {
            unseen.left = now;
        }
        match unseen.left == now {
            true => unseen.shown,
            false => now,
        }
    }

    fn shown(&mut self, stat: &PfsStat) -> Stamp {
        let base = self.base(stat);
        match self.touched {
            Some(at) => Stamp {
                mtime: base.mtime.max(at),
                ctime: base.ctime.max(at),
            },
            None => base,
        }
    }
}

/// What is known of one directory's times beyond what the PFS says.
#[derive(Debug, Default)]
pub(crate) struct DirTimes {
    state: Mutex<State>,
    /// Held while the PFS is asked, changed, and asked again: what a program sets must not come in
    /// between.
    changing: Mutex<()>,
}

impl DirTimes {
    /// A name has come or gone for programs.
    pub(crate) fn touch(&self) {
        self.state.lock().touched = Some(TimeSpec::now());
    }

    /// The same of a name that no drain follows; whether that is news.
    pub(crate) fn owe(&self) -> bool {
        self.touch();
        self.owe_again()
    }

    /// The PFS is to be told once more; whether that is news.
    pub(crate) fn owe_again(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().owed, true)
    }

    /// The PFS is being told of it.
    pub(crate) fn pay(&self) {
        self.state.lock().owed = false;
    }

    /// The right to change what the PFS says of the times.
    pub(crate) fn changing(&self, pfs: &PfsTree) -> std::io::Result<MutexGuard<'_, ()>> {
        pfs.health().lock(&self.changing)
    }

    /// Keeps a drain from being in the middle of something while what the PFS says is looked at.
    /// `None`: who is, waits for the PFS.
    pub(crate) fn settled(&self, pfs: &PfsTree) -> Option<MutexGuard<'_, ()>> {
        pfs.health().try_lock(&self.changing)
    }

    /// What programs see where the PFS says this: times of modification and of change.
    pub(crate) fn shown(&self, stat: &PfsStat) -> (TimeSpec, TimeSpec) {
        let shown = self.state.lock().shown(stat);
        (shown.mtime, shown.ctime)
    }

    /// A drain has changed what the PFS says.
    pub(crate) fn changed_unseen(&self, before: &PfsStat, after: &PfsStat) {
        let mut state = self.state.lock();
        let hidden = !after.has_steady_ctime;
        state.unseen = Some(Unseen {
            left: Stamp::of(after),
            shown: state.base(before),
            may_move_until: hidden.then(|| Instant::now() + HIDDEN_NAME_ENDS_WITHIN),
        });
    }

    /// A program has set attributes there.
    pub(crate) fn set(&self, set: &SetAttr, before: &PfsStat, after: &PfsStat) {
        let mut state = self.state.lock();
        if set.mtime.is_some() {
            (state.touched, state.unseen) = (None, None);
        } else if state.unseen.is_some_and(|u| u.left == Stamp::of(before)) {
            let mtime = state.base(before).mtime;
            let (left, ctime) = (Stamp::of(after), after.ctime);
            let shown = Stamp { mtime, ctime };
            state.unseen = Some(Unseen {
                left,
                shown,
                may_move_until: None,
            });
        }
    }

    /// The time of modification that the PFS is to have instead of this one.
    pub(crate) fn to_be_put_back(&self, stat: &PfsStat) -> Option<TimeSpec> {
        let shown = self.state.lock().shown(stat).mtime;
        (shown != stat.mtime).then_some(shown)
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::SetTime;

    use super::*;

    fn at(sec: i64) -> TimeSpec {
        TimeSpec { sec, nsec: 0 }
    }

    /// What the PFS says when the directory was last changed then.
    fn stat(mtime: i64, ctime: i64) -> PfsStat {
        let top = tempfile::tempdir().unwrap();
        let tree = forebay_tiers::PfsTree::open(top.path()).unwrap();
        PfsStat {
            mtime: at(mtime),
            ctime: at(ctime),
            ..tree.stat_dir(tree.root()).unwrap()
        }
    }

    fn setting(mtime: Option<i64>) -> SetAttr {
        SetAttr {
            mtime: mtime.map(|sec| SetTime::At(at(sec))),
            ..SetAttr::default()
        }
    }

    #[test]
    fn a_drain_does_not_show_and_is_taken_back() {
        let times = DirTimes::default();
        times.changed_unseen(&stat(10, 10), &stat(50, 50));
        times.changed_unseen(&stat(50, 50), &stat(51, 51));
        assert_eq!(times.shown(&stat(51, 51)), (at(10), at(10)));
        assert_eq!(times.to_be_put_back(&stat(51, 51)), Some(at(10)));
        times.changed_unseen(&stat(51, 51), &stat(10, 52));
        assert_eq!(times.shown(&stat(10, 52)), (at(10), at(10)));
        assert_eq!(times.to_be_put_back(&stat(10, 52)), None);
    }

    #[test]
    fn what_somebody_else_changes_shows_and_stays() {
        let times = DirTimes::default();
        times.changed_unseen(&stat(10, 10), &stat(50, 50));
        assert_eq!(times.shown(&stat(60, 60)), (at(60), at(60)));
        assert_eq!(times.to_be_put_back(&stat(60, 60)), None);
        times.changed_unseen(&stat(60, 60), &stat(70, 70));
        assert_eq!(times.shown(&stat(70, 70)), (at(60), at(60)));
    }

    #[test]
    fn a_name_that_no_drain_follows_is_owed_once() {
        let times = DirTimes::default();
        assert_eq!((times.owe(), times.owe()), (true, false));
        let touched = times.state.lock().touched.expect("touched");
        assert_eq!(times.to_be_put_back(&stat(10, 10)), Some(touched));
        times.set(&setting(Some(3)), &stat(10, 10), &stat(3, 60));
        assert_eq!(times.to_be_put_back(&stat(3, 60)), None);
    }

    #[test]
    fn a_time_that_is_set_stands_above_names_and_drains_before_it() {
        let times = DirTimes::default();
        times.touch();
        times.changed_unseen(&stat(10, 10), &stat(50, 50));
        times.set(&setting(Some(3)), &stat(50, 50), &stat(3, 60));
        assert_eq!(times.shown(&stat(3, 60)), (at(3), at(60)));
        times.changed_unseen(&stat(3, 60), &stat(70, 70));
        assert_eq!(times.to_be_put_back(&stat(70, 70)), Some(at(3)));
        // A mode in between moves the time of change only.
        times.set(&setting(None), &stat(70, 70), &stat(70, 80));
        assert_eq!(times.shown(&stat(70, 80)), (at(3), at(80)));
    }
}
