//! What each client has: its handles and its references, until its session ends.
//!
//! Invariants:
//!
//! 1. A handle is of use to the session that opened it and to no other.
//! 2. A session drops no reference that the session does not have.
//! 3. What a client names by id, the client has found in this session. What it has kept from an
//!    earlier one may be another file's by now.
//! 4. When a session has ended, nothing of it is left: files and directories are closed, references
//!    are dropped, and requests under way have been answered before.
//! 5. Where root is squashed, what a client over the network may not do is refused before anything
//!    else is looked at: see [`squash`].
//! 6. A change is answered when all other clients have forgotten what they had been shown of it.

mod command;
mod common;
mod effect;
mod holding;
mod kept;
pub(crate) mod lives;
mod locking;
mod locks;
mod opening;
mod pending;
mod probe;
mod recalls;
mod shown;
mod squash;
mod turns;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use forebay_kv::Hold;
use forebay_types::{Errno, Handle, Ino, OpenFlags, limits};
use forebay_wire::net::{Answer, ClientFacts, Guest, Host};
use forebay_wire::{OpenMode, Peer, Reply, Request, Response, Service, UNSETTLED};
use parking_lot::{Mutex, RwLock};

use crate::base::processes::Processes;
use command::Command;
use common::Common;
use effect::{Effect, not_firm};
use holding::Holding;
use kept::Keepers;
use lives::Lives;
use locks::LockTable;
use opening::Opens;
use pending::Pending;
use probe::Probe;
use recalls::Recalls;
use shown::{BELIEVED_FOR, ShownLately};
use squash::Squash;
pub use squash::Tree;
use turns::{Turn, Turns};

/// Locks are spread over so many shards by handle or id.
const SHARDS: usize = 16;

/// What one client has, of one shard.
#[derive(Default)]
struct Shard {
    files: HashMap<Handle, File>,
    dirs: HashSet<Handle>,
    references: HashMap<Ino, u64>,
}

/// An open file of a client.
struct File {
    ino: Ino,
    /// As it was opened.
    flags: OpenFlags,
    /// The client's kernel reads, and perhaps writes it by itself.
    passes: bool,
    /// The client's kernel writes it by itself.
    written: bool,
    /// Locks were asked for through it.
    locked: bool,
    /// The client may have it again after a restart of the server.
    held: bool,
}

/// A client's part of a server. It answers the client's requests, and knows what the client has.
pub struct Session {
    /// By it, processes of the client's node are told from those of others; never 0.
    node: u32,
    /// What the client calls this life of its own.
    life: u64,
    /// It has again what it had before a restart.
    reclaims: AtomicBool,
    /// The earlier life that it had that in.
    life_before: AtomicU64,
    common: Arc<Common>,
    /// Root of the client's node is nobody.
    squash: Option<Squash>,
    recalls: Arc<Recalls>,
    shards: [Mutex<Shard>; SHARDS],
    handles: AtomicUsize,
    late_closes: opening::LateCloses,
    probe: Probe,
    ended: AtomicBool,
    /// Read-locked by every request; the end of the session waits for those that have begun.
    under_way: RwLock<()>,
}

impl Session {
    /// A client that has nothing yet.
    fn begin(common: Arc<Common>, node: u32, life: u64, squash: Option<Squash>) -> Session {
        common.lives.begin(life);
        let recalls = Arc::new(Recalls::of(life));
        common.clients.write().insert(node, recalls.clone());
        Session {
            node,
            life,
            reclaims: AtomicBool::new(false),
            life_before: AtomicU64::new(0),
            common,
            squash,
            recalls,
            shards: std::array::from_fn(|_| Mutex::default()),
            handles: AtomicUsize::new(0),
            late_closes: opening::LateCloses::default(),
            probe: Probe::default(),
            ended: AtomicBool::new(false),
            under_way: RwLock::new(()),
        }
    }

