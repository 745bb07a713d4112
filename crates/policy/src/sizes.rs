//! Large and small files in shares of a tier of their own, so that many small files that are read
//! again and again are not driven out by one large file, nor the other way round.
//!
//! A class is protected while it has no more than its share: then files of the other class leave,
//! coolest first. While both have more, the order is that of coolness alone.

use crate::demotion::Candidate;

/// Least share of either class, however little of it is accessed: what is not here is not accessed
/// here, and would never get a share again.
pub const SHARE_MIN: f64 = 0.1;
/// What was accessed counts half after so long, seconds.
const HALF_LIFE_S: f64 = 600.0;

/// Whether a file is one of the small ones: under the mean.
pub fn is_small(bytes: u64, mean_bytes: u64) -> bool {
    bytes < mean_bytes
}

/// What was accessed lately, by class.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Accessed {
    small_bytes: f64,
    large_bytes: f64,
    at_s: f64,
}

impl Accessed {
    /// A file of so many bytes is accessed, in a tier whose files have `mean_bytes` on average.
    pub fn note(&mut self, bytes: u64, mean_bytes: u64, now_s: f64) {
        let passed_s = (now_s - self.at_s).max(0.0);
        let left = 0.5f64.powf(passed_s / HALF_LIFE_S);
        self.small_bytes *= left;
        self.large_bytes *= left;
        self.at_s = self.at_s.max(now_s);
        match is_small(bytes, mean_bytes) {
            true => self.small_bytes += bytes as f64,
            false => self.large_bytes += bytes as f64,
        }
    }

    /// The share of a tier that small files have, the rest is the large ones': their part of the
    /// bytes that were accessed, [`SHARE_MIN`] at least for either. `None`: nothing was accessed.
    pub fn small_share(&self) -> Option<f64> {
        let all = self.small_bytes + self.large_bytes;
        let is_known = all.is_finite() && all >= 1.0;
        is_known.then(|| (self.small_bytes / all).clamp(SHARE_MIN, 1.0 - SHARE_MIN))
    }
}

/// The shares of a tier, and what of it is taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SizeShares {
    /// Files under it are small, bytes.
    pub mean_bytes: u64,
    /// Of small files, 0 to 1.
    pub small_share: f64,
    /// What small files occupy, those included that cannot leave, bytes.
    pub small_bytes: u64,
    /// What the others occupy, bytes.
    pub large_bytes: u64,
}

impl SizeShares {
    /// Of files of these sizes. `None` where nothing is known, or all files are of one class:
    /// there is nobody to protect.
    pub fn of(sizes: &[u64], accessed: &Accessed) -> Option<SizeShares> {
        let all: u64 = sizes
            .iter()
            .fold(0, |sum, bytes| sum.saturating_add(*bytes));
        let mean_bytes = all.checked_div(sizes.len() as u64)?;
        let small = sizes.iter().filter(|bytes| is_small(**bytes, mean_bytes));
        let small_bytes = small.fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        let shares = SizeShares {
            mean_bytes,
            small_share: accessed.small_share()?,
            small_bytes,
            large_bytes: all - small_bytes,
        };
        (small_bytes > 0 && shares.large_bytes > 0).then_some(shares)
    }

    /// Re-orders what is ordered, first to go first, so that `needed_bytes` leave without a class
    /// that has no more than its share of what is left, as long as the other class has more. Within
    /// a class the order stays; and who is not in use goes before who is.
    pub fn keep<T>(&self, order: &mut [T], needed_bytes: u64, get: impl Fn(&T) -> &Candidate)
    where
        T: Clone,
    {
        let in_use = order.partition_point(|c| !get(c).in_use);
        let mut left = Left {
            shares: *self,
            target_bytes: (self.small_bytes.saturating_add(self.large_bytes))
                .saturating_sub(needed_bytes),
        };
        let (closed, open) = order.split_at_mut(in_use);
        for part in [closed, open] {
            let turns = left.turns(part.iter().map(|c| get(c).bytes));
            let before = part.to_vec();
            for (place, at) in part.iter_mut().zip(turns) {
                *place = before[at].clone();
            }
        }
    }
}

/// What would be left while one after the other goes.
struct Left {
    shares: SizeShares,
    target_bytes: u64,
}

impl Left {
    /// Whose turn it is, by place.
    fn turns(&mut self, sizes: impl Iterator<Item = u64>) -> Vec<usize> {
        let sizes: Vec<u64> = sizes.collect();
        let is_small = |at: &usize| is_small(sizes[*at], self.shares.mean_bytes);
        let (small, large): (Vec<usize>, Vec<usize>) = (0..sizes.len()).partition(is_small);
        let (mut small, mut large) = (small.into_iter().peekable(), large.into_iter().peekable());
        let mut turns = Vec::with_capacity(sizes.len());
        loop {
            let takes_small = match (small.peek(), large.peek()) {
                (Some(a), Some(b)) => self.takes_small().unwrap_or(a < b),
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (None, None) => return turns,
            };
            let (next, bytes) = match takes_small {
                true => (small.next(), &mut self.shares.small_bytes),
                false => (large.next(), &mut self.shares.large_bytes),
            };
            if let Some(at) = next {
                *bytes = bytes.saturating_sub(sizes[at]);
                turns.push(at);
            }
        }
    }

    /// Which class has to give; `None`: both, or none has to.
    fn takes_small(&self) -> Option<bool> {
        let SizeShares {
            small_share,
            small_bytes,
            large_bytes,
            ..
        } = self.shares;
        let target = self.target_bytes as f64;
        let small_beyond = small_bytes as f64 > small_share * target;
        let large_beyond = large_bytes as f64 > (1.0 - small_share) * target;
        (small_beyond != large_beyond).then_some(small_beyond)
    }
}

#[cfg(test)]
#[path = "sizes_tests.rs"]
mod tests;
