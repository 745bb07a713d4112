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
            let chosen_by_s = accessed.get(&file.object.0).copied();
            evicted |= chosen_by_s.is_some_and(|at_s| self.let_go(&file, at_s, outflow));
        }
        if evicted {
            self.buffer.wake_collector();
        }
    }

    /// Has a file go that was chosen when it was accessed last at `accessed_s`; whether its copy
    /// was dropped.
    fn let_go(&self, file: &Arc<File>, accessed_s: f64, outflow: Outflow) -> bool {
        if self.catalog.apps().accessed_s(file.object) != accessed_s {
            // An access ends the way down: others are cooler by now.
            return false;
        }
        let (clean, demoting) = {
            let state = file.lock();
            (state.residency.clean, state.demoting)
        };
        match (clean, outflow) {
            // One that is open stays until its last close.
            (true, _) => return self.buffer.evict(file).is_some(),
            (false, Outflow::Forced) if !demoting => self.buffer.queue().add_urgent(file.object),
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

#[cfg(test)]
mod tests {
    use forebay_policy::demotion::PlacementPolicy;
    use forebay_types::OpenFlags;

    use super::*;
    use crate::buffer::tierset::DRAM;
    use crate::rooms::Rooms;
    use crate::testing::{Lab, create, drain};

    const MIB: usize = 1 << 20;

    /// Memory of 16 MiB, from which files move down at a half and a quarter of it.
    fn lab() -> Lab {
        Lab::with(|settings| {
            settings.dram_bytes = Some(16 << 20);
            settings.engine.placement = PlacementPolicy::Coolness;
            settings.engine.out_fractions = (0.25, 0.5);
        })
    }

    fn closed(rooms: &Rooms, name: &[u8], bytes: usize) -> Arc<File> {
        let handle = create(rooms, name, &vec![7; bytes]);
        rooms.files.release(handle).expect("close");
        rooms.base.ns().root().child(name).expect("it is there")
    }

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
        let lab = lab();
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
        let lab = lab();
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
        let lab = lab();
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
}
