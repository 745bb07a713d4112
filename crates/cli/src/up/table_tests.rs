//! The table of settings in docs/operations.md against the code.

use std::collections::BTreeMap;

use clap::{Args, Command};

use super::given::Given;
use super::keys::keys_of;
use super::layers::{Layers, variable_of};
use super::settle::{Plan, settle};
use super::*;

const TABLE: &str = include_str!("../../../../docs/operations.md");
const HEAD: &str =
    "| setting | flag | environment | default | takes | meaning, and when to change it |";
/// Flags of `up` that are no settings.
const NO_SETTINGS: [&str; 4] = ["check", "config", "detach", "detached"];
/// Settings without a default value: it is nothing, or depends on the machine, and the table has
/// words for it.
const WITHOUT_DEFAULT: [&str; 19] = [
    "http.listen",
    "pfs",
    "mount",
    "state",
    "dram",
    "dram_max",
    "ssd",
    "durability",
    "passthrough",
    "overrun",
    "allow_other",
    "threads",
    "engine.bw_max",
    "engine.bw_min",
    "engine.br_max",
    "engine.br_min",
    "engine.keep_every",
    "engine.share",
    "engine.mtbf",
];
/// Each setting takes one of these at the least, and it is nobody's default.
const OTHER_VALUES: [&str; 13] = [
    "127.0.0.1:9180",
    "false",
    "true",
    "3%",
    "97%",
    "7",
    "9s",
    "9GiB",
    "lru",
    "maxbw",
    "media",
    "memory",
    "/elsewhere",
];

struct Row<'t> {
    key: &'t str,
    flags: Vec<&'t str>,
    variable: &'t str,
    /// `None` where there are words.
    default: Option<&'t str>,
    takes: &'t str,
    meaning: &'t str,
}

fn code(cell: &str) -> Option<&str> {
    let inner = cell.strip_prefix('`')?.strip_suffix('`')?;
    (!inner.contains('`')).then_some(inner)
}

fn rows() -> Vec<Row<'static>> {
    let (_, table) = TABLE.split_once(HEAD).expect("the table");
    let lines = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let rows = lines.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [key, flags, variable, default, takes, meaning] = cells[..] else {
            panic!("six cells: {line}");
        };
        let flags = flags.split(['`', ' ', ',']);
        Row {
            key: code(key).expect("a key"),
            flags: flags.filter_map(|word| word.strip_prefix("--")).collect(),
            variable: code(variable).expect("a variable"),
            default: code(default),
            takes,
            meaning,
        }
    });
    rows.collect()
}

/// What comes out where this is set besides what has to be.
fn plan_with(settings: &[(&str, &str)]) -> Option<Plan> {
    let mut layers = Layers::default();
    let base = [
        ("pfs", "/p"),
        ("mount", "/m"),
        ("state", "/s"),
        ("dram", "1GiB"),
        ("ssd", "/f"),
    ];
    for (key, value) in base.iter().chain(settings) {
        layers.put(key, key.to_string(), OsStr::new(value));
    }
    settle(layers.read().ok()?, true).ok()
}

#[test]
fn every_setting_has_one_row_and_every_row_a_setting() {
    let documented: Vec<String> = rows().iter().map(|row| row.key.to_string()).collect();
    assert_eq!(documented, keys_of::<Given>());
    for row in rows() {
        assert_eq!(row.variable, variable_of(row.key));
        assert!(
            !row.takes.is_empty() && !row.meaning.is_empty(),
            "{}",
            row.key
        );
    }
}

#[test]
fn documented_flags_are_those_that_there_are() {
    let command = UpArgs::augment_args(Command::new("up"));
    let flags = command.get_arguments().filter_map(|arg| arg.get_long());
    let mut there: Vec<&str> = flags.filter(|flag| !NO_SETTINGS.contains(flag)).collect();
    let rows = rows();
    let mut documented: Vec<&str> = rows.iter().flat_map(|row| row.flags.clone()).collect();
    there.sort_unstable();
    documented.sort_unstable();
    assert_eq!(documented, there);
    for row in &rows {
        let key = row.key.replace('_', "-");
        for flag in &row.flags {
            assert_eq!(flag.trim_start_matches("no-"), key);
        }
    }
}

#[test]
fn documented_defaults_are_those_of_the_code() {
    let usual = plan_with(&[]).expect("valid");
    let usual_of: BTreeMap<&str, Option<&str>> =
        rows().iter().map(|row| (row.key, row.default)).collect();
    for (key, default) in usual_of {
        let Some(default) = default else {
            assert!(
                WITHOUT_DEFAULT.contains(&key),
                "{key}: its default is a value"
            );
            continue;
        };
        assert!(
            !WITHOUT_DEFAULT.contains(&key),
            "{key}: there is no such default"
        );
        let with_default = plan_with(&[(key, default)]);
        assert_eq!(
            with_default.as_ref(),
            Some(&usual),
            "{key} is not {default}"
        );
    }
}

/// Otherwise a wrong default would not be seen.
#[test]
fn every_setting_makes_a_difference() {
    let rates = [
        "engine.bw_max",
        "engine.bw_min",
        "engine.br_max",
        "engine.br_min",
    ];
    let rates: Vec<_> = rates.iter().map(|key| (*key, "5GiB")).collect();
    for key in keys_of::<Given>() {
        let base: &[_] = if key.starts_with("engine.bw_") || key.starts_with("engine.br_") {
            &rates
        } else if key.starts_with("dram_") {
            &[("dram", "auto")]
        } else {
            &[]
        };
        let usual = plan_with(base).expect("valid");
        let differs = OTHER_VALUES.iter().any(|value| {
            let plan = plan_with(&[base, &[(key.as_str(), *value)]].concat());
            plan.is_some_and(|plan| plan != usual)
        });
        assert!(differs, "{key}");
    }
}
