//! Empties nodes: what is not drained there is drained now or moves to another node, what is
//! drained is dropped.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_namespace::File;
use forebay_policy::demotion::order_demotion;
use forebay_policy::durability::Durability;
use forebay_policy::emptying::{Departure, Leaving, LeavingRates, is_waited_for, leave};
use forebay_policy::holders::{Holder, HolderId};
use forebay_tiers::CopyControl;
use forebay_types::{ObjectId, TierId};
use forebay_wire::control::Awaited;

use crate::base::failure::Failure;
use crate::buffer::emptying::{Held, Leaver, Seen};
use crate::buffer::opens::OpenFile;
use crate::files::changeover;
use crate::lifecycle::Lifecycle;

/// Between two looks while a node is emptied.
const EVERY: Duration = Duration::from_millis(200);
/// Between two looks whether one is to be.
const IDLE: Duration = Duration::from_millis(500);
/// A look at all files takes one part in so many of the time at most.
const SHARE_OF_TIME: u32 = 10;
/// Files that one look has drained before their time: others that somebody waits for come between.
const URGED_MAX: usize = 1024;

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

/// Files of a node that is to be empty that may move or be drained, and whether somebody has them
/// open.
type ByNode = BTreeMap<u16, Vec<(Arc<File>, bool)>>;

impl Lifecycle {
    /// One look at all files.
    pub(crate) fn empty_nodes(&self) {
        let is_silent = self.base.health().is_silent();
        let emptying = self.buffer.emptying();
        emptying.try_again();
        let mut held: BTreeMap<u16, Held> = BTreeMap::new();
        let (before, mut seen, now) = (emptying.take_seen(), Seen::default(), Instant::now());
        let (mut urged, mut evicted) = (0, false);
        let mut leaving = ByNode::new();
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
            let (clean, unlinked, generation) = {
                let state = file.lock();
                (
                    state.residency.clean,
                    state.is_unlinked(),
                    state.generation(),
                )
            };
            let is_open = self.buffer.opens().is_open_now(file.ino);
            let is_second = !self.is_on(&file, server);
            if is_open {
                held.entry(server).or_default().open_files += 1;
            }
            let is_busy = !is_open
                && !clean
                && !unlinked
                && seen.go_on(&before, (file.object, generation), now);
            let why = match (is_open, is_busy, is_second) {
                (true, _, true) => Some(Awaited::SecondOfOpen),
                (true, _, false) => (!self.may_move(&file, server)).then_some(Awaited::Open),
                (false, true, true) => Some(Awaited::SecondChanges),
                (false, true, false) => Some(Awaited::Changes),
                (false, false, _) => None,
            };
            if let Some(why) = why {
                let held = held.entry(server).or_default();
                held.name(|| file.path(), why);
            }
            // A clean copy that nobody has open is dropped.
            if !unlinked && (is_open || !clean) && self.may_move(&file, server) {
                leaving.entry(server).or_default().push((file, is_open));
                continue;
            }
            if !clean && !unlinked && self.buffer.queue().knows(file.object) {
                self.urge(&file, &mut urged);
                continue;
            }
            if !is_open && clean && !is_silent {
                evicted |= self.buffer.evict(&file).is_some();
            }
        }
        emptying.note_held(held, seen);
        self.part(leaving, is_silent, &mut urged);
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

    /// Whether a file, not only its second copy, is on a node.
    fn is_on(&self, file: &File, server: u16) -> bool {
        let slot = self.buffer.tiers().get(file.tier());
        slot.is_some_and(|slot| slot.server == server)
    }

    /// Whether a file may go to another node undrained: it lies on this one, and that was not
    /// refused a moment ago.
    fn may_move(&self, file: &File, server: u16) -> bool {
        let slot = self.buffer.tiers().get(file.tier());
        slot.is_some_and(|slot| slot.server == server && slot.tier.is_answering())
            && !self.buffer.emptying().stays(file.object)
    }