    /// Ends the session: waits for requests under way, then closes and drops all that the client
    /// had. Later requests get `ENOTCONN`. A second call does nothing.
    pub fn end(&self) {
        if self.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        self.common.lives.end(self.life);
        self.recalls.end();
        self.common.clients.write().remove(&self.node);
        drop(self.under_way.write());
        self.handles.store(0, Ordering::Relaxed);
        self.probe.end(&*self.common.server, OWN);
        for shard in &self.shards {
            let Shard {
                files,
                dirs,
                references,
            } = std::mem::take(&mut *shard.lock());
            if self.common.lives.are_kept() {
                let mut at_the_end = self.common.open_at_the_end.lock();
                for file in files.values() {
                    *at_the_end.entry(file.ino).or_default() |= file.passes;
                }
            }
            for (handle, file) in files {
                self.undo(Request::Release { handle });
                // What the client may have again when the next server starts is kept for that.
                let held = file.held && !self.common.lives.are_kept();
                self.note_closed(&File { held, ..file });
            }
            for handle in dirs {
                self.undo(Request::CloseDir { handle });
            }
            let references: Vec<(Ino, u64)> = references.into_iter().collect();
            for batch in references.chunks(limits::FORGETS_PER_MESSAGE_MAX) {
                self.undo(Request::Forget(batch.to_vec()));
            }
        }
        // When the server stops in order, the client may have its locks again of the next one.
        if !self.common.lives.are_kept() {
            self.common.locks.end(self.node);
        }
        self.common.keepers.forget(self.node);
        self.common.processes.forget(self.node);
    }

    /// Files and directories that the client has open.
    pub fn open_handles(&self) -> usize {
        self.handles.load(Ordering::Relaxed)
    }

    /// Nobody waits for the answer. What cannot be closed in order, the server has reported.
    fn undo(&self, request: Request) {
        let name = request.name();
        let reply = self.common.server.handle(OWN, request, &[], &mut []);
        if let Response::Failed(errno) = reply.response {
            tracing::warn!("{name} for a client that has gone: {errno}");
        }
    }

    fn shard(&self, id: u64) -> &Mutex<Shard> {
        &self.shards[id as usize % SHARDS]
    }

    /// Looks whether the client has found what it names.
    fn check_nodes(&self, request: &Request) -> Result<(), Errno> {
        let mut named = request.nodes().into_iter().flatten();
        let is_known =
            |ino: Ino| ino == Ino::ROOT || self.shard(ino.0).lock().references.contains_key(&ino);
        match named.all(is_known) {
            true => Ok(()),
            false => Err(Errno::ESTALE),
        }
    }

    /// Where root is squashed: the request as it may be answered.
    fn admit(&self, request: Request) -> Result<Request, Errno> {
        let Some(squash) = &self.squash else {
            return Ok(request);
        };
        let opened = |handle: Handle| {
            let shard = self.shard(handle.0).lock();
            shard.files.get(&handle).map(|f| (f.ino, f.flags.writes()))
        };
        squash.admit(request, opened)
    }

    /// Looks whether the client has the handle that it names; what it closes is not the client's
    /// any more.
    fn check_handle(&self, request: &Request) -> Result<Asked, Errno> {
        let [handle] = *request.handles() else {
            return Ok(Asked::default());
        };
        let mut shard = self.shard(handle.0).lock();
        let (asked, closes) = match request {
            Request::Release { .. } => {
                let closed = shard.files.remove(&handle);
                let asked = closed.map(|closed| Asked {
                    file: Some(closed.ino),
                    closed: Some((handle, closed)),
                });
                (asked, true)
            }
            Request::CloseDir { .. } => {
                let known = shard.dirs.remove(&handle);
                (known.then(Asked::default), true)
            }
            Request::ReadDir { .. } => {
                let known = shard.dirs.contains(&handle);
                (known.then(Asked::default), false)
            }
            _ => {
                let file = shard.files.get(&handle).map(|file| file.ino);
                let asked = file.map(|_| Asked { file, closed: None });
                (asked, false)
            }
        };
        // Of an earlier session, if the client is honest.
        let asked = asked.ok_or(Errno::ESTALE)?;
        self.handles
            .fetch_sub(usize::from(closes), Ordering::Relaxed);
        Ok(asked)
    }

