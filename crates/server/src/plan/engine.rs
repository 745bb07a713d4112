//! The engine: which plan is in force, the limits and turns that follow from it.
//!
//! What to do is decided in `policy`; here are the clock, the threads that wait, and the switches.
//! While no plan sees contention the data path reads one atomic and takes no lock.

pub(crate) mod beat;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_policy::demotion::{PlacementPolicy, ahead_bytes};
use forebay_policy::engine::{Bandwidths, InForce, PlanChoice, Reason, in_force};
use forebay_policy::plan::DrainPolicy;
use forebay_policy::schedule::{Class, ScheduleConfig, Scheduler, TurnEnd};
use forebay_policy::throttle::{DemotionPace, Load, Pace, TokenBucket, is_full, pace};
use parking_lot::{Condvar, Mutex};

use crate::base::settings::Settings;
use crate::plan::block_io::BlockIo;
use crate::plan::calibrate::Samples;

/// Between two looks at what was written.
const TICK: Duration = Duration::from_millis(100);

/// Shares are counted anew after so many: that visits all files.
const SHARES_EVERY_TICKS: u32 = 10;

/// Most requests that wait for their turn: the mount has 160 threads that may wait, and those of
/// the application whose turn it is must find one, as must restarts. Beyond that requests go
/// without a turn.
const WAITING_MAX: usize = 96;

/// Where jobs stage: what they bring has no node yet.
const ANYWHERE: u16 = u16::MAX;

/// Jobs stand beside applications in the queues, under numbers that no application has.
const STAGING_JOBS: u64 = 1 << 63;

/// A thread that waits looks again after this long whatever happens.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Brmax is corrected by what was moved in so long.
const CORRECT_EVERY: Duration = Duration::from_secs(5);

struct Turns {
    /// By the server whose devices are used: who writes on one node is in nobody's way on another.
    schedulers: HashMap<u16, Scheduler<u64>>,
    config: ScheduleConfig,
    started: HashSet<u64>,
    next_ticket: u64,
}

impl Turns {
    fn of(&mut self, server: u16) -> &mut Scheduler<u64> {
        let config = self.config;
        let new = || Scheduler::new(config).unwrap_or_else(|_| unreachable!("checked"));
        self.schedulers.entry(server).or_insert_with(new)
    }

    fn waiting(&self) -> usize {
        self.schedulers.values().map(Scheduler::waiting).sum()
    }
}

struct Buckets {
    writes: TokenBucket,
    demotion: TokenBucket,
}

/// What is in force now.
#[derive(Clone, Copy)]
pub struct View {
    /// The plan and why.
    pub in_force: InForce,
    /// The limits.
    pub pace: Pace,
}

struct Correction {
    since: Instant,
    moved_bytes: u64,
}

/// The plan in force, the limits as token buckets, the turns, and the switches for the data path.
pub struct Engine {
    policy: AtomicU8,
    placement: AtomicU8,
    /// Requests have to look at limits or turns.
    is_throttled: AtomicBool,
    is_contended: AtomicBool,
    has_turns: AtomicBool,
    /// Demotion has been told that nobody writes.
    is_in_pause: AtomicBool,
    /// As the throttler saw it last.
    is_full: AtomicBool,
    view: Mutex<View>,
    buckets: Mutex<Buckets>,
    turns: Mutex<Turns>,
    turned: Condvar,
    bandwidths: Mutex<Option<Bandwidths>>,
    /// Copied to the PFS since the start, also by demotions that failed.
    moved_bytes: AtomicU64,
    correction: Mutex<Correction>,
    samples: Mutex<Samples>,
    /// Held while bandwidths are measured: two measurements at once would measure each other.
    pub calibrating: Mutex<()>,
    block_io: BlockIo,
    origin: Instant,
    period_s: f64,
    throttles: AtomicBool,
    takes_turns: AtomicBool,
}

fn number<T: PartialEq>(all: &[T], value: &T) -> u8 {
    all.iter().position(|v| v == value).unwrap_or(0) as u8
}

