//! Compares embedded key-value engines on the metadata workload of a file system.
//!
//! `cargo run --release [DIR [FILES [ROUNDS [THREADS [ENGINES]]]]]` prints a table; `THREADS` and
//! `ENGINES` are lists with commas, as in `1,8,64 fjall,redis,etcd`. Each measurement runs in a
//! process of its own, so that one engine's memory is not counted to another; the median of the
//! rounds is printed. `DIR` is the directory for temporary files unless given; figures for synced
//! commits mean something only on a real disk. Stores on a server are measured with a server on
//! this machine, which keeps its data in that directory; memory is then the client's alone.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use engines::{CANDIDATES, Candidate};
use forebay_kv::Durability;
use workload::Op;

mod engines;
mod usage;
mod workload;

/// A flush costs as much as tens of buffered commits, so that fewer of them tell as much.
const SYNCED_FILES_DIVISOR: u64 = 50;

/// Time for an engine's threads to come to rest before its memory is read.
const REST: Duration = Duration::from_secs(1);

const COLUMNS: [&str; 11] = [
    "create/s",
    "p50 us",
    "p99 us",
    "max ms",
    "stat/s",
    "rename/s",
    "unlink/s",
    "reopen ms",
    "anon MiB",
    "RSS MiB",
    "disk MiB",
];

/// Set in the processes that measure: which candidate, in which directory, with how many files and
/// threads.
const CHILD: &str = "BENCH_KV_CHILD";

fn main() -> ExitCode {
    let result = match std::env::var(CHILD) {
        Ok(task) => measure(&task),
        Err(_) => compare(std::env::args().skip(1).collect()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-kv: {error}");
            ExitCode::FAILURE
        }
    }
}

fn compare(arguments: Vec<String>) -> Result<(), Box<dyn Error>> {
    let parent = arguments
        .first()
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let files: u64 = arguments.get(1).map_or(Ok(100_000), |text| text.parse())?;
    let rounds: usize = arguments.get(2).map_or(Ok(3), |text| text.parse())?;
    let threads = arguments.get(3).map_or("1,2", String::as_str).split(',');
    let threads = threads.map(str::parse).collect::<Result<Vec<u64>, _>>()?;
    let engines: Option<Vec<&str>> = arguments.get(4).map(|text| text.split(',').collect());
    let is_asked_for = |candidate: &Candidate| {
        let engines = engines.as_ref();
        engines.is_none_or(|engines| engines.contains(&candidate.name))
    };
    for durability in [Durability::Buffered, Durability::Synced] {
        let files = if durability == Durability::Synced {
            files.div_ceil(SYNCED_FILES_DIVISOR)
        } else {
            files
        };
        let mut cases = Vec::new();
        for &threads in &threads {
            let candidates = CANDIDATES
                .iter()
                .enumerate()
                .filter(|(_, candidate)| candidate.durability == durability)
                .filter(|(_, candidate)| is_asked_for(candidate));
            cases.extend(
                candidates.map(|(index, candidate)| (index, candidate, threads, Vec::new())),
            );
        }
        // Round after round, so that a disturbance of the machine hits every engine and the median
        // drops it.
        for _ in 0..rounds {
            for (index, _, threads, rows) in &mut cases {
                rows.push(spawn(*index, &parent, files, *threads)?);
            }
        }
        println!("{durability:?}, {files} files, median of {rounds}");
        println!(
            "{:<14} {:>7}{}",
            "engine",
            "threads",
            COLUMNS.map(|column| format!(" {column:>9}")).concat()
        );
        for (_, candidate, threads, rows) in cases {
            let numbers =
                medians(rows).map(|number| format!(" {number:>9.*}", usize::from(number < 100.0)));
            println!("{:<14} {threads:>7}{}", candidate.name, numbers.concat());
        }
        for candidate in CANDIDATES
            .iter()
            .filter(|candidate| candidate.durability == durability)
            .filter(|candidate| is_asked_for(candidate))
        {
            println!("  {}: {}", candidate.name, candidate.setting);
        }
        println!();
    }
    Ok(())
}

fn spawn(
    index: usize,
    parent: &Path,
    files: u64,
    threads: u64,
) -> Result<[f64; COLUMNS.len()], Box<dyn Error>> {
    let dir = parent.join(format!("bench-kv-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let task = format!("{index} {files} {threads} {}", dir.display());
    let output = Command::new(std::env::current_exe()?)
        .env(CHILD, task)
        .output()?;
    std::fs::remove_dir_all(&dir)?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let text = String::from_utf8(output.stdout)?;
    let numbers = text
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<Vec<f64>, _>>()?;
    numbers
        .try_into()
        .map_err(|_| "a measurement printed too few numbers".into())
}

fn medians(rows: Vec<[f64; COLUMNS.len()]>) -> [f64; COLUMNS.len()] {
    std::array::from_fn(|column| {
        let mut numbers: Vec<f64> = rows.iter().map(|row| row[column]).collect();
        numbers.sort_by(f64::total_cmp);
        numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
    })
}

/// In a process of its own: measures one candidate and prints the numbers of its row.
fn measure(task: &str) -> Result<(), Box<dyn Error>> {
    let mut parts = task.splitn(4, ' ');
    let mut part = || parts.next().ok_or("the task is too short");
    let candidate: &Candidate = CANDIDATES
        .get(part()?.parse::<usize>()?)
        .ok_or("no such candidate")?;
    let (files, threads): (u64, u64) = (part()?.parse()?, part()?.parse()?);
    let dir = PathBuf::from(part()?);

    let server = candidate.serve(&dir)?;
    let mut store = candidate.open(&dir, server.as_ref())?;
    let create = workload::run(&*store, Op::Create, candidate.durability, files, threads)?;
    std::thread::sleep(REST);
    let disk_kib = usage::disk_kib(&dir)?;
    let mut reopen_ms = 0.0;
    if candidate.name != "memory" {
        drop(store);
        let start = std::time::Instant::now();
        store = candidate.open(&dir, server.as_ref())?;
        reopen_ms = start.elapsed().as_secs_f64() * 1e3;
    }
    let stat = workload::run(&*store, Op::Stat, candidate.durability, files, threads)?;
    let rename = workload::run(&*store, Op::Rename, candidate.durability, files, threads)?;
    std::thread::sleep(REST);
    let memory = usage::memory()?;
    let unlink = workload::run(&*store, Op::Unlink, candidate.durability, files, threads)?;
    println!(
        "{} {} {} {} {} {} {} {reopen_ms} {} {} {}",
        create.per_s,
        create.p50_us,
        create.p99_us,
        create.max_ms,
        stat.per_s,
        rename.per_s,
        unlink.per_s,
        memory.anonymous_kib as f64 / 1024.0,
        memory.resident_kib as f64 / 1024.0,
        disk_kib as f64 / 1024.0,
    );
    Ok(())
}
