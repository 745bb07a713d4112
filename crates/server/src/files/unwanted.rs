//! Room for what is expected soon, made of what is wanted less.

use std::collections::HashMap;

use forebay_policy::demotion::{CleanCandidate, choose_victims};
use forebay_policy::limits::Owners;
use forebay_policy::placement::TierSpace;
use forebay_policy::runs::{MakeRoom, RunRoom, is_wanted_less, make_room};
use forebay_types::{ObjectId, TierId};

use crate::files::{Files, MAKING_SPACE};

/// A file of a run that is about to start.
pub struct RunFile<'a> {
    /// Its path.
    pub path: &'a [u8],
    /// Whose it is.
    pub owners: Owners,
    /// What it has, bytes.
    pub bytes: u64,
    /// What it and those after it have, as far as they may come, bytes.
    pub wanted_bytes: u64,
    /// Seconds between starts of the run.
    pub period_s: f64,
    /// Others may leave for it.
    pub may_drop: bool,
}

/// What came of asking for room for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunRoomMade {
    /// There is room.
    Yes,
    /// There is none for this owner's files.
    NotForOwner,
    /// There is none.
    No,
}

impl Files {
    /// Makes room for a file of a run, and for those after it, in one of the tiers that it may lie
    /// in, if what is wanted less there is enough.
    pub fn make_room_for_run(&self, file: &RunFile<'_>) -> RunRoomMade {
        let spaces = self.spaces_allowed(file.path);
        let limit_bytes = self.buffer.ledger().left_bytes(file.owners);
        let choose = |less: &HashMap<TierId, u64>| {
            let room = |space: &TierSpace| RunRoom {
                space: *space,
                less_wanted_bytes: less.get(&tier_of(space)).copied().unwrap_or(0),
            };
            let tiers: Vec<RunRoom> = spaces.iter().map(room).collect();
            make_room(&tiers, file.bytes, file.wanted_bytes, limit_bytes)
        };
        let first = match choose(&HashMap::new()) {
            // A look at all files may find some.
            MakeRoom::Refused if file.may_drop => {
                choose(&self.less_wanted_in(&spaces, file.period_s))
            }
            answer => answer,
        };
        match first {
            MakeRoom::Not => RunRoomMade::Yes,
            MakeRoom::BeyondLimit => RunRoomMade::NotForOwner,
            MakeRoom::Refused => RunRoomMade::No,
            MakeRoom::In { tier, bytes } => {
                match self.drop_less_wanted(TierId(tier as u8), bytes, file.period_s) {
                    true => RunRoomMade::Yes,
                    false => RunRoomMade::No,
                }
            }
        }
    }

    /// What is wanted less than a run with this period in seconds, in each of these tiers, bytes.
    fn less_wanted_in(&self, spaces: &[TierSpace], period_s: f64) -> HashMap<TierId, u64> {
        let mut less = HashMap::new();
        let ledger = self.buffer.ledger();
        let has_clean = |space: &&TierSpace| ledger.figures(tier_of(space)).other_files > 0;
        for tier in spaces.iter().filter(has_clean).map(tier_of) {
            let all = self.less_wanted(tier, period_s);
            let bytes = all.iter().map(|c| c.candidate().bytes);
            less.insert(tier, bytes.fold(0, u64::saturating_add));
        }
        less
    }

    fn less_wanted(&self, tier: TierId, period_s: f64) -> Vec<CleanCandidate> {
        let now_s = self.catalog.apps().now_s();
        let mut less = self.clean_candidates(|state| state.residency.tier == tier);
        less.retain(|c| {
            let candidate = c.candidate();
            let is_certain = (self.catalog.apps()).is_surely_outdated(ObjectId(candidate.id));
            is_wanted_less(candidate, is_certain, period_s, now_s)
        });
        less
    }

    /// Whether so many bytes have left the tier.
    fn drop_less_wanted(&self, tier: TierId, bytes: u64, period_s: f64) -> bool {
        let server = self.buffer.tiers().get(tier).map_or(0, |slot| slot.server);
        let _one = self.making_space[usize::from(server) % MAKING_SPACE].lock();
        // Who else makes space has taken some of them, perhaps.
        let mut less = self.less_wanted(tier, period_s);
        let (policy, now_s) = (self.plan.engine().placement(), self.catalog.apps().now_s());
        let victims = choose_victims(policy, &mut less, bytes, now_s);
        // Some may have been opened meanwhile, or the PFS does not answer.
        let freed = self.drop_clean(victims.ids);
        self.collect_garbage_of(Some(server));
        freed >= bytes
    }
}

fn tier_of(space: &TierSpace) -> TierId {
    TierId(space.index as u8)
}