impl Engine {
    /// As configured; an error says what makes no sense.
    pub fn new(settings: &Settings, origin: Instant) -> Result<Engine, String> {
        let engine = &settings.engine;
        let policy: DrainPolicy = settings
            .policy
            .parse()
            .map_err(|e: forebay_policy::UnknownName| e.to_string())?;
        if let Some(bandwidths) = &engine.bandwidths {
            bandwidths.check().map_err(|e| e.to_string())?;
        }
        let config = ScheduleConfig {
            turn_s: engine.turn.as_secs_f64(),
            max_wait_s: engine.max_wait.as_secs_f64(),
            ..ScheduleConfig::default()
        };
        config.check().map_err(|e| e.to_string())?;
        Ok(Engine {
            policy: AtomicU8::new(number(DrainPolicy::ALL, &policy)),
            placement: AtomicU8::new(number(PlacementPolicy::ALL, &engine.placement)),
            is_throttled: AtomicBool::new(false),
            is_contended: AtomicBool::new(false),
            has_turns: AtomicBool::new(false),
            is_in_pause: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            view: Mutex::new(View {
                in_force: InForce {
                    plan: None,
                    reason: Reason::NothingLearned,
                    is_contended: false,
                },
                pace: Pace {
                    checkpoint_bytes_per_s: None,
                    demotion: DemotionPace::Full,
                },
            }),
            buckets: Mutex::new(Buckets {
                writes: TokenBucket::new(None, 0.0),
                demotion: TokenBucket::new(None, 0.0),
            }),
            turns: Mutex::new(Turns {
                schedulers: HashMap::new(),
                config,
                started: HashSet::new(),
                next_ticket: 0,
            }),
            turned: Condvar::new(),
            bandwidths: Mutex::new(engine.bandwidths),
            moved_bytes: AtomicU64::new(0),
            correction: Mutex::new(Correction {
                since: origin,
                moved_bytes: 0,
            }),
            samples: Mutex::default(),
            calibrating: Mutex::default(),
            block_io: BlockIo::new(settings),
            origin,
            period_s: engine.period.as_secs_f64(),
            throttles: AtomicBool::new(engine.throttle),
            takes_turns: AtomicBool::new(engine.turns),
        })
    }

    fn now_s(&self) -> f64 {
        self.origin.elapsed().as_secs_f64()
    }

    /// The policy in force.
    pub fn policy(&self) -> DrainPolicy {
        DrainPolicy::ALL[self.policy.load(Ordering::Relaxed) as usize]
    }

    /// The placement in force.
    pub fn placement(&self) -> PlacementPolicy {
        PlacementPolicy::ALL[self.placement.load(Ordering::Relaxed) as usize]
    }

    /// Takes another policy or placement from now on.
    pub fn choose(&self, policy: Option<DrainPolicy>, placement: Option<PlacementPolicy>) {
        if let Some(policy) = policy {
            let n = number(DrainPolicy::ALL, &policy);
            self.policy.store(n, Ordering::Relaxed);
        }
        if let Some(placement) = placement {
            let n = number(PlacementPolicy::ALL, &placement);
            self.placement.store(n, Ordering::Relaxed);
        }
    }

    /// What is in force now.
    pub fn view(&self) -> View {
        *self.view.lock()
    }

    /// The bandwidths that plans are made from.
    pub fn bandwidths(&self) -> Option<Bandwidths> {
        *self.bandwidths.lock()
    }

    /// Takes bandwidths, such as measured ones.
    pub fn set_bandwidths(&self, bandwidths: Bandwidths) {
        *self.bandwidths.lock() = Some(bandwidths);
    }

    /// Takes these instead; `None`: none are known.
    pub fn replace_bandwidths(&self, bandwidths: Option<Bandwidths>) {
        *self.bandwidths.lock() = bandwidths;
    }

    /// From the next look on the plan's rates are held, or turns are taken, or not.
    pub fn switch(&self, throttles: Option<bool>, takes_turns: Option<bool>) {
        for (switch, value) in [
            (&self.throttles, throttles),
            (&self.takes_turns, takes_turns),
        ] {
            if let Some(value) = value {
                switch.store(value, Ordering::Relaxed);
            }
        }
    }

