//! What is had again after a restart, with a server that is a table of names.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use forebay_types::{
    Attr, ByteRange, Cred, Errno, FileKind, Handle, Ino, LockClass, LockMode, OpenFlags, Process,
    RenameMode, TimeSpec,
};
use forebay_wire::{
    Connection, Descriptor, Link, LockOf, OpenMode, Opened, Recall, Reply, Request, Response,
    Shown, WriteHow,
};
use parking_lot::Mutex;

use crate::had::{Asks, Had};
use crate::stale::Stale;
use crate::{Dial, Lasting, OnLost};

#[path = "had_kernels_tests.rs"]
mod kernels;
#[path = "had_nameless_tests.rs"]
mod nameless;
#[path = "had_references_tests.rs"]
mod references;

const DIR: Ino = Ino(20);
const OLD: Ino = Ino(30);
/// A name in a directory that nobody may search.
const CLOSED: Ino = Ino(40);
const BORN: Ino = Ino(Ino::FIRST_BORN + 1);
const WHO: Cred = Cred {
    uid: 7,
    gid: 7,
    process: Process::here(7),
    umask: 0,
};

/// What the server of a run has: names with the time of birth, and what it was asked.
#[derive(Default)]
struct Run {
    names: HashMap<(Ino, &'static str), (Ino, u64)>,
    may_reclaim: bool,
    /// What opens hand over.
    hands_over: Option<Arc<File>>,
    /// Who asks takes it.
    takes: bool,
    /// The only life that may, if there is one only.
    only: Option<u64>,
    /// It ends when a client has had all again, and before that hears of it.
    ends_at_done: bool,
    /// A file that has no name, and the life that had it open.
    nameless: Option<(Ino, u64)>,
    /// So many requests for it fail for now, and so many opens.
    failing: [u32; 2],
    /// Locks are waited for.
    waits: bool,
    /// So many looks at names find a file whose node is away.
    away: u32,
    first: u64,
    next: u64,
    asked: Vec<Request>,
    gone: bool,
}

impl Run {
    fn open(&mut self) -> (Opened, Option<Arc<File>>) {
        self.next += 1;
        let descriptor = self.hands_over.clone().filter(|_| self.takes);
        let mode = match descriptor.is_some() {
            true => OpenMode::Passthrough,
            false => OpenMode::Plain,
        };
        let opened = Opened {
            handle: Handle(self.next),
            mode,
            content: None,
            bytes: 0,
            place: None,
        };
        (opened, descriptor)
    }
}

type Server = Arc<Mutex<Run>>;

struct Session(Server);

fn shown(ino: Ino, birth_ns: u64) -> Shown {
    let at = TimeSpec::default();
    let attr = Attr {
        ino,
        kind: FileKind::Regular,
        perm: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: at,
        mtime: at,
        ctime: at,
    };
    Shown {
        birth_ns,
        ..attr.into()
    }
}

impl Connection for Session {
    fn call(&self, request: Request, _: &[u8], _: &mut [u8]) -> Result<Reply, Errno> {
        let mut run = self.0.lock();
        if run.gone {
            return Err(Errno::ENOTCONN);
        }
        let mut descriptor = None;
        let response = match &request {
            Request::Lookup { link, .. } => {
                let mut names = run.names.iter();
                let found = names.find(|((parent, name), _)| {
                    *parent == link.parent && name.as_bytes() == link.name
                });
                let (ino, birth) = *found.ok_or(Errno::ENOENT)?.1;
                if ino == CLOSED {
                    return Err(Errno::EACCES);
                }
                let outdated = run.away > 0;
                run.away = run.away.saturating_sub(1);
                Response::Attr(Shown {
                    outdated,
                    ..shown(ino, birth)
                })
            }
            Request::FindNameless { .. } if run.failing[0] > 0 => {
                run.failing[0] -= 1;
                return Err(Errno::EIO);
            }
            Request::Open { ino: BORN, .. } if run.failing[1] > 0 => {
                run.failing[1] -= 1;
                return Err(Errno::ENFILE);
            }
            Request::Open { .. } => {
                let (opened, handed) = run.open();
                descriptor = handed;
                Response::Opened(opened)
            }
            Request::MayReclaim { life, .. }
                if !run.may_reclaim || run.only.is_some_and(|only| only != *life) =>
            {
                return Err(Errno::ESTALE);
            }
            Request::MayReclaim { done: true, .. } if run.ends_at_done => {
                run.gone = true;
                return Err(Errno::ENOTCONN);
            }
            Request::FindNameless { ino, life } => match run.nameless {
                Some(kept) if kept == (*ino, *life) => Response::Attr(shown(*ino, 0)),
                _ => return Err(Errno::ESTALE),
            },
            Request::Write { handle, .. } if !(run.first + 1..=run.next).contains(&handle.0) => {
                return Err(Errno::ESTALE);
            }
            Request::Write { .. } => Response::Moved(1),
            Request::OpenDir { .. } => Response::OpenedDir(Handle(5)),
            Request::ReadDir { .. } => Response::Entries(Vec::new()),
            Request::Lock { .. } if run.names.values().any(|(ino, _)| *ino == Ino(99)) => {
                return Err(Errno::EAGAIN);
            }
            Request::Lock { .. } if run.waits => Response::WouldWait,
            Request::Recalls { seen, .. } => Response::Recalls {
                last: *seen,
                recalls: vec![Recall::Granted(*seen)],
            },
            _ => Response::Done,
        };
        run.asked.push(request);
        Ok(Reply {
            response,
            descriptor: descriptor.map(|file| Arc::new(Handed(file)) as Arc<dyn Descriptor>),
        })
    }

