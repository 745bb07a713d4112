//! What is coolest moves from memory to flash before memory is full.

use proptest::prelude::*;

use super::super::part::{Part, Role, State};
use super::super::{Options, Run, run};
use super::memory_tests::{any_lending, at, check, with};
use super::*;

const GIB: u64 = 1 << 30;

/// One node with 32 GiB of memory, and one application that has written 27 GiB in 9 parts within
/// the first seconds: a part beyond the four fifths that may be in use. The PFS takes nothing to
/// speak of.
const FULL: &str = r#"
duration = 400
policy = "maxbw"
placement = "coolness"
[bb]
capacity = "200GiB"
bw_max = "1GiB/s"
bw_min = "1GiB/s"
br_max = "1GiB/s"
br_min = "1GiB/s"
[nodes]
memory = "32GiB"
memory_write = "30GiB/s"
fsync = "memory"
[pfs]
bandwidth = 1
[plan]
period = 200
[arrivals]
pattern = "low"
[[application]]
checkpoint = "27GiB"
stripe = 9
interval = 1000
"#;

/// Of the parts on a tier.
fn parts(sim: &Sim<'_>, node: usize) -> Vec<Part> {
    let all = sim.apps.iter().flat_map(|a| &a.parts);
    let parts = all.map(|id| sim.parts[*id]);
    parts.filter(|part| part.node as usize == node).collect()
}

fn used(scenario: &Scenario, at_s: f64) -> [u64; 2] {
    let mut sim = at(scenario, at_s);
    sim.now_s = at_s;
    sim.advance_all();
    [sim.nodes[0].used(), sim.nodes[1].used()]
}

#[test]
fn as_much_moves_as_has_to_and_the_coolest_first() {
    let scenario = with(FULL, &[]);
    // A part takes flash 3 s.
    let [memory, flash] = used(&scenario, 2.0);
    assert_eq!(memory, 27 * GIB, "it is there until all of it has moved");
    assert!((GIB..3 * GIB).contains(&flash), "{flash}");
    for at_s in [10.0, 390.0] {
        assert_eq!(used(&scenario, at_s), [24 * GIB, 3 * GIB]);
    }
    let sim = at(&scenario, 10.0);
    let moved = parts(&sim, 1);
    assert_eq!(moved.len(), 1);
    assert!(moved[0].role == Role::First && moved[0].dirty() > 0);
    let closed = |part: &Part| part.closed_s;
    let first = parts(&sim, 0).iter().map(closed).fold(f64::MAX, f64::min);
    assert!(closed(&moved[0]) <= first);
    let less = with(FULL, &[("nodes.normal_out", "0.1")]);
    assert_eq!(used(&less, 10.0), [27 * GIB, 0], "more than that is free");
    let more = with(FULL, &[("nodes.normal_out", "0.5")]);
    assert_eq!(used(&more, 60.0), [15 * GIB, 12 * GIB]);
}

#[test]
fn under_other_placements_and_with_room_nothing_moves() {
    let outcome = |set: &[(&str, &str)]| {
        let options = Options {
            records: true,
            samples: 40,
        };
        run(&with(FULL, set), options)
    };
    let moved = |run: &Run| run.samples.iter().any(|s| s.dirty_bytes > 27 * GIB + 1);
    assert!(moved(&outcome(&[("nodes.write", "100MiB/s")])));
    for placement in ["bbos", "fifo", "lru"] {
        let slow = [("placement", placement), ("nodes.write", "100MiB/s")];
        assert!(!moved(&outcome(&slow)), "{placement}");
    }
    let room = |placement| outcome(&[("placement", placement), ("nodes.normal_out", "0.1")]);
    assert_eq!(room("coolness"), room("fifo"));
}

#[test]
fn what_is_clean_stays_clean_and_is_found_there_when_jobs_have_come() {
    let lent = [
        ("pfs.bandwidth", "30GiB/s"),
        ("bb.br_max", "30GiB/s"),
        ("bb.bw_min", "1GiB/s"),
        ("lending.total", "64GiB"),
        ("lending.jobs", "100=60GiB"),
    ];
    let with_out = |normal_out: &'static str, forced_out: &'static str| {
        let mut set = lent.to_vec();
        set.push(("nodes.normal_out", normal_out));
        set.push(("nodes.forced_out", forced_out));
        with(FULL, &set)
    };
    let (most, none) = (with_out("0.99", "0.5"), with_out("0.1", "0.05"));
    for (scenario, moved) in [(&most, 9), (&none, 0)] {
        let sim = at(scenario, 200.0);
        let there = parts(&sim, 1);
        assert_eq!(there.len(), moved);
        assert!(
            there
                .iter()
                .all(|p| p.state == State::Clean && p.is_whole())
        );
        assert_eq!(sim.nodes[1].clean, moved as u64 * 3 * GIB);
        assert!(parts(&sim, 0).len() <= 1, "jobs have the memory");
    }
    let memory = |scenario: &Scenario| {
        let run = run(scenario, Options::default());
        run.fleet.unwrap().memory.unwrap()
    };
    assert_eq!(memory(&most).moved_to_flash_bytes, 27 * GIB);
    assert_eq!(memory(&most).dropped_bytes, 0);
    assert!(memory(&none).dropped_bytes >= 20 * GIB);
}

