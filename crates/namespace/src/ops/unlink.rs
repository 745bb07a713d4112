//! unlink and rmdir. The PFS loses the name first: a crash in between leaves a file that is in the
//! burst buffer only, which is dirty again and not lost; never one that comes back.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use forebay_kv::Durability;
use forebay_tiers::{PfsDir, PfsTree};
use forebay_types::{Errno, FileKind, Ino, ObjectId, check_name, failpoint};

use crate::error::on_pfs;
use crate::log::Batch;
use crate::outside::Seen;
use crate::record::{self, Intent, LinkChange, LinkIntent, Published};
use crate::tree::Dir;
use crate::{File, Namespace, NsError};

/// A demotion that has begun makes one temporary file, and gives up when it finds it gone.
const TEMPORARIES_TRIES: usize = 16;
/// A directory in which names are changing is looked at again after this time.
pub(crate) const CALM_AGAIN: Duration = Duration::from_millis(1);

/// An unlink that the PFS has seen, and the records have not.
struct Begun {
    /// What ends the intent.
    batch: Batch,
    /// The intent's number, where one was made.
    sequence: Option<u64>,
    /// The PFS had the name, and has lost it.
    is_lost: bool,
    was_dirty: bool,
}

impl Namespace {
    /// Removes a name. Answers with the file, if it was in the burst buffer: its object goes when
    /// nobody has it open any more.
    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<Option<Arc<File>>, NsError> {
        check_name(name)?;
        let dir = self.dir(parent)?;
        let order = dir.order(&self.pfs)?;
        if dir.unpublished_child(name).is_some() {
            return Err(Errno::EISDIR.into());
        }
        let Some(file) = dir.child(name) else {
            let handle = self.open_dir(&dir)?;
            self.pfs.unlink(&handle, name).map_err(on_pfs("unlink"))?;
            self.touch(&dir);
            return Ok(None);
        };
        self.unlink_file(&dir, name, &file)?;
        drop(order);
        self.touch(&dir);
        Ok(Some(file))
    }

    fn unlink_file(&self, dir: &Arc<Dir>, name: &[u8], file: &Arc<File>) -> Result<(), NsError> {
        let _naming = file.naming(&self.pfs)?;
        self.settle_held(file)?;
        if !dir.child(name).is_some_and(|now| Arc::ptr_eq(&now, file)) {
            // An outsider has the name, it turned out, and the file another.
            return Err(Errno::ESTALE.into());
        }
        let mut begun = self.unlink_on_pfs(dir, name, file)?;
        failpoint::hit(failpoint::Point::UnlinkPfs);
        // The link count changed the PFS's ctime.
        let left = self.published_without(file, dir, name);
        let mut children = dir.lock();
        let mut state = file.lock();
        let mut before = state.clone();
        let garbage = if state.names.len() > 1 {
            state.drop_name(dir, name);
            state.follow_published(left);
            self.put_file(&mut begun.batch, file, &state)?;
            None
        } else {
            let garbage = self.drop_file(&mut begun.batch, file, &state)?;
            self.put_nameless(&mut begun.batch, file, &state)?;
            state.unlink();
            Some(garbage)
        };
        state.touch();
        if let Err(error) = self.commit(begun.batch) {
            // With an intent, or where the record says that the PFS has it, a start finds that it
            // has not, and ends it, too.
            if begun.sequence.is_some() || (begun.is_lost && !begun.was_dirty) {
                children.remove(name);
                self.leave_unrecorded(begun.sequence, None, &error);
                return Ok(());
            }
            if begun.is_lost {
                before.set_published(None);
            }
            *state = before;
            return Err(error);
        }
        children.remove(name);
        failpoint::hit(failpoint::Point::UnlinkRecord);
        if let Some(garbage) = garbage {
            self.add_garbage(garbage);
        }
        Ok(())
    }

