//! From an address to a link that is let in.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::super::clock;
use super::super::framing::{Inbox, NetError};
use super::super::hello::{self, GO_ON, HELLO_BYTES, HelloError};
use super::super::packet::{ATTACH_BYTES_MAX, Attach, Attached, Refusal, ToClient, ToServer};
use super::super::secret::{HANDSHAKE_BYTES, Handshake};
use super::super::stream::{Stream, Wait};
use super::config::{ConnectError, NetConfig};
use super::wire::{Reader, Wire};

/// How long a server may take to answer each step of the handshake, and to accept.
const STEP_LIMIT: Duration = Duration::from_secs(5);
/// How soon a close is noticed.
const SLICE: Duration = Duration::from_millis(50);

/// Where a server is.
#[derive(Clone, Debug)]
pub(crate) enum Server {
    Tcp(SocketAddr),
    Unix(std::path::PathBuf),
}

impl Server {
    pub fn name(&self) -> String {
        match self {
            Server::Tcp(address) => address.to_string(),
            Server::Unix(path) => path.display().to_string(),
        }
    }
}

/// A link that is let in.
pub(crate) struct Dialed {
    pub wire: Arc<Wire>,
    pub reader: Box<Reader>,
    pub attached: Attached,
    /// When the server was asked: the lease counts from then.
    pub sent_ms: u64,
}

/// What a dialer looks at while it waits.
pub(crate) trait Watch {
    /// Whether nobody wants the connection any more.
    fn is_over(&self) -> bool;
    /// How often a server that has a link wait is asked for a sign of life.
    fn ping_every(&self) -> Duration;
    /// The server has answered what was sent at that moment.
    fn confirmed(&self, sent_ms: u64);
}

/// Connects one link.
pub(crate) fn dial(
    config: &NetConfig,
    server: &Server,
    attach: Attach,
    watch: &dyn Watch,
) -> Result<Dialed, ConnectError> {
    let stream = match server {
        Server::Tcp(address) => connect_tcp(*address, server, watch)?,
        Server::Unix(path) => connect_unix(path, server)?,
    };
    let mut call = Calling {
        stream: &stream,
        server,
        watch,
    };
    let (sealer, opener) = call.shake_hands(config)?;
    let encrypt = attach.encrypt;
    let sent_ms = clock::now_ms();
    let wire = Arc::new(Wire::new(stream, sealer, encrypt, sent_ms));
    let mut reader = Box::new(Reader::new(wire.clone(), {
        let mut inbox = Inbox::new(opener, ATTACH_BYTES_MAX);
        inbox.widen();
        inbox
    }));
    let broken = |error: NetError| ConnectError::Broken {
        server: server.name(),
        what: error.to_string(),
    };
    wire.send(&ToServer::Attach(attach)).map_err(broken)?;
    let attached = await_attached(&wire, &mut reader, server, watch)?;
    if let Some(rate) = attached.rate {
        wire.stream
            .limit_rate(rate)
            .map_err(|error| broken(error.into()))?;
    }
    Ok(Dialed {
        wire,
        reader,
        attached,
        sent_ms,
    })
}

fn connect_tcp(
    address: SocketAddr,
    server: &Server,
    watch: &dyn Watch,
) -> Result<Stream, ConnectError> {
    let unreachable = |error: io::Error| ConnectError::Unreachable {
        server: server.name(),
        error,
    };
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)
        .map_err(|errno| ConnectError::Local(errno.into()))?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
        Err(errno) => return Err(unreachable(errno.into())),
    }
    let finish = |socket: OwnedFd| -> io::Result<Stream> {
        rustix::io::ioctl_fionbio(&socket, false)?;
        Stream::tcp(socket)
    };
    let stream = finish(socket).map_err(unreachable)?;
    let begun = Instant::now();
    while !stream.ready(PollFlags::OUT, SLICE).map_err(unreachable)? {
        if watch.is_over() {
            return Err(ConnectError::Closed);
        }
        if begun.elapsed() > STEP_LIMIT {
            return Err(unreachable(io::ErrorKind::TimedOut.into()));
        }
    }
    match rustix::net::sockopt::socket_error(&stream) {
        Ok(Ok(())) => Ok(stream),
        Ok(Err(errno)) | Err(errno) => Err(unreachable(errno.into())),
    }
}

fn connect_unix(path: &Path, server: &Server) -> Result<Stream, ConnectError> {
    match UnixStream::connect(path) {
        Ok(socket) => Ok(Stream::unix(socket.into())),
        Err(error) => Err(ConnectError::Unreachable {
            server: server.name(),
            error,
        }),
    }
}

/// A server that has accepted, and is not known yet.
struct Calling<'a> {
    stream: &'a Stream,
    server: &'a Server,
    watch: &'a dyn Watch,
}

