//! What changes while the server runs.

use forebay_policy::limits::{Owner, Whose};
use forebay_wire::control::{self, AheadStatus, InForce, LimitInForce, LimitStatus, Reloaded};

use crate::base::live::LiveSettings;
use crate::orders::asker::Asker;
use crate::rooms::Rooms;

/// Users and groups in one status: more would be nobody's to read.
const LIMITS_SHOWN_MAX: usize = 100;

/// Reads the settings again and takes what can be taken; says what that was.
pub type Reload = Box<dyn Fn() -> Reloaded + Send + Sync>;

impl Rooms {
    /// Takes changed settings into force.
    pub fn take(&self, live: &LiveSettings) {
        if let Some(rules) = &live.rules {
            self.catalog.rules_in_force().change(rules);
        }
        if let Some(limits) = &live.limits {
            self.buffer.set_limits(limits);
        }
        if let Some(keep) = live.history {
            self.catalog.history().set_keep(keep);
        }
        let engine = self.plan.engine();
        engine.choose(live.policy, live.placement);
        engine.switch(live.throttle, live.turns);
        match live.bandwidths {
            Some(Some(bandwidths)) => engine.set_bandwidths(bandwidths),
            // At once: without any, plans would be others in between.
            Some(None) => engine.replace_bandwidths(self.plan.measured_bandwidths()),
            None => {}
        }
    }

    /// Takes the way to read the settings again. The first is kept.
    pub fn reload_by(&self, reload: Reload) {
        if self.reload.set(reload).is_err() {
            tracing::error!("a second way to read the settings; the first is used");
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
            limits: self.limits_in_force(asker),
            rules_hidden: !asker.is_trusted(),
        }
    }

    /// Of another user's limits only root and the server's own user hear.
    fn limits_in_force(&self, asker: &Asker) -> Vec<LimitInForce> {
        let limits = self.buffer.ledger().limits();
        let shown = limits.listed().iter().filter(|(whose, _)| match whose {
            Whose::EachUser | Whose::EachGroup => true,
            Whose::One(owner) => asker.may_hear_of(*owner),
        });
        let shown = shown.map(|(whose, bounds)| LimitInForce {
            whose: match whose {
                Whose::EachUser => control::Whose::EachUser,
                Whose::EachGroup => control::Whose::EachGroup,
                Whose::One(Owner::User(id)) => control::Whose::User(*id),
                Whose::One(Owner::Group(id)) => control::Whose::Group(*id),
            },
            capacity_bytes: bounds.capacity_bytes,
            undrained_bytes: bounds.undrained_bytes,
            rate_bytes_per_s: bounds.rate_bytes_per_s,
            beyond: bounds.beyond.to_string(),
        });
        shown.collect()
    }

    /// What was brought in before programs asked for it.
    pub fn ahead_status(&self) -> AheadStatus {
        let totals = self.buffer.guesses().totals();
        let (lists, folders) = self.ahead.counts();
        AheadStatus {
            guessed_bytes: totals.guessed_bytes,
            hit_bytes: totals.hit_bytes,
            wasted_bytes: totals.wasted_bytes,
            unread_bytes: totals.unread_bytes,
            lists,
            folders,
            runs: self.ahead.runs_status(),
        }
    }

    /// How many users and groups have something here and a limit, and those with most.
    pub fn limit_status(&self, asker: &Asker) -> (u64, Vec<LimitStatus>) {
        let mut all = self.buffer.ledger().under_limits();
        all.retain(|(owner, ..)| asker.may_hear_of(*owner));
        let total = all.len() as u64;
        let shown = all.into_iter().take(LIMITS_SHOWN_MAX);
        let shown = shown.map(|(owner, figures, bounds)| {
            let (is_group, id) = match owner {
                Owner::User(id) => (false, id),
                Owner::Group(id) => (true, id),
            };
            let written = self.buffer.rates().written(owner);
            LimitStatus {
                is_group,
                id,
                used_bytes: figures.held.bytes,
                capacity_bytes: bounds.capacity_bytes,
                dirty_bytes: figures.dirty_bytes,
                undrained_bytes: bounds.undrained_bytes,
                rate_bytes_per_s: bounds.rate_bytes_per_s,
                written_bytes: written.bytes,
                paused_ms: (written.paused_s * 1000.0) as u64,
                beyond: bounds.beyond.to_string(),
            }
        });
        (total, shown.collect())
    }
}
