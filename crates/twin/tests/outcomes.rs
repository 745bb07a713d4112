//! The shipped scenarios give what they gave before a burst buffer could have several data servers,
//! to the last digit.

use forebay_twin::experiment;
use forebay_twin::output;
use forebay_twin::scenario::{Override, Scenario};
use forebay_twin::sim::{Options, Outcome, Run, run};

const SHIPPED: [(&str, &str, &str); 3] = [
    (
        "bbos",
        include_str!("../scenarios/bbos.toml"),
        include_str!("data/outcomes/bbos.json"),
    ),
    (
        "bbos-open",
        include_str!("../scenarios/bbos-open.toml"),
        include_str!("data/outcomes/bbos-open.json"),
    ),
    (
        "bbos-versions",
        include_str!("../scenarios/bbos-versions.toml"),
        include_str!("data/outcomes/bbos-versions.json"),
    ),
];

#[test]
fn shipped_scenarios_give_what_they_gave() {
    for (name, text, before) in SHIPPED {
        let report = experiment::scenario(text, &[], &mut |_| true).unwrap();
        assert_eq!(output::json(&report), before, "{name}");
    }
}

fn with(text: &str, set: &[(&str, &str)]) -> Run {
    let overrides: Vec<Override> = set
        .iter()
        .map(|(key, value)| Override {
            key: (*key).into(),
            value: (*value).into(),
        })
        .collect();
    let options = Options {
        records: true,
        samples: 20,
    };
    run(&Scenario::parse(text, &overrides).unwrap(), options)
}

fn numbers(outcome: &Outcome) -> Vec<(String, f64)> {
    let value = serde_json::to_value(outcome).unwrap();
    let fields = value.as_object().unwrap().iter();
    fields
        // Reports of nodes are steps, too.
        .filter(|(name, _)| *name != "steps")
        .map(|(name, value)| (name.clone(), value.as_f64().unwrap_or(-1.0)))
        .collect()
}

#[test]
fn one_node_is_the_burst_buffer_of_before() {
    for (name, text, _) in SHIPPED {
        for policy in ["bbos", "maxbw", "maxeff", "dedicated"] {
            for placement in ["bbos", "lru"] {
                let set = [("policy", policy), ("placement", placement)];
                let old = with(text, &set);
                let new = with(text, &[set[0], set[1], ("nodes.count", "1")]);
                assert!(new.fleet.is_some());
                for (old, new) in numbers(&old.outcome).iter().zip(numbers(&new.outcome)) {
                    let differ = (old.1 - new.1).abs();
                    let is_equal = differ <= 1e-9 * old.1.abs().max(1.0);
                    assert!(is_equal, "{name} {policy} {placement}: {old:?} {new:?}");
                }
                assert_eq!(old.records.len(), new.records.len());
            }
        }
    }
}

#[test]
fn nodes_are_in_the_report_one_by_one_and_in_sum() {
    let text = include_str!("../scenarios/four-nodes.toml");
    let report = experiment::scenario(text, &[], &mut |_| true).unwrap();
    let json: serde_json::Value = serde_json::from_str(&output::json(&report)).unwrap();
    let nodes = json["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 4);
    let sum = |field: &str| {
        nodes
            .iter()
            .map(|n| n[field].as_u64().unwrap())
            .sum::<u64>()
    };
    let row = &json["rows"][0];
    assert_eq!(sum("drained_bytes"), row["demoted_bytes"].as_u64().unwrap());
    assert_eq!(
        sum("capacity_bytes"),
        row["capacity_bytes"].as_u64().unwrap()
    );
    assert_eq!(sum("failures"), row["node_failures"].as_u64().unwrap());
    assert_eq!(row["lost_bytes"], 0);
    assert_eq!(output::nodes(&report).lines().count(), 5);
    let files = output::files(&report).unwrap();
    let names: Vec<&str> = files.iter().map(|f| f.name.as_str()).collect();
    assert!(
        names.contains(&"nodes.csv") && names.contains(&"at-risk.svg"),
        "{names:?}"
    );
}

/// Several data servers with memory and flash, one of which fails, as they were before memory could
/// be borrowed.
#[test]
fn memory_that_is_not_borrowed_gives_what_it_gave() {
    let text = include_str!("../scenarios/four-nodes.toml");
    let before = include_str!("data/outcomes/four-nodes.json");
    let report = experiment::scenario(text, &[], &mut |_| true).unwrap();
    assert_eq!(output::json(&report), before);
}
