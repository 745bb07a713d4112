//! Walks over the tree for the command line.

use std::sync::Arc;

use forebay_namespace::{Dir, File, Namespace, NsError, Place, Resolved, on_pfs};
use forebay_tiers::PfsId;
use forebay_types::{Errno, FileKind};

use crate::base::failure::Failure;
use crate::orders::Orders;
use crate::orders::asker::sight::Sight;

/// A regular file that a walk came by.
pub struct Visited {
    /// Its directory.
    pub dir: Arc<Dir>,
    /// Its name.
    pub name: Vec<u8>,
    /// The file, if it is in the burst buffer.
    pub file: Option<Arc<File>>,
}

impl Visited {
    /// Path from the root of the mount.
    pub fn path(&self) -> Vec<u8> {
        self.dir.path_of(&self.name)
    }

    /// Its name, to be kept.
    pub fn place(&self) -> Place {
        (self.dir.clone(), self.name.as_slice().into())
    }

    /// What has this name on the PFS now.
    pub fn id_on_pfs(&self, ns: &Namespace) -> Result<PfsId, Failure> {
        let dir = ns.open_dir(&self.dir)?;
        let stat = ns.pfs().stat(&dir, &self.name);
        Ok(stat.map_err(on_pfs("stat"))?.id)
    }
}

impl Orders {
    /// Visits the regular file at `path`, or all below it, in the order of their names, as far as
    /// `sight` goes. `visit` returns whether to go on; `fail` is told what cannot be read.
    pub fn walk(
        &self,
        path: &[u8],
        sight: &Sight<'_>,
        visit: &mut dyn FnMut(Visited) -> bool,
        fail: &mut dyn FnMut(Vec<u8>, Failure),
    ) -> bool {
        match self.resolve_now(path) {
            Ok((dir, Some((name, found)))) => match (sight.may_search(&dir), found.attr.kind) {
                (Err(errno), _) => {
                    fail(path.to_vec(), errno.into());
                    true
                }
                (Ok(()), FileKind::Regular) => visit(Visited {
                    dir,
                    name: name.to_vec(),
                    file: found.file,
                }),
                _ => true,
            },
            Ok((dir, None)) => self.walk_dir(&dir, sight, visit, fail, 0),
            Err(error) => {
                fail(path.to_vec(), sight.of_missing(path, error.into()));
                true
            }
        }
    }

    /// What a path is now: a copy that is trusted is looked at.
    fn resolve_now(&self, path: &[u8]) -> Result<Resolved, NsError> {
        let resolved = self.ns.resolve(path)?;
        let file = resolved.1.as_ref();
        match file.and_then(|(_, found)| found.file.as_ref()) {
            Some(file) => match self.ns.look_if_trusted(file) {
                Ok(()) => Ok(resolved),
                // The copy has left.
                Err(error) if error.errno() == Errno::ESTALE => self.ns.resolve(path),
                Err(error) => Err(error),
            },
            None => Ok(resolved),
        }
    }

    /// All below a directory, which is `depth` below where the walk began.
    pub fn walk_dir(
        &self,
        dir: &Arc<Dir>,
        sight: &Sight<'_>,
        visit: &mut dyn FnMut(Visited) -> bool,
        fail: &mut dyn FnMut(Vec<u8>, Failure),
        depth: usize,
    ) -> bool {
        // No path can be longer than PATH_MAX, so no tree that can be named is deeper.
        if depth > forebay_types::limits::PATH_BYTES_MAX / 2 {
            fail(dir.path(), Errno::ENAMETOOLONG.into());
            return true;
        }
        if let Err(failure) = sight.may_list(dir) {
            fail(dir.path(), failure);
            return true;
        }
        // Better some of the answer than none: who asks is told that it is not all.
        let known = |errno: Errno| errno == Errno::ETIMEDOUT || self.base.health().is_silent();
        let listed = match self.base.health().is_silent() {
            true => Err(Errno::ETIMEDOUT.into()),
            false => self
                .ns
                .look_at_trusted(dir)
                .and_then(|()| self.ns.list(dir)),
        };
        let mut entries = match listed {
            Ok(entries) => entries,
            Err(error) if known(error.errno()) => {
                fail(dir.path(), Errno::ETIMEDOUT.into());
                self.ns.list_known(dir)
            }
            Err(error) => {
                fail(dir.path(), error.into());
                return true;
            }
        };
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        for entry in entries {
            let go_on = match entry.kind {
                FileKind::Regular => visit(Visited {
                    dir: dir.clone(),
                    name: entry.name,
                    file: entry.file,
                }),
                FileKind::Directory => match self.ns.resolve(&dir.path_of(&entry.name)) {
                    Ok((child, None)) => self.walk_dir(&child, sight, visit, fail, depth + 1),
                    Ok(_) => true,
                    Err(error) => {
                        fail(dir.path_of(&entry.name), error.into());
                        true
                    }
                },
                _ => true,
            };
            if !go_on {
                return false;
            }
        }
        true
    }
}
