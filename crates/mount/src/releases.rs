//! Files that programs have closed, and of which the server is still to be told.
//!
//! close(2) waits for nobody, and the kernel keeps no order between a close and what comes after
//! it. So closes travel together where the server is on another node. Invariants:
//!
//! 1. A close is told at once, or [`APART`] after the one before it has been.
//! 2. A message whose answer does not come holds up what is closed later for [`LATE`] at most: a
//!    close may wait for the device, or for a PFS that is silent.
//! 3. Whether a session knows what was closed is for the connection to say: after a restart of the
//!    server it may.
//!
//! On the server's own node a close is told by whoever the kernel asks, and answered after that.
//! The kernel may have written such a file by itself, and only the close makes what it wrote known:
//! to whoever orders something of the file next, and to other nodes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_client::Client;
use forebay_types::{Errno, Handle, limits};
use parking_lot::{Condvar, Mutex};

/// Messages set off at least so far apart, and what is closed meanwhile travels together.
const APART: Duration = Duration::from_millis(2);
/// A message that is under way for so long is not waited for.
const LATE: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Queue {
    waiting: Vec<Handle>,
    /// Number of the thread that tells, from 1; who finds another number here has been replaced.
    carrier: u64,
    /// The carrier sleeps until somebody wakes it.
    idle: bool,
    /// Since when a message of the carrier has been under way.
    since: Option<Instant>,
    ended: bool,
}

impl Queue {
    fn take(&mut self) -> Vec<Handle> {
        let count = self.waiting.len().min(limits::RELEASES_PER_MESSAGE_MAX);
        self.waiting.drain(..count).collect()
    }

