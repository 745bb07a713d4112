//! lookup: the burst buffer's file where there is one, else what the PFS has.
//!
//! A clean copy is shown only as long as the PFS still has what it was copied from. A dirty file is
//! shown regardless: it is newer than anything there, and its demotion will notice a conflict.

use std::sync::Arc;

use forebay_tiers::{PfsDir, PfsId, PfsStat, PfsTree};
use forebay_types::{Attr, Errno, FileKind, Ino, check_name};

use crate::error::on_pfs;
use crate::record::Published;
use crate::table::{Node, PlainNode};
use crate::tree::lastlook::Moment;
use crate::tree::{Dir, File, Name};
use crate::{Namespace, NsError};

/// A name that is renamed again and again is looked up so often; then it is what was found.
const ROUNDS_MAX: u32 = 64;

/// What a name stands for.
pub struct Found {
    /// Attributes; of an open file, as of the last close.
    pub attr: Attr,
    /// The file, if it is in the burst buffer.
    pub file: Option<Arc<File>>,
}

/// Where a path leads: a directory, or a name in one.
pub type Resolved = (Arc<Dir>, Option<(Name, Found)>);

impl Namespace {
    /// Resolves a name and counts one reference of the kernel.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Found, NsError> {
        check_name(name)?;
        let dir = self.dir(parent)?;
        self.lookup_in(&dir, name, true)
    }

    /// Resolves a path from the root without counting references.
    pub fn resolve(&self, path: &[u8]) -> Result<Resolved, NsError> {
        let mut dir = self.root.clone();
        let mut parts = path
            .split(|&b| b == b'/')
            .filter(|p| !p.is_empty())
            .peekable();
        while let Some(part) = parts.next() {
            check_name(part)?;
            let found = self.lookup_in(&dir, part, false)?;
            if parts.peek().is_none() && found.attr.kind != FileKind::Directory {
                return Ok((dir, Some((part.into(), found))));
            }
            if found.attr.kind != FileKind::Directory {
                return Err(Errno::ENOTDIR.into());
            }
            if let Some(child) = dir.unpublished_child(part) {
                dir = child;
                continue;
            }
            dir = self.child_dir(&dir, part)?;
        }
        Ok((dir, None))
    }

    /// Resolves a name in a directory.
    pub fn lookup_in(&self, dir: &Arc<Dir>, name: &[u8], remember: bool) -> Result<Found, NsError> {
        let mut rounds = 0;
        loop {
            let changes = dir.changes_of(name);
            let found = self.lookup_once(dir, (name, changes), remember);
            rounds += 1;
            let found = match found {
                Ok(found) => found,
                // Two names that are exchanged one after the other are never both gone.
                Err(error) => {
                    let is_gone = error.errno() == Errno::ENOENT && rounds <= ROUNDS_MAX;
                    if !is_gone || !self.is_overtaken(dir, name, changes)? {
                        return Err(error);
                    }
                    dir.note_present(name);
                    continue;
                }
            };
            let is_sure = found.file.is_some() || rounds > ROUNDS_MAX;
            if is_sure || !self.is_overtaken(dir, name, changes)? {
                return Ok(found);
            }
            if remember {
                self.forget(found.attr.ino, 1);
            }
        }
    }

    /// Whether what the PFS has by this name is not what the name stands for: an older version of a
    /// file of the burst buffer that is just being renamed.
    fn is_overtaken(&self, dir: &Dir, name: &[u8], changes: u32) -> Result<bool, NsError> {
        if dir.is_in_change(name) {
            drop(dir.order(&self.pfs)?);
            return Ok(true);
        }
        Ok(dir.changes_of(name) != changes || dir.child(name).is_some())
    }

    /// The name has changed so often before.
    fn lookup_once(
        &self,
        dir: &Arc<Dir>,
        (name, changes): (&[u8], u32),
        remember: bool,
    ) -> Result<Found, NsError> {
        while let Some(file) = dir.child(name) {
            if !self.is_trusted(dir, name, &file) && !self.still_valid(dir, name, &file)? {
                break;
            }
            // With the directory's lock held, it is not evicted meanwhile.
            let children = dir.lock();
            if !children
                .get(name)
                .is_some_and(|now| Arc::ptr_eq(now, &file))
            {
                continue;
            }
            let attr = file.attr();
            if remember {
                self.table
                    .lock()
                    .remember(file.ino, Node::File(file.clone()));
            }
            return Ok(Found {
                attr,
                file: Some(file),
            });
        }
        if let Some(found) = self.lookup_unpublished(dir, name, remember)? {
            return Ok(found);
        }
        if PfsTree::is_temporary(name) {
            return Err(Errno::ENOENT.into());
        }
        if let Some(attr) = self.known_attr(dir, name, remember) {
            return Ok(Found { attr, file: None });
        }
        let handle = self.open_dir(dir)?;
        if dir.empty_dirs.holds(&self.pfs, &handle) {
            dir.note_absent(name, changes);
            return Err(Errno::ENOENT.into());
        }
        let stat = self
            .pfs
            .stat(&handle, name)
            .inspect_err(|e| {
                if e.raw_os_error() == Some(libc::ENOENT) {
                    dir.note_absent(name, changes);
                }
            })
            .map_err(on_pfs("stat"))?;
        dir.note_present(name);
        Ok(Found {
            attr: self.meet(dir, name, &stat, remember),
            file: None,
        })
    }

    /// Whether the last look at the PFS is young enough for what is said of this path. A copy whose
    /// file the PFS lost meanwhile, or has in another version, is shown until then. Of several
    /// names one look tells nothing of the others.
    fn is_trusted(&self, dir: &Dir, name: &[u8], file: &File) -> bool {
        let (Some(age), Some(trust)) = (file.looked_at.age(), self.trust.get()) else {
            return false;
        };
        let state = file.lock();
        let is_plain = state.residency.clean && state.names.len() == 1;
        drop(state);
        is_plain && age < trust(&|| dir.path_of(name))
    }

    /// Whether copies of this path are trusted at all. Then what was looked up may be older than
    /// what the kernel believes, and who changes it, or asks for what only the PFS knows, looks
    /// first.
    pub(crate) fn trusts(&self, dir: &Dir, name: &[u8]) -> bool {
        let trust = self.trust.get();
        trust.is_some_and(|trust| !trust(&|| dir.path_of(name)).is_zero())
    }

    /// Such a look, at a clean copy. `ESTALE`: the copy is dropped, and whoever asked looks the
    /// name up again.
    pub fn look_if_trusted(&self, file: &Arc<File>) -> Result<(), NsError> {
        let name = {
            let state = file.lock();
            let clean = state.residency.clean;
            state.names.first().filter(|_| clean).cloned()
        };
        match name {
            Some((dir, name))
                if self.trusts(&dir, &name) && !self.still_valid(&dir, &name, file)? =>
            {
                Err(Errno::ESTALE.into())
            }
            _ => Ok(()),
        }
    }

    /// The same for all copies of a directory, before somebody works through it: what is not what
    /// the PFS has goes.
    pub fn look_at_trusted(&self, dir: &Arc<Dir>) -> Result<(), NsError> {
        if self.trust.get().is_none() {
            return Ok(());
        }
        let children: Vec<_> = {
            let children = dir.lock();
            children
                .iter()
                .map(|(n, f)| (n.clone(), f.clone()))
                .collect()
        };
        // A rule may be for some names of a directory only.
        for (name, file) in children {
            if self.trusts(dir, &name) {
                self.still_valid(dir, &name, &file)?;
            }
        }
        Ok(())
    }

    /// Whether a burst-buffer file may still be shown under this name; a clean copy of something
    /// that is no longer on the PFS is dropped.
    pub(crate) fn still_valid(
        &self,
        dir: &Arc<Dir>,
        name: &[u8],
        file: &Arc<File>,
    ) -> Result<bool, NsError> {
        let published = {
            let state = file.lock();
            if state.is_dirty() {
                return Ok(true);
            }
            state.residency.published
        };
        if self.pfs.health().is_silent() {
            return Ok(true);
        }
        let handle = match self.open_dir(dir) {
            Ok(handle) => handle,
            Err(error) if matches!(error.refusal(), Some(Errno::ENOENT | Errno::ESTALE)) => {
                return Ok(true);
            }
            Err(error) => return self.serve_unchecked(file, error),
        };
        let begun = Moment::now();
        match self.pfs.stat_now(&handle, name) {
            Ok(stat) if published.is_some_and(|p| p.is(&stat)) => {
                file.looked_at.set(begun);
                return Ok(true);
            }
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return self.serve_unchecked(file, on_pfs("stat")(error)),
        }
        self.drop_outdated((dir, &handle), name, file, published)
    }

    /// The PFS does not answer: what is in the burst buffer goes on being served.
    fn serve_unchecked(&self, file: &File, error: NsError) -> Result<bool, NsError> {
        let path = file.path();
        tracing::debug!("{}: not revalidated: {error}", path.escape_ascii());
        Ok(true)
    }

    fn drop_outdated(
        &self,
        (dir, handle): (&Arc<Dir>, &PfsDir),
        name: &[u8],
        file: &Arc<File>,
        published: Option<Published>,
    ) -> Result<bool, NsError> {
        // Whoever has just changed it there is done then: the name may be gone, and it may be back.
        let _order = dir.order(&self.pfs)?;
        let _naming = file.naming(&self.pfs)?;
        if !dir.child(name).is_some_and(|now| Arc::ptr_eq(&now, file)) {
            return Ok(false);
        }
        let now = file.lock().residency.published;
        let found = self.pfs.stat_now(handle, name);
        if let Ok(stat) = &found
            && now.is_some_and(|published| published.is(stat))
        {
            return Ok(true);
        }
        let mut children = dir.lock();
        let mut state = file.lock();
        let unchanged = state.residency.clean && state.residency.published == published;
        if !unchanged || state.is_unlinked() {
            return Ok(!state.is_unlinked());
        }
        let mut batch = crate::log::Batch::new();
        let several = state.names.len() > 1;
        if several {
            state.drop_name(dir, name);
            self.put_file(&mut batch, file, &state)?;
            self.commit(batch)?;
        } else {
            let garbage = self.drop_file(&mut batch, file, &state)?;
            // An unlink of ours that was cut off, of what clients had open.
            let is_lost = self.holders.knows(file.object)
                && found.is_err_and(|error| error.raw_os_error() == Some(libc::ENOENT));
            if is_lost {
                self.put_nameless(&mut batch, file, &state)?;
            }
            self.commit(batch)?;
            match is_lost {
                true => drop(state.unlink()),
                // What is published may have another name there.
                false => state.leave(),
            }
            self.add_garbage(garbage);
        }
        children.remove(name);
        Ok(false)
    }

    /// Attributes of something on the PFS; with `remember`, counts one reference of the kernel.
    pub(crate) fn meet(&self, dir: &Arc<Dir>, name: &[u8], stat: &PfsStat, remember: bool) -> Attr {
        if stat.kind() == FileKind::Directory {
            let child = self.intern_dir(stat.id, dir, name);
            child.learn(stat);
            if remember {
                self.table
                    .lock()
                    .remember(child.ino, Node::Dir(child.clone()));
            }
            return self.dir_attr(&child, stat);
        }
        let mut table = self.table.lock();
        let ino = table.ino_for(stat.id, self.root_dev);
        if remember {
            let node = PlainNode {
                kind: stat.kind(),
                parent: dir.clone(),
                name: name.into(),
                id: stat.id,
            };
            table.remember(ino, Node::Plain(Arc::new(node)));
        }
        attr_of(ino, stat)
    }

    pub(crate) fn dir_attr(&self, dir: &Dir, stat: &PfsStat) -> Attr {
        let mut attr = attr_of(dir.ino, stat);
        (attr.mtime, attr.ctime) = dir.times.shown(stat);
        attr
    }

    /// Whether all names of a directory are the burst buffer's, as of the last file that was made
    /// there: the PFS had none.
    pub fn has_all_names(&self, dir: Ino) -> bool {
        match self.table.lock().get(dir) {
            Some(Node::Dir(dir)) => dir.empty_dirs.have_held(),
            _ => false,
        }
    }

    /// When what is known by this id began to be, as the PFS says it, nanoseconds: with the id it
    /// tells a file from another one, over restarts. 0 where the PFS does not say, or the id is not
    /// the PFS's own.
    pub fn birth_of(&self, ino: Ino) -> u64 {
        let table = self.table.lock();
        match table.get(ino) {
            Some(Node::Dir(dir)) if dir.key.ino == ino.0 => dir.key.btime_ns,
            Some(Node::Plain(plain)) if plain.id.ino == ino.0 => plain.id.btime_ns,
            Some(Node::File(file)) => {
                let file = file.clone();
                drop(table);
                let published = file.lock().residency.published;
                let published = published.filter(|published| published.ino == ino.0);
                published.map_or(0, |published| published.btime_ns)
            }
            _ => 0,
        }
    }

    /// The id a PFS inode goes by.
    pub fn ino_of(&self, id: PfsId) -> Ino {
        self.table.lock().ino_for(id, self.root_dev)
    }
}

pub(crate) fn attr_of(ino: Ino, stat: &PfsStat) -> Attr {
    Attr {
        ino,
        kind: stat.kind(),
        perm: stat.perm(),
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.rdev,
        size: stat.size,
        blocks: stat.blocks,
        atime: stat.atime,
        mtime: stat.mtime,
        ctime: stat.ctime,
    }
}
