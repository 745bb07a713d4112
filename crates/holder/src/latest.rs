//! The latest start of a metadata server that has come, over restarts of the data server: one that
//! was replaced is sent away by a data server that has just been started, too.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use forebay_types::Errno;

const HEAD: &str = "forebay latest\n";

/// Of which burst buffer, and which start.
#[derive(Default)]
pub(crate) struct Latest {
    known: Option<([u8; 16], u32)>,
    /// Where it is kept.
    path: Option<PathBuf>,
}

impl Latest {
    /// What this file says, which says it from now on.
    pub(crate) fn kept_in(path: PathBuf) -> io::Result<Latest> {
        let known = match fs::read_to_string(&path) {
            Ok(text) => Some(parse(&text).ok_or_else(|| damaged(&path))?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Ok(Latest {
            known,
            path: Some(path),
        })
    }

    /// `ESTALE` for an earlier start than one that has come of the same burst buffer.
    pub(crate) fn check(&self, (instance, epoch): ([u8; 16], u32)) -> io::Result<()> {
        let later = self
            .known
            .filter(|known| known.0 == instance && epoch < known.1);
        if later.is_some() {
            tracing::warn!("a metadata server that was replaced has come, and is sent away");
            return Err(Errno::ESTALE.into());
        }
        Ok(())
    }

    /// This one has come: on stable storage before anything is done for it.
    pub(crate) fn came(&mut self, from: ([u8; 16], u32)) -> io::Result<()> {
        self.check(from)?;
        if self.known == Some(from) {
            return Ok(());
        }
        if let Some(path) = &self.path {
            keep(path, from).inspect_err(|error| tracing::error!("{}: {error}", path.display()))?;
        }
        self.known = Some(from);
        Ok(())
    }
}

fn keep(path: &Path, (instance, epoch): ([u8; 16], u32)) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.custom_flags(libc::O_NOFOLLOW).open(&new)?;
    let instance = u128::from_be_bytes(instance);
    file.write_all(format!("{HEAD}{instance:032x} {epoch}\n").as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

fn parse(text: &str) -> Option<([u8; 16], u32)> {
    let (instance, epoch) = text.strip_prefix(HEAD)?.trim_end().split_once(' ')?;
    let instance = u128::from_str_radix(instance, 16).ok()?;
    Some((instance.to_be_bytes(), epoch.parse().ok()?))
}

fn damaged(path: &Path) -> io::Error {
    let path = path.display();
    io::Error::other(format!(
        "{path} is damaged: remove it when only one metadata server runs"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: [u8; 16] = [7; 16];

    #[test]
    fn after_a_restart_a_metadata_server_that_was_replaced_is_sent_away() {
        let folder = tempfile::tempdir().expect("tempdir");
        let path = folder.path().join("latest");
        let start = || Latest::kept_in(path.clone()).expect("read");
        start().came((OURS, 5)).expect("the first");
        let mut again = start();
        for sent_away in [0, 4] {
            let error = again.came((OURS, sent_away)).expect_err("it was replaced");
            assert_eq!(Errno::of(&error), Errno::ESTALE);
        }
        again.came((OURS, 5)).expect("the same one");
        again.came((OURS, 6)).expect("a later one");
        start().check((OURS, 5)).expect_err("it was replaced");
        start().check(([8; 16], 1)).expect("another burst buffer's");
        fs::write(&path, "forebay latest\nnonsense").expect("damaged");
        Latest::kept_in(path.clone()).err().expect("refused");
    }

    #[test]
    fn who_cannot_be_kept_is_not_served() {
        let folder = tempfile::tempdir().expect("tempdir");
        let gone = folder.path().join("gone/latest");
        let mut latest = Latest::kept_in(gone).expect("none");
        latest
            .came((OURS, 5))
            .expect_err("it is not on stable storage");
        latest.check((OURS, 4)).expect("nobody has come");
    }
}
