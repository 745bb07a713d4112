//! A client's session: connected, kept alive, lost or closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_types::{Errno, limits};
use parking_lot::{Condvar, Mutex};

use super::super::clock;
use super::super::packet::{Attach, Attached, SessionId, random_bytes};
use super::config::{ConnectError, NetConfig};
use super::dial::{Dialed, Server, Watch, dial};
use super::link::{Link, LinkState, Seen, Unanswered};
use super::slots::Slots;
use crate::{Carried, Connection, NOT_SENT, Reply, Request, Response};

/// Shortest pause before a link is connected again after an attempt failed.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest.
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Between two looks whether another server leads.
const ELSEWHERE: Duration = Duration::from_millis(300);
/// For how long what one link of a Unix socket has heard may be on its way over the others.
const LAST_WORDS: Duration = Duration::from_millis(250);

/// Why a session is over although nobody closed it. All that was cached, and every handle, is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The server has another epoch: it was started anew.
    Restarted {
        /// The new epoch.
        epoch: u64,
    },
    /// The server goes on and does not know the session any more: the client was silent for too
    /// long.
    Forgotten,
    /// The lease ran out by this client's own clock, before any other may get what it had.
    Expired,
    /// The Unix socket broke: the server's process is dead, or has thrown this client out.
    Died,
    /// No link was up for [`NetConfig::gone_after`], and nothing was heard. The server may keep the
    /// session until its lease ends.
    Gone,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Lost::Restarted { .. } => "the server was started anew",
            Lost::Forgotten => "the server has fenced this mount, which was silent for too long",
            Lost::Expired => "nothing was heard of the server for the length of the lease",
            Lost::Died => "the server on this node has ended",
            Lost::Gone => "the server cannot be reached, and is waited for no longer",
        })
    }
}

/// The asking end of a session over a network.
///
/// Requests wait while the server is away, and happen once. Once the session is over, those under
/// way fail with `ENOTCONN`, those that were not sent with [`NOT_SENT`] when it was lost and
/// `ENOTCONN` when it was closed. A new session is a new `NetConnection`.
pub struct NetConnection {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    config: NetConfig,
    client: [u8; 16],
    servers: Vec<Server>,
    attached: Attached,
    lease: Duration,
    slots: Slots,
    links: Vec<Link>,
    /// When the newest of what the server has answered was sent.
    confirmed_ms: AtomicU64,
    descriptors: AtomicBool,
    status: Mutex<Status>,
    over: Condvar,
}

type Callback = Box<dyn FnOnce(Lost) + Send>;

#[derive(Default)]
struct Status {
    lost: Option<Lost>,
    closed: bool,
    callbacks: Vec<Callback>,
}

/// A dialer of a session that does not exist yet.
struct First;

impl Watch for First {
    fn is_over(&self) -> bool {
        false
    }

    fn ping_every(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn confirmed(&self, _: u64) {}
}

impl Watch for Shared {
    fn is_over(&self) -> bool {
        let status = self.status.lock();
        status.closed || status.lost.is_some()
    }

    fn ping_every(&self) -> Duration {
        let by_lease = self.lease / 8;
        // A server that answers is not given up between two of them.
        let gone_after = self.config.gone_after;
        gone_after.map_or(by_lease, |limit| by_lease.min(limit / 4))
    }

    fn confirmed(&self, sent_ms: u64) {
        self.confirmed_ms.fetch_max(sent_ms, Ordering::Relaxed);
    }
}

impl NetConnection {
    /// Connects: the first link before this returns, the others soon after. Every address is tried
    /// once; the error is that of the last one.
    pub fn connect(config: NetConfig) -> Result<NetConnection, ConnectError> {
        config.check()?;
        let client = random_bytes().map_err(ConnectError::Local)?;
        let unix = config.unix.iter().cloned().map(Server::Unix);
        let tcp = config.addresses.iter().copied().map(Server::Tcp);
        let mut failed = None;
        for server in unix.chain(tcp) {
            match dial(
                &config,
                &server,
                attach_of(&config, client, None, 0),
                &First,
            ) {
                Ok(dialed) => return NetConnection::begin(config, client, &server, dialed),
                // A server on this machine that does not run may be one on another machine.
                Err(error) => {
                    tracing::debug!("network: {error}");
                    failed = Some(error);
                }
            }
        }
        Err(failed.unwrap_or(ConnectError::Setting("no address of a server is given")))
    }

