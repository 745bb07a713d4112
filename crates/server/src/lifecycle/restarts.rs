//! Restart copies in the background (BBOS, replicators): after everything else, in free space.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_namespace::File;
use forebay_policy::holders::{HolderId, Rack};
use forebay_policy::placement::TierSpace;
use forebay_policy::replicators::{
    DrainedVersion, GroupNode, LinkUse, PartOf, PutOff, Replication, RestartCopy, Traffic,
    link_use, next,
};
use forebay_policy::spill::flash_with_room;
use forebay_tiers::{CopyControl, TierKind};
use forebay_types::TierId;
use forebay_wire::OUT_OF_REACH;
use parking_lot::Mutex;

use crate::base::failure::Failure;
use crate::lifecycle::Lifecycle;

/// Between two looks at all files.
const LOOK: Duration = Duration::from_secs(3);
/// What drains move is reckoned over so long.
const METER: Duration = Duration::from_secs(1);

/// Clean files of one part, and their restart copies.
#[derive(Default)]
struct Files {
    mtbf_s: f64,
    missing: Vec<(Arc<File>, u64)>,
    copied: Vec<(Arc<File>, u16, u64)>,
}

type Parts = BTreeMap<PartOf, Files>;

/// What came of the copy of one file.
enum Made {
    Copied,
    /// It is in use, or there is no room, or its object is not what it should be.
    Not,
    /// Something else needs the links.
    GaveWay,
}

/// What drains move.
struct Meter {
    since: Instant,
    moved_bytes: u64,
    bytes_per_s: f64,
}

impl Meter {
    /// Of a counter that stands at `moved_bytes` now.
    fn look(&mut self, moved_bytes: u64) -> f64 {
        let (span, moved) = (self.since.elapsed(), moved_bytes - self.moved_bytes);
        let seen = moved as f64 / span.max(METER).as_secs_f64();
        if span >= METER {
            (self.since, self.moved_bytes) = (Instant::now(), moved_bytes);
            self.bytes_per_s = seen;
        }
        // What has begun since counts at once.
        self.bytes_per_s.max(seen)
    }
}

/// The thread that copies one part of a version after the other, and drops copies of old ones. It
/// may hang with a node, or with the network for such copies.
pub fn run(lifecycle: &Arc<Lifecycle>) {
    let mut replicator = Replicator {
        lifecycle,
        begun: Instant::now(),
        put_off: PutOff::default(),
        meter: Mutex::new(Meter {
            since: Instant::now(),
            moved_bytes: 0,
            bytes_per_s: 0.0,
        }),
    };
    while !lifecycle.base.is_ending() {
        if let Err(failure) = replicator.tend() {
            tracing::warn!("restart copies: {failure}; tried again");
        }
        lifecycle.base.life().pause(LOOK);
    }
}

/// Makes restart copies.
struct Replicator<'a> {
    lifecycle: &'a Lifecycle,
    begun: Instant,
    put_off: PutOff,
    meter: Mutex<Meter>,
}

