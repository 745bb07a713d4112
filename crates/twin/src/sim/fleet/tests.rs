use proptest::prelude::*;

use super::super::{Options, run};
use super::*;
use crate::scenario::Override;

const FOUR: &str = include_str!("../../../scenarios/four-nodes.toml");

fn four(set: &[(&str, &str)]) -> Scenario {
    let overrides: Vec<Override> = set
        .iter()
        .map(|(key, value)| Override {
            key: (*key).into(),
            value: (*value).into(),
        })
        .collect();
    Scenario::parse(FOUR, &overrides).unwrap()
}

fn fleet(set: &[(&str, &str)]) -> FleetOutcome {
    run(&four(set), Options::default()).fleet.unwrap()
}

#[test]
fn two_copies_outlive_one_failure_and_one_does_not() {
    for seed in ["1", "2", "3", "4", "5", "6", "7", "8"] {
        let two = fleet(&[("seed", seed)]);
        assert_eq!(two.failures(), 1);
        assert_eq!((two.lost_bytes, two.lost_versions), (0, 0), "{two:?}");
    }
    let lost = |seed: &str| {
        let set = [("seed", seed), ("nodes.replicas", "1")];
        fleet(&set).lost_bytes
    };
    let all: Vec<u64> = ["1", "2", "3", "4", "5", "6", "7", "8"].map(lost).to_vec();
    assert!(all.iter().any(|bytes| *bytes > 0), "{all:?}");
}

#[test]
fn print_it() {
    for set in [vec![], vec![("nodes.replicas", "1")], vec![("nodes.local", "false")]] {
        let scenario = four(&set);
        let r = run(&scenario, Options { records: false, samples: 10 });
        println!("{set:?} {:#?} {:#?}", r.outcome, r.fleet);
    }
}
