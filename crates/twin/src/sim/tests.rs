use proptest::prelude::*;

use super::*;
use crate::scenario::Override;

const PAPERS: &str = include_str!("../../scenarios/bbos.toml");

fn papers(set: &[(&str, &str)]) -> Scenario {
    let overrides: Vec<Override> = set
        .iter()
        .map(|(key, value)| Override {
            key: (*key).into(),
            value: (*value).into(),
        })
        .collect();
    Scenario::parse(PAPERS, &overrides).unwrap()
}

fn all(scenario: &Scenario) -> Run {
    let options = Options {
        records: true,
        samples: 50,
    };
    run(scenario, options)
}

#[test]
fn what_fits_is_written_at_full_speed_and_drained() {
    let scenario = papers(&[("plan.dwpp", "3.2TB"), ("duration", "7600s")]);
    let run = all(&scenario);
    assert_eq!(run.outcome.checkpoints, 80);
    assert_eq!(run.outcome.stalled, 0);
    assert_eq!(run.outcome.dirty_at_end_bytes, 0);
    assert_eq!(run.outcome.demoted_bytes, run.outcome.checkpoint_bytes);
    assert!((run.outcome.mean_throughput_bytes_per_s - 3.56e9).abs() < 1e3);
    assert_eq!(run.outcome.mean_wait_s, 0.0);
}

#[test]
fn a_file_that_is_written_is_demoted_only_where_that_is_assumed() {
    let speed = |whole_files: &str| {
        let set = [
            ("policy", "maxeff"),
            ("application.count", "1"),
            ("assume.whole_files", whole_files),
        ];
        all(&papers(&set)).outcome.mean_throughput_bytes_per_s
    };
    assert!(speed("true") > 3.55e9, "{}", speed("true"));
    assert!(speed("false") < 3.05e9, "{}", speed("false"));
    // One that needs all of the burst buffer gets through all the same.
    let run = all(&papers(&[
        ("application.count", "1"),
        ("application.checkpoint", "4TB"),
        ("plan.dwpp", "4TB"),
        ("assume.whole_files", "true"),
    ]));
    assert_eq!(run.outcome.checkpoints, 1);
}

#[test]
fn who_has_just_written_does_not_go_before_those_who_wait() {
    let run = all(&papers(&[
        ("application.count", "84"),
        ("plan.dwpp", "6.72TB"),
        ("duration", "38000s"),
    ]));
    let mut written = [0u32; 84];
    for record in &run.records {
        written[record.application as usize] += 1;
    }
    let (least, most) = (written.iter().min().unwrap(), written.iter().max().unwrap());
    assert!(most - least <= 1, "{written:?}");
}

#[test]
fn maxbw_stalls_when_the_buffer_is_full_and_bbos_does_not() {
    let run = |policy: &str| {
        all(&papers(&[
            ("policy", policy),
            ("application.count", "76"),
            ("plan.dwpp", "6.08TB"),
            ("arrivals.pattern", "med"),
        ]))
    };
    let (maxbw, maxeff, bbos) = (run("maxbw"), run("maxeff"), run("bbos"));
    assert_eq!(bbos.outcome.stalled, 0);
    assert_eq!(maxeff.outcome.stalled, 0);
    assert!(maxbw.outcome.stalled > 20, "{:?}", maxbw.outcome);
    let first = maxbw.records.iter().position(|r| r.stall_s > 0.0);
    assert!((35..45).contains(&first.unwrap()), "{first:?}");
    let speed = |run: &Run| run.outcome.mean_throughput_bytes_per_s;
    assert!(speed(&bbos) > speed(&maxeff));
    assert!(maxbw.records[0].throughput_bytes_per_s() > 3.55e9);
}

#[test]
fn a_seed_gives_the_same_run_and_another_gives_another() {
    let scenario = |seed: &str| {
        let text = PAPERS.replace(
            "interval = \"3800s\"",
            "interval = \"3800s\"\njitter = 0.3\nmtbf = { exponential = \"2h\" }",
        );
        let set = |key: &str, value: &str| Override {
            key: key.into(),
            value: value.into(),
        };
        Scenario::parse(
            &text,
            &[
                set("seed", seed),
                set("duration", "2d"),
                set("failures.mode", "process"),
            ],
        )
        .unwrap()
    };
    let first = all(&scenario("7"));
    assert_eq!(first, all(&scenario("7")));
    assert_ne!(first, all(&scenario("8")));
    assert!(first.outcome.restarts > 100, "{:?}", first.outcome);
    assert!(first.outcome.lost_work_s > 0.0);
}

