//! create: a new regular file exists in the burst buffer only, until its first demotion.

use std::sync::Arc;

use forebay_kv::Durability;
use forebay_tiers::{Identity, PfsDir, PfsStat, PfsTree};
use forebay_types::{
    Attr, Cred, Errno, Generation, Ino, ObjectId, Process, TierId, TimeSpec, check_name, failpoint,
};

use crate::acl;
use crate::error::on_pfs;
use crate::record::{DirKey, Meta, Residency, Xattrs};
use crate::table::Node;
use crate::tree::{Dir, File, FileState, Name, Place};
use crate::{Namespace, NsError};

/// A file to be created.
pub struct NewFile {
    /// Its object; exists already, empty, so that no record ever points at nothing.
    pub object: ObjectId,
    /// Its tier.
    pub tier: TierId,
    /// Permission bits.
    pub perm: u16,
    /// Attributes that it inherits: see [`Namespace::mode_of_new`].
    pub xattrs: Xattrs,
    /// Owner.
    pub cred: Cred,
    /// It is handed to the kernel for writing at once.
    pub writing: bool,
    /// When its object was made, by that one's own clock: times of a file never go back.
    pub born: TimeSpec,
}

/// A name that was found free for a new file.
#[derive(Clone, Copy, Debug)]
pub struct Free {
    /// The group that the file gets.
    pub gid: u32,
    /// Changes of the name before it was found free.
    changes: u32,
}

impl Free {
    /// It is free in this directory, so far as is known now.
    pub fn now(dir: &Dir, name: &[u8], gid: u32) -> Free {
        Free {
            gid,
            changes: dir.changes_of(name),
        }
    }
}

/// What came of taking over an object that no record names.
pub enum Adopted {
    /// It is a file again.
    File(Arc<File>),
    /// There is another file in its place: it had been replaced, or is a copy of that one.
    Taken(Option<PfsStat>),
    /// Its place is not known.
    Nowhere,
    /// Its place is free, but it may be torn: it is lost.
    Torn,
}

/// A file that exists in the burst buffer only.
pub(crate) fn born(
    new: &NewFile,
    gid: u32,
    names: Vec<Place>,
    unnamed: Option<Arc<Dir>>,
) -> Arc<File> {
    let meta = Meta {
        perm: new.perm,
        uid: new.cred.uid,
        gid,
        size: 0,
        allocated_bytes: 0,
        atime: new.born,
        mtime: new.born,
        ctime: new.born,
    };
    let residency = Residency {
        tier: new.tier,
        shadow: None,
        flushed: None,
        generation: Generation(1),
        published: None,
        clean: false,
        writing: new.writing,
        by_kernel: new.writing,
        crc: None,
        has_sums: false,
        flush_failed: false,
        promised: None,
        owes_loss: false,
    };
    let names = (names, unnamed);
    let state = FileState::new(names, meta, new.xattrs.clone(), residency);
    let ino = Ino::of_new(new.object);
    Arc::new(File::new(new.object, ino, state))
}

impl Namespace {
    /// Fails with `EEXIST` if the name is taken in the burst buffer or on the PFS, and otherwise
    /// answers with what a new file of this name needs.
    pub fn check_free(
        &self,
        parent: Ino,
        name: &[u8],
        cred: &Cred,
    ) -> Result<(Arc<Dir>, Free), NsError> {
        check_name(name)?;
        let dir = self.dir(parent)?;
        if PfsTree::is_temporary(name) {
            return Err(Errno::EPERM.into());
        }
        let free = Free::now(&dir, name, 0);
        if dir.child(name).is_some() || dir.unpublished_child(name).is_some() {
            return Err(Errno::EEXIST.into());
        }
        let handle = self.open_dir(&dir)?;
        if !dir.is_absent(name, free.changes) && !dir.empty_dirs.holds(&self.pfs, &handle) {
            match self.pfs.stat(&handle, name) {
                Ok(_) => return Err(Errno::EEXIST.into()),
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
                Err(e) => return Err(on_pfs("stat")(e)),
            }
        }
        let gid = self.group_of_new(&dir, &handle, cred)?;
        Ok((dir, Free { gid, ..free }))
    }

    /// The group that a new file in this directory gets; `EPERM` where the PFS takes none.
    pub(crate) fn group_of_new(
        &self,
        dir: &Arc<Dir>,
        handle: &PfsDir,
        cred: &Cred,
    ) -> Result<u32, NsError> {
        let rule = match dir.group_rule() {
            Some(rule) => rule,
            None => {
                dir.learn(
                    &self
                        .pfs
                        .stat_dir(handle)
                        .map_err(on_pfs("stat of a directory"))?,
                );
                dir.group_rule().flatten()
            }
        };
        // What is made in it could never be drained.
        if dir.seen().is_some_and(|stat| stat.is_immutable) {
            return Err(Errno::EPERM.into());
        }
        Ok(rule.unwrap_or(cred.gid))
    }

    /// The default ACL of a directory, if it has one.
    pub(crate) fn default_acl(
        &self,
        dir: &Dir,
        handle: &PfsDir,
    ) -> Result<Option<Arc<[u8]>>, NsError> {
        match self.has_acls {
            true => dir
                .default_acl(|| self.pfs.get_xattr_dir(handle, acl::DEFAULT))
                .map_err(on_pfs("getxattr of a directory")),
            false => Ok(None),
        }
    }

