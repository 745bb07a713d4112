//! What changes while the server runs.

use forebay_wire::control::{InForce, Reloaded};

use crate::base::live::LiveSettings;
use crate::orders::asker::Asker;
use crate::rooms::Rooms;

/// Reads the settings again and takes what can be taken; says what that was.
pub type Reload = Box<dyn Fn() -> Reloaded + Send + Sync>;

impl Rooms {
    /// Takes changed settings into force.
    pub fn take(&self, live: &LiveSettings) {
        if let Some(rules) = &live.rules {
            self.catalog.rules_in_force().change(rules);
        }
        if let Some(keep) = live.history {
            self.catalog.history().set_keep(keep);
        }
        let engine = self.plan.engine();
        engine.choose(live.policy, live.placement);
        engine.switch(live.throttle, live.turns);
        match live.bandwidths {
            Some(Some(bandwidths)) => engine.set_bandwidths(bandwidths),
            Some(None) => {
                engine.forget_bandwidths();
                self.plan.restore_bandwidths();
            }
            None => {}
        }
    }

    /// Reads the settings again.
    pub fn reload(&self) -> Reloaded {
        match self.reload.get() {
            Some(reload) => reload(),
            None => Reloaded {
                refused: Some(
                    "this server takes no settings while it runs; they count after a restart"
                        .into(),
                ),
                ..Reloaded::default()
            },
        }
    }

    /// Rules and limits, as a user is shown them.
    pub fn in_force(&self, asker: &Asker) -> InForce {
        InForce {
            rules: match asker.is_trusted() {
                true => self.catalog.rules_in_force().shown(),
                false => Vec::new(),
            },
            limits: Vec::new(),
            rules_hidden: !asker.is_trusted(),
        }
    }
}
