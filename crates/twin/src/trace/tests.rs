use super::*;
use crate::scenario::Scenario;
use crate::sim::{Options, run};

const SWF: &str = include_str!("../../tests/data/evalys-easy.swf");
const SACCT: &str = include_str!("../../tests/data/slurm2sql-data1.txt");
const DARSHAN: &str = include_str!("../../tests/data/pydarshan-example.txt");

/// Read, made a scenario, parsed and run.
fn import(text: &str) -> (History, Scenario) {
    let source = Source::guess(text).unwrap();
    let history = source.read(text).unwrap();
    let assumptions = Assumptions {
        bytes_per_node: 100_000_000,
        ..Assumptions::default()
    };
    let toml = scenario(source, &history, &assumptions);
    let scenario = Scenario::parse(&toml, &[]).unwrap_or_else(|e| panic!("{e}\n{toml}"));
    (history, scenario)
}

#[test]
fn a_real_swf_log_becomes_a_scenario_that_runs() {
    let (history, scenario) = import(SWF);
    assert_eq!((history.jobs.len(), history.skipped), (800, 0));
    assert_eq!(history.jobs[1].name, "job-2050");
    assert_eq!(
        (history.jobs[0].runtime_s, history.jobs[3].nodes),
        (88.51, 1)
    );
    assert_eq!(scenario.application_count(), 800);
    let outcome = run(&scenario, Options::default()).outcome;
    assert!(outcome.checkpoints > 700, "{outcome:?}");
}

#[test]
fn real_sacct_output_becomes_a_scenario_that_runs() {
    let (history, scenario) = import(SACCT);
    let first = &history.jobs[0];
    assert_eq!((first.name.as_str(), first.nodes), ("job-43974388", 1));
    assert_eq!(first.runtime_s, (3 * 3600 + 33 * 60 + 25) as f64);
    // 0.31 MiB by the one task of its batch step.
    assert_eq!(first.written_bytes, Some((0.31 * 1024.0 * 1024.0) as u64));
    assert_eq!(history.skipped, 1, "one job of it never ended");
    let outcome = run(&scenario, Options::default()).outcome;
    assert!(outcome.checkpoints >= 3, "{outcome:?}");
}

#[test]
fn a_real_darshan_log_becomes_a_scenario_that_runs() {
    let (history, scenario) = import(DARSHAN);
    assert_eq!(history.jobs.len(), 1);
    let job = &history.jobs[0];
    assert_eq!(job.nodes, 2048);
    // One shared file of 2 TiB, and 280 bytes here and there.
    assert!(job.written_bytes.unwrap() >= 2_199_023_259_968);
    let outcome = run(&scenario, Options::default()).outcome;
    assert_eq!(outcome.checkpoints, 1);
}

#[test]
fn what_is_none_of_them_is_refused() {
    assert_eq!(Source::guess("hello\n"), Err(TraceError::Unknown));
    assert_eq!(Source::guess(""), Err(TraceError::Unknown));
    assert_eq!(
        Source::Swf.read("; nothing\n1 2 3\n"),
        Err(TraceError::Empty(1))
    );
    assert_eq!(
        Source::Sacct.read("JobID|Start\n1|Unknown\n"),
        Err(TraceError::Column("End"))
    );
    let error = Source::Darshan.read("# darshan log version: 3.41\n");
    assert!(matches!(error, Err(TraceError::Header(_))));
}

#[test]
fn names_cannot_break_the_scenario() {
    let job = Job {
        name: "a\"\n[bb]".into(),
        start_s: 5.0,
        runtime_s: 10.0,
        nodes: 0,
        written_bytes: Some(0),
        memory_bytes: None,
    };
    let history = History {
        jobs: vec![job],
        skipped: 0,
    };
    let toml = scenario(Source::Swf, &history, &Assumptions::default());
    assert!(Scenario::parse(&toml, &[]).is_ok(), "{toml}");
}
