//! A tier that is a directory.
//!
//! ```text
//! <dir>/forebay-tier            marker: format, version, instance, how identities are kept
//! <dir>/objects/<xx>/<id>       data; id: 16 hexadecimal digits, xx: the last two of them
//! <dir>/lost+found/<id>         an object that fsck did not trust, and did not dare to remove
//! <dir>/objects/<xx>/<id>.id    identity, only where the file system has no user attributes
//! ```

mod marker;
mod quarantine;
mod shards;
mod sidecar;
mod small;
mod unheld;

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_types::{Errno, ObjectId};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir};
use rustix::io::Errno as Sys;

use crate::file::IDENTITY_XATTR;
use crate::pfs::syncfs_counts;
use crate::{FileObject, Identity, Object, Space, Tier, TierKind};
pub use marker::{DirError, VERSION as TIER_VERSION};
use marker::{IdentityHome, Marker};
pub use quarantine::LOST_FOUND;
use shards::{DIR_FLAGS, DIRENTS_BYTES, OBJECT_FLAGS, ObjectName, Shards, parse_name, unmake};
use sidecar::SidecarObject;
use unheld::UnheldObject;

/// Objects as files of a directory: every tier that is not a test's.
///
/// The directory holds objects for one instance of Forebay and nobody else may write to it; modes
/// are 0700 and 0600. Several processes of the instance may have it open.
pub struct DirTier {
    name: String,
    kind: TierKind,
    dir: OwnedFd,
    capacity_bytes: Option<u64>,
    lent_bytes: Arc<AtomicU64>,
    /// What `capacity_bytes` answers should the file system not tell any more.
    total_bytes_at_open: u64,
    is_new: bool,
    mark: [u8; 16],
    tells_writers: bool,
    shards: Arc<Shards>,
    /// Held while names are put on stable storage: whoever waits for it finds its own names done.
    syncing: Mutex<()>,
}

fn space_of(fd: impl AsFd) -> io::Result<Space> {
    let stat = rustix::fs::fstatvfs(fd)?;
    Ok(Space {
        total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        lent_bytes: 0,
    })
}

impl DirTier {
    /// Opens `dir`, which must exist, as a tier of `instance`; one without a marker becomes one.
    /// `capacity`: how much it may hold, else all of the file system.
    ///
    /// A directory of another instance, of an unknown version, or with objects but without a
    /// marker is refused: see [`DirError::of`].
    pub fn open(
        name: &str,
        kind: TierKind,
        dir: &Path,
        capacity: Option<u64>,
        instance: [u8; 16],
    ) -> io::Result<DirTier> {
        let flags = DIR_FLAGS.difference(OFlags::NOFOLLOW);
        let fd = rustix::fs::open(dir, flags, Mode::empty())?;
        DirTier::open_at(name, kind, fd, dir, capacity, instance)
    }

    /// The same for a directory that is open; `dir` is what messages call it.
    pub fn open_at(
        name: &str,
        kind: TierKind,
        fd: OwnedFd,
        dir: &Path,
        capacity: Option<u64>,
        instance: [u8; 16],
    ) -> io::Result<DirTier> {
        let (marker, is_new) = match Marker::read(&fd, dir)? {
            Some(marker) => (marker, false),
            None => (Marker::create(&fd, dir, instance)?, true),
        };
        if marker.instance != instance {
            return Err(DirError::OtherInstance {
                dir: dir.to_path_buf(),
                found: marker.instance_hex(),
            }
            .into());
        }
        if marker.home == IdentityHome::Attribute && !marker::has_attributes(&fd)? {
            return Err(DirError::NoAttributes(dir.to_path_buf()).into());
        }
        let shards = match Shards::open(&fd, marker.home) {
            Err(error) if is_new => {
                // The first error counts; what stays is named by the next start.
                let _ = unmake(&fd);
                return Err(error);
            }
            opened => opened?,
        };
        Ok(DirTier {
            name: name.to_string(),
            kind,
            capacity_bytes: capacity,
            lent_bytes: Arc::default(),
            total_bytes_at_open: space_of(&fd)?.total_bytes,
            is_new,
            mark: marker.tier,
            tells_writers: marker::tells_writers(&fd),
            shards: Arc::new(shards),
            syncing: Mutex::new(()),
            dir: fd,
        })
    }

