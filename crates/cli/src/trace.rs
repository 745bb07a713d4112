//! `forebay trace import`: a centre's own job history as a scenario.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::Duration;

use clap::{Args, Subcommand};
use forebay_twin::trace::{Assumptions, Source, scenario};
use forebay_types::{parse_duration, parse_size};

use crate::exit::{Exit, Explain, Failure};
use crate::{out, usage};

/// Reads a binary Darshan log by means of PyDarshan.
const DARSHAN_TEXT: &str = include_str!("darshan_text.py");

/// Turns histories of jobs into scenarios for `forebay simulate`
#[derive(Args)]
#[command(
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "Example:\n  forebay trace import jobs.swf > centre.toml\n\n",
        "Exit codes: 0 complete; 1 wrong usage, or nothing that can be read."
    )
)]
pub struct TraceArgs {
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Subcommand)]
enum TraceCommand {
    Import(ImportArgs),
}

/// Reads sacct output, SWF or Darshan logs and prints a scenario
#[derive(Args)]
#[command(
    after_long_help = concat!(
        "Understood: `sacct --parsable2 --format=JobID,Start,End,NNodes,NTasks,AveDiskWrite`, job logs in ",
        "the Standard Workload Format, the text of darshan-parser, and binary Darshan logs where ",
        "PyDarshan is installed (pip install darshan; FOREBAY_PYTHON names another python3). What a ",
        "source cannot tell is assumed; the scenario begins with a list of what was assumed.\n\n",
        "Example:\n  forebay trace import sacct.txt --interval 30m --out centre.toml\n",
        "  forebay simulate centre.toml --set capacity=10TB\n\n",
        "Exit codes: 0 complete; 1 wrong usage, or nothing that can be read."
    )
)]
struct ImportArgs {
    /// The log; `-` is standard input
    file: PathBuf,
    /// Assumed time between two checkpoints
    #[arg(long, value_name = "DUR", value_parser = parse_duration, default_value = "1h")]
    interval: Duration,
    /// Assumed part of a job's memory that a checkpoint holds (SWF)
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    memory_share: f64,
    /// Assumed size of a checkpoint per node, where nothing is known
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "16GB")]
    bytes_per_node: u64,
    /// Assumed mean time between failures of one node
    #[arg(long, value_name = "DUR", value_parser = parse_duration, default_value = "1825d")]
    node_mtbf: Duration,
    /// Write the scenario here instead of printing it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &TraceArgs) -> Result<Exit, Failure> {
    let TraceCommand::Import(args) = &args.command;
    let is_input = args.file.as_os_str() == "-";
    let name = match is_input {
        true => "standard input".to_string(),
        false => args.file.display().to_string(),
    };
    let raw = match is_input {
        true => all_of(io::stdin()),
        false => fs::read(&args.file),
    };
    let text = match String::from_utf8(raw.explain(&name, "")?) {
        Ok(text) => text,
        Err(_) if is_input => {
            return Err(Failure::fatal(format!(
                "{name}: not text; give the file itself, or the text of darshan-parser"
            )));
        }
        // Of the three only Darshan's own format is not text.
        Err(_) => darshan_text(&args.file)?,
    };
    let wrong = |error: &dyn std::fmt::Display| Failure::fatal(format!("{name}: {error}"));
    let source = Source::guess(&text).map_err(|e| wrong(&e))?;
    let history = source.read(&text).map_err(|e| wrong(&e))?;
    let assumptions = Assumptions {
        interval_s: args.interval.as_secs_f64().max(1.0),
        memory_share: args.memory_share.clamp(0.0, 1.0),
        bytes_per_node: args.bytes_per_node,
        node_mtbf_s: args.node_mtbf.as_secs_f64(),
    };
    let toml = scenario(source, &history, &assumptions);
    match &args.out {
        None => out::print(&toml),
        Some(path) => {
            let mut partial = path.clone().into_os_string();
            partial.push(format!(".{}", std::process::id()));
            let written = fs::write(&partial, &toml).and_then(|()| fs::rename(&partial, path));
            if written.is_err() {
                // The error that matters is the one above.
                let _ = fs::remove_file(&partial);
            }
            written.explain(path.display(), "")?;
        }
    }
    Ok(Exit::Complete)
}

fn all_of(mut input: impl Read) -> io::Result<Vec<u8>> {
    let mut raw = Vec::new();
    input.read_to_end(&mut raw)?;
    Ok(raw)
}

fn darshan_text(file: &Path) -> Result<String, Failure> {
    let python = std::env::var_os("FOREBAY_PYTHON").unwrap_or_else(|| "python3".into());
    let output = Process::new(&python)
        .args(["-c", DARSHAN_TEXT])
        .arg(file)
        .output()
        .explain(
            python.to_string_lossy(),
            "a binary Darshan log is read by PyDarshan",
        )?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors
            .lines()
            .rev()
            .find(|l| !l.trim().is_empty())
            .unwrap_or("it failed");
        return Err(Failure::fatal(format!(
            "{}: not text, and PyDarshan cannot read it ({last}); pip install darshan, or give the text of darshan-parser",
            file.display()
        )));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
