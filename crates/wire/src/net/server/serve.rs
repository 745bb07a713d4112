//! From a request that has arrived to its reply.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_types::Errno;

use super::super::framing::NetError;
use super::super::packet::{Attached, ToClient};
use super::buffers::Buffers;
use super::core::Core;
use super::link::{Arrived, Call, Frame, Link};
use super::pool::Turn as ThreadTurn;
use super::refusals::RefusedFor;
use super::session::{self, After, Begins, Session};
use super::slots::Turn;
use crate::{Peer, Reply, Request, Response};

/// For how long a server that stops waits for what runs.
const STOP_SETTLES: Duration = Duration::from_secs(2);
/// A client that takes nothing for so long is not waited for.
const STOP_STALLS: Duration = Duration::from_millis(500);
/// For how long it waits for clients to hang up. One that asks for nothing looks a second later.
const STOP_HANGS_UP: Duration = Duration::from_millis(250);
/// Between two looks at that.
const STOP_LOOK: Duration = Duration::from_millis(2);

/// What a thread does after it has looked at a link.
pub(crate) enum Then {
    /// Nothing.
    Nothing,
    /// This request, with a spare thread in its place or not.
    Run(Box<Call>, bool),
}

/// The link's socket has something. Whatever it is, the socket is watched again when this returns,
/// unless it is closed or too much waits.
pub(crate) fn receive(core: &Arc<Core>, link: &Arc<Link>) -> Then {
    if link.is_closed() {
        return Then::Nothing;
    }
    let then = match link.receive(&core.buffers) {
        Ok(Some(Arrived::Call(call))) => return arrived(core, link, call),
        Ok(Some(Arrived::Ping(clock))) => say(core, link, Frame::of(ToClient::Pong(clock))),
        Ok(Some(Arrived::Bye)) => {
            act(core, &link.session, link.session.end());
            return Then::Nothing;
        }
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    match then.and_then(|()| Ok(link.arm()?)) {
        Ok(()) => {}
        Err(error) => close(core, link, &error),
    }
    Then::Nothing
}

/// A request is whole. It may have run before.
fn arrived(core: &Arc<Core>, link: &Arc<Link>, call: Box<Call>) -> Then {
    let session = &link.session;
    match session.begin(link, &call.request) {
        Begins::Now => {}
        Begins::NotRun => {
            let told = link.send(Frame::of(ToClient::NotRun(call.ticket)));
            // What lies unread in a socket takes away what was sent to the other end.
            if let Err(error) = told.and_then(|()| Ok(link.arm()?)) {
                close(core, link, &error);
            }
            return Then::Nothing;
        }
        Begins::Never => return Then::Nothing,
    }
    let repeatable = call.request.is_repeatable();
    let listens = session::listens(&call.request);
    let refused = match session.slots.begin(call.ticket, repeatable) {
        Turn::Run => return take_turn(core, link, call),
        Turn::Answered(response) => {
            let sent = say(core, link, reply_of(link, &call, response.into(), None));
            sent.and_then(|()| Ok(link.arm()?)).err()
        }
        Turn::Late => Some(NetError::Late),
        Turn::Wrong(what) => Some(NetError::Protocol(what)),
    };
    if let Some(error) = refused {
        close(core, link, &error);
    }
    act(core, session, session.finish(link, listens));
    Then::Nothing
}

/// The socket is watched again before the request runs, so that others on it can run, too.
fn take_turn(core: &Arc<Core>, link: &Arc<Link>, call: Box<Call>) -> Then {
    if let Request::Recalls { seen, settled } = call.request {
        listen(core, link, call, (seen, settled != 0));
        return Then::Nothing;
    }
    match core.pool.turn() {
        ThreadTurn::Now { spare } => {
            arm(core, link);
            Then::Run(call, spare)
        }
        ThreadTurn::Later { full } => {
            if !full {
                arm(core, link);
            }
            let bytes = call.payload.len();
            let (core_then, link_then) = (core.clone(), link.clone());
            let job = move || {
                if full {
                    arm(&core_then, &link_then);
                }
                run(&core_then, &link_then, *call);
            };
            core.pool.wait(Box::new(job), bytes);
            core.poller.ring(1);
            Then::Nothing
        }
    }
}

/// A client waits for recalls: that takes no thread, so that as many as there are may wait, and
/// what they have followed is known even where all threads wait for that.
fn listen(core: &Arc<Core>, link: &Arc<Link>, call: Box<Call>, followed: (u64, bool)) {
    arm(core, link);
    let session = link.session.clone();
    let (core, link) = (core.clone(), link.clone());
    let answer = {
        let link = link.clone();
        Box::new(move |response: Response| {
            let session = &link.session;
            session.slots.finish(call.ticket, None);
            let reply = reply_of(&link, &call, response.into(), None);
            if let Err(error) = say(&core, &link, reply) {
                close(&core, &link, &error);
            }
            act(&core, session, session.finish(&link, true));
        })
    };
    session.guest.listen(followed.0, followed.1, answer);
    // Whoever has closed it before did not find the listener.
    if link.is_closed() || session.is_ending() {
        session.guest.hush();
    }
}

fn arm(core: &Arc<Core>, link: &Arc<Link>) {
    if let Err(error) = link.arm() {
        close(core, link, &error.into());
    }
}

/// Runs a request, remembers its reply, and sends it.
pub(crate) fn run(core: &Arc<Core>, link: &Arc<Link>, call: Call) {
    let session = &link.session;
    if !core.host.may_answer() {
        // Another server may have run it by now.
        session.slots.forget(call.ticket);
        close(core, link, &NetError::Unanswerable);
        return act(core, session, session.finish(link, false));
    }
    let mut into = Buffers::take(&core.buffers, call.room);
    let reply = match call.request.check() {
        Ok(()) => handle(session, link, &call, &mut into),
        Err(errno) => errno.into(),
    };
    let remembered = match call.request.is_repeatable() {
        true => None,
        false => Some(reply.response.clone()),
    };
    session.slots.finish(call.ticket, remembered);
    let frame = match reply.response.bytes_beside() {
        Some(count) if count as usize <= call.room && call.room > 0 => {
            into.shorten(count as usize);
            reply_of(link, &call, reply, Some(into))
        }
        Some(_) if call.room > 0 => {
            tracing::error!("network: {} moved more than asked for", call.request.name());
            reply_of(link, &call, Errno::EIO.into(), None)
        }
        _ => reply_of(link, &call, reply, None),
    };
    if let Err(error) = say(core, link, frame) {
        close(core, link, &error);
    }
    act(core, session, session.finish(link, false));
}

/// Sends what the host vouches for. Whether it may is asked after the request has run: then it was
/// so while the request ran, too.
fn say(core: &Core, link: &Link, frame: Frame) -> Result<(), NetError> {
    match core.host.may_answer() {
        true => link.send(frame),
        false => Err(NetError::Unanswerable),
    }
}

/// Stops in order: lets nothing begin, waits for what runs, and tells the clients what has not run
/// ([`ToClient::NotRun`], [`ToClient::Stopping`]). Who has something running for long is told of
/// single requests only.
pub(crate) fn stop(core: &Arc<Core>, sessions: &[Arc<Session>]) {
    let wait_until = |limit: Duration, is_so: &dyn Fn(&Arc<Session>) -> bool| {
        let until = Instant::now() + limit;
        while !sessions.iter().all(is_so) && Instant::now() < until {
            std::thread::sleep(STOP_LOOK);
        }
    };
    sessions.iter().for_each(|session| session.stop());
    // One may wait for another one's client to follow a recall: so all settle before any is told.
    wait_until(STOP_SETTLES, &|session| session.has_settled());
    for session in sessions.iter().filter(|session| session.may_be_told()) {
        for link in session.links() {
            if let Err(error) = link.send(Frame::of(ToClient::Stopping)) {
                close(core, &link, &error);
            }
        }
    }
    wait_until(STOP_SETTLES, &|session| {
        session
            .links()
            .iter()
            .all(|link| link.has_sent(STOP_STALLS))
    });
    // What a client sends meanwhile is read: unread, it would take away what was sent to it.
    wait_until(STOP_HANGS_UP, &|session| {
        session.links().is_empty() || !session.has_settled()
    });
}

/// Ends all sessions. Only when no client can be answered any more is anybody let go who waits for
/// another client: to the program it would look as if that one had followed.
pub(crate) fn end_all(core: &Arc<Core>, sessions: Vec<Arc<Session>>) {
    let ended: Vec<_> = sessions.iter().map(|session| session.end()).collect();
    for link in ended.iter().flat_map(|after| &after.close) {
        if link.close() {
            core.remove_link(link.id);
        }
    }
    for (session, after) in sessions.iter().zip(ended) {
        act(core, session, after);
    }
}

fn handle(session: &Session, link: &Link, call: &Call, into: &mut [u8]) -> Reply {
    let peer = Peer {
        uid: session.facts.mount_uid,
        gid: 0,
        groups: &[],
        local: link.stream.is_unix() && call.local,
        near: !link.stream.is_unix() && call.local,
        mount: true,
        socket: None,
    };
    let request = call.request.clone();
    let handled = catch_unwind(AssertUnwindSafe(|| {
        session.guest.handle(peer, request, &call.payload, into)
    }));
    // The panic hook has told of it; here only the request must come to its end.
    handled.unwrap_or_else(|_| Errno::EIO.into())
}

fn reply_of(link: &Link, call: &Call, reply: Reply, data: Option<super::buffers::Buffer>) -> Frame {
    let data = data.filter(|data| !data.is_empty());
    // What is sealed vouches for itself.
    let plain = data.as_ref().filter(|_| !link.encrypt);
    let crc = plain.map_or(0, |data| crc32c::crc32c(data));
    Frame {
        message: ToClient::Reply {
            ticket: call.ticket,
            crc,
            descriptor: reply.descriptor.is_some(),
            response: reply.response,
        },
        data,
        descriptor: reply.descriptor,
    }
}

/// The output of a link goes on.
pub(crate) fn drain(core: &Arc<Core>, link: &Arc<Link>) {
    if let Err(error) = link.drain() {
        close(core, link, &error);
    }
}

/// Gives a link up. On a Unix socket this means that the client is dead; a command does not come
/// again, either.
pub(crate) fn close(core: &Arc<Core>, link: &Arc<Link>, why: &NetError) {
    let session = &link.session;
    if link.close() {
        core.remove_link(link.id);
        if why.is_fault() {
            let reason = match why {
                NetError::Late => RefusedFor::Late,
                _ => RefusedFor::Damaged,
            };
            core.refusals.count(reason, who(session), why);
        }
        tracing::debug!("network: link {} of {}: {why}", link.number, who(session));
    }
    act(core, session, session.closed(link));
    // A client that is told that the server stops hangs up one link after the other.
    if !session.is_stopping() && (link.stream.is_unix() || session.facts.command) {
        act(core, session, session.end());
    }
}

/// Does what follows from a change of a session.
pub(crate) fn act(core: &Arc<Core>, session: &Arc<Session>, after: After) {
    for link in after.close {
        if link.close() {
            core.remove_link(link.id);
        }
    }
    if after.hush {
        session.guest.hush();
    }
    if let Some(link) = after.attach {
        attach(core, &link);
    }
    if after.ended {
        let (core_then, session) = (core.clone(), session.clone());
        core.pool
            .wait(Box::new(move || end(&core_then, &session)), 0);
        core.poller.ring(1);
    }
}

/// Tells a client that its link is let in.
fn attach(core: &Arc<Core>, link: &Arc<Link>) {
    link.attach();
    let attached = Attached {
        session: link.session.id,
        epoch: core.host.epoch(),
        slots: link.session.slot_count,
        lease_ms: core.lease.as_millis() as u64,
        rate: core.rate,
    };
    if let Err(error) = say(core, link, Frame::of(ToClient::Attached(attached))) {
        close(core, link, &error);
    }
}

fn end(core: &Arc<Core>, session: &Arc<Session>) {
    // The panic hook has told of it; the session is forgotten all the same.
    drop(catch_unwind(AssertUnwindSafe(|| session.guest.end())));
    core.remove_session(session.id);
    match session.facts.command {
        true => tracing::debug!("network: {} has asked", who(session)),
        false => tracing::info!("network: {} has left", who(session)),
    }
}

/// What a client is called in the log.
pub(crate) fn who(session: &Session) -> String {
    let facts = &session.facts;
    match facts.address {
        Some(address) => format!("{} (process {}, {address})", facts.host, facts.pid),
        None => format!("{} (process {})", facts.host, facts.pid),
    }
}
