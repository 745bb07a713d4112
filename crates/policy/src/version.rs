//! Which checkpoint versions of one application are complete and which are outdated, and how large
//! its files are.
//!
//! Version-aware placement (BBOS 2023, victim order): an application keeps several versions but
//! needs only the newest complete one.

use std::collections::VecDeque;

/// Versions remembered per application. Far more than are kept in practice; the one begun longest
/// ago is forgotten first.
pub const MAX_TRACKED_VERSIONS: usize = 64;

/// Default of [`VersionTracker::new`]: longer than the gaps inside a burst, shorter than a
/// checkpoint period.
pub const DEFAULT_QUIET_S: f64 = 30.0;

/// Sizes remembered per file series.
pub const MAX_SIZE_HISTORY: usize = 8;

/// A prediction exceeds the largest size seen lately by one part in this many.
const SIZE_MARGIN_DIVISOR: u64 = 16;

#[derive(Debug, Clone, Copy)]
struct VersionState {
    /// Open for write now.
    open_writers: u32,
    /// Closes since it began.
    closes: u32,
    /// First open for write, or the first after it had been complete and quiet.
    begun_s: f64,
    last_event_s: f64,
    committed: bool,
}

/// Follows the checkpoint versions of one application.
///
/// A version is *complete* when it is committed, or when all its files are closed and either a
/// newer version has begun or nothing was written to it for the quiet time. A newer version that
/// has begun is not enough where fewer files were closed than the version before had: one writer
/// may be a burst ahead of another.
///
/// A version is *outdated* when a version with a higher number, begun no earlier, is complete. The
/// second condition serves the application that starts again from a lower number: what it writes
/// now is not outdated by what an earlier run left.
#[derive(Debug, Clone)]
pub struct VersionTracker {
    /// In their order. Most applications have one or two: a map of them would take ten times the
    /// memory.
    versions: Vec<(u64, VersionState)>,
    quiet_s: f64,
}

impl Default for VersionTracker {
    fn default() -> Self {
        Self::new(DEFAULT_QUIET_S)
    }
}

impl VersionTracker {
    /// `quiet_s`: seconds without a write event after which a version whose files are all closed is
    /// complete, at least 0.
    pub fn new(quiet_s: f64) -> Self {
        Self {
            versions: Vec::new(),
            quiet_s: quiet_s.max(0.0),
        }
    }

    /// A file of `version` was created or opened for write. A committed version is no longer taken
    /// as complete.
    pub fn opened_for_write(&mut self, version: u64, now_s: f64) {
        let quiet_s = self.quiet_s;
        let state = self.known(version, now_s);
        if state.open_writers == 0 && now_s - state.last_event_s > quiet_s {
            state.begun_s = now_s;
            state.closes = 0;
        }
        state.open_writers = state.open_writers.saturating_add(1);
        state.last_event_s = state.last_event_s.max(now_s);
        state.committed = false;
        self.forget_excess();
    }

    /// A file of `version` that was open for write was closed, or its writer died. Unknown versions
    /// are ignored.
    pub fn closed(&mut self, version: u64, now_s: f64) {
        if let Ok(at) = self.place(version) {
            let state = &mut self.versions[at].1;
            state.open_writers = state.open_writers.saturating_sub(1);
            state.closes = state.closes.saturating_add(1);
            state.last_event_s = state.last_event_s.max(now_s);
        }
    }

    /// `version` was published as one group; it is complete whatever is still open. Also makes a
    /// version known that was found complete at start-up.
    pub fn committed(&mut self, version: u64, now_s: f64) {
        self.known(version, now_s).committed = true;
        self.forget_excess();
    }

    /// The files of `version` are gone: it outdates nothing any more.
    pub fn removed(&mut self, version: u64) {
        if let Ok(at) = self.place(version) {
            self.versions.remove(at);
        }
    }

    /// Where it is, or would be.
    fn place(&self, version: u64) -> Result<usize, usize> {
        self.versions.binary_search_by_key(&version, |(v, _)| *v)
    }

