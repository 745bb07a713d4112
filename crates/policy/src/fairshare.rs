//! How a rate that all share is divided: max-min fairness by water filling, with weights and caps.
//!
//! Brmax is the PFS's. Each holder that has something to drain gets a share in proportion to what
//! it has, so that all become clean together, as one node with all their space would (BBOS, "when
//! to demote", with S, DWPP and Brmax those of all holders). Who can use less, for its device or
//! its network is slower, gives the rest to the others.

use crate::engine::Bandwidths;
use crate::plan::Rates;

/// What one of those that share asks for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Asks {
    /// Its part is in proportion to this; 0 and less, and NaN: it asks for nothing.
    pub weight: f64,
    /// It can use no more, in the unit of the total; infinite: no cap.
    pub most: f64,
}

impl Asks {
    fn is_any(&self) -> bool {
        self.weight > 0.0 && self.most > 0.0
    }
}

/// Divides `total`, which is finite and not negative. In the order of `asks`:
///
/// 1. No share is above its cap, and all together are at most the total, but for rounding.
/// 2. Where something is left over, everybody is at the cap.
/// 3. Of those below their cap, shares are in proportion to the weights.
pub fn water_fill(total: f64, asks: &[Asks]) -> Vec<f64> {
    let mut shares = vec![0.0; asks.len()];
    let mut by_level: Vec<usize> = (0..asks.len()).filter(|i| asks[*i].is_any()).collect();
    // Those come first that the water reaches the cap of first.
    let level = |i: &usize| asks[*i].most / asks[*i].weight;
    by_level.sort_by(|a, b| level(a).total_cmp(&level(b)).then(a.cmp(b)));
    let mut weight_left: f64 = by_level.iter().map(|i| asks[*i].weight).sum();
    let mut left = total.max(0.0);
    for i in by_level {
        let ask = asks[i];
        // A quotient of what is left can round to a little more than all of it.
        let part = (left * (ask.weight / weight_left)).min(left);
        shares[i] = part.min(ask.most);
        left -= shares[i];
        weight_left -= ask.weight;
    }
    shares
}

/// Of what an even division would give, a holder with little to drain gets at least this part: a
/// `sync` of a small file is not kept waiting by the terabytes of others.
const LEAST_OF_EVEN: f64 = 1.0 / 8.0;

/// What one holder has to do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    /// Undrained bytes; for writes, bytes that are expected.
    pub bytes: u64,
    /// What its device or network can do at most, bytes/s; infinite where not known.
    pub most_bytes_per_s: f64,
}

/// Divides a rate among holders, in the order of `work`: by bytes, at least an eighth of an even
/// division, by water filling.
pub fn shares(total_bytes_per_s: f64, work: &[Work]) -> Vec<f64> {
    let all: f64 = work.iter().map(|w| w.bytes as f64).sum();
    let busy = work.iter().filter(|w| w.bytes > 0).count().max(1);
    let least = all * LEAST_OF_EVEN / busy as f64;
    let ask = |w: &Work| Asks {
        weight: match w.bytes {
            0 => 0.0,
            bytes => (bytes as f64).max(least),
        },
        most: w.most_bytes_per_s,
    };
    let asks: Vec<Asks> = work.iter().map(ask).collect();
    water_fill(total_bytes_per_s, &asks)
}

/// The bandwidths that the plan of all holders is made from. Writes add up. Demotion adds up to
/// what the PFS takes at most, `pfs_bytes_per_s` (Brmax), and so does demotion beside checkpoints.
/// `None` without holders.
pub fn together(holders: &[Bandwidths], pfs_bytes_per_s: f64) -> Option<Bandwidths> {
    let sum = |of: fn(&Bandwidths) -> f64| holders.iter().map(of).sum::<f64>();
    (!holders.is_empty()).then(|| Bandwidths {
        bw_max_bytes_per_s: sum(|b| b.bw_max_bytes_per_s),
        bw_min_bytes_per_s: sum(|b| b.bw_min_bytes_per_s),
        br_max_bytes_per_s: sum(|b| b.br_max_bytes_per_s).min(pfs_bytes_per_s),
        br_min_bytes_per_s: sum(|b| b.br_min_bytes_per_s).min(pfs_bytes_per_s),
    })
}

/// Each holder's part of the rates that the plan of all gives ([`crate::plan::Plan::rates_at`]), in
/// the order of the two lists, which are as long as each other: demotion by what is undrained,
/// checkpoints by what is expected to be written there.
pub fn divide(rates: Rates, to_drain: &[Work], to_write: &[Work]) -> Vec<Rates> {
    let demotion = shares(rates.demotion_bytes_per_s, to_drain);
    let checkpoint = shares(rates.checkpoint_bytes_per_s, to_write);
    let both = checkpoint.into_iter().zip(demotion);
    both.map(|(checkpoint_bytes_per_s, demotion_bytes_per_s)| Rates {
        checkpoint_bytes_per_s,
        demotion_bytes_per_s,
    })
    .collect()
}

#[cfg(test)]
#[path = "fairshare_tests.rs"]
mod tests;
