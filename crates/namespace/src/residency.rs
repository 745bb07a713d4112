//! Residency: files come into the burst buffer, become dirty, are published, and leave.
//!
//! ```text
//!            attach (stage-in)                     change
//!   PFS only ----------------> clean  --------------------------> dirty <--- create
//!      ^                        |  ^                                |
//!      |        evict           |  |  confirm     place     begin   |
//!      +------------------------+  +---------- demoting <-----------+
//! ```
//!
//! Promises kept here: only a clean file is evicted; a copy is published only if the content is
//! still of the generation that was copied; what an outsider put in its place is never replaced.

use std::sync::Arc;

use forebay_kv::{Batch, Durability};
use forebay_tiers::{PfsDir, PfsStat, PfsTree, RenameMode};
use forebay_types::{Errno, FileKind, Generation, Ino, ObjectId, TierId, failpoint};

use crate::dir::Dir;
use crate::file::{File, FileState};
use crate::ops::rename::rename_in;
use crate::outside::{CONFLICT_INFIX, Conflict, ConflictKind};
use crate::record::{Meta, Published, Residency, Temporary};
use crate::table::{Node, PlainNode};
use crate::{Namespace, NsError};

fn has_infix(name: &[u8], infix: &str) -> bool {
    name.windows(infix.len())
        .any(|part| part == infix.as_bytes())
}

/// A demotion under way: what is to be copied, and where to.
pub struct Demotion {
    /// The file.
    pub file: Arc<File>,
    /// Directory of the name it is published under.
    pub dir: Arc<Dir>,
    /// The directory on the PFS.
    pub handle: PfsDir,
    /// That name.
    pub name: Box<[u8]>,
    /// Name of the temporary file beside it.
    pub temporary: Vec<u8>,
    /// What is copied.
    pub generation: Generation,
    /// Tier to copy from.
    pub tier: TierId,
    /// Attributes to give the copy.
    pub meta: Meta,
    /// Extended attributes to give the copy.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What came of putting a finished copy in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placed {
    /// It is there.
    Published,
    /// The file changed, moved or was unlinked meanwhile: the copy is to be thrown away.
    Superseded,
    /// An outsider has put something else there. It keeps its name; our version is beside it.
    Conflict {
        /// Name of our version.
        name: Vec<u8>,
    },
}

impl Namespace {
    /// Makes a file of the PFS a file of the burst buffer, whose object holds the same content.
    /// Fails with `ESTALE` if the PFS's file is no longer the one that was copied.
    pub fn attach(
        &self,
        dir: &Arc<Dir>,
        name: &[u8],
        stat: &PfsStat,
        object: ObjectId,
        residency: Residency,
        allocated_bytes: u64,
    ) -> Result<Arc<File>, NsError> {
        let xattrs = match residency.clean {
            true => Vec::new(),
            false => self.load_xattrs(dir, name)?,
        };
        let _order = dir.order(&self.pfs)?;
        if dir.child(name).is_some() {
            return Err(Errno::EEXIST.into());
        }
        let now = self.pfs.stat(&self.open_dir(dir)?, name)?;
        if Published::from(&now) != Published::from(stat) {
            return Err(Errno::ESTALE.into());
        }
        let ino = {
            let mut table = self.table.lock();
            let ino = table.ino_for(stat.id, self.root_dev);
            table.reserve(ino);
            ino
        };
        let state = FileState {
            names: vec![(dir.clone(), name.into())],
            meta: Meta {
                perm: stat.perm(),
                uid: stat.uid,
                gid: stat.gid,
                size: if residency.clean { stat.size } else { 0 },
                allocated_bytes,
                atime: stat.atime,
                mtime: stat.mtime,
                ctime: stat.ctime,
            },
            xattrs,
            residency,
            demoting: false,
            error: None,
            error_unreported: false,
            drain_open: 0,
            safe: None,
            unsaved: false,
        };
        let file = Arc::new(File::new(object, ino, state));
        let mut batch = Batch::new();
        self.put_dirs(&mut batch, dir)?;
        self.put_file(&mut batch, &file, &file.lock())?;
        self.commit(batch)?;
        failpoint::hit(failpoint::Point::StageRecord);
        dir.lock().insert(name.into(), file.clone());
        self.dirs_written(dir);
        self.table.lock().replace(ino, Node::File(file.clone()));
        Ok(file)
    }

