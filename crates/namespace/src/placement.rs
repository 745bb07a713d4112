//! A finished copy gets its name, and then the file's further names. What is under them is compared
//! with what was published; nothing of an outsider's is replaced.
//!
//! Between the look at a name and the rename onto it an outsider may change what is there. So the
//! copy and what it replaces exchange their names, and what came out is looked at once more; an
//! outsider's gets its name back. Where the PFS cannot exchange (NFS, most FUSE file systems), the
//! time between the two calls is what remains.

use std::fs;
use std::sync::Arc;

use forebay_tiers::{PfsDir, PfsStat, PfsTree};
use forebay_types::{Errno, Generation, ObjectId, RenameMode, failpoint};

use forebay_kv::Durability;

use crate::conflict::{Conflict, ConflictKind, conflict_names};
use crate::error::on_pfs;
use crate::publish::{Copy, Demotion, Placed};
use crate::record::{Published, Temporary};
use crate::tree::Dir;
use crate::{File, Namespace, NsError};

/// What came of giving a copy one name.
enum Named {
    /// It has it.
    Placed,
    /// What is there is an outsider's, or nothing is where something should be; the copy has its
    /// temporary name, if any.
    Foreign(ConflictKind),
    /// This PFS names no unnamed files after all, and the next try does without them.
    Unnameable,
}

/// A name that a copy is to get.
pub(crate) struct Target<'a> {
    pub(crate) dir: &'a PfsDir,
    pub(crate) name: &'a [u8],
    /// Name of the copy beside it, or the one it gets for an exchange.
    pub(crate) temporary: &'a [u8],
    /// What the PFS has there as far as is known.
    pub(crate) expected: Option<Published>,
    /// The copy.
    pub(crate) ours: Temporary,
}

impl Namespace {
    /// Gives a whole, verified and flushed copy its names. An object that becomes the file itself
    /// is then no longer in its tier. So the file is clean from the rename on, and the caller sees
    /// to it that nobody opens the file before it is evicted.
    ///
    /// After an error the PFS may have done it all the same. The copy stays on record and is
    /// settled by its identity: at once if the PFS answers, otherwise before anything else is done
    /// with the file's names.
    pub fn place(&self, demotion: &Demotion, copy: Copy<'_>) -> Result<Placed, NsError> {
        let _landing = self.landing()?;
        let _order = demotion.dir.order(&self.pfs)?;
        let _naming = demotion.file.naming(&self.pfs)?;
        demotion.dir.empty_dirs.end();
        let (expected, ours) = {
            let state = demotion.file.lock();
            let here = state.names.first().is_some_and(|(dir, name)| {
                Arc::ptr_eq(dir, &demotion.dir) && *name == demotion.name
            });
            let stays = here && state.renaming == 0;
            if !stays || state.residency.generation != demotion.generation {
                return Ok(Placed::Superseded);
            }
            let expected = state.expected_at(&demotion.dir, &demotion.name);
            // Noted before; without it a crash could not tell what has become of it.
            let ours = state.copy_under_way().ok_or(Errno::EINVAL)?;
            (expected, ours)
        };
        let target = Target {
            dir: &demotion.handle,
            name: &demotion.name,
            temporary: &demotion.temporary,
            expected: self.expected_with_links(&demotion.file, expected)?,
            ours,
        };
        match self.place_at(demotion, copy, &target) {
            Err(error) => self.after_failed_placement(demotion, copy, ours, error),
            placed => placed,
        }
    }

    /// Of several links an outsider may have removed or renamed one: that has moved the ctime that
    /// all show, and is no change of the file under its first name.
    fn expected_with_links(
        &self,
        file: &File,
        expected: Option<Published>,
    ) -> Result<Option<Published>, NsError> {
        let Some(expected) = expected else {
            return Ok(None);
        };
        let further: Vec<_> = {
            let state = file.lock();
            let further = state.names.iter().skip(1);
            let placed = further.filter(|(dir, name)| state.is_placed(dir, name));
            placed.cloned().collect()
        };
        for (dir, name) in further {
            let found = self.stat_if_there(&self.open_dir(&dir)?, &name)?;
            if !found.is_some_and(|stat| expected.same_content(&stat)) {
                return Ok(Some(expected.with_ctime_moved()));
            }
        }
        Ok(Some(expected))
    }

