//! Which holder a new file goes to. A holder is a data server: the objects of a file are on one.
//!
//! A file stays on its writer's node where that has room (node-local writes: BurstFS, dissertation
//! 2017). Else it goes where space is, near the writer (groups and racks: ONFS 2017, placement).
//! With one holder the answer is that of [`crate::placement::choose_tier`].
//!
//! What is known of holders is as old as their last report. So free space and load are compared in
//! coarse classes, and a hash of the object decides among equals: many files spread, and the same
//! question has the same answer. Among equals it is rendezvous hashing (highest random weight): a
//! holder that comes or goes moves no file between the others.

use crate::durability::Durability;
use crate::named::named;
use crate::placement::{NewFile, Placement, TierKind, TierSpace, choose_tier};
use smallvec::SmallVec;
use std::cmp::Reverse;

/// A data server: its `id` in the cluster's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderId(pub u16);

/// A rack, cabinet or switch: what fails, and is near, together. The caller's number for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rack(pub u16);

/// Space of one tier of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HolderTier {
    /// Its index is its place in the holder's own configuration.
    pub space: TierSpace,
    /// Of what is not free: clean copies that nobody has open. At most what is not free.
    pub evictable_bytes: u64,
}

impl HolderTier {
    /// As it is once all clean copies are evicted.
    fn emptied_of_clean(&self) -> TierSpace {
        let free_bytes = self.space.free_bytes.saturating_add(self.evictable_bytes);
        TierSpace {
            free_bytes: free_bytes.min(self.space.capacity_bytes),
            ..self.space
        }
    }
}

/// A data server, as its last report shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Which.
    pub id: HolderId,
    /// Where it stands.
    pub rack: Rack,
    /// It answers: [`crate::liveness::judge`].
    pub is_answering: bool,
    /// It is being emptied (`drain-node`): nothing new goes there.
    pub is_emptied: bool,
    /// Its tiers; none on a node that only computes.
    pub tiers: Vec<HolderTier>,
    /// Bytes of requests under way there, or a like measure of how busy it is.
    pub load_bytes: u64,
}

/// The node that a file is written from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Writer {
    /// The holder on that node, if there is one.
    pub holder: Option<HolderId>,
    /// Its rack, if known.
    pub rack: Option<Rack>,
}

/// Which holder a path rule prefers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Locality {
    /// The writer's node, then its rack, then any.
    #[default]
    WriterFirst,
    /// The writer's node or none: the PFS is next.
    LocalOnly,
    /// Any, near or not: for what many nodes will read.
    Spread,
}

named!(Locality, "locality",
    WriterFirst => "writer-first", LocalOnly => "local-only", Spread => "spread");

/// What a path rule says of placement. Where both lists are empty every holder is allowed;
/// otherwise those that one of them names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HolderRule {
    /// Which is preferred.
    pub locality: Locality,
    /// Allowed holders.
    pub servers: Vec<HolderId>,
    /// Allowed racks.
    pub racks: Vec<Rack>,
}

impl HolderRule {
    /// Whether a holder is allowed.
    pub fn allows(&self, id: HolderId, rack: Rack) -> bool {
        (self.servers.is_empty() && self.racks.is_empty())
            || self.servers.contains(&id)
            || self.racks.contains(&rack)
    }
}

/// What space is looked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wanted<'a> {
    /// The object's id; spreads files that are alike.
    pub object: u64,
    /// How large it will be; `None` where nothing is known.
    pub expected_bytes: Option<u64>,
    /// Memory will do. Not for what was flushed to flash.
    pub may_be_in_memory: bool,
    /// What the path rule says.
    pub rule: &'a HolderRule,
}

/// Whether a holder has room, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Room {
    /// No tier of it could ever hold the file.
    Never,
    /// Once something has been drained.
    Later,
    /// Once clean copies are evicted, which needs no PFS.
    AfterEvicting,
    /// Now.
    Now,
}

impl Holder {
    /// Whether it answers and takes new files.
    pub fn takes_files(&self) -> bool {
        self.is_answering && !self.is_emptied
    }

    /// Whether there is room for the file.
    pub fn room_for(&self, wanted: &Wanted) -> Room {
        match self.place(wanted, |tier| tier.space) {
            Placement::Tier(_) => Room::Now,
            Placement::Pfs => Room::Never,
            Placement::Wait => match self.place(wanted, HolderTier::emptied_of_clean) {
                Placement::Tier(_) => Room::AfterEvicting,
                _ => Room::Later,
            },
        }
    }

    /// Sets the space aside that the file will take, in the tier it would go to: until the next
    /// report the holder does not look emptier than it will be.
    pub fn set_aside(&mut self, wanted: &Wanted) {
        let place = match self.place(wanted, |tier| tier.space) {
            Placement::Wait => self.place(wanted, HolderTier::emptied_of_clean),
            found => found,
        };
        let Placement::Tier(index) = place else {
            return;
        };
        for tier in self.tiers.iter_mut().filter(|t| t.space.index == index) {
            let bytes = wanted.expected_bytes.unwrap_or(0);
            let evicted = bytes
                .saturating_sub(tier.space.available_bytes())
                .min(tier.evictable_bytes);
            tier.evictable_bytes -= evicted;
            tier.space.free_bytes += evicted;
            tier.space.reserved_bytes = tier.space.reserved_bytes.saturating_add(bytes);
        }
    }