    /// The content is about to change, or may change unseen (`writing`): from here on the file is
    /// dirty, on record too.
    pub fn begin_change(&self, file: &Arc<File>, writing: bool) -> Result<(), NsError> {
        let (clean, name) = {
            let state = file.lock();
            (state.residency.clean, state.names.first().cloned())
        };
        let xattrs = match (clean, name) {
            (true, Some((dir, name))) => Some(self.load_xattrs(&dir, &name)?),
            _ => None,
        };
        let mut state = file.lock();
        let persist = state.residency.clean || (writing && !state.residency.writing);
        if let Some(xattrs) = xattrs.filter(|_| state.residency.clean) {
            state.xattrs = xattrs;
        }
        state.changed();
        state.residency.writing |= writing;
        if persist {
            self.save(file, &state, Durability::Buffered)?;
            failpoint::hit(failpoint::Point::ChangeRecorded);
        }
        Ok(())
    }

    /// A file opened for unseen writing was closed without a change: it is as clean as it was.
    pub fn unchanged(&self, file: &File, was: (Generation, Option<u32>)) -> Result<(), NsError> {
        let mut state = file.lock();
        state.residency.writing = false;
        let same =
            state.residency.generation == was.0 || state.residency.generation == was.0.next();
        if state.residency.published.is_some() && same {
            state.residency.clean = true;
            state.residency.crc = was.1;
        }
        self.save(file, &state, Durability::Buffered)
    }

    /// The object has been copied to another tier, which has it from now on.
    pub fn migrated(
        &self,
        file: &File,
        generation: Generation,
        tier: TierId,
        exclusive: bool,
    ) -> Result<bool, NsError> {
        let mut state = file.lock();
        if state.residency.generation != generation || (state.residency.writing && !exclusive) {
            return Ok(false);
        }
        state.residency.tier = tier;
        state.residency.shadow = None;
        self.save(file, &state, Durability::Synced)?;
        failpoint::hit(failpoint::Point::MoveRecord);
        Ok(true)
    }

    /// Begins a demotion, unless the file is clean, unlinked, already being demoted, or written
    /// unseen.
    pub fn begin_demotion(&self, file: &Arc<File>) -> Result<Option<Demotion>, NsError> {
        let (dir, name, generation, tier, meta, xattrs) = {
            let mut state = file.lock();
            let unseen = state.residency.writing && state.drain_open == 0;
            if !state.is_dirty() || state.demoting || unseen {
                return Ok(None);
            }
            let Some((dir, name)) = state.names.first().cloned() else {
                return Ok(None);
            };
            state.demoting = true;
            let residency = state.residency;
            (
                dir,
                name,
                residency.generation,
                residency.tier,
                state.meta,
                state.xattrs.clone(),
            )
        };
        match self.open_dir(&dir) {
            Ok(handle) => Ok(Some(Demotion {
                file: file.clone(),
                dir,
                handle,
                temporary: PfsTree::temporary_name(self.instance, file.object, generation),
                name,
                generation,
                tier,
                meta,
                xattrs,
            })),
            Err(error) => {
                file.lock().demoting = false;
                Err(error)
            }
        }
    }

    /// Records the temporary file, so that after a crash it is known whose it is.
    pub fn note_temporary(&self, demotion: &Demotion, ino: u64) -> Result<(), NsError> {
        let mut state = demotion.file.lock();
        state.residency.temporary = Some(Temporary {
            generation: demotion.generation,
            ino,
        });
        self.save(&demotion.file, &state, Durability::Buffered)?;
        failpoint::hit(failpoint::Point::DemoteNoted);
        Ok(())
    }

    /// Whether the copy under way is still of the newest content.
    pub fn is_current(&self, demotion: &Demotion) -> bool {
        let state = demotion.file.lock();
        state.residency.generation == demotion.generation && !state.is_unlinked()
    }

