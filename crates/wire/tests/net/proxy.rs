//! What stands between a client and a server and does what networks do: cuts, silence, and a
//! record of what passed.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

struct Shared {
    target: Mutex<SocketAddr>,
    stop: AtomicBool,
    /// Nothing passes, and nobody is told.
    hold: AtomicBool,
    /// New connections are closed at once.
    refuse: AtomicBool,
    /// Each direction of each connection is cut after up to so many bytes; 0 means never.
    cut_within: AtomicU64,
    rng: Mutex<StdRng>,
    cuts: AtomicUsize,
    /// What clients have sent, for each connection.
    sent: Mutex<Vec<Vec<u8>>>,
    sockets: Mutex<HashMap<usize, [TcpStream; 2]>>,
    flip: AtomicBool,
    garble: AtomicBool,
    /// From clients, in all.
    stop_after: AtomicU64,
    stopped: AtomicBool,
    /// Nothing passes from the server to clients.
    deaf: AtomicBool,
}

pub struct Proxy {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    pub fn new(target: SocketAddr, seed: u64) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address");
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            stop: AtomicBool::new(false),
            hold: AtomicBool::new(false),
            refuse: AtomicBool::new(false),
            cut_within: AtomicU64::new(0),
            rng: Mutex::new(StdRng::seed_from_u64(seed)),
            cuts: AtomicUsize::new(0),
            sent: Mutex::default(),
            sockets: Mutex::default(),
            flip: AtomicBool::new(false),
            garble: AtomicBool::new(false),
            stop_after: AtomicU64::new(u64::MAX),
            stopped: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || accept(&listener, &accepting));
        Proxy { address, shared }
    }

    pub fn cut_within(&self, bytes: u64) {
        self.shared.cut_within.store(bytes, Ordering::SeqCst);
    }

    pub fn cuts(&self) -> usize {
        self.shared.cuts.load(Ordering::SeqCst)
    }

    pub fn hold(&self, yes: bool) {
        self.shared.hold.store(yes, Ordering::SeqCst);
    }

    pub fn refuse(&self, yes: bool) {
        self.shared.refuse.store(yes, Ordering::SeqCst);
    }

    /// The next byte from a server to a client arrives changed.
    pub fn flip_one(&self) {
        self.shared.flip.store(true, Ordering::SeqCst);
    }

    /// The next byte from a client to a server arrives changed.
    pub fn garble_one(&self) {
        self.shared.garble.store(true, Ordering::SeqCst);
    }

    /// So many more bytes from a client pass, and no more after them.
    pub fn stop_after(&self, bytes: u64) {
        self.shared.stop_after.store(bytes, Ordering::SeqCst);
    }

    /// Whether they have passed.
    pub fn stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::SeqCst)
    }

    pub fn deafen(&self, yes: bool) {
        self.shared.deaf.store(yes, Ordering::SeqCst);
    }

    pub fn retarget(&self, target: SocketAddr) {
        *self.shared.target.lock() = target;
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        for (_, sockets) in self.shared.sockets.lock().drain() {
            for socket in sockets {
                // It may have gone by itself.
                let _ = socket.shutdown(Shutdown::Both);
            }
        }
    }

    /// What the client of a connection has sent, in the order of the connections.
    pub fn sent(&self, connection: usize) -> Vec<u8> {
        self.shared.sent.lock()[connection].clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.cut();
        // Wakes the one that accepts.
        drop(TcpStream::connect(self.address));
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while let Ok((client, _)) = listener.accept() {
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        if shared.refuse.load(Ordering::SeqCst) {
            continue;
        }
        let target = *shared.target.lock();
        let Ok(server) = TcpStream::connect(target) else {
            continue;
        };
        for socket in [&client, &server] {
            socket.set_nodelay(true).expect("nodelay");
        }
        let number = {
            let mut sent = shared.sent.lock();
            sent.push(Vec::new());
            sent.len() - 1
        };
        let copies = [&client, &server].map(|socket| socket.try_clone().expect("clone"));
        shared.sockets.lock().insert(number, copies);
        for (from, to, up) in [(&client, &server, true), (&server, &client, false)] {
            let (from, to) = (
                from.try_clone().expect("clone"),
                to.try_clone().expect("clone"),
            );
            let shared = shared.clone();
            std::thread::spawn(move || pump(&shared, from, to, number, up));
        }
    }
}

fn pump(shared: &Shared, mut from: TcpStream, mut to: TcpStream, number: usize, up: bool) {
    let within = shared.cut_within.load(Ordering::SeqCst);
    let mut left = match within {
        0 => u64::MAX,
        within => shared.rng.lock().random_range(0..within),
    };
    let mut buffer = vec![0; 64 << 10];
    from.set_read_timeout(Some(Duration::from_millis(20)))
        .expect("timeout");
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if shared.stop.load(Ordering::SeqCst) {
                    break;
                }
                continue;
            }
            Err(_) => break,
        };
        let held =
            || shared.hold.load(Ordering::SeqCst) || !up && shared.deaf.load(Ordering::SeqCst);
        while held() && !shared.stop.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut passed = count.min(left.min(usize::MAX as u64) as usize);
        if up && shared.garble.swap(false, Ordering::SeqCst) {
            buffer[passed - 1] ^= 0x10;
        }
        let allowed = shared.stop_after.load(Ordering::SeqCst);
        if up && allowed != u64::MAX {
            passed = passed.min(allowed as usize);
            shared
                .stop_after
                .store(allowed - passed as u64, Ordering::SeqCst);
        }
        if !up && passed > 0 && shared.flip.swap(false, Ordering::SeqCst) {
            buffer[passed - 1] ^= 0x10;
        }
        if to.write_all(&buffer[..passed]).is_err() {
            break;
        }
        if up {
            let mut sent = shared.sent.lock();
            if sent[number].len() < 1 << 20 {
                sent[number].extend_from_slice(&buffer[..passed]);
            }
        }
        if passed < count && allowed != u64::MAX {
            shared.stopped.store(true, Ordering::SeqCst);
            while !shared.stop.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            break;
        }
        left -= passed as u64;
        if passed < count || left == 0 {
            shared.cuts.fetch_add(1, Ordering::SeqCst);
            break;
        }
    }
    shared.sockets.lock().remove(&number);
    // The other direction ends, too; it may have already.
    for socket in [&from, &to] {
        let _ = socket.shutdown(Shutdown::Both);
    }
}