impl Calling<'_> {
    fn broken(&self, what: impl ToString) -> ConnectError {
        ConnectError::Broken {
            server: self.server.name(),
            what: what.to_string(),
        }
    }

    fn say(&self, bytes: &[u8]) -> io::Result<()> {
        match self.stream.send(&[IoSlice::new(bytes)], None, Wait::No)? {
            count if count == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Exactly these bytes; the first of them may be a refusal, and the last.
    fn hear(&self, into: &mut [u8]) -> Result<(), ConnectError> {
        let begun = Instant::now();
        let mut filled = 0;
        while filled < into.len() {
            match self.stream.recv(&mut into[filled..], Wait::No) {
                Ok(0) => return Err(self.broken("it has closed the connection")),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let ready = self.stream.ready(PollFlags::IN, SLICE);
                    ready.map_err(|error| self.broken(error))?;
                    if self.watch.is_over() {
                        return Err(ConnectError::Closed);
                    }
                    if begun.elapsed() > STEP_LIMIT {
                        let server = self.server.name();
                        return Err(ConnectError::Silent { server });
                    }
                }
                Err(error) => return Err(self.broken(error)),
            }
        }
        Ok(())
    }

    fn shake_hands(
        &mut self,
        config: &NetConfig,
    ) -> Result<(super::super::seal::Sealer, super::super::seal::Opener), ConnectError> {
        let server = || self.server.name();
        let ours = hello::hello(&config.cluster);
        // A server that refuses at once may not take it; its own hello says why.
        let said_hello = self.say(&ours);
        let mut theirs = [0; HELLO_BYTES];
        self.hear(&mut theirs[..4])?;
        if theirs[..4] != ours[..4] {
            return Err(ConnectError::NotForebay { server: server() });
        }
        self.hear(&mut theirs[4..])?;
        match hello::check(&theirs) {
            Ok(_) => {}
            Err(HelloError::NotForebay) => {
                return Err(ConnectError::NotForebay { server: server() });
            }
            Err(HelloError::Version(messages, transport)) => {
                return Err(ConnectError::Version {
                    server: server(),
                    messages,
                    transport,
                });
            }
        }
        said_hello.map_err(|error| self.broken(error))?;
        let said = [ours, theirs].concat();
        let wrong = |_| ConnectError::Key { server: server() };
        let mut handshake = Handshake::initiator(config.key.bytes(), &said).map_err(wrong)?;
        // As above: the answer says why.
        drop(self.say(&handshake.message().map_err(wrong)?));
        let mut answer = [0; 1];
        self.hear(&mut answer)?;
        match answer[0] {
            GO_ON => {}
            1 => {
                return Err(ConnectError::Cluster {
                    server: server(),
                    cluster: config.cluster.clone(),
                });
            }
            2 => return Err(ConnectError::Key { server: server() }),
            3 => return Err(ConnectError::TooMany { server: server() }),
            code => return Err(self.broken(format!("refusal {code}"))),
        }
        let mut message = [0; HANDSHAKE_BYTES];
        self.hear(&mut message)?;
        handshake.take(&message).map_err(wrong)?;
        Ok(handshake.finish())
    }
}

/// Waits until the server lets the link in: at once, or when what the link's last socket had under
/// way has ended, which may take long.
fn await_attached(
    wire: &Arc<Wire>,
    reader: &mut Reader,
    server: &Server,
    watch: &dyn Watch,
) -> Result<Attached, ConnectError> {
    let broken = |error: NetError| ConnectError::Broken {
        server: server.name(),
        what: error.to_string(),
    };
    let mut heard = Instant::now();
    let mut pinged = Instant::now();
    loop {
        match reader.next(Wait::No).map_err(broken)? {
            Some((ToClient::Attached(attached), 0)) => return Ok(attached),
            Some((ToClient::Refused { why, epoch }, 0)) => return Err(refused(server, why, epoch)),
            Some((ToClient::Pong(sent_ms), 0)) => {
                heard = Instant::now();
                watch.confirmed(sent_ms.min(clock::now_ms()));
                continue;
            }
            Some(_) => return Err(broken(NetError::Protocol("no answer to an attach"))),
            None => {}
        }
        let ready = wire.stream.ready(PollFlags::IN, SLICE);
        ready.map_err(|error| broken(error.into()))?;
        if watch.is_over() {
            return Err(ConnectError::Closed);
        }
        if heard.elapsed() > STEP_LIMIT.max(watch.ping_every() * 4) {
            let server = server.name();
            return Err(ConnectError::Silent { server });
        }
        if pinged.elapsed() > watch.ping_every() {
            pinged = Instant::now();
            wire.ping().map_err(broken)?;
        }
    }
}

