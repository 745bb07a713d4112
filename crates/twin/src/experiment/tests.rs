use super::*;

fn report(name: &str) -> Report {
    Experiment::find(name)
        .unwrap()
        .run(1, &mut |_| true)
        .unwrap()
}

fn fields(report: &Report) -> Vec<&str> {
    report.rows[0]
        .0
        .iter()
        .map(|(name, _)| name.as_ref())
        .collect()
}

fn value(report: &Report, wanted: &[(&str, &str)], field: &str) -> f64 {
    let row = report
        .rows
        .iter()
        .find(|r| wanted.iter().all(|(name, text)| r.text(name) == *text));
    row.unwrap().number(field).unwrap()
}

#[test]
fn utilisation_is_what_the_equations_give() {
    let report = report("bbos-utilisation");
    assert_eq!(
        fields(&report),
        ["policy", "utilisation_burst", "utilisation_sustained"]
    );
    let burst = |policy| value(&report, &[("policy", policy)], "utilisation_burst");
    assert!((burst("maxbw") - 1.0).abs() < 1e-3, "{:?}", report.rows);
    for policy in ["maxeff", "bbos"] {
        let limit = 1.0 / (1.0 - 1.6 / 3.0);
        assert!((burst(policy) - limit).abs() < 2e-3, "{:?}", report.rows);
    }
    assert!((burst("dedicated") - 1.0).abs() < 1e-3, "{:?}", report.rows);
    for policy in ["dedicated", "maxbw", "maxeff", "bbos"] {
        let sustained = value(&report, &[("policy", policy)], "utilisation_sustained");
        // Brmax · period / S is all that can leave in a period.
        assert!(
            sustained > 0.9 && sustained <= 1.901,
            "{policy} {sustained}"
        );
    }
}

#[test]
fn checkpoints_by_policy_load_and_congestion() {
    let report = report("bbos-checkpoint");
    assert_eq!(
        fields(&report),
        [
            "policy",
            "dwpp_s",
            "congestion",
            "mean_throughput_bytes_per_s",
            "mean_latency_s",
            "max_latency_s",
            "mean_wait_s",
            "mean_stall_s"
        ]
    );
    assert_eq!(report.rows.len(), 36);
    let get = |policy, load, congestion, field| {
        let wanted = [
            ("policy", policy),
            ("dwpp_s", load),
            ("congestion", congestion),
        ];
        value(&report, &wanted, field)
    };
    for load in ["1.3", "1.6", "1.9"] {
        for congestion in ["low", "med", "high"] {
            let speed = |policy| get(policy, load, congestion, "mean_throughput_bytes_per_s");
            assert!(speed("bbos") > speed("maxeff"), "{load} {congestion}");
            assert!(get("bbos", load, congestion, "mean_stall_s") < 1e-2);
            assert!(get("maxeff", load, congestion, "mean_stall_s") < 1e-2);
        }
    }
    assert!(get("maxbw", "1.9", "med", "mean_stall_s") > 1.0);
}

#[test]
fn direct_checkpoints_demote_less_when_it_is_tight() {
    let report = report("bbos-direct");
    assert_eq!(
        fields(&report),
        ["dwpp_s", "demoted_bytes", "demoted_bytes_direct"]
    );
    let get = |load, field| value(&report, &[("dwpp_s", load)], field);
    assert_eq!(
        get("0.9", "demoted_bytes"),
        get("0.9", "demoted_bytes_direct")
    );
    let saved = 1.0 - get("1.9", "demoted_bytes_direct") / get("1.9", "demoted_bytes");
    assert!((0.02..0.6).contains(&saved), "{saved}");
}

#[test]
fn bbos_placement_serves_most_restarts() {
    let report = report("bbos-restart");
    assert_eq!(
        fields(&report),
        ["placement", "dwpp_s", "mtbf_max_min", "hit_ratio"]
    );
    for load in ["1.5", "1.7", "1.9", "2.1"] {
        for max in ["20", "50", "100"] {
            let get = |placement| {
                let wanted = [
                    ("placement", placement),
                    ("dwpp_s", load),
                    ("mtbf_max_min", max),
                ];
                value(&report, &wanted, "hit_ratio")
            };
            assert!(get("bbos") > get("fifo"), "{load} {max}");
            assert!(get("bbos") > get("lru"), "{load} {max}");
            assert!(get("bbos") <= 1.0);
        }
    }
}

