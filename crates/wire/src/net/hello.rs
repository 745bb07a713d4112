//! What both sides say before anything is secret: who they are, and why they will not talk.
//!
//! ```text
//! 0        4        8        12        13             77
//! | "FBYN" | messages | transport | length | name of the cluster, zeros |
//! ```
//!
//! All numbers are little-endian. The server names no cluster. A server that refuses says so in one
//! byte where its part of the handshake would begin; nobody vouches for that byte, so it may
//! serve as an explanation and for nothing else.

use crate::frame::PROTOCOL_VERSION;

const MAGIC: [u8; 4] = *b"FBYN";
/// Version of the handshake and of the frames. Who changes these raises it.
pub(crate) const TRANSPORT_VERSION: u32 = 3;
/// Longest name of a cluster, bytes.
pub const CLUSTER_NAME_BYTES_MAX: usize = 64;
/// Length of a hello, bytes.
pub(crate) const HELLO_BYTES: usize = 13 + CLUSTER_NAME_BYTES_MAX;

/// The byte before the server's part of the handshake.
pub(crate) const GO_ON: u8 = 0;

/// What is wrong with a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HelloError {
    NotForebay,
    /// Their versions of messages and transport.
    Version(u32, u32),
}

/// A hello; the name of the cluster is empty in a server's.
pub(crate) fn hello(cluster: &str) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..8].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    bytes[8..12].copy_from_slice(&TRANSPORT_VERSION.to_le_bytes());
    let name = cluster.as_bytes();
    let name = &name[..name.len().min(CLUSTER_NAME_BYTES_MAX)];
    bytes[12] = name.len() as u8;
    bytes[13..13 + name.len()].copy_from_slice(name);
    bytes
}

/// The name of the cluster in their hello, if they are Forebay of this version.
pub(crate) fn check(bytes: &[u8; HELLO_BYTES]) -> Result<&[u8], HelloError> {
    if bytes[..4] != MAGIC {
        return Err(HelloError::NotForebay);
    }
    let number =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let (messages, transport) = (number(4), number(8));
    if (messages, transport) != (PROTOCOL_VERSION, TRANSPORT_VERSION) {
        return Err(HelloError::Version(messages, transport));
    }
    bytes[13..]
        .get(..bytes[12] as usize)
        .ok_or(HelloError::NotForebay)
}
