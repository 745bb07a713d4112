//! The keys of `cluster.toml`, as they are written.

use serde::Deserialize;
use toml::Spanned;

use crate::up::given::{Demotion, Engine, Given, History, Http, Rule, Scrub};
use crate::up::limits::Limit;
use crate::up::values::{
    Count, Dram, Folder, Fraction, Level, Patience, PolicyName, Rate, Size, Span, Spread, Ssd,
    Switch,
};

/// The whole file. What [`Given`] has beside a server's own tiers is here under the same names.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    pub cluster: Option<Section>,
    #[serde(default, rename = "server")]
    pub servers: Vec<Spanned<WrittenServer>>,
    #[serde(default)]
    pub mount: WrittenMount,
    pub durability: Option<Spanned<Level>>,
    pub policy: Option<PolicyName>,
    pub passthrough: Option<Switch>,
    pub overrun: Option<Size>,
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

/// `[cluster]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    pub name: Spanned<String>,
    pub pfs: Spanned<Folder>,
    pub key: Spanned<Folder>,
    pub store: Option<Spanned<String>>,
    pub replicas: Option<Spanned<Count>>,
    pub replica_rate: Option<Spanned<Rate>>,
    pub restart_copies: Option<Spanned<Count>>,
    pub restart_copies_space: Option<Spanned<Fraction>>,
    pub encrypt: Option<Switch>,
    pub squash_root: Option<Switch>,
    pub lease: Option<Spanned<Span>>,
    pub connection_rate: Option<Spanned<Rate>>,
}

/// `[[server]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenServer {
    pub id: Spanned<Count>,
    pub roles: Spanned<Vec<Role>>,
    pub addresses: Spanned<Vec<Spanned<String>>>,
    pub replication_addresses: Option<Spanned<Vec<Spanned<String>>>>,
    pub rack: Option<Spanned<String>>,
    pub host: Option<Spanned<String>>,
    pub state: Spanned<Folder>,
    pub dram: Option<Spanned<Dram>>,
    pub dram_min: Option<Size>,
    pub dram_max: Option<Size>,
    pub dram_max_share: Option<Fraction>,
    #[serde(default)]
    pub ssd: Vec<Spanned<Ssd>>,
}

/// What a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Names and attributes of files.
    Metadata,
    /// Bytes of files.
    Data,
}

/// `[mount]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenMount {
    pub connections: Option<Spanned<Count>>,
    pub distribution: Option<Spread>,
    pub soft: Option<Spanned<Patience>>,
    pub encrypt: Option<Spanned<Switch>>,
    pub allow_other: Option<Switch>,
    pub threads: Option<Count>,
}

impl Written {
    /// What all servers have in common, as `up` takes it; a server's own tiers are still missing.
    pub fn shared(&self) -> Given {
        Given {
            durability: self.durability.clone().map(Spanned::into_inner),
            policy: self.policy.clone(),
            passthrough: self.passthrough.clone(),
            overrun: self.overrun.clone(),
            wait_for_space: self.wait_for_space.clone(),
            pfs_timeout: self.pfs_timeout.clone(),
            allow_other: self.mount.allow_other.clone(),
            threads: self.mount.threads.clone(),
            demotion: self.demotion.clone(),
            engine: self.engine.clone(),
            scrub: self.scrub.clone(),
            history: self.history.clone(),
            http: self.http.clone(),
            rules: self.rules.clone(),
            limits: self.limits.clone(),
            ..Given::default()
        }
    }
}
