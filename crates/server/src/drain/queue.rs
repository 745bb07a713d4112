//! Which files wait for their demotion, and when it is their turn.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use forebay_policy::demotion::{DrainItem, batch_bytes, drain_order, order_demotion};
use forebay_policy::throttle::{DemotionPace, Load};
use forebay_policy::trigger::{Drive, Trigger, TriggerConfig};
use forebay_policy::victims::{Treatment, treatment};
use forebay_types::{Ino, ObjectId};
use parking_lot::{Condvar, Mutex};

use crate::core::Core;
use crate::settings::Settings;

/// The order is computed anew after this long even if files are left in it.
const ORDER_AGE_MAX: Duration = Duration::from_secs(1);
/// Most files in one batch: they share their flushes.
const BATCH_FILES_MAX: usize = 1024;
/// Longest wait between two tries of a demotion that fails.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// Pieces of a copy from this size on count for the progress of those who wait: smaller files are done at once.
const SHOWN_BYTES: u64 = 128 << 10;
/// The rate that `status` shows is over this time.
const RATE_WINDOW: Duration = Duration::from_secs(5);
/// After a writer asked for space, demotion runs for this long whatever the trigger says.
const HURRY_FOR: Duration = Duration::from_millis(500);

/// The same where files are to leave: until the next look at them.
const NUDGE_FOR: Duration = Duration::from_millis(1500);

struct Retry {
    at: Instant,
    after: Duration,
}

struct Inner {
    /// Dirty files that nobody writes.
    waiting: HashSet<ObjectId>,
    /// To be demoted at once: somebody waits for them.
    urgent: VecDeque<ObjectId>,
    /// The same, for looking up.
    urged: HashSet<ObjectId>,
    order: VecDeque<ObjectId>,
    ordered_at: Instant,
    retries: HashMap<ObjectId, Retry>,
    trigger: Trigger,
    hurry_until: Option<Instant>,
    nudged_until: Option<Instant>,
    drain_all: bool,
    in_flight: usize,
    /// Of those, somebody waits for.
    urged_in_flight: HashSet<ObjectId>,
    recent: VecDeque<(Instant, u64)>,
    /// When a file last arrived.
    arrived: Option<Instant>,
    /// How far large files under way have come.
    copied: HashMap<ObjectId, u64>,
}

impl Inner {
    fn is_starved(&self) -> bool {
        self.hurry_until.is_some_and(|until| Instant::now() < until)
    }
}

/// How a demotion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Of this object's file.
    pub object: ObjectId,
    /// It waits for another.
    pub again: bool,
    /// Because of an error: it waits the longer the more often.
    pub failed: bool,
}

impl Finished {
    /// Nothing is left to do.
    pub fn done(object: ObjectId) -> Finished {
        Finished {
            object,
            again: false,
            failed: false,
        }
    }

    /// To be tried again, later.
    pub fn failed(object: ObjectId) -> Finished {
        Finished {
            object,
            again: true,
            failed: true,
        }
    }
}

/// The queue of demotions.
pub struct DrainQueue {
    inner: Mutex<Inner>,
    wake: Condvar,
    settled: Condvar,
    origin: Instant,
    idle: bool,
    idle_s: f64,
    retry_after: Duration,
}

impl DrainQueue {
    /// An empty queue.
    pub fn new(settings: &Settings, origin: Instant) -> Result<DrainQueue, String> {
        let settings = &settings.demotion;
        // Where no plan says when.
        let mut config = TriggerConfig::starting_at(settings.start_fraction);
        config.idle_s = settings.idle_after.as_secs_f64();
        let trigger = Trigger::new(config, 0.0).map_err(|e| e.to_string())?;
        Ok(DrainQueue {
            inner: Mutex::new(Inner {
                waiting: HashSet::new(),
                urgent: VecDeque::new(),
                urged: HashSet::new(),
                order: VecDeque::new(),
                ordered_at: origin,
                retries: HashMap::new(),
                trigger,
                hurry_until: None,
                nudged_until: None,
                drain_all: false,
                in_flight: 0,
                urged_in_flight: HashSet::new(),
                recent: VecDeque::new(),
                arrived: None,
                copied: HashMap::new(),
            }),
            wake: Condvar::new(),
            settled: Condvar::new(),
            origin,
            idle: settings.idle,
            idle_s: settings.idle_after.as_secs_f64(),
            retry_after: settings.retry_after,
        })
    }

