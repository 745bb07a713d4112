//! Times of a directory, as programs see them.
//!
//! A name that is in the burst buffer only changes the times of its directory, and the PFS does not know of it; a drain
//! changes them on the PFS, and nothing has changed for programs. So what the PFS says is shown, but for changes that are
//! the drain's own: those are known by the times that they left behind, and for as long as the PFS has just these, what was
//! shown before is shown on, and the time of modification is put back there when the drain is done. Whatever else moves the
//! times, through the mount or by an outsider, counts as ever.
//!
//! Where a name came and went before any drain, or was changed on the PFS a moment before it was noted here, the PFS gets the
//! time that is shown a little later ([`Namespace::put_owed_times`]).

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forebay_tiers::{PfsDir, PfsStat, PfsTree};
use forebay_types::{SetAttr, SetTime, TimeSpec};
use parking_lot::{Mutex, MutexGuard};

use crate::dir::Dir;
use crate::{Namespace, NsError};

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
}

#[derive(Debug, Default)]
struct State {
    /// When a name was last added or removed that the PFS has not seen.
    touched: Option<TimeSpec>,
    unseen: Option<Unseen>,
    /// The PFS is to hear of that without a drain: it stands in [`OwedTimes`].
    owed: bool,
}

impl State {
    /// Without names that the PFS has not seen.
    fn base(&self, stat: &PfsStat) -> Stamp {
        let now = Stamp::of(stat);
        match self.unseen {
            Some(unseen) if unseen.left == now => unseen.shown,
            _ => now,
        }
    }

    fn shown(&self, stat: &PfsStat) -> Stamp {
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
    /// Held while the PFS is asked, changed, and asked again: what a program sets must not come in between.
    changing: Mutex<()>,
}

impl DirTimes {
    /// A name has come or gone for programs.
    pub(crate) fn touch(&self) {
        self.state.lock().touched = Some(TimeSpec::now());
    }

    /// The same of a name that no drain follows; whether that is news.
    fn owe(&self) -> bool {
        self.touch();
        !std::mem::replace(&mut self.state.lock().owed, true)
    }

    /// Keeps a drain from being in the middle of something while what the PFS says is looked at. `None`: who is, waits for the PFS.
    pub(crate) fn settled(&self, pfs: &PfsTree) -> Option<MutexGuard<'_, ()>> {
        pfs.pulse().try_lock(&self.changing)
    }

    /// What programs see where the PFS says this: times of modification and of change.
    pub(crate) fn shown(&self, stat: &PfsStat) -> (TimeSpec, TimeSpec) {
        let shown = self.state.lock().shown(stat);
        (shown.mtime, shown.ctime)
    }

    /// A drain has changed what the PFS says.
    fn changed_unseen(&self, before: &PfsStat, after: &PfsStat) {
        let mut state = self.state.lock();
        state.unseen = Some(Unseen {
            left: Stamp::of(after),
            shown: state.base(before),
        });
    }

    /// A program has set attributes there.
    fn set(&self, set: &SetAttr, before: &PfsStat, after: &PfsStat) {
        let mut state = self.state.lock();
        if set.mtime.is_some() {
            (state.touched, state.unseen) = (None, None);
        } else if state.unseen.is_some_and(|u| u.left == Stamp::of(before)) {
            let mtime = state.base(before).mtime;
            let (left, ctime) = (Stamp::of(after), after.ctime);
            let shown = Stamp { mtime, ctime };
            state.unseen = Some(Unseen { left, shown });
        }
    }

    /// The time of modification that the PFS is to have instead of this one.
    fn to_be_put_back(&self, stat: &PfsStat) -> Option<TimeSpec> {
        let shown = self.state.lock().shown(stat).mtime;
        (shown != stat.mtime).then_some(shown)
    }
}

/// Directories in which names came or went without a drain that would tell the PFS, and since when.
#[derive(Default)]
pub(crate) struct OwedTimes(Mutex<Vec<(Weak<Dir>, Instant)>>);

