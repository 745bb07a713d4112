//! Shares of applications, as they are used.

use std::collections::{HashMap, HashSet};

use forebay_policy::plan::DrainPolicy;
use forebay_policy::share::{ShareAdmission, Shares, given_away_bytes, has_ended};
use forebay_types::ObjectId;

use super::{Held, SHARES_DEFAULT};
use crate::plan::Plan;

impl Plan {
    fn own_capacity_bytes(&self) -> u64 {
        let (_, capacity) = self.buffer.ledger().dirty_and_capacity();
        capacity.min(self.buffer.ledger().dirty_cap_bytes())
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
            let share = share.clamp(1, capacity.max(1));
            *shares = Shares::new(given_away_bytes(capacity, share), share).ok();
        }
        shares.as_mut().map(act)
    }

    /// Whether a new file of an application may come into the burst buffer; `true` under every
    /// other policy. Where its share is full, its own clean copies go first.
    pub fn has_share(&self, application: &str, bytes: u64) -> bool {
        let number = u64::from(self.catalog.apps().number_or_new(application));
        // What it needs counts as it grows.
        let ask = |shares: &mut Shares| shares.has_room(number, bytes.min(shares.share_bytes()));
        match self.with_shares(ask) {
            None | Some(ShareAdmission::Admit) => true,
            Some(ShareAdmission::Wait) => {
                self.evict_own(number, bytes);
                self.tend_shares();
                matches!(self.with_shares(ask), None | Some(ShareAdmission::Admit))
            }
            Some(ShareAdmission::TooLarge | ShareAdmission::NoShare) => false,
        }
    }

    fn evict_own(&self, application: u64, wanted_bytes: u64) {
        let files: Vec<_> = self.buffer.files();
        let mut freed = 0;
        for file in files {
            if freed >= wanted_bytes {
                break;
            }
            let own = self
                .catalog
                .apps()
                .of(file.object)
                .is_some_and(|(n, _)| u64::from(n) == application);
            let clean = file.lock().residency.clean;
            if own && clean {
                freed += self.buffer.evict(&file).unwrap_or(0);
            }
        }
        self.buffer.wake_collector();
    }

    /// Whether a file may grow by `len` within its application's share; `true` under every other
    /// policy.
    pub fn fits_share(&self, object: ObjectId, len: u64) -> bool {
        let Some((number, _)) = self.catalog.apps().of(object) else {
            return true;
        };
        let admitted = self.with_shares(|shares| shares.admit(u64::from(number), len));
        matches!(admitted, None | Some(ShareAdmission::Admit))
    }

    /// Applications whose copies make room for nobody else; none under every other policy.
    pub fn share_owners(&self) -> HashSet<u64> {
        let owners = |shares: &mut Shares| shares.owners().collect();
        self.with_shares(owners).unwrap_or_default()
    }

    /// Counts what each application really holds, and takes shares back from those that have ended.
    pub fn tend_shares(&self) {
        if self.engine.policy() != DrainPolicy::Dedicated {
            *self.dedicated.shares.lock() = None;
            return;
        }
        let mut held: HashMap<u64, Held> = HashMap::new();
        let files: Vec<_> = self.buffer.files();
        for file in files {
            let (dirty, unlinked) = {
                let state = file.lock();
                (state.is_dirty(), state.is_unlinked())
            };
            // What has no name any more is on its way out.
            if let (Some((number, _)), false) = (self.catalog.apps().of(file.object), unlinked) {
                let bytes = self.buffer.ledger().used_bytes(file.object);
                let held = held.entry(number.into()).or_default();
                held.bytes += bytes;
                held.dirty_bytes += if dirty { bytes } else { 0 };
            }
        }
        let period_s = self.settings.engine.period.as_secs_f64();
        let has_ended = |owner: u64, held: Held| {
            let idle_s = self.catalog.apps().idle_s(owner as u32);
            has_ended(held.dirty_bytes, idle_s, period_s)
        };
        self.with_shares(|shares| {
            for owner in shares.owners().collect::<Vec<_>>() {
                let held = held.entry(owner).or_default();
                if has_ended(owner, *held) {
                    shares.release(owner);
                }
            }
            for (owner, held) in held {
                if !has_ended(owner, held) {
                    shares.set_used(owner, held.bytes);
                }
            }
        });
    }
}