    /// A file is dirty and nobody writes it.
    pub fn add(&self, object: ObjectId) {
        let mut inner = self.inner.lock();
        inner.waiting.insert(object);
        inner.retries.remove(&object);
    }

    /// A file is to be demoted now.
    pub fn add_urgent(&self, object: ObjectId) {
        let mut inner = self.inner.lock();
        inner.retries.remove(&object);
        if inner.urged.insert(object) {
            inner.urgent.push_back(object);
        }
        drop(inner);
        self.wake.notify_all();
    }

    /// A file that somebody waits for has been put back: it is its turn again.
    pub fn urge_again(&self, object: ObjectId) {
        let mut inner = self.inner.lock();
        let ready = inner
            .retries
            .get(&object)
            .is_none_or(|r| r.at <= Instant::now());
        if ready && inner.waiting.contains(&object) && inner.urged.insert(object) {
            inner.urgent.push_back(object);
            drop(inner);
            self.wake.notify_all();
        }
    }

    /// Whether a file waits for its demotion, or one that was asked for is under way.
    pub fn knows(&self, object: ObjectId) -> bool {
        let inner = self.inner.lock();
        inner.waiting.contains(&object)
            || inner.urged.contains(&object)
            || inner.urged_in_flight.contains(&object)
    }

    /// A file needs no demotion any more.
    pub fn forget(&self, object: ObjectId) {
        let mut inner = self.inner.lock();
        inner.waiting.remove(&object);
        inner.retries.remove(&object);
    }

    /// A writer needs space.
    pub fn hurry(&self) {
        self.inner.lock().hurry_until = Some(Instant::now() + HURRY_FOR);
        self.wake.notify_all();
    }

    /// Files are to leave the burst buffer: they are demoted for a while whatever the trigger says, but no faster than else.
    pub fn nudge(&self) {
        self.inner.lock().nudged_until = Some(Instant::now() + NUDGE_FOR);
        self.wake.notify_all();
    }

    /// From now on everything is demoted as fast as it goes.
    pub fn drain_all(&self, on: bool) {
        let mut inner = self.inner.lock();
        inner.drain_all = on;
        inner.retries.clear();
        drop(inner);
        self.wake.notify_all();
    }

    /// A writer needs space, or did a moment ago.
    pub fn is_starved(&self) -> bool {
        self.inner.lock().is_starved()
    }

    /// Somebody waits for a demotion: its limits do not count then.
    pub fn is_pressed(&self) -> bool {
        let inner = self.inner.lock();
        inner.drain_all
            || inner.is_starved()
            || !inner.urgent.is_empty()
            || !inner.urged_in_flight.is_empty()
    }

    /// Whether a burst buffer that has been quiet for so long is drained.
    pub fn is_pause(&self, quiet_s: f64) -> bool {
        self.idle && quiet_s >= self.idle_s
    }

    /// Whether files wait or are on their way.
    pub fn has_work(&self) -> bool {
        let inner = self.inner.lock();
        inner.in_flight > 0 || !inner.waiting.is_empty()
    }

    /// Dirty files that nobody writes and that are not on their way.
    pub fn waiting(&self) -> Vec<ObjectId> {
        self.inner.lock().waiting.iter().copied().collect()
    }

    /// Wakes all who wait, to look whether they are to end.
    pub fn wake_all(&self) {
        self.wake.notify_all();
        self.settled.notify_all();
    }

    /// Whether waiting may help a writer: something other than its own file can be demoted.
    pub fn can_free(&self, core: &Core, writer: Ino) -> bool {
        let inner = self.inner.lock();
        if inner.in_flight > 0 {
            return true;
        }
        let now = Instant::now();
        let ready = |o: &&ObjectId| inner.retries.get(o).is_none_or(|r| r.at <= now);
        inner
            .waiting
            .iter()
            .filter(ready)
            .take(64)
            .any(|object| core.file(*object).is_some_and(|file| file.ino != writer))
    }

