//! Making, moving and removing names.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use forebay_types::{Errno, FileKind, RenameMode};
use rustix::fs::{AtFlags, FileType, Gid, Mode, RenameFlags, Uid};
use rustix::io::Errno as Sys;

use super::tree::{PfsDir, PfsTree, checked, open_path, proc_path};

/// Whom a new entry shall belong to.
#[derive(Clone, Copy)]
struct Owner {
    uid: u32,
    gid: u32,
}

impl PfsTree {
    /// Makes a directory that belongs to `uid` and `gid`. In a set-group-id directory it gets that
    /// directory's group and bit instead, as everywhere on Linux.
    ///
    /// The process's umask and the parent's default ACL apply to `mode`, as for mkdir(2): a daemon
    /// that was told the final mode sets its umask to 0. Under [`crate::ActAs`] the new directory
    /// has the right owner from the start; otherwise it is changed, which only root may.
    pub fn mkdir(
        &self,
        dir: &PfsDir,
        name: &[u8],
        mode: u32,
        uid: u32,
        gid: u32,
    ) -> io::Result<()> {
        self.pass_to_change()?;
        let name = checked(name)?;
        rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(mode & 0o7777))?;
        let made = self.give(dir, name, FileKind::Directory, Owner { uid, gid });
        made.inspect_err(|_| {
            // What cannot be made right is not left behind; the first error is the one to tell.
            let _ = self.rmdir(dir, name);
        })
    }

    /// Makes a symbolic link that belongs to `uid` and `gid`; see [`PfsTree::mkdir`].
    pub fn symlink(
        &self,
        dir: &PfsDir,
        name: &[u8],
        target: &[u8],
        uid: u32,
        gid: u32,
    ) -> io::Result<()> {
        self.pass_to_change()?;
        let name = checked(name)?;
        rustix::fs::symlinkat(target, dir, name)?;
        let made = self.give(dir, name, FileKind::Symlink, Owner { uid, gid });
        made.inspect_err(|_| {
            let _ = self.unlink(dir, name);
        })
    }

    /// Makes a FIFO, socket, device or empty file, as the type bits of `mode` say, that belongs to
    /// `uid` and `gid`; see [`PfsTree::mkdir`]. `rdev` is encoded as in [`super::PfsStat`].
    pub fn mknod(
        &self,
        dir: &PfsDir,
        name: &[u8],
        mode: u32,
        rdev: u32,
        uid: u32,
        gid: u32,
    ) -> io::Result<()> {
        self.pass_to_change()?;
        let name = checked(name)?;
        let kind = match FileKind::from_mode(mode) {
            // Type bits of zero mean a regular file, to mknod(2).
            None if mode & libc::S_IFMT == 0 => FileKind::Regular,
            None | Some(FileKind::Directory | FileKind::Symlink) => {
                return Err(Errno::EINVAL.into());
            }
            Some(kind) => kind,
        };
        let file_type = FileType::from_raw_mode(kind.mode_bits());
        let perm = Mode::from_raw_mode(mode & 0o7777);
        rustix::fs::mknodat(dir, name, file_type, perm, u64::from(rdev))?;
        let made = self.give(dir, name, kind, Owner { uid, gid });
        made.inspect_err(|_| {
            let _ = self.unlink(dir, name);
        })
    }

    /// Makes sure that what was just created belongs to `owner`.
    ///
    /// Whoever may write to the directory can put something else under the name before it is
    /// opened again. Ownership is therefore only given away of what cannot matter: something that
    /// this thread's user owns and that is empty.
    fn give(&self, dir: &PfsDir, name: &[u8], kind: FileKind, owner: Owner) -> io::Result<()> {
        let fd = open_path(dir, name)?;
        let stat = self.stat_fd(fd.as_fd())?;
        if stat.kind() != kind {
            return Err(Errno::ESTALE.into());
        }
        let parent = self.stat_dir(dir)?;
        let group_of_parent = parent.mode & libc::S_ISGID != 0;
        let gid = if group_of_parent {
            parent.gid
        } else {
            owner.gid
        };
        if (stat.uid, stat.gid) == (owner.uid, gid) {
            return Ok(());
        }
        let harmless = match kind {
            FileKind::Directory => stat.uid == crate::actas::fs_uid() && self.is_empty(&fd)?,
            FileKind::Symlink => stat.uid == crate::actas::fs_uid() && stat.nlink == 1,
            _ => stat.uid == crate::actas::fs_uid() && stat.nlink == 1 && stat.size == 0,
        };
        if !harmless {
            return Err(Errno::EPERM.into());
        }
        rustix::fs::chownat(
            &fd,
            c"",
            Some(Uid::from_raw(owner.uid)),
            Some(Gid::from_raw(gid)),
            AtFlags::EMPTY_PATH,
        )?;
        if stat.mode & (libc::S_ISUID | libc::S_ISGID) != 0 && kind != FileKind::Symlink {
            // chown(2) may have cleared them.
            let mode = Mode::from_raw_mode(u32::from(stat.perm()));
            rustix::fs::chmod(proc_path(fd.as_fd()), mode)?;
        }
        Ok(())
    }

    fn is_empty(&self, fd: &impl AsFd) -> io::Result<bool> {
        let dir = PfsDir(std::sync::Arc::new(fd.as_fd().try_clone_to_owned()?));
        let mut empty = true;
        self.read_dir(&dir, &mut |_| empty = false)?;
        Ok(empty)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, dir: &PfsDir, name: &[u8]) -> io::Result<()> {
        self.pass_to_change()?;
        Ok(rustix::fs::unlinkat(
            dir,
            checked(name)?,
            AtFlags::REMOVEDIR,
        )?)
    }

    /// Removes a name of anything but a directory.
    pub fn unlink(&self, dir: &PfsDir, name: &[u8]) -> io::Result<()> {
        self.pass_to_change()?;
        Ok(rustix::fs::unlinkat(dir, checked(name)?, AtFlags::empty())?)
    }

    /// Gives a file a second name; of a link, the link itself gets it.
    pub fn link(
        &self,
        dir: &PfsDir,
        name: &[u8],
        new_dir: &PfsDir,
        new_name: &[u8],
    ) -> io::Result<()> {
        self.pass_to_change()?;
        let (name, new_name) = (checked(name)?, checked(new_name)?);
        Ok(rustix::fs::linkat(
            dir,
            name,
            new_dir,
            new_name,
            AtFlags::empty(),
        )?)
    }

    /// Moves an entry. Where the file system below cannot promise not to replace (NFS), a file is
    /// linked to its new name and then unlinked from the old one. For a directory, and for
    /// [`RenameMode::Exchange`], the error is `EINVAL` there. Such file systems (NFS, FUSE by
    /// libfuse) keep the old name, hidden, as long as somebody has the file open by it. The close
    /// moves the time of change once more, so that time says nothing from then on.
    pub fn rename(
        &self,
        dir: &PfsDir,
        name: &[u8],
        new_dir: &PfsDir,
        new_name: &[u8],
        mode: RenameMode,
    ) -> io::Result<()> {
        self.pass_to_change()?;
        let (name, new_name) = (checked(name)?, checked(new_name)?);
        let flags = match mode {
            RenameMode::Replace => {
                return Ok(rustix::fs::renameat(dir, name, new_dir, new_name)?);
            }
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
        };
        match rustix::fs::renameat_with(dir, name, new_dir, new_name, flags) {
            Err(Sys::INVAL | Sys::NOSYS | Sys::OPNOTSUPP) if mode == RenameMode::NoReplace => {
                self.rename_by_link(dir, name, new_dir, new_name)
            }
            result => Ok(result?),
        }
    }

    /// Lets two names of a directory change what they stand for. `Ok(false)`: this file system
    /// cannot, which is found out once and remembered.
    pub fn exchange(&self, dir: &PfsDir, name: &[u8], other: &[u8]) -> io::Result<bool> {
        if !self.exchange.load(Ordering::Acquire) {
            return Ok(false);
        }
        self.pass_to_change()?;
        let (name, other) = (checked(name)?, checked(other)?);
        match rustix::fs::renameat_with(dir, name, dir, other, RenameFlags::EXCHANGE) {
            Ok(()) => Ok(true),
            Err(Sys::INVAL | Sys::NOSYS | Sys::OPNOTSUPP) => {
                self.exchange.store(false, Ordering::Release);
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Exchanges no names from now on.
    pub fn without_exchange(&self) {
        self.exchange.store(false, Ordering::Release);
    }

    /// link(2) never replaces. A crash in between leaves both names, of one file.
    fn rename_by_link(
        &self,
        dir: &PfsDir,
        name: &[u8],
        new_dir: &PfsDir,
        new_name: &[u8],
    ) -> io::Result<()> {
        if self.stat(dir, name)?.kind() == FileKind::Directory {
            return Err(Errno::EINVAL.into());
        }
        self.steady_ctime.store(false, Ordering::Release);
        self.link(dir, name, new_dir, new_name)?;
        self.unlink(dir, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_changes_while_another_may_have_taken_over() {
        let top = tempfile::tempdir().unwrap();
        let mut tree = PfsTree::open(top.path()).unwrap();
        let may = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
        let asked = may.clone();
        tree.change_only_while(move || asked.load(Ordering::Acquire));
        let root = tree.root();
        let mkdir = |name: &[u8]| tree.mkdir(root, name, 0o755, 0, 0);
        let copy = tree.create_temporary(root, b"copy", 0o600).unwrap();
        let unnamed = tree.create_unnamed(root, 0o600).unwrap();
        may.store(false, Ordering::Release);
        let set = forebay_types::SetAttr {
            perm: Some(0o644),
            ..forebay_types::SetAttr::default()
        };
        let mut refused = vec![
            mkdir(b"dir"),
            tree.symlink(root, b"link", b"copy", 0, 0),
            tree.mknod(root, b"fifo", libc::S_IFIFO | 0o600, 0, 0, 0),
            tree.unlink(root, b"copy"),
            tree.link(root, b"copy", root, b"second"),
            tree.rename(root, b"copy", root, b"file", RenameMode::Replace),
            tree.exchange(root, b"copy", b"file").map(drop),
            tree.set_attr_file(&copy, &set),
            tree.set_xattr_file(&copy, b"user.a", b"b", 0),
            tree.create_temporary(root, b"next", 0o600).map(drop),
        ];
        if let Some(file) = &unnamed {
            refused.push(tree.name_file(file, root, b"file").map(drop));
        }
        for (at, refused) in refused.into_iter().enumerate() {
            let why = refused.expect_err(&at.to_string());
            assert_eq!(Errno::of(&why), Errno::EIO, "{at}: {why}");
        }
        let mut names = Vec::new();
        tree.read_dir(root, &mut |entry| names.push(entry.name))
            .unwrap();
        assert_eq!(names, [b"copy"]);
        may.store(true, Ordering::Release);
        tree.rename(root, b"copy", root, b"file", RenameMode::Replace)
            .unwrap();
    }

    #[test]
    fn a_rename_by_link_never_replaces() {
        let top = tempfile::tempdir().unwrap();
        let tree = PfsTree::open(top.path()).unwrap();
        let root = tree.root();
        std::fs::write(top.path().join("new"), "new").unwrap();
        std::fs::write(top.path().join("old"), "old").unwrap();
        std::fs::create_dir(top.path().join("dir")).unwrap();
        assert!(tree.stat(root, b"new").unwrap().has_steady_ctime);
        let taken = tree.rename_by_link(root, b"new", root, b"old").unwrap_err();
        assert!(!tree.stat(root, b"new").unwrap().has_steady_ctime);
        assert_eq!(taken.raw_os_error(), Some(libc::EEXIST));
        assert_eq!(std::fs::read(top.path().join("old")).unwrap(), b"old");
        tree.rename_by_link(root, b"new", root, b"free").unwrap();
        assert_eq!(std::fs::read(top.path().join("free")).unwrap(), b"new");
        assert!(!top.path().join("new").exists());
        let refused = tree
            .rename_by_link(root, b"dir", root, b"dir2")
            .unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    }
}
