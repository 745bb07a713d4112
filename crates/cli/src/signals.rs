//! Ctrl-C, SIGTERM and SIGHUP as ordinary events on a thread of their own.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Signals closer together than this are one request: `timeout`, `sudo` and shells send one to the
/// process and again to its group.
const SAME_REQUEST: Duration = Duration::from_millis(300);

/// How often the user has asked to stop.
#[derive(Clone)]
pub struct Signals {
    shared: Arc<(Mutex<u32>, Condvar)>,
}

impl Signals {
    /// From now on these signals are only counted. The second one ends the program at once, so that
    /// nothing can hold a user back.
    pub fn count() -> io::Result<Signals> {
        let signals = Signals {
            shared: Arc::new((Mutex::new(0), Condvar::new())),
        };
        let theirs = signals.clone();
        watch(Hangup::Stops, move |signal, nth| {
            if nth > 1 {
                std::process::exit(128 + signal);
            }
            let (count, changed) = &*theirs.shared;
            *count.lock().unwrap_or_else(PoisonError::into_inner) = nth;
            changed.notify_all();
        })?;
        Ok(signals)
    }

    /// Of somebody who does not want to hear of any more.
    pub fn never() -> Signals {
        Signals {
            shared: Arc::new((Mutex::new(0), Condvar::new())),
        }
    }

    /// Sleeps for so long, less if a signal comes; whether one has come.
    pub fn sleep(&self, time: Duration) -> bool {
        let (count, changed) = &*self.shared;
        let count = count.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = changed.wait_timeout_while(count, time, |n| *n == 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0 > 0
    }
}

/// What SIGHUP means.
pub enum Hangup {
    /// The same as Ctrl-C: the terminal has gone.
    Stops,
    /// A call, such as to open the log again.
    Calls(Box<dyn FnMut() + Send>),
}

/// Calls `on_signal` with the signal's number and a count from 1 on, on a thread of its own. Must
/// be called before other threads exist: they inherit the mask that leaves the signals to this one.
pub fn watch(
    mut hangup: Hangup,
    mut on_signal: impl FnMut(i32, u32) + Send + 'static,
) -> io::Result<()> {
    let set = blocked()?;
    std::thread::Builder::new()
        .name("fb-signals".into())
        .spawn(move || {
            let (mut nth, mut last) = (0, None::<Instant>);
            loop {
                let mut signal = 0;
                // SAFETY: both pointers are to live values of the right types.
                if unsafe { libc::sigwait(&set, &mut signal) } != 0 {
                    continue;
                }
                if let (libc::SIGHUP, Hangup::Calls(act)) = (signal, &mut hangup) {
                    act();
                    continue;
                }
                if last.is_some_and(|last| last.elapsed() < SAME_REQUEST) {
                    continue;
                }
                (nth, last) = (nth + 1, Some(Instant::now()));
                on_signal(signal, nth);
            }
        })?;
    Ok(())
}

/// SIGUSR1 and SIGUSR2 mean nothing here; by default they would end the program.
pub fn ignore_user_signals() -> io::Result<()> {
    for signal in [libc::SIGUSR1, libc::SIGUSR2] {
        // SAFETY: the signal numbers are valid, and no code is to run on them.
        if unsafe { libc::signal(signal, libc::SIG_IGN) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn blocked() -> io::Result<libc::sigset_t> {
    // SAFETY: a sigset_t is plain data that sigemptyset initialises before any other use; the
    // signal numbers are valid; pthread_sigmask may be given a null pointer for the old mask.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::sigaddset(&mut set, signal);
        }
        match libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) {
            0 => Ok(set),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}
