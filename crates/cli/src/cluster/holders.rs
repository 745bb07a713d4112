//! The data servers of a cluster, as its metadata server reaches them.

use std::sync::Arc;

use forebay_holder::Redialing;
use forebay_server::{HolderSetting, HolderWay, NodeSetting};
use forebay_wire::Key;
use forebay_wire::net::{NetConfig, NetConnection};

use super::config::{Cluster, Server};

/// Sockets to each: copies and reads are under way at the same time.
const LINKS: usize = 4;

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
            encrypt: self.encrypt,
            ..NetConfig::new(&self.name, key.clone())
        };
        let dial = move || NetConnection::connect(config.clone());
        let way = Redialing::new(format!("server {}", server.id), Box::new(dial));
        let addresses = server.addresses.iter();
        HolderSetting {
            server: server.id,
            rack: self.rack(server),
            addresses: addresses.map(|one| one.ip().to_canonical()).collect(),
            way: HolderWay(Arc::new(way)),
        }
    }
}
