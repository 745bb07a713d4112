//! `cargo bench -p bench-twin --bench year`: a simulated year of 1,000 to 30,000 applications, each
//! size in a process of its own, so that its time and its largest resident memory can be told. With
//! arguments (`-- 10000 hour`) only that one.
#![allow(missing_docs)]

use std::error::Error;
use std::process::Command;
use std::time::Instant;

use bench_twin::Interval;
use forebay_twin::sim::{Options, run};

const DAYS: u32 = 365;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    match args.as_slice() {
        [] => all(),
        [applications, interval] => {
            let interval = match interval.as_str() {
                "day" => Interval::Day,
                "hour" => Interval::Hour,
                other => return Err(format!("day or hour, not {other}").into()),
            };
            one(applications.parse()?, interval)
        }
        _ => Err("usage: [APPLICATIONS day|hour]".into()),
    }
}

fn all() -> Result<(), Box<dyn Error>> {
    println!("applications interval  checkpoints      steps  processor s  ns/step  MiB at most");
    for interval in ["day", "hour"] {
        for applications in ["1000", "3000", "10000", "30000"] {
            let status = Command::new(std::env::current_exe()?)
                .args([applications, interval])
                .status()?;
            if !status.success() {
                return Err(format!("{applications} {interval}: {status}").into());
            }
        }
    }
    Ok(())
}

fn one(applications: u32, interval: Interval) -> Result<(), Box<dyn Error>> {
    let scenario = bench_twin::scenario(applications, DAYS, interval)?;
    let begun = Instant::now();
    let outcome = run(&scenario, Options::default()).outcome;
    let wall_s = begun.elapsed().as_secs_f64();
    let busy_s = processor_s()?;
    println!(
        "{applications:12} {:8} {:12} {:10} {busy_s:12.1} {:8.0} {:12.0}",
        format!("{interval:?}").to_lowercase(),
        outcome.checkpoints,
        outcome.steps,
        busy_s * 1e9 / outcome.steps as f64,
        largest_resident_mib()?,
    );
    if wall_s > 1.5 * busy_s {
        eprintln!("{wall_s:.0} s passed: the machine was busy with other things");
    }
    Ok(())
}

/// Processor time of this process so far (one thread does all), seconds.
fn processor_s() -> Result<f64, Box<dyn Error>> {
    let schedstat = std::fs::read_to_string("/proc/self/schedstat")?;
    let nanoseconds: f64 = schedstat.split(' ').next().unwrap_or_default().parse()?;
    Ok(nanoseconds / 1e9)
}

fn largest_resident_mib() -> Result<f64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .ok_or("no VmHWM")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}
