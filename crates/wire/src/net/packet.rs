//! What the two ends of a socket say to each other once it is sealed.

use std::net::SocketAddr;

use forebay_types::Errno;
use serde::{Deserialize, Serialize};

use crate::{Request, Response};

/// Longest name of a client's node, bytes; a longer one is cut.
pub const HOST_BYTES_MAX: usize = 255;
/// Links of one session.
pub const LINKS_MAX: u16 = 64;
/// Longest message before a client is let in, bytes.
pub(crate) const ATTACH_BYTES_MAX: usize = 1024;

/// What a client says about itself, and what the server sees of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientFacts {
    /// The node's name, up to [`HOST_BYTES_MAX`].
    pub host: String,
    /// Process on that node.
    pub pid: u32,
    /// Where its first link comes from, as the server sees it; `None` on a Unix socket.
    pub address: Option<SocketAddr>,
    /// It is on the server's own machine, on a Unix socket; as the server sees it.
    pub local: bool,
    /// The user who runs the mount.
    pub mount_uid: u32,
    /// What the client calls this life of its own: another number for each session.
    pub life: u64,
    /// It is a command that asks and goes, no mount: it has nothing open, is in no list of clients,
    /// and its session ends with its socket.
    pub command: bool,
}

impl ClientFacts {
    /// Makes the node's name one that may be shown and logged: cut to what is allowed, without
    /// control characters.
    pub(crate) fn clean(&mut self) {
        self.host = clean_host(&self.host, HOST_BYTES_MAX);
    }
}

/// A name of a node, cut to so many bytes; `?` stands for control characters.
pub fn clean_host(host: &str, bytes_max: usize) -> String {
    let mut end = host.len().min(bytes_max);
    while !host.is_char_boundary(end) {
        end -= 1;
    }
    host[..end].replace(char::is_control, "?")
}

/// Names a session; a random number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SessionId(pub [u8; 16]);

impl std::fmt::Debug for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// The first sealed message of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attach {
    /// The same in all of a client's attaches.
    pub client: [u8; 16],
    /// A further link of this session, or this link again.
    pub join: Option<SessionId>,
    pub link: u16,
    /// Data is sealed, too.
    pub encrypt: bool,
    pub facts: ClientFacts,
}

/// The server's answer to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attached {
    pub session: SessionId,
    pub epoch: u64,
    pub slots: u16,
    pub lease_ms: u64,
    /// Bytes per second that the client may send over this link.
    pub rate: Option<u64>,
}

/// Why a client that has the key is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    /// The server has forgotten the session, or never knew it.
    UnknownSession,
    TooMany,
    /// The host's word.
    Host(Errno),
    /// The server takes encrypted data only.
    Clear,
    /// Not what a client of this version says.
    Protocol,
    Stopping,
}

/// Which request, or whose reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ticket {
    pub slot: u16,
    /// Counts the requests of the slot; from 1.
    pub number: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant)] // made once for each request, and taken apart at once
pub(crate) enum ToServer<R> {
    Attach(Attach),
    /// Carries the client's clock, which comes back.
    Ping(u64),
    /// The session is over.
    Bye,
    Call {
        ticket: Ticket,
        /// Room for data beside the reply, bytes.
        room: u32,
        /// The client can use descriptors.
        local: bool,
        /// CRC-32C of the data that follows; 0 where it is sealed.
        crc: u32,
        request: R,
    },
}

/// A request as it arrives.
pub(crate) type FromClient = ToServer<Request>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant)] // as above
pub(crate) enum ToClient<R> {
    Attached(Attached),
    Refused {
        why: Refusal,
        epoch: u64,
    },
    Pong(u64),
    /// The server stops in order: this request has not run, and will not, nor will any that comes
    /// over this link later.
    NotRun(Ticket),
    /// The same. What came over this link and has no reply yet has not run, and will not.
    Stopping,
    Reply {
        ticket: Ticket,
        crc: u32,
        /// A descriptor comes with it.
        descriptor: bool,
        response: R,
    },
}

/// An answer as it arrives.
pub(crate) type FromServer = ToClient<Response>;

/// Bytes that nobody can guess.
pub(crate) fn random_bytes<const N: usize>() -> std::io::Result<[u8; N]> {
    use ring::rand::{SecureRandom, SystemRandom};
    let mut bytes = [0; N];
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(_) => Err(std::io::Error::other("the kernel gives no random numbers")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_name_is_bounded_and_moves_no_cursor() {
        let mut facts = ClientFacts {
            host: format!("ab\x1b[2J\nb{}", "ä".repeat(200)),
            ..ClientFacts::default()
        };
        facts.clean();
        assert!(facts.host.starts_with("ab?[2J?bä"), "{:?}", facts.host);
        // Half of a character does not fit.
        assert_eq!(facts.host.len(), HOST_BYTES_MAX - 1);
        assert_eq!(clean_host("aää", 4), "aä");
    }
}
