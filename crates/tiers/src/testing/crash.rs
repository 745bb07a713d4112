//! What a power cut would take away.
//!
//! Names: objects created since the last `sync_all` vanish, removed ones come back (their removal
//! is put off until it is synced). Content: the first change of a page since the last sync keeps a
//! copy of it, and a crash puts copies back. Identities and times are not undone.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_types::{Errno, ObjectId};
use parking_lot::{Mutex, MutexGuard};

use crate::{Object, Tier};

/// Unit in which a page cache loses writes.
const PAGE_BYTES: u64 = 4096;

/// Content as it was when last synced, where it has changed since.
#[derive(Default)]
pub(super) struct Saved {
    size: Option<u64>,
    /// Number of the page, what it held; zeros beyond the end of the object.
    pages: BTreeMap<u64, Vec<u8>>,
}

/// Held while an object changes.
pub(super) type Guard<'a> = MutexGuard<'a, Saved>;

/// One object's unsynced changes, shared by all that have it open.
#[derive(Clone, Default)]
pub(super) struct Unsynced {
    saved: Arc<Mutex<Saved>>,
    /// What the next sync says, once, as Linux does.
    lost: Arc<Mutex<Option<Errno>>>,
    /// The power was cut while it was open.
    dead: Arc<AtomicBool>,
}

impl Unsynced {
    pub fn refuse_dead(&self) -> io::Result<()> {
        if self.dead.load(Ordering::Acquire) {
            return Err(Errno::EIO.into());
        }
        Ok(())
    }

    /// Saves the size and every page of the range that is not saved yet. Of a range without end
    /// (`len` is `u64::MAX`), what lies within the object.
    pub fn before_change(
        &self,
        object: &dyn Object,
        offset: u64,
        len: u64,
    ) -> io::Result<Guard<'_>> {
        let mut saved = self.saved.lock();
        self.refuse_dead()?;
        let size_now = object.stat()?.size;
        let size = *saved.size.get_or_insert(size_now);
        let end = match len {
            u64::MAX => size_now,
            len => offset.saturating_add(len),
        };
        let mut page = offset / PAGE_BYTES;
        while page.saturating_mul(PAGE_BYTES) < end {
            if let Entry::Vacant(entry) = saved.pages.entry(page) {
                let start = page * PAGE_BYTES;
                // What lies beyond the synced size was not there: zeros.
                let mut content = vec![0; PAGE_BYTES.min(size.saturating_sub(start)) as usize];
                object.read_at(&mut content, start)?;
                content.resize(PAGE_BYTES as usize, 0);
                entry.insert(content);
            }
            page += 1;
        }
        Ok(saved)
    }

    pub fn sync(&self, object: &dyn Object, data_only: bool) -> io::Result<()> {
        let mut saved = self.saved.lock();
        self.refuse_dead()?;
        if let Some(errno) = self.lost.lock().take() {
            return Err(errno.into());
        }
        object.sync(data_only)?;
        *saved = Saved::default();
        Ok(())
    }

    /// Its write-back has failed, and memory has let go of the pages. The size stays.
    fn lose(&self, object: &dyn Object, errno: Errno) -> io::Result<()> {
        let mut saved = self.saved.lock();
        let size = object.stat()?.size;
        for (page, content) in &saved.pages {
            let start = page * PAGE_BYTES;
            let len = PAGE_BYTES.min(size.saturating_sub(start)) as usize;
            object.write_at(&content[..len], start)?;
            *self.lost.lock() = Some(errno);
        }
        *saved = Saved::default();
        Ok(())
    }

    /// Puts back what a crash takes away.
    fn undo(&self, object: &dyn Object, chance: &mut Chance) -> io::Result<()> {
        let mut saved = self.saved.lock();
        let Some(size) = saved.size else {
            return Ok(());
        };
        let size_now = object.stat()?.size;
        if size != size_now && !chance.keeps() {
            object.set_len(size)?;
        }
        let size_after = object.stat()?.size;
        for (page, content) in &saved.pages {
            let start = page * PAGE_BYTES;
            // A page that was cut off can only come back with the old size; a size that reached
            // the disk without the data shows zeros.
            if start < size_after && !chance.keeps() {
                let len = PAGE_BYTES.min(size_after - start) as usize;
                object.write_at(&content[..len], start)?;
            }
        }
        *saved = Saved::default();
        Ok(())
    }
}

/// Decides page by page; the same seed decides the same (xorshift).
struct Chance {
    state: u64,
    keep_percent: u8,
}

impl Chance {
    fn keeps(&mut self) -> bool {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 33) % 100 < u64::from(self.keep_percent)
    }
}

/// What of a tier is not on stable storage.
#[derive(Default)]
pub(super) struct Ledger {
    created: HashSet<ObjectId>,
    /// Removed by name, still in the tier.
    removed: HashSet<ObjectId>,
    unsynced: HashMap<ObjectId, Unsynced>,
}

impl Ledger {
    pub fn created(&mut self, id: ObjectId) -> Unsynced {
        self.created.insert(id);
        let unsynced = Unsynced::default();
        self.unsynced.insert(id, unsynced.clone());
        unsynced
    }

    pub fn opened(&mut self, id: ObjectId) -> Unsynced {
        self.unsynced.entry(id).or_default().clone()
    }

    pub fn refuse_removed(&self, id: ObjectId) -> io::Result<()> {
        if self.removed.contains(&id) {
            return Err(Errno::ENOENT.into());
        }
        Ok(())
    }

    /// A name that is used again cannot wait for its removal to be synced.
    pub fn finish_removal(&mut self, tier: &dyn Tier, id: ObjectId) -> io::Result<()> {
        if self.removed.remove(&id) {
            tier.remove(id)?;
        }
        Ok(())
    }

    pub fn remove(&mut self, tier: &dyn Tier, id: ObjectId) -> io::Result<()> {
        self.refuse_removed(id)?;
        if self.created.remove(&id) {
            // Nothing of it ever reached stable storage.
            self.unsynced.remove(&id);
            return tier.remove(id);
        }
        // Finds out whether there is one.
        drop(tier.open(id)?);
        self.removed.insert(id);
        Ok(())
    }

    pub fn sync_names(&mut self, tier: &dyn Tier) -> io::Result<()> {
        self.created.clear();
        for id in std::mem::take(&mut self.removed) {
            self.unsynced.remove(&id);
            tier.remove(id)?;
        }
        Ok(())
    }

    pub fn lose(&self, tier: &dyn Tier, errno: Errno) -> io::Result<()> {
        for (id, unsynced) in &self.unsynced {
            unsynced.lose(tier.open(*id)?.as_ref(), errno)?;
        }
        Ok(())
    }

    pub fn crash(&mut self, tier: &dyn Tier, seed: u64, keep_percent: u8) -> io::Result<()> {
        let mut chance = Chance {
            // Xorshift stays at zero for ever.
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            keep_percent,
        };
        for id in self.created.drain() {
            self.unsynced
                .remove(&id)
                .unwrap_or_default()
                .dead
                .store(true, Ordering::Release);
            tier.remove(id)?;
        }
        self.removed.clear();
        let mut unsynced: Vec<_> = self.unsynced.drain().collect();
        // In the order of ids, so that the seed alone decides.
        unsynced.sort_unstable_by_key(|(id, _)| *id);
        for (id, unsynced) in unsynced {
            unsynced.dead.store(true, Ordering::Release);
            unsynced.undo(tier.open(id)?.as_ref(), &mut chance)?;
        }
        Ok(())
    }
}
