//! Where files of each rule lie.

use std::ops::Range;

use forebay_policy::durability::Durability;
use forebay_policy::holders::{HolderId, HolderRule, Rack};

use super::checks::{Checks, REPLICAS_MAX, rack_number};
use super::config::Server;
use super::error::{ConfigError, Problem};
use super::written::Written;
use crate::up::given::Rule;

impl Checks<'_> {
    /// Where files of each rule lie, in the order of the rules; `None`: it says nothing of that.
    pub fn placements(
        &self,
        written: &Written,
        servers: &[Server],
    ) -> Result<Vec<Option<HolderRule>>, ConfigError> {
        let rules = written.rules.iter();
        rules.map(|rule| self.placement(rule, servers)).collect()
    }

    fn placement(
        &self,
        rule: &Rule,
        servers: &[Server],
    ) -> Result<Option<HolderRule>, ConfigError> {
        if !rule.places() {
            return Ok(None);
        }
        let placement = HolderRule {
            locality: rule.locality.clone().map(Into::into).unwrap_or_default(),
            servers: self.named_servers(rule, servers)?,
            racks: self.named_racks(rule, servers)?,
        };
        if let Some(span) = lists(rule) {
            let allows = |server: &&Server| {
                let rack = Rack(rack_number(servers, server));
                server.data && placement.allows(HolderId(server.id), rack)
            };
            let allowed = servers.iter().filter(allows);
            if allowed.clone().next().is_none() {
                return Err(self.at(span, Problem::RuleWithoutData));
            }
            let with_flash = allowed.filter(|server| !server.ssd.is_empty()).count();
            let level = rule.durability.as_ref().map(|level| level.get_ref().0);
            if level == Some(Durability::Replica) && with_flash < REPLICAS_MAX {
                return Err(self.at(span, Problem::RuleWithoutTwo(with_flash)));
            }
        }
        Ok(Some(placement))
    }

    fn named_servers(&self, rule: &Rule, servers: &[Server]) -> Result<Vec<HolderId>, ConfigError> {
        let Some(written) = &rule.servers else {
            return Ok(Vec::new());
        };
        if written.get_ref().is_empty() {
            return Err(self.at(written.span(), Problem::RuleEmpty("servers")));
        }
        let named = written.get_ref().iter().map(|one| {
            let id = one.get_ref().0;
            let found = servers.iter().find(|server| usize::from(server.id) == id);
            found.map(|server| HolderId(server.id)).ok_or_else(|| {
                let data = servers.iter().filter(|server| server.data);
                let known = data.map(|server| server.id).collect();
                self.at(one.span(), Problem::RuleServer { id, known })
            })
        });
        named.collect()
    }

    fn named_racks(&self, rule: &Rule, servers: &[Server]) -> Result<Vec<Rack>, ConfigError> {
        let Some(written) = &rule.racks else {
            return Ok(Vec::new());
        };
        if written.get_ref().is_empty() {
            return Err(self.at(written.span(), Problem::RuleEmpty("racks")));
        }
        let named = written.get_ref().iter().map(|one| {
            let rack = one.get_ref();
            let found = servers
                .iter()
                .find(|server| server.rack.as_ref() == Some(rack));
            let number = found.map(|server| Rack(rack_number(servers, server)));
            number.ok_or_else(|| {
                let racks = servers.iter().filter_map(|server| server.rack.clone());
                let mut known: Vec<String> = racks.collect();
                known.sort_unstable();
                known.dedup();
                let rack = rack.clone();
                self.at(one.span(), Problem::RuleRack { rack, known })
            })
        });
        named.collect()
    }
}

/// Where a rule names servers or racks.
fn lists(rule: &Rule) -> Option<Range<usize>> {
    let servers = rule.servers.as_ref().map(|list| list.span());
    servers.or_else(|| rule.racks.as_ref().map(|list| list.span()))
}

#[cfg(test)]
#[path = "placing_tests.rs"]
mod tests;
