//! Who holds how much space in which tier.

mod capacity;
mod copies;
mod moves;
mod owners;

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use forebay_policy::limits::{Excess, Limits, Owner, Owners};
use forebay_policy::placement::{TierKind as PolicyKind, TierSpace};
use forebay_types::{ObjectId, TierId};
use parking_lot::{Condvar, Mutex};

pub use owners::OwnerFigures;

/// Space that one object holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Charge {
    tier: u8,
    dirty: bool,
    /// Occupied, as last seen.
    used_bytes: u64,
    /// Occupied or set aside; at least `used_bytes`.
    held_bytes: u64,
    /// Nobody can ask for it once it is closed: there is nothing to drain. Of a copy: nobody can
    /// ask for it any more.
    nameless: bool,
    /// [`NOBODYS`] before it is known.
    application: u32,
    /// `None` before they are known, and of copies.
    owners: Option<Owners>,
}

impl Charge {
    fn is_undrained(&self) -> bool {
        self.dirty && !self.nameless
    }
}

/// What the objects of one application occupy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApplicationFigures {
    /// Objects.
    pub files: u64,
    /// Occupied, bytes.
    pub used_bytes: u64,
    /// Of those undrained, bytes.
    pub dirty_bytes: u64,
}

/// Not an application's number.
const NOBODYS: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    kind: Option<PolicyKind>,
    capacity_bytes: u64,
    /// What the file system below can really hold for us, when it was last asked.
    physical_limit_bytes: Option<u64>,
    used_bytes: u64,
    held_bytes: u64,
    dirty_bytes: u64,
    files: u64,
    dirty_files: u64,
    /// Held by undrained objects: they may become so many undrained bytes without asking again.
    dirty_held_bytes: u64,
}

impl Sums {
    fn limit_bytes(&self) -> u64 {
        self.physical_limit_bytes
            .map_or(self.capacity_bytes, |limit| limit.min(self.capacity_bytes))
    }
}

#[derive(Default)]
struct Books {
    charges: HashMap<ObjectId, Charge>,
    /// Copies on flash of objects in memory, beside their charges.
    shadows: HashMap<ObjectId, Charge>,
    /// Space for objects on their way to another node, where they go.
    moves: HashMap<ObjectId, Charge>,
    tiers: Vec<Sums>,
    applications: HashMap<u32, ApplicationFigures>,
    dirty_cap_bytes: u64,
    /// Empty without limits.
    owners: HashMap<Owner, OwnerFigures>,
    limits: Limits,
}

/// Figures of one tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierFigures {
    /// What it may hold, bytes.
    pub capacity_bytes: u64,
    /// Occupied by objects, bytes.
    pub used_bytes: u64,
    /// Of those undrained, bytes.
    pub dirty_bytes: u64,
    /// Undrained objects.
    pub dirty_files: u64,
    /// Objects that are not undrained.
    pub other_files: u64,
    /// Set aside beyond `used_bytes`.
    pub reserved_bytes: u64,
}

/// What the books have of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The tier that holds the object.
    pub tier: TierId,
    /// Undrained.
    pub dirty: bool,
    /// Occupied, bytes.
    pub used_bytes: u64,
    /// Set aside beyond `used_bytes`.
    pub reserved_bytes: u64,
    /// Tier of its copy on flash.
    pub shadow: Option<TierId>,
}

/// Accounts of all tiers. Invariants:
///
/// 1. The sums of a tier, an application, a user and a group are the sums over their charges.
/// 2. Objects are charged from `arrive` to `depart` only: nothing else makes an entry, so whoever
///    comes too late for an object that has left charges nothing. Its copy on flash is charged only
///    beside it.
/// 3. `try_hold` never lets the held bytes of a tier grow over its limit, nor the undrained bytes
///    over the cap, nor what a user or group has over its limits. `settle` and `observe` may find
///    more than was set aside. `hold_beyond` goes over the limits on purpose, for a lease that is
///    extended beyond its tier. `try_hold_beyond_limits` goes over those of users and groups.
pub struct Ledger {
    books: Mutex<Books>,
    /// Signalled when space is given back or data has become clean.
    freed: Condvar,
    /// Of the capacity of all tiers that have a limit.
    dirty_cap_fraction: f64,
    /// Of all tiers that have a limit, as they were opened.
    capacity_bytes: u64,
    /// Asked without the lock: most burst buffers have no limits of users and groups.
    has_limits: AtomicBool,
}

