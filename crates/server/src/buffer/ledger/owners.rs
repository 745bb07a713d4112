//! What users and groups hold, and the limits of that.

use std::sync::atomic::Ordering;

use forebay_policy::limits::{Bounds, Excess, Held, Limit, Limits, Owner, Owners};
use forebay_types::{ObjectId, TierId};

use super::{Books, Charge, Ledger, Refused};

/// What one user or group has here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerFigures {
    /// Held, as limits count it.
    pub held: Held,
    /// Of the undrained, what is occupied, bytes.
    pub dirty_bytes: u64,
    files: u64,
}

impl OwnerFigures {
    fn add(&mut self, charge: Charge) {
        self.files += 1;
        self.held.bytes += charge.held_bytes;
        if charge.is_undrained() {
            self.held.undrained_bytes += charge.held_bytes;
            self.dirty_bytes += charge.used_bytes;
        }
    }

    fn subtract(&mut self, charge: Charge) {
        self.files -= 1;
        self.held.bytes -= charge.held_bytes;
        if charge.is_undrained() {
            self.held.undrained_bytes -= charge.held_bytes;
            self.dirty_bytes -= charge.used_bytes;
        }
    }
}

impl Ledger {
    /// Takes limits into force, instead of those before. Where there were none, nobody knows yet
    /// whose the objects are.
    pub fn set_limits(&self, limits: &[Limit]) {
        let mut books = self.books.lock();
        books.limits = Limits::new(limits, self.capacity_bytes);
        books.recount_owners();
        self.has_limits.store(!limits.is_empty(), Ordering::SeqCst);
        drop(books);
        self.freed.notify_all();
    }

    /// Whether there are limits: without them nobody is counted.
    pub fn has_limits(&self) -> bool {
        self.has_limits.load(Ordering::SeqCst)
    }

    /// The limits in force.
    pub fn limits(&self) -> Limits {
        self.books.lock().limits.clone()
    }

    /// An object belongs to a user and a group. Without limits that is not kept.
    pub fn own(&self, object: ObjectId, owners: Owners) {
        if !self.has_limits() {
            return;
        }
        let mut books = self.books.lock();
        if !books.limits.is_empty() {
            books.change_all(object, |charge| charge.owners = Some(owners));
        }
    }

    /// Which limit keeps a new file of these owners from growing to so many bytes here.
    pub fn excess_of_new(&self, owners: Owners, bytes: u64) -> Option<(Owner, Excess)> {
        let books = self.books.lock();
        let more = Held {
            bytes,
            undrained_bytes: bytes,
        };
        books
            .limits
            .admit(owners, |owner| books.held_by(owner), more)
            .err()
    }

    /// How much more of what is on the PFS these owners may have here, bytes; `None`: any number.
    pub fn left_bytes(&self, owners: Owners) -> Option<u64> {
        let books = self.books.lock();
        books
            .limits
            .left_bytes(owners, |owner| books.held_by(owner))
    }

    /// As [`Ledger::try_hold`], of an undrained object that cannot go elsewhere: limits of users
    /// and groups do not refuse it, its tier and the cap do.
    pub fn try_hold_beyond_limits(
        &self,
        object: ObjectId,
        tier: TierId,
        used_bytes: u64,
        held_bytes: u64,
    ) -> Result<(), Refused> {
        let held = (tier, used_bytes, held_bytes, true);
        self.try_hold_within(object, held, false)
    }

    /// What a user or group holds, as limits count it.
    pub fn held_by(&self, owner: Owner) -> Held {
        self.books.lock().held_by(owner)
    }

    /// Of these objects the undrained ones of a user or group, the oldest first, and what each
    /// occupies, bytes.
    pub fn undrained_of(&self, owner: Owner, mut among: Vec<ObjectId>) -> Vec<(ObjectId, u64)> {
        among.sort_unstable_by_key(|object| object.0);
        let books = self.books.lock();
        let theirs = among.into_iter().filter_map(|object| {
            let charge = *books.charges.get(&object)?;
            let is_theirs = books.owners_of(charge)?.each().contains(&owner);
            (is_theirs && charge.is_undrained()).then_some((object, charge.used_bytes))
        });
        theirs.collect()
    }

    /// Users and groups that have something here and a limit: those with most first.
    pub fn under_limits(&self) -> Vec<(Owner, OwnerFigures, Bounds)> {
        let books = self.books.lock();
        if books.limits.is_empty() {
            return Vec::new();
        }
        let owners = books.owners.iter().filter_map(|(owner, figures)| {
            let bounds = books.limits.of(*owner)?;
            Some((*owner, *figures, *bounds))
        });
        let mut owners: Vec<_> = owners.collect();
        owners.sort_by_key(|(owner, figures, _)| (std::cmp::Reverse(figures.held.bytes), *owner));
        owners
    }
}

