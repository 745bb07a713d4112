//! Which application and version a file belongs to.

pub(crate) mod apps;
pub(crate) mod history;
pub(crate) mod inforce;
pub(crate) mod naming;
pub(crate) mod rules;

use forebay_policy::durability::Durability;

use crate::base::Base;
use apps::Applications;
use history::History;
use inforce::RulesInForce;
use rules::Rules;

/// What is known of applications, and what paths say.
pub struct Catalog {
    /// Applications.
    apps: Applications,
    /// Path rules.
    rules: RulesInForce,
    /// What is put on record.
    history: History,
    /// Default level of fsync.
    durability: Durability,
}

impl Catalog {
    /// Nothing is known of applications yet.
    pub fn new(base: &Base, durability: Durability) -> Catalog {
        let settings = base.settings();
        Catalog {
            apps: Applications::new(base.started(), settings.engine.quiet),
            rules: RulesInForce::new(&settings.rules),
            history: History::new(base),
            durability,
        }
    }

    /// Default level of fsync.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Applications.
    pub fn apps(&self) -> &Applications {
        &self.apps
    }

    /// Path rules.
    pub fn rules(&self) -> &Rules {
        self.rules.now()
    }

    /// The same, for people and for who takes others.
    pub fn rules_in_force(&self) -> &RulesInForce {
        &self.rules
    }
}
