//! `forebay simulate`: what would a burst buffer do for these jobs?

use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use forebay_twin::experiment::{self, EXPERIMENTS, Experiment, ExperimentError, Report};
use forebay_twin::output;
use forebay_twin::replay::{self, ReplayError};
use forebay_twin::scenario::Override;
use forebay_twin::sim::Stopped;
use forebay_twin::sizing::{self, Counts, Sizing};
use forebay_twin::sweep::{self, Axis, SweepError, Target};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::exit::{Exit, Explain, Failure};
use crate::show::text;
use crate::signals::Signals;
use crate::{out, usage};

/// Runs shorter than this show no progress.
const PROGRESS_AFTER: Duration = Duration::from_secs(1);

/// Time between lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Simulates a burst buffer: the papers' experiments, or a scenario of your own
#[derive(Args)]
#[command(
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "A scenario is a TOML file; docs/twin.md describes every key. The simulator ",
        "runs the code by which the servers decide what is demoted, evicted or written directly, and when.\n\n",
        "JSON: {\"rows\":[...]}. Policies, experiments and fields are described in docs/twin.md, how the ",
        "results compare with the papers in docs/reproduction.md.\n\n",
        "Examples:\n",
        "  forebay simulate --list\n",
        "  forebay simulate bbos-checkpoint --out figures\n",
        "  forebay simulate centre.toml --seed 7 --json\n",
        "  forebay simulate centre.toml --sweep capacity=1TB..20TB --target 'stall<=1s'\n",
        "  forebay simulate centre.toml --nodes 1..16 --replicas 1,2 --max-stall 0.05\n\n",
        "Exit codes: 0 complete; 1 wrong usage, bad scenario (line and reason) or fatal; 130 interrupted ",
        "(nothing is left half-written)."
    )
)]
pub struct SimulateArgs {
    /// A built-in experiment (see --list) or a scenario file
    #[arg(value_name = "NAME|SCENARIO.toml", required_unless_present_any = ["list", "replay"])]
    what: Option<String>,
    /// Name the built-in experiments
    #[arg(long)]
    list: bool,
    /// Seed of all random numbers; the scenario's own without
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print {"rows":[...]}
    #[arg(long)]
    json: bool,
    /// Print comma-separated values with a line of names
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Write rows.json, rows.csv, figures (SVG, PNG) and report.html here
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Replace a key of the scenario (may be repeated)
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Vary a key: FROM..TO, FROM..TO:POINTS or A,B,C (may be repeated)
    #[arg(long, value_name = "KEY=RANGE")]
    sweep: Vec<String>,
    /// With --sweep: find the smallest value of its first key with FIELD<=LIMIT or FIELD>=LIMIT
    /// (may be repeated)
    #[arg(long, value_name = "TARGET", requires = "sweep")]
    target: Vec<String>,
    /// How many burst-buffer nodes are enough? FROM..TO or A,B,C
    #[arg(long, value_name = "COUNTS", conflicts_with_all = ["sweep", "replay"])]
    nodes: Option<String>,
    /// With --nodes: servers that hold undrained data, 1 or 2 or both
    #[arg(long, value_name = "COUNTS", requires = "nodes", default_value = "1,2")]
    replicas: String,
    /// With --nodes: runs of each, with seeds that follow each other
    #[arg(long, value_name = "N", requires = "nodes", default_value = "5",
        value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// With --nodes: greatest part of the checkpoints' time that may be stalls, 0 to 1
    #[arg(long, value_name = "SHARE", requires = "nodes", value_parser = share)]
    max_stall: Option<f64>,
    /// With --nodes: greatest part of the checkpoints' time that may be waits for a turn, 0 to 1
    #[arg(long, value_name = "SHARE", requires = "nodes", value_parser = share)]
    max_wait: Option<f64>,
    /// With --nodes: least part of the restarts served from the burst buffer, 0 to 1
    #[arg(long, value_name = "SHARE", requires = "nodes", value_parser = share)]
    min_hit_ratio: Option<f64>,
    /// With --nodes: greatest part of the runs that may lose a complete checkpoint's bytes, 0 to 1
    #[arg(long, value_name = "SHARE", requires = "nodes", value_parser = share)]
    max_loss: Option<f64>,
    /// Simulate a live experiment's parameters and compare job by job (docs/twin.md)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sweep", "set", "what"])]
    replay: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &SimulateArgs) -> Result<Exit, Failure> {
    if args.list {
        let width = EXPERIMENTS.iter().map(|e| e.name.len()).max().unwrap_or(0);
        let line = |e: &Experiment| format!("{:width$}  {}\n", e.name, e.about);
        out::print(&EXPERIMENTS.iter().map(line).collect::<String>());
        return Ok(Exit::Complete);
    }
    let signals = Signals::count().explain("signals", "")?;
    let mut progress = Progress::new();
    let result = simulate(args, &mut |share| {
        progress.show(share);
        !signals.sleep(Duration::ZERO)
    });
    progress.finish();
    let Some(report) = result? else {
        return Ok(Exit::Interrupted);
    };
    if let Some(dir) = &args.out {
        write(dir, &report)?;
    }
    out::print(&match report.rows.len() {
        _ if args.json => output::json(&report),
        _ if args.csv => output::csv(&report),
        1 => output::list(&report),
        _ => output::table(&report),
    });
    if !args.json && !report.nodes.is_empty() {
        let nodes = match args.csv {
            true => output::nodes_csv(&report),
            false => output::nodes(&report),
        };
        out::print(&format!("\n{nodes}"));
    }
    if !args.json && !args.csv {
        for note in &report.notes {
            out::print(&format!("{note}\n"));
        }
    }
    Ok(Exit::Complete)
}

