//! How much of a node's memory the memory tier borrows, and when it gives some back.
//!
//! A page of the tier is memory that jobs cannot have; an empty one costs nothing until it is
//! written. What can be had without taking from jobs is therefore one figure: what the tier uses,
//! and what is available beside it, less a reserve. The tier's own writes do not change this
//! figure: they move bytes from one term to the other.
//!
//! Invariants of [`Lender::step`]:
//!
//! 1. The capacity is within the floor and the ceiling: `min_bytes` and the lesser of `max_bytes`
//!    and `max_share` of the memory, where the floor is never above the ceiling. It never grows by
//!    more than is available beyond the reserve.
//! 2. Where less than the reserve would be left if the empty room of the tier were written, it
//!    shrinks at once by all that is missing, and by a margin that follows how fast memory goes.
//!    While tasks stall for memory the reserve is twice as large.
//! 3. It does not grow while there is pressure, nor for [`CALM_S`] after it: in a time it changes
//!    its direction at most twice per [`CALM_S`].
//! 4. After pressure it is at its ceiling within [`BACK_S`] of memory that is idle.
//! 5. An order lowers the ceiling by so many bytes, at once, and down to the floor at most.
//! 6. What the tier uses counts: Linux does not count pages of a tmpfs as available. Its empty
//!    room has to be covered by what is available less the reserve.

use std::collections::BTreeMap;
use std::fmt;

use crate::placement::{SPACE_UNIT_BYTES, kept_memory_bytes, may_borrow};

/// After pressure the tier does not grow for so long, seconds.
pub const CALM_S: f64 = 5.0;
/// Within this time of idle memory the tier is at its ceiling again, seconds.
pub const BACK_S: f64 = 30.0;
/// From nothing to the ceiling it grows in this time, seconds: some steps are left for the rest.
const GROWS_IN_S: f64 = 16.0;
/// Two looks that lie further apart say nothing about the time between them, seconds.
const STEP_MAX_S: f64 = 2.0;
/// Tasks that stall for more than this part of the time are pressure.
const STALLED_SHARE: f64 = 0.1;
/// Memory goes on going as fast as since the last look for so long, seconds.
const AHEAD_S: f64 = 1.0;
/// Part of the memory that stays for jobs, and the least of it.
const RESERVE_SHARE: f64 = 0.1;
const RESERVE_MIN_BYTES: u64 = 512 << 20;
/// A machine that is small keeps no more than this part.
const RESERVE_SHARE_MAX: f64 = 0.25;
/// Given back beyond what is missing: at least this part of the memory, and at most.
const MARGIN_SHARE: f64 = 0.02;
const MARGIN_SHARE_MAX: f64 = 0.1;
/// The least a tier has: of a tmpfs, a size of 0 would mean that it has no limit.
pub const CAPACITY_MIN_BYTES: u64 = SPACE_UNIT_BYTES;

/// What may be borrowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lending {
    /// Stays the tier's, whatever jobs need, bytes.
    pub min_bytes: u64,
    /// Never more, bytes.
    pub max_bytes: u64,
    /// Nor more than this part of the memory.
    pub max_share: f64,
}

impl Default for Lending {
    fn default() -> Lending {
        Lending {
            min_bytes: 0,
            max_bytes: u64::MAX,
            max_share: 0.5,
        }
    }
}

/// What is wrong with bounds.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum LendingError {
    /// The share is no part of the memory.
    #[error("max_share is {0}; it must be more than 0 and at most 1")]
    Share(f64),
    /// The bounds are the wrong way round.
    #[error("the least, {min_bytes} bytes, exceeds the most, {max_bytes} bytes")]
    Bounds {
        /// The least.
        min_bytes: u64,
        /// The most.
        max_bytes: u64,
    },
    /// The most is less than a tier can have.
    #[error("the most is {0} bytes; a memory tier has at least {CAPACITY_MIN_BYTES}")]
    Small(u64),
}

