use std::collections::HashSet;
use std::mem::discriminant;
use std::os::unix::fs::PermissionsExt;

use forebay_types::{OpenFlags, Process, SetTime, XattrMode};
use forebay_wire::control::Control;
use forebay_wire::net::{ClientFacts, Host};
use forebay_wire::{Peer, Response, Service, WriteHow};

use super::*;
use crate::service::Server;
use crate::sessions::Sessions;
use crate::sessions::lives::Lives;
use crate::testing::{Lab, create_in, me};

#[path = "squash_requests.rs"]
mod requests;

use requests::{Fate, KINDS, fate};

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
        let holding = lab.shared_rooms().base.ns().clone();
        let sessions = Sessions::new(server, Arc::default(), 1, Lives::none(), holding);
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
            near: false,
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
            near: false,
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
fn a_program_that_runs_as_root_does_so_no_more_once_it_is_written_in_any_way() {
    if !is_root() {
        return;
    }
    let case = Case::new();
    let rooms = case.lab.rooms();
    for (uid, bits) in [(0, 0o4000), (1000, 0)] {
        for write_back in [true, false] {
            let name = format!("{uid}-{write_back}");
            let handle = create_in(rooms, case.shown, name.as_bytes(), b"program");
            rooms.files.release(handle).expect("close");
            let ino = case.found(&link(case.shown, &name));
            let set = SetAttr {
                perm: Some(0o4666),
                uid: Some(uid),
                gid: Some(uid),
                ..SetAttr::default()
            };
            rooms.files.setattr(ino, None, &set, me()).expect("chmod");
            let flags = OpenFlags(libc::O_RDWR as u32);
            let cred = cred(1001);
            let opened = case.ask(Request::Open { ino, flags, cred });
            let Response::Opened(opened) = opened else {
                panic!("{opened:?}");
            };
            let how = WriteHow {
                write_back,
                ..WriteHow::WAITING
            };
            let write = Request::Write {
                handle: opened.handle,
                offset: 0,
                how,
            };
            assert_eq!(case.ask(write), Response::Moved(1), "{name}");
            let perm = rooms.attr(ino).expect("there").perm;
            // What is stored through a mapping leaves the bits of others.
            let left = if write_back { 0o4000 - bits } else { 0 };
            assert_eq!(perm, 0o666 | left, "{name}");
        }
    }
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
