//! Shares of a rate that are lent to holders: together never more than there is, whatever messages
//! are late, lost or sent twice.
//!
//! Brmax is the PFS's. A holder reports what it has to drain and is answered with a share
//! ([`crate::fairshare`]), which lapses after a period: a holder that is silent gives its share
//! back without being asked. What is lowered counts as lent until the holder says that it has the
//! lower share, or the higher one has lapsed; only then others get it.
//!
//! A holder that reports at least four times in each period has its part of what there is within
//! one period and a report, even where another one died with all of it.

use crate::fairshare::{Work, shares};
use crate::holders::HolderId;
use crate::leadership::CLOCK_RATE_ERROR;
use std::collections::BTreeMap;

/// What a holder may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateShare {
    /// Counts shares; a later one is greater.
    pub number: u64,
    /// Bytes/s.
    pub bytes_per_s: f64,
    /// It lapses so many seconds after the report that it answers was sent.
    pub for_s: f64,
}

/// Part of what is lent.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Lent {
    bytes_per_s: f64,
    until_s: f64,
}

impl Lent {
    const NONE: Lent = Lent {
        bytes_per_s: 0.0,
        until_s: f64::NEG_INFINITY,
    };

    fn at(&self, now_s: f64) -> f64 {
        if now_s < self.until_s {
            self.bytes_per_s
        } else {
            0.0
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Borrower {
    work: Work,
    reported_at_s: f64,
    number: u64,
    /// The share with that number.
    last: Lent,
    /// The most of those before it, as long as the holder may not know of the last.
    before: Lent,
}

impl Borrower {
    fn lent(&self, now_s: f64) -> f64 {
        self.last.at(now_s).max(self.before.at(now_s))
    }
}

/// The lender: at the leader. Invariant: what is lent at any time is at most the largest total that
/// was given within the last period.
#[derive(Debug, Clone)]
pub struct RateLender {
    period_s: f64,
    number: u64,
    lends_from_s: f64,
    borrowers: BTreeMap<HolderId, Borrower>,
}

impl RateLender {
    /// Shares lapse after `period_s`. `first_number` is greater than any that a lender before this
    /// one has used: the epoch in its upper bits. What that one has lent lapses first, so that
    /// nothing is lent for a period.
    pub fn new(period_s: f64, first_number: u64, now_s: f64) -> Self {
        Self {
            period_s,
            number: first_number,
            lends_from_s: now_s + Self::lent_for_s(period_s),
            borrowers: BTreeMap::new(),
        }
    }

    /// A period of the holder's clock, by that of the lender at most.
    fn lent_for_s(period_s: f64) -> f64 {
        period_s * (1.0 + CLOCK_RATE_ERROR) / (1.0 - CLOCK_RATE_ERROR)
    }

    /// A holder reports what it has to drain, and the number of the last share that it has
    /// ([`RateBorrower::number`]). Answers with its share of `total_bytes_per_s`, in sum over all
    /// holders what the plan gives.
    pub fn report(
        &mut self,
        holder: HolderId,
        work: Work,
        has_number: u64,
        total_bytes_per_s: f64,
        now_s: f64,
    ) -> RateShare {
        self.forget_silent(now_s);
        let old = self.borrowers.get(&holder).copied();
        let before = match old {
            None => Lent::NONE,
            Some(b) if has_number == b.number => b.last,
            // It has one of those before, and may have the last by the time that this arrives.
            Some(b) => Lent {
                bytes_per_s: b.lent(now_s),
                until_s: b.last.until_s.max(b.before.until_s),
            },
        };
        self.number += 1;
        let entry = Borrower {
            work,
            reported_at_s: now_s,
            number: self.number,
            last: Lent::NONE,
            before,
        };
        self.borrowers.insert(holder, entry);
        let bytes_per_s = self.free_for(holder, total_bytes_per_s, now_s);
        if let Some(entry) = self.borrowers.get_mut(&holder) {
            entry.last = Lent {
                bytes_per_s,
                until_s: now_s + Self::lent_for_s(self.period_s),
            };
        }
        RateShare {
            number: self.number,
            bytes_per_s,
            for_s: self.period_s,
        }
    }

    /// What is lent now, bytes/s.
    pub fn lent_bytes_per_s(&self, now_s: f64) -> f64 {
        self.borrowers.values().map(|b| b.lent(now_s)).sum()
    }

    /// The holder's part, as far as others have not still borrowed it.
    fn free_for(&self, holder: HolderId, total_bytes_per_s: f64, now_s: f64) -> f64 {
        if now_s < self.lends_from_s {
            return 0.0;
        }
        let work: Vec<Work> = self.borrowers.values().map(|b| b.work).collect();
        let fair = shares(total_bytes_per_s, &work);
        let own = self
            .borrowers
            .keys()
            .zip(fair)
            .find(|(id, _)| **id == holder);
        let others = self.borrowers.iter().filter(|(id, _)| **id != holder);
        let lent: f64 = others.map(|(_, b)| b.lent(now_s)).sum();
        let free = (total_bytes_per_s - lent).max(0.0);
        own.map_or(0.0, |(_, share)| share.min(free))
    }

    /// Who has not reported for a period has no work that counts.
    fn forget_silent(&mut self, now_s: f64) {
        let period_s = Self::lent_for_s(self.period_s);
        self.borrowers
            .retain(|_, b| now_s < b.reported_at_s + period_s || b.lent(now_s) > 0.0);
    }
}

/// The borrower: at the holder, by its own clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateBorrower {
    number: u64,
    share: Lent,
}

impl Default for RateBorrower {
    fn default() -> Self {
        Self {
            number: 0,
            share: Lent::NONE,
        }
    }
}

impl RateBorrower {
    /// The answer to the report that was sent at `asked_at_s`. One that comes after a later one is
    /// ignored.
    pub fn answered(&mut self, share: RateShare, asked_at_s: f64) {
        if share.number > self.number {
            self.number = share.number;
            self.share = Lent {
                bytes_per_s: share.bytes_per_s,
                until_s: asked_at_s + share.for_s,
            };
        }
    }

    /// For the next report.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Bytes/s that may be used now; 0 once the share has lapsed.
    pub fn bytes_per_s(&self, now_s: f64) -> f64 {
        self.share.at(now_s)
    }
}

#[cfg(test)]
#[path = "ratelease_tests.rs"]
mod tests;
