//! Memory that is borrowed and given back.

use proptest::prelude::*;

use super::super::part::State;
use super::super::{Options, Run, run};
use super::*;
use crate::scenario::Override;

const GIB: u64 = 1 << 30;

/// One node of 64 GiB, 32 of which are the tier's at most, and one application that has written
/// 24 GiB in 8 parts by 10 s. The PFS takes nothing to speak of.
const ONE: &str = r#"
duration = 400
policy = "maxbw"
[bb]
capacity = "200GiB"
bw_max = "2GiB/s"
bw_min = "2GiB/s"
br_max = "1GiB/s"
br_min = "1GiB/s"
[nodes]
memory = "32GiB"
memory_write = "4GiB/s"
fsync = "memory"
[pfs]
bandwidth = 1
[plan]
period = 200
[arrivals]
pattern = "low"
[lending]
total = "64GiB"
jobs = [[100, "50GiB"], [200, "0"]]
[[application]]
checkpoint = "24GiB"
stripe = 8
interval = 1000
"#;

pub(super) fn with(text: &str, set: &[(&str, &str)]) -> Scenario {
    let overrides: Vec<Override> = set
        .iter()
        .map(|(key, value)| Override {
            key: (*key).into(),
            value: (*value).into(),
        })
        .collect();
    Scenario::parse(text, &overrides).unwrap()
}

fn one(set: &[(&str, &str)]) -> (Run, MemoryOutcome) {
    let options = Options {
        records: true,
        samples: 40,
    };
    let run = run(&with(ONE, set), options);
    let memory = run.fleet.as_ref().unwrap().memory.unwrap();
    (run, memory)
}

/// The simulation as it is at that time.
pub(super) fn at(scenario: &Scenario, at_s: f64) -> Sim<'_> {
    let mut sim = Sim::new(scenario, Options::default());
    while sim.calendar.next_s().min(sim.next_node().1) <= at_s {
        sim.step();
    }
    sim
}

#[test]
fn undrained_parts_move_to_flash_when_a_job_comes_and_memory_is_back_when_it_ends() {
    let (run, memory) = one(&[]);
    assert_eq!(run.outcome.checkpoints, 1);
    // 24 of 64 GiB are in use, the job wants 50, and 6.4 stay for jobs: most of it moves.
    let moved = memory.moved_to_flash_bytes;
    assert!((15 * GIB..=24 * GIB).contains(&moved), "{memory:?}");
    assert!(
        (moved + 1000) % (3 * GIB) <= 1000,
        "whole parts: {memory:?}"
    );
    assert!(memory.dropped_bytes < 1000 && memory.moved_to_nodes_bytes == 0);
    // 10 GiB are missing at 100 s. It is seen within a second, and flash takes 2 GiB/s.
    assert_eq!(memory.job_waits, 1);
    assert!((5.0..9.0).contains(&memory.job_wait_s), "{memory:?}");
    assert_eq!(memory.job_wait_s, memory.max_job_wait_s);
    assert_eq!(run.fleet.unwrap().lost_bytes, 0);
    let scenario = with(ONE, &[]);
    let capacity = |at_s| at(&scenario, at_s).nodes[0].capacity;
    assert_eq!((capacity(99.0), capacity(240.0)), (32 * GIB, 32 * GIB));
    assert!(capacity(150.0) < 8 * GIB);
    assert!(capacity(205.0) < 32 * GIB, "it takes 16 s to grow");
}

#[test]
fn clean_copies_go_at_once() {
    let (_, memory) = one(&[("pfs.bandwidth", "1GiB/s")]);
    assert_eq!(memory.moved_to_flash_bytes + memory.moved_to_nodes_bytes, 0);
    assert!(memory.dropped_bytes >= 15 * GIB, "{memory:?}");
    // Until the next look.
    assert!(memory.job_wait_s <= 1.0, "{memory:?}");
}

