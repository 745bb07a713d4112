//! The data servers of a cluster, as its metadata server reaches them.

use std::sync::Arc;

use forebay_holder::Redialing;
use forebay_policy::patience::{COPIES, DATA_SERVER_GONE};
use forebay_server::{HolderSetting, HolderWay, NodeSetting};
use forebay_wire::Key;
use forebay_wire::net::{NetConfig, NetConnection};

use super::config::{Cluster, Server};

/// Sockets to each: copies and reads are under way at the same time.
const LINKS: usize = 4;
/// One copy for restarts is made at a time: while a part of it is read, no other is.
const COPY_LINKS: usize = 1;

impl Cluster {
    /// All data servers but `own`.
    pub fn holders(&self, own: &Server, key: &Key) -> Vec<HolderSetting> {
        let others = self.servers.iter();
        let others = others.filter(|server| server.data && server.id != own.id);
        others.map(|server| self.holder(server, key)).collect()
    }

    /// All servers, for who looks at the cluster.
    pub fn nodes(&self) -> Vec<NodeSetting> {
        let node = |server: &Server| NodeSetting {
            server: server.id,
            rack: server.rack.clone(),
            addresses: server.addresses.clone(),
            metadata: server.metadata,
            data: server.data,
        };
        self.servers.iter().map(node).collect()
    }

    fn holder(&self, server: &Server, key: &Key) -> HolderSetting {
        let config = NetConfig {
            addresses: server.addresses.clone(),
            links: LINKS,
            gone_after: Some(DATA_SERVER_GONE),
            encrypt: self.encrypt,
            ..NetConfig::new(&self.name, key.clone())
        };
        let replication = NetConfig {
            addresses: server.replication_addresses.clone(),
            links: COPY_LINKS,
            soft: Some(COPIES),
            // A session that joins another is not ended by the next one.
            gone_after: None,
            ..config.clone()
        };
        let has_one = !server.replication_addresses.is_empty();
        let addresses = server.addresses.iter();
        HolderSetting {
            server: server.id,
            rack: self.rack(server),
            addresses: addresses.map(|one| one.ip().to_canonical()).collect(),
            way: way(format!("server {}", server.id), config),
            replication: has_one.then(|| {
                let name = format!("server {} in the network for copies", server.id);
                way(name, replication)
            }),
        }
    }
}

fn way(name: String, config: NetConfig) -> HolderWay {
    let dial = move || NetConnection::connect(config.clone());
    HolderWay(Arc::new(Redialing::new(name, Box::new(dial))))
}
