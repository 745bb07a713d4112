//! A demotion, from its begin to the record that says clean: a copy is put in its place only if the content is
//! still of the generation that was copied, and what an outsider put there is never replaced.

use std::fs;
use std::sync::Arc;

use forebay_tiers::{PfsDir, PfsId, PfsStat, PfsTree, RenameMode, Sums};
use forebay_types::{Errno, Generation, ObjectId, TierId, failpoint};

use forebay_kv::Durability;

use crate::dir::Dir;
use crate::file::{File, FileState};
use crate::namespace::Beside;
use crate::ops::rename::rename_in;
use crate::outside::{CONFLICT_INFIX, Conflict, ConflictKind};
use crate::record::{Meta, Published, Temporary};
use crate::{Namespace, NsError};

fn has_infix(name: &[u8], infix: &str) -> bool {
    name.windows(infix.len())
        .any(|part| part == infix.as_bytes())
}

/// What is put in its place.
#[derive(Clone, Copy)]
pub enum Copy<'a> {
    /// A copy under its temporary name.
    Named(&'a fs::File),
    /// A copy that has no name yet.
    Unnamed(&'a fs::File),
    /// No copy but the object itself, from this place.
    Itself(&'a PfsDir, &'a [u8]),
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

/// What became of a file whose copy is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confirmed {
    /// The content is still of the generation that was copied.
    pub current: bool,
    /// The record has forgotten a copy, no newer than this one, that an fsync had left in this tier: it may be removed.
    pub outdated_shadow: Option<TierId>,
}

impl Namespace {
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

    /// Records the copies, so that after a crash it is known whose they are. The failures are by position.
    pub fn note_temporaries(&self, copies: &[(&Demotion, PfsId)]) -> Vec<(usize, NsError)> {
        let files: Vec<_> = copies.iter().map(|(demotion, _)| &demotion.file).collect();
        let mut change = |at: usize, state: &mut FileState| {
            let (demotion, id) = copies[at];
            state.residency.temporary = Some(Temporary {
                generation: demotion.generation,
                ino: id.ino,
                btime_ns: id.btime_ns,
            });
            true
        };
        let failures = self.save_together(&files, &mut change, None);
        if !copies.is_empty() {
            failpoint::hit(failpoint::Point::DemoteNoted);
        }
        failures
    }

    /// Whether the copy under way is still of the newest content.
    pub fn is_current(&self, demotion: &Demotion) -> bool {
        let state = demotion.file.lock();
        state.residency.generation == demotion.generation && !state.is_unlinked()
    }

    /// Gives a whole, verified and flushed copy its name. An object that becomes the file itself is then no
    /// longer in its tier; so the file is clean from the rename on, and the caller sees to it that nobody opens
    /// it before it is evicted.
    pub fn place(&self, demotion: &Demotion, copy: Copy<'_>) -> Result<Placed, NsError> {
        let _landing = self.landing()?;
        let _order = demotion.dir.order(&self.pfs)?;
        let _naming = demotion.file.naming(&self.pfs)?;
        demotion.dir.vacancy.end();
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
        let found = match (copy, expected) {
            // A link never replaces: whether the name is free need not be asked.
            (Copy::Unnamed(_), None) => None,
            _ => self.find(demotion)?,
        };
        let conflict = match (&found, expected) {
            (_, Some(Published::GOING)) | (None, None) => None,
            (None, Some(_)) => Some(ConflictKind::Removed),
            (Some(_), None) => Some(ConflictKind::Taken),
            (Some(stat), Some(ours)) if Published::from(stat) == ours => None,
            (Some(_), Some(_)) => Some(ConflictKind::Changed),
        };
        if let Some(kind) = conflict {
            return self.place_beside(demotion, copy, kind);
        }
        let put = || self.put(demotion, copy, found.is_some());
        match self.unseen(&demotion.dir, &demotion.handle, put) {
            Ok(true) => {}
            Ok(false) => return Ok(Placed::Superseded),
            Err(NsError::Errno(Errno::EEXIST)) => {
                return self.place_beside(demotion, copy, ConflictKind::Taken);
            }
            Err(error) => return Err(error),
        }
        failpoint::hit(failpoint::Point::DemotePlaced);
        // Names in other directories come and go, but not before this is over.
        let names = demotion.file.lock().names.clone();
        let linked = self.place_links(demotion, &names);
        let stat = match copy {
            Copy::Named(file) | Copy::Unnamed(file) => self.pfs.stat_file(file)?,
            Copy::Itself(..) => self.pfs.stat(&demotion.handle, &demotion.name)?,
        };
        // From here on an unlink or rename must act on the PFS too.
        let mut state = demotion.file.lock();
        state.residency.published = Some((&stat).into());
        state.residency.clean |= matches!(copy, Copy::Itself(..));
        failpoint::hit(failpoint::Point::DemoteLinks);
        linked.map(|()| Placed::Published)
    }

    /// What the PFS has under the name that is published to.
    fn find(&self, demotion: &Demotion) -> Result<Option<PfsStat>, NsError> {
        match self.pfs.stat(&demotion.handle, &demotion.name) {
            Ok(stat) => Ok(Some(stat)),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// One change of the directory, or, to replace a file by one without a name, two. `EEXIST` if the name is
    /// taken and must not be replaced; `false`: this PFS names no unnamed files after all, and the next try
    /// does without them.
    fn put(&self, demotion: &Demotion, copy: Copy<'_>, replace: bool) -> Result<bool, NsError> {
        let (dir, name) = (&demotion.handle, &demotion.name[..]);
        let mode = match replace {
            true => RenameMode::Replace,
            false => RenameMode::NoReplace,
        };
        let temporary = &demotion.temporary;
        match copy {
            Copy::Itself(from, object) => self.pfs.rename(from, object, dir, name, mode)?,
            Copy::Named(_) => self.pfs.rename(dir, temporary, dir, name, mode)?,
            Copy::Unnamed(file) if !replace => return Ok(self.pfs.name_file(file, dir, name)?),
            Copy::Unnamed(file) => {
                if !self.name_temporarily(demotion, file)? {
                    return Ok(false);
                }
                let renamed = self.pfs.rename(dir, temporary, dir, name, mode);
                if renamed.is_err() {
                    // The first error is the one to tell; a start removes what may stay.
                    let _ = self.pfs.unlink(dir, temporary);
                }
                renamed?;
            }
        }
        Ok(true)
    }

    fn name_temporarily(&self, demotion: &Demotion, file: &fs::File) -> Result<bool, NsError> {
        let (dir, temporary) = (&demotion.handle, &demotion.temporary);
        match self.pfs.name_file(file, dir, temporary) {
            // Left by a crash; the name says that it is ours.
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {
                self.pfs.unlink(dir, temporary)?;
                Ok(self.pfs.name_file(file, dir, temporary)?)
            }
            named => Ok(named?),
        }
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
            dir.vacancy.end();
            let temporary = self.link_name(demotion.file.object, demotion.generation);
            self.unseen(dir, &handle, || -> std::io::Result<()> {
                self.pfs
                    .link(&demotion.handle, &demotion.name, &handle, &temporary)?;
                failpoint::hit(failpoint::Point::DemoteLinked);
                self.pfs
                    .rename(&handle, &temporary, &handle, name, RenameMode::Replace)
            })?;
            if !Arc::ptr_eq(dir, &demotion.dir) {
                self.put_times_back(dir, &handle);
            }
        }
        Ok(())
    }

    /// Temporary name of a further link; no demotion of the file gets it.
    fn link_name(&self, object: ObjectId, generation: Generation) -> Vec<u8> {
        PfsTree::temporary_name(self.instance, object, Generation(generation.0 | 1 << 63))
    }

    /// The name is an outsider's from now on. Our version goes beside it, and the file with it: who
    /// has it open goes on under the new name.
    fn place_beside(
        &self,
        demotion: &Demotion,
        copy: Copy<'_>,
        kind: ConflictKind,
    ) -> Result<Placed, NsError> {
        let dir = &demotion.handle;
        let source = match copy {
            Copy::Itself(from, object) => (from, object),
            Copy::Named(_) => (dir, &demotion.temporary[..]),
            Copy::Unnamed(file) => {
                if !self.name_temporarily(demotion, file)? {
                    return Ok(Placed::Superseded);
                }
                (dir, &demotion.temporary[..])
            }
        };
        let name = self.move_beside(source, dir, &demotion.name)?;
        demotion.dir.times.touch();
        failpoint::hit(failpoint::Point::ConflictPlaced);
        let stat = self.pfs.stat(dir, &name);
        let mut children = demotion.dir.lock();
        let mut state = demotion.file.lock();
        let old = (demotion.dir.clone(), demotion.name.clone());
        let new = (demotion.dir.clone(), name.clone().into_boxed_slice());
        rename_in(&mut state.names, &old, new);
        children.remove(&demotion.name);
        children.insert(name.clone().into_boxed_slice(), demotion.file.clone());
        state.residency.published = stat.as_ref().ok().map(Published::from);
        let itself = matches!(copy, Copy::Itself(..));
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

    /// The copies are durable under their names: the files are clean, as far as they have not changed since.
    /// What became of each, or why its record could not be written.
    pub fn confirm(&self, published: &[(&Demotion, &Sums)]) -> Vec<Result<Confirmed, NsError>> {
        let files: Vec<_> = published.iter().map(|(d, _)| &d.file).collect();
        let mut outcomes: Vec<Result<Confirmed, NsError>> = Vec::new();
        outcomes.resize_with(published.len(), || Ok(Confirmed::default()));
        let beside: Beside<'_> = &|batch, at, state| {
            let (demotion, sums) = published[at];
            match state.residency.generation == demotion.generation {
                true => self.put_sums(batch, &demotion.file, sums),
                false => Ok(()),
            }
        };
        let mut change = |at: usize, state: &mut FileState| {
            let (demotion, sums) = published[at];
            outcomes[at] = Ok(confirm_one(state, demotion, sums));
            true
        };
        let failures = self.save_together(&files, &mut change, Some(beside));
        if !published.is_empty() {
            failpoint::hit(failpoint::Point::DemoteConfirmed);
        }
        for (at, error) in failures {
            outcomes[at] = Err(error);
        }
        outcomes
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
            Ok(stat) if (stat.id.ino, stat.id.btime_ns) == (temporary.ino, temporary.btime_ns) => {
                Some(stat)
            }
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
}

fn confirm_one(state: &mut FileState, demotion: &Demotion, sums: &Sums) -> Confirmed {
    state.demoting = false;
    state.error = None;
    state.error_unreported = false;
    state.residency.temporary = None;
    let current = state.residency.generation == demotion.generation;
    if current {
        let written = state.residency.writing;
        state.residency.clean = state.residency.published.is_some() && !written;
        state.safe = Some(demotion.generation);
        state.residency.vouch(sums);
        state.xattrs = Vec::new();
    }
    // After a crash an older copy must not stand for what the PFS has; one of the same content only takes space.
    let residency = &mut state.residency;
    let outdated = |generation| generation <= demotion.generation;
    let outdated_shadow = residency.shadow.take_if(|(_, of)| outdated(*of));
    residency
        .flushed
        .take_if(|flushed| outdated(flushed.generation));
    Confirmed {
        current,
        outdated_shadow: outdated_shadow.map(|(tier, _)| tier),
    }
}
