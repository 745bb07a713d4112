use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_holder::{DataServer, SsdSetting, open_flash};
use forebay_policy::durability::Durability;
use forebay_tiers::Tier;
use forebay_types::{Errno, Ino, RenameMode};
use forebay_wire::{Connection, InMemory, Reply, Request};

use super::*;
use crate::base::settings::{HolderSetting, HolderWay, NodeSetting, PathRule, Settings};
use crate::rooms::Rooms;
use crate::testing::{Lab, create};

/// A data server that can fall silent.
struct Way {
    inner: InMemory,
    answers: AtomicBool,
}

impl Connection for Way {
    fn call(&self, request: Request, payload: &[u8], into: &mut [u8]) -> Result<Reply, Errno> {
        self.inner.call(request, payload, into)
    }

    fn is_answering(&self) -> bool {
        self.answers.load(Ordering::Acquire)
    }

    fn hands_over_descriptors(&self) -> bool {
        false
    }
}

/// Where the node of a server is; its number is its rack's, too.
fn address(server: u16) -> IpAddr {
    std::net::Ipv4Addr::new(192, 0, 2, server as u8).into()
}

/// Where no server is.
const ELSEWHERE: u16 = 9;

struct Servers {
    lab: Lab,
    ways: Vec<Arc<Way>>,
    _dir: tempfile::TempDir,
}

/// Server 1, and flash on these data servers, each on a node and in a rack of its own.
fn servers(others: &[u16], change: impl FnOnce(&mut Settings)) -> Servers {
    let dir = tempfile::tempdir().expect("a directory");
    let ways = others.iter().map(|server| {
        let ssd = SsdSetting {
            dir: dir.path().join(server.to_string()),
            capacity_bytes: Some(64 << 20),
        };
        std::fs::create_dir(&ssd.dir).expect("mkdir");
        let open = move |instance| {
            let tier = open_flash("ssd", &ssd, instance)?;
            Ok(vec![Arc::new(tier) as Arc<dyn Tier>])
        };
        let data = DataServer::new("boot".into(), Vec::new(), Box::new(open), None);
        Arc::new(Way {
            inner: InMemory::mount(Arc::new(data.session())),
            answers: AtomicBool::new(true),
        })
    });
    let ways: Vec<Arc<Way>> = ways.collect();
    let lab = Lab::with(|settings| {
        settings.server = 1;
        settings.rack = 1;
        let holders = others.iter().zip(&ways).map(|(server, way)| HolderSetting {
            server: *server,
            rack: *server,
            addresses: vec![address(*server)],
            way: HolderWay(way.clone()),
        });
        settings.holders = holders.collect();
        settings.nodes = vec![NodeSetting {
            server: 1,
            rack: None,
            addresses: vec![SocketAddr::new(address(1), 7070)],
            metadata: true,
            data: true,
        }];
        change(settings);
    });
    let processes = lab.rooms().base.processes();
    for node in [1, 2, 3, ELSEWHERE] {
        processes.note_address(node.into(), Some((address(node), 1).into()));
    }
    Servers {
        lab,
        ways,
        _dir: dir,
    }
}

impl Servers {
    fn rooms(&self) -> &Rooms {
        self.lab.rooms()
    }

    /// Where a new file lies that is written on the node of this server, by a mount over TCP; 0: by
    /// the socket of server 1.
    fn of(&self, path: &str, node: u16) -> Option<u16> {
        let writer = Process {
            node: node.into(),
            pid: 1,
        };
        self.of_writer(path, Some(writer))
    }

    fn of_writer(&self, path: &str, writer: Option<Process>) -> Option<u16> {
        let origin = self.rooms().files.origin(writer, path.as_bytes());
        let tier = self.rooms().files.find_room(origin, &NEW)?;
        Some(self.rooms().buffer.tiers().get(tier)?.server)
    }

    /// Of many files.
    fn of_all(&self, dir: &str, node: u16) -> BTreeSet<u16> {
        let files = (0..32).filter_map(|n| self.of(&format!("{dir}/{n}"), node));
        files.collect()
    }
}

const NEW: NewFile = NewFile {
    predicted_bytes: Some(1 << 20),
    durability: Durability::Ssd,
    series_fsyncs: false,
};

fn rule(pattern: &str, locality: Locality, servers: &[u16], racks: &[u16]) -> PathRule {
    PathRule {
        pattern: pattern.into(),
        durability: None,
        mtbf: None,
        group: None,
        placement: Some(HolderRule {
            locality,
            servers: servers.iter().copied().map(HolderId).collect(),
            racks: racks.iter().copied().map(Rack).collect(),
        }),
    }
}

fn rules() -> Vec<PathRule> {
    let near = Locality::WriterFirst;
    vec![
        PathRule {
            placement: None,
            ..rule("/**", near, &[], &[])
        },
        rule("/spread/**", Locality::Spread, &[], &[]),
        rule("/own/**", Locality::LocalOnly, &[], &[]),
        rule("/server/**", near, &[2], &[]),
        rule("/rack/**", near, &[], &[3]),
        rule("/both/**", near, &[2], &[3]),
        // The first match is the whole of it.
        rule("/both/**", Locality::LocalOnly, &[1], &[]),
    ]
}

