//! Rates of writes of users and groups. A write is done at once and paid for afterwards: its
//! program hears of it once the rate has caught up. Whoever waits holds no memory meanwhile, and
//! holds up nobody else.

use std::collections::HashMap;

use crate::limits::{Limit, Limits, Owner, Owners};
use crate::throttle::TokenBucket;

/// Debt below this makes nobody wait, seconds: a pause costs its program more than its length.
pub const FORGIVEN_S: f64 = 0.05;
/// Longest pause of one write, seconds: while a program waits in a write, the kernel lets nobody
/// remove or rename the file, and whoever tries holds the directory.
pub const PAUSE_MAX_S: f64 = 5.0;
/// More is not owed, seconds of the rate: others of a group pay for what one has written, and
/// programs that were killed do not wait for what they owe.
pub const DEBT_MAX_S: f64 = 10.0;
/// What is written back for programs that cannot be made to wait adds debt up to this, seconds.
pub const UNASKED_DEBT_MAX_S: f64 = 2.0;
/// Users and groups that are remembered; beyond, those who owe nothing are forgotten.
const REMEMBERED_MAX: usize = 4096;

/// What one user or group has written since its rate is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Written {
    /// Bytes.
    pub bytes: u64,
    /// Sum of the pauses that its writes were told to make, seconds.
    pub paused_s: f64,
}

#[derive(Clone, Copy, Debug)]
struct Account {
    bucket: TokenBucket,
    written: Written,
}

/// All users and groups with a rate, and what they owe. Times are seconds on a clock that does not
/// go back.
#[derive(Debug, Default)]
pub struct Rates {
    limits: Limits,
    accounts: HashMap<Owner, Account>,
}

impl Rates {
    /// Takes other limits into force; who keeps a rate keeps the debt.
    pub fn set(&mut self, limits: &[Limit], now_s: f64) {
        // Rates are no shares of a capacity.
        self.limits = Limits::new(limits, 0);
        let limits = &self.limits;
        self.accounts.retain(|owner, account| {
            let rate = rate_of(limits, *owner);
            account.bucket.set_rate(rate, now_s);
            rate.is_some()
        });
    }

    /// Whether one of them has a rate.
    pub fn limits(&self, owners: Owners) -> bool {
        let mut each = owners.each().into_iter();
        each.any(|owner| rate_of(&self.limits, owner).is_some())
    }

    /// So many bytes of a file of these owners were written. Answers with the pause, in seconds,
    /// after which the program is to hear of it; 0 where it was not `asked` for by a program that
    /// waits. The longer pause of the two owners counts.
    pub fn wrote(&mut self, owners: Owners, bytes: u64, asked: bool, now_s: f64) -> f64 {
        let mut longest_s: f64 = 0.0;
        for owner in owners.each() {
            let Some(rate) = rate_of(&self.limits, owner) else {
                continue;
            };
            let account = self.accounts.entry(owner).or_insert_with(|| Account {
                bucket: TokenBucket::new(Some(rate), now_s),
                written: Written::default(),
            });
            account.written.bytes += bytes;
            let most_s = if asked {
                DEBT_MAX_S
            } else {
                UNASKED_DEBT_MAX_S
            };
            if account.bucket.debt_s(now_s) < most_s {
                account.bucket.take(bytes, now_s);
            }
            let pause_s = account.bucket.debt_s(now_s).min(PAUSE_MAX_S);
            if asked && pause_s >= FORGIVEN_S {
                account.written.paused_s += pause_s;
                longest_s = longest_s.max(pause_s);
            }
        }
        self.forget_some(now_s);
        longest_s
    }

    /// What somebody has written.
    pub fn written(&self, owner: Owner) -> Written {
        let account = self.accounts.get(&owner);
        account.map_or_else(Written::default, |account| account.written)
    }

    fn forget_some(&mut self, now_s: f64) {
        if self.accounts.len() > REMEMBERED_MAX {
            self.accounts
                .retain(|_, account| account.bucket.debt_s(now_s) > 0.0);
        }
    }
}

