use parking_lot::{Condvar, Mutex};

use crate::Error;

/// Shares flushes: callers that arrive while a flush runs wait for the next one, and one flush then
/// serves them all.
#[derive(Debug, Default)]
pub(crate) struct SharedFlush {
    state: Mutex<State>,
    finished: Condvar,
}

/// 1. `completed <= started`, and they differ by one exactly while a flush runs.
/// 2. Flush number n covers everything written before it started.
/// 3. `failed` is taken back only by [`SharedFlush::mended`]: after a failed flush the kernel may
///    have dropped the dirty pages, and a second flush would report success without them.
#[derive(Debug, Default)]
struct State {
    started: u64,
    completed: u64,
    failed: bool,
}

impl SharedFlush {
    /// Returns when a run of `flush` that started after this call has succeeded.
    pub(crate) fn run(&self, flush: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let mut state = self.state.lock();
        // A flush that already runs may have started before the caller's writes, so only the next
        // one will do.
        let wanted = state.started + 1;
        loop {
            if state.failed {
                return Err(Error::Poisoned);
            }
            if state.completed >= wanted {
                return Ok(());
            }
            if state.completed == state.started {
                break;
            }
            self.finished.wait(&mut state);
        }
        state.started += 1;
        drop(state);
        // Counts as failed unless the flush says otherwise, so that a panic in it strands no
        // waiter.
        let mut end = EndOfFlush {
            shared: self,
            succeeded: false,
        };
        let result = flush();
        end.succeeded = result.is_ok();
        result
    }

    /// True after a flush has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.state.lock().failed
    }

    /// Storage was opened again, and everything that was committed is on it.
    pub(crate) fn mended(&self) {
        self.state.lock().failed = false;
    }

    /// Records a failure seen outside of a flush.
    pub(crate) fn poison(&self) {
        self.state.lock().failed = true;
        self.finished.notify_all();
    }
}

struct EndOfFlush<'a> {
    shared: &'a SharedFlush,
    succeeded: bool,
}

impl Drop for EndOfFlush<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.completed = state.started;
        state.failed |= !self.succeeded;
        self.shared.finished.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_failed_flush_fails_every_later_one() {
        let shared = SharedFlush::default();
        assert!(shared.run(|| Ok(())).is_ok());
        assert!(matches!(
            shared.run(|| Err(std::io::Error::other("lost").into())),
            Err(Error::Io(_))
        ));
        assert!(matches!(shared.run(|| Ok(())), Err(Error::Poisoned)));
        assert!(shared.has_failed());
        shared.mended();
        assert!(shared.run(|| Ok(())).is_ok());
    }

    #[test]
    fn callers_that_wait_share_one_flush() {
        const CALLERS: u64 = 8;
        let shared = SharedFlush::default();
        let flushes = AtomicU64::new(0);
        let written = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..CALLERS {
                scope.spawn(|| {
                    written.fetch_add(1, Ordering::SeqCst);
                    let result = shared.run(|| {
                        flushes.fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(50));
                        Ok(())
                    });
                    assert!(result.is_ok());
                });
            }
        });
        assert_eq!(written.load(Ordering::SeqCst), CALLERS);
        assert!(
            flushes.load(Ordering::SeqCst) < CALLERS,
            "some callers shared a flush"
        );
    }
}
