//! Through the content of an object: its data, hole after hole, and the buffer that it is read
//! into.

use std::cell::Cell;
use std::io;

use crate::{Object, ObjectStat, Seek};

/// Small enough to stay in a core's second-level cache between read, checksum and write; larger
/// ones measured slower.
pub(crate) const BUFFER_BYTES: usize = 256 << 10;

thread_local! {
    /// One buffer per thread, so that copying many small files allocates nothing.
    static SPARE: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// The thread's buffer; comes back on drop. A second one at the same time is its own.
pub(crate) struct Buffer(pub(crate) Box<[u8]>);

impl Buffer {
    pub(crate) fn take() -> Buffer {
        let spare = SPARE.with(Cell::take);
        Buffer(spare.unwrap_or_else(|| vec![0; BUFFER_BYTES].into_boxed_slice()))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.0);
        // The thread may be ending: then the buffer is freed.
        let _ = SPARE.try_with(|spare| spare.set(Some(buffer)));
    }
}

/// Walks the data of an object, hole after hole.
///
/// Invariant: every extent is non-empty and begins at or after the end of the one before, so a
/// walk ends whatever happens to the object meanwhile.
pub(crate) struct Walk<'a> {
    object: &'a dyn Object,
    size: u64,
    position: u64,
    finds_holes: bool,
}

impl<'a> Walk<'a> {
    /// An object that takes as much space as it is long is taken for one without holes: looking
    /// for them costs a visit to every page of a tmpfs, one part in ten of the copy. Holes that
    /// space set aside elsewhere makes up for are then copied as zeros.
    pub(crate) fn new(object: &'a dyn Object, stat: &ObjectStat, size: u64) -> Walk<'a> {
        Walk::from(object, stat, 0, size)
    }

    /// The same from a position within the object.
    pub(crate) fn from(
        object: &'a dyn Object,
        stat: &ObjectStat,
        position: u64,
        size: u64,
    ) -> Walk<'a> {
        Walk {
            object,
            size,
            position,
            finds_holes: stat.allocated_bytes < stat.size,
        }
    }

    /// Start and end of the next data; `None` when only a hole, or nothing, is left.
    pub(crate) fn next_data(&mut self) -> io::Result<Option<(u64, u64)>> {
        let from = self.position;
        if from >= self.size {
            return Ok(None);
        }
        let start = match self.find(from, Seek::Data)? {
            Some(start) => start.max(from),
            None => self.size,
        };
        if start >= self.size {
            self.position = self.size;
            return Ok(None);
        }
        let end = match self.find(start, Seek::Hole)? {
            Some(end) if end > start => end.min(self.size),
            // A hole was punched, or the object cut, between the two questions: read a little and
            // ask again.
            _ => self.size.min(start.saturating_add(BUFFER_BYTES as u64)),
        };
        self.position = end;
        Ok(Some((start, end)))
    }

    /// As [`Object::seek`]; where holes cannot be found, all is data.
    fn find(&mut self, from: u64, what: Seek) -> io::Result<Option<u64>> {
        if self.finds_holes {
            match self.object.seek(from, what) {
                Err(error) if cannot(&error) => self.finds_holes = false,
                result => return result,
            }
        }
        Ok(Some(match what {
            Seek::Data => from,
            Seek::Hole => self.size,
        }))
    }
}

/// Whether an error says that the operation is not to be had here, rather than that it failed.
pub(crate) fn cannot(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY | libc::ESPIPE)
    )
}
