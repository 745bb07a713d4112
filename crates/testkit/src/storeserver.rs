//! Servers that can hold records, of a test's own: Redis and etcd.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::nodes::Node;

/// On a loaded machine a server takes its time.
const START_WITHIN: Duration = Duration::from_secs(30);
/// One that does not answer a question by then does not answer yet.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What can hold a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// `redis-server`.
    Redis,
    /// `etcd`, with one member.
    Etcd,
}

/// A server with a folder of its own; both are gone with this value. A test that needs one fails
/// where the program is not installed.
pub struct StoreServer {
    kind: StoreKind,
    host: IpAddr,
    port: u16,
    peer_port: u16,
    dir: TempDir,
    child: Option<Child>,
    extra: Vec<String>,
}

impl StoreServer {
    /// On loopback.
    #[track_caller]
    pub fn start(kind: StoreKind) -> StoreServer {
        StoreServer::start_with(kind, &[])
    }

    /// With more arguments than a store needs.
    #[track_caller]
    pub fn start_with(kind: StoreKind, extra: &[&str]) -> StoreServer {
        let new = || StoreServer::new(kind, Ipv4Addr::LOCALHOST.into(), extra);
        StoreServer::start_one(new, StoreServer::run)
    }

    /// On a node, at its address in the first network.
    #[track_caller]
    pub fn start_on(kind: StoreKind, node: &Node, extra: &[&str]) -> StoreServer {
        let new = || node.inside(|| StoreServer::new(kind, node.address(), extra));
        StoreServer::start_one(new, |server| server.run_on(node))
    }

    #[track_caller]
    fn start_one(
        new: impl Fn() -> StoreServer,
        run: impl Fn(&mut StoreServer) -> bool,
    ) -> StoreServer {
        // Another process may take a port between its choice and its use.
        let started = (0..5).find_map(|_| {
            let mut server = new();
            run(&mut server).then_some(server)
        });
        started.expect("no server could be started")
    }

    fn new(kind: StoreKind, host: IpAddr, extra: &[&str]) -> StoreServer {
        StoreServer {
            kind,
            host,
            port: free_port(host),
            peer_port: free_port(host),
            dir: tempfile::tempdir().expect("a temporary directory"),
            child: None,
            extra: extra.iter().map(ToString::to_string).collect(),
        }
    }

    /// Starts it again where it was. True if it has come up.
    #[track_caller]
    pub fn run(&mut self) -> bool {
        let command = self.command();
        self.run_as(command, |server| server.answers())
    }

    /// The same for one that was started on this node.
    #[track_caller]
    pub fn run_on(&mut self, node: &Node) -> bool {
        let mut command = self.command();
        node.place(&mut command);
        self.run_as(command, |server| node.inside(|| server.answers()))
    }

    #[track_caller]
    fn run_as(&mut self, mut command: Command, answers: impl Fn(&StoreServer) -> bool) -> bool {
        let log = std::fs::File::create(self.dir.path().join("log")).expect("a log");
        let errors = log.try_clone().expect("a log");
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let child = command.spawn().unwrap_or_else(|error| {
            let package = match self.kind {
                StoreKind::Redis => "redis-server",
                StoreKind::Etcd => "etcd-server",
            };
            panic!("these tests need the package {package}: apt-get install {package} ({error})")
        });
        self.child = Some(child);
        let begun = Instant::now();
        while begun.elapsed() < START_WITHIN {
            let ended = self.child().try_wait().expect("the server is asked");
            if ended.is_some() {
                return false;
            }
            if answers(self) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{:?} does not answer: {}", self.kind, self.log());
    }

    fn command(&self) -> Command {
        match self.kind {
            StoreKind::Redis => self.redis(),
            StoreKind::Etcd => self.etcd(),
        }
    }

    fn redis(&self) -> Command {
        let mut command = Command::new("redis-server");
        command.current_dir(self.dir.path());
        command.args(["--bind", &self.host.to_string()]);
        command.args(["--port", &self.port.to_string()]);
        command.args(["--protected-mode", "no"]);
        command.args(["--appendonly", "yes", "--appendfsync", "always"]);
        command.args(["--save", "", "--loglevel", "warning"]);
        command.args(&self.extra);
        command
    }

    fn etcd(&self) -> Command {
        let client = format!("http://{}", SocketAddr::new(self.host, self.port));
        let peer = format!("http://{}", SocketAddr::new(self.host, self.peer_port));
        let mut command = Command::new("etcd");
        command
            .args(["--name", "a", "--data-dir"])
            .arg(self.dir.path().join("data"));
        command.args(["--listen-client-urls", &client]);
        command.args(["--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer]);
        command.args(["--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("a={peer}"), "--logger", "zap"]);
        command.args(&self.extra);
        command
    }

    /// It takes commands now.
    fn answers(&self) -> bool {
        let (question, wanted) = match self.kind {
            // One that wants a password answers, too.
            StoreKind::Redis => ("PING\r\n", &["+PONG", "-NOAUTH"][..]),
            StoreKind::Etcd => (
                "GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
                &["\"health\":\"true\""][..],
            ),
        };
        let said = self.ask(question, wanted).unwrap_or_default();
        wanted.iter().any(|wanted| said.contains(wanted))
    }

    fn ask(&self, question: &str, wanted: &[&str]) -> std::io::Result<String> {
        let mut stream = TcpStream::connect((self.host, self.port))?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        stream.write_all(question.as_bytes())?;
        let (mut said, mut part) = (String::new(), [0; 4096]);
        loop {
            match stream.read(&mut part)? {
                0 => return Ok(said),
                n => said.push_str(&String::from_utf8_lossy(&part[..n])),
            }
            if wanted.iter().any(|wanted| said.contains(wanted)) || said.starts_with('-') {
                return Ok(said);
            }
        }
    }

    /// What it is.
    pub fn kind(&self) -> StoreKind {
        self.kind
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What it has said since its last start.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// A store's URL; `options` is what comes behind the `?`, if anything.
    pub fn url(&self, options: &str) -> String {
        self.url_at(self.port, options)
    }

    /// Through another port.
    pub fn url_at(&self, port: u16, options: &str) -> String {
        let place = SocketAddr::new(self.host, port);
        let options = match options {
            "" => String::new(),
            options => format!("?{options}"),
        };
        match self.kind {
            StoreKind::Redis => format!("redis://{place}/0{options}"),
            StoreKind::Etcd => format!("etcd://{place}{options}"),
        }
    }

    fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("the server runs")
    }

    /// Sends it a signal.
    #[track_caller]
    pub fn signal(&mut self, signal: Signal) {
        // It was not waited for, so the id is still its own.
        kill_process(Pid::from_child(self.child()), signal).expect("signal");
    }

    /// Ends it without a word.
    #[track_caller]
    pub fn kill(&mut self) {
        self.child().kill().expect("the server is killed");
        self.child().wait().expect("the server is dead");
        self.child = None;
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // A stopped one is killed as well. It may be dead already.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn free_port(host: IpAddr) -> u16 {
    let listener = TcpListener::bind((host, 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}
