//! Versions that are published as a whole. The directory of one is made on the PFS under a hidden
//! name, and its files drain into that; through the mount it has its real name all the time. One
//! rename on the PFS makes all of it visible there at once.
//!
//! Where such a directory is, is on record; after a crash its inode number tells under which of the
//! two names it is, so no step needs an intent.

use std::sync::Arc;
use std::time::Duration;

use forebay_kv::Durability;
use forebay_tiers::{PfsDir, PfsStat, PfsTree};
use forebay_types::{
    Attr, Cred, Errno, FileKind, Ino, RenameMode, TimeSpec, check_name, failpoint,
};
use parking_lot::RwLockReadGuard;

use crate::conflict::{CONFLICT_INFIX, Conflict, ConflictKind, conflict_names};
use crate::error::on_pfs;
use crate::log::Batch;
use crate::ops::lookup::Found;
use crate::ops::make::{as_owner, umask};
use crate::record::{self, UnpublishedRecord};
use crate::tree::{Dir, Hidden};
use crate::{Namespace, NsError};

/// Who puts a copy in its place waits so long for who names a version, and the other way round,
/// before they look whether that is of use.
const LANDING_WAIT: Duration = Duration::from_millis(200);

/// What a publication came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Publication {
    /// It has its name on the PFS.
    Published,
    /// It is not, and nothing was done: a file of it has changed meanwhile.
    Changed,
    /// An outsider has taken the name; the version is beside it.
    Conflict {
        /// Under this name.
        name: Vec<u8>,
    },
}

impl Namespace {
    /// Makes a directory that outsiders do not see before it is published.
    pub fn mkdir_unpublished(
        &self,
        parent: Ino,
        name: &[u8],
        perm: u16,
        cred: &Cred,
    ) -> Result<Attr, NsError> {
        check_name(name)?;
        if PfsTree::is_temporary(name) {
            return Err(Errno::EPERM.into());
        }
        let dir = self.dir(parent)?;
        let handle = self.open_dir(&dir)?;
        let hidden_name = PfsTree::version_name(self.instance, self.id_of_name()?);
        let order = dir.order(&self.pfs)?;
        if dir.is_taken(name) {
            return Err(Errno::EEXIST.into());
        }
        match self.pfs.stat_now(&handle, name) {
            Ok(_) => return Err(Errno::EEXIST.into()),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
            Err(e) => return Err(on_pfs("stat")(e)),
        }
        // What a crash leaves of it is looked for in directories that are on record.
        let mut batch = Batch::new();
        self.put_dirs(&mut batch, &dir)?;
        self.store.commit(batch, Durability::Synced)?;
        self.dirs_written(&dir);
        let has_default_acl = self.default_acl(&dir, &handle)?.is_some();
        let mode = u32::from(perm) & !umask(cred, has_default_acl);
        as_owner(cred, || {
            self.pfs
                .mkdir(&handle, &hidden_name, mode, cred.uid, cred.gid)
        })
        .map_err(on_pfs("mkdir"))?;
        failpoint::hit(failpoint::Point::VersionMade);
        let stat = self
            .pfs
            .stat(&handle, &hidden_name)
            .map_err(on_pfs("stat"))?;
        let child = self.intern_dir(stat.id, &dir, name);
        child.hide(Some(Hidden {
            name: hidden_name.clone().into(),
            committed: false,
            since_s: TimeSpec::now().sec,
            lost: Vec::new(),
            interrupted: false,
        }));
        let mut batch = Batch::new();
        self.put_dir(&mut batch, &child)?;
        self.put_unpublished(&mut batch, &child)?;
        // Without it a loss of power would leave what drains into it where nobody looks.
        if let Err(error) = self.store.commit(batch, Durability::Synced) {
            child.hide(None);
            if let Err(left) = self.pfs.rmdir(&handle, &hidden_name) {
                // The next start looks for it.
                tracing::warn!("{}: {left}", hidden_name.escape_ascii());
            }
            return Err(error.into());
        }
        failpoint::hit(failpoint::Point::VersionRecorded);
        dir.add_unpublished(name, child.clone());
        dir.empty_dirs.end();
        dir.note_present(name);
        self.versions.lock().insert(child.key, child.clone());
        drop(order);
        self.dirs_written(&child);
        child.empty_dirs.begin();
        Ok(self.meet(&dir, name, &stat, true))
    }