    /// Has files drained or moved, as the policy says.
    fn part(&self, leaving: ByNode, is_silent: bool, urged: &mut usize) {
        let nodes = leaving.len().max(1) as f64;
        let rates = LeavingRates {
            drain_bytes_per_s: self.drain_rate(is_silent) / nodes,
            move_bytes_per_s: self.settings.replica_rate_bytes_per_s as f64 / nodes,
        };
        let mut leavers = Vec::new();
        for (server, files) in leaving {
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
        files: &[(Arc<File>, bool)],
        rates: &LeavingRates,
    ) -> Vec<(u64, Departure)> {
        let apps = self.catalog.apps();
        let bytes = |file: &File| self.buffer.ledger().used_bytes(file.object);
        let candidate =
            |(file, _): &(Arc<File>, bool)| apps.candidate(file.object, bytes(file), false);
        let mut victims: Vec<_> = files.iter().map(candidate).collect();
        order_demotion(self.plan.engine().placement(), &mut victims, apps.now_s());
        let by_id: HashMap<u64, _> = files.iter().map(|f| (f.0.object.0, f)).collect();
        let leaving = victims.iter().map(|victim| {
            let (file, in_use) = by_id[&victim.id];
            let second = self.files.second_of(file).map(|(tier, _)| tier);
            let second = second.filter(|tier| !self.buffer.is_closed(*tier));
            let copy_at = second.and_then(|tier| self.buffer.tiers().get(tier));
            Leaving {
                id: victim.id,
                bytes: victim.bytes,
                // What is clean and open cannot be dropped: it moves.
                is_clean: false,
                is_outdated: victim.outdated && !in_use,
                in_use: *in_use,
                copy_at: copy_at.map(|slot| HolderId(slot.server)),
                keeps_two: self.catalog.durability_of_file(file) == Durability::Replica,
                wanted: (self.files).wanted_elsewhere(file, self.catalog.holder_rule_of_file(file)),
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
        let rule = self.catalog.holder_rule_of_file(&file);
        let wanted = self.files.wanted_elsewhere(&file, rule);
        let is_there = |tier: &TierId| {
            let slot = self.buffer.tiers().get(*tier);
            slot.is_some_and(|slot| slot.server == leaver.to)
        };
        let with_room = || self.files.tier_with_room(leaver.to, &wanted, bytes);
        let Some(to) = second.filter(is_there).or_else(with_room) else {
            return false;
        };
        let rate = self.settings.replica_rate_bytes_per_s as f64;
        let is_over = || self.base.is_ending() || !self.buffer.emptying().has(server);
        let done = match self.buffer.opens().by_ino(file.ino) {
            Some(open) => self.move_open(&file, &open, to, &is_over),
            None => {
                // Whoever opens it then may wait for the right to copy it.
                let is_opened = || self.buffer.opens().is_open_now(file.ino);
                let control = CopyControl {
                    stop: &|| is_over() || is_opened(),
                    moved: &|bytes, _| {
                        let pause = Duration::from_secs_f64(bytes as f64 / rate);
                        self.pause_unless(pause, &|| {
                            is_over() || is_opened() || file.is_copy_wanted()
                        });
                    },
                };
                self.files.move_to_node(&file, to, &control)
            }
        };
        match done {
            Ok(done) => done,
            // Stopped for who has opened it, or waits for it: it is tried again.
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

    /// The same while somebody has it open. Who waits for the file is not held up for the rate,
    /// and not for long.
    fn move_open(
        &self,
        file: &Arc<File>,
        open: &OpenFile,
        to: TierId,
        is_over: &(dyn Fn() -> bool + Sync),
    ) -> Result<bool, Failure> {
        let rate = self.settings.replica_rate_bytes_per_s as f64;
        // What it has grown to since it was opened is not booked yet.
        let bytes = open.target.read().object().stat()?.allocated_bytes;
        let left_bytes = AtomicU64::new(bytes);
        let is_wanted = || open.unsent.is_wanted() || file.is_copy_wanted();
        let control = CopyControl {
            stop: &|| {
                is_over() || (is_wanted() && !is_waited_for(left_bytes.load(Ordering::Relaxed)))
            },
            moved: &|bytes, _| {
                let left = left_bytes.load(Ordering::Relaxed).saturating_sub(bytes);
                left_bytes.store(left, Ordering::Relaxed);
                let pause = Duration::from_secs_f64(bytes as f64 / rate);
                self.pause_unless(pause, &|| is_over() || is_wanted());
            },
        };
        let leaving = changeover::Leaving {
            file,
            open,
            to,
            ahead_bytes: 0,
        };
        self.files.move_open_to_node(leaving, &control)
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
