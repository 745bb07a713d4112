//! A server's life: start, serve, stop.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_namespace::Namespace;
use forebay_tiers::PfsTree;
use forebay_types::failpoint;
use forebay_wire::Service;
use forebay_wire::control::FsckReport;
use parking_lot::{Condvar, Mutex};

use crate::base::conflicts::Conflicts;
use crate::base::counters::Counters;
use crate::base::errors::ErrorLog;
use crate::base::settings::Settings;
use crate::buffer::activity::Activity;
use crate::buffer::ledger::Ledger;
use crate::buffer::opens::OpenTable;
use crate::buffer::queue::DrainQueue;
use crate::buffer::tierset::{OVERFLOW, SSDS_MAX, TierSet};
use crate::catalog::apps::Applications;
use crate::catalog::rules::Rules;
use crate::catalog::writers::Writers;
use crate::core::{Core, StopOrder};
use crate::drain::demote;
use crate::drain::picking::Picking;
use crate::files::descriptors::Descriptors;
use crate::files::{guard, unseen};
use crate::integrity::scrub::Scrub;
use crate::lifecycle::boot::Boot;
use crate::lifecycle::facts::Facts;
use crate::lifecycle::statefolder::open_store;
use crate::lifecycle::{discard, monitor};
use crate::orders::jobs::Jobs;
use crate::plan::dedicated::Dedicated;
use crate::plan::engine;
use crate::plan::engine::Engine;
use crate::plan::learning::Learning;
use crate::service::Server;
use crate::starterror::{StartError, failed};
use crate::threads::{Watched, join_all};

/// After the mount is gone, a drain that was asked for gets this long for the last files.
const LAST_DRAIN: Duration = Duration::from_secs(60);

/// Why [`Instance::wait_stop`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Ordered without a drain.
    Ordered,
    /// Ordered with a drain, and all is on the PFS.
    Drained,
    /// A thread has died: see [`Instance::broken`].
    Broken,
}

impl std::fmt::Display for StopReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            StopReason::Ordered => "ordered",
            StopReason::Drained => "ordered, and all is on the PFS",
            StopReason::Broken => "a thread has died",
        })
    }
}

/// What an instance leaves behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StopSummary {
    /// Files that are not on the PFS.
    pub undrained_files: u64,
    /// Their bytes.
    pub undrained_bytes: u64,
    /// Of those, bytes in memory: a reboot would lose them.
    pub in_memory_bytes: u64,
}

/// A running server.
pub struct Instance {
    core: Arc<Core>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    drained: AtomicBool,
}

impl Core {
    /// Gives the order to stop.
    pub fn order_stop(&self, order: StopOrder) {
        *self.stop.lock() = Some(order);
        self.stop_given.notify_all();
    }
}

/// What a state is opened for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenMode {
    /// What was under way is finished.
    Serve,
    /// Everything is taken as it is; unless `dry_run`, renames and demotions are finished.
    Check {
        /// Change nothing.
        dry_run: bool,
        /// The PFS has been replaced for good.
        new_pfs: bool,
    },
}

fn open_core(settings: Settings, mode: OpenMode) -> Result<Core, StartError> {
    let pfs = PfsTree::watched(&settings.pfs, settings.pfs_timeout)
        .map_err(failed(format!("PFS {}", settings.pfs.display())))?;
    if !settings.demotion.unnamed {
        pfs.without_unnamed();
    }
    let store = open_store(&settings.state)?;
    open_with(settings, mode, pfs, store)
}

/// A core on a store of one's own, for tests.
#[cfg(test)]
pub fn open_on(settings: Settings, store: Box<dyn forebay_kv::Store>) -> Result<Core, StartError> {
    let pfs = PfsTree::open(&settings.pfs).map_err(failed("PFS"))?;
    open_with(settings, OpenMode::Serve, pfs, store)
}

