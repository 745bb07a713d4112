//! `forebay history`: what was written, read and moved, by whom, and what became of it.

mod rows;

use std::path::PathBuf;
use std::process::Command as Process;

use clap::Args;
use forebay_twin::trace::history::{Site, Trace, trace};
use forebay_types::history::Record;
use forebay_wire::control::{Control, ControlResponse, HistoryAsked, StatusBits};

use crate::asked::{Asked, Whom};
use crate::control::AskError;
use crate::exit::{Exit, Failure};
use crate::show::time;
use crate::{out, usage, whole};

/// Shows what was written, read and moved: who, when, how much, what waited, when it was drained
#[derive(Args)]
#[command(
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "A row is a checkpoint version (files without a version: what an application wrote without a ",
        "longer pause), a restart, or a movement that somebody ordered. The burst buffer must run. Users see what is theirs, root ",
        "and the user of the server see all. [history] keep and size say what is kept.\n\n",
        "Times are UTC. --since and --until take 2026-11-27, 2026-11-27T20:03, or a time ago: 12h, 7d.\n\n",
        "Examples:\n",
        "  forebay history\n",
        "  forebay history --since 30d --application climate --json\n",
        "  forebay history --since 30d --trace november.json\n",
        "  forebay simulate --replay november.json\n\n",
        "Exit codes: 0 shown or written; 1 nothing runs there, or not allowed, or nothing to write."
    )
)]
pub struct HistoryArgs {
    #[command(flatten)]
    which: Which,
    /// Print {"kept_for_s":..., "records":[...]}
    #[arg(long)]
    json: bool,
    /// Print comma-separated values with a line of names
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Write a trace that `forebay simulate --replay` takes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "csv"])]
    trace: Option<PathBuf>,
}

/// Which records, and whose.
#[derive(Args)]
pub struct Which {
    #[command(flatten)]
    whom: Whom,
    /// What ended then or later
    #[arg(long, value_name = "TIME", default_value = "7d")]
    since: String,
    /// What began then or earlier
    #[arg(long, value_name = "TIME", default_value = "now")]
    until: String,
    /// Applications with this in their names
    #[arg(long, value_name = "NAME")]
    application: Option<String>,
    /// What is this user's, by name or number
    #[arg(long, value_name = "USER")]
    user: Option<String>,
}

/// What was asked for, and of which burst buffer it is.
pub struct Answer {
    /// In the order of their ends; those that are not over come last.
    pub records: Vec<Record>,
    /// From then on, milliseconds since 1970.
    pub since_ms: u64,
    /// Until then.
    pub until_ms: u64,
    /// For so long records are kept, milliseconds.
    pub kept_for_ms: u64,
    /// The burst buffer.
    pub status: StatusBits,
}

impl Which {
    /// Asks for all parts of the answer.
    pub fn ask(&self) -> Result<Answer, Failure> {
        let now_ms = time::now_ms();
        let at = |option: &str, text: &str| {
            time::parse(text, now_ms).map_err(|why| Failure::fatal(format!("{option}: {why}")))
        };
        let (since_ms, until_ms) = (at("--since", &self.since)?, at("--until", &self.until)?);
        if since_ms > until_ms {
            return Err(Failure::fatal("--since is later than --until"));
        }
        let uid = self.user.as_deref().map(uid_of).transpose()?;
        let asked = self.whom.connect()?;
        let failure = |error| explained(&asked, error, uid.is_some());
        let status = asked.status().map_err(failure)?;
        let mut answer = Answer {
            records: Vec::new(),
            since_ms,
            until_ms,
            kept_for_ms: 0,
            status,
        };
        let mut after = None;
        loop {
            let control = Control::History(HistoryAsked {
                since_ms,
                until_ms,
                application: self.application.clone(),
                uid,
                after: after.take(),
            });
            match asked.ask(control).map_err(failure)? {
                ControlResponse::History(page) => {
                    answer.records.extend(page.records);
                    answer.kept_for_ms = page.kept_for_ms;
                    after = page.more_after;
                }
                _ => return Err(Failure::fatal("the daemon answered another question")),
            }
            if after.is_none() {
                break;
            }
        }
        in_order(&mut answer.records);
        if answer.kept_for_ms == 0 {
            out::complain("nothing is put on record here: [history] keep or size is 0");
        }
        Ok(answer)
    }
}

/// Of several parts of an answer: in the order of ends, without what came twice.
fn in_order(records: &mut Vec<Record>) {
    let order = |r: &Record| {
        let of = (r.uid, r.version, r.application.clone());
        (!r.over, r.ended_ms, r.begun_ms, of)
    };
    records.sort_by_cached_key(order);
    records.dedup();
}

fn explained(asked: &Asked, error: AskError, names_a_user: bool) -> Failure {
    match error {
        AskError::Refused(forebay_types::Errno::EPERM) if names_a_user => {
            Failure::fatal("--user: only root and the user of the server see what is not theirs")
        }
        error => asked.failure(error),
    }
}

/// A user by name or number.
fn uid_of(user: &str) -> Result<u32, Failure> {
    if let Ok(uid) = user.parse() {
        return Ok(uid);
    }
    // The C library asks whatever the machine is set up to ask; the command does so.
    let asked = Process::new("id").args(["-u", "--", user]).output();
    let known = asked.ok().filter(|output| output.status.success());
    let uid = known.and_then(|output| String::from_utf8(output.stdout).ok()?.trim().parse().ok());
    uid.ok_or_else(|| Failure::fatal(format!("--user: there is no user {user} here")))
}

impl Answer {
    /// The burst buffer, for the twin.
    pub fn site(&self) -> Site {
        let tiers = self.status.tiers.iter().filter(|tier| tier.name != "pfs");
        let plan = &self.status.plan;
        Site {
            capacity_bytes: tiers.map(|tier| tier.capacity_bytes).sum(),
            bandwidths: plan.bandwidths.map(|four| four.map(|rate| rate as f64)),
            period_s: (plan.period_ms as f64 / 1e3).max(1.0),
            policy: self.status.policy.clone(),
            placement: self.status.placement.clone(),
        }
    }

    /// The history as the twin takes it.
    pub fn trace(&self) -> Result<Trace, Failure> {
        trace(&self.records, &self.site()).map_err(|error| Failure::fatal(error.to_string()))
    }
}

/// Runs the command.
pub fn run(args: &HistoryArgs) -> Result<Exit, Failure> {
    let answer = args.which.ask()?;
    if let Some(file) = &args.trace {
        let trace = answer.trace()?;
        whole::write(file, trace.json().as_bytes())?;
        let count = trace.jobs.len();
        let file = file.display();
        out::print(&format!(
            "{count} versions; next: forebay simulate --replay {file}\n"
        ));
        for line in &trace.assumed {
            out::print(&format!("assumed: {line}\n"));
        }
        return Ok(Exit::Complete);
    }
    match (args.json, args.csv) {
        (true, _) => crate::show::json::print(&rows::json(&answer)),
        (_, true) => out::print(&rows::csv(&answer)),
        _ => out::print(&rows::table(&answer)),
    }
    Ok(Exit::Complete)
}
