//! The section `[lending]`: the memory of `[nodes]` is borrowed from jobs, which want it back.

use forebay_policy::lending::{Lending as Bounds, LendingError};

use super::read::Section;
use super::{Dist, Nodes, ScenarioError};

/// Memory that is borrowed and given back.
#[derive(Debug, Clone, PartialEq)]
pub struct Lending {
    /// Memory of a node, jobs' and the tier's, bytes.
    pub total_bytes: u64,
    /// Stays the tier's, whatever jobs need, bytes.
    pub min_bytes: u64,
    /// The tier never has more than this part of the memory.
    pub max_share: f64,
    /// What jobs have from which time on, bytes; in order.
    pub jobs: Vec<(f64, u64)>,
    /// By how much the jobs of each node come later than those of the node before, seconds.
    pub apart_s: f64,
    /// Jobs that are drawn, in place of the list.
    pub drawn: Option<DrawnJobs>,
}

/// Jobs that come at random, on each node by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct DrawnJobs {
    /// Mean time between two.
    pub every_s: f64,
    /// What one has, bytes.
    pub bytes: u64,
    /// How long it has that.
    pub lasts: Dist,
}

impl Lending {
    /// What the memory tier of a node may have; `memory_bytes`: the most.
    pub fn bounds(&self, memory_bytes: u64) -> Bounds {
        Bounds {
            min_bytes: self.min_bytes,
            max_bytes: memory_bytes,
            max_share: self.max_share,
        }
    }
}

/// Reads the section; `None` where the file has none and nobody sets a key of it. The memory of
/// each node becomes the most that its tier may borrow.
pub(super) fn lending(
    section: &Section<'_>,
    nodes: Option<&mut Nodes>,
) -> Result<Option<Lending>, ScenarioError> {
    if section.line.is_none() && !section.is_overridden() {
        return Ok(None);
    }
    let wrong = |key: &str, why: String| section.error(key, section.line_of(key), why);
    let total_bytes = section.require("total", section.size("total")?)?;
    let max = section.size("max")?;
    let found = Lending {
        total_bytes,
        min_bytes: section.size("min")?.unwrap_or(0),
        max_share: section
            .number("max_share", 0.0..1.0)?
            .unwrap_or(Bounds::default().max_share),
        jobs: section.times_and_sizes("jobs")?.unwrap_or_default(),
        apart_s: section.seconds("apart")?.unwrap_or(0.0),
        drawn: drawn(section, total_bytes)?,
    };
    let Some(nodes) = nodes.filter(|nodes| nodes.all.iter().any(|n| n.memory_bytes > 0)) else {
        let why = "needs a section [nodes] with memory".to_owned();
        return Err(section.error("total", section.line, why));
    };
    if !found.jobs.is_sorted_by(|a, b| a.0 <= b.0) {
        return Err(wrong("jobs", "times must be in order".into()));
    }
    if let Some((_, bytes)) = found.jobs.iter().find(|job| job.1 > total_bytes) {
        let why = format!("a node has {total_bytes} bytes of memory, and jobs want {bytes}");
        return Err(wrong("jobs", why));
    }
    if !found.jobs.is_empty() && found.drawn.is_some() {
        let why = "jobs are listed, too; leave one of the two out".into();
        return Err(wrong("job_every", why));
    }
    for node in nodes.all.iter_mut().filter(|node| node.memory_bytes > 0) {
        let bounds = found.bounds(max.unwrap_or(node.memory_bytes));
        bounds.check().map_err(|error| {
            let key = match error {
                LendingError::Share(_) => "max_share",
                LendingError::Bounds { .. } => "min",
                LendingError::Small(_) => "max",
            };
            wrong(key, error.to_string())
        })?;
        node.memory_bytes = bounds.most_bytes(total_bytes);
        if node.memory_bytes > total_bytes {
            let why = format!("must be at least {} bytes", node.memory_bytes);
            return Err(wrong("total", why));
        }
    }
    Ok(Some(found))
}

fn drawn(section: &Section<'_>, total_bytes: u64) -> Result<Option<DrawnJobs>, ScenarioError> {
    let every = section.seconds("job_every")?;
    let share = section.number("job_share", 0.0..1.0)?;
    let lasts = section.dist("job_time")?;
    if every.is_none() && share.is_none() && lasts.is_none() {
        return Ok(None);
    }
    let drawn = DrawnJobs {
        every_s: section.require("job_every", every)?,
        bytes: (total_bytes as f64 * section.require("job_share", share)?) as u64,
        lasts: section.require("job_time", lasts)?,
    };
    let positive = [
        ("job_every", drawn.every_s),
        ("job_share", drawn.bytes as f64),
        ("job_time", drawn.lasts.mean_s()),
    ];
    match positive.iter().find(|(_, value)| *value <= 0.0) {
        Some((key, _)) => Err(section.error(key, section.line_of(key), "must be more than 0")),
        None => Ok(Some(drawn)),
    }
}
