//! A network between a store and its server that can be cut, or that keeps what it is given.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the network does with bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// Carries them.
    Open,
    /// Takes connections, and ends each at once; those that there were are broken.
    Cut,
    /// Carries what the store sends, and keeps what the server answers.
    Deaf,
    /// Keeps everything, until it carries again.
    Stalled,
}

/// A listener on loopback before a server.
pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    mode: AtomicU8,
    /// How many bytes the store may send before the network is cut.
    left: AtomicI64,
    /// Connections before this number are stalled, whatever the mode.
    stalled_before: AtomicU64,
    connections: AtomicU64,
    /// The network turns deaf when the store sends this.
    word: Mutex<Option<&'static [u8]>>,
    sockets: Mutex<Vec<TcpStream>>,
}

const LOOK: Duration = Duration::from_millis(5);

impl Proxy {
    pub fn start(server: u16) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let shared = Arc::new(Shared {
            mode: AtomicU8::new(Mode::Open as u8),
            left: AtomicI64::new(i64::MAX),
            stalled_before: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            word: Mutex::default(),
            sockets: Mutex::default(),
        });
        let accepting = shared.clone();
        // Ends with the process of the tests.
        std::thread::spawn(move || {
            for client in listener.incoming() {
                accepting.join(client.expect("a connection"), server);
            }
        });
        Proxy { port, shared }
    }

    pub fn set(&self, mode: Mode) {
        self.shared.set(mode);
    }

    /// Stalls the connections that there are, and carries what comes by new ones.
    pub fn stall_old(&self) {
        let next = self.shared.connections.load(Ordering::SeqCst);
        self.shared.stalled_before.store(next, Ordering::SeqCst);
    }

    /// Carries what old connections have kept.
    pub fn release_old(&self) {
        self.shared.stalled_before.store(0, Ordering::SeqCst);
    }

    /// Turns deaf when the store sends this word, which is carried.
    pub fn deaf_at(&self, word: &'static [u8]) {
        *self.shared.word.lock().expect("the word") = Some(word);
    }

    /// Cuts the network when the store has sent so many bytes more.
    pub fn cut_after(&self, bytes: i64) {
        self.shared.left.store(bytes, Ordering::SeqCst);
    }
}

impl Shared {
    fn set(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::SeqCst);
        self.left.store(i64::MAX, Ordering::SeqCst);
        if mode == Mode::Cut {
            for socket in self.sockets.lock().expect("sockets").drain(..) {
                // It may be closed already.
                drop(socket.shutdown(Shutdown::Both));
            }
        }
    }

    /// What of these bytes of the store is carried.
    fn let_through(&self, bytes: &[u8]) -> usize {
        let mut word = self.word.lock().expect("the word");
        if word.is_some_and(|word| bytes.windows(word.len()).any(|at| at == word)) {
            *word = None;
            self.mode.store(Mode::Deaf as u8, Ordering::SeqCst);
        }
        let length = bytes.len() as i64;
        let left = self.left.fetch_sub(length, Ordering::SeqCst);
        left.clamp(0, length) as usize
    }

    fn is(&self, mode: Mode) -> bool {
        self.mode.load(Ordering::SeqCst) == mode as u8
    }

    fn join(self: &Arc<Self>, client: TcpStream, server: u16) {
        if self.is(Mode::Cut) {
            return;
        }
        // The server may be dead: then so is the connection.
        let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else {
            return;
        };
        for socket in [&client, &server] {
            socket.set_nodelay(true).expect("an option");
            let socket = socket.try_clone().expect("a socket");
            self.sockets.lock().expect("sockets").push(socket);
        }
        let (from, to) = (client.try_clone(), server.try_clone());
        self.carry(client, to.expect("a socket"), &[Mode::Stalled], true);
        self.carry(
            server,
            from.expect("a socket"),
            &[Mode::Stalled, Mode::Deaf],
            false,
        );
        self.connections.fetch_add(1, Ordering::SeqCst);
    }

    fn carry(
        self: &Arc<Self>,
        mut from: TcpStream,
        mut to: TcpStream,
        keeps: &'static [Mode],
        is_counted: bool,
    ) {
        let shared = self.clone();
        let number = self.connections.load(Ordering::SeqCst);
        let is_old = move |shared: &Shared| number < shared.stalled_before.load(Ordering::SeqCst);
        std::thread::spawn(move || {
            let mut bytes = vec![0; 64 * 1024];
            while let Ok(length @ 1..) = from.read(&mut bytes) {
                while keeps.iter().any(|mode| shared.is(*mode)) || is_old(&shared) {
                    std::thread::sleep(LOOK);
                }
                let carried = match is_counted {
                    true => shared.let_through(&bytes[..length]),
                    false => length,
                };
                if to.write_all(&bytes[..carried]).is_err() {
                    break;
                }
                if carried < length {
                    shared.set(Mode::Cut);
                }
            }
            // Whichever end has gone, the other is told; it may know already.
            drop(to.shutdown(Shutdown::Both));
            drop(from.shutdown(Shutdown::Both));
        });
    }
}
