//! Several clients of one server, as one connection: each step of a run is asked by one of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_server::{Instance, Session};
use forebay_types::{Errno, Handle, Ino};
use forebay_wire::{Connection, InMemory, Reply, Request, Response};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Number of the next client.
static LIVES: AtomicU64 = AtomicU64::new(1);

/// One client.
struct Client {
    session: Arc<Session>,
    way: InMemory,
    descriptors: bool,
    /// Open files, and where it is known what they are, their ids.
    files: HashMap<Handle, Ino>,
    dirs: Vec<Handle>,
    /// References that its kernel holds.
    references: HashMap<Ino, u64>,
}

impl Client {
    fn new(instance: &Instance, descriptors: bool) -> Client {
        // One that could come back after a restart: what it has open outlives its names on record.
        let life = LIVES.fetch_add(1, Ordering::Relaxed);
        let session = instance.sessions().begin(life);
        let way = InMemory::mount(session.clone());
        way.accept_descriptors(descriptors);
        Client {
            session,
            way,
            descriptors,
            files: HashMap::new(),
            dirs: Vec::new(),
            references: HashMap::new(),
        }
    }

    /// A kernel keeps one reference of what it has open.
    fn spare(&self, ino: Ino) -> u64 {
        let open = self.files.values().any(|open| *open == ino);
        let has = self.references.get(&ino).copied().unwrap_or(0);
        has.saturating_sub(u64::from(open))
    }

    fn has(&self, handle: Handle) -> bool {
        self.files.contains_key(&handle) || self.dirs.contains(&handle)
    }
}

struct State {
    clients: Vec<Client>,
    /// Who asks what does not belong to somebody.
    turn: usize,
    rng: StdRng,
    /// References that were to be dropped while only kernels with the file open had some.
    owed: HashMap<Ino, u64>,
}

/// All of them.
pub struct Clients {
    instance: Arc<Instance>,
    state: Mutex<State>,
}

impl Clients {
    /// `count` clients; some of them take descriptors if any may.
    pub fn new(instance: Arc<Instance>, count: usize, descriptors: bool, seed: u64) -> Clients {
        let mut rng = StdRng::seed_from_u64(seed ^ 0xc11e);
        let clients = (0..count)
            .map(|_| Client::new(&instance, descriptors && rng.random_bool(0.5)))
            .collect();
        Clients {
            instance,
            state: Mutex::new(State {
                clients,
                turn: 0,
                rng,
                owed: HashMap::new(),
            }),
        }
    }

    /// The next step is somebody's.
    pub fn next_turn(&self) {
        let state = &mut *self.state.lock();
        state.turn = state.rng.random_range(0..state.clients.len());
    }

    /// Handles of files of a client that is about to go.
    pub fn files_of(&self, client: usize) -> Vec<Handle> {
        self.state.lock().clients[client]
            .files
            .keys()
            .copied()
            .collect()
    }

    /// A client goes without a word, and a new one comes.
    pub fn replace(&self, client: usize) {
        let state = &mut *self.state.lock();
        let next = Client::new(&self.instance, state.clients[client].descriptors);
        let gone = std::mem::replace(&mut state.clients[client], next);
        gone.session.end();
        assert_eq!(gone.session.open_handles(), 0);
        let late = gone.way.call(Request::Statfs, &[], &mut []);
        assert_eq!(late.err(), Some(Errno::ENOTCONN));
        for (ino, count) in gone.references {
            let open = gone.files.values().filter(|open| **open == ino).count() as u64;
            // Who opened it in the run will not ask for these to be dropped.
            if let Some(owed) = state.owed.get_mut(&ino) {
                *owed = owed.saturating_sub(count.saturating_sub(open));
            }
        }
    }
}

impl State {
    fn owner(&self, handle: Handle) -> usize {
        let owner = self.clients.iter().position(|client| client.has(handle));
        owner.unwrap_or_else(|| panic!("{handle:?} is nobody's"))
    }

    /// A handle is of no use to anybody else.
    fn try_by_another(&mut self, owner: usize, handle: Handle) {
        let other = (owner + 1) % self.clients.len();
        if other == owner || !self.rng.random_bool(0.2) {
            return;
        }
        let requests = [
            Request::Read {
                handle,
                offset: 0,
                len: 0,
                pages: false,
            },
            Request::Release { handle },
            Request::CloseDir { handle },
            Request::ReadDir { handle, offset: 0 },
        ];
        for request in requests {
            let name = request.name();
            let answer = self.clients[other].way.call(request, &[], &mut []);
            assert_eq!(
                answer.err(),
                Some(Errno::ESTALE),
                "{name} by another client"
            );
        }
    }

    /// Who drops how many references.
    fn drop_references(&mut self, ino: Ino, count: u64) {
        let mut left = count + self.owed.remove(&ino).unwrap_or(0);
        for client in &mut self.clients {
            let part = client.spare(ino).min(left);
            if part > 0 {
                left -= part;
                let has = client.references.entry(ino).or_default();
                *has -= part;
                if *has == 0 {
                    client.references.remove(&ino);
                }
                // One too many is not dropped for others.
                let forget = Request::Forget(vec![(
                    ino,
                    part + u64::from(!client.references.contains_key(&ino)),
                )]);
                client.way.call(forget, &[], &mut []).expect("forget");
            }
        }
        if left > 0 {
            self.owed.insert(ino, left);
        }
    }

    fn note(&mut self, client: usize, answer: &Response, takes_reference: bool, of: Option<Ino>) {
        let client = &mut self.clients[client];
        let shown = match answer {
            Response::Attr(shown) | Response::Created(shown, ..) => Some(shown.attr.ino),
            _ => None,
        };
        if let Some(ino) = shown.filter(|_| takes_reference) {
            *client.references.entry(ino).or_default() += 1;
        }
        match answer {
            Response::Opened(opened) | Response::Created(_, opened, _) => {
                let ino = shown.or(of).expect("an open file has an id");
                client.files.insert(opened.handle, ino);
            }
            Response::OpenedDir(handle) => client.dirs.push(*handle),
            _ => {}
        }
    }
}

impl Connection for Clients {
    fn call(&self, request: Request, payload: &[u8], into: &mut [u8]) -> Result<Reply, Errno> {
        let state = &mut *self.state.lock();
        if let Request::Forget(nodes) = request {
            for (ino, count) in nodes {
                state.drop_references(ino, count);
            }
            return Ok(Response::Done.into());
        }
        let handle = request.handles().first().copied();
        let client = handle.map_or(state.turn, |handle| state.owner(handle));
        if let Some(handle) = handle {
            state.try_by_another(client, handle);
        }
        let takes_reference = request.takes_reference();
        let of = match &request {
            Request::Open { ino, .. } => Some(*ino),
            _ => None,
        };
        let closed = match &request {
            Request::Release { handle } | Request::CloseDir { handle } => Some(*handle),
            _ => None,
        };
        let reply = state.clients[client].way.call(request, payload, into);
        if let Some(handle) = closed {
            let client = &mut state.clients[client];
            client.dirs.retain(|dir| *dir != handle);
            if let Some(ino) = client.files.remove(&handle) {
                state.drop_references(ino, 0);
            }
        }
        let reply = reply?;
        state.note(client, &reply.response, takes_reference, of);
        Ok(reply)
    }

    fn hands_over_descriptors(&self) -> bool {
        let state = self.state.lock();
        state.clients.iter().any(|client| client.descriptors)
    }
}
