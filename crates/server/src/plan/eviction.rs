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
use forebay_tiers::TierKind;
use forebay_types::{ObjectId, TierId};
use parking_lot::{Condvar, Mutex};

use crate::buffer::tierset::DRAM;
use crate::plan::Plan;

/// A look at all files may take this part of the time: one in so many.
const SHARE_OF_TIME: u32 = 100;

/// A move that has failed is not tried again for so long.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// A file that is to leave its tier.
#[derive(Clone)]
pub struct Chosen {
    pub file: Arc<File>,
    /// When it was accessed last, by the time of the choice.
    pub accessed_s: f64,
}

/// Files that were chosen to move from memory to flash: the last choice, until somebody takes it.
#[derive(Default)]
pub struct Downward {
    chosen: Mutex<Vec<Chosen>>,
    wake: Condvar,
    /// Files that could not be moved, and until when that is not tried again.
    failed: Mutex<HashMap<ObjectId, Instant>>,
}

impl Downward {
    /// In place of an earlier choice: by now others are the coolest.
    fn offer(&self, chosen: Vec<Chosen>) {
        let is_any = !chosen.is_empty();
        *self.chosen.lock() = chosen;
        if is_any {
            self.wake.notify_one();
        }
    }

    /// The choice, coolest first; empty where there was none for so long.
    pub fn take(&self, patience: Duration) -> Vec<Chosen> {
        let mut chosen = self.chosen.lock();
        if chosen.is_empty() {
            self.wake.wait_for(&mut chosen, patience);
        }
        std::mem::take(&mut chosen)
    }

    /// A file could not be moved: for a while it leaves as it would without flash.
    pub fn note_failed(&self, object: ObjectId) {
        let now = Instant::now();
        let mut failed = self.failed.lock();
        failed.retain(|_, until| now < *until);
        failed.entry(object).or_insert(now + TRY_AGAIN_AFTER);
    }

    /// Whether a move of a file may be tried.
    pub fn may_move(&self, object: ObjectId) -> bool {
        let failed = self.failed.lock();
        failed
            .get(&object)
            .is_none_or(|until| *until <= Instant::now())
    }
}

/// When the next look may begin; one per server, held by the engine's thread.
#[derive(Default)]
pub struct Leaving {
    applications: HashSet<u32>,
    not_before: Option<Instant>,
    /// What is coolest in memory moves to flash. Else its copies are dropped, once it is drained.
    has_flash_below: bool,
}

impl Leaving {
    /// For a server whose files move down from tier to tier where they can.
    pub fn downward(plan: &Plan) -> Leaving {
        Leaving {
            has_flash_below: plan.has_flash_below(),
            ..Leaving::default()
        }
    }

