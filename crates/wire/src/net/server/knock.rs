//! A stranger at the door: hello, handshake, first sealed message.
//!
//! Nothing here waits, and a stranger costs no more than a socket and two kilobytes until it has
//! proved to have the key.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::time::Instant;

use super::super::framing::{HEAD_BYTES, Inbox, NetError};
use super::super::hello::{self, GO_ON, HELLO_BYTES, HelloError};
use super::super::packet::{ATTACH_BYTES_MAX, FromClient, ToServer};
use super::super::seal::Sealer;
use super::super::secret::{HANDSHAKE_BYTES, Handshake};
use super::super::stream::{Stream, Wait};
use super::admit::Admitted;
use super::refusals::RefusedFor;

/// What a server says instead of going on, in one byte.
pub(crate) fn code_of(reason: RefusedFor) -> u8 {
    match reason {
        RefusedFor::Cluster => 1,
        RefusedFor::Key => 2,
        RefusedFor::TooMany => 3,
        _ => 4,
    }
}

pub(crate) struct Knock {
    pub stream: Stream,
    pub address: Option<SocketAddr>,
    pub since: Instant,
    phase: Phase,
    bytes: [u8; HELLO_BYTES],
    filled: usize,
}

#[allow(clippy::large_enum_variant)] // there are few of them
enum Phase {
    Hello,
    Handshake {
        said: Box<[u8; 2 * HELLO_BYTES]>,
    },
    Attach {
        sealer: Sealer,
        inbox: Inbox,
    },
    /// It was refused, and may still be reading why.
    Leaving,
}

/// How a knock goes on.
pub(crate) enum Step {
    /// More is to come.
    Wait,
    /// It has the key.
    Admit(Box<Admitted>),
    Refused(RefusedFor, String),
    /// It has gone by itself.
    Gone,
}

impl Knock {
    /// Says this side's hello.
    pub fn new(stream: Stream, address: Option<SocketAddr>) -> io::Result<Knock> {
        let knock = Knock {
            stream,
            address,
            since: Instant::now(),
            phase: Phase::Hello,
            bytes: [0; HELLO_BYTES],
            filled: 0,
        };
        knock.say(&hello::hello(""))?;
        Ok(knock)
    }

    /// What is said here fits into an empty socket.
    fn say(&self, bytes: &[u8]) -> io::Result<()> {
        match self.stream.send(&[IoSlice::new(bytes)], None, Wait::No)? {
            count if count == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    pub fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving)
    }

    /// Tells it why not, and goes on reading until it has gone: closing a socket with something
    /// unread would take away what was said last.
    pub fn leave(&mut self, reason: RefusedFor) {
        if !matches!(self.phase, Phase::Attach { .. }) {
            // Who has gone need not be told.
            drop(self.say(&[code_of(reason)]));
        }
        self.stream.shutdown_writing();
        self.phase = Phase::Leaving;
        self.since = Instant::now();
    }

    /// The socket has something.
    pub fn step(mut self, cluster: &str, key: &[u8; 32]) -> (Option<Knock>, Step) {
        loop {
            let phase = std::mem::replace(&mut self.phase, Phase::Leaving);
            let step = match phase {
                Phase::Hello => self.hello(cluster),
                Phase::Handshake { said } => self.handshake(said, key),
                Phase::Attach { sealer, inbox } => return self.attach(sealer, inbox),
                Phase::Leaving => match self.stream.recv(&mut self.bytes, Wait::No) {
                    Ok(0) => return (None, Step::Gone),
                    // A little at a time: it may send for ever.
                    Ok(_) => Ok(None),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                    Err(_) => return (None, Step::Gone),
                },
            };
            match step {
                Ok(Some(phase)) => self.phase = phase,
                Ok(None) => return (Some(self), Step::Wait),
                Err(Stop::Gone) => return (None, Step::Gone),
                Err(Stop::Refused(reason, what)) => {
                    return (Some(self), Step::Refused(reason, what));
                }
            }
        }
    }

    /// Fills `bytes` up to so many; whether they are all there.
    fn fill(&mut self, count: usize) -> Result<bool, Stop> {
        while self.filled < count {
            match self
                .stream
                .recv(&mut self.bytes[self.filled..count], Wait::No)
            {
                Ok(0) => return Err(Stop::Gone),
                Ok(arrived) => self.filled += arrived,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(_) => return Err(Stop::Gone),
            }
            // Who speaks another protocol is refused by its first word.
            if self.filled >= 4 && count == HELLO_BYTES && self.bytes[..4] != hello::hello("")[..4]
            {
                return Err(refused(
                    RefusedFor::NotForebay,
                    "it does not speak this protocol",
                ));
            }
        }
        self.filled = 0;
        Ok(true)
    }

