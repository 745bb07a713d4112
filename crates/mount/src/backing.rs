//! Backing ids: the kernel's registrations of objects that it reads and writes by itself. One for
//! each open inode. And inodes of which the kernel keeps pages: it wants one kind, so no inode is
//! both at once.

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
    /// Open handles by which the kernel keeps pages.
    paged: HashMap<Handle, Ino>,
    /// So many of an inode.
    paged_inos: HashMap<Ino, usize>,
}

impl Inner {
    fn release_paged(&mut self, handle: Handle) {
        let Some(ino) = self.paged.remove(&handle) else {
            return;
        };
        if let Some(count) = self.paged_inos.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                self.paged_inos.remove(&ino);
            }
        }
    }
}

/// The kernel wants all opens of an inode to name the same backing id. The id therefore lives as
/// long as any handle of the inode.
#[derive(Default)]
pub(crate) struct Backings {
    inner: Mutex<Inner>,
}

impl Backings {
    /// Whether the kernel may keep pages of an inode that it has opened by this handle: not while
    /// it has the inode by itself.
    pub(crate) fn may_keep_pages(&self, ino: Ino, handle: Handle) -> bool {
        let mut inner = self.inner.lock();
        let backed = inner.by_ino.get(&ino);
        if backed.is_some_and(|id| id.strong_count() > 0) {
            return false;
        }
        if inner.paged.insert(handle, ino).is_none() {
            *inner.paged_inos.entry(ino).or_default() += 1;
        }
        true
    }

    /// The backing id of an inode for one more handle; `make` registers it if there is none:
    /// without it there is no new one. `None` while the kernel keeps pages of the inode.
    pub(crate) fn take(
        &self,
        ino: Ino,
        handle: Handle,
        make: Option<impl FnOnce() -> io::Result<BackingId>>,
    ) -> io::Result<Option<Arc<BackingId>>> {
        let mut inner = self.inner.lock();
        if inner.paged_inos.contains_key(&ino) {
            return Ok(None);
        }
        let id = match (inner.by_ino.get(&ino).and_then(Weak::upgrade), make) {
            (Some(id), _) => id,
            (None, None) => return Ok(None),
            (None, Some(make)) => {
                let id = Arc::new(make()?);
                inner.by_ino.insert(ino, Arc::downgrade(&id));
                id
            }
        };
        inner.by_handle.insert(handle, (ino, id.clone()));
        Ok(Some(id))
    }

    /// Lets go of the backing id of a handle that is closed.
    pub(crate) fn release(&self, handle: Handle) {
        let mut inner = self.inner.lock();
        inner.release_paged(handle);
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
