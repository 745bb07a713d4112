//! The file that says whose a directory is.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use forebay_types::Errno;
use rustix::fs::{AtFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno as Sys;

use super::small::{read_small, write_small};
use crate::{random_bytes, writers};

/// Its name.
pub(super) const MARKER: &[u8] = b"forebay-tier";
const MARKER_TEMPORARY: &[u8] = b"forebay-tier.new";
const MARKER_BYTES_MAX: usize = 4096;
/// Changes with what a directory of a tier is like.
pub const VERSION: u32 = 2;
const PROBE_XATTR: &str = "user.forebay.probe";

/// Why a directory was refused as a tier. Found inside an `io::Error` with [`DirError::of`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirError {
    /// Its marker names another instance.
    #[error("{} belongs to another instance of Forebay ({found}): start with the state folder it was first used with, or give another directory (docs/operations.md, Upgrade)", dir.display())]
    OtherInstance {
        /// The directory.
        dir: PathBuf,
        /// As found, hexadecimal.
        found: String,
    },
    /// Written by a later release.
    #[error("{} has format version {found}, which this release does not know", dir.display())]
    Version {
        /// The directory.
        dir: PathBuf,
        /// What the marker says.
        found: String,
    },
    /// The marker cannot be read.
    #[error("{}/forebay-tier is damaged", .0.display())]
    Damaged(PathBuf),
    /// There are objects, but nothing says whose.
    #[error("{} holds objects but no marker that says whose they are", .0.display())]
    NoMarker(PathBuf),
    /// Identities were kept in attributes, and there are none any more.
    #[error("{}: the file system has lost its user extended attributes", .0.display())]
    NoAttributes(PathBuf),
}

impl DirError {
    /// The refusal inside an error of [`super::DirTier::open`], if that is what it is.
    pub fn of(error: &io::Error) -> Option<&DirError> {
        error.get_ref()?.downcast_ref()
    }

    /// The error number it becomes.
    pub fn errno(&self) -> Errno {
        match self {
            DirError::OtherInstance { .. } => Errno::EBUSY,
            DirError::Version { .. } | DirError::NoMarker(_) => Errno::EINVAL,
            DirError::Damaged(_) => Errno::EIO,
            DirError::NoAttributes(_) => Errno::EOPNOTSUPP,
        }
    }
}

impl From<DirError> for io::Error {
    fn from(error: DirError) -> io::Error {
        let kind = io::Error::from(error.errno()).kind();
        io::Error::new(kind, error)
    }
}

/// Where identities are kept; chosen once, when the directory becomes a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdentityHome {
    /// In an extended attribute: no second file to make and to lose.
    Attribute,
    /// In a file beside the object.
    Sidecar,
}

/// What the marker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marker {
    pub instance: [u8; 16],
    /// Made up when the directory became a tier: another directory in its place has another one.
    pub tier: [u8; 16],
    pub home: IdentityHome,
}

impl Marker {
    pub fn instance_hex(&self) -> String {
        hex(&self.instance)
    }

    fn encode(&self) -> String {
        let home = match self.home {
            IdentityHome::Attribute => "attribute",
            IdentityHome::Sidecar => "sidecar",
        };
        let (instance, tier) = (hex(&self.instance), hex(&self.tier));
        format!(
            "forebay tier\nversion {VERSION}\ninstance {instance}\ntier {tier}\nidentity {home}\n"
        )
    }

