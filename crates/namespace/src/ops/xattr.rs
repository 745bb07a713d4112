//! Extended attributes. The PFS has them, but for dirty files: theirs are in the record and go to
//! the PFS with the next demotion.

use std::sync::Arc;

use forebay_kv::Durability;
use forebay_tiers::PfsNode;
use forebay_types::{Cred, Errno, Ino, XattrMode, failpoint, limits};

use crate::acl::{self, Acl};
use crate::error::on_pfs;
use crate::record::{Xattrs, is_kept};
use crate::table::Node;
use crate::tree::Dir;
use crate::{File, FileState, Namespace, NsError};

/// Where a node's extended attributes are.
enum Place {
    Dir(Arc<Dir>),
    Pfs(PfsNode),
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

/// What a program may do besides its caller.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

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

/// A place is looked for so often while names change.
const TRIES: usize = 5;

fn is_elsewhere(found: &Result<Place, NsError>) -> bool {
    let errno = found.as_ref().err().map(NsError::errno);
    matches!(errno, Some(Errno::ENOENT | Errno::ESTALE))
}

impl Namespace {
    /// Who has the file open asks by its id, and meets a rename in the midst of it: on the PFS the
    /// file has its new name then, and here the old one.
    fn xattr_place(&self, ino: Ino) -> Result<Place, NsError> {
        let node = self.node(ino)?;
        if let Node::File(file) = &node {
            // Of what is dropped by that the caller is told at once, and looks the name up again.
            self.look_if_trusted(file)?;
        }
        let found = self.place_by_name(node);
        let (mut now, mut tries) = (None, 1);
        while is_elsewhere(now.as_ref().unwrap_or(&found)) && tries < TRIES {
            if self.wait_for_rename(ino).is_err() {
                break;
            }
            now = Some(self.node(ino).and_then(|node| self.place_by_name(node)));
            tries += 1;
        }
        match now {
            Some(Ok(place)) => Ok(place),
            // What was met first says what has become of the file.
            _ => found,
        }
    }

    fn wait_for_rename(&self, ino: Ino) -> Result<(), NsError> {
        let dir = match self.node(ino)? {
            Node::Dir(_) => return Ok(()),
            Node::Plain(plain) => plain.parent.clone(),
            Node::File(file) => match file.lock().names.first() {
                Some((dir, _)) => dir.clone(),
                None => return Ok(()),
            },
        };
        drop(dir.order(&self.pfs)?);
        Ok(())
    }

    fn place_by_name(&self, node: Node) -> Result<Place, NsError> {
        Ok(match node {
            Node::Dir(dir) => Place::Dir(dir),
            Node::Plain(plain) => Place::Pfs(self.plain_node(&plain)?),
            Node::File(file) => match self.clean_node(&file)? {
                Some(node) => Place::Pfs(node),
                None => Place::Record(file),
            },
        })
    }

