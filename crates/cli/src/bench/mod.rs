//! `forebay bench`: how fast a directory takes and gives what parallel programs write and read.
//!
//! - `pattern`: data that tells where it belongs;
//! - `plan`: who has which bytes, how much room it takes;
//! - `work`: one process, and what it is told;
//! - `crew`: all processes of a directory;
//! - `site`: a directory, from its first file to its last;
//! - `report`: medians, ranges, ratios.

mod crew;
mod pattern;
mod plan;
mod report;
mod site;
mod work;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use forebay_types::{format_size, parse_duration, parse_size};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::exit::{Exit, Explain, Failure};
use crate::scratch::Stop;
use crate::show::json;
use crate::show::progress::{Amount, Progress};
use crate::signals::{Hangup, watch};
use crate::{mounts, out, usage};
use plan::{Pattern, Scale};
use report::{Column, Results};
use site::Site;

/// More would measure the scheduler of this machine.
const PROCESSES_MAX: usize = 256;
/// Room that is left to others.
const SPARE_BYTES: u64 = 64 << 20;

/// Measures a directory as parallel programs use it; of two directories also how they compare
#[derive(Args)]
#[command(
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "For any directory, so that a mount can be compared with the file system behind it:\n",
        "  n-n            each process writes a file of its own, then reads its neighbour's\n",
        "  segmented      one file, of which each process writes one part\n",
        "  strided        one file, which the processes write in turns, transfer by transfer\n",
        "  metadata       each process creates empty files in a directory of its own, stats, renames, unlinks them\n",
        "  checkpoint     checkpoints with a pause after each (n-n, a directory for each, the newest two are kept),\n",
        "                 then a restart from the newest\n\n",
        "The processes are real ones, as the ranks of a parallel program are: threads would share a table of ",
        "descriptors and an address space. A time is from the first open to the last close, fsync included. ",
        "Making data and comparing it is not in it (with a --size up to 256 MiB). All that is read is compared: ",
        "each word tells its file and its place. Before a read the kernel is asked to forget the file's pages ",
        "(posix_fadvise). `in memory` says how much of the file was in this machine's memory all the same when ",
        "the read began; empty: not known. What a server or a device has in a cache of its own nobody sees.\n\n",
        "A number is the median of the repeats, with the least and the most. Two directories are measured in ",
        "turns; the last column says how many times faster the first is. In each directory a hidden directory ",
        "`.forebay-bench-...` is made, and removed at the end and on Ctrl-C. If the directory does not answer, ",
        "a second Ctrl-C ends the command, which then names what is left.\n\n",
        "Examples:\n  forebay bench /scratch/me\n  forebay bench /bb/me /scratch/me --processes 8 --size 256MiB\n",
        "  forebay bench --only checkpoint --checkpoints 10 --pause 5s --json /bb/me\n\n",
        "Exit codes: 0 measured; 1 wrong usage, no room, or an error (one line says which); 5 what was read is ",
        "not what was written; 130 interrupted."
    )
)]
pub struct BenchArgs {
    /// The directories, one or two
    #[arg(value_name = "DIR", num_args = 1..=2, required_unless_present = "rank")]
    dirs: Vec<PathBuf>,
    /// Processes, 1 to 256
    #[arg(long, value_name = "N", default_value_t = 4)]
    processes: usize,
    /// Bytes that each process writes in each pattern
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = size)]
    size: u64,
    /// Bytes of one read or write
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = size)]
    transfer: u64,
    /// Files of each process in `metadata`
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    files: u64,
    /// Checkpoints in a row
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    checkpoints: u64,
    /// Pause after each checkpoint, in which a burst buffer drains
    #[arg(long, value_name = "DUR", default_value = "500ms", value_parser = duration)]
    pause: Duration,
    /// How often everything is done
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    repeats: u64,
    /// No repeat begins that would not end within this time; the first one always does
    #[arg(long, value_name = "DUR", default_value = "50s", value_parser = duration)]
    time: Duration,
    /// Only these, separated by commas
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    only: Vec<Pattern>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// One process of a benchmark, which reads its orders
    #[arg(long, hide = true, exclusive = true)]
    rank: bool,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

