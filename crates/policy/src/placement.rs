//! Where a new file goes, how much space a passthrough write is granted, and what the first change
//! to a file of the PFS does.

use std::time::Duration;

use crate::durability::Durability;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Space is set aside in units of this size (ONFS, space allocation unit).
pub const SPACE_UNIT_BYTES: u64 = 4 * MIB;

/// The largest write(2) that Linux does at once, rounded up. Nobody who writes can be made to wait
/// within one.
pub const LARGEST_WRITE_BYTES: u64 = 2 * GIB;

/// Least room beyond what is set aside, where memory is short: what a processor writes in a tenth
/// of a second.
const LEAST_OVERRUN_BYTES: u64 = GIB;

/// Kept free per open passthrough writer when a new one is admitted, so that those before it can
/// still extend.
pub const EXTENSION_HEADROOM_BYTES: u64 = 16 * MIB;

/// Least growth of a lease.
pub const MIN_EXTENSION_BYTES: u64 = 64 * MIB;

const _: () = assert!(MIN_EXTENSION_BYTES.is_multiple_of(SPACE_UNIT_BYTES));

/// What a tier is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TierKind {
    /// Borrowed memory.
    Dram,
    /// Flash.
    Ssd,
}

/// Space of one tier of one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierSpace {
    /// The tier's place in the configuration; what [`Placement::Tier`] answers with.
    pub index: usize,
    /// What it is made of.
    pub kind: TierKind,
    /// All of it.
    pub capacity_bytes: u64,
    /// Not occupied by data.
    pub free_bytes: u64,
    /// Part of `free_bytes` that is set aside: leases and files under way.
    pub reserved_bytes: u64,
}

impl TierSpace {
    /// Neither occupied nor set aside.
    pub fn available_bytes(&self) -> u64 {
        self.free_bytes.saturating_sub(self.reserved_bytes)
    }

    /// Available share of the capacity, 0 to 1.
    pub fn available_fraction(&self) -> f64 {
        if self.capacity_bytes == 0 {
            return 0.0;
        }
        (self.available_bytes() as f64 / self.capacity_bytes as f64).min(1.0)
    }
}

/// A file about to be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewFile {
    /// From [`crate::version::SizeHistory::predict`]; `None` where nothing is known.
    pub predicted_bytes: Option<u64>,
    /// What its fsync promises.
    pub durability: Durability,
    /// Earlier files of its series were fsynced.
    pub series_fsyncs: bool,
}

/// Where a new file goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Into the tier with this index.
    Tier(usize),
    /// No tier has room now, and at least one is large enough: evict, demote, try again. The write
    /// waits, it does not fail (ONFS, write control).
    Wait,
    /// No tier could ever hold it, or there is none: straight to the PFS.
    Pfs,
}

/// Chooses the tier of a new file: memory first, then flash, among equals the one with the largest
/// available share.
///
/// A series that is known to fsync goes to flash straight away where flash is what the promise
/// needs, for its first fsync would have to move it there anyway. It goes to memory when no flash
/// has room: waiting later beats waiting now.
pub fn choose_tier(tiers: &[TierSpace], file: &NewFile) -> Placement {
    let needed_bytes = file
        .predicted_bytes
        .unwrap_or(0)
        .max(1)
        .checked_next_multiple_of(SPACE_UNIT_BYTES)
        .unwrap_or(u64::MAX);
    // A tier smaller than a unit is a test's; whatever is free there is room for a file of unknown
    // size.
    let fits = |bytes: u64, tier: &TierSpace| bytes >= needed_bytes.min(tier.capacity_bytes.max(1));
    let holds = |tier: &TierSpace| tier.capacity_bytes >= file.predicted_bytes.unwrap_or(1).max(1);
    let first = if file.series_fsyncs && file.durability == Durability::Ssd {
        TierKind::Ssd
    } else {
        TierKind::Dram
    };
    let roomy = tiers
        .iter()
        .filter(|t| holds(t) && fits(t.available_bytes(), t));
    let best = roomy.max_by(|a, b| {
        let rank = |t: &TierSpace| (t.kind == first, t.available_fraction());
        let (kind_a, share_a) = rank(a);
        let (kind_b, share_b) = rank(b);
        kind_a
            .cmp(&kind_b)
            .then(share_a.total_cmp(&share_b))
            // The first of equals.
            .then(b.index.cmp(&a.index))
    });
    match best {
        Some(tier) => Placement::Tier(tier.index),
        None if tiers.iter().any(holds) => Placement::Wait,
        None => Placement::Pfs,
    }
}

