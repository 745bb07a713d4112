//! Whether the PFS answers. A thread asks the PFS something small every second. Whoever is about to
//! call the PFS looks here first, which costs one load while it answers.
//!
//! A call that begins before the silence is noticed may block for as long as the PFS is silent.
//! Only an answer, or the end of the process, brings its thread back.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_policy::health::{Health, Patience, judge, next_change_s};
use forebay_types::{Errno, Statfs};
use parking_lot::{Condvar, Mutex, MutexGuard};

/// Between an answer and the next question.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Who waits for a lock asks so often whether its holder waits for a PFS that does not answer.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Threads that may wait for a silent PFS. Each is one that can serve nobody else; further ones get
/// their error at once.
const WAITING_MAX: usize = 24;

struct Question {
    asked_at: Option<Instant>,
    totals: Option<Statfs>,
    ended: bool,
}

struct Shared {
    health: AtomicU8,
    patience: Patience,
    question: Mutex<Question>,
    changed: Condvar,
    waiting: AtomicUsize,
}

/// The health of one PFS. The threads end after the last of its owners, or when the PFS lets them.
pub struct PfsHealth {
    shared: Arc<Shared>,
}

/// What a silent PFS is answered with.
fn silent() -> io::Error {
    Errno::ETIMEDOUT.into()
}

impl PfsHealth {
    /// Nobody asks: the PFS counts as answering for ever.
    pub fn none() -> PfsHealth {
        PfsHealth {
            shared: Arc::new(Shared {
                health: AtomicU8::new(Health::Answering as u8),
                patience: Patience::new(f64::MAX),
                question: Mutex::new(Question {
                    asked_at: None,
                    totals: None,
                    ended: false,
                }),
                changed: Condvar::new(),
                waiting: AtomicUsize::new(0),
            }),
        }
    }

    /// Watches the file system that is asked; requests wait for it up to `give_up_after`. An error
    /// is an answer too.
    pub(crate) fn ask(
        give_up_after: Duration,
        ask: impl Fn() -> Option<Statfs> + Send + 'static,
    ) -> io::Result<PfsHealth> {
        let mut health = PfsHealth::none();
        let shared = Arc::get_mut(&mut health.shared);
        let shared = shared.ok_or_else(|| io::Error::other("a health that is shared already"))?;
        shared.patience = Patience::new(give_up_after.as_secs_f64());
        let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.into()).spawn(body)
        };
        let (asks, judges) = (health.shared.clone(), health.shared.clone());
        spawn("fb-health", Box::new(move || asks.run(&ask)))?;
        spawn("fb-health-judge", Box::new(move || judges.judge()))?;
        Ok(health)
    }

    /// Whether it has not answered for some time: who can do without it should.
    pub fn is_silent(&self) -> bool {
        self.shared.health.load(Ordering::Acquire) != Health::Answering as u8
    }

    /// Whether it has not answered for so long that nobody waits for it any more.
    pub fn is_given_up(&self) -> bool {
        self.shared.health.load(Ordering::Acquire) == Health::GivenUp as u8
    }

    /// For how long it has not answered, once that is long enough to count.
    pub fn silent_for(&self) -> Option<Duration> {
        if !self.is_silent() {
            return None;
        }
        let question = self.shared.question.lock();
        question.asked_at.map(|at| at.elapsed())
    }

    /// Its space as of the last answer, without asking it.
    pub fn totals(&self) -> Option<Statfs> {
        self.shared.question.lock().totals
    }

    /// How long requests wait for it.
    pub fn give_up_after(&self) -> Duration {
        Duration::try_from_secs_f64(self.shared.patience.give_up_after_s).unwrap_or(Duration::MAX)
    }

    /// To be called before every call on the PFS. Waits while it is silent, but not for ever:
    /// `ETIMEDOUT`.
    #[inline]
    pub fn pass(&self) -> io::Result<()> {
        match self.is_silent() {
            false => Ok(()),
            true => self.wait(),
        }
    }

    #[cold]
    fn wait(&self) -> io::Result<()> {
        let _seat = self.seat()?;
        let mut question = self.shared.question.lock();
        while self.is_silent() && !question.ended {
            if self.is_given_up() {
                return Err(silent());
            }
            self.shared.changed.wait_for(&mut question, LOOK_AGAIN);
        }
        Ok(())
    }

    fn seat(&self) -> io::Result<Seat<'_>> {
        let seat = Seat(&self.shared.waiting);
        match self.shared.waiting.fetch_add(1, Ordering::AcqRel) < WAITING_MAX {
            true => Ok(seat),
            false => Err(silent()),
        }
    }

    /// Takes a lock that others hold during calls on the PFS: `ETIMEDOUT` once nobody waits for
    /// that any more.
    pub fn lock<'a, T>(&self, mutex: &'a Mutex<T>) -> io::Result<MutexGuard<'a, T>> {
        if let Some(guard) = mutex.try_lock() {
            return Ok(guard);
        }
        let mut seat = None;
        loop {
            if let Some(guard) = mutex.try_lock_for(LOOK_AGAIN) {
                return Ok(guard);
            }
            if self.is_given_up() {
                return Err(silent());
            }
            if self.is_silent() && seat.is_none() {
                seat = Some(self.seat()?);
            }
        }
    }

    /// The same for who can come back later: `None` if the lock is not to be had while the PFS is
    /// silent.
    pub fn try_lock<'a, T>(&self, mutex: &'a Mutex<T>) -> Option<MutexGuard<'a, T>> {
        loop {
            if let Some(guard) = mutex.try_lock() {
                return Some(guard);
            }
            if self.is_silent() {
                return None;
            }
            if let Some(guard) = mutex.try_lock_for(LOOK_AGAIN) {
                return Some(guard);
            }
        }
    }
}