#[test]
fn dedicated_space_serves_who_has_it() {
    let scenario = papers(&[("policy", "dedicated"), ("application.count", "50")]);
    let outcome = run(&scenario, Options::default()).outcome;
    assert_eq!(outcome.checkpoints, 50);
    // 40 shares; the other ten write to the PFS.
    assert_eq!(outcome.direct_bytes, 10 * 80_000_000_000);
    assert_eq!(outcome.max_used_bytes, 3_200_000_000_000);
}

#[test]
fn what_is_assumed_can_be_changed() {
    let hits = |placement: &str, assumed: &[(&str, &str)]| {
        let text = PAPERS.replace(
            "interval = \"3800s\"",
            "interval = \"3800s\"\nmtbf = { uniform = [\"0m\", \"20m\"], step = \"1m\" }",
        );
        let mut set = vec![
            ("placement", placement),
            ("application.count", "76"),
            ("plan.dwpp", "6.08TB"),
            ("duration", "22800s"),
            ("failures.mode", "draws"),
            ("failures.from", "7600s"),
            ("failures.mtbf_known", "true"),
        ];
        set.extend_from_slice(assumed);
        let overrides: Vec<Override> = set
            .iter()
            .map(|(key, value)| Override {
                key: (*key).into(),
                value: (*value).into(),
            })
            .collect();
        let scenario = Scenario::parse(&text, &overrides).unwrap();
        run(&scenario, Options::default())
            .outcome
            .hit_ratio
            .unwrap()
    };
    let copies_leave = [("assume.copies_stay", "false")];
    assert!(hits("fifo", &copies_leave) < hits("fifo", &[]));
    let writes_only = [("assume.reads_are_use", "false")];
    assert!(hits("lru", &writes_only) < hits("lru", &[]));
    // What is used last is then what was written last.
    assert_eq!(hits("lru", &writes_only), hits("fifo", &writes_only));
    assert_eq!(hits("fifo", &writes_only), hits("fifo", &[]));
}

#[test]
fn a_link_limits_an_application() {
    let text = PAPERS.replace("count = 40", "count = 2\nbandwidth = \"1GB/s\"");
    let run = all(&Scenario::parse(&text, &[]).unwrap());
    assert!(
        run.records
            .iter()
            .all(|r| (r.execution_s - 80.0).abs() < 1e-3)
    );
}

#[test]
fn nodes_share_the_work_and_servers_the_flush() {
    let text = PAPERS
        .replace("nodes = 1", "nodes = 4")
        .replace("interval", "stripe = 4\ninterval");
    let one = all(&papers(&[]));
    let four = all(&Scenario::parse(&text, &[]).unwrap());
    assert_eq!(four.outcome.checkpoints, one.outcome.checkpoints);
    let differ = four.outcome.mean_latency_s - one.outcome.mean_latency_s;
    assert!(differ.abs() < 1e-3, "{differ}");
    assert_eq!(
        four.outcome.dirty_at_end_bytes,
        one.outcome.dirty_at_end_bytes
    );
}

#[test]
fn staged_input_comes_before_the_work() {
    let text = PAPERS.replace("count = 40", "count = 2\nstage_in = \"160GB\"");
    let run = all(&Scenario::parse(&text, &[]).unwrap());
    assert_eq!(run.outcome.staged_bytes, 320_000_000_000);
    // Twice 160 GB at 1.6 GB/s, side by side.
    assert!(run.records[0].arrive_s >= 199.9);
}

/// Seconds until each of some applications has its input of 160 GB.
fn staged_s(applications: &str) -> Vec<f64> {
    let bb = &PAPERS[..PAPERS.find("[[application]]").unwrap()];
    let text = format!("{bb}{applications}");
    let scenario = Scenario::parse(&text, &[]).unwrap();
    let run = all(&scenario);
    let mut ends: Vec<f64> = run.records.iter().map(|r| r.arrive_s).collect();
    ends.sort_by(f64::total_cmp);
    ends.truncate(scenario.applications.len());
    ends
}

fn application(more: &str) -> String {
    format!(
        "[[application]]\ncheckpoint = \"1MB\"\ninterval = \"2000s\"\nstage_in = \"160GB\"\n{more}\n"
    )
}

