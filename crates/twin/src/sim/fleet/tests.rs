use proptest::prelude::*;

use super::super::part::State;
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

/// Two nodes, and one application that writes 10 GB from the first.
fn pair(set: &[(&str, &str)]) -> super::super::Run {
    let all = [
        ("nodes.count", "2"),
        ("nodes.memory", "0"),
        ("nodes.fail_at", "100h"),
        ("nodes.restart_copies", "0"),
        ("failures.mode", "none"),
        ("duration", "1000s"),
        ("arrivals.pattern", "low"),
        ("application.count", "1"),
        ("application.stripe", "1"),
        ("application.checkpoint", "10GB"),
        ("application.interval", "2000s"),
    ];
    let mut all = all.to_vec();
    all.extend_from_slice(set);
    let options = Options {
        records: true,
        samples: 0,
    };
    run(&four(&all), options)
}

fn seconds(set: &[(&str, &str)]) -> f64 {
    let run = pair(set);
    assert_eq!(run.records.len(), 1, "{:?}", run.outcome);
    run.records[0].latency_s()
}

#[test]
fn links_and_second_copies_cost_what_they_take() {
    let one = ("nodes.replicas", "1");
    let near = |found: f64, wanted: f64| assert!((found - wanted).abs() < 0.01, "{found} {wanted}");
    // Flash takes 2 GB/s.
    near(seconds(&[one]), 5.0);
    // Node-local writes use no link; those from a compute node do, and so does a second copy.
    let slow = ("nodes.link", "1GB/s");
    near(seconds(&[one, slow]), 5.0);
    near(seconds(&[one, slow, ("nodes.local", "false")]), 10.0);
    near(seconds(&[slow]), 10.0);
    // Both copies of two applications go to the same two devices.
    let both = [
        ("application.count", "2"),
        ("arrivals.pattern", "back-to-back"),
    ];
    let run = pair(&both);
    let last = run
        .records
        .iter()
        .map(|r| r.latency_s())
        .fold(0.0, f64::max);
    near(last, 10.0);
    // With one node the fsync drains: 10 GB at 1.5 GB/s after it was written.
    near(seconds(&[("nodes.count", "1")]), 5.0 + 10.0 / 1.5);
    // Memory takes 5 GB/s.
    near(
        seconds(&[one, ("nodes.memory", "20GB"), ("nodes.fsync", "memory")]),
        2.0,
    );
    near(
        seconds(&[one, ("nodes.memory", "20GB"), ("nodes.fsync", "ssd")]),
        5.0,
    );
}

#[test]
fn two_full_nodes_drain_as_one_with_all_their_space_would() {
    let full = [
        ("nodes.replicas", "1"),
        ("bb.capacity", "30GB"),
        ("policy", "maxbw"),
        ("application.count", "6"),
        ("arrivals.pattern", "back-to-back"),
    ];
    let run = pair(&full);
    let fleet = run.fleet.unwrap();
    assert_eq!(run.outcome.checkpoints, 6);
    for node in &fleet.nodes {
        assert_eq!(node.drained_bytes, node.written_bytes);
        assert_eq!(node.peak_bytes, 30_000_000_000);
    }
    // 60 GB at 1.5 GB/s, as one burst buffer with all the space would drain them.
    assert_eq!(run.outcome.dirty_at_end_bytes, 0);
}

#[test]
fn a_file_goes_on_where_room_was_made_first() {
    let alike = "[nodes]\ncount = 4\nmemory = \"16GiB\"";
    assert!(FOUR.contains(alike));
    // The third of 20 GB fits neither beside the first nor beside the second, and waits for its own
    // node. A gigabyte is soon drained from the other one.
    let text = FOUR
        .replace(alike, "[nodes]")
        .replace("replicas = 2", "replicas = 1")
        .replace("fail_at = [\"1845s\"]", "")
        .replace("restart_copies = 1", "")
        .replace("mode = \"process\"", "mode = \"none\"")
        .replace("pattern = \"med\"", "pattern = \"back-to-back\"")
        .replace("policy = \"bbos\"", "policy = \"maxbw\"")
        .replace(
            "[pfs]",
            "[[node]]\nflash = \"30GB\"\n[[node]]\nflash = \"39GB\"\n[pfs]",
        )
        .replace("count = 12", "count = 3")
        .replace("32GB", "20GB")
        .replace("stripe = 4", "")
        .replace("duration = \"4h\"", "duration = 500");
    let found = |locality: &str| {
        let set = [Override {
            key: "nodes.locality".into(),
            value: locality.into(),
        }];
        let run = run(&Scenario::parse(&text, &set).unwrap(), Options::default());
        assert_eq!(run.outcome.checkpoints, 3);
        let fleet = run.fleet.unwrap();
        let written: u64 = fleet.nodes.iter().map(|n| n.written_bytes).sum();
        assert_eq!(written, 60_000_000_000 + fleet.handed_over_bytes);
        fleet.handed_over
    };
    assert_eq!((found("writer-first"), found("local-only")), (1, 0));
}