#[test]
fn without_flash_it_goes_to_another_node_and_without_that_it_is_drained() {
    let nodes = [
        ("nodes.count", "2"),
        ("nodes.flash", "0"),
        ("lending.apart", "150s"),
    ];
    let (_, memory) = one(&nodes);
    assert!(memory.moved_to_nodes_bytes >= 9 * GIB, "{memory:?}");
    let drained = [
        ("nodes.flash", "0"),
        ("pfs.bandwidth", "1GiB/s"),
        ("lending.jobs", "20=50GiB"),
    ];
    let (run, memory) = one(&drained);
    assert_eq!(memory.moved_to_flash_bytes + memory.moved_to_nodes_bytes, 0);
    assert!(memory.dropped_bytes >= 9 * GIB, "{memory:?}");
    assert!(run.outcome.demoted_bytes >= 9 * GIB && memory.job_wait_s < 20.0);
}

#[test]
fn memory_that_never_shrinks_makes_jobs_wait_as_long_as_they_run() {
    let (_, memory) = one(&[("lending.min", "32GiB")]);
    assert!((memory.job_wait_s - 100.0).abs() < 1e-6, "{memory:?}");
    assert_eq!(memory.mean_memory_bytes, (32 * GIB) as f64);
}

#[test]
fn a_writer_goes_on_while_memory_is_given_back() {
    let slow = [
        ("application.bandwidth", "100MiB/s"),
        ("application.stripe", "1"),
    ];
    let (run, memory) = one(&slow);
    assert_eq!(run.outcome.checkpoints, 1, "{:?}", run.outcome);
    assert_eq!(run.fleet.unwrap().handed_over, 1);
    assert!(memory.job_wait_s < 2.0, "{memory:?}");
}

#[test]
fn looks_come_while_something_changes_and_no_longer() {
    let steps = |duration: &str| {
        let set = [
            ("duration", duration),
            ("nodes.report", "1h"),
            ("application.interval", "1d"),
        ];
        one(&set).0.outcome.steps
    };
    assert!(steps("900s") + 100 > steps("8900s"));
}

#[test]
fn drawn_jobs_are_of_the_seed() {
    let set = |seed| {
        [
            ("seed", seed),
            ("lending.jobs", ""),
            ("lending.job_every", "60s"),
            ("lending.job_share", "0.8"),
            ("lending.job_time", "30s"),
        ]
    };
    let text = ONE.replace("jobs = [[100, \"50GiB\"], [200, \"0\"]]\n", "");
    let drawn = |seed| {
        let set: Vec<_> = set(seed)
            .into_iter()
            .filter(|s| s.0 != "lending.jobs")
            .collect();
        run(&with(&text, &set), Options::default())
    };
    assert_eq!(drawn("1"), drawn("1"));
    assert_ne!(drawn("1"), drawn("2"));
    assert!(drawn("1").fleet.unwrap().memory.unwrap().job_waits > 0);
}

