//! Rates of writes of users and groups.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_policy::limits::{Limit, Owner, Owners};
use forebay_policy::rates::{self, Written};
use parking_lot::Mutex;

/// Those in force, and what each has written.
pub struct Rates {
    /// Else nobody is counted.
    has_some: AtomicBool,
    all: Mutex<rates::Rates>,
    origin: Instant,
}

impl Rates {
    /// None yet.
    pub fn new(origin: Instant) -> Rates {
        Rates {
            has_some: AtomicBool::new(false),
            all: Mutex::default(),
            origin,
        }
    }

    /// Takes limits into force, instead of those before.
    pub fn set(&self, limits: &[Limit]) {
        self.all.lock().set(limits, self.now_s());
        let has_some = limits.iter().any(|limit| limit.rate_bytes_per_s.is_some());
        self.has_some.store(has_some, Ordering::Release);
    }

    /// Whether there are some: without them nobody is counted.
    pub fn has_some(&self) -> bool {
        self.has_some.load(Ordering::Acquire)
    }

    /// Whether files of these owners are written at a rate: requests can be held to that, a kernel
    /// that writes by itself cannot.
    pub fn limits(&self, owners: Owners) -> bool {
        self.has_some() && self.all.lock().limits(owners)
    }

    /// So much of a file of these owners was written. Answers with how much later its program is
    /// to hear of that; zero where it was not `asked` for by a program that waits.
    pub fn wrote(&self, owners: Owners, bytes: u64, asked: bool) -> Duration {
        let pause_s = self.all.lock().wrote(owners, bytes, asked, self.now_s());
        Duration::try_from_secs_f64(pause_s).unwrap_or(Duration::MAX)
    }

    /// What a user or group has written under its rate.
    pub fn written(&self, owner: Owner) -> Written {
        self.all.lock().written(owner)
    }

    fn now_s(&self) -> f64 {
        self.origin.elapsed().as_secs_f64()
    }
}
