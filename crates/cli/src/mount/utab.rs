//! The note in /run/mount/utab by which umount(8) calls a helper.
//!
//! umount(8) of util-linux asks statfs(2) for the type of a plain `umount DIR`, finds `fuse`, and
//! looks for no helper of `fuse.forebay`, unless the mount is in that file (`uhelper=`, mount(8)).

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::mounts::{self, MountEntry};

/// Folder of the file.
const FOLDER: &str = "/run/mount";
/// Who may read the lock's file may hold it for ever: the mount is there, and does not wait for
/// that.
const LOCK_WITHIN: Duration = Duration::from_secs(5);
const LOCK_AGAIN: Duration = Duration::from_millis(20);
/// The helper, as in /sbin/umount.forebay.
const HELPER: &str = "uhelper=forebay";

/// Has umount(8) call the helper for what is mounted at a place.
///
/// # Errors
/// The file cannot be written, or nothing of Forebay is mounted there.
pub fn note(place: &Path) -> io::Result<()> {
    let place = place.canonicalize()?;
    let table = mounts::read()?;
    let entry = mounts::topmost(&table, &place).filter(|entry| entry.is_forebay());
    let entry = entry.ok_or(io::ErrorKind::NotFound)?;
    note_in(Path::new(FOLDER), entry, LOCK_WITHIN)
}

fn note_in(folder: &Path, entry: &MountEntry, lock_within: Duration) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    // As libmount does it: a lock beside, and a new file in the place of the old one.
    let lock = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .open(folder.join("utab.lock"))?;
    let begun = Instant::now();
    while let Err(error) = lock.try_lock() {
        match error {
            TryLockError::WouldBlock if begun.elapsed() < lock_within => {
                std::thread::sleep(LOCK_AGAIN);
            }
            TryLockError::WouldBlock => {
                return Err(io::Error::other("somebody holds /run/mount/utab.lock"));
            }
            TryLockError::Error(error) => return Err(error),
        }
    }
    let path = folder.join("utab");
    let old = match std::fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    let temporary = folder.join("utab.forebay");
    let mut file = File::create(&temporary)?;
    // Everybody's umount reads it, whatever the umask of who mounts.
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(&with_entry(&old, entry))?;
    std::fs::rename(&temporary, &path)
}

/// The text with one line for this mount.
fn with_entry(old: &[u8], entry: &MountEntry) -> Vec<u8> {
    let target = [b"TARGET=", &escaped(&entry.point)[..]].concat();
    let mut text = Vec::new();
    for line in old.split(|&byte| byte == b'\n') {
        let is_same = line.split(|&byte| byte == b' ').any(|word| word == target);
        if !line.is_empty() && !is_same {
            text.extend_from_slice(line);
            text.push(b'\n');
        }
    }
    let (source, root) = (escaped(&entry.source), escaped(&entry.root));
    for part in [b"SRC=", &source[..], b" ", &target, b" ROOT=", &root] {
        text.extend_from_slice(part);
    }
    text.extend_from_slice(format!(" OPTS={HELPER}\n").as_bytes());
    text
}

/// `\040` for a blank and the like.
fn escaped(path: &Path) -> Vec<u8> {
    let mut text = Vec::new();
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => text.extend(format!("\\{byte:03o}").into_bytes()),
            _ => text.push(byte),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_has_one_line_and_others_keep_theirs() {
        let folder = tempfile::tempdir().expect("tempdir");
        let folder = folder.path().join("mount");
        let line = b"40 22 0:40 / /b\\040b rw - fuse.forebay /var/x rw\n";
        let entry = &mounts::parse(line)[0];
        let other = "SRC=/dev/sr0 TARGET=/cd ROOT=/ OPTS=uhelper=udisks2\n";
        let ours = "SRC=/var/x TARGET=/b\\040b ROOT=/ OPTS=uhelper=forebay\n";
        note_in(&folder, entry, LOCK_WITHIN).expect("noted");
        let read = || std::fs::read_to_string(folder.join("utab")).expect("read");
        assert_eq!(read(), ours);
        std::fs::write(folder.join("utab"), format!("{ours}{other}")).expect("write");
        note_in(&folder, entry, LOCK_WITHIN).expect("noted");
        assert_eq!(read(), format!("{other}{ours}"));
        let held = File::open(folder.join("utab.lock")).expect("everybody may");
        held.lock().expect("lock");
        let refused = note_in(&folder, entry, Duration::ZERO).expect_err("held");
        assert!(refused.to_string().contains("utab.lock"), "{refused}");
    }
}
