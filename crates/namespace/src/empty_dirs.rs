//! Directories known to have no names on the PFS: a name that is not in the burst buffer is free
//! there.
//!
//! A directory made through the mount is looked through once, when the first file is created in it.
//! If it is empty, it stays so until its time of change moves, or until Forebay itself puts a name
//! there. That time is asked for instead of each new name: the directory is open, and a network
//! file system knows it without asking its server, while it would have to ask for every name that
//! it has never heard of.

use forebay_tiers::{PfsDir, PfsStat, PfsTree};
use forebay_types::TimeSpec;
use parking_lot::Mutex;

use crate::tick;

/// When a directory's names last changed.
type Stamp = (TimeSpec, TimeSpec);

enum State {
    /// Nothing is known, and finding out is not worth it.
    Unknown,
    /// It was made here a moment ago: probably it is empty.
    Young,
    /// It was empty when it had this stamp.
    Empty(Stamp),
}

/// What is known about a directory's emptiness on the PFS.
pub(crate) struct EmptyDirs(Mutex<State>);

impl EmptyDirs {
    /// Nothing is known.
    pub(crate) fn unknown() -> EmptyDirs {
        EmptyDirs(Mutex::new(State::Unknown))
    }

    /// The directory has just been made.
    pub(crate) fn begin(&self) {
        *self.0.lock() = State::Young;
    }

    /// A name has come, or is about to come, to the PFS through Forebay.
    pub(crate) fn end(&self) {
        *self.0.lock() = State::Unknown;
    }

    /// Whether the directory had no name on the PFS when that was last looked at.
    pub(crate) fn have_held(&self) -> bool {
        matches!(*self.0.lock(), State::Empty(_))
    }

    /// Whether the directory has no name on the PFS now.
    pub(crate) fn holds(&self, pfs: &PfsTree, dir: &PfsDir) -> bool {
        let known = match &*self.0.lock() {
            State::Unknown => return false,
            State::Empty(stamp) => Some(*stamp),
            State::Young => None,
        };
        let found = match known {
            Some(stamp) => pfs.stat_dir(dir).ok().filter(|s| stamp_of(s) == stamp),
            None => look_through(pfs, dir),
        };
        let mut state = self.0.lock();
        match (found, known) {
            // It may have ended meanwhile, and must not begin again.
            _ if matches!(*state, State::Unknown) => false,
            (Some(stat), _) => {
                *state = State::Empty(stamp_of(&stat));
                true
            }
            // Changed by somebody else.
            (None, Some(_)) => {
                *state = State::Unknown;
                false
            }
            // Too early to tell.
            (None, None) => false,
        }
    }
}

fn stamp_of(stat: &PfsStat) -> Stamp {
    (stat.mtime, stat.ctime)
}

/// The directory, if it is empty and any further change will show.
fn look_through(pfs: &PfsTree, dir: &PfsDir) -> Option<PfsStat> {
    let before = pfs.stat_dir(dir).ok()?;
    if tick::left(&before, TimeSpec::now()).is_some() {
        return None;
    }
    let mut empty = true;
    pfs.read_dir(dir, &mut |_| empty = false).ok()?;
    let after = pfs.stat_dir(dir).ok()?;
    (empty && stamp_of(&before) == stamp_of(&after)).then_some(after)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn tree() -> (tempfile::TempDir, PfsTree) {
        let top = tempfile::tempdir().unwrap();
        let tree = PfsTree::open(top.path()).unwrap();
        (top, tree)
    }

    /// Waits until the tick in which the directory was made is over.
    fn becomes_known(empty_dirs: &EmptyDirs, tree: &PfsTree) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(30) {
            if empty_dirs.holds(tree, tree.root()) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    #[test]
    fn an_empty_directory_is_known_as_such_until_an_outsider_changes_it() {
        let (top, tree) = tree();
        let empty_dirs = EmptyDirs::unknown();
        assert!(!empty_dirs.holds(&tree, tree.root()), "nobody has said so");
        empty_dirs.begin();
        assert!(becomes_known(&empty_dirs, &tree));
        assert!(empty_dirs.holds(&tree, tree.root()));
        std::fs::write(top.path().join("outsider"), b"").unwrap();
        assert!(!empty_dirs.holds(&tree, tree.root()), "seen at once");
        std::fs::remove_file(top.path().join("outsider")).unwrap();
        assert!(
            !empty_dirs.holds(&tree, tree.root()),
            "once lost, lost for good"
        );
    }

    #[test]
    fn a_directory_with_names_is_never_taken_for_empty() {
        let (top, tree) = tree();
        std::fs::write(top.path().join("outsider"), b"").unwrap();
        let empty_dirs = EmptyDirs::unknown();
        empty_dirs.begin();
        std::thread::sleep(2 * tick::FINE);
        assert!(!empty_dirs.holds(&tree, tree.root()));
    }

    #[test]
    fn a_name_of_ours_ends_it() {
        let (_top, tree) = tree();
        let empty_dirs = EmptyDirs::unknown();
        empty_dirs.begin();
        assert!(becomes_known(&empty_dirs, &tree));
        empty_dirs.end();
        assert!(!empty_dirs.holds(&tree, tree.root()));
    }
}