#[test]
fn who_uses_the_pfs_shares_it_as_far_as_links_go() {
    let near = |found: &[f64], wanted: &[f64]| {
        let differ = found.iter().zip(wanted).map(|(a, b)| (a - b).abs());
        assert_eq!(found.len(), wanted.len());
        assert!(differ.fold(0.0, f64::max) < 0.1, "{found:?} {wanted:?}");
    };
    // 1.6 GB/s in all.
    near(&staged_s(&application("")), &[100.0]);
    near(&staged_s(&application("").repeat(2)), &[200.0, 200.0]);
    // The second comes when the first has moved half of its bytes.
    let late = application("") + &application("start = \"50s\"");
    near(&staged_s(&late), &[150.0, 200.0]);
    // A link of 0.4 GB/s takes no more than that; what it leaves nobody else gets (a share is a
    // share).
    let slow = application("") + &application("bandwidth = \"0.4GB/s\"");
    near(&staged_s(&slow), &[200.0, 400.0]);
}

#[test]
fn a_stopped_run_says_so() {
    let scenario = papers(&[("duration", "1000d"), ("application.count", "100")]);
    let mut looks = 0;
    let stopped = run_watched(&scenario, Options::default(), |share| {
        assert!((0.0..=1.0).contains(&share));
        looks += 1;
        looks < 2
    });
    assert_eq!((stopped, looks), (Err(Stopped), 2));
}

fn any_scenario() -> impl Strategy<Value = (String, Vec<Override>)> {
    let kind = (1u32..8, 1u64..3_000_000, 20u32..200, 0u8..10, 1u64..4);
    let policy = proptest::sample::select(vec!["bbos", "maxbw", "maxeff", "dedicated"]);
    let placement = proptest::sample::select(vec!["bbos", "fifo", "lru", "coolness"]);
    let pattern = proptest::sample::select(vec![
        "low",
        "med",
        "high",
        "back-to-back",
        "random",
        "given",
    ]);
    let mode = proptest::sample::select(vec!["none", "process", "draws"]);
    let bb = (1u32..4, 5_000u64..4_000_000, any::<bool>(), any::<bool>());
    (
        (policy, placement, pattern, mode),
        proptest::collection::vec(kind, 1..5),
        bb,
        any::<u32>(),
    )
        .prop_map(|(words, kinds, (nodes, capacity, direct, aware), seed)| {
            let (policy, placement, pattern, mode) = words;
            let mut text = format!(
                "seed = {seed}\nduration = 2000\npolicy = \"{policy}\"\nplacement = \"{placement}\"\n\
                 direct_checkpoint = {direct}\nversion_aware = {aware}\n\
                 [bb]\nnodes = {nodes}\ncapacity = {capacity}\nbw_max = 900000\nbw_min = 600000\nbr_max = 300000\nbr_min = 10000\n\
                 [pfs]\nservers = {nodes}\nordered_flush = {aware}\n\
                 [plan]\nperiod = 150\n[arrivals]\npattern = \"{pattern}\"\n\
                 [failures]\nmode = \"{mode}\"\n[assume]\nwhole_files = {}\n",
                seed % 2 == 0
            );
            for (count, bytes, interval, jitter, versions) in kinds {
                // No more than the burst buffer takes in the long run.
                let bytes = bytes.min(u64::from(interval) * 120_000 / u64::from(count)).max(1);
                text.push_str(&format!(
                    "[[application]]\ncount = {count}\ncheckpoint = {bytes}\ninterval = {interval}\njitter = 0.{jitter}\n\
                     versions = {versions}\nmtbf = {{ exponential = 300 }}\nstripe = {}\nstage_in = {}\n",
                    1 + u64::from(count) % u64::from(nodes),
                    bytes / 3,
                ));
            }
            (text, Vec::new())
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// No slack: not a byte more than the capacity, in any scenario, at any step.
    #[test]
    fn capacity_is_never_exceeded_and_no_byte_is_lost((text, overrides) in any_scenario()) {
        let scenario = Scenario::parse(&text, &overrides).unwrap();
        let mut sim = Sim::new(&scenario, Options { records: true, samples: 10 });
        let mut steps = 0u64;
        while sim.step() {
            steps += 1;
            prop_assert!(steps < 2_000_000, "time stands still at {} s", sim.now_s);
            for (place, node) in sim.nodes.iter().enumerate() {
                prop_assert!(node.dirty + node.clean <= node.capacity);
                let (mut dirty, mut clean) = (0, 0);
                for id in sim.apps.iter().flat_map(|a| &a.parts) {
                    let part = &sim.parts[*id];
                    prop_assert!(part.evicted <= part.demoted && part.demoted <= part.written && part.written <= part.size);
                    if part.node as usize == place {
                        dirty += part.dirty();
                        clean += part.clean();
                    }
                }
                prop_assert_eq!((dirty, clean), (node.dirty, node.clean));
            }
        }
        let run = sim.finish();
        for r in &run.records {
            prop_assert!(r.wait_s >= 0.0 && r.stall_s >= 0.0 && r.execution_s >= 0.0, "{:?}", r);
        }
    }
}
