//! Open files that could not go on elsewhere.

use std::time::Instant;

use forebay_policy::patience::STAYS_FOR;
use parking_lot::Mutex;

/// Whether one is not asked to now.
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
