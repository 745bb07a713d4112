//! On which node a new file lies.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use forebay_policy::holders::{
    Holder, HolderId, HolderRule, HolderTier, Home, Rack, Wanted, Writer, choose_home,
};
use forebay_policy::placement::{NewFile, TierSpace};
use forebay_types::{Process, TierId};
use forebay_wire::Peer;

use crate::files::Files;
use crate::files::handed::Near;

/// Where a new file comes from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Origin {
    /// The process that writes it; `None`: nobody in particular.
    pub writer: Option<Process>,
    /// Tells it from others of the same process: where nodes are alike, files spread.
    pub name_hash: u64,
}

impl Files {
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
    pub fn spaces_for(&self, origin: Origin, file: &NewFile) -> Vec<TierSpace> {
        let spaces = self.buffer.spaces();
        if self.settings.holders.is_empty() {
            return spaces;
        }
        let rule = HolderRule::default();
        let wanted = Wanted {
            object: origin.name_hash,
            expected_bytes: file.predicted_bytes,
            may_be_in_memory: true,
            rule: &rule,
        };
        let writer = Writer {
            holder: origin.writer.and_then(|writer| self.holder_near(writer)),
            rack: None,
        };
        let home = match choose_home(&writer, &self.holders(&spaces), &wanted) {
            Home::On { holder, .. } | Home::Wait(holder) => holder,
            Home::Pfs => return Vec::new(),
        };
        let is_there = |space: &TierSpace| self.server_of(space) == home;
        spaces.into_iter().filter(is_there).collect()
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
    use std::net::IpAddr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use forebay_holder::{DataServer, SsdSetting, open_flash};
    use forebay_policy::durability::Durability;
    use forebay_tiers::Tier;
    use forebay_types::Errno;
    use forebay_wire::{Connection, InMemory, Reply, Request};

    use super::*;
    use crate::base::settings::{HolderSetting, HolderWay};
    use crate::testing::Lab;

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

    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));
    const ELSEWHERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 9));

    fn from(node: u32) -> Origin {
        Origin {
            writer: Some(Process { node, pid: 1 }),
            name_hash: 1,
        }
    }

    #[test]
    fn a_new_file_lies_where_its_writer_runs_if_somebody_answers_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let ssd = SsdSetting {
            dir: dir.path().to_path_buf(),
            capacity_bytes: Some(64 << 20),
        };
        let open = move |instance| {
            let tier = open_flash("ssd", &ssd, instance)?;
            Ok(vec![Arc::new(tier) as Arc<dyn Tier>])
        };
        let data = DataServer::new("boot".into(), Vec::new(), Box::new(open), None);
        let way = Arc::new(Way {
            inner: InMemory::mount(Arc::new(data.session())),
            answers: AtomicBool::new(true),
        });
        let lab = Lab::with(|settings| {
            settings.server = 1;
            settings.holders = vec![HolderSetting {
                server: 2,
                rack: 2,
                addresses: vec![THERE],
                way: HolderWay(way.clone()),
            }];
        });
        let rooms = lab.rooms();
        rooms
            .base
            .processes()
            .note_address(5, Some((THERE, 1).into()));
        rooms
            .base
            .processes()
            .note_address(6, Some((ELSEWHERE, 1).into()));
        let file = NewFile {
            predicted_bytes: Some(1 << 20),
            durability: Durability::Ssd,
            series_fsyncs: false,
        };
        let server = |origin| {
            let tier = rooms.files.find_room(origin, &file).expect("room");
            rooms.buffer.tiers().get(tier).expect("a tier").server
        };
        // On the server's own node, also by its socket.
        assert_eq!((server(from(0)), server(from(4))), (1, 1));
        assert_eq!(server(from(5)), 2);
        let spread: Vec<u16> = (0..32)
            .map(|name_hash| {
                let writer = from(6).writer;
                server(Origin { writer, name_hash })
            })
            .collect();
        assert!(spread.contains(&1) && spread.contains(&2), "{spread:?}");
        let emptying = rooms.buffer.emptying();
        let ordered = emptying.order(rooms.base.ns(), (2, true), &[1, 2]);
        assert!(ordered.expect("ordered"));
        assert_eq!((server(from(5)), server(from(0))), (1, 1));
        let restored = crate::buffer::emptying::Emptying::default();
        restored.restore(rooms.base.ns()).expect("on record");
        assert!(restored.has(2) && !restored.has(1));
        let ordered = emptying.order(rooms.base.ns(), (2, false), &[1, 2]);
        assert!(ordered.expect("ordered"));
        assert_eq!(server(from(5)), 2);
        way.answers.store(false, Ordering::Release);
        assert_eq!((server(from(5)), server(from(0))), (1, 1));
    }
}
