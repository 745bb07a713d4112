//! How much memory waiting requests may hold. A write that has to wait for space is copied, so that
//! the thread that read it can go on.

use parking_lot::{Condvar, Mutex};

/// Most bytes of all waiting requests together. Beyond that the readers of requests wait too, and
/// the kernel keeps what it has not handed over.
const WAITING_BYTES_MAX: usize = 96 << 20;
/// Charged for each request beside its bytes, so that many small requests count, too.
const REQUEST_BYTES: usize = 1024;

/// Bytes that waiting requests hold.
#[derive(Default)]
pub(crate) struct Waiting {
    held_bytes: Mutex<usize>,
    freed: Condvar,
}

impl Waiting {
    /// Waits until there is room for `data`, and copies it.
    pub(crate) fn copy(self: &std::sync::Arc<Waiting>, data: &[u8]) -> Copied {
        let bytes = data.len() + REQUEST_BYTES;
        let mut held_bytes = self.held_bytes.lock();
        // A request that waits alone may have any size.
        while *held_bytes > 0 && *held_bytes + bytes > WAITING_BYTES_MAX {
            self.freed.wait(&mut held_bytes);
        }
        *held_bytes += bytes;
        drop(held_bytes);
        Copied {
            data: data.to_vec(),
            waiting: self.clone(),
        }
    }
}

/// The bytes of a request that waits.
pub(crate) struct Copied {
    data: Vec<u8>,
    waiting: std::sync::Arc<Waiting>,
}

impl std::ops::Deref for Copied {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        let bytes = self.data.len() + REQUEST_BYTES;
        self.data = Vec::new();
        *self.waiting.held_bytes.lock() -= bytes;
        self.waiting.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn requests_that_wait_hold_so_much_and_no_more() {
        const WRITERS: usize = 200;
        const BYTES: usize = 1 << 20;
        let waiting = Arc::new(Waiting::default());
        let data = vec![7; BYTES];
        let most = Arc::new(AtomicUsize::new(0));
        let (send, receive) = std::sync::mpsc::channel::<Copied>();
        std::thread::scope(|scope| {
            for _ in 0..WRITERS {
                let (waiting, data, most, send) = (&waiting, &data, &most, send.clone());
                scope.spawn(move || {
                    let copied = waiting.copy(data);
                    most.fetch_max(*waiting.held_bytes.lock(), Ordering::Relaxed);
                    send.send(copied).expect("somebody waits for it");
                });
            }
            // Nothing is given back until no more fit: those that come then wait for it.
            let fit = WAITING_BYTES_MAX / (BYTES + REQUEST_BYTES);
            let held: Vec<Copied> = receive.iter().take(fit).collect();
            assert_eq!(*waiting.held_bytes.lock(), fit * (BYTES + REQUEST_BYTES));
            assert!(receive.try_recv().is_err());
            drop(held);
            for copied in receive.iter().take(WRITERS - fit) {
                assert_eq!(*copied, data[..]);
            }
        });
        assert!(most.load(Ordering::Relaxed) <= WAITING_BYTES_MAX);
        assert_eq!(*waiting.held_bytes.lock(), 0);
    }
}
