//! What may never end is waited for no longer than a limit.

use std::io;
use std::sync::mpsc;
use std::time::Duration;

/// Does something that may take long, for so long at most; what is under way then ends with this
/// process.
pub fn within<T: Send + 'static>(
    limit: Duration,
    what: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Option<T>> {
    let (send, receive) = mpsc::channel();
    std::thread::Builder::new()
        .name("fb-ask".into())
        // If nobody waits for it any more, nobody misses it.
        .spawn(move || drop(send.send(what())))?;
    // A panic has told of itself.
    Ok(receive.recv_timeout(limit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_is_left_alone() {
        let long = Duration::from_secs(60);
        assert_eq!(within(long, || 7).expect("a thread"), Some(7));
        let (hold, held) = mpsc::channel::<()>();
        let waits = move || held.recv().is_err();
        let left = within(Duration::from_millis(1), waits).expect("a thread");
        assert_eq!(left, None);
        drop(hold);
    }
}
