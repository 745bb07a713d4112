//! rename, in every mix of burst buffer and PFS.
//!
//! A file that is only in the burst buffer is renamed in its record. If the new name is taken on
//! the PFS, what is there becomes the older version that the file's next demotion replaces.
//! Example: a program writes a temporary file and renames it over the last checkpoint. The old
//! checkpoint stays whole on the PFS until the new one is whole there too.
//!
//! What is on the PFS is renamed there. Where that must agree with records, an intent is written
//! first and settled after a crash by looking at what the PFS has.

use std::cell::Cell;
use std::sync::Arc;

use forebay_tiers::{PfsDir, PfsStat, PfsTree};
use forebay_types::{Errno, FileKind, Ino, RenameMode, check_name, failpoint};
use parking_lot::MutexGuard;

use crate::error::on_pfs;
use crate::log::Batch;
use crate::ops::ends::{End, Locked};
use crate::ops::parting::parting;
use crate::ops::unlink::CALM_AGAIN;
use crate::record::{self, Intent, Published, RenameIntent};
use crate::tree::Dir;
use crate::{File, Namespace, NsError};

/// A rename looks at the PFS, and begins anew where that has changed meanwhile.
const RENAME_TRIES: usize = 4;
/// Something is being made or removed in the directory that is to be replaced.
const BUSY_BELOW: Errno = Errno::EINPROGRESS;

