use super::*;
use proptest::prelude::*;

const S: f64 = 3.2e12;

/// The constants of the papers.
fn papers(dwpp_in_s: f64) -> PlanInput {
    PlanInput {
        capacity_bytes: S,
        dwpp_bytes: dwpp_in_s * S,
        bw_max_bytes_per_s: 3.56e9,
        bw_min_bytes_per_s: 3e9,
        br_max_bytes_per_s: 1.6e9,
        br_min_bytes_per_s: 0.08e9,
        period_s: 3800.0,
    }
}

fn near(a: f64, b: f64, relative: f64) -> bool {
    (a - b).abs() <= relative * a.abs().max(b.abs()).max(1.0)
}

#[test]
fn constants_of_the_papers() {
    assert!(near(papers(1.0).border_dwpp_bytes() / S, 1.344, 5e-4));
    assert!(near(papers(1.0).max_dwpp_bytes() / S, 2.143, 5e-4));
    let plan = Plan::new(papers(1.2)).unwrap();
    assert_eq!(plan.pattern, 2);
    assert!(near(plan.start_dwsf_bytes / S, 0.459, 1e-3));
    assert!(near(plan.full_dwsf_bytes / S, 1.2, 1e-9));
    assert!(plan.feasible);
}

#[test]
fn patterns_by_dwpp() {
    let pattern = |dwpp| Plan::new(papers(dwpp)).unwrap().pattern;
    assert_eq!(
        [0.0, 1.0, 1.001, 1.34, 1.35, 2.142].map(pattern),
        [1, 1, 2, 2, 3, 3]
    );
    // At 2.1 S the checkpoints take so long that the rest of the period cannot drain S.
    assert!(!Plan::new(papers(2.1)).unwrap().feasible);
    assert!(Plan::new(papers(1.35)).unwrap().feasible);
}

#[test]
fn bad_input_is_named() {
    let with = |change: fn(&mut PlanInput)| {
        let mut input = papers(1.2);
        change(&mut input);
        Plan::new(input).unwrap_err()
    };
    assert!(matches!(
        with(|i| i.period_s = 0.0),
        PlanError::NotPositive { name: "period", .. }
    ));
    assert!(matches!(
        with(|i| i.capacity_bytes = -1.0),
        PlanError::NotPositive { name: "S", .. }
    ));
    assert!(matches!(
        with(|i| i.bw_max_bytes_per_s = f64::NAN),
        PlanError::NotPositive { name: "Bwmax", .. }
    ));
    assert!(matches!(
        with(|i| i.br_min_bytes_per_s = -0.1),
        PlanError::Negative { name: "Brmin", .. }
    ));
    assert!(matches!(
        with(|i| i.dwpp_bytes = f64::INFINITY),
        PlanError::Negative { name: "DWPP", .. }
    ));
    assert!(matches!(
        with(|i| i.bw_min_bytes_per_s = 4e9),
        PlanError::WriteBandwidths { .. }
    ));
    assert!(matches!(
        with(|i| i.br_min_bytes_per_s = 2e9),
        PlanError::ReadBandwidths { .. }
    ));
    let error = with(|i| i.dwpp_bytes = 2.2 * S);
    assert!(matches!(error, PlanError::Overflow { .. }));
    assert!(error.to_string().contains("S/(1 - Brmax/Bwmin)"), "{error}");
}

#[test]
fn interference_line_passes_the_measured_points() {
    let line = InterferenceLine::through(&papers(1.2)).unwrap();
    assert!(line.m < 0.0);
    assert!(near(line.write_beside(0.08e9), 3.56e9, 1e-9));
    assert!(near(line.write_beside(1.6e9), 3e9, 1e-9));
    assert_eq!(InterferenceLine::fit(&[(1.0, 1.0)]), None);
    assert_eq!(InterferenceLine::fit(&[]), None);
}

#[test]
fn policies_differ_in_when_they_demote() {
    let plan = Plan::new(papers(1.2)).unwrap();
    let demotion = |p: DrainPolicy, at: f64| p.rates_at(&plan, at, at).demotion_bytes_per_s;
    assert_eq!(demotion(DrainPolicy::MaxEff, 0.0), 1.6e9);
    assert_eq!(demotion(DrainPolicy::MaxBw, 0.99 * S), 0.0);
    assert_eq!(demotion(DrainPolicy::MaxBw, S), 1.6e9);
    assert_eq!(demotion(DrainPolicy::Bbos, 0.4 * S), 0.08e9);
    assert!(demotion(DrainPolicy::Bbos, 0.8 * S) > 0.08e9);
    assert_eq!(demotion(DrainPolicy::Bbos, 1.2 * S), 1.6e9);
    assert_eq!("MaxBW".parse(), Ok(DrainPolicy::MaxBw));
}

