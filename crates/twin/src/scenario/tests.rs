use super::*;
use forebay_policy::victims::OutThresholds;

const GOOD: &str = r#"name = "two"
duration = "1d"
policy = "maxbw"

[bb]
capacity = "3.2TB"
bw_max = "3.56GB/s"
bw_min = 3e9
br_max = "1.6GB/s"
br_min = "80MB/s"

[plan]
period = "3800s"
dwpp = "predicted"

[[application]]
name = "climate"
count = 3
checkpoint = "80GB"
mtbf = { uniform = ["0s", "20m"], step = "1m" }

[[application]]
checkpoint = 1_000_000_000
interval = "10m"
versions = 2
"#;

fn error(from: &str, to: &str) -> ScenarioError {
    assert!(GOOD.contains(from), "{from}");
    Scenario::parse(&GOOD.replace(from, to), &[]).unwrap_err()
}

#[test]
fn a_scenario_is_read() {
    let s = Scenario::parse(GOOD, &[]).unwrap();
    assert_eq!((s.name.as_str(), s.policy), ("two", DrainPolicy::MaxBw));
    assert_eq!(s.bb.capacity_bytes, 3_200_000_000_000);
    assert_eq!(s.plan.dwpp_bytes, None);
    assert_eq!(s.application_count(), 4);
    assert_eq!(s.applications[0].interval_s, 3800.0);
    assert_eq!(
        (
            s.applications[1].versions,
            s.applications[1].checkpoint_bytes
        ),
        (Some(2), 1_000_000_000)
    );
    assert_eq!(s.applications[1].name, "application-2");
    assert_eq!(s.pfs.bytes_per_s, 1.6e9);
}

#[test]
#[allow(clippy::too_many_lines, reason = "a list of cases")]
fn bad_values_are_refused_with_line_and_reason() {
    let cases = [
        ("\"3.2TB\"", "\"-4GB\"", Some(6), "bb.capacity", "positive"),
        ("\"3.2TB\"", "-4", Some(6), "bb.capacity", "positive"),
        ("\"3.2TB\"", "0", Some(6), "bb.capacity", "at least a byte"),
        (
            "\"3.2TB\"",
            "true",
            Some(6),
            "bb.capacity",
            "must be a size",
        ),
        ("3e9", "4e9", Some(8), "bb.bw_min", "exceeds Bwmax"),
        (
            "\"80MB/s\"",
            "\"2GB/s\"",
            Some(10),
            "bb.br_min",
            "exceeds Brmax",
        ),
        ("\"1.6GB/s\"", "0", Some(9), "bb.br_max", "positive"),
        ("maxbw", "fastest", Some(3), "policy", "expected one of"),
        (
            "count = 3",
            "count = 0",
            Some(18),
            "application.count",
            "whole number",
        ),
        (
            "count = 3",
            "cuont = 3",
            Some(18),
            "application.cuont",
            "unknown key",
        ),
        (
            "capacity =",
            "capasity =",
            Some(6),
            "bb.capasity",
            "did you mean 'capacity'",
        ),
        ("[plan]", "[plain]", None, "plan.period", "missing"),
        (
            "\"80GB\"",
            "\"80TB\"",
            Some(19),
            "application.checkpoint",
            "longer than its interval",
        ),
        (
            "count = 3",
            "count = 300",
            Some(16),
            "application",
            "at most",
        ),
        (
            "\"10m\"",
            "\"-1s\"",
            Some(24),
            "application.interval",
            "positive",
        ),
        (
            "step = \"1m\"",
            "stop = \"1m\"",
            Some(20),
            "application.mtbf.stop",
            "unknown key",
        ),
        (
            "\"0s\", \"20m\"",
            "\"30m\", \"20m\"",
            Some(20),
            "application.mtbf.uniform",
            "smaller one first",
        ),
        ("\"1d\"", "\"0s\"", Some(2), "duration", "positive"),
        ("name = \"two\"", "name = ", Some(1), "", ""),
    ];
    for (from, to, line, key, why) in cases {
        let error = error(from, to);
        assert_eq!(error.key, key, "{to}: {error}");
        assert_eq!(error.line, line, "{to}: {error}");
        assert!(error.to_string().contains(why), "{to}: {error}");
    }
}