fn refused(server: &Server, why: Refusal, epoch: u64) -> ConnectError {
    let server = server.name();
    match why {
        Refusal::UnknownSession => ConnectError::Forgotten { server, epoch },
        Refusal::TooMany => ConnectError::TooMany { server },
        Refusal::Host(errno) => ConnectError::Refused { server, errno },
        Refusal::Clear => ConnectError::Clear { server },
        Refusal::Protocol => ConnectError::Broken {
            server,
            what: "it found this side's attach wrong".to_string(),
        },
        Refusal::Stopping => ConnectError::Unreachable {
            server,
            error: io::Error::other("it stops"),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use forebay_types::{Errno, Handle};

    use super::super::super::framing::HEAD_BYTES;
    use super::super::super::host::{Guest, Host};
    use super::super::super::packet::{ClientFacts, FromServer, LINKS_MAX, Ticket};
    use super::super::super::server::{NetServer, NetServerConfig, RefusedFor};
    use super::super::wire::Outgoing;
    use super::*;
    use crate::{Peer, Reply, Request, Response, Service};

    /// Counts what it is asked, and answers with the count.
    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Service for Counter {
        fn handle(&self, _: Peer<'_>, _: Request, _: &[u8], _: &mut [u8]) -> Reply {
            let before = self.0.fetch_add(1, Ordering::SeqCst);
            Response::Position(before as u64 + 1).into()
        }
    }

    impl Guest for Counter {
        fn end(&self) {}
    }

    struct House(Arc<Counter>);

    impl Host for House {
        fn epoch(&self) -> u64 {
            1
        }

        fn begin(&self, _: &ClientFacts) -> Result<Arc<dyn Guest>, Errno> {
            Ok(self.0.clone())
        }
    }

    struct Patient;

    impl Watch for Patient {
        fn is_over(&self) -> bool {
            false
        }

        fn ping_every(&self) -> Duration {
            Duration::from_secs(1)
        }

        fn confirmed(&self, _: u64) {}
    }

    /// A client that says what it is told to say, and not what an honest one would.
    struct Hand {
        server: NetServer,
        counter: Arc<Counter>,
        dialed: Dialed,
    }

    impl Hand {
        fn new() -> Hand {
            let mut config = NetServerConfig::new("hand", crate::Key::from_bytes([3; 32]));
            config.tcp = vec!["127.0.0.1:0".parse().expect("address")];
            config.slots = 4;
            let counter = Arc::new(Counter::default());
            let server = NetServer::start(config, Arc::new(House(counter.clone())));
            let server = server.expect("start");
            let dialed = Hand::dial(&server, None, 0).expect("dial");
            Hand {
                server,
                counter,
                dialed,
            }
        }

        fn dial(
            server: &NetServer,
            join: Option<super::super::super::packet::SessionId>,
            link: u16,
        ) -> Result<Dialed, ConnectError> {
            let to = Server::Tcp(server.addresses()[0]);
            Hand::dial_to(&to, join, link)
        }

        fn dial_to(
            to: &Server,
            join: Option<super::super::super::packet::SessionId>,
            link: u16,
        ) -> Result<Dialed, ConnectError> {
            let config = NetConfig::new("hand", crate::Key::from_bytes([3; 32]));
            let attach = Attach {
                client: [9; 16],
                join,
                link,
                encrypt: false,
                // No honest client says where it is.
                facts: ClientFacts {
                    local: true,
                    ..config.facts.clone()
                },
            };
            dial(&config, to, attach, &Patient)
        }

        fn send(&self, request: &Request, slot: u16, number: u64) {
            let sent = self.dialed.wire.send_call(&Outgoing {
                ticket: Ticket { slot, number },
                room: 0,
                local: false,
                request,
                payload: &[],
            });
            sent.expect("send");
        }

        fn reply(&mut self) -> Result<(Ticket, Response), NetError> {
            let begun = Instant::now();
            loop {
                assert!(begun.elapsed() < Duration::from_secs(30), "no reply");
                let answer: Option<(FromServer, usize)> = self.dialed.reader.next(Wait::No)?;
                match answer {
                    Some((
                        ToClient::Reply {
                            ticket, response, ..
                        },
                        0,
                    )) => return Ok((ticket, response)),
                    Some(other) => panic!("{other:?}"),
                    None => {
                        let stream = &self.dialed.wire.stream;
                        stream.ready(PollFlags::IN, SLICE).expect("poll");
                    }
                }
            }
        }

        fn says(&mut self, request: &Request, slot: u16, number: u64) -> u64 {
            self.send(request, slot, number);
            match self.reply() {
                Ok((ticket, Response::Position(count))) => {
                    assert_eq!(ticket, Ticket { slot, number });
                    count
                }
                other => panic!("{other:?}"),
            }
        }

        /// The server has thrown this client out for that.
        fn is_out(&mut self, reason: RefusedFor) {
            assert!(self.reply().is_err());
            let begun = Instant::now();
            while self.server.status().refused != [(reason, 1)] {
                let refused = self.server.status().refused;
                assert!(begun.elapsed() < Duration::from_secs(30), "{refused:?}");
                std::thread::yield_now();
            }
        }
    }

    fn change() -> Request {
        Request::Release { handle: Handle(1) }
    }

    #[test]
    fn a_request_that_comes_again_is_answered_from_memory() {
        let mut hand = Hand::new();
        assert_eq!(hand.says(&change(), 0, 1), 1);
        assert_eq!(hand.says(&change(), 0, 1), 1);
        assert_eq!(hand.says(&change(), 1, 1), 2);
        // Over another link of the session as well.
        let session = hand.dialed.attached.session;
        hand.dialed = Hand::dial(&hand.server, Some(session), 5).expect("dial");
        assert_eq!(hand.says(&change(), 0, 1), 1);
        assert_eq!(hand.says(&Request::Statfs, 0, 2), 3);
        assert_eq!(hand.says(&Request::Statfs, 0, 2), 4, "looks again");
        assert_eq!(hand.counter.0.load(Ordering::SeqCst), 4);
    }

    #[test]
    fn a_session_is_where_its_first_socket_is_and_takes_no_link_from_elsewhere() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("net.sock");
        let mut config = NetServerConfig::new("hand", crate::Key::from_bytes([3; 32]));
        config.tcp = vec!["127.0.0.1:0".parse().expect("address")];
        config.unix = Some(path.clone());
        let server = NetServer::start(config, Arc::new(House(Arc::default())));
        let server = server.expect("start");
        let unix = Server::Unix(path);
        let tcp = Server::Tcp(server.addresses()[0]);
        for (own, other, is_local) in [(&unix, &tcp, true), (&tcp, &unix, false)] {
            let dialed = Hand::dial_to(own, None, 0).expect("dial");
            let session = Some(dialed.attached.session);
            assert_eq!(server.status().sessions[0].facts.local, is_local);
            assert!(Hand::dial_to(other, session, 1).is_err());
            let further = Hand::dial_to(own, session, 1).expect("a further link");
            assert_eq!(further.attached.session, dialed.attached.session);
        }
    }

    #[test]
    fn a_late_duplicate_does_not_run() {
        let mut hand = Hand::new();
        for number in 1..=3 {
            assert_eq!(hand.says(&change(), 0, number), number);
        }
        hand.send(&change(), 0, 2);
        hand.is_out(RefusedFor::Late);
        assert_eq!(hand.counter.0.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn who_breaks_the_rules_is_thrown_out() {
        let mut hand = Hand::new();
        hand.send(&change(), 4, 1);
        hand.is_out(RefusedFor::Damaged);

        let mut hand = Hand::new();
        let again = Attach {
            client: [9; 16],
            join: None,
            link: 0,
            encrypt: false,
            facts: ClientFacts::default(),
        };
        let sent = hand.dialed.wire.send(&ToServer::Attach(again));
        sent.expect("send");
        hand.is_out(RefusedFor::Damaged);

        // A length over the limit, in the open: refused by the head alone.
        let mut hand = Hand::new();
        let head = [0xff; HEAD_BYTES];
        let sent = hand.dialed.wire.stream.send_all(&mut [IoSlice::new(&head)]);
        sent.expect("send");
        hand.is_out(RefusedFor::Damaged);
        assert_eq!(hand.counter.0.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_session_is_joined_by_its_own_client_only() {
        let hand = Hand::new();
        let wrong = super::super::super::packet::SessionId([0; 16]);
        let refused = Hand::dial(&hand.server, Some(wrong), 1).err();
        assert!(matches!(
            refused,
            Some(ConnectError::Forgotten { epoch: 1, .. })
        ));
        // So does every client after a restart of the server.
        assert_eq!(hand.server.status().refused, [], "it is no trouble");
        let session = Some(hand.dialed.attached.session);
        let refused = Hand::dial(&hand.server, session, LINKS_MAX + 1).err();
        assert!(matches!(refused, Some(ConnectError::Broken { .. })));
        // Its first attach again, as after an answer that got lost: the old session ends.
        let again = Hand::dial(&hand.server, None, 0).expect("dial");
        assert_ne!(again.attached.session, hand.dialed.attached.session);
        let begun = Instant::now();
        while hand.server.status().sessions.len() != 1 {
            assert!(begun.elapsed() < Duration::from_secs(30));
            std::thread::yield_now();
        }
    }
}
