//! Which drained checkpoint versions are copied to other nodes, and where a restart reads them
//! (BBOS, replicators: demoted files are copied to other storage nodes of the replication group
//! over a separate slow network).
//!
//! Such a copy is clean: it promises nothing, costs nothing but space that is free, and saves a
//! restart elsewhere the way to the PFS. So it comes after everything else. It is of the newest
//! complete version of an application, those likely to fail next first (lowest MTBF, as the victim
//! order of BBOS keeps them longest), and it goes when a newer version is there.

use crate::holders::{HolderId, Rack, load_class, weight};
use std::collections::HashMap;

/// The part of a complete, drained checkpoint version that one holder has: each rank writes on its
/// own node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DrainedVersion {
    /// The caller's number for the application.
    pub application: u64,
    /// Its number.
    pub version: u64,
    /// Size of the part.
    pub bytes: u64,
    /// Whose part it is.
    pub holder: HolderId,
    /// MTBF of the application, seconds.
    pub mtbf_s: f64,
    /// Copies of this part that other nodes have already.
    pub copies: usize,
    /// It could not be copied, and is not to be tried now ([`PutOff`]).
    pub is_put_off: bool,
}

/// A node of the replication group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupNode {
    /// Which.
    pub holder: HolderId,
    /// Where it stands.
    pub rack: Rack,
    /// It answers and is not being emptied.
    pub takes_files: bool,
    /// What it may spend on such copies, at most what is free there.
    pub bound_bytes: u64,
    /// What it has spent.
    pub spent_bytes: u64,
}

/// Part of a node's flash that copies for restarts may take, where nobody says another.
pub const SPACE_FRACTION: f64 = 0.25;

impl GroupNode {
    /// One that has flash of this size more: the fraction of it bounds the copies.
    pub fn add_flash(&mut self, capacity_bytes: u64, fraction: f64) {
        let part = capacity_bytes as f64 * fraction.clamp(0.0, 1.0);
        self.bound_bytes = self.bound_bytes.saturating_add(part as u64);
    }

    /// No more than that is free there: copies take nobody's place.
    pub fn keep_to_free(&mut self, free_bytes: u64) {
        let most = self.spent_bytes.saturating_add(free_bytes);
        self.bound_bytes = self.bound_bytes.min(most);
    }
}

/// A copy for restarts, on a node of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RestartCopy {
    /// Application.
    pub application: u64,
    /// Version.
    pub version: u64,
    /// Whose part of it.
    pub from: HolderId,
    /// On which node the copy is.
    pub holder: HolderId,
    /// What it occupies.
    pub bytes: u64,
}

/// Whether the links between nodes are needed for something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LinkUse {
    /// No, or not all of them.
    Spare,
    /// For moves off a node that is emptied, second copies, drains, or what programs do.
    Urgent,
}

/// What the links between nodes carry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Traffic {
    /// The server ends, and what is left is drained.
    pub is_ending: bool,
    /// Files were promised a second copy, and have none.
    pub second_copies_due: bool,
    /// Copies for restarts have a network of their own.
    pub has_own_network: bool,
    /// For so long no program has written, seconds.
    pub quiet_s: f64,
    /// What drains move, bytes per second.
    pub drain_bytes_per_s: f64,
    /// The most that the PFS takes, where that is known.
    pub br_max_bytes_per_s: Option<f64>,
}

/// Links are taken to carry what the PFS takes at most, and drains have this share of them. A plan
/// that holds drains to less leaves room. Where the most is not known any drain takes all.
pub const DRAIN_SHARE: f64 = 0.5;
/// A program that wrote so lately is taken to go on with it, seconds.
pub const QUIET_S: f64 = 1.0;

