//! Path rules, which an administrator writes, on paths, which anybody makes.

use forebay_policy::durability::Durability;
use forebay_policy::series::{MAX_SERIES_BYTES, identify};
use forebay_server::{GroupMode, PathRule, Rules};
use forebay_types::limits;

use super::{KIB, Target};
use crate::note;

pub const RULES: Target = Target {
    name: "rules",
    about: "path rules: lines of patterns, an empty line, the path that they are asked about",
    run: rules,
    seeds: || {
        let cases: [&[u8]; 5] = [
            b"/*/{app}/ckpt-{version}/**\n\nu/run/ckpt-12/rank-3",
            b"**/*.db\n/a/*b*c\n\na/b/c.db",
            b"/x/{app}\n\nu/run/ckpt-7.forebay-conflict-1700000000",
            "/\u{e9}t\u{e9}\n\n\u{e9}t\u{e9}".as_bytes(),
            b"/*/{app}/s{version}-of-*/**\n\nu/climate/s0042-of-9/rank-3",
        ];
        cases.map(<[u8]>::to_vec).to_vec()
    },
    words: &[
        "*",
        "**",
        "/**/",
        "{app}",
        "{version}",
        "/",
        "*a",
        "a",
        ".forebay-conflict-",
        "\n\n",
    ],
    bytes: 64 * KIB,
    bytes_per_byte: 256,
    cost: 4,
};

pub const SERIES: Target = Target {
    name: "series",
    about: "application and version of a path, by the path alone",
    run: series,
    seeds: || {
        let cases: [&[u8]; 9] = [
            b"me/run7/ckpt-000120/rank-0",
            b"out.00012.000003.bp",
            b"mesh_64_heat_000040.h5",
            b"2026-11-21_00:00:00/U",
            b"time_0.50/p",
            b"lightning_logs/version_3/epoch=12-step=4000.ckpt",
            b"snapdir_012/snapshot_012.3",
            b"tmpk3j_9",
            b"3-of-8/\xff\xfe/18446744073709551616steps",
        ];
        cases.map(<[u8]>::to_vec).to_vec()
    },
    words: &[
        "ckpt",
        "step",
        "epoch",
        "v",
        "rank",
        "-of-",
        "000",
        "0.",
        "20261121T0600",
        "iter_",
        "/",
        "_",
        ".",
    ],
    bytes: 256 * KIB,
    bytes_per_byte: 128,
    cost: 1,
};

/// Rules that a configuration may have, and names that a path may have.
const RULES_MAX: usize = 16;

fn rules(input: &[u8]) {
    let at = input
        .windows(2)
        .position(|two| two == b"\n\n")
        .unwrap_or(input.len());
    let (patterns, path) = (&input[..at], input.get(at + 2..).unwrap_or_default());
    // Components are names: the kernel has no longer ones.
    let fits = |path: &[u8]| {
        path.split(|&b| b == b'/')
            .all(|part| part.len() <= limits::NAME_BYTES_MAX)
    };
    let (Ok(patterns), true, true) = (
        std::str::from_utf8(patterns),
        fits(path),
        path.len() <= limits::PATH_BYTES_MAX,
    ) else {
        return note("not asked");
    };
    let rule = |pattern: &str| PathRule {
        pattern: pattern.into(),
        durability: Some(Durability::Pfs),
        mtbf: None,
        group: Some(GroupMode::Commit),
        placement: None,
        trust: None,
    };
    let rules: Vec<PathRule> = patterns.lines().take(RULES_MAX).map(rule).collect();
    let rules = Rules::new(&rules);
    let identity = rules.identify(path);
    assert_eq!(identity, rules.identify(path));
    note((
        rules.durability(path).is_some(),
        rules.group(path).is_some(),
        identity.version.is_some(),
    ));
    note((
        rules.names_application(path),
        identity.is_certain,
        rules.mtbf_s(path).is_some(),
    ));
}

fn series(input: &[u8]) {
    let identity = identify(input);
    assert_eq!(identity, identify(input));
    assert!(
        identity.application.len() <= MAX_SERIES_BYTES,
        "{}",
        identity.application.len()
    );
    assert!(
        identity.file_series.len() <= MAX_SERIES_BYTES,
        "{}",
        identity.file_series.len()
    );
    note((
        identity.version.is_some(),
        identity.is_certain,
        identity.application.len().leading_zeros(),
    ));
    note(identity.version.map(u64::leading_zeros));
}
