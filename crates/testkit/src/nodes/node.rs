//! One node: what runs on it, and what can happen to it.

use std::ffi::OsStr;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::Arc;

use rustix::process::{Pid, Signal};

use super::leftovers;
use super::namespace::NetNs;
use super::switch::{Switch, address, port};

/// What a limited link lets through at once, bytes: a large packet, or 20 ms of it.
const BURST_BYTES_MIN: u64 = 128 << 10;
/// What waits for a limited link, bytes: beyond that, packets are lost.
const QUEUE_BYTES_MIN: u64 = 1 << 20;

/// A node of [`super::Nodes`].
pub struct Node {
    index: usize,
    addresses: Vec<IpAddr>,
    space: NetNs,
    switch: Arc<Switch>,
}

impl Node {
    #[track_caller]
    pub(super) fn new(index: usize, networks: usize, switch: &Arc<Switch>) -> Node {
        let space = NetNs::new().expect("a network namespace");
        space.run("ip link set lo up");
        let mut addresses = Vec::new();
        for network in 0..networks {
            let (interface, address) = (interface(network), address(index, network));
            switch.connect(index, network, &space, &interface);
            space.run(&format!("ip addr add {address}/24 dev {interface}"));
            space.run(&format!("ip link set {interface} up"));
            switch.await_cable(index, network, &space, &interface);
            addresses.push(address.into());
        }
        Node {
            index,
            addresses,
            space,
            switch: Arc::clone(switch),
        }
    }

    pub(super) fn space(&self) -> &NetNs {
        &self.space
    }

    /// Its place among the nodes, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its address in the first network.
    pub fn address(&self) -> IpAddr {
        self.addresses[0]
    }

    /// Its addresses, one for each network.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// A port of its address in the first network.
    pub fn socket_address(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address(), port)
    }

    /// A command that runs on this node. What it has started is killed when the nodes are dropped.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        self.place(&mut command);
        command
    }

    /// Makes a command that is there already run on this node.
    pub fn place<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        self.space.place(command);
        command
    }

    /// Runs something of the test on a thread that is on this node. Sockets that it makes stay on
    /// the node wherever they are used; threads that it starts are on it, too.
    #[track_caller]
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.space.inside(work)
    }

    /// The processes that are on this node now.
    pub fn processes(&self) -> Vec<Pid> {
        leftovers::inside(self.space.id())
    }

    /// Stops all processes of this node where they are (SIGSTOP). Its kernel goes on: connections
    /// stay, and take what fits into their buffers.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets them go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills all processes of this node and waits for their end.
    pub fn kill(&self) {
        leftovers::kill_all(&[self.space.id()]);
    }

    fn signal(&self, signal: Signal) {
        for pid in self.processes() {
            leftovers::signal_inside(pid, &[self.space.id()], signal);
        }
    }

    /// Cuts the node off from all networks. Nobody is told: what is sent is lost, connections stay
    /// and go on when the cable is mended, at the next time that TCP tries.
    #[track_caller]
    pub fn cut(&self) {
        (0..self.addresses.len()).for_each(|network| self.cut_network(network));
    }

    /// Mends what [`Node::cut`] and [`Node::cut_network`] have cut. The links are up when this
    /// returns; who has been told that a node is not found may wait a second before it asks again.
    #[track_caller]
    pub fn heal(&self) {
        (0..self.addresses.len()).for_each(|network| self.heal_network(network));
    }

    /// Bytes that have come to this node by one network, and that it has sent there.
    #[track_caller]
    pub fn carried_bytes(&self, network: usize) -> (u64, u64) {
        let path = "/proc/thread-self/net/dev";
        let table = self.inside(|| std::fs::read_to_string(path).expect("interfaces"));
        let name = format!("{}:", interface(network));
        let mut lines = table.lines().map(str::trim_start);
        let line = lines.find_map(|line| line.strip_prefix(&name));
        let mut figures = line.expect("an interface").split_whitespace();
        let mut figure = |at| figures.nth(at).and_then(|text| text.parse().ok());
        // Eight of each direction, bytes first.
        let (came, sent) = (figure(0), figure(7));
        (came.expect("a number"), sent.expect("a number"))
    }

    /// Cuts the node off from one network.
    #[track_caller]
    pub fn cut_network(&self, network: usize) {
        assert!(network < self.addresses.len(), "no network {network}");
        self.switch.set_cable(self.index, network, false);
    }

    /// Mends that.
    #[track_caller]
    pub fn heal_network(&self, network: usize) {
        assert!(network < self.addresses.len(), "no network {network}");
        self.switch.set_cable(self.index, network, true);
        let interface = interface(network);
        self.switch
            .await_cable(self.index, network, &self.space, &interface);
    }

    /// Limits each of its links, in each direction by itself, in bytes per second of packets with
    /// their heads. 128 KiB or 20 ms of it, whichever is more, may come at once.
    #[track_caller]
    pub fn limit_rate(&self, bytes_per_s: u64) {
        assert!(bytes_per_s > 0, "a rate of 0; `cut` lets nothing through");
        let burst = (bytes_per_s / 50).max(BURST_BYTES_MIN);
        let queue = (bytes_per_s / 5).max(QUEUE_BYTES_MIN);
        let how = format!("root tbf rate {bytes_per_s}bps burst {burst} limit {queue}");
        self.links(|space, link| {
            space.run(&format!("tc qdisc replace dev {link} {how}"));
        });
    }

    /// Takes the limits away; fails where there are none.
    #[track_caller]
    pub fn unlimit_rate(&self) {
        self.links(|space, link| {
            space.run(&format!("tc qdisc del dev {link} root"));
        });
    }

    /// Both ends of each cable: each limits what it sends.
    #[track_caller]
    fn links(&self, work: impl Fn(&NetNs, &str)) {
        for network in 0..self.addresses.len() {
            work(&self.space, &interface(network));
            work(self.switch.space(), &port(self.index, network));
        }
    }

    /// Ends all TCP connections of this node, with an error at both ends; those that wait for
    /// connections stay. How many there were. Fails where the kernel cannot do that
    /// (`CONFIG_INET_DIAG_DESTROY`); [`super::CuttingProxy`] needs nothing of the kernel.
    #[track_caller]
    pub fn reset_sockets(&self) -> usize {
        let there = self.space.run("ss -H -n -t state connected");
        let ended = self.space.run("ss -K -H -n -t state connected");
        let (there, ended) = (there.lines().count(), ended.lines().count());
        assert!(there == 0 || ended > 0, "the kernel ends no sockets");
        ended
    }
}

fn interface(network: usize) -> String {
    format!("eth{network}")
}
