//! The sections `[nodes]` and `[[node]]`: a burst buffer of several data servers, each with memory,
//! flash and a link, that fail and come back.

use forebay_policy::durability::Durability;
use forebay_policy::holders::{HolderRule, Locality};
use forebay_policy::victims::OutThresholds;

use super::read::Section;
use super::{BurstBuffer, MAX_NODES, ScenarioError};

/// What memory moves where a scenario says nothing (ONFS 2017: 5 GB/s a node).
const MEMORY_BYTES_PER_S: f64 = 5e9;

/// How long a node is away where a scenario says nothing.
const REPAIR_S: f64 = 3600.0;

/// How often holders report and are lent shares of Brmax where a scenario says nothing.
const REPORT_S: f64 = 1.0;

/// Forced out and normal out where a scenario says nothing; those of the servers.
const OUT_FRACTIONS: (f64, f64) = (0.05, 0.2);

/// Most copies of a drained part that replicators make.
const MAX_RESTART_COPIES: u64 = 8;

/// One data server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NodeSpec {
    /// Tier of memory; 0: none. With a section `[lending]` the most that it borrows.
    pub memory_bytes: u64,
    /// Tier of flash; 0: none.
    pub flash_bytes: u64,
    /// Bwmax of the flash.
    pub write_bytes_per_s: f64,
    /// What restarts read of the flash.
    pub read_bytes_per_s: f64,
    /// The network, each direction; infinite: never in the way.
    pub link_bytes_per_s: f64,
    /// What fails, and is near, together.
    pub rack: u16,
}

/// The nodes, and what holds for all of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Nodes {
    /// Never empty.
    pub all: Vec<NodeSpec>,
    /// Bandwidths of one node's flash, as `[bb]` gives them; with another `write` in proportion.
    pub device: BurstBuffer,
    /// What memory takes.
    pub memory_write_bytes_per_s: f64,
    /// What memory gives.
    pub memory_read_bytes_per_s: f64,
    /// Applications run on these nodes; else on nodes of their own, in no known rack.
    pub is_local: bool,
    /// Which holders a new file prefers; allows all.
    pub rule: HolderRule,
    /// Servers that hold undrained data, 1 or 2.
    pub replicas: u32,
    /// What an fsync promises with one server: [`Durability::Ssd`] or [`Durability::Memory`].
    pub fsync: Durability,
    /// Copies of drained newest versions on other nodes, for restarts.
    pub restart_copies: usize,
    /// The slow network that these go over, each node's.
    pub restart_network_bytes_per_s: f64,
    /// A person's limit for making lost copies again.
    pub copy_limit_bytes_per_s: Option<f64>,
    /// Mean time between failures of one node; infinite: none fails by chance.
    pub mtbf_s: f64,
    /// Times at which a node, drawn by the seed, fails.
    pub fail_at_s: Vec<f64>,
    /// How long a node is away.
    pub repair_s: f64,
    /// Part of the failures that take the flash, too.
    pub flash_loss: f64,
    /// Time between two reports of a holder.
    pub report_s: f64,
    /// With no more than these parts of its capacity free, memory is left by all that is not
    /// written, and by what is closed. Only under the placement `coolness`.
    pub out_fractions: (f64, f64),
}

impl Nodes {
    /// When files leave a tier of memory or flash downward that may have so much now.
    pub fn out_thresholds(&self, capacity_bytes: u64) -> Option<OutThresholds> {
        let (forced, normal) = self.out_fractions;
        let of = |fraction: f64| (capacity_bytes as f64 * fraction) as u64;
        // The order of the fractions was checked.
        OutThresholds::new(of(forced), of(normal)).ok()
    }

    /// Bandwidths of the flash of a node.
    pub fn flash_of(&self, spec: &NodeSpec) -> BurstBuffer {
        let scale = spec.write_bytes_per_s / self.device.bw_max_bytes_per_s;
        BurstBuffer {
            nodes: 1,
            capacity_bytes: spec.flash_bytes,
            bw_max_bytes_per_s: spec.write_bytes_per_s,
            bw_min_bytes_per_s: self.device.bw_min_bytes_per_s * scale,
            br_max_bytes_per_s: self.device.br_max_bytes_per_s * scale,
            br_min_bytes_per_s: self.device.br_min_bytes_per_s * scale,
            read_bytes_per_s: spec.read_bytes_per_s,
            idle_s: self.device.idle_s,
        }
    }