/// Why space is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The tier has so many bytes too few.
    Tier {
        /// Bytes to be freed.
        missing_bytes: u64,
    },
    /// The cap on undrained data.
    DirtyCap,
    /// The limit of a user or group.
    Limit {
        /// Whose.
        owner: Owner,
        /// By how much, and what happens.
        excess: Excess,
    },
    /// The object has left: nothing is charged to it.
    Gone,
}

impl Ledger {
    /// Books for tiers of these kinds and capacities; a kind of `None` has no limit and is not
    /// chosen for new files.
    pub fn new(tiers: &[(Option<PolicyKind>, u64)], dirty_cap_fraction: f64) -> Ledger {
        let total: u64 = tiers
            .iter()
            .filter(|(kind, _)| kind.is_some())
            .map(|(_, c)| c)
            .sum();
        let sums = tiers.iter().map(|&(kind, capacity_bytes)| Sums {
            kind,
            capacity_bytes,
            ..Sums::default()
        });
        let mut books = Books {
            tiers: sums.collect(),
            ..Books::default()
        };
        books.set_dirty_cap(dirty_cap_fraction);
        Ledger {
            books: Mutex::new(books),
            freed: Condvar::new(),
            dirty_cap_fraction,
            capacity_bytes: total,
            has_limits: AtomicBool::new(false),
        }
    }

    /// An object is made, or found by a start: from now on it can be charged.
    pub fn arrive(&self, object: ObjectId, tier: TierId, used_bytes: u64, dirty: bool) {
        let charge = Charge {
            tier: tier.0,
            dirty,
            used_bytes,
            held_bytes: used_bytes,
            nameless: false,
            application: NOBODYS,
            owners: None,
        };
        self.books.lock().insert(object, charge);
    }

    /// An object belongs to an application.
    pub fn assign(&self, object: ObjectId, application: u32) {
        self.books
            .lock()
            .change_all(object, |charge| charge.application = application);
    }

    /// An object has no name any more, or has got its first.
    pub fn set_nameless(&self, object: ObjectId, nameless: bool) {
        self.books
            .lock()
            .change_all(object, |charge| charge.nameless = nameless);
        self.freed.notify_all();
    }

    /// What each application has here.
    pub fn applications(&self) -> HashMap<u32, ApplicationFigures> {
        self.books.lock().applications.clone()
    }

    /// Sets what an object holds to `held_bytes`, of which `used_bytes` are occupied, if there is
    /// room.
    pub fn try_hold(
        &self,
        object: ObjectId,
        tier: TierId,
        used_bytes: u64,
        held_bytes: u64,
        dirty: bool,
    ) -> Result<(), Refused> {
        let held = (tier, used_bytes, held_bytes, dirty);
        self.try_hold_within(object, held, true)
    }

    fn try_hold_within(
        &self,
        object: ObjectId,
        (tier, used_bytes, held_bytes, dirty): (TierId, u64, u64, bool),
        keeps_limits: bool,
    ) -> Result<(), Refused> {
        let mut books = self.books.lock();
        let old = *books.charges.get(&object).ok_or(Refused::Gone)?;
        let same_tier = old.tier == tier.0;
        let old_held = if same_tier { old.held_bytes } else { 0 };
        let more = held_bytes.saturating_sub(old_held);
        if books.tiers[tier.0 as usize].kind.is_some() && more > 0 {
            books.must_fit(tier, more)?;
            let others: u64 = books
                .tiers
                .iter()
                .filter(|t| t.kind.is_some())
                .map(|t| t.dirty_held_bytes)
                .sum();
            let mine = if old.is_undrained() {
                old.held_bytes
            } else {
                0
            };
            let after = others.saturating_sub(mine).saturating_add(held_bytes);
            if dirty && !old.nameless && after > books.dirty_cap_bytes {
                return Err(Refused::DirtyCap);
            }
        }
        let charge = Charge {
            tier: tier.0,
            dirty,
            used_bytes,
            held_bytes,
            nameless: old.nameless,
            application: old.application,
            owners: old.owners,
        };
        if keeps_limits {
            books.must_keep_limits(old, charge)?;
        }
        books.change(object, |old| *old = charge);
        Ok(())
    }