#[test]
fn a_new_file_lies_where_its_writer_runs_if_somebody_answers_there() {
    let servers = servers(&[2], |_| ());
    let rooms = servers.rooms();
    // On the server's own node, also by its socket.
    assert_eq!((servers.of("f", 0), servers.of("f", 4)), (Some(1), Some(1)));
    assert_eq!((servers.of("f", 1), servers.of("f", 2)), (Some(1), Some(2)));
    assert_eq!(servers.of_all("f", ELSEWHERE), [1, 2].into());
    let emptying = rooms.buffer.emptying();
    let ordered = emptying.order(rooms.base.ns(), (2, true), &[1, 2]);
    assert!(ordered.expect("ordered"));
    assert_eq!((servers.of("f", 2), servers.of("f", 0)), (Some(1), Some(1)));
    let restored = crate::buffer::emptying::Emptying::default();
    restored.restore(rooms.base.ns()).expect("on record");
    assert!(restored.has(2) && !restored.has(1));
    let ordered = emptying.order(rooms.base.ns(), (2, false), &[1, 2]);
    assert!(ordered.expect("ordered"));
    assert_eq!(servers.of("f", 2), Some(2));
    servers.ways[0].answers.store(false, Ordering::Release);
    assert_eq!((servers.of("f", 2), servers.of("f", 0)), (Some(1), Some(1)));
}

#[test]
fn a_rule_says_on_which_nodes_new_files_lie() {
    let servers = servers(&[2, 3], |settings| settings.rules = rules());
    let everywhere = [0, 1, 2, 3, ELSEWHERE];
    for node in [1, 2, 3] {
        assert_eq!(servers.of("f", node), Some(node));
        assert_eq!(servers.of_all("spread", node), [1, 2, 3].into());
        assert_eq!(servers.of("own/f", node), Some(node));
    }
    assert_eq!(servers.of("own/f", 0), Some(1));
    assert_eq!(servers.of("own/f", ELSEWHERE), None, "the PFS");
    assert!(servers.of_writer("own/f", None).is_some(), "a stage-in");
    for node in everywhere {
        assert_eq!(servers.of_all("server", node), [2].into());
        assert_eq!(servers.of_all("rack", node), [3].into());
    }
    assert_eq!(servers.of_all("both", 2), [2].into(), "the writer's");
    assert_eq!(servers.of_all("both", 3), [3].into(), "the writer's");
    assert_eq!(servers.of_all("both", 1), [2, 3].into());

    servers.ways[0].answers.store(false, Ordering::Release);
    assert!(servers.of("f", 2).is_some());
    assert_eq!(servers.of("own/f", 2), None);
    assert_eq!(servers.of_all("both", 2), [3].into());
    // What no server may take goes to the PFS, and waits for nobody.
    let files = &servers.rooms().files;
    let begun = std::time::Instant::now();
    let origin = files.origin(Some(Process { node: 3, pid: 1 }), b"server/f");
    let tier = files.place_new(origin, &NEW).expect("a place");
    let kind = servers.rooms().buffer.tiers().kind(tier);
    assert_eq!(kind, forebay_tiers::TierKind::Pfs);
    let patience = servers.rooms().base.settings().wait_for_space;
    assert!(begun.elapsed() < patience);
}

#[test]
fn a_data_server_beside_a_metadata_server_without_tiers_is_the_writers() {
    let servers = servers(&[2, 3], |settings| {
        settings.ssd.clear();
        settings.nodes[0].addresses[0].set_ip(address(3));
    });
    assert_eq!(servers.of_all("f", 0), [3].into());
    assert_eq!(servers.of_all("f", 2), [2].into());
}

#[test]
fn without_the_writers_node_its_rack_is_next() {
    let servers = servers(&[2, 3, 4], |settings| settings.holders[2].rack = 2);
    servers.ways[0].answers.store(false, Ordering::Release);
    assert_eq!(servers.of_all("f", 2), [4].into());
    assert_eq!(servers.of_all("f", ELSEWHERE), [1, 3, 4].into());
}

#[test]
fn where_there_is_one_server_who_writes_elsewhere_has_none_of_its_own() {
    let servers = servers(&[], |settings| settings.rules = rules());
    assert_eq!(servers.of("own/f", 1), Some(1));
    assert_eq!(servers.of("own/f", 0), Some(1));
    assert_eq!(servers.of("own/f", ELSEWHERE), None);
    assert_eq!(servers.of("f", ELSEWHERE), Some(1));
}

/// A file that has outgrown its node.
#[test]
fn a_file_leaves_its_node_only_for_one_that_its_rule_allows() {
    let servers = servers(&[2, 3], |settings| {
        let near = Locality::WriterFirst;
        settings.rules = vec![
            rule("/own", Locality::LocalOnly, &[], &[]),
            rule("/rack", near, &[], &[1, 3]),
        ];
    });
    let rooms = servers.rooms();
    let elsewhere = |name: &str| {
        let found = rooms.base.ns().lookup(Ino::ROOT, name.as_bytes());
        let file = found.expect("lookup").file.expect("a file");
        let others = |spaces: &[TierSpace]| {
            let servers = spaces.iter().map(|space| rooms.files.server_of(space).0);
            let others: BTreeSet<u16> = servers.filter(|server| *server != 1).collect();
            (!others.is_empty()).then_some(others)
        };
        rooms.files.find_near(&file, file.tier(), others)
    };
    for name in ["f", "own", "rack"] {
        let handle = create(rooms, name.as_bytes(), b"written on the node of server 1");
        rooms.files.release(handle).expect("close");
    }
    assert_eq!(elsewhere("f"), Some([2, 3].into()));
    assert_eq!(elsewhere("own"), None);
    assert_eq!(elsewhere("rack"), Some([3].into()));
    // What it is called counts, not what it was called.
    let ns = rooms.base.ns();
    let renamed = ns.rename(Ino::ROOT, b"f", Ino::ROOT, b"rack", RenameMode::Replace);
    renamed.expect("rename");
    assert_eq!(elsewhere("rack"), Some([3].into()));
}
