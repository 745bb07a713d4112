//! Memory is given back: clean bytes go, then whole parts move to the flash of the same node, or to
//! another node. What can move nowhere is drained. And how a part moves, also where it does so
//! before anybody wants its memory ([`downward`](super::downward)).

use forebay_policy::handover::{Growing, WhenFull, when_full};
use forebay_policy::holders::HolderId;
use forebay_policy::placement::TierSpace;
use forebay_policy::spill::flash_with_clean;

use super::super::Sim;
use super::super::node::Way;
use super::super::part::{Part, PartId, Role, State};
use super::PutOff;
use super::place::{object, wanted};
use crate::scenario::Nodes;

/// So many parts are asked, in the order in which they would be drained, whether there is a place
/// for them.
const ASKED_MAX: usize = 64;

impl Sim<'_> {
    /// Has what a memory tier holds beyond its capacity leave, one part after the other.
    pub(in super::super) fn give_back(&mut self, node: usize) {
        self.advance(node);
        let n = &self.nodes[node];
        if n.borrowed.is_none() || !n.is_up {
            return;
        }
        let moving = n.moving;
        // Nothing is written to what has to give memory back itself: each would wait for the other.
        let waits = |copy: &PartId| self.nodes[self.parts[*copy].node as usize].owed() > 0;
        if let Some(copy) = moving.map(|(_, copy)| copy).filter(waits) {
            self.drop_copy(copy);
        }
        let n = &self.nodes[node];
        let (owed, clean) = (n.owed(), n.clean);
        if owed > 0 {
            self.evict(node, owed);
            self.touched.push(node);
        }
        let n = &self.nodes[node];
        let (dropped, owed) = (clean - n.clean, n.owed());
        let is_stuck = owed > 0 && n.moving.is_none() && !self.begin_move(node);
        if let Some(borrowed) = &mut self.nodes[node].borrowed {
            borrowed.sums.dropped_bytes += dropped;
            borrowed.is_stuck = is_stuck;
        }
    }

    /// Begins to move the first part for which there is a place; `false` without any.
    fn begin_move(&mut self, node: usize) -> bool {
        let scenario = self.scenario;
        let Some(nodes) = &scenario.nodes else {
            return false;
        };
        self.look_at_holders();
        let mut asked = Vec::new();
        let mut found = None;
        while let Some(id) = self.nodes[node].dirty_queue.first().map(|id| id as PartId) {
            if asked.len() == ASKED_MAX {
                break;
            }
            let part = &self.parts[id];
            let mtbf_s = self.apps[part.app as usize].known_mtbf_s;
            let candidate = part.candidate(id, mtbf_s);
            self.nodes[node].dirty_queue.remove(&candidate);
            if let Some(to) = self.place_to_move(nodes, node, id) {
                found = Some((id, to));
                break;
            }
            asked.push(candidate);
        }
        for candidate in &asked {
            self.nodes[node].dirty_queue.insert(candidate);
        }
        if found.is_none() && self.nodes[node].seconds > 0 {
            let all = self.apps.iter().flat_map(|a| a.parts.iter().copied());
            let is_its = |id: &PartId| {
                let part = &self.parts[*id];
                part.node as usize == node && part.state == State::Second
            };
            let seconds: Vec<PartId> = all.filter(is_its).take(ASKED_MAX).collect();
            found = seconds.into_iter().find_map(|id| {
                let to = self.place_to_move(nodes, node, id)?;
                Some((id, to))
            });
        }
        let Some((id, to)) = found else {
            return false;
        };
        // What of it is on the PFS does not move.
        let clean = self.parts[id].clean();
        self.parts[id].evicted += clean;
        self.nodes[node].clean -= clean;
        self.move_part(id, to);
        true
    }

    /// The tier that a part goes to whose memory is wanted.
    fn place_to_move(&mut self, nodes: &Nodes, node: usize, id: PartId) -> Option<usize> {
        let part = self.parts[id];
        let host = self.nodes[node].host as usize;
        let begin = self.fleet.hosts[host].pools.start;
        let bytes = part.dirty();
        let holder = &self.fleet.holders[host];
        let spaces: Vec<TierSpace> = holder.tiers.iter().map(|t| t.space).collect();
        let clean_bytes = |index: usize| holder.tiers[index].evictable_bytes;
        if let Some(index) = flash_with_clean(&spaces, clean_bytes, bytes) {
            return Some(begin + index);
        }
        let other = match part.role {
            Role::Second => Role::First,
            Role::First | Role::Restart | Role::Moved => Role::Second,
        };
        // Both copies on one node would be one.
        let other = self.part_of(part.app, part.version, part.slot, other);
        let beside = other.map(|id| self.nodes[self.parts[id].node as usize].host as usize);
        let growing = Growing {
            wanted: wanted(nodes, object(part.app, part.version, part.slot), bytes),
            tier: node - begin,
            held_bytes: bytes,
            more_bytes: 1,
            is_written_unseen: false,
        };
        if let Some(beside) = beside {
            self.fleet.holders[beside].is_emptied = true;
        }
        let found = when_full(HolderId(host as u16), &self.fleet.holders, &growing);
        if let Some(beside) = beside {
            self.fleet.holders[beside].is_emptied = false;
        }
        match found {
            WhenFull::HandOver { to, .. } => Some(self.pool_for(to, &growing.wanted)),
            WhenFull::OtherTier(index) => Some(begin + index),
            WhenFull::Goes | WhenFull::Evict { .. } | WhenFull::Wait | WhenFull::Pfs => None,
        }
        .filter(|to| *to != node)
    }

    /// The part stays where it is, and is read there, until all of it has arrived.
    pub(super) fn move_part(&mut self, id: PartId, to: usize) {
        let node = self.parts[id].node as usize;
        self.parts[id].state = State::Moving;
        let part = self.parts[id];
        let way = Way {
            from: Some(self.nodes[node].host),
            to: Some(self.nodes[to].host),
        };
        let copy = self.add_copy(to, &part, Role::Moved, part.resident(), way);
        self.nodes[node].moving = Some((id, copy));
    }

    /// All of a part has arrived: it is there from now on.
    pub(super) fn end_move(&mut self, copy: PartId) {
        let Some(node) = self.moves_from(copy) else {
            return;
        };
        // Who needs the space of a clean copy may end its move by then.
        self.advance(node);
        let Some((id, _)) = self.nodes[node].moving.take() else {
            return;
        };
        let (part, to) = (self.parts[id], self.parts[copy].node as usize);
        let bytes = part.resident();
        self.fleet.is_moving = true;
        self.drop_part(id);
        self.fleet.is_moving = false;
        let is_first = part.role == Role::First;
        self.parts[copy] = Part {
            node: to as u32,
            ..part
        };
        if is_first {
            // Until now all of it counted as undrained.
            let n = &mut self.nodes[to];
            n.seconds -= bytes;
            n.dirty -= part.clean();
            n.clean += part.clean();
        }
        self.comes_to_rest(copy);
        if is_first {
            self.rename_unprotected(id, copy);
        }
        let is_near = self.nodes[to].host == self.nodes[node].host;
        if let Some(borrowed) = &mut self.nodes[node].borrowed {
            match is_near {
                true => borrowed.sums.moved_to_flash_bytes += bytes,
                false => borrowed.sums.moved_to_nodes_bytes += bytes,
            }
        }
        self.touched.extend([node, to]);
        self.put_off(PutOff::GiveBack(node));
    }

    /// A first part has another name now, by which its second copy is wanted.
    fn rename_unprotected(&mut self, old: PartId, new: PartId) {
        if self.fleet.replicas == 1 {
            return;
        }
        self.fleet.lost_copies.settled(u64::from(old));
        let part = self.parts[new];
        let a = &self.apps[part.app as usize];
        // The second copy of what is still being written waits for its turn, and will come.
        if a.version == part.version && a.phase.is_some_and(|phase| !phase.is_read) {
            return;
        }
        let second = self.part_of(part.app, part.version, part.slot, Role::Second);
        if second.is_none() {
            self.wants_second(new);
        }
    }

    /// A part that moved is somewhere, and may be drained or evicted there.
    fn comes_to_rest(&mut self, id: PartId) {
        let part = &mut self.parts[id];
        part.state = match part.role {
            Role::Second => State::Second,
            _ if part.dirty() == 0 => State::Clean,
            Role::First | Role::Restart | Role::Moved => State::Dirty,
        };
        let part = *part;
        let mtbf_s = self.apps[part.app as usize].known_mtbf_s;
        let candidate = part.candidate(id, mtbf_s);
        let n = &mut self.nodes[part.node as usize];
        match part.state {
            State::Dirty => n.dirty_queue.insert(&candidate),
            State::Clean => n.clean_queue.insert(&candidate),
            State::Writing | State::Demoting | State::Second | State::Moving => {}
        }
    }

    /// The tier that a copy which is filled comes from.
    fn moves_from(&self, copy: PartId) -> Option<usize> {
        let mut nodes = self.nodes.iter();
        nodes.position(|n| n.moving.is_some_and(|moving| moving.1 == copy))
    }

    /// A part has gone that moved, or what had arrived of one: nothing moves any more.
    pub(super) fn move_ends_with(&mut self, id: PartId, part: &Part) {
        if self.scenario.nodes.is_none() {
            return;
        }
        if part.role == Role::Moved {
            if let Some(node) = self.moves_from(id) {
                self.stays(node);
            }
        } else if part.state == State::Moving
            && let Some((_, copy)) = self.nodes[part.node as usize].moving.take()
        {
            self.drop_copy(copy);
        }
    }

    /// A part that may be moving stays where it is.
    pub(in super::super) fn stop_moving(&mut self, id: PartId) {
        let part = &self.parts[id];
        if part.state == State::Moving
            && let Some((_, copy)) = self.nodes[part.node as usize].moving
        {
            self.drop_copy(copy);
        }
    }

    /// What moved from a tier does not go on moving.
    fn stays(&mut self, node: usize) {
        let Some((id, _)) = self.nodes[node].moving.take() else {
            return;
        };
        self.comes_to_rest(id);
        self.touched.push(node);
        self.put_off(PutOff::GiveBack(node));
    }
}
