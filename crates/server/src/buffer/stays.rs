//! Open files that could not go on elsewhere.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// One that could not is not asked to for so long: each try may copy all of it.
const STAYS_FOR: Duration = Duration::from_secs(10);

/// Whether that is so.
#[derive(Default)]
pub struct Stays(Mutex<Option<Instant>>);

impl Stays {
    /// From now on.
    pub fn for_a_while(&self) {
        *self.0.lock() = Some(Instant::now() + STAYS_FOR);
    }

    /// Whether that is so now.
    pub fn is_until_later(&self) -> bool {
        self.0.lock().is_some_and(|until| Instant::now() < until)
    }
}
