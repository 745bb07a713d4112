//! What all threads of a network server share.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::super::host::Host;
use super::super::packet::SessionId;
use super::buffers::Buffers;
use super::link::Link;
use super::poller::Poller;
use super::pool::Pool;
use super::refusals::Refusals;
use super::session::Session;
use crate::Key;

pub(crate) struct Core {
    pub host: Arc<dyn Host>,
    pub cluster: String,
    pub key: Key,
    pub encrypt: bool,
    pub lease: Duration,
    pub slots: u16,
    pub rate: Option<u64>,
    pub links_max: usize,
    pub poller: Arc<Poller>,
    pub pool: Pool,
    pub buffers: Arc<Buffers>,
    pub refusals: Refusals,
    links: Mutex<HashMap<u64, Arc<Link>>>,
    sessions: Mutex<HashMap<SessionId, Arc<Session>>>,
    no_session: Condvar,
    next_id: AtomicU64,
    stopping: AtomicBool,
}

/// What a [`Core`] is made of.
pub(crate) struct Settings {
    pub cluster: String,
    pub key: Key,
    pub encrypt: bool,
    pub lease: Duration,
    pub slots: u16,
    pub rate: Option<u64>,
    pub links_max: usize,
    pub threads_max: usize,
}

impl Core {
    pub fn new(settings: Settings, host: Arc<dyn Host>) -> std::io::Result<Core> {
        Ok(Core {
            host,
            cluster: settings.cluster,
            key: settings.key,
            encrypt: settings.encrypt,
            lease: settings.lease,
            slots: settings.slots.max(1),
            rate: settings.rate,
            links_max: settings.links_max,
            poller: Arc::new(Poller::new()?),
            pool: Pool::new(settings.threads_max),
            buffers: Arc::default(),
            refusals: Refusals::default(),
            links: Mutex::default(),
            sessions: Mutex::default(),
            no_session: Condvar::new(),
            next_id: AtomicU64::new(1),
            stopping: AtomicBool::new(false),
        })
    }

    pub fn link(&self, id: u64) -> Option<Arc<Link>> {
        self.links.lock().get(&id).cloned()
    }

    pub fn links(&self) -> Vec<Arc<Link>> {
        self.links.lock().values().cloned().collect()
    }

    /// A number that no other link has.
    pub fn next_link_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds a link; false if there are too many.
    pub fn add_link(&self, link: &Arc<Link>) -> bool {
        let mut links = self.links.lock();
        if links.len() >= self.links_max {
            return false;
        }
        links.insert(link.id, link.clone());
        true
    }

    pub fn remove_link(&self, id: u64) {
        self.links.lock().remove(&id);
    }

    pub fn session(&self, id: SessionId) -> Option<Arc<Session>> {
        self.sessions.lock().get(&id).cloned()
    }

    pub fn sessions(&self) -> Vec<Arc<Session>> {
        self.sessions.lock().values().cloned().collect()
    }

    /// Adds a session, unless the server stops.
    pub fn add_session(&self, session: &Arc<Session>) -> bool {
        let mut sessions = self.sessions.lock();
        // Under the lock: who stops looks at the sessions after it has said so.
        let goes_on = !self.is_stopping();
        if goes_on {
            sessions.insert(session.id, session.clone());
        }
        goes_on
    }

    pub fn remove_session(&self, id: SessionId) {
        let mut sessions = self.sessions.lock();
        sessions.remove(&id);
        if sessions.is_empty() {
            self.no_session.notify_all();
        }
    }

    /// No session is added any more; the ones that there are.
    pub fn stop(&self) -> Vec<Arc<Session>> {
        self.stopping.store(true, Ordering::Release);
        self.sessions()
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Waits until all sessions have ended.
    pub fn await_no_session(&self) {
        let mut sessions = self.sessions.lock();
        while !sessions.is_empty() {
            self.no_session.wait(&mut sessions);
        }
    }
}