impl Namespace {
    /// Renames. Answers with the burst-buffer file that was replaced, if one was.
    pub fn rename(
        &self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<Option<Arc<File>>, NsError> {
        let places = ((parent, name), (new_parent, new_name));
        self.rename_over(places.0, places.1, mode, &|_| false)
    }

    /// The same. What the PFS has under the new name goes from there at once where it `is_in_use`:
    /// what is still changed in it must not look like an outsider's doing.
    pub fn rename_over(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
        is_in_use: &dyn Fn(&PfsStat) -> bool,
    ) -> Result<Option<Arc<File>>, NsError> {
        let (mut looked, mut tries) = (false, 1);
        let unseen = Cell::new(false);
        loop {
            let recheck = tries < RENAME_TRIES;
            match self.rename_once(from, to, (mode, recheck, &unseen), is_in_use) {
                // Waiting for that with the orders held could be waiting for who waits for them.
                Err(error) if error.refusal() == Some(BUSY_BELOW) => {
                    std::thread::sleep(CALM_AGAIN);
                }
                Err(error) if error.refusal() == Some(Errno::EAGAIN) && recheck => tries += 1,
                Err(error) if error.refusal() == Some(Errno::ENOTEMPTY) && !looked => {
                    (looked, tries) = (true, tries + 1);
                    if !self.forget_removed(&self.dir(to.0)?, to.1)? {
                        return Err(error);
                    }
                }
                done => return done,
            }
        }
    }

    /// With `recheck`, `EAGAIN` if the file was published after the PFS was looked at. What the PFS
    /// has under the new name is `unseen` where a trusted copy has hidden it.
    fn rename_once(
        &self,
        (parent, name): (Ino, &[u8]),
        (new_parent, new_name): (Ino, &[u8]),
        (mode, recheck, unseen): (RenameMode, bool, &Cell<bool>),
        is_in_use: &dyn Fn(&PfsStat) -> bool,
    ) -> Result<Option<Arc<File>>, NsError> {
        check_name(name)?;
        check_name(new_name)?;
        if PfsTree::is_temporary(new_name) || PfsTree::is_temporary(name) {
            return Err(Errno::EPERM.into());
        }
        let (from_dir, to_dir) = (self.dir(parent)?, self.dir(new_parent)?);
        let ends = ((&from_dir, name), (&to_dir, new_name));
        if let Some(()) = self.rename_unpublished(ends.0, ends.1, mode)? {
            return Ok(None);
        }
        for (at, (dir, name)) in [ends.0, ends.1].into_iter().enumerate() {
            if let Some(file) = dir.child(name)
                && !self.still_valid(dir, name, &file)?
                && at == 1
                && self.trusts(dir, name)
            {
                unseen.set(true);
            }
        }
        let orders = self.orders(&from_dir, &to_dir)?;
        if to_dir.is_removed() {
            return Err(Errno::ENOENT.into());
        }
        let versions = [ends.0, ends.1].map(|(dir, name)| dir.unpublished_child(name));
        if versions.iter().any(Option::is_some) {
            // It was made after that was looked at.
            return Err(Errno::EAGAIN.into());
        }
        let files = (from_dir.child(name), to_dir.child(new_name));
        let moving = match mode {
            RenameMode::Exchange => files.0.as_ref().or(files.1.as_ref()),
            _ => files.0.as_ref(),
        };
        if from_dir.key.dev != to_dir.key.dev && moving.is_some() {
            // As the PFS says once it is there: whether it works does not depend on how far the
            // drain has come.
            return Err(Errno::EXDEV.into());
        }
        let _namings = self.namings(files.0.as_ref(), files.1.as_ref())?;
        for file in [&files.0, &files.1].into_iter().flatten() {
            if file.lock().is_unsettled() {
                self.settle_copy(file)?;
                // Its name may be an outsider's, it turned out.
                return Err(Errno::EAGAIN.into());
            }
        }
        let mut from = self.end(&from_dir, name, files.0.clone())?;
        let mut to = self.end(&to_dir, new_name, files.1.clone())?;
        to.foreign |= unseen.get() && to.file.is_none() && to.stat.is_some();
        to.in_use = !from.on_pfs() && to.stat.as_ref().is_some_and(is_in_use);
        if from.file.is_none() && from.stat.is_none() {
            return Err(Errno::ENOENT.into());
        }
        if from.on_pfs() || to.on_pfs() {
            from_dir.empty_dirs.end();
            to_dir.empty_dirs.end();
        }
        let replaced = self.change_ends(&mut from, &mut to, mode, recheck)?;
        to_dir.note_present(new_name);
        drop(orders);
        self.touch(&from_dir);
        self.touch(&to_dir);
        Ok(replaced)
    }

    /// What is asked for, of ends that nobody else changes now; the file that was replaced.
    fn change_ends(
        &self,
        from: &mut End,
        to: &mut End,
        mode: RenameMode,
        recheck: bool,
    ) -> Result<Option<Arc<File>>, NsError> {
        let target_exists = to.file.is_some() || to.stat.is_some();
        match mode {
            RenameMode::NoReplace if target_exists => Err(Errno::EEXIST.into()),
            RenameMode::Exchange if !target_exists => Err(Errno::ENOENT.into()),
            RenameMode::Exchange => {
                self.spare(from)?;
                self.spare(to)?;
                self.exchange(from, to)?;
                Ok(None)
            }
            _ => {
                let is_hidden = to.file.is_none() && to.foreign;
                if (from.on_pfs() || is_hidden) && !same_file(from, to) {
                    self.spare(to)?;
                }
                self.replace(from, to, recheck)
            }
        }
    }

    /// The right to change names in both, taken in the order of their keys.
    pub(crate) fn orders<'a>(
        &self,
        a: &'a Arc<Dir>,
        b: &'a Arc<Dir>,
    ) -> Result<[Option<MutexGuard<'a, ()>>; 2], NsError> {
        if Arc::ptr_eq(a, b) {
            return Ok([Some(a.order(&self.pfs)?), None]);
        }
        let (first, second) = if a.key < b.key { (a, b) } else { (b, a) };
        let first = first.order(&self.pfs)?;
        Ok([Some(first), Some(second.order(&self.pfs)?)])
    }

