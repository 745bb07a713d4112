//! From the file to a checked [`Scenario`].

use std::fmt::Display;
use std::str::FromStr;

use forebay_policy::demotion::PlacementPolicy;
use forebay_policy::plan::DrainPolicy;
use forebay_policy::trigger::DEFAULT_IDLE_S;
use toml::de::DeTable;

use super::lending::lending;
use super::nodes::nodes;
use super::read::{Document, Section};
use super::{
    Application, Arrivals, Assume, BurstBuffer, Dist, FailureMode, Failures, Nodes, Override,
    Pattern, Pfs, Planning, Scenario, ScenarioError,
};

/// More applications than any machine runs at a time; each takes about 1 KiB.
pub const MAX_APPLICATIONS: u64 = 1_000_000;

/// More burst-buffer nodes than any machine has.
pub const MAX_NODES: u64 = 4096;

const MAX_COMPUTE_NODES: u64 = 10_000_000;

/// Mean time between failures of an application that says nothing: that of one node (see
/// `policy::mtbf`).
const DEFAULT_MTBF_S: f64 = forebay_policy::mtbf::PRIOR_MTBF_S;

/// The error for an unknown name: the names that are known.
#[derive(Debug)]
pub struct Unknown(String);

impl Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn named<T: Copy>(names: &[(&str, T)], given: &str) -> Result<T, Unknown> {
    let found = names
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(given));
    found.map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        Unknown(format!("must be one of {}, not {given}", known.join(", ")))
    })
}

impl FromStr for Pattern {
    type Err = Unknown;
    fn from_str(given: &str) -> Result<Self, Unknown> {
        named(&Self::NAMES, given)
    }
}

impl FromStr for FailureMode {
    type Err = Unknown;
    fn from_str(given: &str) -> Result<Self, Unknown> {
        named(&Self::NAMES, given)
    }
}

pub(super) fn parse(text: &str, overrides: &[Override]) -> Result<Scenario, ScenarioError> {
    let document = Document::new(text, overrides);
    let root = DeTable::parse(text).map_err(|error| ScenarioError {
        line: error.span().map(|span| document.line(&span)),
        key: String::new(),
        why: error.message().to_owned(),
    })?;
    let top = Section::new(&document, "", Some(root.get_ref()), None);
    let bb_section = top.section("bb")?;
    let device = burst_buffer(&bb_section)?;
    let nodes_section = top.section("nodes")?;
    let node_sections = top.sections("node")?;
    let mut nodes = nodes(&nodes_section, &node_sections, &bb_section, &device)?;
    let lending_section = top.section("lending")?;
    let lending = lending(&lending_section, nodes.as_mut())?;
    let bb = nodes.as_ref().map_or(device, Nodes::together);
    let pfs_section = top.section("pfs")?;
    let plan_section = top.section("plan")?;
    let arrivals_section = top.section("arrivals")?;
    let failures_section = top.section("failures")?;
    let assume_section = top.section("assume")?;
    let plan = planning(&plan_section)?;
    let mut application_sections = top.sections("application")?;
    // Parts of a checkpoint may be more than nodes where writers choose the node of each.
    let stripe_max = nodes.as_ref().map_or(u64::from(bb.nodes), |_| MAX_NODES);
    let mut applications = Vec::with_capacity(application_sections.len());
    for (index, section) in application_sections.iter_mut().enumerate() {
        applications.push(application(section, index, stripe_max, &plan)?);
    }
    let scenario = Scenario {
        name: top.text("name")?.unwrap_or_else(|| "scenario".into()),
        seed: top.count("seed", 0, 1 << 53)?.unwrap_or(1),
        duration_s: top.require("duration", top.seconds("duration")?)?,
        policy: top.word::<DrainPolicy>("policy")?.unwrap_or_default(),
        placement: top
            .word::<PlacementPolicy>("placement")?
            .unwrap_or_default(),
        version_aware: top.boolean("version_aware")?.unwrap_or(true),
        direct: top.boolean("direct_checkpoint")?.unwrap_or(false),
        pfs: pfs(&pfs_section, &device)?,
        bb,
        nodes,
        lending,
        plan,
        arrivals: Arrivals {
            pattern: arrivals_section.word("pattern")?.unwrap_or(Pattern::Random),
        },
        failures: failures(&failures_section)?,
        assume: assume(&assume_section)?,
        applications,
    };
    for section in [
        &top,
        &bb_section,
        &pfs_section,
        &plan_section,
        &arrivals_section,
        &failures_section,
        &assume_section,
        &nodes_section,
        &lending_section,
    ]
    .into_iter()
    .chain(&application_sections)
    .chain(&node_sections)
    {
        section.finish()?;
    }
    document.check_overrides()?;
    check_rates(&scenario, &bb_section)?;
    check_load(&scenario, &top, &application_sections)?;
    Ok(scenario)
}

