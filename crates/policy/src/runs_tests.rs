//! Programs that repeat, ones that do not, and what guesses about them are worth.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const FILE_BYTES: u64 = 1 << 20;
const TICK_S: f64 = 0.5;

/// A burst buffer without limits whose copies leave once they were read.
#[derive(Default)]
struct Machine {
    runs: Runs<u32>,
    now_s: f64,
    /// Guessed and unread: whose guess it is.
    here: HashMap<(u32, Vec<u8>), u64>,
    hits: u64,
    reads: u64,
    wasted: u64,
    largest_guess: u64,
}

impl Machine {
    fn until(&mut self, at_s: f64) {
        while self.now_s + TICK_S <= at_s {
            self.now_s += TICK_S;
            for step in self.runs.tend(self.now_s) {
                self.take(step);
            }
        }
    }

    fn take(&mut self, step: Step<u32>) {
        match step {
            Step::Bring {
                id, folder, names, ..
            } => {
                self.largest_guess = self.largest_guess.max(names.len() as u64);
                for name in names {
                    if self.here.insert((folder, name), id).is_none() {
                        self.runs.brought(id, FILE_BYTES);
                    }
                }
            }
            Step::End { id } => {
                let before = self.here.len();
                self.here.retain(|_, whose| *whose != id);
                let files = (before - self.here.len()) as u64;
                self.wasted += files;
                self.runs.wasted(files * FILE_BYTES);
            }
        }
    }

    fn read(&mut self, folder: u32, file: u64, at_s: f64) {
        self.until(at_s);
        let name = file.to_string().into_bytes();
        self.reads += 1;
        if let Some(id) = self.here.remove(&(folder, name.clone())) {
            self.hits += 1;
            self.runs.hit(id, FILE_BYTES);
        }
        self.runs.opened(folder, &name, FILE_BYTES, at_s);
    }

    /// So many files, ten a second.
    fn run(&mut self, folder: u32, files: u64, at_s: f64) {
        for file in 0..files {
            self.read(folder, file, at_s + 0.1 * file as f64);
        }
    }

    /// What was there of each run.
    fn hits_of(&mut self, files: u64, starts_s: &[f64]) -> Vec<u64> {
        let starts = starts_s.iter();
        let hits = starts.map(|at_s| {
            let before = self.hits;
            self.run(1, files, *at_s);
            self.hits - before
        });
        hits.collect()
    }

    fn period_s(&self) -> Option<f64> {
        self.runs.expected(self.now_s).first().map(|e| e.period_s)
    }
}

#[test]
fn the_third_run_is_there_before_it_starts_and_so_are_all_after_it() {
    for period_s in [3.0, 20.0, 60.0, 3600.0, 86_400.0] {
        let mut machine = Machine::default();
        let starts: Vec<f64> = (1..7).map(|n| n as f64 * period_s).collect();
        assert_eq!(machine.hits_of(10, &starts), [0, 0, 10, 10, 10, 10]);
        assert_eq!(machine.wasted, 0);
        assert_eq!(machine.period_s(), Some(period_s));
    }
}

#[test]
fn a_job_of_many_folders_is_expected_as_a_whole() {
    let mut machine = Machine::default();
    for n in 1..4 {
        (0..10).for_each(|folder| machine.run(folder, 4, 60.0 * n as f64 + 0.4 * folder as f64));
    }
    assert_eq!((machine.hits, machine.wasted), (40, 0));
}

#[test]
fn who_looks_at_a_file_in_between_disturbs_nothing() {
    let mut machine = Machine::default();
    for n in 1..6 {
        machine.run(1, 10, 60.0 * n as f64);
        machine.read(1, 3, 60.0 * n as f64 + 13.0 + 5.0 * n as f64);
        machine.read(1, 77 + n, 60.0 * n as f64 + 50.0);
    }
    // The file that is looked at every 65 s is learned by itself.
    assert!(
        machine.hits >= 30 && machine.wasted == 0,
        "{}",
        machine.hits
    );
}