fn open_with(
    settings: Settings,
    mode: OpenMode,
    pfs: PfsTree,
    store: Box<dyn forebay_kv::Store>,
) -> Result<Core, StartError> {
    let instance = instance_id(&*store)?;
    let (ns, loaded) = Namespace::open(pfs, store, instance).map_err(failed("metadata store"))?;
    failpoint::hit(failpoint::Point::StartLoaded);
    let mut facts = match Facts::load(&ns).map_err(failed("metadata store"))? {
        Some(facts) if facts.pfs != settings.pfs => {
            return Err(StartError::OtherPfs {
                state: settings.state.display().to_string(),
                was: facts.pfs.display().to_string(),
                now: settings.pfs.display().to_string(),
            });
        }
        Some(facts) => facts,
        None => Facts::new(&settings),
    };
    let accept = matches!(
        mode,
        OpenMode::Check {
            dry_run: false,
            new_pfs: true
        }
    );
    crate::lifecycle::pfsmark::check(&ns, &settings.pfs, accept)?;
    if !accept {
        crate::lifecycle::pfsmark::check_inner(&ns, &loaded.files, &settings.pfs)?;
    }
    facts.follow(&settings);
    if settings.ssd.len() + facts.known_ssd.len() > SSDS_MAX {
        return Err(StartError::Failed {
            what: "--ssd".into(),
            why: format!("more than {SSDS_MAX} directories"),
        });
    }
    let tiers = TierSet::open(&settings, ns.pfs(), instance, &mut facts.known_ssd)
        .map_err(failed("tiers"))?;
    let state = settings.state.clone();
    let made = finish_core(settings, ns, loaded, &facts, tiers, mode);
    made.map_err(|failure| {
        let (error, tiers) = *failure;
        tiers.undo(&state);
        error
    })
}

/// The second half of [`open_core`]; an error comes with what has been mounted.
fn finish_core(
    settings: Settings,
    ns: Namespace,
    loaded: forebay_namespace::Loaded,
    facts: &Facts,
    tiers: TierSet,
    mode: OpenMode,
) -> Result<Core, Box<(StartError, TierSet)>> {
    let missing = loaded
        .files
        .iter()
        .filter(|f| f.lock().is_dirty() && tiers.get(f.tier()).is_none())
        .count()
        + lost_tiers(&loaded)
            .filter(|tier| tiers.get(*tier).is_none())
            .count();
    if missing > 0 && mode == OpenMode::Serve {
        return Err(Box::new((
            StartError::TierMissing { count: missing },
            tiers,
        )));
    }
    let core = match Scheduling::new(&settings, &ns, facts, &tiers) {
        Ok(scheduling) => build_core(settings, ns, tiers, scheduling),
        Err(error) => return Err(Box::new((error, tiers))),
    };
    core.restore_totals(facts);
    core.restore_bandwidths();
    let recovered = match mode {
        OpenMode::Serve => core.recover(loaded),
        OpenMode::Check { dry_run, .. } => {
            let opened = core.open_for_check(loaded, dry_run);
            opened.map_err(failed("recovery"))
        }
    };
    match recovered {
        Ok(()) => {
            core.conflicts.prune(&core.ns);
            if mode == OpenMode::Serve
                && let Err(why) = crate::lifecycle::pfsmark::remember(&core.ns)
            {
                tracing::warn!("which PFS this is will not be known at the next start: {why}");
            }
            Ok(core)
        }
        Err(error) => Err(Box::new((error, core.tiers))),
    }
}

/// Tiers of undrained files whose directory is not known.
fn lost_tiers(loaded: &forebay_namespace::Loaded) -> impl Iterator<Item = forebay_types::TierId> {
    let dirty = loaded
        .lost
        .iter()
        .filter(|(_, record)| !record.residency.clean);
    dirty.map(|(_, record)| record.residency.tier)
}

/// Who gets what, and when.
struct Scheduling {
    started: Instant,
    dedicated: Dedicated,
    picking: Picking,
    engine: Engine,
    learning: Learning,
    scrub: Scrub,
    boot: Boot,
}

