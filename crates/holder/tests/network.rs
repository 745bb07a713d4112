//! A data server and a metadata server over sockets.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_holder::{Claim, DataHost, DataServer, Redialing, RemoteTier, RemoteTiers, SsdSetting};
use forebay_tiers::{Object, Tier, conformance};
use forebay_types::{Errno, ObjectId, TierId};
use forebay_wire::net::{NetConfig, NetConnection, NetServer, NetServerConfig};
use forebay_wire::{Connection, Key, OUT_OF_REACH, ObjectCall, Request};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const INSTANCE: [u8; 16] = [7; 16];
const LEASE: Duration = Duration::from_secs(2);

struct Node {
    dir: tempfile::TempDir,
    key: Key,
}

impl Node {
    fn new() -> Node {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("flash")).expect("mkdir");
        let path = dir.path().join("key");
        Key::create(&path).expect("a key");
        let key = Key::read(&path).expect("a key");
        Node { dir, key }
    }

    /// A data server that lets metadata servers in from there.
    fn serve(&self, at: SocketAddr, metadata: IpAddr) -> NetServer {
        let dir = self.dir.path().join("flash");
        let data = DataServer::new(
            "this boot".into(),
            vec![metadata],
            Box::new(move |instance| Ok(vec![flash(&dir, instance)?])),
            None,
        );
        let config = NetServerConfig {
            tcp: vec![at],
            lease: LEASE,
            ..NetServerConfig::new("test", self.key.clone())
        };
        NetServer::start(config, Arc::new(DataHost(data))).expect("a server")
    }

    fn way(&self, server: SocketAddr) -> Redialing {
        let config = NetConfig {
            addresses: vec![server],
            links: 2,
            ..NetConfig::new("test", self.key.clone())
        };
        let dial = move || NetConnection::connect(config.clone());
        Redialing::new("server 2".into(), Box::new(dial))
    }

    fn tiers(&self, server: SocketAddr) -> RemoteTiers {
        RemoteTiers::new(Arc::new(self.way(server)), Claim::new(INSTANCE, 1))
    }

    fn tier(&self, server: SocketAddr) -> RemoteTier {
        let tiers = self.tiers(server).find("server-2");
        tiers.expect("tiers").remove(0)
    }
}

fn flash(dir: &Path, instance: [u8; 16]) -> std::io::Result<Arc<dyn Tier>> {
    let ssd = SsdSetting {
        dir: dir.to_path_buf(),
        capacity_bytes: Some(1 << 30),
    };
    Ok(Arc::new(forebay_holder::open_flash("ssd", &ssd, instance)?))
}

fn content(object: &dyn Object, bytes: usize) -> Vec<u8> {
    let mut found = vec![0; bytes + 1];
    let count = object.read_at(&mut found, 0).expect("read");
    found.truncate(count);
    found
}

#[test]
fn what_is_open_goes_on_when_the_data_server_is_started_anew() {
    let node = Node::new();
    let server = node.serve((HERE, 0).into(), HERE);
    let address = server.addresses()[0];
    let tier = node.tier(address);
    assert_eq!(
        (tier.name(), tier.capacity_bytes()),
        ("server-2:ssd", 1 << 30)
    );
    let object = tier.create(ObjectId(1), &conformance::identity(1));
    let object = object.expect("create");
    // More than goes with one request.
    let long: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    assert_eq!(object.write_at(&long, 0).expect("write"), long.len());
    object.sync(false).expect("sync");
    drop(server);
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| content(&*object, long.len()));
        // Nobody is there for a while.
        std::thread::sleep(Duration::from_millis(500));
        let _server = node.serve(address, HERE);
        assert!(reads.join().expect("thread") == long);
        assert_eq!(object.append(b"end").expect("append"), (3, 3_000_003));
        object.sync(true).expect("sync");
        assert_eq!(
            tier.identity(ObjectId(1)).expect("there"),
            Some(conformance::identity(1))
        );
        drop(tier.open(ObjectId(1)).expect("open"));
        tier.remove(ObjectId(1)).expect("remove");
    });
}

#[test]
fn only_a_metadata_server_gets_objects() {
    let node = Node::new();
    let server = node.serve((HERE, 0).into(), [192, 0, 2, 1].into());
    let refused = node.tiers(server.addresses()[0]).find("server-2");
    let errno = refused.err().map(|error| Errno::of(&error));
    assert_eq!(errno, Some(Errno::EACCES));
    // Why there is no session is no answer to what a program asks.
    let way = node.way(server.addresses()[0]);
    let asked = |call| way.call(Request::Object(call), &[], &mut []).err();
    let begin = ObjectCall::Begin {
        instance: INSTANCE,
        epoch: 1,
    };
    assert_eq!(asked(begin), Some(Errno::EACCES));
    assert_eq!(asked(ObjectCall::Space(TierId(0))), Some(OUT_OF_REACH));
}
