//! What a client has had of its sessions, so that it can have it again after a restart of the
//! server.
//!
//! Invariants:
//!
//! 1. The caller goes on with the handle that a file was opened by first. No run of a server gives
//!    the number of an earlier one.
//! 2. An id leads to the file that it led to before, or nowhere: in a later session it is used only
//!    once the name by which it was known has led to the same file again, or the server has it
//!    without a name.
//! 3. What the kernel reads and writes by itself is had again only if the server hands over the
//!    descriptor of the very same file; else it is another file to the kernel from then on. What
//!    was locked is had again with its locks, or not at all.
//! 4. What has no name is had again where it is open: the server knows which lives had it so.
//! 5. An id is known until the caller has dropped what every answer has given of it. An answer may
//!    come while the caller drops what it had before, and be taken up after that.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use forebay_types::{Cred, Handle, Ino, OpenFlags};
use forebay_wire::{Link, Opened, Reply, Request, Response, Shown};
use parking_lot::Mutex;

use crate::locked::{Asked, HeldLock, Locked};

/// Ids from here on, up to those of files that were born in the burst buffer, are made up anew by
/// each run of a server.
const FIRST_SUBSTITUTE: u64 = 1 << 61;

type Place = (Ino, Arc<[u8]>);

/// A part of the way to an id.
pub(crate) struct Step {
    pub(crate) ino: Ino,
    pub(crate) name: Arc<[u8]>,
    /// Who has found it by that name.
    pub(crate) uid: u32,
}

#[derive(Clone)]
struct Node {
    /// The name by which it was found last.
    place: Option<Place>,
    /// Who has found it so; root only where nobody else has, for a server may squash root.
    uid: u32,
    birth_ns: u64,
    /// The session in which it was found first.
    since: u64,
    /// The last session in which it was found.
    found: u64,
    /// The session in which this client has one reference more than the caller has taken; 0 for
    /// none.
    held: u64,
    /// So many answers have given the caller a reference, of any session, that are not dropped.
    answers: u64,
    /// It is not to be had again.
    barred: bool,
}

/// An open file.
#[derive(Clone)]
pub(crate) struct Open {
    pub(crate) ino: Ino,
    pub(crate) flags: OpenFlags,
    pub(crate) cred: Cred,
    /// The session that knows it, and by which number.
    session: u64,
    number: Handle,
    barred: bool,
    /// What the kernel reads and writes by itself.
    pub(crate) backing: Option<Backing>,
}

/// A file below, by device and inode: nothing else is called so for as long as somebody has it
/// open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backing(u64, u64);

impl Backing {
    /// What a reply has handed over.
    pub(crate) fn of(reply: &Reply) -> Option<Backing> {
        let descriptor = reply.descriptor.as_ref()?;
        // Without an answer the file is not had again.
        let stat = rustix::fs::fstat(descriptor.descriptor());
        let stat = stat.inspect_err(|error| tracing::warn!("a descriptor: {error}"));
        stat.ok().map(|stat| Backing(stat.st_dev, stat.st_ino))
    }
}

