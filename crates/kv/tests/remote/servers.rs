//! Servers of the tests' own, on loopback.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay_kv::{Error, Options, Store, open_url};
use tempfile::TempDir;

/// On a loaded machine a server takes its time.
const START_WITHIN: Duration = Duration::from_secs(30);

/// What can hold a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Redis,
    Etcd,
}

/// A server with a folder of its own; both are gone with this value.
pub struct Server {
    pub kind: Kind,
    pub port: u16,
    peer_port: u16,
    dir: TempDir,
    child: Option<Child>,
    extra: Vec<String>,
}

static PREFIXES: AtomicU32 = AtomicU32::new(0);

/// A name for a store that no other test has.
pub fn prefix() -> String {
    format!("t{}", PREFIXES.fetch_add(1, Ordering::Relaxed))
}

impl Server {
    pub fn start(kind: Kind) -> Server {
        Server::start_with(kind, &[])
    }

    /// With more arguments than a store needs.
    pub fn start_with(kind: Kind, extra: &[&str]) -> Server {
        // Another process may take a port between its choice and its use.
        for _ in 0..5 {
            let mut server = Server {
                kind,
                port: free_port(),
                peer_port: free_port(),
                dir: tempfile::tempdir().expect("a temporary directory"),
                child: None,
                extra: extra.iter().map(ToString::to_string).collect(),
            };
            if server.run() {
                return server;
            }
        }
        panic!("no {kind:?} could be started");
    }

    /// Starts it again where it was. True if it has come up.
    pub fn run(&mut self) -> bool {
        let mut command = match self.kind {
            Kind::Redis => self.redis(),
            Kind::Etcd => self.etcd(),
        };
        let log = std::fs::File::create(self.dir.path().join("log")).expect("a log");
        let errors = log.try_clone().expect("a log");
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let child = command.spawn().unwrap_or_else(|error| {
            let package = match self.kind {
                Kind::Redis => "redis-server",
                Kind::Etcd => "etcd-server",
            };
            panic!("these tests need the package {package}: apt-get install {package} ({error})")
        });
        self.child = Some(child);
        let begun = Instant::now();
        while begun.elapsed() < START_WITHIN {
            if self
                .child()
                .try_wait()
                .expect("the server is asked")
                .is_some()
            {
                return false;
            }
            if self.answers() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{:?} does not answer: {}", self.kind, self.log());
    }

    fn redis(&self) -> Command {
        let mut command = Command::new("redis-server");
        command.current_dir(self.dir.path());
        command.args(["--bind", "127.0.0.1", "--port", &self.port.to_string()]);
        command.args(["--appendonly", "yes", "--appendfsync", "always"]);
        command.args(["--save", "", "--loglevel", "warning"]);
        command.args(&self.extra);
        command
    }

    fn etcd(&self) -> Command {
        let client = format!("http://127.0.0.1:{}", self.port);
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let mut command = Command::new("etcd");
        command
            .args(["--name", "a", "--data-dir"])
            .arg(self.dir.path().join("data"));
        command.args([
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
        ]);
        command.args([
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
        ]);
        command.args(["--initial-cluster", &format!("a={peer}"), "--logger", "zap"]);
        command.args(&self.extra);
        command
    }

    /// A store can be opened, or would be but for what the server is asked to refuse.
    fn answers(&self) -> bool {
        if TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            return false;
        }
        let options = Options {
            patience: Duration::from_secs(5),
            ..Options::default()
        };
        !matches!(open_url(&self.url("probe"), &options), Err(Error::Io(_)))
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    pub fn url(&self, prefix: &str) -> String {
        self.url_at(self.port, prefix)
    }

    /// Through another port.
    pub fn url_at(&self, port: u16, prefix: &str) -> String {
        match self.kind {
            Kind::Redis => format!("redis://127.0.0.1:{port}/0?prefix={prefix}"),
            Kind::Etcd => format!("etcd://127.0.0.1:{port}?prefix={prefix}"),
        }
    }

    /// An empty store.
    pub fn store(&self) -> Box<dyn Store> {
        open_url(&self.url(&prefix()), &Options::default()).expect("an empty store opens")
    }

    fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("the server runs")
    }

    pub fn signal(&mut self, signal: i32) {
        let id = self.child().id();
        // SAFETY: plain system call. The child was not waited for, so the id is still its.
        assert_eq!(unsafe { libc::kill(id as libc::pid_t, signal) }, 0);
    }

    pub fn kill(&mut self) {
        self.child().kill().expect("the server is killed");
        self.child().wait().expect("the server is dead");
        self.child = None;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // A stopped one is killed as well. It may be dead already.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}
