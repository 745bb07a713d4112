//! How many lines of one kind are written in a minute.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Level, Metadata};

/// Lines of one kind are counted for so long.
const PERIOD: Duration = Duration::from_secs(60);
/// Most warnings of one kind in a period.
pub(super) const WARNINGS_MAX: u64 = 20;
/// Errors name what was lost, so there may be more of them.
pub(super) const ERRORS_MAX: u64 = 1000;

/// Lines that one place in the code says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    place: Identifier,
    is_error: bool,
}

impl Kind {
    /// The kind of a line; `None` for debug and trace lines, which are not limited in number.
    pub(super) fn of(meta: &Metadata<'_>) -> Option<Kind> {
        let is_limited = *meta.level() <= Level::INFO;
        is_limited.then(|| Kind {
            place: meta.callsite(),
            is_error: *meta.level() == Level::ERROR,
        })
    }

    fn lines_max(&self) -> u64 {
        match self.is_error {
            true => ERRORS_MAX,
            false => WARNINGS_MAX,
        }
    }
}

/// Lines of one kind that were not written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Surplus {
    pub(super) lines: u64,
    /// The last of them.
    pub(super) last: Vec<u8>,
}

#[derive(Debug)]
struct Count {
    since: Instant,
    written: u64,
    held_back: u64,
    last: Vec<u8>,
}

impl Count {
    fn new(since: Instant) -> Count {
        Count {
            since,
            written: 0,
            held_back: 0,
            last: Vec::new(),
        }
    }

    fn surplus(self) -> Option<Surplus> {
        (self.held_back > 0).then_some(Surplus {
            lines: self.held_back,
            last: self.last,
        })
    }
}

/// Counts lines. There are as many kinds as places in the code, so this stays small.
#[derive(Debug, Default)]
pub(super) struct Limits {
    kinds: HashMap<Kind, Count>,
}

impl Limits {
    /// Whether a line is to be written; and, where it begins a new period, what the last period
    /// held back.
    pub(super) fn admit(
        &mut self,
        kind: Kind,
        now: Instant,
        line: &[u8],
    ) -> (bool, Option<Surplus>) {
        let lines_max = kind.lines_max();
        let count = self.kinds.entry(kind).or_insert_with(|| Count::new(now));
        let mut before = None;
        if now.saturating_duration_since(count.since) >= PERIOD {
            before = std::mem::replace(count, Count::new(now)).surplus();
        }
        if count.written < lines_max {
            count.written += 1;
            return (true, before);
        }
        count.held_back += 1;
        count.last.clear();
        count.last.extend_from_slice(line);
        (false, before)
    }

    /// What was held back in periods that are over.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Surplus> {
        let is_over =
            |_: &Kind, count: &mut Count| now.saturating_duration_since(count.since) >= PERIOD;
        let over = self.kinds.extract_if(is_over);
        over.filter_map(|(_, count)| count.surplus()).collect()
    }

    /// Ends all periods.
    #[cfg(test)]
    pub(super) fn end_all(&mut self) -> Vec<Surplus> {
        let counts = self.kinds.drain();
        counts.filter_map(|(_, count)| count.surplus()).collect()
    }
}

#[cfg(test)]
mod tests {
    use tracing::callsite::Callsite;

    use super::*;

    struct Place;

    impl Callsite for Place {
        fn set_interest(&self, _: tracing::subscriber::Interest) {}

        fn metadata(&self) -> &Metadata<'_> {
            unreachable!("nobody asks")
        }
    }

    static PLACE: Place = Place;

    fn kind(is_error: bool) -> Kind {
        Kind {
            place: Identifier(&PLACE),
            is_error,
        }
    }

    #[test]
    fn a_kind_has_its_lines_a_minute_and_the_rest_is_counted() {
        let (mut limits, begun) = (Limits::default(), Instant::now());
        for is_error in [false, true] {
            let kind = kind(is_error);
            let written = (0..2000).filter(|_| limits.admit(kind.clone(), begun, b"x").0);
            assert_eq!(written.count() as u64, kind.lines_max());
        }
        assert_eq!(limits.due(begun), []);
        let (admitted, before) = limits.admit(kind(false), begun + PERIOD, b"y");
        assert!(admitted);
        let held_back = |lines: u64| Surplus {
            lines,
            last: b"x".to_vec(),
        };
        assert_eq!(before, Some(held_back(2000 - WARNINGS_MAX)));
        assert_eq!(
            limits.due(begun + PERIOD),
            [held_back(2000 - ERRORS_MAX)],
            "the other kind's new minute is not over"
        );
        assert_eq!(limits.due(begun + PERIOD * 2), []);
        assert!(limits.kinds.is_empty());
    }
}