/// The tier in which a new file waits for space where [`choose_tier`] says [`Placement::Wait`]: of
/// those large enough the largest, memory and flash alike. `None` where it can never be held.
pub fn waiting_tier(tiers: &[TierSpace], file: &NewFile) -> Option<usize> {
    let needed_bytes = file.predicted_bytes.unwrap_or(1).max(1);
    let large = tiers.iter().filter(|t| t.capacity_bytes >= needed_bytes);
    let largest = large.max_by(|a, b| {
        let size = a.capacity_bytes.cmp(&b.capacity_bytes);
        size.then(b.index.cmp(&a.index))
    });
    largest.map(|tier| tier.index)
}

/// Space set aside in a tier for one file that a client writes without asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease {
    /// The file may grow to this size; a multiple of [`SPACE_UNIT_BYTES`].
    pub bytes: u64,
}

impl Lease {
    /// Bytes to give back when the file is closed at `size_bytes`: what its data does not occupy.
    pub fn unused_bytes(&self, size_bytes: u64) -> u64 {
        self.bytes.saturating_sub(size_bytes)
    }
}

/// What is set aside beyond the bytes of a write that is admitted by itself, so that not every
/// write asks: a unit, but not beyond the predicted end of the file. Otherwise many files that fit
/// together would keep each other waiting. `predicted_bytes` is 0 where nothing is predicted;
/// `end_bytes` is what the file holds after the write.
pub fn growth_ahead(predicted_bytes: u64, end_bytes: u64) -> u64 {
    match predicted_bytes.checked_sub(end_bytes) {
        Some(left) => left.min(SPACE_UNIT_BYTES),
        None => SPACE_UNIT_BYTES,
    }
}

/// Room that the file systems below must have beyond all that is set aside: the kernel writes on
/// between two looks at a file that has used up its lease. [`LARGEST_WRITE_BYTES`], or an eighth of
/// the machine's memory where that is less, but not less than 1 GiB.
pub fn overrun_bytes(machine_memory_bytes: u64) -> u64 {
    (machine_memory_bytes / 8).clamp(LEAST_OVERRUN_BYTES, LARGEST_WRITE_BYTES)
}

/// Sets space aside for a passthrough write: the kernel writes to the tier's own file system,
/// without asking. A quarter more than predicted, if the tier has it, and beside it the headroom
/// for the extensions of `open_passthrough_writers` others.
///
/// `beyond_bytes`: what the file system below has beyond all that is set aside in it;
/// `overrun_bytes` of it must stay.
///
/// `None`: take the plain path, where each write is admitted by itself, and a file that outgrows
/// the tier moves on. So does a file of which nothing is known: it may grow to any size.
pub fn grant_passthrough_write(
    space: &TierSpace,
    predicted_bytes: Option<u64>,
    open_passthrough_writers: u32,
    beyond_bytes: u64,
    overrun_bytes: u64,
) -> Option<Lease> {
    let headroom_bytes =
        u64::from(open_passthrough_writers).saturating_mul(EXTENSION_HEADROOM_BYTES);
    let available_bytes = space.available_bytes().saturating_sub(headroom_bytes);
    let predicted = predicted_bytes?;
    let bytes = predicted
        .max(1)
        .checked_add(predicted.div_ceil(4))?
        .checked_next_multiple_of(SPACE_UNIT_BYTES)?;
    let fits = bytes <= available_bytes && bytes.checked_add(overrun_bytes)? <= beyond_bytes;
    fits.then_some(Lease { bytes })
}

/// Whether a file may have `wanted_bytes` more although its tier is full. They come out of the
/// `free_bytes` of the machine's memory, or of the file system below; `kept_bytes` of these must
/// stay free.
pub fn may_borrow(free_bytes: u64, wanted_bytes: u64, kept_bytes: u64) -> bool {
    wanted_bytes
        .checked_add(kept_bytes)
        .is_some_and(|needed| needed <= free_bytes)
}

/// A writer that has used up its lease is held back so long for others to drain before more is
/// borrowed for it.
const PATIENCE: Duration = Duration::from_secs(30);

/// And no longer than so for drains that make no progress: a flush of much may take its time on a
/// busy PFS. The kernel complains of a wait of two minutes.
const STALLED: Duration = Duration::from_secs(110);

