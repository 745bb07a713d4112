//! Every request there is, about another user's private files, and what it gets.

use forebay_types::{
    ByteRange, Handle, Ino, LockClass, LockMode, OpenFlags, RenameMode, SetAttr, SetTime, XattrMode,
};
use forebay_wire::control::Control;
use forebay_wire::{LockOf, ObjectCall, Request, SeekWhat, SpaceChange, WriteHow};

use super::{Case, cred, link};

/// Kinds of requests: as many as [`fate`] names.
pub const KINDS: usize = 45;
/// No handle of the client's.
const OTHERS: Handle = Handle(1 << 40);

/// What a request about another user's private files gets.
pub enum Fate {
    Refused,
    /// It shows nothing of them and changes nothing: why.
    Harmless(&'static str),
}

/// Each request by its own rule, so that a new one has to have one.
pub fn fate(request: &Request) -> Fate {
    match request {
        Request::Lookup { .. }
        | Request::Setattr { .. }
        | Request::Mknod { .. }
        | Request::Mkdir { .. }
        | Request::Symlink { .. }
        | Request::Link { .. }
        | Request::Unlink { .. }
        | Request::Rmdir { .. }
        | Request::Rename { .. }
        | Request::OpenDir { .. }
        | Request::GetXattr { .. }
        | Request::SetXattr { .. }
        | Request::RemoveXattr { .. }
        | Request::Create { .. }
        | Request::Open { .. }
        | Request::CreateUnnamed { .. }
        | Request::Control(_) => Fate::Refused,
        // Not of a handle that the client has not opened.
        Request::Release { .. }
        | Request::ReleaseMany(_)
        | Request::Read { .. }
        | Request::Write { .. }
        | Request::Fsync { .. }
        | Request::ReadDir { .. }
        | Request::CloseDir { .. }
        | Request::Space { .. }
        | Request::Seek { .. }
        | Request::Lock { .. }
        | Request::Unlock { .. }
        | Request::TestLock { .. } => Fate::Refused,
        // Nor of a life that is not the client's.
        Request::FindNameless { .. } => Fate::Refused,
        Request::Getattr { .. } => Fate::Harmless("what stat(2) shows who has found the file"),
        Request::Readlink { .. } => Fate::Harmless("a link has no rights of its own"),
        Request::ListXattr { .. } => Fate::Harmless("names, as listxattr(2) shows them"),
        Request::FsyncDir { .. } => Fate::Harmless("it secures what is there"),
        Request::Forget(_) => Fate::Harmless("references of the client's own"),
        Request::Statfs | Request::PfsHealth => Fate::Harmless("of the file system as a whole"),
        Request::Introduce { .. } | Request::Recalls { .. } => Fate::Harmless("the client itself"),
        Request::CancelLock { .. } | Request::MayReclaim { .. } => Fate::Harmless("its own waits"),
        Request::ShowProbe | Request::HideProbe { .. } => Fate::Harmless("a file of the server's"),
        Request::Object(_) => Fate::Refused,
        Request::ControlFor { .. } => Fate::Harmless("what a user may see is looked at elsewhere"),
    }
}

impl Case {
    /// Every request there is, in root's name or in that of a user who is not the owner.
    #[allow(clippy::too_many_lines, reason = "a list: one entry for each request")]
    pub fn requests(&self, uid: u32) -> Vec<Request> {
        let (cred, file, dir) = (cred(uid), self.file, self.dir);
        let inside = link(dir, "inside");
        let here = link(self.shown, "new");
        let name = b"user.a".to_vec();
        let flags = OpenFlags(libc::O_RDWR as u32);
        let set = SetAttr::default();
        let sets = [
            SetAttr {
                perm: Some(0o4777),
                ..set
            },
            SetAttr {
                uid: Some(uid),
                ..set
            },
            SetAttr {
                gid: Some(uid),
                ..set
            },
            SetAttr {
                size: Some(0),
                ..set
            },
            SetAttr {
                mtime: Some(SetTime::Now),
                ..set
            },
            SetAttr {
                atime: Some(SetTime::Now),
                mtime: Some(SetTime::Now),
                ..set
            },
        ];
        let handle = OTHERS;
        let lock = LockOf {
            handle,
            class: LockClass::Bytes,
            owner: 1,
            range: ByteRange::ALL,
        };
        let set = |set| Request::Setattr {
            ino: file,
            handle: None,
            set,
            cred,
        };
        let open = |flags: i32| Request::Open {
            ino: file,
            flags: OpenFlags(flags as u32),
            cred,
        };
        let mut all: Vec<Request> = sets.into_iter().map(set).collect();
        all.extend(
            [
                libc::O_RDONLY,
                libc::O_WRONLY,
                libc::O_RDWR,
                libc::O_TRUNC,
                0x20,
            ]
            .map(open),
        );
        for link in [&inside, &here] {
            let mode = libc::S_IFIFO | 0o666;
            all.extend([
                Request::Mknod {
                    link: link.clone(),
                    mode,
                    rdev: 0,
                    cred,
                },
                Request::Mkdir {
                    link: link.clone(),
                    perm: 0o777,
                    cred,
                },
                Request::Symlink {
                    link: link.clone(),
                    target: b"/".to_vec(),
                    cred,
                },
                Request::Link {
                    ino: file,
                    link: link.clone(),
                    cred,
                },
                Request::Create {
                    link: link.clone(),
                    perm: 0o666,
                    flags,
                    cred,
                    shows_parent: true,
                },
            ]);
        }
        for link in [inside.clone(), link(self.shown, "file")] {
            let (from, mode) = (link.clone(), RenameMode::Replace);
            all.extend([
                Request::Unlink {
                    link: link.clone(),
                    cred,
                },
                Request::Rmdir {
                    link: link.clone(),
                    cred,
                },
                Request::Rename {
                    from: from.clone(),
                    to: here.clone(),
                    mode,
                    cred,
                },
                Request::Rename {
                    from: here.clone(),
                    to: from,
                    mode,
                    cred,
                },
            ]);
        }
        let (paths, after) = (vec![b"private/inside".to_vec()], None);
        let control = Control::Where { paths, after };
        all.extend([
            Request::Lookup {
                link: inside.clone(),
                uid,
            },
            Request::OpenDir { ino: dir, uid },
            Request::GetXattr {
                ino: file,
                name: name.clone(),
                uid,
            },
            Request::SetXattr {
                ino: file,
                name: name.clone(),
                value: vec![1],
                mode: XattrMode::Set,
                cred,
            },
            Request::SetXattr {
                ino: dir,
                name: b"trusted.a".to_vec(),
                value: vec![1],
                mode: XattrMode::Set,
                cred,
            },
            Request::RemoveXattr {
                ino: file,
                name,
                cred,
            },
            Request::CreateUnnamed {
                parent: self.shown,
                perm: 0o666,
                flags,
                cred,
            },
            Request::Control(Control::Shutdown {
                drain: false,
                timeout_ms: 0,
            }),
            Request::ControlFor {
                uid,
                gid: uid,
                groups: vec![0],
                control,
            },
            Request::Getattr {
                ino: file,
                handle: None,
            },
            Request::Readlink { ino: file },
            Request::ListXattr { ino: file, cred },
            Request::FsyncDir { ino: dir },
            Request::Forget(vec![(Ino(99), 1)]),
            Request::Statfs,
            Request::PfsHealth,
            Request::Introduce {
                processes: Vec::new(),
                ended: Vec::new(),
            },
            Request::Recalls {
                seen: 0,
                settled: 0,
            },
            Request::CancelLock { ticket: 1 },
            Request::MayReclaim {
                life: 1,
                done: false,
            },
            Request::FindNameless { ino: file, life: 1 },
            Request::ShowProbe,
            Request::HideProbe {
                name: b"probe".to_vec(),
            },
            Request::Release { handle },
            Request::ReleaseMany(vec![handle]),
            Request::Object(ObjectCall::Begin {
                instance: [3; 16],
                epoch: 1,
            }),
            Request::Read {
                handle,
                offset: 0,
                len: 1,
                pages: false,
            },
            Request::Write {
                handle,
                offset: 0,
                how: WriteHow::WAITING,
            },
            Request::Fsync {
                handle,
                data_only: false,
            },
            Request::ReadDir { handle, offset: 0 },
            Request::CloseDir { handle },
            Request::Space {
                handle,
                change: SpaceChange::Allocate,
                offset: 0,
                len: 1,
                drop_suid: false,
                may_wait: false,
            },
            Request::Seek {
                handle,
                offset: 0,
                what: SeekWhat::Data,
            },
            Request::Lock {
                lock,
                mode: LockMode::Exclusive,
                pid: 7,
                ticket: None,
                again: false,
            },
            Request::Unlock { lock },
            Request::TestLock {
                lock,
                mode: LockMode::Exclusive,
            },
        ]);
        all
    }
}
