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
use forebay_policy::spill::flash_with_room;
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
#[path = "home_tests.rs"]
mod tests;