impl Books {
    /// Sums up anew what everybody has; nothing without limits.
    fn recount_owners(&mut self) {
        self.owners.clear();
        if self.limits.is_empty() {
            // By the time that there are limits again, they may be others.
            self.charges
                .values_mut()
                .for_each(|charge| charge.owners = None);
            return;
        }
        let charges: Vec<Charge> = self.charges.values().copied().collect();
        for charge in charges {
            self.add_to_owners(charge);
        }
    }

    fn held_by(&self, owner: Owner) -> Held {
        self.owners
            .get(&owner)
            .map_or_else(Held::default, |figures| figures.held)
    }

    /// Whose limits have a word on a charge, where there are some: they do in tiers of the burst
    /// buffer, and not on the PFS.
    fn owners_of(&self, charge: Charge) -> Option<Owners> {
        if self.limits.is_empty() {
            return None;
        }
        let counts = self.tiers[charge.tier as usize].kind.is_some();
        charge.owners.filter(|_| counts)
    }

    pub(super) fn add_to_owners(&mut self, charge: Charge) {
        for owner in self
            .owners_of(charge)
            .iter()
            .flat_map(|owners| owners.each())
        {
            self.owners.entry(owner).or_default().add(charge);
        }
    }

    pub(super) fn subtract_from_owners(&mut self, charge: Charge) {
        for owner in self
            .owners_of(charge)
            .iter()
            .flat_map(|owners| owners.each())
        {
            if let Some(figures) = self.owners.get_mut(&owner) {
                figures.subtract(charge);
                if figures.files == 0 {
                    self.owners.remove(&owner);
                }
            }
        }
    }

    /// Whether the limits of its owners let a charge take the place of another.
    pub(super) fn must_keep_limits(&self, old: Charge, new: Charge) -> Result<(), Refused> {
        let Some(owners) = self.owners_of(new) else {
            return Ok(());
        };
        let held = |charge: Charge| Held {
            bytes: charge.held_bytes,
            undrained_bytes: match charge.is_undrained() {
                true => charge.held_bytes,
                false => 0,
            },
        };
        let before = match self.owners_of(old).is_some() {
            true => held(old),
            false => Held::default(),
        };
        let after = held(new);
        let more = Held {
            bytes: after.bytes.saturating_sub(before.bytes),
            undrained_bytes: after.undrained_bytes.saturating_sub(before.undrained_bytes),
        };
        let admitted = self.limits.admit(owners, |owner| self.held_by(owner), more);
        admitted.map_err(|(owner, excess)| Refused::Limit { owner, excess })
    }
}

#[cfg(test)]
mod tests {
    use forebay_policy::limits::{Amount, Beyond, Whose};
    use forebay_policy::placement::TierKind;

    use super::*;

    const US: Owners = Owners { uid: 7, gid: 8 };

    fn ledger(capacity: Option<Amount>, undrained: Option<Amount>) -> Ledger {
        let ledger = Ledger::new(&[(Some(TierKind::Ssd), 100), (None, 0)], 1.0);
        ledger.set_limits(&[Limit {
            whose: Whose::EachUser,
            capacity,
            undrained,
            rate_bytes_per_s: None,
            beyond: Beyond::Direct,
        }]);
        for object in [1, 2] {
            ledger.arrive(ObjectId(object), TierId(0), 0, true);
            ledger.own(ObjectId(object), US);
        }
        ledger
    }

    fn hold(ledger: &Ledger, object: u64, bytes: u64) -> Result<(), Refused> {
        ledger.try_hold(ObjectId(object), TierId(0), 0, bytes, true)
    }

    fn refused(missing_bytes: u64) -> Result<(), Refused> {
        let excess = Excess {
            missing_bytes,
            beyond: Beyond::Direct,
        };
        Err(Refused::Limit {
            owner: Owner::User(7),
            excess,
        })
    }

    #[test]
    fn a_user_holds_no_more_than_the_share() {
        let ledger = ledger(Some(Amount::Share(0.5)), None);
        assert_eq!(hold(&ledger, 1, 30), Ok(()));
        assert_eq!(hold(&ledger, 2, 30), refused(10));
        assert_eq!(hold(&ledger, 2, 20), Ok(()));
        // The same again, or less, is nothing more.
        assert_eq!(hold(&ledger, 1, 30), Ok(()));
        assert!(ledger.excess_of_new(US, 1).is_some());
        let others = Owners { uid: 9, gid: 8 };
        assert_eq!(ledger.excess_of_new(others, 50), None);
        // What becomes another's is the other's.
        ledger.own(ObjectId(1), others);
        assert_eq!(ledger.excess_of_new(US, 30), None);
        assert!(ledger.excess_of_new(others, 30).is_some());
        ledger.depart(ObjectId(1));
        ledger.depart(ObjectId(2));
        assert!(ledger.under_limits().is_empty());
    }