impl OwedTimes {
    /// Those that have waited so long.
    fn take(&self, age: Duration) -> Vec<Arc<Dir>> {
        let mut owed = self.0.lock();
        let due = owed.iter().take_while(|(_, since)| since.elapsed() >= age);
        let due = due.count();
        owed.drain(..due)
            .filter_map(|(dir, _)| dir.upgrade())
            .collect()
    }
}

impl Namespace {
    /// A name has come or gone for programs, and no drain of that directory may follow.
    pub(crate) fn touch(&self, dir: &Arc<Dir>) {
        if dir.times.owe() {
            let mut owed = self.owed_times.0.lock();
            owed.push((Arc::downgrade(dir), Instant::now()));
        }
    }

    /// The PFS gets the times of modification of directories in which names came or went at least `age` ago. To be called now and
    /// then: many changes of one directory cost the PFS one.
    pub fn put_owed_times(&self, age: Duration) {
        for dir in self.owed_times.take(age) {
            dir.times.state.lock().owed = false;
            // One that is gone owes nothing; where the PFS does not answer, the next change or drain tries it.
            let (Ok(handle), Ok(_order)) = (self.open_dir(&dir), dir.order(&self.pfs)) else {
                continue;
            };
            self.put_times_back(&dir, &handle);
        }
    }

    /// Sets attributes of a directory on the PFS.
    pub(crate) fn setattr_dir(&self, dir: &Arc<Dir>, set: &SetAttr) -> Result<(), NsError> {
        let handle = self.open_dir(dir)?;
        let _order = dir.order(&self.pfs)?;
        let _alone = self.pfs.pulse().lock(&dir.times.changing)?;
        let before = self.pfs.stat_dir(&handle)?;
        self.pfs.set_attr_dir(&handle, set)?;
        dir.times.set(set, &before, &self.pfs.stat_dir(&handle)?);
        Ok(())
    }

    /// Does something to a directory on the PFS that its times are not to show. Who holds its order keeps others from
    /// changing it meanwhile; what they change all the same counts if it is told with [`DirTimes::touch`].
    pub(crate) fn unseen<T>(&self, dir: &Dir, handle: &PfsDir, act: impl FnOnce() -> T) -> T {
        let Some(_alone) = dir.times.settled(&self.pfs) else {
            return act();
        };
        let before = self.pfs.stat_dir(handle);
        let done = act();
        // Where it cannot be asked, its times show the change.
        if let (Ok(before), Ok(after)) = (before, self.pfs.stat_dir(handle)) {
            dir.times.changed_unseen(&before, &after);
        }
        done
    }

    /// The same for who has nothing of the directory.
    pub fn change_unseen<T>(
        &self,
        dir: &Arc<Dir>,
        handle: &PfsDir,
        act: impl FnOnce() -> std::io::Result<T>,
    ) -> Result<T, NsError> {
        let _order = dir.order(&self.pfs)?;
        Ok(self.unseen(dir, handle, act)?)
    }

    /// A drain is done with a directory: the PFS gets the time of modification back that programs see, unless somebody
    /// else has changed the directory since. Where it cannot be set, the mount alone shows it.
    pub fn put_times_back(&self, dir: &Dir, handle: &PfsDir) {
        if let Err(error) = self.try_to_put_back(dir, handle) {
            let path = dir.path();
            tracing::debug!("{}: times of a drain stay: {error}", path.escape_ascii());
        }
    }

    fn try_to_put_back(&self, dir: &Dir, handle: &PfsDir) -> std::io::Result<()> {
        let Some(_alone) = dir.times.settled(&self.pfs) else {
            return Ok(());
        };
        let before = self.pfs.stat_dir(handle)?;
        let Some(mtime) = dir.times.to_be_put_back(&before) else {
            return Ok(());
        };
        let set = SetAttr {
            mtime: Some(SetTime::At(mtime)),
            ..SetAttr::default()
        };
        self.pfs.set_attr_dir(handle, &set)?;
        let after = self.pfs.stat_dir(handle)?;
        dir.times.changed_unseen(&before, &after);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
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
