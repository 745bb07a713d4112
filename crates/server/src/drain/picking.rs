//! Whose turn it is to be demoted.

pub(crate) mod pick;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use forebay_policy::trigger::{Trigger, TriggerConfig};
use forebay_types::ObjectId;
use parking_lot::Mutex;

use crate::base::settings::DemotionSettings;

/// Most files in one batch: they share their flushes.
const BATCH_FILES_MAX: usize = 1024;

/// A demoter with nothing to do looks again after this long.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The order of the files that wait, and when it is time to drain them.
pub struct Picking {
    turn: Mutex<Turn>,
    trigger: Mutex<Trigger>,
    batch_files_max: usize,
    origin: Instant,
    idle: bool,
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
    /// Nothing waits yet; batches have up to `batch_files_max` files.
    pub fn new(
        settings: &DemotionSettings,
        origin: Instant,
        trigger: Trigger,
        batch_files_max: usize,
    ) -> Picking {
        Picking {
            turn: Mutex::new(Turn {
                order: VecDeque::new(),
                made_at: None,
                took_s: 0.0,
            }),
            trigger: Mutex::new(trigger),
            batch_files_max: BATCH_FILES_MAX.min(batch_files_max),
            origin,
            idle: settings.idle,
        }
    }

    /// What says when it is time where no plan does. Errors: the settings' fraction is none.
    pub fn trigger(settings: &DemotionSettings) -> Result<Trigger, String> {
        let mut config = TriggerConfig::starting_at(settings.start_fraction);
        config.idle_s = settings.idle_after.as_secs_f64();
        Trigger::new(config, 0.0).map_err(|e| e.to_string())
    }
}
