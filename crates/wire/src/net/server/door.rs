//! The thread that accepts connections, takes strangers through the handshake, and looks at
//! the clock.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::super::clock;
use super::super::framing::NetError;
use super::super::stream::Stream;
use super::admit::{self, Admitted};
use super::core::Core;
use super::knock::{Knock, Step};
use super::refusals::RefusedFor;
use super::serve::{act, close};

/// Strangers at the door at once; the one who has been there longest makes room.
const KNOCKS_MAX: usize = 256;
/// How long a handshake may take.
const KNOCK_LIMIT: Duration = Duration::from_secs(5);
/// How long one who was refused may read why.
const LEAVING_LIMIT: Duration = Duration::from_secs(1);
/// A client that takes nothing of what it is sent for so long loses the socket.
const STALLED_MS: u64 = 30_000;

/// Where clients may come from.
pub(crate) struct Listeners {
    pub tcp: Vec<TcpListener>,
    pub unix: Option<UnixListener>,
}

/// Wakes the door's thread when the server stops.
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub fn new() -> io::Result<Bell> {
        Ok(Bell(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    pub fn ring(&self) {
        // Rung already: it is read once.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// Runs until the server stops.
pub(crate) fn run(core: &Arc<Core>, listeners: &Listeners, bell: &Bell) {
    let tick = (core.lease / 16).clamp(Duration::from_millis(10), Duration::from_secs(1));
    let mut knocks: Vec<Knock> = Vec::new();
    let mut next_tick = Instant::now() + tick;
    while !core.is_stopping() {
        let left = next_tick.saturating_duration_since(Instant::now());
        let ready = match wait(listeners, bell, &knocks, left) {
            Ok(ready) => ready,
            Err(error) => {
                tracing::error!("network: waiting for clients: {error}");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        knocks = step(core, knocks, &ready.knocks);
        if ready.listeners {
            accept_all(core, listeners, &mut knocks);
        }
        if Instant::now() >= next_tick {
            next_tick = Instant::now() + tick;
            drop_silent(core, &mut knocks);
            look_at_clock(core);
        }
    }
}

struct Ready {
    listeners: bool,
    knocks: Vec<bool>,
}

fn wait(
    listeners: &Listeners,
    bell: &Bell,
    knocks: &[Knock],
    limit: Duration,
) -> io::Result<Ready> {
    let mut sockets: Vec<BorrowedFd<'_>> = vec![bell.0.as_fd()];
    sockets.extend(listeners.tcp.iter().map(AsFd::as_fd));
    sockets.extend(listeners.unix.iter().map(AsFd::as_fd));
    let before = sockets.len();
    sockets.extend(knocks.iter().map(|knock| knock.stream.as_fd()));
    let mut looked: Vec<PollFd<'_>> = sockets
        .into_iter()
        .map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN))
        .collect();
    let limit = Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    match poll(&mut looked, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let ready: Vec<bool> = looked.iter().map(|fd| !fd.revents().is_empty()).collect();
    Ok(Ready {
        listeners: ready[1..before].contains(&true),
        knocks: ready[before..].to_vec(),
    })
}

fn accept_all(core: &Arc<Core>, listeners: &Listeners, knocks: &mut Vec<Knock>) {
    let tcp = listeners.tcp.iter().flat_map(|listener| {
        std::iter::from_fn(move || taken(listener.accept()))
            .map(|(socket, from)| (Stream::tcp(socket.into()), Some(from)))
    });
    let unix = listeners.unix.iter().flat_map(|listener| {
        std::iter::from_fn(move || taken(listener.accept()))
            .map(|(socket, _)| (Ok(Stream::unix(socket.into())), None))
    });
    for (stream, address) in tcp.chain(unix).take(KNOCKS_MAX) {
        match stream.and_then(|stream| Knock::new(stream, address)) {
            Ok(knock) => knocks.push(knock),
            // Gone before it was looked at.
            Err(error) => tracing::debug!("network: a connection: {error}"),
        }
        if knocks.len() > KNOCKS_MAX {
            let oldest = knocks.remove(0);
            if !oldest.is_leaving() {
                let what = "too many others knock";
                core.refusals
                    .count(RefusedFor::TooMany, name(oldest.address), what);
            }
        }
    }
}

fn taken<T>(accepted: io::Result<T>) -> Option<T> {
    match accepted {
        Ok(accepted) => Some(accepted),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(error) => {
            // Out of descriptors, most likely: the listener stays ready, so this is a pause, too.
            tracing::warn!("network: accept: {error}");
            std::thread::sleep(Duration::from_millis(20));
            None
        }
    }
}

fn step(core: &Arc<Core>, knocks: Vec<Knock>, ready: &[bool]) -> Vec<Knock> {
    let mut left = Vec::with_capacity(knocks.len());
    for (knock, ready) in knocks.into_iter().zip(ready) {
        if !ready {
            left.push(knock);
            continue;
        }
        let address = knock.address;
        let (knock, step) = knock.step(&core.cluster, core.key.bytes());
        match step {
            Step::Wait => left.extend(knock),
            Step::Gone => {}
            Step::Admit(admitted) => submit(core, admitted),
            Step::Refused(reason, what) => {
                core.refusals.count(reason, name(address), what);
                if let Some(mut knock) = knock {
                    knock.leave(reason);
                    left.push(knock);
                }
            }
        }
    }
    left
}

/// A worker asks the host, which may take time.
fn submit(core: &Arc<Core>, admitted: Box<Admitted>) {
    let shared = core.clone();
    core.pool
        .wait(Box::new(move || admit::admit(&shared, *admitted)), 0);
    core.poller.ring(1);
}

fn drop_silent(core: &Arc<Core>, knocks: &mut Vec<Knock>) {
    knocks.retain(|knock| {
        let limit = match knock.is_leaving() {
            true => LEAVING_LIMIT,
            false => KNOCK_LIMIT.min(core.lease),
        };
        let stays = knock.since.elapsed() < limit;
        if !stays && !knock.is_leaving() {
            let what = "it did not finish the handshake";
            core.refusals
                .count(RefusedFor::Silence, name(knock.address), what);
        }
        stays
    });
}

fn name(address: Option<SocketAddr>) -> String {
    match address {
        Some(address) => address.to_string(),
        None => "a process on this machine".to_string(),
    }
}

/// Ends what was silent for too long.
fn look_at_clock(core: &Arc<Core>) {
    for session in core.sessions() {
        if clock::since(session.heard_ms()) > core.lease && !session.is_ending() {
            tracing::warn!("network: {} is silent", super::serve::who(&session));
            act(core, &session, session.end());
        }
    }
    for link in core.links() {
        let stalled = link.stalled_ms().map(clock::since);
        if stalled.is_some_and(|stalled| stalled.as_millis() as u64 > STALLED_MS) {
            let why = NetError::Protocol("it does not take its replies");
            close(core, &link, &why);
        } else if clock::since(link.heard_ms()) > core.lease {
            close(core, &link, &NetError::Closed);
        }
    }
    core.refusals.summarize();
}
