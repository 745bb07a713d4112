//! Standard Workload Format: 18 numbers a line, `;` begins a comment, -1 means unknown.

use super::{History, Job};

const FIELDS: usize = 18;

pub(super) fn read(text: &str) -> History {
    let mut history = History::default();
    for line in text.lines() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(';') {
            continue;
        }
        match job(line) {
            Some(job) => history.jobs.push(job),
            None => history.skipped += 1,
        }
    }
    history
}

/// Fields, from 1: 1 number, 2 submitted, 3 wait, 4 run time, 5 processors, 7 memory per processor
/// in KiB.
fn job(line: &str) -> Option<Job> {
    let fields: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
    let f = fields.ok().filter(|f| f.len() == FIELDS)?;
    let known = |value: f64| (value.is_finite() && value > 0.0).then_some(value);
    let (runtime_s, processors) = (known(f[3])?, known(f[4]).or(known(f[7]))?);
    let memory = known(f[6]).map(|kib| (kib * 1024.0 * processors) as u64);
    Some(Job {
        name: format!("job-{}", f[0] as i64),
        start_s: f[1] + f[2].max(0.0),
        runtime_s,
        nodes: processors as u32,
        written_bytes: None,
        memory_bytes: memory,
    })
}
