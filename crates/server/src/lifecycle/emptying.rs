//! Empties nodes: what is not drained there is drained now or moves to another node, what is
//! drained is dropped.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_namespace::File;
use forebay_policy::demotion::order_demotion;
use forebay_policy::emptying::{Departure, Leaving, LeavingRates, leave};
use forebay_policy::holders::{Holder, HolderId, HolderRule};
use forebay_tiers::CopyControl;
use forebay_types::{ObjectId, TierId};

use crate::buffer::emptying::{Held, Leaver};
use crate::lifecycle::Lifecycle;

/// Between two looks while a node is emptied.
const EVERY: Duration = Duration::from_millis(200);
/// Between two looks whether one is to be.
const IDLE: Duration = Duration::from_millis(500);
/// A look at all files takes one part in so many of the time at most.
const SHARE_OF_TIME: u32 = 10;
/// Files that one look has drained before their time: others that somebody waits for come between.
const URGED_MAX: usize = 1024;
/// Open files that are named.
const NAMED_MAX: usize = 10;

/// The thread that does it.
pub fn run(lifecycle: &Arc<Lifecycle>) {
    while !lifecycle.base.is_ending() {
        let begun = Instant::now();
        let pause = match lifecycle.buffer.emptying().servers().is_empty() {
            true => IDLE,
            false => {
                lifecycle.empty_nodes();
                EVERY.max(begun.elapsed() * SHARE_OF_TIME)
            }
        };
        lifecycle.base.life().pause(pause);
    }
}

/// The thread that moves files to other nodes. It may hang with a node.
pub fn move_files(lifecycle: &Arc<Lifecycle>) {
    while !lifecycle.base.is_ending() {
        match lifecycle.buffer.emptying().next_leaver() {
            Some(leaver) => {
                let done = lifecycle.move_one(&leaver);
                lifecycle.buffer.emptying().moved(&leaver, done);
            }
            None => lifecycle.base.life().pause(EVERY),
        }
    }
}

/// Files of a node that is to be empty that may move or be drained, and nobody has open.
type AtRest = BTreeMap<u16, Vec<Arc<File>>>;

impl Lifecycle {
    /// One look at all files.
    pub(crate) fn empty_nodes(&self) {
        let is_silent = self.base.health().is_silent();
        let emptying = self.buffer.emptying();
        emptying.try_again();
        let mut held: BTreeMap<u16, Held> = BTreeMap::new();
        let (mut urged, mut evicted) = (0, false);
        let mut at_rest = AtRest::new();
        for file in self.buffer.files() {
            if self.base.is_ending() {
                return;
            }
            let Some(server) = self.emptied_server_of(&file) else {
                continue;
            };
            if self.drop_copy_for_restarts(&file, server) {
                continue;
            }
            let (clean, unlinked) = {
                let state = file.lock();
                (state.residency.clean, state.is_unlinked())
            };
            let is_open = self.buffer.opens().is_open_now(file.ino);
            if !clean && !unlinked && !is_open && self.may_move(&file, server) {
                at_rest.entry(server).or_default().push(file);
                continue;
            }
            if !clean && !unlinked && self.buffer.queue().knows(file.object) {
                self.urge(&file, &mut urged);
                continue;
            }
            if is_open {
                let held = held.entry(server).or_default();
                held.files += 1;
                if held.paths.len() < NAMED_MAX {
                    held.paths.push(file.path());
                }
            } else if clean && !is_silent {
                evicted |= self.buffer.evict(&file).is_some();
            }
        }
        emptying.note_held(held);
        self.part(at_rest, is_silent, &mut urged);
        if evicted {
            self.buffer.wake_collector();
        }
    }

    /// A clean file of another node has only a copy on this one, which promises nothing: the copy
    /// goes, whoever has the file open. Whether it is such a file.
    fn drop_copy_for_restarts(&self, file: &Arc<File>, server: u16) -> bool {
        let residency = file.lock().residency;
        let (true, Some((tier, _))) = (residency.clean, residency.shadow) else {
            return false;
        };
        let slot = self.buffer.tiers().get(residency.tier);
        if slot.is_some_and(|slot| slot.server == server) {
            return false;
        }
        let Some(_copying) = file.try_copying() else {
            return true;
        };
        match self.base.ns().leave_restart_copy(file) {
            Ok(Some(_)) => self.buffer.drop_shadow(file, tier),
            Ok(None) => {}
            Err(error) => tracing::warn!("object {}: {error}", file.object),
        }
        true
    }

    /// It is drained before others.
    fn urge(&self, file: &File, urged: &mut usize) {
        let queue = self.buffer.queue();
        if *urged < URGED_MAX && queue.knows(file.object) {
            queue.urge_again(file.object);
            *urged += 1;
        }
    }

    /// Whether a file may go to another node undrained: it lies on this one, and that was not
    /// refused a moment ago.
    fn may_move(&self, file: &File, server: u16) -> bool {
        let slot = self.buffer.tiers().get(file.tier());
        slot.is_some_and(|slot| slot.server == server && slot.tier.is_answering())
            && !self.buffer.emptying().stays(file.object)
    }

