//! Root of a client's node as nobody: what a client over the network asks for is checked before it
//! is answered, and is done in the name of who it may be done as.
//!
//! Invariants:
//!
//! 1. Whether a client is checked, the server decides, by the socket that its session came through.
//! 2. Each kind of request has a rule here: [`Squash::admit`] names them all.
//! 3. What is open was checked when it was opened, and what a kernel writes back has no user.

use std::sync::Arc;

use forebay_namespace::{ACCESS_LIST, Acl, Deed, NOBODY, Node, NsError, Rights, Who};
use forebay_types::{Attr, Cred, Errno, FileKind, Handle, Ino, RenameMode, SetAttr};
use forebay_wire::{Link, Request};

use crate::base::failure::Failure;
use crate::rooms::Rooms;

/// What the rules have to know of the tree.
pub trait Tree: Send + Sync {
    /// Attributes of what a client has found.
    fn attr(&self, ino: Ino) -> Result<Attr, Errno>;
    /// What has a name, if anything does.
    fn child(&self, link: &Link) -> Result<Option<Attr>, Errno>;
    /// The access control list of a file or directory, if it has one.
    fn list(&self, ino: Ino) -> Result<Option<Acl>, Errno>;
}

impl Tree for Rooms {
    fn attr(&self, ino: Ino) -> Result<Attr, Errno> {
        self.files.getattr(ino).map_err(told)
    }

    fn child(&self, link: &Link) -> Result<Option<Attr>, Errno> {
        let ns = self.base.ns();
        let Node::Dir(dir) = ns.node(link.parent).map_err(told)? else {
            return Err(Errno::ENOTDIR);
        };
        match ns.lookup_in(&dir, &link.name, false) {
            Ok(found) => Ok(Some(found.attr)),
            Err(error) if error.errno() == Errno::ENOENT => Ok(None),
            Err(error) => Err(told(error)),
        }
    }

    fn list(&self, ino: Ino) -> Result<Option<Acl>, Errno> {
        match self.base.ns().get_xattr(ino, ACCESS_LIST) {
            Ok(list) => Acl::parse(&list).map(Some),
            Err(error) if is_no_list(&error) => Ok(None),
            Err(error) => Err(told(error)),
        }
    }
}

fn is_no_list(error: &NsError) -> bool {
    matches!(error.errno(), Errno::ENODATA | Errno::EOPNOTSUPP)
}

fn told(error: impl Into<Failure>) -> Errno {
    error.into().told("look at rights")
}

/// The rules, for one client.
#[derive(Clone)]
pub struct Squash(Arc<dyn Tree>);

impl Squash {
    /// By what there is in this tree.
    pub fn by(tree: Arc<dyn Tree>) -> Squash {
        Squash(tree)
    }

    /// The request as it is to be answered, if it may be. `opened` tells which file a handle of the
    /// client is open on, and whether for writing.
    pub fn admit(
        &self,
        request: Request,
        opened: impl Fn(Handle) -> Option<(Ino, bool)>,
    ) -> Result<Request, Errno> {
        self.check(&request)?;
        let mut request = request;
        let who = request.cred_mut().map(|cred| Who::of(cred.uid));
        match &mut request {
            Request::Setattr {
                ino, handle, set, ..
            } => {
                let has_written = handle.is_some_and(|handle| opened(handle) == Some((*ino, true)));
                *set = self.admit_set(who, *ino, set, has_written)?;
            }
            Request::Create { link, perm, .. } => {
                *perm = self.mode_of_new(who, link.parent, *perm)?;
            }
            Request::CreateUnnamed { parent, perm, .. } => {
                *perm = self.mode_of_new(who, *parent, *perm)?;
            }
            Request::Mknod { link, mode, .. } => {
                let perm = self.mode_of_new(who, link.parent, (*mode & 0o7777) as u16)?;
                *mode = *mode & !0o7777 | u32::from(perm);
            }
            // Root's kernel keeps the bits that nobody's would take away. What is stored through a
            // mapping leaves them, as on local file systems, where they are not root's.
            Request::Write { handle, how, .. } => {
                let runs_as_root =
                    |(ino, _)| self.0.attr(ino).map(|attr| attr.uid == 0 || attr.gid == 0);
                let is_roots =
                    || opened(*handle).is_some_and(|file| runs_as_root(file) != Ok(false));
                how.drop_suid |= !how.write_back || is_roots();
            }
            Request::Space { drop_suid, .. } => *drop_suid = true,
            // Nobody is in a group of root's.
            Request::Introduce { processes, .. } => processes
                .iter_mut()
                .for_each(|process| process.groups.retain(|group| *group != 0)),
            _ => {}
        }
        if let Some(cred) = request.cred_mut() {
            become_whom_it_may(cred);
        }
        Ok(squash_control(request))
    }

