//! What connects the nodes: a bridge for each network, in a namespace of its own.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};

use super::namespace::NetNs;
use crate::wait_until;

/// Grain of the share of packets that are lost.
const PARTS: u32 = 1_000_000;

pub struct Switch {
    space: NetNs,
    networks: usize,
    /// Shares of packets that are lost, by sender and receiver; none of 0.
    lost: Mutex<BTreeMap<(usize, usize), f64>>,
}

/// The address of a node in a network.
pub fn address(node: usize, network: usize) -> Ipv4Addr {
    let part = |number: usize| u8::try_from(number).expect("few nodes and networks");
    Ipv4Addr::new(10, 77, part(network), part(node + 1))
}

/// The switch's end of a node's cable.
pub fn port(node: usize, network: usize) -> String {
    format!("p{node}n{network}")
}

impl Switch {
    #[track_caller]
    pub fn new(networks: usize) -> Switch {
        let space = NetNs::new().expect("a network namespace");
        for network in 0..networks {
            // Nothing is learnt of groups: a bridge that asks for members loses first packets.
            let bridge = format!("br{network}");
            space.run(&format!(
                "ip link add {bridge} type bridge stp_state 0 mcast_snooping 0"
            ));
            space.run(&format!("ip link set {bridge} up"));
        }
        Switch {
            space,
            networks,
            lost: Mutex::default(),
        }
    }

    pub fn space(&self) -> &NetNs {
        &self.space
    }

    /// A cable from the bridge of a network to an interface of a node.
    #[track_caller]
    pub fn connect(&self, node: usize, network: usize, space: &NetNs, interface: &str) {
        let (port, path) = (port(node, network), space.path());
        self.space.run(&format!(
            "ip link add {port} type veth peer name {interface} netns {path}"
        ));
        self.space
            .run(&format!("ip link set {port} master br{network} up"));
    }

    /// Cuts or mends a cable. The node sees its carrier go; what it sends is lost without an error,
    /// for its addresses and routes stay.
    #[track_caller]
    pub fn set_cable(&self, node: usize, network: usize, whole: bool) {
        let how = if whole { "up" } else { "down" };
        let port = port(node, network);
        self.space.run(&format!("ip link set {port} {how}"));
    }

    /// Waits until both ends of a cable say that it carries packets: the kernel looks at carriers
    /// by itself, some time after a link is set up.
    #[track_caller]
    pub fn await_cable(&self, node: usize, network: usize, space: &NetNs, interface: &str) {
        let port = port(node, network);
        wait_until("a cable carries packets", || {
            let port = self.space.run(&format!("ip -o -d link show dev {port}"));
            let end = space.run(&format!("ip -o link show dev {interface}"));
            port.contains(" state forwarding ") && end.contains(" state UP ")
        });
    }

    #[track_caller]
    pub fn drop_packets(&self, from: usize, to: usize, fraction: f64) {
        assert!((0.0..=1.0).contains(&fraction), "a share of {fraction}");
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.remove(&(from, to));
        if fraction > 0.0 {
            lost.insert((from, to), fraction);
        }
        // One transaction: no packet sees half of it.
        self.space.run_script("nft", &rules(&lost, self.networks));
    }
}

fn rules(lost: &BTreeMap<(usize, usize), f64>, networks: usize) -> String {
    let mut text = String::from(
        "add table bridge faults\n\
         add chain bridge faults way { type filter hook forward priority 0; policy accept; }\n\
         flush chain bridge faults way\n",
    );
    for (&(from, to), &fraction) in lost {
        let below = (fraction * f64::from(PARTS)).round() as u32;
        let chance = match below {
            PARTS.. => String::new(),
            _ => format!("numgen random mod {PARTS} < {below} "),
        };
        for network in 0..networks {
            let (from, to) = (address(from, network), address(to, network));
            writeln!(
                text,
                "add rule bridge faults way ip saddr {from} ip daddr {to} {chance}drop"
            )
            .expect("text in memory");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_has_a_rule_in_each_network() {
        let lost = BTreeMap::from([((0, 1), 1.0), ((1, 0), 0.25)]);
        let text = rules(&lost, 2);
        let rules: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("add rule bridge faults way "))
            .collect();
        assert_eq!(
            rules,
            [
                "ip saddr 10.77.0.1 ip daddr 10.77.0.2 drop",
                "ip saddr 10.77.1.1 ip daddr 10.77.1.2 drop",
                "ip saddr 10.77.0.2 ip daddr 10.77.0.1 numgen random mod 1000000 < 250000 drop",
                "ip saddr 10.77.1.2 ip daddr 10.77.1.1 numgen random mod 1000000 < 250000 drop",
            ]
        );
    }
}
