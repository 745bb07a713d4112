//! What a metadata server asks of a data server: bytes, by object.
//!
//! A data server knows objects by tier and id, not by name. What is open there has a handle, which
//! ends with the session.

use forebay_types::{Errno, Handle, ObjectId, SetTime, TierId, TimeSpec, limits};
use serde::{Deserialize, Serialize};

use crate::space::{SeekWhat, SpaceChange};

/// Nothing was done: the session has not begun, see [`ObjectCall::Begin`].
pub const NOT_BEGUN: Errno = Errno(libc::ENOLINK);

/// An object of a tier. The tier has the data server's own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ObjectKey {
    /// Which tier, from 0 in the order of the configuration.
    pub tier: TierId,
    /// Which object.
    pub object: ObjectId,
}

/// How an object is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ObjectUse {
    /// To write it by requests.
    Write,
    /// To read it, or to hand it to a kernel that writes it by itself.
    Share,
}

/// What is wanted of dirty pages, as `tiers::WriteBack`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // as there
pub enum DirtyPages {
    Start,
    Wait,
    Finish,
}

/// What is done to an object that is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the fields are named after those of the system calls
pub enum ObjectRequest {
    /// Data comes back beside the reply; [`crate::Response::Moved`].
    Read {
        offset: u64,
        len: u32,
    },
    /// Data travels beside the request; [`crate::Response::Moved`].
    Write {
        offset: u64,
    },
    /// The same at the end, wherever that is; [`ObjectReply::Appended`].
    Append,
    SetLen {
        size: u64,
    },
    Allocate {
        change: SpaceChange,
        offset: u64,
        len: u64,
    },
    /// [`ObjectReply::Found`].
    Seek {
        from: u64,
        what: SeekWhat,
    },
    Sync {
        data_only: bool,
    },
    /// Writes dirty pages to the device, or waits for them.
    WriteBack {
        what: DirtyPages,
        offset: u64,
        len: u64,
    },
    /// [`ObjectReply::Stat`].
    Stat,
    SetTimes {
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    },
    /// Replaces the identity beside the data, as `tiers` encodes it.
    SetIdentity(Vec<u8>),
    /// The kernel of the data server drops its clean pages of it: the next read comes from the
    /// device.
    DropCache,
    /// Whether anybody has it open for writing; [`ObjectReply::Truth`].
    HasWriters,
    /// Makes others who write it wait, until the contrary is said or the object is closed. Whether
    /// it works; [`ObjectReply::Truth`].
    HoldWriters(bool),
    /// Its content was compared and is whole: no later session is told of flushes of it whose
    /// failure this one has been told.
    ForgetFailedFlushes,
}

/// Where the bytes of an open file are: what a mount needs to be given its descriptor by the data
/// server of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectPlace {
    /// The data server.
    pub server: u16,
    /// Whose object it is.
    pub instance: [u8; 16],
    /// Which.
    pub key: ObjectKey,
}

/// A file on the PFS that a data server is to fill, as `tiers::Outside`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // as there
pub struct OutsideFile {
    pub path: Vec<u8>,
    pub ino: u64,
    pub owner: (u32, u32),
    pub ahead_bytes: u64,
    pub from_media: bool,
}

/// A copy that is made: lengths and checksums, as `tiers::CopyReport`; the checksums after each
/// block are asked for apart ([`ObjectCall::CopySums`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // as there
pub struct CopyFacts {
    pub data_bytes: u64,
    pub bytes: u64,
    pub crc: u32,
    pub block_bytes: u64,
    pub blocks: u32,
}

/// Why a copy failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyFailure {
    /// The file cannot be reached from there, and was not touched.
    Unreached(Errno),
    /// Reading the object.
    Source(Errno),
    /// Writing the file, or reading it back.
    Destination(Errno),
    /// It does not hold what was read.
    Verify {
        /// Checksum of what was read.
        expected: u32,
        /// Of what the file holds.
        found: u32,
    },
    /// It was told to.
    Stopped,
}