#[test]
fn files_that_are_new_each_time_are_not_expected_again() {
    let mut machine = Machine::default();
    for n in 1..12u64 {
        // Nine of ten are those of before, as of who reads the last days.
        (0..10).for_each(|file| machine.read(1, n + file, 60.0 * n as f64));
    }
    assert_eq!((machine.hits, machine.largest_guess), (9 * 8, 9));
    let mut machine = Machine::default();
    for n in 1..12u64 {
        (0..10).for_each(|file| machine.read(1, 100 * n + file, 60.0 * n as f64));
    }
    assert_eq!((machine.hits, machine.wasted), (0, 0));
}

#[test]
fn a_run_that_does_not_come_is_given_up_and_earns_its_confidence_again() {
    let mut machine = Machine::default();
    // The fifth one is left out.
    let starts: Vec<f64> = [1, 2, 3, 4, 6, 7, 8, 9].map(|n| n as f64 * 60.0).to_vec();
    let hits = machine.hits_of(10, &starts[..4]);
    assert_eq!(hits, [0, 0, 10, 10]);
    machine.until(5.4 * 60.0);
    assert_eq!(machine.wasted, 0, "it may be late");
    machine.until(5.6 * 60.0);
    assert_eq!(machine.wasted, 10);
    // The budget: of twenty that were read four may be in vain.
    let hits = machine.hits_of(10, &starts[4..]);
    assert_eq!(hits, [0, 0, 0, 0]);
    let later: Vec<f64> = (10..16).map(|n| n as f64 * 60.0).collect();
    let hits = machine.hits_of(10, &later);
    assert_eq!(hits.last(), Some(&10), "{hits:?}");
    assert_eq!(machine.wasted, 10);
}

#[test]
fn a_long_life_pays_for_one_run_that_was_left_out_at_once() {
    let mut machine = Machine::default();
    let starts: Vec<f64> = (1..40).map(|n| n as f64 * 60.0).collect();
    machine.hits_of(10, &starts);
    let hits = machine.hits_of(10, &[41.0 * 60.0, 42.0 * 60.0, 43.0 * 60.0]);
    assert_eq!((hits, machine.wasted), (vec![0, 0, 10], 10));
    // Another period is learned.
    let starts: Vec<f64> = (1..7).map(|n| 43.0 * 60.0 + n as f64 * 30.0).collect();
    let hits = machine.hits_of(10, &starts);
    assert_eq!(hits[3..], [10, 10, 10], "{hits:?}");
}

#[test]
fn a_late_start_changes_no_period() {
    let mut machine = Machine::default();
    let starts = [60.0, 120.0, 180.0, 240.0, 325.0, 385.0, 445.0];
    let hits = machine.hits_of(10, &starts);
    assert_eq!(hits, [0, 0, 10, 10, 10, 0, 10]);
    assert_eq!((machine.period_s(), machine.wasted), (Some(60.0), 0));
}

#[test]
fn a_run_of_large_files_begins_to_come_early_enough_for_its_size() {
    let mut runs: Runs<u32> = Runs::new();
    // Ten files of 100 MB: 10 s at what is assumed, 20 s at what is measured then; twice that, and
    // a sixteenth of the period.
    let read = |runs: &mut Runs<u32>, at_s: f64| {
        (0..10u32).for_each(|n| runs.opened(1, &n.to_le_bytes(), 100_000_000, at_s));
    };
    let begin = |runs: &mut Runs<u32>, from_s: f64| {
        let ticks = (0..2000).map(|n| from_s + 0.5 * n as f64);
        let mut begun = ticks.filter(|at_s| {
            let is_bring = |step: &Step<u32>| matches!(step, Step::Bring { .. });
            runs.tend(*at_s).iter().any(is_bring)
        });
        begun.next().expect("guessed")
    };
    read(&mut runs, 0.0);
    runs.tend(100.0);
    read(&mut runs, 300.0);
    assert!((561.0..562.0).contains(&begin(&mut runs, 350.0)));
    runs.staged(1_000_000_000, 20.0);
    read(&mut runs, 600.0);
    assert!((841.0..842.0).contains(&begin(&mut runs, 650.0)));
    (0..20).for_each(|_| runs.staged(1_000_000_000, 2000.0));
    read(&mut runs, 900.0);
    assert!((1049.0..1051.0).contains(&begin(&mut runs, 950.0)), "half");
}

