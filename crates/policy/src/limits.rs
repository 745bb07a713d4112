//! Limits of users and groups: what one of them may hold of the burst buffer, and what happens
//! beyond.

use std::collections::HashMap;

use crate::named::named;

/// A user or a group of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// By number.
    User(u32),
    /// By number.
    Group(u32),
}

/// The user and the group that a file belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owners {
    /// The user's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
}

impl Owners {
    /// Both, one after the other.
    pub fn each(self) -> [Owner; 2] {
        [Owner::User(self.uid), Owner::Group(self.gid)]
    }
}

/// Whose limit it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Whose {
    /// Of each user but root who has no limit of his own.
    EachUser,
    /// Of each group but root's that has no limit of its own.
    EachGroup,
    /// Of one.
    One(Owner),
}

/// So much space.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Bytes.
    Bytes(u64),
    /// A share of the burst buffer's capacity, 0 to 1.
    Share(f64),
}

impl Amount {
    /// In bytes, of a burst buffer of this capacity.
    pub fn bytes(self, capacity_bytes: u64) -> u64 {
        match self {
            Amount::Bytes(bytes) => bytes,
            Amount::Share(share) => (capacity_bytes as f64 * share) as u64,
        }
    }
}

/// What happens to who has used up a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Beyond {
    /// Writes wait as they do for a full tier.
    #[default]
    Wait,
    /// New files go to the PFS directly, and so does a file that grows beyond, without a wait.
    Direct,
}

named!(Beyond, "beyond", Wait => "wait", Direct => "direct");

/// A limit as it is configured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Whose.
    pub whose: Whose,
    /// Of what is occupied or set aside.
    pub capacity: Option<Amount>,
    /// Of what the PFS does not have.
    pub undrained: Option<Amount>,
    /// Of what is written, bytes per second: see [`crate::rates`].
    pub rate_bytes_per_s: Option<u64>,
    /// What happens beyond.
    pub beyond: Beyond,
}

/// What somebody holds, or wants to hold in addition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Occupied or set aside, bytes.
    pub bytes: u64,
    /// Of those, what may become undrained, bytes.
    pub undrained_bytes: u64,
}

/// A limit in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Of what is occupied or set aside.
    pub capacity_bytes: Option<u64>,
    /// Of what the PFS does not have.
    pub undrained_bytes: Option<u64>,
    /// Of what is written, bytes per second.
    pub rate_bytes_per_s: Option<u64>,
    /// What happens beyond.
    pub beyond: Beyond,
}

/// Which limit is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    /// Bytes to be freed for the limit of what is occupied; 0: that is kept.
    pub missing_bytes: u64,
    /// What happens.
    pub beyond: Beyond,
}

impl Bounds {
    /// Whether who holds so much may hold so much more. Who asks for nothing more is never
    /// refused.
    pub fn admit(&self, held: Held, more: Held) -> Result<(), Excess> {
        let excess = |limit: Option<u64>, held: u64, more: u64| {
            let limit = limit.filter(|_| more > 0)?;
            let over = held.saturating_add(more).checked_sub(limit)?;
            (over > 0).then_some(over)
        };
        let capacity = excess(self.capacity_bytes, held.bytes, more.bytes);
        let undrained = excess(
            self.undrained_bytes,
            held.undrained_bytes,
            more.undrained_bytes,
        );
        match (capacity, undrained) {
            (None, None) => Ok(()),
            (capacity, _) => Err(Excess {
                missing_bytes: capacity.unwrap_or(0),
                beyond: self.beyond,
            }),
        }
    }
}

/// All limits of a burst buffer.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    listed: Vec<(Whose, Bounds)>,
    by_owner: HashMap<Whose, Bounds>,
}

impl Limits {
    /// The limits of a burst buffer of this capacity. Of two for the same user or group the first
    /// counts.
    pub fn new(limits: &[Limit], capacity_bytes: u64) -> Limits {
        let mut all = Limits::default();
        for limit in limits {
            let of = |amount: Option<Amount>| amount.map(|amount| amount.bytes(capacity_bytes));
            let bounds = Bounds {
                capacity_bytes: of(limit.capacity),
                undrained_bytes: of(limit.undrained),
                rate_bytes_per_s: limit.rate_bytes_per_s,
                beyond: limit.beyond,
            };
            all.listed.push((limit.whose, bounds));
            all.by_owner.entry(limit.whose).or_insert(bounds);
        }
        all
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// In the order in which they are configured.
    pub fn listed(&self) -> &[(Whose, Bounds)] {
        &self.listed
    }

    /// The limit of a user or group: the own one, else that of each.
    pub fn of(&self, owner: Owner) -> Option<&Bounds> {
        let each = match owner {
            Owner::User(0) | Owner::Group(0) => None,
            Owner::User(_) => Some(Whose::EachUser),
            Owner::Group(_) => Some(Whose::EachGroup),
        };
        let own = self.by_owner.get(&Whose::One(owner));
        own.or_else(|| self.by_owner.get(&each?))
    }

    /// What these owners may still occupy, where `held` says what each of them holds, bytes.
    /// `None`: any number.
    pub fn left_bytes(&self, owners: Owners, held: impl Fn(Owner) -> Held) -> Option<u64> {
        let left = owners.each().into_iter().filter_map(|owner| {
            let most = self.of(owner)?.capacity_bytes?;
            Some(most.saturating_sub(held(owner).bytes))
        });
        left.min()
    }

    /// Whether a file of these owners may hold so much more, where `held` says what each of them
    /// holds. The strictest answer counts: what is refused for one is refused.
    pub fn admit(
        &self,
        owners: Owners,
        held: impl Fn(Owner) -> Held,
        more: Held,
    ) -> Result<(), (Owner, Excess)> {
        if self.is_empty() {
            return Ok(());
        }
        for owner in owners.each() {
            if let Some(bounds) = self.of(owner) {
                let admitted = bounds.admit(held(owner), more);
                admitted.map_err(|excess| (owner, excess))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
