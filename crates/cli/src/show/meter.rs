//! Rate and estimated time, from what has been seen so far.

use std::collections::VecDeque;

/// The rate is the mean over this time: long enough to ride over one slow file, short enough to
/// follow a change.
const WINDOW_S: f64 = 10.0;
/// Observations closer together than this replace each other, which bounds their number.
const GRAIN_S: f64 = 0.1;

/// Watches an amount grow. Time is an argument.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    /// (time, amount): times grow; the first is at most [`WINDOW_S`] before the last, or the last
    /// one before that.
    seen: VecDeque<(f64, u64)>,
}

impl Meter {
    /// Notes how much is done now.
    pub fn observe(&mut self, now_s: f64, done: u64) {
        let second_last = self.seen.len().checked_sub(2).map(|at| self.seen[at].0);
        if second_last.is_some_and(|before| now_s - before < GRAIN_S) {
            self.seen.pop_back();
        }
        self.seen.push_back((now_s, done));
        while self.seen.len() > 2 && now_s - self.seen[1].0 > WINDOW_S {
            self.seen.pop_front();
        }
    }

    /// Amount per second over the last seconds; `None` before there is anything to tell.
    pub fn rate(&self) -> Option<f64> {
        let (from, before) = *self.seen.front()?;
        let (to, now) = *self.seen.back()?;
        match to - from > 0.0 {
            true => Some(now.saturating_sub(before) as f64 / (to - from)),
            false => None,
        }
    }

    /// Seconds until `left` more are done; `None` while nothing moves.
    pub fn eta_s(&self, left: u64) -> Option<f64> {
        if left == 0 {
            return Some(0.0);
        }
        self.rate()
            .filter(|rate| *rate > 0.0)
            .map(|rate| left as f64 / rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_follows_the_last_seconds() {
        let mut meter = Meter::default();
        assert_eq!(meter.rate(), None);
        meter.observe(0.0, 0);
        assert_eq!((meter.rate(), meter.eta_s(5)), (None, None));
        for second in 1..=20 {
            meter.observe(f64::from(second), 100 * second as u64);
        }
        assert_eq!(meter.rate(), Some(100.0));
        assert_eq!(meter.eta_s(50), Some(0.5));
        for second in 21..=40 {
            meter.observe(f64::from(second), 2000);
        }
        assert_eq!(meter.rate(), Some(0.0));
        assert_eq!(meter.eta_s(50), None);
        assert_eq!(meter.eta_s(0), Some(0.0));
    }

    #[test]
    fn it_stays_small() {
        let mut meter = Meter::default();
        for step in 0..100_000 {
            meter.observe(f64::from(step) * 0.001, step as u64);
        }
        assert!(meter.seen.len() < 250, "{}", meter.seen.len());
        assert!((meter.rate().expect("moving") - 1000.0).abs() < 1.0);
    }
}
