//! The directories that objects lie in, by the low byte of their ids, and small files beside them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_types::ObjectId;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno as Sys;

use super::marker::IdentityHome;
use super::{marker, sidecar};

/// Size of a buffer for the entries of a directory.
pub(super) const DIRENTS_BYTES: usize = 16 << 10;
/// One per value of an id's low byte: short directories, and no two creators in each other's way.
pub(super) const SHARDS: usize = 256;

pub(super) const DIR_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

pub(super) const OBJECT_FLAGS: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);

/// The directories that objects are in, held open.
pub(super) struct Shards {
    pub(super) dirs: Vec<OwnedFd>,
    /// One bit per directory: names in it changed since they were last put on stable storage.
    /// Set after the change, cleared before the sync.
    pub(super) changed: [AtomicU64; SHARDS / 64],
    pub(super) home: IdentityHome,
    /// Held while an object and the identity beside it change together.
    pub(super) sidecars: Mutex<()>,
}

/// A name in a shard, ready for a system call.
pub(super) struct ObjectName([u8; 17]);

impl ObjectName {
    pub(super) fn new(id: ObjectId) -> ObjectName {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut name = [0; 17];
        for (at, byte) in name[..16].iter_mut().enumerate() {
            *byte = DIGITS[(id.0 >> (60 - 4 * at) & 0xf) as usize];
        }
        ObjectName(name)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0[..16]
    }
}

/// The id that a name stands for; `None` for whatever else lies in the directory.
pub(super) fn parse_name(name: &[u8]) -> Option<ObjectId> {
    let digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if name.len() != 16 || !name.iter().all(digit) {
        return None;
    }
    let text = std::str::from_utf8(name).ok()?;
    u64::from_str_radix(text, 16).ok().map(ObjectId)
}

impl Shards {
    pub(super) fn index(id: ObjectId) -> usize {
        (id.0 & 0xff) as usize
    }

    pub(super) fn dir(&self, id: ObjectId) -> &OwnedFd {
        &self.dirs[Shards::index(id)]
    }

    pub(super) fn mark_changed(&self, index: usize) {
        self.changed[index / 64].fetch_or(1 << (index % 64), Ordering::Release);
    }

    /// Makes what is missing and opens all.
    pub(super) fn open(dir: &OwnedFd, home: IdentityHome) -> io::Result<Shards> {
        let mode = Mode::from_raw_mode(0o700);
        make_dir(dir, b"objects", mode)?;
        let objects = rustix::fs::openat(dir, c"objects", DIR_FLAGS, Mode::empty())?;
        let mut dirs = Vec::with_capacity(SHARDS);
        for index in 0..SHARDS {
            let name = format!("{index:02x}");
            let shard = match rustix::fs::openat(&objects, &name, DIR_FLAGS, Mode::empty()) {
                Err(Sys::NOENT) => {
                    make_dir(&objects, name.as_bytes(), mode)?;
                    rustix::fs::openat(&objects, &name, DIR_FLAGS, Mode::empty())?
                }
                result => result?,
            };
            dirs.push(shard);
        }
        rustix::fs::fsync(&objects)?;
        rustix::fs::fsync(dir)?;
        Ok(Shards {
            dirs,
            changed: Default::default(),
            home,
            sidecars: Mutex::new(()),
        })
    }

    /// By one flush of everything: no directory is left to be asked for.
    pub(super) fn sync_by(&self, flush: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let take = |changed: &AtomicU64| changed.swap(0, Ordering::AcqRel);
        let before: Vec<u64> = self.changed.iter().map(take).collect();
        flush().inspect_err(|_| {
            for (changed, bits) in self.changed.iter().zip(&before) {
                changed.fetch_or(*bits, Ordering::AcqRel);
            }
        })
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        for (word, changed) in self.changed.iter().enumerate() {
            let mut bits = changed.swap(0, Ordering::AcqRel);
            while bits != 0 {
                let bit = bits.trailing_zeros() as usize;
                if let Err(error) = rustix::fs::fsync(&self.dirs[word * 64 + bit]) {
                    // Nothing may be taken for stable that is not: ask for all of these again.
                    changed.fetch_or(bits, Ordering::AcqRel);
                    return Err(error.into());
                }
                bits &= bits - 1;
            }
        }
        Ok(())
    }
}

/// Takes a directory that holds no objects back out of use. The marker goes last: without it the
/// rest would be taken for somebody's.
pub(super) fn unmake(dir: &OwnedFd) -> io::Result<()> {
    let gone = |result: rustix::io::Result<()>| match result {
        Err(Sys::NOENT) => Ok(()),
        result => result,
    };
    match rustix::fs::openat(dir, c"objects", DIR_FLAGS, Mode::empty()) {
        Ok(objects) => {
            for index in 0..SHARDS {
                let name = format!("{index:02x}");
                let mut removed = rustix::fs::unlinkat(&objects, &name, AtFlags::REMOVEDIR);
                if removed == Err(Sys::NOTEMPTY) {
                    let shard = rustix::fs::openat(&objects, &name, DIR_FLAGS, Mode::empty())?;
                    sidecar::sweep(shard.as_fd())?;
                    removed = rustix::fs::unlinkat(&objects, &name, AtFlags::REMOVEDIR);
                }
                gone(removed)?;
            }
            gone(rustix::fs::unlinkat(dir, c"objects", AtFlags::REMOVEDIR))?;
        }
        Err(Sys::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(gone(rustix::fs::unlinkat(
        dir,
        marker::MARKER,
        AtFlags::empty(),
    ))?)
}

pub(super) fn make_dir(parent: &OwnedFd, name: &[u8], mode: Mode) -> io::Result<()> {
    match rustix::fs::mkdirat(parent, name, mode) {
        Err(Sys::EXIST) => Ok(()),
        result => Ok(result?),
    }
}
