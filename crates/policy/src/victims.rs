//! Beside the order of victims ([`crate::demotion`]): when files leave, which outdated versions are
//! kept, and whether a checkpoint comes into the burst buffer at all.

use crate::demotion::{Candidate, PlacementPolicy, order_demotion};
use crate::mtbf::goes_straight_to_pfs;
use crate::sizes::SizeShares;

/// What becomes of a dirty file when demotion runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Treatment {
    /// Demoted in its order.
    Demote,
    /// Demoted only when its space is needed or everything is drained: a version that nobody wants
    /// to keep. Its owner is expected to delete it before; it is never dropped.
    Postpone,
}

/// Every `keep_every`-th version is kept on the PFS, as users of SCR do; outdated versions between
/// them are postponed. `None` or 1: all are kept. Files without a version, and versions that are
/// not outdated, are always demoted in their order.
pub fn treatment(keep_every: Option<u64>, version: Option<u64>, outdated: bool) -> Treatment {
    match (keep_every, version) {
        (Some(every), Some(version)) if outdated && every > 1 && !version.is_multiple_of(every) => {
            Treatment::Postpone
        }
        _ => Treatment::Demote,
    }
}

/// Why thresholds are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("forced-out threshold {forced_bytes} exceeds normal-out threshold {normal_bytes}")]
pub struct BadThresholds {
    /// C_f-m.
    pub forced_bytes: u64,
    /// C_n-m.
    pub normal_bytes: u64,
}

/// Free space at which files are moved down (ONFS, downward migration).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutThresholds {
    forced_bytes: u64,
    normal_bytes: u64,
}

/// Whether files move down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outflow {
    /// No: there is room.
    None,
    /// Closed files, coolest first by `T_closed · T_co/T_oc`.
    Normal,
    /// Open files too, by `LRU · T_co/T_oc`.
    Forced,
}

impl OutThresholds {
    /// C_f-m and C_n-m. Normal out ends where forced out begins.
    pub fn new(forced_bytes: u64, normal_bytes: u64) -> Result<Self, BadThresholds> {
        if forced_bytes > normal_bytes {
            return Err(BadThresholds {
                forced_bytes,
                normal_bytes,
            });
        }
        Ok(Self {
            forced_bytes,
            normal_bytes,
        })
    }

    /// C_n-m as C_f-m and `ΔC_n = N · mean file size`, `N = B_write(tier)/B_write(one disk)`: as
    /// many files move down at a time as disks keep up with the tier. A ratio that is not a
    /// positive number counts as 1.
    pub fn from_bandwidths(
        forced_bytes: u64,
        tier_write_bytes_per_s: f64,
        disk_write_bytes_per_s: f64,
        mean_file_bytes: u64,
    ) -> Self {
        let ratio = tier_write_bytes_per_s / disk_write_bytes_per_s;
        let files = if ratio.is_finite() && ratio > 0.0 {
            ratio.max(1.0)
        } else {
            1.0
        };
        // `as` saturates.
        let more_bytes = (files * mean_file_bytes as f64) as u64;
        Self {
            forced_bytes,
            normal_bytes: forced_bytes.saturating_add(more_bytes),
        }
    }

    /// What happens with so much free.
    pub fn outflow(&self, free_bytes: u64) -> Outflow {
        if free_bytes <= self.forced_bytes {
            Outflow::Forced
        } else if free_bytes <= self.normal_bytes {
            Outflow::Normal
        } else {
            Outflow::None
        }
    }

    /// What happens once `leaving_bytes` more have left a tier that has so much free, and so much
    /// beyond what it may hold by now: that is gone before anything is free.
    pub fn outflow_after(
        &self,
        (free_bytes, beyond_bytes): (u64, u64),
        leaving_bytes: u64,
    ) -> Outflow {
        let freed_bytes = leaving_bytes.saturating_sub(beyond_bytes);
        self.outflow(free_bytes.saturating_add(freed_bytes))
    }

