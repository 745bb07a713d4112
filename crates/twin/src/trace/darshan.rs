//! The text of `darshan-parser`: a header of `# key: value`, then counters, one a line, separated
//! by tabs. Several logs may follow each other.

use super::{History, Job, TraceError};

pub(super) fn read(text: &str) -> Result<History, TraceError> {
    let mut history = History::default();
    let mut logs: Vec<Vec<&str>> = Vec::new();
    for line in text.lines() {
        if line.starts_with("# darshan log version") {
            logs.push(Vec::new());
        }
        if let Some(log) = logs.last_mut() {
            log.push(line);
        }
    }
    for log in logs {
        match job(&log)? {
            Some(job) => history.jobs.push(job),
            None => history.skipped += 1,
        }
    }
    Ok(history)
}

fn job(log: &[&str]) -> Result<Option<Job>, TraceError> {
    let header = |key: &'static str| {
        let prefix = format!("# {key}:");
        let found = log.iter().find_map(|line| line.strip_prefix(&prefix));
        found.map(str::trim).ok_or(TraceError::Header(key))
    };
    let number = |key| -> Result<f64, TraceError> {
        header(key)?.parse().map_err(|_| TraceError::Header(key))
    };
    let (start_s, processes) = (number("start_time")?, number("nprocs")?);
    let runtime_s = number("run time")?;
    let mut written: u64 = 0;
    for line in log.iter().filter(|line| !line.starts_with('#')) {
        let mut cells = line.split('\t');
        let (counter, value) = (cells.nth(3), cells.next());
        // MPI-IO and HDF5 write through these two; counting them as well would count twice.
        if let (Some("POSIX_BYTES_WRITTEN" | "STDIO_BYTES_WRITTEN"), Some(value)) = (counter, value)
        {
            written = written.saturating_add(
                value
                    .parse::<f64>()
                    .map_or(0, |bytes| bytes.max(0.0) as u64),
            );
        }
    }
    Ok((runtime_s > 0.0).then(|| Job {
        name: format!("darshan-{}", header("jobid").unwrap_or("job")),
        start_s,
        runtime_s,
        nodes: processes.max(1.0) as u32,
        written_bytes: Some(written).filter(|bytes| *bytes > 0),
        memory_bytes: None,
    }))
}