/// How a copy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyEnd {
    /// It is on stable storage and was read back.
    Whole(CopyFacts),
    /// It is of no use.
    Failed(CopyFailure),
}

/// What a metadata server asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ObjectCall {
    /// Begins, and ends the session before; [`ObjectReply::Tiers`].
    Begin {
        /// Whose objects are wanted.
        instance: [u8; 16],
        /// The metadata server's start: later ones have higher numbers. `ESTALE` for an earlier one
        /// than has come.
        epoch: u32,
    },
    /// A further connection of the metadata server that has the turn: `Done`. From then on it reads
    /// and writes what is open in that one's session, and does nothing else. `NOT_BEGUN` where no
    /// such session has the turn, also once that is over; `ESTALE` as of `Begin`.
    Join {
        /// Whose objects.
        instance: [u8; 16],
        /// The metadata server's start.
        epoch: u32,
    },
    /// Physical space below a tier; [`ObjectReply::Space`].
    Space(TierId),
    /// Makes an empty object and opens it; [`ObjectReply::Opened`].
    Create {
        /// Which.
        key: ObjectKey,
        /// Its identity, as `tiers` encodes it.
        identity: Vec<u8>,
        /// Who will write it.
        how: ObjectUse,
    },
    /// Opens one; [`ObjectReply::Opened`].
    Open {
        /// Which.
        key: ObjectKey,
        /// Who writes it.
        how: ObjectUse,
    },
    /// Closes what is open. A handle that is not known is closed already.
    Close(Vec<Handle>),
    /// Removes one.
    Remove(ObjectKey),
    /// Takes one that is not to be trusted out of its tier; [`ObjectReply::Place`].
    Quarantine(ObjectKey),
    /// The identity beside one; [`ObjectReply::Identity`].
    Identity(ObjectKey),
    /// Ids in ascending order, strictly after `after`, as many as lie beside one reply: 8 bytes
    /// each, little-endian; none at the end. [`crate::Response::Moved`].
    List {
        /// Of which tier.
        tier: TierId,
        /// `None`: from the first.
        after: Option<ObjectId>,
    },
    /// Names of a tier reach stable storage.
    SyncAll(TierId),
    /// Takes back what opening the tier has made.
    GiveBack(TierId),
    /// The descriptor of an object, for a mount on the data server's node, which need not have
    /// begun: `Done`, with the descriptor beside it.
    HandOver(ObjectPlace),
    /// Does something to what is open.
    On(Handle, ObjectRequest),
    /// Begins to copy an object to a file on the PFS; [`ObjectReply::Opened`] names the copy.
    CopyOut {
        /// The object, which is open.
        handle: Handle,
        /// The file.
        to: OutsideFile,
    },
    /// Lets a copy go on until so many bytes are moved in all, and waits for that, or for the end,
    /// a second at most; [`ObjectReply::Copied`].
    CopyGo {
        /// Which copy.
        copy: Handle,
        /// Bytes in all.
        upto_bytes: u64,
    },
    /// Checksums of a copy that is whole, after its blocks from this one on, as many as lie beside
    /// one reply: 4 bytes each, little-endian. [`crate::Response::Moved`].
    CopySums {
        /// Which copy.
        copy: Handle,
        /// From 0.
        from: u32,
    },
    /// Ends a copy, and waits until nothing of it runs any more.
    CopyEnd(Handle),
}

/// A tier of a data server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectTier {
    /// Its name on that server.
    pub name: String,
    /// What it was called by when it was made; all zeros where there is no such thing.
    pub mark: [u8; 16],
    /// Memory, not flash.
    pub is_memory: bool,
    /// What it may hold, bytes.
    pub capacity_bytes: u64,
    /// Whether it tells who can write its objects ([`ObjectRequest::HasWriters`]).
    pub tells_writers: bool,
}

