//! Restart copies in the background (BBOS, replicators): after everything else, in free space.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_namespace::File;
use forebay_policy::holders::{HolderId, Rack};
use forebay_policy::placement::TierSpace;
use forebay_policy::replicators::{
    DrainedVersion, GroupNode, LinkUse, Replication, RestartCopy, next,
};
use forebay_policy::spill::flash_with_room;
use forebay_tiers::{CopyControl, TierKind};
use forebay_types::TierId;
use forebay_wire::OUT_OF_REACH;

use crate::base::failure::Failure;
use crate::lifecycle::Lifecycle;

/// Application, version, and the node that has the part.
type Part = (u64, u64, u16);

/// Clean files of one part, and their restart copies.
#[derive(Default)]
struct Files {
    mtbf_s: f64,
    missing: Vec<(Arc<File>, u64)>,
    copied: Vec<(Arc<File>, u16, u64)>,
}

impl Lifecycle {
    /// Copies one part of a version, or drops the copies of one; called every few seconds.
    pub(super) fn tend_restart_copies(&self) {
        if self.settings.restart_copies == 0 {
            return;
        }
        let parts = self.restart_parts();
        let (mut versions, mut copies) = (Vec::new(), Vec::new());
        for ((application, version, from), files) in &parts {
            versions.push(DrainedVersion {
                application: *application,
                version: *version,
                bytes: files.missing.iter().map(|(_, bytes)| bytes).sum(),
                holder: HolderId(*from),
                mtbf_s: files.mtbf_s,
                copies: usize::from(files.missing.is_empty()),
            });
            copies.extend(files.copied.iter().map(|(_, holder, bytes)| RestartCopy {
                application: *application,
                version: *version,
                from: HolderId(*from),
                holder: HolderId(*holder),
                bytes: *bytes,
            }));
        }
        let group = self.restart_group(&copies);
        // A part that is copied in part goes on where it has room.
        let is_whole = |copy: &RestartCopy| {
            let part = parts.get(&(copy.application, copy.version, copy.from.0));
            part.is_none_or(|files| files.missing.is_empty())
        };
        let is_outdated = |copy: &RestartCopy| {
            let mut of = versions
                .iter()
                .filter(|v| v.application == copy.application);
            of.any(|v| v.version > copy.version)
        };
        copies.retain(|copy| is_whole(copy) || is_outdated(copy));
        let wanted = self.settings.restart_copies;
        let done = match next(&versions, &copies, &group, self.link_use(), wanted) {
            Replication::Rest => Ok(()),
            Replication::Discard(old) => {
                let part = parts.get(&(old.application, old.version, old.from.0));
                let mut files = part.iter().flat_map(|part| &part.copied);
                files.try_for_each(|(file, ..)| self.drop_restart_copy(file))
            }
            Replication::Copy {
                application,
                version,
                from,
                to,
            } => {
                let part = parts.get(&(application, version, from.0));
                let mut files = part.iter().flat_map(|part| &part.missing);
                files.try_for_each(|(file, bytes)| self.copy_to_node(file, *bytes, to))
            }
        };
        if let Err(failure) = done {
            tracing::warn!("restart copies: {failure}; tried again");
        }
    }

    /// What there is of complete versions, drained.
    fn restart_parts(&self) -> BTreeMap<Part, Files> {
        let (tiers, apps) = (self.buffer.tiers(), self.catalog.apps());
        let server = |tier| tiers.get(tier).map(|slot| slot.server);
        let mut parts: BTreeMap<Part, Files> = BTreeMap::new();
        for file in self.buffer.files() {
            let residency = file.lock().residency;
            let of = apps.of(file.object);
            let (Some((application, Some(version))), Some(from)) = (of, server(residency.tier))
            else {
                continue;
            };
            let is_drained = residency.clean && tiers.kind(residency.tier) != TierKind::Pfs;
            if !is_drained || !apps.is_complete(file.object) {
                continue;
            }
            let bytes = self.buffer.ledger().used_bytes(file.object);
            let part = parts
                .entry((application.into(), version, from))
                .or_default();
            part.mtbf_s = apps.candidate(file.object, bytes, false).mtbf_s;
            match self.buffer.restart_copy(&file).and_then(server) {
                Some(holder) => part.copied.push((file, holder, bytes)),
                None => part.missing.push((file, bytes)),
            }
        }
        parts
    }

    fn restart_group(&self, copies: &[RestartCopy]) -> Vec<GroupNode> {
        let tiers = self.buffer.tiers();
        let mut group: BTreeMap<u16, GroupNode> = BTreeMap::new();
        for space in self.buffer.spaces() {
            let slot = tiers.get(TierId(space.index as u8));
            let Some(slot) = slot.filter(|slot| slot.kind == TierKind::Ssd) else {
                continue;
            };
            let rack = self
                .settings
                .holders
                .iter()
                .find(|h| h.server == slot.server);
            let node = group.entry(slot.server).or_insert(GroupNode {
                holder: HolderId(slot.server),
                rack: Rack(rack.map_or(0, |holder| holder.rack)),
                takes_files: tiers.takes_copies(slot.server),
                bound_bytes: 0,
                spent_bytes: 0,
            });
            node.add_flash(space.capacity_bytes, self.settings.restart_copies_fraction);
        }
        for copy in copies {
            if let Some(node) = group.get_mut(&copy.holder.0) {
                node.spent_bytes += copy.bytes;
            }
        }
        group.into_values().collect()
    }

    /// Programs that write, and drains that somebody waits for, need the links.
    fn link_use(&self) -> LinkUse {
        let (dirty_bytes, _) = self.buffer.ledger().dirty_and_capacity();
        match dirty_bytes > 0 || self.base.is_ending() {
            true => LinkUse::Urgent,
            false => LinkUse::Spare,
        }
    }

    fn copy_to_node(&self, file: &Arc<File>, bytes: u64, to: HolderId) -> Result<(), Failure> {
        if self.link_use() == LinkUse::Urgent {
            return Ok(());
        }
        let tiers = self.buffer.tiers();
        let is_there = |space: &TierSpace| {
            let slot = tiers.get(TierId(space.index as u8));
            slot.is_some_and(|slot| slot.server == to.0)
        };
        let spaces: Vec<_> = self.buffer.spaces().into_iter().filter(is_there).collect();
        let Some(index) = flash_with_room(&spaces, bytes) else {
            return Ok(());
        };
        let rate = self.settings.replica_rate_bytes_per_s as f64;
        let generation = file.lock().generation();
        // It is of no use once the file changes, and whoever waits for the right to copy the file
        // waits for no copy of this kind.
        let is_in_the_way = || {
            self.link_use() == LinkUse::Urgent
                || self.files.is_copy_wanted(file)
                || file.lock().generation() != generation
        };
        let control = CopyControl {
            stop: &|| is_in_the_way(),
            moved: &|bytes, _| {
                let pause = Duration::from_secs_f64(bytes as f64 / rate);
                self.pause_unless(pause, &is_in_the_way);
            },
        };
        let place = TierId(index as u8);
        match self.files.copy_for_restart(file, place, &control) {
            // The network for copies is away: they wait, whatever else goes on.
            Err(failure) if failure.errno() == OUT_OF_REACH => Ok(()),
            // Stopped, and removed: it is tried again when nobody is in its way.
            Err(_) if is_in_the_way() || self.base.is_ending() => Ok(()),
            made => made.map(|_| ()),
        }
    }

    fn drop_restart_copy(&self, file: &Arc<File>) -> Result<(), Failure> {
        // What is left of it goes with the next sweep.
        self.base.ns().leave_restart_copy(file)?;
        Ok(())
    }
}
