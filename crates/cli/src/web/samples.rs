//! What the page draws over time.

use std::collections::VecDeque;
use std::time::Duration;

use forebay_wire::control::StatusBits;
use serde_json::{Value, json};

/// Between two samples.
pub const EVERY: Duration = Duration::from_secs(5);
/// So many are kept: an hour.
const KEPT: usize = 720;

struct Sample {
    /// Seconds since the epoch.
    at_s: u64,
    undrained: u64,
    /// Written in the period so far.
    written: u64,
    drained_total: u64,
    /// Held in each tier, in the order of the names.
    used: Vec<u64>,
}

/// The last hour.
#[derive(Default)]
pub struct Samples {
    tiers: Vec<String>,
    samples: VecDeque<Sample>,
}

impl Samples {
    /// Takes a look in. Where the tiers are others than before, what was is forgotten.
    pub fn add(&mut self, at_s: u64, bits: &StatusBits) {
        let names: Vec<String> = bits.tiers.iter().map(|tier| tier.name.clone()).collect();
        if names != self.tiers {
            self.tiers = names;
            self.samples.clear();
        }
        if self.samples.len() == KEPT {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample {
            at_s,
            undrained: bits.dirty_bytes,
            written: bits.dwsf_bytes,
            drained_total: bits.demoted_bytes_total,
            used: bits.tiers.iter().map(|tier| tier.used_bytes).collect(),
        });
    }

    /// For the page: one array for each figure, oldest first. Rates are of the time since the
    /// sample before; the first has none.
    pub fn to_json(&self) -> Value {
        let column =
            |of: &dyn Fn(&Sample) -> u64| -> Value { self.samples.iter().map(of).collect() };
        let used = (0..self.tiers.len()).map(|at| column(&|sample| sample.used[at]));
        json!({
            "at_s": column(&|sample| sample.at_s),
            "undrained_bytes": column(&|sample| sample.undrained),
            "period_written_bytes": column(&|sample| sample.written),
            "written_bytes_per_s": self.rates(|sample| sample.written),
            "drained_bytes_per_s": self.rates(|sample| sample.drained_total),
            "tiers": self.tiers,
            "used_bytes": used.collect::<Value>(),
        })
    }

    /// A figure that falls has begun anew: since then it is what it says.
    fn rates(&self, of: impl Fn(&Sample) -> u64) -> Value {
        let pairs = self.samples.iter().zip(self.samples.iter().skip(1));
        let rate = |(before, now): (&Sample, &Sample)| {
            let passed = now.at_s.saturating_sub(before.at_s).max(1);
            let grown = match of(now).checked_sub(of(before)) {
                Some(grown) => grown,
                None => of(now),
            };
            Value::from(grown / passed)
        };
        let first = self.samples.front().map(|_| Value::Null);
        first.into_iter().chain(pairs.map(rate)).collect()
    }
}

#[cfg(test)]
mod tests {
    use forebay_wire::control::TierStatus;

    use super::*;

    fn bits(written: u64, tiers: &[(&str, u64)]) -> StatusBits {
        StatusBits {
            dwsf_bytes: written,
            tiers: tiers
                .iter()
                .map(|(name, used)| TierStatus {
                    name: (*name).to_string(),
                    used_bytes: *used,
                    ..TierStatus::default()
                })
                .collect(),
            ..StatusBits::default()
        }
    }

    #[test]
    fn rates_go_on_over_the_end_of_a_period() {
        let mut samples = Samples::default();
        for (at_s, written) in [(0, 100), (5, 600), (10, 50)] {
            samples.add(at_s, &bits(written, &[("a", 1)]));
        }
        let found = samples.to_json();
        assert_eq!(found["written_bytes_per_s"], json!([null, 100, 10]));
        assert_eq!(found["used_bytes"], json!([[1, 1, 1]]));
    }

    #[test]
    fn an_hour_is_kept_of_the_tiers_that_there_are() {
        let mut samples = Samples::default();
        for at in 0..(KEPT as u64 + 5) {
            samples.add(at * 5, &bits(at, &[("a", at), ("b", 2)]));
        }
        let found = samples.to_json();
        assert_eq!(found["at_s"].as_array().map(Vec::len), Some(KEPT));
        assert_eq!(found["at_s"][0], 25);
        samples.add(9999, &bits(1, &[("a", 1)]));
        assert_eq!(samples.to_json()["used_bytes"], json!([[1]]));
    }
}
