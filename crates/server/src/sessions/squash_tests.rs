use std::collections::HashSet;
use std::mem::discriminant;
use std::os::unix::fs::PermissionsExt;

use forebay_types::{ByteRange, LockClass, LockMode, OpenFlags, Process, SetTime, XattrMode};
use forebay_wire::control::Control;
use forebay_wire::net::{ClientFacts, Host};
use forebay_wire::{LockOf, Peer, Response, SeekWhat, Service, SpaceChange, WriteHow};

use super::*;
use crate::service::Server;
use crate::sessions::Sessions;
use crate::sessions::lives::Lives;
use crate::testing::{Lab, create_in, me};

/// Kinds of requests: as many as [`fate`] names.
const KINDS: usize = 43;
/// No handle of the client's.
const OTHERS: Handle = Handle(1 << 40);

/// What a request about another user's private files gets.
enum Fate {
    Refused,
    /// It shows nothing of them and changes nothing: why.
    Harmless(&'static str),
}

/// Each request by its own rule, so that a new one has to have one.
fn fate(request: &Request) -> Fate {
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
        Request::Getattr { .. } => Fate::Harmless("what stat(2) shows who has found the file"),
        Request::Readlink { .. } => Fate::Harmless("a link has no rights of its own"),
        Request::ListXattr { .. } => Fate::Harmless("names, as listxattr(2) shows them"),
        Request::FsyncDir { .. } => Fate::Harmless("it secures what is there"),
        Request::Forget(_) => Fate::Harmless("references of the client's own"),
        Request::Statfs | Request::PfsHealth => Fate::Harmless("of the file system as a whole"),
        Request::Introduce { .. } | Request::Recalls { .. } => Fate::Harmless("the client itself"),
        Request::CancelLock { .. } | Request::MayReclaim { .. } => Fate::Harmless("its own waits"),
        Request::ShowProbe | Request::HideProbe { .. } => Fate::Harmless("a file of the server's"),
        Request::ControlFor { .. } => Fate::Harmless("what a user may see is looked at elsewhere"),
    }
}

/// A squashed client that has found the owner's private things.
struct Case {
    lab: Lab,
    sessions: Sessions,
    session: std::sync::Arc<dyn forebay_wire::net::Guest>,
    /// 0700, with `inside` in it.
    dir: Ino,
    /// 0600, in a directory that everybody may search and nobody write.
    file: Ino,
    /// That directory, 0755.
    shown: Ino,
}

fn cred(uid: u32) -> Cred {
    Cred {
        uid,
        gid: uid,
        process: Process::here(7),
        umask: 0,
    }
}

fn link(parent: Ino, name: &str) -> Link {
    Link {
        parent,
        name: name.into(),
    }
}

fn facts(local: bool) -> ClientFacts {
    ClientFacts {
        local,
        ..ClientFacts::default()
    }
}

impl Case {
    fn new() -> Case {
        let lab = Lab::new();
        for (name, mode) in [("", 0o755), ("shown", 0o755), ("private", 0o700)] {
            let path = lab.pfs(name);
            if !name.is_empty() {
                std::fs::create_dir(&path).expect("mkdir");
            }
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("chmod");
        }
        let server = Arc::new(Server::new(lab.shared_rooms()));
        let sessions = Sessions::new(server, Arc::default(), 1, Lives::none());
        sessions.squash_root(lab.shared_rooms());
        let session = Host::begin(&sessions, &facts(false)).expect("a session");
        let mut case = Case {
            lab,
            sessions,
            session,
            dir: Ino::ROOT,
            file: Ino::ROOT,
            shown: Ino::ROOT,
        };
        case.shown = case.found(&link(Ino::ROOT, "shown"));
        case.dir = case.found(&link(Ino::ROOT, "private"));
        let rooms = case.lab.rooms();
        for (parent, name) in [(case.shown, "file"), (case.dir, "inside")] {
            let handle = create_in(rooms, parent, name.as_bytes(), b"private");
            rooms.files.release(handle).expect("close");
            let ino = rooms.base.ns().lookup(parent, name.as_bytes());
            let ino = ino.expect("there").attr.ino;
            let set = SetAttr {
                perm: Some(0o600),
                ..SetAttr::default()
            };
            rooms.files.setattr(ino, None, &set, me()).expect("chmod");
            let value = (&b"user.a"[..], &b"value"[..]);
            let set = rooms
                .base
                .ns()
                .set_xattr(ino, value.0, value.1, XattrMode::Set);
            set.expect("setxattr");
        }
        case.file = case.found(&link(case.shown, "file"));
        case
    }