    /// Renames a whole, verified and flushed copy into place. With `itself` it is no copy but the
    /// object at this place, which is then no longer in its tier; so the file is clean from the
    /// rename on, and the caller sees to it that nobody opens it before it is evicted.
    pub fn place(
        &self,
        demotion: &Demotion,
        itself: Option<(&PfsDir, &[u8])>,
    ) -> Result<Placed, NsError> {
        let source = itself.unwrap_or((&demotion.handle, &demotion.temporary));
        let _order = demotion.dir.order(&self.pfs)?;
        let _naming = demotion.file.naming(&self.pfs)?;
        let expected = {
            let state = demotion.file.lock();
            let here = state.names.first().is_some_and(|(dir, name)| {
                Arc::ptr_eq(dir, &demotion.dir) && *name == demotion.name
            });
            if !here || state.residency.generation != demotion.generation {
                return Ok(Placed::Superseded);
            }
            state.residency.published
        };
        let found = match self.pfs.stat(&demotion.handle, &demotion.name) {
            Ok(stat) => Some(stat),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => None,
            Err(e) => return Err(e.into()),
        };
        let conflict = match (&found, expected) {
            (_, Some(Published::GOING)) | (None, None) => None,
            (None, Some(_)) => Some(ConflictKind::Removed),
            (Some(_), None) => Some(ConflictKind::Taken),
            (Some(stat), Some(ours)) if Published::from(stat) == ours => None,
            (Some(_), Some(_)) => Some(ConflictKind::Changed),
        };
        if let Some(kind) = conflict {
            return self.place_beside(demotion, source, itself.is_some(), kind);
        }
        let mode = if found.is_some() {
            RenameMode::Replace
        } else {
            RenameMode::NoReplace
        };
        match self
            .pfs
            .rename(source.0, source.1, &demotion.handle, &demotion.name, mode)
        {
            Ok(()) => {}
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {
                let kind = ConflictKind::Taken;
                return self.place_beside(demotion, source, itself.is_some(), kind);
            }
            Err(e) => return Err(e.into()),
        }
        failpoint::hit(failpoint::Point::DemotePlaced);
        // Names in other directories come and go, but not before this is over.
        let names = demotion.file.lock().names.clone();
        let linked = self.place_links(demotion, &names);
        let stat = self.pfs.stat(&demotion.handle, &demotion.name)?;
        // From here on an unlink or rename must act on the PFS too.
        let mut state = demotion.file.lock();
        state.residency.published = Some((&stat).into());
        state.residency.clean |= itself.is_some();
        failpoint::hit(failpoint::Point::DemoteLinks);
        linked.map(|()| Placed::Published)
    }

    /// Further names of the file become links of the published one.
    fn place_links(
        &self,
        demotion: &Demotion,
        names: &[(Arc<Dir>, Box<[u8]>)],
    ) -> Result<(), NsError> {
        let itself = |dir: &Arc<Dir>, name: &[u8]| {
            Arc::ptr_eq(dir, &demotion.dir) && *name == *demotion.name
        };
        for (dir, name) in names.iter().filter(|(dir, name)| !itself(dir, name)) {
            let handle = self.open_dir(dir)?;
            let temporary = self.link_name(demotion.file.object, demotion.generation);
            self.pfs
                .link(&demotion.handle, &demotion.name, &handle, &temporary)?;
            failpoint::hit(failpoint::Point::DemoteLinked);
            self.pfs
                .rename(&handle, &temporary, &handle, name, RenameMode::Replace)?;
        }
        Ok(())
    }

    /// The name is an outsider's from now on. Our version goes beside it, and the file with it: who
    /// has it open goes on under the new name.
    fn place_beside(
        &self,
        demotion: &Demotion,
        source: (&PfsDir, &[u8]),
        itself: bool,
        kind: ConflictKind,
    ) -> Result<Placed, NsError> {
        let name = self.move_beside(source, &demotion.handle, &demotion.name)?;
        failpoint::hit(failpoint::Point::ConflictPlaced);
        let stat = self.pfs.stat(&demotion.handle, &name);
        let mut children = demotion.dir.lock();
        let mut state = demotion.file.lock();
        let old = (demotion.dir.clone(), demotion.name.clone());
        let new = (demotion.dir.clone(), name.clone().into_boxed_slice());
        rename_in(&mut state.names, &old, new);
        children.remove(&demotion.name);
        children.insert(name.clone().into_boxed_slice(), demotion.file.clone());
        state.residency.published = stat.as_ref().ok().map(Published::from);
        state.residency.clean |= itself && state.residency.published.is_some();
        if state.names.len() > 1 {
            // The other names are still links of the older version: the next demotion sees to them.
            state.residency.generation = state.residency.generation.next();
        }
        self.save(&demotion.file, &state, Durability::Buffered)?;
        failpoint::hit(failpoint::Point::ConflictYielded);
        self.note_conflict(Conflict {
            path: demotion.dir.path_of(&demotion.name),
            kept_as: name.clone(),
            theirs: false,
            kind,
        });
        Ok(Placed::Conflict { name })
    }

