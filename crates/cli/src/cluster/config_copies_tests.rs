//! Restart copies, and the network for them.

use super::*;

#[test]
fn a_network_for_copies_is_one_of_all_metadata_servers() {
    let line = "addresses = [\"127.0.0.1:7070\"]";
    let with = |more: &str| format!("{SECTION}{SERVER}").replace(line, &format!("{line}\n{more}"));
    let other = "[[server]]\nid = 2\nroles = [\"data\"]\naddresses = [\"127.0.0.1:7071\"]\n\
                 replication_addresses = [\"127.0.0.1:7072\"]\nstate = \"/s\"\ndram = \"1GiB\"\n";
    let own = "replication_addresses = [\"127.0.0.1:7073\"]";
    let cluster = read(&(with(own) + other)).expect("valid");
    let found = cluster
        .servers
        .iter()
        .map(|server| &server.replication_addresses);
    let ports: Vec<u16> = found.flatten().map(SocketAddr::port).collect();
    assert_eq!(ports, [7073, 7072]);
    assert!(usual().servers[0].replication_addresses.is_empty());
    let said = refused(&(with("") + other));
    assert!(said.starts_with("line 8: server 1 has no replication_addresses, and others have"));
    let said = refused(&with("replication_addresses = []"));
    let says = "line 9: server 1 has no address; write replication_addresses = [";
    assert!(said.starts_with(says), "{said}");
    // It is an address like any other.
    let said = refused(&with("replication_addresses = [\"127.0.0.1:7070\"]"));
    assert_eq!(
        said,
        "line 9: 127.0.0.1:7070 is given twice: first in line 8"
    );
}