/// What is known of an object without reading it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // as in `tiers::ObjectStat`
pub struct ObjectFacts {
    pub size: u64,
    pub allocated_bytes: u64,
    pub atime: TimeSpec,
    pub mtime: TimeSpec,
    pub is_removed: bool,
}

/// What a data server answers, beside [`crate::Response::Done`], `Failed` and `Moved`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // each is told at what it answers
pub enum ObjectReply {
    Tiers {
        /// How the kernel of that node calls this start of the node.
        boot: String,
        tiers: Vec<ObjectTier>,
    },
    Space {
        total_bytes: u64,
        free_bytes: u64,
        lent_bytes: u64,
    },
    Opened(Handle),
    Place(String),
    /// As `tiers` encodes it.
    Identity(Option<Vec<u8>>),
    /// There is one, which cannot be decoded.
    IdentityDamaged,
    Found(Option<u64>),
    Stat(ObjectFacts),
    Truth(bool),
    Appended {
        bytes: u32,
        end: u64,
    },
    /// How far a copy is: bytes moved, the offset behind the last of them, and the end of it.
    Copied {
        moved_bytes: u64,
        offset: u64,
        end: Option<CopyEnd>,
    },
}

impl ObjectCall {
    /// See [`crate::Request::is_repeatable`].
    pub(crate) fn is_repeatable(&self) -> bool {
        match self {
            ObjectCall::Begin { .. }
            | ObjectCall::Join { .. }
            | ObjectCall::Space(_)
            | ObjectCall::Identity(_)
            | ObjectCall::List { .. }
            | ObjectCall::CopyGo { .. }
            | ObjectCall::CopySums { .. }
            | ObjectCall::CopyEnd(_)
            | ObjectCall::HandOver(_)
            | ObjectCall::Close(_) => true,
            ObjectCall::On(_, request) => matches!(
                request,
                ObjectRequest::Read { .. }
                    | ObjectRequest::Seek { .. }
                    | ObjectRequest::Stat
                    | ObjectRequest::DropCache
                    | ObjectRequest::HasWriters
                    | ObjectRequest::HoldWriters(_)
                    | ObjectRequest::ForgetFailedFlushes
            ),
            ObjectCall::Create { .. }
            | ObjectCall::Open { .. }
            | ObjectCall::Remove(_)
            | ObjectCall::Quarantine(_)
            | ObjectCall::SyncAll(_)
            | ObjectCall::CopyOut { .. }
            | ObjectCall::GiveBack(_) => false,
        }
    }

    /// Refuses lengths over the limits.
    pub(crate) fn check(&self) -> Result<(), Errno> {
        let ends = |offset: u64, len: u64| match offset.checked_add(len) {
            Some(end) if end <= limits::FILE_BYTES_MAX => Ok(()),
            _ => Err(Errno::EFBIG),
        };
        match self {
            ObjectCall::Create { identity, .. }
            | ObjectCall::On(_, ObjectRequest::SetIdentity(identity))
                if identity.len() > limits::XATTR_VALUE_BYTES_MAX =>
            {
                Err(Errno::E2BIG)
            }
            ObjectCall::CopyOut { to, .. } if to.path.len() >= limits::PATH_BYTES_MAX => {
                Err(Errno::ENAMETOOLONG)
            }
            ObjectCall::Close(handles) if handles.len() > limits::RELEASES_PER_MESSAGE_MAX => {
                Err(Errno::E2BIG)
            }
            ObjectCall::On(_, request) => match request {
                ObjectRequest::Read { len, .. } if *len as usize > limits::IO_BYTES_MAX => {
                    Err(Errno::EINVAL)
                }
                ObjectRequest::Write { offset } => ends(*offset, 0),
                ObjectRequest::SetLen { size } => ends(*size, 0),
                ObjectRequest::Allocate { offset, len, .. }
                | ObjectRequest::WriteBack { offset, len, .. } => ends(*offset, *len),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}
