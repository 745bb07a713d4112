//! Files of a store that is closed, below the engine.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::Error;

const JOURNAL: &str = "jnl";
const PIECE_BYTES: usize = 64 * 1024;

/// Fails unless a file of so many bytes can be written and flushed in `dir`. Nothing is left
/// behind, not by a crash either.
pub(crate) fn need_room(dir: &Path, bytes: u64) -> Result<(), Error> {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(libc::O_TMPFILE);
    let probe = match options.open(dir) {
        Ok(probe) => probe,
        // Then trying is all there is.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let len = libc::off_t::try_from(bytes).unwrap_or(libc::off_t::MAX);
    // SAFETY: it takes plain numbers, and the descriptor is open.
    if unsafe { libc::fallocate(probe.as_raw_fd(), 0, 0, len) } != 0 {
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EOPNOTSUPP) {
            return Err(error.into());
        }
    }
    probe.write_all_at(&[1; 4096], 0)?;
    probe.sync_all()?;
    Ok(())
}

/// Writes the journals of a closed store to new files, flushed, under the same names. After a flush
/// that failed the kernel takes pages that it could not write for clean. Another flush of that file
/// would not write them, and nobody knows how long they can still be read.
pub(crate) fn write_anew(dir: &Path) -> Result<(), Error> {
    for path in journals(dir)? {
        // Not a name that the engine would take for one of its own.
        let beside = dir.with_extension("journal");
        copy(&path, &beside)?;
        std::fs::rename(&beside, &path)?;
    }
    File::open(dir)?.sync_all()?;
    Ok(())
}

/// The engine writes this file last when it makes a store.
const MARKER: &str = "version";
/// Its tables are below this one, and none before the marker is there.
const TABLES: &str = "keyspaces";

/// Removes what a kill has left of a store that was being made: the engine would take none of it,
/// and make no other beside it. Nothing was committed to such a store.
pub(crate) fn remove_half_made(dir: &Path) -> Result<(), Error> {
    let marker = dir.join(MARKER);
    // An error of the media is no sign of a store that was not made.
    let was_made = if_there(std::fs::metadata(&marker))?.is_some_and(|meta| meta.len() > 0);
    if was_made || if_there(std::fs::metadata(dir))?.is_none() {
        return Ok(());
    }
    let tables = if_there(std::fs::read_dir(dir.join(TABLES)))?;
    if let Some(first) = tables.and_then(|mut tables| tables.next()) {
        // Somebody has removed the marker of a store that was in use.
        return Ok(first.map(drop)?);
    }
    let journals = journals(dir)?;
    for path in &journals {
        let mut start = [0; 4096];
        let len = File::open(path)?.read(&mut start)?;
        if start[..len].iter().any(|byte| *byte != 0) {
            return Ok(());
        }
    }
    for path in journals {
        std::fs::remove_file(path)?;
    }
    match std::fs::remove_file(marker) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Nothing where there is nothing; any other error as it is.
fn if_there<T>(asked: io::Result<T>) -> io::Result<Option<T>> {
    match asked {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// Room that copies of the journals take.
pub(crate) fn journal_bytes(dir: &Path) -> Result<u64, Error> {
    let mut bytes = 0;
    for path in journals(dir)? {
        bytes += std::fs::metadata(path)?.blocks() * 512;
    }
    Ok(bytes)
}

fn journals(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let is_journal = |path: &PathBuf| path.extension().is_some_and(|kind| kind == JOURNAL);
    let entries = std::fs::read_dir(dir)?.map(|entry| Ok(entry?.path()));
    let paths = entries.collect::<io::Result<Vec<_>>>()?;
    Ok(paths.into_iter().filter(is_journal).collect())
}

/// Copies a journal, whose end is zeros for the most part: those stay a hole.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = File::open(from)?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.custom_flags(libc::O_NOFOLLOW);
    let target = options.open(to)?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut at = 0;
    loop {
        let len = match source.read(&mut piece) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if piece[..len].iter().any(|byte| *byte != 0) {
            target.write_all_at(&piece[..len], at)?;
        }
        at += len as u64;
    }
    target.set_len(at)?;
    target.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_are_other_files_with_the_same_bytes_afterwards() -> Result<(), Error> {
        let folder = tempfile::tempdir()?;
        let dir = folder.path().join("kv");
        std::fs::create_dir(&dir)?;
        let (journal, other) = (dir.join("3.jnl"), dir.join("lock"));
        std::fs::write(&journal, b"bytes")?;
        File::options()
            .write(true)
            .open(&journal)?
            .set_len(1 << 20)?;
        std::fs::write(&other, b"")?;
        let inode = |path: &Path| std::fs::metadata(path).map(|meta| meta.ino());
        let (before, kept) = (inode(&journal)?, inode(&other)?);
        write_anew(&dir)?;
        assert_ne!(inode(&journal)?, before);
        assert_eq!(inode(&other)?, kept);
        let bytes = std::fs::read(&journal)?;
        assert_eq!((bytes.len(), &bytes[..6]), (1 << 20, &b"bytes\0"[..]));
        assert!(std::fs::metadata(&journal)?.blocks() * 512 <= PIECE_BYTES as u64);
        assert_eq!(std::fs::read_dir(&dir)?.count(), 2);
        Ok(())
    }

    #[test]
    fn what_a_kill_left_of_a_store_that_was_being_made_goes() -> Result<(), Error> {
        for (content, stays) in [(&[0; 64][..], false), (b"batch", true)] {
            let folder = tempfile::tempdir()?;
            let journal = folder.path().join("0.jnl");
            std::fs::write(&journal, content)?;
            remove_half_made(folder.path())?;
            assert_eq!(journal.exists(), stays);
            std::fs::write(&journal, [0; 64])?;
            std::fs::write(folder.path().join(MARKER), b"FJL")?;
            remove_half_made(folder.path())?;
            assert!(journal.exists(), "the store was made");
            std::fs::remove_file(folder.path().join(MARKER))?;
            std::fs::create_dir_all(folder.path().join(TABLES).join("0"))?;
            remove_half_made(folder.path())?;
            assert!(journal.exists(), "it has tables");
            // Which tables there are cannot be read.
            std::fs::remove_dir_all(folder.path().join(TABLES))?;
            std::fs::write(folder.path().join(TABLES), b"")?;
            assert!(remove_half_made(folder.path()).is_err());
            assert!(journal.exists(), "nobody knows");
        }
        Ok(())
    }

    #[test]
    fn room_is_asked_for_and_nothing_stays() -> Result<(), Error> {
        let folder = tempfile::tempdir()?;
        need_room(folder.path(), 1 << 20)?;
        assert!(need_room(folder.path(), u64::MAX).is_err());
        assert_eq!(std::fs::read_dir(folder.path())?.count(), 0);
        Ok(())
    }
}
