//! Whose a file is, and who may do what with it, one client after the other changes: what was
//! checked before a change holds until it is made.

use std::collections::HashSet;

use forebay_types::Ino;
use forebay_wire::Request;
use parking_lot::{Condvar, Mutex};

/// The files that somebody changes so.
#[derive(Default)]
pub struct Turns {
    taken: Mutex<HashSet<Ino>>,
    given_back: Condvar,
}

/// Somebody's turn, until it is dropped.
pub struct Turn<'a> {
    turns: &'a Turns,
    ino: Ino,
}

impl Turns {
    /// Waits for the turn of a request, if it needs one.
    pub fn of(&self, request: &Request) -> Option<Turn<'_>> {
        let ino = match request {
            Request::Setattr { ino, set, .. }
                if set.perm.is_some() || set.uid.is_some() || set.gid.is_some() =>
            {
                ino
            }
            // An access control list says more than the mode, and changes it.
            Request::SetXattr { ino, name, .. } | Request::RemoveXattr { ino, name, .. }
                if name.starts_with(b"system.") =>
            {
                ino
            }
            _ => return None,
        };
        let mut taken = self.taken.lock();
        while !taken.insert(*ino) {
            self.given_back.wait(&mut taken);
        }
        Some(Turn {
            turns: self,
            ino: *ino,
        })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.taken.lock().remove(&self.ino);
        self.turns.given_back.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    use forebay_types::{Attr, Cred, Errno, FileKind, Process, SetAttr, TimeSpec};
    use forebay_wire::net::{ClientFacts, Guest, Host};
    use forebay_wire::{Link, Peer, Reply, Response, Service};

    use super::*;
    use crate::sessions::holding::Holding;
    use crate::sessions::lives::Lives;
    use crate::sessions::{OWN, Sessions, Tree};

    const FILE: Ino = Ino(7);
    const SOON: Duration = Duration::from_millis(200);
    const LATE: Duration = Duration::from_secs(30);

    /// One file, and a program in it: who changes its mode waits half-way.
    struct Program {
        attr: Mutex<Attr>,
        begun: mpsc::Sender<()>,
        go: Mutex<mpsc::Receiver<()>>,
    }

    impl Service for Program {
        fn handle(&self, _: Peer<'_>, request: Request, _: &[u8], _: &mut [u8]) -> Reply {
            if let Request::Setattr { set, .. } = request {
                if set.perm.is_some() {
                    self.begun.send(()).expect("somebody listens");
                    self.go.lock().recv_timeout(LATE).expect("go");
                }
                let mut attr = self.attr.lock();
                if let Some(uid) = set.uid {
                    (attr.uid, attr.perm) = (uid, attr.perm & 0o777);
                }
                attr.perm = set.perm.unwrap_or(attr.perm);
            }
            Response::Attr((*self.attr.lock()).into()).into()
        }
    }

    impl Tree for Program {
        fn attr(&self, _: Ino) -> Result<Attr, Errno> {
            Ok(*self.attr.lock())
        }

        fn child(&self, _: &Link) -> Result<Option<Attr>, Errno> {
            Ok(None)
        }

        fn list(&self, _: Ino) -> Result<Option<forebay_namespace::Acl>, Errno> {
            Ok(None)
        }
    }

    struct Nothing;

    impl Holding for Nothing {
        fn hold(&self, _: Ino, _: u64) {}
        fn let_go(&self, _: Ino, _: u64) {}
        fn end_wait_for(&self, _: u64) {}
    }

    fn set(guest: &dyn Guest, uid: u32, set: SetAttr) -> Response {
        let cred = Cred {
            uid,
            gid: uid,
            process: Process::here(7),
            umask: 0,
        };
        let request = Request::Setattr {
            ino: FILE,
            handle: None,
            set,
            cred,
        };
        guest.handle(OWN, request, &[], &mut []).response
    }

    #[test]
    fn who_owned_a_program_gives_it_no_mode_once_it_is_roots() {
        let (begun, has_begun) = mpsc::channel();
        let (may_go, go) = mpsc::channel();
        let at = TimeSpec::default();
        let program = Arc::new(Program {
            attr: Mutex::new(Attr {
                ino: FILE,
                kind: FileKind::Regular,
                perm: 0o755,
                nlink: 1,
                uid: 1000,
                gid: 1000,
                rdev: 0,
                size: 9,
                blocks: 0,
                atime: at,
                mtime: at,
                ctime: at,
            }),
            begun,
            go: Mutex::new(go),
        });
        let lives = Lives::none();
        let sessions = Sessions::new(program.clone(), Arc::default(), 1, lives, Arc::new(Nothing));
        sessions.squash_root(program.clone());
        let [here, there] = [true, false].map(|local| {
            let facts = ClientFacts {
                local,
                ..ClientFacts::default()
            };
            let guest = Host::begin(&sessions, &facts).expect("a session");
            let link = Link {
                parent: Ino::ROOT,
                name: b"f".to_vec(),
            };
            guest.handle(OWN, Request::Lookup { link, uid: 1000 }, &[], &mut []);
            guest
        });
        let run_as_owner = SetAttr {
            perm: Some(0o4755),
            ..SetAttr::default()
        };
        let give_to_root = SetAttr {
            uid: Some(0),
            ..SetAttr::default()
        };
        std::thread::scope(|scope| {
            scope.spawn(|| set(&*there, 1000, run_as_owner));
            has_begun.recv_timeout(LATE).expect("it was let pass");
            let (given, is_given) = mpsc::channel();
            let here = &here;
            scope.spawn(move || {
                let done = set(&**here, 0, give_to_root);
                given.send(done).expect("somebody listens");
            });
            // The other one has not made its change yet.
            assert!(is_given.recv_timeout(SOON).is_err(), "nobody has waited");
            may_go.send(()).expect("it waits");
            let done = is_given.recv_timeout(LATE).expect("given");
            assert!(matches!(done, Response::Attr(_)), "{done:?}");
        });
        let attr = *program.attr.lock();
        assert_eq!((attr.uid, attr.perm), (0, 0o755));
        let refused = set(&*there, 1000, run_as_owner);
        assert_eq!(refused, Response::Failed(Errno::EPERM));
        [here, there].iter().for_each(|guest| guest.end());
    }
}
