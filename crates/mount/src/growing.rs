//! The kernel is told where a file ends while it waits for pages of the file.
//!
//! A program may store into a page as soon as the page is there, and what lies behind the end that
//! the kernel knows is not written back. So the kernel has to know the end before the answer to the
//! read. The notice takes the end up first, and then waits for the last page of the file, which may
//! be one of those that the kernel waits for. Whoever answers may not wait for the notice, then:
//! only until it waits itself.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use forebay_types::Ino;
use rustix::thread::{Pid, gettid};

use crate::notices::Notices;

/// Between two looks at the thread that tells it.
const LOOK: Duration = Duration::from_micros(50);
/// The read is answered after that in any case. The end is recalled, too.
const PATIENCE: Duration = Duration::from_secs(1);

/// Tells the kernel where a file ends; it knows that when this returns.
///
/// # Errors
/// Those of [`Notices::grow`], and of the thread that tells it. An end that is not known in time is
/// none.
pub(crate) fn grow_beside_a_read(notices: &Arc<Notices>, ino: Ino, end: u64) -> io::Result<()> {
    let notices = notices.clone();
    let (say, said) = channel();
    let (tell, told) = channel();
    std::thread::Builder::new()
        .name("fb-grow".into())
        .spawn(move || {
            // Nobody waits for what comes late.
            let _ = say.send(gettid());
            let _ = tell.send(notices.grow(ino, end));
        })?;
    let Ok(thread) = said.recv() else {
        return Ok(());
    };
    await_told(&told, || waits_for_page(thread))
}

fn await_told(
    told: &Receiver<io::Result<()>>,
    waits: impl Fn() -> io::Result<bool>,
) -> io::Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        match told.recv_timeout(LOOK) {
            Ok(outcome) => return outcome,
            Err(RecvTimeoutError::Timeout) if waits()? => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
    tracing::warn!("the kernel was not told in time where a file ends");
    Ok(())
}

/// Whether a thread of this process waits in the kernel, within the call by which the notice is
/// written: between the end and the page there is nothing else that the call could wait for.
fn waits_for_page(thread: Pid) -> io::Result<bool> {
    let of_thread = |name: &str| {
        std::fs::read(format!(
            "/proc/self/task/{}/{name}",
            thread.as_raw_nonzero()
        ))
    };
    let waits = match of_thread("syscall") {
        Ok(call) => Ok(is_writing(&call)),
        // Some kernels do not say that.
        Err(_) => of_thread("stat").map(|stat| is_uninterruptible(&stat)),
    };
    match waits {
        // It has ended, and says so.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        waits => waits,
    }
}

/// By a line of proc(5): of a thread that does not run, the number of its call.
fn is_writing(call: &[u8]) -> bool {
    call.starts_with(format!("{} ", libc::SYS_writev).as_bytes())
}

/// By a line of proc(5): the state comes after the name, which may hold anything.
fn is_uninterruptible(stat: &[u8]) -> bool {
    let after_name = stat.iter().rposition(|byte| *byte == b')');
    after_name.is_some_and(|at| stat[at..].starts_with(b") D "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_thread_is_read_behind_its_name() {
        assert!(is_uninterruptible(b"7 (fb-grow) D 1 7 7"));
        assert!(is_uninterruptible(b"7 (a) S (b) D 1 7 7"));
        assert!(!is_uninterruptible(b"7 (a) D (b) S 1 7 7"));
        assert!(!is_uninterruptible(b"7 (fb-grow) R 1 7 7"));
        assert!(!is_uninterruptible(b""));
    }

    #[test]
    fn who_answers_waits_until_it_is_told_or_the_notice_waits() {
        let (tell, told) = channel();
        tell.send(Ok(())).expect("heard");
        await_told(&told, || panic!("it is told")).expect("told");
        let (tell, told) = channel::<io::Result<()>>();
        let looks = std::cell::Cell::new(0);
        let waits = || {
            looks.set(looks.get() + 1);
            Ok(looks.get() == 3)
        };
        await_told(&told, waits).expect("it waits");
        assert_eq!(looks.get(), 3);
        tell.send(Err(io::ErrorKind::Other.into())).expect("heard");
        assert!(await_told(&told, || Ok(false)).is_err());
        drop(tell);
        await_told(&told, || Ok(false)).expect("the thread is gone");
    }

    #[test]
    fn a_thread_that_waits_in_another_call_waits_for_no_page() {
        assert!(is_writing(b"20 0x3 0x7f 0x2 0x0 0x0 0x0 0x7f 0x7f"));
        assert!(!is_writing(b"202 0x3 0x7f 0x2 0x0 0x0 0x0 0x7f 0x7f"));
        assert!(!is_writing(b"running"));
        let (say, said) = channel();
        let (end, ended) = channel::<()>();
        let thread = std::thread::spawn(move || {
            say.send(gettid()).expect("heard");
            ended.recv().expect("the end");
        });
        let waiting = said.recv().expect("its number");
        assert!(!waits_for_page(waiting).expect("it is there"));
        end.send(()).expect("heard");
        thread.join().expect("ended");
        assert!(!waits_for_page(waiting).expect("it is gone"));
    }

    #[test]
    fn a_thread_that_runs_waits_for_no_page() {
        assert!(!waits_for_page(gettid()).expect("it is there"));
    }
}