impl Lending {
    /// Whether the bounds make sense.
    pub fn check(&self) -> Result<(), LendingError> {
        if !(self.max_share > 0.0 && self.max_share <= 1.0) {
            return Err(LendingError::Share(self.max_share));
        }
        if self.max_bytes < CAPACITY_MIN_BYTES {
            return Err(LendingError::Small(self.max_bytes));
        }
        match self.min_bytes > self.max_bytes {
            true => Err(LendingError::Bounds {
                min_bytes: self.min_bytes,
                max_bytes: self.max_bytes,
            }),
            false => Ok(()),
        }
    }

    /// The most that the tier has where so much memory is there, without an order, bytes.
    pub fn most_bytes(&self, total_bytes: u64) -> u64 {
        let share = (total_bytes as f64 * self.max_share) as u64;
        self.max_bytes.min(share).max(CAPACITY_MIN_BYTES)
    }

    /// Floor and ceiling, bytes.
    fn bounds(&self, total_bytes: u64, order: Option<LendOrder>) -> (u64, u64) {
        let most = self.most_bytes(total_bytes);
        let floor = self.min_bytes.clamp(CAPACITY_MIN_BYTES, most);
        let ordered = order.map_or(0, |order| order.bytes);
        (floor, most.saturating_sub(ordered).max(floor))
    }
}

/// Memory that one thing bounds: the machine, or the limit of a control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// All of it, bytes.
    pub total_bytes: u64,
    /// What can be had of it without swapping, bytes.
    pub available_bytes: u64,
}

/// The pool that has least beyond its own reserve. A group that is small and idle says nothing of a
/// machine that is short.
pub fn tightest(pools: impl IntoIterator<Item = Pool>) -> Option<Pool> {
    let beyond = |pool: &Pool| {
        i128::from(pool.available_bytes) - i128::from(reserve_bytes(pool.total_bytes))
    };
    pools.into_iter().min_by_key(beyond)
}

/// Whether each pool has so many bytes, and keeps an eighth of itself beyond them.
pub fn all_have(pools: impl IntoIterator<Item = Pool>, wanted_bytes: u64) -> bool {
    pools.into_iter().all(|pool| {
        may_borrow(
            pool.available_bytes,
            wanted_bytes,
            kept_memory_bytes(pool.total_bytes),
        )
    })
}

/// What a file in a tier that has lent memory gets beyond what is held there, of `wish_bytes`,
/// where it cannot leave and no other file can: the tier had `full_bytes` if nothing were lent, and
/// what had a place then has one now, whatever jobs have taken. 0: it would find no more there
/// either.
pub fn lent_back_bytes(full_bytes: u64, held_bytes: u64, wish_bytes: u64) -> u64 {
    round_down(full_bytes.saturating_sub(held_bytes).min(wish_bytes))
}

/// Memory as it is at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// The moment, seconds of a clock that does not jump.
    pub now_s: f64,
    /// All that the machine has, or the control group around the tier may have, bytes.
    pub total_bytes: u64,
    /// The pool that has least beyond its reserve: [`tightest`].
    pub pool: Pool,
    /// For how long in all some task has waited for memory, microseconds; 0 where nobody says.
    pub stall_us: u64,
    /// What the tier may hold, bytes.
    pub capacity_bytes: u64,
    /// What of it is in memory, bytes: not what is swapped out, which takes none and is owed to
    /// jobs all the same.
    pub used_bytes: u64,
}

/// What jobs get back until the order is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LendOrder {
    /// So much less than the most, bytes.
    pub bytes: u64,
}

/// Orders by who has given them. They add up: of two jobs on one node each has its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LendOrders {
    by_name: BTreeMap<String, u64>,
}

impl LendOrders {
    /// The order of a name takes the place of an earlier one of that name; 0 bytes: there is none
    /// any more.
    pub fn set(&mut self, name: &str, bytes: u64) {
        match bytes {
            0 => self.by_name.remove(name),
            _ => self.by_name.insert(name.to_string(), bytes),
        };
    }

