//! `sacct --parsable2`: a header, one line a job and one a step, columns by name in any order.

use std::collections::HashMap;

use forebay_types::parse_size;

use super::{History, Job, TraceError};

pub(super) fn read(text: &str) -> Result<History, TraceError> {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let header: Vec<&str> = lines
        .next()
        .unwrap_or_default()
        .split('|')
        .map(str::trim)
        .collect();
    let column = |name: &'static str| header.iter().position(|h| *h == name);
    let need = |name: &'static str| column(name).ok_or(TraceError::Column(name));
    let (id, start, end) = (need("JobID")?, need("Start")?, need("End")?);
    let nodes = column("NNodes").or(column("AllocNodes"));
    let (tasks, wrote) = (column("NTasks"), column("AveDiskWrite"));
    let (mut history, mut place) = (History::default(), HashMap::new());
    for line in lines {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let cell = |column: Option<usize>| column.and_then(|c| cells.get(c)).copied().unwrap_or("");
        let name = cell(Some(id));
        if let Some((job, _)) = name.split_once('.') {
            let count = cell(tasks).parse::<u64>().unwrap_or(1);
            if let (Some(place), Ok(each)) = (place.get(job), parse_size(cell(wrote))) {
                let job: &mut Job = &mut history.jobs[*place];
                let total = job
                    .written_bytes
                    .unwrap_or(0)
                    .saturating_add(each.saturating_mul(count));
                job.written_bytes = Some(total).filter(|bytes| *bytes > 0);
            }
            continue;
        }
        let times = (seconds(cell(Some(start))), seconds(cell(Some(end))));
        match times {
            (Some(start_s), Some(end_s)) if end_s > start_s => {
                place.insert(name.to_owned(), history.jobs.len());
                history.jobs.push(Job {
                    name: format!("job-{name}"),
                    start_s,
                    runtime_s: end_s - start_s,
                    nodes: cell(nodes).parse().unwrap_or(1),
                    written_bytes: None,
                    memory_bytes: None,
                });
            }
            _ => history.skipped += 1,
        }
    }
    Ok(history)
}

/// `2019-07-31T22:29:14` in seconds; `None` for `Unknown` and everything else. Times are local, so
/// a change of the clock within a log shows as a jump.
fn seconds(text: &str) -> Option<f64> {
    let (date, time) = text.split_once('T')?;
    let numbers = |text: &str, by: char| -> Option<[i64; 3]> {
        let parts: Option<Vec<i64>> = text.split(by).map(|p| p.parse().ok()).collect();
        parts?.try_into().ok()
    };
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(time, ':')?;
    let is_date =
        (0..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    let is_time =
        (0..24).contains(&hour) && (0..60).contains(&minute) && (0..=60).contains(&second);
    if !is_date || !is_time {
        return None;
    }
    // Days since 1 March of the year 0; years begin in March, so that a leap day is the last.
    let (y, m) = if month <= 2 {
        (year - 1, month + 9)
    } else {
        (year, month - 3)
    };
    let days =
        365 * y + y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400) + (153 * m + 2) / 5 + day
            - 1;
    Some((days * 86_400 + hour * 3600 + minute * 60 + second) as f64)
}