#[test]
fn no_application_is_refused() {
    let text = &GOOD[..GOOD.find("[[").unwrap()];
    let error = Scenario::parse(text, &[]).unwrap_err();
    assert!(error.to_string().contains("[[application]]"), "{error}");
}

#[test]
fn keys_can_be_replaced_from_outside() {
    let set = |key: &str, value: &str| Override {
        key: key.into(),
        value: value.into(),
    };
    let parse = |o: &[Override]| Scenario::parse(GOOD, o);
    let s = parse(&[
        set("bb.capacity", "5TB"),
        set("policy", "bbos"),
        set("application.climate.count", "7"),
        set("application.versions", "4"),
        set("plan.dwpp", "3TB"),
    ])
    .unwrap();
    assert_eq!(s.bb.capacity_bytes, 5_000_000_000_000);
    assert_eq!(s.policy, DrainPolicy::Bbos);
    assert_eq!((s.applications[0].count, s.applications[1].count), (7, 1));
    assert_eq!(s.applications[0].versions, Some(4));
    assert_eq!(s.plan.dwpp_bytes, Some(3_000_000_000_000));
    let error = parse(&[set("bb.capcity", "1TB")]).unwrap_err();
    assert!(error.to_string().contains("no such key"), "{error}");
    let error = parse(&[set("bb.capacity", "-1TB")]).unwrap_err();
    assert_eq!(
        (error.line, error.key.as_str()),
        (None, "bb.capacity"),
        "{error}"
    );
}

#[test]
fn distributions_keep_their_bounds() {
    let s = Scenario::parse(GOOD, &[]).unwrap();
    let mut rng = crate::rng::Rng::new(1, 0);
    let drawn: Vec<f64> = (0..1000)
        .map(|_| s.applications[0].mtbf.sample(&mut rng))
        .collect();
    assert!(
        drawn
            .iter()
            .all(|x| x % 60.0 == 0.0 && *x >= 60.0 && *x <= 1200.0)
    );
    assert!(drawn.contains(&60.0) && drawn.contains(&1200.0));
}

const FOUR: &str = include_str!("../../scenarios/four-nodes.toml");

#[test]
fn nodes_are_read_alike_or_one_by_one() {
    let alike = Scenario::parse(FOUR, &[]).unwrap();
    let nodes = alike.nodes.as_ref().unwrap();
    assert_eq!(nodes.all.len(), 4);
    let racks: Vec<u16> = nodes.all.iter().map(|n| n.rack).collect();
    assert_eq!(racks, [0, 1, 0, 1]);
    assert_eq!(nodes.all[0].memory_bytes, 16 << 30);
    assert_eq!((nodes.replicas, nodes.fail_at_s[0]), (2, 1845.0));
    // `[bb]` is one node there, and all of them here.
    assert_eq!(
        alike.bb.capacity_bytes,
        4 * (256_000_000_000 + (16u64 << 30))
    );
    assert_eq!(
        alike.pfs.bytes_per_s, 1.5e9,
        "the PFS is no faster for more nodes"
    );
    let text = FOUR.replace("count = 4\n", "").replace(
        "# What the PFS",
        "[[node]]\ncount = 2\n[[node]]\nrack = 7\nflash = \"1TB\"\nwrite = \"4GB/s\"\n# What the PFS",
    );
    let listed = Scenario::parse(&text, &[]).unwrap();
    let nodes = listed.nodes.as_ref().unwrap();
    assert_eq!(nodes.all.len(), 3);
    assert_eq!(nodes.all[1].flash_bytes, 256_000_000_000);
    assert_eq!(
        (nodes.all[2].flash_bytes, nodes.all[2].rack),
        (1_000_000_000_000, 7)
    );
    // Twice the write bandwidth has twice of the others.
    assert_eq!(nodes.flash_of(&nodes.all[2]).bw_min_bytes_per_s, 3.2e9);
}

