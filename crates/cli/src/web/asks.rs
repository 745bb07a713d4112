//! The questions for the status, and who waits for the answers.
//!
//! There are two of them, since the server tells its status in two ways: with names to root and to
//! its own user, without to everybody else ([`Peer::is_trusted`]). So whoever asks how often, and
//! as how many users, at most one of each is under way, and neither waits for the other.
//!
//! [`Peer::is_trusted`]: forebay_wire::Peer::is_trusted

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_wire::Service;
use forebay_wire::control::StatusBits;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::FRESH_MS;
use crate::up::run::status_for;

/// A server that has not said its status by then is not well.
const STATUS_WITHIN: Duration = Duration::from_secs(5);
/// User and group of who may see nothing (`nobody`).
pub const NOBODY: u32 = 65_534;

type Told = Result<Arc<StatusBits>, &'static str>;

/// What somebody is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// All of it.
    Everything,
    /// No names of files and applications.
    NoNames,
}

impl View {
    /// What the server shows to this user.
    pub fn of_user(uid: u32) -> View {
        match uid == 0 || uid == rustix::process::geteuid().as_raw() {
            true => View::Everything,
            false => View::NoNames,
        }
    }

    fn asker(self) -> (u32, u32) {
        let own = || {
            (
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw(),
            )
        };
        match self {
            View::Everything => own(),
            View::NoNames => (NOBODY, NOBODY),
        }
    }
}

#[derive(Default)]
struct Ask {
    last: Option<(Instant, Arc<StatusBits>)>,
    /// Tells the answer to all who wait for it.
    under_way: Option<watch::Receiver<Option<Told>>>,
}

/// See above.
pub struct Asks {
    service: Arc<dyn Service>,
    within: Duration,
    everything: Arc<Mutex<Ask>>,
    no_names: Arc<Mutex<Ask>>,
}

impl Asks {
    /// Questions for this server.
    pub fn new(service: Arc<dyn Service>) -> Asks {
        Asks {
            service,
            within: STATUS_WITHIN,
            everything: Arc::default(),
            no_names: Arc::default(),
        }
    }

    /// The status, at most [`FRESH_MS`] old.
    pub async fn status(&self, view: View) -> Told {
        let mut told = match self.begin(view) {
            Ok(bits) => return Ok(bits),
            Err(told) => told,
        };
        match tokio::time::timeout(self.within, told.wait_for(Option::is_some)).await {
            Ok(Ok(told)) => match &*told {
                Some(told) => told.clone(),
                None => Err("the server does not say its status"),
            },
            Ok(Err(_)) => Err("the status has failed; the log says more"),
            Err(_) => Err("the server does not answer"),
        }
    }

    /// What is known already, or the question that is under way.
    fn begin(&self, view: View) -> Result<Arc<StatusBits>, watch::Receiver<Option<Told>>> {
        let ask = match view {
            View::Everything => &self.everything,
            View::NoNames => &self.no_names,
        };
        let mut locked = ask.lock();
        let fresh = Duration::from_millis(FRESH_MS);
        if let Some((at, bits)) = &locked.last
            && at.elapsed() < fresh
        {
            return Ok(bits.clone());
        }
        // One that has panicked has dropped its end.
        let running = locked.under_way.take().filter(|w| w.has_changed().is_ok());
        if let Some(running) = running {
            locked.under_way = Some(running.clone());
            return Err(running);
        }
        let (tell, told) = watch::channel(None);
        locked.under_way = Some(told.clone());
        let (ask, service) = (ask.clone(), self.service.clone());
        tokio::task::spawn_blocking(move || {
            let bits = status_for(&*service, view.asker()).map(Arc::new);
            let mut ask = ask.lock();
            ask.under_way = None;
            if let Some(bits) = &bits {
                ask.last = Some((Instant::now(), bits.clone()));
            }
            drop(ask);
            tell.send_replace(Some(bits.ok_or("the server does not say its status")));
        });
        Err(told)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Condvar, Mutex as StdMutex};

