//! Objects that are not to be trusted, and may still be the only copy of something.

use std::io;
use std::os::fd::OwnedFd;

use forebay_types::ObjectId;
use rustix::fs::{Mode, RenameFlags};
use rustix::io::Errno as Sys;

use super::shards::{DIR_FLAGS, Shards, make_dir};

/// Name of the directory for them, beside the objects.
pub const LOST_FOUND: &str = "lost+found";
/// Objects of one id that are kept: ids are not used again, so more than one is a rarity.
const NAMES_MAX: u32 = 100;

/// Moves an object, and the identity beside it if that is a file, to `lost+found`.
pub(super) fn quarantine(dir: &OwnedFd, shards: &Shards, id: ObjectId) -> io::Result<String> {
    let _one_at_a_time = shards.sidecars.lock();
    make_dir(dir, LOST_FOUND.as_bytes(), Mode::from_raw_mode(0o700))?;
    let aside = rustix::fs::openat(dir, LOST_FOUND, DIR_FLAGS, Mode::empty())?;
    let shard = shards.dir(id);
    for attempt in 0..NAMES_MAX {
        let name = match attempt {
            0 => id.to_string(),
            n => format!("{id}.{n}"),
        };
        match move_to(shard, &id.to_string(), &aside, &name) {
            Ok(()) => {}
            Err(Sys::EXIST) => continue,
            Err(error) => return Err(error.into()),
        }
        match move_to(shard, &format!("{id}.id"), &aside, &format!("{name}.id")) {
            Ok(()) | Err(Sys::NOENT | Sys::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        // The new name is there before the old one is gone.
        rustix::fs::fsync(&aside)?;
        rustix::fs::fsync(dir)?;
        shards.mark_changed(Shards::index(id));
        return Ok(format!("{LOST_FOUND}/{name}"));
    }
    Err(Sys::EXIST.into())
}

fn move_to(from: &OwnedFd, name: &str, to: &OwnedFd, new: &str) -> Result<(), Sys> {
    match rustix::fs::renameat_with(from, name, to, new, RenameFlags::NOREPLACE) {
        // File systems that cannot promise not to replace.
        Err(Sys::INVAL | Sys::NOSYS | Sys::OPNOTSUPP) => {
            match rustix::fs::statat(to, new, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
                Err(Sys::NOENT) => rustix::fs::renameat(from, name, to, new),
                Ok(_) => Err(Sys::EXIST),
                Err(error) => Err(error),
            }
        }
        moved => moved,
    }
}