#[test]
fn restarts_read_from_another_node_what_their_own_has_lost() {
    let hits = |copies: &str| {
        let set = [
            ("nodes.replicas", "1"),
            ("nodes.restart_copies", copies),
            ("nodes.fail_at", "1500s"),
            ("arrivals.pattern", "low"),
            ("duration", "2000s"),
            ("application.count", "4"),
            ("application.checkpoint", "8GB"),
            ("application.interval", "1000s"),
        ];
        let run = pair(&set);
        assert!(run.outcome.restarts > 0, "{:?}", run.outcome);
        run.outcome.hits
    };
    assert_eq!(hits("0"), 0, "flash goes with its node");
    assert!(hits("1") > 0);
}

#[test]
fn a_node_that_is_away_is_waited_for() {
    let run = pair(&[
        ("nodes.replicas", "1"),
        ("nodes.flash_loss", "0"),
        ("policy", "maxbw"),
        ("pfs.bandwidth", "20MB/s"),
        ("nodes.fail_at", "30s"),
        ("nodes.repair", "200s"),
        ("application.count", "2"),
        ("arrivals.pattern", "back-to-back"),
    ]);
    let fleet = run.fleet.unwrap();
    assert_eq!((fleet.lost_bytes, fleet.interrupted), (0, 1));
    assert!((fleet.waited_for_node_s - 200.0).abs() < 1e-6, "{fleet:?}");
    let away: f64 = fleet.nodes.iter().map(|n| n.away_s).sum();
    assert!((away - 200.0).abs() < 1e-6, "{fleet:?}");
}

fn any_fleet() -> impl Strategy<Value = String> {
    let policy = proptest::sample::select(vec!["bbos", "maxbw", "maxeff"]);
    let locality = proptest::sample::select(vec!["writer-first", "local-only", "spread"]);
    let pattern = proptest::sample::select(vec!["low", "high", "back-to-back", "random"]);
    let kind = (1u32..6, 1u64..3_000_000, 20u32..200, 1u64..4, 1u32..5);
    let node = (
        0u64..2_000_000,
        5_000u64..4_000_000,
        1u32..4,
        100_000u64..2_000_000,
    );
    (
        (policy, locality, pattern),
        proptest::collection::vec(node, 1..5),
        proptest::collection::vec(kind, 1..4),
        any::<[bool; 6]>(),
        (any::<u32>(), 1u64..500_000),
    )
        .prop_map(|((policy, locality, pattern), nodes, kinds, flags, (seed, pfs))| {
            let fails = if flags[2] { "mtbf = 700\n" } else { "fail_at = [300, 301, 900]\n" };
            let mut text = format!(
                "seed = {seed}\nduration = 2000\npolicy = \"{policy}\"\ndirect_checkpoint = {}\n\
                 [bb]\ncapacity = 1000000\nbw_max = 900000\nbw_min = 600000\nbr_max = 300000\nbr_min = 10000\n\
                 [nodes]\nlocal = {}\nlocality = \"{locality}\"\nreplicas = {}\nfsync = \"{}\"\nrestart_copies = {}\n\
                 restart_network = 20000\nrepair = 100\nflash_loss = 0.{}\nracks = 2\nmemory_write = 3000000\n{fails}\
                 [pfs]\nbandwidth = {}\n[plan]\nperiod = 150\n[arrivals]\npattern = \"{pattern}\"\n\
                 [failures]\nmode = \"{}\"\n",
                flags[0],
                flags[1],
                1 + seed % 2,
                if flags[3] { "memory" } else { "ssd" },
                seed % 3,
                seed % 10,
                300_000 + pfs,
                if flags[4] { "process" } else { "draws" },
            );
            for (memory, flash, count, link) in nodes {
                let memory = if flags[5] { memory } else { 0 };
                text.push_str(&format!(
                    "[[node]]\ncount = {count}\nmemory = {memory}\nflash = {flash}\nlink = {link}\n"
                ));
            }
            for (count, bytes, interval, versions, stripe) in kinds {
                let bytes = bytes.min(u64::from(interval) * 120_000 / u64::from(count)).max(1);
                text.push_str(&format!(
                    "[[application]]\ncount = {count}\ncheckpoint = {bytes}\ninterval = {interval}\n\
                     versions = {versions}\nmtbf = {{ exponential = 300 }}\nstripe = {stripe}\nstage_in = {}\n",
                    bytes / 3,
                ));
            }
            text
        })
}

