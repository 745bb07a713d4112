//! Who does I/O now: one queue per application, served round-robin in phases (BBOS, I/O engine).
//!
//! While one application has its turn, the checkpoint requests of the others wait: each writes its
//! checkpoint at the whole speed of the device, and the checkpoints do not interleave. A turn ends
//! when the application has nothing more to write, or after [`ScheduleConfig::turn_s`] if others
//! wait. Restart reads, demotion and staging have no turns, only limits on how many run side by
//! side, and take the applications in rotation. An application that lost its turn only because it
//! was silent for a moment, with a file neither flushed nor closed, is the next when it goes on.
//! Nobody waits longer than [`ScheduleConfig::max_wait_s`]: a request that has is started whatever
//! the turn and the limits say.
//!
//! A change costs O(log n) of the applications that wait.
//!
//! With one application its requests are only counted: it holds the turn, and nobody is there to
//! wait for.

mod lane;

use std::collections::VecDeque;

use crate::named::named;
use lane::Lane;
use serde::{Deserialize, Serialize};

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
    /// An application keeps its turn that long without a request: the next one comes when the last
    /// was answered, which on a busy machine takes its time.
    pub linger_s: f64,
    /// The same once it flushes a file: most have nothing more to write until that has returned, or
    /// at all.
    pub linger_flushing_s: f64,
    /// The same once it has closed a file: a program that writes many files opens the next at once.
    pub linger_closed_s: f64,
    /// Nobody waits longer than this.
    pub max_wait_s: f64,
    /// Requests of a class under way, by [`Class`] in its order.
    pub limits: [u32; 4],
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self {
            turn_s: 2.0,
            linger_s: 0.1,
            linger_flushing_s: 0.02,
            linger_closed_s: 0.005,
            max_wait_s: 10.0,
            limits: [16, 16, 4, 2],
        }
    }
}

/// What an application does that has the turn and asks for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnEnd {
    /// It waits until a file is flushed.
    Flushing,
    /// It has closed a file that it wrote.
    Closed,
}

