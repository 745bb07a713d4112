//! Settings that a running server takes.

use forebay_policy::demotion::PlacementPolicy;
use forebay_policy::engine::Bandwidths;
use forebay_policy::history::Keep;
use forebay_policy::limits::Limit;
use forebay_policy::plan::DrainPolicy;

use crate::base::settings::PathRule;

/// What changes while the server runs; `None`: this stays as it is. All of it has been checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveSettings {
    /// Path rules.
    pub rules: Option<Vec<PathRule>>,
    /// Limits of users and groups.
    pub limits: Option<Vec<Limit>>,
    /// Scheduling policy.
    pub policy: Option<DrainPolicy>,
    /// Order of victims.
    pub placement: Option<PlacementPolicy>,
    /// The four bandwidths; without them those that were measured.
    pub bandwidths: Option<Option<Bandwidths>>,
    /// Hold the plan's rates.
    pub throttle: Option<bool>,
    /// Applications take turns.
    pub turns: Option<bool>,
    /// What is kept of what was written and read.
    pub history: Option<Keep>,
}
