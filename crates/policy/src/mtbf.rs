//! How likely an application is to fail next: mean time between failures, restarts, and the
//! checkpoint that is not worth a place in the burst buffer.

/// MTBF of an application on one node of which nothing is known yet. It halves its weight with
/// every restart, so a day is long enough to rank below applications that do fail and short enough
/// to be forgotten soon.
pub const PRIOR_MTBF_S: f64 = 86_400.0;

/// No application is taken to fail more often, however many nodes it has.
pub const MIN_MTBF_S: f64 = 60.0;

/// Default of [`RestartDetector::new`]: a read that soon after a write by the same login or job is
/// a verification.
pub const DEFAULT_VERIFY_WINDOW_S: f64 = 60.0;

/// MTBF before the first restart: failure rates grow with the number of nodes (BBOS, facts about
/// checkpoints).
pub fn prior_s(nodes: u32) -> f64 {
    (PRIOR_MTBF_S / f64::from(nodes.max(1))).max(MIN_MTBF_S)
}

/// MTBF after a restart at `now_s`, when the one before (or the start of the application) was at
/// `last_s`: `(mtbf + (now − last)) / 2` (BBOS, restart). A clock that ran backwards counts as no
/// time.
pub fn on_restart(mtbf_s: f64, now_s: f64, last_s: f64) -> f64 {
    f64::midpoint(mtbf_s, (now_s - last_s).max(0.0))
}

/// Who opens a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opener {
    /// The process: equal for all its threads, never used again by another (for instance pid and
    /// start time hashed).
    pub process: u64,
    /// What it belongs to: the job where there is one, otherwise the login session.
    pub session: u64,
}

/// Why a file is opened for reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReadPurpose {
    /// An application or a user reads it through the mount.
    User,
    /// Forebay itself does: demotion, verification, stage-in, prefetch, replication, check.
    Internal,
}

/// What is known of the processes that wrote the application's files since the last restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Writers {
    /// At least one still runs.
    Running,
    /// All are gone.
    Gone,
    /// They ran on nodes that cannot be asked.
    Unknown,
}

/// Tells the first read of a restarted application from other reads, and keeps its MTBF.
///
/// An open for read of a file of the application counts as a restart when all of these hold:
///
/// 1. It comes through the mount, not from Forebay itself.
/// 2. The application was written since the last restart that was counted: the many processes of
///    one restart, and the many reads of one analysis, count once.
/// 3. No process that wrote it still runs: who restarts has failed before. A run that reads back
///    what it has just written, and a user who looks at a running job's files, do not count.
/// 4. The reader is not the last writer. If both belong to the same session, the verify window has
///    passed since the last write: a script that compares what its programs have just written is a
///    verification.
///
/// Listing, `stat` and opens for write are no input at all. What is miscounted: an analysis of a
/// job that has ended looks like one restart; a second failure before the first new checkpoint is
/// not seen. Both only move a rank.
#[derive(Debug, Clone, PartialEq)]
pub struct RestartDetector {
    mtbf_s: f64,
    last_restart_s: Option<f64>,
    last_write: Option<(Opener, f64)>,
    verify_window_s: f64,
}

impl RestartDetector {
    /// `mtbf_s`: the prior, see [`prior_s`]. `verify_window_s`: at least 0, see rule 4.
    pub fn new(mtbf_s: f64, verify_window_s: f64) -> Self {
        Self {
            mtbf_s: mtbf_s.max(0.0),
            last_restart_s: None,
            last_write: None,
            verify_window_s: verify_window_s.max(0.0),
        }
    }

    /// Continues with what was stored: the MTBF and the time of the last restart. Data found at
    /// start-up may be restarted from, so the next read by anyone but a running writer counts, if
    /// [`Self::may_restart_from`] says so of what is read.
    pub fn restored(mtbf_s: f64, last_restart_s: f64, verify_window_s: f64) -> Self {
        let nobody = Opener {
            process: u64::MAX,
            session: u64::MAX,
        };
        Self {
            last_restart_s: Some(last_restart_s),
            last_write: Some((nobody, last_restart_s)),
            ..Self::new(mtbf_s, verify_window_s)
        }
    }