fn burst_buffer(section: &Section<'_>) -> Result<BurstBuffer, ScenarioError> {
    let need = |key: &str| section.require(key, section.rate(key)?);
    let br_max_bytes_per_s = need("br_max")?;
    Ok(BurstBuffer {
        nodes: section.count("nodes", 1, MAX_NODES)?.unwrap_or(1) as u32,
        capacity_bytes: section.require("capacity", section.size("capacity")?)?,
        bw_max_bytes_per_s: need("bw_max")?,
        bw_min_bytes_per_s: need("bw_min")?,
        br_max_bytes_per_s,
        br_min_bytes_per_s: need("br_min")?,
        read_bytes_per_s: section.rate("read")?.unwrap_or(br_max_bytes_per_s),
        idle_s: section.seconds("idle")?.unwrap_or(DEFAULT_IDLE_S),
    })
}

fn pfs(section: &Section<'_>, bb: &BurstBuffer) -> Result<Pfs, ScenarioError> {
    let pfs = Pfs {
        servers: section.count("servers", 1, MAX_NODES)?.unwrap_or(1) as u32,
        bytes_per_s: section.rate("bandwidth")?.unwrap_or(bb.br_max_bytes_per_s),
        ordered_flush: section.boolean("ordered_flush")?.unwrap_or(true),
    };
    // Without a bandwidth of its own the PFS has Brmax, which is checked where it stands.
    let is_own = section.find("bandwidth").is_some();
    match pfs.bytes_per_s > 0.0 || !is_own {
        true => Ok(pfs),
        false => {
            let line = section.line_of("bandwidth");
            Err(section.error("bandwidth", line, "must be a positive rate"))
        }
    }
}

fn planning(section: &Section<'_>) -> Result<Planning, ScenarioError> {
    let period_s = section.require("period", section.seconds("period")?)?;
    if period_s <= 0.0 {
        let line = section.line_of("period");
        return Err(section.error("period", line, "must be a positive duration, not 0"));
    }
    let is_predicted = matches!(section.text("dwpp"), Ok(Some(word)) if word == "predicted");
    let dwpp_bytes = match is_predicted {
        true => None,
        false => section.size("dwpp")?,
    };
    Ok(Planning {
        period_s,
        dwpp_bytes,
    })
}

fn assume(section: &Section<'_>) -> Result<Assume, ScenarioError> {
    Ok(Assume {
        copies_stay: section.boolean("copies_stay")?.unwrap_or(true),
        whole_files: section.boolean("whole_files")?.unwrap_or(true),
        reads_are_use: section.boolean("reads_are_use")?.unwrap_or(true),
    })
}

fn failures(section: &Section<'_>) -> Result<Failures, ScenarioError> {
    Ok(Failures {
        mode: section.word("mode")?.unwrap_or(FailureMode::None),
        restarts_per_period: section
            .count("restarts_per_period", 1, 1_000_000)?
            .unwrap_or(100) as u32,
        from_s: section.seconds("from")?.unwrap_or(0.0),
        mtbf_known: section.boolean("mtbf_known")?.unwrap_or(false),
    })
}