    /// Sets space aside for the copy of an object on flash, if there is room. Its bytes are
    /// undrained where the object is: they are not counted twice.
    pub fn try_hold_shadow(
        &self,
        object: ObjectId,
        tier: TierId,
        bytes: u64,
    ) -> Result<(), Refused> {
        let mut books = self.books.lock();
        if !books.charges.contains_key(&object) {
            return Err(Refused::Gone);
        }
        let old = books.shadows.get(&object).filter(|old| old.tier == tier.0);
        let more = bytes.saturating_sub(old.map_or(0, |old| old.held_bytes));
        if more > 0 {
            books.must_fit(tier, more)?;
        }
        books.put_shadow(object, tier, bytes);
        Ok(())
    }

    /// The copy of an object on flash, as a start finds it.
    pub fn found_shadow(&self, object: ObjectId, tier: TierId, bytes: u64) {
        let mut books = self.books.lock();
        if books.charges.contains_key(&object) {
            books.put_shadow(object, tier, bytes);
        }
    }

    /// Sets what an undrained object holds to `held_bytes` whatever the limits are.
    pub fn hold_beyond(&self, object: ObjectId, tier: TierId, used_bytes: u64, held_bytes: u64) {
        let charge = Charge {
            tier: tier.0,
            dirty: true,
            used_bytes,
            held_bytes: held_bytes.max(used_bytes),
            ..Charge::default()
        };
        self.books.lock().change(object, |old| *old = charge);
    }

    /// Sets what an object occupies, whatever that is, and gives back what was set aside beyond it.
    pub fn settle(&self, object: ObjectId, tier: TierId, used_bytes: u64, dirty: bool) {
        let charge = Charge {
            tier: tier.0,
            dirty,
            used_bytes,
            held_bytes: used_bytes,
            ..Charge::default()
        };
        self.books.lock().change(object, |old| *old = charge);
        self.freed.notify_all();
    }

    /// Updates the size of an object under way, keeping what is set aside for it.
    pub fn observe(&self, object: ObjectId, used_bytes: u64) {
        self.books.lock().change(object, |charge| {
            charge.used_bytes = used_bytes;
            charge.held_bytes = charge.held_bytes.max(used_bytes);
        });
    }

    /// Marks an object's bytes as undrained or drained.
    pub fn set_dirty(&self, object: ObjectId, dirty: bool) {
        let mut books = self.books.lock();
        books.change(object, |charge| charge.dirty = dirty);
        drop(books);
        self.freed.notify_all();
    }

    /// The object is gone, and its copy on flash with it.
    pub fn depart(&self, object: ObjectId) {
        let mut books = self.books.lock();
        books.take_shadow(object);
        if let Some(old) = books.charges.remove(&object) {
            books.subtract(old);
        }
        drop(books);
        self.freed.notify_all();
    }

    /// What the books have, by object.
    pub fn entries(&self) -> HashMap<ObjectId, Entry> {
        let books = self.books.lock();
        let entry = |(object, charge): (&ObjectId, &Charge)| {
            let entry = Entry {
                tier: TierId(charge.tier),
                dirty: charge.is_undrained(),
                used_bytes: charge.used_bytes,
                reserved_bytes: charge.held_bytes.saturating_sub(charge.used_bytes),
                shadow: books.shadows.get(object).map(|shadow| TierId(shadow.tier)),
            };
            (*object, entry)
        };
        books.charges.iter().map(entry).collect()
    }

    /// What an object is known to occupy, bytes.
    pub fn used_bytes(&self, object: ObjectId) -> u64 {
        self.books
            .lock()
            .charges
            .get(&object)
            .map_or(0, |c| c.used_bytes)
    }

    /// What its copy in another tier is charged, bytes.
    pub fn shadow_bytes(&self, object: ObjectId) -> u64 {
        let books = self.books.lock();
        books.shadows.get(&object).map_or(0, |c| c.used_bytes)
    }

    /// Occupied or set aside in a tier, bytes.
    pub fn held_bytes(&self, tier: TierId) -> u64 {
        let books = self.books.lock();
        books.tiers.get(tier.0 as usize).map_or(0, |t| t.held_bytes)
    }