    /// Temporary name of a further link; no demotion of the file gets it.
    fn link_name(&self, object: ObjectId, generation: Generation) -> Vec<u8> {
        PfsTree::temporary_name(self.instance, object, Generation(generation.0 | 1 << 63))
    }

    /// The copy is durable under its name: the file is clean, if it has not changed since.
    pub fn confirm(
        &self,
        demotion: &Demotion,
        crc: u32,
        durability: Durability,
    ) -> Result<bool, NsError> {
        let mut state = demotion.file.lock();
        state.demoting = false;
        state.error = None;
        state.error_unreported = false;
        state.residency.temporary = None;
        let current = state.residency.generation == demotion.generation;
        if current {
            let written = state.residency.writing;
            state.residency.clean = state.residency.published.is_some() && !written;
            state.safe = Some(demotion.generation);
            state.residency.crc = Some(crc);
            state.xattrs = Vec::new();
        }
        self.save(&demotion.file, &state, durability)?;
        failpoint::hit(failpoint::Point::DemoteConfirmed);
        Ok(current)
    }

    /// The demotion is given up; the temporary file has been removed, or never was.
    pub fn abandon(&self, demotion: &Demotion, error: Option<Errno>) -> Result<(), NsError> {
        let mut state = demotion.file.lock();
        state.demoting = false;
        state.residency.temporary = None;
        if let Some(errno) = error {
            state.error_unreported |= state.error != Some(errno);
            state.error = Some(errno);
        }
        self.save(&demotion.file, &state, Durability::Buffered)
    }

    /// Drops a clean copy. `false` if the file is not clean (any more) or is busy: undrained data
    /// is never evicted.
    pub fn evict(&self, file: &Arc<File>) -> Result<bool, NsError> {
        let names = file.lock().names.clone();
        let Some((first, name)) = names.first().cloned() else {
            return Ok(false);
        };
        // Directories are locked in the order of their keys, as by a rename.
        let mut dirs: Vec<Arc<Dir>> = names.iter().map(|(dir, _)| dir.clone()).collect();
        dirs.sort_by_key(|dir| dir.key);
        dirs.dedup_by_key(|dir| dir.key);
        let orders: Option<Vec<_>> = dirs.iter().map(|dir| dir.try_order(&self.pfs)).collect();
        let naming = orders.as_ref().and(file.try_naming(&self.pfs));
        if naming.is_none() {
            // Somebody waits for the PFS with it.
            return Ok(false);
        }
        let mut children: Vec<_> = dirs.iter().map(|dir| dir.lock()).collect();
        let mut state = file.lock();
        let same = |a: &(Arc<Dir>, Box<[u8]>), b: &(Arc<Dir>, Box<[u8]>)| {
            Arc::ptr_eq(&a.0, &b.0) && a.1 == b.1
        };
        let here = state.names.len() == names.len()
            && state.names.iter().zip(&names).all(|(a, b)| same(a, b));
        let residency = state.residency;
        let Some(published) = residency.published.filter(|_| here) else {
            return Ok(false);
        };
        if !residency.clean || residency.writing || state.demoting {
            return Ok(false);
        }
        let mut batch = Batch::new();
        let garbage = self.drop_file(&mut batch, file, &state)?;
        self.commit(batch)?;
        failpoint::hit(failpoint::Point::EvictRecord);
        state.names.clear();
        for (dir, name) in &names {
            let at = dirs.iter().position(|d| Arc::ptr_eq(d, dir));
            at.and_then(|at| children[at].remove(name));
        }
        self.leave(file, first, name, published);
        drop(state);
        drop(children);
        self.add_garbage(garbage);
        Ok(true)
    }

