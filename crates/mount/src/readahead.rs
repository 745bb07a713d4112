//! How far the kernel reads ahead in files that are served by requests.
//!
//! It begins with 128 KiB for every mount, which is also its largest request to read then, whatever
//! `max_readahead` is asked for at the start. A mount of its own may be given more in `/sys`, which
//! only root may write.

use std::io;
use std::path::PathBuf;

use forebay_types::limits;

/// Two of the largest requests: while a program takes what one has brought, the next is under way.
/// More is a few percent faster, but a page fault in a mapping reads as much around it, which a
/// slow PFS has to bring.
const READ_AHEAD_BYTES: usize = 2 * limits::IO_BYTES_MAX;

/// Raises it for the mount with this device number, where that is allowed.
pub(crate) fn raise(dev: u64) {
    if let Err(error) = set(dev) {
        tracing::debug!("the kernel goes on reading ahead by its default: {error}");
    }
}

fn set(dev: u64) -> io::Result<()> {
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let path = PathBuf::from(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"));
    std::fs::write(path, (READ_AHEAD_BYTES / 1024).to_string())
}
