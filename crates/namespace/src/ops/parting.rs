//! A rename over one of several links, or over what is in use: what the PFS has under the name
//! goes at once.

use forebay_tiers::PfsStat;
use forebay_types::failpoint;

use crate::log::Batch;
use crate::ops::ends::End;
use crate::record::{self, Intent, LinkChange, LinkIntent, Published};
use crate::{File, Namespace, NsError};

/// What the PFS has under the new name is unlinked after the records have changed.
pub(super) fn parting(to: &End, stat: &PfsStat) -> Intent {
    let holder = to.file.as_ref().and_then(|old| {
        let state = old.lock();
        let other = state.names.first()?;
        Some((other.0.key, other.1.to_vec()))
    });
    Intent::Link(LinkIntent {
        place: to.key(),
        target: stat.into(),
        change: LinkChange::Replaced,
        holder,
    })
}

impl Namespace {
    /// Removes what the PFS has under the new name (`stat`) at once. It is one of several links,
    /// and the others would show it until the new file is published; or somebody still changes it;
    /// or the new file has several links itself. Where the PFS calls the removal an error, the
    /// drain replaces what is still there.
    pub(super) fn part_links(
        &self,
        file: &File,
        to: &End,
        stat: &PfsStat,
        sequence: u64,
    ) -> Result<(), NsError> {
        let staying = match self.pfs.unlink(&to.handle, &to.name) {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => {
                let path = to.dir.path_of(&to.name);
                let path = path.escape_ascii();
                tracing::warn!("{path}: what the PFS has stays until the next drain: {error}");
                Some(Published::from(stat).leaving())
            }
            _ => None,
        };
        failpoint::hit(failpoint::Point::RenameParted);
        let left = self.left_of_replaced(to);
        let mut batch = Batch::new();
        batch.delete(record::intent_key(sequence));
        {
            let mut state = file.lock();
            match staying {
                None => state.lose_published_at(&to.dir, &to.name),
                Some(_) if state.names.len() > 1 => {
                    state.set_unplaced(&to.dir, &to.name, staying);
                }
                Some(_) => state.set_published(staying),
            }
            self.put_file(&mut batch, file, &state)?;
        }
        if let Some(old) = &to.file {
            let mut state = old.lock();
            state.follow_published(left);
            if staying.is_some() {
                // That link goes later, which moves the ctime of its others.
                let published = state.residency.published;
                state.set_published(published.map(Published::with_ctime_moved));
            }
            if !state.is_unlinked() {
                self.put_file(&mut batch, old, &state)?;
            }
        }
        if let Err(error) = self.commit(batch) {
            self.leave_unrecorded(Some(sequence), None, &error);
            return Ok(());
        }
        failpoint::hit(failpoint::Point::RenamePartedRecord);
        Ok(())
    }
}