    /// Closes each as if it were asked for alone. The first error is the answer: the server has
    /// reported each, and nobody waits.
    fn release_each(&self, peer: Peer<'_>, handles: Vec<Handle>) -> Reply {
        let mut outcome = Response::Done;
        for handle in handles {
            let reply = self.handle(peer, Request::Release { handle }, &[], &mut []);
            if outcome == Response::Done {
                outcome = reply.response;
            }
        }
        outcome.into()
    }

    /// Of what the client wants to drop, what the client has. It is not the client's any more.
    fn held(&self, nodes: Vec<(Ino, u64)>) -> Vec<(Ino, u64)> {
        let mut held = nodes;
        held.retain_mut(|(ino, count)| {
            let mut shard = self.shard(ino.0).lock();
            let Some(has) = shard.references.get_mut(ino) else {
                return false;
            };
            *count = (*count).min(*has);
            *has -= *count;
            if *has == 0 {
                shard.references.remove(ino);
                // Pages go with the file that the client's kernel has forgotten.
                self.common.keepers.forget_file(*ino, self.node);
            }
            true
        });
        held
    }

    /// Notes what an answer gives to the client. `opens` is what it opens, where the request says.
    fn note(&self, response: &Response, takes_reference: bool, opens: Opens, written: bool) {
        let shown = match response {
            Response::Attr(shown) | Response::Created(shown, ..) => Some(shown.attr.ino),
            _ => None,
        };
        if let Some(ino) = shown.filter(|_| takes_reference) {
            *self.shard(ino.0).lock().references.entry(ino).or_default() += 1;
        }
        match response {
            Response::Opened(opened) | Response::Created(_, opened, _) => {
                let ino = shown.or(opens.file).unwrap_or(Ino::ROOT);
                if self.life != 0 {
                    self.common.holding.hold(ino, self.life);
                }
                let file = File {
                    ino,
                    flags: opens.flags,
                    passes: opened.mode == OpenMode::Passthrough,
                    written,
                    locked: false,
                    held: self.life != 0,
                };
                let handle = opened.handle;
                self.shard(handle.0).lock().files.insert(handle, file);
                if self.reclaims.load(Ordering::Acquire) {
                    self.common.keepers.reopened(ino, self.node, handle);
                } else {
                    self.common.keepers.opened(ino, self.node, handle);
                }
            }
            Response::OpenedDir(handle) => {
                self.shard(handle.0).lock().dirs.insert(*handle);
            }
            _ => self.note_not_opened(opens),
        }
    }

