//! Every target for some thousand inputs, always the same, and on every input that was wrong once.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_fuzz::TARGETS;
use forebay_fuzz::judge::{Fault, judge, processor_time};
use forebay_fuzz::memory::Counting;
use forebay_fuzz::run::{Run, regressions, save, shown};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const INPUTS: usize = 4000;
const SEED: u64 = 1;

#[test]
fn every_target_takes_some_thousand_inputs() {
    let found = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let mut wrong = Vec::new();
    for target in TARGETS {
        let mut run = Run::new(target, SEED);
        for _ in 0..INPUTS / target.cost {
            let input = run.next_input();
            if let Err(fault) = run.judge(&input) {
                let path = save(found, target.name, &input).expect("save");
                wrong.push(format!(
                    "{} {fault}\n{}\n{}",
                    target.name,
                    path.display(),
                    shown(&input)
                ));
                break;
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_seed_is_taken_and_says_something() {
    for target in TARGETS {
        for seed in (target.seeds)() {
            let noted = judge(target, &seed)
                .unwrap_or_else(|fault| panic!("{}: {} {fault}", target.name, shown(&seed)));
            assert!(
                !noted.is_empty(),
                "{}: nothing noted of {}",
                target.name,
                shown(&seed)
            );
        }
    }
}

#[test]
fn what_was_wrong_once_is_right() {
    let mut count = 0;
    for target in TARGETS {
        for (path, input) in regressions(target.name).expect("folder") {
            count += 1;
            if let Err(fault) = judge(target, &input) {
                panic!("{}: {fault}", path.display());
            }
        }
    }
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions");
    let folders = std::fs::read_dir(all).map_or(0, |folders| {
        folders.flatten().map(|f| f.path()).map(files).sum()
    });
    assert_eq!(
        count, folders,
        "every folder of regressions has the name of a target"
    );
}

fn files(folder: PathBuf) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

/// The judge itself: what it is there to find is found.
#[test]
fn panics_memory_and_time_are_found() {
    let target = |run| forebay_fuzz::Target {
        run,
        ..forebay_fuzz::TARGETS[0]
    };
    let panics = target(|_| panic!("here"));
    assert!(matches!(judge(&panics, b""), Err(Fault::Panic(words)) if words.contains("here")));
    let hoards = target(|input| drop(vec![input.len() as u8; 64 << 20]));
    assert!(matches!(judge(&hoards, b"x"), Err(Fault::Memory(held, _)) if held >= 64 << 20));
    let idles = target(|_| {
        let begun = processor_time();
        while processor_time() - begun < Duration::from_millis(1000) {}
    });
    assert!(matches!(judge(&idles, b""), Err(Fault::Time(..))));
    assert!(judge(&target(|_| ()), b"").is_ok());
}
