//! What `simulate` reads.

use std::str::FromStr;

use forebay_twin::scenario::Scenario;
use forebay_twin::sweep::{Axis, Target as Goal, parse_set};

use super::{KIB, Target, text};
use crate::note;
use crate::notes::note_words;

pub const SCENARIO: Target = Target {
    name: "scenario",
    about: "a scenario of the twin, and what replaces values of it",
    run: scenario,
    seeds: || {
        let files = [
            include_str!("../../../crates/twin/scenarios/bbos.toml"),
            include_str!("../../../crates/twin/scenarios/bbos-open.toml"),
            include_str!("../../../crates/twin/scenarios/bbos-versions.toml"),
        ];
        let mut seeds = files.map(|file| file.as_bytes().to_vec()).to_vec();
        seeds.push([&seeds[0][..], b"\n#set\nbb.capacity=1TB\nplan.period=2h"].concat());
        seeds
    },
    words: &[
        "[[application]]",
        "[bb]",
        "=",
        "\"",
        "\n#set\n",
        "mtbf = { ",
        "jitter",
        "1e300",
        "stripe = ",
        "count = ",
        "nan",
        "\"1PB/s\"",
        "\"0s\"",
    ],
    bytes: 256 * KIB,
    bytes_per_byte: 1024,
    cost: 4,
};

pub const SWEEP: Target = Target {
    name: "sweep",
    about: "--set, --sweep and --target of simulate",
    run: sweep,
    seeds: || {
        let cases = [
            "bb.capacity=1TB..4TB:7",
            "plan.period=1h,2h,3h",
            "policy=bbos,maxbw",
            "stall<=1s",
            "hit_ratio>=0.9",
            "seed=1..9",
        ];
        cases.map(|case| case.as_bytes().to_vec()).to_vec()
    },
    words: &["..", ":", "=", "<=", ">=", ",", "GB/s", "1e308"],
    bytes: 256 * KIB,
    bytes_per_byte: 256,
    cost: 1,
};

fn scenario(input: &[u8]) {
    let Some(text) = text(input) else {
        return note("no text");
    };
    let (file, sets) = text.split_once("\n#set\n").unwrap_or((text, ""));
    let overrides: Vec<_> = sets
        .lines()
        .filter_map(|line| parse_set(line).ok())
        .collect();
    match Scenario::parse(file, &overrides) {
        Ok(scenario) => {
            note((
                scenario.applications.len().ilog2(),
                scenario.policy,
                scenario.placement,
                scenario.bb.nodes.ilog2(),
            ));
            // What the simulator relies on.
            assert!(scenario.duration_s > 0.0 && scenario.plan.period_s > 0.0);
            assert!(scenario.node_capacity_bytes() > 0);
            assert!(scenario.node_plan(0.0).check().is_ok());
            for application in &scenario.applications {
                assert!(application.interval_s > 0.0 && application.checkpoint_bytes > 0);
                assert!(application.mtbf.mean_s() > 0.0, "{:?}", application.mtbf);
                assert!((1..=scenario.bb.nodes).contains(&application.stripe));
            }
        }
        Err(error) => {
            assert!(
                error
                    .line
                    .is_none_or(|line| line >= 1 && line <= file.lines().count() + 1)
            );
            note_words(error.why);
        }
    }
}

fn sweep(input: &[u8]) {
    let Some(text) = text(input) else {
        return note("no text");
    };
    match Axis::from_str(text) {
        Ok(axis) => {
            note(("axis", axis.values.len().ilog2()));
            assert!(!axis.values.is_empty());
        }
        Err(error) => note_words(error),
    }
    match Goal::from_str(text) {
        Ok(_) => note("goal"),
        Err(error) => note_words(error),
    }
    note(parse_set(text).is_ok());
}