    /// Its state; that of one that begins now where it was not known.
    fn known(&mut self, version: u64, now_s: f64) -> &mut VersionState {
        let at = self.place(version).unwrap_or_else(|at| {
            let begins = VersionState {
                open_writers: 0,
                closes: 0,
                begun_s: now_s,
                last_event_s: now_s,
                committed: false,
            };
            self.versions.insert(at, (version, begins));
            at
        });
        &mut self.versions[at].1
    }

    /// Those with a higher number.
    fn after(&self, version: u64) -> &[(u64, VersionState)] {
        let at = self.place(version).map_or_else(|at| at, |at| at + 1);
        &self.versions[at..]
    }

    /// Whether `version` is complete at `now_s`. Unknown versions are not.
    pub fn is_complete(&self, version: u64, now_s: f64) -> bool {
        let Ok(at) = self.place(version) else {
            return false;
        };
        let state = &self.versions[at].1;
        if state.committed {
            return true;
        }
        if state.open_writers > 0 || state.closes == 0 {
            return false;
        }
        if now_s - state.last_event_s >= self.quiet_s {
            return true;
        }
        let before = self.versions[..at].last();
        let as_many = before.is_none_or(|(_, b)| state.closes >= b.closes);
        let after = &self.versions[at + 1..];
        as_many && after.iter().any(|(_, s)| s.begun_s >= state.begun_s)
    }

    /// The complete version that was begun last, the one a restart wants. `None` where none is
    /// complete.
    pub fn newest_complete(&self, now_s: f64) -> Option<u64> {
        let complete = self
            .versions
            .iter()
            .filter(|(v, _)| self.is_complete(*v, now_s));
        complete
            .max_by(|a, b| {
                a.1.begun_s
                    .total_cmp(&b.1.begun_s)
                    .then_with(|| a.0.cmp(&b.0))
            })
            .map(|(v, _)| *v)
    }

    /// Whether a newer version of the application is complete, so that no restart needs `version`.
    pub fn is_outdated(&self, version: u64, now_s: f64) -> bool {
        let begun_s = self
            .place(version)
            .ok()
            .map(|at| self.versions[at].1.begun_s);
        self.after(version)
            .iter()
            .any(|(v, s)| begun_s.is_none_or(|b| s.begun_s >= b) && self.is_complete(*v, now_s))
    }

    /// Versions it remembers, at most [`MAX_TRACKED_VERSIONS`].
    pub fn tracked(&self) -> usize {
        self.versions.len()
    }

    fn forget_excess(&mut self) {
        while self.versions.len() > MAX_TRACKED_VERSIONS {
            // Idle versions first; where all are open, the oldest goes all the same, for the bound
            // holds.
            let oldest = self.versions.iter().min_by(|a, b| {
                let open = |s: &VersionState| s.open_writers > 0;
                open(&a.1)
                    .cmp(&open(&b.1))
                    .then_with(|| a.1.begun_s.total_cmp(&b.1.begun_s))
                    .then_with(|| a.0.cmp(&b.0))
            });
            let Some(version) = oldest.map(|(v, _)| *v) else {
                return;
            };
            self.removed(version);
        }
    }
}

/// The sizes that files of one series had when they were closed.
#[derive(Debug, Clone, Default)]
pub struct SizeHistory {
    sizes_bytes: VecDeque<u64>,
}

impl SizeHistory {
    /// A file of the series was closed after being written; `bytes` is its size then. Keeps the
    /// last [`MAX_SIZE_HISTORY`].
    pub fn observe(&mut self, bytes: u64) {
        if self.sizes_bytes.len() == MAX_SIZE_HISTORY {
            self.sizes_bytes.pop_front();
        }
        self.sizes_bytes.push_back(bytes);
    }