    /// Files whose last try failed, and when the next of them is tried.
    pub fn failing(&self) -> (u64, Option<Duration>) {
        let inner = self.inner.lock();
        let next = inner.retries.values().map(|retry| retry.at).min();
        let until = next.map(|at| at.saturating_duration_since(Instant::now()));
        (inner.retries.len() as u64, until)
    }

    /// Bytes per second demoted lately; 0 while all that is tried fails, however much is copied for that.
    pub fn rate_bytes_per_s(&self) -> u64 {
        let mut inner = self.inner.lock();
        let now = Instant::now();
        let arrives = inner.arrived.is_some_and(|at| now - at <= RATE_WINDOW)
            || (inner.copied.keys()).any(|object| !inner.retries.contains_key(object));
        if !inner.retries.is_empty() && !arrives {
            return 0;
        }
        while inner
            .recent
            .front()
            .is_some_and(|(at, _)| now - *at > RATE_WINDOW)
        {
            inner.recent.pop_front();
        }
        let Some((first, _)) = inner.recent.front() else {
            return 0;
        };
        let span = (now - *first).as_secs_f64().max(0.25);
        let bytes: u64 = inner.recent.iter().map(|(_, b)| b).sum();
        (bytes as f64 / span) as u64
    }

    /// Bytes of an object have been copied to the PFS.
    pub fn moved(&self, object: ObjectId, bytes: u64) {
        let mut inner = self.inner.lock();
        if bytes >= SHOWN_BYTES {
            *inner.copied.entry(object).or_default() += bytes;
        }
        let now = Instant::now();
        match inner.recent.back_mut() {
            Some((at, sum)) if now - *at < Duration::from_millis(100) => *sum += bytes,
            _ => inner.recent.push_back((now, bytes)),
        }
        if inner.recent.len() > 128 {
            inner.recent.pop_front();
        }
    }

    /// How much of an object has been copied, if it is large and on its way to the PFS; 0 otherwise.
    pub fn copied_bytes(&self, object: ObjectId) -> u64 {
        self.inner.lock().copied.get(&object).copied().unwrap_or(0)
    }

    /// The outcomes of demotions that ended together.
    pub fn finished(&self, ended: &[Finished]) {
        let mut inner = self.inner.lock();
        let now = Instant::now();
        for end in ended {
            inner.in_flight -= 1;
            inner.urged_in_flight.remove(&end.object);
            inner.copied.remove(&end.object);
            if end.failed {
                let before = inner.retries.get(&end.object).map(|r| r.after * 2);
                let after = before.unwrap_or(self.retry_after).min(RETRY_AFTER_MAX);
                let at = now + after;
                inner.retries.insert(end.object, Retry { at, after });
            } else {
                inner.retries.remove(&end.object);
                if !end.again {
                    inner.arrived = Some(now);
                }
            }
            if end.again {
                inner.waiting.insert(end.object);
            }
        }
        drop(inner);
        self.settled.notify_all();
    }

    /// Waits until some demotion has ended, at most for `timeout`.
    pub fn wait_settled(&self, timeout: Duration) {
        self.settled.wait_for(&mut self.inner.lock(), timeout);
    }

    /// The next files to demote together; empty if there is nothing to do now. Waits a little.
    pub fn next_batch(&self, core: &Core) -> Vec<ObjectId> {
        let mut inner = self.inner.lock();
        let batch = self.pick(&mut inner, core);
        if !batch.is_empty() || core.is_ending() {
            return batch;
        }
        self.wake.wait_for(&mut inner, Duration::from_millis(50));
        self.pick(&mut inner, core)
    }

    fn pick(&self, inner: &mut Inner, core: &Core) -> Vec<ObjectId> {
        if inner.urgent.is_empty() && !self.is_time(inner, core) {
            return Vec::new();
        }
        let mut batch = Vec::new();
        let mut bytes = 0;
        let (_, capacity) = core.ledger.dirty_and_capacity();
        let most_files = batch_files_max(core);
        let most_bytes = batch_bytes(capacity, core.engine.demotion_limit_bytes_per_s());
        while let Some(object) = inner.urgent.pop_front() {
            inner.urged.remove(&object);
            inner.waiting.remove(&object);
            inner.urged_in_flight.insert(object);
            bytes += core.ledger.used_bytes(object);
            batch.push(object);
            if batch.len() >= most_files || bytes >= most_bytes {
                break;
            }
        }
        if batch.is_empty() {
            self.pick_in_order(inner, core, &mut batch, most_bytes);
        }
        inner.in_flight += batch.len();
        batch
    }

