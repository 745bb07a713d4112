//! The load generator of the benchmark: processes that write, read, or create many files, started
//! together.
//!
//! Prints one line of JSON. The time of a phase runs from the first start to the last end in the
//! whole group.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

/// Put load on a directory with several processes at once.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Which of the group this process is; the group's own use
    #[arg(long, hide = true)]
    rank: Option<u32>,
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Subcommand, Clone)]
enum Mode {
    /// Each process writes one file
    Write(Stream),
    /// Each process reads the file that `write` left
    Read(Stream),
    /// Each process creates, stats and unlinks files in a directory of its own
    Meta(Meta),
}

#[derive(clap::Args, Clone)]
struct Stream {
    /// The directory of the files
    dir: PathBuf,
    /// Processes
    #[arg(long, default_value_t = 2)]
    procs: u32,
    /// Bytes of each file
    #[arg(long, default_value_t = 1 << 30)]
    bytes: u64,
    /// Bytes of each request
    #[arg(long, default_value_t = 1 << 20)]
    block: usize,
    /// Files that each process handles one after the other
    #[arg(long, default_value_t = 1)]
    files: u32,
    /// Buffers begin at a page, as those of IOR and fio do; one that does not needs a page more,
    /// and with it FUSE a second request where blocks are as large as a request may be
    #[arg(long)]
    aligned: bool,
    /// Sync each file before it is closed
    #[arg(long)]
    fsync: bool,
}

#[derive(clap::Args, Clone)]
struct Meta {
    /// The directory of the processes' directories
    dir: PathBuf,
    /// Processes
    #[arg(long, default_value_t = 2)]
    procs: u32,
    /// Files of each process
    #[arg(long, default_value_t = 20_000)]
    files: u32,
    /// Bytes written to each file
    #[arg(long, default_value_t = 4096)]
    bytes: usize,
    /// Pause before each phase, so that what the kernel remembers of the last one has expired
    #[arg(long, default_value_t = 0)]
    settle_ms: u64,
    /// What to do, in this order
    #[arg(long, value_delimiter = ',', default_value = "create,stat,unlink")]
    phases: Vec<Phase>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Phase {
    Create,
    Stat,
    Unlink,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Phase::Create => "create",
            Phase::Stat => "stat",
            Phase::Unlink => "unlink",
        }
    }
}

impl Mode {
    fn procs(&self) -> u32 {
        match self {
            Mode::Write(stream) | Mode::Read(stream) => stream.procs,
            Mode::Meta(meta) => meta.procs,
        }
    }

    fn phases(&self) -> Vec<&'static str> {
        match self {
            Mode::Write(_) => vec!["write"],
            Mode::Read(_) => vec!["read"],
            Mode::Meta(meta) => meta.phases.iter().map(|phase| phase.name()).collect(),
        }
    }
}

