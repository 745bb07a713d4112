//! What the PFS has of a file under its other names, and of the version before.

use std::sync::Arc;

use forebay_kv::Durability;

use crate::dir::Dir;
use crate::file::FileState;
use crate::record::Published;
use crate::{File, Namespace, NsError};

impl Namespace {
    /// The older version on the PFS, which the file's next demotion would replace, goes at once:
    /// somebody still has it open, and what they change there must not look like an outsider's doing.
    pub fn part_from_older(&self, file: &File) -> Result<(), NsError> {
        let Some((dir, name)) = file.lock().names.first().cloned() else {
            return Ok(());
        };
        let _order = dir.order(&self.pfs)?;
        let _naming = file.naming(&self.pfs)?;
        let older = {
            let state = file.lock();
            let here = matches!(&state.names[..], [(d, n)] if Arc::ptr_eq(d, &dir) && *n == name);
            let published = state.residency.published;
            published.filter(|_| here && state.is_dirty())
        };
        let Some(older) = older else {
            return Ok(());
        };
        let handle = self.open_dir(&dir)?;
        if self
            .pfs
            .stat(&handle, &name)
            .is_ok_and(|found| found.id.ino == older.ino)
        {
            self.begin_unlink_of_older(file)?;
            self.pfs.unlink(&handle, &name)?;
        }
        let mut state = file.lock();
        state.residency.published = None;
        self.save(file, &state, Durability::Buffered)
    }

    /// What the PFS shows of a file under one of its names other than this: a name less has changed
    /// the ctime. `None` if it has no other, or is not there.
    pub(crate) fn published_without(
        &self,
        file: &File,
        dir: &Arc<Dir>,
        name: &[u8],
    ) -> Option<Published> {
        let ((other, other_name), published) = {
            let state = file.lock();
            let published = state.residency.published?;
            let is_it =
                |place: &&(Arc<Dir>, Box<[u8]>)| Arc::ptr_eq(&place.0, dir) && *place.1 == *name;
            let other = state.names.iter().find(|place| !is_it(place)).cloned()?;
            (other, published)
        };
        let handle = self.open_dir(&other).ok()?;
        let stat = self.pfs.stat(&handle, &other_name).ok()?;
        published.same_content(&stat).then(|| (&stat).into())
    }

    /// A name less has changed the ctime that the PFS shows under the others. For a start, when nobody
    /// else is there.
    pub(crate) fn follow_links(&self, state: &mut FileState) {
        if let Some(published) = state.residency.published
            && let Some((dir, name)) = state.names.first()
            && let Ok(handle) = self.open_dir(dir)
            && let Ok(stat) = self.pfs.stat(&handle, name)
            && published.same_content(&stat)
        {
            state.residency.published = Some((&stat).into());
        }
    }
}