    /// The PFS loses the name, if it has it, before the record does.
    fn unlink_on_pfs(
        &self,
        dir: &Arc<Dir>,
        name: &[u8],
        file: &Arc<File>,
    ) -> Result<Begun, NsError> {
        let (published, several, was_dirty) = {
            let state = file.lock();
            let several = state.names.len() > 1;
            (state.expected_at(dir, name), several, state.is_dirty())
        };
        let mut begun = Begun {
            batch: Batch::new(),
            sequence: None,
            is_lost: false,
            was_dirty,
        };
        let Some(published) = published else {
            return Ok(begun);
        };
        let synced = self.must_be_synced(&[Some(file)])?;
        if !several && !was_dirty {
            // A start would find a copy of what the PFS does not have. What is dirty has its name
            // on record, and keeps that.
            let mut early = Batch::new();
            if self.begin_nameless(&mut early, file)? {
                self.commit(early)?;
            }
        }
        if synced && !several && !was_dirty {
            self.sync()?;
        }
        if several {
            let place = (dir.key, name.to_vec());
            let intent = Intent::Link(LinkIntent {
                place: place.clone(),
                target: published,
                change: LinkChange::Removed,
                holder: Some(place),
            });
            let sequence = self.begin_change_of_names(Batch::new(), &intent, synced)?;
            begun.batch.delete(record::intent_key(sequence));
            begun.sequence = Some(sequence);
            failpoint::hit(failpoint::Point::UnlinkIntent);
        }
        match self.unlink_older(dir, name, file, published) {
            Ok(removed) => begun.is_lost = removed,
            Err(error) => {
                if let Some(sequence) = begun.sequence {
                    self.take_intent_back(sequence)?;
                }
                if !several && !was_dirty && self.is_there(dir, name, published) {
                    self.keeps_its_name(file);
                }
                return Err(error);
            }
        }
        Ok(begun)
    }

    /// The PFS loses the version that it has of a file about to be unlinked; whether it has. What
    /// an outsider put in its place while a newer one was in the burst buffer was never shown here,
    /// and stays.
    fn unlink_older(
        &self,
        dir: &Arc<Dir>,
        name: &[u8],
        file: &Arc<File>,
        published: Published,
    ) -> Result<bool, NsError> {
        let handle = self.open_dir(dir)?;
        let (dirty, several) = {
            let state = file.lock();
            (state.is_dirty(), state.names.len() > 1)
        };
        if dirty || self.trusts(dir, name) {
            match self.look(&handle, name, published)? {
                Seen::Nothing => return Ok(false),
                Seen::Foreign(stat) if !published.same_content(&stat) => {
                    return Ok(false);
                }
                _ => {}
            }
            if dirty && !several {
                self.begin_unlink_of_older(file, published)?;
            }
        }
        let removed = self.pfs.unlink(&handle, name);
        if dirty && !several {
            file.lock().set_published(Some(published));
        }
        match removed {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(true),
            Err(e) => {
                if !several {
                    self.set_published(file, published)?;
                }
                Err(on_pfs("unlink")(e))
            }
            Ok(()) => Ok(true),
        }
    }

    /// After a crash it must not look as if somebody else had removed it.
    pub(crate) fn begin_unlink_of_older(
        &self,
        file: &File,
        older: Published,
    ) -> Result<(), NsError> {
        let mut state = file.lock();
        state.set_published(Some(older.leaving()));
        self.save(file, &state, Durability::Synced)?;
        failpoint::hit(failpoint::Point::OlderGoing);
        Ok(())
    }

