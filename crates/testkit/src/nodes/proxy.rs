//! A TCP proxy that ends connections in the middle of what they carry, or keeps bytes back.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;

use super::Node;

/// How long a thread waits before it looks whether its connection was ended.
const BEAT: Duration = Duration::from_millis(10);
/// The server has answered by then, or the client is told that it cannot be reached.
const CONNECT: Duration = Duration::from_secs(10);
/// What was forwarded has arrived by then.
const ARRIVAL: Duration = Duration::from_secs(10);
const BUFFER_BYTES: usize = 64 << 10;

/// A direction through the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From who has connected to the proxy.
    ToServer = 0,
    /// From whom the proxy has connected to.
    ToClient = 1,
}

/// Forwards connections to a server until told otherwise. Needs no rights, except on a node.
pub struct CuttingProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl CuttingProxy {
    /// On a node: clients connect to a port of its first address, the server sees this address.
    #[track_caller]
    pub fn on(node: &Node, target: SocketAddr) -> CuttingProxy {
        // Threads are on the node that the thread is on that has started them.
        node.inside(|| CuttingProxy::start(node.address(), target))
    }

    /// On 127.0.0.1, where the test itself is.
    #[track_caller]
    pub fn here(target: SocketAddr) -> CuttingProxy {
        CuttingProxy::start(Ipv4Addr::LOCALHOST.into(), target)
    }

    #[track_caller]
    fn start(ip: IpAddr, target: SocketAddr) -> CuttingProxy {
        let listener = TcpListener::bind((ip, 0)).expect("a port");
        listener.set_nonblocking(true).expect("non-blocking");
        let address = listener.local_addr().expect("address");
        let shared = Arc::new(Shared::default());
        let acceptor = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, target, &shared)
        });
        CuttingProxy {
            address,
            shared,
            acceptor: Some(acceptor),
        }
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets this many more bytes through in this direction, of all connections together. They
    /// arrive; then the connection that has brought the last of them ends with a reset at both
    /// ends, and others go on. With 0 the next bytes end it, and none of them arrives.
    pub fn reset_after(&self, way: Way, bytes: u64) {
        self.change(|state| state.budget[way as usize] = Some(bytes));
    }

    /// Ends all connections now, with a reset at both ends.
    pub fn reset_all(&self) {
        let links: Vec<_> = self.shared.locked().links.drain(..).collect();
        let alive = links.iter().filter_map(Weak::upgrade);
        alive.for_each(|link| self.shared.reset(&link));
    }

    /// Keeps back what is on its way in this direction, also the end of a connection. Senders
    /// may send until the buffers are full.
    pub fn hold(&self, way: Way) {
        self.change(|state| state.held[way as usize] = true);
    }

    /// Lets it go on.
    pub fn release(&self, way: Way) {
        self.change(|state| state.held[way as usize] = false);
    }

    /// Whether new connections are reset at once; those that there are go on.
    pub fn refuse(&self, refuse: bool) {
        self.change(|state| state.refuses = refuse);
    }

    /// Bytes that have been sent on in this direction.
    pub fn forwarded(&self, way: Way) -> u64 {
        self.shared.locked().forwarded[way as usize]
    }

    /// Connections that were reset by [`Self::reset_after`], [`Self::reset_all`] or an end of
    /// their own.
    pub fn resets(&self) -> u64 {
        self.shared.locked().resets
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.locked());
        self.shared.changed.notify_all();
    }
}

impl Drop for CuttingProxy {
    fn drop(&mut self) {
        self.change(|state| state.stopping = true);
        if let Some(acceptor) = self.acceptor.take()
            && acceptor.join().is_err()
        {
            // Its panic is printed already; a second one here would end the whole test program.
            eprintln!("the proxy on {} has failed", self.address);
        }
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    held: [bool; 2],
    /// Bytes until the next reset.
    budget: [Option<u64>; 2],
    forwarded: [u64; 2],
    resets: u64,
    refuses: bool,
    stopping: bool,
    links: Vec<Weak<Link>>,
}

/// A connection and its continuation.
struct Link {
    client: TcpStream,
    server: TcpStream,
    ended: AtomicBool,
}

/// What a thread may send on.
struct Share {
    bytes: usize,
    /// Then the connection ends.
    is_last: bool,
}

impl Shared {
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Both ends get a reset when the threads of the connection have left it, which is soon.
    fn reset(&self, link: &Link) {
        if link.ended.swap(true, Ordering::SeqCst) {
            return;
        }
        for stream in [&link.client, &link.server] {
            // It may have ended by itself.
            let _ = set_socket_linger(stream, Some(Duration::ZERO));
        }
        self.locked().resets += 1;
        self.changed.notify_all();
    }