    /// What a calibration under way has measured so far.
    pub fn samples(&self) -> Samples {
        *self.samples.lock()
    }

    /// Keeps it for the next step.
    pub fn set_samples(&self, samples: Samples) {
        *self.samples.lock() = samples;
    }

    /// Whether the kernel may be given objects to write by itself.
    pub fn allows_passthrough(&self) -> bool {
        !self.is_contended.load(Ordering::Relaxed)
    }

    /// Whether requests have to look at limits or turns.
    pub fn is_throttled(&self) -> bool {
        self.is_throttled.load(Ordering::Relaxed)
    }

    /// Whether the throttler found the burst buffer full when it last looked.
    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// What demotion does with this load; `None` where no plan says it.
    pub fn demotion_pace(&self, load: &Load) -> Option<DemotionPace> {
        let (policy, plan) = (self.policy(), self.view().in_force.plan);
        if policy == DrainPolicy::Bbos && plan.is_none() {
            return None;
        }
        Some(pace(policy, plan.as_ref(), load).demotion)
    }

    /// Sets plan, limits and switches anew.
    fn follow(&self, choice: &PlanChoice, load: &Load, is_pressed: bool) {
        let in_force = in_force(choice);
        let mut now = pace(choice.policy, in_force.plan.as_ref(), load);
        if is_pressed || (choice.policy == DrainPolicy::Bbos && in_force.plan.is_none()) {
            // Whether to demote is then the thresholds' to say; what is under way runs on.
            now.demotion = DemotionPace::Full;
        }
        let throttles = self.throttles.load(Ordering::Relaxed);
        if !throttles {
            now.checkpoint_bytes_per_s = None;
        }
        let demotion = match now.demotion {
            _ if !throttles => None,
            DemotionPace::Full => None,
            DemotionPace::Rate(rate) => Some(rate),
            DemotionPace::Stop => Some(0.0),
        };
        {
            let now_s = self.now_s();
            let mut buckets = self.buckets.lock();
            buckets.demotion.set_rate(demotion, now_s);
            buckets.writes.set_rate(now.checkpoint_bytes_per_s, now_s);
        }
        self.block_io.limit(now.checkpoint_bytes_per_s);
        let turns = self.takes_turns.load(Ordering::Relaxed) && in_force.has_turns(choice.policy);
        self.has_turns.store(turns, Ordering::Relaxed);
        self.is_contended
            .store(!in_force.allows_passthrough(), Ordering::Relaxed);
        let throttled = turns || now.checkpoint_bytes_per_s.is_some();
        self.is_throttled.store(throttled, Ordering::Relaxed);
        self.is_in_pause.store(load.is_idle, Ordering::Relaxed);
        self.is_full
            .store(is_full(choice.policy, load), Ordering::Relaxed);
        let mut view = self.view.lock();
        view.in_force = in_force;
        view.pace = now;
    }

    /// Waits until a demotion may go on. `is_over` ends the wait.
    pub fn pace_demotion(&self, bytes: u64, is_over: &dyn Fn() -> bool) {
        self.moved_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.buckets.lock().demotion.take(bytes, self.now_s());
        while !is_over() {
            let pause_s = self.buckets.lock().demotion.pause_s(self.now_s());
            if pause_s <= 0.0 {
                return;
            }
            std::thread::sleep(Duration::from_secs_f64(pause_s).min(LOOK_AGAIN));
        }
    }

