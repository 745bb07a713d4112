//! A cluster of nodes on one machine: each has a network of its own, all have the same files.
//!
//! A node is a network namespace without a name, held by a descriptor of the test. So nothing is
//! in the machine's own list of namespaces or interfaces, several tests have the same addresses
//! side by side, and the kernel takes everything away when the test ends, killed or not. What the
//! kernel leaves are processes that a test has started: see `leftovers`.
//!
//! Only the network is divided. The PFS has the same path on all nodes as it has at a centre, and a
//! test sees what a node's `forebay mount` has mounted; mount points have to differ.
//!
//! ```text
//!   node 0          node 1          node 2            a namespace each
//!   eth0 eth1       eth0 eth1       eth0 eth1         10.77.NETWORK.(NODE + 1)
//!     |    |          |    |          |    |          veth pairs
//!    p0n0 p0n1       p1n0 p1n1       p2n0 p2n1        cables are cut here,
//!     |    +-----br1--|----+----------|----+          packets dropped between
//!     +----------br0--+---------------+               one more namespace: the switch
//! ```

mod leftovers;
mod namespace;
mod node;
mod proxy;
mod switch;

use std::net::UdpSocket;
use std::ops::Index;
use std::sync::Arc;

pub use node::Node;
pub use proxy::{CuttingProxy, Way};

use self::namespace::NetNs;
use self::switch::Switch;

/// Addresses end with the number of the node.
const NODES_MAX: usize = 250;
/// Networks that a node may be in.
const NETWORKS_MAX: usize = 8;

/// Skips a test where no nodes can be made: `if needs_nodes() { return }`. It takes root, ip(8) and
/// a kernel that lets network namespaces be made.
#[track_caller]
pub fn needs_nodes() -> bool {
    if crate::needs_root() || crate::needs_program("ip") {
        return true;
    }
    match NetNs::new() {
        Ok(_) => false,
        Err(error) => {
            crate::skip(&format!("no network namespaces: {error}"));
            true
        }
    }
}

/// Nodes that reach each other. Processes that are still on them are killed when this is dropped;
/// their mounts are theirs to take away. Needs root; see [`needs_nodes`].
pub struct Nodes {
    nodes: Vec<Node>,
    switch: Arc<Switch>,
}

impl Nodes {
    /// So many nodes in one network, 1 to 250. Node `i` is 10.77.0.(i + 1).
    #[track_caller]
    pub fn new(count: usize) -> Nodes {
        Nodes::with_networks(count, 1)
    }

    /// The same with several networks, 1 to 8: node `i` is 10.77.k.(i + 1) in network `k`.
    #[track_caller]
    pub fn with_networks(count: usize, networks: usize) -> Nodes {
        assert!((1..=NODES_MAX).contains(&count), "{count} nodes");
        assert!(
            (1..=NETWORKS_MAX).contains(&networks),
            "{networks} networks"
        );
        leftovers::sweep();
        let switch = Arc::new(Switch::new(networks));
        // From the start in what is dropped if a later one cannot be made.
        let mut made = Nodes {
            nodes: Vec::new(),
            switch,
        };
        for index in 0..count {
            made.nodes.push(Node::new(index, networks, &made.switch));
        }
        for node in &made.nodes[1..] {
            (0..networks).for_each(|network| await_packets(&made.nodes[0], node, network));
        }
        made
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// All of them.
    pub fn iter(&self) -> std::slice::Iter<'_, Node> {
        self.nodes.iter()
    }

    /// Loses packets from one node to another, in all networks: this share of them (0 to 1), by
    /// chance. Takes the place of what was said of this way before; 0 loses none. Needs nft(8):
    /// `if needs_program("nft") { return }`.
    #[track_caller]
    pub fn drop_packets(&self, from: usize, to: usize, fraction: f64) {
        assert!(from < self.count() && to < self.count(), "{from} to {to}");
        self.switch.drop_packets(from, to, fraction);
    }
}

/// Waits until packets get through in both directions: links that say that they are up have been
/// seen to lose the first ones.
#[track_caller]
fn await_packets(one: &Node, other: &Node, network: usize) {
    let socket = |node: &Node| {
        let ip = node.addresses()[network];
        let socket = node.inside(|| UdpSocket::bind((ip, 0)).expect("a port"));
        socket.set_nonblocking(true).expect("non-blocking");
        let address = socket.local_addr().expect("address");
        (socket, address)
    };
    let (one, other) = (socket(one), socket(other));
    for ((from, _), (to, address)) in [(&one, &other), (&other, &one)] {
        crate::wait_until("packets get through a new network", || {
            // It fails while the other node is not found; then it is tried again.
            let _ = from.send_to(b"?", address);
            to.recv(&mut [0; 1]).is_ok()
        });
    }
}

impl Index<usize> for Nodes {
    type Output = Node;

    fn index(&self, index: usize) -> &Node {
        &self.nodes[index]
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        let spaces: Vec<_> = self.nodes.iter().map(|node| node.space().id()).collect();
        leftovers::kill_all(&spaces);
    }
}
