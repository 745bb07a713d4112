//! `fuzz`: runs a target for some seconds, or on given inputs.
//!
//! The inputs run in a process of their own, which writes down each one before it starts: what ends
//! that process, or never ends, is known, too.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use clap::Parser;
use forebay_fuzz::judge::judge;
use forebay_fuzz::memory::Counting;
use forebay_fuzz::run::{Run, save, shown};
use forebay_fuzz::{TARGETS, Target};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One input may take so long before its process is ended; a machine may be busy with other things.
const INPUT_MAX: Duration = Duration::from_secs(30);
/// Number of the input, its length.
const HEAD_BYTES: usize = 16;
const FAULTY: u8 = 2;

/// Gives a decoder bytes that nobody sent, and looks whether it panics, hangs, or takes more memory
/// or time than it may.
#[derive(Parser)]
#[command(name = "fuzz")]
struct Args {
    /// What is fuzzed; see --list
    #[arg(required_unless_present = "list")]
    target: Option<String>,
    /// Inputs to judge instead of a run
    inputs: Vec<PathBuf>,
    /// Names the targets
    #[arg(long)]
    list: bool,
    /// How long
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Where the random numbers begin; another one every day if not given
    #[arg(long)]
    seed: Option<u64>,
    /// Where inputs go that are wrong
    #[arg(long, default_value = "fuzz-found")]
    found: PathBuf,
    /// Internal: the file in which every input is written down before it starts
    #[arg(long, hide = true)]
    diary: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.list {
        for target in TARGETS {
            println!("{:12} {}", target.name, target.about);
        }
        return ExitCode::SUCCESS;
    }
    let name = args.target.as_deref().unwrap_or_default();
    let Some(target) = TARGETS.iter().find(|target| target.name == name) else {
        eprintln!("fuzz: no target '{name}'; --list names them");
        return ExitCode::FAILURE;
    };
    if !args.inputs.is_empty() {
        return replay(target, &args.inputs);
    }
    let today = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .map_or(0, |since| since.as_secs() / 86_400);
    let seed = args.seed.unwrap_or(today);
    match &args.diary {
        Some(diary) => work(target, seed, &args, diary),
        None => watch(target, seed, &args),
    }
}

fn replay(target: &Target, inputs: &[PathBuf]) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for path in inputs {
        let verdict = match fs::read(path) {
            Ok(input) => judge(target, &input).map_err(|fault| fault.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match verdict {
            Ok(_) => println!("{}: good", path.display()),
            Err(why) => {
                println!("{}: {why}", path.display());
                code = ExitCode::from(FAULTY);
            }
        }
    }
    code
}

/// The process in which the inputs run. Ends with the first that is wrong.
fn work(target: &Target, seed: u64, args: &Args, diary: &Path) -> ExitCode {
    let diary = File::options().write(true).open(diary).expect("the diary");
    let begun = Instant::now();
    let mut run = Run::new(target, seed);
    let mut count = 0u64;
    while begun.elapsed() < Duration::from_secs(args.seconds) {
        let input = run.next_input();
        count += 1;
        let mut page = count.to_le_bytes().to_vec();
        page.extend((input.len() as u64).to_le_bytes());
        page.extend_from_slice(&input);
        diary.write_all_at(&page, 0).expect("the diary");
        if let Err(fault) = run.judge(&input) {
            println!("{}: seed {seed}, input {count} {fault}", target.name);
            return ExitCode::from(FAULTY);
        }
    }
    println!(
        "{}: seed {seed}, {count} inputs in {} s, {} kept, nothing found",
        target.name,
        args.seconds,
        run.kept()
    );
    ExitCode::SUCCESS
}

/// Starts that process, waits for it, and keeps the input that it ended with.
fn watch(target: &Target, seed: u64, args: &Args) -> ExitCode {
    let diary = tempfile::NamedTempFile::new().expect("a temporary file");
    let mut worker = Command::new(std::env::current_exe().expect("path of this program"))
        .args([
            target.name,
            "--seconds",
            &args.seconds.to_string(),
            "--seed",
            &seed.to_string(),
        ])
        .arg("--diary")
        .arg(diary.path())
        .spawn()
        .expect("the process for the inputs");
    let why = match wait(&mut worker, diary.path()) {
        Ended::Well => return ExitCode::SUCCESS,
        Ended::Faulty => None,
        Ended::By(signal) => Some(format!("ends its process, by signal {signal}")),
        Ended::Never => Some(format!("is not done after {} s", INPUT_MAX.as_secs())),
        Ended::Badly => {
            eprintln!("fuzz: {}: the process for the inputs failed", target.name);
            return ExitCode::FAILURE;
        }
    };
    let (count, input) = page(diary.path()).expect("a page of the diary");
    if let Some(why) = why {
        println!("{}: seed {seed}, input {count} {why}", target.name);
    }
    match save(&args.found, target.name, &input) {
        Ok(path) => println!("  {}\n  {}", path.display(), shown(&input)),
        Err(error) => println!("  not kept: {error}\n  {}", shown(&input)),
    }
    ExitCode::from(FAULTY)
}

enum Ended {
    Well,
    Faulty,
    By(i32),
    Never,
    Badly,
}

fn wait(worker: &mut Child, diary: &Path) -> Ended {
    let mut last = (0, Instant::now());
    loop {
        match worker.try_wait().expect("a child of ours") {
            Some(status) => {
                return match (status.code(), status.signal()) {
                    (Some(0), _) => Ended::Well,
                    (Some(code), _) if code == i32::from(FAULTY) => Ended::Faulty,
                    (None, Some(signal)) => Ended::By(signal),
                    _ => Ended::Badly,
                };
            }
            None => std::thread::sleep(Duration::from_millis(100)),
        }
        let now = page(diary).map_or(0, |(count, _)| count);
        if now != last.0 {
            last = (now, Instant::now());
        } else if last.1.elapsed() > INPUT_MAX {
            worker.kill().expect("a child of ours");
            drop(worker.wait());
            return Ended::Never;
        }
    }
}

/// What was written down last: number and input.
fn page(diary: &Path) -> Option<(u64, Vec<u8>)> {
    let bytes = fs::read(diary).ok()?;
    let (head, rest) = bytes.split_at_checked(HEAD_BYTES)?;
    let number = |at: usize| Some(u64::from_le_bytes(head[at..at + 8].try_into().ok()?));
    let len = number(8)? as usize;
    Some((number(0)?, rest[..len.min(rest.len())].to_vec()))
}