    #[test]
    fn drained_bytes_are_none_of_the_undrained() {
        let ledger = ledger(None, Some(Amount::Bytes(40)));
        assert_eq!(hold(&ledger, 1, 40), Ok(()));
        assert_eq!(hold(&ledger, 2, 1), refused(0));
        ledger.settle(ObjectId(1), TierId(0), 40, false);
        assert_eq!(hold(&ledger, 2, 40), Ok(()));
        // It would be undrained again.
        assert_eq!(
            ledger.try_hold(ObjectId(1), TierId(0), 40, 41, true),
            refused(0)
        );
        let [(owner, figures, _)] = ledger.under_limits()[..] else {
            panic!("one user");
        };
        assert_eq!((owner, figures.held.bytes), (Owner::User(7), 80));
        assert_eq!(figures.held.undrained_bytes, 40);
    }

    #[test]
    fn nobody_is_counted_without_limits_and_everybody_once_there_are_some() {
        let ledger = ledger(None, Some(Amount::Bytes(40)));
        assert_eq!(hold(&ledger, 1, 30), Ok(()));
        ledger.set_limits(&[]);
        assert!(!ledger.has_limits());
        ledger.own(ObjectId(2), US);
        assert_eq!(hold(&ledger, 2, 30), Ok(()));
        assert_eq!(ledger.books.lock().owners.len(), 0);
        let limit = Limit {
            whose: Whose::EachUser,
            capacity: Some(Amount::Bytes(50)),
            undrained: None,
            rate_bytes_per_s: None,
            beyond: Beyond::Direct,
        };
        ledger.set_limits(&[limit]);
        assert!(ledger.under_limits().is_empty(), "whose they are comes now");
        for object in [1, 2] {
            ledger.own(ObjectId(object), US);
        }
        assert_eq!(ledger.under_limits()[0].1.held.bytes, 60);
        assert_eq!(hold(&ledger, 2, 31), refused(11));
        // Other limits find what was counted.
        let capacity = Some(Amount::Bytes(61));
        ledger.set_limits(&[Limit { capacity, ..limit }]);
        assert_eq!(ledger.under_limits()[0].1.held.bytes, 60);
        assert_eq!(hold(&ledger, 2, 31), Ok(()));
        ledger.depart(ObjectId(1));
        ledger.depart(ObjectId(2));
        assert!(ledger.under_limits().is_empty());
    }

    #[test]
    fn what_cannot_go_elsewhere_is_refused_by_its_tier_alone() {
        let ledger = ledger(Some(Amount::Bytes(40)), None);
        let beyond =
            |object, bytes| ledger.try_hold_beyond_limits(ObjectId(object), TierId(0), 0, bytes);
        assert_eq!(hold(&ledger, 1, 41), refused(1));
        assert_eq!(beyond(1, 80), Ok(()));
        let full = Err(Refused::Tier { missing_bytes: 10 });
        assert_eq!(beyond(2, 30), full);
        assert_eq!(ledger.held_by(Owner::User(7)).bytes, 80);
    }

    #[test]
    fn undrained_files_are_told_by_their_owners() {
        let ledger = ledger(None, Some(Amount::Bytes(40)));
        ledger.arrive(ObjectId(3), TierId(0), 5, true);
        ledger.own(ObjectId(3), Owners { uid: 9, gid: 8 });
        let of = |owner| ledger.undrained_of(owner, [3, 2, 1, 4].map(ObjectId).to_vec());
        let objects = |ids: &[u64]| ids.iter().map(|id| ObjectId(*id)).collect::<Vec<_>>();
        let ids = |owner| of(owner).iter().map(|(id, _)| *id).collect::<Vec<_>>();
        assert_eq!(ids(Owner::User(7)), objects(&[1, 2]));
        assert_eq!(of(Owner::User(9)), [(ObjectId(3), 5)]);
        assert_eq!(ids(Owner::Group(8)), objects(&[1, 2, 3]));
        ledger.set_dirty(ObjectId(1), false);
        assert_eq!(ids(Owner::User(7)), objects(&[2]));
    }

    #[test]
    fn what_lies_on_the_pfs_counts_for_nobody() {
        let ledger = ledger(Some(Amount::Bytes(10)), None);
        let moved = ledger.try_hold(ObjectId(1), TierId(1), 500, 500, true);
        assert_eq!(moved, Ok(()));
        assert_eq!(hold(&ledger, 2, 10), Ok(()));
        assert_eq!(ledger.under_limits()[0].1.held.bytes, 10);
    }
}