    /// Waits until this way is open. `None`: the connection is over.
    fn share(&self, link: &Link, way: Way, wanted: usize) -> Option<Share> {
        let mut state = self.locked();
        loop {
            if state.stopping || link.ended.load(Ordering::SeqCst) {
                return None;
            }
            if !state.held[way as usize] {
                break;
            }
            let waited = self.changed.wait_timeout(state, BEAT);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let budget = &mut state.budget[way as usize];
        let Some(left) = budget else {
            return Some(Share {
                bytes: wanted,
                is_last: false,
            });
        };
        let bytes = usize::try_from(*left).map_or(wanted, |left| left.min(wanted));
        *left -= bytes as u64;
        let is_last = *left == 0;
        if is_last {
            *budget = None;
        }
        Some(Share { bytes, is_last })
    }

    fn is_over(&self, link: &Link) -> bool {
        link.ended.load(Ordering::SeqCst) || self.locked().stopping
    }
}

fn accept(listener: &TcpListener, target: SocketAddr, shared: &Arc<Shared>) {
    let mut threads = Vec::new();
    while !shared.locked().stopping {
        match listener.accept() {
            Ok((client, _)) => {
                let shared = Arc::clone(shared);
                threads.push(std::thread::spawn(move || serve(client, target, &shared)));
            }
            Err(error) if is_later(&error) => std::thread::sleep(BEAT),
            // A client that has gone before it was accepted.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) => panic!("accept: {error}"),
        }
    }
    for thread in threads {
        thread.join().expect("a connection of the proxy");
    }
}

fn is_later(error: &io::Error) -> bool {
    let kinds = [
        ErrorKind::WouldBlock,
        ErrorKind::TimedOut,
        ErrorKind::Interrupted,
    ];
    kinds.contains(&error.kind())
}

fn serve(client: TcpStream, target: SocketAddr, shared: &Shared) {
    let refuses = shared.locked().refuses;
    let server = match refuses {
        true => Err(ErrorKind::ConnectionRefused.into()),
        false => TcpStream::connect_timeout(&target, CONNECT),
    };
    let Ok(server) = server else {
        // The client sees a server that cannot be reached.
        let _ = set_socket_linger(&client, Some(Duration::ZERO));
        return;
    };
    for stream in [&client, &server] {
        stream.set_nonblocking(false).expect("blocking");
        stream.set_nodelay(true).expect("no delay");
        stream.set_read_timeout(Some(BEAT)).expect("limit");
        stream.set_write_timeout(Some(BEAT)).expect("limit");
    }
    let link = Arc::new(Link {
        client,
        server,
        ended: AtomicBool::new(false),
    });
    {
        let mut state = shared.locked();
        state.links.retain(|link| link.strong_count() > 0);
        state.links.push(Arc::downgrade(&link));
    }
    std::thread::scope(|scope| {
        for way in [Way::ToServer, Way::ToClient] {
            let link = &link;
            scope.spawn(move || {
                // An end that has gone is told to the other one.
                if forward(link, way, shared).is_err() {
                    shared.reset(link);
                }
            });
        }
    });
    if shared.locked().stopping {
        shared.reset(&link);
    }
}

/// Sends on what comes from one side until that has ended.
fn forward(link: &Link, way: Way, shared: &Shared) -> io::Result<()> {
    let (mut from, to) = match way {
        Way::ToServer => (&link.client, &link.server),
        Way::ToClient => (&link.server, &link.client),
    };
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let filled = match from.read(&mut buffer) {
            Ok(filled) => filled,
            Err(error) if is_later(&error) && !shared.is_over(link) => continue,
            Err(_) if shared.is_over(link) => return Ok(()),
            Err(error) => return Err(error),
        };
        if filled == 0 {
            if wait_open(shared, link, way) {
                to.shutdown(Shutdown::Write)?;
            }
            return Ok(());
        }
        let mut rest = &buffer[..filled];
        while !rest.is_empty() {
            let Some(share) = shared.share(link, way, rest.len()) else {
                return Ok(());
            };
            let (now, later) = rest.split_at(share.bytes);
            send(to, now, link, shared)?;
            shared.locked().forwarded[way as usize] += now.len() as u64;
            rest = later;
            if share.is_last {
                wait_for_arrival(to, shared, link)?;
                shared.reset(link);
                return Ok(());
            }
        }
    }
}

/// The end of a connection waits as its bytes do, and takes nothing of the budget.
fn wait_open(shared: &Shared, link: &Link, way: Way) -> bool {
    loop {
        if shared.is_over(link) {
            return false;
        }
        let state = shared.locked();
        if !state.held[way as usize] {
            return true;
        }
        drop(shared.changed.wait_timeout(state, BEAT));
    }
}

fn send(mut to: &TcpStream, mut bytes: &[u8], link: &Link, shared: &Shared) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if is_later(&error) => {
                if shared.is_over(link) {
                    return Ok(());
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A reset takes away what is not sent yet. So the last bytes have to be acknowledged.
fn wait_for_arrival(to: &TcpStream, shared: &Shared, link: &Link) -> io::Result<()> {
    let begun = Instant::now();
    while unacknowledged(to)? > 0 {
        assert!(begun.elapsed() < ARRIVAL, "the last bytes do not arrive");
        if shared.is_over(link) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn unacknowledged(stream: &TcpStream) -> io::Result<libc::c_int> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open, and SIOCOUTQ (the number of TIOCOUTQ) writes one int to the
    // valid pointer that it is given.
    let done = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    match done {
        0 => Ok(bytes),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