#[test]
fn a_folder_that_is_gone_ends_its_guess() {
    let mut machine = Machine::default();
    machine.hits_of(10, &[60.0, 120.0]);
    machine.until(179.0);
    assert_eq!(machine.here.len(), 10);
    machine.runs.forget(1);
    machine.until(180.0);
    assert_eq!((machine.here.len(), machine.wasted), (0, 10));
    assert_eq!(machine.runs.size(), (0, 0));
}

#[test]
fn what_repeats_outlives_a_walk_through_everything() {
    let mut machine = Machine::default();
    machine.hits_of(10, &[60.0, 120.0]);
    for folder in 100..2000 {
        machine.read(folder, 1, 121.5 + 0.01 * folder as f64);
    }
    assert_eq!(machine.runs.size().1, FOLDERS_MAX);
    assert_eq!(machine.hits_of(10, &[180.0]), [10]);
}

#[test]
fn what_was_not_opened_for_long_is_wanted_less_but_for_checkpoints() {
    let candidate = |accessed_at_s| Candidate {
        id: 1,
        application: 1,
        version: None,
        outdated: false,
        mtbf_s: 1e5,
        arrived_at_s: 0.0,
        accessed_at_s,
        closed_at_s: accessed_at_s,
        closed_to_open_s: 1.0,
        open_to_close_s: 1.0,
        bytes: 1,
        in_use: false,
    };
    let now_s = 10_000.0;
    let is_less =
        |candidate: &Candidate, period_s| is_wanted_less(candidate, true, period_s, now_s);
    assert!(is_less(&candidate(9_000.0), 60.0) && !is_less(&candidate(9_000.0), 600.0));
    assert!(!is_less(&candidate(9_500.0), 60.0), "it may be a list's");
    let mut version = candidate(0.0);
    version.version = Some(7);
    assert!(!is_less(&version, 60.0));
    version.outdated = true;
    assert!(is_less(&version, 60.0));
    version.in_use = true;
    assert!(!is_less(&version, 60.0));
    // The number in a name is no version for sure.
    let mut image = candidate(9_990.0);
    (image.version, image.outdated) = (Some(7), true);
    assert!(!is_wanted_less(&image, false, 60.0, now_s), "just read");
    (image.accessed_at_s, image.closed_at_s) = (9_000.0, 9_000.0);
    assert!(is_wanted_less(&image, false, 60.0, now_s));
    let mut long = candidate(1_000.0);
    long.closed_at_s = 9_999.0;
    assert!(!is_less(&long, 60.0), "it was open until now");
}

