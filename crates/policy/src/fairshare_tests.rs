use super::*;
use crate::plan::{Plan, PlanInput};
use proptest::prelude::*;

fn work(bytes: u64, most: f64) -> Work {
    Work {
        bytes,
        most_bytes_per_s: most,
    }
}

const NO_CAP: f64 = f64::INFINITY;

#[test]
fn who_needs_less_gives_the_rest_to_the_others() {
    let asks = |all: &[(f64, f64)]| -> Vec<Asks> {
        let ask = |(weight, most): &(f64, f64)| Asks {
            weight: *weight,
            most: *most,
        };
        all.iter().map(ask).collect()
    };
    let even = asks(&[(1.0, 10.0), (1.0, NO_CAP), (1.0, NO_CAP)]);
    assert_eq!(water_fill(90.0, &even), [10.0, 40.0, 40.0]);
    let weighted = asks(&[(3.0, NO_CAP), (1.0, NO_CAP), (0.0, NO_CAP), (f64::NAN, 9.0)]);
    assert_eq!(water_fill(80.0, &weighted), [60.0, 20.0, 0.0, 0.0]);
    assert_eq!(water_fill(80.0, &asks(&[(1.0, 5.0)])), [5.0]);
    assert!(water_fill(80.0, &[]).is_empty());
}

#[test]
fn shares_follow_what_there_is_to_drain() {
    let (full, half, none) = (work(1000, NO_CAP), work(500, NO_CAP), work(0, NO_CAP));
    assert_eq!(shares(90.0, &[full, half, none]), [60.0, 30.0, 0.0]);
    assert_eq!(shares(90.0, &[full, half, work(500, 10.0)])[2], 10.0);
    let tiny = shares(90.0, &[full, work(1, NO_CAP)])[1];
    assert!(
        tiny > 90.0 / 2.0 * 0.11,
        "{tiny} is an eighth of even, about"
    );
}

fn any_work() -> impl Strategy<Value = Vec<Work>> {
    let most = prop_oneof![Just(NO_CAP), 0.0..2e9f64];
    let one = (0u64..1 << 40, prop::bool::weighted(0.7), most);
    let one = one.prop_map(|(bytes, is_busy, most)| work(if is_busy { bytes } else { 0 }, most));
    prop::collection::vec(one, 0..12)
}