    /// The memory of a node, as a tier: what it writes and what is drained from it do not disturb
    /// each other.
    pub fn memory_of(&self, spec: &NodeSpec) -> BurstBuffer {
        BurstBuffer {
            nodes: 1,
            capacity_bytes: spec.memory_bytes,
            bw_max_bytes_per_s: self.memory_write_bytes_per_s,
            bw_min_bytes_per_s: self.memory_write_bytes_per_s,
            br_max_bytes_per_s: self.memory_read_bytes_per_s,
            br_min_bytes_per_s: self.memory_read_bytes_per_s,
            read_bytes_per_s: self.memory_read_bytes_per_s,
            idle_s: self.device.idle_s,
        }
    }

    /// All nodes together, as `[bb]` describes a burst buffer without this section.
    pub fn together(&self) -> BurstBuffer {
        let mut sum = BurstBuffer {
            nodes: self.all.len() as u32,
            capacity_bytes: 0,
            bw_max_bytes_per_s: 0.0,
            bw_min_bytes_per_s: 0.0,
            br_max_bytes_per_s: 0.0,
            br_min_bytes_per_s: 0.0,
            read_bytes_per_s: 0.0,
            idle_s: self.device.idle_s,
        };
        for spec in &self.all {
            let tiers = [self.memory_of(spec), self.flash_of(spec)];
            for tier in tiers.iter().filter(|t| t.capacity_bytes > 0) {
                sum.capacity_bytes = sum.capacity_bytes.saturating_add(tier.capacity_bytes);
                sum.bw_max_bytes_per_s += tier.bw_max_bytes_per_s;
                sum.bw_min_bytes_per_s += tier.bw_min_bytes_per_s;
                sum.br_max_bytes_per_s += tier.br_max_bytes_per_s;
                sum.br_min_bytes_per_s += tier.br_min_bytes_per_s;
                sum.read_bytes_per_s += tier.read_bytes_per_s;
            }
        }
        sum
    }
}