    use forebay_wire::control::ControlResponse;
    use forebay_wire::{Peer, Reply, Request, Response};

    use super::*;

    /// A server that answers when it is let.
    #[derive(Default)]
    struct Slow {
        asked: AtomicUsize,
        trusted: AtomicUsize,
        may_answer: StdMutex<bool>,
        changed: Condvar,
    }

    impl Slow {
        fn let_answer(&self) {
            *self.may_answer.lock().expect("lock") = true;
            self.changed.notify_all();
        }
    }

    impl Service for Slow {
        fn handle(&self, peer: Peer<'_>, _: Request, _: &[u8], _: &mut [u8]) -> Reply {
            self.asked.fetch_add(1, Ordering::SeqCst);
            self.trusted
                .fetch_add(usize::from(peer.is_trusted()), Ordering::SeqCst);
            let guard = self.may_answer.lock().expect("lock");
            drop(self.changed.wait_while(guard, |may| !*may).expect("lock"));
            let bits = StatusBits {
                names_hidden: !peer.is_trusted(),
                ..StatusBits::default()
            };
            Response::Control(ControlResponse::Status(Box::new(bits))).into()
        }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .max_blocking_threads(2)
            .build()
            .expect("a runtime")
    }

    #[test]
    fn who_asks_often_keeps_nobody_else_from_an_answer() {
        let slow = Arc::new(Slow::default());
        let asks = Arc::new(Asks::new(slow.clone()));
        runtime().block_on(async {
            // Any user, by more questions than there are threads.
            let many: Vec<_> = (0..40)
                .map(|_| {
                    let asks = asks.clone();
                    tokio::spawn(async move { asks.status(View::NoNames).await })
                })
                .collect();
            tokio::task::yield_now().await;
            let watched = tokio::spawn({
                let asks = asks.clone();
                async move { asks.status(View::Everything).await }
            });
            while slow.asked.load(Ordering::SeqCst) < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(slow.trusted.load(Ordering::SeqCst), 1);
            slow.let_answer();
            let told = watched.await.expect("no panic").expect("an answer");
            assert!(!told.names_hidden);
            for one in many {
                assert!(
                    one.await
                        .expect("no panic")
                        .expect("an answer")
                        .names_hidden
                );
            }
            assert_eq!(slow.asked.load(Ordering::SeqCst), 2, "one for each view");
        });
    }

    #[test]
    fn a_question_that_hangs_is_asked_once_and_its_answer_is_taken() {
        let slow = Arc::new(Slow::default());
        let asks = Asks {
            within: Duration::from_millis(20),
            ..Asks::new(slow.clone())
        };
        runtime().block_on(async {
            for _ in 0..5 {
                let told = asks.status(View::NoNames).await;
                assert_eq!(told.err(), Some("the server does not answer"));
            }
            assert_eq!(slow.asked.load(Ordering::SeqCst), 1);
            slow.let_answer();
            let patient = Asks {
                within: STATUS_WITHIN,
                service: asks.service.clone(),
                everything: asks.everything.clone(),
                no_names: asks.no_names.clone(),
            };
            assert!(patient.status(View::NoNames).await.is_ok());
            assert_eq!(slow.asked.load(Ordering::SeqCst), 1);
        });
    }

    #[test]
    fn a_question_that_panics_is_asked_again() {
        struct Panics(AtomicUsize);
        impl Service for Panics {
            fn handle(&self, _: Peer<'_>, _: Request, _: &[u8], _: &mut [u8]) -> Reply {
                self.0.fetch_add(1, Ordering::SeqCst);
                panic!("as it should");
            }
        }
        let server = Arc::new(Panics(AtomicUsize::new(0)));
        let asks = Asks::new(server.clone());
        runtime().block_on(async {
            for _ in 0..2 {
                let told = asks.status(View::Everything).await;
                assert_eq!(told.err(), Some("the status has failed; the log says more"));
            }
        });
        assert_eq!(server.0.load(Ordering::SeqCst), 2);
    }
}
