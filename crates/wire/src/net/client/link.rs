//! One link: who waits for which reply, and who reads for all of them.
//!
//! There is no thread that reads replies. Of those who wait, one has the reading end and reads for
//! all, until its own reply has come; then the next one reads. A lone caller reads its reply
//! itself, and nobody has to be woken. Large data is read by the one to whom it goes, who gets the
//! reading end for that.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_types::Errno;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::super::clock;
use super::super::framing::NetError;
use super::super::packet::{Ticket, ToClient};
use super::super::stream::Wait;
use super::calls::{Answer, Awaited, Call, Calls, Outcome};
use super::wire::{Outgoing, Reader, Wire};
use crate::{Descriptor, Reply, Request, Response};

/// Data up to this length is read by whoever reads, and copied: that costs less than a wake-up.
const COPIED_BYTES_MAX: usize = 16 << 10;

pub(crate) struct Link {
    pub number: u16,
    state: Mutex<State>,
    /// The link is connected, or has ended.
    up: Condvar,
    /// One for each slot: its reply is there, or it is its turn to read.
    wake: Box<[Condvar]>,
    /// The link's own thread has something to do.
    tend: Condvar,
    busy: AtomicUsize,
}

struct State {
    wire: Option<Arc<Wire>>,
    /// Counts the sockets that the link has had.
    incarnation: u64,
    /// Here while nobody reads.
    reader: Option<Box<Reader>>,
    calls: Calls,
    down_since: Instant,
    /// The server runs nothing more that comes over this socket.
    stopping: bool,
    ended: bool,
    /// Slots of requests that nobody waits for any more and that the server may still run.
    abandoned: Vec<u16>,
    /// Of sockets that are gone; so are the next two.
    confirmed_ms: u64,
    bytes_in: u64,
    bytes_out: u64,
}

/// What came of reading.
enum Led {
    /// The reader's own reply.
    Mine(Answer, Box<Reader>),
    /// Somebody else reads on.
    HandedOver,
    /// Nothing more is there, and nobody waits for it.
    Idle(Box<Reader>),
    Broken(NetError),
}

/// Why a request got no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// The session has ended. What was `sent` may have run.
    Ended { sent: bool },
    /// The server was away for too long; whether it has run the request is not known.
    Away,
    /// It cannot be sent at all.
    Unsendable(Errno),
}

/// How a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// It has a socket.
    pub connected: bool,
    /// Bytes from the server, over all sockets.
    pub bytes_in: u64,
    /// Bytes to the server, over all sockets.
    pub bytes_out: u64,
    /// How often it was connected again.
    pub reconnects: u64,
}

/// What the link's own thread finds.
pub(crate) enum Seen {
    Up,
    Down,
    Ended,
}

impl State {
    fn is_of(&self, reader: &Reader) -> bool {
        matches!(&self.wire, Some(wire) if Arc::ptr_eq(wire, &reader.wire))
    }
}

impl Link {
    pub fn new(number: u16, slots: u16) -> Link {
        Link {
            number,
            state: Mutex::new(State {
                wire: None,
                incarnation: 0,
                reader: None,
                calls: Calls::new(slots),
                down_since: Instant::now(),
                stopping: false,
                ended: false,
                abandoned: Vec::new(),
                confirmed_ms: 0,
                bytes_in: 0,
                bytes_out: 0,
            }),
            up: Condvar::new(),
            wake: (0..slots).map(|_| Condvar::new()).collect(),
            tend: Condvar::new(),
            busy: AtomicUsize::new(0),
        }
    }

    /// Requests under way, and more than any where the link is down.
    pub fn load(&self) -> usize {
        match self.state.lock().wire {
            Some(_) => self.busy.load(Ordering::Relaxed),
            None => usize::MAX,
        }
    }

    /// Whether it is up, and somebody waits for a reply.
    pub fn is_waited_on(&self) -> bool {
        self.state.lock().wire.is_some() && self.busy.load(Ordering::Relaxed) > 0
    }

    pub fn status(&self) -> LinkState {
        let state = self.state.lock();
        let (bytes_in, bytes_out) = match &state.wire {
            Some(wire) => (wire.stream.received(), wire.stream.sent()),
            None => (0, 0),
        };
        LinkState {
            connected: state.wire.is_some(),
            bytes_in: state.bytes_in + bytes_in,
            bytes_out: state.bytes_out + bytes_out,
            reconnects: state.incarnation.saturating_sub(1),
        }
    }

    /// For how long it has been down.
    pub fn down_for(&self) -> Duration {
        let state = self.state.lock();
        match state.wire {
            Some(_) => Duration::ZERO,
            None => state.down_since.elapsed(),
        }
    }