    /// The same tier, which may hold so much.
    #[must_use]
    pub fn limited_to(self, capacity_bytes: u64) -> DirTier {
        DirTier {
            capacity_bytes: Some(capacity_bytes),
            ..self
        }
    }

    /// The same tier, of whose capacity jobs have so many bytes at a time.
    pub fn lending(self, lent_bytes: Arc<AtomicU64>) -> DirTier {
        DirTier { lent_bytes, ..self }
    }

    /// Whether this `open` found no marker and made the directory a tier: an instance that expects
    /// objects here has lost them, or their file system is not mounted.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Takes a directory that holds no objects back out of use.
    pub fn unmake(&self) -> io::Result<()> {
        unmake(&self.dir)
    }

    fn create_as(
        &self,
        id: ObjectId,
        identity: &Identity,
        access: OFlags,
    ) -> io::Result<Arc<dyn Object>> {
        let name = ObjectName::new(id);
        let dir = self.shards.dir(id);
        let flags = OBJECT_FLAGS | access | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::from_raw_mode(0o600);
        let fd = rustix::fs::openat(dir, name.as_bytes(), flags, mode)?;
        let object = object_of(&self.shards, id, fd, access);
        let identified = object.set_identity(identity);
        if identified.is_err() {
            // An object that nobody can be told to own is not left behind.
            let _ = rustix::fs::unlinkat(dir, name.as_bytes(), AtFlags::empty());
        }
        self.shards.mark_changed(Shards::index(id));
        identified.map(|()| object)
    }
}

fn object_of(shards: &Arc<Shards>, id: ObjectId, fd: OwnedFd, access: OFlags) -> Arc<dyn Object> {
    let file = match access == OFlags::RDONLY {
        true => FileObject::shared(File::from(fd)),
        false => FileObject::from(fd),
    };
    match shards.home {
        IdentityHome::Attribute => Arc::new(file),
        IdentityHome::Sidecar => Arc::new(SidecarObject::new(file, id, shards.clone())),
    }
}

fn open_object(shards: &Arc<Shards>, id: ObjectId, access: OFlags) -> io::Result<Arc<dyn Object>> {
    let name = ObjectName::new(id);
    let flags = match access == OFlags::RDONLY {
        // What else may lie there in an object's place is not waited for.
        true => OBJECT_FLAGS | access | OFlags::NONBLOCK,
        false => OBJECT_FLAGS | access,
    };
    let fd = rustix::fs::openat(shards.dir(id), name.as_bytes(), flags, Mode::empty())?;
    if access == OFlags::RDONLY {
        match FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(Errno::EISDIR.into()),
            _ => return Err(Errno::EINVAL.into()),
        }
    }
    Ok(object_of(shards, id, fd, access))
}

impl Tier for DirTier {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> TierKind {
        self.kind
    }

