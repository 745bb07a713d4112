//! What an object says of itself, so that fsck can tell whose it is and recovery can adopt it.

use std::io;

use forebay_types::{Errno, Generation, ObjectId, limits};

/// The PFS directory that a file belongs in, told apart from another that reuses its inode number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParentKey {
    /// Position of the PFS's device in the metadata server's table of devices.
    pub dev_ordinal: u64,
    /// Inode number.
    pub ino: u64,
    /// Time of birth, nanoseconds since the epoch; 0 where unknown.
    pub btime_ns: u64,
}

/// Identity carried beside an object's data: in the extended attribute `user.forebay.object`, or
/// in a file `<id>.id` where the file system has no user attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Instance of Forebay that wrote the object.
    pub instance: [u8; 16],
    /// Id of the object; guards against files that were swapped or renamed at rest.
    pub object: ObjectId,
    /// A hint: path from the mount's root when written. Dropped where it does not fit.
    pub path: Vec<u8>,
    /// Directory of the PFS that the file belongs in.
    pub parent: ParentKey,
    /// Name in that directory; empty where the file had none.
    pub name: Vec<u8>,
    /// File type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Generation of the content when the identity was written.
    pub generation: Generation,
    /// Whether this is a durable copy of an object whose primary is in another tier.
    pub shadow: bool,
}

/// Why bytes are no identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Fewer bytes than the lengths inside promise.
    #[error("the identity is cut short")]
    Truncated,
    /// More bytes than the lengths inside promise.
    #[error("{0} bytes follow the identity")]
    Trailing(usize),
    /// Written by a later release, or no identity at all.
    #[error("identity version {0} is unknown")]
    Version(u8),
    /// The checksum does not match: damaged at rest.
    #[error("the identity's checksum is {found:#010x}, should be {expected:#010x}")]
    Checksum {
        /// As stored.
        expected: u32,
        /// As computed.
        found: u32,
    },
    /// Unknown flag bits.
    #[error("identity flags {0:#04x} are unknown")]
    Flags(u8),
    /// A data server cannot decode it.
    #[error("the data server cannot decode the identity; its log says why")]
    Elsewhere,
    /// A path or name longer than the limit.
    #[error("the identity's path or name is too long")]
    TooLong,
}

impl IdentityError {
    /// The error number it becomes.
    pub fn errno(self) -> Errno {
        Errno::EIO
    }
}

impl From<IdentityError> for io::Error {
    fn from(error: IdentityError) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}

const VERSION: u8 = 1;
const FLAG_SHADOW: u8 = 1;
/// version, flags, instance, object, generation, parent, mode, uid, gid, two lengths.
const FIXED_BYTES: usize = 1 + 1 + 16 + 8 + 8 + 24 + 12 + 2 + 2;
const CRC_BYTES: usize = 4;

/// Takes fields off the front; every step is checked against what is left.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], IdentityError> {
        let (head, tail) = self
            .0
            .split_at_checked(len)
            .ok_or(IdentityError::Truncated)?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], IdentityError> {
        let (head, tail) = self.0.split_first_chunk().ok_or(IdentityError::Truncated)?;
        self.0 = tail;
        Ok(*head)
    }

    fn u16(&mut self) -> Result<u16, IdentityError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, IdentityError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, IdentityError> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self, max: usize) -> Result<Vec<u8>, IdentityError> {
        let len = usize::from(self.u16()?);
        if len > max {
            return Err(IdentityError::TooLong);
        }
        Ok(self.bytes(len)?.to_vec())
    }
}

impl Identity {
    /// As it is while the object is being filled with a copy of what is elsewhere: an object that
    /// still carries this after a crash holds nothing of its own.
    #[must_use]
    pub fn unfinished(&self) -> Identity {
        Identity {
            generation: Generation(0),
            shadow: true,
            ..self.clone()
        }
    }

