//! A host that counts and remembers, and what tests ask of it.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_types::{Errno, Handle, Ino, OpenFlags};
use forebay_wire::net::{
    Answer, ClientFacts, ConnectError, Guest, Host, NetConfig, NetConnection, NetServer,
    NetServerConfig,
};
use forebay_wire::{
    Connection, Descriptor, OpenMode, Opened, Peer, Recall, Reply, Request, Response, SeekWhat,
    Service, WriteHow,
};
use parking_lot::{Condvar, Mutex};

/// The key of all peers that are let in.
pub fn key() -> forebay_wire::Key {
    forebay_wire::Key::from_bytes([42; 32])
}
/// Nothing here takes longer, unless it hangs.
pub const LONG: Duration = Duration::from_secs(60);

/// What all guests of a host share.
#[derive(Default)]
pub struct World {
    pub epoch: u64,
    /// How often each thing was done.
    pub done: Mutex<HashMap<u64, u32>>,
    pub begun: AtomicUsize,
    pub ended: AtomicUsize,
    /// Requests that run right now.
    pub running: AtomicUsize,
    pub facts: Mutex<Vec<ClientFacts>>,
    /// Gates that are open; requests wait before the others.
    pub gates: Mutex<Vec<u64>>,
    pub gate: Condvar,
    pub local: AtomicU64,
    /// What clients that listen for recalls have seen.
    pub listened: Mutex<Vec<u64>>,
    /// Who listens, of each guest.
    pub guests: Mutex<Vec<Arc<Mutex<Vec<Answer>>>>>,
    /// Nobody may be answered.
    pub is_mute: AtomicBool,
    /// What `begin` answers.
    pub refuses: Option<Errno>,
}

impl World {
    pub fn times(&self, what: u64) -> u32 {
        self.done.lock().get(&what).copied().unwrap_or(0)
    }

    pub fn all(&self) -> HashMap<u64, u32> {
        self.done.lock().clone()
    }

    fn did(&self, what: u64) {
        *self.done.lock().entry(what).or_default() += 1;
    }

    pub fn open(&self, gate: u64) {
        self.gates.lock().push(gate);
        self.gate.notify_all();
    }

    fn pass(&self, gate: u64) {
        let mut gates = self.gates.lock();
        let until = Instant::now() + LONG;
        while !gates.contains(&gate) {
            assert!(
                !self.gate.wait_until(&mut gates, until).timed_out(),
                "nobody opened gate {gate}"
            );
        }
    }
}

pub struct FakeHost(pub Arc<World>);

/// With whoever listens.
struct FakeGuest(Arc<World>, Arc<Mutex<Vec<Answer>>>);

impl Host for FakeHost {
    fn epoch(&self) -> u64 {
        self.0.epoch
    }

    fn may_answer(&self) -> bool {
        !self.0.is_mute.load(Ordering::SeqCst)
    }

    fn begin(&self, facts: &ClientFacts) -> Result<Arc<dyn Guest>, Errno> {
        if let Some(errno) = self.0.refuses {
            return Err(errno);
        }
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        self.0.facts.lock().push(facts.clone());
        let listeners = Arc::<Mutex<Vec<Answer>>>::default();
        self.0.guests.lock().push(listeners.clone());
        Ok(Arc::new(FakeGuest(self.0.clone(), listeners)))
    }
}

impl Guest for FakeGuest {
    fn end(&self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }

    fn listen(&self, seen: u64, _: bool, answer: Answer) {
        self.0.listened.lock().push(seen);
        self.1.lock().push(answer);
    }

    fn hush(&self) {
        let waiting = std::mem::take(&mut *self.1.lock());
        for answer in waiting {
            answer(recalled(0));
        }
    }
}

/// An answer to who listens.
pub fn recalled(last: u64) -> Response {
    let recalls = (1..=last).map(|ino| Recall::Attr(Ino(ino))).collect();
    Response::Recalls { last, recalls }
}

struct Held(File);