    fn needs_carrier(&self) -> bool {
        let is_late = |since: Instant| since.elapsed() > LATE;
        let is_carried = self.carrier > 0 && !self.since.is_some_and(is_late);
        !self.waiting.is_empty() && !self.ended && !is_carried
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Releases {
    queue: Mutex<Queue>,
    woken: Condvar,
}

impl Releases {
    /// A file is closed.
    pub(crate) fn add(self: &Arc<Releases>, client: &Client, handle: Handle) {
        let needs_carrier = {
            let mut queue = self.queue.lock();
            queue.waiting.push(handle);
            if queue.idle {
                self.woken.notify_one();
            }
            queue.needs_carrier()
        };
        if needs_carrier {
            self.begin_carrier(client);
        }
    }

    /// Replaces a carrier whose message does not come back.
    pub(crate) fn look(self: &Arc<Releases>, client: &Client) {
        let needs_carrier = self.queue.lock().needs_carrier();
        if needs_carrier {
            self.begin_carrier(client);
        }
    }

    fn begin_carrier(self: &Arc<Releases>, client: &Client) {
        let number = {
            let mut queue = self.queue.lock();
            if !queue.needs_carrier() {
                return;
            }
            queue.carrier += 1;
            queue.since = None;
            queue.carrier
        };
        let (releases, client) = (self.clone(), client.clone());
        let carry = {
            let (releases, client) = (releases.clone(), client.clone());
            move || releases.carry(&client, number)
        };
        let spawned = std::thread::Builder::new()
            .name("fb-release".into())
            .spawn(carry);
        if let Err(error) = spawned {
            tracing::warn!("no thread for closes, they are waited for: {error}");
            releases.queue.lock().carrier = 0;
            releases.send_all(&client);
        }
    }

    fn carry(&self, client: &Client, number: u64) {
        while let Some(handles) = self.next(number) {
            tell(client, handles);
            {
                let mut queue = self.queue.lock();
                if queue.carrier != number {
                    return;
                }
                queue.since = None;
            }
            std::thread::sleep(APART);
        }
    }

    /// Waits for what is to be told next; `None` at the end, and for who has been replaced.
    fn next(&self, number: u64) -> Option<Vec<Handle>> {
        let mut queue = self.queue.lock();
        loop {
            if queue.carrier != number || queue.ended {
                return None;
            }
            if !queue.waiting.is_empty() {
                break;
            }
            queue.idle = true;
            self.woken.wait(&mut queue);
            queue.idle = false;
        }
        queue.since = Some(Instant::now());
        Some(queue.take())
    }

    fn send_all(&self, client: &Client) {
        loop {
            let handles = {
                let mut queue = self.queue.lock();
                queue.take()
            };
            if handles.is_empty() {
                return;
            }
            tell(client, handles);
        }
    }

    /// Nothing is mounted any more. What still waits is told, and the thread ends.
    pub(crate) fn end(&self, client: &Client) {
        self.queue.lock().ended = true;
        self.woken.notify_all();
        self.send_all(client);
    }
}

/// What goes wrong with a file its server has reported; the session's end closes what is left.
fn tell(client: &Client, handles: Vec<Handle>) {
    let outcome = match handles[..] {
        [] => Ok(()),
        [handle] => client.release(handle),
        _ => client.release_many(handles),
    };
    match outcome {
        Ok(()) | Err(Errno::ESTALE | Errno::ENOTCONN) => {}
        Err(errno) => tracing::debug!("close: {errno}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver, Sender};

    use forebay_policy::links::Distribution;
    use forebay_wire::{Connection, Reply, Request, Response};

    use super::*;

    /// Tells which handles it is told to close, and answers when it may.
    struct Server {
        asked: Sender<Vec<Handle>>,
        go: Mutex<Receiver<()>>,
    }

    impl Connection for Server {
        fn call(&self, request: Request, _: &[u8], _: &mut [u8]) -> Result<Reply, Errno> {
            self.asked.send(request.handles().to_vec()).expect("heard");
            // Who does not let it go on lets it fail.
            self.go.lock().recv().map_err(|_| Errno::EIO)?;
            Ok(Response::Done.into())
        }

        fn hands_over_descriptors(&self) -> bool {
            false
        }
    }

    struct Lab {
        client: Client,
        releases: Arc<Releases>,
        asked: Receiver<Vec<Handle>>,
        go: Sender<()>,
    }

    impl Lab {
        fn new() -> Lab {
            let ((asks, asked), (go, goes)) = (mpsc::channel(), mpsc::channel());
            let server = Arc::new(Server {
                asked: asks,
                go: Mutex::new(goes),
            });
            Lab {
                client: Client::of_another_node(server, Distribution::default()),
                releases: Arc::default(),
                asked,
                go,
            }
        }

        fn close(&self, handles: std::ops::RangeInclusive<u64>) {
            handles.for_each(|handle| self.releases.add(&self.client, Handle(handle)));
        }

        fn told(&self) -> Vec<u64> {
            let told = self.asked.recv_timeout(Duration::from_secs(30));
            told.expect("told").iter().map(|handle| handle.0).collect()
        }

        fn go(&self) {
            self.go.send(()).expect("it waits");
        }
    }

    #[test]
    fn what_is_closed_while_a_message_is_under_way_travels_together() {
        let lab = Lab::new();
        lab.close(1..=1);
        assert_eq!(lab.told(), [1]);
        lab.close(2..=5);
        lab.go();
        assert_eq!(lab.told(), [2, 3, 4, 5]);
        lab.go();
        let most = limits::RELEASES_PER_MESSAGE_MAX as u64;
        lab.close(6..=6);
        assert_eq!(lab.told(), [6]);
        lab.close(1..=most + 2);
        lab.go();
        assert_eq!(lab.told().len(), most as usize);
        lab.go();
        assert_eq!(lab.told(), [most + 1, most + 2]);
        lab.go();
    }

    #[test]
    fn a_message_that_does_not_come_back_holds_up_nobody_for_long() {
        let lab = Lab::new();
        lab.close(1..=1);
        assert_eq!(lab.told(), [1]);
        lab.close(2..=2);
        // As the watchdog does.
        let told = loop {
            lab.releases.look(&lab.client);
            if let Ok(told) = lab.asked.try_recv() {
                break told;
            }
            std::thread::yield_now();
        };
        assert_eq!(told, [Handle(2)]);
        lab.go();
        lab.go();
        lab.close(3..=3);
        assert_eq!(lab.told(), [3]);
        lab.go();
    }

    #[test]
    fn what_waits_at_the_end_is_told_before_that() {
        let lab = Lab::new();
        lab.close(1..=1);
        assert_eq!(lab.told(), [1]);
        lab.close(2..=3);
        lab.go();
        lab.go();
        lab.releases.end(&lab.client);
        assert_eq!(lab.told(), [2, 3]);
        assert!(lab.asked.try_recv().is_err());
    }
}