fn inputs() -> impl Strategy<Value = PlanInput> {
    let rate = 1e6..1e11f64;
    (
        rate.clone(),
        rate.clone(),
        rate.clone(),
        0.0..1e11f64,
        1e9..1e15f64,
        0.0..1.0f64,
        1.0..1e5f64,
    )
        .prop_map(|(w1, w2, r1, r2, capacity_bytes, share, period_s)| {
            let mut input = PlanInput {
                capacity_bytes,
                dwpp_bytes: 0.0,
                bw_max_bytes_per_s: w1.max(w2),
                bw_min_bytes_per_s: w1.min(w2),
                br_max_bytes_per_s: r1.max(r2),
                br_min_bytes_per_s: r1.min(r2),
                period_s,
            };
            input.dwpp_bytes = share * input.max_dwpp_bytes().min(10.0 * capacity_bytes);
            input
        })
}

proptest! {
    #[test]
    fn the_equations_hold(input in inputs()) {
        let plan = Plan::new(input).unwrap();
        let i = input;
        prop_assert!(plan.tc_s >= 0.0 && plan.tdd_s >= 0.0 && plan.tds_s >= 0.0);
        let wm = (i.bw_max_bytes_per_s + i.bw_min_bytes_per_s) / 2.0;
        let rm = (i.br_max_bytes_per_s + i.br_min_bytes_per_s) / 2.0;
        let written = i.bw_max_bytes_per_s * plan.tc_s + wm * plan.tdd_s + i.bw_min_bytes_per_s * plan.tds_s;
        prop_assert!(near(written, i.dwpp_bytes, 1e-6), "{written} of {}", i.dwpp_bytes);
        if plan.pattern > 1 {
            let demoted = i.br_min_bytes_per_s * plan.tc_s + rm * plan.tdd_s + i.br_max_bytes_per_s * plan.tds_s;
            let c = i.dwpp_bytes - i.capacity_bytes;
            // Demotion at Brmin may by itself carry away more than must leave.
            let more_is_fine = plan.tdd_s == 0.0 && plan.tds_s == 0.0;
            prop_assert!(near(demoted, c, 1e-6) || (more_is_fine && demoted >= c * (1.0 - 1e-6)), "{demoted} of {c}");
        }
        prop_assert!(plan.start_dwsf_bytes <= plan.full_dwsf_bytes);
        prop_assert!(plan.full_dwsf_bytes <= i.dwpp_bytes * (1.0 + 1e-6) + 1.0);
    }

    #[test]
    fn rates_are_monotone_and_within_bounds(input in inputs(), a in 0.0..2.0f64, b in 0.0..2.0f64) {
        let plan = Plan::new(input).unwrap();
        let at = |share: f64| plan.rates_at(share * input.dwpp_bytes);
        let (low, high) = (at(a.min(b)), at(a.max(b)));
        let slack = 1.0 + 1e-9;
        prop_assert!(low.checkpoint_bytes_per_s * slack >= high.checkpoint_bytes_per_s);
        prop_assert!(low.demotion_bytes_per_s <= high.demotion_bytes_per_s * slack);
        for r in [low, high] {
            prop_assert!(r.checkpoint_bytes_per_s * slack >= input.bw_min_bytes_per_s);
            prop_assert!(r.checkpoint_bytes_per_s <= input.bw_max_bytes_per_s * slack);
            prop_assert!(r.demotion_bytes_per_s >= 0.0 && r.demotion_bytes_per_s <= input.br_max_bytes_per_s * slack);
        }
    }

    /// Runs the plan in small steps: the burst buffer never overflows.
    #[test]
    fn following_the_rates_never_overflows(dwpp in 0.1..2.14f64) {
        let input = papers(dwpp);
        let plan = Plan::new(input).unwrap();
        let (mut dwsf, mut demoted, step_s) = (0.0, 0.0, 0.5);
        while dwsf < input.dwpp_bytes {
            let rates = plan.rates_at(dwsf);
            dwsf += rates.checkpoint_bytes_per_s * step_s;
            demoted += rates.demotion_bytes_per_s * step_s;
            prop_assert!(dwsf - demoted <= S * 1.002, "{} S", (dwsf - demoted) / S);
        }
    }

    #[test]
    fn no_input_panics(v in proptest::array::uniform7(any::<f64>()), dwsf in any::<f64>()) {
        let input = PlanInput {
            capacity_bytes: v[0], dwpp_bytes: v[1], bw_max_bytes_per_s: v[2], bw_min_bytes_per_s: v[3],
            br_max_bytes_per_s: v[4], br_min_bytes_per_s: v[5], period_s: v[6],
        };
        if let Ok(plan) = Plan::new(input) {
            let _ = plan.rates_at(dwsf);
        }
        let _ = InterferenceLine::through(&input);
    }
}
