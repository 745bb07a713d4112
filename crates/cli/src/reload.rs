//! `forebay reload`: a running burst buffer reads its settings again.

use std::path::PathBuf;

use clap::Args;
use forebay_wire::control::{Control, ControlResponse};
use serde_json::json;

use crate::control::{AskError, Daemon};
use crate::exit::{Exit, Failure};
use crate::show::json;
use crate::up::again::in_words;
use crate::{instance, out, usage};

/// Has a running burst buffer read its configuration file again
#[derive(Args)]
#[command(
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "Taken while it runs: [[rule]], [[limit]], policy, [engine] placement, bw_max, bw_min, br_max, ",
        "br_min, throttle and turns, [history] keep and size. All else that has changed is named: it counts after ",
        "a restart. A file that makes no sense changes nothing. Flags and environment variables of the ",
        "start go before the file, as they did then. SIGHUP does the same; the log says what came of it.\n\n",
        "Examples:\n",
        "  forebay reload\n",
        "  forebay reload --state /var/lib/forebay --json\n\n",
        "Exit codes: 0 all that has changed is in force; 3 some of it needs a restart; 1 nothing was taken: ",
        "one line says why."
    )
)]
pub struct ReloadArgs {
    /// State folder of the burst buffer; without it (and FOREBAY_STATE) the only one mounted here
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Print one JSON object: taken, restart
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &ReloadArgs) -> Result<Exit, Failure> {
    let state = instance::state_or_only(args.state.as_deref())?;
    let daemon = Daemon::connect(&state)?;
    let answer = daemon.ask(Control::Reload).and_then(|answer| match answer {
        ControlResponse::Reloaded(reloaded) => Ok(reloaded),
        _ => Err(AskError::other_question()),
    });
    let reloaded = answer.map_err(|e| daemon.failure(e, "have its settings read again"))?;
    if let Some(why) = reloaded.refused {
        return Err(Failure::fatal(format!(
            "{}: nothing has changed: {why}",
            state.display()
        )));
    }
    match args.json {
        true => json::print(&json!({
            "taken": reloaded.taken,
            "restart": reloaded.restart,
        })),
        false => out::print(&format!("{}\n", in_words(&reloaded))),
    }
    Ok(match reloaded.restart.is_empty() {
        true => Exit::Complete,
        false => Exit::Partial,
    })
}
