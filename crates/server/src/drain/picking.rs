//! Whose turn it is to be demoted.

pub(crate) mod pick;
mod urgent;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_policy::trigger::{Trigger, TriggerConfig};
use forebay_types::ObjectId;
use parking_lot::Mutex;

use crate::base::settings::DemotionSettings;
use crate::drain::picking::urgent::Urgent;

/// Most files in one batch: they share their flushes.
const BATCH_FILES_MAX: usize = 1024;

/// A demoter looks again after this long while files wait.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// The same while none does: the first one wakes it.
const NOTHING_WAITS: Duration = Duration::from_millis(500);

/// Files of one node, and the demoters that look after them: what hangs on that node holds up no
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line(pub(super) usize);

impl Line {
    /// This server's own tiers, and the overflow.
    pub const OWN: Line = Line(0);
}

/// The order of the files that wait, and when it is time to drain them.
pub struct Picking {
    /// Ids of servers: this one, then the data servers.
    servers: Vec<u16>,
    /// By line.
    turns: Vec<Mutex<Turn>>,
    urgent: Urgent,
    /// Files on their way, by line.
    under_way: Vec<AtomicU64>,
    trigger: Mutex<Trigger>,
    batch_files_max: usize,
    origin: Instant,
    idle: bool,
}

/// Files on their way.
pub struct UnderWay<'a>(&'a AtomicU64, u64);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// Held while the order is made. Other demoters take only what is urgent meanwhile. The queue's own
/// lock is not held then.
struct Turn {
    order: VecDeque<ObjectId>,
    made_at: Option<Instant>,
    /// What the order costs, seconds.
    took_s: f64,
}

impl Picking {
    /// Nothing waits yet; batches have up to `batch_files_max` files. `servers` are this one and
    /// the data servers.
    pub fn new(
        settings: &DemotionSettings,
        servers: Vec<u16>,
        origin: Instant,
        trigger: Trigger,
        batch_files_max: usize,
    ) -> Picking {
        let turn = |_: &u16| {
            Mutex::new(Turn {
                order: VecDeque::new(),
                made_at: None,
                took_s: 0.0,
            })
        };
        Picking {
            turns: servers.iter().map(turn).collect(),
            urgent: Urgent::new(servers.len()),
            under_way: servers.iter().map(|_| AtomicU64::new(0)).collect(),
            servers,
            trigger: Mutex::new(trigger),
            batch_files_max: BATCH_FILES_MAX.min(batch_files_max),
            origin,
            idle: settings.idle,
        }
    }

    /// All lines.
    pub fn lines(&self) -> impl Iterator<Item = Line> {
        (0..self.servers.len()).map(Line)
    }

    /// Files of a batch of this line are on their way, until the answer is dropped.
    pub fn set_out(&self, line: Line, files: usize) -> UnderWay<'_> {
        let count = &self.under_way[line.0];
        count.fetch_add(files as u64, Ordering::Relaxed);
        UnderWay(count, files as u64)
    }

    /// How many files of each server are on their way.
    pub fn under_way(&self) -> impl Iterator<Item = (u16, u64)> {
        let counts = self.under_way.iter();
        let counts = counts.map(|count| count.load(Ordering::Relaxed));
        self.servers.iter().copied().zip(counts)
    }

    /// What says when it is time where no plan does. Errors: the settings' fraction is none.
    pub fn trigger(settings: &DemotionSettings) -> Result<Trigger, String> {
        let mut config = TriggerConfig::starting_at(settings.start_fraction);
        config.idle_s = settings.idle_after.as_secs_f64();
        Trigger::new(config, 0.0).map_err(|e| e.to_string())
    }
}