/// A word from the group to a process to begin its next phase.
const GO: u8 = b'g';

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match args.rank {
        Some(rank) => work(rank, &args.mode),
        None => lead(&args.mode),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-load: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts the processes and lets them go through the phases together.
fn lead(mode: &Mode) -> io::Result<()> {
    let mut workers = Vec::new();
    let result = start_workers(mode, &mut workers).and_then(|()| run_phases(mode, &mut workers));
    let mut failed = 0;
    for mut worker in workers {
        if result.is_err() {
            worker.kill()?;
        }
        // Closes its input: a worker that waits for its next phase ends.
        drop(worker.stdin.take());
        failed += u32::from(!worker.wait()?.success());
    }
    result?;
    match failed {
        0 => Ok(()),
        _ => Err(io::Error::other(format!("{failed} processes failed"))),
    }
}

fn start_workers(mode: &Mode, workers: &mut Vec<Child>) -> io::Result<()> {
    let program = std::env::current_exe()?;
    for rank in 0..mode.procs() {
        let mut command = Command::new(&program);
        command.arg("--rank").arg(rank.to_string());
        let worker = command
            .args(std::env::args_os().skip(1))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        workers.push(worker);
    }
    Ok(())
}

fn run_phases(mode: &Mode, workers: &mut [Child]) -> io::Result<()> {
    let mut report = Vec::new();
    for phase in mode.phases() {
        for worker in workers.iter_mut() {
            // Ready: buffers are filled, directories made.
            hear(worker, &mut [0; 1])?;
        }
        for worker in workers.iter_mut() {
            let input = worker.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
            input.write_all(&[GO])?;
        }
        let (mut first_ns, mut last_ns) = (u64::MAX, 0);
        for worker in workers.iter_mut() {
            let mut times = [0; 16];
            hear(worker, &mut times)?;
            let (start, end) = times.split_at(8);
            first_ns = first_ns.min(number(start));
            last_ns = last_ns.max(number(end));
        }
        let seconds = Duration::from_nanos(last_ns - first_ns).as_secs_f64();
        report.push(format!("\"{phase}\": {}", figures(mode, seconds)));
    }
    println!("{{{}}}", report.join(", "));
    Ok(())
}

fn hear(worker: &mut Child, into: &mut [u8]) -> io::Result<()> {
    let output = worker.stdout.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
    output
        .read_exact(into)
        .map_err(|error| io::Error::new(error.kind(), format!("a process ended early: {error}")))
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

fn figures(mode: &Mode, seconds: f64) -> String {
    match mode {
        Mode::Write(stream) | Mode::Read(stream) => {
            let bytes = stream.bytes * u64::from(stream.procs) * u64::from(stream.files);
            let rate = bytes as f64 / seconds;
            format!("{{\"seconds\": {seconds:.6}, \"bytes\": {bytes}, \"bytes_per_s\": {rate:.0}}}")
        }
        Mode::Meta(meta) => {
            let files = u64::from(meta.files) * u64::from(meta.procs);
            let rate = files as f64 / seconds;
            format!("{{\"seconds\": {seconds:.6}, \"files\": {files}, \"ops_per_s\": {rate:.0}}}")
        }
    }
}

/// One process of the group.
fn work(rank: u32, mode: &Mode) -> io::Result<()> {
    match mode {
        Mode::Write(stream) => {
            let mut memory = Vec::new();
            let block = buffer(stream, rank, &mut memory);
            in_step(|| write_files(stream, rank, block))
        }
        Mode::Read(stream) => {
            let mut memory = Vec::new();
            let block = buffer(stream, rank, &mut memory);
            in_step(|| read_files(stream, rank, block))
        }
        Mode::Meta(meta) => work_meta(rank, meta),
    }
}

fn work_meta(rank: u32, meta: &Meta) -> io::Result<()> {
    let dir = meta.dir.join(format!("rank-{rank}"));
    let content = pattern(meta.bytes, rank);
    let file = |index: u32| dir.join(format!("f{index:07}"));
    for phase in &meta.phases {
        if matches!(phase, Phase::Create) {
            fs::create_dir_all(&dir)?;
        }
        std::thread::sleep(Duration::from_millis(meta.settle_ms));
        in_step(|| {
            (0..meta.files).map(file).try_for_each(|path| match phase {
                Phase::Create => fresh(&path)?.write_all(&content),
                Phase::Stat => check_size(&path, meta.bytes),
                Phase::Unlink => fs::remove_file(&path),
            })
        })?;
        if matches!(phase, Phase::Unlink) {
            fs::remove_dir(&dir)?;
        }
    }
    Ok(())
}

/// Says that it is ready, waits for the word, does `phase`, and says when it began and ended.
fn in_step(phase: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let mut output = io::stdout();
    output.write_all(b"r")?;
    output.flush()?;
    let mut word = [0];
    io::stdin().read_exact(&mut word)?;
    let start_ns = now_ns();
    phase()?;
    let end_ns = now_ns();
    output.write_all(&start_ns.to_le_bytes())?;
    output.write_all(&end_ns.to_le_bytes())?;
    output.flush()
}

/// A clock that all processes share.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Bytes that neither compress to nothing nor are the same in every file.
fn pattern(bytes: usize, rank: u32) -> Vec<u8> {
    let mut state = u64::from(rank) + 0x9e37_79b9_7f4a_7c15;
    let step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(step).take(bytes).collect()
}

/// A block in `memory`, at a page or not, as asked for.
fn buffer<'a>(stream: &Stream, rank: u32, memory: &'a mut Vec<u8>) -> &'a mut [u8] {
    let page = rustix::param::page_size();
    *memory = pattern(stream.block + 2 * page, rank);
    let at_page = memory.as_ptr().align_offset(page);
    let start = at_page + if stream.aligned { 0 } else { 16 };
    &mut memory[start..start + stream.block]
}

fn stream_path(stream: &Stream, rank: u32, index: u32) -> PathBuf {
    stream.dir.join(format!("rank-{rank}.{index:04}"))
}

fn fresh(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

fn write_files(stream: &Stream, rank: u32, block: &[u8]) -> io::Result<()> {
    for index in 0..stream.files {
        let mut file = fresh(&stream_path(stream, rank, index))?;
        let mut left = stream.bytes;
        while left > 0 {
            let bytes = left.min(block.len() as u64);
            file.write_all(&block[..bytes as usize])?;
            left -= bytes;
        }
        if stream.fsync {
            file.sync_all()?;
        }
    }
    Ok(())
}

fn read_files(stream: &Stream, rank: u32, block: &mut [u8]) -> io::Result<()> {
    for index in 0..stream.files {
        let path = stream_path(stream, rank, index);
        let mut file = File::open(&path)?;
        let mut total = 0;
        loop {
            match file.read(block)? {
                0 => break,
                bytes => total += bytes as u64,
            }
        }
        if total != stream.bytes {
            return Err(wrong_size(&path, total, stream.bytes));
        }
    }
    Ok(())
}

fn check_size(path: &Path, bytes: usize) -> io::Result<()> {
    let found = fs::metadata(path)?.len();
    if found == bytes as u64 {
        return Ok(());
    }
    Err(wrong_size(path, found, bytes as u64))
}

fn wrong_size(path: &Path, found: u64, expected: u64) -> io::Error {
    io::Error::other(format!(
        "{}: {found} bytes, expected {expected}",
        path.display()
    ))
}
