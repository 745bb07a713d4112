//! Nodes on one machine: they reach each other, what happens to their links, and what is left.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_testkit::{
    CuttingProxy, Node, Nodes, Way, needs_nodes, needs_program, run_bounded, wait_until,
};

/// Nothing here takes longer, or the test has failed.
const LIMIT: Duration = Duration::from_secs(30);
/// What has not come by then is taken for lost.
const QUIET: Duration = Duration::from_millis(300);
const PORT: u16 = 7070;
const CHILD: &str = "FOREBAY_TESTKIT_CHILD";

/// A connection from one node to another: both ends.
fn connected(from: &Node, to: &Node) -> (TcpStream, TcpStream) {
    let listener = to.inside(|| TcpListener::bind((to.address(), 0)).expect("a port"));
    let address = listener.local_addr().expect("address");
    let client = dial(from, address, LIMIT).expect("connects");
    let (server, peer) = listener.accept().expect("accepts");
    assert_eq!(peer.ip(), from.address());
    for end in [&client, &server] {
        end.set_read_timeout(Some(LIMIT)).expect("limit");
        end.set_write_timeout(Some(LIMIT)).expect("limit");
        end.set_nodelay(true).expect("no delay");
    }
    (client, server)
}

fn dial(from: &Node, to: SocketAddr, limit: Duration) -> std::io::Result<TcpStream> {
    from.inside(|| TcpStream::connect_timeout(&to, limit))
}

/// Nothing comes now.
fn assert_quiet(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(QUIET)).expect("limit");
    let error = stream.read(&mut [0; 1]).expect_err("nothing comes");
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    stream.set_read_timeout(Some(LIMIT)).expect("limit");
}

fn assert_unreachable(from: &Node, to: SocketAddr) {
    let error = dial(from, to, QUIET).expect_err("cut off");
    // A machine under load comes so late that the kernel has given up looking for the node.
    let kinds = [ErrorKind::TimedOut, ErrorKind::HostUnreachable];
    assert!(kinds.contains(&error.kind()), "{error}");
}

fn assert_comes(stream: &mut TcpStream, expected: &[u8]) {
    let mut there = vec![0; expected.len()];
    stream.read_exact(&mut there).expect("it comes");
    assert_eq!(there, expected);
}

fn sleeper(node: &Node) -> Child {
    node.command("sleep").arg("600").spawn().expect("sleep")
}

/// Whether a process runs; one that has ended and is not waited for does not.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !"ZX".contains(state))
}

#[test]
fn two_nodes_reach_each_other() {
    if needs_nodes() {
        return;
    }
    let nodes = Nodes::new(2);
    assert_eq!(nodes.count(), 2);
    assert_eq!(nodes[0].address().to_string(), "10.77.0.1");
    assert_eq!(nodes[1].socket_address(PORT).to_string(), "10.77.0.2:7070");
    let (mut client, mut server) = connected(&nodes[0], &nodes[1]);
    client.write_all(b"there").expect("write");
    assert_comes(&mut server, b"there");
    server.write_all(b"and back").expect("write");
    assert_comes(&mut client, b"and back");
    // The test itself is on neither.
    assert!(UdpSocket::bind((nodes[0].address(), 0)).is_err());
}

#[test]
fn commands_run_on_their_node_with_the_files_of_all() {
    if needs_nodes() {
        return;
    }
    let nodes = Nodes::new(2);
    let folder = tempfile::tempdir().expect("folder");
    for node in nodes.iter() {
        let file = folder.path().join(format!("{}", node.index()));
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "ip -o -4 addr show dev eth0 > $0"])
            .arg(&file);
        run_bounded(node.place(&mut shell), LIMIT).ok();
        let said = std::fs::read_to_string(&file).expect("the same file system");
        assert!(said.contains(&format!("{}/24", node.address())), "{said}");
    }
    let mut lo = nodes[0].command("ip");
    let lo = run_bounded(lo.args(["-o", "link", "show", "up", "dev", "lo"]), LIMIT).ok();
    assert!(lo.stdout.contains("lo:"), "{lo:?}");
}

#[test]
fn a_cut_stops_a_connection_and_a_heal_brings_it_back() {
    if needs_nodes() {
        return;
    }
    let nodes = Nodes::new(3);
    let (mut client, mut server) = connected(&nodes[0], &nodes[1]);
    let (mut other, mut third) = connected(&nodes[0], &nodes[2]);
    nodes[1].cut();
    client.write_all(b"late").expect("nobody is told");
    assert_quiet(&mut server);
    let address = nodes[1].socket_address(PORT);
    let listener = nodes[1].inside(|| TcpListener::bind(address).expect("a port"));
    assert_unreachable(&nodes[0], address);
    other.write_all(b"others go on").expect("write");
    assert_comes(&mut third, b"others go on");
    nodes[1].heal();
    assert_comes(&mut server, b"late");
    dial(&nodes[0], address, LIMIT).expect("connects");
    drop(listener);
}