    fn mark(&self) -> Option<[u8; 16]> {
        Some(self.mark)
    }

    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.unwrap_or_else(|| {
            self.space()
                .map_or(self.total_bytes_at_open, |space| space.total_bytes)
        })
    }

    fn space(&self) -> io::Result<Space> {
        Ok(Space {
            lent_bytes: self.lent_bytes.load(Ordering::Acquire),
            ..space_of(&self.dir)?
        })
    }

    fn create(&self, id: ObjectId, identity: &Identity) -> io::Result<Arc<dyn Object>> {
        self.create_as(id, identity, OFlags::RDWR)
    }

    fn create_shared(&self, id: ObjectId, identity: &Identity) -> io::Result<Arc<dyn Object>> {
        self.create_as(id, identity, OFlags::RDONLY)
    }

    fn open(&self, id: ObjectId) -> io::Result<Arc<dyn Object>> {
        open_object(&self.shards, id, OFlags::RDWR)
    }

    fn open_shared(&self, id: ObjectId) -> io::Result<Arc<dyn Object>> {
        open_object(&self.shards, id, OFlags::RDONLY)
    }

    fn unheld(&self, id: ObjectId) -> Option<Arc<dyn Object>> {
        Some(Arc::new(UnheldObject::new(id, self.shards.clone())))
    }

    fn tells_writers(&self) -> bool {
        self.tells_writers
    }

    fn remove(&self, id: ObjectId) -> io::Result<()> {
        let name = ObjectName::new(id);
        match self.shards.home {
            IdentityHome::Attribute => {
                rustix::fs::unlinkat(self.shards.dir(id), name.as_bytes(), AtFlags::empty())?;
            }
            IdentityHome::Sidecar => sidecar::remove(&self.shards, id)?,
        }
        self.shards.mark_changed(Shards::index(id));
        Ok(())
    }

    fn quarantine(&self, id: ObjectId) -> io::Result<String> {
        quarantine::quarantine(&self.dir, &self.shards, id)
    }

    fn identity(&self, id: ObjectId) -> io::Result<Option<Identity>> {
        let name = ObjectName::new(id);
        let bytes = match self.shards.home {
            IdentityHome::Attribute => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let dir = self.shards.dir(id);
                let fd = rustix::fs::openat(dir, name.as_bytes(), flags, Mode::empty())?;
                let mut buffer = vec![0; Identity::ENCODED_BYTES_MAX];
                match rustix::fs::fgetxattr(fd, IDENTITY_XATTR, &mut buffer[..]) {
                    Ok(count) => buffer.truncate(count),
                    Err(Sys::NODATA) => return Ok(None),
                    // Larger than any that was ever written.
                    Err(Sys::RANGE) => return Err(crate::IdentityError::TooLong.into()),
                    Err(error) => return Err(error.into()),
                }
                buffer
            }
            IdentityHome::Sidecar => match sidecar::read(&self.shards, id)? {
                Some(bytes) => bytes,
                None => return Ok(None),
            },
        };
        Ok(Some(Identity::decode(&bytes)?))
    }

    fn list(&self, visit: &mut dyn FnMut(ObjectId)) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); DIRENTS_BYTES];
        for (index, dir) in self.shards.dirs.iter().enumerate() {
            // Opened again: the position belongs to the descriptor.
            let fd = rustix::fs::openat(dir, c".", DIR_FLAGS, Mode::empty())?;
            let mut entries = RawDir::new(fd, &mut buffer);
            while let Some(entry) = entries.next() {
                let id = parse_name(entry?.file_name().to_bytes());
                if let Some(id) = id.filter(|&id| Shards::index(id) == index) {
                    visit(id);
                }
            }
        }
        Ok(())
    }

    fn give_back(&self) -> io::Result<()> {
        match self.is_new {
            true => unmake(&self.dir),
            false => Ok(()),
        }
    }

    fn flush_together(&self) -> io::Result<Option<OwnedFd>> {
        if !syncfs_counts(&self.dir)? {
            return Ok(None);
        }
        // Nobody else's: the kernel tells each descriptor once of an error.
        let own = rustix::fs::openat(&self.dir, c".", DIR_FLAGS, Mode::empty())?;
        Ok(Some(own))
    }

    fn sync_together(&self, together: &OwnedFd) -> io::Result<()> {
        let _one_at_a_time = self.syncing.lock();
        self.shards.sync_by(|| Ok(rustix::fs::syncfs(together)?))
    }

    fn sync_all(&self) -> io::Result<()> {
        if self.kind == TierKind::Dram {
            return Ok(());
        }
        let _one_at_a_time = self.syncing.lock();
        self.shards.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ids_are_each_other() {
        for id in [0, 1, 0xff, 0x0123_4567_89ab_cdef, u64::MAX] {
            let name = ObjectName::new(ObjectId(id));
            assert_eq!(name.as_bytes(), format!("{id:016x}").as_bytes());
            assert_eq!(parse_name(name.as_bytes()), Some(ObjectId(id)));
        }
        for other in [
            &b""[..],
            b"0",
            b"000000000000000G",
            b"000000000000000A",
            b"0000000000000000.id",
        ] {
            assert_eq!(parse_name(other), None);
        }
    }
}
