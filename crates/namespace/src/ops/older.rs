//! What the PFS has of a file under its other names, and of the version before.

use std::sync::Arc;

use forebay_kv::Durability;
use forebay_tiers::PfsDir;
use forebay_types::{Ino, failpoint};

use crate::record::Published;
use crate::tree::Dir;
use crate::tree::{FileState, Place};
use crate::{File, Namespace, NsError};

/// A rename of a file of the burst buffer is under way: until this goes, no copy of the file gets
/// its name on the PFS. See [`Namespace::part_from_older`].
pub struct Renaming(Arc<File>);

impl Drop for Renaming {
    fn drop(&mut self) {
        self.0.lock().end_rename();
    }
}

impl Namespace {
    /// To be asked before a rename, and kept until the file was parted from what it has replaced,
    /// where that is to be done. `None`: the file is not in the burst buffer.
    pub fn begin_rename(&self, parent: Ino, name: &[u8]) -> Result<Option<Renaming>, NsError> {
        let Some(file) = self.dir(parent)?.child(name) else {
            return Ok(None);
        };
        file.lock().begin_rename();
        Ok(Some(Renaming(file)))
    }

    /// The older version on the PFS, which the file's next demotion would replace, goes at once:
    /// somebody still has it open, and what they change there must not look like an outsider's
    /// doing.
    pub fn part_from_older(&self, file: &Arc<File>) -> Result<(), NsError> {
        let Some((dir, name)) = file.lock().names.first().cloned() else {
            return Ok(());
        };
        let _order = dir.order(&self.pfs)?;
        let _naming = file.naming(&self.pfs)?;
        self.settle_held(file)?;
        let older = {
            let state = file.lock();
            let here = matches!(&state.names[..], [(d, n)] if Arc::ptr_eq(d, &dir) && *n == name);
            let published = state.residency.published;
            // A copy that a drain has just put there has replaced the older version already.
            let copy = state.copy_under_way();
            let is_newest = copy.is_some_and(|copy| state.is_published_as(copy));
            published.filter(|_| here && state.is_dirty() && !is_newest)
        };
        let Some(older) = older else {
            return Ok(());
        };
        let handle = self.open_dir(&dir)?;
        let found = self.stat_if_there(&handle, &name)?;
        if let Some(stat) = found.filter(|stat| older.is_same_file(stat)) {
            // As who has it open has left it.
            self.begin_unlink_of_older(file, (&stat).into())?;
            self.unlink_if_there(&handle, &name)?;
            failpoint::hit(failpoint::Point::OlderGone);
        }
        let mut state = file.lock();
        state.set_published(None);
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
            let other = |place: &&Place| {
                let is_it = Arc::ptr_eq(&place.0, dir) && *place.1 == *name;
                !is_it && state.is_placed(&place.0, &place.1)
            };
            (state.names.iter().find(other).cloned()?, published)
        };
        match self.open_dir(&other) {
            Ok(handle) => Some(self.follow(published, &handle, &other_name)),
            Err(_) => Some(published.with_ctime_moved()),
        }
    }

    /// A change of names of ours has changed the ctime of what is published: what the PFS shows
    /// now. Where it does not tell, that must not look like an outsider's doing; where it has
    /// something else, it is one.
    pub(crate) fn follow(&self, published: Published, handle: &PfsDir, name: &[u8]) -> Published {
        match self.stat_if_there(handle, name) {
            Ok(found) => published.after_move(found.as_ref()),
            Err(error) => {
                tracing::debug!("{}: its new ctime: {error}", name.escape_ascii());
                published.with_ctime_moved()
            }
        }
    }

    /// A name less has changed the ctime that the PFS shows under the others. For a start, when
    /// nobody else is there.
    pub(crate) fn follow_links(&self, state: &mut FileState) {
        let placed = |(dir, name): &&Place| state.is_placed(dir, name);
        let place = state.names.iter().find(placed);
        if let (Some(published), Some((dir, name))) = (state.residency.published, place) {
            let published = match self.open_dir(dir) {
                Ok(handle) => self.follow(published, &handle, name),
                Err(_) => published.with_ctime_moved(),
            };
            state.set_published(Some(published));
        }
    }
}