#[test]
fn sparse_files_of_any_size_are_summed() {
    let mut runs = Runs::new();
    for at_s in [60.0, 120.0] {
        for name in [&b"a"[..], b"b", b"c"] {
            runs.opened(1, name, i64::MAX as u64, at_s);
        }
        // Nobody knows when so much has been read: the next run is what ends it.
    }
    runs.opened(1, b"a", i64::MAX as u64, 180.0);
    runs.tend(181.0);
    assert_eq!(runs.expected(181.0)[0].bytes, i64::MAX as u64);
    for name in [&b"b"[..], b"c"] {
        runs.opened(1, name, i64::MAX as u64, 181.0);
    }
    (0..240).for_each(|n| drop(runs.tend(182.0 + f64::from(n) / 2.0)));
    assert_eq!(runs.expected(200.0)[0].bytes, u64::MAX);
    (0..3).for_each(|_| runs.brought(1, i64::MAX as u64));
    assert_eq!(runs.worth().guessed_bytes, u64::MAX);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_jitter_within_a_twentieth_finds_the_period(
        period_s in 10.0..5000.0f64,
        jitter in proptest::collection::vec(-0.05..0.05f64, 12),
        files in 1u64..30,
    ) {
        let mut machine = Machine::default();
        let starts: Vec<f64> = (1..).zip(&jitter).map(|(n, off)| period_s * (n as f64 + off)).collect();
        let hits = machine.hits_of(files, &starts);
        let found = machine.period_s().expect("a period");
        prop_assert!((found / period_s - 1.0).abs() <= 0.1, "{found}");
        // One that is earlier than any before may come before what was guessed for it.
        let there = hits[2..].iter().filter(|count| **count == files).count();
        prop_assert!(there >= 8, "{hits:?}");
        prop_assert_eq!(machine.wasted, 0);
    }

    #[test]
    fn what_never_comes_again_is_never_guessed(
        times in proptest::collection::vec(0.0..50.0f64, 1..300),
    ) {
        let mut machine = Machine::default();
        let mut at_s = 0.0;
        for (n, pause_s) in times.into_iter().enumerate() {
            at_s += pause_s;
            machine.read(n as u32 % 7, n as u64, at_s);
        }
        machine.until(at_s + 300.0);
        prop_assert_eq!(machine.runs.worth(), Worth::default());
    }

    #[test]
    fn waste_is_a_fifth_and_one_run_whatever_is_read(
        history in proptest::collection::vec((0.0..1.0f64, 1u64..20, any::<bool>()), 1..60),
        span_s in 5.0..300.0f64,
    ) {
        let mut machine = Machine::default();
        let mut at_s = 0.0;
        for (pause, files, repeats) in history {
            at_s += 3.0 + if repeats { span_s } else { pause * 2.0 * span_s };
            machine.run(1, files, at_s);
            at_s = at_s.max(machine.now_s);
        }
        // No gap was longer than all of it.
        machine.until(3.0 * at_s + 100.0);
        let worth = machine.runs.worth();
        prop_assert!(machine.here.is_empty());
        prop_assert_eq!(worth.guessed_bytes, worth.hit_bytes + worth.wasted_bytes);
        // Those of one folder may be expected side by side.
        let most = (worth.hit_bytes + worth.foretold_bytes) / 5
            + PATTERNS_MAX as u64 * machine.largest_guess * FILE_BYTES;
        prop_assert!(worth.wasted_bytes <= most, "{:?}", worth);
    }

    #[test]
    fn who_reads_the_same_at_random_has_little_brought_in_vain(
        pauses in proptest::collection::vec(0.0001..1.0f64, 300),
    ) {
        let mut machine = Machine::default();
        let mut at_s = 0.0;
        for uniform in pauses {
            at_s += 5.0 - 100.0 * uniform.ln();
            machine.run(1, 10, at_s);
        }
        // Of 3000 that were read.
        prop_assert!(machine.wasted <= machine.hits / 5 + 60, "{} {}", machine.wasted, machine.hits);
    }

    #[test]
    fn what_is_remembered_is_bounded(
        history in proptest::collection::vec((0u32..600, 0u64..100_000, 0.0..3.0f64), 1..400),
        burst in 1u64..2000,
    ) {
        let mut runs: Runs<u32> = Runs::new();
        let mut at_s = 0.0;
        for (folder, first, pause_s) in history {
            at_s += pause_s;
            for file in 0..burst {
                runs.opened(folder, &(first + file).to_le_bytes(), 1, at_s);
            }
            let (files, folders) = runs.size();
            prop_assert!(files <= FILES_OF_ALL_MAX && folders <= FOLDERS_MAX);
        }
        let counted: usize = runs.folders.values().map(Folder::files).sum();
        prop_assert_eq!(counted, runs.size().0);
        runs.tend(at_s + 1e9);
        prop_assert_eq!(runs.size(), (0, 0));
    }
}
