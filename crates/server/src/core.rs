//! What all parts of a server share.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_namespace::{File, Namespace};
use forebay_policy::durability::Durability;
use forebay_tiers::{Identity, ParentKey, Pulse, TierKind};
use forebay_types::{Errno, Generation, ObjectId, TierId, failpoint, limits};
use forebay_wire::control::PathFailure;
use parking_lot::{Condvar, Mutex, RwLock};

use crate::buffer::ledger::Ledger;
use crate::buffer::opens::{OpenTable, Target};
use crate::buffer::tierset::TierSet;
use crate::catalog::apps::Applications;
use crate::catalog::rules::Rules;
use crate::catalog::writers::Writers;
use crate::drain::demote::Leftover;
use crate::drain::queue::DrainQueue;
use crate::files::conflicts::Conflicts;
use crate::files::descriptors::Descriptors;
use crate::files::guard::GuardPost;
use crate::files::unseen::Unseen;
use crate::orders::jobs::Jobs;
use crate::orders::unreachable::Stranded;
use crate::plan::activity::Activity;
use crate::plan::dedicated::Dedicated;
use crate::plan::engine::Engine;
use crate::plan::learning::Learning;
use crate::settings::Settings;

/// Monotone counts since the state was made or the server started.
#[derive(Default)]
pub struct Counters {
    /// Written to the PFS and verified, bytes.
    pub demoted_bytes: AtomicU64,
    /// Likewise, files.
    pub demoted_files: AtomicU64,
    /// Dropped clean copies, bytes.
    pub evicted_bytes: AtomicU64,
    /// Files that went straight to the PFS because they were colder than what was here.
    pub direct_files: AtomicU64,
    /// Objects removed, bytes.
    pub deleted_bytes: AtomicU64,
    /// Writes that waited for space.
    pub waited_writes: AtomicU64,
    /// How long they did, all together, microseconds.
    pub space_wait_us: AtomicU64,
    /// Bytes written by programs through requests or seen at close.
    pub written_bytes: AtomicU64,
    /// Errors.
    pub errors: AtomicU64,
}

impl Counters {
    /// Mean size of what was demoted, bytes; 0 before the first file.
    pub fn mean_demoted_bytes(&self) -> f64 {
        let files = self.demoted_files.load(Ordering::Relaxed);
        self.demoted_bytes.load(Ordering::Relaxed) as f64 / files.max(1) as f64
    }

    /// A write has waited for space for so long.
    pub fn note_space_wait(&self, waited: Duration) {
        self.space_wait_us
            .fetch_add(waited.as_micros() as u64, Ordering::Relaxed);
    }
}

/// The last errors, oldest first, one per path.
#[derive(Default)]
pub struct ErrorLog {
    entries: Mutex<VecDeque<PathFailure>>,
}

impl ErrorLog {
    /// Remembers an error; a newer one of the same path replaces the older.
    pub fn add(&self, path: Vec<u8>, errno: Errno, reason: String) {
        let mut entries = self.entries.lock();
        entries.retain(|e| e.path != path);
        if entries.len() >= limits::ERRORS_REMEMBERED_MAX {
            entries.pop_front();
        }
        entries.push_back(PathFailure {
            path,
            errno,
            reason,
        });
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.lock().is_empty()
    }

    /// What was wrong with this path no longer is.
    pub fn clear(&self, path: &[u8]) {
        let mut entries = self.entries.lock();
        if !entries.is_empty() {
            entries.retain(|e| e.path != path);
        }
    }

    /// All of them.
    pub fn all(&self) -> Vec<PathFailure> {
        self.entries.lock().iter().cloned().collect()
    }
}

/// An order to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopOrder {
    /// Drain first.
    pub drain: bool,
    /// Give up draining then.
    pub deadline: Option<Instant>,
}