    /// Whether a directory was removed, or leads nowhere on the PFS.
    pub fn is_gone(&self, dir: &Arc<Dir>) -> bool {
        dir.is_removed()
            || matches!(
                self.open_dir(dir),
                Err(error) if matches!(error.refusal(), Some(Errno::ENOENT | Errno::ESTALE))
            )
    }

    /// Versions that are not published yet.
    pub fn unpublished(&self) -> Vec<Arc<Dir>> {
        self.versions.lock().values().cloned().collect()
    }

    /// The unpublished version that a directory belongs to, itself included.
    pub fn version_of(&self, dir: &Arc<Dir>) -> Option<Arc<Dir>> {
        if self.versions.lock().is_empty() {
            return None;
        }
        let mut at = dir.clone();
        loop {
            if at.hidden().is_some() {
                return Some(at);
            }
            at = at.place()?.0;
        }
    }

    /// The version is to be published as soon as all of it is on the PFS; that survives a crash,
    /// and the caller has seen to it that so do its files. `false` if some of them are lost and not
    /// there again.
    pub fn order_publication(&self, dir: &Arc<Dir>) -> Result<bool, NsError> {
        let Some(mut hidden) = dir.hidden() else {
            return Ok(true);
        };
        hidden.lost.retain(|(key, name)| {
            let below = self.known_dir(*key);
            below.is_none_or(|dir| self.lookup_in(&dir, name, false).is_err())
        });
        hidden.committed = hidden.lost.is_empty();
        hidden.interrupted &= !hidden.committed;
        let ordered = hidden.committed;
        dir.hide(Some(hidden));
        self.save_deferred()?;
        self.save_unpublished(dir)?;
        failpoint::hit(failpoint::Point::VersionOrdered);
        Ok(ordered)
    }

    /// A loss of power has taken a file of a version: that is not published before the file is
    /// there again.
    pub fn lost_of_version(&self, dir: &Arc<Dir>, name: &[u8]) -> Result<(), NsError> {
        let Some(version) = self.version_of(dir) else {
            return Ok(());
        };
        let Some(mut hidden) = version.hidden() else {
            return Ok(());
        };
        hidden.lost.push((dir.key, name.to_vec()));
        hidden.committed = false;
        hidden.interrupted = true;
        version.hide(Some(hidden));
        self.save_unpublished(&version)
    }

    fn save_unpublished(&self, dir: &Dir) -> Result<(), NsError> {
        let mut batch = Batch::new();
        self.put_unpublished(&mut batch, dir)?;
        Ok(self.store.commit(batch, Durability::Synced)?)
    }

