//! What changes the times of directories, for programs or unseen by them.

use std::sync::Arc;
use std::time::Duration;

use forebay_tiers::PfsDir;
use forebay_types::{SetAttr, SetTime};

use crate::error::on_pfs;
use crate::tree::Dir;
use crate::{Namespace, NsError};

impl Namespace {
    /// A name has come or gone for programs, and no drain of that directory may follow.
    pub(crate) fn touch(&self, dir: &Arc<Dir>) {
        if dir.times.owe() {
            self.owed_times.add(dir);
        }
    }

    /// The PFS gets the times of modification of directories in which names came or went at least
    /// `age` ago. To be called now and then: many changes of one directory cost the PFS one.
    pub fn put_owed_times(&self, age: Duration) {
        for dir in self.owed_times.take(age) {
            dir.times.pay();
            // One that is gone owes nothing; where the PFS does not answer, the next change or
            // drain tries it.
            let (Ok(handle), Ok(_order)) = (self.open_dir(&dir), dir.order(&self.pfs)) else {
                continue;
            };
            self.put_back(&dir, &handle);
        }
    }

    /// Sets attributes of a directory on the PFS.
    pub(crate) fn setattr_dir(&self, dir: &Arc<Dir>, set: &SetAttr) -> Result<(), NsError> {
        let handle = self.open_dir(dir)?;
        let _order = dir.order(&self.pfs)?;
        let _alone = dir
            .times
            .changing(&self.pfs)
            .map_err(on_pfs("wait for a change of times"))?;
        let before = self
            .pfs
            .stat_dir(&handle)
            .map_err(on_pfs("stat of a directory"))?;
        self.pfs
            .set_attr_dir(&handle, set)
            .map_err(on_pfs("setattr of a directory"))?;
        dir.times.set(
            set,
            &before,
            &self
                .pfs
                .stat_dir(&handle)
                .map_err(on_pfs("stat of a directory"))?,
        );
        Ok(())
    }

    /// Does something to a directory on the PFS that its times are not to show. Who holds its order
    /// keeps others from changing it meanwhile; what they change all the same counts if it is told
    /// with `DirTimes::touch`.
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
        self.unseen(dir, handle, act)
            .map_err(on_pfs("change a directory"))
    }

    /// A drain is done with a directory: the PFS gets the time of modification back that programs
    /// see, unless somebody else has changed the directory since. Where it cannot be set, the mount
    /// alone shows it.
    pub fn put_times_back(&self, dir: &Arc<Dir>, handle: &PfsDir) {
        let may_move = self.put_back(dir, handle);
        if may_move && dir.times.owe_again() {
            self.owed_times.add(dir);
        }
    }

    /// Answers whether the end of a hidden name may move the times once more.
    fn put_back(&self, dir: &Dir, handle: &PfsDir) -> bool {
        self.try_to_put_back(dir, handle).unwrap_or_else(|error| {
            let path = dir.path();
            tracing::debug!("{}: times of a drain stay: {error}", path.escape_ascii());
            false
        })
    }

    fn try_to_put_back(&self, dir: &Dir, handle: &PfsDir) -> std::io::Result<bool> {
        let Some(_alone) = dir.times.settled(&self.pfs) else {
            return Ok(false);
        };
        let before = self.pfs.stat_dir(handle)?;
        let Some(mtime) = dir.times.to_be_put_back(&before) else {
            return Ok(!before.has_steady_ctime);
        };
        // Both: FUSE file systems by libfuse ignore a time of modification that comes alone.
        let set = SetAttr {
            atime: Some(SetTime::At(before.atime)),
            mtime: Some(SetTime::At(mtime)),
            ..SetAttr::default()
        };
        self.pfs.set_attr_dir(handle, &set)?;
        let after = self.pfs.stat_dir(handle)?;
        dir.times.changed_unseen(&before, &after);
        Ok(!after.has_steady_ctime)
    }
}
