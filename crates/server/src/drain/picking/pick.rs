//! Picks a batch.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use forebay_policy::demotion::{
    DrainItem, batch_bytes, drain_order, order_age_max_s, order_demotion,
};
use forebay_policy::limits::Owner;
use forebay_policy::throttle::{DemotionPace, Load};
use forebay_policy::trigger::Drive;
use forebay_policy::victims::{Treatment, treatment};
use forebay_types::{Ino, ObjectId};

use super::{BATCH_FILES_MAX, LOOK_AGAIN, Line, NOTHING_WAITS};
use crate::buffer::queue::BatchLimits;
use crate::drain::Drain;

impl Drain {
    /// The next files of a line to demote together; empty if there is nothing to do now. Waits a
    /// little.
    pub fn next_batch(&self, line: Line) -> Vec<ObjectId> {
        let asked = self.buffer.queue().asked();
        let batch = self.pick(line);
        if !batch.is_empty() || self.base.is_ending() {
            return batch;
        }
        let patience = match self.buffer.queue().demand().has_waiting {
            true => LOOK_AGAIN,
            false => NOTHING_WAITS,
        };
        self.buffer.queue().wait_asked(asked, patience);
        self.pick(line)
    }

    /// The lines of demoters.
    pub fn lines(&self) -> Vec<Line> {
        self.picking.lines().collect()
    }

    /// The line of an object.
    fn line_of(&self, object: ObjectId) -> Line {
        let servers = &self.picking.servers;
        if servers.len() == 1 {
            return Line::OWN;
        }
        let file = self.buffer.file(object);
        let slot = file.and_then(|file| self.buffer.tiers().get(file.tier()));
        let of = slot.and_then(|slot| servers.iter().position(|id| *id == slot.server));
        // Whoever it is of: somebody has to see that it is gone.
        Line(of.unwrap_or(0))
    }

    fn ready_of(&self, line: Line) -> Vec<ObjectId> {
        let mut ready = self.buffer.queue().ready();
        ready.retain(|object| self.line_of(*object) == line);
        ready
    }

    /// Whether the node of a line does not answer.
    fn is_out_of_reach(&self, line: Line) -> bool {
        let server = self.picking.servers[line.0];
        let mut tiers = self.buffer.tiers().iter();
        line != Line::OWN
            && tiers.any(|(_, slot)| slot.server == server && !slot.tier.is_answering())
    }

    fn pick(&self, line: Line) -> Vec<ObjectId> {
        let queue = self.buffer.queue();
        let demand = queue.demand();
        let (_, capacity) = self.buffer.ledger().dirty_and_capacity();
        let limits = BatchLimits {
            files: self.picking.batch_files_max,
            bytes: batch_bytes(capacity, self.plan.engine().demotion_limit_bytes_per_s()),
        };
        let bytes_of = |object| self.buffer.ledger().used_bytes(object);
        if demand.is_urgent {
            let line_of = |object| self.line_of(object);
            let batch = self
                .picking
                .urgent
                .take(queue, line, limits, line_of, bytes_of);
            if !batch.is_empty() {
                return batch;
            }
        }
        // Another demoter may have taken what was urgent: the rest waits for its own time.
        if !demand.has_waiting || !(demand.is_ordered || self.is_time_to_drain()) {
            return Vec::new();
        }
        if self.is_out_of_reach(line) {
            return Vec::new();
        }
        let mut turn = self.picking.turns[line.0].lock();
        let age_max = Duration::from_secs_f64(order_age_max_s(turn.took_s));
        let is_old = turn.made_at.is_none_or(|at| at.elapsed() > age_max);
        if turn.order.is_empty() || is_old {
            let begun = Instant::now();
            turn.order = self.ordered(self.ready_of(line));
            turn.made_at = Some(Instant::now());
            turn.took_s = begun.elapsed().as_secs_f64();
        }
        queue.take(&mut turn.order, limits, bytes_of)
    }

    fn is_time_to_drain(&self) -> bool {
        let (dirty, capacity) = self.buffer.ledger().dirty_and_capacity();
        let mut trigger = self.picking.trigger.lock();
        trigger.on_foreground(self.buffer.activity().last_s());
        // Files in the overflow and empty ones are waiting too, but hold no bytes of ours.
        let now_s = self.picking.origin.elapsed().as_secs_f64();
        let limit_bytes = capacity.min(self.buffer.ledger().dirty_cap_bytes()) as f64;
        let load = Load {
            dwsf_bytes: self.plan.learning().dwsf_bytes() as f64,
            dirty_bytes: dirty.max(1) as f64,
            limit_bytes,
            under_way_bytes: self.plan.under_way_bytes(limit_bytes),
            was_full: self.plan.engine().is_full(),
            is_idle: self.plan.is_quiet(),
            is_starved: false,
        };
        if let Some(pace) = self.plan.engine().demotion_pace(&load) {
            return pace != DemotionPace::Stop;
        }
        match trigger.drive(dirty.max(1), capacity, now_s) {
            Drive::Stop => false,
            Drive::Idle => self.picking.idle,
            Drive::Paced | Drive::Full => true,
        }
    }