impl Scheduling {
    /// An error says why the settings cannot be, or what of earlier runs cannot be read.
    fn new(
        settings: &Settings,
        ns: &Namespace,
        facts: &Facts,
        tiers: &TierSet,
    ) -> Result<Self, StartError> {
        const WHAT: &str = "scheduling";
        let started = Instant::now();
        let dedicated = Dedicated::new(settings);
        let capacity = tiers.limits().iter().map(|(_, bytes)| bytes).sum();
        facts.save(ns).map_err(failed(WHAT))?;
        let fits = dedicated.check(capacity);
        fits.map_err(failed("[engine] share"))?;
        let boot = Boot::look(ns, settings.boot_id.as_deref());
        Ok(Scheduling {
            started,
            dedicated,
            picking: Picking::new(&settings.demotion, started).map_err(failed(WHAT))?,
            engine: Engine::new(settings, started).map_err(failed(WHAT))?,
            learning: Learning::open(ns, settings, started).map_err(failed(WHAT))?,
            scrub: Scrub::load(ns).map_err(failed(WHAT))?,
            boot: boot.map_err(failed(WHAT))?,
        })
    }
}

fn build_core(settings: Settings, ns: Namespace, tiers: TierSet, scheduling: Scheduling) -> Core {
    let has_flash = !settings.ssd.is_empty();
    let descriptors = Descriptors::new(&settings, tiers.get(OVERFLOW).is_some());
    ns.keep_directories(descriptors.directories_max);
    let Scheduling {
        started,
        dedicated,
        picking,
        engine,
        learning,
        scrub,
        boot,
    } = scheduling;
    Core {
        ledger: Ledger::new(&tiers.limits(), settings.demotion.dirty_cap_fraction),
        activity: Activity::new(started),
        drain: DrainQueue::new(settings.demotion.retry_after),
        picking,
        engine,
        learning,
        dedicated,
        durability: settings
            .durability
            .unwrap_or(Core::default_durability(has_flash)),
        rules: Rules::new(&settings.rules),
        writers: Writers::default(),
        apps: Applications::new(started, settings.engine.quiet),
        opens: OpenTable::new(),
        descriptors,
        guard: Default::default(),
        unseen: Default::default(),
        unnamed: Default::default(),
        files: Default::default(),
        jobs: Jobs::default(),
        counters: Counters::default(),
        errors: ErrorLog::default(),
        rest: Default::default(),
        scrub,
        boot,
        unclosed: Mutex::default(),
        overstaying: Mutex::default(),
        leftovers: Mutex::default(),
        versions: Default::default(),
        conflicts: Conflicts::load(&ns),
        started,
        ending: AtomicBool::new(false),
        stop: Mutex::new(None),
        stop_given: Condvar::new(),
        broken: Mutex::new(None),
        resting: Default::default(),
        making_space: Mutex::new(()),
        removed: Mutex::default(),
        stranded: Mutex::default(),
        unreadable: Mutex::default(),
        collecting: Default::default(),
        collector: Default::default(),
        settings,
        ns,
        tiers,
    }
}

fn instance_id(store: &dyn forebay_kv::Store) -> Result<[u8; 16], StartError> {
    const KEY: &[u8] = b"c/instance-id";
    let known = store.get(KEY).map_err(failed("metadata store"))?;
    if let Some(id) = known.and_then(|bytes| <[u8; 16]>::try_from(bytes).ok()) {
        return Ok(id);
    }
    let mut id = [0; 16];
    let mut random = std::fs::File::open("/dev/urandom").map_err(failed("/dev/urandom"))?;
    std::io::Read::read_exact(&mut random, &mut id).map_err(failed("/dev/urandom"))?;
    let mut batch = forebay_kv::Batch::new();
    batch.put(KEY, id);
    store
        .commit(batch, forebay_kv::Durability::Synced)
        .map_err(failed("metadata store"))?;
    Ok(id)
}

