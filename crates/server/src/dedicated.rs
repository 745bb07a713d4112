//! The policy `dedicated`: each application owns a share of the space for as long as it has data here, and shares nothing.

use std::collections::HashMap;

use forebay_policy::plan::DrainPolicy;
use forebay_policy::share::{ShareAdmission, Shares};
use forebay_types::ObjectId;
use parking_lot::Mutex;

use crate::core::Core;
use crate::settings::Settings;

/// Shares there are unless a size is configured.
const SHARES_DEFAULT: u64 = 8;

/// Shares, made when the policy is first in force.
pub struct Dedicated {
    shares: Mutex<Option<Shares>>,
    share_bytes: Option<u64>,
}

impl Dedicated {
    /// None given away.
    pub fn new(settings: &Settings) -> Dedicated {
        Dedicated {
            shares: Mutex::new(None),
            share_bytes: settings.engine.share_bytes,
        }
    }

    /// Refuses a share that does not fit.
    pub fn check(&self, capacity_bytes: u64) -> Result<(), String> {
        match self.share_bytes {
            Some(share) => Shares::new(capacity_bytes, share)
                .map(|_| ())
                .map_err(|e| e.to_string()),
            None => Ok(()),
        }
    }
}

impl Core {
    fn own_capacity_bytes(&self) -> u64 {
        let (_, capacity) = self.ledger.dirty_and_capacity();
        capacity.min(self.ledger.dirty_cap_bytes())
    }

    fn with_shares<T>(&self, act: impl FnOnce(&mut Shares) -> T) -> Option<T> {
        if self.engine.policy() != DrainPolicy::Dedicated {
            return None;
        }
        let mut shares = self.dedicated.shares.lock();
        if shares.is_none() {
            let capacity = self.own_capacity_bytes();
            let share = self
                .dedicated
                .share_bytes
                .unwrap_or(capacity / SHARES_DEFAULT);
            *shares = Shares::new(capacity, share.clamp(1, capacity.max(1))).ok();
        }
        shares.as_mut().map(act)
    }

    /// Whether a new file of an application may come into the burst buffer; `true` under every other policy. Where its
    /// share is full, its own clean copies go first.
    pub fn has_share(&self, application: &str, bytes: u64) -> bool {
        let number = u64::from(self.apps.number_or_new(application));
        // What it needs counts as it grows.
        let ask = |shares: &mut Shares| shares.has_room(number, bytes.min(shares.share_bytes()));
        match self.with_shares(ask) {
            None | Some(ShareAdmission::Admit) => true,
            Some(ShareAdmission::Wait) => {
                let freed = self.evict_own(number, bytes);
                self.with_shares(|shares| {
                    shares.freed(number, freed);
                    ask(shares) == ShareAdmission::Admit
                })
                .unwrap_or(true)
            }
            Some(ShareAdmission::TooLarge | ShareAdmission::NoShare) => false,
        }
    }

    fn evict_own(&self, application: u64, wanted_bytes: u64) -> u64 {
        let files: Vec<_> = self.files.read().values().cloned().collect();
        let mut freed = 0;
        for file in files {
            if freed >= wanted_bytes {
                break;
            }
            let own = self
                .apps
                .of(file.object)
                .is_some_and(|(n, _)| u64::from(n) == application);
            let clean = file.lock().residency.clean;
            if own && clean {
                freed += self.evict(&file).unwrap_or(0);
            }
        }
        self.wake_collector();
        freed
    }

    /// Whether a file may grow by `len` within its application's share; `true` under every other policy.
    pub fn fits_share(&self, object: ObjectId, len: u64) -> bool {
        let Some((number, _)) = self.apps.of(object) else {
            return true;
        };
        let admitted = self.with_shares(|shares| shares.admit(u64::from(number), len));
        matches!(admitted, None | Some(ShareAdmission::Admit))
    }

    /// Counts what each application really holds, and takes shares back from those that hold nothing.
    pub fn tend_shares(&self) {
        if self.engine.policy() != DrainPolicy::Dedicated {
            *self.dedicated.shares.lock() = None;
            return;
        }
        let mut used: HashMap<u64, u64> = HashMap::new();
        let files: Vec<_> = self.files.read().values().cloned().collect();
        for file in files {
            if let Some((number, _)) = self.apps.of(file.object) {
                *used.entry(number.into()).or_default() += self.ledger.used_bytes(file.object);
            }
        }
        self.with_shares(|shares| {
            let gone: Vec<u64> = shares.owners().filter(|o| !used.contains_key(o)).collect();
            gone.into_iter().for_each(|owner| shares.release(owner));
            for (owner, bytes) in used {
                shares.set_used(owner, bytes);
            }
        });
    }
}