    /// Whether a tier takes a file of so many bytes that moves down from the tier above it: nothing
    /// is forced out for what is cool.
    pub fn takes(&self, free_bytes: u64, bytes: u64) -> bool {
        let left_bytes = free_bytes.checked_sub(bytes);
        left_bytes.is_some_and(|left| self.outflow(left) != Outflow::Forced)
    }

    /// Files that move down, coolest first, until more than the normal threshold would be free.
    /// Orders `candidates`.
    pub fn choose(&self, candidates: &mut [Candidate], free_bytes: u64, now_s: f64) -> Vec<u64> {
        self.choose_with(candidates, (free_bytes, 0), None, now_s)
    }

    /// The same of a tier that has `beyond_bytes` more than it may hold by now, which have to leave
    /// before anything is free; large and small files keep to their `shares`.
    pub fn choose_with(
        &self,
        candidates: &mut [Candidate],
        (free_bytes, beyond_bytes): (u64, u64),
        shares: Option<&SizeShares>,
        now_s: f64,
    ) -> Vec<u64> {
        let outflow = self.outflow(free_bytes);
        let mut chosen = Vec::new();
        if outflow == Outflow::None {
            return chosen;
        }
        order_demotion(PlacementPolicy::Coolness, candidates, now_s);
        if let Some(shares) = shares {
            let missing_bytes = self.normal_bytes.saturating_sub(free_bytes);
            let needed_bytes = missing_bytes.saturating_add(beyond_bytes);
            shares.keep(candidates, needed_bytes.saturating_add(1), |c| c);
        }
        let (mut free_bytes, mut beyond_bytes) = (free_bytes, beyond_bytes);
        for c in candidates.iter() {
            if beyond_bytes == 0 && self.outflow(free_bytes) == Outflow::None {
                break;
            }
            if !c.in_use || outflow == Outflow::Forced {
                chosen.push(c.id);
                free_bytes = free_bytes.saturating_add(c.bytes.saturating_sub(beyond_bytes));
                beyond_bytes = beyond_bytes.saturating_sub(c.bytes);
            }
        }
        chosen
    }
}

/// A checkpoint file about to be created.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Incoming {
    /// Its application.
    pub application: u64,
    /// MTBF of its application.
    pub mtbf_s: f64,
    /// No newer version of its application is known.
    pub is_newest_version: bool,
    /// Clean copies or dirty files would have to go for it.
    pub must_make_room: bool,
}