/// Everything.
pub struct Core {
    /// As started.
    pub settings: Settings,
    /// The tree.
    pub ns: Namespace,
    /// The tiers.
    pub tiers: TierSet,
    /// Who holds what.
    pub ledger: Ledger,
    /// Open files.
    pub opens: OpenTable,
    /// How many descriptors they and others may have.
    pub descriptors: Descriptors,
    /// Watches over those that the kernel writes by itself.
    pub guard: GuardPost,
    /// What the kernel has written by itself.
    pub unseen: Unseen,
    /// Files that were made without a name, until they have one or are gone.
    pub unnamed: crate::files::unnamed::Unnamed,
    /// Files of the burst buffer by object.
    pub files: RwLock<HashMap<ObjectId, Arc<File>>>,
    /// Whether programs write.
    pub activity: Activity,
    /// Files to be demoted.
    pub drain: DrainQueue,
    /// Applications.
    pub apps: Applications,
    /// Limits, turns, the plan in force.
    pub engine: Engine,
    /// What is learned.
    pub learning: Learning,
    /// Shares of applications.
    pub dedicated: Dedicated,
    /// Path rules.
    pub rules: Rules,
    /// Whose batch jobs write.
    pub writers: Writers,
    /// Movements ordered from the command line.
    pub jobs: Jobs,
    /// Counts.
    pub counters: Counters,
    /// Errors.
    pub errors: ErrorLog,
    /// Objects at rest on flash.
    pub rest: crate::integrity::atrest::AtRest,
    /// Reads them in the background.
    pub scrub: crate::integrity::scrub::Scrub,
    /// Which start of the node this is.
    pub boot: crate::lifecycle::boot::Boot,
    /// Files whose last close could not ask their object what it has become.
    pub unclosed: Mutex<HashSet<ObjectId>>,
    /// Clean files whose object in the overflow could not make way for what the PFS has; tried again.
    pub overstaying: Mutex<Vec<Arc<File>>>,
    /// Temporary files on the PFS that could not be removed; their files' next demotions, or the next start, do.
    pub leftovers: Mutex<HashMap<ObjectId, Vec<Leftover>>>,
    /// Versions that are not published.
    pub versions: crate::orders::publication::Versions,
    /// Conflicts with changes made on the PFS.
    pub conflicts: Conflicts,
    /// Start of this server.
    pub started: Instant,
    /// Default rung of fsync.
    pub durability: Durability,
    /// Threads are to end.
    pub ending: AtomicBool,
    /// The order to stop, once given.
    pub stop: Mutex<Option<StopOrder>>,
    /// Signalled with it.
    pub stop_given: Condvar,
    /// A thread that everything depends on has died: which, and of what.
    pub broken: Mutex<Option<String>>,
    /// Serialises the making of space, so that two writers do not evict for the same need.
    pub making_space: Mutex<()>,
    /// Who has nothing to do for a while is here: see [`Core::rest`].
    pub resting: (Mutex<()>, Condvar),
    /// Removed objects that are still on record as garbage.
    pub removed: Mutex<Vec<ObjectId>>,
    /// Undrained objects whose directory is not known: until fsck has put them elsewhere on the PFS they are undrained.
    pub stranded: Mutex<Vec<Stranded>>,
    /// Tiers of files whose objects this start could not look at, one entry for each.
    pub unreadable: Mutex<Vec<TierId>>,
    /// So many remove unused objects now.
    pub collecting: AtomicU64,
    /// The collector of unused objects sleeps here.
    pub collector: (Mutex<bool>, Condvar),
}

impl Core {
    /// Whether threads are to end.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// Whether the PFS answers.
    pub fn pulse(&self) -> &Pulse {
        self.ns.pfs().pulse()
    }

    /// One line for a person, if the PFS has been given up.
    pub fn given_up(&self) -> Option<String> {
        let silent = self.pulse().silent_for()?;
        self.pulse().is_given_up().then(|| {
            let silent = Duration::from_secs(silent.as_secs());
            let silent = forebay_types::format_duration(silent);
            format!("the PFS has not answered for {silent}")
        })
    }

    /// To be called before I/O on what is open: `ETIMEDOUT` if it is on the PFS and that is given up.
    pub fn reach(&self, target: &Target) -> Result<(), Errno> {
        match self.is_on_pfs(target) {
            true => Ok(self.pulse().pass()?),
            false => Ok(()),
        }
    }