    /// Whether the copy into the object was never finished: generations of content begin at 1.
    pub fn is_unfinished(&self) -> bool {
        self.shadow && self.generation == Generation(0)
    }

    /// Whether it was written for a file without a name: after a crash nobody can ask for that any
    /// more.
    pub fn is_unnamed(&self) -> bool {
        self.name.is_empty()
    }

    /// Longest encoding, bytes.
    pub const ENCODED_BYTES_MAX: usize =
        FIXED_BYTES + limits::PATH_BYTES_MAX + limits::NAME_BYTES_MAX + CRC_BYTES;

    /// Version, fields, lengths and bytes, and a CRC-32C over all of it. A path or name beyond its
    /// limit is left out: a hint cut in half would name another file.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_with(&self.path)
    }

    /// As [`Identity::encode`], without the hint; for file systems with little room for attributes.
    pub(crate) fn encode_without_path(&self) -> Vec<u8> {
        self.encode_with(&[])
    }

    fn encode_with(&self, path: &[u8]) -> Vec<u8> {
        let fits = |text: &[u8], max: usize| if text.len() <= max { text.len() } else { 0 };
        let path = &path[..fits(path, limits::PATH_BYTES_MAX)];
        let name = &self.name[..fits(&self.name, limits::NAME_BYTES_MAX)];
        let mut out = Vec::with_capacity(FIXED_BYTES + path.len() + name.len() + CRC_BYTES);
        out.push(VERSION);
        out.push(if self.shadow { FLAG_SHADOW } else { 0 });
        out.extend_from_slice(&self.instance);
        for number in [
            self.object.0,
            self.generation.0,
            self.parent.dev_ordinal,
            self.parent.ino,
            self.parent.btime_ns,
        ] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.mode, self.uid, self.gid] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for text in [path, name] {
            // Both limits are below 2^16, asserted below.
            out.extend_from_slice(&(text.len() as u16).to_le_bytes());
            out.extend_from_slice(text);
        }
        let crc = crate::crc32c_update(0, &out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Inverse of [`Identity::encode`]; takes any bytes.
    pub fn decode(bytes: &[u8]) -> Result<Identity, IdentityError> {
        let version = *bytes.first().ok_or(IdentityError::Truncated)?;
        if version != VERSION {
            return Err(IdentityError::Version(version));
        }
        let (body, crc) = bytes
            .split_last_chunk::<CRC_BYTES>()
            .ok_or(IdentityError::Truncated)?;
        let (expected, found) = (u32::from_le_bytes(*crc), crate::crc32c_update(0, body));
        if expected != found {
            return Err(IdentityError::Checksum { expected, found });
        }
        let mut reader = Reader(body);
        let [_version, flags] = reader.array()?;
        if flags & !FLAG_SHADOW != 0 {
            return Err(IdentityError::Flags(flags));
        }
        let identity = Identity {
            shadow: flags & FLAG_SHADOW != 0,
            instance: reader.array()?,
            object: ObjectId(reader.u64()?),
            generation: Generation(reader.u64()?),
            parent: ParentKey {
                dev_ordinal: reader.u64()?,
                ino: reader.u64()?,
                btime_ns: reader.u64()?,
            },
            mode: reader.u32()?,
            uid: reader.u32()?,
            gid: reader.u32()?,
            path: reader.text(limits::PATH_BYTES_MAX)?,
            name: reader.text(limits::NAME_BYTES_MAX)?,
        };
        match reader.0.len() {
            0 => Ok(identity),
            left => Err(IdentityError::Trailing(left)),
        }
    }
}

const _: () = assert!(limits::PATH_BYTES_MAX <= u16::MAX as usize);
const _: () = assert!(limits::NAME_BYTES_MAX <= u16::MAX as usize);
// Both must fit into one extended attribute.
const _: () = assert!(Identity::ENCODED_BYTES_MAX <= limits::XATTR_VALUE_BYTES_MAX);
