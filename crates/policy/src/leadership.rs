//! Whether a metadata server may still change the PFS, and when a standby may begin.
//!
//! A store with elections gives a lease and says who leads; what follows from the lease is decided
//! here. The PFS knows nothing of terms: it takes a rename from whoever is late. So a leader stops
//! well before its lease ends by its own clock, and a new leader waits until the old lease has
//! ended by any clock (leases with bounded clock rates: Gray and Cheriton 1989).
//!
//! Times are seconds of the boot clock of the node that asks, which runs on while the node is
//! suspended. Only their differences are compared, so that clocks may differ by hours. Their rates
//! may differ from true seconds by [`CLOCK_RATE_ERROR`] each.
//!
//! What a lease cannot bound is a call that the kernel holds: it was begun in time and ends when
//! the PFS answers. [`TermRules::margin_s`] covers what usually takes so long. The rest is for
//! names: a leader works in temporaries named after its term, and the next one removes those of
//! older terms before its first change, so that a late rename finds nothing to rename.

/// Most that a clock is off, of a second: quartz is good for 100 ppm, and time daemons bend clocks
/// by up to 500 ppm.
pub const CLOCK_RATE_ERROR: f64 = 1e-3;

/// What a cluster agrees on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TermRules {
    /// Time to live of the lease in the store, seconds.
    pub ttl_s: f64,
    /// A change of the PFS that was begun in time has ended after this, as a rule; seconds, less
    /// than half of `ttl_s`.
    pub margin_s: f64,
}

/// Why rules are refused.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum TermError {
    /// There would be no time to lead in.
    #[error("a lease of {ttl_s} s has no room for a margin of {margin_s} s: at most half of it")]
    Margin {
        /// As given.
        ttl_s: f64,
        /// As given.
        margin_s: f64,
    },
}

impl TermRules {
    /// Checks what [`TermRules`] says of its fields.
    pub fn new(ttl_s: f64, margin_s: f64) -> Result<Self, TermError> {
        let is_usable = ttl_s.is_finite() && margin_s >= 0.0 && margin_s < ttl_s / 2.0;
        match is_usable {
            true => Ok(Self { ttl_s, margin_s }),
            false => Err(TermError::Margin { ttl_s, margin_s }),
        }
    }

    /// When a lease ends that the store granted or renewed on a request sent at `asked_at_s`: not
    /// when the answer came, for it may have been under way for long. A store whose clock is fast
    /// ends it early.
    fn valid_until_s(&self, asked_at_s: f64) -> f64 {
        asked_at_s + self.ttl_s * (1.0 - CLOCK_RATE_ERROR) / (1.0 + CLOCK_RATE_ERROR)
    }

    /// How often a leader renews: three times before it would have to stop.
    pub fn renew_every_s(&self) -> f64 {
        (self.ttl_s - self.margin_s) / 4.0
    }
}

/// What a metadata server may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Authority {
    /// It may change the PFS, and promise.
    MayChange,
    /// It begins no change and makes no promise: requests wait. If the lease is renewed it goes on.
    MustStop,
    /// The term is over: it answers nobody, and never goes on in this term. It may stand for
    /// election again, as one that knows nothing.
    MustStepDown,
}

/// The term of a leader, as the leader sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Term {
    rules: TermRules,
    valid_until_s: f64,
    is_over: bool,
}

impl Term {
    /// Elected, on a request that was sent at `asked_at_s`.
    pub fn new(rules: TermRules, asked_at_s: f64) -> Self {
        Self {
            rules,
            valid_until_s: rules.valid_until_s(asked_at_s),
            is_over: false,
        }
    }

    /// The store has renewed the lease, on a request that was sent at `asked_at_s`. A term that is
    /// over stays over: others may have led since.
    pub fn renewed(&mut self, asked_at_s: f64, now_s: f64) {
        if self.authority(now_s) != Authority::MustStepDown {
            let until_s = self.rules.valid_until_s(asked_at_s);
            self.valid_until_s = self.valid_until_s.max(until_s);
        }
    }

    /// The store says that somebody else leads, or that the lease is gone.
    pub fn lost(&mut self) {
        self.is_over = true;
    }

    /// What may be done. Ask right before each change of the PFS, not once for many: a process may
    /// be stopped between any two steps.
    pub fn authority(&mut self, now_s: f64) -> Authority {
        self.is_over |= now_s >= self.valid_until_s;
        match self.is_over {
            true => Authority::MustStepDown,
            false if now_s >= self.valid_until_s - self.rules.margin_s => Authority::MustStop,
            false => Authority::MayChange,
        }
    }

    /// Seconds until [`Authority`] changes if nothing is renewed; `None` after the last change.
    pub fn next_change_s(&mut self, now_s: f64) -> Option<f64> {
        match self.authority(now_s) {
            Authority::MayChange => Some(self.valid_until_s - self.rules.margin_s - now_s),
            Authority::MustStop => Some(self.valid_until_s - now_s),
            Authority::MustStepDown => None,
        }
    }
}

/// How the term before this one ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Predecessor {
    /// There was none: the store has no term on record.
    None,
    /// It wrote down, under its own term, that it had ended all changes.
    Resigned,
    /// It said nothing: it may be alive and believe in a lease that it renewed just before.
    Unknown,
}

/// When the winner of an election may begin to change the PFS: `won_at_s` is when the store's
/// answer came, by the winner's clock.
///
/// The old leader's last renewal reached the store before that. So its lease has ended after one
/// more time to live, however the store came to elect another: by expiry, or because a person took
/// the lease away. Waiting costs the fail-over a time to live once; not waiting could cost a file.
pub fn may_begin_at_s(rules: &TermRules, predecessor: Predecessor, won_at_s: f64) -> f64 {
    match predecessor {
        Predecessor::None | Predecessor::Resigned => won_at_s,
        // The old leader stops within `ttl_s` by true seconds; these are counted by a clock that
        // may be fast.
        Predecessor::Unknown => won_at_s + rules.ttl_s * (1.0 + CLOCK_RATE_ERROR),
    }
}

#[cfg(test)]
#[path = "leadership_tests.rs"]
mod tests;