impl std::fmt::Debug for PfsHealth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PfsHealth({:?})", self.silent_for())
    }
}

impl Drop for PfsHealth {
    fn drop(&mut self) {
        self.shared.question.lock().ended = true;
        self.shared.changed.notify_all();
    }
}

/// One of the threads that wait.
struct Seat<'a>(&'a AtomicUsize);

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Shared {
    fn run(&self, ask: &dyn Fn() -> Option<Statfs>) {
        loop {
            {
                let mut question = self.question.lock();
                if question.ended {
                    return;
                }
                question.asked_at = Some(Instant::now());
                self.changed.notify_all();
            }
            let totals = ask();
            let mut question = self.question.lock();
            question.asked_at = None;
            question.totals = totals.or(question.totals);
            self.health
                .store(Health::Answering as u8, Ordering::Release);
            self.changed.notify_all();
            let until = Instant::now() + ASK_EVERY;
            while !question.ended && !self.changed.wait_until(&mut question, until).timed_out() {}
        }
    }

    fn judge(&self) {
        let mut question = self.question.lock();
        while !question.ended {
            let Some(asked_at) = question.asked_at else {
                self.changed.wait(&mut question);
                continue;
            };
            let open_s = asked_at.elapsed().as_secs_f64();
            let health = judge(Some(open_s), &self.patience) as u8;
            if self.health.swap(health, Ordering::AcqRel) != health {
                self.changed.notify_all();
            }
            match next_change_s(open_s, &self.patience) {
                Some(in_s) => {
                    let wait = Duration::try_from_secs_f64(in_s).unwrap_or(ASK_EVERY);
                    self.changed.wait_for(&mut question, wait);
                }
                None => self.changed.wait(&mut question),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const LONG: Duration = Duration::from_secs(60);

    fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !condition() {
            assert!(begun.elapsed() < LONG, "waited in vain: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A health whose questions are answered one by one through the channel, and all once it is
    /// closed.
    fn held(give_up_after: Duration) -> (PfsHealth, mpsc::Sender<()>) {
        let (answer, answers) = mpsc::channel();
        let health = PfsHealth::ask(give_up_after, move || {
            let _ = answers.recv();
            None
        })
        .unwrap();
        (health, answer)
    }

    #[test]
    fn a_silent_pfs_is_waited_for_and_then_given_up() {
        let (health, answer) = held(Duration::from_millis(400));
        wait_until("silence", || health.is_silent());
        let error = health.pass().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT));
        assert!(health.is_given_up());
        assert!(health.silent_for().is_some());
        drop(answer);
        wait_until("an answer", || !health.is_silent());
        health.pass().unwrap();
        assert_eq!(health.silent_for(), None);
    }

    #[test]
    fn who_waits_goes_on_with_the_answer() {
        let (health, answer) = held(Duration::from_secs(3600));
        // Such patience makes silence begin after three seconds.
        wait_until("silence", || health.is_silent());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| health.pass());
            wait_until("somebody waits", || {
                health.shared.waiting.load(Ordering::Acquire) == 1
            });
            drop(answer);
            waits.join().unwrap().unwrap();
        });
        assert_eq!(health.shared.waiting.load(Ordering::Acquire), 0);
    }

    #[test]
    fn a_lock_behind_a_silent_pfs_is_given_up() {
        let (health, answer) = held(Duration::from_millis(200));
        let lock = Mutex::new(());
        let guard = health.lock(&lock).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| health.lock(&lock).map(drop));
            let error = waits.join().unwrap().unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT));
            assert!(
                scope
                    .spawn(|| health.try_lock(&lock).is_none())
                    .join()
                    .unwrap()
            );
        });
        drop(guard);
        drop(answer);
        drop(health.lock(&lock).unwrap());
    }

    #[test]
    fn without_questions_it_counts_as_answering() {
        let health = PfsHealth::none();
        assert!(!health.is_silent());
        health.pass().unwrap();
        assert_eq!(health.silent_for(), None);
    }
}
