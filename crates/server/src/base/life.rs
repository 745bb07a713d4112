//! How the server comes to an end: the order to stop, the death of a thread, and threads that are
//! to look whether they end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_types::Errno;
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};

/// An order to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopOrder {
    /// Drain first.
    pub drain: bool,
    /// Give up draining then.
    pub deadline: Option<Instant>,
    /// The server is started anew at once: everything stays as it is.
    pub anew: bool,
}

/// What threads ask whether they go on.
#[derive(Default)]
pub struct Life {
    ending: AtomicBool,
    stop: Mutex<Option<StopOrder>>,
    stop_given: Condvar,
    /// A thread that everything depends on has died: which, and of what.
    broken: Mutex<Option<String>>,
    /// Another server may lead.
    deposed: AtomicBool,
    /// Threads that pause are woken here.
    paused: (Mutex<()>, Condvar),
    /// Nothing is changed any more.
    unchanging: AtomicBool,
    /// Held by each request that changes something.
    changing: RwLock<()>,
}

impl Life {
    /// Whether threads are to end.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// Threads are to end.
    pub fn end(&self) {
        self.ending.store(true, Ordering::Release);
        let _asleep = self.paused.0.lock();
        self.paused.1.notify_all();
    }

    /// To be held by who changes something. `ENOTCONN` once what is left has been counted: a
    /// program that still has the mount open would take what nobody drains for done.
    pub fn change(&self) -> Result<RwLockReadGuard<'_, ()>, Errno> {
        let refused = || match self.unchanging.load(Ordering::Acquire) {
            true => Err(Errno::ENOTCONN),
            false => Ok(()),
        };
        // Nobody comes to wait behind who ends all changes.
        refused()?;
        let held = self.changing.read();
        refused()?;
        Ok(held)
    }

    /// Nothing is changed from here on. Waits for changes under way, for so long at most: one that
    /// blocks in a call on the PFS has not been answered yet. Answers whether all have ended.
    pub fn end_changes(&self, patience: Duration) -> bool {
        self.unchanging.store(true, Ordering::Release);
        self.changing.try_write_for(patience).is_some()
    }

    /// Sleeps; not beyond the end of the server.
    pub fn pause(&self, time: Duration) {
        let mut asleep = self.paused.0.lock();
        if !self.is_ending() {
            self.paused.1.wait_for(&mut asleep, time);
        }
    }

    /// Gives the order to stop.
    pub fn order_stop(&self, order: StopOrder) {
        *self.stop.lock() = Some(order);
        self.stop_given.notify_all();
    }

    /// Orders a start anew, unless there is an order.
    pub fn order_start_anew(&self) {
        self.stop.lock().get_or_insert(StopOrder {
            drain: false,
            deadline: None,
            anew: true,
        });
        self.stop_given.notify_all();
    }

    /// The order to stop, if one is given.
    pub fn stop_order(&self) -> Option<StopOrder> {
        *self.stop.lock()
    }

    /// Waits for an order to stop.
    pub fn wait_stop_order(&self) -> StopOrder {
        let mut stop = self.stop.lock();
        loop {
            match *stop {
                Some(order) => return order,
                None => self.stop_given.wait(&mut stop),
            }
        }
    }

    /// The server goes on, unless there is another order by now.
    pub fn take_order_back(&self, order: StopOrder) {
        let mut stop = self.stop.lock();
        if *stop == Some(order) {
            *stop = None;
        }
    }

    /// A thread that everything depends on has died: the server stops, and touches nothing more
    /// than it must, for nobody knows how far that thread had come. The next start looks at
    /// everything.
    pub fn broke(&self, what: String) {
        tracing::error!(
            "{what}; the burst buffer ends, and what is not on the PFS yet stays for the next start"
        );
        self.broken.lock().get_or_insert(what);
        self.order_stop(StopOrder {
            drain: false,
            deadline: None,
            anew: false,
        });
    }

    /// Another server may lead with these records from now on: this one has nothing to say or to
    /// change any more, and ends as by a kill.
    pub fn depose(&self, what: String) {
        self.deposed.store(true, Ordering::Release);
        self.broke(what);
    }

    /// Whether another server may lead.
    pub fn is_deposed(&self) -> bool {
        self.deposed.load(Ordering::Acquire)
    }

    /// Whether a thread has died.
    pub fn is_broken(&self) -> bool {
        self.broken.lock().is_some()
    }

    /// Which thread has died, and of what.
    pub fn broken(&self) -> Option<String> {
        self.broken.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use forebay_types::Errno;

    use super::{Life, StopOrder};

    const NOW: StopOrder = StopOrder {
        drain: false,
        deadline: None,
        anew: false,
    };
    const DRAIN: StopOrder = StopOrder {
        drain: true,
        deadline: None,
        anew: false,
    };

    #[test]
    fn an_order_is_taken_back_only_where_it_is_still_the_one() {
        let life = Life::default();
        life.order_stop(DRAIN);
        assert_eq!(life.wait_stop_order(), DRAIN);
        life.order_stop(NOW);
        life.take_order_back(DRAIN);
        assert_eq!(life.stop_order(), Some(NOW), "the later order counts");
        life.take_order_back(NOW);
        assert_eq!(life.stop_order(), None);
    }

    #[test]
    fn the_first_death_is_told_of_and_stops_the_server() {
        let life = Life::default();
        assert!(!life.is_broken());
        life.broke("thread a panicked".into());
        life.broke("thread b ended".into());
        assert!(!life.is_deposed());
        life.depose("another leads".into());
        assert!(life.is_deposed());
        assert_eq!(life.broken().as_deref(), Some("thread a panicked"));
        assert_eq!(life.stop_order(), Some(NOW));
    }

    #[test]
    fn nobody_pauses_beyond_the_end() {
        let life = Life::default();
        let hour = Duration::from_secs(3600);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| life.pause(hour));
            life.end();
            sleeper.join().expect("thread");
        });
        life.pause(hour);
        assert!(life.is_ending() && begun.elapsed() < hour);
    }

    #[test]
    fn who_ends_all_changes_waits_for_those_under_way_and_lets_none_begin() {
        let life = Life::default();
        let held = life.change().expect("the first");
        assert!(!life.end_changes(Duration::from_millis(1)), "one is left");
        assert!(life.change().is_err());
        std::thread::scope(|scope| {
            let ends = scope.spawn(|| life.end_changes(Duration::from_secs(60)));
            drop(held);
            assert!(ends.join().expect("thread"));
        });
        assert_eq!(life.change().err(), Some(Errno::ENOTCONN));
    }
}
