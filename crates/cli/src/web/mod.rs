//! `[http]`: metrics, health and a page, for whoever watches a burst buffer.
//!
//! Invariants:
//!
//! 1. Nothing here changes anything: it answers `GET` and `HEAD`.
//! 2. It serves on one thread of its own. What it asks the server for is the status, from two
//!    further threads at most, and not more often than [`FRESH_MS`]: nothing on the way of data
//!    waits for who watches. Who asks often keeps nobody else from an answer.
//! 3. Who comes over TCP is shown no names of files and applications, unless told otherwise. Who
//!    comes over a Unix socket is shown what `forebay status` shows that user.
//! 4. Where it cannot listen, the burst buffer serves on, and it is tried again.
//! 5. A stop removes the socket that this run has made, and nothing else.
//! 6. Over loopback only names of loopback are answered: a page from elsewhere in somebody's
//!    browser reads nothing by a name that leads here.

mod asks;
mod health;
mod listen;
mod metrics;
mod samples;
mod seats;
mod serve;

use std::sync::Arc;
use std::thread::JoinHandle;

use forebay_wire::Service;
use tokio::sync::Notify;

use crate::up::listening::Listen;

/// A status is asked for anew when the last one is older than this, milliseconds.
const FRESH_MS: u64 = 500;

/// Serves until it is dropped.
pub struct Web {
    ended: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Web {
    /// Begins to serve the status of `service`. With `names`, whoever comes over TCP is shown what
    /// the server's own user is.
    ///
    /// # Errors
    /// There is no thread, or no runtime, for it.
    pub fn start(listen: Listen, names: bool, service: Arc<dyn Service>) -> std::io::Result<Web> {
        let ended = Arc::new(Notify::new());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(2)
            .thread_name("fb-http-ask")
            .build()?;
        let until = ended.clone();
        let thread = std::thread::Builder::new()
            .name("fb-http".into())
            .spawn(move || {
                runtime.block_on(serve::serve((listen, names), service, until));
                // A status that hangs is not waited for.
                runtime.shutdown_background();
            })?;
        Ok(Web {
            ended,
            thread: Some(thread),
        })
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.ended.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread for HTTP has panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;
    use std::time::{Duration, Instant};

    use forebay_wire::control::ControlResponse;
    use forebay_wire::{Peer, Reply, Request, Response};

    use super::*;

    struct Well;

    impl Service for Well {
        fn handle(&self, _: Peer<'_>, _: Request, _: &[u8], _: &mut [u8]) -> Reply {
            Response::Control(ControlResponse::Status(Box::default())).into()
        }
    }

    fn at(path: &Path) -> Web {
        Web::start(Listen::Unix(path.into()), false, Arc::new(Well)).expect("a thread")
    }

    fn answer(path: &Path) -> String {
        let mut stream = UnixStream::connect(path).expect("connect");
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .expect("ask");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text
    }

    fn until(is_so: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !is_so() {
            assert!(Instant::now() < end, "in vain");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_stop_removes_the_own_socket_and_nothing_else() {
        let place = tempfile::tempdir().expect("tempdir");
        let path = place.path().join("http.sock");
        let web = at(&path);
        until(|| UnixStream::connect(&path).is_ok());
        assert!(answer(&path).starts_with("HTTP/1.1 200"));
        drop(web);
        assert!(!path.exists(), "the own one");
        std::fs::write(&path, "a file of somebody").expect("write");
        let web = at(&path);
        std::thread::sleep(Duration::from_millis(50));
        drop(web);
        assert_eq!(
            std::fs::read_to_string(&path).expect("it is there"),
            "a file of somebody"
        );
        std::fs::remove_file(&path).expect("remove");
        let others = UnixListener::bind(&path).expect("bind");
        let web = at(&path);
        std::thread::sleep(Duration::from_millis(50));
        drop(web);
        assert!(path.exists(), "that of another one, which listens");
        drop(others);
        // What it has left is replaced; what somebody puts there then stays.
        let web = at(&path);
        until(|| UnixStream::connect(&path).is_ok());
        std::fs::remove_file(&path).expect("remove");
        std::fs::write(&path, "new").expect("write");
        drop(web);
        assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "new");
    }
}