fn application(
    section: &mut Section<'_>,
    index: usize,
    stripe_max: u64,
    plan: &Planning,
) -> Result<Application, ScenarioError> {
    let name = section.text("name")?;
    let name = name.unwrap_or_else(|| format!("application-{}", index + 1));
    section.also_known_as(format!("application.{name}"));
    let checkpoint_bytes = section.require("checkpoint", section.size("checkpoint")?)?;
    let dist = |key: &str, default_s| -> Result<Dist, ScenarioError> {
        Ok(section.dist(key)?.unwrap_or(Dist::Fixed(default_s)))
    };
    let application = Application {
        count: section.count("count", 1, MAX_APPLICATIONS)?.unwrap_or(1) as u32,
        nodes: section.count("nodes", 1, MAX_COMPUTE_NODES)?.unwrap_or(1) as u32,
        checkpoint_bytes,
        interval_s: section.seconds("interval")?.unwrap_or(plan.period_s),
        jitter: section.number("jitter", 0.0..1.0)?.unwrap_or(0.0),
        versions: section.count("versions", 1, 1 << 32)?,
        mtbf: dist("mtbf", DEFAULT_MTBF_S)?,
        start: dist("start", 0.0)?,
        runtime_s: section.seconds("runtime")?.unwrap_or(f64::INFINITY),
        link_bytes_per_s: section.rate("bandwidth")?.unwrap_or(f64::INFINITY),
        stripe: section.count("stripe", 1, stripe_max)?.unwrap_or(1) as u32,
        stage_in_bytes: section.size("stage_in")?.unwrap_or(0),
        dedicated_bytes: section.size("dedicated")?.unwrap_or(checkpoint_bytes),
        times_s: section.seconds_list("times")?.unwrap_or_default(),
        sizes_bytes: section.size_list("sizes")?.unwrap_or_default(),
        restarts_s: section.seconds_list("restarts")?.unwrap_or_default(),
        name,
    };
    let positive = [
        ("checkpoint", application.checkpoint_bytes as f64),
        ("interval", application.interval_s),
        ("mtbf", application.mtbf.mean_s()),
        ("bandwidth", application.link_bytes_per_s),
        ("dedicated", application.dedicated_bytes as f64),
    ];
    match positive.iter().find(|(_, value)| *value <= 0.0) {
        Some((key, _)) => Err(section.error(key, section.line_of(key), "must be more than 0")),
        None => check_history(section, &application).map(|()| application),
    }
}

/// What a history says is of one application, in the order of time, and complete.
fn check_history(section: &Section<'_>, application: &Application) -> Result<(), ScenarioError> {
    let (times, sizes) = (&application.times_s, &application.sizes_bytes);
    let is_given = !times.is_empty() || !application.restarts_s.is_empty();
    let wrong = if is_given && application.count > 1 {
        (
            "times",
            "times and restarts are of one application: count is 1",
        )
    } else if !times.is_sorted() {
        ("times", "must be in order")
    } else if !sizes.is_empty() && sizes.len() != times.len() {
        ("sizes", "must be as many as there are times")
    } else if sizes.contains(&0) {
        ("sizes", "must be more than 0")
    } else {
        return Ok(());
    };
    let (key, why) = wrong;
    Err(section.error(key, section.line_of(key), why))
}

/// The rates must be positive and in order; each is named with its line.
fn check_rates(scenario: &Scenario, section: &Section<'_>) -> Result<(), ScenarioError> {
    let bb = &scenario.bb;
    if let Some(nodes) = &scenario.nodes {
        return check_nodes(scenario, nodes, section);
    }
    if scenario.node_capacity_bytes() == 0 {
        let why = format!(
            "must be at least a byte on each of {} nodes, not {}",
            bb.nodes, bb.capacity_bytes
        );
        return Err(section.error("capacity", section.line_of("capacity"), why));
    }
    let Err(error) = scenario.node_plan(0.0).check() else {
        // Without a rate of its own reading has Brmax, which is right then.
        return match bb.read_bytes_per_s > 0.0 {
            true => Ok(()),
            false => Err(section.error("read", section.line_of("read"), "must be a positive rate")),
        };
    };
    Err(bad_plan(section, &error))
}