/// Runs what was asked for; `None` if the user interrupted it.
fn simulate(
    args: &SimulateArgs,
    watch: &mut dyn FnMut(f64) -> bool,
) -> Result<Option<Report>, Failure> {
    let what = args.what.as_deref().unwrap_or_default();
    let bad = |error: &dyn std::fmt::Display| Failure::fatal(format!("simulate: {error}"));
    let mut set: Vec<Override> = Vec::new();
    for text in &args.set {
        set.push(sweep::parse_set(text).map_err(|e| bad(&e))?);
    }
    if let Some(file) = &args.replay {
        return replay_file(file, watch);
    }
    let experiment = Experiment::find(what);
    if let Some(experiment) = experiment.filter(|_| args.sweep.is_empty() && args.nodes.is_none()) {
        if !set.is_empty() {
            return Err(Failure::fatal(
                "--set: a built-in experiment sets its keys itself; use --sweep, or a scenario file",
            ));
        }
        return finished(what, experiment.run(args.seed.unwrap_or(1), watch));
    }
    let text = match experiment {
        Some(experiment) if experiment.scenario.is_empty() => {
            let why = format!("{what}: this experiment has no scenario to vary; it takes --seed");
            return Err(Failure::fatal(why));
        }
        Some(experiment) => experiment.scenario.to_owned(),
        None => fs::read_to_string(what)
            .explain(what, "`forebay simulate --list` names what is built in")?,
    };
    if let Some(seed) = args.seed {
        set.push(Override {
            key: "seed".into(),
            value: seed.to_string(),
        });
    }
    if let Some(nodes) = &args.nodes {
        let sizing = sizing_of(args, nodes).map_err(|e| bad(&e))?;
        return finished(what, sizing::size(&text, &set, &sizing, watch));
    }
    if args.sweep.is_empty() {
        return finished(what, experiment::scenario(&text, &set, watch));
    }
    let axes: Result<Vec<Axis>, _> = args.sweep.iter().map(|text| text.parse()).collect();
    let axes = axes.map_err(|e| bad(&e))?;
    let targets: Result<Vec<Target>, _> = args.target.iter().map(|text| text.parse()).collect();
    let targets = targets.map_err(|e| bad(&e))?;
    match sweep::sweep(&text, &set, &axes, &targets, watch) {
        Ok(report) => Ok(Some(report)),
        Err(SweepError::Run(error)) => finished(what, Err(error)),
        Err(error) => Err(bad(&error)),
    }
}