    /// One attribute.
    pub fn get_xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, NsError> {
        supported(name)?;
        match self.xattr_place(ino)? {
            Place::Dir(dir) => self
                .pfs
                .get_xattr_dir(&self.open_dir(&dir)?, name)
                .map_err(on_pfs("getxattr of a directory")),
            Place::Pfs(node) => self.pfs.get_xattr(&node, name).map_err(on_pfs("getxattr")),
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
            Place::Dir(dir) => self
                .pfs
                .list_xattr_dir(&self.open_dir(&dir)?)
                .map_err(on_pfs("listxattr of a directory"))?,
            Place::Pfs(node) => self.pfs.list_xattr(&node).map_err(on_pfs("listxattr"))?,
            Place::Record(file) => file.lock().xattrs.iter().map(|(n, _)| n.clone()).collect(),
        };
        // File systems show those of administrators to nobody else, and the kernel leaves that to
        // them.
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
                return set.map_err(on_pfs("setxattr of a directory"));
            }
            Place::Pfs(_) => self.change_on_pfs(ino, name, Change::Set(value, mode))?,
            Place::Record(file) => {
                self.refuse_dropped(ino, &file)?;
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
                removed.map_err(on_pfs("removexattr of a directory"))
            }
            Place::Pfs(_) => match self.change_on_pfs(ino, name, Change::Remove)? {
                true => Ok(()),
                false => self.remove_xattr(ino, name),
            },
            Place::Record(file) => {
                self.refuse_dropped(ino, &file)?;
                let edited = self.edit_xattrs(&file, &|state| match state.remove_xattr(name) {
                    true => Ok(()),
                    // To have no list is what was asked for.
                    false if name == acl::ACCESS => Ok(()),
                    false => Err(Errno::ENODATA),
                });
                match edited? {
                    true => Ok(()),
                    false => self.remove_xattr(ino, name),
                }
            }
        }
    }

    /// A copy that was dropped as outdated keeps nothing. One that has only left is something else
    /// by that id now.
    fn refuse_dropped(&self, ino: Ino, file: &Arc<File>) -> Result<(), NsError> {
        let is_evicted = file.lock().is_evicted();
        let is_it = |node| matches!(node, Node::File(now) if Arc::ptr_eq(&now, file));
        match is_evicted && self.node(ino).is_ok_and(is_it) {
            true => Err(Errno::ESTALE.into()),
            false => Ok(()),
        }
    }

    /// What a program may do besides its caller does not survive a change of its content. The PFS
    /// sees to that itself of what is there.
    pub fn drop_capability(&self, file: &Arc<File>) -> Result<(), NsError> {
        let has_one = {
            let state = file.lock();
            state.is_dirty() && state.xattrs.iter().any(|(name, _)| name == CAPABILITY)
        };
        if !has_one {
            return Ok(());
        }
        // One that is clean by now loses it when it changes: it is not kept.
        let edited = self.edit_xattrs(file, &|state| {
            state.remove_xattr(CAPABILITY);
            Ok(())
        });
        edited.map(drop)
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

    /// Changes the attributes in a record, unless the PFS would refuse the outcome. `false`: the
    /// PFS has them by now.
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
        state.touch();
        state.outdate_copy();
        self.save(file, &state, Durability::Buffered)?;
        Ok(true)
    }

    /// Changes an attribute of a file whose attributes the PFS has. `false`: it has moved
    /// meanwhile.
    fn change_on_pfs(&self, ino: Ino, name: &[u8], change: Change) -> Result<bool, NsError> {
        let apply = |node: &PfsNode| -> Result<(), NsError> {
            match change {
                Change::Set(value, mode) => self
                    .pfs
                    .set_xattr(node, name, value, flags(mode))
                    .map_err(on_pfs("setxattr"))?,
                Change::Remove => self
                    .pfs
                    .remove_xattr(node, name)
                    .map_err(on_pfs("removexattr"))?,
            }
            failpoint::hit(failpoint::Point::XattrPfs);
            Ok(())
        };
        match self.node(ino)? {
            Node::Plain(plain) => {
                let done = self.on_plain(ino, &plain, apply)?;
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
        apply: impl FnOnce(&PfsNode) -> Result<(), NsError>,
    ) -> Result<bool, NsError> {
        // A change through an outdated copy must not hide what made it so.
        self.revalidate(file)?;
        let _naming = file.naming(&self.pfs)?;
        let Some(node) = self.clean_node(file)? else {
            return Ok(false);
        };
        apply(&node)?;
        let stat = self.pfs.stat_node(&node).map_err(on_pfs("stat"))?;
        let mut state = file.lock();
        if state.is_dirty() {
            // A write has begun meanwhile, perhaps with the attributes of before.
            drop(state);
            let attributes = self.load_xattrs(&node)?;
            state = file.lock();
            state.take_xattrs(attributes);
        }
        let before = state.residency.published;
        state.set_published(before.map(|before| before.after_ours(&stat, None)));
        state.take_pfs_change(&stat);
        if state.is_dirty() {
            state.outdate_copy();
        }
        self.save(file, &state, Durability::Buffered)?;
        Ok(true)
    }

    /// Brings the PFS's attributes of a clean file into its record, before it becomes dirty.
    pub(crate) fn load_xattrs(&self, node: &PfsNode) -> Result<Xattrs, NsError> {
        let names = match self.pfs.list_xattr(node) {
            Ok(names) => names,
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(Vec::new()),
            Err(e) => return Err(on_pfs("listxattr")(e)),
        };
        let mut xattrs = Vec::new();
        for attribute in names {
            if is_kept(&attribute) {
                let value = self
                    .pfs
                    .get_xattr(node, &attribute)
                    .map_err(on_pfs("getxattr"))?;
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
    state.set_perm(list.perm(state.meta.perm));
    if list.is_minimal() {
        state.remove_xattr(name);
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
    let exists = state.xattrs.iter().any(|(n, _)| n == name);
    match (exists, mode) {
        (true, XattrMode::Create) => return Err(Errno::EEXIST),
        (false, XattrMode::Replace) => return Err(Errno::ENODATA),
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
    state.put_xattr(name, value);
    Ok(())
}