#[test]
fn a_node_has_an_address_in_each_network() {
    if needs_nodes() {
        return;
    }
    let nodes = Nodes::with_networks(2, 2);
    let addresses: Vec<String> = nodes[1]
        .addresses()
        .iter()
        .map(|ip| ip.to_string())
        .collect();
    assert_eq!(addresses, ["10.77.0.2", "10.77.1.2"]);
    let listeners: Vec<TcpListener> = nodes[1].inside(|| {
        let bind = |ip: &std::net::IpAddr| TcpListener::bind((*ip, PORT)).expect("a port");
        nodes[1].addresses().iter().map(bind).collect()
    });
    nodes[1].cut_network(0);
    let address = |network: usize| SocketAddr::new(nodes[1].addresses()[network], PORT);
    assert_unreachable(&nodes[0], address(0));
    dial(&nodes[0], address(1), LIMIT).expect("the other network is whole");
    nodes[1].heal_network(0);
    dial(&nodes[0], address(0), LIMIT).expect("whole again");
    drop(listeners);
}

/// As many as fit into a socket's buffer, if need be.
const PACKETS: usize = 200;

/// How many of [`PACKETS`] arrive.
fn arriving(from: &Node, to: &Node) -> usize {
    let receiver = to.inside(|| UdpSocket::bind((to.address(), 0)).expect("a port"));
    let sender = from.inside(|| UdpSocket::bind((from.address(), 0)).expect("a port"));
    let address = receiver.local_addr().expect("address");
    receiver.set_nonblocking(true).expect("non-blocking");
    let mut there = 0;
    let take = || std::iter::from_fn(|| receiver.recv(&mut [0; 1]).ok()).count();
    for _ in 0..PACKETS {
        sender.send_to(b"x", address).expect("send");
        there += take();
    }
    std::thread::sleep(QUIET);
    there + take()
}

#[test]
fn packets_are_lost_one_way() {
    if needs_nodes() || needs_program("nft") {
        return;
    }
    let nodes = Nodes::new(2);
    let there = || arriving(&nodes[0], &nodes[1]);
    let back = || arriving(&nodes[1], &nodes[0]);
    assert_eq!((there(), back()), (PACKETS, PACKETS));
    nodes.drop_packets(0, 1, 1.0);
    assert_eq!((there(), back()), (0, PACKETS));
    nodes.drop_packets(0, 1, 0.5);
    // The kernel's chance has no seed. 40 and 160 are eight standard deviations from the mean.
    let half = there();
    assert!((40..160).contains(&half), "{half} of {PACKETS}");
    // A connection gets through all the same.
    nodes.drop_packets(0, 1, 0.1);
    let (mut client, mut server) = connected(&nodes[0], &nodes[1]);
    client.write_all(&[7; 100_000]).expect("write");
    assert_comes(&mut server, &[7; 100_000]);
    nodes.drop_packets(0, 1, 0.0);
    assert_eq!(there(), PACKETS);
}

/// Only from below: a busy machine is slower, but nothing makes a limited link faster.
#[test]
fn a_link_is_no_faster_than_its_rate() {
    if needs_nodes() || needs_program("tc") {
        return;
    }
    const RATE: u64 = 2_000_000;
    const BYTES: usize = 2_000_000;
    let nodes = Nodes::new(2);
    nodes[1].limit_rate(RATE);
    for (from, to) in [(&nodes[0], &nodes[1]), (&nodes[1], &nodes[0])] {
        let (mut client, mut server) = connected(from, to);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| client.write_all(&[1; BYTES]).expect("write"));
            let mut there = vec![0; BYTES];
            server.read_exact(&mut there).expect("it comes");
        });
        // 128 KiB come at once.
        let least = (BYTES - (128 << 10)) as f64 / RATE as f64;
        let took = begun.elapsed().as_secs_f64();
        assert!(took > least * 0.95, "{took} s, at least {least} s");
    }
    nodes[1].unlimit_rate();
    let rules = run_bounded(nodes[1].command("tc").args(["qdisc"]), LIMIT).ok();
    assert!(!rules.stdout.contains("tbf"), "{rules:?}");
}