    /// A new socket. Slots that had been abandoned are free again: the server has ended all that
    /// came over the old one.
    pub fn install(&self, wire: Arc<Wire>, reader: Box<Reader>) -> Vec<u16> {
        let mut state = self.state.lock();
        if state.ended {
            wire.stream.shutdown();
            return Vec::new();
        }
        state.wire = Some(wire);
        state.reader = Some(reader);
        state.incarnation += 1;
        state.stopping = false;
        self.up.notify_all();
        std::mem::take(&mut state.abandoned)
    }

    /// Sends a request, again if need be, and waits for its reply.
    pub fn call(
        &self,
        ticket: Ticket,
        local: bool,
        (request, payload): (&Request, &[u8]),
        into: &mut [u8],
        soft: Option<Duration>,
    ) -> Result<Reply, Unanswered> {
        let outgoing = Outgoing {
            ticket,
            room: into.len(),
            local,
            request,
            payload,
        };
        self.busy.fetch_add(1, Ordering::Relaxed);
        let mut sent = false;
        let result = loop {
            let (wire, incarnation) = match self.register(&outgoing, soft) {
                Ok(up) => up,
                Err(Unanswered::Ended { .. }) => break Err(Unanswered::Ended { sent }),
                Err(why) => break Err(why),
            };
            match wire.send_call(&outgoing) {
                Ok(()) => {}
                Err(NetError::TooLong { .. }) => break Err(Unanswered::Unsendable(Errno::EINVAL)),
                Err(NetError::Malformed(error)) => {
                    tracing::error!("network: {}: {error}", request.name());
                    break Err(Unanswered::Unsendable(Errno::EPROTO));
                }
                // Of what has not gone out as a whole nothing is run.
                Err(error) => {
                    self.broke(incarnation, &error);
                    continue;
                }
            }
            match self.await_reply(ticket, incarnation, into) {
                Awaited::Reply(answer) => break Ok(reply_of(answer)),
                Awaited::Broken => sent = true,
                Awaited::NotRun => {}
            }
        };
        self.busy.fetch_sub(1, Ordering::Relaxed);
        if let Err(why) = result {
            let mut state = self.state.lock();
            state.calls[usize::from(ticket.slot)] = None;
            if why == Unanswered::Away {
                state.abandoned.push(ticket.slot);
            }
        }
        result
    }

