//! Who does I/O now: one queue per application, served round-robin in phases (BBOS, I/O engine).
//!
//! While one application has its turn, the checkpoint requests of the others wait: each writes its checkpoint at the whole speed
//! of the device, and the checkpoints do not interleave. A turn ends when the application has nothing more to write, or
//! after [`ScheduleConfig::turn_s`] if others wait. Restart reads, demotion and staging have no turns, only limits on how many
//! run side by side, and take the applications in rotation. Nobody waits longer than [`ScheduleConfig::max_wait_s`]: a request
//! that has is started whatever the turn and the limits say.
//!
//! With one application its requests are only counted: it holds the turn, and nobody is there to wait for.

use crate::named::named;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// What a request is for. Served in this order when several may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// A read of an application that starts again: the whole job waits for it.
    Restart,
    /// A checkpoint being written.
    Checkpoint,
    /// A copy to the PFS.
    Demotion,
    /// A copy from the PFS that was asked for.
    Staging,
}

named!(Class, "class", Restart => "restart", Checkpoint => "checkpoint", Demotion => "demotion", Staging => "staging");

/// How turns are given.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScheduleConfig {
    /// Longest turn while others wait, seconds.
    pub turn_s: f64,
    /// An application keeps its turn that long without a request: the next one comes when the last was answered.
    pub linger_s: f64,
    /// Nobody waits longer than this.
    pub max_wait_s: f64,
    /// Requests of a class under way, by [`Class`] in its order.
    pub limits: [u32; 4],
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self {
            turn_s: 2.0,
            linger_s: 0.02,
            max_wait_s: 10.0,
            limits: [16, 16, 4, 2],
        }
    }
}

/// Part of the time that a turn lingers, after a close.
const LINGER_AFTER_CLOSE: f64 = 0.25;

/// Why a configuration is refused.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum ScheduleError {
    /// Zero, negative, infinite or not a number.
    #[error("{name} must be a positive number of seconds, not {value}")]
    NotPositive {
        /// Which.
        name: &'static str,
        /// What was given.
        value: f64,
    },
    /// The bound on waiting could not be met.
    #[error("nobody could wait as little as {max_wait_s} s when a turn lasts {turn_s} s")]
    WaitBelowTurn {
        /// Bound on waiting.
        max_wait_s: f64,
        /// Length of a turn.
        turn_s: f64,
    },
    /// A class that may never run.
    #[error("requests of the class {0} could never start: their limit is 0")]
    NoneMayRun(Class),
}

impl ScheduleConfig {
    /// Checks ranges and order.
    pub fn check(&self) -> Result<(), ScheduleError> {
        for (name, value) in [
            ("turn", self.turn_s),
            ("linger", self.linger_s),
            ("max_wait", self.max_wait_s),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return Err(ScheduleError::NotPositive { name, value });
            }
        }
        if self.max_wait_s < self.turn_s {
            return Err(ScheduleError::WaitBelowTurn {
                max_wait_s: self.max_wait_s,
                turn_s: self.turn_s,
            });
        }
        match Class::ALL.iter().find(|c| self.limits[**c as usize] == 0) {
            Some(class) => Err(ScheduleError::NoneMayRun(*class)),
            None => Ok(()),
        }
    }
}

#[derive(Debug, Clone)]
struct Waiting<T> {
    ticket: T,
    since_s: f64,
}

/// Requests of one class.
#[derive(Debug, Clone)]
struct Lane<T> {
    /// Never holds an empty queue.
    queues: BTreeMap<u64, VecDeque<Waiting<T>>>,
    /// Applications with a queue, next first. The same set as the keys of `queues`.
    ring: VecDeque<u64>,
    running: BTreeMap<u64, u32>,
    running_sum: u32,
}

impl<T> Lane<T> {
    fn new() -> Self {
        Self {
            queues: BTreeMap::new(),
            ring: VecDeque::new(),
            running: BTreeMap::new(),
            running_sum: 0,
        }
    }

    fn push(&mut self, application: u64, ticket: T, now_s: f64) {
        let queue = self.queues.entry(application).or_default();
        if queue.is_empty() {
            self.ring.push_back(application);
        }
        queue.push_back(Waiting {
            ticket,
            since_s: now_s,
        });
    }

    /// Takes the oldest request of an application and moves the application to the end of the ring.
    fn pop(&mut self, application: u64) -> Option<T> {
        let queue = self.queues.get_mut(&application)?;
        let waiting = queue.pop_front()?;
        let is_empty = queue.is_empty();
        self.ring.retain(|a| *a != application);
        if is_empty {
            self.queues.remove(&application);
        } else {
            self.ring.push_back(application);
        }
        *self.running.entry(application).or_default() += 1;
        self.running_sum += 1;
        Some(waiting.ticket)
    }

    fn finish(&mut self, application: u64) {
        if let Some(count) = self.running.get_mut(&application) {
            *count -= 1;
            self.running_sum -= 1;
            if *count == 0 {
                self.running.remove(&application);
            }
        }
    }