    /// All of them as one; `None` without any.
    pub fn sum(&self) -> Option<LendOrder> {
        let sum = |sum: u64, bytes: &u64| sum.saturating_add(*bytes);
        let bytes = self.by_name.values().fold(0, sum);
        (bytes > 0).then_some(LendOrder { bytes })
    }

    /// Names and bytes, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.by_name.iter().map(|(name, bytes)| (&**name, *bytes))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.by_name.len()
    }
}

/// Why the tier has the size that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It has the most that it may have.
    Ceiling,
    /// The same; the most was lowered by an order.
    Ordered,
    /// Jobs have the rest.
    Jobs,
    /// Tasks stall for memory.
    Stalls,
    /// There was pressure a moment ago.
    Calms,
    /// It grows.
    Grows,
}

impl Why {
    /// A word for machines.
    pub fn name(self) -> &'static str {
        match self {
            Why::Ceiling => "ceiling",
            Why::Ordered => "ordered",
            Why::Jobs => "jobs",
            Why::Stalls => "stalls",
            Why::Calms => "calms",
            Why::Grows => "grows",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::Ceiling => "as much as it may have",
            Why::Ordered => "lowered by an order",
            Why::Jobs => "jobs have the rest",
            Why::Stalls => "tasks wait for memory",
            Why::Calms => "there was pressure a moment ago",
            Why::Grows => "memory is idle: it grows",
        })
    }
}

/// What the tier is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Capacity, bytes.
    pub capacity_bytes: u64,
    /// What it never falls below, bytes.
    pub floor_bytes: u64,
    /// What it never exceeds, bytes.
    pub ceiling_bytes: u64,
    /// Why it is that.
    pub why: Why,
}

impl Target {
    /// Whether memory may be needed any moment, so that the next look must not be late.
    pub fn is_tense(&self) -> bool {
        !matches!(self.why, Why::Ceiling | Why::Ordered)
    }
}

/// Memory that stays for jobs, bytes: a tenth and at least 512 MiB, of a small machine a quarter.
pub fn reserve_bytes(total_bytes: u64) -> u64 {
    let of = |share: f64| (total_bytes as f64 * share) as u64;
    of(RESERVE_SHARE)
        .max(RESERVE_MIN_BYTES)
        .min(of(RESERVE_SHARE_MAX))
}

/// What was seen last.
#[derive(Clone, Copy, Debug)]
struct Seen {
    now_s: f64,
    stall_us: u64,
    /// What is bounded, and by how much, bytes.
    total_bytes: [u64; 2],
    /// Used and available.
    sum_bytes: u64,
}

/// Decides, from one look to the next.
#[derive(Clone, Debug)]
pub struct Lender {
    bounds: Lending,
    last: Option<Seen>,
    pressed_s: Option<f64>,
}

impl Lender {
    /// Nothing was seen yet.
    ///
    /// # Errors
    /// The bounds make no sense.
    pub fn new(bounds: Lending) -> Result<Lender, LendingError> {
        bounds.check()?;
        Ok(Lender {
            bounds,
            last: None,
            pressed_s: None,
        })
    }

    /// The most that the tier may have of so much memory, bytes, whatever jobs have.
    pub fn ceiling_bytes(&self, total_bytes: u64, order: Option<LendOrder>) -> u64 {
        self.bounds.bounds(total_bytes, order).1
    }