    /// The same for two files, in the order of their objects.
    fn namings<'a>(
        &self,
        a: Option<&'a Arc<File>>,
        b: Option<&'a Arc<File>>,
    ) -> Result<[Option<MutexGuard<'a, ()>>; 2], NsError> {
        let (first, second) = match (a, b) {
            (Some(a), Some(b)) if a.object > b.object => (Some(b), Some(a)),
            (Some(a), Some(b)) if a.object == b.object => (Some(a), None),
            both => both,
        };
        let naming = |file: Option<&'a Arc<File>>| file.map(|f| f.naming(&self.pfs)).transpose();
        let first = naming(first)?;
        Ok([first, naming(second)?])
    }

    fn end(&self, dir: &Arc<Dir>, name: &[u8], file: Option<Arc<File>>) -> Result<End, NsError> {
        let handle = self.open_dir(dir)?;
        let stat = match self.pfs.stat_now(&handle, name) {
            Ok(stat) => Some(stat),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => None,
            Err(e) => return Err(on_pfs("stat")(e)),
        };
        let foreign = match (&file, &stat) {
            (Some(file), Some(stat)) => {
                let state = file.lock();
                let published = state.expected_at(dir, name);
                let ours = published.is_some_and(|p| match state.names.len() {
                    1 => p.is(stat),
                    // Its links are made and removed one after the other.
                    _ => p.is_same_file(stat),
                });
                if !ours && state.residency.clean {
                    // The copy is outdated; it is dropped, and what the PFS has is renamed.
                    return Err(Errno::EAGAIN.into());
                }
                !ours
            }
            // An outsider has removed it since it was looked at: the copy is dropped.
            (Some(file), None) if file.lock().residency.clean => return Err(Errno::EAGAIN.into()),
            _ => false,
        };
        Ok(End {
            dir: dir.clone(),
            handle,
            name: name.into(),
            file,
            stat,
            foreign,
            in_use: false,
        })
    }

    /// An outsider's version of a dirty file, never shown here, is not what the program means.
    fn spare(&self, end: &mut End) -> Result<(), NsError> {
        if end.foreign {
            self.set_aside(&end.dir, &end.handle, &end.name)?;
            (end.stat, end.foreign) = (None, false);
        }
        Ok(())
    }

    fn replace(&self, from: &End, to: &End, recheck: bool) -> Result<Option<Arc<File>>, NsError> {
        if same_file(from, to) {
            return Ok(None);
        }
        self.check_kinds(from, to)?;
        if from.on_pfs() {
            self.replace_on_pfs(from, to)?;
        } else if let Some(file) = from.file.clone() {
            self.replace_in_buffer(&file, from, to, recheck)?;
        }
        Ok(to.file.clone())
    }

    fn check_kinds(&self, from: &End, to: &End) -> Result<(), NsError> {
        let from_is_dir = from.file.is_none() && from.is_dir();
        let to_is_dir = to.file.is_none() && to.is_dir();
        if to.file.is_none() && to.stat.is_none() {
            return Ok(());
        }
        match (from_is_dir, to_is_dir) {
            (true, false) => Err(Errno::ENOTDIR.into()),
            (false, true) => Err(Errno::EISDIR.into()),
            (true, true) => {
                let known = to
                    .stat
                    .as_ref()
                    .and_then(|s| self.known_dir(self.dir_key(s)));
                match known {
                    Some(dir) if dir.has_children() => Err(Errno::ENOTEMPTY.into()),
                    _ => Ok(()),
                }
            }
            (false, false) => Ok(()),
        }
    }

    /// The file is only in the burst buffer.
    fn replace_in_buffer(
        &self,
        file: &Arc<File>,
        from: &End,
        to: &End,
        recheck: bool,
    ) -> Result<(), NsError> {
        let left = self.left_of_replaced(to);
        let mut locked = Locked::new(&from.dir, &to.dir);
        let mut batch = Batch::new();
        let inherited = match &to.file {
            Some(old) => old.lock().expected_at(&to.dir, &to.name),
            None => to.stat.as_ref().map(Into::into),
        };
        let mut state = file.lock();
        if recheck && state.names.len() > 1 && state.residency.published.is_some() {
            return Err(Errno::EAGAIN.into());
        }
        let before = state.clone();
        let replaced_before = to.file.as_ref().map(|old| old.lock().clone());
        state.rename_name(&from.place(), to.place());
        // What is published is so under all names: of several, one cannot take an older version
        // over.
        let several = state.names.len() > 1;
        match several {
            true if state.residency.published.is_some() => {
                state.set_unplaced(&to.dir, &to.name, None);
            }
            true => {}
            false => state.set_published(inherited),
        }
        state.outdate_copy();
        state.touch();
        let parts = to
            .stat
            .filter(|stat| !to.foreign && (several || to.in_use || stat.nlink > 1));
        let mut sequence = None;
        let committed = self.put_dirs(&mut batch, &to.dir).and_then(|()| {
            self.put_file(&mut batch, file, &state)?;
            let garbage = self.drop_replaced(&mut batch, to, left)?;
            match &parts {
                Some(stat) => {
                    let intent = parting(to, stat);
                    sequence = Some(self.begin_change_of_names(batch, &intent, true)?);
                }
                None => self.commit(batch)?,
            }
            Ok(garbage)
        });
        let garbage = match committed {
            Ok(garbage) => garbage,
            Err(error) => {
                *state = before;
                if let (Some(old), Some(before)) = (&to.file, replaced_before) {
                    old.lock().take_back(before);
                }
                return Err(error);
            }
        };
        failpoint::hit(failpoint::Point::RenameBuffer);
        drop(state);
        self.dirs_written(&to.dir);
        garbage
            .into_iter()
            .for_each(|garbage| self.add_garbage(garbage));
        locked.from.remove(&from.name);
        locked.to().insert(to.name.clone(), file.clone());
        drop(locked);
        match (sequence, parts) {
            (Some(sequence), Some(stat)) => self.part_links(file, to, &stat, sequence),
            _ => Ok(()),
        }
    }

    /// What the PFS shows of the file whose name is being replaced under another of its names.
    pub(super) fn left_of_replaced(&self, to: &End) -> Option<Published> {
        self.published_without(to.file.as_ref()?, &to.dir, &to.name)
    }

    fn drop_replaced(
        &self,
        batch: &mut Batch,
        to: &End,
        left: Option<Published>,
    ) -> Result<Option<crate::Garbage>, NsError> {
        let Some(old) = &to.file else {
            return Ok(None);
        };
        let mut state = old.lock();
        if state.names.len() > 1 {
            state.drop_name(&to.dir, &to.name);
            state.follow_published(left);
            state.touch();
            self.put_file(batch, old, &state)?;
            return Ok(None);
        }
        let garbage = self.drop_file(batch, old, &state)?;
        self.put_nameless(batch, old, &state)?;
        // From here on nobody writes a record of it again.
        state.unlink();
        Ok(Some(garbage))
    }

    /// What moves is on the PFS, and perhaps in the burst buffer too.
    fn replace_on_pfs(&self, from: &End, to: &End) -> Result<(), NsError> {
        let Some(stat) = &from.stat else {
            return Err(Errno::ENOENT.into());
        };
        let (replaced, replaced_open) = self.hold_replaced_dir(to)?.unzip();
        // Held until it is gone, so that nothing is made in it meanwhile.
        let _below = match &replaced {
            Some(dir) => Some(self.order_of_replaced(dir, from, to)?),
            None => None,
        };
        let moved_dir = (from.file.is_none() && from.is_dir())
            .then(|| self.intern_dir(stat.id, &from.dir, &from.name));
        let dir_key = moved_dir
            .as_ref()
            .filter(|dir| dir.is_persisted())
            .map(|dir| dir.key);
        let intent = RenameIntent {
            from: (from.dir.key, from.name.to_vec()),
            to: (to.dir.key, to.name.to_vec()),
            moving: stat.into(),
            file: from.file.as_ref().map(|f| f.object),
            dir: dir_key,
            replaced: to.file.as_ref().map(|f| f.object),
        };
        let needs_intent =
            intent.file.is_some() || intent.replaced.is_some() || intent.dir.is_some();
        let mut sequence = None;
        if needs_intent {
            let mut batch = Batch::new();
            self.put_dirs(&mut batch, &to.dir)?;
            if let Some(old) = &to.file {
                self.begin_nameless(&mut batch, old)?;
            }
            let synced = self.must_be_synced(&[from.file.as_ref(), to.file.as_ref()])?;
            let intent = Intent::Rename(intent);
            sequence = Some(self.begin_change_of_names(batch, &intent, synced)?);
            failpoint::hit(failpoint::Point::RenameIntent);
            self.dirs_written(&to.dir);
        }
        let rename = || {
            let (old, new) = ((&from.handle, &from.name), (&to.handle, &to.name));
            self.pfs
                .rename(old.0, old.1, new.0, new.1, RenameMode::Replace)
        };
        let _changing = [from, to].map(|end| end.dir.change_name(&end.name));
        let renamed = match to.is_dir() {
            true => self.without_temporaries(&to.handle, &to.name, &rename),
            false => rename(),
        };
        if let Err(error) = renamed {
            // Where the PFS does not tell, the next start finds the intent, and out.
            let moved = self.is_moved(from, to);
            if let (Ok(false), Some(sequence)) = (&moved, sequence) {
                self.take_intent_back(sequence)?;
                if let Some(old) = &to.file {
                    self.keeps_its_name(old);
                }
            }
            if !matches!(moved, Ok(true)) {
                return Err(on_pfs("rename")(error));
            }
        }
        if let (Some(dir), Some(open)) = (&replaced, replaced_open) {
            dir.keep_removed(open);
        }
        failpoint::hit(failpoint::Point::RenamePfs);
        self.after_pfs_rename(from, to, moved_dir, sequence)
    }

    /// A directory in use that a rename is about to replace.
    fn hold_replaced_dir(&self, to: &End) -> Result<Option<(Arc<Dir>, PfsDir)>, NsError> {
        let dir = match &to.stat {
            // Who looks it up from here on finds the same.
            Some(stat) if to.is_dir() => self.intern_dir(stat.id, &to.dir, &to.name),
            _ => return Ok(None),
        };
        let open = self.hold_for_its_users(&dir, &to.handle, &to.name)?;
        Ok(Some((dir, open)))
    }

    /// The right to change names in an empty directory that is about to be replaced.
    fn order_of_replaced<'a>(
        &self,
        dir: &'a Arc<Dir>,
        from: &End,
        to: &End,
    ) -> Result<MutexGuard<'a, ()>, NsError> {
        if [&from.dir, &to.dir].iter().any(|end| Arc::ptr_eq(end, dir)) {
            return Err(Errno::ENOTEMPTY.into());
        }
        let order = dir.order_now().ok_or(BUSY_BELOW)?;
        match dir.has_children() {
            true => Err(Errno::ENOTEMPTY.into()),
            false => Ok(order),
        }
    }

    /// After an error: whether the PFS has done it all the same, as where a request was sent twice.
    pub(crate) fn is_moved(&self, from: &End, to: &End) -> Result<bool, NsError> {
        let Some(id) = from.stat.map(|stat| stat.id) else {
            return Ok(false);
        };
        let is_it = |end: &End| -> Result<bool, NsError> {
            let found = self.stat_if_there(&end.handle, &end.name)?;
            Ok(found.is_some_and(|stat| stat.id == id))
        };
        Ok(is_it(to)? && !is_it(from)?)
    }

    fn after_pfs_rename(
        &self,
        from: &End,
        to: &End,
        moved_dir: Option<Arc<Dir>>,
        sequence: Option<u64>,
    ) -> Result<(), NsError> {
        let published = from.file.as_ref().and_then(|file| {
            let published = file.lock().expected_at(&from.dir, &from.name)?;
            Some(self.follow(published, &to.handle, &to.name))
        });
        let left = self.left_of_replaced(to);
        let mut locked = Locked::new(&from.dir, &to.dir);
        let mut batch = Batch::new();
        if let Some(sequence) = sequence {
            batch.delete(record::intent_key(sequence));
        }
        self.forget_replaced_dir(&mut batch, to);
        if let Some(dir) = &moved_dir {
            dir.move_to(to.dir.clone(), &to.name);
            if dir.is_persisted() {
                self.put_dir(&mut batch, dir)?;
            }
        }
        if let Some(file) = &from.file {
            let mut state = file.lock();
            state.rename_name(&from.place(), to.place());
            if let Some(published) = published
                && state.is_placed(&to.dir, &to.name)
            {
                state.set_published(Some(published));
            }
            if state.is_dirty() {
                state.outdate_copy();
            }
            state.touch();
            self.put_dirs(&mut batch, &to.dir)?;
            self.put_file(&mut batch, file, &state)?;
        } else if let Some(stat) = &from.stat
            && let Some(plain) = self.table.lock().plain_by_id(stat.id)
        {
            plain.parent = to.dir.clone();
            plain.name = to.name.clone();
        }
        let garbage = self.drop_replaced(&mut batch, to, left)?;
        // The PFS has it: memory follows even if the record cannot be written now. The intent is on
        // record.
        locked.from.remove(&from.name);
        locked.to().remove(&to.name);
        if let Some(file) = &from.file {
            locked.to().insert(to.name.clone(), file.clone());
        }
        if let Err(error) = self.commit(batch) {
            self.leave_unrecorded(sequence, moved_dir, &error);
            return Ok(());
        }
        garbage
            .into_iter()
            .for_each(|garbage| self.add_garbage(garbage));
        failpoint::hit(failpoint::Point::RenameRecord);
        if from.file.is_some() {
            self.dirs_written(&to.dir);
        }
        Ok(())
    }

    fn forget_replaced_dir(&self, batch: &mut Batch, to: &End) {
        let Some(stat) = to.stat.as_ref().filter(|s| s.kind() == FileKind::Directory) else {
            return;
        };
        if let Some(dir) = self.known_dir(self.dir_key(stat)) {
            dir.mark_removed();
            dir.forget_handle();
            batch.delete(record::dir_key(dir.key));
        }
    }
}

/// Whether both names are of one file, which a rename leaves as it is.
fn same_file(from: &End, to: &End) -> bool {
    matches!((&from.file, &to.file), (Some(a), Some(b)) if Arc::ptr_eq(a, b))
}
