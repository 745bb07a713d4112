//! Space reserved per application, no sharing: how DataWarp allocates a burst buffer, and what
//! `dedicated` compares with.
//!
//! An application is given its share when it first asks and keeps it until [`Shares::release`],
//! which is for [`has_ended`] to say where nobody announces the end of a job. It never takes space
//! of others, full or not; whoever finds everything given away goes without.

use std::collections::BTreeMap;

/// Periods without a sign of life after which an application has ended: one that runs writes in
/// every period.
pub const ENDED_AFTER_PERIODS: f64 = 2.0;

/// Whether an application has ended, as far as its files tell. Nothing of it is undrained
/// (`dirty_bytes`), and the `idle_s` since it last opened or closed a file are more than two
/// periods of `period_s`.
pub fn has_ended(dirty_bytes: u64, idle_s: f64, period_s: f64) -> bool {
    dirty_bytes == 0 && idle_s > ENDED_AFTER_PERIODS * period_s
}

/// How much of a capacity is given away in shares of `share_bytes`, which is at least one byte. As
/// many shares as fit, and one at least. Each takes 64 KiB or a 1024th more than its bytes: a file
/// system needs room for blocks that are not full, and for lists of blocks.
pub fn given_away_bytes(capacity_bytes: u64, share_bytes: u64) -> u64 {
    let beyond = (share_bytes >> 10).max(64 << 10);
    let count = capacity_bytes / share_bytes.saturating_add(beyond);
    count.max(1).saturating_mul(share_bytes)
}

/// Why shares are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// Nothing to give.
    #[error("a share must be at least one byte")]
    Zero,
    /// Not even one fits.
    #[error("a share of {share_bytes} bytes exceeds the capacity of {capacity_bytes} bytes")]
    ExceedsCapacity {
        /// One share.
        share_bytes: u64,
        /// All there is.
        capacity_bytes: u64,
    },
}

/// Whether bytes of an application may come into the burst buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ShareAdmission {
    /// The file fits into its share.
    Admit,
    /// Its own share is full: it waits until its own data has been demoted, whatever is free
    /// elsewhere.
    Wait,
    /// Never in one piece: larger than a share.
    TooLarge,
    /// All shares are given away: it waits for one, or writes straight to the PFS.
    NoShare,
}

/// Who owns how much. Invariants: 1. Shares given away are at most the capacity. 2. `used` of each
/// is at most its share.
#[derive(Debug, Clone)]
pub struct Shares {
    capacity_bytes: u64,
    share_bytes: u64,
    used_bytes: BTreeMap<u64, u64>,
}

impl Shares {
    /// All shares are of one size.
    pub fn new(capacity_bytes: u64, share_bytes: u64) -> Result<Self, ShareError> {
        if share_bytes == 0 {
            return Err(ShareError::Zero);
        }
        if share_bytes > capacity_bytes {
            return Err(ShareError::ExceedsCapacity {
                share_bytes,
                capacity_bytes,
            });
        }
        Ok(Self {
            capacity_bytes,
            share_bytes,
            used_bytes: BTreeMap::new(),
        })
    }

    /// Asks for `bytes` more; they count as used where admitted.
    pub fn admit(&mut self, application: u64, bytes: u64) -> ShareAdmission {
        if bytes > self.share_bytes {
            return ShareAdmission::TooLarge;
        }
        let owners = self.used_bytes.len() as u64;
        let is_free = (owners + 1).saturating_mul(self.share_bytes) <= self.capacity_bytes;
        let Some(used) = self.used_bytes.get_mut(&application) else {
            if !is_free {
                return ShareAdmission::NoShare;
            }
            self.used_bytes.insert(application, bytes);
            return ShareAdmission::Admit;
        };
        if *used + bytes > self.share_bytes {
            return ShareAdmission::Wait;
        }
        *used += bytes;
        ShareAdmission::Admit
    }

    /// Whether `bytes` more would be admitted. Nothing counts as used yet, but who has no share
    /// gets one.
    pub fn has_room(&mut self, application: u64, bytes: u64) -> ShareAdmission {
        let answer = self.admit(application, bytes);
        if answer == ShareAdmission::Admit {
            self.freed(application, bytes);
        }
        answer
    }

