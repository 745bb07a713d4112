//! `forebay policy`: shows or changes policy and placement of a running burst buffer.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use forebay_policy::demotion::PlacementPolicy;
use forebay_policy::plan::DrainPolicy;
use forebay_types::{format_duration, format_size};
use forebay_wire::control::{Control, ControlResponse, InForce, LimitInForce, RuleInForce, Whose};
use serde_json::{Value, json};

use crate::control::{AskError, Daemon};
use crate::exit::{Exit, Failure};
use crate::owners::whose;
use crate::show::json;
use crate::{instance, out, usage};

/// Shows policy, rules and limits in force, or takes another policy while everything runs
#[derive(Args)]
#[command(
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "Policies: bbos (as the plan says), maxbw (never beside a checkpoint until full), maxeff (always ",
        "at full speed), dedicated (a share for each application, no sharing).\n",
        "Placements (who is demoted and dropped first): bbos (outdated versions, then highest MTBF), fifo, ",
        "lru, coolness. A choice holds until the burst buffer stops; then the configuration counts again. ",
        "`forebay reload` takes changed rules and limits from the configuration. Rules, and limits of others, are ",
        "shown to root and to the user who runs it.\n\n",
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
    /// Print one JSON object: policy, placement, plan, rules, limits
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
            _ => Err(AskError::other_question()),
        })
    };
    let bits = bits.map_err(|e| daemon.failure(e, "change its policy"))?;
    let in_force = daemon
        .ask(Control::InForce)
        .and_then(|answer| match answer {
            ControlResponse::InForce(in_force) => Ok(in_force),
            _ => Err(AskError::other_question()),
        });
    let in_force = in_force.map_err(|e| daemon.failure(e, "show its rules"))?;
    match args.json {
        true => json::print(&json!({
            "policy": bits.policy,
            "placement": bits.placement,
            "plan": crate::status::plan_json(&bits.plan),
            "rules": in_force.rules.iter().map(rule_json).collect::<Vec<_>>(),
            "rules_hidden": in_force.rules_hidden,
            "limits": in_force.limits.iter().map(limit_json).collect::<Vec<_>>(),
        })),
        false => out::print(&format!(
            "policy {}, placement {}: {}\n{}",
            bits.policy,
            bits.placement,
            bits.plan.why,
            lines(&in_force)
        )),
    }
    Ok(Exit::Complete)
}

fn rule_json(rule: &RuleInForce) -> Value {
    json!({
        "path": rule.pattern,
        "durability": rule.durability,
        "mtbf_s": rule.mtbf_ms.map(|ms| ms as f64 / 1e3),
        "group": rule.group,
        "locality": rule.locality,
        "servers": rule.servers,
        "racks": rule.racks,
        "trust_s": rule.trust_ms.map(|ms| ms as f64 / 1e3),
    })
}

/// Rules and limits, a line each, in the order in which they are tried.
fn lines(in_force: &InForce) -> String {
    let rules = in_force.rules.iter();
    let rules = rules.map(|rule| format!("rule {}\n", in_words(rule)));
    let limits = in_force.limits.iter();
    let limits = limits.map(|limit| format!("limit {}\n", limit_in_words(limit)));
    rules.chain(limits).collect()
}

fn in_words(rule: &RuleInForce) -> String {
    let numbers = |name: &str, list: &[u16]| {
        let list: Vec<String> = list.iter().map(u16::to_string).collect();
        (!list.is_empty()).then(|| format!("{name} {}", list.join(", ")))
    };
    let named = |name: &str, value: &Option<String>| Some(format!("{name} {}", value.as_ref()?));
    let in_words = |ms: Option<u64>| ms.map(Duration::from_millis).map(format_duration);
    let parts = [
        named("durability", &rule.durability),
        named("mtbf", &in_words(rule.mtbf_ms)),
        named("group", &rule.group),
        named("locality", &rule.locality),
        numbers("servers", &rule.servers),
        numbers("racks", &rule.racks),
        named("trust", &in_words(rule.trust_ms)),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    match parts.is_empty() {
        true => rule.pattern.clone(),
        false => format!("{}: {}", rule.pattern, parts.join("; ")),
    }
}

fn limit_json(limit: &LimitInForce) -> Value {
    let (kind, id) = match limit.whose {
        Whose::EachUser => ("user", None),
        Whose::User(id) => ("user", Some(id)),
        Whose::EachGroup => ("group", None),
        Whose::Group(id) => ("group", Some(id)),
    };
    json!({
        "kind": kind,
        "id": id,
        "capacity_bytes": limit.capacity_bytes,
        "undrained_bytes": limit.undrained_bytes,
        "rate_bytes_per_s": limit.rate_bytes_per_s,
        "beyond": limit.beyond,
    })
}

fn limit_in_words(limit: &LimitInForce) -> String {
    let named = |name: &str, bytes: Option<u64>| Some(format!("{name} {}", format_size(bytes?)));
    let parts = [
        named("capacity", limit.capacity_bytes),
        named("undrained", limit.undrained_bytes),
        limit
            .rate_bytes_per_s
            .map(|rate| format!("rate {}/s", format_size(rate))),
        Some(format!("beyond: {}", limit.beyond)),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    format!("{}: {}", whose(limit.whose), parts.join("; "))
}