    /// Whether I/O on what is open goes to the PFS.
    pub fn is_on_pfs(&self, target: &Target) -> bool {
        match target {
            Target::Pfs { .. } => true,
            Target::Buffer { tier, .. } => self.tiers.kind(*tier) == TierKind::Pfs,
        }
    }

    /// What fsync promises for a path.
    pub fn durability_of(&self, path: &[u8]) -> Durability {
        self.rules.durability(path).unwrap_or(self.durability)
    }

    /// What its fsync promises: of several names, the strongest promise counts.
    pub fn durability_of_file(&self, file: &File) -> Durability {
        let names = file.lock().names.clone();
        let rungs = names
            .iter()
            .map(|(dir, name)| self.durability_of(&dir.path_of(name)));
        rungs.max().unwrap_or(Durability::Memory)
    }

    /// The file with this object.
    pub fn file(&self, object: ObjectId) -> Option<Arc<File>> {
        self.files.read().get(&object).cloned()
    }

    /// Remembers an error and says it in the log.
    pub fn report(&self, path: Vec<u8>, errno: Errno, reason: String) {
        // The log bounds lines by the place that says them: many files shall not hide what is below them all.
        match path.starts_with(b"(") {
            true => tracing::warn!("{}: {reason}", path.escape_ascii()),
            false => tracing::warn!("{}: {reason}", path.escape_ascii()),
        }
        self.remember(path, errno, reason);
    }

    /// The same for bytes that are lost: the log names more of those.
    pub fn report_loss(&self, path: Vec<u8>, errno: Errno, reason: String) {
        tracing::error!("{}: {reason}", path.escape_ascii());
        self.remember(path, errno, reason);
    }

    fn remember(&self, path: Vec<u8>, errno: Errno, reason: String) {
        self.counters.errors.fetch_add(1, Ordering::Relaxed);
        self.errors.add(path, errno, reason);
    }

    /// Of a file that was removed there is nothing left to be done.
    pub fn forget_error(&self, parent: forebay_types::Ino, name: &[u8]) {
        if self.errors.is_empty() {
            return;
        }
        if let Ok(forebay_namespace::Node::Dir(dir)) = self.ns.node(parent) {
            self.errors.clear(&dir.path_of(name));
        }
    }

    /// What an object carries beside its data.
    pub fn identity(&self, file: &File, shadow: bool) -> Identity {
        let state = file.lock();
        let (parent, name, path) = match state.names.first() {
            Some((dir, name)) => (dir.key, name.to_vec(), dir.path_of(name)),
            None => Default::default(),
        };
        Identity {
            instance: self.ns.instance(),
            object: file.object,
            path,
            parent: ParentKey {
                dev_ordinal: parent.dev,
                ino: parent.ino,
                btime_ns: parent.btime_ns,
            },
            name,
            mode: u32::from(state.meta.perm),
            uid: state.meta.uid,
            gid: state.meta.gid,
            generation: state.generation(),
            shadow,
        }
    }

    /// Application and version that somebody has set on the file itself. Only of dirty files, whose
    /// attributes are on record: those of others would cost a request to the PFS each.
    pub fn name_by_xattrs(&self, file: &File) {
        let state = file.lock();
        let value = |name: &[u8]| {
            let found = state.xattrs.iter().find(|(n, _)| n == name)?;
            String::from_utf8(found.1.clone()).ok()
        };
        let application = value(b"user.forebay.app");
        let version = value(b"user.forebay.version").and_then(|v| v.trim().parse().ok());
        drop(state);
        if application.is_some() || version.is_some() {
            self.apps
                .name_explicitly(file.object, application.as_deref(), version);
        }
    }

