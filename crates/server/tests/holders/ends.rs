//! The session with a data server ends at each call of what programs do, one after the other: no
//! program gets an error of that, and nothing is done twice or not at all.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{OnceLock, RwLock};
use std::time::Instant;

use forebay_client::Progress;
use forebay_holder::{DataServer, DataSession, open_flash};
use forebay_policy::durability::Durability;
use forebay_server::{HolderSetting, SsdSetting};
use forebay_tiers::testing::{Effect, FaultyTier, Operation, When};
use forebay_tiers::{PfsTree, Tier};
use forebay_types::{Handle, OpenFlags, SetAttr, SetTime};
use forebay_wire::net::Guest;
use forebay_wire::{InMemory, NOT_SENT, SeekWhat, SpaceChange, WriteHow};

use super::*;

/// One call that a session ends in, and how.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum End {
    /// It was done, and nobody hears of it.
    Done,
    /// Nothing was done.
    NotSent,
}

/// A way to a data server whose session ends at a call of a test's choice. Another begins at once.
struct Ending {
    server: Arc<DataServer>,
    /// Its flash, from its first session on.
    flash: Arc<OnceLock<Arc<FaultyTier>>>,
    session: RwLock<(Arc<DataSession>, Arc<InMemory>)>,
    ended: AtomicU64,
    calls: AtomicU64,
    /// From this call on.
    at: AtomicU64,
    /// So many sessions are to end, one after the other.
    left: AtomicU64,
    is_done: AtomicBool,
}

fn begin(server: &Arc<DataServer>) -> (Arc<DataSession>, Arc<InMemory>) {
    let session = Arc::new(server.session());
    (session.clone(), Arc::new(InMemory::mount(session)))
}

impl Ending {
    fn new(dir: &Path) -> Arc<Ending> {
        let ssd = SsdSetting {
            dir: dir.join("ssd0"),
            capacity_bytes: Some(64 << 20),
        };
        let flash = Arc::new(OnceLock::new());
        let opened: Arc<OnceLock<Arc<FaultyTier>>> = flash.clone();
        let open = move |instance| {
            let tier = Arc::new(open_flash("ssd", &ssd, instance)?);
            let faulty = opened.get_or_init(|| Arc::new(FaultyTier::new(tier)));
            Ok(vec![faulty.clone() as Arc<dyn Tier>])
        };
        let pfs = PfsTree::open(&dir.join("pfs")).expect("a PFS");
        let server = DataServer::new("this boot".into(), Vec::new(), Box::new(open), Some(pfs));
        Arc::new(Ending {
            session: RwLock::new(begin(&server)),
            server,
            flash,
            ended: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            at: AtomicU64::new(0),
            left: AtomicU64::new(0),
            is_done: AtomicBool::new(false),
        })
    }

    /// The session ends at so many calls from now, and so do others after it: as many in all.
    fn end_at(&self, calls: u64, (how, sessions): (End, u64)) {
        self.is_done.store(how == End::Done, Ordering::Release);
        let now = self.calls.load(Ordering::Acquire);
        self.at.store(now + calls, Ordering::Release);
        self.left.store(sessions, Ordering::Release);
    }

    /// All of them have ended; none does from now on.
    fn has_ended(&self) -> bool {
        self.left.swap(0, Ordering::AcqRel) == 0
    }

    /// Whether the session is to end in a call.
    fn is_to_end(&self, request: &Request) -> bool {
        let number = self.calls.fetch_add(1, Ordering::AcqRel) + 1;
        let at = self.at.load(Ordering::Acquire);
        let begins = matches!(request, Request::Object(ObjectCall::Begin { .. }));
        // Where the next could not begin either, nothing else were tried.
        if number < at || (number > at && begins) {
            return false;
        }
        let one_less = |left: u64| left.checked_sub(1);
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        self.left.fetch_update(set, fetch, one_less).is_ok()
    }
}