#[test]
fn connections_of_a_node_are_reset() {
    if needs_nodes() || needs_program("ss") {
        return;
    }
    let nodes = Nodes::new(3);
    let (mut client, mut server) = connected(&nodes[0], &nodes[1]);
    let (mut other, mut third) = connected(&nodes[0], &nodes[2]);
    assert!(nodes[1].reset_sockets() >= 1);
    let error = client.read(&mut [0; 1]).expect_err("reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    server.read(&mut [0; 1]).expect_err("ended");
    other.write_all(b"others go on").expect("write");
    assert_comes(&mut third, b"others go on");
    assert_eq!(nodes[1].reset_sockets(), 0);
}

#[test]
fn a_proxy_on_a_node_cuts_a_frame() {
    if needs_nodes() {
        return;
    }
    let nodes = Nodes::new(3);
    let listener = nodes[2].inside(|| TcpListener::bind((nodes[2].address(), PORT)).expect("port"));
    let proxy = CuttingProxy::on(&nodes[1], nodes[2].socket_address(PORT));
    assert_eq!(proxy.address().ip(), nodes[1].address());
    let mut client = dial(&nodes[0], proxy.address(), LIMIT).expect("connects");
    let (mut server, peer) = listener.accept().expect("accepts");
    assert_eq!(peer.ip(), nodes[1].address());
    server.set_read_timeout(Some(LIMIT)).expect("limit");
    proxy.reset_after(Way::ToServer, 3);
    client.write_all(b"frame").expect("write");
    let mut there = Vec::new();
    let error = server.read_to_end(&mut there).expect_err("reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    assert_eq!(there, b"fra");
}

#[test]
fn processes_of_a_node_stop_and_go_on() {
    if needs_nodes() {
        return;
    }
    let nodes = Nodes::new(2);
    let mut echo = nodes[0].command("cat");
    let mut echo = echo
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("cat");
    let mut other = sleeper(&nodes[1]);
    let state = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
        stat.rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next())
    };
    wait_until("both are on their nodes", || {
        nodes.iter().all(|node| node.processes().len() == 1)
    });
    nodes[0].pause();
    wait_until("it is stopped", || state(echo.id()) == Some('T'));
    assert_ne!(state(other.id()), Some('T'));
    echo.stdin
        .as_mut()
        .expect("pipe")
        .write_all(b"late")
        .expect("write");
    nodes[0].resume();
    let mut there = [0; 4];
    echo.stdout
        .as_mut()
        .expect("pipe")
        .read_exact(&mut there)
        .expect("it goes on");
    assert_eq!(&there, b"late");
    nodes[0].kill();
    assert!(nodes[0].processes().is_empty());
    assert!(!runs(echo.id()) && runs(other.id()));
    echo.wait().expect("wait");
    nodes[1].kill();
    other.wait().expect("wait");
}

fn machine() -> [String; 3] {
    let say = |words: &[&str]| {
        let mut command = Command::new("ip");
        run_bounded(command.args(words), LIMIT).ok().stdout
    };
    [
        say(&["netns"]),
        say(&["-o", "link"]),
        say(&["-o", "-4", "addr"]),
    ]
}

#[test]
fn nothing_is_left_and_nothing_is_seen_meanwhile() {
    if needs_nodes() {
        return;
    }
    let before = machine();
    let nodes = Nodes::with_networks(2, 2);
    assert_eq!(machine(), before, "while there are nodes");
    let mut child = sleeper(&nodes[0]);
    // A daemon, that is nobody's child.
    let mut shell = nodes[1].command("sh");
    shell.args(["-c", "setsid sleep 600 >&- 2>&- & echo $!"]);
    let daemon = run_bounded(&mut shell, LIMIT).ok().stdout;
    let daemon: u32 = daemon.trim().parse().expect("a number");
    wait_until("the daemon runs", || runs(daemon));
    drop(nodes);
    assert!(!runs(child.id()) && !runs(daemon));
    child.wait().expect("wait");
    assert_eq!(machine(), before, "afterwards");
}

#[test]
fn nothing_is_left_by_a_test_that_fails() {
    if needs_nodes() {
        return;
    }
    let mut child = None;
    let failed = catch_unwind(AssertUnwindSafe(|| {
        let nodes = Nodes::new(1);
        child = Some(sleeper(&nodes[0]));
        panic!("for a try");
    }));
    assert!(failed.is_err());
    let mut child = child.expect("started");
    assert!(!runs(child.id()));
    child.wait().expect("wait");
}

/// The body of a child of the next test: it is killed while it has nodes.
#[test]
fn child_waits_with_nodes() {
    let Some(file) = std::env::var_os(CHILD) else {
        return;
    };
    let nodes = Nodes::new(1);
    let mut sleeper = sleeper(&nodes[0]);
    let ready = std::path::PathBuf::from(file);
    let half = ready.with_extension("half");
    std::fs::write(&half, format!("{}", sleeper.id())).expect("write");
    std::fs::rename(&half, &ready).expect("rename");
    std::thread::sleep(LIMIT);
    drop(nodes);
    sleeper.wait().expect("wait");
}

#[test]
fn what_a_killed_test_has_left_is_swept_by_the_next() {
    if needs_nodes() {
        return;
    }
    let before = machine();
    let folder = tempfile::tempdir().expect("folder");
    let ready = folder.path().join("ready");
    let mut test = Command::new(std::env::current_exe().expect("program"));
    test.args(["--exact", "child_waits_with_nodes"])
        .env(CHILD, &ready)
        .stdout(Stdio::null());
    let mut test = test.spawn().expect("a test");
    wait_until("the other test has a node", || ready.exists());
    let left: u32 = std::fs::read_to_string(&ready)
        .expect("read")
        .parse()
        .expect("a number");
    // A test that runs is left alone.
    drop(Nodes::new(1));
    assert!(runs(left));
    test.kill().expect("kill");
    test.wait().expect("wait");
    // Unless another test has done so already.
    drop(Nodes::new(1));
    wait_until("it is swept", || !runs(left));
    assert_eq!(machine(), before);
}
