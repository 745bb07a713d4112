//! What client and server say to each other, and how it travels.
//!
//! A [`Request`] goes out, a [`Reply`] comes back. Bulk data travels beside the message, not in it,
//! so that the in-memory transport hands over slices without a copy and a socket can use one
//! vectored call. Everything a peer sends is bounded before memory is set aside for it.

mod connection;
pub mod control;
mod frame;
mod key;
mod message;
pub mod net;
mod object;
mod request;
mod seats;
mod socket;
mod space;

pub use connection::{
    Carried, Connection, Descriptor, InMemory, NOT_SENT, OUT_OF_REACH, Peer, Reply, Service,
    UNSETTLED,
};
pub use frame::{FrameError, PROTOCOL_VERSION};
pub use key::{Key, KeyError};
pub use message::{
    ContentVersion, Introduction, Link, LockHolder, LockOf, OpenMode, Opened, Recall, Request,
    Response, Shown, WriteHow,
};
pub use object::{
    CopyEnd, CopyFacts, CopyFailure, DirtyPages, NOT_BEGUN, ObjectCall, ObjectFacts, ObjectKey,
    ObjectPlace, ObjectReply, ObjectRequest, ObjectTier, ObjectUse, OutsideFile,
};
pub use socket::{UnixConnection, UnixServer};
pub use space::{SeekWhat, SpaceChange};

/// How a frame is read and written, for the fuzzer: both ends of a connection have it inside.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::frame::{greet, read_frame, say_hello, write_frame};
    pub use crate::net::fuzzing::{check_hello, read_sealed, samples, seal, server_hello};
}