    fn decode(bytes: &[u8], dir: &Path) -> Result<Marker, DirError> {
        let damaged = || DirError::Damaged(dir.to_path_buf());
        let text = std::str::from_utf8(bytes).map_err(|_| damaged())?;
        let mut lines = text.lines();
        if lines.next() != Some("forebay tier") {
            return Err(damaged());
        }
        let mut field = |key: &str| {
            let line = lines.next()?.strip_prefix(key)?;
            line.strip_prefix(' ')
        };
        let version = field("version").ok_or_else(damaged)?;
        if version != VERSION.to_string() {
            return Err(DirError::Version {
                dir: dir.to_path_buf(),
                found: version.to_string(),
            });
        }
        let instance = field("instance").and_then(parse_id);
        let tier = field("tier").and_then(parse_id);
        let home = match field("identity") {
            Some("attribute") => IdentityHome::Attribute,
            Some("sidecar") => IdentityHome::Sidecar,
            _ => return Err(damaged()),
        };
        Ok(Marker {
            instance: instance.ok_or_else(damaged)?,
            tier: tier.ok_or_else(damaged)?,
            home,
        })
    }

    /// `None` if there is none.
    pub fn read(fd: &OwnedFd, dir: &Path) -> io::Result<Option<Marker>> {
        match read_small(fd, MARKER, MARKER_BYTES_MAX)? {
            Some(bytes) => Ok(Some(Marker::decode(&bytes, dir)?)),
            None => Ok(None),
        }
    }

    /// Makes a directory a tier: the marker is on stable storage before the first object can be.
    pub fn create(fd: &OwnedFd, dir: &Path, instance: [u8; 16]) -> io::Result<Marker> {
        match rustix::fs::statat(fd, c"objects", AtFlags::SYMLINK_NOFOLLOW) {
            Err(Sys::NOENT) => {}
            Ok(_) => return Err(DirError::NoMarker(dir.to_path_buf()).into()),
            Err(error) => return Err(error.into()),
        }
        let home = if has_attributes(fd)? {
            IdentityHome::Attribute
        } else {
            IdentityHome::Sidecar
        };
        let marker = Marker {
            instance,
            tier: random_bytes()?,
            home,
        };
        write_small(fd, MARKER, MARKER_TEMPORARY, marker.encode().as_bytes())?;
        rustix::fs::fsync(fd)?;
        Ok(marker)
    }
}

fn hex(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse_id(text: &str) -> Option<[u8; 16]> {
    let digits = text.as_bytes();
    if digits.len() != 32 {
        return None;
    }
    let mut id = [0; 16];
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = (high << 4 | low) as u8;
    }
    Some(id)
}

/// Whether the file system keeps user attributes; tried out, because mount options decide too.
pub(super) fn has_attributes(fd: &OwnedFd) -> io::Result<bool> {
    match rustix::fs::fsetxattr(fd, PROBE_XATTR, b"1", XattrFlags::empty()) {
        Ok(()) => {
            rustix::fs::fremovexattr(fd, PROBE_XATTR)?;
            Ok(true)
        }
        Err(Sys::OPNOTSUPP | Sys::NOSYS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether the kernel tells here who can write a file; tried out, because the system's settings
/// decide too.
pub(super) fn tells_writers(fd: &OwnedFd) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let marker = rustix::fs::openat(fd, MARKER, flags, Mode::empty());
    marker.is_ok_and(|marker| writers::exist(marker.as_fd()).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_round_trip_and_damage_is_named() {
        let dir = Path::new("d");
        for home in [IdentityHome::Attribute, IdentityHome::Sidecar] {
            let marker = Marker {
                instance: *b"0123456789abcdef",
                tier: *b"fedcba9876543210",
                home,
            };
            let text = marker.encode();
            assert_eq!(Marker::decode(text.as_bytes(), dir), Ok(marker));
            let later = text.replace("version 2", "version 3");
            let refused = Marker::decode(later.as_bytes(), dir);
            assert!(matches!(refused, Err(DirError::Version { found, .. }) if found == "3"));
            for cut in 0..text.len() - 1 {
                assert!(
                    Marker::decode(&text.as_bytes()[..cut], dir).is_err(),
                    "{cut}"
                );
            }
        }
        assert_eq!(
            Marker::decode(b"\xff", dir),
            Err(DirError::Damaged(dir.to_path_buf()))
        );
    }
}