/// What has to go when the command is interrupted.
#[derive(Default)]
struct Underway {
    processes: Vec<u32>,
    paths: Vec<PathBuf>,
}

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<Exit, Failure> {
    if args.rank {
        return work::run();
    }
    let scale = scale(args)?;
    let patterns = match args.only.is_empty() {
        true => Pattern::ALL.to_vec(),
        false => Pattern::ALL
            .into_iter()
            .filter(|one| args.only.contains(one))
            .collect(),
    };
    let dirs = directories(&args.dirs)?;
    check_room(&dirs, &scale, &patterns)?;
    let (stop, underway) = (Stop::default(), Arc::<Mutex<Underway>>::default());
    stop_on_signals(&stop, &underway)?;
    let mut sites = Vec::new();
    for dir in &dirs {
        let site = Site::open(dir, &scale, &stop)?;
        let mut underway = underway.lock();
        underway.processes.extend(site.ids());
        underway.paths.push(site.path().to_path_buf());
        sites.push(site);
    }
    let mut progress = Progress::new("bench");
    let measured = repeat(args, &scale, &patterns, (&mut sites, &dirs), &mut progress);
    progress.finish();
    // From here on the processes are waited for, and their ids may become others'.
    underway.lock().processes.clear();
    let results: Result<Vec<Results>, Failure> = sites.into_iter().map(Site::close).collect();
    let repeats = match (measured, &results) {
        (Ok(repeats), _) => repeats,
        (Err(failure), Err(left)) if failure.exit == Exit::Interrupted => return Err(left.clone()),
        (Err(failure), left) => {
            if let Err(left) = left {
                out::complain(&left.message);
            }
            return Err(failure);
        }
    };
    show(args, &scale, repeats, &results?)?;
    Ok(Exit::Complete)
}

fn scale(args: &BenchArgs) -> Result<Scale, Failure> {
    let wrong = |why: String| Failure::fatal(format!("bench: {why}"));
    if !(1..=PROCESSES_MAX).contains(&args.processes) {
        return Err(wrong(format!("--processes must be 1 to {PROCESSES_MAX}")));
    }
    let scale = Scale {
        processes: args.processes,
        size: args.size,
        transfer: args.transfer,
        files: args.files,
        checkpoints: args.checkpoints,
        pause: args.pause,
    };
    scale.check().map_err(wrong)?;
    Ok(scale)
}

fn directories(given: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut dirs = Vec::new();
    for dir in given {
        let real =
            std::fs::canonicalize(dir).explain(dir.display(), "give an existing directory")?;
        if !real.is_dir() {
            return Err(Failure::fatal(format!(
                "{}: is a file; give a directory",
                dir.display()
            )));
        }
        dirs.push(real);
    }
    Ok(dirs)
}

/// Room for all that lies there at a time. Two directories are never full at the same time.
fn check_room(dirs: &[PathBuf], scale: &Scale, patterns: &[Pattern]) -> Result<(), Failure> {
    let (bytes, files) = scale.room(patterns);
    for dir in dirs {
        let shown = dir.display();
        let fs = rustix::fs::statvfs(dir).explain(&shown, "does its server answer?")?;
        let free = fs.f_bavail.saturating_mul(fs.f_frsize);
        if free < bytes.saturating_add(SPARE_BYTES) {
            return Err(Failure::fatal(format!(
                "{shown}: {} are free, and the benchmark takes {} and leaves {}; make room, or choose a smaller --size or \
                 fewer --processes",
                format_size(free),
                format_size(bytes),
                format_size(SPARE_BYTES)
            )));
        }
        // Some file systems make inodes as they need them, and count none.
        if fs.f_files > 0 && fs.f_favail < files {
            return Err(Failure::fatal(format!(
                "{shown}: {} more files fit there, and the benchmark makes {files}; choose fewer --files",
                fs.f_favail
            )));
        }
    }
    Ok(())
}