fn rate_of(limits: &Limits, owner: Owner) -> Option<f64> {
    let rate = limits.of(owner)?.rate_bytes_per_s?;
    Some(rate as f64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::{Beyond, Whose};
    use crate::throttle::BURST_S;

    const MIB: u64 = 1 << 20;

    fn limit(whose: Whose, rate: u64) -> Limit {
        Limit {
            whose,
            capacity: None,
            undrained: None,
            rate_bytes_per_s: Some(rate),
            beyond: Beyond::Wait,
        }
    }

    fn rates(limits: &[Limit]) -> Rates {
        let mut rates = Rates::default();
        rates.set(limits, 0.0);
        rates
    }

    fn of(uid: u32, gid: u32) -> Owners {
        Owners { uid, gid }
    }

    #[test]
    fn who_has_no_rate_never_waits() {
        let one = limit(Whose::One(Owner::User(1)), MIB);
        let mut rates = rates(&[one, limit(Whose::EachGroup, MIB)]);
        for owners in [of(2, 0), of(0, 0)] {
            assert!(!rates.limits(owners));
            assert_eq!(rates.wrote(owners, 1 << 40, true, 0.0), 0.0);
        }
        assert!(rates.limits(of(1, 0)) && rates.limits(of(2, 3)));
        // The debt of one is not that of another.
        assert_eq!(rates.wrote(of(1, 0), 4 * MIB, true, 0.0), 4.0);
        assert_eq!(rates.wrote(of(2, 0), 10 * MIB, true, 0.0), 0.0);
        assert_eq!(rates.written(Owner::User(1)).bytes, 4 * MIB);
        assert_eq!(rates.written(Owner::User(2)), Written::default());
    }

    #[test]
    fn the_slower_of_user_and_group_counts() {
        let user = limit(Whose::One(Owner::User(1)), 4 * MIB);
        let mut rates = rates(&[user, limit(Whose::One(Owner::Group(7)), MIB)]);
        let pause_s = rates.wrote(of(1, 7), 4 * MIB, true, 0.0);
        assert!((pause_s - 4.0).abs() < 1e-6, "{pause_s}");
        // Others of the group pay for that, too.
        let pause_s = rates.wrote(of(2, 7), MIB, true, 1.0);
        assert!((pause_s - 4.0).abs() < 1e-6, "{pause_s}");
    }

    #[test]
    fn what_nobody_waits_for_makes_a_debt_that_is_bounded() {
        let mut rates = rates(&[limit(Whose::EachUser, MIB)]);
        for _ in 0..1000 {
            assert_eq!(rates.wrote(of(1, 1), MIB / 2, false, 0.0), 0.0);
        }
        let pause_s = rates.wrote(of(1, 1), 1, true, 0.0);
        assert!((2.0..=2.5 + 1e-6).contains(&pause_s), "{pause_s}");
    }

    #[test]
    fn a_rate_that_is_lifted_is_forgiven_and_one_that_stays_is_not() {
        let all = [
            limit(Whose::One(Owner::User(1)), MIB),
            limit(Whose::One(Owner::User(2)), MIB),
        ];
        let mut rates = rates(&all);
        rates.wrote(of(1, 0), 6 * MIB, true, 0.0);
        rates.wrote(of(2, 0), 6 * MIB, true, 0.0);
        rates.set(&all[..1], 1.0);
        rates.set(&all, 2.0);
        assert!(rates.wrote(of(1, 0), 1, true, 2.0) > 3.9);
        assert_eq!(rates.wrote(of(2, 0), 1, true, 2.0), 0.0);
    }

    #[test]
    fn a_pause_and_a_debt_are_bounded() {
        let mut rates = rates(&[limit(Whose::EachGroup, MIB)]);
        for _ in 0..1000 {
            assert!(rates.wrote(of(1, 7), 4 * MIB, true, 0.0) <= PAUSE_MAX_S);
        }
        // Nobody pays for all that.
        let own_s = 1.0 - BURST_S;
        assert!(rates.wrote(of(2, 7), MIB, true, 15.0) <= own_s);
    }

    proptest! {
        /// Programs that wait as they are told write no more than their rate in any long time, and
        /// hardly less.
        #[test]
        fn the_rate_is_held(
            rate in 64 * 1024u64..(1 << 32),
            parts in proptest::collection::vec(0.001f64..1.0, 1..8),
            late_s in 0.0f64..0.2,
        ) {
            let mut rates = rates(&[limit(Whose::EachUser, rate)]);
            // All of them together write what the longest pause is worth at most.
            let most = rate as f64 * PAUSE_MAX_S / 8.0;
            let sizes: Vec<u64> = parts.iter().map(|part| (part * most) as u64 + 1).collect();
            // When each of some programs may write next.
            let mut next: Vec<f64> = vec![0.0; sizes.len()];
            let mut passed = 0.0;
            let most_debt = (sizes.iter().sum::<u64>() as f64 / rate as f64).max(1.0);
            let end_s = 40.0 * most_debt;
            let tick = FORGIVEN_S / 4.0;
            for _ in 0..200_000 {
                let (who, at) = next.iter().copied().enumerate()
                    .min_by(|a, b| a.1.total_cmp(&b.1)).expect("some");
                if at > end_s {
                    break;
                }
                let pause_s = rates.wrote(of(1, 1), sizes[who], true, at);
                passed += sizes[who] as f64;
                // A write takes some time by itself.
                let takes_s = if pause_s > 0.0 { late_s } else { tick * 0.01 };
                next[who] = at + pause_s + takes_s;
            }
            let until = next.iter().copied().fold(f64::INFINITY, f64::min).min(end_s);
            let requests: f64 = sizes.iter().map(|s| *s as f64).sum();
            let slack = rate as f64 * (BURST_S + FORGIVEN_S) + requests;
            prop_assert!(passed <= rate as f64 * until + slack + 1.0,
                "{passed} in {until} s at {rate}");
        }
    }
}
