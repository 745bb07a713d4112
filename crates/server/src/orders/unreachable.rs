//! Undrained files that no walk comes by: their directory was removed from the PFS, or replaced
//! there.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use forebay_namespace::Dir;
use forebay_types::{Errno, ObjectId};
use forebay_wire::control::PathFailure;

use crate::orders::Orders;
use crate::orders::asker::Asker;

/// Why a command does nothing with them, and what does.
const WHY: &str = "not on the PFS: its directory was removed or replaced there; `forebay fsck` puts it beside where it was";

impl Orders {
    /// Undrained files at or below `paths` that no walk comes by, as far as they are the user's.
    /// `seen` are files that the walk has come by: the PFS is not asked about these. None while the
    /// PFS is silent.
    pub fn unreachable(
        &self,
        asker: &Asker,
        paths: &[Vec<u8>],
        seen: &HashSet<ObjectId>,
    ) -> Vec<Vec<u8>> {
        if self.base.health().is_silent() {
            return Vec::new();
        }
        let paths: HashSet<&[u8]> = paths.iter().map(|path| &path[..]).collect();
        let mut found = Vec::new();
        if asker.is_trusted() {
            let stranded = self.buffer.stranded().lock();
            let named = stranded.iter().filter(|one| is_below(&one.path, &paths));
            found.extend(named.map(|one| one.path.clone()));
        }
        let files: Vec<_> = self.buffer.files();
        let mut gone = HashMap::new();
        for file in files {
            let meant = !seen.contains(&file.object) && {
                let state = file.lock();
                let theirs = asker.is_trusted() || state.meta.uid == asker.uid();
                theirs && state.is_dirty() && !state.is_unlinked()
            };
            if !meant {
                continue;
            }
            let path = file.path();
            let mut is_gone = |dir: &Arc<Dir>| {
                let known = gone.entry(dir.key);
                *known.or_insert_with(|| self.buffer.is_gone(dir))
            };
            if is_below(&path, &paths) && self.buffer.is_stranded_as(&file, &mut is_gone) {
                found.push(path);
            }
        }
        found.sort();
        found
    }
}

/// Whether a path is one of these, or below one.
fn is_below(path: &[u8], these: &HashSet<&[u8]>) -> bool {
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let mut above = ends.map(|(at, _)| &path[..at]).chain([path, b""]);
    above.any(|one| these.contains(one))
}

/// Whether one of these is at or below a path: what is missing there is no mistake of who named it.
pub fn explains(these: &[Vec<u8>], path: &[u8]) -> bool {
    let named = HashSet::from([path]);
    these.iter().any(|one| is_below(one, &named))
}

/// What is said of such a file.
pub fn failure(path: Vec<u8>) -> PathFailure {
    PathFailure {
        path,
        errno: Errno::ESTALE,
        reason: WHY.into(),
    }
}

#[cfg(test)]
mod tests {
    use forebay_wire::Peer;
    use forebay_wire::control::ControlResponse;

    use super::*;
    use crate::testing::{Lab, create, strand};

    fn asker(uid: u32) -> Asker {
        Asker::of(Peer {
            uid,
            gid: uid,
            groups: &[],
            local: true,
            near: false,
            mount: false,
            socket: None,
        })
    }

    #[test]
    fn what_no_walk_comes_by_is_found_below_what_was_named() {
        let lab = Lab::new();
        strand(&lab, "gone", "f");
        strand(&lab, "gone2", "g");
        let handle = create(lab.rooms(), b"kept", b"undrained");
        lab.rooms().files.release(handle).expect("close");
        let me = asker(rustix::process::geteuid().as_raw());
        let all = lab.rooms().locate(&me, &[Vec::new()], None);
        let ControlResponse::Where {
            files, failures, ..
        } = all
        else {
            panic!("{all:?}");
        };
        assert_eq!((files.len(), failures.len()), (1, 2), "{failures:?}");
        let below = |path: &str| {
            lab.rooms()
                .orders
                .unreachable(&me, &[path.into()], &HashSet::new())
        };
        assert_eq!(below(""), [b"gone/f".to_vec(), b"gone2/g".to_vec()]);
        assert_eq!(below("gone"), [b"gone/f".to_vec()]);
        assert_eq!(below("gone/f"), [b"gone/f".to_vec()]);
        for path in ["gon", "gone/f/x", "kept"] {
            assert!(below(path).is_empty(), "{path}");
        }
        let other = asker(4_000_000);
        let other = (lab.rooms())
            .orders
            .unreachable(&other, &[Vec::new()], &HashSet::new());
        assert!(other.is_empty());
        let seen = lab
            .rooms()
            .buffer
            .table()
            .read()
            .values()
            .map(|f| f.object)
            .collect();
        assert!(
            lab.rooms()
                .orders
                .unreachable(&me, &[Vec::new()], &seen)
                .is_empty()
        );
    }
}
