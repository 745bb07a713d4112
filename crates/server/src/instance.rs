//! A server's life: start, serve, stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_namespace::Node;
use forebay_tiers::TierKind;
use forebay_types::{Ino, failpoint};
use forebay_wire::Service;
use forebay_wire::control::Reloaded;
use forebay_wire::net::NetView;
use parking_lot::Mutex;

use crate::ahead::watch;
use crate::base::life::StopOrder;
use crate::base::live::LiveSettings;
use crate::base::settings::Settings;
use crate::buffer::Buffer;
use crate::drain::{Drain, demote};
use crate::files::Files;
use crate::files::pages::WriteBack;
use crate::files::{downward, guard, inplace, unseen};
use crate::integrity::{scrub, seal};
use crate::lifecycle::facts::Facts;
use crate::lifecycle::onserver::Told;
use crate::lifecycle::{discard, emptying, history, lending, monitor, replicas, restarts};
use crate::live::Reload;
use crate::opening::{OpenMode, open_rooms};
use crate::orders::publication;
use crate::plan::engine;
use crate::rooms::Rooms;
use crate::service::Server;
use crate::sessions::Sessions;
use crate::sessions::lives::{Lives, Start};
use crate::starterror::{StartError, failed};
use crate::threads::{Watched, join_all};

/// So long the end waits for changes under way before it counts what is left.
const LAST_CHANGES: Duration = Duration::from_secs(2);
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
    /// To be started anew, for a data server has come that only a start can take in: see
    /// [`Instance::is_to_start_anew`].
    Anew,
}

impl std::fmt::Display for StopReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            StopReason::Ordered => "ordered",
            StopReason::Drained => "ordered, and all is on the PFS",
            StopReason::Broken => "a thread has died",
            StopReason::Anew => "to be started anew",
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
    /// Files and directories that were changed on the PFS, which did not put them on stable
    /// storage.
    pub unflushed_files: u64,
    /// Versions that the PFS does not show: what it has of them is under hidden names.
    pub unpublished_versions: u64,
}

/// A running server.
pub struct Instance {
    rooms: Arc<Rooms>,
    sessions: Arc<Sessions>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    drained: AtomicBool,
}

/// Under which those who were connected to the last run are on record.
const LIVES: &str = "lives";

/// Who was connected to the last run.
fn lives(rooms: &Arc<Rooms>) -> Result<Lives, StartError> {
    let record = rooms.base.ns().get_fact(LIVES);
    let record = record.map_err(failed("metadata store"))?;
    let keeps = rooms.clone();
    let put = move |record: &[u8]| {
        let put = keeps.base.ns().put_fact(LIVES, record);
        put.map_err(|error| error.to_string())
    };
    let start = Start {
        boot: rooms.lifecycle.boot_id().unwrap_or_default().to_string(),
        has_tiers: rooms.base.settings().has_tiers(),
    };
    Ok(Lives::open(record.as_deref(), start, Box::new(put)))
}

/// Whether what was written to a file went to a tier, and none of it to the PFS.
fn is_off_the_pfs(rooms: &Rooms, ino: Ino) -> bool {
    match rooms.base.ns().node(ino) {
        Ok(Node::File(file)) => {
            let tier = file.tier();
            !file.lock().is_evicted() && rooms.buffer.tiers().kind(tier) != TierKind::Pfs
        }
        _ => false,
    }
}

impl Instance {
    /// Opens the state, finishes what an earlier run left, and begins to serve.
    pub fn start(settings: Settings) -> Result<Arc<Instance>, StartError> {
        Instance::start_telling(settings, Told::of(&|line| tracing::info!("{line}")))
    }