    /// Writes down what the PFS has of a file.
    pub(crate) fn set_published(&self, file: &File, published: Published) -> Result<(), NsError> {
        let mut state = file.lock();
        state.set_published(Some(published));
        self.save(file, &state, Durability::Buffered)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<(), NsError> {
        check_name(name)?;
        let dir = self.dir(parent)?;
        let mut looked = false;
        loop {
            match self.rmdir_if_calm(&dir, name) {
                Ok(true) => return Ok(()),
                Ok(false) => std::thread::sleep(CALM_AGAIN),
                Err(error) if error.refusal() == Some(Errno::ENOTEMPTY) && !looked => {
                    looked = true;
                    if !self.forget_removed(&dir, name)? {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Drops the clean files of a directory that somebody has removed on the PFS: nobody sees them,
    /// and they would keep it from going. Answers whether that was all that kept it.
    pub(crate) fn forget_removed(&self, parent: &Arc<Dir>, name: &[u8]) -> Result<bool, NsError> {
        let version = parent.unpublished_child(name);
        let hidden = version.as_ref().and_then(|version| version.hidden());
        let name_below = hidden.as_ref().map_or(name, |hidden| &hidden.name);
        let found = self.stat_if_there(&self.open_dir(parent)?, name_below)?;
        let Some(child) = found.and_then(|stat| self.known_dir(self.dir_key(&stat))) else {
            return Ok(false);
        };
        let children = child.lock().clone();
        for (name, file) in &children {
            // One that is there is enough: the others need not be asked for.
            if self.still_valid(&child, name, file)? {
                return Ok(false);
            }
        }
        Ok(!children.is_empty())
    }

    /// `false` if something is being made or removed in the directory now. Waiting for that with
    /// the parent's order held could be waiting for somebody who waits for that.
    fn rmdir_if_calm(&self, dir: &Arc<Dir>, name: &[u8]) -> Result<bool, NsError> {
        let _order = dir.order(&self.pfs)?;
        if dir.child(name).is_some() {
            return Err(Errno::ENOTDIR.into());
        }
        let version = dir.unpublished_child(name);
        let hidden = version.as_ref().and_then(|version| version.hidden());
        let name_below = hidden.as_ref().map_or(name, |hidden| &hidden.name);
        let handle = self.open_dir(dir)?;
        let stat = self
            .pfs
            .stat_now(&handle, name_below)
            .map_err(on_pfs("stat"))?;
        let known = match &version {
            // Who looks it up from here on finds the same.
            None if stat.kind() == FileKind::Directory => Some(self.intern_dir(stat.id, dir, name)),
            _ => self.known_dir(self.dir_key(&stat)),
        };
        // Held until it is gone, so that no file is created in it meanwhile.
        let below = known.as_ref().map(|child| child.order_now());
        if matches!(below, Some(None)) {
            return Ok(false);
        }
        if known.as_ref().is_some_and(|child| child.has_children()) {
            return Err(Errno::ENOTEMPTY.into());
        }
        let open = known
            .as_ref()
            .map(|child| self.hold_for_its_users(child, &handle, name_below))
            .transpose()?;
        self.without_temporaries(&handle, name_below, &|| self.pfs.rmdir(&handle, name_below))
            .map_err(on_pfs("rmdir"))?;
        failpoint::hit(failpoint::Point::RmdirPfs);
        self.touch(dir);
        if let (Some(child), Some(open)) = (&known, open) {
            child.keep_removed(open);
            let mut forgotten = Ok(());
            if let Some(version) = &version {
                forgotten = self.forget_unpublished(dir, version, name);
            }
            if child.is_persisted() {
                let mut batch = Batch::new();
                batch.delete(record::dir_key(child.key));
                forgotten = forgotten.and(self.commit(batch));
            }
            if let Err(error) = forgotten {
                // The PFS has lost it: whoever finds the record, finds that.
                tracing::warn!("the record of a removed directory stays for now: {error}");
            }
        }
        Ok(true)
    }

    /// Opens a directory that is about to be removed: who has it open goes on.
    pub(crate) fn hold_for_its_users(
        &self,
        dir: &Arc<Dir>,
        parent: &PfsDir,
        name: &[u8],
    ) -> Result<PfsDir, NsError> {
        match self.open_dir(dir) {
            Ok(open) => Ok(open),
            // An outsider has moved it here.
            Err(_) => self
                .pfs
                .open_dir(parent, name)
                .map_err(on_pfs("open a directory")),
        }
    }

    /// Does what needs an empty directory on the PFS. Copies under way may have temporary files in
    /// a directory that holds no file of the burst buffer any more; what they are copies of is gone
    /// or elsewhere, so they go too.
    pub(crate) fn without_temporaries(
        &self,
        parent: &PfsDir,
        name: &[u8],
        act: &dyn Fn() -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        for _ in 0..TEMPORARIES_TRIES {
            match act() {
                Err(e) if matches!(e.raw_os_error(), Some(libc::ENOTEMPTY | libc::EEXIST)) => {}
                done => return done,
            }
            let Ok(dir) = self.pfs.open_dir(parent, name) else {
                break;
            };
            let mut others = false;
            self.pfs.read_dir(&dir, &mut |_| others = true)?;
            if others || self.sweep(&dir, &HashSet::new()).is_err() {
                break;
            }
        }
        act()
    }

    /// Removes unfinished copies from a directory while none is under way, as after a crash.
    pub fn sweep_dir(&self, dir: &Arc<Dir>) -> Result<usize, NsError> {
        self.sweep_versions(dir)?;
        // What has such a name may be an outsider's, until it was looked at.
        let unsettled: HashSet<ObjectId> = {
            let children = dir.lock();
            let files = children.values();
            let unsettled = files.filter(|file| file.lock().is_unsettled());
            unsettled.map(|file| file.object).collect()
        };
        self.sweep(&self.open_dir(dir)?, &unsettled)
    }

    fn sweep(&self, dir: &PfsDir, but: &HashSet<ObjectId>) -> Result<usize, NsError> {
        let mut names = self
            .pfs
            .temporaries(dir, self.instance)
            .map_err(on_pfs("list copies under way"))?;
        names.retain(|name| {
            !PfsTree::object_of_temporary(name).is_some_and(|object| but.contains(&object))
        });
        for name in &names {
            match self.pfs.unlink(dir, name) {
                Err(e) if e.raw_os_error() != Some(libc::ENOENT) => {
                    return Err(on_pfs("unlink")(e));
                }
                _ => {}
            }
        }
        Ok(names.len())
    }
}