    /// From now on the id stands for the file on the PFS.
    fn leave(&self, file: &File, parent: Arc<Dir>, name: Box<[u8]>, published: Published) {
        let id = forebay_tiers::PfsId {
            dev: self.root_dev,
            ino: published.ino,
            btime_ns: published.btime_ns,
        };
        let node = PlainNode {
            kind: FileKind::Regular,
            parent,
            name,
            id,
        };
        let mut table = self.table.lock();
        table.replace(file.ino, Node::Plain(node));
        table.unreserve(file.ino);
    }

    /// The file's data is gone from the burst buffer through no order of ours (memory after a
    /// reboot, a lost device): its record goes too.
    pub fn disown(&self, file: &Arc<File>) -> Result<(), NsError> {
        let _naming = file.naming(&self.pfs)?;
        let names = file.lock().names.clone();
        for (dir, name) in &names {
            dir.lock().remove(name);
        }
        let mut state = file.lock();
        let mut batch = Batch::new();
        let garbage = self.drop_file(&mut batch, file, &state)?;
        self.commit(batch)?;
        state.names.clear();
        self.add_garbage(garbage);
        Ok(())
    }

    /// Where a demotion stood when the daemon died: removes its temporary file, or, if the copy had
    /// reached its name, takes it as published.
    ///
    /// Answers with the name of our version if it had been put beside an outsider's file: that one has
    /// the name, and the record is to go.
    pub fn settle_demotion(&self, file: &Arc<File>) -> Result<Option<Vec<u8>>, NsError> {
        let (temporary, names) = {
            let state = file.lock();
            (state.residency.temporary, state.names.clone())
        };
        let (Some(temporary), Some((dir, name))) = (temporary, names.first()) else {
            return Ok(None);
        };
        let (dir, name) = (dir.clone(), name.clone());
        // They count as links of what is published: before that is looked at, they go.
        let link = self.link_name(file.object, temporary.generation);
        for (other, _) in &names {
            self.unlink_if_there(&self.open_dir(other)?, &link)?;
        }
        let handle = self.open_dir(&dir)?;
        let temporary_name =
            PfsTree::temporary_name(self.instance, file.object, temporary.generation);
        let placed = match self.pfs.stat(&handle, &name) {
            Ok(stat) if stat.id.ino == temporary.ino => Some(stat),
            Ok(_) => None,
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => None,
            Err(e) => return Err(e.into()),
        };
        if placed.is_none()
            && !self.unlink_if_there(&handle, &temporary_name)?
            && let Some(beside) = self.find_beside(&handle, &name, temporary.ino)?
        {
            failpoint::hit(failpoint::Point::SettleBeside);
            return Ok(Some(beside));
        }
        failpoint::hit(failpoint::Point::SettleTemporary);
        let mut state = file.lock();
        state.residency.temporary = None;
        if let Some(stat) = placed {
            // Whether its directory was flushed is not known, so it stays dirty and is copied again.
            state.residency.published = Some((&stat).into());
        }
        self.save(file, &state, Durability::Buffered)?;
        failpoint::hit(failpoint::Point::SettleDemotion);
        Ok(None)
    }

    /// Whether there was something to unlink.
    fn unlink_if_there(&self, dir: &PfsDir, name: &[u8]) -> Result<bool, NsError> {
        match self.pfs.unlink(dir, name) {
            Ok(()) => Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Under which conflict name of `name` the PFS has this inode.
    fn find_beside(&self, dir: &PfsDir, name: &[u8], ino: u64) -> Result<Option<Vec<u8>>, NsError> {
        let mut found = None;
        self.pfs.read_dir(dir, &mut |entry| {
            if entry.ino == ino && has_infix(&entry.name, CONFLICT_INFIX) {
                found = Some(entry.name.to_vec());
            }
        })?;
        Ok(found.filter(|beside| beside[..] != *name))
    }

    /// The id of a file that the kernel knows under a PFS inode number stays taken while it lives.
    pub fn reserve_ino(&self, ino: Ino) {
        self.table.lock().reserve(ino);
    }
}