    /// The same, and says what the start waits for, or does beyond what is usual.
    pub fn start_telling(settings: Settings, told: Told<'_>) -> Result<Arc<Instance>, StartError> {
        let workers = settings.demotion.workers.max(1);
        // Modes come from clients, who have applied their own.
        rustix::process::umask(rustix::fs::Mode::empty());
        let rooms = Arc::new(open_rooms(settings, OpenMode::Serve, told)?);
        let lives = lives(&rooms)?;
        rooms.base.ns().await_lives(lives.awaited());
        let instance = Arc::new(Instance {
            sessions: Arc::new(Sessions::new(
                Arc::new(Server::new(rooms.clone())),
                rooms.base.processes().clone(),
                rooms.base.epoch(),
                lives,
                rooms.base.ns().clone(),
            )),
            rooms: rooms.clone(),
            threads: Mutex::default(),
            drained: AtomicBool::new(false),
        });
        if let (true, Some(hold)) = (
            rooms.base.settings().has_standby(),
            rooms.base.ns().store_hold(),
        ) {
            instance.sessions.answer_while(hold);
        }
        let theirs = rooms.clone();
        instance
            .sessions
            .reopen_only(Box::new(move |ino| is_off_the_pfs(&theirs, ino)));
        let theirs = rooms.clone();
        let is_written = move |ino| {
            let open = theirs.buffer.opens().by_ino(ino);
            open.is_some_and(|open| theirs.files.can_be_written(&open))
        };
        instance.sessions.writers_by(Box::new(is_written));
        let sessions = Arc::downgrade(&instance.sessions);
        rooms.files.awaits_by(Box::new(move || {
            let sessions = sessions.upgrade();
            sessions.is_none_or(|sessions| sessions.awaits_clients())
        }));
        if !rooms.buffer.tiers().holders().is_empty() {
            let theirs = rooms.clone();
            let is_any_away = move || {
                let mut tiers = theirs.buffer.tiers().iter();
                tiers.any(|(_, slot)| !slot.tier.is_answering())
            };
            instance.sessions.nodes_by(Box::new(is_any_away));
            let sessions = Arc::downgrade(&instance.sessions);
            rooms.files.recall_by(Box::new(move |ino| {
                if let Some(sessions) = sessions.upgrade() {
                    sessions.recall_content(ino);
                }
            }));
        }
        instance.spawn_all(workers)?;
        Ok(instance)
    }

    fn spawn_all(&self, demoters: usize) -> Result<(), StartError> {
        let rooms = &self.rooms;
        let lines = rooms.drain.lines();
        for i in 0..demoters * lines.len() {
            let line = lines[i % lines.len()];
            let run = move |drain: &Arc<Drain>| demote::run(drain, line);
            self.spawn(&format!("fb-demote-{i}"), false, &rooms.drain, run)?;
        }
        monitor::look_below(&rooms.lifecycle);
        if rooms.lifecycle.borrows() {
            // Nothing is put in memory before it is known how much there may be.
            rooms.lifecycle.look_at_memory();
            self.spawn("fb-lend", false, &rooms.lifecycle, lending::watch)?;
            self.spawn("fb-return", false, &rooms.lifecycle, lending::give_back)?;
        }
        for server in rooms.base.settings().servers() {
            let watch = move |files: &Arc<Files>| guard::watch::run(files, server);
            self.spawn(&format!("fb-guard-{server}"), false, &rooms.files, watch)?;
            let watch = move |files: &Arc<Files>| unseen::watch::watch_writers(files, server);
            self.spawn(&format!("fb-writers-{server}"), false, &rooms.files, watch)?;
        }
        self.spawn("fb-room", false, &rooms.files, guard::watch::make_room)?;
        self.spawn("fb-compare", false, &rooms.files, unseen::watch::compare)?;
        self.spawn("fb-inplace", false, &rooms.files, inplace::flush::run)?;
        self.spawn("fb-ahead", false, &rooms.ahead, watch::run)?;
        self.spawn("fb-monitor", false, &rooms.lifecycle, monitor::run)?;
        if rooms.base.settings().has_standby() {
            self.spawn("fb-lead", true, &rooms.lifecycle, monitor::watch_hold)?;
        }
        if !rooms.buffer.tiers().holders().is_empty() {
            let room = &rooms.lifecycle;
            self.spawn("fb-holders", true, room, monitor::watch_holders)?;
            self.spawn("fb-space", true, room, monitor::watch_space)?;
            for server in lending::nodes_with_memory(room) {
                let run = move |room: &Arc<_>| lending::hand_over(room, server);
                self.spawn(&format!("fb-over-{server}"), true, room, run)?;
            }
            self.spawn("fb-empty", false, room, emptying::run)?;
            self.spawn("fb-move", true, room, emptying::move_files)?;
            if rooms.lifecycle.has_replicas() {
                self.spawn("fb-promote", false, room, replicas::watch)?;
            }
            self.spawn("fb-replicate", true, room, replicas::replicate)?;
            if rooms.base.settings().restart_copies > 0 {
                self.spawn("fb-restarts", true, room, restarts::run)?;
            }
        }
        if rooms.plan.has_flash_below() {
            self.spawn("fb-down", false, &rooms.files, downward::run)?;
        }
        self.spawn("fb-engine", false, &rooms.plan, engine::beat::run)?;
        self.spawn("fb-history", true, &rooms.lifecycle, history::run)?;
        self.spawn("fb-discard", true, &rooms.lifecycle, discard::run)?;
        self.spawn(
            "fb-publish",
            false,
            &rooms.orders,
            publication::publish::run,
        )?;
        self.spawn("fb-scrub", true, &rooms.integrity, scrub::pass::run)?;
        self.spawn("fb-seal", true, &rooms.integrity, seal::run)?;
        self.spawn("fb-collect", false, &rooms.lifecycle, monitor::collect)
    }

