//! Users and groups with a limit: where their new files go, and what leaves for them.

use forebay_policy::demotion::choose_victims;
use forebay_policy::limits::{Beyond, Owner, Owners};
use forebay_tiers::TierKind;
use forebay_types::TierId;

use crate::base::failure::Failure;
use crate::buffer::ledger::Refused;
use crate::files::{Files, MAKING_SPACE};

impl Files {
    /// Where a new file goes that was to go to a tier: straight to the PFS if its owner has used up
    /// a limit, and is not to wait. `bytes`: how large it will be, if that is known.
    pub fn place_within_limits(
        &self,
        placed: TierId,
        owners: Owners,
        bytes: Option<u64>,
    ) -> Result<TierId, Failure> {
        let ledger = self.buffer.ledger();
        if !ledger.has_limits() || self.buffer.tiers().kind(placed) == TierKind::Pfs {
            return Ok(placed);
        }
        let bytes = bytes.unwrap_or(1).max(1);
        let Some((owner, excess)) = ledger.excess_of_new(owners, bytes) else {
            return Ok(placed);
        };
        self.buffer.queue().hurry();
        self.make_space_of(owner, excess.missing_bytes);
        match ledger.excess_of_new(owners, bytes) {
            Some((_, excess)) if excess.beyond == Beyond::Direct => self.overflow(),
            _ => Ok(placed),
        }
    }

    /// Makes room where a file was refused `len` more bytes: in its tier, or in what its owner may
    /// have. Answers with what was freed.
    pub(super) fn make_space_for(&self, tier: TierId, refused: Refused, len: u64) -> u64 {
        match refused {
            Refused::Tier { missing_bytes } => self.make_space(tier, missing_bytes.max(len)),
            Refused::Limit { owner, excess } => self.make_space_of(owner, excess.missing_bytes),
            Refused::DirtyCap | Refused::Gone => 0,
        }
    }

    /// Evicts clean copies of a user's or group's files, whichever tiers they are in, until so much
    /// is freed, or no more can go. Answers with what was freed.
    pub(super) fn make_space_of(&self, owner: Owner, wanted_bytes: u64) -> u64 {
        if wanted_bytes == 0 {
            return 0;
        }
        let _one = self.making_space[usize::from(self.settings.server) % MAKING_SPACE].lock();
        let is_theirs = |uid, gid| match owner {
            Owner::User(id) => id == uid,
            Owner::Group(id) => id == gid,
        };
        let mut clean = self.clean_candidates(|state| is_theirs(state.meta.uid, state.meta.gid));
        let (policy, now_s) = (self.plan.engine().placement(), self.catalog.apps().now_s());
        let victims = choose_victims(policy, &mut clean, wanted_bytes, now_s);
        let freed = self.drop_clean(victims.ids);
        self.collect_garbage_of(None);
        freed
    }
}