    /// What the tier is to hold from now on. The first look takes what is idle at once.
    pub fn step(&mut self, memory: &Memory, order: Option<LendOrder>) -> Target {
        let total = memory.total_bytes;
        let (floor, ceiling) = self.bounds.bounds(total, order);
        let Pool {
            total_bytes: of_bytes,
            available_bytes: available,
        } = memory.pool;
        let sum = memory.used_bytes.saturating_add(available);
        let before = self.last.replace(Seen {
            now_s: memory.now_s,
            stall_us: memory.stall_us,
            total_bytes: [total, of_bytes],
            sum_bytes: sum,
        });
        // Of another control group, or of memory that was added, nothing can be compared.
        let last = before.filter(|last| last.total_bytes == [total, of_bytes]);
        let stalls = last.is_some_and(|last| last.stalled_until(memory));
        let reserve = reserve_bytes(of_bytes) * if stalls { 2 } else { 1 };
        let covered = sum.saturating_sub(reserve);
        let margin = margin_bytes(last, memory, sum);
        let is_short = covered < memory.capacity_bytes.min(ceiling) || available < reserve;
        if stalls || is_short {
            self.pressed_s = Some(memory.now_s);
        }
        let (wanted, why) = if is_short {
            let left = round_down(covered.saturating_sub(margin));
            let why = if stalls { Why::Stalls } else { Why::Jobs };
            (left.min(memory.capacity_bytes), why)
        } else {
            let idle = covered.saturating_sub(margin);
            match stalls {
                true => (memory.capacity_bytes, Why::Stalls),
                false => self.grown(memory, before, idle, ceiling),
            }
        };
        let capacity_bytes = wanted.clamp(floor, ceiling);
        let at_most = if ceiling < self.bounds.most_bytes(total) {
            Why::Ordered
        } else {
            Why::Ceiling
        };
        Target {
            capacity_bytes,
            floor_bytes: floor,
            ceiling_bytes: ceiling,
            why: match capacity_bytes == ceiling && !is_short && !stalls {
                true => at_most,
                false => why,
            },
        }
    }

    /// What it grows to where nothing is missing; `idle_bytes`: what could be its capacity.
    fn grown(
        &self,
        memory: &Memory,
        before: Option<Seen>,
        idle_bytes: u64,
        ceiling: u64,
    ) -> (u64, Why) {
        let capacity = memory.capacity_bytes;
        if self.pressed_s.is_some_and(|at| memory.now_s - at < CALM_S) {
            return (capacity, Why::Calms);
        }
        // Of less than a margin it would be back soon.
        let grain = margin_min_bytes(memory.total_bytes);
        let room = idle_bytes.min(ceiling);
        let is_worth_it = room >= capacity.saturating_add(grain) || room == ceiling;
        if room <= capacity || !is_worth_it {
            return (capacity, Why::Jobs);
        }
        let most = match before {
            None => u64::MAX,
            Some(last) => {
                let passed_s = (memory.now_s - last.now_s).clamp(0.0, STEP_MAX_S);
                let full = self.bounds.most_bytes(memory.total_bytes);
                (full as f64 * passed_s / GROWS_IN_S) as u64
            }
        };
        let grown = room.min(capacity.saturating_add(most));
        (grown, Why::Grows)
    }
}

impl Seen {
    fn stalled_until(&self, memory: &Memory) -> bool {
        let passed_s = memory.now_s - self.now_s;
        let stalled_s = memory.stall_us.saturating_sub(self.stall_us) as f64 / 1e6;
        passed_s > 0.0 && stalled_s / passed_s > STALLED_SHARE
    }
}

fn margin_min_bytes(total_bytes: u64) -> u64 {
    (total_bytes as f64 * MARGIN_SHARE) as u64
}

/// What is given back beyond what is missing, or left when it grows.
fn margin_bytes(last: Option<Seen>, memory: &Memory, sum_bytes: u64) -> u64 {
    let least = margin_min_bytes(memory.total_bytes);
    let most = (memory.total_bytes as f64 * MARGIN_SHARE_MAX) as u64;
    let ahead = last.map_or(0.0, |last| {
        let gone = last.sum_bytes.saturating_sub(sum_bytes) as f64;
        let passed_s = memory.now_s - last.now_s;
        match passed_s > 0.0 {
            true => gone / passed_s * AHEAD_S,
            false => 0.0,
        }
    });
    (ahead as u64).clamp(least, most)
}

fn round_down(bytes: u64) -> u64 {
    bytes - bytes % SPACE_UNIT_BYTES
}

#[cfg(test)]
#[path = "lending_tests.rs"]
mod tests;