    /// Removes objects that nobody names or has open any more.
    pub fn collect_garbage(&self) {
        self.collecting.fetch_add(1, Ordering::SeqCst);
        self.collect_found();
        self.collecting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether objects are to be removed, or are just being: they are going to give space back.
    pub fn has_garbage(&self) -> bool {
        self.ns.has_garbage() || self.collecting.load(Ordering::SeqCst) > 0
    }

    fn collect_found(&self) {
        let mut removed = Vec::new();
        self.let_go_unnamed();
        let found = self.ns.take_garbage();
        if self.is_on_flash(&found)
            && let Err(error) = self.ns.sync()
        {
            // A loss of power might bring the record back, but not what it stands for.
            tracing::warn!("removed objects stay for now: {error}");
            found.into_iter().for_each(|g| self.ns.add_garbage(g));
            return;
        }
        for garbage in found {
            let file = self.files.write().remove(&garbage.object);
            self.drain.forget(garbage.object);
            if let Some(file) = &file
                && let Some(open) = self.opens.by_ino(file.ino)
                && open.may_hold(garbage.object)
            {
                // The last close collects it.
                self.files.write().insert(garbage.object, file.clone());
                self.ns.add_garbage(garbage);
                continue;
            }
            // An open file may have moved after it was unlinked.
            let now = file.as_ref().map(|file| file.lock().residency);
            let moved = [
                now.map(|r| r.tier),
                now.and_then(|r| r.shadow).map(|(tier, _)| tier),
            ];
            let tiers: Vec<_> = garbage.tiers.iter().chain(&moved).copied().collect();
            if self.remove_objects(garbage.object, &tiers) {
                removed.push(garbage.object);
            }
            let bytes = self.ledger.used_bytes(garbage.object);
            self.counters
                .deleted_bytes
                .fetch_add(bytes, Ordering::Relaxed);
            self.ledger.depart(garbage.object);
            self.apps.left(garbage.object);
            self.rest.forget(garbage.object);
        }
        if removed.is_empty() {
            return;
        }
        failpoint::hit(failpoint::Point::GarbageObjects);
        self.removed.lock().extend(removed);
    }

    fn is_on_flash(&self, garbage: &[forebay_namespace::Garbage]) -> bool {
        let mut tiers = garbage.iter().flat_map(|g| g.tiers).flatten();
        tiers.any(|tier| self.tiers.kind(tier) != TierKind::Dram)
    }

    /// Takes removed objects off the record, once their removal survives power loss: an object that
    /// came back without one would be taken for a file that nobody has recorded yet.
    pub fn forget_removed(&self) -> Result<(), Errno> {
        let removed = std::mem::take(&mut *self.removed.lock());
        if removed.is_empty() {
            return Ok(());
        }
        let mut flash = self.tiers.iter().filter(|(_, s)| s.kind == TierKind::Ssd);
        let synced = flash.try_for_each(|(_, slot)| slot.tier.sync_all());
        let forgotten = synced
            .map_err(Errno::from)
            .and_then(|()| Ok(self.ns.garbage_removed(&removed)?));
        if forgotten.is_err() {
            self.removed.lock().extend(removed);
        }
        forgotten
    }

    fn remove_objects(&self, object: ObjectId, tiers: &[Option<TierId>]) -> bool {
        tracing::trace!(%object, ?tiers, "removed");
        let mut all = true;
        for tier in tiers.iter().flatten() {
            let Some(slot) = self.tiers.get(*tier) else {
                continue;
            };
            if slot.kind == TierKind::Pfs && self.pulse().is_silent() {
                // It stays marked as garbage, and the next start removes it.
                all = false;
                continue;
            }
            match slot.tier.remove(object) {
                Ok(()) => {}
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
                Err(e) => {
                    all = false;
                    let path = format!("(object {object} in {})", slot.tier.name()).into_bytes();
                    self.report(path, (&e).into(), format!("cannot be removed: {e}"));
                }
            }
        }
        all
    }

    /// Wakes the collector.
    pub fn wake_collector(&self) {
        let mut due = self.collector.0.lock();
        if !*due {
            *due = true;
            self.collector.1.notify_one();
        }
    }

    /// Generation of a file, for copies made outside its lock.
    pub fn generation(&self, file: &File) -> Generation {
        file.lock().generation()
    }
}
