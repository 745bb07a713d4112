//! Dirty pages of a file, by its descriptor.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// What is wanted of the dirty pages of a range, as in sync_file_range(2); no flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteBack {
    /// They are on their way to the device.
    Start,
    /// Those that are on their way have arrived.
    Wait,
    /// All have arrived.
    Finish,
}

impl WriteBack {
    fn flags(self) -> libc::c_uint {
        match self {
            WriteBack::Start => libc::SYNC_FILE_RANGE_WRITE,
            WriteBack::Wait => libc::SYNC_FILE_RANGE_WAIT_BEFORE,
            WriteBack::Finish => {
                libc::SYNC_FILE_RANGE_WAIT_BEFORE
                    | libc::SYNC_FILE_RANGE_WRITE
                    | libc::SYNC_FILE_RANGE_WAIT_AFTER
            }
        }
    }
}

/// What [`crate::Object::write_back`] does with a descriptor of this machine.
pub(crate) fn of_descriptor(
    fd: Option<BorrowedFd<'_>>,
    what: WriteBack,
    (offset, len): (u64, u64),
) -> io::Result<()> {
    let Some(fd) = fd else {
        return Ok(());
    };
    let (offset, len) = (offset as i64, len as i64);
    // SAFETY: a valid descriptor and numbers; the call touches no memory of ours.
    match unsafe { libc::sync_file_range(fd.as_raw_fd(), offset, len, what.flags()) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            // Kernels and sandboxes without the call: nothing was waited for, and the flush does
            // all.
            e if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => Ok(()),
            error => Err(error),
        },
    }
}