/// What holds after every step.
fn check(sim: &Sim<'_>) -> Result<(), TestCaseError> {
    let mut held = vec![(0, 0, 0); sim.nodes.len()];
    for (app, a) in sim.apps.iter().enumerate() {
        for id in &a.parts {
            let part = &sim.parts[*id];
            prop_assert_eq!(part.app as usize, app);
            prop_assert!(part.evicted <= part.demoted && part.demoted <= part.written);
            prop_assert!(part.written <= part.size);
            let (dirty, clean, seconds) = &mut held[part.node as usize];
            *dirty += part.dirty();
            *clean += part.clean();
            if part.role == Role::Second {
                *seconds += part.dirty();
                // What is drained has its second copy on the PFS.
                let first = sim.part_of(part.app, part.version, part.slot, Role::First);
                let is_drained = first.is_some_and(|id| sim.parts[id].state == State::Clean);
                prop_assert!(!is_drained);
            }
        }
    }
    let mut drains = 0.0;
    for (node, held) in sim.nodes.iter().zip(held) {
        prop_assert!(node.dirty + node.clean <= node.capacity);
        prop_assert_eq!(held, (node.dirty, node.clean, node.seconds));
        prop_assert!(node.is_up || (node.workers.is_empty() && node.demotion_rate == 0.0));
        drains += node.demotion_rate;
    }
    prop_assert!(
        drains <= sim.br_max() * (1.0 + 1e-9),
        "{drains} of {}",
        sim.br_max()
    );
    for host in &sim.fleet.hosts {
        prop_assert_eq!((host.out + host.into) as usize, host.flows.len());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    /// Not a byte more than a tier holds, none that nobody accounts for, and never more than Brmax
    /// to the PFS, in any burst buffer, at any step.
    #[test]
    fn no_byte_is_lost_or_too_many_and_brmax_is_kept(text in any_fleet()) {
        let scenario = Scenario::parse(&text, &[]).unwrap();
        let mut sim = Sim::new(&scenario, Options { records: true, samples: 10 });
        let mut steps = 0u64;
        while sim.step() {
            steps += 1;
            prop_assert!(steps < 1_000_000, "time stands still at {} s", sim.now_s);
            check(&sim)?;
        }
        let run = sim.finish();
        let fleet = run.fleet.unwrap();
        let drained: u64 = fleet.nodes.iter().map(|n| n.drained_bytes).sum();
        prop_assert_eq!(drained, run.outcome.demoted_bytes);
        prop_assert!(fleet.nodes.iter().all(|n| n.peak_bytes <= n.capacity_bytes));
        for r in &run.records {
            prop_assert!(r.wait_s >= 0.0 && r.stall_s >= 0.0 && r.execution_s >= 0.0, "{:?}", r);
        }
    }

    /// With two copies of everything, the loss of one node takes nothing that was promised.
    #[test]
    fn one_failure_takes_nothing_that_two_nodes_hold(text in any_fleet(), at_s in 0u32..2000) {
        let text = text
            .replace("mtbf = 700\n", "fail_at = [1]\n")
            .replace("fail_at = [300, 301, 900]", "fail_at = [1]")
            .replace("fail_at = [1]", &format!("fail_at = [{at_s}]"))
            .replace("replicas = 1", "replicas = 2");
        let scenario = Scenario::parse(&text, &[]).unwrap();
        let fleet = run(&scenario, Options::default()).fleet.unwrap();
        prop_assert_eq!((fleet.failures(), fleet.lost_bytes), (1, 0));
    }

    #[test]
    fn a_seed_gives_the_same_run(text in any_fleet()) {
        let scenario = Scenario::parse(&text, &[]).unwrap();
        let options = Options { records: true, samples: 3 };
        prop_assert_eq!(run(&scenario, options), run(&scenario, options));
    }
}