    /// An object has become the file itself, but whether that outlasts a loss of the PFS's power is
    /// not known: the file is undrained, and what has become of its copy is looked for before the
    /// next try.
    pub fn unsettle(&self, demotion: &Demotion) {
        demotion.file.lock().unsettle_itself();
    }

    /// The PFS may have done it all the same: the copy is known by what it is.
    fn after_failed_placement(
        &self,
        demotion: &Demotion,
        copy: Copy<'_>,
        ours: Temporary,
        error: NsError,
    ) -> Result<Placed, NsError> {
        let file = &demotion.file;
        file.lock().unsettle();
        if let Err(later) = self.settle_copy(file) {
            let path = demotion.dir.path_of(&demotion.name);
            tracing::debug!("{}: settled later: {later}", path.escape_ascii());
            return Err(error);
        }
        let mut state = file.lock();
        if !state.is_published_as(ours) || !state.is_published() {
            return Err(error);
        }
        if matches!(copy, Copy::Itself(..)) {
            state.became_itself();
        }
        Ok(match state.names.first() {
            Some((_, name)) if *name != demotion.name => Placed::Conflict {
                name: name.to_vec(),
            },
            _ => Placed::Published,
        })
    }

    /// What is published of the file, if that is what is under its name.
    pub fn open_moved(&self, demotion: &Demotion) -> Result<Option<fs::File>, NsError> {
        let Some(published) = demotion.file.lock().residency.published else {
            return Ok(None);
        };
        let node = match self.pfs.node(&demotion.handle, &demotion.name) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            found => found.map_err(on_pfs("open by name"))?,
        };
        match published.same_content(node.found()) {
            true => Ok(Some(
                self.pfs.open_node(&node, true).map_err(on_pfs("open"))?,
            )),
            false => Ok(None),
        }
    }

    fn place_at(
        &self,
        demotion: &Demotion,
        copy: Copy<'_>,
        target: &Target<'_>,
    ) -> Result<Placed, NsError> {
        let copied = self.stat_copy(copy)?;
        let put = || self.put(target, copy);
        match self.unseen(&demotion.dir, &demotion.handle, put)? {
            Named::Placed => {}
            Named::Unnameable => return Ok(Placed::Superseded),
            Named::Foreign(kind) => {
                return self.place_beside((demotion, copied), copy, target, kind);
            }
        }
        failpoint::hit(failpoint::Point::DemotePlaced);
        let published = || {
            let stat = match copy {
                Copy::Named(file) | Copy::Unnamed(file) => {
                    self.pfs.stat_file(file).map_err(on_pfs("stat"))?
                }
                Copy::Itself(..) => self
                    .pfs
                    .stat_now(&demotion.handle, &demotion.name)
                    .map_err(on_pfs("stat"))?,
            };
            Ok::<_, NsError>(since_named(copied, &stat))
        };
        if demotion.file.lock().names.len() > 1 {
            demotion.file.lock().first_is_placed(published()?);
            self.place_links(demotion, target.ours)?;
        }
        let linked = published()?;
        // From here on an unlink or rename must act on the PFS too.
        let mut state = demotion.file.lock();
        state.set_published(Some(linked));
        if matches!(copy, Copy::Itself(..)) {
            state.became_itself();
        }
        failpoint::hit(failpoint::Point::DemoteLinks);
        Ok(Placed::Published)
    }

    /// What the copy is before it gets its name: whoever changes it from then on is an outsider.
    /// `None` where it has it already, by an earlier try.
    fn stat_copy(&self, copy: Copy<'_>) -> Result<Option<Published>, NsError> {
        let stat = match copy {
            Copy::Named(file) | Copy::Unnamed(file) => Some(
                self.pfs
                    .stat_file(file)
                    .map_err(on_pfs("stat of an open file"))?,
            ),
            Copy::Itself(from, object) => self.stat_if_there(from, object)?,
        };
        Ok(stat.as_ref().map(Published::from))
    }

    fn put(&self, target: &Target<'_>, copy: Copy<'_>) -> Result<Named, NsError> {
        let found = match (copy, target.expected) {
            // A link never replaces: whether the name is free need not be asked.
            (Copy::Unnamed(_), None) => None,
            _ => self.stat_if_there(target.dir, target.name)?,
        };
        if let Some(kind) = differs(found.as_ref(), target.expected, Published::is) {
            return Ok(Named::Foreign(kind));
        }
        let (dir, name) = (target.dir, target.name);
        let placed = match (copy, &found) {
            (Copy::Itself(from, object), found) => {
                let mode = match found {
                    Some(_) => RenameMode::Replace,
                    None => RenameMode::NoReplace,
                };
                self.pfs.rename(from, object, dir, name, mode)
            }
            (Copy::Named(_), None) => {
                let mode = RenameMode::NoReplace;
                self.pfs.rename(dir, target.temporary, dir, name, mode)
            }
            (Copy::Named(_), Some(_)) => return self.swap(target),
            (Copy::Unnamed(file), None) => match self.pfs.name_file(file, dir, name) {
                Ok(false) => return Ok(Named::Unnameable),
                named => named.map(|_| ()),
            },
            (Copy::Unnamed(file), Some(_)) => {
                return match self.name_temporarily(target, file)? {
                    true => self.swap(target),
                    false => Ok(Named::Unnameable),
                };
            }
        };
        self.placed_or_taken(target, placed)
    }

    /// A name that is taken may be so by a request of ours that was sent twice.
    fn placed_or_taken(
        &self,
        target: &Target<'_>,
        placed: std::io::Result<()>,
    ) -> Result<Named, NsError> {
        match placed {
            Ok(()) => Ok(Named::Placed),
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {
                let found = self.stat_if_there(target.dir, target.name)?;
                match found.is_some_and(|stat| target.ours.is(&stat)) {
                    true => Ok(Named::Placed),
                    false => Ok(Named::Foreign(ConflictKind::Taken)),
                }
            }
            Err(e) => Err(on_pfs("name a copy")(e)),
        }
    }

    /// The copy gets the name, and what it replaces goes, once it was seen to be the older version.
    fn swap(&self, target: &Target<'_>) -> Result<Named, NsError> {
        let (dir, name, temporary) = (target.dir, target.name, target.temporary);
        failpoint::hit(failpoint::Point::DemoteLooked);
        match self.pfs.exchange(dir, temporary, name) {
            Ok(true) => {}
            Ok(false) => {
                let mode = RenameMode::Replace;
                self.pfs
                    .rename(dir, temporary, dir, name, mode)
                    .map_err(on_pfs("rename"))?;
                return Ok(Named::Placed);
            }
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
                return Ok(Named::Foreign(ConflictKind::Removed));
            }
            Err(e) => return Err(on_pfs("exchange of names")(e)),
        }
        failpoint::hit(failpoint::Point::DemoteSwapped);
        let replaced = self.pfs.stat_now(dir, temporary).map_err(on_pfs("stat"))?;
        if target.is_older(&replaced) {
            self.pfs.unlink(dir, temporary).map_err(on_pfs("unlink"))?;
            return Ok(Named::Placed);
        }
        self.pfs
            .exchange(dir, temporary, name)
            .map_err(on_pfs("exchange of names"))?;
        match target
            .ours
            .is(&self.pfs.stat_now(dir, temporary).map_err(on_pfs("stat"))?)
        {
            true => Ok(Named::Foreign(ConflictKind::Changed)),
            // Another change meanwhile: settling puts it beside.
            false => Err(Errno::EAGAIN.into()),
        }
    }

    fn name_temporarily(&self, target: &Target<'_>, file: &fs::File) -> Result<bool, NsError> {
        let (dir, temporary) = (target.dir, target.temporary);
        match self.pfs.name_file(file, dir, temporary) {
            // Left by a crash; the name says that it is ours.
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {
                self.pfs.unlink(dir, temporary).map_err(on_pfs("unlink"))?;
                self.pfs
                    .name_file(file, dir, temporary)
                    .map_err(on_pfs("name a file"))
            }
            named => named.map_err(on_pfs("name a file")),
        }
    }

    /// Further names of the file become links of what is published. One that an outsider has taken
    /// is theirs, and ours goes beside it; one that an outsider has removed is gone.
    fn place_links(&self, demotion: &Demotion, ours: Temporary) -> Result<(), NsError> {
        let file = &demotion.file;
        let names = file.lock().names.clone();
        let Some((_, first)) = names.first() else {
            return Ok(());
        };
        let source = (&demotion.handle, &first[..]);
        for (at, (dir, name)) in names.iter().enumerate().skip(1) {
            let handle = self.open_dir(dir)?;
            dir.empty_dirs.end();
            let temporary = self.copy_name(file.object, demotion.generation, at);
            let target = Target {
                dir: &handle,
                name,
                temporary: &temporary,
                expected: file.lock().expected_at(dir, name),
                ours,
            };
            match self.unseen(dir, &handle, || self.put_link(source, &target))? {
                Named::Placed => file.lock().set_placed(dir, name),
                Named::Foreign(ConflictKind::Removed) => self.lose_name(file, dir, name)?,
                Named::Foreign(kind) => {
                    self.unlink_if_there(&handle, &temporary)?;
                    let beside = self.link_beside(source, (dir, &target))?;
                    self.yield_name(file, (dir, name), &beside, kind)?;
                    dir.times.touch();
                    file.lock().set_placed(dir, &beside);
                }
                Named::Unnameable => return Err(Errno::EAGAIN.into()),
            }
            if !Arc::ptr_eq(dir, &demotion.dir) {
                self.put_times_back(dir, &handle);
            }
        }
        Ok(())
    }

    fn put_link(&self, source: (&PfsDir, &[u8]), target: &Target<'_>) -> Result<Named, NsError> {
        let found = self.stat_if_there(target.dir, target.name)?;
        if found.is_some_and(|stat| target.ours.is(&stat)) {
            return Ok(Named::Placed);
        }
        // Links made and removed one after the other change the ctime of all.
        if let Some(kind) = differs(found.as_ref(), target.expected, Published::same_but_ctime) {
            return Ok(Named::Foreign(kind));
        }
        let name = match found {
            Some(_) => target.temporary,
            None => target.name,
        };
        let linked = self.pfs.link(source.0, source.1, target.dir, name);
        if found.is_some() {
            linked.map_err(on_pfs("link"))?;
            failpoint::hit(failpoint::Point::DemoteLinked);
            return self.swap(target);
        }
        let placed = self.placed_or_taken(target, linked);
        failpoint::hit(failpoint::Point::DemoteLinked);
        placed
    }

    fn link_beside(
        &self,
        source: (&PfsDir, &[u8]),
        (dir, target): (&Dir, &Target<'_>),
    ) -> Result<Vec<u8>, NsError> {
        for beside in conflict_names(target.name).filter(|beside| !dir.is_taken(beside)) {
            match self.pfs.link(source.0, source.1, target.dir, &beside) {
                Ok(()) => return Ok(beside),
                Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {}
                Err(e) => return Err(on_pfs("link")(e)),
            }
        }
        Err(Errno::EEXIST.into())
    }

    /// Name beside the `at`-th name of a file of a copy that is to get it.
    pub(crate) fn copy_name(&self, object: ObjectId, generation: Generation, at: usize) -> Vec<u8> {
        // No demotion has such a generation.
        let further = match at {
            0 => 0,
            at => 1 << 63 | (at as u64) << 56,
        };
        PfsTree::temporary_name(self.instance, object, Generation(generation.0 | further))
    }

    /// An outsider has removed one of several names.
    fn lose_name(&self, file: &Arc<File>, dir: &Arc<Dir>, name: &[u8]) -> Result<(), NsError> {
        let mut children = dir.lock();
        let mut state = file.lock();
        state.drop_name(dir, name);
        state.touch();
        children.remove(name);
        tracing::info!(
            "{}: removed on the PFS; the file goes on under its other names",
            dir.path_of(name).escape_ascii()
        );
        self.save(file, &state, Durability::Buffered)
    }

    /// The name is an outsider's from now on. Our version goes beside it, and the file with it: who
    /// has it open goes on under the new name.
    fn place_beside(
        &self,
        (demotion, copied): (&Demotion, Option<Published>),
        copy: Copy<'_>,
        target: &Target<'_>,
        kind: ConflictKind,
    ) -> Result<Placed, NsError> {
        let dir = &demotion.handle;
        let source = match copy {
            Copy::Itself(from, object) => (from, object),
            Copy::Named(_) => (dir, target.temporary),
            Copy::Unnamed(file) => {
                let named = self.stat_if_there(dir, target.temporary)?;
                let named = named.is_some_and(|stat| target.ours.is(&stat));
                if !named && !self.name_temporarily(target, file)? {
                    return Ok(Placed::Superseded);
                }
                (dir, target.temporary)
            }
        };
        let name = self.move_beside(source, (&demotion.dir, dir), &demotion.name)?;
        demotion.dir.times.touch();
        failpoint::hit(failpoint::Point::ConflictPlaced);
        let stat = self.pfs.stat_now(dir, &name).map_err(on_pfs("stat"))?;
        let file = &demotion.file;
        self.yield_name(file, (&demotion.dir, &demotion.name), &name, kind)?;
        file.lock().first_is_placed(since_named(copied, &stat));
        failpoint::hit(failpoint::Point::ConflictYielded);
        self.place_links(demotion, target.ours)?;
        if matches!(copy, Copy::Itself(..)) {
            file.lock().became_itself();
        }
        Ok(Placed::Conflict { name })
    }

    /// An outsider has one of a file's names; it is known by one beside it.
    pub(crate) fn yield_name(
        &self,
        file: &Arc<File>,
        (dir, name): (&Arc<Dir>, &[u8]),
        beside: &[u8],
        kind: ConflictKind,
    ) -> Result<(), NsError> {
        let mut children = dir.lock();
        let mut state = file.lock();
        let (old, new) = ((dir.clone(), name.into()), (dir.clone(), beside.into()));
        state.rename_name(&old, new);
        children.remove(name);
        children.insert(beside.into(), file.clone());
        self.note_conflict(Conflict {
            path: dir.path_of(name),
            kept_as: beside.to_vec(),
            theirs: false,
            kind,
        });
        self.save(file, &state, Durability::Buffered)
    }
}

impl Target<'_> {
    /// Whether what came out of an exchange is what was to be replaced. The exchange has moved its
    /// ctime, so a change of attributes, other than mode and owner, since the look does not show.
    pub(crate) fn is_older(&self, stat: &PfsStat) -> bool {
        self.expected
            .is_some_and(|older| older.same_but_ctime(stat))
    }
}

/// What is published of a copy by its name: what an outsider has made of it since is not, and the
/// next look finds that.
fn since_named(copied: Option<Published>, stat: &PfsStat) -> Published {
    copied.map_or_else(|| stat.into(), |copied| copied.after_move(Some(stat)))
}

/// Why what is under a name is not what was published there.
fn differs(
    found: Option<&PfsStat>,
    expected: Option<Published>,
    is: impl Fn(&Published, &PfsStat) -> bool,
) -> Option<ConflictKind> {
    match (found, expected) {
        (None, None) => None,
        (None, Some(older)) if older.is_leaving() => None,
        (None, Some(_)) => Some(ConflictKind::Removed),
        (Some(_), None) => Some(ConflictKind::Taken),
        (Some(stat), Some(ours)) if is(&ours, stat) => None,
        (Some(_), Some(_)) => Some(ConflictKind::Changed),
    }
}
