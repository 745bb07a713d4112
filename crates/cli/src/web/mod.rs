//! `[http]`: metrics, health and a page, for whoever watches a burst buffer.
//!
//! Invariants:
//!
//! 1. Nothing here changes anything: it answers `GET` and `HEAD`.
//! 2. It serves on one thread of its own. What it asks the server for is the status, from two
//!    further threads at most, and not more often than [`FRESH_MS`]: nothing on the way of data
//!    waits for who watches.
//! 3. Who comes over TCP is shown no names of files and applications, unless told otherwise. Who
//!    comes over a Unix socket is shown what `forebay status` shows that user.
//! 4. Where it cannot listen, the burst buffer serves on, and it is tried again.
//! 5. Over loopback only names of loopback are answered: a page from elsewhere in somebody's
//!    browser reads nothing by a name that leads here.

mod health;
mod listen;
mod metrics;
mod samples;
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