    /// Attributes and permission bits of a new file in this directory, that is created with `perm`.
    pub fn mode_of_new(
        &self,
        dir: &Arc<Dir>,
        perm: u16,
        cred: &Cred,
    ) -> Result<(Xattrs, u16), NsError> {
        let default = self.default_acl(dir, &self.open_dir(dir)?)?;
        let (list, perm) = acl::of_new_file(default.as_deref(), perm, cred.umask);
        let xattrs = list.map(|list| (acl::ACCESS.to_vec(), list));
        Ok((xattrs.into_iter().collect(), perm))
    }

    /// Creates the file under a name that [`Self::check_free`] found free, and counts one
    /// reference of the kernel.
    pub fn create(
        &self,
        dir: &Arc<Dir>,
        name: &[u8],
        free: Free,
        new: &NewFile,
    ) -> Result<(Attr, Arc<File>), NsError> {
        let name = Name::from(name);
        let file = born(new, free.gid, vec![(dir.clone(), name.clone())], None);
        self.persist_dirs(dir)?;
        failpoint::hit(failpoint::Point::CreateDirs);
        self.insert_new(dir, (&name, free), &file)?;
        failpoint::hit(failpoint::Point::CreateNamed);
        // The object carries the same facts, and a start without this record adopts it by them.
        let mut state = file.lock();
        let saved = match state.xattrs.is_empty() {
            true => {
                self.save_later(&file, &mut state);
                Ok(())
            }
            // An access control list is in the record only.
            false => self.save(&file, &state, Durability::Buffered),
        };
        drop(state);
        if let Err(error) = saved {
            self.take_new_back(&file);
            return Err(error);
        }
        dir.times.touch();
        self.table
            .lock()
            .remember(file.ino, Node::File(file.clone()));
        Ok((file.attr(), file))
    }

    /// A new file that could not be recorded was never there.
    fn take_new_back(&self, file: &Arc<File>) {
        let names = file.lock().unlink();
        for (dir, name) in names {
            let mut children = dir.lock();
            if children
                .get(&name)
                .is_some_and(|now| Arc::ptr_eq(now, file))
            {
                children.remove(&name);
            }
        }
    }

    fn insert_new(
        &self,
        dir: &Arc<Dir>,
        (name, free): (&Name, Free),
        file: &Arc<File>,
    ) -> Result<(), NsError> {
        let _order = dir.order(&self.pfs)?;
        // Another client may have made a directory, or something else that is on the PFS at once.
        if dir.changes_of(name) != free.changes
            && !dir.is_removed()
            && self.stat_if_there(&self.open_dir(dir)?, name)?.is_some()
        {
            return Err(Errno::EEXIST.into());
        }
        let mut children = dir.lock();
        if dir.is_removed() {
            return Err(Errno::ENOENT.into());
        }
        if children.contains_key(name) || dir.unpublished_child(name).is_some() {
            return Err(Errno::EEXIST.into());
        }
        children.insert(name.clone(), file.clone());
        dir.note_present(name);
        Ok(())
    }

    /// Takes over an object that was created, but whose record was not written before the daemon
    /// died, unless its place is not known or taken, or it `may_be_torn` by a loss of power.
    pub fn adopt(
        &self,
        identity: &Identity,
        tier: TierId,
        may_be_torn: bool,
    ) -> Result<Adopted, NsError> {
        let key = DirKey {
            dev: identity.parent.dev_ordinal,
            ino: identity.parent.ino,
            btime_ns: identity.parent.btime_ns,
        };
        let Some(dir) = self.known_dir(key) else {
            return Ok(Adopted::Nowhere);
        };
        if check_name(&identity.name).is_err() {
            return Ok(Adopted::Nowhere);
        }
        if dir.child(&identity.name).is_some() {
            return Ok(Adopted::Taken(None));
        }
        let handle = match self.open_dir(&dir) {
            Ok(handle) => handle,
            Err(error) if matches!(error.refusal(), Some(Errno::ENOENT | Errno::ESTALE)) => {
                return Ok(Adopted::Nowhere);
            }
            Err(error) => return Err(error),
        };
        if let Some(stat) = self.stat_if_there(&handle, &identity.name)? {
            return Ok(Adopted::Taken(Some(stat)));
        }
        if may_be_torn {
            self.lost_of_version(&dir, &identity.name)?;
            return Ok(Adopted::Torn);
        }
        let new = NewFile {
            object: identity.object,
            tier,
            perm: (identity.mode & 0o7777) as u16,
            xattrs: Vec::new(),
            cred: Cred {
                uid: identity.uid,
                gid: identity.gid,
                process: Process::here(0),
                umask: 0,
            },
            // Only the object knows its size.
            writing: true,
            born: TimeSpec::now(),
        };
        let free = Free::now(&dir, &identity.name, identity.gid);
        let (_, file) = self.create(&dir, &identity.name, free, &new)?;
        // The kernel knows nothing of it yet.
        self.forget(file.ino, 1);
        Ok(Adopted::File(file))
    }
}