impl Instance {
    /// Opens the state, finishes what an earlier run left, and begins to serve.
    pub fn start(settings: Settings) -> Result<Arc<Instance>, StartError> {
        let workers = settings.demotion.workers.max(1);
        // Modes come from clients, who have applied their own.
        rustix::process::umask(rustix::fs::Mode::empty());
        let core = Arc::new(open_core(settings, OpenMode::Serve)?);
        let instance = Arc::new(Instance {
            core: core.clone(),
            threads: Mutex::default(),
            drained: AtomicBool::new(false),
        });
        for i in 0..workers {
            instance.spawn(&format!("fb-demote-{i}"), false, demote::run)?;
        }
        monitor::look_below(&instance.core);
        instance.spawn("fb-guard", false, guard::run)?;
        instance.spawn("fb-room", false, guard::make_room)?;
        instance.spawn("fb-writers", false, unseen::watch_writers)?;
        instance.spawn("fb-compare", false, unseen::compare)?;
        instance.spawn("fb-monitor", false, monitor::run)?;
        instance.spawn("fb-engine", false, engine::run)?;
        instance.spawn("fb-discard", true, discard::run)?;
        instance.spawn("fb-publish", false, crate::orders::publication::run)?;
        instance.spawn("fb-scrub", true, crate::integrity::scrub::run)?;
        instance.spawn("fb-seal", true, crate::integrity::seal::run)?;
        instance.spawn("fb-collect", false, monitor::collect)?;
        Ok(instance)
    }

