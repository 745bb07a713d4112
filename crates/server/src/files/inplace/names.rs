//! Directories of the PFS whose names were changed through the mount: a drain flushes those that it
//! puts files into, and no other.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use forebay_namespace::{Dir, Node, on_pfs};
use forebay_types::{Errno, Ino};
use parking_lot::Mutex;

use crate::base::failure::Failure;
use crate::files::Files;

/// So many are remembered: who changes one more flushes the oldest.
const DIRS_MAX: usize = 1024;

/// Those that are not flushed, in the order of their first change; none where one flush of the
/// whole file system does for all.
#[derive(Default)]
pub struct Names {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    dirs: VecDeque<Arc<Dir>>,
    /// Their ids.
    known: HashSet<Ino>,
}

impl Files {
    /// Names in a directory have changed.
    pub fn note_names(&self, parent: Ino) {
        if self.ns.pfs().flushes_together() {
            return;
        }
        let Ok(Node::Dir(dir)) = self.ns.node(parent) else {
            return;
        };
        let oldest = {
            let mut state = self.names.state.lock();
            if !state.known.insert(dir.ino) {
                return;
            }
            state.dirs.push_back(dir);
            let oldest = match state.dirs.len() > DIRS_MAX {
                true => state.dirs.pop_front(),
                false => None,
            };
            if let Some(oldest) = &oldest {
                state.known.remove(&oldest.ino);
            }
            oldest
        };
        if let Some(dir) = oldest {
            self.flush_names_in(&dir);
        }
    }

    /// Puts all names on stable storage, when nothing changes any more.
    pub fn flush_names(&self) {
        let state = std::mem::take(&mut *self.names.state.lock());
        for dir in state.dirs {
            self.flush_names_in(&dir);
        }
        let pfs = self.ns.pfs();
        let flushed = pfs.flush_together().and_then(|together| match together {
            // It hears of errors of files, too, which were told of those. What is wrong with names
            // stays wrong.
            Some(together) => {
                (pfs.sync_together(&together)).or_else(|_| pfs.sync_together(&together))
            }
            None => Ok(()),
        });
        if let Err(error) = flushed {
            self.names_failed(Vec::new(), &Failure::of_io("flush of the PFS", error));
        }
    }

    fn flush_names_in(&self, dir: &Arc<Dir>) {
        let handle = self.ns.open_dir(dir);
        let flushed = handle.and_then(|handle| {
            let synced = self.ns.pfs().sync_dir(&handle);
            synced.map_err(on_pfs("flush of the directory on the PFS"))
        });
        match flushed.map_err(Failure::from) {
            Ok(()) => {}
            // Removed since.
            Err(failure) if matches!(failure.errno(), Errno::ENOENT | Errno::ESTALE) => {}
            Err(failure) => self.names_failed(dir.path(), &failure),
        }
    }

    fn names_failed(&self, path: Vec<u8>, failure: &Failure) {
        let reason = format!(
            "names in it were changed on the PFS, which could not put them on stable storage: \
             {failure}; they may be lost there"
        );
        self.in_place.names_failed(path.clone());
        self.base.report_loss(path, failure.errno(), reason);
    }
}