proptest! {
    #[test]
    fn shares_sum_to_the_total_or_all_are_at_their_cap(total in 0.0..1e10f64, all in any_work()) {
        let found = shares(total, &all);
        let sum: f64 = found.iter().sum();
        prop_assert!(sum <= total * (1.0 + 1e-12));
        for (share, w) in found.iter().zip(&all) {
            prop_assert!(*share >= 0.0 && *share <= w.most_bytes_per_s);
            prop_assert!(w.bytes > 0 || *share == 0.0);
        }
        if sum < total * (1.0 - 1e-9) {
            for (share, w) in found.iter().zip(&all) {
                prop_assert!(w.bytes == 0 || *share == w.most_bytes_per_s, "something is left over");
            }
        }
    }

    #[test]
    fn nobody_loses_by_a_larger_total_or_a_larger_cap_or_more_work(
        total in 1.0..1e10f64,
        more in 1.0..3.0f64,
        all in any_work(),
        which in any::<prop::sample::Index>(),
    ) {
        let before = shares(total, &all);
        let is_not_less = |before: f64, now: f64| now >= before * (1.0 - 1e-9);
        for (old, new) in before.iter().zip(shares(total * more, &all)) {
            prop_assert!(is_not_less(*old, new));
        }
        if all.is_empty() {
            return Ok(());
        }
        let i = which.index(all.len());
        let mut busier = all.clone();
        busier[i].bytes = (busier[i].bytes as f64 * more) as u64 + 1;
        prop_assert!(is_not_less(before[i], shares(total, &busier)[i]));
        let mut faster = all;
        faster[i].most_bytes_per_s *= more;
        let now = shares(total, &faster);
        prop_assert!(is_not_less(before[i], now[i]));
        for (j, (old, new)) in before.iter().zip(&now).enumerate() {
            prop_assert!(j == i || is_not_less(*new, *old), "what one gains others lose");
        }
    }

    #[test]
    fn who_has_work_has_a_share(total in 1.0..1e10f64, all in any_work()) {
        let busy = all.iter().filter(|w| w.bytes > 0).count() as f64;
        for (share, w) in shares(total, &all).iter().zip(&all) {
            // The least weights add an eighth to all of them at most.
            let least = total * LEAST_OF_EVEN / busy / (1.0 + LEAST_OF_EVEN);
            prop_assert!(w.bytes == 0 || *share >= least.min(w.most_bytes_per_s) * (1.0 - 1e-9));
        }
    }

    #[test]
    fn the_plans_of_all_holders_are_in_sum_the_plan_of_one(
        weights in prop::collection::vec(1u32..20, 1..10),
        dwpp in 0.1..2.1f64,
        // With nothing written yet all have the same to drain, and no part.
        written in 1e-6..1.0f64,
    ) {
        let one = PlanInput {
            capacity_bytes: 3.2e12,
            dwpp_bytes: 3.2e12 * dwpp,
            bw_max_bytes_per_s: 3.56e9,
            bw_min_bytes_per_s: 3e9,
            br_max_bytes_per_s: 1.6e9,
            br_min_bytes_per_s: 0.08e9,
            period_s: 3800.0,
        };
        let all: f64 = weights.iter().map(|w| f64::from(*w)).sum();
        let part = |w: u32| f64::from(w) / all;
        let of = |w: u32| Bandwidths {
            bw_max_bytes_per_s: one.bw_max_bytes_per_s * part(w),
            bw_min_bytes_per_s: one.bw_min_bytes_per_s * part(w),
            br_max_bytes_per_s: one.br_max_bytes_per_s * part(w),
            br_min_bytes_per_s: one.br_min_bytes_per_s * part(w),
        };
        let holders: Vec<Bandwidths> = weights.iter().map(|w| of(*w)).collect();
        let joint = together(&holders, one.br_max_bytes_per_s).expect("at least one");
        let plan = Plan::new(joint.input(one.capacity_bytes, one.dwpp_bytes, one.period_s)).expect("it fits");
        let alone = Plan::new(one).expect("it fits");
        prop_assert_eq!(plan.pattern, alone.pattern);
        let rates = plan.rates_at(written * one.dwpp_bytes);
        let expected = alone.rates_at(written * one.dwpp_bytes);
        // As data arrives, each holder has its part of it.
        let to_do = |bytes: f64, most: fn(&Bandwidths) -> f64| -> Vec<Work> {
            let one = |(w, b): (&u32, &Bandwidths)| work((bytes * part(*w)) as u64 + 1, most(b));
            weights.iter().zip(&holders).map(one).collect()
        };
        let to_drain = to_do(written * one.dwpp_bytes, |b| b.br_max_bytes_per_s);
        let to_write = to_do(one.dwpp_bytes, |b| b.bw_max_bytes_per_s);
        let divided = divide(rates, &to_drain, &to_write);
        let sum = |of: fn(&Rates) -> f64| divided.iter().map(of).sum::<f64>();
        let is_near = |found: f64, expected: f64| (found - expected).abs() <= 1e-6 * expected.max(1.0);
        prop_assert!(is_near(sum(|r| r.demotion_bytes_per_s), expected.demotion_bytes_per_s));
        prop_assert!(is_near(sum(|r| r.checkpoint_bytes_per_s), expected.checkpoint_bytes_per_s));
        // And each follows the plan that it would make for itself, where nobody has so little that
        // the others give something up for it.
        let least = all * LEAST_OF_EVEN / weights.len() as f64;
        let has_enough = weights.iter().all(|w| f64::from(*w) >= least);
        for ((w, bandwidths), divided) in weights.iter().zip(&holders).zip(&divided) {
            let input = bandwidths.input(one.capacity_bytes * part(*w), one.dwpp_bytes * part(*w), one.period_s);
            let own = Plan::new(input).expect("it fits").rates_at(written * input.dwpp_bytes);
            let is_close = |a: f64, b: f64| (a - b).abs() <= 1e-3 * b.max(one.br_max_bytes_per_s);
            prop_assert!(!has_enough || is_close(divided.demotion_bytes_per_s, own.demotion_bytes_per_s));
        }
    }
}
