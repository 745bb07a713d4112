//! A connected socket of a link: its sending end, and its reading end, which is one thread's at a
//! time.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::super::clock;
use super::super::framing::{Inbox, NetError, encode};
use super::super::packet::{FromServer, Ticket, ToServer};
use super::super::seal::{Sealer, TAG_BYTES};
use super::super::stream::{Stream, Wait};
use crate::Request;

/// Descriptors that have come before the message that tells of them; an honest server is not ahead
/// by more than one call reads.
const DESCRIPTORS_MAX: usize = 256;

pub(crate) struct Wire {
    pub stream: Stream,
    encrypt: bool,
    out: Mutex<Out>,
    heard_ms: AtomicU64,
    /// When the newest of what the server has answered was sent.
    confirmed_ms: AtomicU64,
    pinged_ms: AtomicU64,
}

struct Out {
    sealer: Sealer,
    head: Vec<u8>,
    /// Encrypted data; empty where data is plain.
    data: Vec<u8>,
}

/// A request on its way.
pub(crate) struct Outgoing<'a> {
    pub ticket: Ticket,
    pub room: usize,
    pub local: bool,
    pub request: &'a Request,
    pub payload: &'a [u8],
}

impl Wire {
    pub fn new(stream: Stream, sealer: Sealer, encrypt: bool, sent_ms: u64) -> Wire {
        Wire {
            stream,
            encrypt,
            out: Mutex::new(Out {
                sealer,
                head: Vec::new(),
                data: Vec::new(),
            }),
            heard_ms: AtomicU64::new(clock::now_ms()),
            confirmed_ms: AtomicU64::new(sent_ms),
            pinged_ms: AtomicU64::new(sent_ms),
        }
    }

    /// Sends a request; the payload goes to the socket from where it lies.
    pub fn send_call(&self, call: &Outgoing<'_>) -> Result<(), NetError> {
        let sealed = self.encrypt && !call.payload.is_empty();
        // Before others wait for the socket; what is sealed vouches for itself.
        let crc = match sealed {
            true => 0,
            false => crc32c::crc32c(call.payload),
        };
        let message = ToServer::Call {
            ticket: call.ticket,
            room: call.room as u32,
            local: call.local,
            crc,
            request: call.request,
        };
        let mut out = self.out.lock();
        let out = &mut *out;
        encode(&mut out.sealer, &mut out.head, &message, call.payload.len())?;
        let mut data = call.payload;
        if sealed {
            out.data.clear();
            out.data.extend_from_slice(call.payload);
            let tag = out.sealer.seal(&[], &mut out.data)?;
            out.data.extend_from_slice(&tag);
            data = &out.data;
        }
        self.stream
            .send_all(&mut [IoSlice::new(&out.head), IoSlice::new(data)])?;
        Ok(())
    }

    fn send_on(
        &self,
        mut out: MutexGuard<'_, Out>,
        message: &ToServer<()>,
    ) -> Result<(), NetError> {
        let out = &mut *out;
        encode(&mut out.sealer, &mut out.head, message, 0)?;
        self.stream.send_all(&mut [IoSlice::new(&out.head)])?;
        Ok(())
    }

    /// Sends a message without a request.
    pub fn send(&self, message: &ToServer<()>) -> Result<(), NetError> {
        self.send_on(self.out.lock(), message)
    }

    /// Asks for a sign of life, unless somebody sends just now.
    pub fn ping(&self) -> Result<(), NetError> {
        let Some(out) = self.out.try_lock() else {
            return Ok(());
        };
        let now = clock::now_ms();
        self.pinged_ms.store(now, Ordering::Relaxed);
        self.send_on(out, &ToServer::Ping(now))
    }

    /// Says that the session is over. Who sends just now, to a server that does not read, keeps
    /// the server from being told; the lease will.
    pub fn bye(&self) -> Result<(), NetError> {
        match self.out.try_lock_for(Duration::from_millis(100)) {
            Some(out) => self.send_on(out, &ToServer::Bye),
            None => Ok(()),
        }
    }

    /// The server has answered what was sent at that moment.
    pub fn answered(&self, sent_ms: u64) {
        self.heard_ms.fetch_max(clock::now_ms(), Ordering::Relaxed);
        self.confirmed_ms.fetch_max(sent_ms, Ordering::Relaxed);
    }

    pub fn heard_ms(&self) -> u64 {
        self.heard_ms.load(Ordering::Relaxed)
    }

    /// When the newest of what the server has answered was sent.
    pub fn confirmed_ms(&self) -> u64 {
        self.confirmed_ms.load(Ordering::Relaxed)
    }

    /// When it last asked, or sent something that was answered.
    pub fn asked_ms(&self) -> u64 {
        let confirmed = self.confirmed_ms.load(Ordering::Relaxed);
        confirmed.max(self.pinged_ms.load(Ordering::Relaxed))
    }
}

/// The reading end. Who has it reads for all who wait for replies.
pub(crate) struct Reader {
    pub wire: Arc<Wire>,
    inbox: Inbox,
    descriptors: VecDeque<OwnedFd>,
}

impl Reader {
    pub fn new(wire: Arc<Wire>, inbox: Inbox) -> Reader {
        Reader {
            wire,
            inbox,
            descriptors: VecDeque::new(),
        }
    }

    /// The next message, and the length of the data that follows; `None` if it is not there yet and
    /// is not waited for.
    pub fn next(&mut self, wait: Wait) -> Result<Option<(FromServer, usize)>, NetError> {
        loop {
            if let Some(taken) = self.inbox.take_message()? {
                return Ok(Some(taken));
            }
            match self.read_some(wait) {
                Ok(0) => return Err(NetError::Closed),
                Ok(count) => self.inbox.arrived(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            if self.descriptors.len() > DESCRIPTORS_MAX {
                return Err(NetError::Protocol("descriptors that no reply tells of"));
            }
        }
    }

    fn read_some(&mut self, wait: Wait) -> io::Result<usize> {
        let stream = &self.wire.stream;
        match stream.is_unix() {
            false => stream.recv(self.inbox.room(), wait),
            true => {
                let descriptors = &mut self.descriptors;
                stream.recv_with(self.inbox.room(), wait, |fd| descriptors.push_back(fd))
            }
        }
    }

    /// The descriptor that has come with the message that was taken last.
    pub fn take_descriptor(&mut self) -> Result<OwnedFd, NetError> {
        let missing = NetError::Protocol("a reply without the descriptor that it tells of");
        self.descriptors.pop_front().ok_or(missing)
    }

    /// The data of the message that was taken last, all of it, straight into its place.
    pub fn data(&mut self, into: &mut [u8], crc: u32) -> Result<(), NetError> {
        if into.is_empty() {
            return Ok(());
        }
        let mut filled = self.inbox.take_data(into);
        while filled < into.len() {
            match self.wire.stream.recv(&mut into[filled..], Wait::All)? {
                0 => return Err(NetError::Closed),
                count => filled += count,
            }
        }
        if !self.wire.encrypt {
            return Inbox::check_data(into, crc);
        }
        while self.inbox.buffered() < TAG_BYTES {
            match self.read_some(Wait::Yes)? {
                0 => return Err(NetError::Closed),
                count => self.inbox.arrived(count),
            }
        }
        let mut tag = [0; TAG_BYTES];
        self.inbox.take_data(&mut tag);
        self.inbox.open_data(into, tag)
    }
}