pub(super) fn any_lending() -> impl Strategy<Value = String> {
    let policy = proptest::sample::select(vec!["bbos", "maxbw", "maxeff"]);
    let pattern = proptest::sample::select(vec!["low", "high", "back-to-back", "random"]);
    let kind = (1u32..5, 1u64..9_000, 20u32..300, 1u64..4, 1u32..9);
    let node = (0u64..20_000, 0u64..30_000, 1u32..3, 100u64..4_000);
    let job = (0u32..300, 0u64..=32_000);
    (
        (policy, pattern, any::<[bool; 5]>(), any::<u32>()),
        proptest::collection::vec(node, 1..4),
        proptest::collection::vec(kind, 1..4),
        (0.2..=1.0f64, 0u64..4_000, 10u64..2_000),
        proptest::collection::vec(job, 0..12),
    )
        .prop_map(|(words, nodes, kinds, (share, min, pfs), jobs)| {
            let (policy, pattern, flags, seed) = words;
            let (mut at_s, mut list) = (0, String::new());
            for (after, mib) in jobs {
                at_s += after;
                list.push_str(&format!("[{at_s}, \"{mib}MiB\"],"));
            }
            let jobs = match flags[3] {
                true => format!("jobs = [{list}]\napart = {}\n", seed % 100),
                false => "job_every = 50\njob_share = 0.4\njob_time = { uniform = [5, 90] }\n".into(),
            };
            let mut text = format!(
                "seed = {seed}\nduration = 1500\npolicy = \"{policy}\"\n\
                 [bb]\ncapacity = \"1GiB\"\nbw_max = \"900MB\"\nbw_min = \"600MB\"\nbr_max = \"300MB\"\nbr_min = \"10MB\"\n\
                 [nodes]\nlocal = {}\nreplicas = {}\nfsync = \"memory\"\nmemory_write = \"3GB\"\nrepair = 60\n{}\
                 [pfs]\nbandwidth = \"{pfs}MB\"\n[plan]\nperiod = 150\n[arrivals]\npattern = \"{pattern}\"\n\
                 [failures]\nmode = \"{}\"\n[lending]\ntotal = \"32000MiB\"\nmin = \"{min}MiB\"\nmax = \"20000MiB\"\nmax_share = {share}\n{jobs}",
                flags[0],
                1 + seed % 2,
                if flags[1] { "fail_at = [200, 700]\nflash_loss = 0.5\n" } else { "" },
                if flags[2] { "process" } else { "none" },
            );
            text.push_str("[[node]]\nmemory = \"1GiB\"\nflash = \"4GiB\"\n");
            for (memory, flash, count, link) in nodes {
                text.push_str(&format!(
                    "[[node]]\ncount = {count}\nmemory = \"{}MiB\"\nflash = \"{flash}MiB\"\nlink = \"{link}MB\"\n",
                    memory.max(u64::from(flash == 0)),
                ));
            }
            for (count, mib, interval, versions, stripe) in kinds {
                text.push_str(&format!(
                    "[[application]]\ncount = {count}\ncheckpoint = \"{mib}MiB\"\ninterval = {interval}\n\
                     versions = {versions}\nmtbf = {{ exponential = 300 }}\nstripe = {stripe}\nstage_in = \"{}MiB\"\n",
                    mib / 3,
                ));
            }
            text
        })
}

/// What holds after every step; `most`: what each tier could have held after the step before.
pub(super) fn check(sim: &Sim<'_>, most: &mut Vec<u64>) -> Result<(), TestCaseError> {
    let mut held = vec![(0, 0, 0); sim.nodes.len()];
    let mut moving = 0;
    for id in sim.apps.iter().flat_map(|a| &a.parts) {
        let part = &sim.parts[*id];
        prop_assert!(part.evicted <= part.demoted && part.demoted <= part.written);
        prop_assert!(part.written <= part.size);
        let (dirty, clean, seconds) = &mut held[part.node as usize];
        *dirty += part.dirty();
        *clean += part.clean();
        if matches!(part.role, Role::Second | Role::Moved) {
            *seconds += part.dirty();
        }
        moving += i32::from(part.state == State::Moving) - i32::from(part.role == Role::Moved);
    }
    // What moves is where it was, and what arrives is nothing else's.
    prop_assert_eq!(moving, 0);
    let mut drains = 0.0;
    for (i, (node, held)) in sim.nodes.iter().zip(held).enumerate() {
        prop_assert_eq!(held, (node.dirty, node.clean, node.seconds));
        prop_assert!(node.capacity <= node.full);
        // Nothing comes while something is to leave, and else what there is room for.
        let before = most.get(i).copied().unwrap_or_default();
        prop_assert!(node.used() <= node.capacity.max(before));
        prop_assert!(node.used() <= node.most);
        drains += node.demotion_rate;
    }
    prop_assert!(drains <= sim.br_max() * (1.0 + 1e-9));
    *most = sim.nodes.iter().map(|n| n.capacity.max(n.used())).collect();
    Ok(())
}