    /// Without a rule of its own no request is answered: this has to name them all.
    fn check(&self, request: &Request) -> Result<(), Errno> {
        match request {
            Request::Lookup { link, uid } => {
                let who = Who::of(*uid);
                let dir = &self.rights(who, link.parent)?;
                who.may(&Deed::Find { dir })
            }
            Request::OpenDir { ino, uid } => {
                let who = Who::of(*uid);
                let dir = &self.rights(who, *ino)?;
                who.may(&Deed::List { dir })
            }
            Request::Mknod { .. }
            | Request::Mkdir { .. }
            | Request::Symlink { .. }
            | Request::Create { .. }
            | Request::CreateUnnamed { .. } => self.check_make(request),
            Request::Link { .. }
            | Request::Unlink { .. }
            | Request::Rmdir { .. }
            | Request::Rename { .. } => self.check_names(request),
            Request::Open { ino, flags, cred } => {
                let who = Who::of(cred.uid);
                let (file, flags) = (&self.rights(who, *ino)?, *flags);
                who.may(&Deed::Open { file, flags })
            }
            Request::GetXattr { .. } | Request::SetXattr { .. } | Request::RemoveXattr { .. } => {
                self.check_xattr(request)
            }
            // A client may do nothing in its own name.
            Request::Control(_) => Err(Errno::EPERM),
            // Checked with what is made of it.
            Request::Setattr { .. } => Ok(()),
            // Names of administrators' attributes are left out by whose name it is asked in.
            Request::ListXattr { .. } => Ok(()),
            // Whoever has found it may know.
            Request::Getattr { .. } | Request::Readlink { .. } => Ok(()),
            // What is open was checked when it was opened.
            Request::ReadDir { .. }
            | Request::CloseDir { .. }
            | Request::Release { .. }
            | Request::ReleaseMany(_)
            | Request::Read { .. }
            | Request::Write { .. }
            | Request::Fsync { .. }
            | Request::FsyncDir { .. }
            | Request::Space { .. }
            | Request::Seek { .. }
            | Request::Lock { .. }
            | Request::Unlock { .. }
            | Request::TestLock { .. }
            | Request::CancelLock { .. } => Ok(()),
            // Of the mount itself, and of nothing that is somebody's.
            Request::Forget(_)
            | Request::Statfs
            | Request::PfsHealth
            | Request::Introduce { .. }
            | Request::Recalls { .. }
            | Request::MayReclaim { .. }
            // By a number that only who had the file open knows.
            | Request::FindNameless { .. }
            | Request::ShowProbe
            | Request::HideProbe { .. } => Ok(()),
            // Who serves clients has no objects for them.
            Request::Object(_) => Err(Errno::EPERM),
            // Each order looks at the rights of the user whom it names.
            Request::ControlFor { .. } => Ok(()),
        }
    }

    /// Requests that make something. What is there already, no create opens in nobody's name.
    fn check_make(&self, request: &Request) -> Result<(), Errno> {
        let (parent, kind, rdev, cred) = match request {
            Request::Mknod {
                link,
                mode,
                rdev,
                cred,
            } => {
                let kind = FileKind::from_mode(*mode).ok_or(Errno::EINVAL)?;
                (link.parent, kind, *rdev, cred)
            }
            Request::Mkdir { link, cred, .. } => (link.parent, FileKind::Directory, 0, cred),
            Request::Symlink { link, cred, .. } => (link.parent, FileKind::Symlink, 0, cred),
            Request::Create { link, cred, .. } => (link.parent, FileKind::Regular, 0, cred),
            Request::CreateUnnamed { parent, cred, .. } => (*parent, FileKind::Regular, 0, cred),
            _ => return Err(Errno::ENOSYS),
        };
        let who = Who::of(cred.uid);
        let dir = &self.rights(who, parent)?;
        who.may(&Deed::Make { dir, kind, rdev })
    }