    fn ask(&self, request: Request) -> Response {
        let peer = Peer {
            uid: 0,
            gid: 0,
            groups: &[],
            local: false,
            mount: true,
            socket: None,
        };
        self.session
            .handle(peer, request, b"x", &mut [0; 16])
            .response
    }

    fn found(&self, link: &Link) -> Ino {
        let lookup = Request::Lookup {
            link: link.clone(),
            uid: 0,
        };
        match self.ask(lookup) {
            Response::Attr(shown) => shown.attr.ino,
            other => panic!("{other:?}"),
        }
    }

    /// All that there is, as the server has it.
    fn state(&self) -> String {
        let rooms = self.lab.rooms();
        let mut all = String::new();
        for dir in [Ino::ROOT, self.shown, self.dir] {
            for entry in rooms.base.ns().read_dir(dir).expect("readdir") {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                if name.starts_with('.') {
                    continue;
                }
                let found = rooms.base.ns().lookup(dir, &entry.name).expect("there");
                let mut attr = found.attr;
                attr.atime = attr.mtime;
                let value = rooms.base.ns().get_xattr(attr.ino, b"user.a").ok();
                all += &format!("{name} {attr:?} {value:?}\n");
            }
        }
        all
    }

    /// Every request there is, in root's name or in that of a user who is not the owner.
    #[allow(clippy::too_many_lines, reason = "a list: one entry for each request")]
    fn requests(&self, uid: u32) -> Vec<Request> {
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
            Request::ShowProbe,
            Request::HideProbe {
                name: b"probe".to_vec(),
            },
            Request::Release { handle },
            Request::ReleaseMany(vec![handle]),
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

fn is_refusal(response: &Response) -> bool {
    matches!(
        response,
        // Of a handle that it has not opened.
        Response::Failed(Errno::EACCES | Errno::EPERM | Errno::ESTALE)
    )
}

#[test]
fn nothing_of_another_users_private_files_is_shown_to_root_or_changed_by_it() {
    let case = Case::new();
    let before = case.state();
    // Whoever lies about the user gets no more of what is root's.
    let users = [0, 1000].into_iter().filter(|uid| *uid == 0 || is_root());
    for uid in users {
        let mut kinds = HashSet::new();
        for request in case.requests(uid) {
            kinds.insert(discriminant(&request));
            let said = format!("{request:?}");
            let response = case.ask(request.clone());
            let why = match fate(&request) {
                Fate::Refused => {
                    assert!(is_refusal(&response), "{said}: {response:?}");
                    "refused"
                }
                Fate::Harmless(why) => why,
            };
            assert_eq!(case.state(), before, "{said}: {why}");
        }
        // A new kind of request is to be added to the list.
        assert_eq!(kinds.len(), KINDS);
    }
    assert!(case.lab.rooms().base.life().stop_order().is_none());
}

#[test]
fn a_client_on_the_servers_own_socket_has_root_and_one_from_the_network_has_not() {
    let case = Case::new();
    let open = |session: &dyn Service| {
        let peer = Peer {
            uid: 0,
            gid: 0,
            groups: &[],
            local: false,
            mount: true,
            socket: None,
        };
        let names = [link(Ino::ROOT, "shown"), link(case.shown, "file")];
        for link in names {
            session.handle(peer, Request::Lookup { link, uid: 0 }, &[], &mut []);
        }
        let request = Request::Open {
            ino: case.file,
            flags: OpenFlags(libc::O_RDONLY as u32),
            cred: cred(0),
        };
        session.handle(peer, request, &[], &mut []).response
    };
    let begin = |local| Host::begin(&case.sessions, &facts(local)).expect("a session");
    let there = begin(true);
    assert!(matches!(open(&*there), Response::Opened(_)));
    there.end();
    let elsewhere = begin(false);
    assert_eq!(open(&*elsewhere), Response::Failed(Errno::EACCES));
    elsewhere.end();
}

/// A directory for everybody, of root's group, which it gives to what is made in it.
fn for_all(case: &Case) -> Ino {
    let all = case.lab.pfs("all");
    std::fs::create_dir(&all).expect("mkdir");
    std::fs::set_permissions(&all, PermissionsExt::from_mode(0o3777)).expect("chmod");
    case.found(&link(Ino::ROOT, "all"))
}

fn create(case: &Case, link: Link, perm: u16, uid: u32) -> (Attr, Handle) {
    let created = case.ask(Request::Create {
        link,
        perm,
        flags: OpenFlags(libc::O_RDWR as u32),
        cred: cred(uid),
        shows_parent: false,
    });
    match created {
        Response::Created(shown, opened, _) => (shown.attr, opened.handle),
        other => panic!("{other:?}"),
    }
}

/// Nobody else can give files away.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn what_root_makes_is_nobodys_and_nobody_keeps_set_id_bits() {
    if !is_root() {
        return;
    }
    let case = Case::new();
    let dir = for_all(&case);
    let (attr, handle) = create(&case, link(dir, "f"), 0o6775, 0);
    assert_eq!((attr.uid, attr.gid, attr.perm), (NOBODY, 0, 0o4775));
    let how = WriteHow::WAITING;
    let write = Request::Write {
        handle,
        offset: 0,
        how,
    };
    assert_eq!(case.ask(write), Response::Moved(1));
    let now = case.lab.rooms().attr(attr.ino).expect("there");
    assert_eq!(now.perm, 0o775);
    let made = case.ask(Request::Mkdir {
        link: link(dir, "d"),
        perm: 0o755,
        cred: cred(0),
    });
    assert!(
        matches!(made, Response::Attr(shown) if shown.attr.uid == NOBODY),
        "{made:?}"
    );
    create(&case, link(dir, "theirs"), 0o666, 1000);
    let unlink = |name| Request::Unlink {
        link: link(dir, name),
        cred: cred(0),
    };
    // The directory is sticky.
    let refused = Response::Failed(Errno::EPERM);
    assert_eq!(case.ask(unlink("theirs")), refused);
    assert_eq!(case.ask(unlink("f")), Response::Done);
}

#[test]
fn a_file_that_is_open_for_writing_is_cut_whatever_its_mode_says_by_then() {
    if !is_root() {
        return;
    }
    let case = Case::new();
    let dir = for_all(&case);
    let (attr, handle) = create(&case, link(dir, "f"), 0o600, 0);
    let (other, _) = create(&case, link(dir, "g"), 0o600, 0);
    let set = |ino, handle, set| {
        case.ask(Request::Setattr {
            ino,
            handle,
            set,
            cred: cred(0),
        })
    };
    let none = SetAttr {
        perm: Some(0),
        ..SetAttr::default()
    };
    let cut = SetAttr {
        size: Some(0),
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    for ino in [attr.ino, other.ino] {
        assert!(matches!(set(ino, None, none), Response::Attr(_)));
    }
    let refused = Response::Failed(Errno::EACCES);
    assert_eq!(set(attr.ino, None, cut), refused);
    // By a handle of another file.
    assert_eq!(set(other.ino, Some(handle), cut), refused);
    let done = set(attr.ino, Some(handle), cut);
    assert!(matches!(done, Response::Attr(_)), "{done:?}");
}

#[test]
fn a_command_of_root_asks_as_nobody() {
    let asked = |uid, gid, groups: &[u32]| {
        let request = squash_control(Request::ControlFor {
            uid,
            gid,
            groups: groups.to_vec(),
            control: Control::Status,
        });
        match request {
            Request::ControlFor {
                uid, gid, groups, ..
            } => (uid, gid, groups),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(asked(0, 0, &[0, 5]), (NOBODY, NOBODY, vec![]));
    assert_eq!(asked(7, 0, &[0, 5]), (7, NOBODY, vec![5]));
    assert_eq!(asked(7, 8, &[5]), (7, 8, vec![5]));
}
