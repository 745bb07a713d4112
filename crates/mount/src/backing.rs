//! Backing ids: the kernel's registrations of objects that it reads and writes by itself. One for
//! each open inode. And inodes that are open otherwise: the kernel wants one kind, so no inode is
//! both at once.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use forebay_types::{Handle, Ino};
use forebay_wire::Descriptor;
use fuser::BackingId;
use parking_lot::Mutex;

/// An inode of the kernel: an id, and the session in which it was found first. After that the id
/// may be another file.
pub(crate) type Node = (Ino, u64);

/// A file below, by device and inode.
type FileBelow = (u64, u64);

#[derive(Default)]
struct Inner {
    backed: HashMap<Node, (FileBelow, Weak<BackingId>)>,
    by_handle: HashMap<Handle, (Node, Arc<BackingId>)>,
    /// Handles by which inodes are open otherwise.
    plain: HashMap<Handle, Node>,
    /// So many of an inode.
    plain_nodes: HashMap<Node, usize>,
}

impl Inner {
    fn release_plain(&mut self, handle: Handle) {
        let Some(node) = self.plain.remove(&handle) else {
            return;
        };
        if let Some(count) = self.plain_nodes.get_mut(&node) {
            *count -= 1;
            if *count == 0 {
                self.plain_nodes.remove(&node);
            }
        }
    }

    fn id_of(&self, node: Node) -> Option<(FileBelow, Arc<BackingId>)> {
        let (file, id) = self.backed.get(&node)?;
        Some((*file, id.upgrade()?))
    }
}

/// The kernel wants all opens of an inode to name the same backing id. The id therefore lives as
/// long as any handle of the inode.
#[derive(Default)]
pub(crate) struct Backings {
    inner: Mutex<Inner>,
}

impl Backings {
    /// An inode is open by this handle, and served by requests. Whether the kernel may keep pages
    /// of it: not while it has the inode by itself.
    pub(crate) fn is_plain(&self, node: Node, handle: Handle) -> bool {
        let mut inner = self.inner.lock();
        let backed = inner.backed.get(&node);
        if backed.is_some_and(|(_, id)| id.strong_count() > 0) {
            return false;
        }
        if inner.plain.insert(handle, node).is_none() {
            *inner.plain_nodes.entry(node).or_default() += 1;
        }
        true
    }

    /// The backing id of an inode for one more handle; `make` registers it if there is none of this
    /// file. Without a descriptor there is no new one. `None` while the inode is open otherwise.
    pub(crate) fn take(
        &self,
        node: Node,
        handle: Handle,
        descriptor: Option<&dyn Descriptor>,
        make: impl FnOnce(BorrowedFd<'_>) -> io::Result<BackingId>,
    ) -> io::Result<Option<Arc<BackingId>>> {
        let mut inner = self.inner.lock();
        if inner.plain_nodes.contains_key(&node) {
            return Ok(None);
        }
        let known = inner.id_of(node);
        let id = match (known, descriptor) {
            (Some((_, id)), None) => id,
            (None, None) => return Ok(None),
            (known, Some(descriptor)) => {
                let stat = rustix::fs::fstat(descriptor.descriptor())?;
                let file = (stat.st_dev, stat.st_ino);
                match known.filter(|(other, _)| *other == file) {
                    Some((_, id)) => id,
                    None => {
                        let id = Arc::new(make(descriptor.descriptor())?);
                        inner.backed.insert(node, (file, Arc::downgrade(&id)));
                        id
                    }
                }
            }
        };
        inner.by_handle.insert(handle, (node, id.clone()));
        Ok(Some(id))
    }

    /// Lets go of the backing id of a handle that is closed.
    pub(crate) fn release(&self, handle: Handle) {
        let mut inner = self.inner.lock();
        inner.release_plain(handle);
        let Some((node, id)) = inner.by_handle.remove(&handle) else {
            return;
        };
        let is_its = |(_, known): &(FileBelow, Weak<BackingId>)| {
            std::ptr::eq(known.as_ptr(), Arc::as_ptr(&id))
        };
        if Arc::strong_count(&id) == 1 && inner.backed.get(&node).is_some_and(is_its) {
            inner.backed.remove(&node);
        }
        drop(inner);
        // The ioctl that unregisters the id runs here, outside the lock.
        drop(id);
    }
}
