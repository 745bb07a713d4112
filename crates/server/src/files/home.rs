//! On which node a new file lies.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use forebay_namespace::File;
use forebay_policy::holders::{
    Holder, HolderId, HolderRule, HolderTier, Home, Locality, Rack, Wanted, Writer, choose_home,
};
use forebay_policy::placement::{NewFile, TierSpace};
use forebay_policy::spill::{flash_with_room, memory_with_room};
use forebay_types::{Process, TierId};
use forebay_wire::Peer;

use crate::files::Files;
use crate::files::handed::Near;

/// Where a new file comes from.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'r> {
    /// The process that writes it; `None`: nobody in particular.
    pub writer: Option<Process>,
    /// Tells it from others of the same process: where nodes are alike, files spread.
    pub name_hash: u64,
    /// What the path rules say of its path.
    pub rule: &'r HolderRule,
}

impl Origin<'_> {
    /// What comes from the PFS has no writer whose node it could lie on.
    fn rule(&self) -> Cow<'_, HolderRule> {
        match (self.writer, self.rule.locality) {
            (None, Locality::LocalOnly) => Cow::Owned(HolderRule {
                locality: Locality::default(),
                ..self.rule.clone()
            }),
            _ => Cow::Borrowed(self.rule),
        }
    }
}

impl Files {
    /// Of a new file with this path.
    pub fn origin(&self, writer: Option<Process>, path: &[u8]) -> Origin<'_> {
        Origin {
            writer,
            name_hash: self.name_hash(path),
            rule: self.catalog.holder_rule_of(path),
        }
    }

    /// Of a path; 0 where there is one node, and nothing to spread.
    pub fn name_hash(&self, path: &[u8]) -> u64 {
        if self.settings.holders.is_empty() {
            return 0;
        }
        let mut hasher = DefaultHasher::new();
        path.hash(&mut hasher);
        hasher.finish()
    }

    /// Spaces of the tiers that a new file may go to: those of one node.
    pub fn spaces_for(&self, origin: Origin<'_>, file: &NewFile) -> Vec<TierSpace> {
        let spaces = self.buffer.spaces();
        let rule = origin.rule();
        // One server is everybody's, but not everybody is on its node.
        if self.settings.holders.is_empty() && rule.locality != Locality::LocalOnly {
            return spaces;
        }
        let wanted = Wanted {
            object: origin.name_hash,
            expected_bytes: file.predicted_bytes,
            may_be_in_memory: true,
            rule: &rule,
        };
        let holder = origin.writer.and_then(|writer| self.holder_of(writer));
        let writer = Writer {
            holder,
            rack: holder.map(|holder| self.rack_of(holder)),
        };
        let home = match choose_home(&writer, &self.holders(&spaces), &wanted) {
            Home::On { holder, .. } | Home::Wait(holder) => holder,
            Home::Pfs => return Vec::new(),
        };
        let is_there = |space: &TierSpace| self.server_of(space) == home;
        spaces.into_iter().filter(is_there).collect()
    }

    /// Spaces of the tiers that a file with this path may lie in, whoever writes it.
    pub(super) fn spaces_allowed(&self, path: &[u8]) -> Vec<TierSpace> {
        let mut spaces = self.buffer.spaces();
        let rule = self.catalog.holder_rule_of(path);
        spaces.retain(|space| self.is_allowed(space, rule));
        spaces
    }

    fn is_allowed(&self, space: &TierSpace, rule: &HolderRule) -> bool {
        let server = self.server_of(space);
        rule.allows(server, self.rack_of(server))
    }

    /// What is found for a file among the tiers on the node of one of them; if nothing is, among
    /// all that it may lie in.
    pub(super) fn find_near<T>(
        &self,
        file: &File,
        tier: TierId,
        find: impl Fn(&[TierSpace]) -> Option<T>,
    ) -> Option<T> {
        let mut all = self.buffer.spaces();
        if self.settings.holders.is_empty() {
            return find(&all);
        }
        let here = self
            .buffer
            .tiers()
            .get(tier)
            .map(|slot| HolderId(slot.server));
        let near = all.iter().copied();
        let near = near.filter(|space| Some(self.server_of(space)) == here);
        find(&near.collect::<Vec<_>>()).or_else(|| {
            let rule = self.catalog.holder_rule_of_file(file);
            all.retain(|space| self.is_allowed(space, rule));
            let may_leave = rule.locality != Locality::LocalOnly;
            may_leave.then(|| find(&all)).flatten()
        })
    }

    /// The flash directory with the most room, if that is enough for so many bytes of a file: on
    /// the node of a tier if there is one, else where the file may lie.
    pub(super) fn flash_for(&self, file: &File, near: TierId, bytes: u64) -> Option<TierId> {
        let index = self.find_near(file, near, |spaces| flash_with_room(spaces, bytes))?;
        Some(TierId(index as u8))
    }

    /// The server that a tier is on.
    pub(super) fn server_with(&self, tier: TierId) -> u16 {
        let slot = self.buffer.tiers().get(tier);
        slot.map_or(self.settings.server, |slot| slot.server)
    }

    /// Flash of a server that has room.
    pub(super) fn flash_of(&self, server: u16, bytes: u64) -> Option<TierId> {
        let mut spaces = self.buffer.spaces();
        spaces.retain(|space| self.server_of(space) == HolderId(server));
        let index = flash_with_room(&spaces, bytes)?;
        Some(TierId(index as u8))
    }

    /// Where on other nodes a file goes whose node has no room for it: flash, or memory that has
    /// much room, unless an fsync has promised more than memory. Never where its second copy is.
    pub(super) fn place_elsewhere(&self, file: &File, from: TierId, bytes: u64) -> Option<TierId> {
        let rule = self.catalog.holder_rule_of_file(file);
        if self.settings.holders.is_empty() || rule.locality == Locality::LocalOnly {
            return None;
        }
        let residency = file.lock().residency;
        let second = residency.shadow.map(|(tier, _)| self.server_with(tier));
        let taken = [Some(self.server_with(from)), second];
        let mut spaces = self.buffer.spaces();
        spaces.retain(|space| {
            let is_taken = taken.contains(&Some(self.server_of(space).0));
            !is_taken && self.is_allowed(space, rule)
        });
        let is_promised = residency.flushed.is_some() || residency.shadow.is_some();
        let memory = || memory_with_room(&spaces, bytes).filter(|_| !is_promised);
        let index = flash_with_room(&spaces, bytes).or_else(memory)?;
        Some(TierId(index as u8))
    }

    pub(super) fn server_of(&self, space: &TierSpace) -> HolderId {
        let slot = self.buffer.tiers().get(TierId(space.index as u8));
        HolderId(slot.map_or(self.settings.server, |slot| slot.server))
    }

    /// The server whose tiers' files a client's kernel may have by itself; `process` asks through
    /// the client.
    pub fn near(&self, peer: Peer<'_>, process: Process) -> Near {
        match (peer.local, peer.near) {
            (true, _) => Some(self.settings.server),
            (false, true) => self.holder_near(process).map(|id| id.0),
            (false, false) => None,
        }
    }

    /// Whether a tier is on the node of a client.
    pub(super) fn is_near(&self, tier: TierId, near: Near) -> bool {
        let slot = self.buffer.tiers().get(tier);
        near.is_some() && slot.map(|slot| slot.server) == near
    }

    /// Takes the way to ask whether clients of before may still come back.
    pub fn awaits_by(&self, awaits: super::Awaits) {
        drop(self.awaits.set(awaits));
    }

    /// Whether clients of before may still come back.
    pub(super) fn awaits_clients(&self) -> bool {
        self.awaits.get().is_some_and(|awaits| awaits())
    }

    /// Whether no mount is left on the node of a data server, nor may come back to it with what it
    /// had. Who goes on writing there by an open file that a kernel has by itself is told by the
    /// next fsync: that asks the mount.
    pub(super) fn has_no_mount(&self, server: u16) -> bool {
        let mut holders = self.settings.holders.iter();
        let holder = holders.find(|holder| holder.server == server);
        let is_awaited = self.awaits.get().is_none_or(|awaits| awaits());
        holder.is_some_and(|holder| !self.base.processes().is_any_at(&holder.addresses))
            && !is_awaited
    }

    /// The data server on the node of a writer, if there is one: it need not be the server whose
    /// client the writer's mount is.
    fn holder_of(&self, writer: Process) -> Option<HolderId> {
        let own = self.settings.server;
        let mut nodes = self.settings.nodes.iter();
        let node = nodes.find(|node| node.server == own);
        let is_here = |address: &IpAddr| {
            let mut here = node.iter().flat_map(|node| &node.addresses);
            here.any(|one| one.ip().to_canonical() == *address)
        };
        match self.holder_near(writer) {
            Some(id) if id.0 == own && !self.settings.has_tiers() => {
                let mut holders = self.settings.holders.iter();
                let here = holders.find(|holder| holder.addresses.iter().any(is_here));
                here.map(|holder| HolderId(holder.server))
            }
            None => {
                let address = self.base.processes().address_of(writer.node);
                address
                    .is_some_and(|at| is_here(&at))
                    .then_some(HolderId(own))
            }
            found => found,
        }
    }

    /// The data server on the node of a process, if there is one.
    fn holder_near(&self, process: Process) -> Option<HolderId> {
        let own = HolderId(self.settings.server);
        if process.node == 0 {
            return Some(own);
        }
        let Some(address) = self.base.processes().address_of(process.node) else {
            // It came by the socket of this node.
            return Some(own);
        };
        let mut holders = self.settings.holders.iter();
        let found = holders.find(|holder| holder.addresses.contains(&address));
        found.map(|holder| HolderId(holder.server))
    }

    pub(super) fn rack_of(&self, id: HolderId) -> Rack {
        let mut others = self.settings.holders.iter();
        let other = others.find(|holder| holder.server == id.0);
        Rack(other.map_or(self.settings.rack, |holder| holder.rack))
    }

    /// All servers with these spaces, as policies see them.
    pub fn holders(&self, spaces: &[TierSpace]) -> Vec<Holder> {
        let mut tiers: BTreeMap<HolderId, Vec<HolderTier>> = BTreeMap::new();
        for space in spaces {
            let figures = self.buffer.ledger().figures(TierId(space.index as u8));
            tiers
                .entry(self.server_of(space))
                .or_default()
                .push(HolderTier {
                    space: *space,
                    // Those that are open among them are met when they are to go.
                    evictable_bytes: figures.used_bytes.saturating_sub(figures.dirty_bytes),
                });
        }
        tiers
            .into_iter()
            .map(|(id, tiers)| Holder {
                id,
                rack: self.rack_of(id),
                // Others have no space here.
                is_answering: true,
                is_emptied: false,
                tiers,
                load_bytes: 0,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use forebay_holder::{DataServer, SsdSetting, open_flash};
    use forebay_policy::durability::Durability;
    use forebay_policy::limits::Owners;
    use forebay_tiers::Tier;
    use forebay_types::{Errno, Ino, RenameMode};
    use forebay_wire::{Connection, InMemory, Reply, Request};

    use super::super::unwanted::{RunFile, RunRoomMade};
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
                replication: None,
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

        /// Where a new file lies that is written on the node of this server, by a mount over TCP;
        /// 0: by the socket of server 1.
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
            trust: None,
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
        // What no server may take goes to the PFS.
        let files = &servers.rooms().files;
        let origin = files.origin(Some(Process { node: 3, pid: 1 }), b"server/f");
        let tier = files.place_new(origin, &NEW).expect("a place");
        let kind = servers.rooms().buffer.tiers().kind(tier);
        assert_eq!(kind, forebay_tiers::TierKind::Pfs);
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

    /// Copies that may leave, on whichever node has room: 8 MiB each, with their server.
    fn fill(servers: &Servers) -> Vec<(Arc<File>, u16)> {
        let rooms = servers.rooms();
        let mut all = Vec::new();
        loop {
            let name = format!("other{}", all.len());
            std::fs::write(servers.lab.pfs(&name), vec![1; 8 << 20]).expect("write");
            let root = rooms.base.ns().root();
            let staged = rooms.files.stage_in(root, name.as_bytes(), false, &|_| ());
            let Ok(file) = staged else { return all };
            let slot = rooms.buffer.tiers().get(file.tier()).expect("a tier");
            all.push((file.clone(), slot.server));
        }
    }

    #[test]
    fn room_for_a_run_is_made_where_its_files_may_lie() {
        let servers = servers(&[2], |settings| settings.rules = rules());
        let rooms = servers.rooms();
        let others = fill(&servers);
        let here = |server: u16| {
            let there = others
                .iter()
                .filter(|(file, at)| *at == server && rooms.buffer.file(file.object).is_some());
            there.count()
        };
        let (first, second) = (here(1), here(2));
        assert!(first > 2 && second > 2, "{first} and {second}");
        let make_room = || {
            rooms.files.make_room_for_run(&RunFile {
                path: b"server/new",
                owners: Owners { uid: 0, gid: 0 },
                bytes: 8 << 20,
                wanted_bytes: 16 << 20,
                period_s: 60.0,
                may_drop: true,
            })
        };
        let is_unwanted = |server: u16| {
            let there = others.iter().filter(|(_, at)| *at == server);
            there.for_each(|(file, _)| rooms.catalog.apps().is_unwanted(file.object));
        };
        is_unwanted(1);
        assert_eq!(make_room(), RunRoomMade::No);
        assert_eq!((here(1), here(2)), (first, second));
        is_unwanted(2);
        assert_eq!(make_room(), RunRoomMade::Yes);
        assert_eq!(here(1), first);
        assert!(here(2) < second);
        assert_eq!(servers.of_writer("server/new", None), Some(2));
    }
}