#[test]
fn an_access_ends_the_move_of_what_is_read() {
    let scenario = with(FULL, &[]);
    let mut sim = at(&scenario, 2.0);
    let (id, _) = sim.nodes[0].moving.unwrap();
    sim.fail(0, false);
    assert_eq!(sim.nodes[0].moving, None);
    assert_eq!(sim.parts[id].state, State::Dirty);
    sim.settle();
    // The whole version is read, and normal out spares what is open.
    assert_eq!(sim.nodes[0].moving, None);
    assert_eq!((sim.nodes[0].used(), sim.nodes[1].used()), (27 * GIB, 0));
    while sim.apps[0].phase.is_some() {
        sim.step();
    }
    while sim.now_s < 20.0 && sim.step() {}
    assert_eq!(sim.nodes[1].used(), 3 * GIB, "it moves once it is read");
}

#[test]
fn where_files_are_forced_out_what_is_read_moves_too() {
    let scenario = with(FULL, &[("nodes.forced_out", "0.2")]);
    let mut sim = at(&scenario, 2.0);
    sim.fail(0, false);
    sim.settle();
    assert!(sim.nodes[0].moving.is_some());
}

#[test]
fn what_flash_cannot_take_is_dropped_or_drained() {
    // A part of 3 GiB would leave less than the twentieth of 3.1 GiB.
    let small = ("nodes.flash", "3.1GiB");
    let fast = [("pfs.bandwidth", "30GiB/s"), ("bb.br_max", "30GiB/s")];
    let dropped = with(FULL, &[small, fast[0], fast[1]]);
    assert_eq!(used(&dropped, 100.0), [24 * GIB, 0]);
    // Nothing is drained before a pause of an hour, unless in a hurry.
    let hurry = |forced_out: &str| {
        let set = [
            small,
            ("bb.idle", "1h"),
            ("pfs.bandwidth", "1GiB/s"),
            ("nodes.forced_out", forced_out),
        ];
        let scenario = with(FULL, &set);
        let mut sim = at(&scenario, 10.0);
        sim.now_s = 10.0;
        sim.advance_all();
        sim.nodes[0].drained
    };
    assert_eq!(hurry("0.05"), 0);
    assert!(hurry("0.2") >= 3 * GIB, "{}", hurry("0.2"));
}

#[test]
fn a_writer_that_needs_the_space_of_what_moves_gets_it() {
    let application = "checkpoint = \"27GiB\"\nstripe = 9\ninterval = 1000\n";
    assert!(FULL.contains(application));
    // The second version does not fit on flash, which takes hours for the first one, and needs
    // nearly all of memory.
    let text = FULL.replace(
        application,
        "checkpoint = \"31GiB\"\ntimes = [0, 100]\nsizes = [\"31GiB\", \"31.6GiB\"]\n",
    );
    let set = [
        ("pfs.bandwidth", "30GiB/s"),
        ("bb.br_max", "30GiB/s"),
        ("bb.bw_max", "2MiB/s"),
        ("bb.bw_min", "1MiB/s"),
        ("nodes.flash", "31.5GiB"),
        ("nodes.forced_out", "0"),
        ("nodes.normal_out", "0.01"),
    ];
    let scenario = with(&text, &set);
    assert_eq!(
        at(&scenario, 99.0).nodes[0].moving,
        None,
        "it is clean, and stays"
    );
    let mut sim = at(&scenario, 100.0);
    assert!(sim.nodes[0].moving.is_some());
    while sim.apps[0].phase.is_some() && sim.step() {}
    assert!(sim.now_s < 102.0, "{}", sim.now_s);
    assert_eq!(parts(&sim, 1).len(), 0);
}

/// Any burst buffer with memory, borrowed or not, from which files move down.
fn any_downward() -> impl Strategy<Value = String> {
    let fraction = || 0.0..=1.0f64;
    (any_lending(), any::<bool>(), fraction(), fraction()).prop_map(|(text, is_lent, a, b)| {
        let out = format!(
            "[nodes]\nforced_out = {}\nnormal_out = {}\n",
            a.min(b),
            a.max(b)
        );
        let text = text
            .replace("policy = ", "placement = \"coolness\"\npolicy = ")
            .replace("[nodes]\n", &out);
        let (begin, end) = (
            text.find("[lending]").unwrap(),
            text.find("[[node]]").unwrap(),
        );
        match is_lent {
            true => text,
            false => format!("{}{}", &text[..begin], &text[end..]),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// No byte is lost or made while files move down, and time goes on.
    #[test]
    fn no_byte_is_lost_while_files_move_down(text in any_downward()) {
        let scenario = Scenario::parse(&text, &[]).unwrap();
        let mut sim = Sim::new(&scenario, Options { records: true, samples: 10 });
        let (mut steps, mut most) = (0u64, Vec::new());
        while sim.step() {
            steps += 1;
            prop_assert!(steps < 1_000_000, "time stands still at {} s", sim.now_s);
            check(&sim, &mut most)?;
            for (node, n) in sim.nodes.iter().enumerate() {
                let Some((id, copy)) = n.moving else { continue };
                let (part, copy) = (&sim.parts[id], &sim.parts[copy]);
                prop_assert_eq!((part.node as usize, part.state), (node, State::Moving));
                prop_assert_eq!((copy.role, copy.size), (Role::Moved, part.resident()));
            }
        }
        let run = sim.finish();
        let fleet = run.fleet.unwrap();
        prop_assert!(fleet.failures() > 0 || fleet.lost_bytes == 0);
        prop_assert!(fleet.nodes.iter().all(|n| n.peak_bytes <= n.capacity_bytes));
    }

    #[test]
    fn a_seed_gives_the_same_run_of_files_that_move_down(text in any_downward()) {
        let scenario = Scenario::parse(&text, &[]).unwrap();
        let options = Options { records: true, samples: 3 };
        prop_assert_eq!(run(&scenario, options), run(&scenario, options));
    }
}