    /// Looks who is to leave. To be called now and then.
    pub fn tend(&mut self, plan: &Plan) {
        self.applications
            .extend(plan.catalog.apps().newly_complete());
        let begun = Instant::now();
        if self.not_before.is_some_and(|at| begun < at) {
            return;
        }
        if plan.engine.placement() == PlacementPolicy::Coolness {
            plan.move_down(self.has_flash_below);
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
    fn move_down(&self, has_flash_below: bool) {
        for space in self.buffer.spaces() {
            let Some(thresholds) = self.out_thresholds(&space) else {
                continue;
            };
            let (chosen, outflow) = self.chosen_to_leave(&space, &thresholds);
            if has_flash_below && space.index == usize::from(DRAM.0) {
                self.downward.offer(chosen);
            } else {
                self.let_all_go(&chosen, outflow);
            }
        }
    }

    fn out_thresholds(&self, space: &TierSpace) -> Option<OutThresholds> {
        let (forced, normal) = self.settings.engine.out_fractions;
        let of = |fraction: f64| (space.capacity_bytes as f64 * fraction) as u64;
        // The order of the fractions was checked at the start.
        OutThresholds::new(of(forced), of(normal)).ok()
    }

    /// Whether what leaves the memory of this server can move to its flash, should the placement
    /// be, or become, one by which it does.
    pub fn has_flash_below(&self) -> bool {
        let own = |kind| {
            let mut slots = self.buffer.tiers().of_server(self.settings.server);
            slots.any(|(_, slot)| slot.kind == kind)
        };
        own(TierKind::Dram) && own(TierKind::Ssd)
    }

    /// Files of memory that were chosen to move to flash.
    pub fn downward(&self) -> &Downward {
        &self.downward
    }

    /// Whether files are to leave a tier once `leaving_bytes` more have left it.
    pub fn outflow_of(&self, tier: TierId, leaving_bytes: u64) -> Outflow {
        let spaces = self.buffer.spaces();
        let space = spaces.iter().find(|s| s.index == usize::from(tier.0));
        let of = |space: &TierSpace| {
            let room = (space.available_bytes(), self.beyond_bytes(space));
            Some(
                self.out_thresholds(space)?
                    .outflow_after(room, leaving_bytes),
            )
        };
        space.and_then(of).unwrap_or(Outflow::None)
    }

    /// Whether flash takes a file from memory, and forces nothing out for it.
    pub fn takes(&self, tier: TierId, bytes: u64) -> bool {
        let spaces = self.buffer.spaces();
        let space = spaces.iter().find(|s| s.index == usize::from(tier.0));
        space.is_some_and(|space| {
            let thresholds = self.out_thresholds(space);
            thresholds.is_some_and(|its| its.takes(space.available_bytes(), bytes))
        })
    }

    /// What a tier has more than it may hold by now: memory that has just been lent to jobs.
    fn beyond_bytes(&self, space: &TierSpace) -> u64 {
        let figures = self.buffer.ledger().figures(TierId(space.index as u8));
        figures.used_bytes.saturating_sub(space.capacity_bytes)
    }

    fn chosen_to_leave(
        &self,
        space: &TierSpace,
        thresholds: &OutThresholds,
    ) -> (Vec<Chosen>, Outflow) {
        let free_bytes = space.available_bytes();
        let outflow = thresholds.outflow(free_bytes);
        if outflow == Outflow::None {
            return (Vec::new(), outflow);
        }
        let tier = TierId(space.index as u8);
        let mut candidates = self.movable(tier);
        let shares = self.size_shares(tier);
        let now_s = self.catalog.apps().now_s();
        let room = (free_bytes, self.beyond_bytes(space));
        let ids = thresholds.choose_with(&mut candidates, room, shares.as_ref(), now_s);
        let accessed: HashMap<u64, f64> = (candidates.iter())
            .map(|candidate| (candidate.id, candidate.accessed_at_s))
            .collect();
        let chosen = ids.iter().filter_map(|id| {
            Some(Chosen {
                file: self.buffer.file(ObjectId(*id))?,
                accessed_s: *accessed.get(id)?,
            })
        });
        (chosen.collect(), outflow)
    }

    /// Has files go: clean ones are dropped, the others drained.
    pub fn let_all_go(&self, chosen: &[Chosen], outflow: Outflow) {
        let mut evicted = false;
        for Chosen { file, accessed_s } in chosen {
            evicted |= self.let_go(file, *accessed_s, outflow);
        }
        if evicted {
            self.buffer.wake_collector();
        }
    }

    /// Whether nobody has opened a file since it was chosen: an access ends the way down, for
    /// others are cooler by now.
    pub fn is_still_cool(&self, file: &File, accessed_s: f64) -> bool {
        self.catalog.apps().accessed_s(file.object) == accessed_s
    }

    /// Has a file go that was chosen when it was accessed last at `accessed_s`; whether its copy
    /// was dropped.
    fn let_go(&self, file: &Arc<File>, accessed_s: f64, outflow: Outflow) -> bool {
        if !self.is_still_cool(file, accessed_s) {
            return false;
        }
        let (clean, demoting) = {
            let state = file.lock();
            (state.residency.clean, state.demoting)
        };
        match (clean, outflow) {
            // One that is open stays until its last close.
            (true, _) => return self.buffer.evict(file).is_some(),
            (false, Outflow::Forced) if !demoting => self.buffer.queue().urge(file.object),
            // In the order of coolness, at the rate that is in force.
            (false, _) => self.buffer.queue().nudge(),
        }
        false
    }

    /// Files of a tier that nobody writes.
    fn movable(&self, tier: TierId) -> Vec<Candidate> {
        let files: Vec<Arc<File>> = self.buffer.files();
        let here = files.iter().filter(|file| {
            let state = file.lock();
            let r = &state.residency;
            r.tier == tier && !r.writing && !r.by_kernel && !state.is_unlinked()
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

#[cfg(test)]
mod tests {
    use forebay_types::OpenFlags;

    use super::*;
    use crate::buffer::queue::Finished;
    use crate::rooms::Rooms;
    use crate::testing::{Lab, closed, drain};

    const MIB: usize = 1 << 20;

    fn is_here(rooms: &Rooms, file: &Arc<File>) -> bool {
        let files = rooms.buffer.files();
        let is_it = |other: &Arc<File>| Arc::ptr_eq(other, file);
        files.iter().any(is_it) && file.tier() == DRAM
    }

    /// A batch has only so many bytes.
    fn drain_all(rooms: &Rooms) {
        while !rooms.buffer.queue().waiting().is_empty() {
            drain(rooms);
        }
    }

    fn look(rooms: &Rooms) {
        Leaving::default().tend(&rooms.plan);
        rooms.files.collect_garbage();
    }

    fn open_and_close(rooms: &Rooms, file: &Arc<File>) {
        let flags = OpenFlags(libc::O_RDONLY as u32);
        let (opened, _) = rooms.files.open(file.ino, flags, None).expect("open");
        rooms.files.release(opened.handle).expect("close");
    }

    #[test]
    fn memory_that_has_shrunk_is_over_its_thresholds_at_once() {
        let lab = Lab::under_coolness();
        let rooms = lab.rooms();
        let files: Vec<_> = [b"a", b"b", b"c"]
            .map(|name| closed(rooms, name, MIB))
            .into();
        drain_all(rooms);
        look(rooms);
        assert!(
            files.iter().all(|file| is_here(rooms, file)),
            "13 of 16 MiB are free"
        );
        rooms.buffer.ledger().set_capacity(DRAM, 5 << 20);
        look(rooms);
        let here: Vec<bool> = files.iter().map(|file| is_here(rooms, file)).collect();
        assert_eq!(here, [false, true, true], "more than half of 5 MiB is free");
        // What lies beyond has to leave first, and then as much as ever.
        rooms.buffer.ledger().set_capacity(DRAM, MIB as u64);
        look(rooms);
        let here: Vec<bool> = files.iter().map(|file| is_here(rooms, file)).collect();
        assert_eq!(here, [false; 3], "{:?}", rooms.base.errors().all());
    }

    #[test]
    fn an_access_ends_the_way_down() {
        let lab = Lab::under_coolness();
        let rooms = lab.rooms();
        let (coolest, other) = (closed(rooms, b"a", MIB), closed(rooms, b"b", MIB));
        rooms.buffer.ledger().set_capacity(DRAM, 3 << 20);
        look(rooms);
        assert!(rooms.buffer.queue().demand().is_ordered, "it is on its way");
        let flags = OpenFlags(libc::O_RDONLY as u32);
        let (opened, _) = rooms.files.open(coolest.ino, flags, None).expect("open");
        drain_all(rooms);
        look(rooms);
        assert!(is_here(rooms, &coolest), "it is open");
        rooms.files.release(opened.handle).expect("close");
        assert!(!is_here(rooms, &other), "the next one went instead");
        look(rooms);
        assert!(is_here(rooms, &coolest));
        // Between the choice and the turn of a file.
        let chosen_by_s = rooms.catalog.apps().accessed_s(coolest.object);
        open_and_close(rooms, &coolest);
        assert!(!rooms.plan.let_go(&coolest, chosen_by_s, Outflow::Normal));
        assert!(is_here(rooms, &coolest));
        let chosen_by_s = rooms.catalog.apps().accessed_s(coolest.object);
        assert!(rooms.plan.let_go(&coolest, chosen_by_s, Outflow::Normal));
    }

    #[test]
    fn a_large_file_does_not_drive_out_small_ones_that_are_read() {
        let lab = Lab::under_coolness();
        let rooms = lab.rooms();
        let small: Vec<_> = (0..20u8)
            .map(|at| closed(rooms, &[b's', at + b'a'], 64 << 10))
            .collect();
        for file in small.iter().cycle().take(200) {
            open_and_close(rooms, file);
        }
        let large = closed(rooms, b"large", 4 * MIB);
        drain_all(rooms);
        assert!(small.iter().all(|file| is_here(rooms, file)));
        // By coolness alone all the small ones would go: the large one was closed last.
        rooms.buffer.ledger().set_capacity(DRAM, 6 << 20);
        look(rooms);
        assert!(small.iter().all(|file| is_here(rooms, file)));
        assert!(!is_here(rooms, &large));
    }

    #[test]
    fn what_the_pfs_does_not_take_keeps_to_its_pauses() {
        let lab = Lab::under_coolness();
        let rooms = lab.rooms();
        let file = closed(rooms, b"a", 2 * MIB);
        rooms.buffer.ledger().set_capacity(DRAM, 2 << 20);
        look(rooms);
        let queue = rooms.buffer.queue();
        assert!(queue.demand().is_urgent);
        queue.take_urgent(&queue.hand_out_urgent(1));
        queue.finished(&[Finished::failed(file.object)]);
        look(rooms);
        assert!(!queue.demand().is_urgent, "it is tried again and again");
        assert_eq!(queue.failing().0, 1);
    }
}
