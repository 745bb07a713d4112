//! What the kernel is told by itself, not as the answer to a request.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use forebay_types::Ino;

/// `FUSE_NOTIFY_INVAL_INODE` of the kernel's protocol.
const FORGET_INODE: i32 = 2;
/// Length, code and the number of the request that there is none of.
const HEAD_BYTES: usize = 16;

/// A way to tell it.
#[derive(Default)]
pub(crate) struct Notices {
    /// The mount's `/dev/fuse`.
    device: OnceLock<OwnedFd>,
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
        self.forget_inode(ino, NO_CONTENT)
    }

    /// Attributes and pages, and what was stored through mappings is written back before that.
    pub(crate) fn forget_pages(&self, ino: Ino) -> io::Result<()> {
        const FROM_THE_START: i64 = 0;
        self.forget_inode(ino, FROM_THE_START)
    }

    fn forget_inode(&self, ino: Ino, offset: i64) -> io::Result<()> {
        const TO_THE_END: i64 = 0;
        let mut body = [0; 24];
        body[..8].copy_from_slice(&ino.0.to_ne_bytes());
        body[8..16].copy_from_slice(&offset.to_ne_bytes());
        body[16..].copy_from_slice(&TO_THE_END.to_ne_bytes());
        self.tell(FORGET_INODE, &body)
    }

    fn tell(&self, code: i32, body: &[u8]) -> io::Result<()> {
        let Some(device) = self.device.get() else {
            return Ok(());
        };
        let length = HEAD_BYTES + body.len();
        let mut message = Vec::with_capacity(length);
        message.extend_from_slice(&(length as u32).to_ne_bytes());
        message.extend_from_slice(&code.to_ne_bytes());
        message.extend_from_slice(&0u64.to_ne_bytes());
        message.extend_from_slice(body);
        let written = rustix::io::write(device, &message)?;
        debug_assert_eq!(written, length);
        Ok(())
    }
}