    /// Starts a thread of a room; unless it `may_end` by itself, its end is the end of the server.
    /// A panic always is.
    fn spawn<R: Send + Sync + 'static>(
        &self,
        name: &str,
        may_end: bool,
        room: &Arc<R>,
        body: impl FnOnce(&Arc<R>) + Send + 'static,
    ) -> Result<(), StartError> {
        let watched = Watched::new(&self.rooms.base, name, may_end);
        let room = room.clone();
        let thread = std::thread::Builder::new()
            .name(name.to_string())
            .spawn(move || {
                let _watched = watched;
                body(&room);
            })
            .map_err(failed(format!("thread {name}")))?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// What connections talk to.
    pub fn service(&self) -> Arc<dyn Service> {
        Arc::new(Server::new(self.rooms.clone()))
    }

    /// What several clients talk to, each in a session of its own.
    pub fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }

    /// From here on, whatever root of a client's node asks for over the network is done as nobody.
    pub fn squash_root(&self) {
        self.sessions.squash_root(self.rooms.clone());
    }

    /// Takes a look at the network server by which clients come, for `status`. The first is kept.
    pub fn show_clients_of(&self, network: NetView) {
        if self.rooms.network.set(network).is_err() {
            tracing::error!("a second network server; status shows the clients of the first");
        }
    }

    /// Takes the way to read the settings again, for `forebay reload`. The first is kept.
    pub fn reload_by(&self, reload: Reload) {
        self.rooms.reload_by(reload);
    }

    /// Reads the settings again and takes what can be taken while it runs.
    pub fn reload(&self) -> Reloaded {
        self.rooms.reload()
    }

    /// Takes changed settings into force.
    pub fn take(&self, live: &LiveSettings) {
        self.rooms.take(live);
    }

    /// Takes the way to make the kernel write back what it keeps of a file.
    pub fn write_back_by(&self, way: WriteBack) {
        self.rooms.files.pages().write_back_by(way);
    }

    /// Takes in what programs have stored through mappings that outlive the mount. To be called
    /// when nobody can find the mount any more, while it is still served.
    pub fn fetch_last_stores(&self) {
        // After a death nothing is touched that need not be.
        if !self.rooms.base.life().is_broken() {
            self.rooms.files.fetch_last_stores();
        }
    }

    /// Begins an orderly stop without drain.
    pub fn request_stop(&self) {
        self.rooms.base.life().order_stop(StopOrder {
            drain: false,
            deadline: None,
            anew: false,
        });
    }

    /// A thread outside of the server that it cannot do without has died: begins a stop that leaves
    /// everything as it is.
    pub fn end_broken(&self, what: String) {
        self.rooms.base.life().broke(what);
    }

    /// Which thread has died, if one has.
    pub fn broken(&self) -> Option<String> {
        self.rooms.base.life().broken()
    }

    /// Whether another server may lead with these records: nothing may be said or changed any more.
    pub fn is_deposed(&self) -> bool {
        self.rooms.base.life().is_deposed()
    }

    /// Whether nobody has ordered anything else since [`StopReason::Anew`].
    pub fn is_to_start_anew(&self) -> bool {
        let order = self.rooms.base.life().stop_order();
        order.is_some_and(|order| order.anew) && !self.rooms.base.life().is_broken()
    }

    /// It cannot be started anew now: the server goes on, and is to be started anew later.
    pub fn put_off_start_anew(&self) {
        let life = self.rooms.base.life();
        if let Some(order) = life.stop_order().filter(|order| order.anew) {
            life.take_order_back(order);
        }
    }

    /// Blocks until the server is to stop. A drain whose deadline passes takes the order back: the
    /// server goes on.
    pub fn wait_stop(&self) -> StopReason {
        let life = self.rooms.base.life();
        loop {
            let order = life.wait_stop_order();
            if life.is_broken() {
                return StopReason::Broken;
            }
            if order.anew {
                return StopReason::Anew;
            }
            if !order.drain {
                return StopReason::Ordered;
            }
            if self.drain(order.deadline, true) {
                self.drained.store(true, Ordering::Release);
                return StopReason::Drained;
            }
            life.take_order_back(order);
        }
    }

    /// Demotes everything. `false` if the deadline came first, or another order. While it is
    /// `mounted`, what only the kernel may know to be changed is not on the PFS.
    fn drain(&self, deadline: Option<Instant>, mounted: bool) -> bool {
        let rooms = &self.rooms;
        rooms.buffer.queue().drain_all(true);
        rooms.files.pages().forget_holding();
        let mut look = ExactLook::default();
        let in_place = rooms.files.in_place();
        // What changes from now on goes with the end.
        let upto = in_place.order(&|_| true).unwrap_or(0);
        loop {
            if look.is_all_drained(&rooms.buffer)
                && !rooms.orders.publications_under_way()
                && !in_place.is_pending(upto)
                && (!mounted || rooms.files.look_who_holds().total == 0)
            {
                return true;
            }
            let order = rooms.base.life().stop_order();
            let another = !order.is_some_and(|order| order.drain);
            if another || deadline.is_some_and(|d| Instant::now() >= d) {
                rooms.buffer.queue().drain_all(false);
                rooms.files.look_who_holds();
                return false;
            }
            rooms.buffer.queue().wait_settled(Duration::from_millis(50));
        }
    }

    /// What the books have wrong, of a server that nobody uses and that does nothing now: see
    /// `Lifecycle::audit_books`.
    pub fn audit_books(&self) -> Vec<String> {
        self.rooms.lifecycle.audit_books()
    }

    /// How many files have lost something of what was not on the PFS, since the start.
    pub fn losses(&self) -> u64 {
        self.rooms.base.counters().losses.load(Ordering::Relaxed)
    }

    /// What is not on the PFS now.
    pub fn undrained(&self) -> StopSummary {
        let undrained = self.rooms.buffer.undrained_exactly();
        StopSummary {
            undrained_files: undrained.files,
            undrained_bytes: undrained.bytes,
            in_memory_bytes: undrained.in_memory_bytes,
            unflushed_files: self.rooms.files.unflushed().len() as u64,
            unpublished_versions: self.rooms.orders.version_status().len() as u64,
        }
    }

    /// Paths of what was changed in place on the PFS and is not on stable storage there, and of
    /// files that have lost what a program stored through its mapping.
    pub fn unflushed(&self) -> Vec<Vec<u8>> {
        self.rooms.files.unflushed()
    }

    /// Ends all threads and leaves everything on stable storage where there is room for it. To be
    /// called when nothing is mounted any more.
    pub fn stop(&self) -> StopSummary {
        let rooms = &self.rooms;
        if self.drained.load(Ordering::Acquire) && !rooms.base.health().is_silent() {
            // What was closed by the unmount itself.
            self.drain(Some(Instant::now() + LAST_DRAIN), false);
        }
        rooms.base.life().end();
        rooms.buffer.queue().wake_all();
        rooms.buffer.wake_collector();
        rooms.files.in_place().wake();
        if self.is_to_start_anew() {
            // A thread may hang on the very node that is to be taken in.
            return self.leave_as_it_is();
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        join_all(&rooms.base, threads);
        failpoint::hit(failpoint::Point::StopThreads);
        if rooms.base.life().is_broken() {
            return self.leave_as_it_is();
        }
        let (open, is_more) = self.sessions.open_at_the_end();
        let kept = |ino| is_more || open.contains_key(&ino);
        // Of who is awaited nobody knows what its kernel has.
        let by_kernel = |ino| is_more || open.get(&ino) == Some(&true);
        rooms.files.leave_memory(kept, by_kernel);
        rooms.files.flush_undrained();
        if !rooms.base.health().is_silent() {
            rooms.base.ns().put_owed_times(Duration::ZERO);
            rooms.files.flush_all_in_place();
            if self.drained.load(Ordering::Acquire) {
                rooms.files.flush_names();
            }
        }
        failpoint::hit(failpoint::Point::StopMoved);
        rooms.files.collect_garbage();
        if !rooms.base.life().end_changes(LAST_CHANGES) {
            tracing::warn!("a change is still under way, and has not been answered");
        }
        let summary = self.undrained();
        self.save_totals();
        rooms.integrity.save_scrub();
        rooms.plan.learn();
        if let Err(error) = rooms.plan.learning().save(&rooms.plan) {
            tracing::warn!("what was learned is not kept: {error}");
        }
        rooms.lifecycle.save_history();
        rooms.ahead.save_runs();
        if let Err(failure) = rooms.files.forget_removed() {
            tracing::warn!("removed objects stay on record: {failure}");
        }
        if let Err(error) = rooms.base.ns().sync() {
            tracing::error!("metadata store: {error}");
        }
        failpoint::hit(failpoint::Point::StopSynced);
        if summary.in_memory_bytes == 0
            && !rooms.files.memory_in_use()
            && let Err(error) = rooms.buffer.tiers().drop_dram(&rooms.base.settings().state)
        {
            tracing::warn!("the memory tier stays mounted: {error}");
        }
        if !rooms.base.health().is_silent() {
            rooms.buffer.tiers().tidy_overflow(rooms.base.ns().pfs());
        }
        summary
    }

    /// After [`Instance::stop`], as the last of all: who starts next with these records need not
    /// wait until the hold on them is over.
    pub fn release(&self) {
        if !self.rooms.base.life().is_broken() {
            self.rooms.base.ns().release_store();
        }
    }

    /// After [`Instance::stop`], where the start came to nothing: gives the directories back that
    /// it has made its own.
    pub fn give_back(&self) {
        self.rooms.buffer.tiers().give_back();
    }

    /// The end after a thread has died, and before a start anew: what is on record is what the
    /// next start goes by, as after a kill.
    fn leave_as_it_is(&self) -> StopSummary {
        if let Err(error) = self.rooms.base.ns().sync() {
            tracing::error!("metadata store: {error}");
        }
        self.undrained()
    }

    fn save_totals(&self) {
        let rooms = &self.rooms;
        let saved = Facts::load(rooms.base.ns()).and_then(|facts| {
            let Some(mut facts) = facts else {
                return Ok(());
            };
            facts.demoted_bytes = rooms.base.counters().demoted_bytes.load(Ordering::Relaxed);
            facts.demoted_files = rooms.base.counters().demoted_files.load(Ordering::Relaxed);
            facts.evicted_bytes = rooms.base.counters().evicted_bytes.load(Ordering::Relaxed);
            facts.save(rooms.base.ns())
        });
        if let Err(error) = saved {
            tracing::warn!("totals are not kept: {error}");
        }
    }
}

/// Looks at every file only where the ledger has nothing undrained left, or for a twentieth of the
/// time.
#[derive(Default)]
struct ExactLook {
    next: Option<Instant>,
}

impl ExactLook {
    fn is_all_drained(&mut self, buffer: &Buffer) -> bool {
        let is_due = self.next.is_none_or(|next| Instant::now() >= next);
        if buffer.undrained().files > 0 && !is_due {
            return false;
        }
        let begun = Instant::now();
        let is_all = buffer.undrained_exactly().files == 0;
        self.next = Some(Instant::now() + 20 * begun.elapsed());
        is_all
    }
}