/// What is done about a writer that is held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldBack {
    /// It waits: others drain, and not for long yet.
    Waits,
    /// It gets more, if there is more to borrow; if not, it waits on, for others still drain.
    BorrowsOrWaits,
    /// The same, but there is nothing to wait for: where there is no more to borrow its writes
    /// fail.
    BorrowsOrFails,
}

/// Decides that of a writer that has been held back for so long. `can_drain`: something other than
/// its file can be drained. `since_moved`: the time since a drain has moved bytes. A drain may wait
/// for the file that is held back (reads do on XFS, flushes elsewhere), so that one without
/// progress does not count.
pub fn held_back(held: Duration, can_drain: bool, since_moved: Option<Duration>) -> HeldBack {
    let is_alive = held.min(since_moved.unwrap_or(held)) < STALLED;
    match can_drain && is_alive {
        true if held < PATIENCE => HeldBack::Waits,
        true => HeldBack::BorrowsOrWaits,
        false => HeldBack::BorrowsOrFails,
    }
}

/// Memory that is never borrowed beyond what was agreed: an eighth of the machine's.
pub fn kept_memory_bytes(machine_memory_bytes: u64) -> u64 {
    machine_memory_bytes / 8
}

/// What becomes of a lease that is being used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extension {
    /// At least a quarter is left.
    Enough,
    /// Set aside the difference to the old lease.
    Extended(Lease),
    /// The tier has nothing left to give: evict or demote for it at once, and make the writer wait
    /// when the lease is used up.
    Refused,
}

/// Extends a lease of which `size_bytes` are used: by half, at least [`MIN_EXTENSION_BYTES`], at
/// most half of what is available, which leaves as much for the others. `space.reserved_bytes`
/// includes the old lease.
pub fn extend_lease(space: &TierSpace, lease: Lease, size_bytes: u64) -> Extension {
    if size_bytes <= lease.bytes - lease.bytes / 4 {
        return Extension::Enough;
    }
    let overrun_bytes = size_bytes.saturating_sub(lease.bytes);
    let wish_bytes = (lease.bytes / 2)
        .max(MIN_EXTENSION_BYTES)
        .saturating_add(overrun_bytes);
    let more_bytes = round_down(wish_bytes.min(space.available_bytes() / 2));
    match lease.bytes.checked_add(more_bytes) {
        Some(bytes) if more_bytes > 0 && bytes >= size_bytes => {
            Extension::Extended(Lease { bytes })
        }
        _ => Extension::Refused,
    }
}

fn round_down(bytes: u64) -> u64 {
    bytes - bytes % SPACE_UNIT_BYTES
}

/// Limits on what is copied from the PFS before a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangeLimits {
    /// Larger files are changed where they are: copying all of them to change a part costs more
    /// than the change.
    pub max_stage_in_bytes: u64,
}

impl Default for ChangeLimits {
    fn default() -> Self {
        // A copy of that size takes well under a second from any PFS, once.
        Self {
            max_stage_in_bytes: 64 * MIB,
        }
    }
}

/// What the first change to a file that is only on the PFS does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FirstChange {
    /// Begin an empty object: nothing of the old data is left. The PFS keeps the old file until the
    /// new one is whole.
    FreshObject,
    /// Copy the file into the burst buffer, then change it there.
    StageIn,
    /// Change it on the PFS, as without a burst buffer.
    InPlaceOnPfs,
}

/// Chooses the cheapest safe way for the first change to a file of `existing_bytes` that is only on
/// the PFS.
pub fn first_change(
    existing_bytes: u64,
    truncates_to_zero: bool,
    tiers: &[TierSpace],
    limits: &ChangeLimits,
) -> FirstChange {
    // A quarter more, for it is about to be changed; an empty object needs room for its first unit.
    let kept_bytes = if truncates_to_zero { 0 } else { existing_bytes };
    let needed_bytes = kept_bytes
        .saturating_add(kept_bytes / 4)
        .max(SPACE_UNIT_BYTES);
    let has_room = |t: &TierSpace| t.available_bytes() >= needed_bytes.min(t.capacity_bytes.max(1));
    if kept_bytes == 0 {
        // Without room the new data waits for it or goes to the PFS as any new file does.
        return FirstChange::FreshObject;
    }
    let holds = |t: &TierSpace| t.capacity_bytes >= kept_bytes;
    if kept_bytes <= limits.max_stage_in_bytes && tiers.iter().any(|t| holds(t) && has_room(t)) {
        FirstChange::StageIn
    } else {
        FirstChange::InPlaceOnPfs
    }
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
