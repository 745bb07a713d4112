//! What a request may do whose right nobody has checked: where root of a client's node is squashed,
//! that node's kernel has let root pass, and its mount may be a program that says anything.
//!
//! Two kinds of callers ask. [`Who::Nobody`] is root, and gets what the user 65534 would get of the
//! same files on a local file system. [`Who::User`] is any other user: the kernel of an honest node
//! has checked their rights, and a node that lies can take any name but root's. So what some user
//! other than root, in some group other than root's, may do is let pass, and nothing else: what is
//! root's own stays so. The difference is in three questions, at the end of this module; the rules
//! are the same.

use forebay_types::{Errno, FileKind, OpenFlags, SetAttr, SetTime};

use crate::acl::{self, Acl};

/// The user and the group that root of a client's node becomes.
pub const NOBODY: u32 = 65534;

const READ: u16 = 4;
const WRITE: u16 = 2;
const SEARCH: u16 = 1;
const EXECUTE: u16 = SEARCH;
const SET_USER_ID: u16 = 0o4000;
const SET_GROUP_ID: u16 = 0o2000;
const STICKY: u16 = 0o1000;
/// By this flag of an open file Linux says that the file is to be executed.
const OPENED_TO_EXECUTE: u32 = 0x20;

/// In whose name something is asked for, see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Root of a client's node.
    Nobody,
    /// Any other user of it, with this number.
    User(u32),
}

/// What of a file or directory decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    /// What it is.
    pub kind: FileKind,
    /// The twelve bits.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Its access control list, where it says more than the mode.
    pub list: Option<Acl>,
}

impl Rights {
    /// In such a directory who may write removes their own files only.
    pub fn is_sticky(&self) -> bool {
        self.perm & STICKY != 0
    }
}

