//! The path rules in force. They may change while the server runs.

use std::sync::OnceLock;

use forebay_policy::holders::HolderRule;
use forebay_wire::control::RuleInForce;

use crate::base::settings::PathRule;
use crate::catalog::rules::Rules;

/// All rules since the start, the newest last. None goes: whoever has looked something up in one
/// goes on with it, and a look takes no lock.
pub struct RulesInForce {
    rules: Rules,
    shown: Vec<RuleInForce>,
    next: OnceLock<Box<RulesInForce>>,
}

impl RulesInForce {
    /// Takes the rules of a start.
    pub fn new(rules: &[PathRule]) -> RulesInForce {
        RulesInForce {
            rules: Rules::new(rules),
            shown: rules.iter().map(shown).collect(),
            next: OnceLock::new(),
        }
    }

    fn newest(&self) -> &RulesInForce {
        let mut newest = self;
        while let Some(next) = newest.next.get() {
            newest = next;
        }
        newest
    }

    /// Those in force now.
    pub fn now(&self) -> &Rules {
        &self.newest().rules
    }

    /// Those in force now, for people.
    pub fn shown(&self) -> Vec<RuleInForce> {
        self.newest().shown.clone()
    }

    /// Takes others.
    pub fn change(&self, rules: &[PathRule]) {
        let mut new = Box::new(RulesInForce::new(rules));
        let mut newest = self.newest();
        // Somebody else may be faster: these come behind.
        while let Err(mine) = newest.next.set(new) {
            new = mine;
            newest = newest.newest();
        }
    }
}

fn shown(rule: &PathRule) -> RuleInForce {
    let placement = rule.placement.as_ref();
    let of = |list: fn(&HolderRule) -> Vec<u16>| placement.map_or_else(Vec::new, list);
    RuleInForce {
        pattern: rule.pattern.clone(),
        durability: rule.durability.map(|level| level.to_string()),
        mtbf_ms: rule.mtbf.map(|mtbf| mtbf.as_millis() as u64),
        group: rule.group.map(|group| group.to_string()),
        locality: placement.map(|rule| rule.locality.to_string()),
        servers: of(|rule| rule.servers.iter().map(|id| id.0).collect()),
        racks: of(|rule| rule.racks.iter().map(|rack| rack.0).collect()),
        trust_ms: rule.trust.map(|trust| trust.as_millis() as u64),
    }
}

#[cfg(test)]
mod tests {
    use forebay_policy::durability::Durability;

    use super::*;

    fn rule(pattern: &str, durability: Durability) -> PathRule {
        PathRule {
            pattern: pattern.into(),
            durability: Some(durability),
            mtbf: None,
            group: None,
            placement: None,
            trust: None,
        }
    }

    #[test]
    fn the_newest_rules_count_and_older_ones_stay_for_who_looks() {
        let rules = RulesInForce::new(&[rule("/a", Durability::Pfs)]);
        let old = rules.now();
        rules.change(&[rule("/a", Durability::Memory)]);
        rules.change(&[rule("/a", Durability::Ssd), rule("/b", Durability::Pfs)]);
        assert_eq!(rules.now().durability(b"a"), Some(Durability::Ssd));
        assert_eq!(old.durability(b"a"), Some(Durability::Pfs));
        assert_eq!(rules.shown().len(), 2);
        assert_eq!(rules.shown()[0].durability.as_deref(), Some("ssd"));
        rules.change(&[]);
        assert_eq!(rules.now().durability(b"a"), None);
        assert!(rules.shown().is_empty());
    }

    #[test]
    fn two_changes_at_once_are_one_after_the_other() {
        let rules = RulesInForce::new(&[]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        rules.change(&[rule("/a", Durability::Pfs)]);
                        assert_eq!(rules.now().durability(b"a"), Some(Durability::Pfs));
                    }
                });
            }
        });
        let versions = std::iter::successors(Some(&rules), |one| one.next.get().map(|n| &**n));
        assert_eq!(versions.count(), 201);
    }
}