fn sizing_of(args: &SimulateArgs, nodes: &str) -> Result<Sizing, sweep::BadSweep> {
    let replicas: Counts = args.replicas.parse()?;
    if let Some(bad) = replicas.0.iter().find(|n| **n > 2) {
        let why = format!("--replicas: {bad} servers are not modelled; 1 and 2 are");
        return Err(sweep::BadSweep(why));
    }
    Ok(Sizing {
        nodes: nodes.parse()?,
        replicas,
        runs: args.runs,
        max_stall: args.max_stall,
        max_wait: args.max_wait,
        min_hit_ratio: args.min_hit_ratio,
        max_loss: args.max_loss,
    })
}

/// A part of something, 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    let found = text.parse().ok().filter(|x| (0.0..=1.0).contains(x));
    found.ok_or_else(|| format!("must be a number from 0 to 1, not {text}"))
}

fn finished(
    what: &str,
    result: Result<Report, ExperimentError>,
) -> Result<Option<Report>, Failure> {
    match result {
        Ok(report) => Ok(Some(report)),
        Err(ExperimentError::Stopped(Stopped)) => Ok(None),
        Err(error) => Err(Failure::fatal(format!("{what}: {error}"))),
    }
}

fn replay_file(file: &Path, watch: &mut dyn FnMut(f64) -> bool) -> Result<Option<Report>, Failure> {
    let name = file.display();
    let json = fs::read_to_string(file).explain(name.to_string(), "")?;
    match replay::replay(&json, watch) {
        Ok(report) => Ok(Some(report)),
        Err(ReplayError::Run(error)) => finished(&name.to_string(), Err(error)),
        Err(error) => Err(Failure::fatal(format!("{name}: {error}"))),
    }
}

/// Every file is written under another name and renamed when it is whole.
fn write(dir: &Path, report: &Report) -> Result<(), Failure> {
    let files = output::files(report).map_err(|e| Failure::fatal(format!("simulate: {e}")))?;
    fs::create_dir_all(dir).explain(dir.display(), "")?;
    for file in files {
        let path = dir.join(&file.name);
        let partial = dir.join(format!(".{}.{}", file.name, std::process::id()));
        let written = fs::write(&partial, &file.content).and_then(|()| fs::rename(&partial, &path));
        if written.is_err() {
            // The error that matters is the one above.
            let _ = fs::remove_file(&partial);
        }
        written.explain(path.display(), "")?;
    }
    Ok(())
}

/// A bar on a terminal, a line every few seconds elsewhere; nothing for short runs.
struct Progress {
    begun: Instant,
    last_line: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    fn new() -> Self {
        Self {
            begun: Instant::now(),
            last_line: Instant::now(),
            bar: None,
        }
    }

    fn show(&mut self, share: f64) {
        let passed = self.begun.elapsed();
        if passed < PROGRESS_AFTER {
            return;
        }
        let left_s = passed.as_secs_f64() * (1.0 / share.max(1e-6) - 1.0);
        let line = format!("{:.0} %, {} left", share * 100.0, text::eta(left_s));
        if std::io::stderr().is_terminal() {
            let bar = self.bar.get_or_insert_with(new_bar);
            bar.set_position((share * 1000.0) as u64);
            bar.set_message(line);
        } else if self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            out::complain(&format!("simulate: {line}"));
        }
    }

    fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

fn new_bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr_with_hz(10));
    if let Ok(style) = ProgressStyle::with_template("simulating [{bar:24}] {msg}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_whole_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let into = dir.path().join("deep/figures");
        let report = Report {
            title: "t".into(),
            ..Report::default()
        };
        write(&into, &report).unwrap();
        let mut names: Vec<String> = fs::read_dir(&into)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["report.html", "rows.csv", "rows.json"]);
    }
}