/// Whether a checkpoint goes straight to the PFS (BBOS, direct checkpoint;
/// [`goes_straight_to_pfs`]). `residents`: application and MTBF of what is in the burst buffer.
/// Only [`PlacementPolicy::Bbos`] does so, and only where `enabled`.
pub fn is_direct(
    enabled: bool,
    policy: PlacementPolicy,
    incoming: &Incoming,
    residents: impl IntoIterator<Item = (u64, f64)>,
) -> bool {
    enabled
        && policy == PlacementPolicy::Bbos
        && goes_straight_to_pfs(
            incoming.must_make_room,
            incoming.mtbf_s,
            incoming.is_newest_version,
            residents
                .into_iter()
                .filter(|(application, _)| *application != incoming.application)
                .map(|(_, mtbf_s)| mtbf_s),
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_third_version_is_kept() {
        let kept = |v| treatment(Some(3), Some(v), true) == Treatment::Demote;
        assert_eq!([3, 4, 5, 6].map(kept), [true, false, false, true]);
        assert_eq!(treatment(Some(3), Some(4), false), Treatment::Demote);
        assert_eq!(treatment(None, Some(4), true), Treatment::Demote);
        assert_eq!(treatment(Some(0), Some(4), true), Treatment::Demote);
        assert_eq!(treatment(Some(3), None, true), Treatment::Demote);
    }

    fn candidate(id: u64, closed_at_s: f64, in_use: bool) -> Candidate {
        Candidate {
            id,
            application: 0,
            version: None,
            outdated: false,
            mtbf_s: 1.0,
            arrived_at_s: 0.0,
            accessed_at_s: closed_at_s,
            closed_at_s,
            closed_to_open_s: 1.0,
            open_to_close_s: 1.0,
            bytes: 10,
            in_use,
        }
    }

    #[test]
    fn normal_out_spares_open_files_forced_out_does_not() {
        let thresholds = OutThresholds::new(10, 30).expect("ordered");
        let mut files = [
            candidate(1, 0.0, true),
            candidate(2, 5.0, false),
            candidate(3, 2.0, false),
        ];
        assert_eq!(thresholds.choose(&mut files, 31, 9.0), [0u64; 0]);
        assert_eq!(thresholds.choose(&mut files, 30, 9.0), [3]);
        assert_eq!(thresholds.choose(&mut files, 11, 9.0), [3, 2]);
        assert_eq!(
            thresholds.choose(&mut files, 0, 9.0),
            [3, 2, 1],
            "closed ones first"
        );
        // A tier that has shrunk has to lose what lies beyond it first.
        let low = OutThresholds::new(1, 5).expect("ordered");
        assert_eq!(low.choose(&mut files, 0, 9.0), [3]);
        assert_eq!(low.choose_with(&mut files, (0, 15), None, 9.0), [3, 2, 1]);
        let after = |room, leaving_bytes| thresholds.outflow_after(room, leaving_bytes);
        assert_eq!(after((0, 15), 25), Outflow::Forced, "10 are free then");
        assert_eq!(after((0, 15), 26), Outflow::Normal);
        assert_eq!(after((0, 15), 46), Outflow::None);
        assert_eq!(after((20, 0), 11), Outflow::None);
        assert!(thresholds.takes(40, 29) && !thresholds.takes(40, 30));
        assert!(!thresholds.takes(5, 6), "there is no room");
        assert!(OutThresholds::new(2, 1).is_err());
        let grown = OutThresholds::from_bandwidths(10, 500.0, 100.0, 7);
        assert_eq!(
            (grown.outflow(45), grown.outflow(46)),
            (Outflow::Normal, Outflow::None)
        );
        let odd = OutThresholds::from_bandwidths(10, 500.0, 0.0, 7);
        assert_eq!(odd.outflow(17), Outflow::Normal);
    }

    #[test]
    fn direct_checkpoints_are_cold_or_old_and_only_of_bbos() {
        let cold = Incoming {
            application: 1,
            mtbf_s: 9.0,
            is_newest_version: true,
            must_make_room: true,
        };
        let residents = [(1, 20.0), (2, 5.0)];
        let direct = |enabled, policy, incoming| is_direct(enabled, policy, &incoming, residents);
        assert!(
            direct(true, PlacementPolicy::Bbos, cold),
            "its own files do not count"
        );
        assert!(!direct(false, PlacementPolicy::Bbos, cold));
        assert!(!direct(true, PlacementPolicy::Lru, cold));
        assert!(!direct(
            true,
            PlacementPolicy::Bbos,
            Incoming {
                must_make_room: false,
                ..cold
            }
        ));
        assert!(!direct(
            true,
            PlacementPolicy::Bbos,
            Incoming {
                mtbf_s: 5.0,
                ..cold
            }
        ));
        let old = Incoming {
            mtbf_s: 1.0,
            is_newest_version: false,
            ..cold
        };
        assert!(direct(true, PlacementPolicy::Bbos, old));
    }

    proptest! {
        #[test]
        fn outflow_frees_enough_or_everything(free in 0u64..60, count in 0u64..8) {
            let thresholds = OutThresholds::new(10, 30).expect("ordered");
            let mut files: Vec<_> = (0..count).map(|i| candidate(i, i as f64, i % 2 == 0)).collect();
            let chosen = thresholds.choose(&mut files, free, 9.0);
            let after = free + 10 * chosen.len() as u64;
            let closed = (0..count).filter(|i| i % 2 == 1).count();
            let all = match thresholds.outflow(free) {
                Outflow::Forced => count as usize,
                Outflow::Normal => closed,
                Outflow::None => 0,
            };
            prop_assert!(after > 30 || chosen.len() == all);
        }
    }
}