impl Descriptor for Held {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The byte at a position of a file.
pub fn byte_at(handle: u64, position: u64) -> u8 {
    (handle.wrapping_mul(31) ^ position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8
}

pub fn content(handle: u64, offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64)
        .map(|position| byte_at(handle, position))
        .collect()
}

impl Service for FakeGuest {
    fn handle(&self, peer: Peer<'_>, request: Request, payload: &[u8], into: &mut [u8]) -> Reply {
        self.0.running.fetch_add(1, Ordering::SeqCst);
        self.0.local.store(u64::from(peer.local), Ordering::SeqCst);
        assert!(peer.mount && peer.gid == 0 && peer.groups.is_empty());
        let reply = self.answer(peer, request, payload, into);
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        reply
    }
}

impl FakeGuest {
    fn answer(&self, peer: Peer<'_>, request: Request, payload: &[u8], into: &mut [u8]) -> Reply {
        match request {
            Request::Statfs => Response::Done.into(),
            Request::Release { handle } => {
                self.0.did(handle.0);
                Response::Done.into()
            }
            Request::Read {
                handle,
                offset,
                len,
                ..
            } => {
                let wanted = content(handle.0, offset, len as usize);
                into[..wanted.len()].copy_from_slice(&wanted);
                Response::Moved(len).into()
            }
            Request::Write { handle, offset, .. } => {
                assert_eq!(payload, content(handle.0, offset, payload.len()));
                self.0.did(handle.0);
                Response::Moved(payload.len() as u32).into()
            }
            // Repeatable and slow: waits for a gate.
            Request::Seek { handle, .. } => {
                self.0.pass(handle.0);
                Response::Position(handle.0).into()
            }
            // The same, not repeatable.
            Request::Fsync { handle, .. } => {
                self.0.did(handle.0);
                self.0.pass(handle.0);
                Response::Done.into()
            }
            Request::Open { ino, .. } => Reply {
                response: Response::Opened(Opened {
                    handle: Handle(ino.0),
                    mode: OpenMode::Passthrough,
                    content: None,
                    bytes: 0,
                    place: None,
                }),
                descriptor: peer
                    .local
                    .then(|| Arc::new(Held(numbered(ino.0))) as Arc<dyn Descriptor>),
            },
            Request::Readlink { ino } => Response::Bytes(vec![7; ino.0 as usize]).into(),
            Request::CloseDir { .. } => panic!("a service that panics"),
            _ => Errno::ENOSYS.into(),
        }
    }
}

/// A file that holds a number.
fn numbered(number: u64) -> File {
    use std::io::{Seek, Write};
    let mut file = tempfile::tempfile().expect("file");
    file.write_all(&number.to_le_bytes()).expect("write");
    file.rewind().expect("rewind");
    file
}

pub fn config() -> NetServerConfig {
    let mut config = NetServerConfig::new("test", key());
    config.tcp = vec!["127.0.0.1:0".parse().expect("address")];
    config
}

/// A failed test may leave threads that wait for ever, and a scope that waits for them.
fn end_what_hangs() {
    static STARTED: std::sync::Once = std::sync::Once::new();
    STARTED.call_once(|| {
        std::thread::spawn(|| {
            std::thread::sleep(LONG * 4);
            eprintln!(
                "the tests of the network have not ended after {:?}",
                LONG * 4
            );
            std::process::abort();
        });
    });
}

pub fn serve(config: NetServerConfig, world: &Arc<World>) -> NetServer {
    end_what_hangs();
    NetServer::start(config, Arc::new(FakeHost(world.clone()))).expect("start")
}

pub fn client_of(server: &NetServer) -> NetConfig {
    let mut config = NetConfig::new("test", key());
    config.addresses = server.addresses().to_vec();
    config
}

pub fn connect(config: NetConfig) -> NetConnection {
    NetConnection::connect(config).unwrap_or_else(|error: ConnectError| panic!("{error}"))
}

/// A non-repeatable request that counts `what`.
pub fn count(what: u64) -> Request {
    Request::Release {
        handle: Handle(what),
    }
}

/// A repeatable request that waits until a gate is open.
pub fn behind(gate: u64) -> Request {
    Request::Seek {
        handle: Handle(gate),
        offset: 0,
        what: SeekWhat::Data,
    }
}

/// One that is not repeatable, and counts when it begins.
pub fn counted_behind(gate: u64) -> Request {
    Request::Fsync {
        handle: Handle(gate),
        data_only: false,
    }
}

pub fn open(number: u64) -> Request {
    Request::Open {
        ino: Ino(number),
        flags: OpenFlags(0),
        cred: forebay_types::Cred {
            uid: 0,
            gid: 0,
            process: forebay_types::Process::here(0),
            umask: 0,
        },
    }
}

pub fn write(handle: u64, offset: u64) -> Request {
    Request::Write {
        handle: Handle(handle),
        offset,
        how: WriteHow::WAITING,
    }
}

pub fn read(handle: u64, offset: u64, len: usize) -> Request {
    Request::Read {
        handle: Handle(handle),
        offset,
        len: len as u32,
        pages: false,
    }
}

/// Reads, and compares.
pub fn read_right(connection: &NetConnection, link: usize, handle: u64, offset: u64, len: usize) {
    let mut into = vec![0; len];
    let reply = connection.call_on(link, read(handle, offset, len), &[], &mut into);
    let response = reply.map(|reply| reply.response);
    assert_eq!(response, Ok(Response::Moved(len as u32)));
    assert!(into == content(handle, offset, len), "other bytes");
}

pub fn plain(connection: &NetConnection, request: Request) -> Result<Response, Errno> {
    let reply = connection.call(request, &[], &mut []);
    reply.map(|reply| reply.response)
}

/// Waits until something is so; what it is called is for the failure.
pub fn until(what: &str, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < LONG, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs what might hang on a thread of its own, and fails if it does.
pub fn bounded<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let result = run();
        // Who waits may have given up.
        let _ = done.send(());
        result
    });
    match ended.recv_timeout(LONG) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("{what} hangs"),
        // Also when it has panicked.
        _ => match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        },
    }
}
