//! Extended attributes. The PFS has them, but for dirty files: theirs are in the record and go to
//! the PFS with the next demotion.

use std::sync::Arc;

use forebay_kv::Durability;
use forebay_tiers::PfsDir;
use forebay_types::{Cred, Errno, Ino, TimeSpec, failpoint, limits};
use forebay_wire::XattrMode;

use crate::acl::{self, Acl};
use crate::dir::Dir;
use crate::record::{Xattrs, is_kept};
use crate::table::Node;
use crate::{File, FileState, Namespace, NsError};

/// Where a node's extended attributes are.
enum Place {
    Dir(Arc<Dir>),
    Name(Arc<Dir>, Box<[u8]>),
    Record(Arc<File>),
}

/// A change of one attribute on the PFS.
#[derive(Clone, Copy)]
enum Change<'a> {
    Set(&'a [u8], XattrMode),
    Remove,
}

/// Name spaces of Linux; for all others programs expect to be told that there is nothing.
/// On the root of the PFS: which PFS it is. Not to be seen or changed through the mount.
pub const PFS_MARK: &[u8] = b"user.forebay.pfs";

fn supported(name: &[u8]) -> Result<(), Errno> {
    if name == PFS_MARK {
        return Err(Errno::EPERM);
    }
    let known = [
        &b"user."[..],
        b"trusted.",
        b"security.",
        b"system.posix_acl_",
    ];
    match known.iter().any(|prefix| name.starts_with(prefix)) {
        true => Ok(()),
        false => Err(Errno::EOPNOTSUPP),
    }
}

fn flags(mode: XattrMode) -> u32 {
    match mode {
        XattrMode::Set => 0,
        XattrMode::Create => libc::XATTR_CREATE as u32,
        XattrMode::Replace => libc::XATTR_REPLACE as u32,
    }
}

impl Namespace {
    fn xattr_place(&self, ino: Ino) -> Result<Place, NsError> {
        Ok(match self.node(ino)? {
            Node::Dir(dir) => Place::Dir(dir),
            Node::Plain(plain) => {
                self.stat_plain(&plain)?;
                Place::Name(plain.parent.clone(), plain.name.clone())
            }
            Node::File(file) => {
                let state = file.lock();
                match state.names.first().cloned() {
                    Some((dir, name)) if !state.is_dirty() => Place::Name(dir, name),
                    _ => {
                        drop(state);
                        Place::Record(file)
                    }
                }
            }
        })
    }

    /// One attribute.
    pub fn get_xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, NsError> {
        supported(name)?;
        match self.xattr_place(ino)? {
            Place::Dir(dir) => Ok(self.pfs.get_xattr_dir(&self.open_dir(&dir)?, name)?),
            Place::Name(dir, file) => Ok(self.pfs.get_xattr(&self.open_dir(&dir)?, &file, name)?),
            Place::Record(_) if !self.has_acls && name.starts_with(b"system.") => {
                Err(Errno::EOPNOTSUPP.into())
            }
            Place::Record(file) => {
                let state = file.lock();
                let found = state.xattrs.iter().find(|(n, _)| n == name);
                found.map(|(_, v)| v.clone()).ok_or(Errno::ENODATA.into())
            }
        }
    }

    /// All names, each followed by NUL.
    pub fn list_xattr(&self, ino: Ino, cred: &Cred) -> Result<Vec<u8>, NsError> {
        let names = match self.xattr_place(ino)? {
            Place::Dir(dir) => self.pfs.list_xattr_dir(&self.open_dir(&dir)?)?,
            Place::Name(dir, name) => self.pfs.list_xattr(&self.open_dir(&dir)?, &name)?,
            Place::Record(file) => file.lock().xattrs.iter().map(|(n, _)| n.clone()).collect(),
        };
        // File systems show those of administrators to nobody else, and the kernel leaves that to them.
        let shown =
            |name: &Vec<u8>| name != PFS_MARK && (cred.uid == 0 || !name.starts_with(b"trusted."));
        let mut joined = Vec::new();
        for name in names.into_iter().filter(shown) {
            joined.extend_from_slice(&name);
            joined.push(0);
        }
        Ok(joined)
    }