/// What is to be done.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the fields are named after what they are
pub enum Deed<'a> {
    /// A name is looked up.
    Find { dir: &'a Rights },
    /// The names in a directory are read.
    List { dir: &'a Rights },
    /// Something is made, of the kind and device of mknod(2).
    Make {
        dir: &'a Rights,
        kind: FileKind,
        rdev: u32,
    },
    /// A file gets a further name.
    Link { file: &'a Rights, dir: &'a Rights },
    /// A name goes; `victim` is what has it, if anything does.
    Remove {
        dir: &'a Rights,
        victim: Option<&'a Rights>,
    },
    /// `file` in `from` gets the name of `replaced` in `to`, and the other way round with
    /// `exchange`.
    Rename {
        from: &'a Rights,
        file: Option<&'a Rights>,
        to: &'a Rights,
        replaced: Option<&'a Rights>,
        other_dir: bool,
        exchange: bool,
    },
    /// A file is opened.
    Open { file: &'a Rights, flags: OpenFlags },
    /// An extended attribute is read.
    GetXattr { file: &'a Rights, name: &'a [u8] },
    /// One is set.
    SetXattr { file: &'a Rights, name: &'a [u8] },
    /// One is removed.
    RemoveXattr { file: &'a Rights, name: &'a [u8] },
}

impl Who {
    /// As the user with this number is called.
    pub fn of(uid: u32) -> Who {
        match uid {
            0 => Who::Nobody,
            uid => Who::User(uid),
        }
    }

    /// The user in whose name it is done.
    pub fn uid(self) -> u32 {
        match self {
            Who::Nobody => NOBODY,
            Who::User(uid) => uid,
        }
    }

    /// Whether it may be done; `EACCES` or `EPERM`, as the calls of Linux say it.
    pub fn may(self, deed: &Deed<'_>) -> Result<(), Errno> {
        match *deed {
            Deed::Find { dir } => self.needs(dir, SEARCH),
            Deed::List { dir } => self.needs(dir, READ),
            Deed::Make { dir, kind, rdev } => self.may_make(dir, kind, rdev),
            Deed::Link { file, dir } => self.may_link(file, dir),
            Deed::Remove { dir, victim } => self.may_remove(dir, victim),
            Deed::Rename {
                from,
                file,
                to,
                replaced,
                other_dir,
                exchange,
            } => {
                self.may_remove(from, file)?;
                match replaced {
                    Some(_) => self.may_remove(to, replaced)?,
                    None => self.needs(to, WRITE | SEARCH)?,
                }
                let moves_up = |moved: Option<&Rights>| match moved {
                    Some(dir) if other_dir && dir.kind == FileKind::Directory => {
                        self.needs(dir, WRITE)
                    }
                    _ => Ok(()),
                };
                // The directory itself changes: its `..` leads elsewhere.
                moves_up(file)?;
                moves_up(replaced.filter(|_| exchange))
            }
            Deed::Open { file, flags } => self.may_open(file, flags),
            Deed::GetXattr { file, name } => self.may_get_xattr(file, name),
            Deed::SetXattr { file, name } => self.may_change_xattr(file, name, true),
            Deed::RemoveXattr { file, name } => self.may_change_xattr(file, name, false),
        }
    }

    fn needs(self, object: &Rights, wanted: u16) -> Result<(), Errno> {
        match self.has(object, wanted) {
            true => Ok(()),
            false => Err(Errno::EACCES),
        }
    }

    fn needs_owner(self, object: &Rights) -> Result<(), Errno> {
        match self.owns(object) {
            true => Ok(()),
            false => Err(Errno::EPERM),
        }
    }

    fn may_make(self, dir: &Rights, kind: FileKind, rdev: u32) -> Result<(), Errno> {
        self.needs(dir, WRITE | SEARCH)?;
        match kind {
            // A whiteout is no device.
            FileKind::CharDevice if rdev == 0 => Ok(()),
            FileKind::CharDevice | FileKind::BlockDevice => Err(Errno::EPERM),
            _ => Ok(()),
        }
    }

    /// As with `fs.protected_hardlinks`: nobody links what they could neither change nor read.
    fn may_link(self, file: &Rights, dir: &Rights) -> Result<(), Errno> {
        self.needs(dir, WRITE | SEARCH)?;
        let is_plain = file.kind == FileKind::Regular && !is_set_id(file.perm);
        match self.owns(file) || (is_plain && self.has(file, READ | WRITE)) {
            true => Ok(()),
            false => Err(Errno::EPERM),
        }
    }

    fn may_remove(self, dir: &Rights, victim: Option<&Rights>) -> Result<(), Errno> {
        self.needs(dir, WRITE | SEARCH)?;
        match victim {
            Some(victim) if dir.is_sticky() && !self.owns(victim) => self.needs_owner(dir),
            _ => Ok(()),
        }
    }

    fn may_open(self, file: &Rights, flags: OpenFlags) -> Result<(), Errno> {
        let access = flags.0 as i32 & libc::O_ACCMODE;
        let executes = access == libc::O_RDONLY && flags.0 & OPENED_TO_EXECUTE != 0;
        // No kernel asks so: what is executed is a file, and stays what it is.
        if executes && (file.kind != FileKind::Regular || flags.truncates()) {
            return Err(Errno::EACCES);
        }
        let mut wanted = match access {
            libc::O_RDONLY if executes => EXECUTE,
            libc::O_RDONLY => READ,
            libc::O_WRONLY => WRITE,
            _ => READ | WRITE,
        };
        if flags.truncates() {
            wanted |= WRITE;
        }
        self.needs(file, wanted)?;
        match flags.0 as i32 & libc::O_NOATIME != 0 {
            true => self.needs_owner(file),
            false => Ok(()),
        }
    }

    fn may_get_xattr(self, file: &Rights, name: &[u8]) -> Result<(), Errno> {
        match name {
            // The kernel itself reads lists and the security modules' attributes for everybody.
            _ if name.starts_with(b"trusted.") => Err(Errno::ENODATA),
            _ if !name.starts_with(b"user.") => Ok(()),
            _ if !has_user_xattrs(file.kind) => Err(Errno::ENODATA),
            _ => self.needs(file, READ),
        }
    }

    fn may_change_xattr(self, file: &Rights, name: &[u8], sets: bool) -> Result<(), Errno> {
        if name.starts_with(b"user.") {
            if !has_user_xattrs(file.kind) {
                return Err(Errno::EPERM);
            }
            if file.kind == FileKind::Directory && file.is_sticky() {
                self.needs_owner(file)?;
            }
            return self.needs(file, WRITE);
        }
        match name {
            b"security.capability" if !sets && self.has(file, WRITE) => {
                // The kernel takes it away in the name of whoever writes the file.
                Ok(())
            }
            acl::ACCESS | acl::DEFAULT => self.needs_owner(file),
            _ if name.starts_with(b"trusted.") || name.starts_with(b"security.") => {
                Err(Errno::EPERM)
            }
            // The answer is that there is no such thing.
            _ => Ok(()),
        }
    }

    /// What of a change of attributes is to be done, if it may be done at all. `has_written`: the
    /// change comes through a file that is open for writing.
    pub fn may_set(
        self,
        file: &Rights,
        set: &SetAttr,
        has_written: bool,
    ) -> Result<SetAttr, Errno> {
        let may_write = || has_written || self.has(file, WRITE);
        if set.size.is_some() && !may_write() {
            return Err(Errno::EACCES);
        }
        if set.uid.is_some_and(|uid| uid != file.uid) {
            return Err(Errno::EPERM);
        }
        if set
            .gid
            .is_some_and(|gid| gid != file.gid && !self.is_in(gid))
        {
            return Err(Errno::EPERM);
        }
        if set.uid.is_some() || set.gid.is_some() {
            self.needs_owner(file)?;
        }
        // A write takes bits away that run a program as somebody else, in the writer's name.
        let takes_away = |perm: u16| {
            let gone = file.perm & !perm;
            perm & !file.perm == 0 && gone & !(SET_USER_ID | SET_GROUP_ID) == 0
        };
        if let Some(perm) = set.perm
            && !(takes_away(perm) && may_write())
        {
            self.needs_owner(file)?;
        }
        self.may_set_times(file, set, may_write())?;
        let group = set.gid.unwrap_or(file.gid);
        Ok(SetAttr {
            perm: set.perm.map(|perm| self.without_foreign_group(perm, group)),
            ..*set
        })
    }

    /// Both times to now is for who may write, too; all else for the owner. A new size brings its
    /// time of modification.
    fn may_set_times(self, file: &Rights, set: &SetAttr, may_write: bool) -> Result<(), Errno> {
        let times = match (set.atime, set.mtime) {
            (None, None) => return Ok(()),
            (None, Some(SetTime::Now)) if set.size.is_some() => return Ok(()),
            times => times,
        };
        match times {
            _ if self.owns(file) => Ok(()),
            (Some(SetTime::Now), Some(SetTime::Now)) if may_write => Ok(()),
            (Some(SetTime::Now), Some(SetTime::Now)) => Err(Errno::EACCES),
            _ => Err(Errno::EPERM),
        }
    }

    /// The mode of something that gets this group: nobody lets a program run as a group that they
    /// are not in.
    pub fn without_foreign_group(self, perm: u16, group: u32) -> u16 {
        match self.is_in(group) {
            true => perm,
            false => perm & !SET_GROUP_ID,
        }
    }

    fn owns(self, object: &Rights) -> bool {
        match self {
            Who::Nobody => object.uid == NOBODY,
            Who::User(_) => object.uid != 0,
        }
    }

    fn is_in(self, group: u32) -> bool {
        match self {
            Who::Nobody => group == NOBODY,
            Who::User(_) => group != 0,
        }
    }

    fn has(self, object: &Rights, wanted: u16) -> bool {
        match self {
            Who::Nobody => match &object.list {
                Some(list) => {
                    let owner = (object.uid, object.gid);
                    let allowed = list.allows(owner, NOBODY, |group| self.is_in(group));
                    allowed.holds(wanted)
                }
                None => {
                    let shift = match self {
                        _ if self.owns(object) => 6,
                        _ if self.is_in(object.gid) => 3,
                        _ => 0,
                    };
                    object.perm >> shift & wanted == wanted
                }
            },
            // The owner could give it to themselves.
            Who::User(_) if self.owns(object) => true,
            Who::User(_) => match &object.list {
                Some(list) => list.allows_some(object.gid, wanted),
                None => {
                    let group = self.is_in(object.gid);
                    let classes = [(0, true), (3, group)];
                    let allows = |(shift, is_in)| is_in && object.perm >> shift & wanted == wanted;
                    classes.into_iter().any(allows)
                }
            },
        }
    }
}

/// Whether who runs it becomes somebody else.
fn is_set_id(perm: u16) -> bool {
    acl::without_set_id(perm) != perm
}

/// Links and special files have none of these: there everybody could write them.
fn has_user_xattrs(kind: FileKind) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Directory)
}

#[cfg(test)]
#[path = "rights_tests.rs"]
mod tests;
