//! An allocator that counts what each thread holds, so that a length field that is believed before
//! its bytes are there shows.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, counting. A program makes it its own with `#[global_allocator]`;
/// without, nothing is counted.
pub struct Counting;

/// A request of more than that is refused, which ends the process: the machine would not survive
/// it.
const REFUSED_BYTES: usize = 2 << 30;

thread_local! {
    static HELD_BYTES: Cell<isize> = const { Cell::new(0) };
    static MOST_BYTES: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that is ending has no such variables any more, and nobody asks it.
    let _ = HELD_BYTES.try_with(|held| {
        let now = held.get() + bytes;
        held.set(now);
        let _ = MOST_BYTES.try_with(|most| most.set(most.get().max(now)));
    });
}

// SAFETY: every call goes to the system's allocator with the arguments as they came, and its answer
// back; counting touches variables of the thread only, which need no allocation and have no
// destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > REFUSED_BYTES {
            return std::ptr::null_mut();
        }
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `dealloc`, and all memory is the system
        // allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() > REFUSED_BYTES {
            return std::ptr::null_mut();
        }
        count(layout.size() as isize);
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if new_size > REFUSED_BYTES {
            return std::ptr::null_mut();
        }
        count(new_size as isize - layout.size() as isize);
        // SAFETY: as in `dealloc`.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

/// Counts from here on, on this thread.
pub fn begin() {
    let _ = HELD_BYTES.try_with(|held| held.set(0));
    let _ = MOST_BYTES.try_with(|most| most.set(0));
}

/// The most that this thread has held at once since then.
pub fn most_bytes() -> usize {
    MOST_BYTES.try_with(Cell::get).unwrap_or(0).max(0) as usize
}
