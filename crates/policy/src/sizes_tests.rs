use super::*;
use proptest::prelude::*;

fn candidate(id: u64, bytes: u64, in_use: bool) -> Candidate {
    Candidate {
        id,
        application: 0,
        version: None,
        outdated: false,
        mtbf_s: 1.0,
        arrived_at_s: 0.0,
        accessed_at_s: 0.0,
        closed_at_s: 0.0,
        closed_to_open_s: 1.0,
        open_to_close_s: 1.0,
        bytes,
        in_use,
    }
}

fn kept(shares: &SizeShares, order: &[Candidate], needed: u64) -> Vec<u64> {
    let mut order = order.to_vec();
    shares.keep(&mut order, needed, |c| c);
    order.iter().map(|c| c.id).collect()
}

#[test]
fn the_part_of_what_was_accessed_is_the_share_within_bounds() {
    let mut accessed = Accessed::default();
    assert_eq!(accessed.small_share(), None);
    accessed.note(100, 50, 0.0);
    assert_eq!(accessed.small_share(), Some(SHARE_MIN));
    accessed.note(49, 50, 0.0);
    accessed.note(51, 100, 0.0);
    assert_eq!(accessed.small_share(), Some(0.5));
    // What was long ago counts less.
    accessed.note(10, 50, 1e5);
    assert_eq!(accessed.small_share(), Some(1.0 - SHARE_MIN));
}

#[test]
fn hot_small_files_stay_where_a_large_one_takes_more_than_its_share() {
    let mut accessed = Accessed::default();
    accessed.note(150, 200, 0.0);
    accessed.note(50, 10, 0.0);
    let sizes = [10, 10, 10, 10, 10, 10, 100];
    let shares = SizeShares::of(&sizes, &accessed).expect("both classes");
    assert_eq!((shares.small_bytes, shares.large_bytes), (60, 100));
    // The large one was used last: by coolness alone all the small ones would leave before it.
    let order: Vec<_> = (0..7)
        .map(|id| candidate(id, sizes[id as usize], false))
        .collect();
    assert_eq!(kept(&shares, &order, 60)[0], 6);
    // And the other way round.
    let mut accessed = Accessed::default();
    accessed.note(10, 100, 0.0);
    accessed.note(990, 100, 0.0);
    let shares = SizeShares::of(&sizes, &accessed).expect("both classes");
    let order: Vec<_> = (0..7)
        .rev()
        .map(|id| candidate(id, sizes[id as usize], false))
        .collect();
    assert_eq!(kept(&shares, &order, 40)[..4], [5, 4, 3, 2]);
    let alone = SizeShares::of(&[5, 5, 5], &accessed);
    assert_eq!(alone, None, "nobody is under the mean");
}

fn any_files() -> impl Strategy<Value = Vec<(u64, bool)>> {
    proptest::collection::vec((1u64..1000, any::<bool>()), 1..40)
}

proptest! {
    #[test]
    fn shares_are_bounded_whatever_is_accessed(
        accesses in proptest::collection::vec((any::<u64>(), any::<u64>(), 0.0..1e9f64), 0..20),
    ) {
        let mut accessed = Accessed::default();
        for (bytes, mean, at_s) in accesses {
            accessed.note(bytes, mean, at_s);
            let is_within = |share: f64| (SHARE_MIN..=1.0 - SHARE_MIN).contains(&share);
            prop_assert!(accessed.small_share().is_none_or(is_within));
        }
    }

    #[test]
    fn all_of_them_go_each_class_in_its_order_and_closed_ones_first(
        files in any_files(), share in 0.1..0.9f64, needed in 0u64..20_000,
    ) {
        let mut order: Vec<_> = files.iter().enumerate()
            .map(|(at, (bytes, in_use))| candidate(at as u64, *bytes, *in_use)).collect();
        order.sort_by_key(|c| (c.in_use, c.id));
        let mut accessed = Accessed::default();
        accessed.note((share * 1e6) as u64, u64::MAX, 0.0);
        accessed.note(((1.0 - share) * 1e6) as u64, 0, 0.0);
        let sizes: Vec<u64> = order.iter().map(|c| c.bytes).collect();
        if let Some(shares) = SizeShares::of(&sizes, &accessed) {
            let before = order.clone();
            shares.keep(&mut order, needed, |c| c);
            let of = |list: &[Candidate], small: bool, in_use: bool| -> Vec<u64> {
                list.iter().filter(|c| is_small(c.bytes, shares.mean_bytes) == small && c.in_use == in_use)
                    .map(|c| c.id).collect()
            };
            for (small, in_use) in [(true, true), (true, false), (false, true), (false, false)] {
                prop_assert_eq!(of(&order, small, in_use), of(&before, small, in_use));
            }
            prop_assert!(order.is_sorted_by_key(|c| c.in_use));
        }
    }

    #[test]
    fn a_class_within_its_share_loses_nothing_while_the_other_has_more(
        files in any_files(), share in 0.1..0.9f64, needed in 1u64..20_000,
    ) {
        let mut order: Vec<_> = files.iter().enumerate()
            .map(|(at, (bytes, _))| candidate(at as u64, *bytes, false)).collect();
        let mut accessed = Accessed::default();
        accessed.note((share * 1e6) as u64, u64::MAX, 0.0);
        accessed.note(((1.0 - share) * 1e6) as u64, 0, 0.0);
        let sizes: Vec<u64> = order.iter().map(|c| c.bytes).collect();
        if let Some(shares) = SizeShares::of(&sizes, &accessed) {
            shares.keep(&mut order, needed, |c| c);
            let all: u64 = sizes.iter().sum();
            let target = all.saturating_sub(needed) as f64;
            let (mut small, mut large) = (shares.small_bytes, shares.large_bytes);
            for c in &order {
                if (small + large) as f64 <= target {
                    break;
                }
                let goes_small = is_small(c.bytes, shares.mean_bytes);
                let small_beyond = small as f64 > shares.small_share * target;
                let large_beyond = large as f64 > (1.0 - shares.small_share) * target;
                prop_assert!(small_beyond || large_beyond);
                let must_go = if goes_small { small_beyond } else { large_beyond };
                prop_assert!(must_go);
                if goes_small { small -= c.bytes } else { large -= c.bytes }
            }
        }
    }
}