    /// Whether waiting for space may help a writer: something other than its own file can be
    /// demoted.
    pub fn can_drain_for(&self, writer: Ino) -> bool {
        let other = |object: &ObjectId| {
            self.buffer
                .file(*object)
                .is_some_and(|file| file.ino != writer)
        };
        self.buffer.queue().can_free(other)
    }

    /// The same where a limit refuses the space: only what that user or group has counts.
    pub fn can_drain_of(&self, owner: Owner, writer: Ino) -> bool {
        let leaving = self.buffer.queue().leaving();
        let theirs = self.buffer.ledger().undrained_of(owner, leaving);
        theirs.iter().any(|(object, _)| {
            let file = self.buffer.file(*object);
            file.is_some_and(|file| file.ino != writer)
        })
    }

    /// So many bytes of a user's or group's undrained files go next, the oldest first. Nobody
    /// else's go sooner for that.
    pub fn urge_of(&self, owner: Owner, bytes: u64) {
        let leaving = self.buffer.queue().leaving();
        let mut sum = 0;
        for (object, used) in self.buffer.ledger().undrained_of(owner, leaving) {
            self.buffer.queue().urge_again(object);
            sum += used;
            if sum >= bytes {
                return;
            }
        }
    }

    /// Victims by the policy's order, the head of them in the order that the PFS likes.
    fn ordered(&self, ready: Vec<ObjectId>) -> VecDeque<ObjectId> {
        let candidate = |object| {
            self.catalog
                .apps()
                .candidate(object, self.buffer.ledger().used_bytes(object), false)
        };
        let mut candidates: Vec<_> = ready.into_iter().map(candidate).collect();
        order_demotion(
            self.plan.engine().placement(),
            &mut candidates,
            self.catalog.apps().now_s(),
        );
        if let Some(every) = self.settings.engine.keep_every {
            // A stable sort: postponed ones go last, each part in its order.
            candidates.sort_by_key(|c| {
                treatment(Some(every), c.version, c.outdated) == Treatment::Postpone
            });
        }
        let head = candidates.len().min(BATCH_FILES_MAX * 2);
        let mut items: Vec<DrainItem> = candidates[..head]
            .iter()
            .map(|c| DrainItem {
                id: c.id,
                path: self
                    .buffer
                    .file(ObjectId(c.id))
                    .map(|f| f.path())
                    .unwrap_or_default(),
                bytes: c.bytes,
            })
            .collect();
        drain_order(&mut items);
        let rest = candidates[head..].iter().map(|c| ObjectId(c.id));
        items.iter().map(|i| ObjectId(i.id)).chain(rest).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Barrier;

    use forebay_types::{Ino, ObjectId};

    use super::Line;
    use crate::testing::{Lab, create};

    const DEMOTERS: usize = 4;
    const FILES: usize = 60;

    /// Undrained files of which none is due.
    fn waiting(lab: &Lab) -> Vec<ObjectId> {
        let rooms = lab.rooms();
        let file = |at: usize| {
            let name = format!("f{at}").into_bytes();
            let handle = create(rooms, &name, &[7; 4096]);
            rooms.files.release(handle).expect("close");
            let found = rooms.base.ns().lookup(Ino::ROOT, &name).expect("found");
            found.file.expect("in the burst buffer").object
        };
        (0..FILES).map(file).collect()
    }

    #[test]
    fn a_demoter_that_comes_too_late_for_an_urgent_file_takes_none_before_its_time() {
        let lab = Lab::with(|settings| settings.demotion.idle = false);
        let waiting = waiting(&lab);
        let drain = &lab.rooms().drain;
        assert_eq!(drain.pick(Line::OWN), Vec::new(), "none is due");
        for urgent in &waiting {
            lab.rooms().buffer.queue().add_urgent(*urgent);
            let start = Barrier::new(DEMOTERS);
            let taken: Vec<ObjectId> = std::thread::scope(|scope| {
                let pick = || {
                    start.wait();
                    drain.pick(Line::OWN)
                };
                let demoters: Vec<_> = (0..DEMOTERS).map(|_| scope.spawn(pick)).collect();
                let batches = demoters.into_iter().map(|one| one.join().expect("picked"));
                batches.flatten().collect()
            });
            assert_eq!(HashSet::from([*urgent]), taken.iter().copied().collect());
        }
    }
}