    fn place(&self, wanted: &Wanted, space: impl Fn(&HolderTier) -> TierSpace) -> Placement {
        let tiers: SmallVec<[TierSpace; 4]> = self.allowed_tiers(wanted).map(space).collect();
        let file = NewFile {
            predicted_bytes: wanted.expected_bytes,
            durability: Durability::default(),
            series_fsyncs: false,
        };
        choose_tier(&tiers, &file)
    }

    fn allowed_tiers(&self, wanted: &Wanted) -> impl Iterator<Item = &HolderTier> {
        let in_memory = wanted.may_be_in_memory;
        let allowed = move |t: &&HolderTier| in_memory || t.space.kind == TierKind::Ssd;
        self.tiers.iter().filter(allowed)
    }

    /// Quarters of the allowed space that are free or clean, 0 to 4.
    fn free_quarters(&self, wanted: &Wanted) -> u8 {
        let spaces = self.allowed_tiers(wanted);
        let (free, all) = spaces.fold((0u128, 0u128), |(free, all), tier| {
            let space = tier.emptied_of_clean();
            let available = u128::from(space.available_bytes());
            (free + available, all + u128::from(space.capacity_bytes))
        });
        (free * 4).checked_div(all).unwrap_or(0).min(4) as u8
    }
}

/// Load below this is none; bytes.
const LOAD_UNIT_BYTES: u64 = 64 << 20;

/// Doublings of the load above [`LOAD_UNIT_BYTES`], 0 where it is below: twice as much under way
/// is busier, a request more is not.
pub(crate) fn load_class(load_bytes: u64) -> u32 {
    u64::BITS - (load_bytes / LOAD_UNIT_BYTES).leading_zeros()
}

/// Weight of a holder for an object: the one with the highest is taken (rendezvous hashing).
pub(crate) fn weight(object: u64, holder: HolderId) -> u64 {
    // Odd, with about as many ones as zeros: each bit of the factors reaches all of the product.
    const FACTORS: [u64; 2] = [0xd6e8_feb8_6659_fd93, 0x9e6c_63d0_876a_68ed];
    FACTORS.iter().fold(object, |bits, factor| {
        let seed = factor.wrapping_mul(u64::from(holder.0) + 1);
        let product = u128::from(bits ^ seed) * u128::from(*factor);
        (product as u64) ^ ((product >> 64) as u64)
    })
}

/// The best of the candidates that have at least this `room`: by room, free space, whether it is
/// near, load, and weight.
pub(crate) fn best<'a>(
    candidates: impl Iterator<Item = &'a Holder>,
    wanted: &Wanted,
    room: Room,
    near: Option<Rack>,
) -> Option<(&'a Holder, Room)> {
    candidates
        .filter(|h| h.takes_files() && wanted.rule.allows(h.id, h.rack))
        .map(|h| (h, h.room_for(wanted)))
        .filter(|(_, has)| *has >= room)
        .max_by_key(|(h, has)| {
            let space = (*has, h.free_quarters(wanted));
            let busy = Reverse(load_class(h.load_bytes));
            let is_near = near == Some(h.rack);
            (space, is_near, busy, weight(wanted.object, h.id), h.id)
        })
}

/// Where a new file goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Home {
    /// To this holder.
    On {
        /// Which.
        holder: HolderId,
        /// Clean copies must be evicted there for it.
        must_evict: bool,
    },
    /// No holder has room, and this one can make some by draining: the write waits, it does not
    /// fail (ONFS, write control).
    Wait(HolderId),
    /// No holder that answers and is allowed could ever hold it: it overflows to the PFS.
    Pfs,
}

impl Home {
    pub(crate) fn of((holder, room): (&Holder, Room)) -> Home {
        let holder = holder.id;
        match room {
            Room::Never => Home::Pfs,
            Room::Later => Home::Wait(holder),
            Room::AfterEvicting | Room::Now => Home::On {
                holder,
                must_evict: room == Room::AfterEvicting,
            },
        }
    }
}

/// Chooses the holder of a new file. The writer's own node is first, also where clean copies must
/// be evicted for it: in the long run every tier is full of them. Then [`Locality`] decides; who
/// evicts nothing is before who does. The order of `holders` does not matter.
pub fn choose_home(writer: &Writer, holders: &[Holder], wanted: &Wanted) -> Home {
    let own = || {
        let mine = holders.iter().filter(|h| Some(h.id) == writer.holder);
        best(mine, wanted, Room::Later, None)
    };
    let others = |room, near| best(holders.iter(), wanted, room, near);
    let found = match wanted.rule.locality {
        Locality::LocalOnly => own(),
        Locality::Spread => others(Room::Later, None),
        Locality::WriterFirst => own()
            .filter(|(_, room)| *room >= Room::AfterEvicting)
            .or_else(|| others(Room::AfterEvicting, writer.rack))
            .or_else(own)
            .or_else(|| others(Room::Later, writer.rack)),
    };
    found.map_or(Home::Pfs, Home::of)
}

#[cfg(test)]
#[path = "holders_tests.rs"]
mod tests;