#[test]
fn bad_nodes_are_refused_with_line_and_reason() {
    let cases = [
        ("count = 4", "count = 0", "nodes.count", "from 1"),
        (
            "replicas = 2",
            "replicas = 3",
            "nodes.replicas",
            "from 1 to 2",
        ),
        (
            "replicas = 2",
            "fsync = \"pfs\"",
            "nodes.fsync",
            "ssd or memory",
        ),
        ("\"3.1GB/s\"", "0", "nodes.link", "positive rate"),
        ("racks = 2", "rakcs = 2", "nodes.rakcs", "unknown key"),
        (
            "repair = \"20m\"",
            "repair = 0",
            "nodes.repair",
            "more than 0",
        ),
        (
            "capacity = \"256GB\"",
            "capacity = 1\nnodes = 4",
            "bb.nodes",
            "nodes.count",
        ),
        (
            "bw_min = \"1.6GB/s\"",
            "bw_min = \"3GB/s\"",
            "bb.bw_min",
            "exceeds",
        ),
        (
            "policy = \"bbos\"",
            "policy = \"dedicated\"",
            "bb.nodes",
            "dedicated",
        ),
        ("[pfs]", "[[node]]\n[pfs]", "nodes.count", "one by one"),
    ];
    for (from, to, key, why) in cases {
        assert!(FOUR.contains(from), "{from}");
        let error = Scenario::parse(&FOUR.replacen(from, to, 1), &[]).unwrap_err();
        assert_eq!(error.key, key, "{error}");
        assert!(error.why.contains(why), "{error}");
    }
}

#[test]
fn the_scenario_of_the_page_on_scale_is_read() {
    let scale = include_str!("../../scenarios/scale.toml");
    let set = [("nodes.count", "1000"), ("application.count", "4000")];
    let set = set.map(|(key, value)| Override {
        key: key.into(),
        value: value.into(),
    });
    let scenario = Scenario::parse(scale, &set).unwrap();
    let of = |a: &Application| f64::from(a.count) * a.checkpoint_bytes as f64 / a.interval_s;
    let load: f64 = scenario.applications.iter().map(of).sum();
    let a_node = load / scenario.nodes.unwrap().all.len() as f64;
    assert!(
        (a_node - 89e6).abs() < 0.5e6,
        "its first line says so: {a_node}"
    );
}

/// [`FOUR`] with memory that is borrowed.
fn lent(jobs: &str) -> String {
    format!("{FOUR}[lending]\ntotal = \"64GiB\"\n{jobs}\n")
}

#[test]
fn borrowed_memory_is_read() {
    let jobs = "jobs = [[600, \"40GiB\"], [\"20m\", 0]]\napart = \"1m\"\nmin = \"1GiB\"";
    let s = Scenario::parse(&lent(jobs), &[]).unwrap();
    let lending = s.lending.as_ref().unwrap();
    assert_eq!(lending.jobs, [(600.0, 40 << 30), (1200.0, 0)]);
    assert_eq!((lending.apart_s, lending.max_share), (60.0, 0.5));
    // The most is the memory of the node, where the share of it is not less.
    let memory = |s: &Scenario| s.nodes.as_ref().unwrap().all[3].memory_bytes;
    assert_eq!(memory(&s), 16 << 30);
    let set = |key: &str, value: &str| Override {
        key: key.into(),
        value: value.into(),
    };
    let all = [
        set("lending.max_share", "0.125"),
        set("lending.max", "12GiB"),
        set("lending.jobs", "10=1GiB, 20=0"),
    ];
    let s = Scenario::parse(&lent(""), &all).unwrap();
    assert_eq!(memory(&s), 8 << 30);
    assert_eq!(s.bb.capacity_bytes, 4 * (256_000_000_000 + (8u64 << 30)));
    assert_eq!(s.lending.unwrap().jobs, [(10.0, 1 << 30), (20.0, 0)]);
    // Keys from outside are enough.
    let s = Scenario::parse(FOUR, &[set("lending.total", "64GiB")]).unwrap();
    assert!(
        s.lending
            .is_some_and(|l| l.jobs.is_empty() && l.drawn.is_none())
    );
    assert_eq!(Scenario::parse(FOUR, &[]).unwrap().lending, None);
}

#[test]
fn jobs_that_are_drawn_are_read() {
    let drawn = "job_every = \"10m\"\njob_share = 0.5\njob_time = { exponential = \"5m\" }";
    let s = Scenario::parse(&lent(drawn), &[]).unwrap();
    let drawn = DrawnJobs {
        every_s: 600.0,
        bytes: 32 << 30,
        lasts: Dist::Exponential(300.0),
    };
    assert_eq!(s.lending.unwrap().drawn, Some(drawn));
}

