//! What can be said of a request without knowing what it means.

use forebay_types::{Cred, Handle, Ino};

use crate::message::{LockOf, Request};

/// The handles of a request, borrowed as the request is: `one` makes a slice of a handle, `all` of
/// one that need not be there.
macro_rules! handles_of {
    ($request:expr, $one:path, $all:ident) => {
        match $request {
            Request::Release { handle }
            | Request::Read { handle, .. }
            | Request::Write { handle, .. }
            | Request::Fsync { handle, .. }
            | Request::Space { handle, .. }
            | Request::Seek { handle, .. }
            | Request::ReadDir { handle, .. }
            | Request::CloseDir { handle } => $one(handle),
            Request::ReleaseMany(handles) => handles,
            Request::Getattr { handle, .. } | Request::Setattr { handle, .. } => handle.$all(),
            Request::Lock {
                lock: LockOf { handle, .. },
                ..
            }
            | Request::Unlock {
                lock: LockOf { handle, .. },
            }
            | Request::TestLock {
                lock: LockOf { handle, .. },
                ..
            } => $one(handle),
            Request::Lookup { .. }
            | Request::Forget(_)
            | Request::Readlink { .. }
            | Request::Mknod { .. }
            | Request::Mkdir { .. }
            | Request::Symlink { .. }
            | Request::Link { .. }
            | Request::Unlink { .. }
            | Request::Rmdir { .. }
            | Request::Rename { .. }
            | Request::OpenDir { .. }
            | Request::Statfs
            | Request::PfsHealth
            | Request::GetXattr { .. }
            | Request::SetXattr { .. }
            | Request::ListXattr { .. }
            | Request::RemoveXattr { .. }
            | Request::Create { .. }
            | Request::CreateUnnamed { .. }
            | Request::Open { .. }
            | Request::FsyncDir { .. }
            | Request::Introduce { .. }
            | Request::Recalls { .. }
            | Request::CancelLock { .. }
            | Request::MayReclaim { .. }
            | Request::FindNameless { .. }
            | Request::ShowProbe
            | Request::HideProbe { .. }
            | Request::Object(_)
            | Request::Control(_)
            | Request::ControlFor { .. } => Default::default(),
        }
    };
}

/// In whose name a request is asked, by reference or to be changed.
macro_rules! cred_of {
    ($request:expr) => {
        match $request {
            Request::Setattr { cred, .. }
            | Request::Mknod { cred, .. }
            | Request::Mkdir { cred, .. }
            | Request::Symlink { cred, .. }
            | Request::Link { cred, .. }
            | Request::Unlink { cred, .. }
            | Request::Rmdir { cred, .. }
            | Request::Rename { cred, .. }
            | Request::SetXattr { cred, .. }
            | Request::ListXattr { cred, .. }
            | Request::RemoveXattr { cred, .. }
            | Request::Create { cred, .. }
            | Request::CreateUnnamed { cred, .. }
            | Request::Open { cred, .. } => Some(cred),
            Request::Lookup { .. }
            | Request::Forget(_)
            | Request::Getattr { .. }
            | Request::Readlink { .. }
            | Request::OpenDir { .. }
            | Request::ReadDir { .. }
            | Request::CloseDir { .. }
            | Request::Statfs
            | Request::PfsHealth
            | Request::GetXattr { .. }
            | Request::Release { .. }
            | Request::ReleaseMany(_)
            | Request::Read { .. }
            | Request::Write { .. }
            | Request::Fsync { .. }
            | Request::FsyncDir { .. }
            | Request::Space { .. }
            | Request::Seek { .. }
            | Request::Introduce { .. }
            | Request::Recalls { .. }
            | Request::Lock { .. }
            | Request::Unlock { .. }
            | Request::TestLock { .. }
            | Request::CancelLock { .. }
            | Request::MayReclaim { .. }
            | Request::FindNameless { .. }
            | Request::ShowProbe
            | Request::HideProbe { .. }
            | Request::Object(_)
            | Request::Control(_)
            | Request::ControlFor { .. } => None,
        }
    };
}

