//! `forebay policy`: shows or changes policy and placement of a running burst buffer.

use std::path::PathBuf;

use clap::Args;
use forebay_policy::demotion::PlacementPolicy;
use forebay_policy::plan::DrainPolicy;
use forebay_wire::control::{Control, ControlResponse};
use serde_json::json;

use crate::control::Daemon;
use crate::exit::{Exit, Failure};
use crate::show::json;
use crate::{instance, out, usage};

/// Shows the policy in force and why, or takes another while everything runs
#[derive(Args)]
#[command(
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "Policies: bbos (as the plan says), maxbw (never beside a checkpoint until full), maxeff (always\n",
        "at full speed), dedicated (a share for each application, no sharing).\n",
        "Placements (who is demoted and dropped first): bbos (outdated versions, then highest MTBF), fifo,\n",
        "lru, coolness. A choice holds until the burst buffer stops; then the configuration counts again.\n\n",
        "Examples:\n  forebay policy\n  forebay policy maxeff --state /var/lib/forebay\n  forebay policy --placement lru\n\n",
        "Exit codes: 0 shown or changed; 1 nothing runs there, or it is another user's."
    )
)]
pub struct PolicyArgs {
    /// bbos, maxbw, maxeff or dedicated; without it and --placement only shows
    #[arg(value_name = "NAME")]
    policy: Option<DrainPolicy>,
    /// Order of victims: bbos, fifo, lru or coolness
    #[arg(long, value_name = "NAME")]
    placement: Option<PlacementPolicy>,
    /// State folder of the burst buffer; without it (and FOREBAY_STATE) the only one mounted here
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Print one JSON object: policy, placement, plan
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &PolicyArgs) -> Result<Exit, Failure> {
    let state = instance::state_or_only(args.state.as_deref())?;
    let daemon = Daemon::connect(&state)?;
    let bits = if args.policy.is_none() && args.placement.is_none() {
        daemon.status()
    } else {
        let control = Control::Policy {
            policy: args.policy.map(|p| p.to_string()),
            placement: args.placement.map(|p| p.to_string()),
        };
        daemon.ask(control).and_then(|answer| match answer {
            ControlResponse::Status(bits) => Ok(*bits),
            _ => Err(crate::control::AskError::Protocol(
                "the daemon answered another question".into(),
            )),
        })
    };
    let bits = bits.map_err(|e| daemon.failure(e, "change its policy"))?;
    match args.json {
        true => json::print(&json!({
            "policy": bits.policy,
            "placement": bits.placement,
            "plan": crate::status::plan_json(&bits.plan),
        })),
        false => out::print(&format!(
            "policy {}, placement {}: {}\n",
            bits.policy, bits.placement, bits.plan.why
        )),
    }
    Ok(Exit::Complete)
}