    /// The MTBF as it is known now.
    pub fn mtbf_s(&self) -> f64 {
        self.mtbf_s
    }

    /// The last restart counted, or when the application was first written; `None` before that.
    pub fn last_restart_s(&self) -> Option<f64> {
        self.last_restart_s
    }

    /// Whether the next read by a new run would count; for callers to whom telling runs apart costs
    /// something.
    pub fn is_armed(&self) -> bool {
        self.last_write.is_some()
    }

    /// Rules 2 and 4 after a start, when nobody knows who has written: whether a read at `now_s` of
    /// a file that was last changed at `changed_s` may be a restart. What is older than the restart
    /// counted last has been restarted from, and what is fresh may be looked at by who wrote it.
    pub fn may_restart_from(&self, changed_s: f64, now_s: f64) -> bool {
        let fresh = now_s - changed_s <= self.verify_window_s;
        !fresh && self.last_restart_s.is_none_or(|last_s| changed_s >= last_s)
    }

    /// Takes another prior, where no restart has been counted yet.
    pub fn set_prior(&mut self, mtbf_s: f64) {
        self.mtbf_s = mtbf_s.max(0.0);
    }

    /// A file of the application was opened for write or written.
    pub fn on_write(&mut self, opener: Opener, now_s: f64) {
        self.last_restart_s.get_or_insert(now_s);
        self.last_write = Some((opener, now_s));
    }

    /// A file of the application was opened for read. Returns the new MTBF in seconds where this is
    /// a restart.
    pub fn on_read_open(
        &mut self,
        opener: Opener,
        purpose: ReadPurpose,
        writers: Writers,
        now_s: f64,
    ) -> Option<f64> {
        let (writer, written_s) = self.last_write?;
        if purpose == ReadPurpose::Internal {
            return None;
        }
        let fresh = now_s - written_s <= self.verify_window_s;
        let is_new_run = writers != Writers::Running
            && opener.process != writer.process
            && !(opener.session == writer.session && fresh);
        if !is_new_run {
            return None;
        }
        let last_s = self.last_restart_s.unwrap_or(written_s);
        self.mtbf_s = on_restart(self.mtbf_s, now_s, last_s);
        self.last_restart_s = Some(now_s);
        self.last_write = None;
        Some(self.mtbf_s)
    }
}

