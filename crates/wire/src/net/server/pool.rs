//! Who works: how many threads, how many of them at requests that may take long, and what waits for
//! one. One thread is always left to read, so that a server whose requests all block still hears
//! its clients.

use std::collections::VecDeque;
use std::thread::JoinHandle;

use parking_lot::Mutex;

/// Threads that stay when there is nothing to do: one reads while the other works.
pub(crate) const THREADS_MIN: usize = 2;
/// Data of requests that wait for a thread, bytes; beyond, their sockets are not read.
const WAITING_BYTES_MAX: usize = 256 << 20;

/// Something to do that may take long.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

pub(crate) struct Pool {
    threads_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    threads: usize,
    /// Of those, at work that may take long. Less than `threads_max`.
    busy: usize,
    waiting: VecDeque<(Job, usize)>,
    waiting_bytes: usize,
    stopping: bool,
    handles: Vec<JoinHandle<()>>,
}

/// What becomes of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// This thread does it; `spare` says that another one is to be started, which reads meanwhile.
    Now { spare: bool },
    /// All threads but this one work: it waits. With `full`, too much waits already.
    Later { full: bool },
}

impl Pool {
    /// At most so many threads, at least [`THREADS_MIN`].
    pub fn new(threads_max: usize) -> Pool {
        Pool {
            threads_max: threads_max.max(THREADS_MIN),
            state: Mutex::default(),
        }
    }

    /// Whether this thread may work now. After `Now` it calls [`Pool::done`]; after `Later` it
    /// calls [`Pool::wait`].
    pub fn turn(&self) -> Turn {
        let mut state = self.state.lock();
        match state.busy + 1 < self.threads_max {
            true => Turn::Now {
                spare: self.begin(&mut state),
            },
            false => Turn::Later {
                full: state.waiting_bytes >= WAITING_BYTES_MAX,
            },
        }
    }

    fn begin(&self, state: &mut State) -> bool {
        state.busy += 1;
        let spare = state.threads <= state.busy && state.threads < self.threads_max;
        if spare {
            state.threads += 1;
        }
        spare
    }

    /// Leaves a job, with so many bytes of data, for the next thread that is free. The caller rings
    /// the bell.
    pub fn wait(&self, job: Job, bytes: usize) {
        let mut state = self.state.lock();
        state.waiting_bytes += bytes;
        state.waiting.push_back((job, bytes));
    }

    /// A job that has waited, if this thread may do it, and whether a spare thread is to be
    /// started. [`Pool::done`] follows.
    pub fn next(&self) -> Option<(Job, bool)> {
        let mut state = self.state.lock();
        if state.busy + 1 >= self.threads_max {
            return None;
        }
        let (job, bytes) = state.waiting.pop_front()?;
        state.waiting_bytes -= bytes;
        let spare = self.begin(&mut state);
        Some((job, spare))
    }

    /// The work that [`Pool::turn`] or [`Pool::next`] allowed is done.
    pub fn done(&self) {
        self.state.lock().busy -= 1;
    }

    /// Counts a thread that is about to be started at the start.
    pub fn count_thread(&self) {
        self.state.lock().threads += 1;
    }

    /// A thread runs; those that have ended are forgotten.
    pub fn started(&self, handle: JoinHandle<()>) {
        let mut state = self.state.lock();
        state.handles.retain(|handle| !handle.is_finished());
        state.handles.push(handle);
    }

    /// A thread that was counted could not be started.
    pub fn not_started(&self) {
        self.state.lock().threads -= 1;
    }

    /// Whether a thread that had nothing to do for a while ends; it is not counted any more then.
    pub fn may_end(&self) -> bool {
        let mut state = self.state.lock();
        let may = state.threads > (state.busy + 1).max(THREADS_MIN);
        if may {
            state.threads -= 1;
        }
        may
    }

    /// Threads, and how many of them work.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.threads, state.busy)
    }

    pub fn is_stopping(&self) -> bool {
        self.state.lock().stopping
    }

    /// Threads end as soon as they are woken; hands over those to wait for.
    pub fn stop(&self) -> Vec<JoinHandle<()>> {
        let mut state = self.state.lock();
        state.stopping = true;
        std::mem::take(&mut state.handles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_is_always_left_to_read() {
        let pool = Pool::new(4);
        pool.count_thread();
        pool.count_thread();
        assert_eq!(pool.turn(), Turn::Now { spare: false });
        assert_eq!(pool.turn(), Turn::Now { spare: true });
        assert_eq!(pool.turn(), Turn::Now { spare: true });
        assert_eq!(pool.turn(), Turn::Later { full: false });
        assert_eq!(pool.counts(), (4, 3));
        pool.wait(Box::new(|| ()), WAITING_BYTES_MAX);
        assert_eq!(pool.turn(), Turn::Later { full: true });
        assert!(pool.next().is_none(), "nobody is free");
        pool.done();
        let (_, spare) = pool.next().expect("one is free");
        assert!(!spare);
        for _ in 0..3 {
            pool.done();
        }
        assert!(pool.may_end() && pool.may_end() && !pool.may_end());
        assert_eq!(pool.counts(), (THREADS_MIN, 0));
    }
}