    /// The right to put a copy in its place. `ETIMEDOUT` if somebody has it alone who waits for a
    /// PFS that is given up.
    pub(crate) fn landing(&self) -> Result<RwLockReadGuard<'_, ()>, NsError> {
        loop {
            if let Some(landing) = self.landing.try_read_for(LANDING_WAIT) {
                return Ok(landing);
            }
            if self.pfs.health().is_given_up() {
                return Err(Errno::ETIMEDOUT.into());
            }
        }
    }

    /// Gives a version its name on the PFS, all of it durable before and the name after. `whole`
    /// looks whether all its files are there: none of them changes there between that and the name.
    pub fn publish_version(
        &self,
        dir: &Arc<Dir>,
        whole: &dyn Fn() -> bool,
    ) -> Result<Publication, NsError> {
        // Its directories, links and special files, and what was changed there in place; its other
        // files are durable already.
        match self.open_dir(dir) {
            Ok(all) => self
                .pfs
                .sync_tree(&all)
                .map_err(on_pfs("fsync of a tree"))?,
            // An outsider has renamed or removed it: see below.
            Err(e) if matches!(e.errno(), Errno::ENOENT | Errno::ESTALE) => {}
            Err(e) => return Err(e),
        }
        failpoint::hit(failpoint::Point::VersionFlushed);
        let (parent, _) = dir.place().ok_or(Errno::EINVAL)?;
        let handle = self.open_dir(&parent)?;
        let Some(alone) = self.landing.try_write_for(LANDING_WAIT) else {
            return Ok(Publication::Changed);
        };
        let _order = parent.order(&self.pfs)?;
        let (Some(hidden), Some((now, name))) = (dir.hidden(), dir.place()) else {
            return Ok(Publication::Published);
        };
        if !Arc::ptr_eq(&now, &parent) || !whole() {
            return Ok(Publication::Changed);
        }
        let named = || self.name_version(&handle, &hidden.name, &name);
        let beside = match self.unseen(&parent, &handle, named) {
            Ok(()) => None,
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {
                Some(self.name_beside(&parent, &handle, dir, &hidden.name)?)
            }
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
                drop(alone);
                return self.settle_version(&parent, dir, &name);
            }
            Err(e) => return Err(on_pfs("name a version")(e)),
        };
        drop(alone);
        match beside {
            None => self.put_times_back(&parent, &handle),
            Some(_) => self.touch(&parent),
        }
        failpoint::hit(failpoint::Point::VersionNamed);
        // Not before that is durable: the record knows where it was.
        self.pfs
            .sync_dir(&handle)
            .map_err(on_pfs("fsync of a directory"))?;
        failpoint::hit(failpoint::Point::VersionDurable);
        let publication = self.published_as(&parent, dir, &name, beside)?;
        failpoint::hit(failpoint::Point::VersionPublished);
        Ok(publication)
    }

    /// A version has left its hidden name: for its own, for one beside an outsider's, or by an
    /// outsider's hand: `ENOENT`. Its parent's order is held.
    fn settle_version(
        &self,
        parent: &Arc<Dir>,
        dir: &Arc<Dir>,
        name: &[u8],
    ) -> Result<Publication, NsError> {
        let handle = self.open_dir(parent)?;
        let start = [name, CONFLICT_INFIX.as_bytes()].concat();
        let mut names = vec![name.to_vec()];
        self.pfs
            .read_dir(&handle, &mut |entry| {
                if entry.kind == FileKind::Directory && entry.name.starts_with(&start) {
                    names.push(entry.name);
                }
            })
            .map_err(on_pfs("readdir"))?;
        for found in names {
            let stat = match self.pfs.stat_now(&handle, &found) {
                Ok(stat) => stat,
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => continue,
                Err(e) => return Err(on_pfs("stat")(e)),
            };
            if self.dir_key(&stat) == dir.key {
                self.pfs
                    .sync_dir(&handle)
                    .map_err(on_pfs("fsync of a directory"))?;
                let beside = (found != name).then_some(found);
                return self.published_as(parent, dir, name, beside);
            }
        }
        self.unhide(parent, dir, name)?;
        dir.forget_handle();
        Err(Errno::ENOENT.into())
    }

    /// It has its name, or, as an outsider has that, one `beside` it.
    fn published_as(
        &self,
        parent: &Arc<Dir>,
        dir: &Arc<Dir>,
        name: &[u8],
        beside: Option<Vec<u8>>,
    ) -> Result<Publication, NsError> {
        if let Some(beside) = &beside {
            self.note_conflict(Conflict {
                path: parent.path_of(name),
                kept_as: beside.clone(),
                theirs: false,
                kind: ConflictKind::Taken,
            });
            dir.move_to(parent.clone(), beside);
        }
        self.unhide(parent, dir, name)?;
        Ok(match beside {
            None => Publication::Published,
            Some(name) => Publication::Conflict { name },
        })
    }

    /// As rename(2) that replaces nothing, for directories also where the PFS cannot promise that:
    /// what an ordinary rename could replace then is an empty directory.
    fn name_version(&self, handle: &PfsDir, hidden: &[u8], name: &[u8]) -> std::io::Result<()> {
        match self
            .pfs
            .rename(handle, hidden, handle, name, RenameMode::NoReplace)
        {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
            done => return done,
        }
        match self.pfs.stat_now(handle, name) {
            Ok(_) => Err(Errno::EEXIST.into()),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
                self.pfs
                    .rename(handle, hidden, handle, name, RenameMode::Replace)
            }
            Err(e) => Err(e),
        }
    }

    fn name_beside(
        &self,
        parent: &Arc<Dir>,
        handle: &PfsDir,
        dir: &Dir,
        hidden: &[u8],
    ) -> Result<Vec<u8>, NsError> {
        let (_, name) = dir.place().ok_or(Errno::EINVAL)?;
        for beside in conflict_names(&name).filter(|beside| !parent.is_taken(beside)) {
            // Who finds the hidden name gone looks there.
            dir.move_to(parent.clone(), &beside);
            let failed = match self.name_version(handle, hidden, &beside) {
                Ok(()) => return Ok(beside),
                Err(e) if e.raw_os_error() == Some(libc::EEXIST) => continue,
                Err(e) => e,
            };
            dir.move_to(parent.clone(), &name);
            return Err(on_pfs("name a version")(failed));
        }
        dir.move_to(parent.clone(), &name);
        Err(Errno::EEXIST.into())
    }

    /// The directory is an ordinary one from now on, or gone. `name` is what it was shown as.
    fn unhide(&self, parent: &Dir, dir: &Arc<Dir>, name: &[u8]) -> Result<(), NsError> {
        let mut batch = Batch::new();
        batch.delete(record::unpublished_key(dir.key));
        if !dir.is_removed() {
            self.put_dir(&mut batch, dir)?;
        }
        self.commit(batch)?;
        dir.hide(None);
        parent.remove_unpublished(name);
        self.versions.lock().remove(&dir.key);
        Ok(())
    }

    fn put_unpublished(&self, batch: &mut Batch, dir: &Dir) -> Result<(), NsError> {
        if let (Some(hidden), Some((parent, name))) = (dir.hidden(), dir.place()) {
            let value = record::encode(&UnpublishedRecord {
                parent: parent.key,
                name: name.to_vec(),
                hidden: hidden.name.to_vec(),
                committed: hidden.committed,
                since_s: hidden.since_s,
                lost: hidden.lost,
            })?;
            batch.put(record::unpublished_key(dir.key), value);
        }
        Ok(())
    }

    /// Takes the versions over that an earlier run left unpublished.
    pub(crate) fn load_unpublished(&self, unreadable: &mut Vec<Vec<u8>>) -> Result<(), NsError> {
        let mut found = Vec::new();
        self.store
            .scan(record::UNPUBLISHED_PREFIX, None, &mut |key, value| {
                match (
                    record::DirKey::from_bytes(&key[2..]),
                    record::decode::<UnpublishedRecord>(value),
                ) {
                    (Some(dir), Ok(record)) => found.push((dir, record)),
                    _ => unreadable.push(key.to_vec()),
                }
                true
            })?;
        for (key, version) in found {
            // Its own record of where it is was written with this one.
            let (Some(dir), Some(parent)) = (self.known_dir(key), self.known_dir(version.parent))
            else {
                unreadable.push(record::unpublished_key(key));
                continue;
            };
            dir.hide(Some(Hidden {
                name: version.hidden.into(),
                committed: version.committed,
                since_s: version.since_s,
                lost: version.lost,
                interrupted: !version.committed,
            }));
            parent.add_unpublished(&version.name, dir.clone());
            self.versions.lock().insert(key, dir);
        }
        Ok(())
    }

    /// Looks which of the two names each version has: a crash may have come between the rename and
    /// its record.
    pub fn settle_unpublished(&self) -> Result<(), NsError> {
        for dir in self.unpublished() {
            if let Some((parent, name)) = dir.place()
                && self.stat_unpublished(&parent, &name, &dir)?.is_none()
            {
                failpoint::hit(failpoint::Point::SettleVersion);
            }
        }
        Ok(())
    }

    /// What the PFS says of a version that is not published; `None` if it is not under its hidden
    /// name any more, and so an ordinary directory, or gone.
    fn stat_unpublished(
        &self,
        parent: &Arc<Dir>,
        name: &[u8],
        dir: &Arc<Dir>,
    ) -> Result<Option<PfsStat>, NsError> {
        let Some(hidden) = dir.hidden() else {
            return Ok(None);
        };
        match self.pfs.stat_now(&self.open_dir(parent)?, &hidden.name) {
            Ok(stat) if self.dir_key(&stat) == dir.key => return Ok(Some(stat)),
            Ok(_) => {}
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
            Err(e) => return Err(on_pfs("stat")(e)),
        }
        let _order = parent.order(&self.pfs)?;
        if dir.hidden() == Some(hidden) {
            match self.settle_version(parent, dir, name) {
                Err(error) if error.refusal() == Some(Errno::ENOENT) => {
                    let path = parent.path_of(name);
                    tracing::warn!(
                        "{}: somebody has renamed or removed this version on the PFS",
                        path.escape_ascii()
                    );
                }
                settled => drop(settled?),
            }
        }
        Ok(None)
    }

    /// Resolves the name of a version that is not published.
    pub(crate) fn lookup_unpublished(
        &self,
        parent: &Arc<Dir>,
        name: &[u8],
        remember: bool,
    ) -> Result<Option<Found>, NsError> {
        let Some(dir) = parent.unpublished_child(name) else {
            return Ok(None);
        };
        let stat = self.stat_unpublished(parent, name, &dir)?;
        Ok(stat.map(|stat| Found {
            attr: self.meet(parent, name, &stat, remember),
            file: None,
        }))
    }

    /// A version was removed through the mount; its parent is locked.
    pub(crate) fn forget_unpublished(
        &self,
        parent: &Dir,
        dir: &Arc<Dir>,
        name: &[u8],
    ) -> Result<(), NsError> {
        self.unhide(parent, dir, name)
    }

    /// A rename from or onto the name of an unpublished version; `None` if neither is one, or no
    /// longer.
    pub(crate) fn rename_unpublished(
        &self,
        (from, name): (&Arc<Dir>, &[u8]),
        (to, new_name): (&Arc<Dir>, &[u8]),
        mode: RenameMode,
    ) -> Result<Option<()>, NsError> {
        let source = from.unpublished_child(name);
        let target = to.unpublished_child(new_name);
        match (source, target, mode) {
            (None, None, _) => Ok(None),
            (Some(_), _, _) if Arc::ptr_eq(from, to) && name == new_name => Ok(Some(())),
            (_, _, RenameMode::Exchange) => Err(Errno::EINVAL.into()),
            (_, Some(_), RenameMode::NoReplace) => Err(Errno::EEXIST.into()),
            (None, Some(_), _) => {
                let found = self.lookup_in(from, name, false)?;
                if found.attr.kind != FileKind::Directory {
                    return Err(Errno::EISDIR.into());
                }
                self.rmdir(to.ino, new_name)?;
                Ok(None)
            }
            // Its hidden name is one of the directory that it is in.
            (Some(_), _, _) if !Arc::ptr_eq(from, to) => Err(Errno::EXDEV.into()),
            (Some(dir), _, mode) => self
                .rename_version(from, &dir, name, new_name, mode)
                .map(Some),
        }
    }

    fn rename_version(
        &self,
        parent: &Arc<Dir>,
        dir: &Arc<Dir>,
        name: &[u8],
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<(), NsError> {
        let changes = parent.changes_of(new_name);
        match self.lookup_in(parent, new_name, false) {
            Ok(_) if mode == RenameMode::NoReplace => return Err(Errno::EEXIST.into()),
            Ok(found) if found.attr.kind != FileKind::Directory => {
                return Err(Errno::ENOTDIR.into());
            }
            Ok(_) => self.rmdir(parent.ino, new_name)?,
            Err(error) if error.refusal() == Some(Errno::ENOENT) => {}
            Err(error) => return Err(error),
        }
        let order = parent.order(&self.pfs)?;
        if parent.changes_of(new_name) != changes {
            return Err(Errno::EAGAIN.into());
        }
        if parent.is_taken(new_name) {
            return Err(Errno::EEXIST.into());
        }
        dir.move_to(parent.clone(), new_name);
        let mut batch = Batch::new();
        self.put_dir(&mut batch, dir)?;
        self.put_unpublished(&mut batch, dir)?;
        if let Err(error) = self.commit(batch) {
            dir.move_to(parent.clone(), name);
            return Err(error);
        }
        parent.remove_unpublished(name);
        parent.add_unpublished(new_name, dir.clone());
        parent.note_present(new_name);
        failpoint::hit(failpoint::Point::VersionRenamed);
        drop(order);
        self.touch(parent);
        Ok(())
    }

    /// Removes what a crash has left of versions that were just being made, while none is.
    pub(crate) fn sweep_versions(&self, dir: &Arc<Dir>) -> Result<(), NsError> {
        let handle = self.open_dir(dir)?;
        for name in self
            .pfs
            .versions(&handle, self.instance)
            .map_err(on_pfs("list versions"))?
        {
            let known = dir.unpublished_names();
            if known
                .iter()
                .any(|(_, child)| child.hidden().is_some_and(|h| *h.name == *name))
            {
                continue;
            }
            match self.pfs.rmdir(&handle, &name) {
                Ok(()) => {}
                Err(e) if e.raw_os_error() == Some(libc::ENOTEMPTY) => {
                    let path = dir.path_of(&name);
                    tracing::warn!("{}: a version without a record", path.escape_ascii());
                }
                Err(e) => return Err(on_pfs("rmdir")(e)),
            }
        }
        Ok(())
    }
}