    /// Answers a request that the client may ask.
    fn answer(
        &self,
        peer: Peer<'_>,
        request: Request,
        (payload, into): (&[u8], &mut [u8]),
        (asked, opens, turn): (Asked, Opens, Option<Turn<'_>>),
    ) -> Reply {
        let common = &self.common;
        let effect = Effect::of(&request, asked.file, &common.lately);
        if self.has_to_wait(peer, &request, &effect) {
            self.note_not_opened(opens);
            return UNSETTLED.into();
        }
        if self.is_lost(&request) {
            self.note_not_opened(opens);
            return Errno::ESTALE.into();
        }
        let takes_reference = request.takes_reference();
        if let (Request::Fsync { .. }, Some(ino)) = (&request, asked.file) {
            common.await_dropped(ino);
        }
        let maps = effect.keeps().filter(|(ino, handle)| {
            // Before the pages are read.
            common.keepers.keeps(*ino, self.node, *handle)
        });
        // What others have stored in their pages comes before the change, not over it.
        if let Some(ino) = effect.content() {
            common.recall_pages(ino, self.node, effect.patience());
        }
        let opening = self.begin_open(&request);
        let mut reply = common.server.handle(peer, request, payload, into);
        drop(turn);
        self.end_open(opening, opens, &mut reply);
        if let Response::Failed(errno) = &mut reply.response {
            *errno = common.as_told(*errno);
        }
        let written = effect.written(&reply.response);
        if let Some(ino) = written {
            common.lately.begin_writing(ino);
        }
        self.note(&reply.response, takes_reference, opens, written.is_some());
        if let Some((handle, closed)) = &asked.closed {
            self.note_closed(closed);
            common.keepers.closed(closed.ino, self.node, *handle);
            if closed.locked && !self.common.lives.are_kept() {
                self.common.locks.release(closed.ino, *handle);
            }
        }
        if effect.may_concern() {
            common.await_quiet();
        }
        // Who has read pages meanwhile.
        if let Some(ino) = effect.changed_content(&reply.response) {
            common.recall_pages_after(ino, self.node, effect.patience());
        }
        if let Some(maps) = maps {
            self.tell_end(maps, &mut reply.response);
        }
        // Who is the first to follow recalls was shown nothing firm before.
        if common.followed.load(Ordering::SeqCst) {
            let others = effect.show(&mut reply.response, self.node, &common.lately);
            let mut concerned = effect.changed(&reply.response, self.node, &common.lately);
            concerned.changed.extend(others);
            if !concerned.changed.is_empty() || concerned.unknown {
                common.recall(concerned, self.node, effect.patience());
            }
            if !self.recalls.are_followed() {
                not_firm(&mut reply.response);
            }
        }
        reply
    }
}

/// What a request's handle is of.
#[derive(Default)]
struct Asked {
    file: Option<Ino>,
    /// The request closes it.
    closed: Option<(Handle, File)>,
}

/// All clients of one server.
pub struct Sessions {
    common: Arc<Common>,
    /// Who comes over the network has no root.
    squash: OnceLock<Squash>,
    epoch: u32,
    last_node: AtomicU32,
}

impl Sessions {
    /// No client yet. `server` answers them all.
    pub(crate) fn new(
        server: Arc<dyn Service>,
        processes: Arc<Processes>,
        epoch: u32,
        lives: Lives,
        holding: Arc<dyn Holding>,
    ) -> Sessions {
        // Before the first start there was nothing to be shown.
        let quiet_until = (epoch > 1).then(|| Instant::now() + BELIEVED_FOR);
        Sessions {
            common: Arc::new(Common {
                server,
                processes,
                lately: ShownLately::new(),
                keepers: Keepers::default(),
                hold: OnceLock::new(),
                is_kept: OnceLock::new(),
                is_any_away: OnceLock::new(),
                is_written: OnceLock::new(),
                locks: LockTable::default(),
                lives,
                holding,
                open_at_the_end: Mutex::default(),
                attrs: Pending::default(),
                pages: Pending::default(),
                turns: Turns::default(),
                clients: RwLock::default(),
                followed: AtomicBool::new(false),
                quiet_until,
            }),
            squash: OnceLock::new(),
            epoch,
            last_node: AtomicU32::new(0),
        }
    }

    /// From here on, whatever root of a client's node asks for over the network is done as nobody,
    /// by the rights that this tree gives. It is said once.
    pub fn squash_root(&self, tree: Arc<dyn Tree>) {
        if self.squash.set(Squash::by(tree)).is_err() {
            tracing::debug!("root is squashed already");
        }
    }

    /// A client comes, that calls this life of its own so. Root of its node is root.
    pub fn begin(&self, life: u64) -> Arc<Session> {
        self.begin_as(life, None)
    }

    fn begin_as(&self, life: u64, squash: Option<Squash>) -> Arc<Session> {
        let mut node = 0;
        while node == 0 {
            node = self
                .last_node
                .fetch_add(1, Ordering::Relaxed)
                .wrapping_add(1);
        }
        let common = self.common.clone();
        Arc::new(Session::begin(common, node, life, squash))
    }
}

impl Host for Sessions {
    fn epoch(&self) -> u64 {
        u64::from(self.epoch)
    }

    fn may_answer(&self) -> bool {
        let hold = self.common.hold.get();
        hold.is_none_or(Hold::is_valid)
    }

