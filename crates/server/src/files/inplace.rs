//! Files of the PFS that were changed where they are, until they are on stable storage.
//!
//! No drain ever copies what is changed in place, so nothing else flushes it. Invariants:
//!
//! 1. A file is kept here before its first byte changes, and noted again after each change: a flush
//!    takes off only what was noted before it began.
//! 2. It is kept with a descriptor that was open before that change. Linux tells a descriptor of
//!    every error of write-back since it was opened, and a later one perhaps not.
//! 3. No more are kept than there may be descriptors for them: who would keep one more flushes the
//!    oldest first.
//! 4. An error is kept in `losses`, and told to everybody who asks. A second flush would succeed:
//!    the kernel calls pages clean that the PFS has not taken.
//! 5. The next fsync is told of it, too, once. That is owed to who has the file open for as long as
//!    they have, with a name or without.

pub(crate) mod flush;
pub(crate) mod names;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_namespace::{Place, PlainNode};
use forebay_policy::writeback::is_due;
use forebay_tiers::{FileObject, PfsId};
use forebay_types::Errno;
use parking_lot::{Condvar, Mutex};

use crate::base::failure::Failure;
use crate::files::losses::Loss;

/// So long after a flush that the PFS did not answer it is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// Without being woken the thread that flushes looks this often.
const SLEEP: Duration = Duration::from_millis(500);
/// Who waits for a flush looks this often whether the PFS has been given up.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// One file.
struct Kept {
    /// A name of it.
    place: Place,
    /// See invariant 2.
    file: Arc<FileObject>,
    /// Numbers of the first change that is not flushed, and of the last.
    first: u64,
    last: u64,
    /// When they were.
    first_at: Instant,
    last_at: Instant,
    flushing: bool,
    /// Somebody waits for it.
    is_urgent: bool,
    /// Not before then: the PFS has not answered.
    not_before: Option<Instant>,
}

impl Kept {
    fn is_due(&self, now: Instant) -> bool {
        let ago = |at| now.saturating_duration_since(at).as_secs_f64();
        let due = self.is_urgent || is_due(ago(self.last_at), ago(self.first_at));
        due && !self.flushing && self.not_before.is_none_or(|then| now >= then)
    }
}

/// A flush that has begun.
pub struct Begun {
    file: Arc<FileObject>,
    upto: u64,
    /// A name of the file.
    place: Place,
    /// When what is flushed was changed first.
    first_at: Instant,
}

/// Why a file is not flushed.
#[derive(Debug)]
pub enum NotFlushed {
    /// The PFS is given up: nothing was put anywhere, and nothing is lost.
    Unasked(Failure),
    /// The PFS has called it an error, whatever its number. A second flush would succeed.
    Lost(Failure),
}

impl From<NotFlushed> for Failure {
    fn from(why: NotFlushed) -> Failure {
        match why {
            NotFlushed::Unasked(failure) | NotFlushed::Lost(failure) => failure,
        }
    }
}

/// How a file stands that somebody has asked to be flushed.
pub enum Standing {
    /// It is not flushed yet.
    Pending,
    /// What was changed before is on stable storage.
    Flushed,
    /// It may be lost.
    Failed(Failure),
}

#[derive(Default)]
struct State {
    kept: HashMap<PfsId, Kept>,
    /// What the next fsync of a file is told.
    owed: HashMap<PfsId, Errno>,
    /// Paths of directories whose names are not flushed.
    dirs_failed: BTreeSet<Vec<u8>>,
    /// Changes so far.
    changes: u64,
    /// Renames under way, and what was changed since the first of them began.
    renames: usize,
    meanwhile: HashSet<PfsId>,
}

/// A rename is under way: see [`InPlace::watch_rename`].
pub struct WatchedRename<'a>(&'a InPlace);

impl WatchedRename<'_> {
    /// Whether this file of the PFS was changed here since the rename began, or a little before.
    pub fn has_seen(&self, ino: u64, btime_ns: u64) -> bool {
        let state = self.0.state.lock();
        let mut changed = state.meanwhile.iter();
        changed.any(|id| (id.ino, id.btime_ns) == (ino, btime_ns))
    }
}

impl Drop for WatchedRename<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.renames -= 1;
        if state.renames == 0 {
            state.meanwhile = HashSet::new();
        }
    }
}

/// All of them.
pub struct InPlace {
    state: Mutex<State>,
    settled: Condvar,
    /// As many may be kept.
    files_max: usize,
}

