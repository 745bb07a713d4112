//! Room for what is expected soon, made of what is wanted less.

use forebay_policy::demotion::{CleanCandidate, choose_victims};
use forebay_policy::runs::is_wanted_less;
use forebay_tiers::TierKind;
use forebay_types::{ObjectId, TierId, limits::SPACE_UNIT_BYTES};

use crate::files::{Files, MAKING_SPACE};

impl Files {
    /// Makes room of so many bytes in one tier that can hold a file of `size` bytes, for a run with
    /// this period in seconds, if what is wanted less there is enough; whether there is room.
    pub fn make_room_for_run(&self, bytes: u64, size: u64, period_s: f64) -> bool {
        let (policy, now_s) = (self.plan.engine().placement(), self.catalog.apps().now_s());
        for space in self.buffer.spaces() {
            let tier = TierId(space.index as u8);
            let tiers = self.buffer.tiers();
            if tiers.kind(tier) == TierKind::Pfs || tiers.is_out_of_reach(tier) {
                continue;
            }
            if space.capacity_bytes < size {
                continue;
            }
            // As much as a file is placed with.
            let wanted = bytes.next_multiple_of(SPACE_UNIT_BYTES);
            let missing = wanted
                .min(space.capacity_bytes)
                .saturating_sub(space.available_bytes());
            if missing == 0 {
                return true;
            }
            if self.buffer.ledger().figures(tier).other_files == 0 {
                continue;
            }
            let server = tiers.get(tier).map_or(0, |slot| slot.server);
            let _one = self.making_space[usize::from(server) % MAKING_SPACE].lock();
            let mut less = self.clean_candidates(|state| state.residency.tier == tier);
            less.retain(|c| {
                let candidate = c.candidate();
                let is_certain = (self.catalog.apps()).is_surely_outdated(ObjectId(candidate.id));
                is_wanted_less(candidate, is_certain, period_s, now_s)
            });
            let bytes_of = |c: &CleanCandidate| c.candidate().bytes;
            if less.iter().map(bytes_of).sum::<u64>() < missing {
                continue;
            }
            let victims = choose_victims(policy, &mut less, missing, now_s);
            // Some may have been opened meanwhile, or the PFS does not answer.
            let freed = self.drop_clean(victims.ids);
            self.collect_garbage_of(Some(server));
            return freed >= missing;
        }
        false
    }
}