/// Reads both sections; `None` where the file has no `[nodes]` and nobody sets a key of it.
/// `device` is `[bb]`: one node's figures then.
pub(super) fn nodes(
    section: &Section<'_>,
    list: &[Section<'_>],
    bb: &Section<'_>,
    device: &BurstBuffer,
) -> Result<Option<Nodes>, ScenarioError> {
    if section.line.is_none() && list.is_empty() && !section.is_overridden() {
        return Ok(None);
    }
    if device.nodes != 1 {
        let why = "is nodes.count where there is a section [nodes]; the figures of [bb] are of one node then";
        return Err(bb.error("nodes", bb.line_of("nodes"), why));
    }
    let fsync = section.word("fsync")?.unwrap_or(Durability::Ssd);
    if !matches!(fsync, Durability::Ssd | Durability::Memory) {
        let why = "must be ssd or memory; replicas = 2 says replica";
        return Err(section.error("fsync", section.line_of("fsync"), why));
    }
    let rate = |key: &str, default| Ok::<f64, ScenarioError>(section.rate(key)?.unwrap_or(default));
    let nodes = Nodes {
        all: specs(section, list, device)?,
        device: *device,
        memory_write_bytes_per_s: rate("memory_write", MEMORY_BYTES_PER_S)?,
        memory_read_bytes_per_s: rate("memory_read", MEMORY_BYTES_PER_S)?,
        is_local: section.boolean("local")?.unwrap_or(true),
        rule: HolderRule {
            locality: section.word::<Locality>("locality")?.unwrap_or_default(),
            ..HolderRule::default()
        },
        replicas: section.count("replicas", 1, 2)?.unwrap_or(1) as u32,
        fsync,
        restart_copies: section
            .count("restart_copies", 0, MAX_RESTART_COPIES)?
            .unwrap_or(0) as usize,
        restart_network_bytes_per_s: rate("restart_network", f64::INFINITY)?,
        copy_limit_bytes_per_s: section.rate("copy_limit")?,
        mtbf_s: section.seconds("mtbf")?.unwrap_or(f64::INFINITY),
        fail_at_s: section.seconds_list("fail_at")?.unwrap_or_default(),
        repair_s: section.seconds("repair")?.unwrap_or(REPAIR_S),
        flash_loss: section.number("flash_loss", 0.0..1.0)?.unwrap_or(0.0),
        report_s: section.seconds("report")?.unwrap_or(REPORT_S),
        out_fractions: out_fractions(section)?,
    };
    let positive = [
        ("memory_write", nodes.memory_write_bytes_per_s),
        ("memory_read", nodes.memory_read_bytes_per_s),
        ("restart_network", nodes.restart_network_bytes_per_s),
        ("mtbf", nodes.mtbf_s),
        ("repair", nodes.repair_s),
        ("report", nodes.report_s),
    ];
    match positive.iter().find(|(_, value)| *value <= 0.0) {
        Some((key, _)) => Err(section.error(key, section.line_of(key), "must be more than 0")),
        None => Ok(Some(nodes)),
    }
}

/// Forced out and normal out.
fn out_fractions(section: &Section<'_>) -> Result<(f64, f64), ScenarioError> {
    let part = |key: &str, default| {
        let given = section.number(key, 0.0..1.0)?;
        Ok::<f64, ScenarioError>(given.unwrap_or(default))
    };
    let forced = part("forced_out", OUT_FRACTIONS.0)?;
    let normal = part("normal_out", OUT_FRACTIONS.1)?;
    if forced <= normal {
        return Ok((forced, normal));
    }
    let why = "exceeds nodes.normal_out: files move down before they are forced out";
    Err(section.error("forced_out", section.line_of("forced_out"), why))
}

/// Every node by itself: alike by `[nodes] count`, or one by one by `[[node]]`.
fn specs(
    section: &Section<'_>,
    list: &[Section<'_>],
    device: &BurstBuffer,
) -> Result<Vec<NodeSpec>, ScenarioError> {
    let count = section.count("count", 1, MAX_NODES)?;
    let racks = section.count("racks", 1, MAX_NODES)?.unwrap_or(1) as u16;
    let common = spec(
        section,
        &NodeSpec {
            memory_bytes: 0,
            flash_bytes: device.capacity_bytes,
            write_bytes_per_s: device.bw_max_bytes_per_s,
            read_bytes_per_s: device.read_bytes_per_s,
            link_bytes_per_s: f64::INFINITY,
            rack: 0,
        },
    )?;
    if list.is_empty() {
        let one = |i: u64| NodeSpec {
            rack: (i % u64::from(racks)) as u16,
            ..common
        };
        return Ok((0..count.unwrap_or(1)).map(one).collect());
    }
    if count.is_some() {
        let why = "the nodes are listed one by one as [[node]]; leave one of the two out";
        return Err(section.error("count", section.line_of("count"), why));
    }
    let mut all = Vec::new();
    for node in list {
        let mut one = spec(node, &common)?;
        let rack = node.count("rack", 0, MAX_NODES)?;
        for _ in 0..node.count("count", 1, MAX_NODES)?.unwrap_or(1) {
            one.rack = rack.unwrap_or(all.len() as u64 % u64::from(racks)) as u16;
            all.push(one);
        }
    }
    match all.len() as u64 > MAX_NODES {
        true => Err(list[0].error(
            "count",
            list[0].line,
            format!("more than {MAX_NODES} nodes"),
        )),
        false => Ok(all),
    }
}

fn spec(section: &Section<'_>, default: &NodeSpec) -> Result<NodeSpec, ScenarioError> {
    let spec = NodeSpec {
        memory_bytes: section.size("memory")?.unwrap_or(default.memory_bytes),
        flash_bytes: section.size("flash")?.unwrap_or(default.flash_bytes),
        write_bytes_per_s: section.rate("write")?.unwrap_or(default.write_bytes_per_s),
        read_bytes_per_s: section.rate("read")?.unwrap_or(default.read_bytes_per_s),
        link_bytes_per_s: section.rate("link")?.unwrap_or(default.link_bytes_per_s),
        rack: default.rack,
    };
    if spec.memory_bytes == 0 && spec.flash_bytes == 0 {
        let why = "a node needs memory or flash";
        return Err(section.error("flash", section.line_of("flash"), why));
    }
    let rates = [
        ("write", spec.write_bytes_per_s),
        ("read", spec.read_bytes_per_s),
        ("link", spec.link_bytes_per_s),
    ];
    match rates.iter().find(|(_, rate)| *rate <= 0.0) {
        Some((key, _)) => Err(section.error(key, section.line_of(key), "must be a positive rate")),
        None => Ok(spec),
    }
}
