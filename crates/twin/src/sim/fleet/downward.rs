//! What moves from memory to the flash of its node because memory runs full, before anybody waits
//! for its space (ONFS, downward migration; placement `coolness`).
//!
//! The policy chooses, coolest first. One part moves at a time, and then it is looked again. What
//! flash cannot take without forcing files out itself leaves as it would without flash: a clean
//! copy is dropped, another part drained.

use forebay_policy::demotion::{Candidate, PlacementPolicy};
use forebay_policy::placement::{TierKind, TierSpace};
use forebay_policy::spill::flash_with_room;
use forebay_policy::victims::{OutThresholds, Outflow};

use super::super::Sim;
use super::super::part::{PartId, Role, State};
use super::PutOff;

impl Sim<'_> {
    /// The thresholds of a memory tier from which parts move down, and its space.
    fn downward(&self, node: usize) -> Option<(OutThresholds, TierSpace)> {
        let nodes = self.scenario.nodes.as_ref()?;
        let n = &self.nodes[node];
        let is_its = self.scenario.placement == PlacementPolicy::Coolness
            && n.kind == TierKind::Dram
            && n.is_up
            && n.shares.is_none();
        if !is_its {
            return None;
        }
        Some((nodes.out_thresholds(n.capacity)?, n.tier(0).space))
    }

    /// Has parts move down where memory runs full.
    pub(in super::super) fn look_downward(&mut self, node: usize) {
        let Some((thresholds, space)) = self.downward(node) else {
            return;
        };
        let outflow = thresholds.outflow(space.available_bytes());
        let n = &mut self.nodes[node];
        if outflow != Outflow::Forced {
            n.is_forced_out = false;
        }
        if outflow != Outflow::None && n.moving.is_none() {
            self.put_off(PutOff::MoveDown(node));
        }
    }

    /// Begins to move the coolest part for which there is a place. Where there is none for any that
    /// is to go, those leave without flash.
    pub(super) fn move_down(&mut self, node: usize) {
        self.advance(node);
        let Some((thresholds, space)) = self.downward(node) else {
            return;
        };
        if self.nodes[node].moving.is_some() {
            return;
        }
        let mut candidates = self.movable(node);
        let room = (space.available_bytes(), self.nodes[node].owed());
        let chosen = thresholds.choose_with(&mut candidates, room, None, self.now_s);
        let chosen: Vec<PartId> = chosen.iter().map(|id| *id as PartId).collect();
        let found = chosen
            .iter()
            .find_map(|id| Some((*id, self.flash_below(node, *id)?)));
        if let Some((id, to)) = found {
            let part = self.parts[id];
            let mtbf_s = self.apps[part.app as usize].known_mtbf_s;
            let candidate = part.candidate(id, mtbf_s);
            let n = &mut self.nodes[node];
            match part.state {
                State::Dirty => n.dirty_queue.remove(&candidate),
                _ => n.clean_queue.remove(&candidate),
            };
            self.move_part(id, to);
            return;
        }
        for id in chosen {
            self.let_go(node, id, &thresholds);
        }
    }

    /// Parts of a memory tier that nobody writes, and that are not being drained.
    fn movable(&self, node: usize) -> Vec<Candidate> {
        let all = self.apps.iter().flat_map(|a| {
            let restarts = a.phase.is_some_and(|phase| phase.is_read);
            a.parts.iter().map(move |id| (a, restarts, *id))
        });
        let here = all.filter_map(|(a, restarts, id)| {
            let part = &self.parts[id];
            let is_here = part.node as usize == node && part.role == Role::First;
            let rests = matches!(part.state, State::Dirty | State::Clean);
            (is_here && rests).then(|| Candidate {
                in_use: restarts && a.newest == Some(part.version),
                ..part.candidate(id, a.known_mtbf_s)
            })
        });
        here.collect()
    }

    /// Flash of the same node that takes a part from memory, and forces nothing out for it.
    fn flash_below(&self, node: usize, id: PartId) -> Option<usize> {
        let nodes = self.scenario.nodes.as_ref()?;
        let part = &self.parts[id];
        // Of what is on the PFS only a whole copy is worth a place.
        if part.dirty() == 0 && !part.is_whole() {
            return None;
        }
        let host = self.nodes[node].host as usize;
        let begin = self.fleet.hosts[host].pools.start;
        let pools = self.nodes[self.fleet.hosts[host].pools.clone()].iter();
        let spaces: Vec<TierSpace> = (pools.enumerate())
            .map(|(index, pool)| pool.tier(index).space)
            .collect();
        let index = flash_with_room(&spaces, part.resident())?;
        let space = &spaces[index];
        let thresholds = nodes.out_thresholds(space.capacity_bytes)?;
        let takes = thresholds.takes(space.available_bytes(), part.resident());
        takes.then_some(begin + index)
    }

    /// Has a part go that was chosen and cannot move, while memory still runs full.
    fn let_go(&mut self, node: usize, id: PartId, thresholds: &OutThresholds) {
        let n = &self.nodes[node];
        let outflow = thresholds.outflow(n.tier(0).space.available_bytes());
        let part = &self.parts[id];
        match outflow {
            Outflow::None => return,
            _ if part.state == State::Clean => {
                // One that is read stays until it is closed.
                let a = &self.apps[part.app as usize];
                let is_read = a.phase.is_some_and(|phase| phase.is_read);
                if is_read && a.newest == Some(part.version) {
                    return;
                }
                self.drop_part(id);
            }
            Outflow::Forced if !n.is_forced_out => self.nodes[node].is_forced_out = true,
            // In the order of coolness, at the rate that is in force.
            Outflow::Forced | Outflow::Normal => return,
        }
        self.touched.push(node);
    }

    /// Somebody reads a part: it is no longer among the coolest, and stays where it is unless jobs
    /// want its memory.
    pub(super) fn access_ends_move(&mut self, id: PartId) {
        let node = self.parts[id].node as usize;
        if self.downward(node).is_some() && self.nodes[node].owed() == 0 {
            self.advance(node);
            self.stop_moving(id);
        }
    }
}