    /// What demotion has moved since the start, bytes.
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes.load(Ordering::Relaxed)
    }

    /// How far each of so many streams to the PFS may run ahead of it, bytes.
    pub fn ahead_bytes(&self, streams: usize) -> u64 {
        ahead_bytes(self.bandwidths().map(|b| b.br_max_bytes_per_s), streams)
    }

    /// The limit of demotion now, if there is one.
    pub fn demotion_limit_bytes_per_s(&self) -> Option<f64> {
        self.buckets.lock().demotion.rate_bytes_per_s()
    }

    fn pace_write(&self, bytes: u64) {
        loop {
            let pause_s = {
                let now_s = self.now_s();
                let mut buckets = self.buckets.lock();
                let pause_s = buckets.writes.pause_s(now_s);
                if pause_s <= 0.0 {
                    buckets.writes.take(bytes, now_s);
                    return;
                }
                pause_s
            };
            std::thread::sleep(Duration::from_secs_f64(pause_s));
        }
    }

    /// Waits until one more copy to the PFS may run beside the others of this server.
    pub fn enter_demotion(&self, server: u16, application: u32) -> Option<Turn<'_>> {
        self.enter(server, application.into(), Class::Demotion)
    }

    /// Waits until a movement from the PFS, one of those that a job has ordered, may run beside the
    /// others.
    pub fn enter_staging(&self, job: u64) -> Option<Turn<'_>> {
        self.enter(ANYWHERE, job | STAGING_JOBS, Class::Staging)
    }

    /// Waits for the turn of an application. `None`: no turns are taken now, or too many wait
    /// already.
    fn enter(&self, server: u16, application: u64, class: Class) -> Option<Turn<'_>> {
        if !self.has_turns.load(Ordering::Relaxed) {
            return None;
        }
        let mut turns = self.turns.lock();
        if turns.waiting() >= WAITING_MAX {
            return None;
        }
        let ticket = turns.next_ticket;
        turns.next_ticket += 1;
        turns
            .of(server)
            .enqueue(application, class, ticket, self.now_s());
        loop {
            self.start_all(&mut turns, server);
            if turns.started.remove(&ticket) {
                return Some(Turn {
                    engine: self,
                    server,
                    application,
                    class,
                });
            }
            let now_s = self.now_s();
            let wait = match turns.of(server).next_s() {
                Some(at_s) => Duration::from_secs_f64((at_s - now_s).max(1e-3)).min(LOOK_AGAIN),
                None => LOOK_AGAIN,
            };
            self.turned.wait_for(&mut turns, wait);
        }
    }

    /// An application flushes, or has closed, a file that it wrote.
    pub fn end_turn(&self, application: u32, rest: TurnEnd) {
        if self.has_turns.load(Ordering::Relaxed) {
            let mut turns = self.turns.lock();
            let now_s = self.now_s();
            for scheduler in turns.schedulers.values_mut() {
                scheduler.end_turn(application.into(), rest, now_s);
            }
            self.turned.notify_all();
        }
    }

    /// Who has the turn, by server: its number, and how many writes wait there.
    pub fn turn_holders(&self) -> Vec<(u16, u32, u64)> {
        if !self.has_turns.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let turns = self.turns.lock();
        let now_s = self.now_s();
        let holders = turns.schedulers.iter().filter_map(|(server, scheduler)| {
            let application = u32::try_from(scheduler.holder(now_s)?).ok()?;
            let waiting = scheduler.waiting_of(Class::Checkpoint) as u64;
            Some((*server, application, waiting))
        });
        holders.collect()
    }

    fn start_all(&self, turns: &mut Turns, server: u16) {
        let now_s = self.now_s();
        let mut any = false;
        while let Some(started) = turns.of(server).start(now_s) {
            turns.started.insert(started.ticket);
            any = true;
        }
        if any {
            self.turned.notify_all();
        }
    }

    /// What demotion reaches at full speed corrects Brmax.
    fn correct(&self, is_full: bool, has_work: bool) {
        let moved = self.moved_bytes.load(Ordering::Relaxed);
        let mut correction = self.correction.lock();
        if !(is_full && has_work) {
            correction.since = Instant::now();
            correction.moved_bytes = moved;
            return;
        }
        let span = correction.since.elapsed();
        if span >= CORRECT_EVERY {
            let seen = (moved - correction.moved_bytes) as f64 / span.as_secs_f64();
            correction.since = Instant::now();
            correction.moved_bytes = moved;
            let mut bandwidths = self.bandwidths.lock();
            *bandwidths = bandwidths.map(|b| b.corrected_br_max(seen));
        }
    }
}

