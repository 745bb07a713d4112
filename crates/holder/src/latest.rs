//! The latest start of a metadata server that has come, over restarts of the data server: one that
//! was replaced is sent away by a data server that has just been started, too.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use forebay_types::Errno;

use crate::kept;

const HEAD: &str = "forebay latest\n";

/// So many burst buffers are remembered, one after the other on one data server. Of one that was
/// used before all of them a start that was replaced would be let in.
const BUFFERS_MAX: usize = 64;

/// A burst buffer, and a start of its metadata server.
type From = ([u8; 16], u32);

/// The latest start of each burst buffer; the one that came last is last.
#[derive(Default)]
pub(crate) struct Latest {
    known: Vec<From>,
    /// Where it is kept.
    path: Option<PathBuf>,
}

impl Latest {
    /// What this file says, which says it from now on.
    pub(crate) fn kept_in(path: PathBuf) -> io::Result<Latest> {
        let known = match fs::read_to_string(&path) {
            Ok(text) => parse(&text).ok_or_else(|| damaged(&path))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok(Latest {
            known,
            path: Some(path),
        })
    }

    /// `ESTALE` for an earlier start than one that has come of the same burst buffer.
    pub(crate) fn check(&self, (instance, epoch): From) -> io::Result<()> {
        let mut known = self.known.iter();
        if known.any(|known| known.0 == instance && epoch < known.1) {
            tracing::warn!("a metadata server that was replaced has come, and is sent away");
            return Err(Errno::ESTALE.into());
        }
        Ok(())
    }

    /// This one has come: on stable storage before anything is done for it.
    pub(crate) fn came(&mut self, from: From) -> io::Result<()> {
        self.check(from)?;
        if self.known.last() == Some(&from) {
            return Ok(());
        }
        let mut known = self.known.clone();
        known.retain(|known| known.0 != from.0);
        known.push(from);
        known.drain(..known.len().saturating_sub(BUFFERS_MAX));
        if let Some(path) = &self.path {
            keep(path, &known)
                .inspect_err(|error| tracing::error!("{}: {error}", path.display()))?;
        }
        self.known = known;
        Ok(())
    }
}

fn keep(path: &Path, known: &[From]) -> io::Result<()> {
    let mut text = HEAD.to_string();
    for (instance, epoch) in known {
        let instance = u128::from_be_bytes(*instance);
        text += &format!("{instance:032x} {epoch}\n");
    }
    kept::write(path, &text)
}

/// Whole lines only: what is cut off says nothing.
fn parse(text: &str) -> Option<Vec<From>> {
    let lines = text.strip_prefix(HEAD)?;
    let known: Option<Vec<From>> = lines.lines().map(parse_line).collect();
    known.filter(|known| !known.is_empty() && known.len() <= BUFFERS_MAX && lines.ends_with('\n'))
}

fn parse_line(line: &str) -> Option<From> {
    let (instance, epoch) = line.split_once(' ')?;
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
        for damaged in ["", "nonsense\n", "07 5\n08 \n", "07 5"] {
            fs::write(&path, format!("{HEAD}{damaged}")).expect("damaged");
            Latest::kept_in(path.clone()).err().expect("refused");
        }
    }

    #[test]
    fn another_burst_buffer_lets_no_replaced_one_in() {
        let folder = tempfile::tempdir().expect("tempdir");
        let path = folder.path().join("latest");
        let start = || Latest::kept_in(path.clone()).expect("read");
        const THEIRS: [u8; 16] = [8; 16];
        start().came((OURS, 5)).expect("the first");
        let mut again = start();
        again.came((THEIRS, 2)).expect("the other");
        for mut latest in [again, start()] {
            for replaced in [(OURS, 4), (THEIRS, 1)] {
                let error = latest.came(replaced).expect_err("it was replaced");
                assert_eq!(Errno::of(&error), Errno::ESTALE);
            }
            latest.came((OURS, 5)).expect("the same one");
        }
        // Those that came last are known, and no more.
        let mut latest = start();
        for other in 0..BUFFERS_MAX as u8 - 1 {
            latest.came(([100 + other; 16], 1)).expect("another");
        }
        start().check((OURS, 4)).expect_err("it was replaced");
        start().check((THEIRS, 1)).expect("long ago");
        assert_eq!(start().known.len(), BUFFERS_MAX);
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