#[test]
fn bad_lending_is_refused_with_line_and_reason() {
    // Of the section, and of its first line but one.
    let (section, line) = (FOUR.lines().count() + 1, FOUR.lines().count() + 3);
    let cases = [
        ("max_share = 2", line, "max_share", "from 0 to 1"),
        ("max_share = 0", line, "max_share", "more than 0"),
        ("jobs = [[600, 1], [599, 0]]", line, "jobs", "in order"),
        ("jobs = [[600, \"65GiB\"]]", line, "jobs", "a node has"),
        ("jobs = [[600, -1]]", line, "jobs", "positive size"),
        ("jobs = [[-1, 1]]", line, "jobs", "positive duration"),
        ("jobs = [[600]]", line, "jobs", "list of pairs"),
        ("jobs = [600, 1]", line, "jobs", "list of pairs"),
        ("jobs = \"600=1\"", line, "jobs", "list of pairs"),
        ("min = \"17GiB\"", line, "min", "exceeds the most"),
        ("max = \"1MiB\"", line, "max", "at least"),
        ("job_every = 0", section, "job_share", "missing"),
        (
            "job_every = 0\njob_share = 0.5\njob_time = 1",
            line,
            "job_every",
            "more than 0",
        ),
        ("job_share = 2", line, "job_share", "from 0 to 1"),
        (
            "jobs = [[1, 1]]\njob_every = 1\njob_share = 0.5\njob_time = 1",
            line + 1,
            "job_every",
            "leave one",
        ),
        ("maxshare = 0.5", line, "maxshare", "unknown key"),
    ];
    for (jobs, line, key, why) in cases {
        let error = Scenario::parse(&lent(jobs), &[]).unwrap_err();
        assert_eq!(error.key, format!("lending.{key}"), "{jobs}: {error}");
        assert_eq!(error.line, Some(line), "{jobs}: {error}");
        assert!(error.why.contains(why), "{jobs}: {error}");
    }
    let without = [
        lent("").replace("memory = \"16GiB\"\n", ""),
        format!("{GOOD}[lending]\ntotal = \"64GiB\"\n"),
    ];
    for text in without {
        let error = Scenario::parse(&text, &[]).unwrap_err();
        assert_eq!(error.key, "lending.total", "{error}");
        assert!(error.why.contains("[nodes] with memory"), "{error}");
    }
    let none = lent("").replace("total = \"64GiB\"\n", "");
    let error = Scenario::parse(&none, &[]).unwrap_err();
    assert_eq!(
        (error.key.as_str(), error.line),
        ("lending.total", Some(section))
    );
    let set = |value: &str| Override {
        key: "lending.jobs".into(),
        value: value.into(),
    };
    let error = Scenario::parse(&lent(""), &[set("600:1GiB")]).unwrap_err();
    assert!(error.why.contains("600=40GiB,1200=0"), "{error}");
}

#[test]
fn thresholds_of_the_way_down_are_those_of_the_servers() {
    let out = |set: &[(&str, &str)]| {
        let set: Vec<Override> = set
            .iter()
            .map(|(key, value)| Override {
                key: (*key).into(),
                value: (*value).into(),
            })
            .collect();
        Scenario::parse(FOUR, &set).map(|scenario| scenario.nodes.unwrap())
    };
    let thresholds = |nodes: Nodes| nodes.out_thresholds(1000);
    let wanted = |forced, normal| OutThresholds::new(forced, normal).ok();
    assert_eq!(thresholds(out(&[]).unwrap()), wanted(50, 200));
    let given = [("nodes.forced_out", "0.1"), ("nodes.normal_out", "0.4")];
    assert_eq!(thresholds(out(&given).unwrap()), wanted(100, 400));
    let error = out(&[("nodes.forced_out", "0.3")]).unwrap_err();
    assert_eq!(error.key, "nodes.forced_out");
    assert!(error.why.contains("exceeds nodes.normal_out"), "{error}");
    assert!(out(&[("nodes.normal_out", "1.5")]).is_err());
}
