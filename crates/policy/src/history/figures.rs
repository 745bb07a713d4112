//! What a centre's own history says of its burst buffer.

use forebay_types::history::{Record, What};

/// Waiting time that was saved: what writing the same bytes takes at the rate of the PFS, less what
/// it took, summed over the versions that have a number. A version that took longer has saved
/// nothing, and takes nothing from the others: how long a program held its files open does not tell
/// how long it waited. Versions that would have shared the PFS are taken to have had it alone.
pub fn saved_s(records: &[Record], pfs_bytes_per_s: f64) -> f64 {
    let versions = records
        .iter()
        .filter(|r| r.what == What::Version && r.version.is_some());
    let saved = versions.map(|r| r.bytes as f64 / pfs_bytes_per_s.max(1.0) - r.lasted_s());
    saved.map(|saved_s| saved_s.max(0.0)).sum()
}

/// The most bytes of versions that ended within any time of so long.
pub fn most_written_bytes(records: &[Record], span_ms: u64) -> u64 {
    let versions = records.iter().filter(|r| r.what == What::Version);
    let mut ends: Vec<(u64, u64)> = versions.map(|r| (r.ended_ms, r.bytes)).collect();
    ends.sort_unstable();
    let (mut first, mut sum, mut most) = (0, 0u64, 0);
    for (ended_ms, bytes) in &ends {
        sum = sum.saturating_add(*bytes);
        while ended_ms.saturating_sub(ends[first].0) >= span_ms.max(1) {
            sum = sum.saturating_sub(ends[first].1);
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

/// Restarts, and those of them that opened nothing on the PFS.
pub fn restarts(records: &[Record]) -> (u64, u64) {
    let restarts = records.iter().filter(|r| r.what == What::Restart);
    restarts.fold((0, 0), |(all, hits), r| {
        (all + 1, hits + u64::from(r.from_pfs_bytes == 0))
    })
}

/// The fastest drain of a version, bytes/s: what the PFS has taken at the least.
pub fn fastest_drain_bytes_per_s(records: &[Record]) -> Option<f64> {
    let rates = records.iter().filter_map(Record::drain_bytes_per_s);
    rates.max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn version(ended_ms: u64, lasted_ms: u64, bytes: u64) -> Record {
        let begun_ms = ended_ms.saturating_sub(lasted_ms);
        Record {
            ended_ms,
            version: Some(1),
            files: 1,
            bytes,
            ..Record::new(What::Version, "a".into(), 0, begun_ms)
        }
    }

    #[test]
    fn time_is_saved_where_the_pfs_would_take_longer() {
        // 1 GB at 100 MB/s takes 10 s; one took 2 s, one 14.
        let both = [
            version(60_000, 2_000, 1_000_000_000),
            version(90_000, 14_000, 1_000_000_000),
        ];
        assert_eq!(saved_s(&both[..1], 1e8), 8.0);
        assert_eq!(saved_s(&both, 1e8), 8.0);
        let log = Record {
            version: None,
            ..both[0].clone()
        };
        assert_eq!(saved_s(&[log], 1e8), 0.0);
        assert_eq!(restarts(&both), (0, 0));
    }

    #[test]
    fn a_restart_is_a_hit_if_nothing_came_from_the_pfs() {
        let restart = |from_pfs_bytes| Record {
            from_pfs_bytes,
            ..Record::new(What::Restart, "a".into(), 0, 5)
        };
        assert_eq!(restarts(&[restart(0), restart(7), restart(0)]), (3, 2));
    }

    proptest! {
        #[test]
        fn the_fullest_window_is_that_of_the_definition(
            ends in prop::collection::vec((0u64..200, 1u64..100), 0..40),
            span_ms in 1u64..100,
        ) {
            let records: Vec<Record> = ends.iter().map(|(at, bytes)| version(*at, 0, *bytes)).collect();
            let within = |from: u64| -> u64 {
                let inside = ends.iter().filter(|(at, _)| (from..from + span_ms).contains(at));
                inside.map(|(_, bytes)| bytes).sum()
            };
            let most = (0..200).map(within).max().unwrap_or(0);
            prop_assert_eq!(most_written_bytes(&records, span_ms), most);
        }
    }
}
