//! The mount in the tree, without a request to it: a process that waits for its own mount cannot be
//! ended while nobody answers, and the server may be gone.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, makedev};

/// Lines of `/proc/self/mountinfo`, as fields.
fn mounts(mut see: impl FnMut(&[&str]) -> bool) -> io::Result<bool> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    // Paths need not be UTF-8; the fields that are looked at are numbers.
    let table = String::from_utf8_lossy(&table);
    let mut lines = table
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    Ok(lines.any(|fields| see(&fields)))
}

/// Device number of what is mounted there.
pub(crate) fn device_at(mount_point: &Path) -> io::Result<u64> {
    let place = rustix::fs::open(mount_point, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let facts = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", place.as_raw_fd()))?;
    let id = facts.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    let id = id.map(str::trim).ok_or(io::ErrorKind::Unsupported)?;
    let mut device = None;
    mounts(|fields| {
        let found = fields.first() == Some(&id);
        if found {
            device = fields.get(2).and_then(|device| number_of(device));
        }
        found
    })?;
    device.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Whether the mount with this device number is in the tree.
pub(crate) fn has(device: u64) -> io::Result<bool> {
    mounts(|fields| fields.get(2).and_then(|found| number_of(found)) == Some(device))
}

/// `MAJOR:MINOR` as one number.
fn number_of(device: &str) -> Option<u64> {
    let (major, minor) = device.split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_mount_is_known_by_its_device() {
        let proc = std::fs::metadata("/proc")
            .expect("every system has it")
            .dev();
        assert_eq!(device_at(Path::new("/proc")).expect("mounted"), proc);
        assert!(has(proc).expect("readable"));
        assert!(!has(makedev(4000, 4000)).expect("readable"));
        assert!(device_at(Path::new("/nowhere")).is_err());
    }
}