impl Connection for Ending {
    fn call(&self, request: Request, payload: &[u8], into: &mut [u8]) -> Result<Reply, Errno> {
        let (session, connection) = self.session.read().expect("no panic").clone();
        if !self.is_to_end(&request) {
            return connection.call(request, payload, into);
        }
        let is_done = self.is_done.load(Ordering::Acquire);
        if is_done {
            drop(connection.call(request, payload, into));
        }
        *self.session.write().expect("no panic") = begin(&self.server);
        self.ended.fetch_add(1, Ordering::AcqRel);
        // As the network does with a session that is lost.
        session.end();
        Err(match is_done {
            true => Errno::ENOTCONN,
            false => NOT_SENT,
        })
    }

    fn generation(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    fn is_answering(&self) -> bool {
        true
    }

    fn hands_over_descriptors(&self) -> bool {
        false
    }
}

/// What a mount does: it asks again what the node could not answer. Everything else is a program's.
fn asked<T>(what: &str, ask: impl Fn() -> Result<T, Errno>) -> T {
    let begun = Instant::now();
    loop {
        match ask() {
            Ok(done) => return done,
            Err(OUT_OF_REACH) if begun.elapsed() < common::PATIENCE => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(errno) => panic!("{what}: {errno}"),
        }
    }
}

fn close(running: &Running, handle: Handle) {
    match running.client.release(handle) {
        // It is closed all the same.
        Ok(()) | Err(OUT_OF_REACH) => {}
        Err(errno) => panic!("close: {errno}"),
    }
}

/// What a program does with a file of a name; answers with what is to be in the file.
fn work(running: &Running, name: &[u8]) -> Vec<u8> {
    let client = &running.client;
    let (made, handle) = asked("create", || running.create(name));
    let mut content = vec![1; 5000];
    asked("write", || running.write(handle, 0, &content));
    asked("fsync", || client.fsync(handle, false));
    let how = WriteHow {
        append: true,
        ..WriteHow::WAITING
    };
    for part in [&b"appended"[..], b"appended", b"and more"] {
        let appended = asked("append", || client.write(handle, 0, part, how, 0));
        assert_eq!(appended, Progress::Done(part.len()));
        content.extend(part);
    }
    let reserve = SpaceChange::Allocate;
    asked("fallocate", || {
        client.change_space(handle, reserve, 0, 9000, false, true)
    });
    content.resize(9000, 0);
    let cut = SetAttr {
        size: Some(7000),
        ..SetAttr::default()
    };
    asked("ftruncate", || {
        client.setattr(made.ino, Some(handle), cut, me())
    });
    content.truncate(7000);
    let hole = asked("lseek", || client.seek(handle, 0, SeekWhat::Hole));
    assert!(hole <= 7000);
    let read = asked("read", || running.read(handle, 0, 8000));
    assert!(read == content, "while it is open: {} bytes", read.len());
    asked("fsync", || client.fsync(handle, false));
    close(running, handle);
    let times = SetAttr {
        mtime: Some(SetTime::Now),
        size: Some(6000),
        ..SetAttr::default()
    };
    asked("truncate", || client.setattr(made.ino, None, times, me()));
    content.truncate(6000);
    let flags = OpenFlags(libc::O_RDWR as u32);
    let opened = asked("open", || client.open(made.ino, flags, me()));
    let handle = opened.opened.handle;
    asked("write", || running.write(handle, 10, b"again"));
    content[10..15].copy_from_slice(b"again");
    close(running, handle);
    let size = asked("stat", || client.getattr(made.ino, None)).attr.size;
    assert_eq!(size, 6000);
    content
}

/// All flash is on a data server, and nothing is drained but by an fsync.
fn start(level: Durability) -> (Scratch, Arc<Ending>, Running) {
    let scratch = Scratch::in_memory();
    let mut settings = common::settings(scratch.path(), 64 << 20);
    settings.ssd.clear();
    settings.dram_bytes = None;
    settings.durability = Some(level);
    settings.demotion.copy_out_min_bytes = 1;
    settings.demotion.idle = false;
    settings.scrub.seal_after = Duration::from_millis(20);
    settings.demotion.start_fraction = 0.9;
    let way = Ending::new(scratch.path());
    settings.holders = vec![HolderSetting {
        server: 2,
        rack: 2,
        addresses: Vec::new(),
        way: HolderWay(way.clone()),
        replication: None,
    }];
    let running = Running::start(&settings, false);
    (scratch, way, running)
}

#[test]
fn no_program_hears_of_the_end_of_a_session_at_any_call() {
    for level in [Durability::Ssd, Durability::Pfs] {
        let (_scratch, way, running) = start(level);
        // Whoever asks something has a session begin, and new files lie on the data server then.
        let (_, anchor) = running.create(b"anchor").expect("create");
        let begin = || drop(asked("read", || running.read(anchor, 0, 1)));
        // Without those of the server's own work, which a busy machine does at other moments.
        let calls = (0..5).map(|n| {
            let before = way.calls.load(Ordering::Acquire);
            work(&running, format!("first-{n}").as_bytes());
            way.calls.load(Ordering::Acquire) - before
        });
        let calls = calls.min().expect("some");
        let mut left = BTreeSet::new();
        for at in 1..=calls {
            // Twice in one request, and more often than a request is tried.
            for (how, sessions) in [(End::Done, 2), (End::NotSent, 5)] {
                let name = format!("{how:?}-{sessions}-{at}");
                begin();
                way.end_at(at, (how, sessions));
                let content = work(&running, name.as_bytes());
                if !way.has_ended() {
                    left.insert((at, how, sessions));
                }
                let found = asked("read", || running.read_all(name.as_bytes()));
                assert!(found == content, "{name}: {} bytes", found.len());
                running
                    .client
                    .unlink(Ino::ROOT, name.as_bytes(), me())
                    .expect("unlink");
            }
        }
        assert!(calls > 30 && left.len() < 10, "{calls} calls, not {left:?}");
        close(&running, anchor);
        // The content is whole on the PFS, too, and nobody is told of anything.
        running.drain();
        let errors = running.status().errors;
        assert!(errors.is_empty(), "{errors:?}");
        running.instance.stop();
    }
}

#[test]
fn what_could_not_be_made_for_want_of_a_session_leaves_nothing() {
    let (_scratch, way, running) = start(Durability::Ssd);
    // It is made, and nobody can say so before the next request. A look at the space may take one
    // of the ends for itself: then it is made after all.
    let refused = (0..50).find_map(|n| {
        let name = format!("f{n}");
        way.end_at(1, (End::Done, 4));
        let error = running.create(name.as_bytes()).err()?;
        Some((name, error))
    });
    let (name, error) = refused.expect("one of them");
    assert_eq!(error, OUT_OF_REACH);
    assert!(way.has_ended());
    running.audit();
    running.put(name.as_bytes(), b"content");
    assert_eq!(running.read_all(name.as_bytes()).expect("read"), b"content");
    running.instance.stop();
}

#[test]
fn a_failed_flush_of_what_was_found_whole_is_not_told_in_later_sessions() {
    let (_scratch, way, running) = start(Durability::Ssd);
    let made = running.put(b"f", b"content");
    running.wait_sealed().expect("sealed");
    let open = |flags| {
        let opened = running.client.open(made.ino, OpenFlags(flags as u32), me());
        opened.map(|opened| opened.opened.handle)
    };
    let fsync = || {
        let handle = open(libc::O_RDWR).expect("open");
        let told = running.client.fsync(handle, false);
        running.client.release(handle).expect("close");
        told
    };
    let flash = way.flash.get().expect("a session");
    let fault = flash.inject(Operation::Sync, When::Nth(1), Effect::Fail(Errno::EIO));
    assert_eq!(fsync(), Err(Errno::EIO));
    assert_eq!(flash.fired(fault), 1);
    // All of it is there: the open has compared it.
    assert_eq!(running.read_all(b"f").expect("read"), b"content");
    assert_eq!(fsync(), Ok(()));
    way.end_at(1, (End::Done, 1));
    assert_eq!(asked("read", || running.read_all(b"f")), b"content");
    assert!(way.has_ended());
    assert_eq!(fsync(), Ok(()), "told again");
    assert!(running.status().errors.is_empty());
    running.instance.stop();
}
