//! mkdir, symlink, mknod: made on the PFS at once, owned by whoever asked.

use forebay_tiers::{ActAs, PfsDir, PfsTree};
use forebay_types::{Attr, Cred, Errno, FileKind, Ino, check_name};

use crate::error::on_pfs;
use crate::{Namespace, NsError};

impl Namespace {
    /// Makes a directory and counts one reference of the kernel.
    pub fn mkdir(&self, parent: Ino, name: &[u8], perm: u16, cred: &Cred) -> Result<Attr, NsError> {
        self.make(parent, name, |pfs, dir, has_default_acl| {
            let mode = u32::from(perm) & !umask(cred, has_default_acl);
            as_owner(cred, || pfs.mkdir(dir, name, mode, cred.uid, cred.gid))
        })
    }

    /// Makes a symbolic link.
    pub fn symlink(
        &self,
        parent: Ino,
        name: &[u8],
        target: &[u8],
        cred: &Cred,
    ) -> Result<Attr, NsError> {
        self.make(parent, name, |pfs, dir, _| {
            as_owner(cred, || pfs.symlink(dir, name, target, cred.uid, cred.gid))
        })
    }

    /// Makes a FIFO, socket, device, or an empty regular file.
    pub fn mknod(
        &self,
        parent: Ino,
        name: &[u8],
        mode: u32,
        rdev: u32,
        cred: &Cred,
    ) -> Result<Attr, NsError> {
        FileKind::from_mode(mode).ok_or(Errno::EINVAL)?;
        self.make(parent, name, |pfs, dir, has_default_acl| {
            let mode = mode & !umask(cred, has_default_acl);
            as_owner(cred, || {
                pfs.mknod(dir, name, mode, rdev, cred.uid, cred.gid)
            })
        })
    }

    fn make(
        &self,
        parent: Ino,
        name: &[u8],
        make: impl FnOnce(&PfsTree, &PfsDir, bool) -> std::io::Result<()>,
    ) -> Result<Attr, NsError> {
        check_name(name)?;
        if PfsTree::is_temporary(name) {
            return Err(Errno::EPERM.into());
        }
        let dir = self.dir(parent)?;
        let handle = self.open_dir(&dir)?;
        {
            let _order = dir.order(&self.pfs)?;
            if dir.is_taken(name) {
                return Err(Errno::EEXIST.into());
            }
            let has_default_acl = self.default_acl(&dir, &handle)?.is_some();
            // Who has found the name free before, and makes a file of it, looks once more.
            dir.note_change(name);
            let made = make(&self.pfs, &handle, has_default_acl);
            dir.empty_dirs.end();
            dir.note_change(name);
            made.map_err(on_pfs("make a node"))?;
            self.touch(&dir);
            dir.note_present(name);
        }
        let stat = self.pfs.stat_now(&handle, name).map_err(on_pfs("stat"))?;
        let attr = self.meet(&dir, name, &stat, true);
        if stat.kind() == FileKind::Directory
            && let Some(made) = self.known_dir(self.dir_key(&stat))
        {
            made.empty_dirs.begin();
        }
        Ok(attr)
    }
}

/// Bits of a mode that go; with a default ACL it is that which decides, and the PFS follows it.
pub(crate) fn umask(cred: &Cred, has_default_acl: bool) -> u32 {
    match has_default_acl {
        true => 0,
        false => u32::from(cred.umask & 0o777),
    }
}

/// Tries as the user, which is what a PFS with root squash or quotas wants to see. The kernel has
/// checked the user's rights with their supplementary groups, which are not known here. So where
/// the PFS refuses, the daemon's own rights decide, and the caller hands the result to the user.
pub(crate) fn as_owner<T>(
    cred: &Cred,
    mut act: impl FnMut() -> std::io::Result<T>,
) -> std::io::Result<T> {
    if cred.uid == 0 {
        return act();
    }
    let first = {
        let _user = ActAs::user(cred.uid, cred.gid, &[])?;
        act()
    };
    match first {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => act(),
        other => other,
    }
}