    fn hands_over_descriptors(&self) -> bool {
        self.0.lock().takes
    }

    fn accept_descriptors(&self, yes: bool) {
        self.0.lock().takes = yes;
    }
}

struct Handed(Arc<File>);

impl Descriptor for Handed {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Each dial is to the run that the test has put there.
#[derive(Clone, Default)]
struct Runs(
    Arc<Mutex<Option<Server>>>,
    Arc<Mutex<Vec<OnLost>>>,
    Arc<Mutex<Vec<u64>>>,
);

impl Dial for Runs {
    fn dial(&self, life: u64, lost: OnLost) -> Result<Arc<dyn Connection>, String> {
        let server = self.0.lock().clone().ok_or("nobody there")?;
        self.2.lock().push(life);
        self.1.lock().push(lost);
        Ok(Arc::new(Session(server)))
    }
}

struct Lab {
    runs: Runs,
    server: Server,
    lasting: Lasting,
    /// What opens of the next run hand over.
    next_file: Option<Arc<File>>,
}

fn names() -> HashMap<(Ino, &'static str), (Ino, u64)> {
    HashMap::from([
        ((Ino::ROOT, "dir"), (DIR, 5)),
        ((DIR, "old"), (OLD, 6)),
        ((DIR, "born"), (BORN, 0)),
    ])
}

impl Lab {
    fn new() -> Lab {
        let runs = Runs::default();
        let server = Server::default();
        server.lock().names = names();
        *runs.0.lock() = Some(server.clone());
        let lasting = Lasting::begin(Box::new(runs.clone()), None).expect("there");
        let lab = Lab {
            runs,
            server,
            lasting,
            next_file: None,
        };
        lab.look(Ino::ROOT, "dir").expect("there");
        lab.look(DIR, "old").expect("there");
        lab.look(DIR, "born").expect("there");
        lab
    }

    fn ask(&self, request: Request) -> Result<Response, Errno> {
        let reply = self.lasting.call(request, &[], &mut []);
        reply.map(|reply| reply.response)
    }

    fn look(&self, parent: Ino, name: &str) -> Result<Response, Errno> {
        let name = name.into();
        let link = Link { parent, name };
        self.ask(Request::Lookup { link, uid: 0 })
    }

