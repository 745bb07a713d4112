//! What the kernel is told by itself, not as the answer to a request.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

use forebay_types::Ino;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// `FUSE_NOTIFY_INVAL_INODE` of the kernel's protocol.
const FORGET_INODE: i32 = 2;
/// `FUSE_NOTIFY_STORE`.
const STORE: i32 = 4;
/// Length, code and the number of the request that there is none of.
const HEAD_BYTES: usize = 16;

/// As a length.
pub(crate) const TO_THE_END: u64 = 0;

/// A way to tell it.
#[derive(Default)]
pub(crate) struct Notices {
    /// The mount's `/dev/fuse`.
    device: OnceLock<OwnedFd>,
    /// Address of a page that nobody may read.
    unreadable: OnceLock<usize>,
}

impl Notices {
    /// Tells it by this connection; once.
    pub(crate) fn tell_by(&self, device: OwnedFd) {
        // A mount has one device, so it is set once.
        let _ = self.device.set(device);
    }

    /// Attributes. Takes no lock that a request may hold. `ENOENT` if the kernel does not have the
    /// file.
    pub(crate) fn forget_attr(&self, ino: Ino) -> io::Result<()> {
        const NO_CONTENT: i64 = -1;
        self.forget_inode(ino, NO_CONTENT, 0)
    }

    /// Attributes and pages, and what was stored through mappings is written back before that.
    pub(crate) fn forget_pages(&self, ino: Ino) -> io::Result<()> {
        self.forget_range(ino, 0, TO_THE_END)
    }

    /// The same of a part of the file. No thread that answers requests may call it.
    pub(crate) fn forget_range(&self, ino: Ino, offset: u64, len: u64) -> io::Result<()> {
        self.forget_inode(ino, offset as i64, len as i64)
    }

    fn forget_inode(&self, ino: Ino, offset: i64, len: i64) -> io::Result<()> {
        let mut body = [0; 24];
        body[..8].copy_from_slice(&ino.0.to_ne_bytes());
        body[8..16].copy_from_slice(&offset.to_ne_bytes());
        body[16..].copy_from_slice(&len.to_ne_bytes());
        self.tell(FORGET_INODE, &body)
    }

    /// Where the file ends, if the kernel takes it for shorter. No request tells it that where a
    /// mapping is stored into, and it writes back only what is before the end that it knows.
    ///
    /// A store into the kernel's pages takes the end up first and the bytes after that. Bytes
    /// would replace what programs store meanwhile, so this one has none that can be read: the
    /// kernel takes the end up and says `EFAULT`.
    pub(crate) fn grow(&self, ino: Ino, end: u64) -> io::Result<()> {
        let (Some(device), Some(last)) = (self.device.get(), end.checked_sub(1)) else {
            return Ok(());
        };
        let mut body = [0; 24];
        body[..8].copy_from_slice(&ino.0.to_ne_bytes());
        body[8..16].copy_from_slice(&last.to_ne_bytes());
        body[16..20].copy_from_slice(&1u32.to_ne_bytes());
        let message = message(STORE, &body, 1);
        let parts = [
            libc::iovec {
                iov_base: message.as_ptr().cast_mut().cast(),
                iov_len: message.len(),
            },
            libc::iovec {
                iov_base: self.unreadable()?,
                iov_len: 1,
            },
        ];
        // SAFETY: the first part is a buffer that outlives the call, of the length that is said;
        // the second one the kernel cannot read, which is an error and no access.
        let written = unsafe { libc::writev(device.as_raw_fd(), parts.as_ptr(), 2) };
        match io::Error::last_os_error() {
            _ if written >= 0 => Ok(()),
            error if error.raw_os_error() == Some(libc::EFAULT) => Ok(()),
            error => Err(error),
        }
    }

    /// A page that nobody may read.
    fn unreadable(&self) -> io::Result<*mut libc::c_void> {
        const BYTES: usize = 4096;
        if let Some(at) = self.unreadable.get() {
            return Ok(*at as *mut libc::c_void);
        }
        // SAFETY: a new mapping, which touches nothing that is there.
        let at = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                BYTES,
                ProtFlags::empty(),
                MapFlags::PRIVATE,
            )
        }?;
        Ok(*self.unreadable.get_or_init(|| at as usize) as *mut libc::c_void)
    }

    fn tell(&self, code: i32, body: &[u8]) -> io::Result<()> {
        let Some(device) = self.device.get() else {
            return Ok(());
        };
        let message = message(code, body, 0);
        let written = rustix::io::write(device, &message)?;
        debug_assert_eq!(written, message.len());
        Ok(())
    }
}

/// So many bytes of data are to follow.
fn message(code: i32, body: &[u8], data_bytes: usize) -> Vec<u8> {
    let length = HEAD_BYTES + body.len();
    let mut message = Vec::with_capacity(length);
    message.extend_from_slice(&((length + data_bytes) as u32).to_ne_bytes());
    message.extend_from_slice(&code.to_ne_bytes());
    message.extend_from_slice(&0u64.to_ne_bytes());
    message.extend_from_slice(body);
    message
}