    /// Bytes a new file of the series will need: the largest of the last few, and a sixteenth more.
    /// `None` before the first.
    pub fn predict(&self) -> Option<u64> {
        let largest = self.sizes_bytes.iter().max()?;
        Some(largest.saturating_add(largest.div_ceil(SIZE_MARGIN_DIVISOR)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn burst(tracker: &mut VersionTracker, version: u64, files: u32, at_s: f64) {
        for _ in 0..files {
            tracker.opened_for_write(version, at_s);
        }
        for _ in 0..files {
            tracker.closed(version, at_s + 1.0);
        }
    }

    #[test]
    fn complete_when_the_next_version_begins() {
        let mut t = VersionTracker::new(30.0);
        burst(&mut t, 1, 4, 0.0);
        assert_eq!(t.newest_complete(2.0), None);
        t.opened_for_write(2, 3.0);
        assert_eq!(t.newest_complete(3.0), Some(1));
        assert!(!t.is_outdated(1, 3.0), "version 2 is not complete");
    }

    #[test]
    fn complete_after_the_quiet_time_or_a_commit() {
        let mut t = VersionTracker::new(30.0);
        burst(&mut t, 1, 4, 0.0);
        assert_eq!(t.newest_complete(31.0), Some(1));
        burst(&mut t, 2, 4, 40.0);
        assert!(!t.is_outdated(1, 42.0));
        t.committed(2, 42.0);
        assert!(t.is_outdated(1, 42.0));
        assert!(!t.is_outdated(2, 42.0));
        assert_eq!(t.newest_complete(42.0), Some(2));
        assert!(t.is_outdated(0, 42.0), "versions never seen are older too");
    }

    #[test]
    fn a_fast_writer_does_not_complete_a_version_for_the_others() {
        let mut t = VersionTracker::new(30.0);
        burst(&mut t, 1, 4, 0.0);
        burst(&mut t, 2, 1, 100.0);
        t.opened_for_write(3, 102.0);
        assert!(!t.is_outdated(1, 103.0));
        burst(&mut t, 2, 3, 103.0);
        assert!(t.is_outdated(1, 104.0));
    }

    #[test]
    fn starting_again_from_a_lower_number_is_not_outdated() {
        let mut t = VersionTracker::new(30.0);
        burst(&mut t, 100, 4, 0.0);
        burst(&mut t, 1, 4, 1000.0);
        assert!(!t.is_outdated(1, 1100.0));
        assert_eq!(t.newest_complete(1100.0), Some(1));
        burst(&mut t, 2, 4, 2000.0);
        assert!(t.is_outdated(1, 2100.0));
    }

    #[test]
    fn a_removed_version_outdates_nothing() {
        let mut t = VersionTracker::new(30.0);
        burst(&mut t, 1, 1, 0.0);
        burst(&mut t, 2, 1, 100.0);
        assert!(t.is_outdated(1, 200.0));
        t.removed(2);
        assert!(!t.is_outdated(1, 200.0));
    }

    #[test]
    fn predicts_the_largest_with_margin() {
        let mut h = SizeHistory::default();
        assert_eq!(h.predict(), None);
        h.observe(1600);
        h.observe(16);
        assert_eq!(h.predict(), Some(1700));
        for _ in 0..MAX_SIZE_HISTORY {
            h.observe(0);
        }
        assert_eq!(h.predict(), Some(0), "old sizes are forgotten");
        h.observe(u64::MAX);
        assert_eq!(h.predict(), Some(u64::MAX));
    }

    #[derive(Debug, Clone)]
    enum Event {
        Open(u64),
        Close(u64),
        Commit(u64),
        Remove(u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        let v = 0u64..100;
        prop_oneof![
            v.clone().prop_map(Event::Open),
            v.clone().prop_map(Event::Close),
            v.clone().prop_map(Event::Commit),
            v.prop_map(Event::Remove),
        ]
    }

    proptest! {
        #[test]
        fn bounded_and_never_outdates_the_newest(events in proptest::collection::vec((event(), 0.0f64..40.0), 0..300)) {
            let mut t = VersionTracker::new(20.0);
            let mut now_s = 0.0;
            for (event, gap_s) in events {
                now_s += gap_s;
                match event {
                    Event::Open(v) => t.opened_for_write(v, now_s),
                    Event::Close(v) => t.closed(v, now_s),
                    Event::Commit(v) => t.committed(v, now_s),
                    Event::Remove(v) => t.removed(v),
                }
                prop_assert!(t.tracked() <= MAX_TRACKED_VERSIONS);
                if let Some(newest) = t.newest_complete(now_s) {
                    prop_assert!(t.is_complete(newest, now_s));
                    prop_assert!(!t.is_outdated(newest, now_s));
                }
                for v in 0..100 {
                    if t.is_outdated(v, now_s) {
                        prop_assert!((v + 1..100).any(|w| t.is_complete(w, now_s)));
                    }
                }
            }
        }
    }
}
