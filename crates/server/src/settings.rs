//! What an administrator or user may set. Plain values: parsing them is the command line's work.

use std::path::PathBuf;
use std::time::Duration;

use forebay_policy::durability::Durability;

/// One flash directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SsdSetting {
    /// Where it is.
    pub dir: PathBuf,
    /// How much of it may be used, bytes; `None`: what its file system has, less a twentieth.
    pub capacity_bytes: Option<u64>,
}

/// How a finished copy on the PFS is compared with what was read from the burst buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Read back through the PFS client, whose cache may answer.
    ReadBack,
    /// The PFS client's cached pages are dropped first, so that its servers answer. Slower.
    Media,
}

/// Files matching a pattern belong to an application, or have a rung of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRule {
    /// Path from the root of the mount; `*` stands for part of one component, `**` for any number
    /// of components, `{app}` and `{version}` for what they name.
    pub pattern: String,
    /// What fsync promises for these files.
    pub durability: Option<Durability>,
}

/// When and how the drain runs.
#[derive(Clone, Debug, PartialEq)]
pub struct DemotionSettings {
    /// Demote when nothing has been written for `idle_after`.
    pub idle: bool,
    /// That quiet time.
    pub idle_after: Duration,
    /// Demote regardless of idleness from this fraction of the capacity in undrained data on.
    pub start_fraction: f64,
    /// Hard cap on undrained data as a fraction of the capacity.
    pub dirty_cap_fraction: f64,
    /// How copies are verified.
    pub verify: Verify,
    /// Copying threads.
    pub workers: usize,
    /// First wait before a failed demotion is tried again; doubled up to a minute.
    pub retry_after: Duration,
}

impl Default for DemotionSettings {
    fn default() -> Self {
        DemotionSettings {
            idle: true,
            idle_after: Duration::from_millis(500),
            start_fraction: 0.5,
            dirty_cap_fraction: 0.95,
            verify: Verify::ReadBack,
            workers: 2,
            retry_after: Duration::from_secs(1),
        }
    }
}

/// Everything a server is started with.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The slow file system; an existing, readable directory.
    pub pfs: PathBuf,
    /// Where it is shown (for messages; the server does not mount).
    pub mount: PathBuf,
    /// State folder; exists, and the caller holds its lock.
    pub state: PathBuf,
    /// Size of the memory tier, bytes.
    pub dram_bytes: Option<u64>,
    /// Flash directories.
    pub ssd: Vec<SsdSetting>,
    /// What fsync promises; `None`: `ssd` where there is a flash tier, else `pfs`.
    pub durability: Option<Durability>,
    /// First match wins.
    pub rules: Vec<PathRule>,
    /// Name of the scheduling policy.
    pub policy: String,
    /// The drain.
    pub demotion: DemotionSettings,
    /// Let the kernel read and write objects by itself where it can.
    pub passthrough: bool,
    /// How long a write waits for space before it goes straight to the PFS.
    pub wait_for_space: Duration,
}

impl Settings {
    /// Defaults around the three directories that have none.
    pub fn new(pfs: PathBuf, mount: PathBuf, state: PathBuf) -> Settings {
        Settings {
            pfs,
            mount,
            state,
            dram_bytes: None,
            ssd: Vec::new(),
            durability: None,
            rules: Vec::new(),
            policy: "bbos".into(),
            demotion: DemotionSettings::default(),
            passthrough: true,
            wait_for_space: Duration::from_secs(2),
        }
    }
}
