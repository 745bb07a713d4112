//! What may be set: every setting once, with its type. The names of the fields are the keys of the
//! file. In capitals and with `FOREBAY_` in front, they are the names of the variables.
//! docs/operations.md has a row for each, which a test compares.

use serde::Deserialize;
use toml::Spanned;

use super::limits::Limit;
use super::values::{
    Count, Dram, Folder, Fraction, Group, Level, Listening, Order, PolicyName, Rate, Size, Span,
    Ssd, Switch, Verification, Vicinity,
};

/// What command line, environment and file say together. `None`: the default, which the server's
/// settings have.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // docs/operations.md says what they mean
pub struct Given {
    pub pfs: Option<Folder>,
    pub mount: Option<Folder>,
    pub state: Option<Folder>,
    pub dram: Option<Dram>,
    pub dram_min: Option<Size>,
    pub dram_max: Option<Size>,
    pub dram_max_share: Option<Fraction>,
    pub ssd: Option<Vec<Ssd>>,
    pub durability: Option<Level>,
    pub policy: Option<PolicyName>,
    pub passthrough: Option<Switch>,
    pub overrun: Option<Size>,
    pub allow_other: Option<Switch>,
    pub threads: Option<Count>,
    pub wait_for_space: Option<Span>,
    pub pfs_timeout: Option<Span>,
    #[serde(default)]
    pub demotion: Demotion,
    #[serde(default)]
    pub engine: Engine,
    #[serde(default)]
    pub scrub: Scrub,
    #[serde(default)]
    pub history: History,
    #[serde(default)]
    pub http: Http,
    #[serde(default, rename = "rule")]
    pub rules: Vec<Rule>,
    #[serde(default, rename = "limit")]
    pub limits: Vec<Limit>,
}

/// The section `[demotion]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Demotion {
    pub idle: Option<Switch>,
    pub idle_after: Option<Span>,
    pub start: Option<Fraction>,
    pub dirty_cap: Option<Fraction>,
    pub verify: Option<Verification>,
    pub workers: Option<Count>,
    pub retry_after: Option<Span>,
}

/// The section `[engine]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Engine {
    pub period: Option<Span>,
    pub bw_max: Option<Rate>,
    pub bw_min: Option<Rate>,
    pub br_max: Option<Rate>,
    pub br_min: Option<Rate>,
    pub placement: Option<Order>,
    pub throttle: Option<Switch>,
    pub turns: Option<Switch>,
    pub turn: Option<Span>,
    pub max_wait: Option<Span>,
    pub direct: Option<Switch>,
    pub keep_every: Option<Count>,
    pub share: Option<Size>,
    pub mtbf: Option<Span>,
    pub verify_window: Option<Span>,
    pub quiet: Option<Span>,
    pub forced_out: Option<Fraction>,
    pub normal_out: Option<Fraction>,
    pub read_ahead: Option<Fraction>,
    pub block_io: Option<Switch>,
    pub discard: Option<Size>,
}

/// The section `[scrub]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Scrub {
    pub enabled: Option<Switch>,
    pub pass: Option<Span>,
    pub rate_max: Option<Rate>,
    pub verify_on_open: Option<Size>,
    pub seal_after: Option<Span>,
    pub calm: Option<Span>,
}

/// The section `[history]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct History {
    pub keep: Option<Span>,
    pub size: Option<Size>,
}

/// The section `[http]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Http {
    pub listen: Option<Listening>,
    pub names: Option<Switch>,
}

/// One `[[rule]]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Rule {
    pub path: String,
    pub durability: Option<Spanned<Level>>,
    pub mtbf: Option<Span>,
    pub group: Option<Group>,
    pub locality: Option<Vicinity>,
    pub servers: Option<Spanned<Vec<Spanned<Count>>>>,
    pub racks: Option<Spanned<Vec<Spanned<String>>>>,
    pub trust: Option<Span>,
}

impl Rule {
    /// Whether it says on which servers files lie.
    pub fn places(&self) -> bool {
        self.locality.is_some() || self.servers.is_some() || self.racks.is_some()
    }
}
