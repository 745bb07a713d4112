//! Runs over a restart.

use super::*;

/// The same server after a restart, 10 s after the second run of a minute.
fn started_again(program: &Program) -> Arc<Ahead> {
    let next = Arc::new(Ahead::new(&program.lab.rooms().files));
    next.restore_runs_at(ZERO_S + 130.0, 0.5);
    next
}

const ZERO_S: f64 = 1.7e9;

fn notes(program: &Program) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    let ns = program.lab.rooms().base.ns();
    let read = ns.visit_notes(b"r/", None, &mut |key, value| {
        all.push((key.to_vec(), value.to_vec()));
        true
    });
    read.expect("read");
    all
}

#[test]
fn a_run_that_repeats_is_known_after_a_restart() {
    let mut program = Program::new(Lab::new());
    program.run(60.0);
    program.run(120.0);
    program.until(131.0);
    program.ahead().save_runs_at(ZERO_S);
    assert!(notes(&program).is_empty(), "what is on record is not known");
    program.ahead().restore_runs();
    program.ahead().save_runs_at(ZERO_S);
    assert_eq!(notes(&program).len(), 1);
    let next = started_again(&program);
    let runs = next.runs_status_at(0.5).next;
    assert_eq!((runs.len(), &runs[0].path[..]), (1, &b"d"[..]));
    assert_eq!((runs[0].period_ms, runs[0].next_in_ms), (60_000, 49_500));
    next.tend_runs(48.5);
    assert_eq!(next.under_way.lock().len(), 1);
    program.wait_for("all are here", |program| {
        next.bring_some();
        program.here().len() as u64 == FILES
    });
    // Its folder is another one by now.
    std::fs::rename(program.lab.pfs("d"), program.lab.pfs("e")).expect("rename");
    std::fs::create_dir(program.lab.pfs("d")).expect("mkdir");
    let other = started_again(&program);
    assert!(other.runs_status_at(0.5).next.is_empty());
    other.save_runs_at(ZERO_S);
    assert!(notes(&program).is_empty());
}

#[test]
fn a_record_of_runs_that_is_damaged_is_none_and_goes() {
    let mut program = Program::new(Lab::new());
    program.ahead().restore_runs();
    program.run(60.0);
    program.run(120.0);
    program.until(131.0);
    program.ahead().save_runs_at(ZERO_S);
    let (key, mut value) = notes(&program).remove(0);
    let middle = value.len() / 2;
    value[middle] ^= 1;
    let ns = program.lab.rooms().base.ns();
    let junk = (b"r/junk".to_vec(), Some(vec![1]));
    ns.write_notes(&[(key, Some(value)), junk]).expect("write");
    let next = started_again(&program);
    assert!(next.runs_status_at(0.5).next.is_empty());
    next.save_runs_at(ZERO_S);
    assert!(notes(&program).is_empty());
}