    /// Waits until the link is up, and says that a reply is expected.
    fn register(
        &self,
        call: &Outgoing<'_>,
        soft: Option<Duration>,
    ) -> Result<(Arc<Wire>, u64), Unanswered> {
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return Err(Unanswered::Ended { sent: false });
            }
            if let Some(wire) = state.wire.clone().filter(|_| !state.stopping) {
                state.calls[usize::from(call.ticket.slot)] = Some(Call {
                    number: call.ticket.number,
                    incarnation: state.incarnation,
                    sent_ms: clock::now_ms(),
                    room: call.room,
                    waits: false,
                    outcome: None,
                });
                return Ok((wire, state.incarnation));
            }
            match soft {
                None => self.up.wait(&mut state),
                Some(limit) => {
                    let since = match state.wire {
                        Some(_) => Instant::now(),
                        None => state.down_since,
                    };
                    let until = since + limit;
                    if self.up.wait_until(&mut state, until).timed_out() && state.wire.is_none() {
                        return Err(Unanswered::Away);
                    }
                }
            }
        }
    }

    fn await_reply(&self, ticket: Ticket, incarnation: u64, into: &mut [u8]) -> Awaited {
        let slot = usize::from(ticket.slot);
        let mut state = self.state.lock();
        loop {
            let outcome = state.calls[slot]
                .as_mut()
                .and_then(|call| call.outcome.take());
            match outcome {
                Some(Outcome::Whole(answer, data)) => {
                    state.calls[slot] = None;
                    into[..data.len()].copy_from_slice(&data);
                    return Awaited::Reply(answer);
                }
                Some(Outcome::NotRun) => {
                    state.calls[slot] = None;
                    return Awaited::NotRun;
                }
                Some(Outcome::Data(answer, length, crc, mut reader)) => {
                    drop(state);
                    let read = reader.data(&mut into[..length], crc);
                    return self.after_own(slot, incarnation, answer, reader, read);
                }
                None => {}
            }
            if state.incarnation != incarnation || state.wire.is_none() {
                state.calls[slot] = None;
                return Awaited::Broken;
            }
            if let Some(reader) = state.reader.take() {
                drop(state);
                match self.lead(reader, Some((ticket.slot, &mut *into)), Wait::Yes) {
                    Led::Mine(answer, reader) => {
                        return self.after_own(slot, incarnation, answer, reader, Ok(()));
                    }
                    Led::Broken(error) => self.broke(incarnation, &error),
                    Led::Idle(reader) => self.hand_on(self.state.lock(), incarnation, reader),
                    Led::HandedOver => {}
                }
                state = self.state.lock();
                continue;
            }
            if let Some(call) = state.calls[slot].as_mut() {
                call.waits = true;
            }
            self.wake[slot].wait(&mut state);
        }
    }

    /// The own reply was read: the next one reads.
    fn after_own(
        &self,
        slot: usize,
        incarnation: u64,
        answer: Answer,
        reader: Box<Reader>,
        read: Result<(), NetError>,
    ) -> Awaited {
        if let Err(error) = read {
            self.broke(incarnation, &error);
            self.state.lock().calls[slot] = None;
            return Awaited::Broken;
        }
        let mut state = self.state.lock();
        state.calls[slot] = None;
        self.hand_on(state, incarnation, reader);
        Awaited::Reply(answer)
    }

    /// Puts the reading end back, and wakes one who waits for a reply.
    fn hand_on(&self, mut state: MutexGuard<'_, State>, incarnation: u64, reader: Box<Reader>) {
        if state.incarnation != incarnation || state.wire.is_none() {
            return;
        }
        state.reader = Some(reader);
        let waits = |call: &Option<Call>| {
            call.as_ref()
                .is_some_and(|call| call.waits && call.outcome.is_none())
        };
        if let Some(slot) = state.calls.iter().position(waits) {
            self.wake[slot].notify_one();
        }
    }

    /// Reads for all who wait, until the own reply is there.
    fn lead(&self, mut reader: Box<Reader>, mut own: Option<(u16, &mut [u8])>, wait: Wait) -> Led {
        loop {
            let (message, length) = match reader.next(wait) {
                Ok(Some(taken)) => taken,
                Ok(None) => return Led::Idle(reader),
                Err(error) => return Led::Broken(error),
            };
            let (ticket, crc, descriptor, response) = match message {
                ToClient::Reply {
                    ticket,
                    crc,
                    descriptor,
                    response,
                } => (ticket, crc, descriptor, response),
                ToClient::Pong(sent_ms) if length == 0 => {
                    reader.wire.answered(sent_ms.min(clock::now_ms()));
                    continue;
                }
                ToClient::NotRun(ticket) if length == 0 => {
                    self.not_run(&reader, ticket);
                    match &own {
                        Some((slot, _)) if *slot == ticket.slot => return Led::Idle(reader),
                        _ => continue,
                    }
                }
                ToClient::Stopping if length == 0 => {
                    self.stopped(&reader);
                    return Led::Broken(NetError::Closed);
                }
                _ => return Led::Broken(NetError::Protocol("no reply")),
            };
            let answer = match self.expected(&mut reader, ticket, length, descriptor, response) {
                Ok(answer) => answer,
                Err(error) => return Led::Broken(error),
            };
            match &mut own {
                Some((slot, into)) if *slot == ticket.slot => {
                    return match reader.data(&mut into[..length], crc) {
                        Ok(()) => Led::Mine(answer, reader),
                        Err(error) => Led::Broken(error),
                    };
                }
                // Who must not wait for data leaves it to its owner.
                _ if length > COPIED_BYTES_MAX || (length > 0 && wait == Wait::No) => {
                    self.deliver(ticket, Outcome::Data(answer, length, crc, reader));
                    return Led::HandedOver;
                }
                _ => {
                    let mut data = vec![0; length];
                    if let Err(error) = reader.data(&mut data, crc) {
                        return Led::Broken(error);
                    }
                    self.deliver(ticket, Outcome::Whole(answer, data));
                }
            }
        }
    }

    /// Checks a reply against the request that it answers.
    fn expected(
        &self,
        reader: &mut Reader,
        ticket: Ticket,
        length: usize,
        descriptor: bool,
        response: Response,
    ) -> Result<Answer, NetError> {
        let descriptor = match descriptor {
            true => Some(reader.take_descriptor()?),
            false => None,
        };
        let state = self.state.lock();
        let call = state.calls.get(usize::from(ticket.slot));
        let call = call.and_then(|call| call.as_ref());
        let call = call.filter(|call| call.number == ticket.number && call.outcome.is_none());
        let Some(call) = call else {
            return Err(NetError::Protocol("a reply that nobody waits for"));
        };
        let moved = match response.bytes_beside() {
            Some(count) if call.room > 0 => count as usize,
            _ => 0,
        };
        if length > call.room || length != moved {
            return Err(NetError::Protocol("a reply with other data than it says"));
        }
        reader.wire.answered(call.sent_ms);
        Ok(Answer {
            response,
            descriptor,
        })
    }

    /// The server stops, and has not run this one.
    fn not_run(&self, reader: &Reader, ticket: Ticket) {
        let mut state = self.state.lock();
        if state.is_of(reader) {
            state.stopping = true;
            let incarnation = state.incarnation;
            state.calls.not_run(incarnation, |slot, call| {
                slot == ticket.slot && call.number == ticket.number
            });
            if let Some(wake) = self.wake.get(usize::from(ticket.slot)) {
                wake.notify_one();
            }
        }
    }

    /// What has no reply over this socket has not run. Nothing is sent over it between this and the
    /// end of the socket.
    fn stopped(&self, reader: &Reader) {
        let mut state = self.state.lock();
        if state.is_of(reader) {
            let incarnation = state.incarnation;
            state.calls.not_run(incarnation, |_, _| true);
            self.disconnect(&mut state);
        }
    }

    fn deliver(&self, ticket: Ticket, outcome: Outcome) {
        let slot = usize::from(ticket.slot);
        if let Some(call) = &mut self.state.lock().calls[slot] {
            call.outcome = Some(outcome);
        }
        self.wake[slot].notify_one();
    }

    /// The socket is of no use any more: those who wait send again over the next one.
    pub fn broke(&self, incarnation: u64, why: &NetError) {
        let mut state = self.state.lock();
        if state.incarnation == incarnation && state.wire.is_some() {
            tracing::debug!("network: link {}: {why}", self.number);
            self.disconnect(&mut state);
        }
    }

    fn disconnect(&self, state: &mut State) {
        if let Some(wire) = state.wire.take() {
            wire.stream.shutdown();
            state.confirmed_ms = state.confirmed_ms.max(wire.confirmed_ms());
            state.bytes_in += wire.stream.received();
            state.bytes_out += wire.stream.sent();
        }
        state.reader = None;
        state.down_since = Instant::now();
        for (call, wake) in state.calls.iter().zip(&self.wake) {
            if call.is_some() {
                wake.notify_one();
            }
        }
        self.tend.notify_one();
    }

    /// No call waits any more, and none comes.
    pub fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        self.disconnect(&mut state);
        self.up.notify_all();
    }

    /// Says goodbye over this link; false if it is down.
    pub fn bye(&self) -> bool {
        let wire = self.state.lock().wire.clone();
        wire.is_some_and(|wire| match wire.bye() {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!("network: goodbye: {error}");
                false
            }
        })
    }

    /// Sleeps until there is something to do, at most so long; while the link is down, only where
    /// that is asked for.
    pub fn sleep(&self, limit: Duration, while_down: bool) -> Seen {
        let mut state = self.state.lock();
        if !state.ended && (while_down || state.wire.is_some()) {
            self.tend.wait_for(&mut state, limit);
        }
        match (state.ended, &state.wire) {
            (true, _) => Seen::Ended,
            (false, Some(_)) => Seen::Up,
            (false, None) => Seen::Down,
        }
    }

    /// What the link's own thread does while it is up: reads what nobody waits for, asks for a sign
    /// of life, and gives up a server that is silent.
    pub fn look_after(&self, ping_every: Duration, silence: Duration) {
        let (wire, incarnation, reader) = {
            let mut state = self.state.lock();
            let Some(wire) = state.wire.clone() else {
                return;
            };
            (wire, state.incarnation, state.reader.take())
        };
        if let Some(reader) = reader {
            match self.lead(reader, None, Wait::No) {
                Led::Idle(reader) => self.hand_on(self.state.lock(), incarnation, reader),
                Led::Broken(error) => self.broke(incarnation, &error),
                Led::HandedOver | Led::Mine(..) => {}
            }
        }
        let heard_ms = wire.heard_ms();
        if clock::since(heard_ms) > silence {
            let silent = io::Error::new(io::ErrorKind::TimedOut, "the server is silent");
            self.broke(incarnation, &silent.into());
        } else if clock::since(wire.asked_ms()) > ping_every
            && let Err(error) = wire.ping()
        {
            self.broke(incarnation, &error);
        }
    }

    /// The moment up to which the server is known to have heard of this client over this link.
    pub fn confirmed_ms(&self) -> u64 {
        let state = self.state.lock();
        let now = state.wire.as_ref().map_or(0, |wire| wire.confirmed_ms());
        state.confirmed_ms.max(now)
    }
}

struct Received(OwnedFd);

impl Descriptor for Received {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn reply_of(answer: Answer) -> Reply {
    Reply {
        response: answer.response,
        descriptor: answer
            .descriptor
            .map(|fd| Arc::new(Received(fd)) as Arc<dyn Descriptor>),
    }
}