    fn begin(
        config: NetConfig,
        client: [u8; 16],
        server: &Server,
        dialed: Dialed,
    ) -> Result<NetConnection, ConnectError> {
        let slots = dialed.attached.slots;
        let servers = match server {
            Server::Unix(_) => vec![server.clone()],
            Server::Tcp(first) => {
                // The address that answered comes first; others may be another network.
                let others = config.addresses.iter().filter(|address| *address != first);
                let all = std::iter::once(first).chain(others);
                all.copied().map(Server::Tcp).collect()
            }
        };
        let count = config.links + usize::from(config.recalls);
        let links: Vec<Link> = (0..count as u16)
            .map(|number| Link::new(number, slots))
            .collect();
        let shared = Arc::new(Shared {
            client,
            lease: Duration::from_millis(dialed.attached.lease_ms),
            attached: dialed.attached,
            slots: Slots::new(slots),
            links,
            confirmed_ms: AtomicU64::new(dialed.sent_ms),
            descriptors: AtomicBool::new(takes_descriptors(&config, &servers)),
            servers,
            status: Mutex::default(),
            over: Condvar::new(),
            config,
        });
        shared.links[0].install(dialed.wire, dialed.reader);
        let mut connection = NetConnection {
            shared: shared.clone(),
            threads: Vec::new(),
        };
        for index in 0..shared.links.len() {
            let shared = shared.clone();
            connection.spawn(format!("fb-link-{index}"), move || keep(&shared, index))?;
        }
        if !shared.config.elsewhere.is_empty() {
            let shared = shared.clone();
            connection.spawn("fb-elsewhere".to_string(), move || look_elsewhere(&shared))?;
        }
        connection.spawn("fb-lease".to_string(), move || watch_lease(&shared))?;
        Ok(connection)
    }

    fn spawn(
        &mut self,
        name: String,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), ConnectError> {
        let spawned = std::thread::Builder::new().name(name).spawn(run);
        self.threads.push(spawned.map_err(ConnectError::Local)?);
        Ok(())
    }

    /// Calls back when the session is lost, once; at once if it is lost already. The callback must
    /// not wait for calls of this connection.
    pub fn on_lost(&self, callback: impl FnOnce(Lost) + Send + 'static) {
        let mut status = self.shared.status.lock();
        match status.lost {
            None => status.callbacks.push(Box::new(callback)),
            Some(lost) => {
                drop(status);
                callback(lost);
            }
        }
    }

    /// Why the session is lost, if it is.
    pub fn lost(&self) -> Option<Lost> {
        self.shared.status.lock().lost
    }

    /// How long the server keeps what this client has without a further word from it. What is
    /// cached may be used while this is not zero.
    pub fn lease_left(&self) -> Duration {
        match self.shared.is_over() {
            true => Duration::ZERO,
            false => self.shared.lease_left(),
        }
    }

    /// The session's name, and the epoch of the server.
    pub fn session(&self) -> (SessionId, u64) {
        (self.shared.attached.session, self.shared.attached.epoch)
    }

    /// For how long no link has been up, and nothing was heard of the server; zero while a link is.
    pub fn gone_for(&self) -> Duration {
        self.shared.gone_for()
    }

    /// How each link is.
    pub fn status(&self) -> Vec<LinkState> {
        self.shared.links.iter().map(Link::status).collect()
    }

    /// Ends the session: the server is told, and whoever waits for a reply gets `ENOTCONN`.
    pub fn close(&self) {
        {
            let mut status = self.shared.status.lock();
            if std::mem::replace(&mut status.closed, true) {
                return;
            }
            status.callbacks.clear();
            if status.lost.is_some() {
                drop(status);
                // A callback closes: the end is under way, and comes after the callbacks.
                return self.shared.end(NOT_SENT);
            }
        }
        // The first link that is up will do.
        let told = self.shared.links.iter().any(Link::bye);
        if !told {
            tracing::debug!("network: closed without a goodbye");
        }
        self.shared.end(Errno::ENOTCONN);
    }
}

impl Drop for NetConnection {
    fn drop(&mut self) {
        self.close();
        for thread in self.threads.drain(..) {
            // A callback may drop the connection that calls it.
            if thread.thread().id() != std::thread::current().id() {
                drop(thread.join());
            }
        }
    }
}

impl Connection for NetConnection {
    fn call(&self, request: Request, payload: &[u8], into: &mut [u8]) -> Result<Reply, Errno> {
        let (links, config) = (&self.shared.links, &self.shared.config);
        if config.recalls && matches!(request, Request::Recalls { .. }) {
            return self
                .shared
                .ask(&links[config.links], request, payload, into);
        }
        let links = links[..config.links].iter();
        let least = links.min_by_key(|link| link.load());
        let least = least.unwrap_or(&self.shared.links[0]);
        self.shared.ask(least, request, payload, into)
    }