    /// Has files drained or moved, as the policy says.
    fn part(&self, at_rest: AtRest, is_silent: bool, urged: &mut usize) {
        let nodes = at_rest.len().max(1) as f64;
        let rates = LeavingRates {
            drain_bytes_per_s: self.drain_rate(is_silent) / nodes,
            move_bytes_per_s: self.settings.replica_rate_bytes_per_s as f64 / nodes,
        };
        let mut leavers = Vec::new();
        for (server, files) in at_rest {
            for (id, departure) in self.departures(server, &files, &rates) {
                let object = ObjectId(id);
                match departure {
                    Departure::Move(to) | Departure::Promote(to) => {
                        leavers.push(Leaver { object, to: to.0 });
                    }
                    Departure::Drain if !self.buffer.emptying().is_moving(object) => {
                        if let Some(file) = self.buffer.file(object) {
                            self.urge(&file, urged);
                        }
                    }
                    Departure::Drain | Departure::Drop => {}
                }
            }
        }
        self.buffer.emptying().note_leavers(leavers.into_iter());
    }

    /// What the PFS takes, as far as is known; bytes/s.
    fn drain_rate(&self, is_silent: bool) -> f64 {
        let queue = self.buffer.queue();
        let measured = queue.rate_bytes_per_s();
        let planned = self.plan.engine().bandwidths();
        match planned {
            _ if is_silent || (measured == 0 && queue.failing().0 > 0) => 0.0,
            _ if measured > 0 => measured as f64,
            Some(bandwidths) => bandwidths.br_max_bytes_per_s,
            // Nothing was drained yet: half is moved.
            None => self.settings.replica_rate_bytes_per_s as f64,
        }
    }

    fn departures(
        &self,
        server: u16,
        files: &[Arc<File>],
        rates: &LeavingRates,
    ) -> Vec<(u64, Departure)> {
        let apps = self.catalog.apps();
        let bytes = |file: &File| self.buffer.ledger().used_bytes(file.object);
        let candidate = |file: &Arc<File>| apps.candidate(file.object, bytes(file), false);
        let mut victims: Vec<_> = files.iter().map(candidate).collect();
        order_demotion(self.plan.engine().placement(), &mut victims, apps.now_s());
        let by_id: HashMap<u64, &Arc<File>> = files.iter().map(|f| (f.object.0, f)).collect();
        let rule = HolderRule::default();
        let leaving = victims.iter().map(|victim| {
            let file = by_id[&victim.id];
            let second = self.files.second_of(file).map(|(tier, _)| tier);
            let second = second.filter(|tier| !self.buffer.is_closed(*tier));
            let copy_at = second.and_then(|tier| self.buffer.tiers().get(tier));
            Leaving {
                id: victim.id,
                bytes: victim.bytes,
                is_clean: false,
                is_outdated: victim.outdated,
                in_use: false,
                copy_at: copy_at.map(|slot| HolderId(slot.server)),
                wanted: self.files.wanted_elsewhere(file, &rule),
            }
        });
        let leaving: Vec<_> = leaving.collect();
        let mut holders = self.files.holders(&self.buffer.spaces());
        holders.retain(|holder| holder.id.0 != server);
        holders.push(Holder {
            id: HolderId(server),
            rack: self.files.rack(server),
            is_answering: true,
            is_emptied: true,
            tiers: Vec::new(),
            load_bytes: 0,
        });
        leave(HolderId(server), &leaving, &holders, rates)
    }

    /// Whether it has left.
    fn move_one(&self, leaver: &Leaver) -> bool {
        let Some(file) = self.buffer.file(leaver.object) else {
            return true;
        };
        let Some(server) = self.emptied_server_of(&file) else {
            return true;
        };
        let second = self.files.second_of(&file).map(|(tier, _)| tier);
        let bytes = self.buffer.ledger().used_bytes(file.object);
        let rule = HolderRule::default();
        let wanted = self.files.wanted_elsewhere(&file, &rule);
        let is_there = |tier: &TierId| {
            let slot = self.buffer.tiers().get(*tier);
            slot.is_some_and(|slot| slot.server == leaver.to)
        };
        let with_room = || self.files.tier_with_room(leaver.to, &wanted, bytes);
        let Some(to) = second.filter(is_there).or_else(with_room) else {
            return false;
        };
        let rate = self.settings.replica_rate_bytes_per_s as f64;
        let control = CopyControl {
            // Whoever has it now may wait for the right to copy it.
            stop: &|| {
                self.base.is_ending()
                    || !self.buffer.emptying().has(server)
                    || self.buffer.opens().is_open_now(file.ino)
            },
            moved: &|bytes, _| {
                let pause = Duration::from_secs_f64(bytes as f64 / rate);
                self.pause_unless(pause, &|| self.buffer.opens().is_open_now(file.ino));
            },
        };
        match self.files.move_to_node(&file, to, &control) {
            Ok(done) => done,
            // Stopped for who has opened it: it leaves after its close.
            Err(_) if self.buffer.opens().is_open_now(file.ino) => false,
            Err(failure) => {
                let name = self.buffer.tiers().called(to);
                tracing::warn!(
                    "{}: cannot move to {name}: {failure}",
                    file.path().escape_ascii()
                );
                false
            }
        }
    }

    /// The node that is to be empty and has the file, or a copy of it.
    fn emptied_server_of(&self, file: &File) -> Option<u16> {
        let residency = file.lock().residency;
        let copy = residency.shadow.map(|(tier, _)| tier);
        let mut tiers = std::iter::once(residency.tier).chain(copy);
        tiers.find_map(|tier| {
            let server = self.buffer.tiers().get(tier)?.server;
            self.buffer.emptying().has(server).then_some(server)
        })
    }
}
