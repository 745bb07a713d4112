//! What leaves the burst buffer before anybody waits for its space: clean files of outdated
//! checkpoint versions (BBOS, victim order), and under the placement `coolness` what is coolest
//! (ONFS, downward migration).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_namespace::File;
use forebay_policy::demotion::{
    Candidate, CleanCandidate, PlacementPolicy, Residency, leaves_at_once,
};
use forebay_policy::placement::TierSpace;
use forebay_policy::victims::{OutThresholds, Outflow};
use forebay_types::{ObjectId, TierId};

use crate::plan::Plan;

/// A look at all files may take this part of the time: one in so many.
const SHARE_OF_TIME: u32 = 100;

/// When the next look may begin; one per server, held by the engine's thread.
#[derive(Default)]
pub struct Leaving {
    applications: HashSet<u32>,
    not_before: Option<Instant>,
}

impl Leaving {
    /// Looks who is to leave. To be called now and then.
    pub fn tend(&mut self, plan: &Plan) {
        self.applications
            .extend(plan.catalog.apps().newly_complete());
        let begun = Instant::now();
        if self.not_before.is_some_and(|at| begun < at) {
            return;
        }
        if plan.engine.placement() == PlacementPolicy::Coolness {
            plan.move_down();
        }
        if !self.applications.is_empty() {
            plan.drop_outdated(&std::mem::take(&mut self.applications));
        }
        let took = begun.elapsed().max(Duration::from_millis(1));
        self.not_before = Some(begun + took * SHARE_OF_TIME);
    }
}

impl Plan {
    /// Drops a clean file of an outdated version that nobody has open; whether it went. A version
    /// that is only guessed, like the number in `img_00017.png`, stays until its space is needed.
    pub fn leave_outdated(&self, file: &Arc<File>) -> bool {
        let residency = match file.lock().residency.clean {
            true => Residency::Clean,
            false => Residency::Dirty,
        };
        let bytes = self.buffer.ledger().used_bytes(file.object);
        let candidate = self.catalog.apps().candidate(file.object, bytes, false);
        CleanCandidate::new(candidate, residency)
            .is_some_and(|c| leaves_at_once(self.engine.placement(), &c))
            && self.catalog.apps().is_certain(file.object)
            && self.buffer.evict(file).is_some()
    }

    fn drop_outdated(&self, applications: &HashSet<u32>) {
        let files: Vec<_> = self.buffer.files();
        let mut any = false;
        for file in files {
            let of = self.catalog.apps().of(file.object);
            if of.is_some_and(|(number, _)| applications.contains(&number)) {
                any |= self.leave_outdated(&file);
            }
        }
        if any {
            self.buffer.wake_collector();
        }
    }

    /// Lets files move down where a tier has no more free space than the thresholds say.
    fn move_down(&self) {
        let (forced, normal) = self.settings.engine.out_fractions;
        for space in self.buffer.spaces() {
            let of = |fraction: f64| (space.capacity_bytes as f64 * fraction) as u64;
            // The order of the fractions was checked at the start.
            if let Ok(thresholds) = OutThresholds::new(of(forced), of(normal)) {
                self.move_down_from(&space, &thresholds);
            }
        }
    }

    fn move_down_from(&self, space: &TierSpace, thresholds: &OutThresholds) {
        let free_bytes = space.available_bytes();
        let outflow = thresholds.outflow(free_bytes);
        if outflow == Outflow::None {
            return;
        }
        let tier = TierId(space.index as u8);
        let mut candidates = self.movable(tier);
        let figures = self.buffer.ledger().figures(tier);
        // Memory that has just been lent to jobs.
        let beyond_bytes = figures.used_bytes.saturating_sub(space.capacity_bytes);
        let shares = self.size_shares(tier);
        let now_s = self.catalog.apps().now_s();
        let room = (free_bytes, beyond_bytes);
        let chosen = thresholds.choose_with(&mut candidates, room, shares.as_ref(), now_s);
        let accessed: HashMap<u64, f64> = (candidates.iter())
            .map(|candidate| (candidate.id, candidate.accessed_at_s))
            .collect();
        let mut evicted = false;
        for file in chosen
            .iter()
            .filter_map(|id| self.buffer.file(ObjectId(*id)))
        {
            // An access ends the way down: others are cooler by now.
            let accessed_s = self.catalog.apps().accessed_s(file.object);
            if accessed.get(&file.object.0) != Some(&accessed_s) {
                continue;
            }
            let (clean, demoting) = {
                let state = file.lock();
                (state.residency.clean, state.demoting)
            };
            match (clean, outflow) {
                // One that is open stays until its last close.
                (true, _) => evicted |= self.buffer.evict(&file).is_some(),
                (false, Outflow::Forced) if !demoting => {
                    self.buffer.queue().add_urgent(file.object)
                }
                // In the order of coolness, at the rate that is in force.
                (false, _) => self.buffer.queue().nudge(),
            }
        }
        if evicted {
            self.buffer.wake_collector();
        }
    }

    /// Files of a tier that nobody writes.
    fn movable(&self, tier: TierId) -> Vec<Candidate> {
        let files: Vec<Arc<File>> = self.buffer.files();
        let here = files.iter().filter(|file| {
            let state = file.lock();
            let r = &state.residency;
            r.tier == tier && !r.writing && !state.is_unlinked()
        });
        let written = |file: &File| {
            let open = self.buffer.opens().by_ino(file.ino);
            open.is_some_and(|open| open.is_written())
        };
        here.filter(|file| !written(file))
            .map(|file| {
                let bytes = self.buffer.ledger().used_bytes(file.object);
                let in_use = self.buffer.opens().is_open_now(file.ino);
                self.catalog.apps().candidate(file.object, bytes, in_use)
            })
            .collect()
    }
}