/// Whether a checkpoint goes straight to the PFS (BBOS, direct checkpoint). It does where the burst
/// buffer would have to make room for it, and it is colder than what is there. It is colder where
/// its MTBF is higher than that of every other resident application, or where it is not the newest
/// version of its own application. An application that is alone in the burst buffer makes room
/// among its own older versions.
pub fn goes_straight_to_pfs(
    must_make_room: bool,
    mtbf_s: f64,
    is_newest_version: bool,
    other_resident_mtbfs_s: impl IntoIterator<Item = f64>,
) -> bool {
    if !must_make_room {
        return false;
    }
    let mut others = other_resident_mtbfs_s.into_iter().peekable();
    let is_coldest = others.peek().is_some() && others.all(|other| mtbf_s > other);
    is_coldest || !is_newest_version
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const APP: Opener = Opener {
        process: 1,
        session: 10,
    };
    const OTHER: Opener = Opener {
        process: 2,
        session: 10,
    };
    const USER: Opener = Opener {
        process: 3,
        session: 11,
    };

    fn written() -> RestartDetector {
        let mut d = RestartDetector::new(1000.0, 60.0);
        d.on_write(APP, 0.0);
        d.on_write(APP, 100.0);
        d
    }

    #[test]
    fn the_formula() {
        assert_eq!(on_restart(100.0, 350.0, 50.0), 200.0);
        assert_eq!(on_restart(100.0, 0.0, 50.0), 50.0);
        assert_eq!(prior_s(0), PRIOR_MTBF_S);
        assert_eq!(prior_s(24), 3600.0);
        assert_eq!(prior_s(u32::MAX), MIN_MTBF_S);
    }

    #[test]
    fn a_new_run_counts_once() {
        let mut d = written();
        let read = |d: &mut RestartDetector, who, at| {
            d.on_read_open(who, ReadPurpose::User, Writers::Gone, at)
        };
        assert_eq!(read(&mut d, OTHER, 200.0), Some(600.0));
        assert_eq!(
            read(&mut d, USER, 201.0),
            None,
            "another rank of the same restart"
        );
        d.on_write(OTHER, 300.0);
        assert_eq!(
            read(&mut d, USER, 400.0),
            Some(400.0),
            "200 s after the last"
        );
    }

    #[test]
    fn verification_and_looking_do_not_count() {
        let mut d = written();
        assert_eq!(
            d.on_read_open(APP, ReadPurpose::User, Writers::Running, 101.0),
            None
        );
        assert_eq!(
            d.on_read_open(USER, ReadPurpose::User, Writers::Running, 102.0),
            None
        );
        assert_eq!(
            d.on_read_open(USER, ReadPurpose::Internal, Writers::Gone, 103.0),
            None
        );
        assert_eq!(
            d.on_read_open(APP, ReadPurpose::User, Writers::Unknown, 900.0),
            None
        );
        assert_eq!(
            d.on_read_open(OTHER, ReadPurpose::User, Writers::Unknown, 104.0),
            None
        );
        assert!(
            d.on_read_open(OTHER, ReadPurpose::User, Writers::Unknown, 161.0)
                .is_some()
        );
        let mut never_written = RestartDetector::new(1000.0, 60.0);
        assert_eq!(
            never_written.on_read_open(USER, ReadPurpose::User, Writers::Gone, 5.0),
            None
        );
    }

    #[test]
    fn what_was_stored_is_continued() {
        let mut d = RestartDetector::restored(400.0, 100.0, 60.0);
        assert_eq!(
            d.on_read_open(USER, ReadPurpose::User, Writers::Gone, 300.0),
            Some(300.0)
        );
    }

    #[test]
    fn after_a_start_the_file_tells_whether_a_read_may_be_a_restart() {
        let d = RestartDetector::restored(400.0, 100.0, 60.0);
        assert!(!d.may_restart_from(250.0, 300.0), "just written");
        assert!(
            !d.may_restart_from(350.0, 300.0),
            "by a clock that is ahead"
        );
        assert!(!d.may_restart_from(99.0, 300.0), "restarted from already");
        assert!(d.may_restart_from(200.0, 300.0));
    }

    #[test]
    fn direct_checkpoints_are_the_cold_ones() {
        assert!(!goes_straight_to_pfs(false, 9.0, false, [1.0]));
        assert!(goes_straight_to_pfs(true, 9.0, true, [1.0, 8.0]));
        assert!(!goes_straight_to_pfs(true, 8.0, true, [1.0, 8.0]));
        assert!(goes_straight_to_pfs(true, 0.0, false, [1.0]));
        assert!(!goes_straight_to_pfs(true, 9.0, true, []));
    }

    proptest! {
        #[test]
        fn mtbf_stays_between_what_was_and_what_is_seen(mtbf in 0.0..1e9f64, now in 0.0..1e9f64, last in 0.0..1e9f64) {
            let gap = (now - last).max(0.0);
            let new = on_restart(mtbf, now, last);
            prop_assert!(new >= mtbf.min(gap) && new <= mtbf.max(gap));
        }

        #[test]
        fn never_two_restarts_without_a_write_between(ops in proptest::collection::vec((any::<bool>(), 0u64..3, 0..3u8), 0..100)) {
            let mut d = RestartDetector::new(1000.0, 5.0);
            let mut may_count = false;
            for (i, (is_write, process, writers)) in ops.into_iter().enumerate() {
                let opener = Opener { process, session: process / 2 };
                let now_s = i as f64;
                if is_write {
                    d.on_write(opener, now_s);
                    may_count = true;
                    continue;
                }
                let writers = [Writers::Running, Writers::Gone, Writers::Unknown][usize::from(writers)];
                if d.on_read_open(opener, ReadPurpose::User, writers, now_s).is_some() {
                    prop_assert!(may_count);
                    may_count = false;
                }
            }
        }
    }
}
