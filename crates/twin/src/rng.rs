//! Random numbers that are the same on every machine for the same seed.

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// ChaCha with 8 rounds: its output is fixed by its definition, not by a version of a library.
#[derive(Debug, Clone)]
pub struct Rng(ChaCha8Rng);

impl Rng {
    /// A stream of its own for every purpose, so that drawing more for one changes nothing for the
    /// others.
    pub fn new(seed: u64, purpose: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(purpose);
        Self(rng)
    }

    /// Uniform in 0..1.
    pub fn share(&mut self) -> f64 {
        // 53 bits: every value has the same weight.
        (self.0.random::<u64>() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..n`; 0 for `n` of 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((self.share() * n as f64) as u64).min(n.saturating_sub(1))
    }

    /// Exponential with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.share()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_repeat_and_differ() {
        let draw = |seed, purpose| {
            let mut rng = Rng::new(seed, purpose);
            (rng.share(), rng.below(1000), rng.exponential(1.0))
        };
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
    }

    #[test]
    fn means_are_right() {
        let mut rng = Rng::new(7, 0);
        let n = 20_000;
        let mean = (0..n).map(|_| rng.exponential(3.0)).sum::<f64>() / f64::from(n);
        assert!((mean - 3.0).abs() < 0.1, "{mean}");
        assert!((0..1000).all(|_| rng.below(3) < 3));
    }
}