#[test]
fn knowing_versions_serves_more_restarts() {
    let report = report("bbos-versions");
    assert_eq!(fields(&report), ["mix", "version_aware", "hit_ratio"]);
    for mix in ["1:1:1", "5:2:1"] {
        let get = |aware| {
            value(
                &report,
                &[("mix", mix), ("version_aware", aware)],
                "hit_ratio",
            )
        };
        assert!(get("true") > get("false"), "{:?}", report.rows);
    }
}

#[test]
fn an_experiment_can_be_stopped() {
    let stopped = EXPERIMENTS[0].run(1, &mut |share| share < 0.1);
    assert_eq!(stopped.unwrap_err(), ExperimentError::Stopped(Stopped));
}

/// The file that docs/reproduction.md changes one key of.
const OPEN: &str = include_str!("../../scenarios/bbos-open.toml");

fn open(set: &[(&str, &str)]) -> Outcome {
    let set: Vec<(&str, String)> = set.iter().map(|(k, v)| (*k, (*v).to_owned())).collect();
    Runner::new(1, &mut |_| true).outcome(OPEN, &set).unwrap()
}

#[test]
fn direct_checkpoints_save_much_where_versions_are_not_known() {
    let saved = |seed: &'static str, set: &[(&str, &str)]| {
        let demoted = |direct: &'static str| {
            let mut all = vec![
                ("seed", seed),
                ("duration", "22800s"),
                ("direct_checkpoint", direct),
            ];
            all.extend_from_slice(set);
            open(&all).demoted_bytes as f64
        };
        1.0 - demoted("true") / demoted("false")
    };
    let mean = |set: &[(&str, &str)]| {
        let seeds = ["1", "2", "3", "4", "5"];
        seeds.map(|seed| saved(seed, set)).iter().sum::<f64>() / 5.0
    };
    let unknown = |versions: &'static str| {
        mean(&[
            ("version_aware", "false"),
            ("application.versions", versions),
        ])
    };
    let known = mean(&[]);
    assert!(known < 0.15, "{known}");
    // As the mean over five seeds, the papers' 38 % lies between three and four versions kept,
    // nearer to four. Single seeds differ more than that: with four some save less than 38 %, with
    // five all save more.
    let (three, four, five) = (unknown("3"), unknown("4"), unknown("5"));
    assert!(three < 0.37 && 0.38 < four, "{three} {four}");
    assert!(0.41 < five, "{five}");
}

#[test]
fn fifo_and_lru_fall_behind_where_demoted_copies_leave() {
    let ratio = |set: &[(&str, &str)]| open(set).hit_ratio.unwrap();
    let leave = ("assume.copies_stay", "false");
    let no_use = ("assume.reads_are_use", "false");
    let (bbos, fifo) = (ratio(&[]), ratio(&[("placement", "fifo")]));
    assert!(bbos / fifo < 1.9, "{bbos} {fifo}");
    let gone = ratio(&[("placement", "fifo"), leave]);
    assert!(bbos / gone > 2.3, "{bbos} {gone}");
    assert_eq!(ratio(&[("placement", "lru"), no_use]), fifo);
    assert_eq!(ratio(&[("placement", "lru"), leave, no_use]), gone);
}

#[test]
fn keeping_few_versions_explains_the_ablation_of_versions() {
    let ratio = |versions: &str| {
        let mean = |seed: u32| {
            let set = [
                ("seed", seed.to_string()),
                ("version_aware", "false".to_owned()),
                ("application.versions", versions.to_owned()),
                ("application.checkpoint", "77948717948".to_owned()),
            ];
            let outcome = Runner::new(1, &mut |_| true).outcome(BBOS_VERSIONS, &set);
            outcome.unwrap().hit_ratio.unwrap()
        };
        (1..=5).map(mean).sum::<f64>() / 5.0
    };
    let (two, three) = (ratio("2"), ratio("3"));
    // The papers' 80.1 % lies between.
    assert!(three < 0.801 && 0.801 < two, "{three} {two}");
}

