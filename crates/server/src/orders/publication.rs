//! Versions that are published as a whole: which directories are such, and when they get their
//! name.

mod losses;
pub(crate) mod publish;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_namespace::{Dir, DirKey, File};
use forebay_types::{Errno, ObjectId};
use parking_lot::Mutex;

/// Between two looks at versions that are not published; nothing is looked at while there are none.
const LOOK: Duration = Duration::from_millis(100);

/// Between two looks on the PFS for files of a version that has none in the burst buffer.
const LOOK_ON_PFS: Duration = Duration::from_secs(1);

/// Between two tries of a publication that fails.
const RETRY: Duration = Duration::from_secs(1);

/// What is known of the files of one version.
#[derive(Clone, Default)]
pub struct Figures {
    /// In the burst buffer.
    pub files: u64,
    /// Open for writing.
    pub written: u64,
    /// The path of one of them, where it is known.
    pub written_path: Option<Vec<u8>>,
    /// Not whole on the PFS, with their bytes.
    pub undrained: Vec<(Arc<File>, u64)>,
    /// One of them, to ask whether the version is complete: not one of another version that has a
    /// further name in this one.
    pub any: Option<ObjectId>,
    /// Since the last of them was closed, seconds.
    pub quiet_s: f64,
}

impl Figures {
    /// Bytes that are not on the PFS yet.
    pub fn undrained_bytes(&self) -> u64 {
        self.undrained.iter().map(|(_, bytes)| bytes).sum()
    }

    /// The file whose drain fails, and why.
    pub fn failing(&self) -> Option<(Arc<File>, Errno)> {
        self.undrained.iter().find_map(|(file, _)| {
            let state = file.lock();
            let error = state.error.filter(|_| !state.demoting)?;
            drop(state);
            Some((file.clone(), error))
        })
    }
}

/// What is remembered of one version between two looks.
struct Followed {
    /// When one of its files was last seen open for writing, or closed.
    active_at: Instant,
    /// A file of it has been seen.
    has_files: bool,
    /// When files of it were last looked for on the PFS.
    looked_at: Option<Instant>,
    /// The last try has failed: when it is tried again, and why.
    failed: Option<(Instant, Errno)>,
}

/// Versions that are not published, as this run has followed them.
#[derive(Default)]
pub struct Versions {
    by_dir: Mutex<HashMap<DirKey, Followed>>,
}

impl Versions {
    /// Why the last publication of a version failed.
    pub fn why(&self, dir: &Dir) -> Option<Errno> {
        let by_dir = self.by_dir.lock();
        let failed = by_dir.get(&dir.key).and_then(|version| version.failed);
        failed.map(|(_, errno)| errno)
    }

    fn may_try(&self, dir: &Dir) -> bool {
        let by_dir = self.by_dir.lock();
        let failed = by_dir.get(&dir.key).and_then(|version| version.failed);
        failed.is_none_or(|(not_before, _)| Instant::now() >= not_before)
    }

    fn tried(&self, dir: &Dir, outcome: Option<Errno>) {
        let mut by_dir = self.by_dir.lock();
        if let Some(version) = by_dir.get_mut(&dir.key) {
            version.failed = outcome.map(|errno| (Instant::now() + RETRY, errno));
        }
    }

    /// Takes a look into account: whether it has files, and for how long it has been quiet,
    /// seconds. Files that have left the burst buffer count as well.
    fn follow(&self, dir: &Dir, figures: &Figures) -> (bool, f64) {
        let now = Instant::now();
        let mut by_dir = self.by_dir.lock();
        let version = by_dir.entry(dir.key).or_insert(Followed {
            active_at: now,
            has_files: false,
            looked_at: None,
            failed: None,
        });
        if figures.files > 0 {
            let quiet = Duration::try_from_secs_f64(figures.quiet_s).unwrap_or_default();
            let active_at = now.checked_sub(quiet).unwrap_or(version.active_at);
            version.active_at = version.active_at.max(active_at);
            version.has_files = true;
        }
        if figures.written > 0 {
            version.active_at = now;
        }
        (
            version.has_files,
            now.duration_since(version.active_at).as_secs_f64(),
        )
    }

    /// Whether files of a version are to be looked for on the PFS now: the caller does.
    fn looks_on_pfs(&self, dir: &Dir) -> bool {
        let mut by_dir = self.by_dir.lock();
        let Some(version) = by_dir.get_mut(&dir.key) else {
            return false;
        };
        let is_due = version
            .looked_at
            .is_none_or(|at| at.elapsed() >= LOOK_ON_PFS);
        if is_due {
            version.looked_at = Some(Instant::now());
        }
        is_due
    }

    /// A file of it was found there.
    fn found_on_pfs(&self, dir: &Dir) {
        if let Some(version) = self.by_dir.lock().get_mut(&dir.key) {
            version.has_files = true;
        }
    }

    fn forget_others(&self, left: &[(Arc<Dir>, Figures)]) {
        let known = |key: &DirKey| left.iter().any(|(dir, _)| dir.key == *key);
        self.by_dir.lock().retain(|key, _| known(key));
    }
}

/// Looking takes a tenth of the time at most, however many files there are.
pub fn pause_after(began: Instant, least: Duration) -> Duration {
    least.max(began.elapsed() * 9)
}