    fn begin(&self, facts: &ClientFacts) -> Result<Arc<dyn Guest>, Errno> {
        // Root of the server's own node owns what the server has. Which node that is, the socket
        // tells, not the client.
        let squash = self.squash.get().filter(|_| !facts.local).cloned();
        Ok(match facts.command {
            true => Arc::new(Command::of(self.common.server.clone(), squash.is_some())),
            false => {
                let session = self.begin_as(facts.life, squash);
                let processes = &self.common.processes;
                processes.note_address(session.node, facts.address);
                session
            }
        })
    }
}

impl Guest for Session {
    fn end(&self) {
        Session::end(self);
    }

    fn open_files(&self) -> u64 {
        let files = self.shards.iter().map(|shard| shard.lock().files.len());
        files.sum::<usize>() as u64
    }

    fn listen(&self, seen: u64, settled: bool, answer: Answer) {
        self.note_listening(settled);
        self.recalls.listen(seen, answer);
    }

    fn hush(&self) {
        self.recalls.hush();
    }
}

/// Who closes what a client has left open: the server itself.
const OWN: Peer<'static> = Peer {
    uid: 0,
    gid: 0,
    groups: &[],
    local: false,
    near: false,
    mount: true,
    socket: None,
};

impl Service for Session {
    fn handle(&self, peer: Peer<'_>, request: Request, payload: &[u8], into: &mut [u8]) -> Reply {
        // Whoever waits to end the session must not keep out a request that another one waits for.
        let _under_way = self.under_way.read_recursive();
        if self.ended.load(Ordering::Acquire) || self.recalls.have_ended() {
            return Errno::ENOTCONN.into();
        }
        let request = match request {
            Request::ReleaseMany(handles) => return self.release_each(peer, handles),
            other => other,
        };
        if let Err(errno) = self.check_nodes(&request) {
            return errno.into();
        }
        let turn = self.common.turns.of(&request);
        let request = match self.admit(request) {
            Ok(request) => request,
            Err(errno) => return errno.into(),
        };
        let asked = match self.check_handle(&request) {
            Ok(asked) => asked,
            Err(errno) => return errno.into(),
        };
        let opens = match self.reserve_handle(&request) {
            Ok(opens) => opens,
            Err(errno) => return errno.into(),
        };
        let mut request = match request {
            Request::Forget(nodes) => Request::Forget(self.held(nodes)),
            Request::Introduce { processes, ended } => {
                let known = &self.common.processes;
                known.tell(self.node, processes, &ended);
                return Response::Done.into();
            }
            Request::ShowProbe => return self.probe.show(&*self.common.server, peer),
            Request::HideProbe { name } => {
                return self.probe.hide(&*self.common.server, peer, &name);
            }
            // Of a client that asks again and again, in one process.
            Request::Recalls { seen, settled } => {
                self.note_listening(settled != 0);
                return self.recalls.follow(seen).into();
            }
            Request::FindNameless { life, .. } if !self.has_again(life) => {
                return Errno::ESTALE.into();
            }
            // A client vouches for a program's user; of its own it orders nothing.
            Request::Control(_) => return Errno::EPERM.into(),
            Request::MayReclaim { life, done } => return self.may_reclaim(life, done).into(),
            Request::Lock { .. }
            | Request::Unlock { .. }
            | Request::TestLock { .. }
            | Request::CancelLock { .. } => return self.answer_lock(request, asked.file).into(),
            other => other,
        };
        if let Some(cred) = request.cred_mut() {
            cred.process.node = self.node;
        }
        self.answer(peer, request, (payload, into), (asked, opens, turn))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use forebay_types::{Attr, Cred, FileKind, OpenFlags, Process, TimeSpec};
    use forebay_wire::control::Control;
    use forebay_wire::{Introduction, Link, Opened};

    use super::*;

    /// No file is known by name or without.
    struct Nothing;

    impl Holding for Nothing {
        fn hold(&self, _: Ino, _: u64) {}
        fn let_go(&self, _: Ino, _: u64) {}
        fn end_wait_for(&self, _: u64) {}
    }

    /// Answers what is asked for, and tells what was asked.
    struct Recorder {
        asked: Mutex<Vec<Request>>,
        next: AtomicUsize,
        /// A read says that it has begun, and waits until it may go on.
        gate: Option<(mpsc::Sender<()>, Mutex<mpsc::Receiver<()>>)>,
    }

    impl Recorder {
        fn new() -> Recorder {
            Recorder {
                asked: Mutex::default(),
                next: AtomicUsize::new(1),
                gate: None,
            }
        }

        fn asked(&self) -> Vec<Request> {
            std::mem::take(&mut *self.asked.lock())
        }
    }

    impl Service for Recorder {
        fn handle(&self, _: Peer<'_>, request: Request, _: &[u8], _: &mut [u8]) -> Reply {
            if let (Request::Read { .. }, Some((begun, go))) = (&request, &self.gate) {
                begun.send(()).expect("somebody listens");
                let go = go.lock();
                go.recv_timeout(Duration::from_secs(30)).expect("go");
            }
            let response = match &request {
                Request::Lookup { .. } | Request::Getattr { .. } => Response::Attr(attr(7).into()),
                Request::Open { .. } => {
                    let handle = Handle(self.next.fetch_add(1, Ordering::Relaxed) as u64);
                    Response::Opened(Opened {
                        handle,
                        mode: OpenMode::Plain,
                        content: None,
                        bytes: 0,
                        place: None,
                    })
                }
                Request::OpenDir { .. } => {
                    Response::OpenedDir(Handle(self.next.fetch_add(1, Ordering::Relaxed) as u64))
                }
                Request::Read { .. } => Response::Moved(0),
                Request::Statfs => Response::Failed(Errno::ENOTCONN),
                _ => Response::Done,
            };
            self.asked.lock().push(request);
            response.into()
        }
    }

    fn attr(ino: u64) -> Attr {
        let at = TimeSpec::default();
        Attr {
            ino: Ino(ino),
            kind: FileKind::Regular,
            perm: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 9,
            blocks: 0,
            atime: at,
            mtime: at,
            ctime: at,
        }
    }

    fn ask(session: &Session, request: Request) -> Result<Response, Errno> {
        match session.handle(OWN, request, &[], &mut []).response {
            Response::Failed(errno) => Err(errno),
            other => Ok(other),
        }
    }

    fn look(session: &Session) {
        let link = Link {
            parent: Ino::ROOT,
            name: b"f".to_vec(),
        };
        ask(session, Request::Lookup { link, uid: 0 }).expect("lookup");
    }

    /// Finds it, and opens it.
    fn open(session: &Session) -> Handle {
        open_for(session, libc::O_RDONLY)
    }

    fn open_for(session: &Session, flags: i32) -> Handle {
        look(session);
        let request = Request::Open {
            ino: Ino(7),
            flags: OpenFlags(flags as u32),
            cred: Cred {
                uid: 0,
                gid: 0,
                process: Process::here(0),
                umask: 0,
            },
        };
        match ask(session, request) {
            Ok(Response::Opened(opened)) => opened.handle,
            other => panic!("open: {other:?}"),
        }
    }

    fn read(handle: Handle) -> Request {
        Request::Read {
            handle,
            offset: 0,
            len: 0,
            pages: false,
        }
    }

    #[test]
    fn what_a_client_has_is_closed_and_dropped_at_the_end_and_only_that() {
        let server = Arc::new(Recorder::new());
        let sessions = Sessions::new(
            server.clone(),
            Arc::default(),
            1,
            Lives::none(),
            Arc::new(Nothing),
        );
        let (one, other) = (sessions.begin(0), sessions.begin(0));
        let (closed, left) = (open(&one), open(&one));
        let Ok(Response::OpenedDir(dir)) = ask(
            &one,
            Request::OpenDir {
                ino: Ino::ROOT,
                uid: 0,
            },
        ) else {
            panic!("opendir");
        };
        let others = open(&other);
        (0..3).for_each(|_| look(&one));
        look(&other);
        ask(&one, Request::Release { handle: closed }).expect("close");
        // More than it has, and what it does not know.
        ask(&other, Request::Forget(vec![(Ino(7), 9), (Ino(8), 1)])).expect("forget");
        let asked = server.asked();
        assert_eq!(asked.last(), Some(&Request::Forget(vec![(Ino(7), 2)])));
        one.end();
        one.end();
        let asked = server.asked();
        assert_eq!(asked.len(), 3, "{asked:?}");
        for wanted in [
            Request::Release { handle: left },
            Request::CloseDir { handle: dir },
            Request::Forget(vec![(Ino(7), 5)]),
        ] {
            assert!(asked.contains(&wanted), "{wanted:?} of {asked:?}");
        }
        assert_eq!(ask(&one, read(left)), Err(Errno::ENOTCONN));
        assert_eq!(ask(&other, read(others)), Ok(Response::Moved(0)));
        assert_eq!((one.open_handles(), other.open_handles()), (0, 1));
    }

    #[test]
    fn the_first_pages_by_a_handle_come_with_the_end_of_the_file() {
        let server = Arc::new(Recorder::new());
        let (common, lives, nothing) = (Arc::default(), Lives::none(), Arc::new(Nothing));
        let sessions = Sessions::new(server, common, 1, lives, nothing);
        let client = sessions.begin(0);
        let pages = |handle| Request::Read {
            handle,
            offset: 0,
            len: 0,
            pages: true,
        };
        let handle = open_for(&client, libc::O_RDWR);
        assert_eq!(ask(&client, read(handle)), Ok(Response::Moved(0)));
        let first = Response::Paged { bytes: 0, end: 9 };
        assert_eq!(ask(&client, pages(handle)), Ok(first));
        assert_eq!(ask(&client, pages(handle)), Ok(Response::Moved(0)));
        // Who only reads stores nothing behind the end.
        let handle = open(&client);
        assert_eq!(ask(&client, pages(handle)), Ok(Response::Moved(0)));
    }

    #[test]
    fn a_client_orders_nothing_in_its_own_name() {
        let server = Arc::new(Recorder::new());
        let (common, lives, nothing) = (Arc::default(), Lives::none(), Arc::new(Nothing));
        let sessions = Sessions::new(server.clone(), common, 1, lives, nothing);
        let client = sessions.begin(0);
        for control in [
            Control::Status,
            Control::Shutdown {
                drain: false,
                timeout_ms: 0,
            },
        ] {
            assert_eq!(ask(&client, Request::Control(control)), Err(Errno::EPERM));
        }
        assert!(server.asked.lock().is_empty());
    }

    #[test]
    fn a_handle_is_its_owners_and_of_its_kind() {
        let server = Arc::new(Recorder::new());
        let sessions = Sessions::new(
            server.clone(),
            Arc::default(),
            1,
            Lives::none(),
            Arc::new(Nothing),
        );
        let (one, other) = (sessions.begin(0), sessions.begin(0));
        let handle = open(&one);
        server.asked();
        for request in [
            read(handle),
            Request::Release { handle },
            Request::Getattr {
                ino: Ino(7),
                handle: Some(handle),
            },
        ] {
            assert_eq!(ask(&other, request), Err(Errno::ESTALE));
        }
        for request in [
            Request::CloseDir { handle },
            Request::ReadDir { handle, offset: 0 },
        ] {
            assert_eq!(ask(&one, request), Err(Errno::ESTALE));
        }
        assert_eq!(server.asked(), []);
        ask(&one, Request::Release { handle }).expect("close");
        assert_eq!(ask(&one, read(handle)), Err(Errno::ESTALE));
    }

    #[test]
    fn several_files_are_closed_each_for_itself() {
        let server = Arc::new(Recorder::new());
        let sessions = Sessions::new(
            server.clone(),
            Arc::default(),
            1,
            Lives::none(),
            Arc::new(Nothing),
        );
        let (one, other) = (sessions.begin(0), sessions.begin(0));
        let (first, last, others) = (open(&one), open(&one), open(&other));
        server.asked();
        let closes = vec![first, others, Handle(99), last];
        assert_eq!(ask(&one, Request::ReleaseMany(closes)), Err(Errno::ESTALE));
        let closed = [first, last].map(|handle| Request::Release { handle });
        assert_eq!(server.asked(), closed);
        assert_eq!((one.open_handles(), other.open_handles()), (0, 1));
        let left = Request::ReleaseMany(vec![others]);
        assert_eq!(ask(&other, left), Ok(Response::Done));
        assert_eq!(other.open_handles(), 0);
    }

    #[test]
    fn what_a_dead_pfs_says_does_not_look_like_the_end_of_the_session() {
        let session = Sessions::new(
            Arc::new(Recorder::new()),
            Arc::default(),
            1,
            Lives::none(),
            Arc::new(Nothing),
        )
        .begin(0);
        assert_eq!(ask(&session, Request::Statfs), Err(Errno::EIO));
        let handle = open(&session);
        session.end();
        assert_eq!(ask(&session, read(handle)), Err(Errno::ENOTCONN));
    }

    #[test]
    fn the_end_waits_for_what_is_under_way() {
        let (begun, heard) = mpsc::channel();
        let (go, gate) = mpsc::channel();
        let server = Arc::new(Recorder {
            gate: Some((begun, Mutex::new(gate))),
            ..Recorder::new()
        });
        let session = Sessions::new(
            server.clone(),
            Arc::default(),
            1,
            Lives::none(),
            Arc::new(Nothing),
        )
        .begin(0);
        let handle = open(&session);
        server.asked();
        let reader = {
            let session = session.clone();
            std::thread::spawn(move || ask(&session, read(handle)))
        };
        heard.recv_timeout(Duration::from_secs(30)).expect("begun");
        let ender = {
            let session = session.clone();
            std::thread::spawn(move || session.end())
        };
        // What comes after the end is refused, and does not wait behind it.
        let refused = || ask(&session, Request::Statfs) == Err(Errno::ENOTCONN);
        while !refused() {
            std::thread::yield_now();
        }
        assert!(!ender.is_finished());
        let released = Request::Release { handle };
        assert!(!server.asked().contains(&released));
        go.send(()).expect("the reader waits");
        assert_eq!(reader.join().expect("reader"), Ok(Response::Moved(0)));
        ender.join().expect("ender");
        let forgotten = Request::Forget(vec![(Ino(7), 1)]);
        assert_eq!(server.asked(), [read(handle), released, forgotten]);
    }

    #[test]
    fn a_process_is_one_of_its_clients_node_whatever_the_client_says() {
        let server = Arc::new(Recorder::new());
        let sessions = Sessions::new(
            server.clone(),
            Arc::default(),
            1,
            Lives::none(),
            Arc::new(Nothing),
        );
        let (one, other) = (sessions.begin(0), sessions.begin(0));
        let request = |node| Request::Unlink {
            link: Link {
                parent: Ino::ROOT,
                name: b"f".to_vec(),
            },
            cred: Cred {
                uid: 0,
                gid: 0,
                process: Process { node, pid: 7 },
                umask: 0,
            },
        };
        for session in [&one, &other] {
            ask(session, request(0)).expect("unlink");
            ask(session, request(other.node)).expect("unlink");
        }
        assert_ne!(one.node, other.node);
        let asked = server.asked();
        let nodes = [one.node, one.node, other.node, other.node];
        assert_eq!(asked, nodes.map(request));
        let introduction = Request::Introduce {
            processes: vec![Introduction {
                pid: 7,
                age_ms: 0,
                family: 7,
                groups: vec![5],
                job: None,
                job_nodes: None,
            }],
            ended: Vec::new(),
        };
        ask(&one, introduction).expect("introduction");
        let on = |session: &Session| Process {
            node: session.node,
            pid: 7,
        };
        assert!(sessions.common.processes.is_in_group(on(&one), 5));
        assert!(!sessions.common.processes.is_in_group(on(&other), 5));
        one.end();
        assert!(!sessions.common.processes.is_in_group(on(&one), 5));
    }
}
