//! One socket of a session: what comes in, and what goes out.
//!
//! Nobody waits for a peer here. A frame that arrives in pieces stays with the link, and so does a
//! reply that the socket does not take.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_types::{Errno, limits};
use parking_lot::Mutex;

use super::super::clock;
use super::super::framing::{Inbox, NetError, encode};
use super::super::packet::{FromClient, Ticket, ToClient, ToServer};
use super::super::seal::{Sealer, TAG_BYTES};
use super::super::stream::{Stream, Wait};
use super::buffers::{Buffer, Buffers};
use super::poller::{About, Poller};
use super::session::Session;
use crate::{Descriptor, Request, Response};

/// How long a thread stays in one call with a socket in the middle of a frame: about what one
/// megabyte takes on a fast network.
const PATIENCE: Duration = Duration::from_millis(2);
/// How often it does so for one frame: a peer that sends byte after byte gets no thread of its own.
const WAITS_MAX: usize = 16;

pub(crate) struct Link {
    pub id: u64,
    pub number: u16,
    pub session: Arc<Session>,
    pub stream: Stream,
    pub encrypt: bool,
    poller: Arc<Poller>,
    attached: AtomicBool,
    closed: AtomicBool,
    heard_ms: AtomicU64,
    input: Mutex<Input>,
    output: Mutex<Output>,
    /// Held by the one thread for which `Output::writing` was set.
    writer: Mutex<Writer>,
}

struct Input {
    inbox: Inbox,
    partial: Option<Partial>,
    /// This frame has kept a thread waiting already.
    waited: bool,
}

/// A request whose data is not all there.
struct Partial {
    call: Call,
    filled: usize,
}

/// A request that has arrived.
pub(crate) struct Call {
    pub ticket: Ticket,
    pub room: usize,
    pub local: bool,
    crc: u32,
    pub request: Request,
    pub payload: Buffer,
}

/// What has arrived.
pub(crate) enum Arrived {
    Ping(u64),
    Bye,
    Call(Box<Call>),
}

#[derive(Default)]
struct Output {
    frames: VecDeque<Frame>,
    /// Somebody sends, or waits for the socket to take more.
    writing: bool,
    /// Since when the socket has taken nothing, milliseconds.
    stalled_ms: Option<u64>,
}

/// Something to be sent.
pub(crate) struct Frame {
    pub message: ToClient<Response>,
    pub data: Option<Buffer>,
    pub descriptor: Option<Arc<dyn Descriptor>>,
}

impl Frame {
    pub fn of(message: ToClient<Response>) -> Frame {
        Frame {
            message,
            data: None,
            descriptor: None,
        }
    }
}

struct Writer {
    sealer: Sealer,
    /// Head, message and tag of the frame that is being sent.
    head: Vec<u8>,
    data: Option<Buffer>,
    /// Tag of its data, where data is sealed.
    tail: Vec<u8>,
    sent: usize,
    descriptor: Option<Arc<dyn Descriptor>>,
    /// The socket once more, to be watched for room.
    watched: Option<OwnedFd>,
}

/// What a link is made of.
pub(crate) struct Parts {
    pub id: u64,
    pub number: u16,
    pub session: Arc<Session>,
    pub stream: Stream,
    pub encrypt: bool,
    pub sealer: Sealer,
    pub inbox: Inbox,
    pub poller: Arc<Poller>,
}

impl Link {
    pub fn new(parts: Parts) -> io::Result<Link> {
        parts.stream.limit_waits(PATIENCE)?;
        let mut inbox = parts.inbox;
        inbox.widen();
        Ok(Link {
            id: parts.id,
            number: parts.number,
            session: parts.session,
            stream: parts.stream,
            encrypt: parts.encrypt,
            poller: parts.poller,
            attached: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            heard_ms: AtomicU64::new(clock::now_ms()),
            input: Mutex::new(Input {
                inbox,
                partial: None,
                waited: false,
            }),
            output: Mutex::default(),
            writer: Mutex::new(Writer {
                sealer: parts.sealer,
                head: Vec::new(),
                data: None,
                tail: Vec::new(),
                sent: 0,
                descriptor: None,
                watched: None,
            }),
        })
    }

    /// From now on requests are taken.
    pub fn attach(&self) {
        self.attached.store(true, Ordering::Release);
    }

