//! Ctrl-C, SIGTERM and SIGHUP as ordinary events on a thread of their own.

use std::io;
use std::sync::mpsc::{self, TrySendError};
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
    /// A call, such as to open the log again, on another thread: it may hang with a file system,
    /// and Ctrl-C and SIGTERM are heard all the same.
    Calls(Box<dyn FnMut() + Send>),
}

/// Calls `on_signal` with the signal's number and a count from 1 on, on a thread of its own. Must
/// be called before other threads exist: they inherit the mask that leaves the signals to this one.
pub fn watch(
    hangup: Hangup,
    mut on_signal: impl FnMut(i32, u32) + Send + 'static,
) -> io::Result<()> {
    let set = blocked()?;
    let hangup = match hangup {
        Hangup::Stops => None,
        Hangup::Calls(act) => Some(aside(act)?),
    };
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
                if let (libc::SIGHUP, Some(call)) = (signal, &hangup) {
                    call();
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

/// Has a thread of its own make the calls; what it gives asks for one. Who asks during a call gets
/// one more after it.
fn aside(mut act: Box<dyn FnMut() + Send>) -> io::Result<impl Fn() + Send + use<>> {
    let (ask, asked) = mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name("fb-hangup".into())
        .spawn(move || {
            while asked.recv().is_ok() {
                act();
            }
        })?;
    Ok(move || match ask.try_send(()) {
        // One that has not begun yet is for both.
        Ok(()) | Err(TrySendError::Full(())) => {}
        Err(TrySendError::Disconnected(())) => {
            tracing::warn!("SIGHUP: the call before it has failed, there are no more");
        }
    })
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

/// Signals that end a process end this one, whatever whoever started it has made of them: all but
/// SIGHUP, which means nothing here and stays what it is for processes that this one starts.
pub fn only_hold_back_hangup() -> io::Result<()> {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: the signal numbers are valid, and no code is to run on them.
        if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: as below.
    unsafe {
        let mut hangup = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut hangup);
        libc::sigaddset(&mut hangup, libc::SIGHUP);
        match libc::pthread_sigmask(libc::SIG_SETMASK, &hangup, std::ptr::null_mut()) {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_hangs_holds_up_nobody_and_the_next_comes_after_it() {
        let (begun, begins) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel::<()>();
        let call = aside(Box::new(move || {
            begun.send(()).expect("somebody listens");
            goes_on.recv().expect("somebody lets it go on");
        }))
        .expect("thread");
        call();
        begins.recv().expect("the first");
        // It hangs now. Nobody waits for it.
        call();
        call();
        assert!(begins.try_recv().is_err());
        go_on.send(()).expect("it waits");
        begins.recv().expect("one for both");
        go_on.send(()).expect("it waits");
        let more = begins.recv_timeout(Duration::from_millis(50));
        assert!(more.is_err());
    }
}