    fn hello(&mut self, cluster: &str) -> Result<Option<Phase>, Stop> {
        if !self.fill(HELLO_BYTES)? {
            self.phase = Phase::Hello;
            return Ok(None);
        }
        let theirs = self.bytes;
        match hello::check(&theirs) {
            Ok(name) if name == cluster.as_bytes() => {
                let mut said = Box::new([0; 2 * HELLO_BYTES]);
                said[..HELLO_BYTES].copy_from_slice(&theirs);
                said[HELLO_BYTES..].copy_from_slice(&hello::hello(""));
                Ok(Some(Phase::Handshake { said }))
            }
            Ok(name) => Err(refused(
                RefusedFor::Cluster,
                &format!("it belongs to cluster {:?}", String::from_utf8_lossy(name)),
            )),
            Err(HelloError::NotForebay) => Err(refused(
                RefusedFor::NotForebay,
                "it does not speak this protocol",
            )),
            Err(HelloError::Version(messages, transport)) => Err(refused(
                RefusedFor::Version,
                &format!("it speaks version {messages}.{transport}"),
            )),
        }
    }

    fn handshake(
        &mut self,
        said: Box<[u8; 2 * HELLO_BYTES]>,
        key: &[u8; 32],
    ) -> Result<Option<Phase>, Stop> {
        if !self.fill(HANDSHAKE_BYTES)? {
            self.phase = Phase::Handshake { said };
            return Ok(None);
        }
        let wrong = |_| refused(RefusedFor::Key, "it does not have the cluster's key");
        let mut theirs = [0; HANDSHAKE_BYTES];
        theirs.copy_from_slice(&self.bytes[..HANDSHAKE_BYTES]);
        let mut handshake = Handshake::responder(key, &said[..]).map_err(wrong)?;
        handshake.take(&theirs).map_err(wrong)?;
        let ours = handshake.message().map_err(wrong)?;
        let mut answer = [GO_ON; 1 + HANDSHAKE_BYTES];
        answer[1..].copy_from_slice(&ours);
        self.say(&answer).map_err(|_| Stop::Gone)?;
        let (sealer, opener) = handshake.finish();
        let inbox = Inbox::new(opener, ATTACH_BYTES_MAX);
        Ok(Some(Phase::Attach { sealer, inbox }))
    }

    fn attach(mut self, sealer: Sealer, mut inbox: Inbox) -> (Option<Knock>, Step) {
        let taken = loop {
            match inbox.take_message::<FromClient>() {
                Ok(Some((ToServer::Attach(attach), 0))) => break Ok(attach),
                Ok(Some(_)) => break Err(NetError::Protocol("no attach")),
                Err(error) => break Err(error),
                Ok(None) => {}
            }
            match self.stream.recv(inbox.room(), Wait::No) {
                Ok(0) => return (None, Step::Gone),
                Ok(count) => inbox.arrived(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.phase = Phase::Attach { sealer, inbox };
                    return (Some(self), Step::Wait);
                }
                Err(_) => return (None, Step::Gone),
            }
        };
        match taken {
            Ok(attach) => {
                let admitted = Admitted {
                    stream: self.stream,
                    address: self.address,
                    sealer,
                    inbox,
                    attach,
                };
                (None, Step::Admit(Box::new(admitted)))
            }
            // Its first message was a copy of somebody else's: only who has the key can go on.
            Err(error @ NetError::Seal(_)) => {
                self.phase = Phase::Attach { sealer, inbox };
                (
                    Some(self),
                    Step::Refused(RefusedFor::Key, error.to_string()),
                )
            }
            Err(error) => {
                self.phase = Phase::Attach { sealer, inbox };
                (
                    Some(self),
                    Step::Refused(RefusedFor::Damaged, error.to_string()),
                )
            }
        }
    }
}

enum Stop {
    Gone,
    Refused(RefusedFor, String),
}

fn refused(reason: RefusedFor, what: &str) -> Stop {
    Stop::Refused(reason, what.to_string())
}

// The first sealed message lies in memory before its sender is known for sure.
const _: () = assert!(HEAD_BYTES + ATTACH_BYTES_MAX < 2048);