    /// Starts a thread; unless it `may_end` by itself, its end is the end of the server. A panic always is.
    fn spawn(&self, name: &str, may_end: bool, body: fn(&Arc<Core>)) -> Result<(), StartError> {
        let core = self.core.clone();
        let watched = Watched::new(&core, name, may_end);
        let thread = std::thread::Builder::new()
            .name(name.to_string())
            .spawn(move || {
                let _watched = watched;
                body(&core);
            })
            .map_err(failed(format!("thread {name}")))?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// What connections talk to.
    pub fn service(&self) -> Arc<dyn Service> {
        Arc::new(Server::new(self.core.clone()))
    }

    /// Begins an orderly stop without drain.
    pub fn request_stop(&self) {
        self.core.order_stop(StopOrder {
            drain: false,
            deadline: None,
        });
    }

    /// A thread outside of the server that it cannot do without has died: begins a stop that leaves everything as it is.
    pub fn end_broken(&self, what: String) {
        self.core.broke(what);
    }

    /// Which thread has died, if one has.
    pub fn broken(&self) -> Option<String> {
        self.core.broken.lock().clone()
    }

    /// Blocks until the server is to stop. A drain whose deadline passes takes the order back: the
    /// server goes on.
    pub fn wait_stop(&self) -> StopReason {
        loop {
            let order = {
                let mut stop = self.core.stop.lock();
                while stop.is_none() {
                    self.core.stop_given.wait(&mut stop);
                }
                *stop
            };
            match order {
                _ if self.core.is_broken() => return StopReason::Broken,
                Some(StopOrder { drain: false, .. }) | None => return StopReason::Ordered,
                Some(StopOrder {
                    drain: true,
                    deadline,
                }) => {
                    if self.drain(deadline) {
                        self.drained.store(true, Ordering::Release);
                        return StopReason::Drained;
                    }
                    let mut stop = self.core.stop.lock();
                    if *stop == order {
                        *stop = None;
                    }
                }
            }
        }
    }

    /// Demotes everything. `false` if the deadline came first, or another order.
    fn drain(&self, deadline: Option<Instant>) -> bool {
        let core = &self.core;
        core.drain.drain_all(true);
        loop {
            if self.undrained().undrained_files == 0 && !core.publications_under_way() {
                return true;
            }
            let another = !matches!(*core.stop.lock(), Some(StopOrder { drain: true, .. }));
            if another || deadline.is_some_and(|d| Instant::now() >= d) {
                core.drain.drain_all(false);
                return false;
            }
            core.drain.wait_settled(Duration::from_millis(50));
        }
    }

    /// What the books have wrong, of a server that nobody uses and that does nothing now: see [`Core::audit_books`].
    pub fn audit_books(&self) -> Vec<String> {
        self.core.audit_books()
    }

    /// What is not on the PFS now.
    pub fn undrained(&self) -> StopSummary {
        self.core.undrained()
    }

    /// Ends all threads and leaves everything on stable storage where there is room for it. To be
    /// called when nothing is mounted any more.
    pub fn stop(&self) -> StopSummary {
        let core = &self.core;
        if self.drained.load(Ordering::Acquire) && !core.pulse().is_silent() {
            // What was closed by the unmount itself.
            self.drain(Some(Instant::now() + LAST_DRAIN));
        }
        core.ending.store(true, Ordering::Release);
        core.drain.wake_all();
        core.wake_collector();
        core.wake_resting();
        let threads = std::mem::take(&mut *self.threads.lock());
        join_all(core, threads);
        failpoint::hit(failpoint::Point::StopThreads);
        if core.is_broken() {
            return self.leave_as_it_is();
        }
        core.leave_memory();
        core.flush_undrained();
        if !core.pulse().is_silent() {
            core.ns.put_owed_times(Duration::ZERO);
        }
        failpoint::hit(failpoint::Point::StopMoved);
        core.collect_garbage();
        let summary = self.undrained();
        self.save_totals();
        core.save_scrub();
        core.learn();
        if let Err(error) = core.learning.save(core) {
            tracing::warn!("what was learned is not kept: {error}");
        }
        if let Err(errno) = core.forget_removed() {
            tracing::warn!("removed objects stay on record: {errno}");
        }
        if let Err(error) = core.ns.sync() {
            tracing::error!("metadata store: {error}");
        }
        failpoint::hit(failpoint::Point::StopSynced);
        if summary.in_memory_bytes == 0
            && !core.memory_in_use()
            && let Err(error) = core.tiers.drop_dram(&core.settings.state)
        {
            tracing::warn!("the memory tier stays mounted: {error}");
        }
        if !core.pulse().is_silent() {
            core.tiers.tidy_overflow(core.ns.pfs());
        }
        summary
    }

    /// After [`Instance::stop`], where the start came to nothing: gives the directories back that it has made its own.
    pub fn give_back(&self) {
        self.core.tiers.give_back();
    }

    /// The end after a thread has died: what is on record is what the next start goes by, as after a kill.
    fn leave_as_it_is(&self) -> StopSummary {
        if let Err(error) = self.core.ns.sync() {
            tracing::error!("metadata store: {error}");
        }
        self.undrained()
    }

    fn save_totals(&self) {
        let core = &self.core;
        let saved = Facts::load(&core.ns).and_then(|facts| {
            let Some(mut facts) = facts else {
                return Ok(());
            };
            facts.demoted_bytes = core.counters.demoted_bytes.load(Ordering::Relaxed);
            facts.demoted_files = core.counters.demoted_files.load(Ordering::Relaxed);
            facts.evicted_bytes = core.counters.evicted_bytes.load(Ordering::Relaxed);
            facts.save(&core.ns)
        });
        if let Err(error) = saved {
            tracing::warn!("totals are not kept: {error}");
        }
    }
}

/// Checks a state folder whose instance does not run. The caller holds its lock.
pub fn fsck_offline(
    state: &Path,
    dry_run: bool,
    checksums: bool,
    new_pfs: bool,
) -> Result<FsckReport, StartError> {
    if !state.join("kv").is_dir() {
        return Err(StartError::NoInstance(state.display().to_string()));
    }
    let store = open_store(state)?;
    let facts = match store.get(b"c/instance").map_err(failed("metadata store"))? {
        Some(bytes) => postcard::from_bytes::<Facts>(&bytes).map_err(failed("metadata store"))?,
        None => return Err(StartError::NoInstance(state.display().to_string())),
    };
    drop(store);
    let mode = OpenMode::Check { dry_run, new_pfs };
    let core = open_core(facts.settings(state.to_path_buf()), mode)?;
    let report = core.fsck(dry_run, checksums);
    // Memory that was not there before is empty, and nobody would give it back.
    core.tiers.undo(state);
    core.ns.sync().map_err(failed("metadata store"))?;
    Ok(report)
}
