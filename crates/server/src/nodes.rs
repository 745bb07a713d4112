//! The nodes of a cluster, for `status`: who is there, what each holds, and what would go with it.

use std::collections::HashMap;

use forebay_tiers::TierKind;
use forebay_types::{Errno, TierId};
use forebay_wire::control::{EmptyingStatus, NodeStatus};

use crate::base::failure::Failure;
use crate::base::settings::{NodeSetting, StoreSetting};
use crate::rooms::Rooms;

/// What the books say of copies.
struct Copied {
    /// Undrained objects that another node has, too, by tier: how many, and their bytes.
    elsewhere: HashMap<TierId, (u64, u64)>,
    /// Bytes of copies for restarts, by the tier that they are in.
    for_restarts: HashMap<TierId, u64>,
}

impl Rooms {
    /// Has a node emptied, or uses it again.
    pub(crate) fn order_node(&self, server: u16, empty: bool) -> Result<(), Failure> {
        let with_data = self.base.settings().nodes.iter().filter(|node| node.data);
        let with_data: Vec<u16> = with_data.map(|node| node.server).collect();
        if !with_data.contains(&server) {
            return Err(Errno::ENOENT.into());
        }
        let emptying = self.buffer.emptying();
        if !emptying.order(self.base.ns(), (server, empty), &with_data)? {
            return Err(Errno::EBUSY.into());
        }
        tracing::info!(
            "node {server} {}",
            match empty {
                true => "is emptied by order",
                false => "is used again, by order",
            }
        );
        Ok(())
    }

    /// All servers of the cluster, as this one sees them.
    pub(crate) fn node_status(&self) -> Vec<NodeStatus> {
        let nodes = &self.base.settings().nodes;
        if nodes.is_empty() {
            return Vec::new();
        }
        let tiers = self.buffer.tiers();
        let server_of = |id: TierId| tiers.get(id).map(|slot| slot.server);
        let copied = Copied {
            elsewhere: self.buffer.ledger().elsewhere(server_of),
            for_restarts: self.buffer.ledger().restart_copies(),
        };
        let nodes = nodes.iter();
        nodes.map(|node| self.one_node(node, &copied)).collect()
    }

    fn one_node(&self, node: &NodeSetting, copied: &Copied) -> NodeStatus {
        let settings = self.base.settings();
        let is_own = node.server == settings.server;
        let mut status = NodeStatus {
            server: node.server,
            rack: node.rack.clone(),
            addresses: node.addresses.clone(),
            metadata: node.metadata,
            data: node.data,
            has_records: is_own && settings.store == StoreSetting::Embedded,
            answers: is_own,
            ..NodeStatus::default()
        };
        self.add_tiers(&mut status, copied);
        self.add_emptying(&mut status);
        let lending = self.lifecycle.lending_of_node(node.server);
        status.lending = lending.map(Box::new);
        let mut under_way = self.drain.picking().under_way();
        let copies = under_way.find(|(server, _)| *server == node.server);
        status.copies_under_way = copies.map_or(0, |(_, files)| files);
        if is_own {
            return status;
        }
        let tiers = self.buffer.tiers();
        status.answers = tiers.is_answering(node.server);
        let mut holders = tiers.holders().iter();
        let holder = holders.find(|holder| holder.server == node.server);
        let missing = holder.and_then(|holder| holder.missing_for());
        let missing = missing.filter(|_| !status.answers);
        status.missing_ms = missing.map(|time| time.as_millis() as u64);
        let mut ways = settings.holders.iter();
        if let Some(holder) = ways.find(|holder| holder.server == node.server) {
            let carried = holder.way.0.carried();
            (status.links_up, status.links) = (carried.links_up, carried.links);
            (status.in_bytes, status.out_bytes) = (carried.in_bytes, carried.out_bytes);
        }
        status
    }

    fn add_emptying(&self, status: &mut NodeStatus) {
        if !self.buffer.emptying().has(status.server) {
            return;
        }
        let tiers = self.buffer.tiers().of_server(status.server);
        let files = tiers.map(|(id, _)| {
            let figures = self.buffer.ledger().figures(id);
            figures.dirty_files + figures.other_files
        });
        let files = files.sum();
        let held = self.buffer.emptying().held(status.server);
        status.emptying = Some(EmptyingStatus {
            files,
            open_files: held.open_files.min(files),
            awaited: match files {
                0 => Vec::new(),
                _ => held.awaited,
            },
        });
    }

    fn add_tiers(&self, status: &mut NodeStatus, copied: &Copied) {
        let (tiers, ledger) = (self.buffer.tiers(), self.buffer.ledger());
        for (id, slot) in tiers.of_server(status.server) {
            let figures = ledger.figures(id);
            let (files, bytes) = copied.elsewhere.get(&id).copied().unwrap_or_default();
            let only_here = figures.dirty_bytes.saturating_sub(bytes);
            status.tiers.push(slot.tier.name().to_string());
            status.capacity_bytes += figures.capacity_bytes;
            status.used_bytes += figures.used_bytes;
            status.restart_copy_bytes += copied.for_restarts.get(&id).copied().unwrap_or(0);
            status.dirty_bytes += figures.dirty_bytes;
            status.only_here_bytes += only_here;
            status.only_here_files += figures.dirty_files.saturating_sub(files);
            if slot.kind == TierKind::Dram {
                status.only_in_memory_bytes += only_here;
            }
        }
    }
}