/// A request under way in its turn.
pub struct Turn<'a> {
    engine: &'a Engine,
    server: u16,
    application: u64,
    class: Class,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut turns = self.engine.turns.lock();
        let now_s = self.engine.now_s();
        turns
            .of(self.server)
            .finish(self.application, self.class, now_s);
        self.engine.start_all(&mut turns, self.server);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn engine() -> Engine {
        let dir = PathBuf::from("/");
        let settings = Settings::new(dir.clone(), dir.clone(), dir);
        Engine::new(&settings, Instant::now()).expect("defaults")
    }

    #[test]
    fn copies_of_both_kinds_are_limited_while_applications_take_turns() {
        let engine = engine();
        assert!(engine.enter_staging(1).is_none(), "no contention");
        assert!(engine.enter_demotion(1, 1).is_none(), "no contention");
        engine.has_turns.store(true, Ordering::Relaxed);
        let limits = ScheduleConfig::default().limits;
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for job in 0..3 * u64::from(limits[Class::Staging as usize]) {
                let (engine, now, most) = (&engine, &now, &most);
                scope.spawn(move || {
                    let turn = engine.enter_staging(job).expect("a turn");
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(20));
                    now.fetch_sub(1, Ordering::SeqCst);
                    drop(turn);
                });
            }
        });
        let most = most.load(Ordering::SeqCst);
        assert!(most <= limits[Class::Staging as usize] as usize, "{most}");
        // Whoever stages does not keep copies to the PFS waiting, nor these a restart.
        let _staging = [1, 2].map(|job| engine.enter_staging(job));
        let _demotions = [1, 2, 3, 4].map(|app| engine.enter_demotion(1, app).expect("a turn"));
        assert!(engine.enter(1, 7, Class::Restart).is_some());
        assert_eq!(engine.turns.lock().waiting(), 0);
    }

    #[test]
    fn copies_of_four_servers_are_held_to_one_rate_in_sum_whoever_has_work() {
        const RATE: f64 = 64e6;
        const STEP: u64 = 1 << 18;
        let engine = engine();
        engine.buckets.lock().demotion.set_rate(Some(RATE), 0.0);
        let begun = Instant::now();
        let seconds = Duration::from_secs;
        // Two copies on each of four servers; after a second, two of the servers have no more.
        let moved: Vec<u64> = std::thread::scope(|scope| {
            let copies = (0..8).map(|copy| {
                let (engine, until) = (&engine, begun + seconds(if copy < 4 { 3 } else { 1 }));
                scope.spawn(move || {
                    let mut moved = 0;
                    while Instant::now() < until {
                        engine.pace_demotion(STEP, &|| Instant::now() >= until);
                        moved += STEP;
                    }
                    moved
                })
            });
            let copies: Vec<_> = copies.collect();
            let ended = copies.into_iter().map(|copy| copy.join().expect("moved"));
            ended.collect()
        });
        let all: u64 = moved.iter().sum();
        let of_limit = all as f64 / (RATE * begun.elapsed().as_secs_f64());
        assert!((0.95..=1.05).contains(&of_limit), "{of_limit}: {moved:?}");
        let [working, others] = [&moved[..4], &moved[4..]].map(|some| some.iter().sum::<u64>());
        assert!(working > 2 * others, "{moved:?}");
    }

    #[test]
    fn applications_on_two_nodes_write_at_once_and_on_one_node_in_turns() {
        let engine = engine();
        engine.has_turns.store(true, Ordering::Relaxed);
        let first = engine.enter(1, 1, Class::Checkpoint).expect("a turn");
        // Else it would wait for the first, which is not over.
        let elsewhere = engine.enter(2, 2, Class::Checkpoint).expect("a turn");
        let mut holders = engine.turn_holders();
        holders.sort_unstable();
        assert_eq!(holders, [(1, 1, 0), (2, 2, 0)]);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let behind = scope.spawn(|| {
                drop(engine.enter(1, 3, Class::Checkpoint).expect("a turn"));
                begun.elapsed()
            });
            std::thread::sleep(Duration::from_millis(200));
            assert!(!behind.is_finished(), "two at a time on one node");
            drop(first);
            engine.end_turn(1, TurnEnd::Closed);
            let waited = behind.join().expect("a turn");
            assert!(waited >= Duration::from_millis(200), "{waited:?}");
        });
        drop(elsewhere);
    }
}