    /// Breaks the socket; true the first time.
    pub fn close(&self) -> bool {
        let first = !self.closed.swap(true, Ordering::AcqRel);
        if first {
            self.stream.shutdown();
            // The link may be kept for a while, until the next one takes its seat.
            self.output.lock().frames.clear();
        }
        first
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub fn heard_ms(&self) -> u64 {
        self.heard_ms.load(Ordering::Relaxed)
    }

    /// Since when the client has not taken what it is sent.
    pub fn stalled_ms(&self) -> Option<u64> {
        self.output.lock().stalled_ms
    }

    /// Whether all that was to be sent is on its way, or the client has taken nothing for so long.
    pub fn has_sent(&self, stalled_for: Duration) -> bool {
        let output = self.output.lock();
        let stalls = |since_ms| clock::since(since_ms) > stalled_for;
        !output.writing || output.stalled_ms.is_some_and(stalls)
    }

    /// Begins to watch the socket.
    pub fn watch(&self) -> io::Result<()> {
        self.poller.add(&self.stream, About::Input(self.id))?;
        self.arm()
    }

    /// Watches the socket for the next frame; at once, where it has arrived already.
    pub fn arm(&self) -> io::Result<()> {
        let about = About::Input(self.id);
        let more = {
            let input = self.input.lock();
            input.inbox.buffered() > 0 && input.partial.is_none() && !input.waited
        };
        match more {
            true => self.poller.arm_at_once(&self.stream, about),
            false => self.poller.arm(&self.stream, about),
        }
    }

    /// What has arrived, if it is whole. Called by the thread that got the link's event.
    pub fn receive(&self, buffers: &Arc<Buffers>) -> Result<Option<Arrived>, NetError> {
        let mut input = self.input.lock();
        let input = &mut *input;
        let mut waits = 0;
        loop {
            if let Some(arrived) = self.take(input, buffers)? {
                input.waited = false;
                self.heard_ms.store(clock::now_ms(), Ordering::Relaxed);
                self.session.heard();
                return Ok(Some(arrived));
            }
            let begun = input.partial.is_some() || input.inbox.buffered() > 0;
            let wait = match begun && !input.waited && waits < WAITS_MAX {
                true => Wait::All,
                false => Wait::No,
            };
            waits += usize::from(begun);
            match self.read_some(input, wait) {
                Ok(0) => return Err(NetError::Closed),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    input.waited = begun;
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Data goes where it belongs, all else into the inbox.
    fn read_some(&self, input: &mut Input, wait: Wait) -> io::Result<usize> {
        if let Some(partial) = &mut input.partial {
            let payload = &mut partial.call.payload;
            if partial.filled < payload.len() {
                let count = self.stream.recv(&mut payload[partial.filled..], wait)?;
                partial.filled += count;
                return Ok(count);
            }
        }
        // More may be there than belongs to this frame, or less: not all of the room is waited for.
        let wait = match wait {
            Wait::All => Wait::Yes,
            wait => wait,
        };
        let count = self.stream.recv(input.inbox.room(), wait)?;
        input.inbox.arrived(count);
        Ok(count)
    }

    fn take(&self, input: &mut Input, buffers: &Arc<Buffers>) -> Result<Option<Arrived>, NetError> {
        let mut partial = match input.partial.take() {
            Some(partial) => partial,
            None => match input.inbox.take_message::<FromClient>()? {
                None => return Ok(None),
                Some((message, data)) => match self.begin(message, data, buffers)? {
                    Begun::Whole(arrived) => return Ok(Some(arrived)),
                    Begun::Partial(partial) => partial,
                },
            },
        };
        let payload = &mut partial.call.payload;
        if partial.filled < payload.len() {
            partial.filled += input.inbox.take_data(&mut payload[partial.filled..]);
        }
        let tag_bytes = match self.encrypt && !payload.is_empty() {
            true => TAG_BYTES,
            false => 0,
        };
        if partial.filled < payload.len() || input.inbox.buffered() < tag_bytes {
            input.partial = Some(partial);
            return Ok(None);
        }
        if tag_bytes > 0 {
            let mut tag = [0; TAG_BYTES];
            input.inbox.take_data(&mut tag);
            input.inbox.open_data(payload, tag)?;
        } else if !payload.is_empty() {
            Inbox::check_data(payload, partial.call.crc)?;
        }
        Ok(Some(Arrived::Call(Box::new(partial.call))))
    }

    fn begin(
        &self,
        message: FromClient,
        data: usize,
        buffers: &Arc<Buffers>,
    ) -> Result<Begun, NetError> {
        let arrived = match message {
            ToServer::Call {
                ticket,
                room,
                local,
                crc,
                request,
            } => {
                if !self.attached.load(Ordering::Acquire) {
                    return Err(NetError::Protocol("a request before the link is let in"));
                }
                if room as usize > limits::IO_BYTES_MAX {
                    return Err(NetError::Protocol("more room than a reply has data"));
                }
                let call = Call {
                    ticket,
                    room: room as usize,
                    local,
                    crc,
                    request,
                    payload: Buffers::take(buffers, data),
                };
                return Ok(Begun::Partial(Partial { call, filled: 0 }));
            }
            ToServer::Ping(clock) => Arrived::Ping(clock),
            ToServer::Bye => Arrived::Bye,
            ToServer::Attach(_) => return Err(NetError::Protocol("a second attach")),
        };
        match data {
            0 => Ok(Begun::Whole(arrived)),
            _ => Err(NetError::Protocol("data without a request")),
        }
    }

    /// Sends a frame, or leaves it to who sends already, or to the time when the socket takes more.
    pub fn send(&self, frame: Frame) -> Result<(), NetError> {
        let mut output = self.output.lock();
        if self.is_closed() {
            // Nobody waits for it here: it is remembered, or the request comes again.
            return Ok(());
        }
        // A client has at most one reply to get in each slot, and few answers to pings.
        if output.frames.len() > usize::from(self.session.slot_count) + 64 {
            return Err(NetError::Protocol("it does not take its replies"));
        }
        output.frames.push_back(frame);
        if std::mem::replace(&mut output.writing, true) {
            return Ok(());
        }
        drop(output);
        self.drain()
    }

    /// Sends what waits. Called by who has set `writing`, or got the output's event.
    pub fn drain(&self) -> Result<(), NetError> {
        let mut writer = self.writer.lock();
        let mut waits = 0;
        loop {
            if writer.is_done() && !self.next_frame(&mut writer)? {
                return Ok(());
            }
            if waits == WAITS_MAX {
                return self.leave_to_event(&mut writer);
            }
            match writer.send_some(&self.stream) {
                Ok(()) if writer.is_done() => waits = 0,
                // It has taken a part in the time that it had.
                Ok(()) => waits += 1,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return self.leave_to_event(&mut writer);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn next_frame(&self, writer: &mut Writer) -> Result<bool, NetError> {
        let mut output = self.output.lock();
        output.stalled_ms = None;
        let Some(frame) = output.frames.pop_front() else {
            output.writing = false;
            return Ok(false);
        };
        drop(output);
        writer.load(frame, self.encrypt)?;
        Ok(true)
    }

    fn leave_to_event(&self, writer: &mut Writer) -> Result<(), NetError> {
        self.output
            .lock()
            .stalled_ms
            .get_or_insert_with(clock::now_ms);
        let about = About::Output(self.id);
        let socket = match writer.watched.take() {
            Some(socket) => socket,
            None => {
                let socket = self.stream.as_fd().try_clone_to_owned()?;
                self.poller.add(&socket, about)?;
                socket
            }
        };
        let armed = self.poller.arm(&socket, about);
        writer.watched = Some(socket);
        Ok(armed?)
    }
}

enum Begun {
    Whole(Arrived),
    Partial(Partial),
}

impl Writer {
    fn is_done(&self) -> bool {
        let data = self.data.as_ref().map_or(0, |data| data.len());
        self.sent == self.head.len() + data + self.tail.len()
    }

    fn load(&mut self, frame: Frame, encrypt: bool) -> Result<(), NetError> {
        self.sent = 0;
        self.tail.clear();
        self.descriptor = frame.descriptor;
        self.data = frame.data;
        let length = self.data.as_ref().map_or(0, |data| data.len());
        match encode(&mut self.sealer, &mut self.head, &frame.message, length) {
            Err(NetError::TooLong { message, .. }) => {
                let ToClient::Reply { ticket, .. } = frame.message else {
                    return Err(NetError::Protocol("a message over the limits"));
                };
                tracing::error!("network: a reply of {message} bytes is over the limit");
                (self.descriptor, self.data) = (None, None);
                let failed = ToClient::Reply {
                    ticket,
                    crc: 0,
                    descriptor: false,
                    response: Response::Failed(Errno::EIO),
                };
                return encode(&mut self.sealer, &mut self.head, &failed, 0);
            }
            encoded => encoded?,
        }
        if let Some(data) = self.data.as_mut().filter(|_| encrypt) {
            let tag = self.sealer.seal(&[], data)?;
            self.tail.extend_from_slice(&tag);
        }
        Ok(())
    }

    fn send_some(&mut self, stream: &Stream) -> io::Result<()> {
        let data: &[u8] = self.data.as_deref().unwrap_or_default();
        let mut slices = [&self.head[..], data, &self.tail[..]].map(IoSlice::new);
        let mut left = &mut slices[..];
        IoSlice::advance_slices(&mut left, self.sent);
        let held = self.descriptor.clone();
        let descriptor = held.as_ref().map(|held| held.descriptor());
        let count = stream.send(left, descriptor, Wait::All)?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.sent += count;
        // It went with the first byte.
        self.descriptor = None;
        if self.is_done() {
            self.data = None;
            self.sent = self.head.len() + self.tail.len();
        }
        Ok(())
    }
}
