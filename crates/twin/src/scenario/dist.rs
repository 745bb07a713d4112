//! Quantities in seconds that differ from application to application.

use crate::rng::Rng;

/// A fixed value or a distribution, in seconds.
#[derive(Debug, Clone, PartialEq)]
pub enum Dist {
    /// Always this.
    Fixed(f64),
    /// Between the two; with a step, the whole multiples of the step that are above the lower and
    /// not above the upper bound.
    Uniform {
        /// Lower bound.
        from_s: f64,
        /// Upper bound.
        to_s: f64,
        /// 0: continuous.
        step_s: f64,
    },
    /// Exponential with this mean.
    Exponential(f64),
}

impl Dist {
    /// Draws a value.
    pub fn sample(&self, rng: &mut Rng) -> f64 {
        match *self {
            Self::Fixed(value) => value,
            Self::Exponential(mean_s) => rng.exponential(mean_s),
            Self::Uniform {
                from_s,
                to_s,
                step_s,
            } if step_s > 0.0 => {
                let first = (from_s / step_s).floor() as u64 + 1;
                let last = ((to_s / step_s).floor() as u64).max(first);
                (first + rng.below(last - first + 1)) as f64 * step_s
            }
            Self::Uniform { from_s, to_s, .. } => from_s + (to_s - from_s) * rng.share(),
        }
    }

    /// The mean of what [`Dist::sample`] draws.
    pub fn mean_s(&self) -> f64 {
        match *self {
            Self::Fixed(value) | Self::Exponential(value) => value,
            Self::Uniform {
                from_s,
                to_s,
                step_s,
            } => f64::midpoint(from_s + step_s, to_s),
        }
    }
}
