//! What outsiders do to the PFS behind the burst buffer's back.
//!
//! A record says what the PFS had when Forebay last wrote or read it ([`Published`]). What is found
//! under the name later is compared with that before anything is replaced, moved or removed; what is
//! not ours keeps its name, or, where a program has just given the name to something else, is put
//! beside it. Nothing of it is ever overwritten.

use std::sync::Arc;

use forebay_tiers::{PfsDir, PfsStat, RenameMode};
use forebay_types::{Errno, TimeSpec, limits};

use crate::dir::Dir;
use crate::record::Published;
use crate::{File, Namespace, NsError};

/// What makes a name one of a version put beside another.
pub(crate) const CONFLICT_INFIX: &str = ".forebay-conflict-";
/// Names that are tried for one conflict: so many can arise in one second.
const CONFLICT_NAMES_MAX: u32 = 1000;

/// Why two versions of a file stand beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConflictKind {
    /// Changed or replaced on the PFS while a newer version was in the burst buffer.
    Changed,
    /// Removed there, or renamed, meanwhile.
    Removed,
    /// The name of a new file was taken there.
    Taken,
}

impl ConflictKind {
    /// For a person, after the path.
    pub fn reason(self) -> &'static str {
        match self {
            ConflictKind::Changed => {
                "changed on the PFS while a newer version was in the burst buffer"
            }
            ConflictKind::Removed => {
                "removed or renamed on the PFS while a newer version was in the burst buffer"
            }
            ConflictKind::Taken => {
                "made on the PFS while a new file of this name was in the burst buffer"
            }
        }
    }
}

/// A conflict that was found, and where the second version is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Path from the root of the mount.
    pub path: Vec<u8>,
    /// Name beside it of the other version.
    pub kept_as: Vec<u8>,
    /// The version beside it is the outsider's; else it is ours.
    pub theirs: bool,
    /// What happened.
    pub kind: ConflictKind,
}

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
        match self.pfs.stat(handle, name) {
            Ok(stat) => Ok(Some(stat)),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(e) => Err(e.into()),
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
        handle: &PfsDir,
        name: &[u8],
    ) -> Result<Vec<u8>, NsError> {
        for beside in conflict_names(name) {
            let moved = self
                .pfs
                .rename(source.0, source.1, handle, &beside, RenameMode::NoReplace);
            match moved {
                Ok(()) => return Ok(beside),
                Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(Errno::EEXIST.into())
    }

    /// An outsider's version under a name that a program has just given to something else goes beside
    /// it. The directory is locked.
    pub(crate) fn set_aside(
        &self,
        dir: &Arc<Dir>,
        handle: &PfsDir,
        name: &[u8],
    ) -> Result<(), NsError> {
        let kept_as = self.move_beside((handle, name), handle, name)?;
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

/// Names for what is put beside `name` now, to be tried in turn.
pub(crate) fn conflict_names(name: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let stamp = TimeSpec::now().sec;
    (0..CONFLICT_NAMES_MAX).map(move |attempt| conflict_name(name, stamp, attempt))
}

fn conflict_name(name: &[u8], stamp: i64, attempt: u32) -> Vec<u8> {
    let suffix = match attempt {
        0 => format!("{CONFLICT_INFIX}{stamp}"),
        n => format!("{CONFLICT_INFIX}{stamp}-{n}"),
    };
    let mut beside = name.to_vec();
    beside.truncate(limits::NAME_BYTES_MAX - suffix.len());
    beside.extend_from_slice(suffix.as_bytes());
    beside
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_conflicts_fit_and_differ() {
        assert_eq!(conflict_name(b"f", 7, 0), b"f.forebay-conflict-7");
        assert_eq!(conflict_name(b"f", 7, 2), b"f.forebay-conflict-7-2");
        let long = conflict_name(&[b'x'; 255], i64::MAX, 999);
        assert_eq!(long.len(), 255);
        assert!(long.ends_with(b"-999"));
    }
}