/// One wait, which begins within a step. Its length was the difference of two times, and
/// its part of the sum was not.
#[test]
fn the_longest_wait_is_no_longer_than_all_waits() {
    let text = r#"seed = 494842983
duration = 1500
policy = "bbos"
[bb]
capacity = "1GiB"
bw_max = "900MB"
bw_min = "600MB"
br_max = "300MB"
br_min = "10MB"
[nodes]
local = true
replicas = 2
fsync = "memory"
memory_write = "3GB"
repair = 60
[pfs]
bandwidth = "372MB"
[plan]
period = 150
[arrivals]
pattern = "random"
[failures]
mode = "none"
[lending]
total = "32000MiB"
min = "0MiB"
max = "20000MiB"
max_share = 0.22909324877913956
job_every = 50
job_share = 0.4
job_time = { uniform = [5, 90] }
[[node]]
memory = "1GiB"
flash = "4GiB"
[[node]]
count = 1
memory = "1MiB"
flash = "1MiB"
link = "2123MB"
[[application]]
count = 3
checkpoint = "93MiB"
interval = 64
versions = 1
mtbf = { exponential = 300 }
stripe = 3
stage_in = "31MiB"
[[application]]
count = 1
checkpoint = "3197MiB"
interval = 37
versions = 1
mtbf = { exponential = 300 }
stripe = 3
stage_in = "1065MiB"
[[application]]
count = 3
checkpoint = "759MiB"
interval = 24
versions = 1
mtbf = { exponential = 300 }
stripe = 2
stage_in = "253MiB"
"#;
    let scenario = Scenario::parse(text, &[]).unwrap();
    let memory = run(&scenario, Options::default()).fleet.unwrap();
    let memory = memory.memory.unwrap();
    assert!(memory.job_waits > 0 && memory.job_wait_s >= memory.max_job_wait_s);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// No byte is lost or made while memory shrinks and grows, nothing comes into what is to be
    /// given back, and in the end all of it is.
    #[test]
    fn no_byte_is_lost_while_memory_shrinks_and_grows(text in any_lending()) {
        let scenario = Scenario::parse(&text, &[]).unwrap();
        let mut sim = Sim::new(&scenario, Options { records: true, samples: 10 });
        let (mut steps, mut most) = (0u64, Vec::new());
        while sim.step() {
            steps += 1;
            prop_assert!(steps < 1_000_000, "time stands still at {} s", sim.now_s);
            check(&sim, &mut most)?;
        }
        let run = sim.finish();
        let fleet = run.fleet.unwrap();
        prop_assert!(fleet.failures() > 0 || fleet.lost_bytes == 0);
        prop_assert!(fleet.nodes.iter().all(|n| n.peak_bytes <= n.capacity_bytes));
        let memory = fleet.memory.unwrap();
        prop_assert!(memory.job_wait_s >= memory.max_job_wait_s);
        prop_assert!((memory.job_waits == 0) == (memory.job_wait_s == 0.0));
    }

    #[test]
    fn a_seed_gives_the_same_run_of_borrowed_memory(text in any_lending()) {
        let scenario = Scenario::parse(&text, &[]).unwrap();
        let options = Options { records: true, samples: 3 };
        prop_assert_eq!(run(&scenario, options), run(&scenario, options));
    }

    /// Once nobody wants anything, what is there fits.
    #[test]
    fn all_that_is_owed_is_given_back(text in any_lending()) {
        let end = text.find("[[application]]").unwrap();
        let jobs = text.find("job").unwrap();
        let jobs_end = text.find("[[node]]").unwrap();
        let text = format!(
            "{}jobs = [[400, \"32000MiB\"]]\n{}[[application]]\ncheckpoint = \"6000MiB\"\nstripe = 4\ncount = 2\ninterval = 300\nruntime = 350\n",
            &text[..jobs], &text[jobs_end..end]
        ).replace("duration = 1500", "duration = 8000").replace("\nmin = ", "\nmin = 0 #");
        let scenario = Scenario::parse(&text, &[]).unwrap();
        let mut sim = Sim::new(&scenario, Options::default());
        while sim.step() {}
        for node in &sim.nodes {
            prop_assert_eq!(node.owed(), 0, "{} of {}", node.used(), node.capacity);
        }
    }
}