    /// Sets one attribute.
    pub fn set_xattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), NsError> {
        supported(name)?;
        let done = match self.xattr_place(ino)? {
            Place::Dir(dir) => {
                let handle = self.open_dir(&dir)?;
                dir.forget_default_acl();
                let set = self.pfs.set_xattr_dir(&handle, name, value, flags(mode));
                // Somebody may have asked in between.
                dir.forget_default_acl();
                return Ok(set?);
            }
            Place::Name(..) => self.change_on_pfs(ino, name, Change::Set(value, mode))?,
            Place::Record(file) => {
                let list = self.list_in_record(name, value)?;
                let edit = |state: &mut FileState| match &list {
                    Some(list) => set_list(state, name, value, mode, list),
                    None => set_in_record(state, name, value, mode),
                };
                self.edit_xattrs(&file, &edit)?
            }
        };
        match done {
            true => Ok(()),
            false => self.set_xattr(ino, name, value, mode),
        }
    }

    /// Removes one attribute.
    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<(), NsError> {
        supported(name)?;
        match self.xattr_place(ino)? {
            Place::Dir(dir) => {
                let handle = self.open_dir(&dir)?;
                let removed = self.pfs.remove_xattr_dir(&handle, name);
                dir.forget_default_acl();
                Ok(removed?)
            }
            Place::Name(..) => match self.change_on_pfs(ino, name, Change::Remove)? {
                true => Ok(()),
                false => self.remove_xattr(ino, name),
            },
            Place::Record(file) => match self.edit_xattrs(&file, &|state| {
                let before = state.xattrs.len();
                state.xattrs.retain(|(n, _)| n != name);
                match state.xattrs.len() < before {
                    true => Ok(()),
                    // To have no list is what was asked for.
                    false if name == acl::ACCESS => Ok(()),
                    false => Err(Errno::ENODATA),
                }
            })? {
                true => Ok(()),
                false => self.remove_xattr(ino, name),
            },
        }
    }

    /// The access control list that an attribute of a file in the burst buffer is, if it is one.
    fn list_in_record(&self, name: &[u8], value: &[u8]) -> Result<Option<Acl>, Errno> {
        if !name.starts_with(b"system.") {
            return Ok(None);
        }
        match name {
            _ if !self.has_acls => Err(Errno::EOPNOTSUPP),
            acl::ACCESS => Acl::parse(value).map(Some),
            // Only directories have one to give.
            acl::DEFAULT => Err(Errno::EACCES),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Changes the attributes in a record, unless the PFS would refuse the outcome. `false`: the PFS has them by now.
    fn edit_xattrs(
        &self,
        file: &Arc<File>,
        edit: &dyn Fn(&mut FileState) -> Result<(), Errno>,
    ) -> Result<bool, NsError> {
        let _naming = file.naming(&self.pfs)?;
        let before = file.lock().clone();
        let mut after = before.clone();
        edit(&mut after)?;
        self.would_take(file, &before, &after)?;
        let mut state = file.lock();
        if !state.is_dirty() && !state.is_unlinked() {
            return Ok(false);
        }
        edit(&mut state)?;
        state.meta.ctime = TimeSpec::now();
        state.residency.generation = state.residency.generation.next();
        self.save(file, &state, Durability::Buffered)?;
        Ok(true)
    }

    /// Changes an attribute of a file whose attributes the PFS has. `false`: it has moved meanwhile.
    fn change_on_pfs(&self, ino: Ino, name: &[u8], change: Change) -> Result<bool, NsError> {
        let apply = |handle: &PfsDir, file: &[u8]| -> Result<(), NsError> {
            match change {
                Change::Set(value, mode) => {
                    self.pfs.set_xattr(handle, file, name, value, flags(mode))?
                }
                Change::Remove => self.pfs.remove_xattr(handle, file, name)?,
            }
            failpoint::hit(failpoint::Point::XattrPfs);
            Ok(())
        };
        match self.node(ino)? {
            Node::Plain(plain) => {
                let done = self.on_plain(ino, &plain, |handle| apply(handle, &plain.name))?;
                Ok(done.is_some())
            }
            Node::File(file) => self.change_of_clean(&file, apply),
            Node::Dir(_) => Ok(false),
        }
    }

    /// The same of a clean file; it must not look like an outsider's change.
    fn change_of_clean(
        &self,
        file: &Arc<File>,
        apply: impl FnOnce(&PfsDir, &[u8]) -> Result<(), NsError>,
    ) -> Result<bool, NsError> {
        // A change through an outdated copy must not hide what made it so.
        self.revalidate(file)?;
        let _naming = file.naming(&self.pfs)?;
        let (first, clean) = {
            let state = file.lock();
            (state.names.first().cloned(), state.residency.clean)
        };
        let Some((dir, name)) = first.filter(|_| clean) else {
            return Ok(false);
        };
        let handle = self.open_dir(&dir)?;
        apply(&handle, &name)?;
        let stat = self.pfs.stat(&handle, &name)?;
        let mut state = file.lock();
        if state.is_dirty() {
            // A write has begun meanwhile, perhaps with the attributes of before.
            drop(state);
            let attributes = self.load_xattrs(&dir, &name)?;
            state = file.lock();
            state.xattrs = attributes;
        }
        let before = state.residency.published;
        state.residency.published = before.map(|before| before.after_ours(&stat, None));
        state.meta.ctime = stat.ctime;
        // An access list is a mode, too.
        state.meta.perm = stat.perm();
        if state.is_dirty() {
            state.residency.generation = state.residency.generation.next();
        }
        self.save(file, &state, Durability::Buffered)?;
        Ok(true)
    }

    /// Brings the PFS's attributes of a clean file into its record, before it becomes dirty.
    pub(crate) fn load_xattrs(&self, dir: &Arc<Dir>, name: &[u8]) -> Result<Xattrs, NsError> {
        let handle = self.open_dir(dir)?;
        let names = match self.pfs.list_xattr(&handle, name) {
            Ok(names) => names,
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(Vec::new()),
            Err(e) => return Err(e.into()),
        };
        let mut xattrs = Vec::new();
        for attribute in names {
            if is_kept(&attribute) {
                let value = self.pfs.get_xattr(&handle, name, &attribute)?;
                xattrs.push((attribute, value));
            }
        }
        Ok(xattrs)
    }
}

/// A list that says no more than the mode is not kept.
fn set_list(
    state: &mut FileState,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
    list: &Acl,
) -> Result<(), Errno> {
    state.meta.perm = list.perm(state.meta.perm);
    if list.is_minimal() {
        state.xattrs.retain(|(n, _)| n != name);
        return Ok(());
    }
    set_in_record(state, name, value, mode)
}

fn set_in_record(
    state: &mut FileState,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> Result<(), Errno> {
    let at = state.xattrs.iter().position(|(n, _)| n == name);
    match (at, mode) {
        (Some(_), XattrMode::Create) => return Err(Errno::EEXIST),
        (None, XattrMode::Replace) => return Err(Errno::ENODATA),
        _ => {}
    }
    let others: usize = state
        .xattrs
        .iter()
        .filter(|(n, _)| n != name)
        .map(|(n, v)| n.len() + v.len())
        .sum();
    if others + name.len() + value.len() > limits::XATTRS_PER_FILE_BYTES_MAX {
        return Err(Errno::ENOSPC);
    }
    match at {
        Some(at) => state.xattrs[at].1 = value.to_vec(),
        None => state.xattrs.push((name.to_vec(), value.to_vec())),
    }
    Ok(())
}