    fn pick_in_order(
        &self,
        inner: &mut Inner,
        core: &Core,
        batch: &mut Vec<ObjectId>,
        most_bytes: u64,
    ) {
        let now = Instant::now();
        if inner.order.is_empty() || now - inner.ordered_at > ORDER_AGE_MAX {
            inner.order = ordered(core, &inner.waiting, &inner.retries, now);
            inner.ordered_at = now;
        }
        let mut bytes = 0;
        let most_files = batch_files_max(core);
        while batch.len() < most_files && (batch.is_empty() || bytes < most_bytes) {
            let Some(object) = inner.order.pop_front() else {
                break;
            };
            if inner.waiting.remove(&object) {
                bytes += core.ledger.used_bytes(object);
                batch.push(object);
            }
        }
    }

    fn is_time(&self, inner: &mut Inner, core: &Core) -> bool {
        if inner.waiting.is_empty() {
            return false;
        }
        let now = Instant::now();
        let until = [inner.hurry_until, inner.nudged_until];
        if inner.drain_all || until.into_iter().flatten().any(|until| now < until) {
            return true;
        }
        let (dirty, capacity) = core.ledger.dirty_and_capacity();
        inner.trigger.on_foreground(core.activity.last_s());
        // Files in the overflow and empty ones are waiting too, but hold no bytes of ours.
        let now_s = (now - self.origin).as_secs_f64();
        let limit_bytes = capacity.min(core.ledger.dirty_cap_bytes()) as f64;
        let load = Load {
            dwsf_bytes: core.learning.dwsf_bytes() as f64,
            dirty_bytes: dirty.max(1) as f64,
            limit_bytes,
            under_way_bytes: core.under_way_bytes(limit_bytes),
            was_full: core.engine.is_full(),
            is_idle: core.is_quiet(),
            is_starved: false,
        };
        if let Some(pace) = core.engine.demotion_pace(&load) {
            return pace != DemotionPace::Stop;
        }
        match inner.trigger.drive(dirty.max(1), capacity, now_s) {
            Drive::Stop => false,
            Drive::Idle => self.idle,
            Drive::Paced | Drive::Full => true,
        }
    }
}

/// Copies of a batch are all open until it is flushed.
fn batch_files_max(core: &Core) -> usize {
    BATCH_FILES_MAX.min(core.descriptors.batch_files_max)
}

/// Victims by the policy's order, the head of them in the order that the PFS likes.
fn ordered(
    core: &Core,
    waiting: &HashSet<ObjectId>,
    retries: &HashMap<ObjectId, Retry>,
    now: Instant,
) -> VecDeque<ObjectId> {
    let ready = waiting
        .iter()
        .filter(|o| retries.get(o).is_none_or(|r| r.at <= now));
    let mut candidates: Vec<_> = ready
        .map(|&object| {
            core.apps
                .candidate(object, core.ledger.used_bytes(object), false)
        })
        .collect();
    order_demotion(core.engine.placement(), &mut candidates, core.apps.now_s());
    if let Some(every) = core.settings.engine.keep_every {
        // A stable sort: postponed ones go last, each part in its order.
        candidates
            .sort_by_key(|c| treatment(Some(every), c.version, c.outdated) == Treatment::Postpone);
    }
    let head = candidates.len().min(BATCH_FILES_MAX * 2);
    let mut items: Vec<DrainItem> = candidates[..head]
        .iter()
        .map(|c| DrainItem {
            id: c.id,
            path: core
                .file(ObjectId(c.id))
                .map(|f| f.path())
                .unwrap_or_default(),
            bytes: c.bytes,
        })
        .collect();
    drain_order(&mut items);
    let rest = candidates[head..].iter().map(|c| ObjectId(c.id));
    items.iter().map(|i| ObjectId(i.id)).chain(rest).collect()
}