    /// Data of an application has left the burst buffer.
    pub fn freed(&mut self, application: u64, bytes: u64) {
        if let Some(used) = self.used_bytes.get_mut(&application) {
            *used = used.saturating_sub(bytes);
        }
    }

    /// Sets what an application uses, as counted elsewhere; gives it a share if one is free.
    pub fn set_used(&mut self, application: u64, bytes: u64) -> ShareAdmission {
        self.freed(application, u64::MAX);
        self.admit(application, bytes.min(self.share_bytes))
    }

    /// The job has ended: its share is free again.
    pub fn release(&mut self, application: u64) {
        self.used_bytes.remove(&application);
    }

    /// Applications that own a share.
    pub fn owners(&self) -> impl Iterator<Item = u64> {
        self.used_bytes.keys().copied()
    }

    /// One share.
    pub fn share_bytes(&self) -> u64 {
        self.share_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_full_share_waits_though_others_are_empty() {
        let mut s = Shares::new(100, 40).expect("valid");
        assert_eq!(s.admit(1, 40), ShareAdmission::Admit);
        assert_eq!(s.admit(1, 1), ShareAdmission::Wait);
        assert_eq!(s.admit(2, 0), ShareAdmission::Admit);
        assert_eq!(
            s.admit(3, 1),
            ShareAdmission::NoShare,
            "two shares of 40 in 100"
        );
        s.freed(1, 10);
        assert_eq!(s.admit(1, 10), ShareAdmission::Admit);
        assert_eq!(s.admit(1, 41), ShareAdmission::TooLarge);
        s.release(2);
        assert_eq!(s.admit(3, 40), ShareAdmission::Admit);
    }

    #[test]
    fn asking_for_room_takes_a_share_and_no_space() {
        let mut s = Shares::new(100, 40).expect("valid");
        assert_eq!(s.has_room(1, 40), ShareAdmission::Admit);
        assert_eq!(s.has_room(2, 0), ShareAdmission::Admit);
        assert_eq!(s.has_room(3, 1), ShareAdmission::NoShare);
        assert_eq!(s.admit(1, 40), ShareAdmission::Admit);
        assert_eq!(s.has_room(1, 1), ShareAdmission::Wait);
    }

    #[test]
    fn who_writes_in_every_period_or_has_something_to_drain_has_not_ended() {
        assert!(!has_ended(0, 3600.0, 3600.0));
        assert!(!has_ended(1, 1e9, 3600.0));
        assert!(has_ended(0, 7201.0, 3600.0));
    }

    #[test]
    fn bad_shares_are_refused() {
        assert_eq!(Shares::new(10, 0).unwrap_err(), ShareError::Zero);
        assert!(Shares::new(10, 11).is_err());
    }

    proptest! {
        #[test]
        fn what_is_given_away_leaves_room_for_what_files_take_beyond_their_bytes(capacity in 1u64..1 << 40, share in 1u64..1 << 40) {
            let share = share.min(capacity);
            let given = given_away_bytes(capacity, share);
            prop_assert!(given <= capacity && given >= share && given.is_multiple_of(share));
            let count = given / share;
            prop_assert!(count == 1 || given + count * (64 << 10) <= capacity);
            prop_assert!(count == 1 || given + given / 1024 <= capacity + count);
        }

        #[test]
        fn never_more_than_there_is(ops in proptest::collection::vec((0u8..4, 0u64..6, 0u64..50), 0..100), share in 1u64..40) {
            let mut s = Shares::new(100, share).expect("valid");
            for (op, app, bytes) in ops {
                match op {
                    0 => s.freed(app, bytes),
                    1 => s.release(app),
                    2 => { s.set_used(app, bytes); }
                    _ => { s.admit(app, bytes); }
                }
                prop_assert!(s.used_bytes.len() as u64 * share <= 100);
                prop_assert!(s.used_bytes.values().all(|used| *used <= share));
            }
        }
    }
}