/// As [`check_rates`], of one node's figures.
fn check_nodes(
    scenario: &Scenario,
    nodes: &Nodes,
    section: &Section<'_>,
) -> Result<(), ScenarioError> {
    if scenario.policy == DrainPolicy::Dedicated && scenario.lending.is_some() {
        let why = "dedicated is modelled without [lending]";
        return Err(section.error("nodes", None, why));
    }
    if scenario.policy == DrainPolicy::Dedicated && nodes.all.len() > 1 {
        let why = "dedicated is modelled without [nodes], or with one node";
        return Err(section.error("nodes", None, why));
    }
    let bb = &nodes.device;
    let device = forebay_policy::engine::Bandwidths {
        bw_max_bytes_per_s: bb.bw_max_bytes_per_s,
        bw_min_bytes_per_s: bb.bw_min_bytes_per_s,
        br_max_bytes_per_s: bb.br_max_bytes_per_s,
        br_min_bytes_per_s: bb.br_min_bytes_per_s,
    };
    let input = device.input(1.0, 0.0, scenario.plan.period_s);
    input.check().map_err(|error| bad_plan(section, &error))
}

/// The key of `[bb]` that an error is about, with its line.
fn bad_plan(section: &Section<'_>, error: &forebay_policy::plan::PlanError) -> ScenarioError {
    use forebay_policy::plan::PlanError;
    let key = match error {
        PlanError::NotPositive { name, .. } | PlanError::Negative { name, .. } => match *name {
            "Bwmax" => "bw_max",
            "Bwmin" => "bw_min",
            "Brmax" => "br_max",
            "Brmin" => "br_min",
            _ => "capacity",
        },
        PlanError::WriteBandwidths { .. } => "bw_min",
        PlanError::ReadBandwidths { .. } => "br_min",
        PlanError::Overflow { .. } => "capacity",
    };
    section.error(key, section.line_of(key), error.to_string())
}

/// Refuses a load that the burst buffer cannot take: the queue would grow without end.
fn check_load(
    scenario: &Scenario,
    top: &Section<'_>,
    sections: &[Section<'_>],
) -> Result<(), ScenarioError> {
    if scenario.applications.is_empty() {
        return Err(top.error(
            "application",
            None,
            "there is none; add an [[application]] table",
        ));
    }
    if scenario.duration_s <= 0.0 {
        let line = top.line_of("duration");
        return Err(top.error("duration", line, "must be a positive duration, not 0"));
    }
    if scenario.application_count() > MAX_APPLICATIONS {
        let why = format!("more than {MAX_APPLICATIONS} applications");
        return Err(top.error("application", sections[0].line_of("count"), why));
    }
    // How many nodes are enough is what such a scenario asks: too few make checkpoints late, and
    // nothing more.
    if scenario.nodes.is_some() {
        return Ok(());
    }
    let mut total_bytes_per_s = 0.0;
    for (application, section) in scenario.applications.iter().zip(sections) {
        // What was written once can be written again, if late.
        if !application.times_s.is_empty() {
            continue;
        }
        let node_bytes_per_s = scenario.bb.bw_max_bytes_per_s / f64::from(scenario.bb.nodes);
        let rate =
            (node_bytes_per_s * f64::from(application.stripe)).min(application.link_bytes_per_s);
        let takes_s = application.checkpoint_bytes as f64 / rate;
        if takes_s > application.interval_s && application.runtime_s >= 2.0 * application.interval_s
        {
            let why = format!(
                "a checkpoint takes {takes_s:.1} s at the fastest, longer than its interval of {} s",
                application.interval_s
            );
            let line = section.line_of("checkpoint");
            return Err(section.error("checkpoint", line, why));
        }
        let lasts = application.runtime_s >= scenario.duration_s;
        if lasts && scenario.duration_s > application.interval_s {
            total_bytes_per_s += application.checkpoint_bytes as f64 * f64::from(application.count)
                / application.interval_s;
        }
    }
    if total_bytes_per_s > scenario.bb.bw_max_bytes_per_s {
        let why = format!(
            "the applications write {:.3e} bytes/s on average, the burst buffer takes {:.3e} at most",
            total_bytes_per_s, scenario.bb.bw_max_bytes_per_s
        );
        return Err(top.error("application", sections[0].line, why));
    }
    Ok(())
}
