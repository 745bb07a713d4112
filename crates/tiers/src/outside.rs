//! Copies to the PFS that are made where the object is: the bytes take no way around.

use std::io;

use forebay_types::{Errno, ObjectId};

use crate::{
    ActAs, CopyControl, CopyError, CopyReport, FileObject, Object, PfsTree, WriteBehind,
    copy_to_new, verify,
};

/// A file on the PFS, empty and with a temporary name, that somebody else is to fill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outside {
    /// Its path from the top of the PFS.
    pub path: Vec<u8>,
    /// Its inode number there: whoever opens something else under the path leaves it alone.
    pub ino: u64,
    /// Its user and group.
    pub owner: (u32, u32),
    /// The copy runs no further ahead of the PFS than this, bytes.
    pub ahead_bytes: u64,
    /// It is read back from the PFS's servers, not from the page cache.
    pub from_media: bool,
}

/// Why a copy was not made.
#[derive(Debug, thiserror::Error)]
pub enum OutsideError {
    /// The file cannot be reached from there. It was not touched, and nobody touches it any more.
    #[error("the file cannot be reached: {0}")]
    Unreached(#[source] io::Error),
    /// The copy was begun, and failed.
    #[error(transparent)]
    Copy(#[from] CopyError),
}

/// A tier whose objects can be copied where they are.
pub trait CopiesOut: Send + Sync {
    /// Fills a file with all of an object, puts the file on stable storage and reads it back.
    ///
    /// # Errors
    /// With any but [`OutsideError::Unreached`] the file may be written for a moment longer: it is
    /// to be removed, and not to be used again.
    fn copy_out(
        &self,
        object: ObjectId,
        to: &Outside,
        control: &CopyControl<'_>,
    ) -> Result<CopyReport, OutsideError>;
}

/// Does so here.
///
/// # Errors
/// As [`CopiesOut::copy_out`].
pub fn copy_out(
    pfs: &PfsTree,
    source: &dyn Object,
    to: &Outside,
    control: &CopyControl<'_>,
) -> Result<CopyReport, OutsideError> {
    let file = open(pfs, to).map_err(OutsideError::Unreached)?;
    let destination = CopyError::Destination;
    let stat = source.stat().map_err(CopyError::Source)?;
    let behind = WriteBehind::default();
    let moved = |bytes, end| {
        behind.reached(&file, end, to.ahead_bytes);
        (control.moved)(bytes, end);
    };
    let control = CopyControl {
        moved: &moved,
        ..*control
    };
    let report = copy_to_new(source, &stat, &file, &control)?;
    behind.check().map_err(destination)?;
    pfs.sync_file(file.file()).map_err(destination)?;
    if to.from_media {
        file.drop_cache().map_err(destination)?;
    }
    verify(&file, &report, control.stop)?;
    Ok(report)
}

fn open(pfs: &PfsTree, to: &Outside) -> io::Result<FileObject> {
    let (dir, name) = match to.path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&to.path[..at], &to.path[at + 1..]),
        None => (&b""[..], &to.path[..]),
    };
    // Only what is being made is ever written.
    if !PfsTree::is_temporary(name) {
        return Err(Errno::EPERM.into());
    }
    let opened = {
        let (uid, gid) = to.owner;
        let _owner = (uid != 0).then(|| ActAs::user(uid, gid, &[])).transpose()?;
        pfs.open_dir_path(dir)
            .and_then(|dir| pfs.open_file(&dir, name, true))
    };
    let file = match opened {
        // Its user may not go there, and this process may.
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            let dir = pfs.open_dir_path(dir)?;
            pfs.open_file(&dir, name, true)?
        }
        opened => opened?,
    };
    let stat = pfs.stat_file(&file)?;
    match stat.id.ino == to.ino && stat.size == 0 && stat.nlink == 1 {
        true => Ok(FileObject::new(file)),
        false => Err(Errno::ESTALE.into()),
    }
}
