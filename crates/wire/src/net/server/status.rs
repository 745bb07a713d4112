//! What a server says of itself: who is there, what went over each link, and who was refused.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::super::clock;
use super::super::packet::{ClientFacts, SessionId};
use super::core::Core;
use super::refusals::RefusedFor;
use super::session::Session;

/// What a server does right now.
#[derive(Clone, Debug)]
pub struct NetStatus {
    /// Clients, without commands that only ask.
    pub sessions: Vec<SessionStatus>,
    /// Peers that were refused since the start; reasons that never occurred are left out.
    pub refused: Vec<(RefusedFor, u64)>,
    /// Threads that serve requests.
    pub threads: usize,
    /// Of those, busy with a request.
    pub busy: usize,
}

/// One client.
#[derive(Clone, Debug)]
pub struct SessionStatus {
    /// Its name.
    pub id: SessionId,
    /// Who it is.
    pub facts: ClientFacts,
    /// How long it has been there.
    pub age: Duration,
    /// Files that it has open.
    pub open_files: u64,
    /// Its links that are connected.
    pub links: Vec<LinkStatus>,
    /// Requests since it came; those sent again count again.
    pub requests: u64,
    /// How long it has been silent.
    pub silent: Duration,
}

/// One link of a client.
#[derive(Clone, Copy, Debug)]
pub struct LinkStatus {
    /// Its number, from 0.
    pub number: u16,
    /// Bytes from the client since it was connected.
    pub bytes_in: u64,
    /// Bytes to the client since it was connected.
    pub bytes_out: u64,
}

/// A look at a server from elsewhere.
#[derive(Clone)]
pub struct NetView(Weak<Core>);

impl NetView {
    pub(super) fn new(core: &Arc<Core>) -> NetView {
        NetView(Arc::downgrade(core))
    }

    /// What it does right now; `None` once it has ended.
    pub fn status(&self) -> Option<NetStatus> {
        self.0.upgrade().map(|core| of(&core))
    }
}

pub(super) fn of(core: &Core) -> NetStatus {
    let (threads, busy) = core.pool.counts();
    let sessions = core.sessions().into_iter();
    let clients = sessions.filter(|session| !session.facts.command);
    NetStatus {
        sessions: clients.map(|session| of_session(&session)).collect(),
        refused: core.refusals.counts(),
        threads,
        busy,
    }
}

fn of_session(session: &Session) -> SessionStatus {
    let links = session.links().into_iter().map(|link| LinkStatus {
        number: link.number,
        bytes_in: link.stream.received(),
        bytes_out: link.stream.sent(),
    });
    let mut links: Vec<LinkStatus> = links.collect();
    links.sort_by_key(|link| link.number);
    SessionStatus {
        id: session.id,
        facts: session.facts.clone(),
        age: clock::since(session.since_ms),
        open_files: session.guest.open_files(),
        links,
        requests: session.requests(),
        silent: clock::since(session.heard_ms()),
    }
}