    fn links(&self) -> usize {
        self.shared.config.links
    }

    fn call_on(
        &self,
        link: usize,
        request: Request,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<Reply, Errno> {
        let link = &self.shared.links[link % self.shared.config.links];
        self.shared.ask(link, request, payload, into)
    }

    fn is_answering(&self) -> bool {
        // Links break, or say nothing, long before the lease ends.
        self.shared.down_for().is_zero()
            && !self.shared.is_over()
            && self.shared.lease_left() > self.shared.lease / 2
    }

    fn carried(&self) -> Carried {
        let links = self.status();
        let links = &links[..self.shared.config.links.min(links.len())];
        Carried {
            links_up: links.iter().filter(|link| link.connected).count() as u64,
            links: links.len() as u64,
            in_bytes: links.iter().map(|link| link.bytes_in).sum(),
            out_bytes: links.iter().map(|link| link.bytes_out).sum(),
        }
    }

    fn close(&self) {
        NetConnection::close(self);
    }

    fn hands_over_descriptors(&self) -> bool {
        self.shared.descriptors.load(Ordering::Acquire)
    }

    fn accept_descriptors(&self, yes: bool) {
        let can = takes_descriptors(&self.shared.config, &self.shared.servers);
        self.shared.descriptors.store(yes && can, Ordering::Release);
    }
}

/// Whether this side has a use for descriptors: by a socket of this machine they come with replies.
fn takes_descriptors(config: &NetConfig, servers: &[Server]) -> bool {
    config.near || matches!(servers, [Server::Unix(_)])
}

impl Shared {
    fn ask(
        &self,
        link: &Link,
        request: Request,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<Reply, Errno> {
        request.check()?;
        if payload.len() > limits::IO_BYTES_MAX {
            return Err(Errno::EINVAL);
        }
        let room = into.len().min(limits::IO_BYTES_MAX);
        let soft = self.config.soft;
        let ticket = self.slots.take(request.may_take_long(), || match soft {
            Some(limit) if link.down_for() > limit => Err(Errno::EIO),
            _ => Ok(()),
        })?;
        let local = self.descriptors.load(Ordering::Acquire);
        let answered = link.call(ticket, local, (&request, payload), &mut into[..room], soft);
        if answered.as_ref().err() != Some(&Unanswered::Away) {
            self.slots.give_back(ticket.slot);
        }
        match answered {
            Ok(Reply {
                response: Response::Failed(errno),
                ..
            }) => Err(match errno {
                // Only this side knows that.
                NOT_SENT => Errno::EIO,
                errno => errno,
            }),
            Ok(reply) => Ok(reply),
            Err(Unanswered::Ended { sent: true }) => Err(Errno::ENOTCONN),
            Err(Unanswered::Ended { sent: false }) => Err(match self.status.lock().lost {
                Some(_) => NOT_SENT,
                None => Errno::ENOTCONN,
            }),
            Err(Unanswered::Away) => Err(Errno::EIO),
            Err(Unanswered::Unsendable(errno)) => Err(errno),
        }
    }

    /// The client's own end of the lease comes an eighth before the server's.
    fn lease_left(&self) -> Duration {
        let confirmed = self.links.iter().map(Link::confirmed_ms);
        let confirmed = confirmed.max().unwrap_or_default();
        self.confirmed(confirmed);
        let passed = clock::since(self.confirmed_ms.load(Ordering::Relaxed));
        (self.lease - self.lease / 8).saturating_sub(passed)
    }

    /// For how long no link has been up.
    fn down_for(&self) -> Duration {
        let links = self.links.iter().map(Link::down_for);
        links.min().unwrap_or_default()
    }

    /// Since the newest of what the server has answered was sent.
    fn unheard_for(&self) -> Duration {
        self.lease - self.lease / 8 - self.lease_left()
    }

    /// See [`NetConnection::gone_for`]. A server that runs a request lets no link in its place in,
    /// and says so.
    fn gone_for(&self) -> Duration {
        self.down_for().min(self.unheard_for())
    }

    /// No link is up, or nothing is heard although a sign of life is due.
    fn is_silent(&self) -> bool {
        !self.down_for().is_zero() || self.unheard_for() > self.lease / 4 + self.lease / 16
    }

    /// No call waits any more, and none comes.
    fn end(&self, errno: Errno) {
        self.slots.end(errno);
        for link in &self.links {
            link.end();
        }
        // Under the lock, so that nobody is between a look and a sleep.
        let status = self.status.lock();
        self.over.notify_all();
        drop(status);
    }

    fn lose(&self, lost: Lost) {
        let callbacks = {
            let mut status = self.status.lock();
            if status.closed || status.lost.is_some() {
                return;
            }
            status.lost = Some(lost);
            std::mem::take(&mut status.callbacks)
        };
        tracing::warn!("network: the session is lost: {lost}");
        // What was cached is dropped before anybody learns of the end from a failed call.
        for callback in callbacks {
            callback(lost);
        }
        self.end(NOT_SENT);
    }
}

fn attach_of(config: &NetConfig, client: [u8; 16], join: Option<SessionId>, link: u16) -> Attach {
    let mut facts = config.facts.clone();
    facts.clean();
    Attach {
        client,
        join,
        link,
        encrypt: config.encrypt,
        facts,
    }
}

/// The thread of one link: keeps it alive, and connects it again.
fn keep(shared: &Shared, index: usize) {
    let link = &shared.links[index];
    let tick = (shared.lease / 16).clamp(Duration::from_millis(5), Duration::from_secs(1));
    let is_unix = matches!(shared.servers[..], [Server::Unix(_)]);
    let mut was_up = index == 0;
    let mut attempts = 0u32;
    loop {
        match link.sleep(tick, false) {
            Seen::Ended => return,
            Seen::Up => {
                was_up = true;
                link.look_after(shared.lease / 4, shared.lease / 2);
            }
            Seen::Down if is_unix && was_up => {
                await_last_words(shared);
                return shared.lose(Lost::Died);
            }
            Seen::Down => match connect_link(shared, index, attempts) {
                Ok(()) => attempts = 0,
                Err(ConnectError::Forgotten { epoch, .. }) => {
                    return shared.lose(match epoch == shared.attached.epoch {
                        true => Lost::Forgotten,
                        false => Lost::Restarted { epoch },
                    });
                }
                Err(error) => {
                    if attempts == 0 {
                        tracing::warn!("network: link {index}: {error}; trying again");
                    }
                    let pause = BACKOFF_MIN * 2u32.pow(attempts.min(6));
                    attempts = attempts.saturating_add(1);
                    link.sleep(pause.min(BACKOFF_MAX), true);
                }
            },
        }
    }
}

/// What a server that stops says over one link, or the end of its process, the other links hear in
/// the same moment: who waits there for a reply is to learn whether the request has run.
fn await_last_words(shared: &Shared) {
    let until = Instant::now() + LAST_WORDS;
    while shared.links.iter().any(Link::is_waited_on) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Each attempt takes the next address, and each link begins with another one.
fn connect_link(shared: &Shared, index: usize, attempts: u32) -> Result<(), ConnectError> {
    let server = &shared.servers[(index + attempts as usize) % shared.servers.len()];
    let join = Some(shared.attached.session);
    let attach = attach_of(&shared.config, shared.client, join, index as u16);
    let dialed = dial(&shared.config, server, attach, shared)?;
    shared.confirmed(dialed.sent_ms);
    for slot in shared.links[index].install(dialed.wire, dialed.reader) {
        shared.slots.give_back(slot);
    }
    Ok(())
}

/// While the server is silent, asks others whether one of them leads by now: that one does not know
/// the session, and had a later start. Its answer comes long before the lease ends.
fn look_elsewhere(shared: &Shared) {
    let attempt = |server: &Server| {
        let join = Some(shared.attached.session);
        let attach = attach_of(&shared.config, shared.client, join, 0);
        dial(&shared.config, server, attach, shared)
    };
    let servers = shared.config.elsewhere.iter().copied().map(Server::Tcp);
    let servers: Vec<Server> = servers.collect();
    for server in servers.iter().cycle() {
        {
            let mut status = shared.status.lock();
            if status.closed || status.lost.is_some() {
                return;
            }
            shared.over.wait_for(&mut status, ELSEWHERE);
        }
        if !shared.is_silent() {
            continue;
        }
        match attempt(server) {
            Err(ConnectError::Forgotten { epoch, .. }) if epoch > shared.attached.epoch => {
                return shared.lose(Lost::Restarted { epoch });
            }
            // Nobody listens there, as long as that one does not lead.
            Ok(_) | Err(_) => {}
        }
    }
}

fn watch_lease(shared: &Shared) {
    let tick = (shared.lease / 32).clamp(Duration::from_millis(5), Duration::from_millis(250));
    loop {
        if shared.lease_left() == Duration::ZERO {
            return shared.lose(Lost::Expired);
        }
        let gone_after = shared.config.gone_after;
        if gone_after.is_some_and(|limit| shared.gone_for() >= limit) {
            return shared.lose(Lost::Gone);
        }
        let mut status = shared.status.lock();
        if status.closed || status.lost.is_some() {
            return;
        }
        shared.over.wait_for(&mut status, tick);
    }
}
