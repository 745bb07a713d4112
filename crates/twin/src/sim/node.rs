//! One burst-buffer node: a ledger of bytes, who writes, what is demoted.

use std::collections::BTreeMap;

use forebay_policy::demotion::PlacementPolicy;
use forebay_policy::forecast::Meter;
use forebay_policy::holders::HolderTier;
use forebay_policy::placement::{SPACE_UNIT_BYTES, TierKind, TierSpace};
use forebay_policy::plan::{InterferenceLine, Plan, PlanInput};
use forebay_policy::queue::VictimQueue;
use forebay_policy::schedule::{Class, Scheduler, TurnEnd};
use forebay_policy::share::Shares;

use super::fleet::Borrowed;
use super::part::PartId;

/// What an application does with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Writes a part.
    Write(PartId),
    /// Writes the second copy of a part, which its application waits for, too.
    Second(PartId),
    /// Reads a checkpoint after a restart.
    Read,
    /// Fills a copy that no application waits for.
    Copy(PartId),
}

impl Access {
    /// The part that is filled.
    pub fn part(self) -> Option<PartId> {
        match self {
            Access::Write(part) | Access::Second(part) | Access::Copy(part) => Some(part),
            Access::Read => None,
        }
    }
}

/// The hosts that bytes go from and to, where a link is between them; `None`: a compute node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Way {
    pub from: Option<u32>,
    pub to: Option<u32>,
}

/// A request that has its turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Worker {
    pub app: u32,
    pub access: Access,
    pub remaining: u64,
    /// Rate in this step, bytes/s.
    pub rate: f64,
    /// Part of a byte left from the step before.
    pub carry: f64,
    pub stall_s: f64,
    /// Links that the bytes go over; `None`: none.
    pub way: Option<Way>,
}

/// A request that waits for a turn, or for space of its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub app: u32,
    /// Attempts of the application when the request came; a later attempt makes the request void.
    pub attempt: u32,
    /// Bytes to write or read.
    pub bytes: u64,
    pub is_read: bool,
    /// When the request began to wait for space of its own.
    pub since_s: f64,
    /// Which part of the checkpoint.
    pub slot: u32,
    /// It is the second copy of that part.
    pub is_second: bool,
    /// For a first part that another node has handed over.
    pub moved: Option<Moved>,
}

/// What a part brings along that another node has handed over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moved {
    /// Time that it has stalled there.
    pub stalled_s: f64,
    pub is_drained_by_fsync: bool,
}

/// `dirty + clean ≤ most`, always: bytes are whole numbers, and none is written before its space is
/// free. `most` is the capacity. Only where memory was given back it is more: what is in it stays
/// until it has left, nothing comes meanwhile, and `most` falls with it down to the capacity.
pub(super) struct Node {
    /// The data server that it is a tier of.
    pub host: u32,
    pub kind: TierKind,
    pub is_up: bool,
    /// What the node plans with, where it plans for itself.
    pub input: PlanInput,
    pub read_bytes_per_s: f64,
    /// Bytes of checkpoints that wait for their turn here.
    pub queued: u64,
    /// Who waits for a turn here, and its attempt; kept where nodes fail.
    pub waiting: Vec<(u32, u32)>,
    /// Of the dirty bytes, those of second copies: they leave when the first copy is drained.
    pub seconds: u64,
    /// Most bytes at any time.
    pub peak: u64,
    pub drained: u64,
    pub written: u64,
    pub capacity: u64,
    /// The capacity, or what was there when it was lowered, as far as that has not left.
    pub most: u64,
    /// The most that the capacity ever is.
    pub full: u64,
    /// Where it is memory that jobs may want back.
    pub borrowed: Option<Box<Borrowed>>,
    /// The part that moves away, and what has arrived of it.
    pub moving: Option<(PartId, PartId)>,
    /// Files are forced out that can move nowhere: they are drained in a hurry.
    pub is_forced_out: bool,
    pub dirty: u64,
    pub clean: u64,
    pub workers: Vec<Worker>,
    /// Checkpoints that write straight to the PFS, and would otherwise have come to this node.
    pub direct: u32,
    pub scheduler: Scheduler<Request>,
    /// Policy `dedicated`: what applications own, and who waits for its own data to leave.
    pub shares: Option<Shares>,
    pub blocked: Vec<Request>,
    pub demoting: Option<PartId>,
    pub dirty_queue: VictimQueue,
    pub clean_queue: VictimQueue,
    pub meter: Meter,
    /// DWPP that the plan was made for.
    pub planned_bytes: Option<u64>,
    pub plan: Option<Plan>,
    pub line: Option<InterferenceLine>,
    /// Applications with bytes here, by the bits of their MTBF; kept for direct checkpoints only.
    pub residents: BTreeMap<u64, u32>,
    /// The PFS server that the node flushes to.
    pub flow: Option<u32>,
    /// Parts that the node began to flush.
    pub round: u32,