    /// Undrained bytes in the burst buffer's own tiers, and their capacity.
    pub fn dirty_and_capacity(&self) -> (u64, u64) {
        let books = self.books.lock();
        books
            .tiers
            .iter()
            .filter(|t| t.kind.is_some())
            .fold((0, 0), |(dirty, capacity), t| {
                (dirty + t.dirty_bytes, capacity + t.limit_bytes())
            })
    }

    /// Figures of one tier.
    pub fn figures(&self, tier: TierId) -> TierFigures {
        let sums = self.books.lock().tiers[tier.0 as usize];
        TierFigures {
            capacity_bytes: sums.capacity_bytes,
            used_bytes: sums.used_bytes,
            dirty_bytes: sums.dirty_bytes,
            dirty_files: sums.dirty_files,
            other_files: sums.files - sums.dirty_files,
            reserved_bytes: sums.held_bytes.saturating_sub(sums.used_bytes),
        }
    }

    /// Space as the policy wants to see it.
    pub fn spaces(&self) -> Vec<TierSpace> {
        let books = self.books.lock();
        let tiers = books.tiers.iter().enumerate();
        tiers
            .filter_map(|(index, t)| {
                let limit = t.limit_bytes();
                Some(TierSpace {
                    index,
                    kind: t.kind?,
                    capacity_bytes: limit,
                    free_bytes: limit.saturating_sub(t.used_bytes),
                    reserved_bytes: t.held_bytes.saturating_sub(t.used_bytes),
                })
            })
            .collect()
    }

    /// Waits until something was freed, at most for `timeout`.
    pub fn wait_freed(&self, timeout: std::time::Duration) {
        let mut books = self.books.lock();
        self.freed.wait_for(&mut books, timeout);
    }
}

impl Sums {
    fn add(&mut self, charge: Charge) {
        self.used_bytes += charge.used_bytes;
        self.held_bytes += charge.held_bytes;
        self.files += 1;
        if charge.is_undrained() {
            self.dirty_files += 1;
            self.dirty_bytes += charge.used_bytes;
            self.dirty_held_bytes += charge.held_bytes;
        }
    }

    fn subtract(&mut self, charge: Charge) {
        self.used_bytes -= charge.used_bytes;
        self.held_bytes -= charge.held_bytes;
        self.files -= 1;
        if charge.is_undrained() {
            self.dirty_files -= 1;
            self.dirty_bytes -= charge.used_bytes;
            self.dirty_held_bytes -= charge.held_bytes;
        }
    }
}

impl Books {
    fn tier(&mut self, charge: Charge) -> &mut Sums {
        &mut self.tiers[charge.tier as usize]
    }

    fn must_fit(&self, tier: TierId, more_bytes: u64) -> Result<(), Refused> {
        let sums = &self.tiers[tier.0 as usize];
        let limit = sums.limit_bytes();
        let after = sums.held_bytes.saturating_add(more_bytes);
        match after.checked_sub(limit) {
            None | Some(0) => Ok(()),
            Some(missing_bytes) => Err(Refused::Tier { missing_bytes }),
        }
    }

    fn insert(&mut self, object: ObjectId, charge: Charge) {
        if let Some(old) = self.charges.insert(object, charge) {
            self.subtract(old);
        }
        self.add(charge);
    }

    fn add(&mut self, charge: Charge) {
        self.tier(charge).add(charge);
        self.add_to_owners(charge);
        if charge.application != NOBODYS {
            let figures = self.applications.entry(charge.application).or_default();
            figures.files += 1;
            figures.used_bytes += charge.used_bytes;
            figures.dirty_bytes += if charge.is_undrained() {
                charge.used_bytes
            } else {
                0
            };
        }
    }

    fn subtract(&mut self, charge: Charge) {
        self.tier(charge).subtract(charge);
        self.subtract_from_owners(charge);
        if let Some(figures) = self.applications.get_mut(&charge.application) {
            figures.files -= 1;
            figures.used_bytes -= charge.used_bytes;
            figures.dirty_bytes -= if charge.is_undrained() {
                charge.used_bytes
            } else {
                0
            };
            if figures.files == 0 {
                self.applications.remove(&charge.application);
            }
        }
    }

    /// Changes what an object holds, if it is there. Whose it is and whether it has a name stay.
    fn change(&mut self, object: ObjectId, change: impl FnOnce(&mut Charge)) {
        self.change_all(object, |charge| {
            let (nameless, application, owners) =
                (charge.nameless, charge.application, charge.owners);
            change(charge);
            charge.nameless = nameless;
            charge.application = application;
            charge.owners = owners;
        });
    }