    /// The application whose oldest request has waited longest, and since when.
    fn oldest(&self) -> Option<(u64, f64)> {
        let fronts = self
            .queues
            .iter()
            .filter_map(|(a, q)| Some((*a, q.front()?.since_s)));
        fronts.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn is_waiting(&self, application: u64) -> bool {
        self.queues.contains_key(&application)
    }
}

#[derive(Debug, Clone, Copy)]
struct Turn {
    application: u64,
    begun_s: f64,
    /// Last request that came or ended.
    active_s: f64,
}

/// A request that may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started<T> {
    /// The caller's name for the request.
    pub ticket: T,
    /// Whose it is.
    pub application: u64,
    /// What it is for.
    pub class: Class,
}

/// The queues. The caller enqueues, starts what [`Scheduler::start`] gives until it gives none, and says when each is done;
/// when nothing else happens, it asks again at [`Scheduler::next_s`].
#[derive(Debug, Clone)]
pub struct Scheduler<T> {
    config: ScheduleConfig,
    lanes: [Lane<T>; 4],
    turn: Option<Turn>,
}

impl<T> Scheduler<T> {
    /// Empty queues.
    pub fn new(config: ScheduleConfig) -> Result<Self, ScheduleError> {
        config.check()?;
        Ok(Self {
            config,
            lanes: [Lane::new(), Lane::new(), Lane::new(), Lane::new()],
            turn: None,
        })
    }

    /// A request has come.
    pub fn enqueue(&mut self, application: u64, class: Class, ticket: T, now_s: f64) {
        self.lanes[class as usize].push(application, ticket, now_s);
        if class == Class::Checkpoint
            && let Some(turn) = &mut self.turn
            && turn.application == application
        {
            turn.active_s = turn.active_s.max(now_s);
        }
    }

    /// The next request to start; `None` where nothing may start now. It counts as running until [`Scheduler::finish`].
    pub fn start(&mut self, now_s: f64) -> Option<Started<T>> {
        for &class in Class::ALL {
            let application = self.overdue(class, now_s).or_else(|| {
                let lane = &self.lanes[class as usize];
                if lane.running_sum >= self.config.limits[class as usize] {
                    return None;
                }
                match class {
                    Class::Checkpoint => self.whose_turn(now_s),
                    _ => lane.ring.front().copied(),
                }
            });
            if let Some(application) = application
                && let Some(ticket) = self.lanes[class as usize].pop(application)
            {
                return Some(Started {
                    ticket,
                    application,
                    class,
                });
            }
        }
        None
    }

    /// A request is done, well or not.
    pub fn finish(&mut self, application: u64, class: Class, now_s: f64) {
        self.lanes[class as usize].finish(application);
        if class == Class::Checkpoint
            && let Some(turn) = &mut self.turn
            && turn.application == application
        {
            turn.active_s = turn.active_s.max(now_s);
        }
    }

    /// An application has closed a file that it wrote: unless the next one comes soon, its turn is over. A program that writes
    /// many files opens the next at once.
    pub fn closed(&mut self, application: u64, now_s: f64) {
        if let Some(turn) = &mut self.turn
            && turn.application == application
        {
            turn.active_s = now_s - self.config.linger_s * (1.0 - LINGER_AFTER_CLOSE);
        }
    }

    /// When to ask again if nothing comes and nothing ends: the turn passes, or somebody has waited long enough. `None` where
    /// nobody waits.
    pub fn next_s(&self) -> Option<f64> {
        let overdue = self
            .lanes
            .iter()
            .filter_map(Lane::oldest)
            .map(|(_, since_s)| since_s + self.config.max_wait_s);
        let passes = self
            .turn
            .filter(|_| !self.lanes[Class::Checkpoint as usize].queues.is_empty());
        let passes = passes.map(|t| t.active_s + self.config.linger_s);
        overdue.chain(passes).min_by(f64::total_cmp)
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        let of_lane = |l: &Lane<T>| l.queues.values().map(VecDeque::len).sum::<usize>();
        self.lanes.iter().map(of_lane).sum()
    }

    /// Requests of a class under way.
    pub fn running(&self, class: Class) -> u32 {
        self.lanes[class as usize].running_sum
    }

    /// The application that has the turn.
    pub fn turn(&self) -> Option<u64> {
        self.turn.map(|t| t.application)
    }

    fn overdue(&self, class: Class, now_s: f64) -> Option<u64> {
        let (application, since_s) = self.lanes[class as usize].oldest()?;
        (now_s >= since_s + self.config.max_wait_s).then_some(application)
    }

    /// The application whose checkpoint request may start, passing the turn on where it is over.
    fn whose_turn(&mut self, now_s: f64) -> Option<u64> {
        let lane = &self.lanes[Class::Checkpoint as usize];
        let next = *lane.ring.front()?;
        if let Some(turn) = &self.turn {
            let others = lane.ring.iter().any(|a| *a != turn.application);
            let used_up = others && now_s - turn.begun_s >= self.config.turn_s;
            let running = lane.running.contains_key(&turn.application);
            if !used_up && lane.is_waiting(turn.application) {
                return Some(turn.application);
            }
            // As in `next_s`, so that rounding cannot part the two.
            let lingers = !used_up && now_s < turn.active_s + self.config.linger_s;
            // The turn passes when nothing of it is under way any more, or the checkpoints would interleave.
            if running || lingers {
                return None;
            }
        }
        let last = self.turn.map(|t| t.application);
        let next = lane
            .ring
            .iter()
            .copied()
            .find(|a| Some(*a) != last)
            .unwrap_or(next);
        self.turn = Some(Turn {
            application: next,
            begun_s: now_s,
            active_s: now_s,
        });
        Some(next)
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