/// Why a configuration is refused.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum ScheduleError {
    /// Zero, negative, infinite or not a number.
    #[error("{name} must be a positive number of seconds, not {value}")]
    NotPositive {
        /// The setting's name.
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
            ("linger_flushing", self.linger_flushing_s),
            ("linger_closed", self.linger_closed_s),
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

#[derive(Debug, Clone, Copy)]
struct Turn {
    application: u64,
    begun_s: f64,
    /// Until then it lingers.
    until_s: f64,
    /// It has come to an end since its last request.
    rests: bool,
}

/// A turn that ended in the midst of a checkpoint.
#[derive(Debug, Clone, Copy)]
struct Lapsed {
    application: u64,
    at_s: f64,
    /// Of the turn.
    used_s: f64,
}

/// An application that lost its turn by being silent is the next if it goes on within this time,
/// seconds.
const LAPSED_S: f64 = 10.0;
/// Turns that lapse in one such time are few: when the machine stands still.
const LAPSED_MAX: usize = 16;

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

/// The queues. The caller enqueues, starts what [`Scheduler::start`] gives until it gives none, and
/// says when each is done; when nothing else happens, it asks again at [`Scheduler::next_s`].
#[derive(Debug, Clone)]
pub struct Scheduler<T> {
    config: ScheduleConfig,
    lanes: [Lane<T>; 4],
    turn: Option<Turn>,
    /// The oldest first.
    lapsed: VecDeque<Lapsed>,
}

impl<T> Scheduler<T> {
    /// Empty queues.
    pub fn new(config: ScheduleConfig) -> Result<Self, ScheduleError> {
        config.check()?;
        Ok(Self {
            config,
            lanes: [Lane::new(), Lane::new(), Lane::new(), Lane::new()],
            turn: None,
            lapsed: VecDeque::new(),
        })
    }

    /// A request has come.
    pub fn enqueue(&mut self, application: u64, class: Class, ticket: T, now_s: f64) {
        let is_only = self.lanes[class as usize].push(application, ticket, now_s);
        if class != Class::Checkpoint {
            return;
        }
        if let Some(turn) = &mut self.turn
            && turn.application == application
        {
            turn.until_s = turn.until_s.max(now_s + self.config.linger_s);
            turn.rests = false;
        } else if is_only && self.lapsed(application, now_s).is_some() {
            self.lanes[class as usize].advance(application);
        }
    }

    /// The next request to start; `None` where nothing may start now. It counts as running until
    /// [`Scheduler::finish`].
    pub fn start(&mut self, now_s: f64) -> Option<Started<T>> {
        for &class in Class::ALL {
            let application = self.overdue(class, now_s).or_else(|| {
                let lane = &self.lanes[class as usize];
                if lane.running() >= self.config.limits[class as usize] {
                    return None;
                }
                match class {
                    Class::Checkpoint => self.whose_turn(now_s),
                    _ => lane.first(),
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
            turn.until_s = turn.until_s.max(now_s + self.config.linger_s);
        }
    }

    /// An application has come to an end, perhaps of many: unless its next request comes soon, its
    /// turn is over.
    pub fn end_turn(&mut self, application: u64, rest: TurnEnd, now_s: f64) {
        if let Some(turn) = &mut self.turn
            && turn.application == application
        {
            turn.rests = true;
            turn.until_s = now_s
                + match rest {
                    TurnEnd::Flushing => self.config.linger_flushing_s,
                    TurnEnd::Closed => self.config.linger_closed_s,
                };
        }
    }

    /// When to ask again if nothing comes and nothing ends: the turn passes, or somebody has waited
    /// long enough. `None` where nobody waits.
    pub fn next_s(&self) -> Option<f64> {
        let overdue = self
            .lanes
            .iter()
            .filter_map(Lane::oldest)
            .map(|(_, since_s)| since_s + self.config.max_wait_s);
        let passes = self
            .turn
            .filter(|_| self.lanes[Class::Checkpoint as usize].waiting() > 0);
        let passes = passes.map(|t| t.until_s);
        overdue.chain(passes).min_by(f64::total_cmp)
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.lanes.iter().map(Lane::waiting).sum()
    }

    /// Requests of a class under way.
    pub fn running(&self, class: Class) -> u32 {
        self.lanes[class as usize].running()
    }

    /// The application that has the turn.
    pub fn turn(&self) -> Option<u64> {
        self.turn.map(|t| t.application)
    }

    /// The same, if its turn goes on: it writes, is about to, or may still go on writing.
    pub fn holder(&self, now_s: f64) -> Option<u64> {
        let lane = &self.lanes[Class::Checkpoint as usize];
        let turn = self.turn.filter(|turn| {
            let is_there = lane.is_running(turn.application) || lane.is_waiting(turn.application);
            is_there || now_s < turn.until_s
        });
        turn.map(|turn| turn.application)
    }

    /// Requests of a class that wait.
    pub fn waiting_of(&self, class: Class) -> usize {
        self.lanes[class as usize].waiting()
    }

    fn overdue(&self, class: Class, now_s: f64) -> Option<u64> {
        let (application, since_s) = self.lanes[class as usize].oldest()?;
        (now_s >= since_s + self.config.max_wait_s).then_some(application)
    }

    /// The application whose checkpoint request may start, passing the turn on where it is over.
    fn whose_turn(&mut self, now_s: f64) -> Option<u64> {
        let lane = &self.lanes[Class::Checkpoint as usize];
        let next = lane.first()?;
        if let Some(turn) = &self.turn {
            let others = lane.first_but(turn.application).is_some();
            let used_up = others && now_s - turn.begun_s >= self.config.turn_s;
            let running = lane.is_running(turn.application);
            if !used_up && lane.is_waiting(turn.application) {
                return Some(turn.application);
            }
            let lingers = !used_up && now_s < turn.until_s;
            // The turn passes when nothing of it is under way any more, or the checkpoints would
            // interleave.
            if running || lingers {
                return None;
            }
            if !used_up && !turn.rests {
                let lapsed = Lapsed {
                    application: turn.application,
                    at_s: now_s,
                    used_s: now_s - turn.begun_s,
                };
                if self.lapsed.len() == LAPSED_MAX {
                    self.lapsed.pop_front();
                }
                self.lapsed.push_back(lapsed);
            }
        }
        let other = self.turn.and_then(|t| lane.first_but(t.application));
        let next = other.unwrap_or(next);
        let used_s = self.lapsed(next, now_s).map_or(0.0, |lapsed| lapsed.used_s);
        self.lapsed.retain(|lapsed| lapsed.application != next);
        self.turn = Some(Turn {
            application: next,
            begun_s: now_s - used_s,
            until_s: now_s + self.config.linger_s,
            rests: false,
        });
        Some(next)
    }

    /// The turn that an application has lost a moment ago.
    fn lapsed(&self, application: u64, now_s: f64) -> Option<Lapsed> {
        self.lapsed
            .iter()
            .find(|lapsed| lapsed.application == application && now_s < lapsed.at_s + LAPSED_S)
            .copied()
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