/// Whether copies for restarts may have the links. What is only parked in the burst buffer, and not
/// drained now, needs none.
pub fn link_use(traffic: &Traffic) -> LinkUse {
    if traffic.is_ending || traffic.second_copies_due {
        return LinkUse::Urgent;
    }
    let share = traffic
        .br_max_bytes_per_s
        .map_or(0.0, |most| most * DRAIN_SHARE);
    let has_room = traffic.quiet_s >= QUIET_S && traffic.drain_bytes_per_s <= share;
    match has_room || traffic.has_own_network {
        true => LinkUse::Spare,
        false => LinkUse::Urgent,
    }
}

/// A part of a version: application, version, and whose part it is.
pub type PartOf = (u64, u64, HolderId);

/// A part that could not be copied is tried again after so long, seconds; then after twice that,
/// and so on.
const AGAIN_FIRST_S: f64 = 6.0;
/// At the latest after so long.
const AGAIN_MAX_S: f64 = 600.0;

/// Parts that could not be copied: others go before them for a while, and what fails for good, as
/// where the file is damaged, is not read over and over.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PutOff {
    /// How often in a row, and until when.
    parts: HashMap<PartOf, (i32, f64)>,
}

impl PutOff {
    /// Whether a part is not to be tried now.
    pub fn has(&self, part: PartOf, now_s: f64) -> bool {
        self.parts
            .get(&part)
            .is_some_and(|(_, until_s)| now_s < *until_s)
    }

    /// It could not be copied.
    pub fn failed(&mut self, part: PartOf, now_s: f64) {
        let (tries, until_s) = self.parts.entry(part).or_default();
        *until_s = now_s + (AGAIN_FIRST_S * 2f64.powi(*tries)).min(AGAIN_MAX_S);
        *tries = tries.saturating_add(1);
    }

    /// It was.
    pub fn copied(&mut self, part: PartOf) {
        self.parts.remove(&part);
    }

    /// Only these parts are left.
    pub fn keep(&mut self, is_left: impl Fn(&PartOf) -> bool) {
        self.parts.retain(|part, _| is_left(part));
    }
}

/// What the replicators do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Replication {
    /// A copy goes: a newer version is drained.
    Discard(RestartCopy),
    /// A version is copied.
    Copy {
        /// Application.
        application: u64,
        /// Version.
        version: u64,
        /// From here.
        from: HolderId,
        /// To this node.
        to: HolderId,
    },
    /// Nothing now.
    Rest,
}

/// Decides that. `wanted_copies`: how many nodes beside the holder are to have its part of each
/// newest version; 0 turns replicators off.
///
/// Copies of older versions go first, whatever the links do, for that moves no bytes. A copy
/// outlives the version that it was made from: what was evicted there is still read here. A version
/// that fits nowhere is passed over for one that does.
pub fn next(
    versions: &[DrainedVersion],
    copies: &[RestartCopy],
    group: &[GroupNode],
    links: LinkUse,
    wanted_copies: usize,
) -> Replication {
    let mut newest: HashMap<u64, u64> = HashMap::new();
    for v in versions {
        let of = newest.entry(v.application).or_insert(v.version);
        *of = v.version.max(*of);
    }
    let is_outdated = |c: &&RestartCopy| newest.get(&c.application) > Some(&c.version);
    if let Some(old) = copies.iter().find(is_outdated) {
        return Replication::Discard(*old);
    }
    if links == LinkUse::Urgent {
        return Replication::Rest;
    }
    let mut due: Vec<&DrainedVersion> = versions
        .iter()
        .filter(|v| v.copies < wanted_copies && !v.is_put_off)
        .filter(|v| newest.get(&v.application) == Some(&v.version))
        .collect();
    due.sort_by(|a, b| {
        // What has no copy yet is before a second one of anything.
        let missing = a.copies.cmp(&b.copies);
        missing
            .then(a.mtbf_s.total_cmp(&b.mtbf_s))
            .then(a.application.cmp(&b.application))
            .then(a.holder.cmp(&b.holder))
    });
    let found = due
        .iter()
        .find_map(|v| Some((v, target(v, copies, group)?)));
    found.map_or(Replication::Rest, |(v, to)| Replication::Copy {
        application: v.application,
        version: v.version,
        from: v.holder,
        to,
    })
}