impl Replicator<'_> {
    /// Copies one part of a version, or drops the copies of one.
    fn tend(&mut self) -> Result<(), Failure> {
        let now_s = self.begun.elapsed().as_secs_f64();
        let parts = self.lifecycle.restart_parts();
        self.put_off.keep(|part| parts.contains_key(part));
        let versions: Vec<_> = parts.iter().map(|part| self.drained(part, now_s)).collect();
        let mut copies = copies_of(&parts);
        let group = self.lifecycle.restart_group(&copies);
        // A part that is copied in part goes on where it has room.
        let is_whole = |copy: &RestartCopy| {
            let part = parts.get(&(copy.application, copy.version, copy.from));
            part.is_none_or(|files| files.missing.is_empty())
        };
        let is_outdated = |copy: &RestartCopy| {
            let mut of = versions
                .iter()
                .filter(|v| v.application == copy.application);
            of.any(|v| v.version > copy.version)
        };
        copies.retain(|copy| is_whole(copy) || is_outdated(copy));
        let wanted = self.lifecycle.settings.restart_copies;
        match next(&versions, &copies, &group, self.link_use(), wanted) {
            Replication::Rest => Ok(()),
            Replication::Discard(old) => {
                let part = parts.get(&(old.application, old.version, old.from));
                let mut files = part.iter().flat_map(|part| &part.copied);
                // What is left of it goes with the next sweep.
                files.try_for_each(|(file, ..)| {
                    self.lifecycle.base.ns().leave_restart_copy(file)?;
                    Ok(())
                })
            }
            Replication::Copy {
                application,
                version,
                from,
                to,
            } => {
                let part = (application, version, from);
                if let Some(files) = parts.get(&part) {
                    self.copy_part(part, files, to);
                }
                Ok(())
            }
        }
    }

    fn drained(&self, (part, files): (&PartOf, &Files), now_s: f64) -> DrainedVersion {
        let (application, version, holder) = *part;
        DrainedVersion {
            application,
            version,
            bytes: files.missing.iter().map(|(_, bytes)| bytes).sum(),
            holder,
            mtbf_s: files.mtbf_s,
            copies: usize::from(files.missing.is_empty()),
            is_put_off: self.put_off.has(*part, now_s),
        }
    }

    fn copy_part(&mut self, part: PartOf, files: &Files, to: HolderId) {
        let mut is_whole = true;
        for (file, bytes) in &files.missing {
            match self.copy(file, *bytes, to) {
                Ok(Made::Copied) => {}
                Ok(Made::Not) => is_whole = false,
                Ok(Made::GaveWay) => return,
                // The network for copies is away: they wait, whatever else goes on.
                Err(failure) if failure.errno() == OUT_OF_REACH => {
                    is_whole = false;
                    break;
                }
                Err(failure) => {
                    let path = file.path();
                    tracing::warn!("restart copy of {}: {failure}", path.escape_ascii());
                    is_whole = false;
                }
            }
        }
        match is_whole {
            true => self.put_off.copied(part),
            false => self
                .put_off
                .failed(part, self.begun.elapsed().as_secs_f64()),
        }
    }

    fn link_use(&self) -> LinkUse {
        let lifecycle = self.lifecycle;
        let mut holders = lifecycle.settings.holders.iter();
        let engine = lifecycle.plan.engine();
        let bandwidths = engine.bandwidths();
        link_use(&Traffic {
            is_ending: lifecycle.base.is_ending(),
            second_copies_due: lifecycle.second_copies_due.load(Ordering::Relaxed),
            has_own_network: holders.all(|holder| holder.replication.is_some()),
            quiet_s: lifecycle.buffer.activity().quiet_s(),
            drain_bytes_per_s: self.meter.lock().look(engine.moved_bytes()),
            br_max_bytes_per_s: bandwidths.map(|measured| measured.br_max_bytes_per_s),
        })
    }

    fn copy(&self, file: &Arc<File>, bytes: u64, to: HolderId) -> Result<Made, Failure> {
        let lifecycle = self.lifecycle;
        // A reader there would make it the file.
        let rule = lifecycle.catalog.holder_rule_of_file(file);
        if !rule.allows(to, lifecycle.files.rack(to.0)) {
            return Ok(Made::Not);
        }
        if self.link_use() == LinkUse::Urgent {
            return Ok(Made::GaveWay);
        }
        let tiers = lifecycle.buffer.tiers();
        let is_there = |space: &TierSpace| {
            let slot = tiers.get(TierId(space.index as u8));
            slot.is_some_and(|slot| slot.server == to.0)
        };
        let spaces = lifecycle.buffer.spaces().into_iter();
        let spaces: Vec<_> = spaces.filter(is_there).collect();
        let Some(index) = flash_with_room(&spaces, bytes) else {
            return Ok(Made::Not);
        };
        let rate = lifecycle.settings.replica_rate_bytes_per_s as f64;
        let generation = file.lock().generation();
        let gives_way = || self.link_use() == LinkUse::Urgent;
        // It is of no use once the file changes, and whoever waits for the right to copy the file
        // waits for no copy of this kind.
        let is_wanted =
            || lifecycle.files.is_copy_wanted(file) || file.lock().generation() != generation;
        let is_in_the_way = || gives_way() || is_wanted();
        let control = CopyControl {
            stop: &is_in_the_way,
            moved: &|bytes, _| {
                let pause = Duration::from_secs_f64(bytes as f64 / rate);
                lifecycle.pause_unless(pause, &is_in_the_way);
            },
        };
        let place = TierId(index as u8);
        match lifecycle.files.copy_for_restart(file, place, &control) {
            Ok(true) => Ok(Made::Copied),
            // Stopped, and removed: it is tried again when nobody is in its way.
            Ok(false) | Err(_) if gives_way() => Ok(Made::GaveWay),
            Err(_) if is_wanted() => Ok(Made::Not),
            Ok(false) => Ok(Made::Not),
            Err(failure) => Err(failure),
        }
    }
}

fn copies_of(parts: &Parts) -> Vec<RestartCopy> {
    let mut copies = Vec::new();
    for ((application, version, from), files) in parts {
        copies.extend(files.copied.iter().map(|(_, holder, bytes)| RestartCopy {
            application: *application,
            version: *version,
            from: *from,
            holder: HolderId(*holder),
            bytes: *bytes,
        }));
    }
    copies
}

impl Lifecycle {
    /// What there is of complete versions, drained.
    fn restart_parts(&self) -> Parts {
        let (tiers, apps) = (self.buffer.tiers(), self.catalog.apps());
        let server = |tier| tiers.get(tier).map(|slot| slot.server);
        let mut parts = Parts::new();
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
                .entry((application.into(), version, HolderId(from)))
                .or_default();
            part.mtbf_s = apps.candidate(file.object, bytes, false).mtbf_s;
            match self.buffer.restart_copy(&file).and_then(server) {
                Some(holder) => part.copied.push((file, holder, bytes)),
                // Nobody could say that a copy is what it should be.
                None if residency.crc.is_none() => {}
                None => part.missing.push((file, bytes)),
            }
        }
        parts
    }

    fn restart_group(&self, copies: &[RestartCopy]) -> Vec<GroupNode> {
        let tiers = self.buffer.tiers();
        let mut group: BTreeMap<u16, GroupNode> = BTreeMap::new();
        let mut free: BTreeMap<u16, u64> = BTreeMap::new();
        for space in self.buffer.spaces() {
            let slot = tiers.get(TierId(space.index as u8));
            let Some(slot) = slot.filter(|slot| slot.kind == TierKind::Ssd) else {
                continue;
            };
            let server = slot.server;
            let mut holders = self.settings.holders.iter();
            let holder = holders.find(|holder| holder.server == server);
            let node = group.entry(server).or_insert_with(|| GroupNode {
                holder: HolderId(server),
                rack: Rack(holder.map_or(self.settings.rack, |holder| holder.rack)),
                takes_files: tiers.takes_copies(server),
                bound_bytes: 0,
                spent_bytes: 0,
            });
            node.add_flash(space.capacity_bytes, self.settings.restart_copies_fraction);
            *free.entry(server).or_default() += space.available_bytes();
        }
        for copy in copies {
            if let Some(node) = group.get_mut(&copy.holder.0) {
                node.spent_bytes += copy.bytes;
            }
        }
        for (server, node) in &mut group {
            node.keep_to_free(free.get(server).copied().unwrap_or(0));
        }
        group.into_values().collect()
    }
}
