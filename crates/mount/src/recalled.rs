//! For how long an answer is believed that comes while the server recalls something.
//!
//! Invariants:
//!
//! 1. What was asked for before a recall was followed is not believed, however late its answer
//!    comes: it may be from before the change.
//! 2. Nothing is believed for longer than [`limits::SHOWN_FOR`] from the request on.

use std::time::{Duration, Instant};

use forebay_types::limits;
use parking_lot::{RwLock, RwLockReadGuard};

/// Counts the recalls that were followed.
#[derive(Default)]
pub(crate) struct Recalled(RwLock<u64>);

/// A moment at which the server is asked.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    at: Instant,
    recalls: u64,
}

/// While it is held no recall is followed.
pub(crate) struct Firm<'a> {
    /// For how long the answer may be believed.
    pub(crate) span: Duration,
    _guard: RwLockReadGuard<'a, u64>,
}

impl Recalled {
    /// Now.
    pub(crate) fn asked(&self) -> Asked {
        Asked {
            recalls: *self.0.read(),
            at: Instant::now(),
        }
    }

    /// The answer to what was asked then is about to be given to the kernel.
    pub(crate) fn firm(&self, asked: Asked) -> Firm<'_> {
        let guard = self.0.read();
        let span = match *guard == asked.recalls {
            true => limits::SHOWN_FOR.saturating_sub(asked.at.elapsed()),
            false => Duration::ZERO,
        };
        Firm {
            span,
            _guard: guard,
        }
    }

    /// No recall is followed while what is returned is held: for what the mount answers from
    /// memory.
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        self.0.read()
    }

    /// Answers to what was asked before are not believed any more, from here on. Nothing is
    /// answered from memory while `forget` runs, and nothing that it forgets after that.
    pub(crate) fn begin(&self, forget: impl FnOnce()) {
        let mut recalls = self.0.write();
        *recalls += 1;
        forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_before_a_recall_is_not_believed_and_nothing_for_long() {
        let recalled = Recalled::default();
        let before = recalled.asked();
        let span = recalled.firm(before).span;
        assert!(span > Duration::ZERO && span <= limits::SHOWN_FOR);
        recalled.begin(|| {});
        assert_eq!(recalled.firm(before).span, Duration::ZERO);
        assert!(recalled.firm(recalled.asked()).span > Duration::ZERO);
        let long_ago = Asked {
            at: Instant::now() - 2 * limits::SHOWN_FOR,
            ..recalled.asked()
        };
        assert_eq!(recalled.firm(long_ago).span, Duration::ZERO);
    }
}
