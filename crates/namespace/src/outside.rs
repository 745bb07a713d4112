//! What outsiders do to the PFS behind the burst buffer's back.
//!
//! A record says what the PFS had when Forebay last wrote or read it ([`Published`]). What is found
//! under the name later is compared with that before anything is replaced, moved or removed. An
//! outsider's file keeps its name. Where a program has just given the name to something else, the
//! outsider's file is put beside it. Nothing of an outsider's file is ever overwritten.

use std::sync::Arc;

use forebay_tiers::{PfsDir, PfsStat};
use forebay_types::{Errno, RenameMode};

use crate::conflict::{Conflict, ConflictKind, conflict_names};
use crate::error::on_pfs;
use crate::record::Published;
use crate::tree::Dir;
use crate::{File, Namespace, NsError};

/// What the PFS has under a name that Forebay has published something under.
pub(crate) enum Seen {
    /// What was published.
    Ours,
    /// Something else, or that with changes.
    Foreign(PfsStat),
    /// Nothing.
    Nothing,
}

impl Namespace {
    /// Compares the PFS with what was published.
    pub(crate) fn look(
        &self,
        handle: &PfsDir,
        name: &[u8],
        published: Published,
    ) -> Result<Seen, NsError> {
        Ok(match self.stat_if_there(handle, name)? {
            Some(stat) if published.is(&stat) => Seen::Ours,
            Some(stat) => Seen::Foreign(stat),
            None => Seen::Nothing,
        })
    }

    /// What the PFS has under a name. An error is not "nothing".
    pub(crate) fn stat_if_there(
        &self,
        handle: &PfsDir,
        name: &[u8],
    ) -> Result<Option<PfsStat>, NsError> {
        match self.pfs.stat_now(handle, name) {
            Ok(stat) => Ok(Some(stat)),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(e) => Err(on_pfs("stat")(e)),
        }
    }

    /// Drops a clean copy whose original is no longer what it was copied from. `ESTALE` then: the
    /// caller's caller looks the name up again.
    pub(crate) fn revalidate(&self, file: &Arc<File>) -> Result<(), NsError> {
        let name = file.lock().names.first().cloned();
        match name {
            Some((dir, name)) if !self.still_valid(&dir, &name, file)? => Err(Errno::ESTALE.into()),
            _ => Ok(()),
        }
    }

    /// Moves something to `<name>.forebay-conflict-<time>` in a directory of the PFS.
    pub(crate) fn move_beside(
        &self,
        source: (&PfsDir, &[u8]),
        (dir, handle): (&Dir, &PfsDir),
        name: &[u8],
    ) -> Result<Vec<u8>, NsError> {
        // A name may be free on the PFS, and that of a file which is in the burst buffer only.
        for beside in conflict_names(name).filter(|beside| !dir.is_taken(beside)) {
            let moved = self
                .pfs
                .rename(source.0, source.1, handle, &beside, RenameMode::NoReplace);
            match moved {
                Ok(()) => return Ok(beside),
                Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {}
                Err(e) => return Err(on_pfs("rename")(e)),
            }
        }
        Err(Errno::EEXIST.into())
    }

    /// An outsider's version under a name that a program has just given to something else goes
    /// beside it. The directory is locked.
    pub(crate) fn set_aside(
        &self,
        dir: &Arc<Dir>,
        handle: &PfsDir,
        name: &[u8],
    ) -> Result<(), NsError> {
        let kept_as = self.move_beside((handle, name), (dir, handle), name)?;
        self.note_conflict(Conflict {
            path: dir.path_of(name),
            kept_as,
            theirs: true,
            kind: ConflictKind::Changed,
        });
        Ok(())
    }

    pub(crate) fn note_conflict(&self, conflict: Conflict) {
        self.conflicts.lock().push(conflict);
    }

    /// Conflicts found since it was last asked.
    pub fn take_conflicts(&self) -> Vec<Conflict> {
        std::mem::take(&mut *self.conflicts.lock())
    }
}
