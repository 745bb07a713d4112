//! Ids of objects, and which of them have been on record.
//!
//! A new file's record follows its object by some milliseconds, so a start takes an object without
//! a record for a new file. What a move or a copy has left of a file that is gone looks the same,
//! and carries a name as well. A watermark in the store tells one from the other:
//!
//! 1. Each id below the watermark was on record, or given up, before the commit that the watermark
//!    came with: a loss of power, which keeps a prefix of the commits, keeps both or none.
//! 2. The watermark stands still until a start has looked at all objects without a record.
//! 3. In a tier that a start has not looked at, ids from the watermark of before up to that start
//!    count as never recorded, until a start settles the tier; so does what was kept for `fsck`.

use std::collections::{BTreeMap, BTreeSet};

use forebay_types::{ObjectId, TierId};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Where the watermark is in the store, in big-endian.
pub(crate) const RECORDED_BELOW_KEY: &[u8] = b"c/recorded-below";
/// Ids are set aside in the store so many at a time.
const AHEAD: u64 = 1 << 20;

/// Ids from the first, below the second.
type Span = (u64, u64);

fn covers(span: Option<&Span>, id: u64) -> bool {
    span.is_some_and(|(from, to)| (*from..*to).contains(&id))
}

/// Where ids below the watermark may stand for files that were never recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unsettled {
    /// By tier.
    tiers: BTreeMap<u8, Span>,
    /// In any tier: their records were taken away.
    everywhere: Option<Span>,
    /// Objects that were kept where they are, by tier.
    kept: BTreeSet<(u8, u64)>,
}

impl Unsettled {
    /// Where nothing is known, of ids below `next`.
    pub(crate) fn all(next: u64) -> Unsettled {
        Unsettled {
            everywhere: Some((0, next)),
            ..Unsettled::default()
        }
    }

    fn has(&self, tier: TierId, id: u64) -> bool {
        covers(self.tiers.get(&tier.0), id)
            || covers(self.everywhere.as_ref(), id)
            || self.kept.contains(&(tier.0, id))
    }

    /// A start has looked at all tiers but `tiers`, and kept these.
    fn after_start(
        &self,
        tiers: &[TierId],
        kept: &[(TierId, ObjectId)],
        (watermark, next): Span,
    ) -> Unsettled {
        let everywhere = self.everywhere.map_or(watermark, |span| span.0);
        let from = |tier: &TierId| self.tiers.get(&tier.0).map_or(watermark, |span| span.0);
        let is_known = |(tier, _): &&(u8, u64)| tiers.contains(&TierId(*tier));
        let now = kept.iter().map(|(tier, object)| (tier.0, object.0));
        Unsettled {
            tiers: tiers
                .iter()
                .map(|tier| (tier.0, (from(tier).min(everywhere), next)))
                .collect(),
            everywhere: None,
            kept: self
                .kept
                .iter()
                .filter(is_known)
                .copied()
                .chain(now)
                .collect(),
        }
    }
}

/// What has been given out.
struct State {
    next: u64,
    /// Given out, and neither recorded nor given up.
    open: BTreeSet<u64>,
    /// Those below it are set aside in the store.
    limit: u64,
    /// The watermark that was written last.
    noted: u64,
    /// A start has settled what there was before.
    settled: bool,
    unsettled: Unsettled,
}

/// Ids that were given out.
pub(crate) struct Ids {
    state: Mutex<State>,
    /// Held by who sets ids aside.
    setting_aside: Mutex<()>,
    /// The watermark that this start has found.
    before: u64,
}

impl Ids {
    /// As they are on record: the next id, the watermark, and what is not settled.
    pub(crate) fn new(next: u64, before: u64, unsettled: Unsettled) -> Ids {
        let state = State {
            next,
            open: BTreeSet::new(),
            limit: next,
            noted: before,
            settled: false,
            unsettled,
        };
        Ids {
            state: Mutex::new(state),
            setting_aside: Mutex::new(()),
            before,
        }
    }

    /// The watermark, where it has risen since it was written.
    pub(crate) fn to_note(&self) -> Option<u64> {
        let state = self.state.lock();
        let below = state.open.first().copied().unwrap_or(state.next);
        // A start gives ids from the limit on out again.
        let below = below.min(state.limit);
        (state.settled && below > state.noted).then_some(below)
    }

    /// A commit has taken these on record, or off it, and `noted` as the watermark.
    pub(crate) fn committed<'a>(
        &self,
        objects: impl Iterator<Item = &'a ObjectId>,
        noted: Option<u64>,
    ) {
        let mut state = self.state.lock();
        for object in objects {
            state.open.remove(&object.0);
        }
        state.noted = state.noted.max(noted.unwrap_or(0));
    }

    /// An id that has never been used. Where it is not set aside yet, `set_aside` puts the limit
    /// that it is called with on record.
    pub(crate) fn give_out<E>(
        &self,
        set_aside: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<ObjectId, E> {
        let (id, limit) = {
            let mut state = self.state.lock();
            let id = state.next;
            state.next += 1;
            state.open.insert(id);
            (id, state.limit)
        };
        if id >= limit
            && let Err(error) = self.raise_limit(id, set_aside)
        {
            self.give_up(ObjectId(id));
            return Err(error);
        }
        Ok(ObjectId(id))
    }

    fn raise_limit<E>(
        &self,
        id: u64,
        set_aside: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let _one_at_a_time = self.setting_aside.lock();
        if id < self.state.lock().limit {
            return Ok(());
        }
        let limit = id + AHEAD;
        set_aside(limit)?;
        self.state.lock().limit = limit;
        Ok(())
    }

    /// Nothing has this id, or is going to.
    pub(crate) fn give_up(&self, object: ObjectId) {
        self.state.lock().open.remove(&object.0);
    }

    /// Whether an object that a start has found in a tier was on record once, or given up.
    pub(crate) fn was_recorded(&self, object: ObjectId, tier: TierId) -> bool {
        object.0 < self.before && !self.state.lock().unsettled.has(tier, object.0)
    }

    /// What is not settled now, and what is after a start that has looked at all tiers but `tiers`,
    /// and kept these objects.
    pub(crate) fn after_start(
        &self,
        tiers: &[TierId],
        kept: &[(TierId, ObjectId)],
    ) -> (Unsettled, Unsettled) {
        let state = self.state.lock();
        let span = (self.before, state.next);
        let after = state.unsettled.after_start(tiers, kept, span);
        (state.unsettled.clone(), after)
    }

    /// The start is over, and `unsettled` on record.
    pub(crate) fn settle(&self, unsettled: Unsettled) {
        let mut state = self.state.lock();
        (state.unsettled, state.settled) = (unsettled, true);
    }

    /// An id counts as never recorded, whatever the watermark says. Returns what is to be recorded.
    pub(crate) fn take_for_new(&self, object: ObjectId) -> Unsettled {
        let mut state = self.state.lock();
        let (from, to) = state.unsettled.everywhere.unwrap_or((object.0, 0));
        let span = (from.min(object.0), to.max(object.0 + 1));
        state.unsettled.everywhere = Some(span);
        state.unsettled.clone()
    }
}