    /// Requests that give names to what is there, or take names away.
    fn check_names(&self, request: &Request) -> Result<(), Errno> {
        match request {
            Request::Link { ino, link, cred } => {
                let who = Who::of(cred.uid);
                let (file, dir) = (&self.rights(who, *ino)?, &self.rights(who, link.parent)?);
                who.may(&Deed::Link { file, dir })
            }
            Request::Unlink { link, cred } | Request::Rmdir { link, cred } => {
                let who = Who::of(cred.uid);
                let dir = &self.rights(who, link.parent)?;
                // Who may not look is not told whether there is anything.
                who.may(&Deed::Remove { dir, victim: None })?;
                let victim = self.child(who, link, dir.is_sticky())?;
                let victim = victim.as_ref();
                who.may(&Deed::Remove { dir, victim })
            }
            Request::Rename {
                from,
                to,
                mode,
                cred,
            } => {
                let who = Who::of(cred.uid);
                let dirs = (self.rights(who, from.parent)?, self.rights(who, to.parent)?);
                for dir in [&dirs.0, &dirs.1] {
                    who.may(&Deed::Remove { dir, victim: None })?;
                }
                let other_dir = from.parent != to.parent;
                let file = self.child(who, from, other_dir || dirs.0.is_sticky())?;
                let replaced = self.child(who, to, other_dir || dirs.1.is_sticky())?;
                who.may(&Deed::Rename {
                    from: &dirs.0,
                    file: file.as_ref(),
                    to: &dirs.1,
                    replaced: replaced.as_ref(),
                    other_dir,
                    exchange: *mode == RenameMode::Exchange,
                })
            }
            _ => Err(Errno::ENOSYS),
        }
    }

    fn check_xattr(&self, request: &Request) -> Result<(), Errno> {
        match request {
            Request::GetXattr { ino, name, uid } => {
                let who = Who::of(*uid);
                let file = &self.rights(who, *ino)?;
                who.may(&Deed::GetXattr { file, name })
            }
            Request::SetXattr {
                ino, name, cred, ..
            } => {
                let who = Who::of(cred.uid);
                let file = &self.rights(who, *ino)?;
                who.may(&Deed::SetXattr { file, name })
            }
            Request::RemoveXattr { ino, name, cred } => {
                let who = Who::of(cred.uid);
                let file = &self.rights(who, *ino)?;
                who.may(&Deed::RemoveXattr { file, name })
            }
            _ => Err(Errno::ENOSYS),
        }
    }

    fn admit_set(
        &self,
        who: Option<Who>,
        ino: Ino,
        set: &SetAttr,
        has_written: bool,
    ) -> Result<SetAttr, Errno> {
        let who = who.ok_or(Errno::EPERM)?;
        who.may_set(&self.rights(who, ino)?, set, has_written)
    }

    /// What is made may get the group of its directory.
    fn mode_of_new(&self, who: Option<Who>, parent: Ino, perm: u16) -> Result<u16, Errno> {
        let who = who.ok_or(Errno::EPERM)?;
        if who.without_foreign_group(perm, 0) == perm {
            return Ok(perm);
        }
        let attr = self.0.attr(parent)?;
        Ok(who.without_foreign_group(perm, attr.gid))
    }

    fn rights(&self, who: Who, ino: Ino) -> Result<Rights, Errno> {
        let attr = self.0.attr(ino)?;
        self.with_list(who, &attr)
    }

    /// What has a name, where that `matters`.
    fn child(&self, who: Who, link: &Link, matters: bool) -> Result<Option<Rights>, Errno> {
        let found = match matters {
            true => self.0.child(link)?,
            false => None,
        };
        found.map(|attr| self.with_list(who, &attr)).transpose()
    }

    fn with_list(&self, who: Who, attr: &Attr) -> Result<Rights, Errno> {
        let list = match may_have_list(who, attr) {
            true => self.0.list(attr.ino)?,
            false => None,
        };
        Ok(Rights {
            kind: attr.kind,
            perm: attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            list,
        })
    }
}

/// Whether a list could say something else than the mode. To others than root it gives no more than
/// the bits of the group, and they are asked of what is root's only.
fn may_have_list(who: Who, attr: &Attr) -> bool {
    let has_lists = matches!(attr.kind, FileKind::Regular | FileKind::Directory);
    let of_group = attr.perm >> 3 & 7;
    has_lists
        && match who {
            Who::Nobody => true,
            Who::User(_) => attr.uid == 0 && of_group & !attr.perm != 0,
        }
}

fn become_whom_it_may(cred: &mut Cred) {
    let who = Who::of(cred.uid);
    cred.uid = who.uid();
    if who == Who::Nobody {
        // Root's process is in groups that nobody is not in.
        (cred.gid, cred.process.pid) = (NOBODY, 0);
    }
    if cred.gid == 0 {
        cred.gid = NOBODY;
    }
}

/// The same for what a command asks.
pub fn squash_control(request: Request) -> Request {
    let Request::ControlFor {
        uid,
        gid,
        groups,
        control,
    } = request
    else {
        return request;
    };
    let (gid, groups) = match (uid, gid) {
        (0, _) => (NOBODY, Vec::new()),
        (_, 0) => (NOBODY, groups),
        _ => (gid, groups),
    };
    let groups = groups.into_iter().filter(|group| *group != 0).collect();
    let uid = Who::of(uid).uid();
    Request::ControlFor {
        uid,
        gid,
        groups,
        control,
    }
}

#[cfg(test)]
#[path = "squash_tests.rs"]
mod tests;