    // The step under way.
    pub last_s: f64,
    pub foreground_s: f64,
    pub demotion_rate: f64,
    pub demotion_carry: f64,
    /// Part of the time that writers cannot use for want of space.
    pub stall_share: f64,
    /// The step ends when this worker has moved everything.
    pub ends_worker: Option<usize>,
    /// The step ends when the part is demoted.
    pub ends_demotion: bool,
}

impl Node {
    pub fn new(
        capacity: u64,
        placement: PlacementPolicy,
        scheduler: Scheduler<Request>,
        shares: Option<Shares>,
        meter: Meter,
        input: PlanInput,
        read_bytes_per_s: f64,
    ) -> Self {
        Self {
            host: 0,
            kind: TierKind::Ssd,
            is_up: true,
            input,
            read_bytes_per_s,
            queued: 0,
            waiting: Vec::new(),
            seconds: 0,
            peak: 0,
            drained: 0,
            written: 0,
            capacity,
            most: capacity,
            full: capacity,
            borrowed: None,
            moving: None,
            is_forced_out: false,
            dirty: 0,
            clean: 0,
            workers: Vec::new(),
            direct: 0,
            scheduler,
            shares,
            blocked: Vec::new(),
            demoting: None,
            dirty_queue: VictimQueue::new(placement),
            clean_queue: VictimQueue::new(placement),
            meter,
            planned_bytes: None,
            plan: None,
            line: InterferenceLine::through(&input),
            residents: BTreeMap::new(),
            flow: None,
            round: 0,
            last_s: 0.0,
            foreground_s: 0.0,
            demotion_rate: 0.0,
            demotion_carry: 0.0,
            stall_share: 0.0,
            ends_worker: None,
            ends_demotion: false,
        }
    }

    pub fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.used())
    }

    pub fn used(&self) -> u64 {
        self.dirty + self.clean
    }

    /// What it has beyond its capacity: memory that was given back and is still occupied.
    pub fn owed(&self) -> u64 {
        self.used().saturating_sub(self.capacity)
    }

    /// Whether jobs wait for memory that only demotion can free, or files are forced out so.
    pub fn must_drain(&self) -> bool {
        let is_stuck = self.borrowed.as_ref().is_some_and(|b| b.is_stuck) && self.owed() > 0;
        is_stuck || (self.is_forced_out && self.dirty > self.seconds)
    }

    /// What eviction would make free.
    fn evictable(&self) -> u64 {
        self.clean.saturating_sub(self.owed())
    }

    /// Whether an application reads or writes: demotion that runs only in pauses waits then.
    pub fn is_busy(&self) -> bool {
        self.direct > 0 || self.workers.iter().any(|w| !is_copy(w))
    }

    /// Bytes that are set aside: checkpoints that wait for their turn here, and what is still to
    /// come of those that have it.
    pub fn reserved(&self) -> u64 {
        let filling = self.workers.iter().filter(|w| w.access.part().is_some());
        self.queued + filling.map(|w| w.remaining).sum::<u64>()
    }

    /// The tier as the policy for several nodes sees it: the `index`-th of its node.
    pub fn tier(&self, index: usize) -> HolderTier {
        HolderTier {
            space: TierSpace {
                index,
                kind: self.kind,
                capacity_bytes: self.capacity,
                free_bytes: self.free(),
                reserved_bytes: self.reserved().min(self.free() + self.evictable()),
            },
            evictable_bytes: self.evictable(),
        }
    }

    /// Workers that fill a part.
    pub fn fillers(&self) -> impl Iterator<Item = &Worker> {
        self.workers.iter().filter(|w| w.access.part().is_some())
    }

    /// The unit in which space is given: less space than this counts as none. Never more than a
    /// thousandth of a small burst buffer.
    pub fn unit(&self) -> u64 {
        SPACE_UNIT_BYTES.min(self.capacity / 1024 + 1)
    }

    /// Whether all but a unit is undrained, so that a writer finds no space.
    pub fn is_full(&self) -> bool {
        self.capacity.saturating_sub(self.dirty) < self.unit()
    }

    /// The node's space as the policy sees it.
    pub fn space(&self) -> TierSpace {
        TierSpace {
            index: 0,
            kind: TierKind::Ssd,
            capacity_bytes: self.capacity,
            free_bytes: self.free(),
            reserved_bytes: 0,
        }
    }

    pub fn writers(&self) -> impl Iterator<Item = &Worker> {
        self.workers
            .iter()
            .filter(|w| matches!(w.access, Access::Write(_)))
    }

    /// Ends the turn of a request that is done, and with it the phase that the request was of.
    pub fn end_turn(&mut self, app: u64, class: Class, now_s: f64) {
        self.scheduler.finish(app, class, now_s);
        if class == Class::Checkpoint {
            self.scheduler.end_turn(app, TurnEnd::Closed, now_s);
        }
    }

    /// The part being written, where there is one; of several any.
    pub fn writing_part(&self) -> Option<PartId> {
        self.workers.iter().find_map(|w| match w.access {
            Access::Write(part) => Some(part),
            Access::Second(_) | Access::Read | Access::Copy(_) => None,
        })
    }
}

fn is_copy(worker: &Worker) -> bool {
    matches!(worker.access, Access::Copy(_))
}
