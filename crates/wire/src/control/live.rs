//! Rules and limits in force, and what a running burst buffer takes of changed settings.

use serde::{Deserialize, Serialize};

/// A path rule in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleInForce {
    /// Which paths it is for.
    pub pattern: String,
    /// What fsync promises there.
    pub durability: Option<String>,
    /// MTBF of these applications before their first restart, milliseconds.
    pub mtbf_ms: Option<u64>,
    /// By what versions there are published.
    pub group: Option<String>,
    /// How near to their writer files lie, where the rule says on which servers.
    pub locality: Option<String>,
    /// Allowed servers; none: all.
    pub servers: Vec<u16>,
    /// Allowed racks, by number; none: all.
    pub racks: Vec<u16>,
    /// For how long after a look clean copies are taken as what the PFS has, milliseconds.
    pub trust_ms: Option<u64>,
}

/// Whose limit it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Whose {
    /// Of every user but root who has none of his own.
    EachUser,
    /// Of this user.
    User(u32),
    /// Of every group but root's that has none of its own.
    EachGroup,
    /// Of this group.
    Group(u32),
}

/// A limit as the configuration has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitInForce {
    /// Whose.
    pub whose: Whose,
    /// Space in the burst buffer, bytes.
    pub capacity_bytes: Option<u64>,
    /// Undrained data, bytes.
    pub undrained_bytes: Option<u64>,
    /// Writes, bytes per second.
    pub rate_bytes_per_s: Option<u64>,
    /// `wait` or `direct`.
    pub beyond: String,
}

/// What one user or group has here against the limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitStatus {
    /// It is a group, not a user.
    pub is_group: bool,
    /// Number of the user or group.
    pub id: u32,
    /// Occupied or set aside, bytes.
    pub used_bytes: u64,
    /// Limit of that.
    pub capacity_bytes: Option<u64>,
    /// Undrained, bytes.
    pub dirty_bytes: u64,
    /// Limit of that.
    pub undrained_bytes: Option<u64>,
    /// Limit of writes, bytes per second.
    pub rate_bytes_per_s: Option<u64>,
    /// Written since the first write under that limit, bytes.
    pub written_bytes: u64,
    /// For how long writes were held back by it, their sum, milliseconds.
    pub paused_ms: u64,
    /// `wait` or `direct`.
    pub beyond: String,
}

/// Rules and limits in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InForce {
    /// First match wins.
    pub rules: Vec<RuleInForce>,
    /// Limits, in the order of the configuration.
    pub limits: Vec<LimitInForce>,
    /// Rules are left out: who asks is neither root nor the user who runs the server.
    pub rules_hidden: bool,
}

/// What came of reading the settings again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Why nothing was taken; `None`: what could be taken was.
    pub refused: Option<String>,
    /// Keys that have changed and are in force now.
    pub taken: Vec<String>,
    /// Keys that have changed and need a restart.
    pub restart: Vec<String>,
}