impl InPlace {
    /// None yet.
    pub fn new(files_max: usize) -> InPlace {
        InPlace {
            state: Mutex::default(),
            settled: Condvar::new(),
            files_max,
        }
    }

    /// Whether there is nothing to flush.
    pub fn is_empty(&self) -> bool {
        self.state.lock().kept.is_empty()
    }

    /// From here on it is remembered which files are changed: what a rename has replaced may not be
    /// what the rename has seen, though nobody but who had it open has changed it.
    pub fn watch_rename(&self) -> WatchedRename<'_> {
        self.state.lock().renames += 1;
        WatchedRename(self)
    }

    /// Keeps a file that is about to change, or has. Answers with one that is to be flushed before
    /// it is kept: then the caller comes back.
    fn note(&self, node: &Arc<PlainNode>, file: &Arc<FileObject>) -> Option<PfsId> {
        let mut state = self.state.lock();
        if state.renames > 0 {
            state.meanwhile.insert(node.id);
        }
        let now = Instant::now();
        let change = state.changes + 1;
        if let Some(kept) = state.kept.get_mut(&node.id) {
            (kept.last, kept.last_at) = (change, now);
        } else if state.kept.len() >= self.files_max {
            let oldest = state.kept.iter().min_by_key(|(_, kept)| kept.first);
            return oldest.map(|(id, _)| *id);
        } else {
            let kept = Kept {
                place: (node.parent.clone(), node.name.clone()),
                file: file.clone(),
                first: change,
                last: change,
                first_at: now,
                last_at: now,
                flushing: false,
                is_urgent: false,
                not_before: None,
            };
            state.kept.insert(node.id, kept);
        }
        state.changes = change;
        None
    }

    /// Of a file that has lost its last name nobody needs more, but who has it open: they keep it
    /// here by the next change, and their fsync is told what it is owed.
    pub(super) fn forget(&self, id: PfsId) {
        let mut state = self.state.lock();
        let gone = state.kept.remove(&id);
        drop(state);
        self.settled.notify_all();
        // The PFS may answer late.
        drop(gone);
    }

    /// A file has got this name by a rename.
    pub(super) fn moved(&self, id: PfsId, to: &Place) {
        if let Some(kept) = self.state.lock().kept.get_mut(&id) {
            kept.place = to.clone();
        }
    }

    /// The descriptor that a file is kept with.
    pub(super) fn file(&self, id: PfsId) -> Option<Arc<FileObject>> {
        let state = self.state.lock();
        state.kept.get(&id).map(|kept| kept.file.clone())
    }

    /// The name of a file that is kept.
    pub(super) fn place(&self, id: PfsId) -> Option<Place> {
        let state = self.state.lock();
        state.kept.get(&id).map(|kept| kept.place.clone())
    }

    /// Whether an fsync is still to be told of a file.
    pub(super) fn owes(&self, id: PfsId) -> bool {
        self.state.lock().owed.contains_key(&id)
    }

    /// No fsync needs to hear of a file: it was cut to nothing, or nobody has it open or could open
    /// it any more.
    pub(super) fn owes_nothing(&self, id: PfsId) {
        self.state.lock().owed.remove(&id);
    }

    /// Whether a file is to be flushed with this descriptor; `None` if it is not to be flushed.
    fn is_kept_with(&self, id: PfsId, file: &Arc<FileObject>) -> Option<bool> {
        let state = self.state.lock();
        state
            .kept
            .get(&id)
            .map(|kept| Arc::ptr_eq(&kept.file, file))
    }

    /// The next file to flush by itself, if there is one soon.
    fn wait_due(&self) -> Option<PfsId> {
        let mut state = self.state.lock();
        for is_last in [false, true] {
            let now = Instant::now();
            let mut due: Vec<_> = state.kept.iter().filter(|(_, k)| k.is_due(now)).collect();
            due.sort_by_key(|(_, kept)| (!kept.is_urgent, kept.first));
            if let Some((id, _)) = due.first() {
                return Some(**id);
            }
            if !is_last {
                self.settled.wait_for(&mut state, SLEEP);
            }
        }
        None
    }

    /// Wakes who waits for something to flush, or to be flushed.
    pub fn wake(&self) {
        let _state = self.state.lock();
        self.settled.notify_all();
    }

    /// Begins the flush of what has changed so far, when nobody else flushes the file; `None` if
    /// there is nothing left to flush, or `is_over`.
    fn begin(&self, id: PfsId, is_over: &dyn Fn() -> bool) -> Option<Begun> {
        let mut state = self.state.lock();
        let upto = state.changes;
        loop {
            let kept = state.kept.get_mut(&id)?;
            if kept.first > upto {
                return None;
            }
            if !kept.flushing {
                kept.flushing = true;
                return Some(Begun {
                    file: kept.file.clone(),
                    place: kept.place.clone(),
                    first_at: kept.first_at,
                    // Those that came while this one waited are flushed as well.
                    upto: state.changes,
                });
            }
            if is_over() {
                return None;
            }
            self.settled.wait_for(&mut state, LOOK_AGAIN);
        }
    }

    /// What has come of a flush. Whether the file was still kept.
    fn end(&self, id: PfsId, begun: Begun, done: Result<(), &NotFlushed>) -> bool {
        let mut state = self.state.lock();
        if let Err(NotFlushed::Lost(failure)) = done {
            // The descriptor has heard of it, and does not hear it again.
            state.owed.insert(id, failure.errno());
        }
        let Some(kept) = state.kept.get_mut(&id) else {
            return false;
        };
        kept.flushing = false;
        let mut gone = None;
        if matches!(done, Err(NotFlushed::Unasked(_))) {
            kept.not_before = Some(Instant::now() + AGAIN);
        } else if kept.last > begun.upto {
            kept.first = begun.upto + 1;
            kept.first_at = Instant::now();
            (kept.is_urgent, kept.not_before) = (false, None);
        } else {
            gone = state.kept.remove(&id);
        }
        drop(state);
        self.settled.notify_all();
        drop((gone, begun));
        true
    }

    /// Orders the flush of one file, or of all. Answers with the number of the last change that it
    /// is about; `None` if nothing is to be flushed.
    pub fn order(&self, which: &dyn Fn(&PfsId) -> bool) -> Option<u64> {
        let mut state = self.state.lock();
        let mut any = false;
        for (_, kept) in state.kept.iter_mut().filter(|(id, _)| which(id)) {
            kept.is_urgent = true;
            any = true;
        }
        let upto = state.changes;
        drop(state);
        self.settled.notify_all();
        any.then_some(upto)
    }

    /// Whether something that was changed up to then is not flushed.
    pub fn is_pending(&self, upto: u64) -> bool {
        self.state.lock().kept.values().any(|k| k.first <= upto)
    }

    /// The same of one file.
    fn is_pending_of(&self, which: &dyn Fn(&PfsId) -> bool, upto: u64) -> bool {
        let state = self.state.lock();
        let mut kept = state.kept.iter();
        kept.any(|(id, kept)| which(id) && kept.first <= upto)
    }

    /// Waits until a flush has ended, for a moment at most.
    pub fn wait_settled(&self, moment: Duration) {
        let mut state = self.state.lock();
        self.settled.wait_for(&mut state, moment);
    }

    /// An error that no fsync was told yet.
    pub(super) fn take_owed(&self, id: PfsId) -> Option<Errno> {
        self.state.lock().owed.remove(&id)
    }

    /// Paths of all that is not flushed.
    pub fn unflushed(&self) -> Vec<Vec<u8>> {
        let state = self.state.lock();
        let kept = state.kept.values();
        let mut paths: Vec<_> = kept.map(|kept| path(&kept.place)).collect();
        paths.sort_unstable();
        paths.extend(state.dirs_failed.iter().cloned());
        paths
    }

    /// Names in a directory are not flushed.
    fn names_failed(&self, path: Vec<u8>) {
        self.state.lock().dirs_failed.insert(path);
    }

    fn all(&self) -> Vec<(PfsId, Place, Arc<FileObject>)> {
        let state = self.state.lock();
        let kept = state.kept.iter();
        kept.map(|(id, kept)| (*id, kept.place.clone(), kept.file.clone()))
            .collect()
    }
}

fn path((dir, name): &Place) -> Vec<u8> {
    dir.path_of(name)
}

/// What may be lost of a file by a flush that has failed.
fn loss(begun: &Begun, place: Place, nlink: u32, failure: &Failure) -> Loss {
    // Whole seconds, and none too few.
    let secs = Duration::from_secs(begun.first_at.elapsed().as_secs() + 1);
    let reason = format!(
        "was changed in place on the PFS, which could not put it on stable storage: {}; what was \
         written to it in the {} before may be lost there",
        failure.in_brief(),
        forebay_types::format_duration(secs)
    );
    Loss::new(place, nlink, failure.errno(), reason)
}
