//! A way to a server.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_types::Errno;

use crate::{Request, Response};

/// Who is at the other end, as the transport knows it (not as they say).
#[derive(Clone, Copy, Debug)]
pub struct Peer<'a> {
    /// Effective user id of the peer's process.
    pub uid: u32,
    /// Its effective group id.
    pub gid: u32,
    /// Its further groups; none for the mount, which names a user with every request.
    pub groups: &'a [u32],
    /// The peer shares this machine's kernel: descriptors can be handed over.
    pub local: bool,
    /// The peer takes descriptors of the data server that is on its own node.
    pub near: bool,
    /// The peer is the mount in this very process: it may speak for the users whom the kernel
    /// named to it.
    pub mount: bool,
    /// The socket to the peer, where there is one.
    pub socket: Option<BorrowedFd<'a>>,
}

impl Peer<'_> {
    /// Whether nobody waits for the answer any more: long work need not go on.
    pub fn has_left(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let Some(socket) = self.socket else {
            return false;
        };
        let mut looked = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
        // A look that fails says nothing about the peer.
        poll(&mut looked, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Root and the user who runs the server may do everything and see everything.
    pub fn is_trusted(&self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }
}

/// Something open whose descriptor may be used while this is held.
pub trait Descriptor: Send + Sync {
    /// The descriptor.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

/// An answer with what travels beside it.
#[derive(Clone)]
pub struct Reply {
    /// The answer.
    pub response: Response,
    /// An object's descriptor, on local transports only.
    pub descriptor: Option<Arc<dyn Descriptor>>,
}

impl From<Response> for Reply {
    fn from(response: Response) -> Reply {
        Reply {
            response,
            descriptor: None,
        }
    }
}

impl From<Errno> for Reply {
    fn from(errno: Errno) -> Reply {
        Response::Failed(errno).into()
    }
}

/// The serving side of a connection.
pub trait Service: Send + Sync {
    /// Answers one request. `payload` is the data of a write; the data of a read goes to the start
    /// of `into`, its length is in [`Response::Moved`]. May be called from many threads at once.
    fn handle(&self, peer: Peer<'_>, request: Request, payload: &[u8], into: &mut [u8]) -> Reply;
}

/// A request was not sent, for the session is over: it may be asked in the next one.
pub const NOT_SENT: Errno = Errno::ESHUTDOWN;

/// Nothing was done, for clients of before a restart have not dropped their pages yet: it is to be
/// asked again soon.
pub const UNSETTLED: Errno = Errno::EINPROGRESS;

/// Nothing was done, for the node that has the file does not answer: it is to be asked again until
/// that does.
pub const OUT_OF_REACH: Errno = Errno(libc::EHOSTDOWN);

/// The links of a connection, and what went over them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Links that have a socket now.
    pub links_up: u64,
    /// Links.
    pub links: u64,
    /// Bytes from the server.
    pub in_bytes: u64,
    /// Bytes to the server.
    pub out_bytes: u64,
}

/// The asking side.
pub trait Connection: Send + Sync {
    /// Sends one request and waits for its answer. An answer [`Response::Failed`] becomes `Err`, as
    /// does a broken connection (`ENOTCONN`; [`NOT_SENT`] where nothing has been sent).
    fn call(&self, request: Request, payload: &[u8], into: &mut [u8]) -> Result<Reply, Errno>;

    /// The same without data, if this is still the session that is called so
    /// ([`Connection::generation`]); else `ENOTCONN`.
    fn call_in(&self, generation: u64, request: Request) -> Result<Reply, Errno> {
        match self.generation() == generation {
            true => self.call(request, &[], &mut []),
            false => Err(Errno::ENOTCONN),
        }
    }

    /// How many links to the server there are, at least 1; see [`Connection::call_on`].
    fn links(&self) -> usize {
        1
    }

    /// The same as [`Connection::call`], over the link with this number (from 0; taken modulo the
    /// number of links). Which link is a good one is for the caller to know.
    fn call_on(
        &self,
        _link: usize,
        request: Request,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<Reply, Errno> {
        self.call(request, payload, into)
    }

    /// Counts the sessions that this connection has had: what was found or opened in another one is
    /// of no use any more.
    fn generation(&self) -> u64 {
        0
    }

    /// The session in which what goes by this id was found first.
    fn generation_of(&self, _ino: forebay_types::Ino) -> u64 {
        self.generation()
    }

    /// Who asks knows nothing by this id any more that so many answers have given. Unless others
    /// have been given since, which who asks may not have taken up yet: the session in which the
    /// connection has a reference of its own of it, for who asks to drop with others
    /// ([`crate::Request::Forget`]).
    fn forgotten(&self, _ino: forebay_types::Ino, _answers: u64) -> Option<u64> {
        None
    }

    /// `is_given_up` says whether nobody waits any more for what the calling thread asks. What was
    /// not sent yet then gets `EINTR`, where it may have to wait for long.
    fn give_up_by(&self, _is_given_up: fn() -> bool) {}

    /// Whether the other side answers, as far as is known: who has a choice asks somebody else.
    fn is_answering(&self) -> bool {
        true
    }

    /// What its links are and have carried, where there are any.
    fn carried(&self) -> Carried {
        Carried::default()
    }

    /// Ends it: whoever waits for an answer gets `ENOTCONN`, where anybody may wait for long.
    fn close(&self) {}

    /// Whether replies may carry descriptors.
    fn hands_over_descriptors(&self) -> bool;

    /// Says whether the asking side can use descriptors at all; a transport that carries none
    /// need not care.
    fn accept_descriptors(&self, _yes: bool) {}
}

/// Client and server in one process: a call is a call, and nothing is encoded or copied.
pub struct InMemory {
    service: Arc<dyn Service>,
    uid: u32,
    gid: u32,
    descriptors: AtomicBool,
}

impl InMemory {
    /// Connects the mount of this process to the server of this process.
    pub fn mount(service: Arc<dyn Service>) -> InMemory {
        InMemory {
            service,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            descriptors: AtomicBool::new(true),
        }
    }
}

impl Connection for InMemory {
    fn call(&self, request: Request, payload: &[u8], into: &mut [u8]) -> Result<Reply, Errno> {
        request.check()?;
        let peer = Peer {
            uid: self.uid,
            gid: self.gid,
            groups: &[],
            local: self.hands_over_descriptors(),
            near: false,
            mount: true,
            socket: None,
        };
        let reply = self.service.handle(peer, request, payload, into);
        match reply.response {
            Response::Failed(errno) => Err(errno),
            _ => Ok(reply),
        }
    }

    fn hands_over_descriptors(&self) -> bool {
        self.descriptors.load(Ordering::Acquire)
    }

    fn accept_descriptors(&self, yes: bool) {
        self.descriptors.store(yes, Ordering::Release);
    }
}