impl Request {
    /// What it is called in a log.
    pub fn name(&self) -> &'static str {
        match self {
            Request::Lookup { .. } => "lookup",
            Request::Forget(_) => "forget",
            Request::Getattr { .. } => "getattr",
            Request::Object(_) => "object",
            Request::Setattr { .. } => "setattr",
            Request::Readlink { .. } => "readlink",
            Request::Mknod { .. } => "mknod",
            Request::Mkdir { .. } => "mkdir",
            Request::Symlink { .. } => "symlink",
            Request::Link { .. } => "link",
            Request::Unlink { .. } => "unlink",
            Request::Rmdir { .. } => "rmdir",
            Request::Rename { .. } => "rename",
            Request::OpenDir { .. } => "opendir",
            Request::ReadDir { .. } => "readdir",
            Request::CloseDir { .. } => "closedir",
            Request::Statfs => "statfs",
            Request::PfsHealth => "health of the PFS",
            Request::GetXattr { .. } => "getxattr",
            Request::SetXattr { .. } => "setxattr",
            Request::ListXattr { .. } => "listxattr",
            Request::RemoveXattr { .. } => "removexattr",
            Request::Create { .. } => "create",
            Request::Open { .. } => "open",
            Request::Release { .. } => "close",
            Request::ReleaseMany(_) => "close of several",
            Request::Read { .. } => "read",
            Request::Write { .. } => "write",
            Request::Fsync { .. } => "fsync",
            Request::FsyncDir { .. } => "fsync of a directory",
            Request::Space { .. } => "fallocate",
            Request::Seek { .. } => "lseek",
            Request::CreateUnnamed { .. } => "create without a name",
            Request::Introduce { .. } => "introduction",
            Request::Recalls { .. } => "recalls",
            Request::Lock { .. } => "lock",
            Request::Unlock { .. } => "unlock",
            Request::TestLock { .. } => "look for a lock",
            Request::CancelLock { .. } => "end of a wait for a lock",
            Request::MayReclaim { .. } => "reclaim",
            Request::FindNameless { .. } => "look for a file without a name",
            Request::ShowProbe => "probe of the PFS",
            Request::HideProbe { .. } => "end of a probe of the PFS",
            Request::Control(control) | Request::ControlFor { control, .. } => control.name(),
        }
    }

    /// Whether it may change content, attributes or names.
    pub fn changes(&self) -> bool {
        match self {
            Request::Setattr { .. }
            | Request::Mknod { .. }
            | Request::Mkdir { .. }
            | Request::Symlink { .. }
            | Request::Link { .. }
            | Request::Unlink { .. }
            | Request::Rmdir { .. }
            | Request::Rename { .. }
            | Request::SetXattr { .. }
            | Request::RemoveXattr { .. }
            | Request::Create { .. }
            | Request::CreateUnnamed { .. }
            | Request::Write { .. }
            | Request::Space { .. } => true,
            // By O_TRUNC, and by a right to write through the kernel.
            Request::Open { flags, .. } => flags.writes(),
            Request::Lookup { .. }
            | Request::Forget(_)
            | Request::Getattr { .. }
            | Request::Readlink { .. }
            | Request::OpenDir { .. }
            | Request::ReadDir { .. }
            | Request::CloseDir { .. }
            | Request::Statfs
            | Request::PfsHealth
            | Request::GetXattr { .. }
            | Request::ListXattr { .. }
            | Request::Release { .. }
            | Request::ReleaseMany(_)
            | Request::Read { .. }
            | Request::Fsync { .. }
            | Request::FsyncDir { .. }
            | Request::Seek { .. }
            | Request::Introduce { .. }
            | Request::Recalls { .. }
            | Request::Lock { .. }
            | Request::Unlock { .. }
            | Request::TestLock { .. }
            | Request::CancelLock { .. }
            | Request::MayReclaim { .. }
            | Request::FindNameless { .. }
            | Request::ShowProbe
            | Request::HideProbe { .. }
            | Request::Object(_)
            | Request::Control(_)
            | Request::ControlFor { .. } => false,
        }
    }

    /// The open files and directories that it is about.
    pub fn handles(&self) -> &[Handle] {
        handles_of!(self, std::slice::from_ref, as_slice)
    }

    /// The same, to be changed.
    pub fn handles_mut(&mut self) -> &mut [Handle] {
        handles_of!(self, std::slice::from_mut, as_mut_slice)
    }

    /// What it names by id: who asks has a reference on each.
    pub fn nodes(&self) -> [Option<Ino>; 2] {
        match self {
            Request::Lookup { link, .. }
            | Request::Mknod { link, .. }
            | Request::Mkdir { link, .. }
            | Request::Symlink { link, .. }
            | Request::Unlink { link, .. }
            | Request::Rmdir { link, .. }
            | Request::Create { link, .. } => [Some(link.parent), None],
            Request::Link { ino, link, .. } => [Some(*ino), Some(link.parent)],
            Request::Rename { from, to, .. } => [Some(from.parent), Some(to.parent)],
            Request::CreateUnnamed { parent, .. } => [Some(*parent), None],
            Request::Getattr { ino, .. }
            | Request::Setattr { ino, .. }
            | Request::Readlink { ino }
            | Request::OpenDir { ino, .. }
            | Request::GetXattr { ino, .. }
            | Request::SetXattr { ino, .. }
            | Request::ListXattr { ino, .. }
            | Request::RemoveXattr { ino, .. }
            | Request::Open { ino, .. }
            | Request::FsyncDir { ino } => [Some(*ino), None],
            Request::Forget(_)
            | Request::ReadDir { .. }
            | Request::CloseDir { .. }
            | Request::Statfs
            | Request::PfsHealth
            | Request::Release { .. }
            | Request::ReleaseMany(_)
            | Request::Read { .. }
            | Request::Write { .. }
            | Request::Fsync { .. }
            | Request::Space { .. }
            | Request::Seek { .. }
            | Request::Introduce { .. }
            | Request::Recalls { .. }
            | Request::Lock { .. }
            | Request::Unlock { .. }
            | Request::TestLock { .. }
            | Request::CancelLock { .. }
            | Request::MayReclaim { .. }
            | Request::FindNameless { .. }
            | Request::ShowProbe
            | Request::HideProbe { .. }
            | Request::Object(_)
            | Request::Control(_)
            | Request::ControlFor { .. } => [None, None],
        }
    }

    /// In whose name it is asked, where that matters.
    pub fn cred(&self) -> Option<&Cred> {
        cred_of!(self)
    }

    /// The same, to be changed.
    pub fn cred_mut(&mut self) -> Option<&mut Cred> {
        cred_of!(self)
    }

    /// Whether the users and groups that it names can be some: all ones means none.
    pub(crate) fn names_somebody(&self) -> bool {
        let is_one = |id: &u32| *id != u32::MAX;
        let of_cred = self
            .cred()
            .is_none_or(|cred| is_one(&cred.uid) && is_one(&cred.gid));
        let of_itself = match self {
            Request::Setattr { set, .. } => set.uid.iter().chain(&set.gid).all(is_one),
            Request::Introduce { processes, .. } => processes
                .iter()
                .all(|process| process.groups.iter().all(is_one)),
            Request::ControlFor {
                uid, gid, groups, ..
            } => is_one(uid) && is_one(gid) && groups.iter().all(is_one),
            _ => true,
        };
        of_cred && of_itself
    }

    /// Whether who asks has one reference more on what the answer shows, until a [`Self::Forget`].
    pub fn takes_reference(&self) -> bool {
        matches!(
            self,
            Request::Lookup { .. }
                | Request::Mknod { .. }
                | Request::Mkdir { .. }
                | Request::Symlink { .. }
                | Request::Link { .. }
                | Request::Create { .. }
                | Request::CreateUnnamed { .. }
                | Request::FindNameless { .. }
        )
    }

    /// Whether running it twice does what running it once does, to the server and to who asked: its
    /// reply need not be remembered for the case that it is sent again.
    ///
    /// Everything that changes something is out, also where the same change made twice would leave
    /// the same (`Setattr`, `Write`, `Fsync`): between the first time and the second, somebody else
    /// may have changed it, or have been told that it had failed.
    pub fn is_repeatable(&self) -> bool {
        match self {
            // They only look, at what is named or open before and after.
            Request::Getattr { .. }
            | Request::Readlink { .. }
            | Request::Statfs
            | Request::PfsHealth
            | Request::GetXattr { .. }
            | Request::ListXattr { .. }
            | Request::Read { .. }
            | Request::Seek { .. } => true,
            // Of a snapshot, at a position that the request names.
            Request::ReadDir { .. } => true,
            Request::Control(control) | Request::ControlFor { control, .. } => {
                control.is_repeatable()
            }
            // The second time tells the same.
            Request::Introduce { .. } => true,
            // What has not been followed is told again.
            Request::Recalls { .. } => true,
            // They take a reference or a handle that the client has to give back: two times taken
            // and once given back is a leak.
            Request::Lookup { .. }
            | Request::FindNameless { .. }
            | Request::OpenDir { .. }
            | Request::Open { .. }
            | Request::Create { .. }
            | Request::CreateUnnamed { .. } => false,
            Request::TestLock { .. } | Request::MayReclaim { .. } => true,
            // Between the two times somebody else may have locked, or have been granted.
            Request::Lock { .. } | Request::Unlock { .. } | Request::CancelLock { .. } => false,
            // They give one back: the second time somebody else's, or an error.
            Request::Forget(_)
            | Request::Release { .. }
            | Request::ReleaseMany(_)
            | Request::CloseDir { .. } => false,
            // Names: the second time finds the name taken, or gone.
            Request::Mknod { .. }
            | Request::Mkdir { .. }
            | Request::Symlink { .. }
            | Request::Link { .. }
            | Request::Unlink { .. }
            | Request::Rmdir { .. }
            | Request::Rename { .. } => false,
            // Content and attributes: a second time would undo what came between; an append would
            // append twice.
            Request::Setattr { .. }
            | Request::SetXattr { .. }
            | Request::RemoveXattr { .. }
            | Request::Write { .. }
            | Request::Space { .. } => false,
            // An error of the storage is told once: the second time would say that all is well.
            Request::Fsync { .. } | Request::FsyncDir { .. } => false,
            // The second time makes another file, or finds none.
            Request::ShowProbe | Request::HideProbe { .. } => false,
            Request::Object(call) => call.is_repeatable(),
        }
    }

    /// Whether a request whose answer was lost with its session may be asked once more in the next.
    /// It may have happened: then the second time is a write, or an open, that has taken longer.
    /// What changes names would find its own work in the way, and an append would append twice.
    pub fn may_be_asked_again(&self) -> bool {
        match self {
            Request::Write { how, .. } => !how.append,
            Request::Open { .. } | Request::Setattr { .. } | Request::Space { .. } => true,
            Request::Create { flags, .. } => !flags.exclusive(),
            // What was open there is not any more.
            Request::Object(_) => false,
            other => !other.changes(),
        }
    }

    /// Whether it may wait long for what does not come by itself: space, a flush, somebody's turn.
    pub fn may_take_long(&self) -> bool {
        match self {
            Request::Write { how, .. } => how.may_wait,
            Request::Space { may_wait, .. } => *may_wait,
            Request::Setattr { set, .. } => set.size.is_some(),
            Request::Fsync { .. } | Request::FsyncDir { .. } => true,
            // Others wait for it: it is not to wait for a slot behind them.
            Request::Recalls { .. } => false,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::{Errno, Ino, Process, SetAttr};

    use super::*;
    use crate::control::Control;
    use crate::message::Introduction;

    #[test]
    fn nobody_is_named_by_all_ones() {
        let none = u32::MAX;
        let set = |(uid, gid), (to_uid, to_gid)| Request::Setattr {
            ino: Ino::ROOT,
            handle: None,
            set: SetAttr {
                uid: to_uid,
                gid: to_gid,
                ..SetAttr::default()
            },
            cred: Cred {
                uid,
                gid,
                process: Process::here(7),
                umask: 0,
            },
        };
        let command = |uid, gid, group| Request::ControlFor {
            uid,
            gid,
            groups: vec![5, group],
            control: Control::Status,
        };
        let told = |group| Request::Introduce {
            processes: vec![Introduction {
                pid: 7,
                age_ms: 0,
                family: 7,
                groups: vec![5, group],
                job: None,
                job_nodes: None,
            }],
            ended: Vec::new(),
        };
        let highest = none - 1;
        let good = [
            set((0, 0), (None, None)),
            set((highest, highest), (Some(highest), Some(highest))),
            command(highest, highest, highest),
            told(highest),
        ];
        for request in good {
            assert_eq!(request.check(), Ok(()), "{request:?}");
        }
        let bad = [
            set((none, 0), (None, None)),
            set((0, none), (None, None)),
            set((0, 0), (Some(none), None)),
            set((0, 0), (None, Some(none))),
            command(none, 0, 0),
            command(0, none, 0),
            command(0, 0, none),
            told(none),
        ];
        for request in bad {
            assert_eq!(request.check(), Err(Errno::EINVAL), "{request:?}");
        }
    }

    #[test]
    fn handles_can_be_changed_wherever_they_are() {
        let [one, two] = [Handle(1), Handle(2)];
        let ino = Ino::ROOT;
        let cases: [(Request, &[Handle]); 5] = [
            (Request::Release { handle: one }, &[one]),
            (Request::ReleaseMany(vec![one, two]), &[one, two]),
            (Request::Getattr { ino, handle: None }, &[]),
            (
                Request::Getattr {
                    ino,
                    handle: Some(two),
                },
                &[two],
            ),
            (Request::Statfs, &[]),
        ];
        for (mut request, handles) in cases {
            assert_eq!(request.handles(), handles);
            let changed = request.handles_mut();
            changed.iter_mut().for_each(|handle| handle.0 += 10);
            let expected: Vec<Handle> = handles.iter().map(|h| Handle(h.0 + 10)).collect();
            assert_eq!(request.handles(), expected);
        }
    }
}