    fn open(&self, ino: Ino) -> Handle {
        let flags = OpenFlags((libc::O_RDWR | libc::O_TRUNC) as u32);
        let open = Request::Open {
            ino,
            flags,
            cred: WHO,
        };
        match self.ask(open) {
            Ok(Response::Opened(opened)) => opened.handle,
            other => panic!("{other:?}"),
        }
    }

    fn write(&self, handle: Handle) -> Result<Response, Errno> {
        self.ask(Request::Write {
            handle,
            offset: 0,
            how: WriteHow::WAITING,
        })
    }

    /// The server goes, and another run comes that has `names`; `between` is done while there is
    /// none.
    fn restart(
        &mut self,
        names: HashMap<(Ino, &'static str), (Ino, u64)>,
        may_reclaim: bool,
        between: impl FnOnce(&Lab),
    ) {
        self.restart_with(names, may_reclaim, None, between);
    }

    fn restart_with(
        &mut self,
        names: HashMap<(Ino, &'static str), (Ino, u64)>,
        may_reclaim: bool,
        nameless: Option<(Ino, u64)>,
        between: impl FnOnce(&Lab),
    ) {
        self.restart_failing(names, may_reclaim, nameless, [0; 2], between);
    }

    fn restart_failing(
        &mut self,
        names: HashMap<(Ino, &'static str), (Ino, u64)>,
        may_reclaim: bool,
        nameless: Option<(Ino, u64)>,
        failing: [u32; 2],
        between: impl FnOnce(&Lab),
    ) {
        let next = {
            let mut run = self.server.lock();
            run.gone = true;
            run.next + 100
        };
        *self.runs.0.lock() = None;
        let lost = self.runs.1.lock().pop().expect("a session");
        lost();
        between(self);
        self.server = Arc::new(Mutex::new(Run {
            names,
            may_reclaim,
            nameless,
            failing,
            // No run gives a number that an earlier one has given.
            first: next,
            next,
            hands_over: self.next_file.take(),
            ..Run::default()
        }));
        *self.runs.0.lock() = Some(self.server.clone());
        let begun = std::time::Instant::now();
        while self.runs.1.lock().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(30), "no session");
            std::thread::yield_now();
        }
        // It is there when a request is answered.
        self.ask(Request::Statfs).expect("it is served");
    }

    fn asked(&self) -> Vec<Request> {
        std::mem::take(&mut self.server.lock().asked)
    }
}

#[test]
fn what_was_open_is_open_again_under_the_same_number() {
    let mut lab = Lab::new();
    let (old, born) = (lab.open(OLD), lab.open(BORN));
    lab.restart(names(), true, |_| ());
    let asked = lab.asked();
    let opens: Vec<(Ino, OpenFlags)> = asked
        .iter()
        .filter_map(|request| match request {
            Request::Open { ino, flags, .. } => Some((*ino, *flags)),
            _ => None,
        })
        .collect();
    assert_eq!(opens.len(), 2);
    let read_write = OpenFlags(libc::O_RDWR as u32);
    assert!(opens.iter().all(|(_, flags)| *flags == read_write));
    assert_eq!(lab.write(old), Ok(Response::Moved(1)));
    assert_eq!(lab.write(born), Ok(Response::Moved(1)));
    let numbers = lab.asked().into_iter().map(|request| match request {
        Request::Write { handle, .. } => handle.0,
        other => panic!("{other:?}"),
    });
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [103, 104]);
    // A handle of this session is none of those.
    let fresh = lab.open(OLD);
    assert!(fresh != old && fresh != born);
    assert_eq!([OLD, DIR].map(|ino| lab.lasting.generation_of(ino)), [1, 1]);
    lab.restart(names(), true, |_| ());
    for handle in [old, born, fresh] {
        assert_eq!(lab.write(handle), Ok(Response::Moved(1)));
    }
}

#[test]
fn another_file_of_the_same_name_or_number_is_not_taken_for_it() {
    let stale = Err(Errno::ESTALE);
    let changed = [
        (DIR, "old", Some((OLD, 9))),
        (DIR, "old", Some((Ino(31), 6))),
        (DIR, "old", Some((OLD, 0))),
        (DIR, "old", None),
    ];
    for (parent, name, leads) in changed {
        let mut lab = Lab::new();
        let handle = lab.open(OLD);
        let mut after = names();
        match leads {
            Some(leads) => after.insert((parent, name), leads),
            None => after.remove(&(parent, name)),
        };
        lab.restart(after, true, |_| ());
        assert_eq!(lab.write(handle), stale, "{leads:?}");
        // Found anew, it is another one to the kernel.
        if let Some((ino, _)) = leads {
            lab.look(DIR, "old").expect("there");
            assert_eq!(lab.lasting.generation_of(ino), lab.lasting.generation());
            assert!(lab.lasting.generation() > 1);
        }
    }
    // A server that has lost something, or has fenced the client.
    let mut lab = Lab::new();
    let handle = lab.open(BORN);
    lab.restart(names(), false, |_| ());
    assert_eq!(lab.write(handle), stale);
}

#[test]
fn it_is_found_by_the_name_that_it_has_last() {
    let mut lab = Lab::new();
    let handle = lab.open(BORN);
    let link = |parent, name: &str| Link {
        parent,
        name: name.into(),
    };
    let renamed = lab.ask(Request::Rename {
        from: link(DIR, "born"),
        to: link(Ino::ROOT, "final"),
        mode: RenameMode::Replace,
        cred: WHO,
    });
    assert_eq!(renamed, Ok(Response::Done));
    let mut after = names();
    after.remove(&(DIR, "born"));
    after.insert((Ino::ROOT, "final"), (BORN, 0));
    lab.restart(after.clone(), true, |_| ());
    assert_eq!(lab.write(handle), Ok(Response::Moved(1)));
    let removed = lab.ask(Request::Unlink {
        link: link(Ino::ROOT, "final"),
        cred: WHO,
    });
    assert_eq!(removed, Ok(Response::Done));
    lab.restart(after, true, |_| ());
    assert_eq!(lab.write(handle), Err(Errno::ESTALE), "it has no name");
}

fn lock(handle: Handle, first: u64, ticket: Option<u64>) -> Request {
    Request::Lock {
        lock: LockOf {
            handle,
            class: LockClass::Bytes,
            owner: 1,
            range: ByteRange { first, last: 9 },
        },
        mode: LockMode::Exclusive,
        pid: 5,
        ticket,
        again: false,
    }
}

/// The first bytes of the locks that a server was asked for again, and by which number.
fn locks_again(asked: &[Request]) -> Vec<(u64, u64)> {
    let locks = asked.iter().filter_map(|request| match request {
        Request::Lock {
            lock, again: true, ..
        } => Some((lock.range.first, lock.handle.0)),
        _ => None,
    });
    locks.collect()
}

#[test]
fn what_is_locked_is_had_again_with_its_locks_or_not_at_all() {
    let mut lab = Lab::new();
    let (granted, waited, given_back) = (lab.open(OLD), lab.open(OLD), lab.open(BORN));
    assert_eq!(lab.ask(lock(granted, 3, None)), Ok(Response::Done));
    lab.server.lock().waits = true;
    // The grant is told before the answer to who has asked, and after it.
    for (ticket, first) in [(11, 7), (12, 8)] {
        let grant = Request::Recalls {
            seen: ticket,
            settled: 0,
        };
        if ticket == 11 {
            lab.ask(grant.clone()).expect("told");
        }
        let asked = lab.ask(lock(waited, first, Some(ticket)));
        assert_eq!(asked, Ok(Response::WouldWait));
        if ticket == 12 {
            lab.ask(grant).expect("told");
        }
    }
    let never = lab.ask(lock(waited, 0, Some(13)));
    assert_eq!(never, Ok(Response::WouldWait));
    lab.server.lock().waits = false;
    assert_eq!(lab.ask(lock(given_back, 5, None)), Ok(Response::Done));
    let Request::Lock { lock: of, .. } = lock(given_back, 5, None) else {
        panic!("a lock");
    };
    assert_eq!(lab.ask(Request::Unlock { lock: of }), Ok(Response::Done));
    lab.restart(names(), true, |_| ());
    let mut again: Vec<u64> = locks_again(&lab.asked()).iter().map(|l| l.0).collect();
    again.sort_unstable();
    // The second wait was for bytes of the first, by the same owner: the two are one.
    assert_eq!(again, [3, 7]);
    for handle in [granted, waited, given_back] {
        assert_eq!(lab.write(handle), Ok(Response::Moved(1)));
    }
    // Somebody else has got it meanwhile.
    let mut names = names();
    names.insert((DIR, "refused"), (Ino(99), 1));
    lab.restart(names, true, |_| ());
    assert_eq!(lab.write(given_back), Ok(Response::Moved(1)));
    assert_eq!(lab.write(granted), Err(Errno::ESTALE));
}

#[test]
fn an_open_directory_is_told_by_its_own_number() {
    let mut lab = Lab::new();
    let opened = lab.ask(Request::OpenDir { ino: DIR, uid: 0 });
    let Ok(Response::OpenedDir(dir)) = opened else {
        panic!("{opened:?}");
    };
    lab.asked();
    let list = Request::ReadDir {
        handle: dir,
        offset: 0,
    };
    assert_eq!(lab.ask(list.clone()), Ok(Response::Entries(Vec::new())));
    let known = lab.asked();
    assert!(
        matches!(known[..], [Request::ReadDir { handle, .. }] if handle == Handle(5)),
        "{known:?}"
    );
    // The next run knows that it has not given it.
    lab.restart(names(), true, |_| ());
    lab.ask(list).expect("asked as it is");
    let asked = lab.asked();
    assert!(
        matches!(asked.last(), Some(Request::ReadDir { handle, .. }) if *handle == dir),
        "{asked:?}"
    );
}

#[test]
fn what_is_stale_is_named_by_its_last_path() {
    let had = Had::default();
    had.begins(1, None);
    let look = |session, parent, name: &str, shown| {
        let link = Link {
            parent,
            name: name.into(),
        };
        let asks = Asks::of(&Request::Lookup { link, uid: 0 });
        had.note(asks, session, &Response::Attr(shown).into());
    };
    let open = |ino, number| {
        let flags = OpenFlags(libc::O_RDWR as u32);
        let opened = Opened {
            handle: Handle(number),
            mode: OpenMode::Plain,
            content: None,
            bytes: 0,
            place: None,
        };
        let request = Request::Open {
            ino,
            flags,
            cred: WHO,
        };
        had.note(Asks::of(&request), 1, &Response::Opened(opened).into());
    };
    look(1, Ino::ROOT, "dir", shown(DIR, 5));
    look(1, DIR, "an\nold", shown(OLD, 5));
    open(OLD, 1);
    open(BORN, 2);
    had.begins(2, Some(7));
    look(2, DIR, "an\nold", shown(OLD, 6));
    let (again, given_up) = had.opens();
    assert_eq!(again.len(), 1);
    assert_eq!(given_up, [OLD], "another file has its number");
    let mut stale = Stale::default();
    assert!(stale.lines().is_empty());
    stale.add(&had, OLD);
    stale.add(&had, BORN);
    let nameless = format!("a file without a name (inode {})", BORN.0);
    let expected = ["/dir/an\\nold", &nameless]
        .map(|name| format!("stale after the server's restart: {name}"));
    assert_eq!(stale.lines(), expected);
    (0..20).for_each(|_| stale.add(&had, OLD));
    let lines = stale.lines();
    assert_eq!((lines.len(), stale.count()), (11, 22));
    assert!(lines[10].ends_with(": 12 more"), "{lines:?}");
}
