//! Threads for requests that may take long, so that these do not hold up requests that take
//! microseconds.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::asker;

/// Most threads: at most 96 requests wait for their application's turn or for space, and 62 may
/// block in calls on the PFS.
const THREADS_MAX: usize = 160;

type Task = Box<dyn FnOnce(&mut Vec<u8>) + Send>;

struct Inner {
    most: usize,
    tasks: VecDeque<Task>,
    threads: usize,
    idle: usize,
    ending: bool,
}

/// Threads that start when they are needed and stay for reuse. Each has a buffer that its tasks
/// use.
#[derive(Clone)]
pub(crate) struct Pool {
    shared: Arc<(Mutex<Inner>, Condvar)>,
}

impl Default for Pool {
    fn default() -> Pool {
        Pool::of(THREADS_MAX)
    }
}

impl Pool {
    /// So many threads at most.
    pub(crate) fn of(most: usize) -> Pool {
        let inner = Inner {
            most,
            tasks: VecDeque::new(),
            threads: 0,
            idle: 0,
            ending: false,
        };
        Pool {
            shared: Arc::new((Mutex::new(inner), Condvar::new())),
        }
    }

    /// Runs a task on a thread that may wait. If no thread can be started and none is there, it is
    /// run here.
    pub(crate) fn run(&self, task: Task) {
        let pid = asker::get();
        let task: Task = Box::new(move |buffer| {
            asker::set(pid);
            task(buffer);
        });
        let mut inner = self.shared.0.lock();
        inner.tasks.push_back(task);
        if inner.idle >= inner.tasks.len() || inner.threads >= inner.most {
            self.shared.1.notify_one();
            return;
        }
        inner.threads += 1;
        drop(inner);
        let shared = self.shared.clone();
        let spawned = std::thread::Builder::new()
            .name("fb-wait".into())
            .spawn(move || work(&shared));
        if spawned.is_err() {
            let mut inner = self.shared.0.lock();
            inner.threads -= 1;
            if inner.threads == 0
                && let Some(task) = inner.tasks.pop_front()
            {
                drop(inner);
                task(&mut Vec::new());
            }
        }
    }

    /// Lets the threads end when their tasks are done.
    pub(crate) fn end(&self) {
        self.shared.0.lock().ending = true;
        self.shared.1.notify_all();
    }
}

fn work(shared: &(Mutex<Inner>, Condvar)) {
    let mut buffer = Vec::new();
    let mut inner = shared.0.lock();
    loop {
        if let Some(task) = inner.tasks.pop_front() {
            drop(inner);
            task(&mut buffer);
            inner = shared.0.lock();
        } else if inner.ending {
            inner.threads -= 1;
            return;
        } else {
            inner.idle += 1;
            shared.1.wait(&mut inner);
            inner.idle -= 1;
        }
    }
}