fn stop_on_signals(stop: &Stop, underway: &Arc<Mutex<Underway>>) -> Result<(), Failure> {
    let (stop, underway) = (stop.clone(), underway.clone());
    watch(Hangup::Stops, move |signal, nth| {
        stop.order();
        let underway = underway.lock();
        if nth > 1 {
            for path in underway
                .paths
                .iter()
                .filter(|path| path.symlink_metadata().is_ok())
            {
                out::complain(&format!("{}: may be left there; remove it", path.display()));
            }
            std::process::exit(128 + signal);
        }
        for id in &underway.processes {
            // It may have had its own Ctrl-C; nobody has waited for it, so the id is still its.
            let pid = i32::try_from(*id).ok().and_then(Pid::from_raw);
            let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
        }
    })
    .explain("cannot watch for signals", "")
}

/// Everything again and again; how often it was done.
fn repeat(
    args: &BenchArgs,
    scale: &Scale,
    patterns: &[Pattern],
    (sites, dirs): (&mut [Site], &[PathBuf]),
    progress: &mut Progress,
) -> Result<u64, Failure> {
    let begun = Instant::now();
    let work = scale.work(patterns) * sites.len() as u64;
    let mut done_bytes = 0;
    for nth in 0..args.repeats {
        let each = begun.elapsed() / (nth as u32).max(1);
        if nth > 0 && begun.elapsed() + each > args.time {
            return Ok(nth);
        }
        for pattern in patterns {
            // In turns, so that what changes meanwhile meets both.
            let mut order: Vec<usize> = (0..sites.len()).collect();
            if nth % 2 == 1 {
                order.reverse();
            }
            for at in order {
                let place = dirs[at].display();
                let mut hear = |step: &str, bytes: u64| {
                    done_bytes += bytes;
                    progress.show(&Amount {
                        done: done_bytes,
                        total: work * args.repeats,
                        detail: format!(
                            "repeat {} of {}, {step} in {place}",
                            nth + 1,
                            args.repeats
                        ),
                    });
                };
                sites[at].measure(*pattern, scale, &mut hear)?;
            }
        }
    }
    Ok(args.repeats)
}

fn show(args: &BenchArgs, scale: &Scale, repeats: u64, results: &[Results]) -> Result<(), Failure> {
    let table = crate::instance::mount_table()?;
    let kind = |dir: &Path| {
        let real = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_path_buf());
        let mount = mounts::covering(&table, &real);
        mount.map_or_else(|| "unknown".to_string(), |mount| mount.fs_type.clone())
    };
    let kinds: Vec<String> = args.dirs.iter().map(|dir| kind(dir)).collect();
    let columns: Vec<Column<'_>> = args
        .dirs
        .iter()
        .zip(&kinds)
        .zip(results)
        .map(|((dir, kind), results)| Column {
            path: dir.as_os_str().as_bytes(),
            kind,
            results,
        })
        .collect();
    if args.json {
        let mut whole = report::as_json(&columns);
        let settings = json!({
            "processes": scale.processes,
            "size_bytes": scale.size,
            "transfer_bytes": scale.transfer,
            "files": scale.files,
            "checkpoints": scale.checkpoints,
            "pause_s": scale.pause.as_secs_f64(),
            "repeats": repeats,
        });
        whole.insert("settings".into(), settings);
        json::print(&Value::Object(whole));
        return Ok(());
    }
    out::print(&report::table(&columns));
    let short = match repeats < args.repeats {
        true => format!(
            " of {}, for more would have taken longer than --time",
            args.repeats
        ),
        false => String::new(),
    };
    let noun = if repeats == 1 { "repeat" } else { "repeats" };
    out::print(&format!(
        "\n{} processes, {} each in transfers of {}, fsync included; medians (least to most) of {repeats} {noun}{short}\n\
         everything that was read was compared; `in memory`: pages of the file in this machine's memory as the read began\n",
        scale.processes,
        format_size(scale.size),
        format_size(scale.transfer),
    ));
    Ok(())
}
