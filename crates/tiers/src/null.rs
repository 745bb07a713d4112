//! A tier that holds nothing: for measuring everything else.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use forebay_types::{Errno, ObjectId, SetTime, TimeSpec, limits};
use parking_lot::Mutex;

use crate::{Allocate, Identity, Object, ObjectStat, Seek, Space, Tier, TierKind};

/// Remembers which objects there are, their sizes, times and identities; drops their bytes and
/// reads zeros. All of an object is data, so that a copy from here moves as much as any other.
pub struct NullTier {
    name: String,
    capacity_bytes: u64,
    objects: Mutex<HashMap<ObjectId, Arc<NullObject>>>,
}

impl NullTier {
    /// An empty tier that says it can hold `capacity_bytes`, and is never full.
    pub fn new(name: &str, capacity_bytes: u64) -> NullTier {
        NullTier {
            name: name.to_string(),
            capacity_bytes,
            objects: Mutex::default(),
        }
    }

    fn find(&self, id: ObjectId) -> io::Result<Arc<NullObject>> {
        let objects = self.objects.lock();
        objects.get(&id).cloned().ok_or(Errno::ENOENT.into())
    }
}

struct NullObject(Mutex<NullState>);

struct NullState {
    stat: ObjectStat,
    identity: Identity,
}

/// End of a range that a file may have; `EFBIG` beyond.
fn end_of(offset: u64, len: u64) -> io::Result<u64> {
    let end = offset.checked_add(len);
    end.filter(|&end| end <= limits::FILE_BYTES_MAX)
        .ok_or(Errno::EFBIG.into())
}

impl NullObject {
    fn grow(&self, end: u64) {
        let mut state = self.0.lock();
        state.stat.size = state.stat.size.max(end);
        state.stat.mtime = TimeSpec::now();
    }
}

impl Object for NullObject {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = self.0.lock().stat.size.saturating_sub(offset);
        let count = usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len()));
        buf[..count].fill(0);
        Ok(count)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        let end = end_of(offset, data.len() as u64)?;
        if !data.is_empty() {
            self.grow(end);
        }
        Ok(data.len())
    }

    fn append(&self, data: &[u8]) -> io::Result<(usize, u64)> {
        let mut state = self.0.lock();
        state.stat.size = end_of(state.stat.size, data.len() as u64)?;
        state.stat.mtime = TimeSpec::now();
        Ok((data.len(), state.stat.size))
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        let mut state = self.0.lock();
        state.stat.size = end_of(size, 0)?;
        state.stat.mtime = TimeSpec::now();
        Ok(())
    }

    fn allocate(&self, mode: Allocate, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Err(Errno::EINVAL.into());
        }
        let end = end_of(offset, len)?;
        if matches!(mode, Allocate::Extend | Allocate::ZeroRange) {
            self.grow(end);
        }
        Ok(())
    }

    fn seek(&self, from: u64, what: Seek) -> io::Result<Option<u64>> {
        let size = self.0.lock().stat.size;
        Ok((from < size).then_some(match what {
            Seek::Data => from,
            Seek::Hole => size,
        }))
    }

    fn sync(&self, _data_only: bool) -> io::Result<()> {
        Ok(())
    }

    fn stat(&self) -> io::Result<ObjectStat> {
        Ok(self.0.lock().stat)
    }

    fn set_times(&self, atime: Option<SetTime>, mtime: Option<SetTime>) -> io::Result<()> {
        let value = |time: SetTime| match time {
            SetTime::Now => TimeSpec::now(),
            SetTime::At(time) => time,
        };
        let mut state = self.0.lock();
        if let Some(time) = atime {
            state.stat.atime = value(time);
        }
        if let Some(time) = mtime {
            state.stat.mtime = value(time);
        }
        Ok(())
    }

    fn set_identity(&self, identity: &Identity) -> io::Result<()> {
        self.0.lock().identity = identity.clone();
        Ok(())
    }

    fn has_writers(&self) -> io::Result<bool> {
        Ok(false)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Tier for NullTier {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> TierKind {
        TierKind::Null
    }

    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    fn space(&self) -> io::Result<Space> {
        Ok(Space {
            total_bytes: self.capacity_bytes,
            free_bytes: self.capacity_bytes,
            lent_bytes: 0,
        })
    }

    fn create(&self, id: ObjectId, identity: &Identity) -> io::Result<Arc<dyn Object>> {
        let mut objects = self.objects.lock();
        if objects.contains_key(&id) {
            return Err(Errno::EEXIST.into());
        }
        let now = TimeSpec::now();
        let object = Arc::new(NullObject(Mutex::new(NullState {
            stat: ObjectStat {
                atime: now,
                mtime: now,
                ..ObjectStat::default()
            },
            identity: identity.clone(),
        })));
        objects.insert(id, object.clone());
        Ok(object)
    }

    fn open(&self, id: ObjectId) -> io::Result<Arc<dyn Object>> {
        Ok(self.find(id)?)
    }

    fn remove(&self, id: ObjectId) -> io::Result<()> {
        match self.objects.lock().remove(&id) {
            Some(_) => Ok(()),
            None => Err(Errno::ENOENT.into()),
        }
    }

    fn identity(&self, id: ObjectId) -> io::Result<Option<Identity>> {
        let object = self.find(id)?;
        let identity = object.0.lock().identity.clone();
        Ok(Some(identity))
    }

    fn list(&self, visit: &mut dyn FnMut(ObjectId)) -> io::Result<()> {
        // Not under the lock: the visitor may come back for an object.
        let ids: Vec<ObjectId> = self.objects.lock().keys().copied().collect();
        ids.into_iter().for_each(visit);
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }
}
