//! Seeds that are printed, and who runs the tests.

use rand::SeedableRng;
use rand::rngs::StdRng;

/// A seed; printed when a test that uses it fails. `FOREBAY_TEST_SEED` sets it.
pub struct Seed {
    value: u64,
    what: &'static str,
}

impl Seed {
    /// A new seed for `what`.
    pub fn new(what: &'static str) -> Seed {
        let given = std::env::var("FOREBAY_TEST_SEED").ok();
        let value = match given {
            Some(text) => text.parse().expect("FOREBAY_TEST_SEED is a number"),
            None => rand::random(),
        };
        Seed { value, what }
    }

    /// Random numbers that depend on the seed alone.
    pub fn rng(&self) -> StdRng {
        StdRng::seed_from_u64(self.value)
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "{}: to repeat, set FOREBAY_TEST_SEED={}",
                self.what, self.value
            );
        }
    }
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
