//! What leaves a node: eviction of clean bytes, removal of parts, the end of a demotion.

use forebay_policy::demotion::{CleanCandidate, Residency, evict_needed, leaves_at_once};

use super::Sim;
use super::part::{PartId, Role, State};

impl Sim<'_> {
    /// Frees clean bytes for `wanted_bytes` more, as far as there are any; the order and the amount
    /// are the policy's.
    pub(super) fn make_room(&mut self, node: usize, wanted_bytes: u64) {
        match evict_needed(&self.nodes[node].space(), wanted_bytes) {
            0 => {}
            needed => {
                self.evict(node, needed.saturating_add(self.nodes[node].owed()));
            }
        }
    }

    /// Frees so many clean bytes, as far as there are any; the order is the policy's.
    pub(super) fn evict(&mut self, node: usize, wanted_bytes: u64) {
        let mut left = wanted_bytes;
        while left > 0 {
            let n = &self.nodes[node];
            let queued = n.clean_queue.first().map(|id| id as PartId);
            // Files of a part that is still being copied or written can go one by one as well,
            // last.
            let victim = queued.or_else(|| {
                let partly = [n.demoting, n.writing_part()];
                partly
                    .into_iter()
                    .flatten()
                    .find(|id| self.parts[*id].clean() > 0)
                    .or_else(|| self.partly_clean(node))
            });
            let Some(id) = victim else {
                return;
            };
            if self.parts[id].state == State::Moving {
                // Who needs the space goes first: the part stays, and may be taken.
                self.stop_moving(id);
                continue;
            }
            let take = self.parts[id].clean().min(left);
            self.parts[id].evicted += take;
            self.nodes[node].clean -= take;
            left -= take;
            if queued.is_some() && self.parts[id].clean() == 0 {
                self.drop_part(id);
            }
        }
    }

    /// Removes a part with whatever it still holds.
    pub(super) fn drop_part(&mut self, id: PartId) {
        let part = self.parts[id];
        let node = &mut self.nodes[part.node as usize];
        let app = &mut self.apps[part.app as usize];
        let candidate = part.candidate(id, app.known_mtbf_s);
        match part.state {
            State::Dirty => {
                node.dirty_queue.remove(&candidate);
            }
            State::Clean => {
                node.clean_queue.remove(&candidate);
            }
            State::Demoting | State::Writing | State::Second | State::Moving => {}
        }
        if node.demoting == Some(id) {
            node.demoting = None;
        }
        node.dirty -= part.dirty();
        if matches!(part.role, Role::Second | Role::Moved) {
            node.seconds -= part.dirty();
        }
        node.clean -= part.clean();
        if let Some(shares) = &mut node.shares {
            shares.freed(u64::from(part.app), part.size);
        }
        app.parts.retain(|other| *other != id);
        let parts = &self.parts;
        if !app
            .parts
            .iter()
            .any(|other| parts[*other].version == part.version)
            && app.newest != Some(part.version)
        {
            app.tracker.removed(part.version);
        }
        self.parts.remove(id);
        self.note_resident(part.app, part.node, false);
        self.part_is_gone(id, &part);
    }

    /// A part is on the PFS as a whole.
    pub(super) fn end_demotion(&mut self, id: PartId) {
        let node = self.parts[id].node as usize;
        if self.nodes[node].demoting == Some(id) {
            self.nodes[node].demoting = None;
        }
        self.parts[id].state = State::Clean;
        self.part_is_drained(id);
        let part = self.parts[id];
        let candidate = part.candidate(id, self.apps[part.app as usize].known_mtbf_s);
        self.nodes[node].clean_queue.insert(&candidate);
        let leaves = CleanCandidate::new(candidate, Residency::Clean)
            .is_some_and(|c| leaves_at_once(self.scenario.placement, &c));
        if leaves || !self.scenario.assume.copies_stay || part.resident() == 0 {
            self.drop_part(id);
        }
    }

    /// Which applications have bytes on a node, for the decision on direct checkpoints. `arrives`:
    /// the first part was just added; otherwise one was just removed.
    pub(super) fn note_resident(&mut self, app: u32, node: u32, arrives: bool) {
        if !self.scenario.direct {
            return;
        }
        let a = &self.apps[app as usize];
        let here = a
            .parts
            .iter()
            .filter(|id| self.parts[**id].node == node)
            .count();
        let residents = &mut self.nodes[node as usize].residents;
        let key = a.known_mtbf_s.to_bits();
        match (arrives, here) {
            (true, 1) => *residents.entry(key).or_default() += 1,
            (false, 0) => {
                if let Some(count) = residents.get_mut(&key) {
                    *count -= 1;
                    if *count == 0 {
                        residents.remove(&key);
                    }
                }
            }
            _ => {}
        }
    }
}
