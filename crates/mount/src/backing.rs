//! Backing ids: the kernel's registrations of objects that it reads and writes by itself. One for
//! each open inode.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};

use forebay_types::{Handle, Ino};
use fuser::BackingId;
use parking_lot::Mutex;

#[derive(Default)]
struct Inner {
    by_ino: HashMap<Ino, Weak<BackingId>>,
    by_handle: HashMap<Handle, (Ino, Arc<BackingId>)>,
}

/// The kernel wants all opens of an inode to name the same backing id. The id therefore lives as
/// long as any handle of the inode.
#[derive(Default)]
pub(crate) struct Backings {
    inner: Mutex<Inner>,
}

impl Backings {
    /// The backing id of an inode for one more handle; `make` registers it if there is none.
    pub(crate) fn take(
        &self,
        ino: Ino,
        handle: Handle,
        make: impl FnOnce() -> io::Result<BackingId>,
    ) -> io::Result<Arc<BackingId>> {
        let mut inner = self.inner.lock();
        let id = match inner.by_ino.get(&ino).and_then(Weak::upgrade) {
            Some(id) => id,
            None => {
                let id = Arc::new(make()?);
                inner.by_ino.insert(ino, Arc::downgrade(&id));
                id
            }
        };
        inner.by_handle.insert(handle, (ino, id.clone()));
        Ok(id)
    }

    /// Lets go of the backing id of a handle that is closed.
    pub(crate) fn release(&self, handle: Handle) {
        let mut inner = self.inner.lock();
        let Some((ino, id)) = inner.by_handle.remove(&handle) else {
            return;
        };
        if Arc::strong_count(&id) == 1 {
            inner.by_ino.remove(&ino);
        }
        drop(inner);
        // The ioctl that unregisters the id runs here, outside the lock.
        drop(id);
    }
}