/// The node for a copy: in another rack if one has room, and by weight.
fn target(
    version: &DrainedVersion,
    copies: &[RestartCopy],
    group: &[GroupNode],
) -> Option<HolderId> {
    let rack = |id| group.iter().find(|n| n.holder == id).map(|n| n.rack);
    let own_rack = rack(version.holder);
    let has_it = |id| {
        let of = copies.iter().filter(|c| c.holder == id);
        let mut same = of.filter(|c| c.application == version.application);
        same.any(|c| c.version == version.version && c.from == version.holder)
    };
    let seed = version.application
        ^ version.version.rotate_left(32)
        ^ u64::from(version.holder.0).rotate_left(48);
    group
        .iter()
        .filter(|n| n.takes_files && n.holder != version.holder && !has_it(n.holder))
        .filter(|n| n.bound_bytes.saturating_sub(n.spent_bytes) >= version.bytes)
        .max_by_key(|n| (Some(n.rack) != own_rack, weight(seed, n.holder), n.holder))
        .map(|n| n.holder)
}

/// A place that has the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Which holder.
    pub holder: HolderId,
    /// Where it stands.
    pub rack: Rack,
    /// It answers. One that is being emptied may still be read.
    pub is_answering: bool,
    /// As in [`crate::holders::Holder::load_bytes`].
    pub load_bytes: u64,
}

/// Where a read goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// This holder.
    Holder(HolderId),
    /// The PFS.
    Pfs,
    /// No place that answers has it: the read waits, or fails with EIO where the mount is soft.
    Nowhere,
}

/// A holder of another rack is worth its way where one of the own rack is busier by more than this:
/// two doublings of its load ([`load_class`]). Links between racks are taken to have a quarter of
/// the bandwidth of those within, which no measurement has confirmed yet.
const RACK_CLASSES: u32 = 2;

/// Chooses the place that a read comes from: the own node, the own rack, another rack, the PFS.
/// Within the burst buffer a busy holder is passed over for one that is less busy by more than its
/// distance. The PFS is last: what a restart of many nodes reads there it reads from everybody's
/// disks.
pub fn nearest(
    own: Option<HolderId>,
    own_rack: Option<Rack>,
    object: u64,
    places: &[Place],
    pfs_has_it: bool,
) -> Source {
    let answering = || places.iter().filter(|p| p.is_answering);
    if let Some(here) = answering().find(|p| Some(p.holder) == own) {
        return Source::Holder(here.holder);
    }
    let cost = |p: &Place| {
        let is_far = own_rack != Some(p.rack);
        let classes = load_class(p.load_bytes) + if is_far { RACK_CLASSES } else { 0 };
        (classes, is_far, !weight(object, p.holder), p.holder)
    };
    match answering().min_by_key(|p| cost(p)) {
        Some(place) => Source::Holder(place.holder),
        None if pfs_has_it => Source::Pfs,
        None => Source::Nowhere,
    }
}

/// Who reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reader {
    /// The holder on its node, if there is one.
    pub holder: Option<HolderId>,
    /// Its rack, if known.
    pub rack: Option<Rack>,
}

/// Whether a file is read where its restart copy is. A file that answers is left only for a copy
/// that is nearer: its reader's node before its rack, that before any other. Else readers that are
/// alike would have it change places for nothing.
pub fn reads_copy(reader: &Reader, object: u64, file: &Place, copy: &Place) -> bool {
    let distance = |place: &Place| match () {
        () if Some(place.holder) == reader.holder => 0,
        () if Some(place.rack) == reader.rack => 1,
        () => 2,
    };
    let is_nearer = !file.is_answering || distance(copy) < distance(file);
    let places = [*file, *copy];
    let source = nearest(reader.holder, reader.rack, object, &places, true);
    is_nearer && source == Source::Holder(copy.holder)
}

#[cfg(test)]
#[path = "replicators_tests.rs"]
mod tests;
