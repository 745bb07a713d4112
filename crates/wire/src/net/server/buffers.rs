//! Memory for data on its way through the server. Large pieces are used again: the kernel fills a
//! new one page by page.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use forebay_types::limits;
use parking_lot::Mutex;

/// Shorter pieces come from the allocator.
const POOLED_BYTES_MIN: usize = 32 << 10;
/// Pieces that are kept for later.
const KEPT_MAX: usize = 64;

#[derive(Default)]
pub(crate) struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
}

/// A piece of memory. What is in it at first is of no meaning.
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    length: usize,
    home: Option<Arc<Buffers>>,
}

impl Buffers {
    /// So many bytes, up to [`limits::IO_BYTES_MAX`].
    pub fn take(buffers: &Arc<Buffers>, length: usize) -> Buffer {
        if length < POOLED_BYTES_MIN {
            return Buffer {
                bytes: vec![0; length],
                length,
                home: None,
            };
        }
        let kept = buffers.free.lock().pop();
        Buffer {
            bytes: kept.unwrap_or_else(|| vec![0; limits::IO_BYTES_MAX]),
            length: length.min(limits::IO_BYTES_MAX),
            home: Some(buffers.clone()),
        }
    }
}

impl Buffer {
    /// The first so many bytes only.
    pub fn shorten(&mut self, length: usize) {
        self.length = self.length.min(length);
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            let mut free = home.free.lock();
            if free.len() < KEPT_MAX {
                free.push(std::mem::take(&mut self.bytes));
            }
        }
    }
}