    /// Changes the charge of an object, if it is there.
    fn change_all(&mut self, object: ObjectId, change: impl FnOnce(&mut Charge)) {
        let Some(charge) = self.charges.get_mut(&object) else {
            return;
        };
        let old = *charge;
        change(charge);
        let new = *charge;
        self.subtract(old);
        self.add(new);
    }

    fn put_shadow(&mut self, object: ObjectId, tier: TierId, bytes: u64) {
        self.take_shadow(object);
        let shadow = Charge {
            tier: tier.0,
            dirty: false,
            used_bytes: bytes,
            held_bytes: bytes,
            nameless: false,
            application: NOBODYS,
            owners: None,
        };
        self.tier(shadow).add(shadow);
        self.shadows.insert(object, shadow);
    }

    fn take_shadow(&mut self, object: ObjectId) {
        if let Some(old) = self.shadows.remove(&object) {
            self.tier(old).subtract(old);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SSD: Option<PolicyKind> = Some(PolicyKind::Ssd);

    fn ledger_with(tiers: &[(Option<PolicyKind>, u64)], cap: f64, objects: &[u64]) -> Ledger {
        let ledger = Ledger::new(tiers, cap);
        for object in objects {
            ledger.arrive(ObjectId(*object), TierId(0), 0, true);
        }
        ledger
    }

    /// Whatever comes too late, from whichever thread, leaves nothing behind.
    #[test]
    fn an_object_that_has_left_is_charged_nothing() {
        let ledger = ledger_with(&[(SSD, 100), (SSD, 100)], 1.0, &[1]);
        let (object, tier, flash) = (ObjectId(1), TierId(0), TierId(1));
        assert_eq!(ledger.try_hold(object, tier, 10, 20, true), Ok(()));
        assert_eq!(ledger.try_hold_shadow(object, flash, 30), Ok(()));
        assert_eq!(ledger.figures(flash).used_bytes, 30);
        ledger.depart(object);
        ledger.settle(object, tier, 10, true);
        ledger.observe(object, 10);
        ledger.set_dirty(object, true);
        ledger.hold_beyond(object, tier, 10, 20);
        ledger.found_shadow(object, flash, 10);
        let gone = Err(Refused::Gone);
        assert_eq!(ledger.try_hold(object, tier, 1, 1, true), gone);
        assert_eq!(ledger.try_hold_shadow(object, flash, 1), gone);
        for tier in [tier, flash] {
            let figures = ledger.figures(tier);
            let capacity_bytes = figures.capacity_bytes;
            let empty = TierFigures {
                capacity_bytes,
                ..TierFigures::default()
            };
            assert_eq!(figures, empty);
        }
        assert!(ledger.entries().is_empty());
    }

    #[test]
    fn copies_of_what_is_drained_are_those_for_restarts() {
        let ledger = ledger_with(&[(SSD, 100), (SSD, 100)], 1.0, &[1, 2]);
        let (tier, other) = (TierId(0), TierId(1));
        for (object, bytes) in [(1, 30), (2, 20)] {
            let held = ledger.try_hold_shadow(ObjectId(object), other, bytes);
            assert_eq!(held, Ok(()));
        }
        assert!(ledger.restart_copies().is_empty(), "both are promised");
        ledger.settle(ObjectId(1), tier, 30, false);
        assert_eq!(ledger.restart_copies(), HashMap::from([(other, 30)]));
        ledger.release_shadow(ObjectId(1));
        assert!(ledger.restart_copies().is_empty());
    }

    #[test]
    fn what_an_fsync_has_made_is_no_copy_for_restarts_once_the_pfs_has_all() {
        let ledger = ledger_with(&[(SSD, 100), (SSD, 100)], 1.0, &[1]);
        let (object, other) = (ObjectId(1), TierId(1));
        let hold = || ledger.try_hold_shadow(object, other, 30);
        assert_eq!(hold(), Ok(()));
        ledger.expire_shadow(object);
        ledger.settle(object, TierId(0), 30, false);
        assert!(ledger.restart_copies().is_empty());
        assert_eq!(ledger.figures(other).used_bytes, 30, "it is still there");
        // One that is made after that is another.
        assert_eq!(hold(), Ok(()));
        assert_eq!(ledger.restart_copies(), HashMap::from([(other, 30)]));
    }

    #[test]
    fn a_tier_is_never_promised_twice() {
        let ledger = ledger_with(&[(SSD, 100)], 1.0, &[1, 2]);
        let tier = TierId(0);
        assert_eq!(ledger.try_hold(ObjectId(1), tier, 0, 60, true), Ok(()));
        let refused = ledger.try_hold(ObjectId(2), tier, 0, 60, true);
        assert_eq!(refused, Err(Refused::Tier { missing_bytes: 20 }));
        ledger.settle(ObjectId(1), tier, 30, true);
        assert_eq!(ledger.try_hold(ObjectId(2), tier, 0, 60, true), Ok(()));
        ledger.depart(ObjectId(1));
        let figures = ledger.figures(tier);
        assert_eq!((figures.used_bytes, figures.reserved_bytes), (0, 60));
    }

    #[test]
    fn undrained_bytes_have_a_hard_cap() {
        let ledger = ledger_with(&[(SSD, 100)], 0.5, &[1, 2]);
        let tier = TierId(0);
        assert_eq!(ledger.try_hold(ObjectId(1), tier, 40, 50, true), Ok(()));
        assert_eq!(
            ledger.try_hold(ObjectId(2), tier, 10, 10, true),
            Err(Refused::DirtyCap)
        );
        ledger.set_dirty(ObjectId(1), false);
        assert_eq!(ledger.try_hold(ObjectId(2), tier, 10, 10, true), Ok(()));
    }

    #[test]
    fn a_tier_that_has_shrunk_takes_nothing_until_enough_has_left() {
        let ledger = ledger_with(&[(SSD, 100), (SSD, 100)], 0.5, &[1, 2]);
        let (tier, other) = (TierId(0), TierId(1));
        assert_eq!(ledger.try_hold(ObjectId(1), tier, 80, 80, true), Ok(()));
        ledger.set_capacity(tier, 40);
        assert_eq!(ledger.dirty_cap_bytes(), 70);
        let figures = ledger.figures(tier);
        assert_eq!((figures.capacity_bytes, figures.used_bytes), (40, 80));
        assert_eq!(ledger.spaces()[0].available_bytes(), 0);
        assert_eq!(ledger.dirty_and_capacity(), (80, 140));
        let refused = ledger.try_hold(ObjectId(2), tier, 0, 10, false);
        assert_eq!(refused, Err(Refused::Tier { missing_bytes: 50 }));
        // What is there may stay, and be less.
        assert_eq!(ledger.try_hold(ObjectId(1), tier, 60, 60, true), Ok(()));
        let refused = ledger.try_hold(ObjectId(2), other, 0, 20, true);
        assert_eq!(refused, Err(Refused::DirtyCap));
        ledger.set_capacity(tier, 100);
        assert_eq!(ledger.try_hold(ObjectId(2), other, 0, 20, true), Ok(()));
    }

    #[test]
    fn what_another_node_has_is_told_from_what_only_this_one_has() {
        let ledger = ledger_with(&[(SSD, 100); 3], 1.0, &[1, 2, 3]);
        let server_of = |tier: TierId| Some(u16::from(tier.0 / 2));
        for (object, flash) in [(1, 1), (2, 2), (3, 2)] {
            ledger.settle(ObjectId(object), TierId(0), 10, object != 3);
            let held = ledger.try_hold_shadow(ObjectId(object), TierId(flash), 10);
            assert_eq!(held, Ok(()));
        }
        // The first has its copy on its own node, the third is drained.
        let elsewhere = HashMap::from([(TierId(0), (1, 10))]);
        assert_eq!(ledger.elsewhere(server_of), elsewhere);
    }

    #[test]
    fn what_nobody_can_ask_for_is_not_undrained_until_it_has_a_name() {
        let ledger = ledger_with(&[(SSD, 100)], 0.5, &[1]);
        let (object, tier) = (ObjectId(1), TierId(0));
        ledger.set_nameless(object, true);
        // The cap on undrained bytes is not for it.
        assert_eq!(ledger.try_hold(object, tier, 80, 80, true), Ok(()));
        let figures = ledger.figures(tier);
        assert_eq!((figures.used_bytes, figures.dirty_bytes), (80, 0));
        assert_eq!((figures.dirty_files, figures.other_files), (0, 1));
        ledger.set_nameless(object, false);
        let figures = ledger.figures(tier);
        assert_eq!((figures.dirty_bytes, figures.dirty_files), (80, 1));
    }

    #[test]
    fn what_an_application_has_follows_its_objects() {
        let ledger = ledger_with(&[(SSD, 100)], 1.0, &[1, 2]);
        ledger.assign(ObjectId(1), 7);
        ledger.settle(ObjectId(1), TierId(0), 30, true);
        ledger.assign(ObjectId(2), 7);
        ledger.settle(ObjectId(2), TierId(0), 10, false);
        let seven = ApplicationFigures {
            files: 2,
            used_bytes: 40,
            dirty_bytes: 30,
        };
        assert_eq!(ledger.applications().get(&7), Some(&seven));
        ledger.assign(ObjectId(1), 8);
        assert_eq!(ledger.applications()[&7].used_bytes, 10);
        assert_eq!(ledger.applications()[&8].dirty_bytes, 30);
        ledger.depart(ObjectId(2));
        assert!(!ledger.applications().contains_key(&7));
    }

    #[test]
    fn what_is_set_aside_for_a_move_is_nobody_elses_until_it_is_given_back() {
        let ledger = Ledger::new(&[(SSD, 100), (SSD, 100)], 1.0);
        let (object, other, to) = (ObjectId(1), ObjectId(2), TierId(1));
        ledger.arrive(object, TierId(0), 0, true);
        ledger.arrive(other, to, 0, true);
        assert_eq!(ledger.try_hold_move(object, to, 80), Ok(()));
        let refused = Err(Refused::Tier { missing_bytes: 10 });
        assert_eq!(ledger.try_hold(other, to, 0, 30, true), refused);
        // Again, and not twice.
        assert_eq!(ledger.try_hold_move(object, to, 90), Ok(()));
        assert_eq!(ledger.figures(to).used_bytes, 0);
        ledger.release_move(object);
        assert_eq!(ledger.try_hold(other, to, 0, 100, true), Ok(()));
    }

    proptest! {
        #[test]
        fn sums_are_the_sums_of_the_charges(ops in proptest::collection::vec((0u8..7, 0u64..6, 0u8..2, 0u64..80, any::<bool>()), 1..80)) {
            let ledger = Ledger::new(&[(SSD, 200), (None, 0)], 1.0);
            let mut model: HashMap<u64, (u8, u64, bool)> = HashMap::new();
            let mut shadows: HashMap<u64, (u8, u64)> = HashMap::new();
            for (what, object, tier, bytes, dirty) in ops {
                let (id, tier_id) = (ObjectId(object), TierId(tier));
                let there = model.contains_key(&object);
                match what {
                    0 => {
                        ledger.arrive(id, tier_id, bytes, dirty);
                        model.insert(object, (tier, bytes, dirty));
                    }
                    1 => if ledger.try_hold(id, tier_id, bytes, bytes, dirty).is_ok() {
                        prop_assert!(there);
                        model.insert(object, (tier, bytes, dirty));
                    },
                    2 => {
                        ledger.settle(id, tier_id, bytes, dirty);
                        if there {
                            model.insert(object, (tier, bytes, dirty));
                        }
                    }
                    3 => {
                        ledger.depart(id);
                        model.remove(&object);
                        shadows.remove(&object);
                    }
                    4 => {
                        ledger.found_shadow(id, tier_id, bytes);
                        if there {
                            shadows.insert(object, (tier, bytes));
                        }
                    }
                    5 => {
                        ledger.release_shadow(id);
                        shadows.remove(&object);
                    }
                    _ => {
                        ledger.set_dirty(id, dirty);
                        if let Some(entry) = model.get_mut(&object) {
                            entry.2 = dirty;
                        }
                    }
                }
                for t in 0..2u8 {
                    let used: u64 = model.values().filter(|e| e.0 == t).map(|e| e.1).sum();
                    let beside: u64 = shadows.values().filter(|e| e.0 == t).map(|e| e.1).sum();
                    let undrained: u64 = model.values().filter(|e| e.0 == t && e.2).map(|e| e.1).sum();
                    let figures = ledger.figures(TierId(t));
                    prop_assert_eq!((figures.used_bytes, figures.dirty_bytes), (used + beside, undrained));
                }
            }
        }
    }
}