#[derive(Default)]
struct State {
    nodes: HashMap<Ino, Node>,
    names: HashMap<Place, Ino>,
    opens: HashMap<Handle, Open>,
    locked: Locked,
    /// What was had in this session, and not before, may be had in the present one.
    floor: u64,
    /// The life in which that was had.
    life: Option<u64>,
    /// The present one, from its beginning on, and what was closed while it began.
    present: u64,
    closed: Vec<Handle>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Had(Mutex<State>);

/// What of a request matters for what its answer gives.
pub(crate) enum Asks {
    Nothing,
    /// A name that is looked up or made, and by whom.
    Name(Place, u32),
    /// The same, and the file is opened.
    Create(Option<Place>, OpenFlags, Cred),
    Open(Ino, OpenFlags, Cred),
    Unlink(Place),
    Rename(Place, Place, bool),
    Close(Vec<Handle>),
    /// Something about locks.
    Locks(Asked),
}

/// How an id is known in the present session.
pub(crate) enum Known {
    /// It is.
    Yes,
    /// It was, and may be again.
    Before,
    /// It is not.
    No,
}

fn place(link: &Link) -> Place {
    (link.parent, link.name.as_slice().into())
}

impl Asks {
    /// Of a request as the caller has made it.
    pub(crate) fn of(request: &Request) -> Asks {
        match request {
            Request::Lookup { link, uid } => Asks::Name(place(link), *uid),
            Request::Mknod { link, cred, .. }
            | Request::Mkdir { link, cred, .. }
            | Request::Symlink { link, cred, .. }
            | Request::Link { link, cred, .. } => Asks::Name(place(link), cred.uid),
            Request::Create {
                link, flags, cred, ..
            } => Asks::Create(Some(place(link)), *flags, *cred),
            Request::CreateUnnamed { flags, cred, .. } => Asks::Create(None, *flags, *cred),
            Request::Open { ino, flags, cred } => Asks::Open(*ino, *flags, *cred),
            Request::Unlink { link, .. } | Request::Rmdir { link, .. } => Asks::Unlink(place(link)),
            Request::Rename { from, to, mode, .. } => {
                let exchange = *mode == forebay_types::RenameMode::Exchange;
                Asks::Rename(place(from), place(to), exchange)
            }
            Request::Release { .. } | Request::ReleaseMany(_) | Request::CloseDir { .. } => {
                Asks::Close(request.handles().to_vec())
            }
            other => Asked::of(other).map_or(Asks::Nothing, Asks::Locks),
        }
    }
}

/// Whether it is certain that something found in another session is the same.
fn is_same(ino: Ino, known_ns: u64, found: &Shown) -> bool {
    let is_own = ino.0 < FIRST_SUBSTITUTE && known_ns != 0 && found.birth_ns == known_ns;
    found.attr.ino == ino && (ino.is_born_here() || is_own)
}

impl State {
    fn leads(&mut self, place: Place, ino: Ino) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            let before = node.place.replace(place.clone());
            if let Some(before) = before.filter(|before| *before != place)
                && self.names.get(&before) == Some(&ino)
            {
                self.names.remove(&before);
            }
        }
        if let Some(other) = self.names.insert(place.clone(), ino)
            && other != ino
        {
            self.leads_nowhere(&place, other);
        }
    }

    fn leads_nowhere(&mut self, place: &Place, ino: Ino) {
        if let Some(node) = self.nodes.get_mut(&ino)
            && node.place.as_ref() == Some(place)
        {
            node.place = None;
        }
    }

    /// Notes that something was found or made.
    fn found(&mut self, shown: &Shown, (place, uid): (Option<Place>, u32), session: u64) {
        let ino = shown.attr.ino;
        if ino == Ino::ROOT {
            return;
        }
        let fresh = Node {
            place: None,
            uid,
            birth_ns: shown.birth_ns,
            since: session,
            found: session,
            held: 0,
            answers: 0,
            barred: false,
        };
        let floor = self.floor;
        let node = self.nodes.entry(ino).or_insert_with(|| fresh.clone());
        node.answers += 1;
        // An answer of an earlier session that comes late.
        if node.found > session {
            return;
        }
        let is_of_before = node.barred || node.found < floor;
        if node.found != session && (is_of_before || !is_same(ino, node.birth_ns, shown)) {
            // Another file that goes by the same number, or one that the kernel must take for
            // another: what was open of the one before is gone.
            let answers = node.answers;
            *node = Node { answers, ..fresh };
            let opens = self.opens.values_mut().filter(|open| open.ino == ino);
            opens
                .filter(|open| open.session != session)
                .for_each(|open| open.barred = true);
        }
        let Some(node) = self.nodes.get_mut(&ino) else {
            return;
        };
        node.found = session;
        if uid != 0 {
            node.uid = uid;
        }
        if shown.birth_ns != 0 {
            node.birth_ns = shown.birth_ns;
        }
        if let Some(place) = place {
            self.leads(place, ino);
        }
    }

    /// Notes an open file.
    fn opened(
        &mut self,
        (ino, flags, cred): (Ino, OpenFlags, Cred),
        session: u64,
        (opened, backing): (&Opened, Option<Backing>),
    ) {
        let open = Open {
            ino,
            flags,
            cred,
            session,
            number: opened.handle,
            barred: false,
            backing,
        };
        self.opens.insert(opened.handle, open);
    }
}

impl Had {
    /// The present session begins. What was had in the life `again` may be had again.
    pub(crate) fn begins(&self, session: u64, again: Option<u64>) {
        let mut state = self.0.lock();
        state.locked.begins();
        state.present = session;
        state.closed.clear();
        if again.is_none() || state.floor == 0 {
            state.floor = session;
        }
        state.life = again;
    }