#[test]
fn borrowed_memory_is_faster_than_flash_and_jobs_hardly_wait() {
    let report = report("onfs");
    assert_eq!(
        fields(&report),
        [
            "buffer",
            "write_bytes_per_s",
            "writes_over_pfs",
            "mean_latency_s",
            "read_bytes_per_s",
            "reads_over_pfs",
            "hit_ratio",
            "job_wait_s",
            "job_waits",
            "max_job_wait_s",
            "mean_memory_bytes",
            "given_back_clean_bytes",
            "moved_to_flash_bytes",
            "moved_to_nodes_bytes",
            "lost_bytes"
        ]
    );
    let get = |buffer, field| value(&report, &[("buffer", buffer)], field);
    let order = ["pfs", "flash", "fixed-small", "borrowed", "fixed-large"];
    for pair in order.windows(2) {
        let write = |buffer| get(buffer, "write_bytes_per_s");
        assert!(write(pair[0]) < write(pair[1]), "{pair:?}");
    }
    for buffer in order {
        assert_eq!(get(buffer, "lost_bytes"), 0.0, "{buffer}");
        assert!(buffer == "pfs" || get(buffer, "reads_over_pfs") > 4.0);
    }
    // Per job: no more than until the next look and the moves that it finds.
    let wait = |buffer| get(buffer, "job_wait_s");
    assert_eq!(wait("fixed-small"), 0.0);
    assert!(wait("borrowed") < 0.01 * wait("fixed-large"));
    assert!(wait("borrowed") / get("borrowed", "job_waits") < 3.0);
    // What docs/reproduction.md says of restarts.
    assert!(get("borrowed", "hit_ratio") < 0.7 && get("fixed-large", "hit_ratio") == 1.0);
}

#[test]
fn what_moved_to_flash_before_jobs_came_is_there_for_restarts() {
    let report = report("onfs");
    let get = |buffer, field| value(&report, &[("buffer", buffer)], field);
    let (dropped, moved) = ("borrowed", "borrowed-coolness");
    for field in ["write_bytes_per_s", "hit_ratio", "moved_to_flash_bytes"] {
        assert!(get(moved, field) > 1.2 * get(dropped, field), "{field}");
    }
    // What docs/reproduction.md says: no slower than with flash alone, and jobs wait as long.
    let read = |buffer| get(buffer, "read_bytes_per_s");
    assert!(read(dropped) < 0.9 * read("flash") && read("flash") < read(moved));
    assert!(get(moved, "job_wait_s") < 1.1 * get(dropped, "job_wait_s"));
    assert_eq!(get(moved, "lost_bytes"), 0.0);
}

#[test]
fn runs_are_there_from_the_third_on_and_little_is_in_vain() {
    let report = report("runs");
    assert_eq!(
        fields(&report),
        [
            "application",
            "run",
            "start_s",
            "there_share",
            "read_s",
            "staged_bytes",
            "wasted_share"
        ]
    );
    let all = |application: &str, field: &str| -> Vec<f64> {
        let rows = report.rows.iter();
        let its = rows.filter(|r| r.text("application") == application);
        its.filter_map(|r| r.number(field)).collect()
    };
    for application in ["regular", "jitter", "changing"] {
        let there = all(application, "there_share");
        assert_eq!(there[..2], [0.0, 0.0], "{application}");
        assert!(there[2..].iter().all(|share| *share >= 0.9), "{there:?}");
        let wasted = all(application, "wasted_share");
        assert!(wasted.iter().all(|share| *share <= 0.2), "{wasted:?}");
    }
    assert_eq!(all("regular", "there_share").len(), 5);
    // A run that does not come: what was there for it is all that is in vain.
    let missing = all("missing", "there_share");
    assert!(
        missing[9..].iter().all(|share| *share >= 0.9),
        "{missing:?}"
    );
    assert!(
        all("missing", "wasted_share")
            .iter()
            .all(|share| *share <= 0.2)
    );
    // One trial.
    let irregular = all("irregular", "staged_bytes");
    assert!(irregular.iter().all(|bytes| *bytes <= 209_715_200.0));
}