    /// Notes what an answer of this session has given.
    pub(crate) fn note(&self, asks: Asks, session: u64, reply: &Reply) {
        let response = &reply.response;
        let failed = matches!(response, Response::Failed(_));
        match (asks, response) {
            (Asks::Nothing, _) => {}
            (Asks::Name(place, uid), Response::Attr(shown)) => {
                self.0.lock().found(shown, (Some(place), uid), session);
            }
            (Asks::Create(place, flags, cred), Response::Created(shown, opened, _)) => {
                let mut state = self.0.lock();
                state.found(shown, (place, cred.uid), session);
                let file = (shown.attr.ino, flags, cred);
                state.opened(file, session, (opened, Backing::of(reply)));
            }
            (Asks::Open(ino, flags, cred), Response::Opened(opened)) => {
                let opened = (opened, Backing::of(reply));
                self.0.lock().opened((ino, flags, cred), session, opened);
            }
            (Asks::Unlink(place), _) if !failed => {
                let mut state = self.0.lock();
                if let Some(ino) = state.names.remove(&place) {
                    state.leads_nowhere(&place, ino);
                }
            }
            (Asks::Rename(from, to, exchange), _) if !failed => {
                let mut state = self.0.lock();
                let (moved, replaced) = (state.names.remove(&from), state.names.remove(&to));
                if let Some(ino) = replaced {
                    state.leads_nowhere(&to, ino);
                    if exchange {
                        state.leads(from, ino);
                    }
                }
                if let Some(ino) = moved {
                    state.leads(to, ino);
                }
            }
            (Asks::Close(handles), _) => handles.into_iter().for_each(|handle| self.close(handle)),
            (Asks::Locks(asked), response) => {
                let State { opens, locked, .. } = &mut *self.0.lock();
                locked.note(asked, response, |handle| {
                    opens.get(&handle).map(|open| open.ino)
                });
            }
            _ => {}
        }
    }

    /// The number by which this session knows a handle, so far as this client can tell; `None` for
    /// a file that is not open again yet.
    pub(crate) fn number(&self, handle: Handle, session: u64) -> Option<Handle> {
        let state = self.0.lock();
        match state.opens.get(&handle) {
            Some(open) => (open.session == session).then_some(open.number),
            // A directory, or nothing: the server knows.
            None => Some(handle),
        }
    }

    /// The caller closes a handle.
    pub(crate) fn close(&self, handle: Handle) {
        let mut state = self.0.lock();
        if let Some(open) = state.opens.remove(&handle) {
            state.locked.close(open.ino, handle);
        }
    }

    /// The caller closes a handle while there is no session. One that begins may have it open again
    /// already.
    pub(crate) fn close_without_session(&self, handle: Handle) {
        let mut state = self.0.lock();
        if let Some(open) = state.opens.get(&handle)
            && open.session == state.present
        {
            let number = open.number;
            state.closed.push(number);
        }
        drop(state);
        self.close(handle);
    }

    /// What was closed while this session began.
    pub(crate) fn take_closed(&self, session: u64) -> Vec<Handle> {
        let mut state = self.0.lock();
        match state.present == session {
            true => std::mem::take(&mut state.closed),
            false => Vec::new(),
        }
    }

    /// Whether the caller's kernel has a file open whose bytes it asks for.
    pub(crate) fn is_open_by_requests(&self, ino: Ino) -> bool {
        let state = self.0.lock();
        let mut opens = state.opens.values();
        opens.any(|open| open.ino == ino && open.backing.is_none())
    }

    /// The locks that were asked for through a handle.
    pub(crate) fn locks_of(&self, ino: Ino, handle: Handle) -> Vec<HeldLock> {
        self.0.lock().locked.of(ino, handle)
    }

    /// An open file of before that may be had again, and is not yet.
    pub(crate) fn open_of_before(&self, handle: Handle, session: u64) -> Option<Open> {
        let state = self.0.lock();
        let open = state.opens.get(&handle)?;
        let may = !open.barred && open.session >= state.floor && open.session != session;
        may.then(|| open.clone())
    }

    /// Open files that may be had again; what may not is given up, and named.
    pub(crate) fn opens(&self) -> (Vec<(Handle, Open)>, Vec<Ino>) {
        let mut state = self.0.lock();
        let State {
            opens,
            locked,
            floor,
            ..
        } = &mut *state;
        let mut given_up = Vec::new();
        opens.retain(|handle, open| {
            let stays = !open.barred && open.session >= *floor;
            if !stays {
                locked.close(open.ino, *handle);
                given_up.push(open.ino);
            }
            stays
        });
        let stay = state.opens.iter().map(|(h, o)| (*h, o.clone()));
        (stay.collect(), given_up)
    }

    /// The kernel goes on by itself with what is not what this session has by the id: to the kernel
    /// that is another file from here on.
    pub(crate) fn is_another(&self, ino: Ino, session: u64) {
        if let Some(node) = self.0.lock().nodes.get_mut(&ino) {
            node.barred = true;
            node.found = node.found.min(session.saturating_sub(1));
        }
    }

    /// A file is open again, in this session by this number; `None` gives it up. False if the
    /// caller has closed it meanwhile.
    pub(crate) fn reopened(&self, handle: Handle, session: u64, number: Option<Handle>) -> bool {
        let mut state = self.0.lock();
        let Some(number) = number else {
            if let Some(open) = state.opens.remove(&handle) {
                state.locked.close(open.ino, handle);
            }
            return true;
        };
        let Some(open) = state.opens.get_mut(&handle) else {
            return false;
        };
        // Two threads may have asked for it at once.
        if open.session == session {
            return false;
        }
        (open.session, open.number) = (session, number);
        true
    }

    /// How an id is known.
    pub(crate) fn knows(&self, ino: Ino, session: u64) -> Known {
        let state = self.0.lock();
        match state.nodes.get(&ino) {
            _ if ino == Ino::ROOT => Known::Yes,
            Some(node) if node.found == session => Known::Yes,
            Some(node) if node.found >= state.floor && !node.barred => Known::Before,
            _ => Known::No,
        }
    }

    /// Where an id is, from what this session knows downwards: `None` where that is not known.
    pub(crate) fn path(&self, ino: Ino, session: u64) -> Option<(Ino, Vec<Step>)> {
        let state = self.0.lock();
        let (mut at, mut path) = (ino, Vec::new());
        loop {
            let is_known = state
                .nodes
                .get(&at)
                .is_some_and(|node| node.found == session);
            if at == Ino::ROOT || is_known {
                path.reverse();
                return Some((at, path));
            }
            // Names that lead in a circle were never all there at once.
            if path.len() > forebay_types::limits::PATH_BYTES_MAX {
                return None;
            }
            let node = state.nodes.get(&at)?;
            let (parent, name) = node.place.clone()?;
            let (ino, uid) = (at, node.uid);
            path.push(Step { ino, name, uid });
            at = parent;
        }
    }

    /// An id that was known before was looked up by its name. Whether it is the same, and this
    /// client is to keep the reference that this has taken.
    pub(crate) fn found_again(&self, ino: Ino, shown: &Shown, session: u64) -> (bool, bool) {
        let mut state = self.0.lock();
        let Some(node) = state.nodes.get_mut(&ino) else {
            return (false, false);
        };
        if node.found == session {
            return (shown.attr.ino == ino, false);
        }
        if !is_same(ino, node.birth_ns, shown) {
            return (false, false);
        }
        node.found = session;
        node.held = session;
        (true, true)
    }

    /// The life in which a file was opened that is open still, and may be had again.
    pub(crate) fn life_of_open(&self, ino: Ino) -> Option<u64> {
        let state = self.0.lock();
        let mut opens = state.opens.values();
        let is_open = opens.any(|open| open.ino == ino && !open.barred);
        state.life.filter(|_| is_open)
    }

    /// The server has found an id of before without a name. Whether this client is to keep the
    /// reference that this has taken.
    pub(crate) fn found_nameless(&self, ino: Ino, session: u64) -> bool {
        let mut state = self.0.lock();
        let Some(node) = state.nodes.get_mut(&ino) else {
            return false;
        };
        if node.found == session {
            return false;
        }
        node.found = session;
        node.held = session;
        if let Some(place) = node.place.take()
            && state.names.get(&place) == Some(&ino)
        {
            state.names.remove(&place);
        }
        true
    }

    /// Whether an id may stand for a file without a name, so far as this session knows.
    pub(crate) fn may_lack_name(&self, ino: Ino, session: u64) -> bool {
        let state = self.0.lock();
        let node = state.nodes.get(&ino);
        node.is_none_or(|node| node.found != session || node.place.is_none())
    }

    /// The session in which what goes by this id was found first.
    pub(crate) fn since(&self, ino: Ino) -> Option<u64> {
        self.0.lock().nodes.get(&ino).map(|node| node.since)
    }

    /// The caller has dropped what so many answers have given by this id. Whether it knows nothing
    /// by it any more, and this client had a reference of its own.
    pub(crate) fn forget(&self, (ino, answers): (Ino, u64), session: u64) -> bool {
        let mut state = self.0.lock();
        let Entry::Occupied(mut known) = state.nodes.entry(ino) else {
            return false;
        };
        let left = known.get().answers.saturating_sub(answers);
        known.get_mut().answers = left;
        if left > 0 {
            return false;
        }
        let node = known.remove();
        if let Some(place) = node.place
            && state.names.get(&place) == Some(&ino)
        {
            state.names.remove(&place);
        }
        node.held == session
    }
}
